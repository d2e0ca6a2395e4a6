//! What the tenants of the demo do.

use super::{FILE_PAGES, PAGE};
use crate::failure::Failure;
use crate::{load, scratch};
use hdrhistogram::Histogram;
use pagetide::{File, Group, PAGE_BYTES};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The pages that `web` reads again and again: 24 MiB.
const HOT_PAGES: u64 = 6144;
/// One read in this many of `web`'s goes anywhere.
const ELSEWHERE: u64 = 50;
/// How long the reads are counted together that make a point of the report.
const WINDOW: Duration = Duration::from_millis(250);

/// What a tenant did in a short time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Its end.
    pub(super) end: Instant,
    pub(super) hit_ratio: f64,
    pub(super) ns_p99: u64,
}

/// What a tenant did.
pub(super) struct Counts {
    pub(super) nr_requests: u64,
    pub(super) nr_misses: u64,
    pub(super) nr_wrong: u64,
    pub(super) latency: Histogram<u64>,
    pub(super) windows: Vec<Window>,
}

impl Default for Counts {
    fn default() -> Self {
        let latency = load::histogram();
        Counts {
            nr_requests: 0,
            nr_misses: 0,
            nr_wrong: 0,
            latency,
            windows: Vec::new(),
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
}

/// A tenant at work.
pub(super) struct Tenant<'a> {
    pub(super) file: &'a File,
    pub(super) group: &'a Group,
    /// Its requests since the demo began, for those who watch.
    pub(super) total: &'a AtomicU64,
    pub(super) stop: &'a AtomicBool,
}

impl Tenant<'_> {
    /// Reads the pages in turn until it is to stop.
    pub(super) fn read(&self, pages: impl Iterator<Item = u64>) -> Result<Counts, Failure> {
        let mut counts = Counts::default();
        let misses = self.group.misses();
        let mut bytes = vec![0; PAGE_BYTES];
        let mut window = (Instant::now(), load::histogram(), misses);
        for page in pages {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let before = Instant::now();
            self.file.read_at(&mut bytes, page * PAGE)?;
            let took = before.elapsed();
            let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            window.1.saturating_record(nanos);
            counts.nr_wrong += u64::from(!scratch::is_page(&bytes, page));
            if before.duration_since(window.0) >= WINDOW {
                self.end_window(&mut counts, &mut window, before + took);
            }
        }
        self.end_window(&mut counts, &mut window, Instant::now());
        counts.nr_misses = self.group.misses() - misses;
        Ok(counts)
    }

    fn end_window(
        &self,
        counts: &mut Counts,
        window: &mut (Instant, Histogram<u64>, u64),
        end: Instant,
    ) {
        let (start, latency, misses_before) = window;
        let nr_requests = latency.len();
        if nr_requests == 0 {
            return;
        }
        let misses = self.group.misses();
        let nr_misses = misses - *misses_before;
        counts.windows.push(Window {
            end,
            hit_ratio: 1.0 - nr_misses as f64 / nr_requests as f64,
            ns_p99: latency.value_at_quantile(0.99),
        });
        counts.nr_requests += nr_requests;
        self.total.fetch_add(nr_requests, Ordering::Relaxed);
        let added = counts.latency.add(&*latency);
        debug_assert!(added.is_ok(), "both have the same bounds");
        latency.reset();
        (*start, *misses_before) = (end, misses);
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

/// What `web` reads: a hot set, spread over the file, and a few of anything.
pub(super) fn web_pages() -> impl Iterator<Item = u64> {
    let mut random = Random(42);
    std::iter::repeat_with(move || match random.below(ELSEWHERE) {
        0 => random.below(FILE_PAGES),
        _ => random.below(HOT_PAGES) * (FILE_PAGES / HOT_PAGES),
    })
}

/// What `batch` reads: the whole file from its start to its end, again and again.
pub(super) fn batch_pages() -> impl Iterator<Item = u64> {
    (0..FILE_PAGES).cycle()
}
