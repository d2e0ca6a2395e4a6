//! The benches of charge stocks, run small: what they count, not what they time; and what benches
//! refuse and leave.

use super::{BIN, failure, json};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap()
}

/// Rows of the kind that has this field first.
fn with<'a>(rows: &'a [Value], field: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row.get(field).is_some()).collect()
}

#[test]
fn charge_counts_its_read_modify_writes() {
    let rows = json(&["bench", "charge", "--pairs", "5120", "--json"]);
    let loads = with(&rows, "load");
    // `scheduled` is left out where two threads have one CPU number.
    assert!(loads.len() >= 4 * 3 * (3 * 3 + 1));
    for row in &loads {
        let (load, variant) = (&row["load"], &row["variant"]);
        let (levels, rmws) = (number(row, "levels"), number(row, "rmws_per_pair"));
        if row["threads"] != 1 {
            continue;
        }
        match (load.as_str().unwrap(), variant.as_str().unwrap()) {
            ("page" | "100 bytes", "atomic") | ("100 bytes", "spinlock") => {
                assert_eq!(rmws, 2.0, "{row}");
            }
            ("page", "none") => assert_eq!(rmws, 2.0 * levels, "{row}"),
            ("100 bytes", "scheduled") => assert_eq!(rmws, 0.0, "{row}"),
            ("256 pages", "atomic") => {
                // Three batches in four are charged and trimmed.
                assert!(rmws < 2.0 + 0.1 * (levels + 1.0), "{row}");
            }
            ("256 x 100 bytes", "atomic") => assert!(rmws < 2.2, "{row}"),
            _ => assert!(number(row, "ns_per_pair") > 0.0, "{row}"),
        }
    }
    let functions = with(&rows, "function");
    let names: Vec<_> = functions
        .iter()
        .map(|row| row["of_seed"].as_str().unwrap())
        .collect();
    let of_seed = "consume_stock refill_stock mod_objcg_state consume_obj_stock refill_obj_stock";
    assert_eq!(names, of_seed.split(' ').collect::<Vec<_>>());
    for row in functions {
        // One call in 4096 is of another function, which has one too.
        assert!((number(row, "atomic_rmws") - 1.0).abs() < 0.001, "{row}");
        assert!((number(row, "locked_rmws") - 1.0).abs() < 0.001, "{row}");
        assert_eq!(number(row, "plain_rmws"), 0.0, "{row}");
    }
    assert_eq!(with(&rows, "touched").len(), 2 * (4 + 1));
}

#[test]
fn pairs_that_fill_no_burst_are_divided_by_what_was_done() {
    let rows = json(&["bench", "charge", "--pairs", "300", "--json"]);
    for row in with(&rows, "load") {
        if row["load"] == "256 pages" && row["variant"] == "none" && row["threads"] == 1 {
            let rmws = number(row, "rmws_per_pair");
            assert_eq!(rmws, 2.0 * number(row, "levels"), "{row}");
        }
    }
    for row in json(&["bench", "ping-pong", "--pairs", "10", "--json"]) {
        if row["variant"] == "atomic" {
            assert!(number(&row, "rmws_per_pair") >= 2.0, "{row}");
            assert!(number(&row, "straight_rmws_per_pair") >= 2.0, "{row}");
        }
    }
}

#[test]
fn drain_is_complete_on_return_but_where_it_is_scheduled() {
    let rows = json(&[
        "bench",
        "drain",
        "--rounds",
        "2",
        "--seconds",
        "0",
        "--json",
    ]);
    let drains = with(&rows, "cpus");
    assert_eq!(drains.len(), 3 * 3);
    for row in drains {
        let is_scheduled = row["variant"] == "scheduled";
        let owners = if is_scheduled {
            number(row, "cpus")
        } else {
            0.0
        };
        assert_eq!(number(row, "owner_actions"), owners, "{row}");
        assert_eq!(row["is_complete_on_return"], !is_scheduled, "{row}");
        assert_eq!(number(row, "rmws_per_full_slot"), 1.0, "{row}");
        assert_eq!(number(row, "rmws_per_empty_slot"), 0.0, "{row}");
    }
    assert_eq!(with(&rows, "contended_per_million").len(), 2);
}

#[test]
fn ping_pong_finds_no_cliff_in_the_default_stock() {
    let rows = json(&["bench", "ping-pong", "--pairs", "20000", "--json"]);
    let (mut nr_atomic, mut has_cliff) = (0, false);
    for row in &rows {
        let (rmws, straight) = (
            number(row, "rmws_per_pair"),
            number(row, "straight_rmws_per_pair"),
        );
        if row["variant"] == "atomic" {
            nr_atomic += 1;
            assert!(rmws <= 2.0 * straight, "{row}");
        }
        has_cliff |= row["variant"] == "spinlock" && rmws > 2.0 * straight;
    }
    assert_eq!((nr_atomic, rows.len()), (18, 3 * 18));
    assert!(has_cliff, "one group a CPU has a cliff at two");
}

#[test]
fn benches_refuse_at_once_what_they_cannot_tell() {
    for (args, text) in [
        (&["charge", "--pairs", "0"][..], "0 is not in 1.."),
        (&["ping-pong", "--pairs", "0"], "0 is not in 1.."),
        (
            &["page-fault", "--simulate", "56,9", "--nodes", "2"],
            "9 CPUs do not fit 2 nodes",
        ),
        (
            &[
                "memory-hog",
                "--topology",
                "1x2",
                "--node-pages",
                "1024",
                "--threads",
                "1,129",
            ],
            "129 threads are more than the 128 pages",
        ),
    ] {
        let (code, message) = failure(&[&["bench"], args].concat());
        assert_eq!(code, 2, "{args:?}: {message}");
        assert!(message.contains(text), "{args:?}: {message}");
    }
}

#[test]
fn a_folder_that_cannot_be_told_is_an_error_and_gone() {
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join(OsStr::from_bytes(b"odd\xff"));
    fs::create_dir(&odd).unwrap();
    let mut refused = Command::new(BIN)
        .args(["bench", "open-close", "--files", "1", "--dir"])
        .arg(&odd)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = refused.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > end {
            refused.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(1));
    assert_eq!(fs::read_dir(&odd).unwrap().count(), 0);
}

#[test]
fn files_of_open_close_are_gone_however_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let nr_folders = || fs::read_dir(dir.path()).unwrap().count();
    let wait_until = |what: &str, nr: usize| {
        let end = Instant::now() + Duration::from_secs(60);
        while nr_folders() != nr {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let mut killed = Command::new(BIN)
        .args(["bench", "open-close", "--files", "1000000", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("a folder", 1);
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_until("the folder is left", 0);
    let (code, message) = failure(&["bench", "open-close", "--dir", "/nonexistent"]);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("/nonexistent"), "{message}");
}
