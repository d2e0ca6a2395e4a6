//! Rows, and what of the ceiling was reached.

use super::super::turns;
use super::spec::{Engine, Outcome, Spec};
use crate::failure::Failure;
use crate::output;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::Path;

/// Medians of one engine under one load: a stable interface.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pages: String,
    engine: &'static str,
    threads: u32,
    depth: u32,
    frames: u32,
    requests: u32,
    runs: usize,
    hit_ratio: f64,
    iops: u64,
    iops_min: u64,
    iops_max: u64,
    /// To the kernel's `pread` by as many threads.
    to_kernel: Option<f64>,
    ns_p50: u64,
    ns_p99: u64,
    cpu_ns: u64,
    resident_bytes: u64,
    /// Of pagetide: reads that are there cost so much, of as many threads.
    hit_ns: Option<u64>,
    /// Of pagetide: reads/s where a hit costs this, and a miss what the same page takes without a
    /// cache.
    ceiling_iops: Option<u64>,
    of_ceiling: Option<f64>,
    /// The same of CPU time: what hits and direct reads take, to what these reads took.
    cpu_of_ceiling: Option<f64>,
}

/// What was not measured, and why: a stable interface.
#[derive(Debug, Serialize)]
pub(super) struct Skipped {
    skipped: String,
    reason: String,
}

impl Skipped {
    pub(super) fn new(what: &str, reason: &str) -> Skipped {
        Skipped {
            skipped: what.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// What the device in memory made of the data.
pub(super) struct Stored {
    bytes: u64,
    in_bytes: u64,
}

impl Stored {
    /// By a zram device's folder in sysfs.
    pub(super) fn of(sysfs: &Path) -> Option<Stored> {
        let text = fs::read_to_string(sysfs.join("mm_stat")).ok()?;
        let mut counts = text.split_whitespace().map(str::parse);
        let mut next = || counts.next()?.ok();
        Some(Stored {
            bytes: next()?,
            in_bytes: next()?,
        })
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bytes, in_bytes] = [self.bytes, self.in_bytes].map(output::mib);
        write!(f, "zram stores {bytes} in {in_bytes}")
    }
}

/// Nanoseconds of a request, of each thread.
fn ns_of(threads: u32, iops: f64) -> f64 {
    f64::from(threads) * 1e9 / iops
}

/// Reads/s of so many threads whose hits take `hit_ns` and whose misses take `raw_ns`.
fn ceiling(threads: u32, hit_ratio: f64, hit_ns: f64, raw_ns: f64) -> f64 {
    f64::from(threads) * 1e9 / (hit_ratio * hit_ns + (1.0 - hit_ratio) * raw_ns)
}

/// A row for each spec, from its runs.
pub(super) fn rows(specs: &[Spec], mut outcomes: Vec<Vec<Outcome>>) -> Vec<Row> {
    for runs in &mut outcomes {
        runs.sort_by(|one, other| one.iops.total_cmp(&other.iops));
    }
    let runs_of = |wanted: Engine, of: &Spec, depth: u32| {
        let is_wanted = |spec: &Spec| {
            let load = (spec.pages, spec.threads, spec.depth);
            spec.engine == wanted && load == (of.pages, of.threads, depth)
        };
        let at = specs.iter().position(is_wanted)?;
        Some(&outcomes[at][..])
    };
    let row = |spec: &Spec, runs: &[Outcome]| {
        let median = |of: fn(&Outcome) -> f64| turns::median(runs, of);
        let whole = output::whole;
        let (iops, hit_ratio) = (median(|run| run.iops), median(|run| run.hit_ratio));
        let hit_ns = runs[0]
            .hit_ns
            .map(|_| median(|run| run.hit_ns.unwrap_or(0.0)));
        let raw = match spec.depth {
            1 => Engine::MissedDirect,
            _ => Engine::MissedRing,
        };
        let raw = runs_of(raw, spec, spec.depth);
        let ceiling_iops = hit_ns.zip(raw).map(|(hit_ns, raw)| {
            let raw_iops = turns::median(raw, |run| run.iops);
            let raw_ns = ns_of(spec.threads, raw_iops);
            ceiling(spec.threads, hit_ratio, hit_ns, raw_ns)
        });
        let cpu_ns = median(|run| run.cpu_ns);
        let cpu_of_ceiling = hit_ns.and(raw).map(|raw| {
            let hit_ns = median(|run| run.hit_cpu_ns.unwrap_or(0.0));
            let raw_ns = turns::median(raw, |run| run.cpu_ns);
            output::rounded((hit_ratio * hit_ns + (1.0 - hit_ratio) * raw_ns) / cpu_ns)
        });
        Row {
            pages: spec.distribution().to_string(),
            engine: spec.engine.name(),
            threads: spec.threads,
            depth: spec.depth,
            frames: spec.frames,
            requests: spec.requests,
            runs: runs.len(),
            hit_ratio,
            iops: whole(iops),
            iops_min: whole(runs[0].iops),
            iops_max: whole(runs[runs.len() - 1].iops),
            to_kernel: runs_of(Engine::Pread, spec, 1)
                .map(|kernel| output::rounded(iops / turns::median(kernel, |run| run.iops))),
            ns_p50: whole(median(|run| run.ns_p50 as f64)),
            ns_p99: whole(median(|run| run.ns_p99 as f64)),
            cpu_ns: whole(cpu_ns),
            resident_bytes: whole(median(|run| run.resident_bytes as f64)),
            hit_ns: hit_ns.map(whole),
            ceiling_iops: ceiling_iops.map(whole),
            of_ceiling: ceiling_iops.map(|ceiling| output::rounded(iops / ceiling)),
            cpu_of_ceiling,
        }
    };
    let runs = specs.iter().zip(&outcomes);
    runs.map(|(spec, runs)| row(spec, runs)).collect()
}

pub(super) fn print(as_json: bool, rows: &[Row], skipped: &[Skipped]) -> Result<(), Failure> {
    if as_json {
        rows.iter().try_for_each(output::json)?;
        return skipped.iter().try_for_each(output::json);
    }
    if !rows.is_empty() {
        output::text(&table(rows))?;
    }
    for Skipped { skipped, reason } in skipped {
        output::text(&format!("skipped: {skipped}: {reason}\n"))?;
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let header = [
        "pages",
        "engine",
        "threads",
        "depth",
        "hit ratio",
        "reads/s",
        "to kernel",
        "p50",
        "p99",
        "CPU/read",
        "memory",
        "hit",
        "of ceiling",
        "CPU of ceiling",
    ];
    let dash = || "-".to_owned();
    let row = |row: &Row| {
        vec![
            row.pages.clone(),
            row.engine.to_owned(),
            row.threads.to_string(),
            row.depth.to_string(),
            output::percent(row.hit_ratio),
            output::count(row.iops),
            row.to_kernel.map_or_else(dash, |to| format!("x{to:.2}")),
            output::time(row.ns_p50),
            output::time(row.ns_p99),
            output::time(row.cpu_ns),
            output::mib(row.resident_bytes),
            row.hit_ns.map_or_else(dash, output::time),
            row.of_ceiling.map_or_else(dash, output::percent),
            row.cpu_of_ceiling.map_or_else(dash, output::percent),
        ]
    };
    output::table(&header, 2, rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_is_what_hits_and_the_device_leave() {
        // One in ten from a device of 10 us: a microsecond and 90 ns a read.
        let one = ceiling(1, 0.9, 100.0, 10_000.0);
        assert!((one - 1e9 / 1090.0).abs() < 1.0);
        assert!((ceiling(2, 0.9, 100.0, 10_000.0) - 2.0 * one).abs() < 1.0);
        // A device that serves 200,000 reads/s to two threads takes 10 us for each.
        assert!((ns_of(2, 200_000.0) - 10_000.0).abs() < 0.1);
    }
}
