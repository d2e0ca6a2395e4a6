//! `bench memory-hog`: threads touch a part of a large machine's memory, with and without hints.

use super::counted::cachegrind;
use crate::args::MemoryHogArgs;
use crate::failure::Failure;
use crate::{load, output};
use pagetide_core::alloc::{Config, Mark, Mobility, Request, Topology, ZonelistCache, Zones};
use pagetide_core::frame::FrameTable;
use pagetide_core::units::{Cpu, Order};
use pagetide_sim::hog::Hog;
use pagetide_sim::machine::Costs;
use serde::Serialize;

/// Thousandths of the memory that are touched.
const TOUCHED: [u32; 4] = [125, 400, 670, 940];

/// One run: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    touched_percent: f64,
    threads: u32,
    cache: &'static str,
    costs: String,
    blocks: u64,
    positions_per_block: f64,
    zones_per_block: f64,
    fewer_zones_than_none: f64,
    /// From when most nodes were full on; 0 where that did not come.
    crowded_zones_per_block: f64,
    crowded_fewer_than_none: f64,
    ns_per_block: f64,
    time_to_none: f64,
    failures: u64,
}

pub(super) fn run(args: &MemoryHogArgs) -> Result<(), Failure> {
    let topology = args.topology;
    let topology = Topology::grid(topology.nodes, topology.cpus);
    let topology = topology.map_err(|error| Failure::Usage(format!("--topology: {error:?}")))?;
    if let Some(cache) = args.count {
        pairs(topology, cache, args.pairs);
        return Ok(());
    }
    check(args)?;
    let measured = Costs::measured();
    let mut costs = vec![("measured".to_owned(), measured)];
    if args.sensitivity {
        costs.extend(measured.variants());
    }
    let threads: Vec<u32> = args.threads.clone();
    let nr_runs = costs.len() * TOUCHED.len() * threads.len() * ZonelistCache::ALL.len();
    let bar = load::progress("simulating", nr_runs as u64);
    let mut rows: Vec<Row> = Vec::new();
    for (what, costs) in &costs {
        for touched in TOUCHED {
            for &nr_threads in &threads {
                for (name, cache) in ZonelistCache::ALL {
                    let hog = Hog {
                        topology: topology.clone(),
                        node_frames: args.node_pages,
                        nr_threads,
                        touched,
                        cache,
                    };
                    rows.push(row(&hog, name, what, *costs)?);
                    let nr_rows = rows.len();
                    // `none` is the first of its three.
                    let first = nr_rows - 1 - (nr_rows - 1) % ZonelistCache::ALL.len();
                    let (none, last) = (&rows[first], &rows[nr_rows - 1]);
                    let fewer = none.zones_per_block / last.zones_per_block;
                    let time = last.ns_per_block / none.ns_per_block;
                    let crowded = none.crowded_zones_per_block / last.crowded_zones_per_block;
                    let last = &mut rows[nr_rows - 1];
                    if crowded.is_finite() {
                        last.crowded_fewer_than_none = output::rounded(crowded);
                    }
                    last.fewer_zones_than_none = output::rounded(fewer);
                    last.time_to_none = output::rounded(time);
                    bar.inc(1);
                }
            }
        }
    }
    bar.finish_and_clear();
    output::rows(args.json, &rows, table)?;
    if args.json {
        return Ok(());
    }
    let mut text = String::from("\nWhere the first zone always succeeds:\n");
    for (at, (name, _)) in ZonelistCache::ALL.into_iter().enumerate() {
        text += &match first_zone(at)? {
            Some(instructions) => format!("  {name:<8} {instructions:.2} instructions a pair\n"),
            None => format!("  {name:<8} not counted: there is no valgrind\n"),
        };
    }
    output::text(&text)
}

/// Refuses threads of which some would touch nothing.
fn check(args: &MemoryHogArgs) -> Result<(), Failure> {
    let nr_pages = u64::from(args.topology.nodes) * u64::from(args.node_pages);
    let least = TOUCHED.into_iter().min().unwrap_or(0);
    let touched = nr_pages * u64::from(least) / 1000;
    let mut threads = args.threads.iter();
    match threads.find(|&&threads| u64::from(threads) > touched) {
        Some(threads) => Err(Failure::Usage(format!(
            "--threads: {threads} threads are more than the {touched} pages that are touched"
        ))),
        None => Ok(()),
    }
}

/// Instructions of an allocation and a free that the first zone serves.
fn first_zone(cache: usize) -> Result<Option<f64>, Failure> {
    let cache = cache.to_string();
    let run = |pairs| cachegrind(&["bench", "memory-hog", "--count", &cache, "--pairs", pairs]);
    let (Some(many), Some(few)) = (run("110000")?, run("10000")?) else {
        return Ok(None);
    };
    Ok(Some((many[0] - few[0]) as f64 / 100_000.0))
}

/// Pairs on an empty machine, for a tool that counts.
fn pairs(topology: Topology, cache: usize, nr_pairs: u32) {
    let mut config = Config::new(topology);
    config.zonelist_cache = ZonelistCache::ALL[cache % ZonelistCache::ALL.len()].1;
    let frames = FrameTable::try_new(28 * 8192).expect("a few megabytes");
    let zones = Zones::try_new(config, &frames).expect("a few kilobytes");
    let request = Request {
        mark: Mark::Low,
        ..Request::new(Order::ZERO, Mobility::Movable)
    };
    for pair in 0..nr_pairs {
        let cpu = Cpu::new(pair % 56);
        let frame = zones
            .alloc(&frames, cpu, &request)
            .expect("an empty machine");
        zones.free(&frames, cpu, frame, Order::ZERO);
    }
}

fn row(hog: &Hog, cache: &'static str, what: &str, costs: Costs) -> Result<Row, Failure> {
    let outcome = hog.run(costs);
    let outcome = outcome.map_err(|error| Failure::of("cannot simulate", &error))?;
    let measured = outcome.whole;
    let per_block = |count: u64| output::rounded(count as f64 / measured.blocks.max(1) as f64);
    let crowded = outcome
        .crowded
        .map(|run| run.zones as f64 / run.blocks as f64);
    Ok(Row {
        touched_percent: f64::from(hog.touched) / 10.0,
        threads: hog.nr_threads,
        cache,
        costs: what.to_owned(),
        blocks: measured.blocks,
        positions_per_block: per_block(measured.positions),
        zones_per_block: per_block(measured.zones),
        fewer_zones_than_none: 1.0,
        crowded_zones_per_block: output::rounded(crowded.unwrap_or(0.0)),
        crowded_fewer_than_none: 1.0,
        ns_per_block: per_block(measured.busy_ns),
        time_to_none: 1.0,
        failures: measured.failures,
    })
}

fn table(rows: &[Row]) -> String {
    let header = [
        "costs",
        "cache",
        "touched",
        "threads",
        "positions/block",
        "zones/block",
        "fewer",
        "most nodes full",
        "ns/block",
        "time",
        "failures",
    ];
    let cells = |row: &Row| {
        let crowded = match row.crowded_zones_per_block {
            0.0 => "-".to_owned(),
            zones => format!("{zones:.2}, x{:.1}", row.crowded_fewer_than_none),
        };
        vec![
            row.costs.clone(),
            row.cache.to_owned(),
            format!("{} %", row.touched_percent),
            row.threads.to_string(),
            format!("{:.2}", row.positions_per_block),
            format!("{:.2}", row.zones_per_block),
            format!("x{:.1}", row.fewer_zones_than_none),
            crowded,
            format!("{:.0}", row.ns_per_block),
            format!("x{:.2}", row.time_to_none),
            row.failures.to_string(),
        ]
    };
    output::table(&header, 2, rows.iter().map(cells).collect())
}
