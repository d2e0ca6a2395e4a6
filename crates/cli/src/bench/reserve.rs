//! `bench reserve`: bytes of the program's own heap are reserved out of a clean page cache that
//! fills the budget.

use super::{counted, turns};
use crate::args::ReserveArgs;
use crate::failure::Failure;
use crate::{load, output, scratch};
use pagetide::{ByteSize, Error, File, Group, Memory, PAGE_BYTES, Reservation, Stats};
use serde::Serialize;
use std::time::Instant;

/// What `madvise` takes away in one call.
const REGION: u64 = 2 << 20;
/// Lines that tell a tool which system calls are between them.
const BEGIN: &str = "reserve begins";
const END: &str = "reserve ends";

/// Medians of all runs: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    budget_bytes: u64,
    reserved_bytes: u64,
    cached_bytes: u64,
    ms: f64,
    ms_min: f64,
    ms_max: f64,
    regions: u64,
    release_calls_per_region: f64,
    system_calls_per_region: Option<f64>,
    pages_evicted_per_page: f64,
    released_bytes: u64,
}

/// What one reservation took.
struct Run {
    ms: f64,
    cached: u64,
    evicted: u64,
    calls: u64,
    released: u64,
}

pub(super) fn run(args: &ReserveArgs) -> Result<(), Failure> {
    if args.once {
        return once(args);
    }
    let bar = load::progress("reserving", u64::from(args.runs));
    let mut runs = Vec::new();
    for _ in 0..args.runs {
        runs.push(reserve(args)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let median = |of: fn(&Run) -> f64| turns::median(&runs, of);
    let (least, most) = turns::range(&runs, |run| run.ms);
    let reserved = args.size.as_u64();
    let regions = reserved.div_ceil(REGION).max(1);
    let per_region = |calls: f64| output::rounded(calls / regions as f64);
    let row = Row {
        budget_bytes: args.budget.as_u64(),
        reserved_bytes: reserved,
        cached_bytes: output::whole(median(|run| run.cached as f64)),
        ms: output::rounded(median(|run| run.ms)),
        ms_min: output::rounded(least),
        ms_max: output::rounded(most),
        regions,
        release_calls_per_region: per_region(median(|run| run.calls as f64)),
        system_calls_per_region: counted_calls(args)?.map(|calls| per_region(calls as f64)),
        pages_evicted_per_page: output::rounded(
            median(|run| run.evicted as f64) * PAGE_BYTES as f64 / reserved.max(1) as f64,
        ),
        released_bytes: output::whole(median(|run| run.released as f64)),
    };
    output::rows(args.json, &[row], table)
}

/// A memory whose budget is full of clean pages of a file.
fn full(args: &ReserveArgs, has_thread: bool) -> Result<(Memory, File), Failure> {
    let failed = |error: pagetide::Error| Failure::of("cannot fill the page cache", &error);
    let mut builder = Memory::builder().budget(args.budget);
    if !has_thread {
        builder = builder.without_thread();
    }
    let memory = builder.build().map_err(|error| match error {
        Error::BudgetTooSmall { .. } | Error::BudgetTooLarge { .. } => {
            Failure::Usage(format!("--budget: {error}"))
        }
        error => failed(error),
    })?;
    let nr_pages = args.budget.as_u64() / PAGE_BYTES as u64;
    let group = memory.root().child("web").map_err(failed)?;
    let file = memory.open_file(scratch::sparse(nr_pages)?, &group);
    let file = file.map_err(failed)?;
    for page in 0..nr_pages {
        let mut byte = [0];
        file.read_at(&mut byte, page * PAGE_BYTES as u64)
            .map_err(failed)?;
    }
    Ok((memory, file))
}

/// Reserves beside nothing but clean pages: what is refused is more than there can be.
fn take(args: &ReserveArgs, group: &Group) -> Result<Reservation, Failure> {
    group.reserve(args.size).map_err(|error| match error {
        Error::OverLimit { .. } => Failure::Usage(format!("--size: {error}")),
        error => Failure::of("cannot reserve", &error),
    })
}

fn reserve(args: &ReserveArgs) -> Result<Run, Failure> {
    let failed = |error: pagetide::Error| Failure::of("cannot reserve", &error);
    let (memory, _file) = full(args, true)?;
    let group = memory.root().child("query").map_err(failed)?;
    let before = memory.stats();
    let start = Instant::now();
    let reservation = take(args, &group)?;
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let after = memory.stats();
    drop(reservation);
    let more = |count: fn(&Stats) -> u64| count(&after) - count(&before);
    Ok(Run {
        ms,
        cached: before.resident_pages * PAGE_BYTES as u64,
        evicted: more(|stats| stats.pgsteal),
        calls: more(|stats| stats.release_calls),
        released: more(|stats| stats.released_bytes),
    })
}

/// One reservation between two lines, with no other thread, for a tool that counts.
fn once(args: &ReserveArgs) -> Result<(), Failure> {
    let failed = |error: pagetide::Error| Failure::of("cannot reserve", &error);
    let (memory, _file) = full(args, false)?;
    let group = memory.root().child("query").map_err(failed)?;
    output::text(&format!("{BEGIN}\n"))?;
    let reservation = take(args, &group)?;
    output::text(&format!("{END}\n"))?;
    drop(reservation);
    Ok(())
}

/// System calls of one reservation, by strace; `None` where there is none, or it may not.
fn counted_calls(args: &ReserveArgs) -> Result<Option<u64>, Failure> {
    let [budget, size] = [args.budget, args.size].map(|bytes: ByteSize| bytes.as_u64().to_string());
    let run = [
        "bench", "reserve", "--once", "--budget", &budget, "--size", &size,
    ];
    counted::system_calls(&run, BEGIN, END)
}

fn table(rows: &[Row]) -> String {
    let header = [
        "budget",
        "reserved",
        "cached before",
        "ms",
        "least",
        "most",
        "regions of 2 MiB",
        "madvise/region",
        "system calls/region",
        "evicted/page",
    ];
    let cells = |row: &Row| {
        let calls = row.system_calls_per_region;
        vec![
            output::mib(row.budget_bytes),
            output::mib(row.reserved_bytes),
            output::mib(row.cached_bytes),
            format!("{:.1}", row.ms),
            format!("{:.1}", row.ms_min),
            format!("{:.1}", row.ms_max),
            row.regions.to_string(),
            format!("{:.3}", row.release_calls_per_region),
            calls.map_or_else(|| "-".to_owned(), |calls| format!("{calls:.3}")),
            format!("{:.3}", row.pages_evicted_per_page),
        ]
    };
    output::table(&header, 0, rows.iter().map(cells).collect())
}
