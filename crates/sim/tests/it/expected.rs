//! Policies reproduce recorded miss ratios: most of them to the last digit.

use crate::field::{Point, mean, on_all_cpus, points, reductions};
use pagetide_core::reclaim::Policy;
use pagetide_sim::policy;
use pagetide_sim::trace::{Trace, TraceOptions};
use pagetide_sim::{core_run, replay, sizes};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Requests of a small trace: those that every run of the tests replays.
const SMALL: usize = 300_000;

/// Recorded ratios have six digits: this far from them is the same.
const SAME: f64 = 0.500_001e-6;

/// How far from the recorded miss ratios ours may be.
struct Bound {
    ours: &'static str,
    recorded: &'static str,
    /// At any trace and size.
    most: f64,
    /// In the mean of all, signs left out.
    mean: f64,
}

const fn same(name: &'static str) -> Bound {
    Bound {
        ours: name,
        recorded: name,
        most: SAME,
        mean: SAME,
    }
}

const BOUNDS: &[Bound] = &[
    same("fifo"),
    same("lru"),
    same("clock"),
    same("2q"),
    same("arc"),
    // The recorded one holds a page or more above its size at times, most of all at small sizes.
    Bound {
        ours: "lirs",
        recorded: "lirs",
        most: 0.001_2,
        mean: 0.000_1,
    },
    same("s3-fifo"),
    same("sieve"),
    // The recorded one also moves the size of its window, which pays where recency counts.
    Bound {
        ours: "w-tinylfu",
        recorded: "w-tinylfu-hill-climbing",
        most: 0.16,
        mean: 0.021,
    },
    same("belady"),
];

/// Recorded policies that have no twin here: `field` compares core's with some.
const WITHOUT_TWIN: &[&str] = &[
    "clock-pro",
    "mglru-seed-reading",
    "rdg-coarse",
    "rdg-exact",
    "rdg2",
    "two-list",
];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of recorded traces, which stays outside the repository.
pub(crate) fn shared_traces() -> Option<PathBuf> {
    let folder = std::env::var_os("PAGETIDE_TRACES");
    let folder = folder.map_or_else(|| PathBuf::from("../shared/traces"), PathBuf::from);
    let folder = root().join(folder);
    folder.join("expected.csv").is_file().then_some(folder)
}

/// A core's policy, or else one over page numbers.
fn miss_ratio(name: &str, trace: &Trace, frames: u32) -> f64 {
    let counts = if let Ok(policy) = name.parse::<Policy>() {
        core_run(policy, trace, frames, |_| ()).unwrap()
    } else {
        let mut policy = policy::by_name(name, trace, frames).unwrap();
        replay(policy.as_mut(), trace, |_| ())
    };
    counts.miss_ratio()
}

/// Checks each bound on its own at each point of a trace.
fn check(trace: &Trace, points: &[Point]) {
    for point in points {
        for (bound, recorded) in recorded(point) {
            let found = miss_ratio(bound.ours, trace, point.frames);
            assert!(
                (found - recorded).abs() <= bound.most,
                "{} {} {}: {found:.6}, recorded {recorded:.6}",
                trace.name,
                bound.ours,
                point.frames
            );
        }
    }
}

/// What was recorded at a point, with the bound that it sets.
fn recorded(point: &Point) -> impl Iterator<Item = (&'static Bound, f64)> {
    point.recorded.iter().filter_map(|(name, &ratio)| {
        let bound = BOUNDS.iter().find(|bound| bound.recorded == name);
        assert!(
            bound.is_some() || WITHOUT_TWIN.contains(&name.as_str()),
            "{name} is recorded, but nothing is compared with it"
        );
        bound.map(|bound| (bound, ratio))
    })
}

/// The points, trace by trace.
fn by_trace(points: &[Point]) -> impl Iterator<Item = &[Point]> {
    points.chunk_by(|one, next| one.trace == next.trace)
}

fn open(path: &Path) -> Trace {
    Trace::open(path, &TraceOptions::default()).unwrap()
}

#[test]
fn the_sample_trace() {
    let trace = open(&root().join("traces/rec_pg.d64.zst"));
    assert_eq!((trace.pages.len(), trace.nr_unique), (250_062, 21_349));
    let points = points(include_str!("data/expected_rec_pg.csv"));
    assert_eq!(points.len(), 5);
    for point in &points {
        assert_eq!(recorded(point).count(), BOUNDS.len());
    }
    check(&trace, &points);
}

#[test]
fn small_recorded_traces() {
    let Some(folder) = shared_traces() else {
        println!("skipped: shared traces: no folder ../shared/traces beside the repository");
        return;
    };
    let points = points(&std::fs::read_to_string(folder.join("expected.csv")).unwrap());
    let mut nr_checked = 0;
    for points in by_trace(&points) {
        let path = folder.join(format!("{}.d64.zst", points[0].trace));
        if std::fs::metadata(&path).unwrap().len() > 300_000 {
            continue;
        }
        let trace = open(&path);
        if trace.pages.len() <= SMALL {
            check(&trace, points);
            nr_checked += 1;
        }
    }
    println!("checked {nr_checked} recorded traces");
    assert!(nr_checked >= 10);
}

/// Miss ratios by policy, in the order of the points.
type Ratios = BTreeMap<&'static str, Vec<f64>>;

/// Also prints the table of `docs/policies.md`.
#[test]
#[ignore = "minutes; `cargo xtask traces` runs it"]
fn all_recorded_traces() {
    let folder = shared_traces().expect("the folder of recorded traces");
    let points = points(&std::fs::read_to_string(folder.join("expected.csv")).unwrap());
    let names = [&["fifo", "gated-2q"], policy::NAMES].concat();
    let mut ratios = Ratios::new();
    for points in by_trace(&points) {
        let trace = open(&folder.join(format!("{}.d64.zst", points[0].trace)));
        let sizes = points.iter().map(|point| point.frames);
        let jobs: Vec<(&'static str, u32)> = sizes
            .flat_map(|frames| names.iter().map(move |&name| (name, frames)))
            .collect();
        let found = on_all_cpus(&jobs, |&(name, frames)| miss_ratio(name, &trace, frames));
        for (&(name, _), ratio) in jobs.iter().zip(found) {
            ratios.entry(name).or_default().push(ratio);
        }
        for point in points {
            let fraction = point.fraction.parse().unwrap();
            assert_eq!(
                sizes::frames_of(fraction, trace.nr_unique),
                Ok(point.frames)
            );
        }
    }
    let nr_traces = by_trace(&points).count();
    assert!(nr_traces >= 17, "{nr_traces} traces");
    print_reductions(&names, &points, &ratios);
    for bound in BOUNDS {
        judge(bound, &points, &ratios[bound.ours]);
    }
}

/// Misses fewer than FIFO's in percent, by trace and policy.
fn print_reductions(names: &[&str], points: &[Point], ratios: &Ratios) {
    let columns: Vec<_> = names[1..]
        .iter()
        .map(|&name| reductions(points, |at| Some(ratios[name][at])))
        .collect();
    println!("| trace | {} |", names[1..].join(" | "));
    println!("|---{}|", "|---".repeat(columns.len()));
    for points in by_trace(points) {
        let trace = points[0].trace.as_str();
        let of = |numbers: &Vec<f64>| numbers.iter().sum::<f64>() / numbers.len() as f64;
        // Adding 0 makes a rounded -0 a 0.
        let cells = columns
            .iter()
            .map(|column| format!(" {:.1} |", (of(&column[trace]) * 10.0).round() / 10.0 + 0.0));
        println!("| {trace} |{}", cells.collect::<String>());
    }
    let means = columns
        .iter()
        .map(|column| format!(" {:.2} |", mean(column)));
    println!("| **mean** |{}", means.collect::<String>());
}

/// Prints how far a policy is from the recorded one, and fails where that is too far.
fn judge(bound: &Bound, points: &[Point], ratios: &[f64]) {
    let all = points.iter().zip(ratios).filter_map(|(point, ratio)| {
        let recorded = point.recorded.get(bound.recorded)?;
        Some(((ratio - recorded).abs(), point))
    });
    let all: Vec<_> = all.collect();
    let (most, at) = all
        .iter()
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .expect("ratios were recorded");
    let mean = all.iter().map(|(difference, _)| difference).sum::<f64>() / all.len() as f64;
    println!(
        "{} beside recorded {}: {} points, {most:.6} at most ({} at {}), {mean:.6} in the mean",
        bound.ours,
        bound.recorded,
        all.len(),
        at.trace,
        at.fraction
    );
    assert!(
        *most <= bound.most && mean <= bound.mean,
        "{}: {most:.6}, {mean:.6}",
        bound.ours
    );
}

#[test]
fn cores_fifo_is_the_naive_one_at_every_size() {
    let ids: Vec<i64> = (0..20_000_i64).map(|n| n * n % 1009 + n % 7).collect();
    let trace = Trace::from_ids("made", &ids).unwrap();
    for frames in [1, 2, 3, 15, 16, 17, 31, 200, 257, 700, 2000] {
        let counts = core_run(Policy::Fifo, &trace, frames, |_| ()).unwrap();
        let mut naive = policy::Fifo::new(frames);
        assert_eq!(
            counts,
            replay(&mut naive, &trace, |_| ()),
            "{frames} frames"
        );
    }
}

#[test]
fn the_same_replay_counts_the_same() {
    let trace = open(&root().join("traces/rec_pg.d64.zst"));
    let run = || core_run(Policy::Mglru, &trace, 1067, |_| ()).unwrap();
    assert_eq!(run(), run());
}

proptest! {
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn cores_fifo_is_the_naive_one(
        ids in prop::collection::vec(-40_i64..40, 1..400),
        capacity in 1_u32..60,
    ) {
        let trace = Trace::from_ids("made", &ids).unwrap();
        let counts = core_run(Policy::Fifo, &trace, capacity, |_| ()).unwrap();
        let mut naive = policy::Fifo::new(capacity);
        prop_assert_eq!(counts, replay(&mut naive, &trace, |_| ()));
    }
}
