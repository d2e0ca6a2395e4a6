//! The book's page of counters.

use pagetide::{ByteSize, Memory};

const PAGE: &str = include_str!("../../../../book/counters.md");

/// A part of the page, from one heading to the next.
fn part(heading: &str) -> &str {
    let start = PAGE.find(heading).expect("the heading is there");
    let rest = &PAGE[start + heading.len()..];
    &rest[..rest.find("\n## ").unwrap_or(rest.len())]
}

#[test]
fn every_counter_is_explained_and_none_that_is_not_there() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let root = memory.root();
    for (heading, shown) in [
        ("## Of the memory: `vmstat`", memory.stats().to_string()),
        ("## Of a group: `memory.stat`", root.stat().to_string()),
        ("met: `memory.events`", root.events().to_string()),
        ("stocks: `stocks`", memory.stock_stats().to_string()),
    ] {
        let part = part(heading);
        let names: Vec<&str> = shown
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        for name in &names {
            assert!(
                part.contains(&format!("`{name}`")),
                "{heading}: {name} is not explained"
            );
        }
        let rows = part.lines().filter_map(|line| line.strip_prefix("| `"));
        let explained = rows.flat_map(|row| row.split(" |").next().unwrap_or("").split("`, `"));
        for name in explained.map(|name| name.trim_end_matches('`')) {
            assert!(names.contains(&name), "{heading}: there is no {name}");
        }
    }
}
