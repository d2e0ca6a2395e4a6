//! Tables for people, JSON lines for programs.

use crate::failure::{Failure, of_output};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::io::{self, Write};

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

/// A table whose columns after the first `nr_names` are numbers.
pub(crate) fn table(header: &[&str], nr_names: usize, rows: Vec<Vec<String>>) -> String {
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

/// A time in the unit that suits it.
pub(crate) fn time(nanos: u64) -> String {
    match nanos {
        0..1000 => format!("{nanos} ns"),
        1000..999_950 => format!("{:.1} us", nanos as f64 / 1e3),
        999_950..999_950_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.1} s", nanos as f64 / 1e9),
    }
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
        assert_eq!(rounded(0.123_456_78), 0.123_457);
        assert_eq!([-1.0, 0.5, 7.4, 1e30].map(whole), [0, 1, 7, u64::MAX]);
    }
}
