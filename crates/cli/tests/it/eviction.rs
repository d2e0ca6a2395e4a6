//! The benches of eviction, run small: what they count, not what they time.

use super::{BIN, failure, json};
use pagetide_sim::CorePolicy;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap()
}

#[test]
fn random_read_counts_and_times_every_policy() {
    let size = ["--frames", "512", "--requests", "20000", "--runs", "1"];
    let rows = json(&[&["bench", "random-read", "--json"], &size[..]].concat());
    let (timed, counted): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.get("iops").is_some());
    let nr_policies = CorePolicy::ALL.len();
    let sizes = (counted.len(), timed.len());
    assert_eq!(sizes, (3 * (nr_policies + 3), 3 * nr_policies));
    for of_one in counted.chunks(nr_policies + 3) {
        let hits = |policy: &str| {
            let row = of_one.iter().find(|row| row["policy"] == policy).unwrap();
            number(row, "hit_ratio")
        };
        let others = ["lru", "fifo", "s3-fifo", "gated-2q", "mglru", "two-list"];
        assert!(others.iter().all(|name| hits(name) <= hits("belady")));
        match of_one[0]["pages"].as_str().unwrap() {
            // A quarter of the pages are there, whoever chooses them.
            "uniform" => assert!(others.iter().all(|name| (hits(name) - 0.25).abs() < 0.02)),
            _ => assert!(hits("gated-2q") > hits("lru") && hits("lru") > hits("fifo")),
        }
    }
    for row in timed {
        let same = |other: &&&Value| {
            (&other["pages"], &other["policy"]) == (&row["pages"], &row["policy"])
        };
        let counted = counted.iter().find(same).unwrap();
        assert_eq!(row["hit_ratio"], counted["hit_ratio"], "{row}");
        assert!(number(row, "ns_p50") <= number(row, "ns_p99"), "{row}");
    }
}

#[test]
fn key_value_swaps_no_more_than_lru_under_the_default_policy() {
    let size = ["--pages", "16384", "--requests", "200000"];
    let rows = json(&[&["bench", "key-value", "--json"], &size[..]].concat());
    assert_eq!(rows.len(), 2 * (CorePolicy::ALL.len() + 1));
    let is_default = |row: &&Value| row["policy"] == "gated-2q";
    for row in rows.iter().filter(is_default) {
        assert!(number(row, "swap_ins") > 10_000.0, "{row}");
        assert!(number(row, "swap_ins_to_lru") <= 1.01, "{row}");
    }
}

/// Whether there is what it takes to count instructions by functions.
fn has_callgrind() -> bool {
    let missing = ["valgrind", "addr2line"].into_iter().find(|program| {
        let tried = Command::new(program).arg("--version").output();
        tried.is_err()
    });
    if let Some(program) = missing {
        println!("skipped: callgrind: there is no {program}");
    }
    missing.is_none()
}

#[test]
fn an_interrupt_amid_a_count_leaves_nothing() {
    if !has_callgrind() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Command::new("env")
        .args(["--default-signal=INT", BIN])
        .args(["bench", "reclaim-cost", "--groups", "0"])
        .env("TMPDIR", folder.path())
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = bench.id();
    let children = format!("/proc/{pid}/task/{pid}/children");
    while fs::read_to_string(&children).unwrap().is_empty() {
        thread::yield_now();
    }
    // To all of them, as a terminal does.
    let group = format!("-{pid}");
    let killed = Command::new("kill").args(["-INT", "--", &group]).status();
    assert!(killed.unwrap().success());
    assert!(!bench.wait().unwrap().success());
    let left = || fs::read_dir(folder.path()).unwrap().count();
    // What the tool has of its own goes with it.
    let began = Instant::now();
    while left() > 0 && began.elapsed() < Duration::from_secs(10) {
        thread::yield_now();
    }
    assert_eq!(left(), 0);
}

#[test]
fn reclaim_costs_the_same_beside_many_groups() {
    let (code, message) = failure(&["bench", "reclaim-cost", "--policy", "best"]);
    assert_eq!(code, 2, "{message}");
    if !has_callgrind() {
        return;
    }
    let size = ["--pages", "20000", "--groups", "1000"];
    let rows = json(&[&["bench", "reclaim-cost", "--json"], &size[..]].concat());
    let shape = |row: &Value| (number(row, "batch"), number(row, "groups"));
    let shapes: Vec<_> = rows.iter().map(shape).collect();
    assert_eq!(
        shapes,
        [(1.0, 2.0), (1.0, 1002.0), (64.0, 2.0), (64.0, 1002.0)]
    );
    for pair in rows.chunks(2) {
        let [alone, beside] = [0, 1].map(|at| number(&pair[at], "instructions"));
        assert!(beside <= 1.3 * alone, "{alone} alone, {beside} beside");
    }
    for row in &rows {
        let steps = row["steps"].as_array().unwrap();
        let costs: Vec<f64> = steps.iter().map(|step| step[1].as_f64().unwrap()).collect();
        let sum: f64 = costs.iter().sum();
        assert!(
            (sum / number(row, "instructions") - 1.0).abs() < 0.01,
            "{row}"
        );
        assert!(costs.iter().all(|&cost| cost > 0.0), "{row}");
    }
}
