//! Faults of the runtime, in `crates/pagetide/src`.

use crate::mutants::{Mutant, Tests};

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a sync does not reach the device",
        file: "store.rs",
        find: "Ok(rustix::fs::fdatasync(&self.buffered)?)",
        replace: "Ok(())",
        tests: Tests::Runtime("system_calls::"),
    },
    Mutant {
        name: "the name of a new file is not made durable",
        file: "backing.rs",
        find: "rustix::fs::fsync(folder).map_err(|error| self.failed(code_of(&error.into())))?;",
        replace: "let _ = folder;",
        tests: Tests::Runtime("system_calls::"),
    },
    Mutant {
        name: "a sync leaves dirty pages",
        file: "file/write.rs",
        find: "if let Some(pages) = self.pages_of(range) {",
        replace: "if let Some(pages) = self.pages_of(range).filter(|_| false) {",
        tests: Tests::Runtime("crash::"),
    },
    Mutant {
        name: "a write under way brings back what was cut",
        file: "file/resize.rs",
        find: "backing.cut(len);\n        backing.cut_store()",
        replace: "backing.cut_store()",
        tests: Tests::Runtime("torture::a_write_under_way"),
    },
    Mutant {
        name: "a store is cut to what it is known to have",
        file: "backing.rs",
        find: "let cut = self.source.written().set_len(len);",
        replace: "let len = self.stored.load(Ordering::Acquire); \
                  let cut = self.source.written().set_len(len);",
        tests: Tests::Runtime("torture::a_write_under_way"),
    },
    Mutant {
        name: "a write to a page that another brings in is lost",
        file: "file/write.rs",
        find: "Ok(fill.is_done())",
        replace: "Ok(true)",
        tests: Tests::Runtime("torture::"),
    },
    Mutant {
        name: "a slot is given away while it is read",
        file: "spill/map.rs",
        find: "if *word & READING == 0 {",
        replace: "if true {",
        tests: Tests::Runtime("anon::a_slot"),
    },
    Mutant {
        name: "a page that was changed keeps its slot",
        file: "spill.rs",
        find: "for unit in self.units_of(page) {\n            self.map.take(unit",
        replace: "for unit in 0..0 {\n            self.map.take(unit",
        tests: Tests::Runtime("anon"),
    },
    Mutant {
        name: "the rest of a failed swap-out counts as written",
        file: "writeback.rs",
        find: "let is_written = at < self.nr_written;",
        replace: "let is_written = at <= self.nr_written;",
        tests: Tests::Runtime("anon::nothing_is_lost"),
    },
    Mutant {
        name: "the flusher lets go of what it did not hold",
        file: "flusher.rs",
        find: "is_open.then(|| Held { shared, backing })",
        replace: "is_open.then_some(Held { shared, backing })",
        tests: Tests::Runtime("flusher::"),
    },
];
