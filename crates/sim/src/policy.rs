//! Policies over page numbers, for comparison: no frames, no locks, no batches.

mod fifo;
mod lru;

pub use fifo::Fifo;
pub use lru::Lru;

use crate::trace::Trace;

/// A cache of a fixed number of pages.
pub trait PagePolicy {
    /// Requests a page; whether it was there. It is there afterwards.
    fn access(&mut self, page: u32) -> bool;
}

/// Names of the policies that run over page numbers only.
pub const NAMES: &[&str] = &["lru"];

/// The policy of this name, empty, for `capacity` pages of `nr_unique`; `None` for another name.
///
/// # Panics
/// Where `capacity` is 0.
#[must_use]
pub fn by_name(name: &str, nr_unique: u32, capacity: u32) -> Option<Box<dyn PagePolicy>> {
    match name {
        "lru" => Some(Box::new(Lru::new(nr_unique, capacity))),
        _ => None,
    }
}

/// What a replay counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages requested.
    pub requests: u64,
    /// Requests whose page was not there.
    pub misses: u64,
}

impl Counts {
    /// Misses over requests; 0 where nothing was requested.
    #[must_use]
    pub fn miss_ratio(&self) -> f64 {
        if self.requests == 0 {
            0.0
        } else {
            self.misses as f64 / self.requests as f64
        }
    }
}

/// Requests between two reports of progress.
pub(crate) const PROGRESS_STEP: usize = 1 << 16;

/// Replays a trace; `progress` gets the requests done so far, now and then.
pub fn replay(policy: &mut dyn PagePolicy, trace: &Trace, mut progress: impl FnMut(u64)) -> Counts {
    let mut counts = Counts::default();
    for chunk in trace.pages.chunks(PROGRESS_STEP) {
        counts.misses += chunk.iter().filter(|&&page| !policy.access(page)).count() as u64;
        counts.requests += chunk.len() as u64;
        progress(counts.requests);
    }
    counts
}
