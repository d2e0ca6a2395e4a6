//! `bench charge`: charging and giving back pages and bytes, variants of the stock side by side.

use super::counted::cachegrind;
use super::stocks::{self, Cost, VARIANTS, chain, cost, counted, in_turn};
use super::{charge_parts, real};
use crate::args::StockArgs;
use crate::failure::Failure;
use crate::{load, output, threads};
use pagetide_core::group::{StockKind, Tree};
use pagetide_core::units::Cpu;
use serde::Serialize;
use std::sync::Barrier;

const LEVELS: [u32; 3] = [1, 3, 6];
const THREADS: [u32; 3] = [1, 2, 8];
/// Charges in a row before as many are given back.
const BURST: u64 = 256;
/// Bytes of a small object.
const OBJECT: u64 = 100;
/// Pairs of the runs that cachegrind counts.
const COUNTED_PAIRS: &str = "100000";

/// What is charged and given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Page,
    Pages,
    Bytes,
    Objects,
}

impl Load {
    /// So many pairs, in whole bursts where it has some.
    fn whole(self, pairs: u64) -> u64 {
        match self {
            Load::Page | Load::Bytes => pairs,
            Load::Pages | Load::Objects => pairs.next_multiple_of(BURST),
        }
    }
}

const LOADS: [(&str, Load); 4] = [
    ("page", Load::Page),
    ("256 pages", Load::Pages),
    ("100 bytes", Load::Bytes),
    ("256 x 100 bytes", Load::Objects),
];

/// One variant under one load: a stable interface. A pair is one charge and one uncharge.
#[derive(Debug, Serialize)]
struct Row {
    load: &'static str,
    levels: u32,
    threads: u32,
    variant: &'static str,
    ns_per_pair: f64,
    ns_per_pair_min: f64,
    ns_per_pair_max: f64,
    none_to_this: f64,
    this_to_spinlock: f64,
    /// Only of a build with debug assertions, whose times mean nothing.
    rmws_per_pair: Option<f64>,
    /// Of the load `page` at 3 levels on one thread.
    instructions_per_pair: Option<f64>,
}

pub(super) fn run(args: &StockArgs) -> Result<(), Failure> {
    if let Some(variant) = args.count {
        let (_, kind) = VARIANTS[variant.min(VARIANTS.len() - 1)];
        let (tree, id) = chain(kind, 1, 3)?;
        work(&tree, id, Cpu::new(0), Load::Page, args.pairs);
        return Ok(());
    }
    let nr_cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let bar = load::progress(
        "charging",
        (LOADS.len() * LEVELS.len() * THREADS.len()) as u64,
    );
    let mut rows = Vec::new();
    for (name, load) in LOADS {
        for levels in LEVELS {
            for threads in THREADS {
                rows.extend(side_by_side(
                    (name, load),
                    levels,
                    threads,
                    nr_cpus,
                    args.pairs,
                )?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    // Not where a test runs it small: valgrind takes seconds.
    if args.pairs >= 10_000 {
        add_instructions(&mut rows)?;
    }
    output::rows(args.json, &rows, table)?;
    charge_parts::run(args)
}

/// All variants under one load; `scheduled` only where no two threads have one CPU number.
fn side_by_side(
    (name, load): (&'static str, Load),
    levels: u32,
    threads: u32,
    nr_cpus: usize,
    pairs: u64,
) -> Result<Vec<Row>, Failure> {
    let is_fit = |kind| kind != StockKind::Scheduled || threads as usize <= nr_cpus;
    let variants: Vec<_> = VARIANTS
        .into_iter()
        .filter(|&(_, kind)| is_fit(kind))
        .collect();
    let medians = in_turn(variants.len(), |at| {
        let (tree, id) = chain(variants[at].1, u32::try_from(nr_cpus).unwrap_or(1), levels)?;
        Ok(threaded(&tree, id, load, threads, nr_cpus, pairs))
    })?;
    let of = |wanted: StockKind| {
        let at = variants.iter().position(|&(_, kind)| kind == wanted);
        medians[at.expect("these variants always run")].ns
    };
    let (none, spinlock) = (of(StockKind::None), of(StockKind::Spinlock));
    let row = |(&(variant, _), median): (&(&'static str, StockKind), &stocks::Median)| Row {
        load: name,
        levels,
        threads,
        variant,
        ns_per_pair: output::rounded(median.ns),
        ns_per_pair_min: output::rounded(median.least),
        ns_per_pair_max: output::rounded(median.most),
        none_to_this: output::rounded(none / median.ns),
        this_to_spinlock: output::rounded(median.ns / spinlock),
        rmws_per_pair: median.rmws.map(output::rounded),
        instructions_per_pair: None,
    };
    Ok(variants.iter().zip(&medians).map(row).collect())
}

/// The mean of all threads, each bound to a CPU and charging as that CPU.
fn threaded(tree: &Tree, id: u32, load: Load, threads: u32, nr_cpus: usize, pairs: u64) -> Cost {
    let barrier = Barrier::new(threads as usize);
    let costs: Vec<Cost> = std::thread::scope(|scope| {
        let spawn = |thread: u32| {
            let barrier = &barrier;
            let number = thread as usize % nr_cpus;
            threads::start_or_end(scope, move || {
                real::bind(number);
                let cpu = Cpu::new(u32::try_from(number).unwrap_or(0));
                work(tree, id, cpu, load, BURST);
                barrier.wait();
                cost(load.whole(pairs), || work(tree, id, cpu, load, pairs))
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        let done = running.into_iter().map(|thread| thread.join());
        done.map(|cost| cost.expect("a worker does not panic"))
            .collect()
    });
    let mean = |of: fn(&Cost) -> f64| costs.iter().map(of).sum::<f64>() / f64::from(threads);
    let is_counted = costs.iter().all(|cost| cost.rmws.is_some());
    Cost {
        ns: mean(|cost| cost.ns),
        rmws: is_counted.then(|| mean(|cost| cost.rmws.unwrap_or(0.0))),
    }
}

/// Charges and gives back [`Load::whole`] times.
fn work(tree: &Tree, id: u32, cpu: Cpu, load: Load, pairs: u64) {
    let room = "the root is far from full";
    let rounds = match load {
        Load::Page | Load::Bytes => pairs,
        Load::Pages | Load::Objects => load.whole(pairs) / BURST,
    };
    for _ in 0..rounds {
        match load {
            Load::Page => {
                tree.charge(cpu, id, 1).expect(room);
                tree.uncharge(cpu, id, 1);
            }
            Load::Pages => {
                (0..BURST).for_each(|_| _ = tree.charge(cpu, id, 1).expect(room));
                (0..BURST).for_each(|_| tree.uncharge(cpu, id, 1));
            }
            Load::Bytes => {
                tree.charge_bytes(cpu, id, OBJECT).expect(room);
                tree.uncharge_bytes(cpu, id, OBJECT);
            }
            Load::Objects => {
                (0..BURST).for_each(|_| _ = tree.charge_bytes(cpu, id, OBJECT).expect(room));
                (0..BURST).for_each(|_| tree.uncharge_bytes(cpu, id, OBJECT));
            }
        }
    }
}

/// Instructions of a pair, by cachegrind: a run less one of no pairs.
fn add_instructions(rows: &mut [Row]) -> Result<(), Failure> {
    for (at, (variant, _)) in VARIANTS.iter().enumerate() {
        let at = at.to_string();
        let run = |pairs| cachegrind(&["bench", "charge", "--count", &at, "--pairs", pairs]);
        let (Some(all), Some(none)) = (run(COUNTED_PAIRS)?, run("0")?) else {
            return Ok(());
        };
        let pairs: f64 = COUNTED_PAIRS.parse().unwrap_or(f64::NAN);
        let is_counted = |row: &&mut Row| {
            (row.load, row.levels, row.threads, row.variant) == ("page", 3, 1, *variant)
        };
        for row in rows.iter_mut().filter(is_counted) {
            row.instructions_per_pair = Some(output::rounded((all[0] - none[0]) as f64 / pairs));
        }
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let header = [
        "load",
        "variant",
        "levels",
        "threads",
        "ns/pair",
        "least",
        "most",
        "cheaper than none",
        "to spinlock",
        "RMWs/pair",
        "instructions/pair",
    ];
    let cells = |row: &Row| {
        vec![
            row.load.to_owned(),
            row.variant.to_owned(),
            row.levels.to_string(),
            row.threads.to_string(),
            format!("{:.1}", row.ns_per_pair),
            format!("{:.1}", row.ns_per_pair_min),
            format!("{:.1}", row.ns_per_pair_max),
            format!("x{:.2}", row.none_to_this),
            format!("x{:.2}", row.this_to_spinlock),
            counted(row.rmws_per_pair),
            counted(row.instructions_per_pair),
        ]
    };
    output::table(&header, 2, rows.iter().map(cells).collect())
}
