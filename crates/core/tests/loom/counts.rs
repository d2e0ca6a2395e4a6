//! What groups have in common with those above them: counts of one that goes, places on the walk.

use loom::sync::{Arc, Mutex};
use loom::thread;
use pagetide_core::group::{Limit, ReclaimCount, StockKind, Tree};
use pagetide_core::units::Cpu;

const CPU: Cpu = Cpu::new(0);

#[test]
fn counts_of_a_group_that_goes_are_kept_while_its_parent_gets_its_own() {
    loom::model(|| {
        let tree = Arc::new(Tree::try_new(1, 1 << 13, StockKind::None).expect("memory"));
        let count = |id, more| tree.add_reclaim_count(id, ReclaimCount::PgscanDirect, more);
        let parent = tree.root();
        let child = tree.child(CPU, parent).expect("room");
        tree.have_reclaim_counts(CPU, child).expect("room");
        count(child, 5);
        let other = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                tree.kill(child);
                assert_eq!(tree.bury(child), Some(0));
            })
        };
        tree.have_reclaim_counts(CPU, parent).expect("room");
        count(parent, 2);
        other.join().expect("it does not panic");
        let counted = tree.reclaim_count(parent, ReclaimCount::PgscanDirect);
        assert_eq!(counted, 7);
    });
}

#[test]
fn a_group_with_a_page_is_on_the_walk() {
    loom::model(|| {
        let tree = Arc::new(Tree::try_new(1, 1 << 13, StockKind::None).expect("memory"));
        // The pages of a group under the lock of its lists.
        let nr_pages = Arc::new(Mutex::new(0));
        let group = tree.child(CPU, tree.root()).expect("room");
        tree.join_walk(group);
        let reclaim = {
            let (tree, nr_pages) = (Arc::clone(&tree), Arc::clone(&nr_pages));
            thread::spawn(move || {
                tree.leave_walk(group, || *nr_pages.lock().expect("no panic") == 0);
            })
        };
        let mut lists = nr_pages.lock().expect("no panic");
        *lists += 1;
        let is_walked = tree.get(group).expect("a group").is_walked();
        drop(lists);
        if !is_walked {
            tree.join_walk(group);
        }
        reclaim.join().expect("it does not panic");
        let mut walked = tree.walk(tree.root(), 3).map(|(id, _)| id);
        assert!(walked.any(|id| id == group));
    });
}

/// Two groups of 2 and 4 pages; all 4 that their parent protects are the second one's.
fn siblings() -> (Arc<Tree>, [u32; 2]) {
    let tree = Arc::new(Tree::try_new(1, 1 << 13, StockKind::None).expect("memory"));
    let parent = tree.child(CPU, tree.root()).expect("room");
    let [first, second] = [(); 2].map(|()| tree.child(CPU, parent).expect("room"));
    for group in [parent, second] {
        tree.set_limit(group, Limit::Low, 4).expect("no max");
    }
    for (group, pages) in [(first, 2), (second, 4)] {
        tree.charge(CPU, group, pages).expect("room");
    }
    (tree, [first, second])
}

#[test]
fn groups_that_shrink_at_once_claim_nothing_for_good() {
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    model.check(|| {
        let (tree, [shrinking, other]) = siblings();
        tree.set_limit(shrinking, Limit::Low, 4).expect("no max");
        let uncharge = {
            let tree = Arc::clone(&tree);
            move || tree.uncharge(CPU, shrinking, 1)
        };
        let at_once = thread::spawn(uncharge.clone());
        uncharge();
        at_once.join().expect("it does not panic");
        // All that the parent has is the other one's.
        assert_eq!(tree.protection(other, tree.root()).low, 4);
    });
}

#[test]
fn a_group_that_is_protected_while_it_shrinks_claims_nothing_for_good() {
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    model.check(|| {
        let (tree, [shrinking, other]) = siblings();
        let protect = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.set_limit(shrinking, Limit::Low, 4).expect("no max"))
        };
        tree.uncharge(CPU, shrinking, 2);
        protect.join().expect("it does not panic");
        assert_eq!(tree.protection(other, tree.root()).low, 4);
    });
}
