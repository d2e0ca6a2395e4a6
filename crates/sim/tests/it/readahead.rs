//! Readahead on recorded traces: what it costs in pages, and what turns save.

use crate::expected::{root, shared_traces};
use pagetide_core::reclaim::Policy;
use pagetide_sim::trace::{Trace, TraceOptions};
use pagetide_sim::{AheadCache, AheadCounts, core_run, sizes};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const FRACTIONS: [f64; 5] = [0.001, 0.01, 0.05, 0.1, 0.2];

fn open(path: &Path) -> Trace {
    Trace::open(path, &TraceOptions::default()).unwrap()
}

fn run(policy: Policy, trace: &Trace, frames: u32, gives_turns: bool) -> AheadCounts {
    let cache = AheadCache::try_new(policy, frames, trace.nr_unique, gives_turns);
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
        let ahead = run(Policy::Gated2q, &trace, frames, false);
        assert!(ahead.misses * 10 < plain.misses, "{ahead:?} {plain:?}");
        assert!(ahead.reads * 4 < ahead.pages_read, "{ahead:?}");
        assert!(
            ahead.pages_read * 20 < plain.misses * 21,
            "{ahead:?} {plain:?}"
        );
        assert!(ahead.lost * 200 < ahead.pages_read, "{ahead:?}");
    }
}

/// Pages read by each way at a point: without readahead, with it under `fifo`, under the default
/// policy, and with turns.
struct Point {
    name: String,
    fraction: f64,
    pages: [u64; 4],
    reads: u64,
}

fn point(trace: &Trace, fraction: f64) -> Option<Point> {
    let frames = sizes::frames_of(fraction, trace.nr_unique).unwrap();
    (frames >= 16).then(|| {
        let plain = core_run(Policy::Gated2q, trace, frames, |_| ()).unwrap();
        let fifo = run(Policy::Fifo, trace, frames, false);
        let ahead = run(Policy::Gated2q, trace, frames, false);
        let turns = run(Policy::Gated2q, trace, frames, true);
        Point {
            name: trace.name.clone(),
            fraction,
            pages: [
                plain.misses,
                fifo.pages_read,
                ahead.pages_read,
                turns.pages_read,
            ],
            reads: turns.reads,
        }
    })
}

#[test]
#[ignore = "minutes; `cargo xtask traces` runs it"]
fn turns_and_readahead_on_all_traces() {
    let Some(folder) = shared_traces() else {
        return println!("skipped: turns on recorded traces: no `shared/traces`");
    };
    let traces: Vec<Trace> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".d64.zst"))
        .map(|path| open(&path))
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
    println!(
        "trace size: pages read without readahead, by fifo, by the default, with turns; reads"
    );
    for Point {
        name,
        fraction,
        pages,
        reads,
    } in &points
    {
        println!("{name} {fraction}: {pages:?} {reads}");
    }
    // The reduction beside fifo, in points: the mean over sizes of a trace.
    for trace in &traces {
        let of_trace = points.iter().filter(|point| point.name == trace.name);
        let deltas: Vec<f64> = of_trace
            .map(|point| {
                let [_, fifo, ahead, turns] = point.pages.map(|pages| pages as f64);
                100.0 * (ahead - turns) / fifo
            })
            .collect();
        let mean = deltas.iter().sum::<f64>() / deltas.len() as f64;
        println!("{}: {mean:+.2} points by turns", trace.name);
        // What the runtime would lose by them: it asks for none.
        assert!(mean > -2.0, "{}: {deltas:?}", trace.name);
    }
}
