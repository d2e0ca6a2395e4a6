//! `pagetide demo`: three tenants, one file, one budget; and claims that are checked.

mod beside;
mod kernel;
mod plots;
mod recorder;
mod report;
mod stage;
mod tenants;

use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::output::Skipped;
use crate::sampler::{Sampler, promised};
use crate::{load, output, scratch};
use beside::Beside;
pub(crate) use kernel::inside as kernel_cache;
use pagetide::{PAGE_BYTES, Policy};
use serde::Serialize;
use stage::{BATCH_MAX, QUERY_BYTES, Row, Seen, Stage};
use std::time::Duration;

const FILE_PAGES: u64 = 65_536;
const PHASE: Duration = Duration::from_millis(4000);
/// A phase of the runs beside it, of which there are several.
const SHORT: f64 = 0.3;
/// How long `query` may wait for its memory.
const QUERY_PATIENCE: Duration = Duration::from_millis(100);
/// How far the hit ratio of `web` may fall while `batch` scans.
const POINT: f64 = 0.01;

/// What the demo claims, and whether it held: the last line of `--json`.
#[derive(Debug, Serialize)]
struct Claims {
    ok: bool,
    wrong_pages: u64,
    web_hit_ratio_warm: f64,
    web_hit_ratio_scan: f64,
    query_bytes: u64,
    query_ns: u64,
    peak_resident_bytes: u64,
    promised_resident_bytes: u64,
    budget_bytes: u64,
}

/// All that the demo found.
struct Demo {
    seen: Seen,
    claims: Claims,
    broken: Vec<String>,
    beside: Vec<Beside>,
    skipped: Option<Skipped>,
    /// What was resident before the memory was built.
    baseline_bytes: u64,
}

pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    if let Some(path) = &args.report {
        // Found out now rather than after half a minute.
        output::check_file(path)?;
    }
    let mut cgroup = args.kernel.then(kernel::Cgroup::of_budget).transpose()?;
    let bar = load::progress("writing a data file of 256 MiB", FILE_PAGES);
    let data = scratch::stamped(args.dir.as_deref(), FILE_PAGES, |page| {
        bar.set_position(page)
    })?;
    bar.finish_and_clear();
    let mut skipped = None;
    if cgroup.is_some()
        && let Err(error) = kernel::try_nowait(&data)
    {
        skipped = Some(kernel::skipped(&error));
        cgroup = None;
    }
    let again = |data: &std::fs::File| {
        let copy = data.try_clone();
        copy.map_err(|error| Failure::of("cannot open the data file again", &error))
    };
    let phase = args.phase_ms.map_or(PHASE, Duration::from_millis);
    let sampler = Sampler::start()?;
    let baseline_bytes = sampler.baseline();
    let stage = Stage::new(
        again(&data)?,
        Policy::default(),
        Some(BATCH_MAX),
        args.watch.as_deref(),
    )?;
    let budget_bytes = stage.memory.budget().as_u64();
    let bar = load::progress("four phases of load", 4);
    let seen = stage.play(phase, || bar.inc(1))?;
    bar.finish_and_clear();
    let peak_resident_bytes = sampler.stop();
    let mut beside = beside::run_all(&data, phase.mul_f64(SHORT))?;
    match cgroup.map(|group| kernel::run(&group, &data, phase.mul_f64(SHORT))) {
        Some(Ok(kernel)) => beside.push(kernel),
        Some(Err(failure)) => skipped = Some(kernel::skipped(&failure)),
        None => (),
    }
    let mut claims = Claims::of(&seen, peak_resident_bytes, budget_bytes);
    let broken = claims.broken();
    claims.ok = broken.is_empty();
    let demo = Demo {
        seen,
        claims,
        broken,
        beside,
        skipped,
        baseline_bytes,
    };
    // Both are tried: the reader of the one may have gone, the other's disk be full.
    let printed = demo.print(args);
    if let Some(path) = &args.report {
        output::file(path, &report::page(&demo)?)?;
    }
    let broken = (!demo.broken.is_empty()).then(|| {
        let broken = demo.broken.join("; ");
        Failure::Run(format!("claims that did not hold: {broken}"))
    });
    Failure::first(broken, printed)
}

impl Claims {
    fn of(seen: &Seen, peak_resident_bytes: u64, budget_bytes: u64) -> Claims {
        let web = |phase| seen.row(phase, "web").and_then(|row| row.hit_ratio);
        Claims {
            ok: false,
            wrong_pages: seen.wrong_pages,
            web_hit_ratio_warm: web("warm").unwrap_or(0.0),
            web_hit_ratio_scan: web("scan").unwrap_or(0.0),
            query_bytes: QUERY_BYTES,
            query_ns: u64::try_from(seen.waited.as_nanos()).unwrap_or(u64::MAX),
            peak_resident_bytes,
            promised_resident_bytes: promised(budget_bytes),
            budget_bytes,
        }
    }

    /// The claims that did not hold.
    fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        if self.wrong_pages > 0 {
            broken.push(format!(
                "{} reads gave another page's bytes",
                self.wrong_pages
            ));
        }
        if self.web_hit_ratio_scan < self.web_hit_ratio_warm - POINT {
            broken.push("the scan cost web more than one point of its hit ratio".to_owned());
        }
        if u128::from(self.query_ns) > QUERY_PATIENCE.as_nanos() {
            broken.push(format!(
                "query waited {} for its memory",
                output::time(self.query_ns)
            ));
        }
        if self.peak_resident_bytes > self.promised_resident_bytes {
            broken.push(format!(
                "resident memory reached {}, promised were {}",
                output::mib(self.peak_resident_bytes),
                output::mib(self.promised_resident_bytes)
            ));
        }
        broken
    }
}

impl Demo {
    fn print(&self, args: &DemoArgs) -> Result<(), Failure> {
        if args.json {
            self.seen.rows.iter().try_for_each(output::json)?;
            self.beside.iter().try_for_each(output::json)?;
            output::skipped(true, self.skipped.as_slice())?;
            return output::json(&self.claims);
        }
        let rows = self.seen.rows.iter().map(Row::cells);
        let table = output::table(&Row::HEADER, 2, rows.collect());
        let rows = self.beside.iter().map(Beside::cells);
        let beside = output::table(&Beside::HEADER, 1, rows.collect());
        let claims = &self.claims;
        output::text(&format!(
            "One file of 256 MiB, read by the tenants web and batch under one budget of \
             {budget}.\n\n\
             {table}\n\
             warm   web reads its hot 24 MiB, and now and then something else\n\
             scan   batch reads the whole file again and again, and is read ahead of: it is \
             held\n{indent}to {max}, and web keeps its pages ({warm} of its reads were hits, \
             now {scan})\n\
             query  asked for {query} of working memory and had it after {waited}: the cache gave \
             way\n\
             after  query is gone, the cache comes back\n\n\
             The process grew by at most {peak}, stacks included; every page had its own \
             bytes.\n\n\
             The same reads with nothing to hold batch, under other policies:\n\n\
             {beside}",
            indent = "       ",
            budget = output::mib(claims.budget_bytes),
            max = output::mib(BATCH_MAX.as_u64()),
            warm = output::percent(claims.web_hit_ratio_warm),
            scan = output::percent(claims.web_hit_ratio_scan),
            query = output::mib(claims.query_bytes),
            waited = output::time(claims.query_ns),
            peak = output::mib(claims.peak_resident_bytes),
        ))?;
        output::skipped(false, self.skipped.as_slice())
    }
}

impl Row {
    const HEADER: [&str; 7] = [
        "phase",
        "tenant",
        "reads",
        "hit ratio",
        "median",
        "p99",
        "memory",
    ];

    fn cells(&self) -> Vec<String> {
        let time = |nanos: Option<u64>| nanos.map_or_else(|| "-".to_owned(), output::time);
        vec![
            self.phase.to_owned(),
            self.tenant.to_owned(),
            output::count(self.requests),
            self.hit_ratio
                .map_or_else(|| "-".to_owned(), output::percent),
            time(self.ns_p50),
            time(self.ns_p99),
            output::mib(self.usage_bytes),
        ]
    }
}

/// Bytes of a page, as an offset.
const PAGE: u64 = PAGE_BYTES as u64;
