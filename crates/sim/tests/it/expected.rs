//! `fifo` (core's) and `lru` reproduce the recorded miss ratios to the last digit.

use pagetide_core::reclaim::Policy;
use pagetide_sim::policy::{self, PagePolicy};
use pagetide_sim::trace::{Trace, TraceOptions};
use pagetide_sim::{core_run, replay, sizes};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Requests of a small trace: those that every run of the tests replays.
const SMALL: usize = 300_000;

struct Row {
    fraction: f64,
    frames: u32,
    policy: String,
    miss_ratio: String,
}

/// The rows for `fifo` and `lru`, by trace.
fn rows(csv: &str) -> BTreeMap<String, Vec<Row>> {
    let mut by_trace = BTreeMap::<String, Vec<Row>>::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let [trace, fraction, frames, policy, miss_ratio, ..] = fields[..] else {
            panic!("a malformed row: {line}");
        };
        if matches!(policy, "fifo" | "lru") {
            by_trace.entry(trace.to_owned()).or_default().push(Row {
                fraction: fraction.parse().unwrap(),
                frames: frames.parse().unwrap(),
                policy: policy.to_owned(),
                miss_ratio: miss_ratio.to_owned(),
            });
        }
    }
    by_trace
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of recorded traces, which stays outside the repository.
pub(crate) fn shared_traces() -> Option<PathBuf> {
    let folder = std::env::var_os("PAGETIDE_TRACES");
    let folder = folder.map_or_else(|| PathBuf::from("../shared/traces"), PathBuf::from);
    let folder = root().join(folder);
    folder.join("expected.csv").is_file().then_some(folder)
}

fn check(trace: &Trace, rows: &[Row]) {
    for row in rows {
        assert_eq!(
            sizes::frames_of(row.fraction, trace.nr_unique),
            Ok(row.frames)
        );
        let counts = match row.policy.as_str() {
            "fifo" => core_run(Policy::Fifo, trace, row.frames, |_| ()).unwrap(),
            name => {
                let mut policy = policy::by_name(name, trace.nr_unique, row.frames).unwrap();
                replay(policy.as_mut(), trace, |_| ())
            }
        };
        let found = format!("{:.6}", counts.miss_ratio());
        assert_eq!(
            found, row.miss_ratio,
            "{} {} {}",
            trace.name, row.policy, row.frames
        );
    }
}

fn open(path: &Path) -> Trace {
    Trace::open(path, &TraceOptions::default()).unwrap()
}

#[test]
fn the_sample_trace() {
    let trace = open(&root().join("traces/rec_pg.d64.zst"));
    assert_eq!((trace.pages.len(), trace.nr_unique), (250_062, 21_349));
    check(
        &trace,
        &rows(include_str!("data/expected_rec_pg.csv"))["rec_pg"],
    );
}

#[test]
fn small_recorded_traces() {
    let Some(folder) = shared_traces() else {
        println!("skipped: shared traces: no folder ../shared/traces beside the repository");
        return;
    };
    let all = rows(&std::fs::read_to_string(folder.join("expected.csv")).unwrap());
    let mut nr_checked = 0;
    for (name, rows) in &all {
        let path = folder.join(format!("{name}.d64.zst"));
        if std::fs::metadata(&path).unwrap().len() > 300_000 {
            continue;
        }
        let trace = open(&path);
        if trace.pages.len() <= SMALL {
            check(&trace, rows);
            nr_checked += 1;
        }
    }
    println!("checked {nr_checked} recorded traces");
    assert!(nr_checked >= 10);
}

#[test]
#[ignore = "minutes; `cargo xtask traces` runs it"]
fn all_recorded_traces() {
    let folder = shared_traces().expect("the folder of recorded traces");
    let all = rows(&std::fs::read_to_string(folder.join("expected.csv")).unwrap());
    for (name, rows) in &all {
        check(&open(&folder.join(format!("{name}.d64.zst"))), rows);
        println!("{name}: {} ratios reproduced", rows.len());
    }
    assert!(all.len() >= 17, "{} traces", all.len());
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
    fn lru_is_the_naive_one(
        pages in prop::collection::vec(0_u32..24, 0..400),
        capacity in 1_u32..30,
    ) {
        let mut naive: Vec<u32> = Vec::new();
        let mut lru = policy::Lru::new(24, capacity);
        for page in pages {
            let at = naive.iter().position(|&other| other == page);
            let is_hit = at.map(|at| naive.remove(at)).is_some();
            naive.insert(0, page);
            naive.truncate(capacity as usize);
            prop_assert_eq!(lru.access(page), is_hit);
        }
    }

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
