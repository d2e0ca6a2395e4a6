//! Events of the feature `tracing`: what is told, and that a subscriber can break nothing.

use crate::callers::in_time;
use crate::child;
use crate::disk::{Disk, EIO, Fault};
use pagetide::{ByteSize, File, Memory, Order};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// Keeps events as lines: level, then each field by name; at each asks for the global memory, or
/// panics, where it is to.
#[derive(Clone, Default)]
struct Kept {
    lines: Arc<Mutex<Vec<String>>>,
    asks: bool,
    panics: bool,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pagetide")
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.lines.lock().unwrap().push(line.0);
        if self.asks {
            Memory::global().unwrap();
        }
        assert!(!self.panics, "a subscriber that panics");
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

impl Kept {
    /// Runs `work` with this subscriber on this thread.
    ///
    /// While there is one subscriber only, `tracing` asks that of the thread which is the first to
    /// come to an event whether anybody wants it, and lets nobody have it if that thread, a test
    /// beside, has none. So there is a second one, for good, and it asks them all.
    fn hears<T>(&self, work: impl FnOnce() -> T) -> T {
        static SECOND: OnceLock<Dispatch> = OnceLock::new();
        SECOND.get_or_init(|| Dispatch::new(Kept::default()));
        tracing::subscriber::with_default(self.clone(), work)
    }

    /// What `work` told on this thread.
    fn of(work: impl FnOnce()) -> Vec<String> {
        let kept = Kept::default();
        kept.hears(work);
        let lines = kept.lines.lock().unwrap();
        lines.clone()
    }
}

#[track_caller]
fn assert_told(lines: &[String], expected: &str) {
    let is_told = lines.iter().any(|line| line.starts_with(expected));
    assert!(is_told, "no '{expected}' among {lines:#?}");
}

fn memory() -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    builder.without_thread().build().unwrap()
}

fn file(memory: &Memory, disk: &Disk) -> File {
    let store = Box::new(disk.clone());
    let group = memory.root();
    let file = memory.open_store(store, "data", &group);
    file.unwrap()
}

/// A read that fails, a write that fails, and a page that is lost by that.
fn fail_at_the_store() {
    let disk = Disk::of(vec![7; 64 << 10]);
    let memory = memory();
    let file = file(&memory, &disk);
    let now = disk.state().nr_calls;
    disk.state().fault = Some((now + 1, 1, Fault::Error(EIO)));
    let mut bytes = [0; 8];
    assert!(file.read_at(&mut bytes, 8192).is_err());
    assert_eq!(file.read_at(&mut bytes, 8192).unwrap(), 8);
    disk.state().is_full = true;
    file.write_at(&[9; 4096], 4096).unwrap();
    assert!(file.sync().is_err());
    drop(file);
    assert_eq!(memory.stats().pages_lost, 1);
    memory.audit().unwrap();
}

#[test]
fn what_fails_at_a_store_is_told_with_its_name() {
    let lines = Kept::of(fail_at_the_store);
    assert_told(&lines, "INFO message=memory built budget_bytes=16777216");
    assert_told(&lines, "WARN message=read failed error=");
    let read = lines.iter().find(|line| line.contains("read failed"));
    assert!(read.is_some_and(|line| line.contains("data")), "{lines:?}");
    assert_told(&lines, "WARN message=write failed file=\"data\" error=");
    assert_told(
        &lines,
        "ERROR message=dirty pages lost file=\"data\" pages=1",
    );
}

#[test]
fn what_is_refused_reclaimed_and_released_is_told() {
    let lines = Kept::of(|| {
        let memory = memory();
        let small = memory.root().child("small").unwrap();
        let small = small.max(ByteSize::kib(256)).unwrap();
        let disk = Disk::of(vec![7; 1 << 20]);
        let store = Box::new(disk.clone());
        let file = memory.open_store(store, "data", &small);
        let mut bytes = vec![0; 1 << 20];
        file.unwrap().read_at(&mut bytes, 0).unwrap();
        assert!(small.alloc(Order::new(9)).is_err());
        drop(memory.root().alloc(Order::new(10)).unwrap());
        assert!(memory.release().as_u64() > 0);
        memory.set_budget(ByteSize::mib(12)).unwrap();
        assert!(memory.set_budget(ByteSize::kib(4)).is_err());
    });
    assert_told(&lines, "TRACE message=reclaims group=\"/small\"");
    assert_told(&lines, "DEBUG message=memory refused error=");
    assert_told(&lines, "DEBUG message=released to the OS bytes=");
    assert_told(&lines, "INFO message=budget set budget_bytes=12582912");
    assert_told(
        &lines,
        "WARN message=budget not met budget_bytes=4096 error=",
    );
}

#[test]
fn pages_that_are_written_in_the_background_are_told() {
    let lines = Kept::of(|| {
        let memory = memory();
        let few = memory.root().child("few").unwrap();
        let few = few.max(ByteSize::mib(1)).unwrap();
        let disk = Disk::of(vec![7; 1 << 20]);
        let store = Box::new(disk.clone());
        let file = memory.open_store(store, "data", &few);
        let file = file.unwrap();
        // Above a tenth of what the group may have.
        file.write_at(&[9; 40 * 4096], 0).unwrap();
        memory.tick();
        assert!(disk.state().nr_writes > 0);
        file.sync().unwrap();
    });
    assert_told(&lines, "DEBUG message=written back pages=");
}

#[test]
fn hits_and_misses_tell_nothing() {
    let memory = memory();
    let disk = Disk::of(vec![7; 32 << 20]);
    let file = file(&memory, &disk);
    let mut bytes = vec![0; 1 << 20];
    let lines = Kept::of(|| {
        for at in 0..8 {
            assert_eq!(file.read_at(&mut bytes, at << 20).unwrap(), 1 << 20);
            assert_eq!(file.read_at(&mut bytes, at << 20).unwrap(), 1 << 20);
        }
    });
    assert_eq!(lines, [""; 0]);
}

#[test]
fn a_subscriber_that_panics_changes_nothing() {
    let kept = Kept {
        panics: true,
        ..Kept::default()
    };
    kept.hears(fail_at_the_store);
    assert!(kept.lines.lock().unwrap().len() > 3);
}

#[test]
fn a_subscriber_asks_for_the_global_memory_as_it_is_built() {
    if child::role().is_none() {
        return child::run(
            "tracing::a_subscriber_asks_for_the_global_memory_as_it_is_built",
            "alone",
        );
    }
    let asks = Kept {
        asks: true,
        ..Kept::default()
    };
    let build = || Memory::global().unwrap().budget();
    let built = in_time(move || asks.hears(build));
    assert!(built.expect("it hangs") > ByteSize(0));
}
