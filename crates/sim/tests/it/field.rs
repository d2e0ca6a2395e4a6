//! The policies of core on all recorded traces, beside the recorded miss ratios of others.

use crate::expected::shared_traces;
use pagetide_core::reclaim::Policy;
use pagetide_sim::trace::{Trace, TraceOptions};
use pagetide_sim::{CoreCache, Costs, Counts};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A trace at one size, and the recorded miss ratios of policies there.
pub(crate) struct Point {
    pub(crate) trace: String,
    pub(crate) fraction: String,
    pub(crate) frames: u32,
    pub(crate) recorded: BTreeMap<String, f64>,
}

/// A point as core ran it.
struct Run {
    counts: Counts,
    costs: Costs,
}

impl Run {
    fn new(policy: Policy, trace: &Trace, frames: u32) -> Run {
        let mut cache = CoreCache::try_new(policy, frames).unwrap();
        cache.watch_hits(trace.nr_unique);
        for &page in &trace.pages {
            cache.read(page).unwrap();
        }
        Run {
            counts: cache.counts(),
            costs: cache.costs(),
        }
    }

    fn writes_per_hit(&self) -> f64 {
        let hits = self.counts.requests - self.counts.misses;
        self.costs.hit_writes as f64 / hits.max(1) as f64
    }

    fn scans_per_eviction(&self) -> f64 {
        self.costs.pgscan as f64 / self.costs.pgsteal.max(1) as f64
    }
}

pub(crate) fn points(csv: &str) -> Vec<Point> {
    let mut points = BTreeMap::<(String, u32), Point>::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let [trace, fraction, frames, policy, miss_ratio, ..] = fields[..] else {
            panic!("a malformed row: {line}");
        };
        let frames: u32 = frames.parse().unwrap();
        let new = || Point {
            trace: trace.to_owned(),
            fraction: fraction.to_owned(),
            frames,
            recorded: BTreeMap::new(),
        };
        let point = points.entry((trace.to_owned(), frames)).or_insert_with(new);
        let miss_ratio = miss_ratio.parse().unwrap();
        point.recorded.insert(policy.to_owned(), miss_ratio);
    }
    points.into_values().collect()
}

/// Runs the jobs on all CPUs; the results come in their order.
pub(crate) fn on_all_cpus<J: Sync, R: Send>(jobs: &[J], run: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let nr_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..nr_threads {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(job) = jobs.get(at)
                {
                    let result = run(job);
                    done.lock().unwrap().push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|&(at, _)| at);
    done.into_iter().map(|(_, result)| result).collect()
}

pub(crate) fn open(folder: &Path, name: &str) -> Trace {
    let path = folder.join(format!("{name}.d64.zst"));
    Trace::open(&path, &TraceOptions::default()).unwrap()
}

/// A number for each trace and size, in percent: how many misses of FIFO's are spared.
pub(crate) type Reductions<'a> = BTreeMap<&'a str, Vec<f64>>;

/// The mean over sizes in a trace, then over traces.
pub(crate) fn mean(reductions: &Reductions<'_>) -> f64 {
    let of = |numbers: &Vec<f64>| numbers.iter().sum::<f64>() / numbers.len() as f64;
    reductions.values().map(of).sum::<f64>() / reductions.len() as f64
}

pub(crate) fn reductions<'a>(
    points: &'a [Point],
    ratio: impl Fn(usize) -> Option<f64>,
) -> Reductions<'a> {
    let mut found = Reductions::new();
    for (at, point) in points.iter().enumerate() {
        if let Some(ratio) = ratio(at) {
            let reduction = (1.0 - ratio / point.recorded["fifo"]) * 100.0;
            found.entry(&point.trace).or_default().push(reduction);
        }
    }
    found
}

/// How much worse `ratio` is than a recorded one, in percent.
fn worse(ratio: f64, recorded: f64) -> f64 {
    (ratio / recorded - 1.0) * 100.0
}

/// All points and what core does there, the longest first so that all CPUs end together.
fn run_all(policy: Policy) -> (Vec<Point>, Vec<Run>) {
    let folder = shared_traces().expect("the folder of recorded traces");
    let csv = std::fs::read_to_string(folder.join("expected.csv")).unwrap();
    let mut points = points(&csv);
    let mut traces = BTreeMap::new();
    for point in &points {
        let name = &point.trace;
        let trace = traces.entry(name.clone());
        trace.or_insert_with(|| open(&folder, name));
    }
    points.sort_by_key(|point| std::cmp::Reverse(traces[&point.trace].pages.len()));
    let runs = on_all_cpus(&points, |point| {
        Run::new(policy, &traces[&point.trace], point.frames)
    });
    (points, runs)
}

/// Prints what core does at each point; returns its mean reduction and that of `twin`, a recorded
/// policy, at the points where it was recorded.
fn report(policy: Policy, (points, runs): &(Vec<Point>, Vec<Run>), twin: &str) -> (f64, f64) {
    for (point, run) in points.iter().zip(runs) {
        let ratio = run.counts.miss_ratio();
        let against = |name: &str| {
            let recorded = point.recorded.get(name);
            recorded.map_or_else(String::new, |&other| {
                format!("{:+.2} %", worse(ratio, other))
            })
        };
        println!(
            "{:<13} {:>5} {:>6}  {policy} {ratio:.6}  fifo {:>9}  s3-fifo {:>9}  {twin} {:>9}  \
             writes a hit {:.3}  scans an eviction {:.2}",
            point.trace,
            point.fraction,
            point.frames,
            against("fifo"),
            against("s3-fifo"),
            against(twin),
            run.writes_per_hit(),
            run.scans_per_eviction(),
        );
    }
    let ours = reductions(points, |at| Some(runs[at].counts.miss_ratio()));
    let theirs = reductions(points, |at| points[at].recorded.get(twin).copied());
    for (trace, numbers) in &ours {
        let of = |numbers: &Vec<f64>| numbers.iter().sum::<f64>() / numbers.len() as f64;
        let (ours, theirs) = (of(numbers), of(&theirs[trace]));
        println!("{trace:<13} {policy} {ours:.2} % under fifo, {twin} {theirs:.2} %");
    }
    let both = (mean(&ours), mean(&theirs));
    println!(
        "mean          {policy} {:.2} % under fifo, {twin} {:.2} %",
        both.0, both.1
    );
    both
}

/// `rdg2` is the prototype that it was made from.
#[test]
#[ignore = "minutes; `cargo xtask traces` runs it"]
fn gated_2q_is_ahead_of_the_field() {
    let all = run_all(Policy::Gated2q);
    let (ours, prototype) = report(Policy::Gated2q, &all, "rdg2");
    assert!(ours >= 18.0, "{ours:.2} % under fifo");
    assert!(ours >= prototype - 0.3, "{ours:.2} %, {prototype:.2} %");
    let mut scans = 0.0;
    for (point, run) in all.0.iter().zip(&all.1) {
        let name = format!("{} {}", point.trace, point.fraction);
        let ratio = run.counts.miss_ratio();
        let above_fifo = worse(ratio, point.recorded["fifo"]);
        let most = if point.trace == "rec_pg" { 12.0 } else { 5.0 };
        assert!(above_fifo <= most, "{name}: {above_fifo:.2} % above fifo");
        let above_s3_fifo = worse(ratio, point.recorded["s3-fifo"]);
        assert!(
            above_s3_fifo <= 4.0,
            "{name}: {above_s3_fifo:.2} % above s3-fifo"
        );
        let is_large = matches!(point.trace.as_str(), "arc_OLTP" | "c2k_ormnight")
            && matches!(point.fraction.as_str(), "0.01" | "0.1");
        let writes = run.writes_per_hit();
        assert!(
            !is_large || writes <= 0.55,
            "{name}: {writes:.3} writes a hit"
        );
        scans += run.scans_per_eviction() / all.0.len() as f64;
    }
    assert!(
        scans <= 3.0,
        "{scans:.2} frames scanned for each evicted in the mean"
    );
}

/// A point that the kernel replayed.
struct KernelPoint {
    trace: String,
    limit: u32,
    /// Pages that were resident in the mean.
    resident: u32,
    misses: f64,
    version: String,
}

/// What the kernel replayed under a policy, where `is_meant` says so of limit and requests.
fn kernel_points(policy: &str, is_meant: impl Fn(u32, u32) -> bool) -> Vec<KernelPoint> {
    let folder = shared_traces().expect("the folder of recorded traces");
    let csv = std::fs::read_to_string(folder.join("kernel.csv")).unwrap();
    let mut points = Vec::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let [trace, _, limit, requests, kind, misses, resident, version] = fields[..] else {
            panic!("a malformed row: {line}");
        };
        let number = |field: &str| field.parse::<u32>().unwrap();
        if kind == policy && is_meant(number(limit), number(requests)) {
            points.push(KernelPoint {
                trace: trace.to_owned(),
                limit: number(limit),
                resident: number(resident),
                misses: f64::from(number(misses)),
                version: version.to_owned(),
            });
        }
    }
    points
}

/// Replays what the kernel replayed and prints how many misses more core has; returns the mean and
/// the largest difference, in percent, signs left out.
fn beside_the_kernel(
    points: &[KernelPoint],
    policy: Policy,
    misses: impl Fn(&KernelPoint, &Trace) -> u64 + Sync,
) -> (f64, f64) {
    let folder = shared_traces().expect("the folder of recorded traces");
    let ours = on_all_cpus(points, |point| misses(point, &open(&folder, &point.trace)));
    let mut differences = Vec::new();
    for (point, ours) in points.iter().zip(ours) {
        let difference = worse(ours as f64, point.misses);
        let (trace, limit, version) = (&point.trace, point.limit, &point.version);
        println!("{trace:<13} {limit:>6}  {policy} {difference:+.2} % beside Linux {version}");
        differences.push(difference.abs());
    }
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    let largest = differences.iter().copied().fold(0.0, f64::max);
    println!("{policy}: {mean:.2} % from the kernel in the mean, {largest:.2} % at most");
    (mean, largest)
}

/// The same at the pages that were resident there.
fn at_what_was_resident(policy: Policy, recorded: &str) -> (f64, f64) {
    let points = kernel_points(recorded, |limit, requests| {
        limit >= 600 && requests <= 2_000_000
    });
    assert!(points.len() >= 20, "{} points", points.len());
    beside_the_kernel(&points, policy, |point, trace| {
        Run::new(policy, trace, point.resident).counts.misses
    })
}

#[test]
#[ignore = "minutes; `cargo xtask traces` runs it"]
fn mglru_is_near_the_kernels() {
    let (mean, largest) = at_what_was_resident(Policy::Mglru, "mglru");
    assert!(mean <= 1.5 && largest <= 5.0, "{mean:.2} %, {largest:.2} %");
}

/// With as many shadow entries as the kernel keeps, and without requests for the page that was read
/// just before, which the kernel does not count: under limits of more than 64 batches, where core's
/// are the kernel's. One page of the limit was the replayer's own.
#[test]
#[ignore = "minutes; `cargo xtask traces` runs it"]
fn mglru_decides_as_the_kernel_does() {
    let points = kernel_points("mglru", |limit, requests| {
        limit > 64 * 64 && requests <= 2_000_000
    });
    let (mean, largest) = beside_the_kernel(&points, Policy::Mglru, |point, trace| {
        let frames = point.limit - 1;
        let mut cache = CoreCache::with_shadows(Policy::Mglru, frames, 32 * frames).unwrap();
        let mut pages = trace.pages.clone();
        pages.dedup();
        pages.iter().for_each(|&page| _ = cache.read(page).unwrap());
        cache.counts().misses
    });
    assert!(points.len() >= 7, "{} points", points.len());
    assert!(
        mean <= 0.02 && largest <= 0.1,
        "{mean:.3} %, {largest:.3} %"
    );
}

/// Recorded is another reading of the patch: files alone, and nothing restored by a refault.
#[test]
#[ignore = "minutes; `cargo xtask traces` runs it"]
fn mglru_seed_is_near_another_reading() {
    let (points, runs) = run_all(Policy::MglruSeed);
    let mut differences = Vec::new();
    for (point, run) in points.iter().zip(&runs) {
        if let Some(&reading) = point.recorded.get("mglru-seed-reading")
            && point.frames >= 600
        {
            let difference = worse(run.counts.miss_ratio(), reading);
            let (trace, frames) = (&point.trace, point.frames);
            println!("{trace:<13} {frames:>6}  {difference:+.2} % beside another reading");
            differences.push(difference.abs());
        }
    }
    assert!(differences.len() >= 35, "{} points", differences.len());
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    let largest = differences.iter().copied().fold(0.0, f64::max);
    assert!(
        mean <= 2.0 && largest <= 15.0,
        "{mean:.2} %, {largest:.2} %"
    );
}

/// Core promotes at eviction what the kernel promotes at the read: `lirs_sprite`, 6 %.
#[test]
#[ignore = "minutes; `cargo xtask traces` runs it"]
fn two_list_is_near_the_kernels() {
    let (mean, largest) = at_what_was_resident(Policy::TwoList, "classic");
    assert!(mean <= 2.0 && largest <= 7.0, "{mean:.2} %, {largest:.2} %");
}

/// How a limit of `c` pages moves over a trace; where the prototype stood on prefixes of the
/// same traces, in percent under FIFO.
struct Schedule {
    name: &'static str,
    prototype: f64,
    /// The limit as a multiple of `c` at a part of the trace, and after so many sizes of requests.
    at: fn(part: f64, sizes: f64) -> f64,
}

const SCHEDULES: &[Schedule] = &[
    Schedule {
        name: "halved in the middle third",
        prototype: 16.53,
        at: |part, _| {
            if (part * 3.0).floor() == 1.0 {
                0.5
            } else {
                1.0
            }
        },
    },
    Schedule {
        name: "doubled in the middle third",
        prototype: 18.02,
        at: |part, _| {
            if (part * 3.0).floor() == 1.0 {
                2.0
            } else {
                1.0
            }
        },
    },
    Schedule {
        name: "30 % more and less, each size of requests",
        prototype: 14.24,
        at: |_, sizes| if sizes.floor() % 2.0 == 0.0 { 1.3 } else { 0.7 },
    },
    Schedule {
        name: "from a quarter to seven quarters",
        prototype: 16.31,
        at: |part, _| 0.25 + 1.5 * part,
    },
    Schedule {
        name: "from seven quarters to a quarter",
        prototype: 17.67,
        at: |part, _| 1.75 - 1.5 * part,
    },
];

/// The misses of `policy` on a trace while its limit moves.
fn under(schedule: &Schedule, policy: Policy, trace: &Trace, frames: u32) -> u64 {
    let size = f64::from(frames);
    let mut cache = CoreCache::try_new(policy, frames * 2).unwrap();
    let mut limit = 0;
    for (request, &page) in trace.pages.iter().enumerate() {
        let part = request as f64 / trace.pages.len() as f64;
        let pages = (schedule.at)(part, request as f64 / size) * size;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let pages = (pages as u32).max(1);
        if pages != limit {
            cache.set_max(pages);
            limit = pages;
        }
        cache.read(page).unwrap();
    }
    cache.counts().misses
}

/// The mean reduction against FIFO under each schedule, at sizes from 1 % on.
fn judge_schedules(policy: Policy, traces: &BTreeMap<String, Trace>, points: &[Point]) -> Vec<f64> {
    let points: Vec<&Point> = points
        .iter()
        .filter(|point| traces.contains_key(&point.trace) && point.fraction != "0.001")
        .collect();
    let jobs: Vec<(&Schedule, &Point)> = SCHEDULES
        .iter()
        .flat_map(|schedule| points.iter().map(move |&point| (schedule, point)))
        .collect();
    let ratios = on_all_cpus(&jobs, |&(schedule, point)| {
        let run = |policy| under(schedule, policy, &traces[&point.trace], point.frames);
        run(policy) as f64 / run(Policy::Fifo) as f64
    });
    let by_schedule = ratios.chunks(points.len());
    SCHEDULES
        .iter()
        .zip(by_schedule)
        .map(|(schedule, ratios)| {
            let mut found = Reductions::new();
            for (point, ratio) in points.iter().zip(ratios) {
                let reduction = (1.0 - ratio) * 100.0;
                found.entry(&point.trace).or_default().push(reduction);
            }
            let mean = mean(&found);
            println!("{policy}: {mean:.2} % under fifo, {}", schedule.name);
            mean
        })
        .collect()
}

/// All traces, of the long ones the first million requests (`arc_P6`: two), as the prototype
/// had prefixes of them, though not all of the same length.
#[test]
#[ignore = "minutes; `cargo xtask traces` runs it"]
fn gated_2q_stays_ahead_where_the_limit_moves() {
    let folder = shared_traces().expect("the folder of recorded traces");
    let csv = std::fs::read_to_string(folder.join("expected.csv")).unwrap();
    let points = points(&csv);
    let mut traces = BTreeMap::new();
    for point in &points {
        let most = if point.trace == "arc_P6" {
            2_000_000
        } else {
            1_000_000
        };
        let prefix = || {
            let mut trace = open(&folder, &point.trace);
            trace.pages.truncate(most);
            trace
        };
        traces.entry(point.trace.clone()).or_insert_with(prefix);
    }
    let ours = judge_schedules(Policy::Gated2q, &traces, &points);
    for (schedule, ours) in SCHEDULES.iter().zip(ours) {
        let name = schedule.name;
        assert!(
            ours >= schedule.prototype - 1.0,
            "{ours:.2} % under fifo, {name}"
        );
    }
}

/// The sample trace alone: what is measured is that a moving limit costs little more than one that
/// stands. (`rec_pg` is where this policy is level with FIFO.)
#[test]
fn a_moving_limit_is_no_cliff() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let trace = open(&root.join("traces"), "rec_pg");
    for schedule in SCHEDULES {
        for frames in [213, 2135] {
            let run = |policy| under(schedule, policy, &trace, frames) as f64;
            let above_fifo = worse(run(Policy::Gated2q), run(Policy::Fifo));
            println!("{frames} {above_fifo:+.2} % {}", schedule.name);
            assert!(
                above_fifo < 12.0,
                "{above_fifo:.2} % above fifo, {}",
                schedule.name
            );
        }
    }
}
