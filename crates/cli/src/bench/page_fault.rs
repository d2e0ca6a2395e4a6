//! `bench page-fault`: workers allocate 128 MiB page by page, touch each, free all, repeat.

use super::real::{self, Bed, SECOND_OF_TUNERS};
use crate::args::PageFaultArgs;
use crate::failure::Failure;
use crate::{load, output, threads};
use pagetide_sim::CoreTuner;
use pagetide_sim::machine::Costs;
use pagetide_sim::pcp::{FAULT_PAGES, fault_on};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The arena has this many times what workers use, and at least what a worker on each CPU would: a
/// CPU's cache may then hold a whole cycle under every tuner.
const ARENA: u32 = 16;
/// Seconds of the tuners before what is measured, and measured.
const WARM_UP: u32 = 12;
const STEADY: u32 = 4;

/// One tuner with one number of workers: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    machine: &'static str,
    workers: u32,
    tuner: &'static str,
    costs: String,
    pages_per_s: f64,
    gib_per_s: f64,
    throughput_to_fixed: f64,
    lock_takes_per_1000: f64,
    fewer_takes_than_fixed: f64,
    lock_contended_per_1000: f64,
    wait_share: Option<f64>,
    held_pages_after: u64,
}

pub(super) fn run(args: &PageFaultArgs) -> Result<(), Failure> {
    let nr_nodes = args.nodes;
    let mut machines = args.simulate.iter();
    if let Some(cpus) = machines.find(|cpus| !cpus.is_multiple_of(nr_nodes)) {
        let problem = format!("--nodes: {cpus} CPUs do not fit {nr_nodes} nodes");
        return Err(Failure::Usage(problem));
    }
    let variants = if args.sensitivity { 15 } else { 1 };
    let nr_runs = args.workers.len() + args.simulate.len() * variants;
    let bar = load::progress("running", (nr_runs * CoreTuner::ALL.len()) as u64);
    let mut rows = Vec::new();
    for &workers in &args.workers {
        for (name, tuner) in CoreTuner::ALL {
            push(&mut rows, real(workers, name, tuner)?);
            bar.inc(1);
        }
    }
    let measured = Costs::measured();
    let mut costs = vec![("measured".to_owned(), measured)];
    if args.sensitivity {
        costs.extend(measured.variants());
    }
    for &workers in &args.simulate {
        for (what, costs) in &costs {
            for (name, tuner) in CoreTuner::ALL {
                let machine = (workers, args.nodes);
                push(&mut rows, simulated(machine, name, tuner, what, *costs)?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    output::rows(args.json, &rows, table)
}

/// Adds a row with its ratios to `fixed`, which comes first of its kind.
fn push(rows: &mut Vec<Row>, mut row: Row) {
    let is_kind = |other: &&Row| {
        (other.machine, other.workers, &other.costs) == (row.machine, row.workers, &row.costs)
    };
    if let Some(fixed) = rows.iter().find(is_kind) {
        row.throughput_to_fixed = output::rounded(row.pages_per_s / fixed.pages_per_s);
        let fewer = fixed.lock_takes_per_1000 / row.lock_takes_per_1000.max(1e-6);
        row.fewer_takes_than_fixed = output::rounded(fewer);
    }
    rows.push(row);
}

/// Real threads on this machine's CPUs.
fn real(workers: u32, name: &'static str, tuner: CoreTuner) -> Result<Row, Failure> {
    let nr_cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let users = workers.max(u32::try_from(nr_cpus).unwrap_or(1));
    let bed = Bed::new(tuner, ARENA * users * FAULT_PAGES)?;
    let (stop, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let nr_pages = AtomicU64::new(0);
    let (pages, elapsed, takes, contended, held) = std::thread::scope(|scope| {
        threads::start_or_end(scope, || bed.keep_time(&is_over));
        let threads: Vec<_> = (0..workers)
            .map(|worker| (worker as usize) % nr_cpus)
            .map(|cpu| {
                let (bed, stop, nr_pages) = (&bed, &stop, &nr_pages);
                threads::start_or_end(scope, move || {
                    real::bind(cpu);
                    work(bed, stop, nr_pages);
                })
            })
            .collect();
        std::thread::sleep(SECOND_OF_TUNERS * WARM_UP);
        let look = || (nr_pages.load(Ordering::Relaxed), bed.zones().stats());
        let (start, (pages, before)) = (Instant::now(), look());
        std::thread::sleep(SECOND_OF_TUNERS * STEADY);
        let (more_pages, after) = look();
        let elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("a worker does not panic");
        }
        std::thread::sleep(SECOND_OF_TUNERS * 5);
        let held = bed.held();
        is_over.store(true, Ordering::Relaxed);
        (
            more_pages - pages,
            elapsed,
            after.lock_takes - before.lock_takes,
            after.lock_contended - before.lock_contended,
            held,
        )
    });
    bed.check();
    let per_1000 = |count: u64| output::rounded(count as f64 * 1e3 / pages.max(1) as f64);
    let pages_per_s = (pages as f64 / elapsed.as_secs_f64()).round();
    Ok(Row {
        machine: "this one",
        workers,
        tuner: name,
        costs: String::new(),
        pages_per_s,
        gib_per_s: gib(pages_per_s),
        throughput_to_fixed: 1.0,
        lock_takes_per_1000: per_1000(takes),
        fewer_takes_than_fixed: 1.0,
        lock_contended_per_1000: per_1000(contended),
        wait_share: None,
        held_pages_after: held,
    })
}

fn gib(pages_per_s: f64) -> f64 {
    output::rounded(pages_per_s * 4096.0 / f64::from(1 << 30))
}

fn work(bed: &Bed, stop: &AtomicBool, nr_pages: &AtomicU64) {
    let mut held = Vec::with_capacity(FAULT_PAGES as usize);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..FAULT_PAGES {
            let frame = bed.alloc().expect("an arena of eight times what is used");
            bed.touch(frame);
            held.push(frame);
            if held.len() % 1024 == 0 {
                nr_pages.fetch_add(1024, Ordering::Relaxed);
            }
        }
        held.drain(..).for_each(|frame| bed.free(frame));
    }
}

/// As many virtual CPUs as workers, on some nodes.
fn simulated(
    (workers, nr_nodes): (u32, u32),
    name: &'static str,
    tuner: CoreTuner,
    what: &str,
    costs: Costs,
) -> Result<Row, Failure> {
    let outcome = fault_on(workers).on_nodes(nr_nodes).run(tuner, costs);
    let outcome = outcome.map_err(|error| Failure::of("cannot simulate", &error))?;
    let pages_per_s = outcome.steady.pages_per_s().round();
    Ok(Row {
        machine: "simulated",
        workers,
        tuner: name,
        costs: what.to_owned(),
        pages_per_s,
        gib_per_s: gib(pages_per_s),
        throughput_to_fixed: 1.0,
        lock_takes_per_1000: output::rounded(outcome.steady.takes_per_1000()),
        fewer_takes_than_fixed: 1.0,
        lock_contended_per_1000: 0.0,
        wait_share: Some(output::rounded(outcome.steady.wait_share())),
        held_pages_after: outcome.held_after,
    })
}

fn table(rows: &[Row]) -> String {
    let header = [
        "machine",
        "costs",
        "tuner",
        "workers",
        "GiB/s",
        "to fixed",
        "takes/1000",
        "fewer",
        "contended/1000",
        "waiting",
        "held 5 s after",
    ];
    let cells = |row: &Row| {
        vec![
            row.machine.to_owned(),
            row.costs.clone(),
            row.tuner.to_owned(),
            row.workers.to_string(),
            format!("{:.2}", row.gib_per_s),
            format!("x{:.2}", row.throughput_to_fixed),
            format!("{:.3}", row.lock_takes_per_1000),
            format!("x{:.1}", row.fewer_takes_than_fixed),
            format!("{:.3}", row.lock_contended_per_1000),
            row.wait_share
                .map_or_else(|| "-".to_owned(), output::percent),
            output::count(row.held_pages_after),
        ]
    };
    output::table(&header, 3, rows.iter().map(cells).collect())
}
