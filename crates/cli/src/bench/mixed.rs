//! `bench mixed`: tenants of one budget at once: one reads points, one scans, one writes. What each
//! gets alone and what it gets beside the others.

use crate::args::MixedArgs;
use crate::failure::Failure;
use crate::{load, output, scratch, threads};
use hdrhistogram::Histogram;
use pagetide::{ByteSize, File, Group, Memory, PAGE_BYTES};
use pagetide_sim::requests::{Distribution, Requests};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One tenant in one phase: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    phase: &'static str,
    tenant: &'static str,
    ops: u64,
    ops_per_s: u64,
    /// Of no operation there is none: `null`.
    hit_ratio: Option<f64>,
    ns_p50: Option<u64>,
    ns_p99: Option<u64>,
    ns_p999: Option<u64>,
    memory_bytes: u64,
    /// To what the tenant had alone: `null` where that was nothing.
    to_alone: Option<f64>,
}

const TENANTS: [&str; 3] = ["points", "scan", "writes"];
/// Pages of a scan's step, and of those that are written between two syncs.
const SCAN_PAGES: u64 = 32;
const SYNC_EVERY: u64 = 256;

/// Three tenants, a file each, four times the budget together.
struct World {
    groups: Vec<Group>,
    files: Vec<File>,
    /// Pages of each file.
    nr_pages: u32,
    _memory: Memory,
    _data: Vec<std::fs::File>,
}

struct Done {
    latencies: Histogram<u64>,
    misses: u64,
    /// Longer than asked for by what the last operation took.
    elapsed: Duration,
}

pub(super) fn run(args: &MixedArgs) -> Result<(), Failure> {
    let phase_time = Duration::from_millis(args.millis);
    let mut rows: Vec<Row> = Vec::new();
    let phases = [
        ("alone", 0..1),
        ("alone", 1..2),
        ("alone", 2..3),
        ("together", 0..3),
    ];
    let bar = load::progress("running", phases.len() as u64);
    for (phase, tenants) in phases {
        // Of its own: what another phase had cached is no help.
        let world = World::new(args)?;
        // Once to warm up.
        world.run(tenants.clone(), phase_time)?;
        let done = world.run(tenants.clone(), phase_time)?;
        for (tenant, done) in tenants.zip(done) {
            let row = world.row((phase, tenant), &done, &rows);
            rows.push(row);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    output::rows(args.json, &rows, table)
}

impl World {
    fn new(args: &MixedArgs) -> Result<World, Failure> {
        let nr_pages = args.frames * 4 / 3;
        let memory = Memory::builder()
            .for_resident_pages(args.frames)
            .readahead(ByteSize::b(0))
            .build()?;
        let (mut groups, mut files, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for tenant in TENANTS {
            let group = memory.root().child(tenant)?;
            let file = scratch::stamped(args.dir.as_deref(), nr_pages.into(), |_| ())?;
            files.push(memory.open_rw(scratch::path_of(&file), &group)?);
            groups.push(group);
            data.push(file);
        }
        // Half of the budget is the points', whatever the others do.
        let half = u64::from(args.frames / 2) * PAGE_BYTES as u64;
        groups[0] = groups[0].clone().min(ByteSize(half))?;
        Ok(World {
            groups,
            files,
            nr_pages,
            _memory: memory,
            _data: data,
        })
    }

    /// Runs some tenants at once.
    fn run(&self, tenants: std::ops::Range<usize>, time: Duration) -> Result<Vec<Done>, Failure> {
        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let threads: Vec<_> = tenants
                .map(|tenant| threads::start_or_end(scope, move || self.work(tenant, is_over)))
                .collect();
            let end = Instant::now() + time;
            // Who fails ends all.
            while Instant::now() < end && !threads.iter().any(|thread| thread.is_finished()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            is_over.store(true, Ordering::Relaxed);
            let done = threads
                .into_iter()
                .map(|thread| thread.join().expect("a tenant does not panic"));
            done.collect()
        })
    }

    fn work(&self, tenant: usize, is_over: &AtomicBool) -> Result<Done, Failure> {
        let (file, group) = (&self.files[tenant], &self.groups[tenant]);
        let misses = group.misses();
        let mut latencies = load::histogram();
        let mut requests = Requests::new(Distribution::Zipf(1.1), self.nr_pages, tenant);
        let mut buf = vec![0; PAGE_BYTES * 32];
        let (start, mut nr_done) = (Instant::now(), 0);
        while !is_over.load(Ordering::Relaxed) {
            let page = u64::from(requests.next().expect("requests without end"));
            load::timed(&mut latencies, || match tenant {
                0 => read_point(file, page, &mut buf[..PAGE_BYTES]),
                1 => scan(file, nr_done, &mut buf),
                _ => write(file, page, nr_done, &buf[..PAGE_BYTES]),
            })?;
            nr_done += 1;
        }
        Ok(Done {
            latencies,
            misses: group.misses() - misses,
            elapsed: start.elapsed(),
        })
    }

    fn row(&self, (phase, tenant): (&'static str, usize), done: &Done, before: &[Row]) -> Row {
        let ops = done.latencies.len();
        let per_s = ops as f64 / done.elapsed.as_secs_f64();
        let alone = before.iter().find(|row| row.tenant == TENANTS[tenant]);
        let alone = alone.filter(|row| row.ops_per_s > 0);
        let nr_pages = if tenant == 1 { ops * SCAN_PAGES } else { ops };
        let misses = done.misses.min(nr_pages);
        let hit_ratio = 1.0 - misses as f64 / nr_pages as f64;
        let at = |quantile| output::quantile(&done.latencies, quantile);
        Row {
            phase,
            tenant: TENANTS[tenant],
            ops,
            ops_per_s: output::whole(per_s),
            hit_ratio: (nr_pages > 0).then(|| output::rounded(hit_ratio)),
            ns_p50: at(0.5),
            ns_p99: at(0.99),
            ns_p999: at(0.999),
            memory_bytes: self.groups[tenant].usage().as_u64(),
            to_alone: alone.map(|row| output::rounded(per_s / row.ops_per_s as f64)),
        }
    }
}

fn read_point(file: &File, page: u64, buf: &mut [u8]) -> Result<(), Failure> {
    file.read_at(buf, page * PAGE_BYTES as u64)?;
    match scratch::is_page(buf, page) {
        true => Ok(()),
        false => Err(Failure::Run(format!("page {page} has other bytes"))),
    }
}

/// The next pages of the file, from its start again at its end.
fn scan(file: &File, nr_done: u64, buf: &mut [u8]) -> Result<(), Failure> {
    let nr_steps = file.len() / buf.len() as u64;
    let step = nr_done % nr_steps.max(1);
    Ok(file.read_at(buf, step * buf.len() as u64).map(drop)?)
}

fn write(file: &File, page: u64, nr_done: u64, buf: &[u8]) -> Result<(), Failure> {
    file.write_at(buf, page * PAGE_BYTES as u64)?;
    match nr_done % SYNC_EVERY == SYNC_EVERY - 1 {
        true => Ok(file.sync()?),
        false => Ok(()),
    }
}

fn table(rows: &[Row]) -> String {
    let header = [
        "phase",
        "tenant",
        "ops/s",
        "to alone",
        "hit ratio",
        "p50",
        "p99",
        "p99.9",
        "memory",
    ];
    let none = || "-".to_owned();
    let time = |nanos: Option<u64>| nanos.map_or_else(none, output::time);
    let row = |row: &Row| {
        vec![
            row.phase.to_owned(),
            row.tenant.to_owned(),
            output::count(row.ops_per_s),
            row.to_alone.map_or_else(none, |to| format!("x{to:.2}")),
            row.hit_ratio.map_or_else(none, output::percent),
            time(row.ns_p50),
            time(row.ns_p99),
            time(row.ns_p999),
            output::mib(row.memory_bytes),
        ]
    };
    output::table(&header, 2, rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_without_operations_has_no_figures_of_them() {
        let args = MixedArgs {
            frames: 384,
            millis: 1,
            dir: None,
            json: false,
        };
        let world = World::new(&args).expect("a world");
        let done = |ops: u64| Done {
            latencies: {
                let mut latencies = load::histogram();
                latencies.record_n(100, ops).expect("a time");
                latencies
            },
            misses: 0,
            elapsed: Duration::from_millis(1),
        };
        let alone = world.row(("alone", 2), &done(0), &[]);
        let together = world.row(("together", 2), &done(50), std::slice::from_ref(&alone));
        assert_eq!((alone.hit_ratio, together.hit_ratio), (None, Some(1.0)));
        assert_eq!((alone.ns_p50, together.ns_p50), (None, Some(100)));
        // No number times nothing is what it has now.
        assert_eq!((alone.to_alone, together.to_alone), (None, None));
        let table = table(&[alone]);
        let row = table.lines().last().expect("a row");
        assert_eq!(row.matches(" - ").count(), 5, "{table}");
    }
}
