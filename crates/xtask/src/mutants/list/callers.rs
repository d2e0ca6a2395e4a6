//! Faults of the runtime beside several CPUs, futures, wakers and connections, and of core's that
//! only its tests can show.

use crate::mutants::{Mutant, Tests};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "another CPU is not fenced",
        file: "rseq.rs",
        find: "membarrier(PRIVATE_EXPEDITED_RSEQ, FLAG_CPU, cpu.number());",
        replace: "io::Result::Ok(drop(cpu));",
        tests: Tests::Runtime("rseq::a_buffer"),
    },
    Mutant {
        name: "a section does not look on which CPU it runs",
        file: "../../core/src/sync/sections.rs",
        find: "cmp dword ptr fs:[{area} + 4], {cpu:e}",
        replace: "cmp {cpu:e}, {cpu:e}",
        tests: Tests::Runtime("rseq::a_buffer"),
    },
    Mutant {
        name: "a section does not look at the gate",
        file: "../../core/src/sync/sections.rs",
        find: "cmp dword ptr [{gate}], 0",
        replace: "cmp {gate}, {gate}",
        tests: Tests::Runtime("rseq::a_buffer"),
    },
    Mutant {
        name: "who was woken and is not polled stands in the way for ever",
        file: "memory_wait.rs",
        find: "self.woken.is_none_or(|woken| now < woken + TURN);",
        replace: "true;",
        tests: Tests::Runtime("waits::a_future_that_is_woken"),
    },
    Mutant {
        name: "who asks byte by byte has a second for each",
        file: "watch.rs",
        find: "set_read_timeout(self.left()?)?;",
        replace: "set_read_timeout(Some(PATIENCE))?;",
        tests: Tests::Runtime("watch::who_is_slow"),
    },
    Mutant {
        name: "a file whose closing unwinds stays half closed",
        file: "file/open.rs",
        find: "panics.catch(|| shared.wait_for_flights(backing));",
        replace: "shared.wait_for_flights(backing);",
        tests: Tests::Runtime("callers::a_file_is_closed"),
    },
    Mutant {
        name: "who is over a lowered limit is told of no dirty pages",
        file: "limits.rs",
        find: "dirty_pages: stat.file_dirty / page_bytes,",
        replace: "dirty_pages: 0 * page_bytes,",
        tests: Tests::Runtime("budget::who_is_over"),
    },
];
