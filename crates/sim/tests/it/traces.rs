//! Trace files: every form, and every way in which one can be wrong.

use pagetide_sim::trace::{Trace, TraceError, TraceOptions};
use proptest::prelude::*;
use std::io::Write;

fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::File::create(&path)
        .unwrap()
        .write_all(bytes)
        .unwrap();
    (dir, path)
}

fn open(name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    let (_dir, path) = written(name, bytes);
    Trace::open(&path, &TraceOptions::default())
}

fn message(name: &str, bytes: &[u8]) -> String {
    let (dir, path) = written(name, bytes);
    let error = Trace::open(&path, &TraceOptions::default()).unwrap_err();
    error
        .to_string()
        .replace(&format!("{}/", dir.path().display()), "")
}

fn encoded(ids: &[i64]) -> Vec<u8> {
    let mut last = 0_i64;
    let words = ids.iter().flat_map(|&id| {
        let difference = id.wrapping_sub(last);
        last = id;
        difference.to_le_bytes()
    });
    zstd::encode_all(&words.collect::<Vec<u8>>()[..], 3).unwrap()
}

#[test]
fn text_with_comments_and_blank_lines() {
    let trace = open("mine.txt", b"# pages\n7\n\n-3\n 7 \n100\n").unwrap();
    assert_eq!((trace.name.as_str(), trace.nr_unique), ("mine", 3));
    assert_eq!(trace.pages, [1, 0, 1, 2]);
}

#[test]
fn csv_by_column() {
    let csv = b"time,page,op\n1,30,r\n2,10,r\n3,30,w\n";
    assert_eq!(open("a.csv", csv).unwrap().pages, [1, 0, 1]);
    let (_dir, path) = written("a.csv", csv);
    let options = TraceOptions {
        column: Some("time".to_owned()),
    };
    assert_eq!(Trace::open(&path, &options).unwrap().pages, [0, 1, 2]);
}

#[test]
fn malformed_lines_are_named() {
    assert_eq!(
        message("a.txt", b"1\n2\nx7\n"),
        "a.txt:3: expected a page number, found 'x7'"
    );
    assert_eq!(
        message("a.csv", b"page\n1\n\nfoo\n"),
        "a.csv:4: expected a page number in column 'page', found 'foo'"
    );
    assert_eq!(
        message("a.csv", b"block,op\n1,r\n"),
        "a.csv:1: expected a column named 'page', found 'block,op'"
    );
    assert_eq!(
        message("a.csv", b"page,op\n1,r\n2\n"),
        "a.csv:3: expected 2 columns, found '1 columns'"
    );
    assert!(message("a.txt", &[0xFF, 0xFE, b'\n']).starts_with("a.txt:1: expected a page number"));
}

#[test]
fn empty_and_broken_files() {
    for name in ["a.txt", "a.csv"] {
        assert!(message(name, b"").contains("is empty"), "{name}");
    }
    assert!(message("a.d64.zst", &encoded(&[])).contains("is empty"));
    assert!(message("a.csv", b"page\n").contains("is empty"));
    assert!(message("a.d64.zst", b"rubbish").contains("cannot read trace a.d64.zst"));
    let whole = encoded(&(0..1000).map(|n| n * n).collect::<Vec<_>>());
    assert!(message("a.d64.zst", &whole[..whole.len() / 2]).contains("cannot read trace"));
    let odd = zstd::encode_all(&[0_u8; 12][..], 3).unwrap();
    assert_eq!(
        message("a.d64.zst", &odd),
        "trace a.d64.zst has 12 bytes, expected a multiple of 8"
    );
    let missing = Trace::open("/nonexistent/t.txt".as_ref(), &TraceOptions::default());
    assert!(
        missing
            .unwrap_err()
            .to_string()
            .contains("/nonexistent/t.txt")
    );
}

proptest! {
    #[test]
    fn differences_come_back(ids in prop::collection::vec(any::<i64>(), 1..300)) {
        let trace = open("t.d64.zst", &encoded(&ids)).unwrap();
        prop_assert_eq!(trace, Trace::from_ids("t", &ids).unwrap());
    }

    #[test]
    fn rubbish_is_an_error_or_a_trace(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for name in ["t.txt", "t.csv", "t.d64.zst"] {
            if let Ok(trace) = open(name, &bytes) {
                prop_assert!(trace.nr_unique > 0 && !trace.pages.is_empty());
            }
        }
    }
}
