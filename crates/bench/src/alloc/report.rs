//! Lines of JSON, and tables.

use super::{Allocator, Cell, Load, name};
use clap::ValueEnum;
use std::fmt::Write;

const FIRST_WIDTH: usize = 25;
const WIDTH: usize = 11;

/// A line for one cell.
pub fn print_json(cell: &Cell) {
    let Cell {
        allocator, load, ..
    } = cell;
    let head = format!(
        r#""bench":"alloc","allocator":"{}","bytes":{},"pattern":"{}","threads":{}"#,
        name(allocator),
        load.bytes(),
        name(&load.pattern),
        load.threads,
    );
    match &cell.result {
        Ok(measured) => {
            let times = format!(
                r#""ns_per_pair_median":{:.1},"min":{:.1},"max":{:.1},"elapsed_ns_median":{:.1}"#,
                measured.median, measured.min, measured.max, measured.elapsed_median,
            );
            let kept = measured.rss_after_bytes;
            println!(r#"{{{head},{times},"rss_after_bytes":{kept}}}"#);
        }
        Err(error) => {
            let error = error.replace(['"', '\\'], " ");
            println!(r#"{{{head},"error":"{error}"}}"#);
        }
    }
}

/// The tables of one size of block: times, ratios to the fastest peer, residents.
pub fn tables(cells: &[Cell]) -> String {
    let columns = columns(cells);
    let Some(bytes) = columns.first().map(|load| load.bytes()) else {
        return String::new();
    };
    let mut out = String::new();
    let title = format!("{} KiB, CPU ns a pair", bytes >> 10);
    line(&mut out, &title, columns.iter().map(head));
    each_allocator(&mut out, cells, &columns, |cell| number(cell.median));
    for ours in Allocator::value_variants().iter().filter(|a| a.is_ours()) {
        let ratio = |load| ratio(cells, *ours, load);
        let title = format!("{} / best peer", name(ours));
        line(&mut out, &title, columns.iter().map(ratio));
    }
    let best = columns.iter().map(|load| {
        let best = best_peer(cells, load);
        best.map_or_else(dash, |(allocator, _)| name(&allocator))
    });
    line(&mut out, "best peer", best);
    out.push('\n');
    let title = format!("{} KiB, MiB kept", bytes >> 10);
    line(&mut out, &title, columns.iter().map(head));
    each_allocator(&mut out, cells, &columns, |cell| {
        number(cell.rss_after_bytes as f64 / f64::from(1 << 20))
    });
    out.push('\n');
    for cell in cells {
        if let Err(error) = &cell.result {
            let allocator = name(&cell.allocator);
            writeln!(out, "{allocator}, {}: {error}", head(&cell.load)).expect("a string");
        }
    }
    out
}

fn columns(cells: &[Cell]) -> Vec<Load> {
    let mut columns: Vec<Load> = Vec::new();
    for cell in cells {
        if !columns.iter().any(|load| is_same(load, &cell.load)) {
            columns.push(cell.load);
        }
    }
    columns
}

fn is_same(one: &Load, other: &Load) -> bool {
    (one.order, one.pattern, one.threads) == (other.order, other.pattern, other.threads)
}

fn head(load: &Load) -> String {
    format!("{} x{}", load.pattern.short(), load.threads)
}

fn each_allocator(
    out: &mut String,
    cells: &[Cell],
    columns: &[Load],
    show: impl Fn(&super::Measured) -> String,
) {
    for allocator in Allocator::value_variants() {
        let shown: Vec<String> = columns
            .iter()
            .map(|load| match find(cells, *allocator, load) {
                Some(Ok(measured)) => show(measured),
                Some(Err(_)) => "failed".to_owned(),
                None => dash(),
            })
            .collect();
        if shown.iter().any(|cell| *cell != dash()) {
            line(out, &name(allocator), shown.into_iter());
        }
    }
}

fn find<'a>(
    cells: &'a [Cell],
    allocator: Allocator,
    load: &Load,
) -> Option<&'a Result<super::Measured, String>> {
    cells
        .iter()
        .find(|cell| cell.allocator == allocator && is_same(&cell.load, load))
        .map(|cell| &cell.result)
}

fn best_peer(cells: &[Cell], load: &Load) -> Option<(Allocator, f64)> {
    let peers = cells
        .iter()
        .filter(|cell| !cell.allocator.is_ours() && is_same(&cell.load, load));
    let times = peers.filter_map(|cell| Some((cell.allocator, cell.result.as_ref().ok()?.median)));
    times.min_by(|(_, one), (_, other)| one.total_cmp(other))
}

fn ratio(cells: &[Cell], ours: Allocator, load: &Load) -> String {
    match (find(cells, ours, load), best_peer(cells, load)) {
        (Some(Ok(measured)), Some((_, best))) => format!("{:.2}", measured.median / best),
        _ => dash(),
    }
}

fn dash() -> String {
    "-".to_owned()
}

/// Three digits or more, and no more than one behind the point.
fn number(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

fn line(out: &mut String, first: &str, rest: impl Iterator<Item = String>) {
    write!(out, "{first:<FIRST_WIDTH$}").expect("a string");
    for cell in rest {
        write!(out, " {cell:>WIDTH$}").expect("a string");
    }
    out.push('\n');
}
