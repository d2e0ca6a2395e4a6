//! Faults of the groups.

use crate::mutants::{Mutant, Tests};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a stock is drained by a load and a store",
        file: "group/stock/atomic.rs",
        find: "let out = unpack(slot.swap(0, Ordering::Relaxed));",
        replace: "let out = seen; slot.store(0, Ordering::Relaxed);",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a changed limit is published without an exchange",
        file: "group/stock/atomic.rs",
        find: "slot.fetch_add(0, Ordering::AcqRel);",
        replace: "slot.load(Ordering::Acquire);",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a refill is not trimmed",
        file: "group/stock/atomic.rs",
        find: "let kept = if total > batch { batch / 2 } else { total };",
        replace: "let kept = total;",
        tests: Tests::Unit("group::"),
    },
    Mutant {
        name: "an uncharge over the limit goes into the stock",
        file: "group/charge.rs",
        find: "if self.is_over(group) {\n            return self.uncharge_counters(id, nr_pages);",
        replace: "if false {\n            return self.uncharge_counters(id, nr_pages);",
        tests: Tests::Model("group"),
    },
    Mutant {
        name: "a large block over the limit goes into the stock",
        file: "group/large.rs",
        find: "if nr_pages <= large && !self.is_over(group) {",
        replace: "if nr_pages <= large {",
        tests: Tests::Model("stocks"),
    },
    Mutant {
        name: "a large block stays in a stock whose bound has fallen",
        file: "group/large.rs",
        find: "if group.large() < large {",
        replace: "if false {",
        tests: Tests::Loom,
    },
    Mutant {
        name: "large blocks of all CPUs have the share of one each",
        file: "group/stock/shares.rs",
        find: "match nr_pages / u64::from(nr_cpus.max(1)) {",
        replace: "match nr_pages {",
        tests: Tests::Model("stocks"),
    },
    Mutant {
        name: "a drain of bytes reads and then zeroes",
        file: "group/stock/atomic_bytes.rs",
        find: "send_bytes(place.swap(0, Ordering::Relaxed), out);",
        replace: "send_bytes(place.load(Ordering::Relaxed), out); \
                  place.store(0, Ordering::Relaxed);",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a drain drops what is below a page",
        file: "group/bytes.rs",
        find: "Out::Bytes { group, nr_bytes } => self.park(group, nr_bytes),",
        replace: "Out::Bytes { group, nr_bytes } => self.park(group, nr_bytes & !(PAGE - 1)),",
        tests: Tests::Unit("group"),
    },
    Mutant {
        name: "a refill of bytes forgets the victim",
        file: "group/stock/atomic_bytes.rs",
        find: "Some(victim) => send_bytes(victim.swap(new, Ordering::AcqRel), out),",
        replace: "Some(victim) => victim.store(new, Ordering::Release),",
        tests: Tests::Unit("group"),
    },
    Mutant {
        name: "a refill of pages forgets the victim",
        file: "group/stock/atomic.rs",
        find: "(out.nr_pages > 0).then_some(out)",
        replace: "(out.nr_pages > 1 << 20).then_some(out)",
        tests: Tests::Unit("group"),
    },
    Mutant {
        name: "a locked drain reaches the stock without the lock",
        file: "group/stock/spinlock.rs",
        find: "let _guard = self.lock();\n            self.stock.drain(out);",
        replace: "self.stock.drain(out);",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a refused charge of bytes keeps the rest",
        file: "group/bytes.rs",
        find: "if has_rest {\n            return charge(nr_pages).inspect_err(|over| {\n \
               \x20              self.park(id, rest);",
        replace: "if has_rest { return charge(nr_pages).inspect_err(|over| {",
        tests: Tests::Model("group"),
    },
    Mutant {
        name: "a parent is not told what a child that gives back claims",
        file: "group/charge.rs",
        find: "group.sub(u64::from(nr_pages));\n        self.tell_claims(group);",
        replace: "group.sub(u64::from(nr_pages));",
        tests: Tests::Unit("group"),
    },
    Mutant {
        name: "what reclaim counted of a group goes with it",
        file: "group/mod.rs",
        find: "self.inherit_reclaim_counts(parent, group);",
        replace: "",
        tests: Tests::Unit("stat::"),
    },
    Mutant {
        name: "a parent's new record of counts takes the place of a child's",
        file: "group/reclaim_counts.rs",
        find: "if !group.take_reclaim_counts(made) {",
        replace: "group.reclaim_counts.store(made, Ordering::Release);\n        if false {",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a group leaves the walk before its owners can see that",
        file: "group/walk.rs",
        find: "group.links.is_walked.store(0, Ordering::Relaxed);\n        match is_empty() {",
        replace: "let was_empty = is_empty();\n        \
                  group.links.is_walked.store(0, Ordering::Relaxed);\n        match was_empty {",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a trigger tells twice of one window",
        file: "group/pressure/window.rs",
        find: "growth_ns < self.threshold_ns || now < self.quiet_until",
        replace: "growth_ns < self.threshold_ns",
        tests: Tests::Unit("pressure::window"),
    },
    Mutant {
        name: "what a late look finds is all of the last window",
        file: "group/pressure/window.rs",
        find: "let within_ns = part(growth_ns, self.window_ns, elapsed_ns);",
        replace: "let within_ns = growth_ns;",
        tests: Tests::Unit("pressure::window"),
    },
];
