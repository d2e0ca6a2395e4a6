//! `pagetide demo`: three tenants, one file, one budget; and claims that are checked.

mod tenants;

use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::sampler::{Sampler, promised};
use crate::{load, output, scratch};
use pagetide::{Buf, ByteSize, File, Group, Memory, Order, PAGE_BYTES};
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tenants::{Counts, batch, web};

const BUDGET: ByteSize = ByteSize::mib(64);
const FILE_PAGES: u64 = 65_536;
const BATCH_MAX: ByteSize = ByteSize::mib(16);
const QUERY_BYTES: u64 = 24 << 20;
const PHASE: Duration = Duration::from_millis(4500);
/// How long `query` may wait for its memory.
const QUERY_PATIENCE: Duration = Duration::from_millis(100);
/// How far the hit ratio of `web` may fall while `batch` scans.
const POINT: f64 = 0.01;

/// One tenant in one phase: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    tenant: &'static str,
    phase: &'static str,
    requests: u64,
    hit_ratio: Option<f64>,
    ns_p50: u64,
    ns_p99: u64,
    usage_bytes: u64,
}

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

/// The memory and its tenants.
struct Stage {
    web: File,
    batch: File,
    groups: [Group; 3],
    rows: Vec<Row>,
    wrong_pages: u64,
}

pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let bar = load::progress("writing a data file of 256 MiB", FILE_PAGES);
    let data = scratch::stamped(args.dir.as_deref(), FILE_PAGES, |page| {
        bar.set_position(page)
    })?;
    bar.finish_and_clear();
    let sampler = Sampler::start()?;
    let memory = Memory::builder().budget(BUDGET).build()?;
    let root = memory.root();
    let groups = [
        root.child("web")?,
        root.child("batch")?.max(BATCH_MAX)?,
        root.child("query")?,
    ];
    let web = memory.open_file(data, &groups[0])?;
    let batch = web.for_group(&groups[1]);
    let mut stage = Stage {
        web,
        batch,
        groups,
        rows: Vec::new(),
        wrong_pages: 0,
    };
    let bar = load::progress("four phases of load", 4);
    let phase = |stage: &mut Stage, name, scans| {
        let ratio = stage.phase(name, scans);
        bar.inc(1);
        ratio
    };
    // Fills the cache; what is measured starts warm.
    stage.load(PHASE / 2, false)?;
    let warm = phase(&mut stage, "warm", false)?;
    let scan = phase(&mut stage, "scan", true)?;
    let start = Instant::now();
    let working = allocate(&stage.groups[2])?;
    let waited = start.elapsed();
    phase(&mut stage, "query", true)?;
    drop(working);
    phase(&mut stage, "after", true)?;
    bar.finish_and_clear();
    let budget_bytes = memory.budget().as_u64();
    let mut claims = Claims {
        ok: false,
        wrong_pages: stage.wrong_pages,
        web_hit_ratio_warm: output::rounded(warm),
        web_hit_ratio_scan: output::rounded(scan),
        query_bytes: QUERY_BYTES,
        query_ns: u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX),
        peak_resident_bytes: sampler.stop(),
        promised_resident_bytes: promised(budget_bytes),
        budget_bytes,
    };
    let broken = claims.broken();
    claims.ok = broken.is_empty();
    report(args, &stage.rows, &claims)?;
    match claims.ok {
        true => Ok(()),
        false => Err(Failure::Run(format!(
            "claims that did not hold: {}",
            broken.join("; ")
        ))),
    }
}

fn allocate(group: &Group) -> Result<Vec<Buf>, Failure> {
    let order = Order::new(0);
    let nr_blocks = QUERY_BYTES / order.bytes() as u64;
    (0..nr_blocks).map(|_| Ok(group.alloc(order)?)).collect()
}

impl Stage {
    /// Runs the tenants for a phase and keeps what they did; the hit ratio of `web`.
    fn phase(&mut self, name: &'static str, scans: bool) -> Result<f64, Failure> {
        let [web, batch] = self.load(PHASE, scans)?;
        let ratio = web.hit_ratio();
        for (tenant, group, counts) in [
            ("web", 0, Some(web)),
            ("batch", 1, batch.requests().then_some(batch)),
            ("query", 2, None),
        ] {
            let usage_bytes = self.groups[group].usage().as_u64();
            if counts.is_none() && usage_bytes == 0 {
                continue;
            }
            let latency = |quantile| {
                counts
                    .as_ref()
                    .map_or(0, |counts| counts.latency.value_at_quantile(quantile))
            };
            self.rows.push(Row {
                tenant,
                phase: name,
                requests: counts.as_ref().map_or(0, |counts| counts.nr_requests),
                hit_ratio: counts
                    .as_ref()
                    .map(|counts| output::rounded(counts.hit_ratio())),
                ns_p50: latency(0.5),
                ns_p99: latency(0.99),
                usage_bytes,
            });
        }
        Ok(ratio)
    }

    /// Runs `web`, and `batch` beside it where it scans.
    fn load(&mut self, how_long: Duration, scans: bool) -> Result<[Counts; 2], Failure> {
        let stop = AtomicBool::new(false);
        let misses = || [0, 1].map(|group: usize| self.groups[group].misses());
        let before = misses();
        let counts = std::thread::scope(|scope| {
            let web = scope.spawn(|| web(&self.web, &stop));
            let batch = scans.then(|| scope.spawn(|| batch(&self.batch, &stop)));
            std::thread::sleep(how_long);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            let web = web.join().expect("a tenant does not panic")?;
            let batch = batch.map(|batch| batch.join().expect("a tenant does not panic"));
            Ok::<_, Failure>([web, batch.transpose()?.unwrap_or_default()])
        });
        let mut counts = counts?;
        for (group, after) in misses().into_iter().enumerate() {
            counts[group].nr_misses = after - before[group];
            self.wrong_pages += counts[group].nr_wrong;
        }
        Ok(counts)
    }
}

impl Claims {
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

fn report(args: &DemoArgs, rows: &[Row], claims: &Claims) -> Result<(), Failure> {
    if args.json {
        rows.iter().try_for_each(output::json)?;
        return output::json(claims);
    }
    let cells = rows.iter().map(|row| {
        let has_reads = row.hit_ratio.is_some();
        let time = |nanos| {
            if has_reads {
                output::time(nanos)
            } else {
                "-".to_owned()
            }
        };
        vec![
            row.phase.to_owned(),
            row.tenant.to_owned(),
            output::count(row.requests),
            row.hit_ratio
                .map_or_else(|| "-".to_owned(), output::percent),
            time(row.ns_p50),
            time(row.ns_p99),
            output::mib(row.usage_bytes),
        ]
    });
    let header = [
        "phase",
        "tenant",
        "reads",
        "hit ratio",
        "median",
        "p99",
        "memory",
    ];
    let table = output::table(&header, 2, cells.collect());
    output::text(&format!(
        "One file of 256 MiB, read by the tenants web and batch under one budget of {budget}.\n\n\
         {table}\n\
         warm   web reads its hot 24 MiB, and now and then something else\n\
         scan   batch reads the whole file again and again: it is held to {max}, and web\n       \
         keeps its pages ({warm} of its reads were hits, now {scan})\n\
         query  asked for {query} of working memory and had it after {waited}: the cache gave way\n\
         after  query is gone, the cache comes back\n\n\
         Resident memory never exceeded {peak}; every page had its own bytes.\n",
        budget = output::mib(claims.budget_bytes),
        max = output::mib(BATCH_MAX.as_u64()),
        warm = output::percent(claims.web_hit_ratio_warm),
        scan = output::percent(claims.web_hit_ratio_scan),
        query = output::mib(claims.query_bytes),
        waited = output::time(claims.query_ns),
        peak = output::mib(claims.peak_resident_bytes),
    ))
}

/// Bytes of a page, as an offset.
const PAGE: u64 = PAGE_BYTES as u64;
