//! `bench hit`, `scan`, `write`, `open-close`, `mixed`, run tiny: what they count, no times.

use crate::json;
use serde_json::Value;

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap()
}

fn texts<'a>(rows: &'a [Value], field: &str) -> Vec<&'a str> {
    rows.iter()
        .map(|row| row[field].as_str().unwrap())
        .collect()
}

#[test]
fn hit_has_a_row_for_each_variant_set_and_number_of_threads() {
    let rows = json(&[
        "bench",
        "hit",
        "--pages",
        "1,512",
        "--threads",
        "1,3",
        "--reads",
        "3000",
        "--runs",
        "1",
        "--json",
    ]);
    let variants = ["memcpy", "read_at", "pin", "pread", "mmap"];
    assert_eq!(texts(&rows, "variant"), [variants; 4].concat());
    for row in rows {
        assert!(
            number(&row, "reads_per_s") > 0.0 && number(&row, "cpu_ns") > 0.0,
            "{row}"
        );
        let is_memcpy = row["variant"] == "memcpy";
        assert!(!is_memcpy || number(&row, "to_memcpy") == 1.0, "{row}");
    }
}

#[test]
fn a_scan_is_read_ahead_of_unless_told_not_to() {
    let scan = |readahead: &str| {
        let fixed = ["bench", "scan", "--pages", "8192", "--runs", "1", "--json"];
        json(&[&fixed[..], &["--readahead", readahead]].concat())
    };
    let (with, without) = (scan("128KiB"), scan("0"));
    assert_eq!(texts(&with, "engine")[1..3], ["kernel", "pagetide"]);
    assert_eq!((with.len(), texts(&with, "way")[8]), (12, "pin_mut"));
    for (with, without) in with.iter().zip(&without) {
        assert!(number(with, "ns") > 0.0 && number(with, "amplification") <= 1.1);
        if with["page_bytes"] == 4096 && with["engine"] == "pagetide" {
            let [with, without] = [with, without].map(|row| number(row, "misses_per_1000"));
            assert!(with < 50.0 && without > 900.0, "{with} {without}");
        }
    }
}

#[test]
fn write_tells_what_reached_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let rows = json(&[
        "bench",
        "write",
        "--pages",
        "1024",
        "--writes",
        "2048",
        "--sync-every",
        "512",
        "--runs",
        "1",
        "--json",
        "--dir",
        dir.path().to_str().unwrap(),
    ]);
    assert_eq!(texts(&rows, "engine"), ["kernel", "pagetide"].repeat(2));
    assert_eq!(texts(&rows, "order")[1..3], ["random", "sequential"]);
    for row in rows.iter().filter(|row| row["engine"] == "pagetide") {
        // Each page is written once between two syncs, and twice where memory was short; in a
        // folder in memory nothing is written to a device.
        let amplification = number(row, "amplification");
        assert!(amplification <= 1.5, "{row}");
        assert!(
            number(row, "write_ns_p50") <= number(row, "write_ns_p99"),
            "{row}"
        );
    }
}

#[test]
fn open_close_counts_its_system_calls() {
    let rows = json(&[
        "bench",
        "open-close",
        "--files",
        "64",
        "--runs",
        "1",
        "--json",
    ]);
    assert_eq!(texts(&rows, "engine"), ["kernel", "pagetide"]);
    for (row, most) in rows.iter().zip([5.0, 24.0]) {
        match row["system_calls"].as_f64() {
            Some(calls) => assert!((3.0..=most).contains(&calls), "{row}"),
            None => println!("skipped: strace: no strace here, or it may not trace"),
        }
    }
}

#[test]
fn mixed_protects_the_points() {
    let rows = json(&[
        "bench", "mixed", "--frames", "1536", "--millis", "300", "--json",
    ]);
    let tenants = ["points", "scan", "writes"];
    assert_eq!(texts(&rows, "tenant"), [tenants; 2].concat());
    assert_eq!(texts(&rows, "phase")[2..4], ["alone", "together"]);
    for row in &rows {
        assert!(number(row, "ops") > 0.0, "{row}");
        assert_eq!(row["to_alone"].is_null(), row["phase"] == "alone", "{row}");
    }
    // Half of the budget is theirs.
    let points = &rows[3];
    assert!(
        number(points, "memory_bytes") >= 0.9 * 768.0 * 4096.0,
        "{points}"
    );
    assert!(number(points, "hit_ratio") > 0.6, "{points}");
}

#[test]
fn mixed_divides_by_the_time_that_it_took() {
    let rows = json(&[
        "bench", "mixed", "--frames", "1536", "--millis", "1", "--json",
    ]);
    for row in rows.iter().filter(|row| number(row, "ops") > 0.0) {
        // Whatever the phase was to take, the slowest one is in it.
        let most = number(row, "ops") * 1e9 / number(row, "ns_p99");
        assert!(number(row, "ops_per_s") <= 1.01 * most + 1.0, "{row}");
    }
}
