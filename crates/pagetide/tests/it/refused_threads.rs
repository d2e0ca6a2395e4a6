//! Threads that the system refuses a memory for a while: too many run, or there is no room for a
//! stack.

use crate::child;
use crate::data::numbered_file;
use crate::status::status_bytes;
use pagetide::{ByteSize, IoEngine, Memory};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread may take to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something is so.
fn wait_until(is_so: impl Fn() -> bool, what: &str) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a thread of this name runs.
fn has_thread(name: &str) -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.into_iter().any(|found| found.trim_end() == name)
}

#[test]
fn threads_that_were_refused_are_started_once_they_can_be() {
    let test = "refused_threads::threads_that_were_refused_are_started_once_they_can_be";
    if child::is_sanitized() {
        return println!("skipped: threads without stacks: the sanitizer maps memory of its own");
    }
    if child::role().is_none() {
        return child::run(test, "short");
    }
    let data = numbered_file(2048);
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let has_rings = memory.io_engine().engine == IoEngine::IoUring;
    let enough = getrlimit(Resource::As);
    // For rings, and for no stack.
    let short = Rlimit {
        current: Some(status_bytes("VmSize") + (1 << 20)),
        ..enough
    };
    setrlimit(Resource::As, short).unwrap();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    file.prefetch(0..10);
    assert_eq!(file.pin(9).unwrap()[..8], 9_u64.to_le_bytes());
    assert!(!has_thread("pagetide-flush") && !has_thread("pagetide-io"));
    setrlimit(Resource::As, enough).unwrap();
    file.prefetch(10..20);
    // A thread has its name a moment later.
    let is_reaped = || !has_rings || has_thread("pagetide-io");
    wait_until(is_reaped, "nobody reaps what is read in the background");
    // More than a tenth of the pages, and less than a fifth: the writer writes none itself.
    let is_written = || {
        // The thread is told of pages that become dirty.
        file.discard_dirty().unwrap();
        (0..300).for_each(|page| _ = file.write_at(&[7; 8], page * 4096).unwrap());
        memory.stats().bytes_written > 0
    };
    wait_until(is_written, "nobody writes in the background");
}
