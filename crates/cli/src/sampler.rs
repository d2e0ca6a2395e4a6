//! Resident memory of this process, sampled by a thread of its own.

use crate::failure::Failure;
use pagetide::resident_bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(10);

/// Samples every 10 ms until it is stopped. What was resident at its start does not count.
pub(crate) struct Sampler {
    shared: Arc<State>,
    thread: JoinHandle<()>,
}

struct State {
    baseline: u64,
    peak: AtomicU64,
    stop: AtomicBool,
}

impl State {
    fn sample(&self) {
        // A sample that fails is left out: the first one, at the start, has shown that it works.
        if let Ok(resident) = resident_bytes() {
            self.peak
                .fetch_max(resident.saturating_sub(self.baseline), Ordering::Relaxed);
        }
    }
}

impl Sampler {
    /// Begins.
    pub(crate) fn start() -> Result<Sampler, Failure> {
        let baseline = resident_bytes()
            .map_err(|error| Failure::of("cannot read this process's resident memory", &error))?;
        let state = State {
            baseline,
            peak: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        };
        let shared = Arc::new(state);
        let thread = Builder::new().spawn({
            let shared = Arc::clone(&shared);
            move || {
                while !shared.stop.load(Ordering::Relaxed) {
                    shared.sample();
                    std::thread::sleep(PERIOD);
                }
            }
        });
        let thread = thread.map_err(|error| Failure::of("cannot start a thread", &error))?;
        Ok(Sampler { shared, thread })
    }

    /// What was resident at its start, in bytes.
    pub(crate) fn baseline(&self) -> u64 {
        self.shared.baseline
    }

    /// The largest growth so far, in bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.shared.sample();
        self.shared.peak.load(Ordering::Relaxed)
    }

    /// Ends; the largest growth in bytes.
    pub(crate) fn stop(self) -> u64 {
        let peak = self.peak();
        self.shared.stop.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        debug_assert!(joined.is_ok(), "the sampler does not panic");
        peak
    }
}

/// What resident memory may be under a budget: 2 % and 16 MiB over it.
pub(crate) fn promised(budget_bytes: u64) -> u64 {
    budget_bytes + budget_bytes / 50 + (16 << 20)
}
