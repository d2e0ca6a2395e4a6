//! Faults of the runtime beside several CPUs, futures, wakers and connections, and of core's that
//! only its tests can show.

use crate::mutants::{Mutant, Tests};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "another CPU is not fenced",
        file: "rseq.rs",
        find: "membarrier(PRIVATE_EXPEDITED_RSEQ, FLAG_CPU, cpu.number()),",
        replace: "io::Result::Ok(drop(cpu)),",
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
        name: "a page that one CPU uses often is not claimed",
        file: "../../core/src/page_cache/claims.rs",
        find: " || self.sections.is_some() && record.note_pinned_again(self.limit)",
        replace: "",
        tests: Tests::Runtime("hit_cost::a_hit"),
    },
    Mutant {
        name: "a claim is put into a word that has one",
        file: "../../core/src/sync/sections.rs",
        find: "\"cmp dword ptr [{word}], {seen:e}\"",
        replace: "\"cmp {seen:e}, {seen:e}\"",
        tests: Tests::Runtime("claims::"),
    },
    Mutant {
        name: "isolated CPUs are fenced with all others",
        file: "../../core/src/page_cache/claims.rs",
        find: "is_fenced_at_once: !(0..nr_lines).map(Cpu::new).any(has_none),",
        replace: "is_fenced_at_once: true,",
        tests: Tests::Isolated,
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
        name: "the spill folder goes with the process",
        file: "spill.rs",
        find: "        config.target = config.target.settled();\n",
        replace: "        let _ = &mut config;\n",
        tests: Tests::Runtime("anon_spill::a_folder"),
    },
    Mutant {
        name: "the socket's path goes with the process",
        file: "watch.rs",
        find: "let whole = std::path::absolute(path).map_err(failed)?;",
        replace: "let whole = path.to_owned();",
        tests: Tests::Runtime("watch::the_socket_goes"),
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
    Mutant {
        name: "a hole where the store may have lost writes is forgotten",
        file: "backing.rs",
        find: "if store.has_lost_writes() {\n                        self.poison",
        replace: "if false {\n                        self.poison",
        tests: Tests::Runtime("holes::a_store_that_may_have_lost"),
    },
    Mutant {
        name: "an anon page's slots go before the page",
        file: "file/anon.rs",
        find: "        if let Some(latched) = self.drop_resident(page) {\n            \
               return Some(latched);\n        }\n",
        replace: "",
        tests: Tests::Runtime("anon_calls::a_page_that_is_too_busy"),
    },
    Mutant {
        name: "who swaps out finds no slot beside who makes a hole",
        file: "spill.rs",
        find: "            let _no_hole = locked(&self.punching);\n",
        replace: "",
        tests: Tests::RuntimeUnit("spill::tests::who_swaps_out"),
    },
    Mutant {
        name: "what a store took before it failed is not counted",
        file: "writeback/run.rs",
        find: "        self.backing.has_taken(at, nr_taken as u64);\n",
        replace: "",
        tests: Tests::Runtime("holes::what_the_store_took"),
    },
    Mutant {
        name: "who opens a file with other pages does not wait for its last handle",
        file: "file/open.rs",
        find: "if is_closing {",
        replace: "if false && is_closing {",
        tests: Tests::Runtime("page_sizes::who_opens_a_file_with_other_pages"),
    },
    Mutant {
        name: "what the store has to do yet is not done when the last handle goes",
        file: "file/open.rs",
        find: "let _behind = backing.check_poison().and_then(|()| backing.catch_up());",
        replace: "",
        tests: Tests::Runtime("holes::what_the_store_has_to_do_yet"),
    },
];
