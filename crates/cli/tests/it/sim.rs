//! The simulator's command: seeds, and traces that they follow.

use super::{failure, json, sample};
use serde_json::Value;
use std::fs;

fn rows(args: &[&str]) -> Vec<Value> {
    let run = ["sim", "--seeds", "0..3", "--steps", "600", "--json"];
    json(&[&run, args].concat())
}

fn hashes(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["hash"].as_str()).collect()
}

#[test]
fn seeds_follow_a_trace_where_one_is_named() {
    let (without, with) = (rows(&[]), rows(&["--trace", &sample()]));
    assert_eq!(hashes(&with).len(), 3);
    assert_eq!(hashes(&with), hashes(&rows(&["--trace", &sample()])));
    let pairs = hashes(&with).into_iter().zip(hashes(&without));
    pairs.for_each(|(with, without)| assert_ne!(with, without));
}

#[test]
fn a_seed_is_run_however_short_the_time() {
    let run = [
        "sim", "--seed", "7", "--for", "0s", "--steps", "9", "--json",
    ];
    let rows = json(&run);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["seed"], 7);
}

#[test]
fn a_trace_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages.csv");
    let named = path.display().to_string();
    let message = |args: &[&str]| {
        let (code, message) = failure(&[&["sim", "--trace", &named], args].concat());
        assert_eq!(code, 1, "{message}");
        assert!(message.contains(&named), "{message}");
        message
    };
    assert!(message(&[]).contains("cannot read trace"));
    fs::write(&path, "block,size\n1,8\nfour,8\n").unwrap();
    assert!(message(&[]).contains("no column 'page': name one of block, size"));
    let bad = message(&["--column", "block"]);
    assert!(
        bad.contains(":3: expected a page number") && bad.contains("'four'"),
        "{bad}"
    );
    fs::write(&path, "block,size\n").unwrap();
    assert!(message(&["--column", "block"]).contains("it has no request"));
    let (code, message) = failure(&["sim", "--column", "block"]);
    assert_eq!(code, 2, "{message}");
}
