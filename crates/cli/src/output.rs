//! Tables for people, JSON lines for programs.

use crate::failure::{Failure, of_output};
use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes text to standard output.
pub(crate) fn text(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| of_output(&error))
}

/// Writes one JSON object on a line.
pub(crate) fn json(object: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(object);
    let line = line.map_err(|error| Failure::of("cannot write JSON", &error))?;
    text(&format!("{line}\n"))
}

/// Writes rows as JSON lines, or as the table that they make.
pub(crate) fn rows<R: Serialize>(
    as_json: bool,
    rows: &[R],
    table: impl FnOnce(&[R]) -> String,
) -> Result<(), Failure> {
    match as_json {
        true => rows.iter().try_for_each(json),
        false => text(&table(rows)),
    }
}

/// What was not measured, and why: a stable interface.
#[derive(Debug, Serialize)]
pub(crate) struct Skipped {
    skipped: String,
    reason: String,
}

impl Skipped {
    pub(crate) fn new(what: &str, reason: &str) -> Skipped {
        Skipped {
            skipped: what.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "skipped: {}: {}", self.skipped, self.reason)
    }
}

/// Writes what was skipped as JSON lines, or as lines of text.
pub(crate) fn skipped(as_json: bool, skipped: &[Skipped]) -> Result<(), Failure> {
    skipped.iter().try_for_each(|one| match as_json {
        true => json(one),
        false => text(&printable(&format!("{one}\n"))),
    })
}

/// Makes sure that a file can be written, before what takes long; leaves it as it is.
pub(crate) fn check_file(path: &Path) -> Result<(), Failure> {
    let checked = match OpenOptions::new().append(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => check_new(&end_of_links(path)),
        opened => opened.map(drop),
    };
    checked.map_err(|error| of_file(path, &error))
}

/// Makes sure that a file which is not there can be made.
fn check_new(path: &Path) -> io::Result<()> {
    let made = OpenOptions::new().append(true).create_new(true).open(path);
    made.and_then(|_| fs::remove_file(path))
}

/// What a path names by way of links that lead nowhere yet.
fn end_of_links(path: &Path) -> PathBuf {
    let mut end = path.to_owned();
    // As many as the kernel follows.
    for _ in 0..40 {
        let Ok(link) = fs::read_link(&end) else { break };
        end = end
            .parent()
            .map_or(link.clone(), |folder| folder.join(&link));
    }
    end
}

/// Writes a file. Where there is no room for the text, one that was there stays as it was, and of
/// a new one nothing is left.
pub(crate) fn file(path: &Path, text: &str) -> Result<(), Failure> {
    let written = match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            write_new(&end_of_links(path), text.as_bytes())
        }
        opened => opened.and_then(|file| write_over(file, text.as_bytes())),
    };
    written.map_err(|error| of_file(path, &error))
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text).inspect_err(|_| {
        let _removed = fs::remove_file(path);
    })
}

/// The file stays the same one, with its owner, its mode and its other names.
fn write_over(mut file: File, text: &[u8]) -> io::Result<()> {
    let had = file.metadata()?;
    if !had.is_file() {
        return file.write_all(text);
    }
    let len = text.len() as u64;
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
        // Not every file system says beforehand whether there is room.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => (),
        Err(error) => {
            // It may have made some.
            file.set_len(had.len())?;
            return Err(error.into());
        }
    }
    file.write_all(text)?;
    file.set_len(len)
}

fn of_file(path: &Path, error: &io::Error) -> Failure {
    Failure::of(&format!("cannot write {}", path.display()), error)
}

/// Text of others with its control characters spelled out, but for line ends: a name may have some
/// that a terminal obeys.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() && c != '\n' {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// A table whose columns after the first `nr_names` are numbers.
pub(crate) fn table(header: &[&str], nr_names: usize, rows: Vec<Vec<String>>) -> String {
    // A name that has line ends would take lines of others.
    let line = |cell: &String| printable(cell).replace('\n', "\\n");
    let rows = rows.iter().map(|row| row.iter().map(line));
    let mut table = Table::new();
    table
        .load_preset(presets::ASCII_MARKDOWN)
        .set_header(header)
        .add_rows(rows);
    for column in table.column_iter_mut().skip(nr_names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}

/// A share in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// A count with thousands set apart.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of bytes in MiB.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// A number of bytes in the unit that suits it, in nine letters.
pub(crate) fn size(bytes: u64) -> String {
    if bytes == 0 {
        return "0".to_owned();
    }
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut size = bytes as f64 / 1024.0;
    let mut units = units.iter();
    let mut unit = units.next();
    while size >= 1000.0
        && let Some(larger) = units.next()
    {
        size /= 1024.0;
        unit = Some(larger);
    }
    format!("{size:.1} {}", unit.unwrap_or(&"KiB"))
}

/// A time in the unit that suits it.
pub(crate) fn time(nanos: u64) -> String {
    match nanos {
        0..1000 => format!("{nanos} ns"),
        1000..999_950 => format!("{:.1} us", nanos as f64 / 1e3),
        999_950..999_950_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.1} s", nanos as f64 / 1e9),
    }
}

/// A quantile of times; of none there is none.
pub(crate) fn quantile(times: &Histogram<u64>, quantile: f64) -> Option<u64> {
    (!times.is_empty()).then(|| times.value_at_quantile(quantile))
}

/// The nearest whole number, from 0 on.
#[expect(clippy::cast_possible_truncation)] // What is larger than any count stays the largest.
pub(crate) fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// Rounds to six decimals, as ratios are printed.
pub(crate) fn rounded(ratio: f64) -> f64 {
    (ratio * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_move_the_cursor() {
        let name = "a\u{1b}[2J\u{9b}b\r\nc \u{e4}";
        assert_eq!(printable(name), "a\\u{1b}[2J\\u{9b}b\\r\nc \u{e4}");
        let table = table(&["name"], 1, vec![vec![name.to_owned()]]);
        assert_eq!(table.lines().count(), 3, "{table}");
        assert!(table.contains("[2J\\u{9b}b\\r\\nc"), "{table}");
    }

    #[test]
    fn a_file_that_is_checked_is_left_as_it_is() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.html");
        check_file(&path).expect("it can be written");
        assert!(!path.exists());
        file(&path, "text").expect("it can be written");
        check_file(&path).expect("it can be written");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "text");
        // Of what was longer nothing is left behind it.
        file(&path, "new").expect("it can be written");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "new");
        assert!(check_file(&dir.path().join("none/a.html")).is_err());
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [900, 1220, 999_949, 7_243_800, 12_345_678_900].map(time),
            ["900 ns", "1.2 us", "999.9 us", "7.2 ms", "12.3 s"]
        );
        assert_eq!(
            (percent(0.98765), mib(3 << 19)),
            ("98.77 %".into(), "1.5 MiB".into())
        );
        let sizes = [0, 4096, 1023 << 10, 64 << 20, 1 << 40, u64::MAX].map(size);
        let expected = [
            "0",
            "4.0 KiB",
            "1.0 MiB",
            "64.0 MiB",
            "1.0 TiB",
            "16384.0 PiB",
        ];
        assert_eq!(sizes, expected);
        assert_eq!(rounded(0.123_456_78), 0.123_457);
        assert_eq!([-1.0, 0.5, 7.4, 1e30].map(whole), [0, 1, 7, u64::MAX]);
    }
}
