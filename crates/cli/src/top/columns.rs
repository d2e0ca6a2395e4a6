//! Columns of the tree of groups: those that say something and have room, never cut.

use super::View;
use crate::output::{self, size};
use pagetide::GroupSnapshot;

/// Columns of a group's name at least; longer ones are cut.
const LEAST_NAME: usize = 12;

/// A column: its cells are in the order of the groups.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) width: u16,
    pub(super) cells: Vec<String>,
    /// Which one goes first where there is no room: the least.
    rank: u32,
}

type Show = fn(&View, &GroupSnapshot) -> Option<String>;

/// Name, rank and content of each, in order.
const COLUMNS: [(&str, u32, Show); 11] = [
    ("usage", 11, |_, group| Some(size(group.usage_bytes))),
    ("min", 3, |_, group| protection(group.min_bytes)),
    ("low", 4, |_, group| protection(group.low_bytes)),
    ("high", 5, |_, group| group.high_bytes.map(size)),
    ("max", 10, |_, group| group.max_bytes.map(size)),
    ("hits", 9, |view, group| {
        let hits = view.hit_ratio(group);
        hits.map(|hits| format!("{:.1} %", hits * 100.0))
    }),
    ("miss/s", 8, |view, group| {
        let misses = |group: &GroupSnapshot| stat(group, "pgmajfault");
        Some(rate(view.group_rate(group, misses)))
    }),
    ("refault/s", 7, |view, group| {
        let refaults = |group: &GroupSnapshot| {
            let anon = stat(group, "workingset_refault_anon");
            stat(group, "workingset_refault_file").saturating_add(anon)
        };
        Some(rate(view.group_rate(group, refaults)))
    }),
    ("evict/s", 2, |view, group| {
        let evicted = |group: &GroupSnapshot| stat(group, "pgsteal");
        Some(rate(view.group_rate(group, evicted)))
    }),
    ("some %", 6, |_, group| {
        Some(format!("{:.2}", group.pressure_some_avg10))
    }),
    ("full %", 1, |_, group| {
        Some(format!("{:.2}", group.pressure_full_avg10))
    }),
];

/// The columns that say something of some group, without those of least rank that have no room
/// beside names of `longest` letters.
pub(super) fn fitting(view: &View, longest: usize, width: usize) -> Vec<Column> {
    let groups = &view.now.groups;
    let columns = COLUMNS.iter().filter_map(|&(name, rank, show)| {
        let cells: Vec<_> = groups.iter().map(|group| show(view, group)).collect();
        if cells.iter().all(Option::is_none) {
            return None;
        }
        let cells = cells.into_iter();
        let cells: Vec<_> = cells.map(|cell| cell.unwrap_or("-".to_owned())).collect();
        let widest = cells.iter().map(String::len).max();
        let width = widest.unwrap_or(0).max(name.len());
        Some(Column {
            name,
            width: u16::try_from(width).unwrap_or(u16::MAX),
            cells,
            rank,
        })
    });
    let mut columns: Vec<Column> = columns.collect();
    let name = longest.clamp("group".len(), LEAST_NAME);
    let taken = |columns: &[Column]| {
        let columns = columns.iter().map(|column| 1 + usize::from(column.width));
        name + columns.sum::<usize>()
    };
    while taken(&columns) > width {
        let Some(least) = columns.iter().map(|column| column.rank).min() else {
            break;
        };
        columns.retain(|column| column.rank > least);
    }
    columns
}

fn protection(bytes: u64) -> Option<String> {
    (bytes > 0).then(|| size(bytes))
}

/// A number of [`pagetide::GroupStat`].
pub(super) fn stat(group: &GroupSnapshot, name: &str) -> u64 {
    group.stat.get(name).copied().unwrap_or(0)
}

/// How often a second.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        ..=0.0 => "0".to_owned(),
        0.0..100.0 => format!("{rate:.1}"),
        _ => output::count(output::whole(rate)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_for_people() {
        let rates = [0.0, -1.0, 0.25, 99.9, 30_223.4].map(rate);
        assert_eq!(rates, ["0", "0", "0.2", "99.9", "30,223"]);
    }
}
