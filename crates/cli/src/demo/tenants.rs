//! What the tenants of the demo do.

use super::{FILE_PAGES, PAGE};
use crate::failure::Failure;
use crate::{load, scratch};
use hdrhistogram::Histogram;
use pagetide::{File, PAGE_BYTES};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The pages that `web` reads again and again: 24 MiB.
const HOT_PAGES: u64 = 6144;
/// One read in this many of `web`'s goes anywhere.
const ELSEWHERE: u64 = 50;

/// What a tenant did.
pub(super) struct Counts {
    pub(super) nr_requests: u64,
    pub(super) nr_misses: u64,
    pub(super) nr_wrong: u64,
    pub(super) latency: Histogram<u64>,
}

impl Default for Counts {
    fn default() -> Self {
        let latency = load::histogram();
        Counts {
            nr_requests: 0,
            nr_misses: 0,
            nr_wrong: 0,
            latency,
        }
    }
}

impl Counts {
    /// Hits over requests.
    pub(super) fn hit_ratio(&self) -> f64 {
        1.0 - self.nr_misses as f64 / self.nr_requests.max(1) as f64
    }

    /// Whether there was any request.
    pub(super) fn requests(&self) -> bool {
        self.nr_requests > 0
    }

    fn read(&mut self, file: &File, page: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        let before = Instant::now();
        file.read_at(bytes, page * PAGE)?;
        let nanos = u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(nanos);
        self.nr_requests += 1;
        self.nr_wrong += u64::from(!scratch::is_page(bytes, page));
        Ok(())
    }
}

/// A small generator with a fixed seed. Source: Steele and others 2014, SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % limit
    }
}

/// Point reads of a hot set, spread over the file, and a few of anything.
pub(super) fn web(file: &File, stop: &AtomicBool) -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    let mut random = Random(42);
    let mut bytes = vec![0; PAGE_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let page = match random.below(ELSEWHERE) {
            0 => random.below(FILE_PAGES),
            _ => random.below(HOT_PAGES) * (FILE_PAGES / HOT_PAGES),
        };
        counts.read(file, page, &mut bytes)?;
    }
    Ok(counts)
}

/// The whole file from its start to its end, again and again.
pub(super) fn batch(file: &File, stop: &AtomicBool) -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    let mut bytes = vec![0; PAGE_BYTES];
    for page in (0..FILE_PAGES).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        counts.read(file, page, &mut bytes)?;
    }
    Ok(counts)
}
