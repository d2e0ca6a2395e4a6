//! Faults of working memory and its magazines.

use crate::mutants::{Mutant, Tests};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "the reserve of writes is not given back",
        file: "memory/bufs.rs",
        find: "None if self.frames.word(frame).has(flag::RESERVE) => ",
        replace: "None if false => ",
        tests: Tests::Unit("write"),
    },
    Mutant {
        name: "what a magazine may have is looked at before its lock is taken",
        file: "memory/bufs.rs",
        find: "if may_keep && let Some(mut open) = self.magazines.open(cpu) {\n            \
               // Under the lock: see `Magazines::forget`.\n            \
               let (room, share) = (|| self.room(form), || self.share(form));",
        replace: "let seen = self.room(form);\n        \
                  if may_keep && let Some(mut open) = self.magazines.open(cpu) {\n            \
                  let (room, share) = (|| seen, || self.share(form));",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a block is counted as gone before it is",
        file: "memory/bufs.rs",
        find: "let mut cold = [Frame::FIRST; MAX_CHUNK];\n        let mut nr_cold = None;",
        replace: "let mut cold = [Frame::FIRST; MAX_CHUNK];\n        \
                  let mut nr_cold = None;\n        \
                  let is_last = match self.magazines.open(cpu) {\n            \
                  Some(mut open) => { open.count_in(); false }\n            \
                  None => self.left_pins.drop_one(),\n        };\n        \
                  if true { self.put_block(cpu, frame); return is_last; }",
        tests: Tests::Loom,
    },
    Mutant {
        name: "bytes of another group are taken for a block's own",
        file: "memory/rack.rs",
        find: "seen.has_own_for(form)\n            .then(|| self.change(",
        replace: "(seen.is_of(form) && seen.count() > 0)\n            .then(|| self.change(",
        tests: Tests::Unit("memory::tests::bufs"),
    },
    Mutant {
        name: "what is nobody's goes to the depot as a group's own",
        file: "memory/rack.rs",
        find: "nr_nobodys == 0 && depot.put(",
        replace: "depot.put(",
        tests: Tests::Unit("memory::tests::bufs"),
    },
    Mutant {
        name: "what lies on a group's own is taken for that",
        file: "memory/rack.rs",
        find: "label.with_nobodys(from + nr_nobodys.min(nr_kept))",
        replace: "label.with_nobodys(nr_nobodys.min(nr_kept))",
        tests: Tests::Unit("lies_below_nobodys"),
    },
    Mutant {
        name: "a group's own blocks are nobody's once some were",
        file: "memory/rack.rs",
        find: "nr_nobodys.saturating_sub(nr_cold)",
        replace: "nr_nobodys",
        tests: Tests::Unit("memory::tests::bufs"),
    },
    Mutant {
        name: "forms whose magazines begin at one place share it",
        file: "memory/rack.rs",
        find: "(0..end).filter(move |&at| at != first)",
        replace: "(0..end).filter(move |&at| at != first).take(0)",
        tests: Tests::Unit("forms_that_are_used"),
    },
    Mutant {
        name: "a full magazine takes a block more",
        file: "memory/label.rs",
        find: "(!(USED - 1) | FULL) == 0",
        replace: "!(USED - 1) == 0",
        tests: Tests::Unit("memory::label"),
    },
    Mutant {
        name: "magazines are filled block by block",
        file: "memory/bufs.rs",
        find: "let most = self.room(form) / 2;",
        replace: "let most = self.room(form) / 64;",
        tests: Tests::Unit("memory::tests::bufs"),
    },
    Mutant {
        name: "magazines that nobody uses stay full",
        file: "memory/magazine.rs",
        find: "label.is_used().then_some(label.unused())",
        replace: "label.is_used().then_some(label)",
        tests: Tests::Unit("memory::tests::bufs"),
    },
    Mutant {
        name: "what a magazine does not keep goes back with a dead group's name",
        file: "memory/bufs.rs",
        find: "        others.for_each(|&frame| self.frames.set_group(frame, 0));\n",
        replace: "        let _none = others;\n",
        tests: Tests::Unit("goes_back_without_anothers_name"),
    },
    Mutant {
        name: "a chunk of the depot is used once",
        file: "memory/depot.rs",
        find: "if let Some(chunk) = self.chunks.get(index(number)) {",
        replace: "if let Some(chunk) = self.chunks.get(index(NONE)) {",
        tests: Tests::Unit("depot"),
    },
    Mutant {
        name: "the depot has no share",
        file: "memory/depot.rs",
        find: "of_group + nr_pages <= share.of_group",
        replace: "of_group < u32::MAX",
        tests: Tests::Unit("depot"),
    },
    Mutant {
        name: "the depot gives blocks of a far node",
        file: "memory/bufs.rs",
        find: "topology.node_of(other) == topology.node_of(cpu);",
        replace: "topology.node_of(other).number() < u8::MAX;",
        tests: Tests::Unit("stays_on_its_node"),
    },
    Mutant {
        name: "what nobody takes stays in the depot",
        file: "memory/depot.rs",
        find: "            shelf.least = shelf.nr_chunks;\n",
        replace: "            shelf.least = 0;\n",
        tests: Tests::Unit("depot"),
    },
    Mutant {
        name: "a tick takes what is in use out of the depot",
        file: "memory/depot.rs",
        find: "        shelf.least = shelf.least.min(shelf.nr_chunks);\n",
        replace: "        let _shelf = shelf;\n",
        tests: Tests::Unit("depot"),
    },
    Mutant {
        name: "a group that goes leaves what is in the depot",
        file: "memory/magazine.rs",
        find: "by now: that is under a rack's lock.\n        self.drain_stored(wanted, out);\n",
        replace: "by now.\n        let _none = &out;\n",
        tests: Tests::Unit("share_of_the_nearest_limit"),
    },
    Mutant {
        name: "the depot is emptied before the racks",
        file: "memory/magazine.rs",
        find: "label.form().is_some_and(is_kept).then_some(label);\n",
        replace: "label.form().is_some_and(is_kept).then_some(label);\n        \
                  self.drain_stored(&wanted, &mut out);\n        \
                  let wanted = |_: u32| false;\n",
        tests: Tests::Loom,
    },
    Mutant {
        name: "who finds a rack in another's hands goes past all of them",
        file: "memory/magazine.rs",
        find: "if cfg!(any(loom, shuttle)) { 2 } else { 4 }",
        replace: "1",
        tests: Tests::Unit("has_the_next_one"),
    },
    Mutant {
        name: "a rack in another's hands stays the one at hand",
        file: "memory/magazine.rs",
        find: "if at != before {",
        replace: "if false {",
        tests: Tests::Unit("has_the_next_one"),
    },
    Mutant {
        name: "pages are evicted below a high before large blocks that wait",
        file: "memory/magazine.rs",
        find: "if self.has_large.load(Ordering::Relaxed) != 0 {",
        replace: "if false {",
        tests: Tests::Unit("large_blocks_that_wait"),
    },
    Mutant {
        name: "who finds his part of the depot empty does not look at others'",
        file: "memory/rack.rs",
        find: "let near = self.magazines.depots()",
        replace: "let near = self.magazines.depots().take(0)",
        tests: Tests::Unit("what_another_cpu_frees"),
    },
    Mutant {
        name: "nobody says that there is something in the depot",
        file: "memory/rack.rs",
        find: "            self.magazines.note_stored();\n",
        replace: "",
        tests: Tests::Unit("taken_and_freed_in_batches"),
    },
    Mutant {
        name: "what a group over its limit gives back serves its next request",
        file: "group/magazines.rs",
        find: " || self.is_over(group) {",
        replace: " {",
        tests: Tests::Unit("over_its_limit_gives_back"),
    },
    Mutant {
        name: "who audits does not see a block go into a magazine",
        file: "memory/audit.rs",
        find: "self.reserved_bytes(), waiting];",
        replace: "self.reserved_bytes(), waiting & 0];",
        tests: Tests::Unit("a_block_that_waits_from_now_on"),
    },
    Mutant {
        name: "a gate is shut and the CPU not fenced",
        file: "sync/sections.rs",
        find: "        sections.fence(cpu);\n",
        replace: "",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a gate is open again while its rack is held",
        file: "memory/rack.rs",
        find: "            self.gate.shut(self.cpu, sections);\n",
        replace: "            self.gate.shut(self.cpu, sections);\n            self.gate.open();\n",
        tests: Tests::Loom,
    },
    Mutant {
        name: "the gate of a CPU without sections opens",
        file: "memory/rack.rs",
        find: "self.rack.sections.is_some() && !self.blocks.is_closed;",
        replace: "!self.blocks.is_closed;",
        tests: Tests::Unit("memory::rack"),
    },
    Mutant {
        name: "the gate of a rack that is closed opens again",
        file: "memory/rack.rs",
        find: "self.rack.sections.is_some() && !self.blocks.is_closed;",
        replace: "self.rack.sections.is_some();",
        tests: Tests::Loom,
    },
];
