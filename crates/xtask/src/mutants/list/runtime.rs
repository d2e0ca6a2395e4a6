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
    Mutant {
        name: "a socket answers everybody",
        file: "watch.rs",
        find: "Ok(peer.uid.is_root() || peer.uid == rustix::process::geteuid())",
        replace: "Ok(peer.uid.is_root() || true)",
        tests: Tests::Runtime("watch::"),
    },
    Mutant {
        name: "the file of a socket is open to all",
        file: "watch.rs",
        find: "Mode::RUSR | Mode::WUSR",
        replace: "Mode::from_raw_mode(0o666)",
        tests: Tests::Runtime("watch::"),
    },
    Mutant {
        name: "a socket in use is replaced",
        file: "watch.rs",
        find: "Ok(is_socket && UnixStream::connect(path).is_err_and(refused))",
        replace: "let _ = refused; Ok(is_socket)",
        tests: Tests::Runtime("watch::"),
    },
    Mutant {
        name: "a file that is no socket is replaced by one",
        file: "watch.rs",
        find: "Ok(is_socket && UnixStream::connect(path).is_err_and(refused))",
        replace: "let _ = is_socket; Ok(UnixStream::connect(path).is_err_and(refused))",
        tests: Tests::Runtime("watch::"),
    },
    Mutant {
        name: "groups are listed by text, apart from their parents",
        file: "group.rs",
        find: "a.split('/').cmp(b.split('/'))",
        replace: "a.cmp(b)",
        tests: Tests::Runtime("watch::"),
    },
    Mutant {
        name: "a name in a metric's label is not escaped",
        file: "metrics.rs",
        find: "(escaped(&path), group)",
        replace: "(path, group)",
        tests: Tests::Runtime("metrics::"),
    },
];
