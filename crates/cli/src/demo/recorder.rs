//! What the memory looked like over time: for the report, and for those who watch.

use pagetide::{Memory, Snapshot};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(100);

/// Takes snapshots until it is to stop.
pub(super) fn record(memory: &Memory, stop: &AtomicBool) -> Vec<(Instant, Snapshot)> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        seen.push((Instant::now(), memory.snapshot()));
        std::thread::sleep(PERIOD);
    }
    seen
}
