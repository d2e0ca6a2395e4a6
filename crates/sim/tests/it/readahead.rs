//! Readahead on recorded traces: what it costs in pages, and saves in reads.

use crate::expected::{root, shared_traces};
use pagetide_core::reclaim::Policy;
use pagetide_sim::trace::{Trace, TraceOptions};
use pagetide_sim::{AheadCache, AheadCounts, core_run, sizes};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const FRACTIONS: [f64; 2] = [0.05, 0.2];
/// Longer traces take minutes.
const MAX_REQUESTS: usize = 1_000_000;

fn open(path: &Path) -> Trace {
    Trace::open(path, &TraceOptions::default()).unwrap()
}

fn run(policy: Policy, trace: &Trace, frames: u32) -> AheadCounts {
    let cache = AheadCache::try_new(policy, frames, trace.nr_unique);
    let mut cache = cache.unwrap();
    for &page in &trace.pages {
        cache.read(page).unwrap();
    }
    cache.counts()
}

/// Two clients that scan one table, now and then at the same time.
#[test]
fn readahead_of_scans_needs_few_reads_and_hardly_a_page_more() {
    let trace = open(&root().join("traces/rec_pg.d64.zst"));
    for fraction in [0.05, 0.2] {
        let frames = sizes::frames_of(fraction, trace.nr_unique).unwrap();
        let plain = core_run(Policy::Gated2q, &trace, frames, |_| ()).unwrap();
        let ahead = run(Policy::Gated2q, &trace, frames);
        assert!(ahead.misses * 10 < plain.misses, "{ahead:?} {plain:?}");
        assert!(ahead.reads * 4 < ahead.pages_read, "{ahead:?}");
        assert!(
            ahead.pages_read * 20 < plain.misses * 21,
            "{ahead:?} {plain:?}"
        );
        assert!(ahead.lost * 200 < ahead.pages_read, "{ahead:?}");
    }
}

/// Pages read by each way at a point: without readahead and with it.
struct Point {
    name: String,
    fraction: f64,
    pages: [u64; 2],
    reads: u64,
}

fn point(trace: &Trace, fraction: f64) -> Option<Point> {
    let frames = sizes::frames_of(fraction, trace.nr_unique).unwrap();
    (frames >= 16).then(|| {
        let plain = core_run(Policy::Gated2q, trace, frames, |_| ()).unwrap();
        let ahead = run(Policy::Gated2q, trace, frames);
        Point {
            name: trace.name.clone(),
            fraction,
            pages: [plain.misses, ahead.pages_read],
            reads: ahead.reads,
        }
    })
}

#[test]
#[ignore = "half a minute; `cargo xtask traces` runs it"]
fn readahead_on_traces_of_a_million_requests() {
    let Some(folder) = shared_traces() else {
        return println!("skipped: readahead on recorded traces: no `shared/traces`");
    };
    let traces: Vec<Trace> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".d64.zst"))
        .map(|path| open(&path))
        .filter(|trace| trace.pages.len() <= MAX_REQUESTS)
        .collect();
    let jobs: Vec<(&Trace, f64)> = traces
        .iter()
        .flat_map(|trace| FRACTIONS.map(|fraction| (trace, fraction)))
        .collect();
    let (next, points) = (AtomicUsize::new(0), Mutex::<Vec<Point>>::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&(trace, fraction)) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let point = point(trace, fraction);
                    points.lock().unwrap().extend(point);
                }
            });
        }
    });
    let mut points = points.into_inner().unwrap();
    points.sort_by(|one, two| {
        (&one.name, one.fraction)
            .partial_cmp(&(&two.name, two.fraction))
            .unwrap()
    });
    println!("trace size: pages read without readahead, with it; reads");
    for Point {
        name,
        fraction,
        pages,
        reads,
    } in &points
    {
        println!("{name} {fraction}: {pages:?} {reads}");
    }
    for Point {
        name,
        fraction,
        pages: [plain, ahead],
        reads,
    } in &points
    {
        let at = format!("{name} {fraction}: {plain} {ahead} {reads}");
        // The most is 0.99 times, of few reads one after the other.
        assert!(reads * 50 <= plain * 51, "more reads than without: {at}");
        // The most is 1.17 times, where runs are short.
        assert!(ahead * 4 <= plain * 5, "pages that nobody asks for: {at}");
    }
}
