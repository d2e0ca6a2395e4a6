//! Rows, and what of the ceiling was reached.

use super::super::turns;
use super::spec::{Engine, Outcome, Spec};
use crate::failure::Failure;
use crate::output::{self, Skipped};
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
    /// To the kernel's `pread` by as many threads in the same turn: the median.
    to_kernel: Option<f64>,
    ns_p50: u64,
    ns_p99: u64,
    cpu_ns: u64,
    resident_bytes: u64,
    /// Of pagetide: reads that are there cost so much, of as many threads.
    hit_ns: Option<u64>,
    /// Of pagetide: reads/s where a hit costs this, and a miss what the same page takes without a
    /// cache: at the same depth, by io_uring where there is one.
    ceiling_iops: Option<u64>,
    of_ceiling: Option<f64>,
    /// The same at depth 1, where a miss costs what it takes by `pread`.
    of_pread_ceiling: Option<f64>,
    /// The same beyond depth 1, where a miss costs what it takes into registered memory.
    of_registered_ceiling: Option<f64>,
    /// Of pagetide: to a cache that costs nothing, at depth 1 by `pread`, else by io_uring.
    of_ideal: Option<f64>,
    /// As `of_ceiling`, of CPU time: what hits and direct reads take, to what these reads took.
    cpu_of_ceiling: Option<f64>,
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

/// What runs came to, each by the run of another engine in the same turn: the one in the middle.
fn median_by(runs: &[Outcome], others: &[Outcome], of: impl Fn(&Outcome, &Outcome) -> f64) -> f64 {
    let pairs: Vec<_> = runs.iter().zip(others).collect();
    turns::median(&pairs, |(run, other)| of(run, other))
}

/// What a ceiling of hits and direct reads says of runs.
struct Ceiling {
    iops: u64,
    reached: f64,
    reached_by_cpu: f64,
}

impl Ceiling {
    /// `None` of runs that measured no hits.
    fn of(threads: u32, runs: &[Outcome], raw: &[Outcome]) -> Option<Ceiling> {
        runs[0].hit_ns?;
        let iops = |run: &Outcome, raw: &Outcome| {
            let raw_ns = ns_of(threads, raw.iops);
            ceiling(threads, run.hit_ratio, run.hit_ns.unwrap_or(0.0), raw_ns)
        };
        let cpu_ns = |run: &Outcome, raw: &Outcome| {
            run.hit_ratio * run.hit_cpu_ns.unwrap_or(0.0) + (1.0 - run.hit_ratio) * raw.cpu_ns
        };
        let reached = median_by(runs, raw, |run, raw| run.iops / iops(run, raw));
        let reached_by_cpu = median_by(runs, raw, |run, raw| cpu_ns(run, raw) / run.cpu_ns);
        Some(Ceiling {
            iops: output::whole(median_by(runs, raw, iops)),
            reached: output::rounded(reached),
            reached_by_cpu: output::rounded(reached_by_cpu),
        })
    }
}

/// A row for each spec, from its runs, turn by turn.
pub(super) fn rows(specs: &[Spec], outcomes: &[Vec<Outcome>]) -> Vec<Row> {
    let runs_of = |wanted: Engine, of: &Spec, depth: u32| {
        let is_wanted =
            |spec: &Spec| spec.engine == wanted && spec.load() == of.load() && spec.depth == depth;
        let at = specs.iter().position(is_wanted)?;
        Some(&outcomes[at][..])
    };
    let row = |spec: &Spec, runs: &[Outcome]| {
        let median = |of: fn(&Outcome) -> f64| turns::median(runs, of);
        let whole = output::whole;
        let (least, most) = turns::range(runs, |run| run.iops);
        let to_kernel = runs_of(Engine::Pread, spec, 1).map(|kernel| {
            output::rounded(median_by(runs, kernel, |run, kernel| {
                run.iops / kernel.iops
            }))
        });
        let ceiling_of = |engine| {
            let raw = runs_of(engine, spec, spec.depth);
            let raw = raw.filter(|runs| runs.iter().all(|run| run.iops > 0.0))?;
            Ceiling::of(spec.threads, runs, raw)
        };
        let ideal = match spec.depth {
            1 => Engine::IdealDirect,
            _ => Engine::IdealRing,
        };
        let ideal = runs_of(ideal, spec, spec.depth).filter(|_| runs[0].hit_ns.is_some());
        let of_ideal = ideal.map(|ideal| {
            output::rounded(median_by(runs, ideal, |run, ideal| run.iops / ideal.iops))
        });
        let by_pread = ceiling_of(Engine::MissedDirect);
        let by_ring = ceiling_of(Engine::MissedRing);
        let by_registered = ceiling_of(Engine::RegisteredMissedRing);
        let ceiling = by_ring.as_ref().or(by_pread.as_ref());
        let hit_ns = runs[0].hit_ns;
        Row {
            pages: spec.distribution().to_string(),
            engine: spec.engine.name(),
            threads: spec.threads,
            depth: spec.depth,
            frames: spec.frames,
            requests: spec.requests,
            runs: runs.len(),
            hit_ratio: median(|run| run.hit_ratio),
            iops: whole(median(|run| run.iops)),
            iops_min: whole(least),
            iops_max: whole(most),
            to_kernel,
            ns_p50: whole(median(|run| run.ns_p50 as f64)),
            ns_p99: whole(median(|run| run.ns_p99 as f64)),
            cpu_ns: whole(median(|run| run.cpu_ns)),
            resident_bytes: whole(median(|run| run.resident_bytes as f64)),
            hit_ns: hit_ns.map(|_| whole(median(|run| run.hit_ns.unwrap_or(0.0)))),
            ceiling_iops: ceiling.map(|ceiling| ceiling.iops),
            of_ceiling: ceiling.map(|ceiling| ceiling.reached),
            of_pread_ceiling: by_pread.as_ref().map(|ceiling| ceiling.reached),
            of_registered_ceiling: by_registered.map(|ceiling| ceiling.reached),
            of_ideal,
            cpu_of_ceiling: ceiling.map(|ceiling| ceiling.reached_by_cpu),
        }
    };
    let runs = specs.iter().zip(outcomes);
    runs.map(|(spec, runs)| row(spec, runs)).collect()
}

pub(super) fn print(as_json: bool, rows: &[Row], skipped: &[Skipped]) -> Result<(), Failure> {
    if as_json {
        rows.iter().try_for_each(output::json)?;
    } else if !rows.is_empty() {
        output::text(&table(rows))?;
    }
    output::skipped(as_json, skipped)
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
        "of pread's",
        "of registered's",
        "of ideal",
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
            row.of_pread_ceiling.map_or_else(dash, output::percent),
            row.of_registered_ceiling.map_or_else(dash, output::percent),
            row.of_ideal.map_or_else(dash, output::percent),
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

    #[test]
    fn what_slows_a_whole_turn_is_in_no_ratio() {
        let run = |iops: f64| Outcome {
            iops,
            ..Outcome::default()
        };
        // A slow turn of both, and one in which something slowed ours only: 90 / 50 by medians.
        let ours = [100.0, 40.0, 90.0].map(run);
        let others = [50.0, 20.0, 60.0].map(run);
        let ratio = median_by(&ours, &others, |run, other| run.iops / other.iops);
        assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
    }
}
