//! Faults of the allocator and of what stands below it.

use crate::mutants::{Mutant, Tests};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "free buddies are not merged",
        file: "alloc/buddy.rs",
        find: "while order.get() < MAX_ORDER {",
        replace: "while order.get() > MAX_ORDER {",
        tests: Tests::Unit("alloc"),
    },
    Mutant {
        name: "a pageblock is joined to one of another type and keeps its own",
        file: "alloc/buddy.rs",
        find: "if other != kind {",
        replace: "if false {",
        tests: Tests::Model("alloc"),
    },
    Mutant {
        name: "a flush gives everything back in one hold",
        file: "alloc/zone/flush.rs",
        find: "let want = (nr_pages - freed).min(self.config.sizes.batch);",
        replace: "let want = nr_pages - freed;",
        tests: Tests::Unit("alloc"),
    },
    Mutant {
        name: "a cache that is held stays the one that its CPU uses",
        file: "alloc/zone/caches.rs",
        find: "        self.in_use.of(own).store(other, Ordering::Relaxed);\n",
        replace: "",
        tests: Tests::Unit("has_all_use_the_next_one"),
    },
    Mutant {
        name: "the zone is asked while another cache of the CPU has blocks",
        file: "alloc/zone/mod.rs",
        find: "|other| other.has(ask.order, kind)",
        replace: "|_| false",
        tests: Tests::Unit("all_caches_of_the_cpu"),
    },
    Mutant {
        name: "the zone is asked while another cache of the CPU has room",
        file: "alloc/zone/caches.rs",
        find: "if is_full {",
        replace: "if false {",
        tests: Tests::Unit("all_caches_of_the_cpu"),
    },
    Mutant {
        name: "zones that were passed over are not tried in the end",
        file: "alloc/scan.rs",
        find: "if scan.is_second_pass || !scan.has_skipped {",
        replace: "if true {",
        tests: Tests::Model("zones"),
    },
    Mutant {
        name: "the seed never forgets its hints",
        file: "alloc/zonelist_cache.rs",
        find: "let is_due = now.saturating_sub(last) > ZAP_INTERVAL;",
        replace: "let is_due = false;",
        tests: Tests::Unit("alloc"),
    },
    Mutant {
        name: "`adaptive` grows by pages that were never given back",
        file: "alloc/pcp_tune/adaptive.rs",
        find: "let grown = view.shared.grow(taken.min(self.out));",
        replace: "let grown = view.shared.grow(taken); self.out += grown;",
        tests: Tests::Unit("pcp_tune"),
    },
    Mutant {
        name: "`depth` follows the larger of both depths",
        file: "alloc/pcp_tune/depth.rs",
        find: "self.avg_alloc_depth.min(self.avg_free_depth)",
        replace: "self.avg_alloc_depth.max(self.avg_free_depth)",
        tests: Tests::Unit("pcp_tune"),
    },
    Mutant {
        name: "a pageblock that was cut keeps its group's name",
        file: "alloc/buddy.rs",
        find: "frames.set_last_group(first, 0);",
        replace: "let _ = first;",
        tests: Tests::Unit("memory"),
    },
    Mutant {
        name: "a pageblock with working memory becomes movable again",
        file: "alloc/buddy.rs",
        find: "(Mobility::Movable, _) if nr_fixed > 0 => return false,",
        replace: "",
        tests: Tests::Unit("evacuate"),
    },
    Mutant {
        name: "a pageblock of which a part was taken in hand is taken for untouched",
        file: "alloc/region.rs",
        find: "        self.touch(frames, (first, order));\n",
        replace: "",
        tests: Tests::Unit("alloc::region"),
    },
    Mutant {
        name: "what caches hold is missing on a node",
        file: "alloc/node.rs",
        find: "zone.nr_missing(zone.nr_free(), false)",
        replace: "zone.nr_missing(zone.nr_free_racy(), false)",
        tests: Tests::Model("balance"),
    },
    Mutant {
        name: "a try-lock takes what another thread holds",
        file: "sync.rs",
        find: ".compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed)\n            {",
        replace: ".fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| \
                  (state & POISONED == 0).then_some(HELD))\n            {",
        tests: Tests::Stress,
    },
    Mutant {
        name: "a brief try-lock takes what another thread holds",
        file: "sync.rs",
        find: "// Acquire pairs with the Release in `Guard::drop` and `Brief::open`.\n            \
               let taken = self\n                .state\n                \
               .compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed);",
        replace: "let taken = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, \
                  |state| (state & POISONED == 0).then_some(HELD));",
        tests: Tests::Unit("a_brief_hold_excludes"),
    },
    Mutant {
        name: "a list runs dry beside blocks that nobody had yet",
        file: "alloc/buddy.rs",
        find: "        self.nr_free -= order.nr_pages();\n        self.list_next(frames);\n",
        replace: "        self.nr_free -= order.nr_pages();\n",
        tests: Tests::Unit("blocks_that_nobody_had"),
    },
    Mutant {
        name: "blocks that nobody had yet are not counted as free",
        file: "alloc/buddy.rs",
        find: "buddy.nr_free += last - at;",
        replace: "",
        tests: Tests::Unit("blocks_that_nobody_had"),
    },
    Mutant {
        name: "a reservation takes the pageblocks that come next",
        file: "alloc/region.rs",
        find: "self.list_last(frames);",
        replace: "",
        tests: Tests::Unit("those_go_that_come_last"),
    },
    Mutant {
        name: "a table charges before it has its memory",
        file: "sync/table.rs",
        find: "let mut slots = room_for(nr_slots)?;\n        \
               if !charge(refused.bytes) {\n            \
               return Err(refused);\n        }",
        replace: "if !charge(refused.bytes) {\n            \
                  return Err(refused);\n        }\n        \
                  let mut slots = room_for(nr_slots)?;",
        tests: Tests::Unit("refusals"),
    },
    Mutant {
        name: "more than the budget leaves beside the memory's own evicts all pages",
        file: "memory/mod.rs",
        find: "true => max.saturating_sub(self.own_pages().into()),",
        replace: "true => max,",
        tests: Tests::Unit("memory::tests::reserve"),
    },
    Mutant {
        name: "young pages of a near node go before a far one is used",
        file: "memory/alloc.rs",
        find: "Reach::of(group).on(NodeMask::of(node)).keeping_young();",
        replace: "Reach::of(group).on(NodeMask::of(node));",
        tests: Tests::Unit("min_ttl"),
    },
    Mutant {
        name: "more than what a program has leaves evicts all pages",
        file: "memory/direct.rs",
        find: "left <= level.max() || left",
        replace: "left > 0 || left",
        tests: Tests::Unit("memory::tests::in_vain"),
    },
    Mutant {
        name: "for each large request all groups are looked at, however many",
        file: "memory/direct.rs",
        find: "            && self.groups.subtree_looks(over) <= nr_lacking\n",
        replace: "",
        tests: Tests::Unit("memory::tests::in_vain"),
    },
    Mutant {
        name: "pages that are being read are no room for a large request",
        file: "memory/rounds.rs",
        find: "reads.nr_reading + reads.nr_listed\n    }",
        replace: "reads.nr_listed\n    }",
        tests: Tests::Unit("memory::tests::reads"),
    },
    Mutant {
        name: "what a shrinker has counts as what stays",
        file: "platform.rs",
        find: "        self.shrinkers.is_any()\n",
        replace: "        false\n",
        tests: Tests::Runtime("reserve::what_is_refused"),
    },
    Mutant {
        name: "a reservation that is forced beyond a limit leaves the cache there",
        file: "memory/reserve.rs",
        find: "                || !self.may_make_room(here, level, nr_pages)\n",
        replace: "",
        tests: Tests::Unit("memory::tests::in_vain"),
    },
];
