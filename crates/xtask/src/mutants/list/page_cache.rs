//! Faults of the page cache and of frames.

use crate::mutants::{Mutant, Tests};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a pin does not look which page the frame holds",
        file: "page_cache/mod.rs",
        find: "if frames.key(frame) == Some(key) {",
        replace: "if frames.key(frame).is_some() {",
        tests: Tests::Loom,
    },
    Mutant {
        name: "an eviction does not compare the word of its isolation",
        file: "page_cache/mod.rs",
        find: "frames.replace(frame, seen, evicting).is_ok()",
        replace: "frames.update(frame, |_| Some(evicting)).is_ok()",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a dirty page is not marked anew",
        file: "page_cache/write.rs",
        find: "(word.state() == State::Live).then(|| word.with(flag::DIRTY));",
        replace: "(word.state() == State::Live && !word.has(flag::DIRTY)) \
                  .then(|| word.with(flag::DIRTY));",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a write leaves its page dirty",
        file: "page_cache/write.rs",
        find: "seen.without(flag::DIRTY).with(flag::WRITEBACK)",
        replace: "seen.with(flag::WRITEBACK)",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a write begins whatever became of the page meanwhile",
        file: "page_cache/write.rs",
        find: "frames.replace(frame, seen, writing).is_ok()",
        replace: "frames.update(frame, |_| Some(writing)).is_ok()",
        tests: Tests::Loom,
    },
    Mutant {
        name: "the end of a write forgets what was dirtied meanwhile",
        file: "page_cache/write.rs",
        find: "word.without(flag::WRITEBACK).next_version()",
        replace: "word.as_written().next_version()",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a frame is freed while it is written",
        file: "page_cache/mod.rs",
        find: "is_held || word.has(flag::WRITEBACK)",
        replace: "is_held",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a closed mapping does not wait for its writes",
        file: "page_cache/mod.rs",
        find: "fetch_or(CLOSED, Ordering::AcqRel) == 0",
        replace: "fetch_or(CLOSED, Ordering::AcqRel) < CLOSED",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a dirty page is evicted",
        file: "frame/word.rs",
        find: "flag::LATCH | flag::INTENT | UNWRITTEN;",
        replace: "flag::LATCH | flag::INTENT | flag::WRITEBACK;",
        tests: Tests::Plain("write"),
    },
    Mutant {
        name: "a pin marks no region",
        file: "page_cache/mod.rs",
        find: "frames.mark_touched(frame);",
        replace: "",
        tests: Tests::Plain("lru_gen"),
    },
    Mutant {
        name: "a frame is reaped while it is pinned",
        file: "page_cache/mod.rs",
        find: "word.pins() > 0 || word.has(flag::ISOLATED)",
        replace: "word.has(flag::ISOLATED)",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a block keeps its group's name in the zone",
        file: "frame/mod.rs",
        find: "Place::Zone => 0,",
        replace: "Place::Zone => low(before),",
        tests: Tests::Plain("memory"),
    },
    Mutant {
        name: "a page is moved from under the pins of others",
        file: "page_cache/mod.rs",
        find: "let is_mine_alone = word.pins() == 1 && word.unpinned().is_evictable();",
        replace: "let is_mine_alone = word.state() == State::Live;",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a page that moves is not out of its old frame",
        file: "page_cache/mod.rs",
        find: "is_mine_alone.then(|| word.with_state(State::Detached).next_version())",
        replace: "is_mine_alone.then_some(word)",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a latch lets pins in",
        file: "frame/word.rs",
        find: "self.0 & (STATE_MASK | flag::LATCH | flag::INTENT)",
        replace: "self.0 & (STATE_MASK | flag::INTENT)",
        tests: Tests::Loom,
    },
    Mutant {
        name: "a latch is taken from a page that is being written",
        file: "frame/word.rs",
        find: "self.pins() == nr_own && !is_busy",
        replace: "self.pins() == nr_own && !(is_busy && self.has(flag::LATCH))",
        tests: Tests::Plain("memory::"),
    },
];
