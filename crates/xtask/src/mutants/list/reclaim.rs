//! Faults of the lruvecs and policies.

use crate::mutants::{Mutant, Tests};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a page that aging promoted is evicted from its old list",
        file: "reclaim/mglru.rs",
        find: "if seq != self.generations.min_seq(page_type) {",
        replace: "if false && seq != self.generations.min_seq(page_type) {",
        tests: Tests::Plain("lru_gen"),
    },
    Mutant {
        name: "files go on past older anon pages",
        file: "reclaim/mglru.rs",
        find: "_ if types.len() == 1 => [file, anon],",
        replace: "_ if types.len() <= 2 => [file, anon],",
        tests: Tests::Plain("mglru"),
    },
    Mutant {
        name: "aging promotes without counting",
        file: "reclaim/generations.rs",
        find: "self.nr_frames[slot][page_type.index()] += nr_frames;",
        replace: "let _ = (slot, nr_frames);",
        tests: Tests::Plain("mglru"),
    },
    Mutant {
        name: "a refault counts for ever",
        file: "reclaim/mglru_forms.rs",
        find: "_ => then == seq(generations.min_seq(of)),",
        replace: "_ => then <= seq(generations.min_seq(of)),",
        tests: Tests::Plain("mglru"),
    },
    Mutant {
        name: "what was counted is carried over whole",
        file: "reclaim/controller.rs",
        find: "refaulted: sum.refaulted / 2,",
        replace: "refaulted: sum.refaulted,",
        tests: Tests::Plain("controller"),
    },
    Mutant {
        name: "the multi-gen LRU notes no dirty page",
        file: "reclaim/mglru.rs",
        find: "if word.is_unwritten() && !is_kept && page.tier() <= cut_off {",
        replace: "if word.is_unwritten() && is_kept && page.tier() <= cut_off {",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a queue gives the victims though none of its pages can go",
        file: "reclaim/gated_2q.rs",
        find: "const MAX_BUSY: u32 = 64;",
        replace: "const MAX_BUSY: u32 = u32::MAX;",
        tests: Tests::Plain("reclaim"),
    },
    Mutant {
        name: "a page that is too old for its stamp keeps it",
        file: "reclaim/gated_2q.rs",
        find: "if age <= REACH {",
        replace: "if age <= u64::MAX {",
        tests: Tests::Plain("gated_2q"),
    },
    Mutant {
        name: "what came back stays counted as gone",
        file: "reclaim/page_ins.rs",
        find: "*gone = gone.saturating_sub(nr_frames);",
        replace: "*gone = gone.saturating_sub(0 * nr_frames);",
        tests: Tests::Plain("page_ins"),
    },
    Mutant {
        name: "a busy lruvec weighs no more than an idle one",
        file: "reclaim/refaults.rs",
        find: "u128::from(number) * u128::from(elapsed) / of;",
        replace: "u128::from(number) * u128::from(elapsed) / u128::from(elapsed) * of / of;",
        tests: Tests::Plain("refaults"),
    },
    Mutant {
        name: "every refault passes the gate",
        file: "reclaim/refault_gate.rs",
        find: "Gate::Age(age) => distance * 5 <= age * 4,",
        replace: "Gate::Age(age) => distance <= age * 4,",
        tests: Tests::Plain("refault_gate"),
    },
    Mutant {
        name: "a wanted frame is isolated whatever became of it since the look",
        file: "reclaim/mod.rs",
        find: "frames.replace(frame, word, isolated).is_err()",
        replace: "frames.update(frame, |word| Some(as_isolated(word))).is_err()",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a group's first page is as old as the memory",
        file: "reclaim/mglru.rs",
        find: "self.generations.begin(moment.ns);",
        replace: "",
        tests: Tests::Plain("min_ttl"),
    },
    Mutant {
        name: "the first look at a prefetched page counts as the second",
        file: "reclaim/gated_2q.rs",
        find: "refs: Some(if is_unread { UNREAD } else { NO_REFS }),",
        replace: "refs: Some(if is_unread { NO_REFS } else { NO_REFS }),",
        tests: Tests::Plain("prefetch"),
    },
];
