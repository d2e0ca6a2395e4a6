//! Groups that go while somebody has their statistics in hand, where none is lost: one thread goes
//! a long way while another one stands still, as in `short`.
//!
//! Not a matter for loom, which looks at the last access of each word only: it never has a thread
//! stand still between a stock and the books.

use super::{RUNS, check_under};
use pagetide_core::group::{Item, StockKind, Tree};
use pagetide_core::units::Cpu;
use shuttle::scheduler::PctScheduler;
use shuttle::thread;
use std::sync::Arc;

const CPU: Cpu = Cpu::new(0);
const ITEM: Item = Item::SlabReclaimable;

/// A group with 100 bytes in a CPU's stock dies and is buried beside `work`, at once or later.
/// What the root has in the end is 100 and `more`.
fn no_statistic_is_lost(kind: StockKind, work: fn(&Tree, u32), is_killed: bool, more: u64) {
    check_under(PctScheduler::new_from_seed(1, 2, 3 * RUNS), move || {
        let tree = Arc::new(Tree::try_new(1, 1 << 13, kind).expect("memory"));
        let child = |_| tree.child(CPU, tree.root()).expect("a group");
        let groups = [(); 3].map(child);
        // All words are taken, the first one by the group that goes.
        let changed = match kind {
            StockKind::Atomic => &groups[..],
            _ => &groups[..1],
        };
        for &group in changed {
            tree.mod_state(CPU, group, ITEM, 100);
        }
        let group = groups[0];
        let worker = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || work(&tree, group))
        };
        if is_killed {
            tree.kill(group);
        }
        let is_gone = tree.bury(group).is_some();
        worker.join().expect("the worker does not panic");
        // At a later tick.
        assert!(is_gone || tree.bury(group).is_some());
        tree.drain(tree.root());
        let others = 100 * (changed.len() as u64 - 1);
        assert_eq!(tree.state(tree.root(), ITEM), 100 + others + more);
    });
}

#[test]
fn a_group_that_goes_during_a_drain_leaves_its_statistics() {
    for kind in [StockKind::Atomic, StockKind::Spinlock] {
        no_statistic_is_lost(kind, |tree, _| tree.drain(tree.root()), true, 0);
    }
}

#[test]
fn a_group_that_goes_while_another_drives_it_out_leaves_its_statistics() {
    let work = |tree: &Tree, _| tree.mod_state(CPU, tree.root(), ITEM, 30);
    for kind in [StockKind::Atomic, StockKind::Spinlock] {
        no_statistic_is_lost(kind, work, true, 30);
    }
}

#[test]
fn a_group_that_is_buried_while_it_is_killed_leaves_its_statistics() {
    let work = |tree: &Tree, group| tree.kill(group);
    no_statistic_is_lost(StockKind::Atomic, work, false, 0);
}
