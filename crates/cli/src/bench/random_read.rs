//! `bench random-read`: pages of a file are read at random under a limit of a quarter of it,
//! policies side by side: counted in the simulator, timed in the runtime.

use super::{device, turns};
use crate::args::RandomReadArgs;
use crate::failure::{Failure, chain};
use crate::{load, output, scratch};
use indicatif::ProgressBar;
use pagetide::{ByteSize, File, Memory, PAGE_BYTES};
use pagetide_sim::requests::{Distribution, Requests};
use pagetide_sim::trace::Trace;
use pagetide_sim::{CoreCache, CorePolicy, Costs, policy};
use serde::Serialize;
use std::time::Instant;

pub(super) const PAGES: [Distribution; 3] = [
    Distribution::Uniform,
    Distribution::Zipf(0.9),
    Distribution::Zipf(1.1),
];
/// Policies over page numbers beside them.
const BESIDE: [&str; 3] = ["lru", "s3-fifo", "belady"];
/// The file's size is the limit times this.
const TIMES: u32 = 4;
const SEED: usize = 1;

/// What the simulator counted of one policy: a stable interface.
#[derive(Debug, Serialize)]
struct Counted {
    pages: String,
    policy: String,
    frames: u32,
    requests: u64,
    page_ins: u64,
    hit_ratio: f64,
    /// Of the real page cache only.
    scanned_per_eviction: Option<f64>,
    frame_writes_per_hit: Option<f64>,
}

/// Medians of one policy in the runtime, each over runs in turn: a stable interface.
#[derive(Debug, Serialize)]
struct Timed {
    pages: String,
    policy: &'static str,
    frames: u32,
    requests: u64,
    hit_ratio: f64,
    iops: u64,
    iops_min: u64,
    iops_max: u64,
    ns_p50: u64,
    ns_p99: u64,
}

/// One run in the runtime.
struct Run {
    hit_ratio: f64,
    iops: u64,
    ns_p50: u64,
    ns_p99: u64,
}

pub(super) fn run(args: &RandomReadArgs) -> Result<(), Failure> {
    if let Some(device) = &args.device {
        return device::run(args, device);
    }
    let nr_counted = CorePolicy::ALL.len() + BESIDE.len();
    let nr_timed = CorePolicy::ALL.len() * args.runs as usize;
    let bar = load::progress("reading", (PAGES.len() * (nr_counted + nr_timed)) as u64);
    let (mut counted, mut timed) = (Vec::new(), Vec::new());
    for pages in PAGES {
        counted.extend(count(args, pages, &bar)?);
    }
    if args.runs > 0 {
        let file = scratch::stamped(args.dir.as_deref(), u64::from(args.frames * TIMES), |_| ())?;
        for pages in PAGES {
            timed.extend(time(args, pages, &file, &bar)?);
        }
    }
    bar.finish_and_clear();
    output::rows(args.json, &counted, counted_table)?;
    if args.runs == 0 {
        return Ok(());
    }
    if !args.json {
        output::text("\nIn the runtime, one thread, medians:\n")?;
    }
    output::rows(args.json, &timed, timed_table)
}

/// Requests of the warm-up, and those that are counted after it.
fn requests(args: &RandomReadArgs, pages: Distribution) -> (Trace, usize) {
    let nr_pages = args.frames * TIMES;
    let nr_warm_up = 2 * nr_pages as usize;
    let requests = Requests::new(pages, nr_pages, SEED);
    let trace = Trace {
        name: pages.to_string(),
        pages: requests.take(nr_warm_up + args.requests as usize).collect(),
        nr_unique: nr_pages,
    };
    (trace, nr_warm_up)
}

/// Each policy in the simulator.
fn count(
    args: &RandomReadArgs,
    pages: Distribution,
    bar: &ProgressBar,
) -> Result<Vec<Counted>, Failure> {
    let (trace, nr_warm_up) = requests(args, pages);
    let (warm_up, counted) = trace.pages.split_at(nr_warm_up);
    let requests = counted.len() as u64;
    let row = |policy: &str, page_ins: u64, costs: Option<Costs>| {
        bar.inc(1);
        let ratio = |count: u64, of: u64| output::rounded(count as f64 / of.max(1) as f64);
        let hits = requests - page_ins;
        Counted {
            pages: pages.to_string(),
            policy: policy.to_owned(),
            frames: args.frames,
            requests,
            page_ins,
            hit_ratio: ratio(hits, requests),
            scanned_per_eviction: costs.map(|costs| ratio(costs.pgscan, costs.pgsteal)),
            frame_writes_per_hit: costs.map(|costs| ratio(costs.hit_writes, hits)),
        }
    };
    let mut rows = Vec::new();
    for &policy in CorePolicy::ALL {
        let failed = |error| Failure::Run(chain(&error));
        let mut cache = CoreCache::try_new(policy, args.frames).map_err(failed)?;
        cache.watch_hits(trace.nr_unique);
        let mut read = |pages: &[u32]| -> Result<(u64, Costs), Failure> {
            for &page in pages {
                cache.read(page).map_err(failed)?;
            }
            Ok((cache.counts().misses, cache.costs()))
        };
        let (before, after) = (read(warm_up)?, read(counted)?);
        let costs = Costs {
            hit_writes: after.1.hit_writes - before.1.hit_writes,
            pgscan: after.1.pgscan - before.1.pgscan,
            pgsteal: after.1.pgsteal - before.1.pgsteal,
            ..Costs::default()
        };
        rows.push(row(policy.name(), after.0 - before.0, Some(costs)));
    }
    for name in BESIDE {
        let policy = policy::by_name(name, &trace, args.frames);
        let mut policy = policy.expect("a policy over page numbers");
        let mut misses = |pages: &[u32]| {
            let missed = pages.iter().filter(|&&page| !policy.access(page));
            missed.count() as u64
        };
        let (_, page_ins) = (misses(warm_up), misses(counted));
        rows.push(row(name, page_ins, None));
    }
    Ok(rows)
}

/// Each policy in the runtime, in both orders by turns.
fn time(
    args: &RandomReadArgs,
    pages: Distribution,
    data: &std::fs::File,
    bar: &ProgressBar,
) -> Result<Vec<Timed>, Failure> {
    let (trace, nr_warm_up) = requests(args, pages);
    let policies = CorePolicy::ALL;
    let runs = turns::run(args.runs, policies.len(), |at| {
        bar.inc(1);
        time_one(args, policies[at], &trace.pages, nr_warm_up, data)
    })?;
    let rows = policies.iter().zip(runs).map(|(policy, runs)| {
        let median =
            |of: fn(&Run) -> u64| output::whole(turns::median(&runs, |run| of(run) as f64));
        let iops = || runs.iter().map(|run| run.iops);
        Timed {
            pages: pages.to_string(),
            policy: policy.name(),
            frames: args.frames,
            requests: u64::from(args.requests),
            hit_ratio: runs[0].hit_ratio,
            iops: median(|run| run.iops),
            iops_min: iops().min().unwrap_or(0),
            iops_max: iops().max().unwrap_or(0),
            ns_p50: median(|run| run.ns_p50),
            ns_p99: median(|run| run.ns_p99),
        }
    });
    Ok(rows.collect())
}

fn time_one(
    args: &RandomReadArgs,
    policy: CorePolicy,
    pages: &[u32],
    nr_warm_up: usize,
    data: &std::fs::File,
) -> Result<Run, Failure> {
    let policy: pagetide::Policy = policy.name().parse().expect("the same names");
    let builder = Memory::builder().policy(policy).readahead(ByteSize::b(0));
    let memory = builder.for_resident_pages(args.frames).build()?;
    let max = ByteSize(u64::from(args.frames) * PAGE_BYTES as u64);
    let group = memory.root().child("random-read")?.max(max)?;
    let data = data.try_clone();
    let data = data.map_err(|error| Failure::of("cannot open the data file again", &error))?;
    let file = memory.open_file(data, &group)?;
    let mut bytes = vec![0; PAGE_BYTES];
    let mut read = |file: &File, page: u32| -> Result<u64, Failure> {
        let before = Instant::now();
        file.read_at(&mut bytes, u64::from(page) * PAGE_BYTES as u64)?;
        let ns = u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX);
        match scratch::is_page(&bytes, page.into()) {
            true => Ok(ns),
            false => Err(Failure::Run(format!("page {page} has other bytes"))),
        }
    };
    let (warm_up, timed) = pages.split_at(nr_warm_up);
    for &page in warm_up {
        read(&file, page)?;
    }
    let misses = group.misses();
    let mut latencies = load::histogram();
    let mut ns = 0;
    for &page in timed {
        let one = read(&file, page)?;
        latencies.saturating_record(one);
        ns += one;
    }
    let requests = timed.len() as u64;
    let hits = requests - (group.misses() - misses);
    Ok(Run {
        hit_ratio: output::rounded(hits as f64 / requests as f64),
        iops: requests * 1_000_000_000 / ns.max(1),
        ns_p50: latencies.value_at_quantile(0.5),
        ns_p99: latencies.value_at_quantile(0.99),
    })
}

fn counted_table(rows: &[Counted]) -> String {
    let header = [
        "pages",
        "policy",
        "hit ratio",
        "page-ins",
        "scanned/eviction",
        "frame writes/hit",
    ];
    let cost = |cost: Option<f64>| cost.map_or_else(|| "-".to_owned(), |n| format!("{n:.2}"));
    let row = |row: &Counted| {
        vec![
            row.pages.clone(),
            row.policy.clone(),
            output::percent(row.hit_ratio),
            output::count(row.page_ins),
            cost(row.scanned_per_eviction),
            cost(row.frame_writes_per_hit),
        ]
    };
    output::table(&header, 2, rows.iter().map(row).collect())
}

fn timed_table(rows: &[Timed]) -> String {
    let header = [
        "pages",
        "policy",
        "hit ratio",
        "reads/s",
        "least",
        "most",
        "p50",
        "p99",
    ];
    let row = |row: &Timed| {
        vec![
            row.pages.clone(),
            row.policy.to_owned(),
            output::percent(row.hit_ratio),
            output::count(row.iops),
            output::count(row.iops_min),
            output::count(row.iops_max),
            output::time(row.ns_p50),
            output::time(row.ns_p99),
        ]
    };
    output::table(&header, 2, rows.iter().map(row).collect())
}
