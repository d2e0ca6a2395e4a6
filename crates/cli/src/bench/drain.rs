//! `bench drain`: stocks of many CPUs are emptied, from the call until none holds anything.

use super::real;
use super::stocks::{Cost, Median, RUNS, VARIANTS, chain, cost, counted, empty};
use crate::args::DrainArgs;
use crate::failure::Failure;
use crate::{load, output, threads};
use pagetide_core::group::{Item, StockKind, Tree};
use pagetide_core::units::Cpu;
use serde::Serialize;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// CPUs, and what the seed's drain took there against the one that it replaced, in percent.
const CPUS: [(u32, f64); 3] = [(1, -12.08), (8, -11.29), (128, -62.85)];
/// Levels of the tree: each walk of a drained group makes so many read-modify-writes.
const LEVELS: u32 = 3;
/// Trees that are drained in one timing.
const TREES: usize = 16;

/// One variant on so many CPUs: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    cpus: u32,
    variant: &'static str,
    /// CPU time of the call.
    ns_call: f64,
    /// CPU time until every stock is empty: with `scheduled`, the owners' part too.
    ns_until_empty: f64,
    ns_of_empty_stocks: f64,
    to_scheduled_percent: f64,
    seed_percent: f64,
    owner_actions: u64,
    is_complete_on_return: bool,
    contended: u64,
    /// Of the stocks' words, the walks up left out. Only of a build with debug assertions.
    rmws_per_full_slot: Option<f64>,
    rmws_per_empty_slot: Option<f64>,
}

/// The seed's stress shape: a stable interface.
#[derive(Debug, Serialize)]
struct Stress {
    variant: &'static str,
    threads: usize,
    seconds: u32,
    drains: u32,
    calls: u64,
    contended: u64,
    contended_per_million: f64,
}

struct Run {
    call: Cost,
    until_empty: Cost,
    of_empty: Cost,
    is_complete: bool,
    owner_actions: u64,
    contended: u64,
}

pub(super) fn run(args: &DrainArgs) -> Result<(), Failure> {
    let variants = &VARIANTS[..3];
    let bar = load::progress("draining", CPUS.len() as u64 * u64::from(RUNS));
    let mut rows = Vec::new();
    for (cpus, seed_percent) in CPUS {
        let mut runs: Vec<Vec<Run>> = variants.iter().map(|_| Vec::new()).collect();
        for round in 0..RUNS {
            for at in 0..variants.len() {
                let at = if round % 2 == 0 {
                    at
                } else {
                    variants.len() - 1 - at
                };
                runs[at].push(drain(variants[at].1, cpus, args.rounds)?);
            }
            bar.inc(1);
        }
        let until_empty = |runs: &[Run]| Median::of(runs.iter().map(|run| run.until_empty));
        let scheduled = until_empty(&runs[2]).ns;
        for ((variant, kind), runs) in variants.iter().zip(&runs) {
            let ns = until_empty(runs).ns;
            let change = output::rounded((ns / scheduled - 1.0) * 100.0);
            rows.push(Row {
                ns_until_empty: output::rounded(ns),
                to_scheduled_percent: change,
                ..row((variant, *kind), cpus, seed_percent, runs)
            });
        }
    }
    bar.finish_and_clear();
    output::rows(args.json, &rows, table)?;
    let stressed: Vec<Stress> = VARIANTS[..2]
        .iter()
        .map(|&variant| stress(variant, args.seconds))
        .collect::<Result<_, _>>()?;
    output::rows(args.json, &stressed, |rows| {
        format!("\n{}", stress_table(rows))
    })
}

fn row((variant, kind): (&'static str, StockKind), cpus: u32, seed: f64, runs: &[Run]) -> Row {
    let of = |of: fn(&Run) -> Cost| Median::of(runs.iter().map(of));
    let (call, of_empty) = (of(|run| run.call), of(|run| run.of_empty));
    // All slots are one group's, which is walked up once; an owner walks itself.
    let walks = f64::from(LEVELS);
    let in_slots = |rmws: f64| match kind {
        StockKind::Scheduled => rmws,
        _ => rmws - walks,
    };
    Row {
        cpus,
        variant,
        ns_call: output::rounded(call.ns),
        ns_until_empty: 0.0,
        ns_of_empty_stocks: output::rounded(of_empty.ns),
        to_scheduled_percent: 0.0,
        seed_percent: seed,
        owner_actions: runs[0].owner_actions,
        is_complete_on_return: runs.iter().all(|run| run.is_complete),
        contended: runs.iter().map(|run| run.contended).sum(),
        rmws_per_full_slot: call.rmws.map(|rmws| in_slots(rmws) / f64::from(cpus)),
        rmws_per_empty_slot: of_empty.rmws.map(|rmws| rmws / f64::from(cpus)),
    }
}

/// Fills one slot on each CPU of some trees, from another CPU where there is one, and drains them.
///
/// Runs on a thread of its own, which it binds.
fn drain(kind: StockKind, cpus: u32, rounds: u32) -> Result<Run, Failure> {
    std::thread::scope(|scope| {
        let run = threads::start_or_end(scope, || {
            real::bind(0);
            drain_here(kind, cpus, rounds)
        });
        run.join().expect("the drainer does not panic")
    })
}

fn drain_here(kind: StockKind, cpus: u32, rounds: u32) -> Result<Run, Failure> {
    let trees: Vec<(Tree, u32)> = (0..TREES)
        .map(|_| chain(kind, cpus, LEVELS))
        .collect::<Result<_, _>>()?;
    let actions = |trees: &[(Tree, u32)]| -> u64 {
        trees
            .iter()
            .map(|(tree, _)| tree.stock_stats().owner_actions)
            .sum()
    };
    let before = actions(&trees);
    let (mut calls, mut wholes, mut empties) = (Vec::new(), Vec::new(), Vec::new());
    let mut is_complete = true;
    for _ in 0..rounds {
        std::thread::scope(|scope| {
            threads::start_or_end(scope, || {
                real::bind(1);
                trees.iter().for_each(|(tree, id)| fill(tree, *id, cpus));
            });
        });
        let nr = TREES as u64;
        let call = cost(nr, || {
            trees.iter().for_each(|(tree, _)| tree.drain(tree.root()))
        });
        is_complete &= trees.iter().all(|(tree, _)| tree.stocked(tree.root()) == 0);
        calls.push(call);
        wholes.push(match kind {
            StockKind::Scheduled => {
                let owners = || trees.iter().for_each(|(tree, _)| run_owners(tree, cpus));
                Cost {
                    ns: call.ns + cost(nr, owners).ns,
                    ..call
                }
            }
            _ => call,
        });
        assert!(
            trees.iter().all(|(tree, _)| tree.stocked(tree.root()) == 0),
            "all are empty"
        );
        empties.push(cost(nr, || {
            trees.iter().for_each(|(tree, _)| tree.drain(tree.root()));
        }));
    }
    let cost = |costs: Vec<Cost>| {
        let Median { ns, rmws, .. } = Median::of(costs.into_iter());
        Cost { ns, rmws }
    };
    let nr_drains = u64::from(rounds) * TREES as u64;
    Ok(Run {
        call: cost(calls),
        until_empty: cost(wholes),
        of_empty: cost(empties),
        is_complete,
        owner_actions: (actions(&trees) - before) / nr_drains.max(1),
        contended: trees
            .iter()
            .map(|(tree, _)| tree.stock_stats().contended)
            .sum(),
    })
}

fn fill(tree: &Tree, id: u32, cpus: u32) {
    for cpu in (0..cpus).map(Cpu::new) {
        tree.charge(cpu, id, 1).expect("the root is far from full");
    }
}

fn run_owners(tree: &Tree, cpus: u32) {
    for cpu in (0..cpus).map(Cpu::new) {
        tree.run_scheduled(cpu);
    }
}

/// A thread on each CPU charges and gives back pages and bytes; a drain a second.
fn stress((variant, kind): (&'static str, StockKind), seconds: u32) -> Result<Stress, Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let nr_cpus = u32::try_from(threads).unwrap_or(1);
    let (tree, id) = chain(kind, nr_cpus, LEVELS)?;
    let (stop, barrier) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let calls = std::thread::scope(|scope| {
        let spawn = |thread: usize| {
            let (tree, stop, barrier) = (&tree, &stop, &barrier);
            threads::start_or_end(scope, move || {
                real::bind(thread);
                barrier.wait();
                let cpu = Cpu::new(u32::try_from(thread).unwrap_or(0));
                charge_until(tree, id, cpu, stop)
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        barrier.wait();
        for _ in 0..seconds {
            std::thread::sleep(Duration::from_secs(1));
            tree.drain(tree.root());
        }
        stop.store(true, Ordering::Relaxed);
        let calls = running.into_iter().map(|thread| thread.join());
        calls
            .map(|calls| calls.expect("a worker does not panic"))
            .sum::<u64>()
    });
    empty(&tree, nr_cpus);
    assert_eq!(
        tree.get(id).map(|group| group.usage()),
        Some(0),
        "the books are exact"
    );
    let contended = tree.stock_stats().contended;
    let per_million = contended as f64 * 1e6 / calls.max(1) as f64;
    Ok(Stress {
        variant,
        threads,
        seconds,
        drains: seconds,
        calls,
        contended,
        contended_per_million: output::rounded(per_million),
    })
}

/// Calls of the stock: consume, refill, those of bytes, and of statistics.
fn charge_until(tree: &Tree, id: u32, cpu: Cpu, stop: &AtomicBool) -> u64 {
    let room = "the root is far from full";
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            tree.charge(cpu, id, 1).expect(room);
            tree.charge_bytes(cpu, id, 100).expect(room);
            tree.mod_state(cpu, id, Item::SlabUnreclaimable, 100);
            tree.mod_state(cpu, id, Item::SlabUnreclaimable, -100);
            tree.uncharge_bytes(cpu, id, 100);
            tree.uncharge(cpu, id, 1);
            calls += 6;
        }
    }
    calls
}

fn table(rows: &[Row]) -> String {
    let header = [
        "CPUs",
        "variant",
        "call ns",
        "until empty ns",
        "nothing to drain ns",
        "to scheduled",
        "in the seed",
        "owner actions",
        "complete on return",
        "contended",
        "RMWs a full slot",
        "an empty one",
    ];
    let cells = |row: &Row| {
        vec![
            row.cpus.to_string(),
            row.variant.to_owned(),
            format!("{:.0}", row.ns_call),
            format!("{:.0}", row.ns_until_empty),
            format!("{:.0}", row.ns_of_empty_stocks),
            format!("{:+.1} %", row.to_scheduled_percent),
            format!("{:+.1} %", row.seed_percent),
            row.owner_actions.to_string(),
            if row.is_complete_on_return {
                "yes"
            } else {
                "no"
            }
            .to_owned(),
            row.contended.to_string(),
            counted(row.rmws_per_full_slot),
            counted(row.rmws_per_empty_slot),
        ]
    };
    output::table(&header, 2, rows.iter().map(cells).collect())
}

fn stress_table(rows: &[Stress]) -> String {
    let header = [
        "a thread a CPU",
        "threads",
        "seconds",
        "drains",
        "calls",
        "contended",
        "in a million calls",
    ];
    let cells = |row: &Stress| {
        vec![
            row.variant.to_owned(),
            row.threads.to_string(),
            row.seconds.to_string(),
            row.drains.to_string(),
            output::count(row.calls),
            row.contended.to_string(),
            format!("{:.4}", row.contended_per_million),
        ]
    };
    output::table(&header, 1, rows.iter().map(cells).collect())
}
