//! Policies over page numbers, for comparison: no frames, no locks, no batches.

mod arc;
mod belady;
mod clock;
mod fifo;
mod lirs;
mod lru;
mod queues;
mod s3_fifo;
mod sieve;
mod sketch;
mod two_q;
mod w_tinylfu;

pub use fifo::Fifo;
pub(crate) use lru::Lru;

use crate::trace::Trace;

/// A cache of a fixed number of pages.
pub trait PagePolicy {
    /// Requests a page; whether it was there. It is there afterwards.
    fn access(&mut self, page: u32) -> bool;
}

/// Names of the policies that run over page numbers only.
pub const NAMES: &[&str] = &[
    "lru",
    "clock",
    "clock-2bit",
    "2q",
    "arc",
    "lirs",
    "s3-fifo",
    "sieve",
    "w-tinylfu",
    "belady",
];

/// The policy of this name, empty, for `capacity` pages and the requests of this trace in order;
/// `None` for another name.
///
/// Each takes 12 to 24 bytes a distinct page, `belady` a bit more than 4 bytes a request.
///
/// # Panics
/// Where `capacity` is 0.
#[must_use]
pub fn by_name(name: &str, trace: &Trace, capacity: u32) -> Option<Box<dyn PagePolicy>> {
    assert!(capacity > 0, "a cache of no page");
    let nr_unique = trace.nr_unique;
    Some(match name {
        "lru" => Box::new(lru::Lru::new(nr_unique, capacity)),
        "clock" => Box::new(clock::Clock::new(nr_unique, capacity, 1)),
        "clock-2bit" => Box::new(clock::Clock::new(nr_unique, capacity, 3)),
        "2q" => Box::new(two_q::TwoQ::new(nr_unique, capacity)),
        "arc" => Box::new(arc::Arc::new(nr_unique, capacity)),
        "lirs" => Box::new(lirs::Lirs::new(nr_unique, capacity)),
        "s3-fifo" => Box::new(s3_fifo::S3Fifo::new(nr_unique, capacity)),
        "sieve" => Box::new(sieve::Sieve::new(nr_unique, capacity)),
        "w-tinylfu" => Box::new(w_tinylfu::WTinyLfu::new(nr_unique, capacity)),
        "belady" => Box::new(belady::Belady::new(trace, capacity)),
        _ => return None,
    })
}

/// `numerator / denominator` of a size, rounded down.
fn share(capacity: u32, numerator: u32, denominator: u32) -> u32 {
    let share = u64::from(capacity) * u64::from(numerator) / u64::from(denominator);
    u32::try_from(share).expect("a part is no more than the whole")
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
