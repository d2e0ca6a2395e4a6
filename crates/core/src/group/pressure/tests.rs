//! Named cases of stalls, shares and levels.

extern crate std;

use super::*;
use crate::units::{Cpu, SECOND};
use std::string::ToString;

const CPU: Cpu = Cpu::new(0);
const MS: u64 = SECOND / 1000;

fn tree(nr_cpus: u32) -> Tree {
    Tree::try_new(nr_cpus, 1 << 20, crate::group::StockKind::Atomic).unwrap()
}

fn at(tree: &Tree, id: u32, now: u64) -> PressureStats {
    tree.pressure(id, now).unwrap()
}

/// Milliseconds of `some` and `full`.
fn totals(tree: &Tree, id: u32, now: u64) -> [u64; 2] {
    let stats = at(tree, id, now);
    [stats.some, stats.full].map(|line| line.total_ns / MS)
}

/// What a second brings in `some` and `full`, in milliseconds, with these tasks.
fn shares(nr_cpus: u32, nr_tasks: u32, nr_stalled: u32) -> [u64; 2] {
    let tree = tree(nr_cpus);
    let root = tree.root();
    for _ in 0..nr_tasks {
        tree.enter_task(root, 0);
    }
    for _ in 0..nr_stalled {
        let _lasts = tree.begin_stall(root, 0, Some(root));
    }
    totals(&tree, root, SECOND)
}

#[test]
fn a_second_of_stall_from_rest() {
    let tree = tree(1);
    let root = tree.root();
    assert_eq!(at(&tree, root, 0), PressureStats::default());
    let stalled = tree.begin_stall(root, 0, None);
    tree.end_stall(root, SECOND, stalled);
    let before = at(&tree, root, 2 * SECOND - 1);
    assert_eq!(
        before.some.to_string(),
        "avg10=0.00 avg60=0.00 avg300=0.00 total=1000000"
    );
    // Half of the first period: 50 * (2048 - 1677) / 2048 percent, and so on.
    let line = "avg10=9.05 avg60=1.63 avg300=0.34 total=1000000";
    let shown = std::format!("some {line}\nfull {line}");
    assert_eq!(at(&tree, root, 2 * SECOND).to_string(), shown);
    // An idle period: times 1677 / 2048, 1981 / 2048, 2034 / 2048.
    let decayed = at(&tree, root, 4 * SECOND).some;
    assert_eq!(
        [decayed.avg10, decayed.avg60, decayed.avg300],
        [741, 158, 33]
    );
    let rested = at(&tree, root, 4000 * SECOND).some;
    let total_ns = SECOND;
    assert_eq!(
        rested,
        PressureLine {
            total_ns,
            ..PressureLine::default()
        }
    );
}

#[test]
fn a_lasting_stall_is_seen_while_it_lasts_and_reaches_the_whole() {
    let tree = tree(4);
    let root = tree.root();
    let _lasts = tree.begin_stall(root, 700 * MS, None);
    assert_eq!(totals(&tree, root, 800 * MS), [100, 100]);
    assert_eq!(totals(&tree, root, 5700 * MS), [5000, 5000]);
    let full = at(&tree, root, 2282 * SECOND).full;
    assert_eq!(
        full.to_string(),
        "avg10=100.00 avg60=100.00 avg300=100.00 total=2281300000"
    );
    // The largest time there is.
    assert_eq!(at(&tree, root, u64::MAX).some.total_ns, u64::MAX - 700 * MS);
}

#[test]
fn shares_by_hand() {
    // [some, full] = [min(delayed, threads), threads - min(productive, threads)] / threads
    assert_eq!(shares(1, 0, 0), [0, 0]);
    assert_eq!(shares(1, 1, 0), [0, 0]);
    assert_eq!(shares(1, 1, 1), [1000, 1000]);
    assert_eq!(shares(1, 2, 1), [1000, 0]);
    assert_eq!(shares(2, 2, 1), [500, 500]);
    assert_eq!(shares(2, 3, 1), [500, 0]);
    assert_eq!(shares(2, 3, 2), [1000, 500]);
    assert_eq!(shares(8, 4, 1), [250, 250]);
    assert_eq!(shares(256, 257, 1), [3, 0]);
    assert_eq!(shares(256, 257, 2), [7, 3]);
}

#[test]
fn without_declared_tasks_full_is_some() {
    let tree = tree(2);
    let root = tree.root();
    let stalled = [0, 100 * MS].map(|now| tree.begin_stall(root, now, None));
    tree.end_stall(root, 200 * MS, stalled[0]);
    tree.end_stall(root, 300 * MS, stalled[1]);
    assert_eq!(totals(&tree, root, SECOND), [300, 300]);
    assert_eq!(at(&tree, root, SECOND).nr_tasks, 0);
}

#[test]
fn a_stall_counts_at_every_level_above_and_no_other() {
    let tree = tree(1);
    let root = tree.root();
    let parent = tree.child(CPU, root).unwrap();
    let [child, sibling] = [(); 2].map(|()| tree.child(CPU, parent).unwrap());
    let cousin = tree.child(CPU, root).unwrap();
    tree.enter_task(sibling, 0);
    let stalled = tree.begin_stall(child, 0, None);
    tree.end_stall(child, 300 * MS, stalled);
    assert_eq!(totals(&tree, child, SECOND), [300, 300]);
    assert_eq!(totals(&tree, parent, SECOND), [300, 0]);
    assert_eq!(totals(&tree, root, SECOND), [300, 0]);
    assert_eq!(totals(&tree, sibling, SECOND), [0, 0]);
    assert_eq!(totals(&tree, cousin, SECOND), [0, 0]);
    tree.leave_task(sibling, SECOND);
    assert_eq!(at(&tree, root, SECOND).nr_tasks, 0);
}

#[test]
fn a_task_counts_once_where_it_stalls_and_where_it_belongs() {
    let tree = tree(8);
    let root = tree.root();
    let [own, other] = [(); 2].map(|()| tree.child(CPU, root).unwrap());
    let below = tree.child(CPU, own).unwrap();
    let nr_tasks = |now| [root, own, other, below].map(|id| at(&tree, id, now).nr_tasks);
    tree.enter_task(own, 0);
    assert_eq!(nr_tasks(0), [1, 1, 0, 0]);
    for (id, during) in [
        (own, [1, 1, 0, 0]),
        (below, [1, 1, 0, 1]),
        (other, [1, 1, 1, 0]),
        (root, [1, 1, 0, 0]),
    ] {
        let stalled = tree.begin_stall(id, 0, Some(own));
        assert_eq!(nr_tasks(0), during);
        tree.end_stall(id, 0, stalled);
        assert_eq!(nr_tasks(0), [1, 1, 0, 0]);
    }
}

#[test]
fn a_task_that_leaves_while_it_stalls_is_one_until_the_end() {
    let tree = tree(2);
    let root = tree.root();
    tree.enter_task(root, 0);
    let stalled = tree.begin_stall(root, 0, Some(root));
    tree.leave_task(root, 0);
    assert_eq!(totals(&tree, root, 100 * MS), [100, 100]);
    tree.end_stall(root, 200 * MS, stalled);
    assert_eq!(totals(&tree, root, SECOND), [200, 200]);
}

#[test]
fn a_stall_ends_where_it_began_though_the_group_of_its_task_is_gone() {
    let tree = tree(2);
    let root = tree.root();
    let [web, worker] = [(); 2].map(|()| tree.child(CPU, root).unwrap());
    tree.enter_task(worker, 0);
    let stalled = tree.begin_stall(web, 0, Some(worker));
    tree.leave_task(worker, 0);
    tree.kill(worker);
    tree.bury(worker).unwrap();
    tree.end_stall(web, 100 * MS, stalled);
    for id in [root, web] {
        let stats = at(&tree, id, SECOND);
        assert_eq!((stats.nr_tasks, stats.nr_stalled), (0, 0));
        assert_eq!(totals(&tree, id, SECOND), [100, 100]);
    }
}

#[test]
fn a_clock_that_is_behind_adds_nothing() {
    let tree = tree(1);
    let root = tree.root();
    let stalled = tree.begin_stall(root, 500 * MS, None);
    tree.end_stall(root, 400 * MS, stalled);
    assert_eq!(totals(&tree, root, SECOND), [0, 0]);
    let stalled = tree.begin_stall(root, SECOND, None);
    assert_eq!(totals(&tree, root, 0), [0, 0]);
    // What a reader saw stays, though the stall ended before he looked.
    assert_eq!(totals(&tree, root, SECOND + 10 * MS), [10, 10]);
    tree.end_stall(root, SECOND + 5 * MS, stalled);
    assert_eq!(totals(&tree, root, 2 * SECOND), [10, 10]);
}

#[test]
fn a_new_group_in_an_old_record_is_at_rest() {
    let tree = tree(1);
    let old = tree.child(CPU, tree.root()).unwrap();
    let stalled = tree.begin_stall(old, 0, None);
    tree.end_stall(old, 10 * SECOND, stalled);
    tree.kill(old);
    tree.bury(old).unwrap();
    assert_eq!(tree.pressure(old, 10 * SECOND), None);
    let new = tree.child(CPU, tree.root()).unwrap();
    assert_eq!(at(&tree, new, 10 * SECOND), PressureStats::default());
    // Nobody is left to count for.
    let _of_nobody = tree.begin_stall(old, 10 * SECOND, None);
    assert_eq!(at(&tree, tree.root(), 11 * SECOND).nr_stalled, 0);
}
