//! The counts of a group that goes against its parent's first page.

use loom::sync::Arc;
use loom::thread;
use pagetide_core::group::{ReclaimCount, StockKind, Tree};
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
