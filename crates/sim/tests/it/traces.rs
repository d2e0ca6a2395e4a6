//! Trace files: every form, and every way in which one can be wrong.

use pagetide_sim::trace::{Trace, TraceError, TraceOptions};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::io::{Read, Write};

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
    let trace = open("mine.txt", b"# pages\n7\n\n3\n 7 \n100\n").unwrap();
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
        "trace a.csv has no column 'page': name one of block, op"
    );
    assert_eq!(
        message("a.csv", b"page,op\n1,r\n2\n"),
        "a.csv:3: expected 2 columns, found '1 columns'"
    );
    assert!(message("a.txt", &[0xFF, 0xFE, b'\n']).starts_with("a.txt:1: expected a page number"));
}

#[test]
fn what_is_no_page_of_any_file_is_named() {
    let most = i64::MAX.to_string();
    let trace = open("a.txt", format!("{most}\n+0\n").as_bytes()).unwrap();
    assert_eq!(trace.pages, [1, 0]);
    for number in ["-1", "9223372036854775808", "18446744073709551615"] {
        let expected = "expected a page number from 0 to 2^63 - 1";
        assert_eq!(
            message("a.txt", format!("1\n{number}\n").as_bytes()),
            format!("a.txt:2: {expected}, found '{number}'")
        );
        assert_eq!(
            message("a.csv", format!("page\n{number}\n").as_bytes()),
            format!("a.csv:2: {expected} in column 'page', found '{number}'")
        );
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_trace() {
    for (name, text) in [
        ("a.txt", "\u{feff}7\r\n9\r\n"),
        ("a.csv", "\u{feff}page\r\n7\r\n9\r\n"),
    ] {
        assert_eq!(open(name, text.as_bytes()).unwrap().pages, [0, 1], "{name}");
    }
}

#[test]
fn lines_of_csv_are_counted_with_any_line_end() {
    let cases: [(&[u8], u64); 7] = [
        (b"page\n1\nfoo\n", 3),
        (b"page\n1\nfoo", 3),
        (b"page\n1\n\nfoo", 4),
        (b"page\r\n1\r\nfoo\r\n", 3),
        (b"\r\npage\r\n\r\n1\r\n\r\nfoo\r\n2\r\n", 6),
        (b"page,op\r\n1,r\r\n\r\n2\r\n", 4),
        (b"page,op\n1,\"a\nb\"\nx,r\n", 4),
    ];
    for (csv, expected) in cases {
        let TraceError::Line { line, .. } = open("a.csv", csv).unwrap_err() else {
            panic!("not a malformed line: {csv:?}");
        };
        assert_eq!(line, expected, "{csv:?}");
    }
}

#[test]
fn csv_needs_utf8_in_no_other_column() {
    let csv = b"page,name\r\n 30 ,\xff\r\n\"10\",b\r\n";
    assert_eq!(open("a.csv", csv).unwrap().pages, [1, 0]);
}

#[test]
fn a_line_without_end_is_refused() {
    let comment = format!("#{}\n1\n", "x".repeat(4094));
    assert_eq!(open("a.txt", comment.as_bytes()).unwrap().pages, [0]);
    let line = format!("1\n#{}\n", "x".repeat(4095));
    let expected = "a.txt:2: expected a line of at most 4096 bytes, found '#xxx";
    assert!(message("a.txt", line.as_bytes()).starts_with(expected));
}

#[test]
fn names_lose_their_endings() {
    for (file, name) in [
        ("web.07.txt", "web.07"),
        ("OLTP.lis", "OLTP"),
        ("plain", "plain"),
    ] {
        assert_eq!(open(file, b"1\n").unwrap().name, name);
    }
    assert_eq!(open("a.b.d64.zst", &encoded(&[1])).unwrap().name, "a.b");
}

#[test]
#[ignore = "takes 2 GiB of memory; `cargo xtask traces` runs it"]
fn more_requests_than_fit_are_refused() {
    // 2 GiB of zeros and a word more are a few tens of kilobytes when compressed.
    let zeros = std::io::repeat(0).take((8 << 28) + 8);
    let bomb = zstd::encode_all(zeros, 1).unwrap();
    let error = open("a.d64.zst", &bomb).unwrap_err();
    assert!(matches!(error, TraceError::TooManyRequests { .. }));
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
    assert_eq!(
        message("a.d64.zst", &whole[..whole.len() / 2]),
        "trace a.d64.zst is cut short after 0 requests"
    );
    let folder = Trace::open("src".as_ref(), &TraceOptions::default());
    assert!(matches!(folder, Err(TraceError::Io { .. })));
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
    #![proptest_config(ProptestConfig {
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

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
