//! The book's page of counters.

use crate::data::numbered_file;
use pagetide::{ByteSize, Hint, Memory};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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

#[test]
fn what_is_counted_does_not_fall_while_others_count() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let data = numbered_file(1024);
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for page in (0..1024).cycle() {
                drop(file.pin(page).unwrap());
                if page % 8 == 0 {
                    // Less may be there.
                    drop(memory.reclaim(ByteSize::kib(64)));
                }
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let (root, mut before) = (memory.root(), memory.stats());
        let mut before_of_root = root.stat();
        let end = Instant::now() + Duration::from_secs(60);
        for nr in 0.. {
            // The other thread may get no CPU for a while.
            let has_counted = before.pgsteal_proactive > 0 || Instant::now() > end;
            if nr >= 50_000 && has_counted {
                break;
            }
            let stats = memory.stats();
            let falls = stats.pgscan_direct < before.pgscan_direct
                || stats.pgsteal_direct < before.pgsteal_direct
                || stats.pgscan_proactive < before.pgscan_proactive
                || stats.pgscan < before.pgscan
                || stats.pgsteal < before.pgsteal;
            is_over.store(falls, Ordering::Relaxed);
            assert!(!falls, "{stats:?} after {before:?}");
            before = stats;
            let stat = root.stat();
            let falls = stat.pgscan_file < before_of_root.pgscan_file
                || stat.pgsteal_file < before_of_root.pgsteal_file
                || stat.pgsteal < before_of_root.pgsteal;
            is_over.store(falls, Ordering::Relaxed);
            assert!(!falls, "{stat:?} after {before_of_root:?}");
            before_of_root = stat;
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(before.pgsteal_proactive > 0);
    });
}

#[test]
fn what_is_counted_does_not_fall_where_a_group_goes() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let (root, data) = (memory.root(), numbered_file(16));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let group = root.child("passing").unwrap();
                let file = memory.open(data.path(), &group).unwrap();
                drop(file.pin(3).unwrap());
            }
        });
        let mut before = 0;
        for _ in 0..200_000 {
            let now = root.stat().pgmajfault;
            let falls = now < before;
            is_over.store(falls, Ordering::Relaxed);
            assert!(!falls, "{now} after {before}");
            before = now;
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_a_group_that_went_has_missed_is_in_its_parents_stat_and_no_miss_of_the_parent() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let (tenant, data) = (memory.root().child("tenant").unwrap(), numbered_file(16));
    let own = memory.open(data.path(), &tenant).unwrap();
    own.advise(Hint::Random);
    drop(own.pin(0).unwrap());
    let nr_own = tenant.misses();
    for round in 0..3 {
        let query = tenant.child("query").unwrap();
        let deep = query.child("deep").unwrap();
        let file = own.for_group(&deep);
        file.advise(Hint::Random);
        file.pin(3).unwrap();
        assert_eq!(deep.misses(), 1);
        drop((file, deep, query));
        memory.tick();
        assert_eq!(tenant.misses(), nr_own, "round {round}");
        assert_eq!(tenant.stat().pgmajfault, nr_own + round + 1);
    }
    drop((own, tenant));
    memory.tick();
    assert_eq!(
        (memory.root().misses(), memory.root().stat().pgmajfault),
        (0, nr_own + 3)
    );
}
