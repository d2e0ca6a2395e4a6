//! `bench stream`: one thread allocates pages, another on another CPU frees them.

use super::real::{self, Bed, SECOND_OF_TUNERS};
use crate::args::JsonArgs;
use crate::failure::Failure;
use crate::{load, output, threads};
use hdrhistogram::Histogram;
use pagetide_core::units::Frame;
use pagetide_sim::CoreTuner;
use pagetide_sim::machine::Costs;
use pagetide_sim::pcp::Workload;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

/// Frames of the arena: 1 GiB.
const ARENA: u32 = 1 << 18;
/// Pages of a message, and messages under way.
const BATCH: usize = 32;
const ROOM: usize = 64;
/// Seconds of each run, and runs of each tuner.
const SECONDS: u32 = 3;
const RUNS: usize = 5;
/// Delays up to a second are told apart.
const LONGEST_NS: u64 = 1_000_000_000;

/// Delays of one operation: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    machine: &'static str,
    tuner: &'static str,
    op: &'static str,
    ns_p50: u64,
    ns_p99: u64,
    ns_p999: u64,
    ns_max: u64,
    p99_to_fixed: f64,
    pages_per_s: f64,
    held_pages_max: u64,
    held_share_of_arena: f64,
    lock_takes_per_1000: f64,
    failures: u64,
}

pub(super) fn run(args: &JsonArgs) -> Result<(), Failure> {
    let bar = load::progress("running", (CoreTuner::ALL.len() * (RUNS + 1)) as u64);
    let mut runs: Vec<Vec<[Row; 2]>> = CoreTuner::ALL.iter().map(|_| Vec::new()).collect();
    for round in 0..RUNS {
        // Both orders, so that what disturbs the machine disturbs all alike.
        let mut order: Vec<usize> = (0..CoreTuner::ALL.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let (name, tuner) = CoreTuner::ALL[at];
            runs[at].push(threads(name, tuner)?);
            bar.inc(1);
        }
    }
    let mut rows: Vec<Row> = runs.into_iter().flat_map(median).collect();
    for (name, tuner) in CoreTuner::ALL {
        rows.extend(simulated(name, tuner)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    for at in 0..rows.len() {
        let is_fixed = |row: &&Row| {
            (row.machine, row.op, row.tuner) == (rows[at].machine, rows[at].op, "fixed")
        };
        let fixed = rows.iter().find(is_fixed).map_or(1, |row| row.ns_p99);
        rows[at].p99_to_fixed = output::rounded(rows[at].ns_p99 as f64 / fixed as f64);
    }
    output::rows(args.json, &rows, table)
}

/// The run with the median p99, for each operation; the largest of what is held.
fn median(runs: Vec<[Row; 2]>) -> [Row; 2] {
    let held = runs
        .iter()
        .map(|run| run[0].held_pages_max)
        .max()
        .unwrap_or(0);
    let (mut allocs, mut frees) = (Vec::new(), Vec::new());
    for [alloc, free] in runs {
        allocs.push(alloc);
        frees.push(free);
    }
    [allocs, frees].map(|mut rows| {
        rows.sort_by_key(|row| row.ns_p99);
        let mut row = rows.swap_remove(rows.len() / 2);
        row.held_pages_max = held;
        row.held_share_of_arena = output::rounded(held as f64 / f64::from(ARENA));
        row
    })
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds")
}

fn timed<T>(delays: &mut Histogram<u64>, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    delays.saturating_record(ns);
    done
}

fn threads(name: &'static str, tuner: CoreTuner) -> Result<[Row; 2], Failure> {
    let bed = Bed::new(tuner, ARENA)?;
    let (stop, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (sender, receiver) = mpsc::sync_channel::<Vec<Frame>>(ROOM);
    let start = Instant::now();
    let (allocs, frees, held) = std::thread::scope(|scope| {
        threads::start_or_end(scope, || bed.keep_time(&is_over));
        let (bed, stop) = (&bed, &stop);
        let producer = threads::start_or_end(scope, move || produce(bed, stop, sender));
        let consumer = threads::start_or_end(scope, move || consume(bed, receiver));
        let mut held = 0;
        for _ in 0..SECONDS * 10 {
            std::thread::sleep(SECOND_OF_TUNERS / 10);
            held = held.max(bed.held());
        }
        stop.store(true, Ordering::Relaxed);
        let allocs = producer.join().expect("the producer does not panic");
        let frees = consumer.join().expect("the consumer does not panic");
        is_over.store(true, Ordering::Relaxed);
        (allocs, frees, held)
    });
    let elapsed = start.elapsed().as_secs_f64();
    bed.check();
    let stats = bed.zones().stats();
    let run = Run {
        machine: "this one",
        tuner: name,
        pages_per_s: allocs.len() as f64 / elapsed,
        held,
        arena: ARENA,
        takes_per_1000: stats.lock_takes as f64 * 1e3 / stats.pgalloc.max(1) as f64,
        failures: 0,
    };
    Ok([run.row("allocate", &allocs), run.row("free", &frees)])
}

fn produce(bed: &Bed, stop: &AtomicBool, lane: mpsc::SyncSender<Vec<Frame>>) -> Histogram<u64> {
    real::bind(0);
    let mut delays = histogram();
    while !stop.load(Ordering::Relaxed) {
        let mut batch = Vec::with_capacity(BATCH);
        for _ in 0..BATCH {
            let frame = timed(&mut delays, || bed.alloc());
            let frame = frame.expect("never out of memory: a few thousand pages are under way");
            bed.touch(frame);
            batch.push(frame);
        }
        if lane.send(batch).is_err() {
            break;
        }
    }
    delays
}

fn consume(bed: &Bed, lane: mpsc::Receiver<Vec<Frame>>) -> Histogram<u64> {
    real::bind(1);
    let mut delays = histogram();
    for batch in lane {
        for frame in batch {
            timed(&mut delays, || bed.free(frame));
        }
    }
    delays
}

/// 64 pairs on 128 virtual CPUs, a page each 10 us.
fn simulated(name: &'static str, tuner: CoreTuner) -> Result<[Row; 2], Failure> {
    let load = Workload::by_name("w3").expect("a load of the list");
    let outcome = load.run(tuner, Costs::measured());
    let outcome = outcome.map_err(|error| Failure::of("cannot simulate", &error))?;
    let steady = &outcome.steady;
    let run = Run {
        machine: "simulated, 64 pairs",
        tuner: name,
        pages_per_s: steady.pages_per_s(),
        held: outcome.whole.held_max,
        arena: load.nr_frames,
        takes_per_1000: steady.takes_per_1000(),
        failures: steady.failures,
    };
    Ok([
        run.row("allocate", &steady.alloc_ns),
        run.row("free", &steady.free_ns),
    ])
}

/// What both operations of a run have in common.
struct Run {
    machine: &'static str,
    tuner: &'static str,
    pages_per_s: f64,
    held: u64,
    arena: u32,
    takes_per_1000: f64,
    failures: u64,
}

impl Run {
    fn row(&self, op: &'static str, delays: &Histogram<u64>) -> Row {
        Row {
            machine: self.machine,
            tuner: self.tuner,
            op,
            ns_p50: delays.value_at_quantile(0.5),
            ns_p99: delays.value_at_quantile(0.99),
            ns_p999: delays.value_at_quantile(0.999),
            ns_max: delays.max(),
            p99_to_fixed: 1.0,
            pages_per_s: self.pages_per_s.round(),
            held_pages_max: self.held,
            held_share_of_arena: output::rounded(self.held as f64 / f64::from(self.arena)),
            lock_takes_per_1000: output::rounded(self.takes_per_1000),
            failures: self.failures,
        }
    }
}

fn table(rows: &[Row]) -> String {
    let header = [
        "machine",
        "op",
        "tuner",
        "p50",
        "p99",
        "to fixed",
        "p99.9",
        "largest",
        "takes/1000",
        "held",
        "of arena",
        "failures",
    ];
    let cells = |row: &Row| {
        vec![
            row.machine.to_owned(),
            row.op.to_owned(),
            row.tuner.to_owned(),
            output::time(row.ns_p50),
            output::time(row.ns_p99),
            format!("x{:.2}", row.p99_to_fixed),
            output::time(row.ns_p999),
            output::time(row.ns_max),
            format!("{:.2}", row.lock_takes_per_1000),
            row.held_pages_max.to_string(),
            output::percent(row.held_share_of_arena),
            row.failures.to_string(),
        ]
    };
    output::table(&header, 3, rows.iter().map(cells).collect())
}
