//! `pagetide replay`: a recorded trace through the real page cache.

use crate::args::ReplayArgs;
use crate::failure::Failure;
use crate::sampler::Sampler;
use crate::{load, output, scratch};
use hdrhistogram::Histogram;
use pagetide::{ByteSize, Error, File, Group, Memory, PAGE_BYTES, Policy, Watch};
use pagetide_sim::trace::Trace;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// Requests between two reports of progress.
const PROGRESS_STEP: u64 = 1 << 12;

/// What a replay reports: a stable interface.
#[derive(Debug, Serialize)]
struct Report {
    trace: String,
    policy: String,
    frames: u32,
    requests: u64,
    hits: u64,
    misses: u64,
    hit_ratio: f64,
    bytes_read: u64,
    /// Of no hit or no miss there is none: `null`.
    hit_ns_p50: Option<u64>,
    hit_ns_p99: Option<u64>,
    miss_ns_p50: Option<u64>,
    miss_ns_p99: Option<u64>,
    peak_resident_bytes: u64,
    budget_bytes: u64,
    seconds: f64,
}

/// Latencies in ns, to three digits.
struct Latencies {
    hits: Histogram<u64>,
    misses: Histogram<u64>,
}

pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let policy = policy(&args.policy)?;
    let trace = load::trace(&args.trace)?;
    let mut latencies = Latencies {
        hits: load::histogram(),
        misses: load::histogram(),
    };
    // Taken now: the trace and the histograms are the command's own memory.
    let sampler = Sampler::start()?;
    let memory = memory(args, policy)?;
    let mut group = memory.root().child("replay")?;
    if let Some(frames) = args.frames {
        group = group.max(ByteSize(u64::from(frames) * PAGE_BYTES as u64))?;
    }
    let file = open(&memory, &group, args.file.as_deref(), &trace)?;
    let watch = args.watch.as_ref().map(|path| memory.watch(path));
    let watch = watch.transpose()?;
    let start = Instant::now();
    replay(&trace, &file, (&group, watch.as_ref()), &mut latencies)?;
    let seconds = start.elapsed().as_secs_f64();
    let requests = trace.pages.len() as u64;
    let misses = group.misses();
    let hits = requests - misses;
    let report = Report {
        policy: policy.to_string(),
        frames: args.frames.unwrap_or_else(|| room(&memory)),
        requests,
        hits,
        misses,
        hit_ratio: output::rounded(hits as f64 / requests as f64),
        bytes_read: memory.stats().bytes_read,
        hit_ns_p50: output::quantile(&latencies.hits, 0.5),
        hit_ns_p99: output::quantile(&latencies.hits, 0.99),
        miss_ns_p50: output::quantile(&latencies.misses, 0.5),
        miss_ns_p99: output::quantile(&latencies.misses, 0.99),
        peak_resident_bytes: sampler.stop(),
        budget_bytes: memory.budget().as_u64(),
        seconds: output::rounded(seconds),
        trace: trace.name,
    };
    if args.json {
        output::json(&report)
    } else {
        output::text(&table(&report))
    }
}

/// Pages that the budget leaves for pages of files: all but the memory's own records, of which the
/// last are made when the first page is read, and its reserve for writes.
fn room(memory: &Memory) -> u32 {
    let own = memory.root().stat().kernel;
    let pages = memory.budget().as_u64().saturating_sub(own) / PAGE_BYTES as u64;
    u32::try_from(pages).unwrap_or(u32::MAX)
}

fn policy(name: &str) -> Result<Policy, Failure> {
    if pagetide_sim::policy::NAMES.contains(&name) {
        return Err(Failure::Usage(format!(
            "policy '{name}' runs over page numbers only: use `pagetide mrc --policy {name}`; \
             replay takes one of {}",
            Policy::NAMES.join(", ")
        )));
    }
    name.parse()
        .map_err(|error: pagetide::UnknownPolicy| Failure::Usage(error.to_string()))
}

fn memory(args: &ReplayArgs, policy: Policy) -> Result<Memory, Failure> {
    // Every miss is to be one of the trace.
    let builder = Memory::builder().policy(policy).readahead(ByteSize::b(0));
    let builder = match (args.memory, args.frames) {
        (Some(budget), _) => builder.budget(budget),
        (None, frames) => builder.for_resident_pages(frames.unwrap_or(1)),
    };
    builder.build().map_err(|error| refused(args, error))
}

/// A size of the command line that cannot be is told in its words.
fn refused(args: &ReplayArgs, error: Error) -> Failure {
    let size = match (args.memory, args.frames) {
        (Some(budget), _) => format!("--memory: {} bytes", budget.as_u64()),
        (None, frames) => format!("--frames: {} pages", frames.unwrap_or(1)),
    };
    match error {
        Error::BudgetTooSmall { needed_bytes, .. } => Failure::Usage(format!(
            "{size} are too few: at least {needed_bytes} bytes are needed"
        )),
        Error::BudgetTooLarge { max_bytes, .. } => Failure::Usage(format!(
            "{size} are too many: a budget has at most {max_bytes} bytes"
        )),
        error => Failure::of(&size, &error),
    }
}

fn open(
    memory: &Memory,
    group: &Group,
    path: Option<&Path>,
    trace: &Trace,
) -> Result<File, Failure> {
    let needed = u64::from(trace.nr_unique);
    let Some(path) = path else {
        return Ok(memory.open_file(scratch::sparse(needed)?, group)?);
    };
    let file = memory.open(path, group)?;
    let needed_bytes = needed * PAGE_BYTES as u64;
    if file.len() < needed_bytes {
        return Err(Failure::Run(format!(
            "{} has {} bytes: the {needed} pages of the trace need {needed_bytes}",
            path.display(),
            file.len()
        )));
    }
    Ok(file)
}

fn replay(
    trace: &Trace,
    file: &File,
    (group, watch): (&Group, Option<&Watch>),
    latencies: &mut Latencies,
) -> Result<(), Failure> {
    let bar = load::progress("replay", trace.pages.len() as u64);
    let mut bytes = vec![0; PAGE_BYTES];
    let mut misses = group.misses();
    for (done, &page) in (0..).zip(&trace.pages) {
        let before = Instant::now();
        file.read_at(&mut bytes, u64::from(page) * PAGE_BYTES as u64)?;
        let nanos = u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = group.misses();
        let histogram = if now == misses {
            &mut latencies.hits
        } else {
            &mut latencies.misses
        };
        histogram.saturating_record(nanos);
        misses = now;
        if done % PROGRESS_STEP == 0 {
            bar.set_position(done);
            if let Some(watch) = watch {
                watch.set_requests(group, done);
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn table(report: &Report) -> String {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let time = |nanos: Option<u64>| nanos.map_or_else(|| "-".to_owned(), output::time);
    let rows = vec![
        row("trace", report.trace.clone()),
        row("policy", report.policy.clone()),
        row(
            "pages that may be resident",
            output::count(u64::from(report.frames)),
        ),
        row("requests", output::count(report.requests)),
        row("hits", output::count(report.hits)),
        row("misses", output::count(report.misses)),
        row("hit ratio", output::percent(report.hit_ratio)),
        row("read", output::size(report.bytes_read)),
        row("hit, median", time(report.hit_ns_p50)),
        row("hit, p99", time(report.hit_ns_p99)),
        row("miss, median", time(report.miss_ns_p50)),
        row("miss, p99", time(report.miss_ns_p99)),
        row(
            "resident memory, peak",
            output::size(report.peak_resident_bytes),
        ),
        row("budget", output::size(report.budget_bytes)),
        row("seconds", format!("{:.2}", report.seconds)),
    ];
    output::table(&["figure", "value"], 1, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_pages_are_more_than_nothing() {
        let report = Report {
            trace: "short".to_owned(),
            policy: "fifo".to_owned(),
            frames: 3,
            requests: 3,
            hits: 0,
            misses: 3,
            hit_ratio: 0.0,
            bytes_read: 12 << 10,
            hit_ns_p50: None,
            hit_ns_p99: None,
            miss_ns_p50: Some(700),
            miss_ns_p99: Some(1200),
            peak_resident_bytes: 1 << 20,
            budget_bytes: 40 << 10,
            seconds: 0.1,
        };
        let table = table(&report);
        for size in [" 12.0 KiB ", " 1.0 MiB ", " 40.0 KiB "] {
            assert!(table.contains(size), "{size} is not in {table}");
        }
    }
}
