//! Named cases of charging, limits and stocks.

extern crate std;

use super::*;

const A: Cpu = Cpu::new(0);
const B: Cpu = Cpu::new(1);

fn tree(max: u64) -> Tree {
    Tree::try_new(2, max, StockKind::Atomic).unwrap()
}

fn usage(tree: &Tree, id: u32) -> u64 {
    tree.get(id).unwrap().usage()
}

#[test]
fn every_level_is_charged_and_uncharged() {
    let tree = tree(1 << 20);
    let parent = tree.child(A, tree.root()).unwrap();
    let child = tree.child(A, parent).unwrap();
    let before = usage(&tree, tree.root());
    tree.charge(A, child, 10).unwrap();
    assert_eq!([usage(&tree, child), usage(&tree, parent)], [64, 64]);
    assert_eq!(tree.stocked(child), 54);
    tree.uncharge(B, child, 10);
    tree.drain(parent);
    assert_eq!([usage(&tree, child), usage(&tree, parent)], [0, 0]);
    assert_eq!(usage(&tree, tree.root()), before);
}

#[test]
fn a_refused_charge_leaves_every_counter() {
    let tree = tree(1 << 20);
    let parent = tree.child(A, tree.root()).unwrap();
    let child = tree.child(A, parent).unwrap();
    tree.set_max(parent, 100).unwrap();
    tree.charge(A, child, 90).unwrap();
    let root = usage(&tree, tree.root());
    assert_eq!(tree.charge(A, child, 11), Err(OverLimit { group: parent }));
    assert_eq!([usage(&tree, child), usage(&tree, parent)], [90, 90]);
    assert_eq!(usage(&tree, tree.root()), root);
    assert_eq!(tree.get(parent).unwrap().events().max, 1);
    tree.charge(A, child, 10).unwrap();
}

#[test]
fn no_page_is_refused_while_it_is_stranded_in_a_stock() {
    let tree = tree(1 << 20);
    let group = tree.child(A, tree.root()).unwrap();
    tree.set_max(group, 300).unwrap();
    for turn in 0..300 {
        tree.charge(if turn % 2 == 0 { A } else { B }, group, 1)
            .unwrap();
    }
    assert!(tree.charge(A, group, 1).is_err());
    tree.uncharge(B, group, 1);
    tree.charge(A, group, 1).unwrap();
    assert_eq!(usage(&tree, group), 300);
}

#[test]
fn small_limits_are_exact() {
    let tree = tree(1 << 20);
    let group = tree.child(A, tree.root()).unwrap();
    tree.charge(A, group, 1).unwrap();
    assert_eq!(usage(&tree, group), 64);
    tree.set_max(group, 2 * 2 * 64 - 1).unwrap();
    assert_eq!(usage(&tree, group), 1);
    tree.charge(B, group, 1).unwrap();
    assert_eq!((usage(&tree, group), tree.stocked(group)), (2, 0));
}

#[test]
fn stocks_hold_at_most_a_64th_of_the_budget() {
    let tree = tree(1 << 13);
    for _ in 0..20 {
        let group = tree.child(A, tree.root()).unwrap();
        tree.charge(A, group, 1).unwrap();
        tree.charge(B, group, 1).unwrap();
    }
    assert!(u64::from(tree.stocked(tree.root())) <= (1 << 13) / 64);
}

#[test]
fn a_dead_group_goes_with_its_last_charge() {
    let tree = tree(1 << 20);
    let group = tree.child(A, tree.root()).unwrap();
    tree.charge(A, group, 3).unwrap();
    tree.kill(group);
    assert_eq!(tree.bury(group), None);
    tree.uncharge(A, group, 3);
    assert_eq!(tree.bury(group), Some(0));
    assert!(tree.get(group).is_none());
    assert_eq!(tree.child(A, group), Err(ChildError::DeadParent));
}

#[test]
fn faults_of_a_group_that_went_are_its_parents_apart() {
    let tree = tree(1 << 20);
    let child = |of| {
        let id = tree.child(A, of).unwrap();
        tree.have_reclaim_counts(A, id).unwrap();
        id
    };
    let parent = tree.child(A, tree.root()).unwrap();
    let group = |id| tree.get(id).unwrap();
    let fault = |id, nr_faults| group(id).add_count(Count::Pgmajfault, nr_faults);
    let of_gone = |id| tree.reclaim_count(id, ReclaimCount::PgmajfaultOfGone);
    let bury = |id| {
        tree.kill(id);
        assert!(tree.bury(id).is_some());
    };
    // In the first round the records go from one to the next.
    for round in 1..=2 {
        let child_of_it = child(parent);
        let deep = child(child_of_it);
        fault(deep, 4);
        fault(child_of_it, 10);
        group(child_of_it).add_count(Count::WorkingsetRefaultFile, 3);
        bury(deep);
        assert_eq!(group(child_of_it).count(Count::Pgmajfault), 10);
        assert_eq!(of_gone(child_of_it), 4);
        bury(child_of_it);
        assert_eq!(group(parent).count(Count::Pgmajfault), 0);
        assert_eq!(of_gone(parent), 14 * round);
        let refaults = group(parent).count(Count::WorkingsetRefaultFile);
        assert_eq!(refaults, 3 * round);
    }
}

#[test]
fn a_tree_has_a_bounded_depth() {
    let tree = tree(1 << 20);
    let mut id = tree.root();
    for _ in 0..MAX_DEPTH {
        id = tree.child(A, id).unwrap();
    }
    assert_eq!(tree.child(A, id), Err(ChildError::TooDeep));
}

#[test]
fn an_idle_group_takes_at_most_512_bytes() {
    let nr_bytes = size_of::<Group>();
    assert!(nr_bytes <= 512, "{nr_bytes}");
}

#[test]
fn events_are_counted_where_they_happen_and_above() {
    let tree = tree(1 << 20);
    let parent = tree.child(A, tree.root()).unwrap();
    let child = tree.child(A, parent).unwrap();
    tree.set_max(parent, 10).unwrap();
    assert!(tree.charge(A, child, 11).is_err());
    tree.count_event(child, Event::High);
    let of = |id: u32| {
        let group = tree.get(id).unwrap();
        let (all, local) = (group.events(), group.events_local());
        [all.max, all.high, local.max, local.high]
    };
    assert_eq!(of(child), [0, 1, 0, 1]);
    assert_eq!(of(parent), [1, 1, 1, 0]);
    assert_eq!(of(tree.root()), [1, 1, 0, 0]);
}

#[test]
fn a_charge_above_high_says_so_once_a_batch() {
    let tree = tree(1 << 20);
    let group = tree.child(A, tree.root()).unwrap();
    tree.set_limit(group, Limit::High, 300).unwrap();
    assert_eq!(tree.charge(A, group, 200), Ok(Charged::Within));
    assert_eq!(tree.charge(A, group, 60), Ok(Charged::Within));
    assert_eq!(tree.charge(A, group, 60), Ok(Charged::OverHigh(64)));
    // From the stock.
    assert_eq!(tree.charge(A, group, 4), Ok(Charged::Within));
    let over: std::vec::Vec<(u32, u64)> = tree.over_high(group).collect();
    assert_eq!(over, [(group, 28)]);
    assert_eq!(tree.delay_ns(group, 64), throttle::delay_ns(328, 300, 64));
}

#[test]
fn a_min_over_max_is_refused_either_way() {
    let tree = tree(1 << 20);
    let group = tree.child(A, tree.root()).unwrap();
    tree.set_max(group, 100).unwrap();
    let refused = Err(MinOverMax { min: 101, max: 100 });
    assert_eq!(tree.set_limit(group, Limit::Min, 101), refused);
    tree.set_limit(group, Limit::Min, 100).unwrap();
    assert_eq!(
        tree.set_max(group, 99),
        Err(MinOverMax { min: 100, max: 99 })
    );
    let record = tree.get(group).unwrap();
    assert_eq!((record.limit(Limit::Min), record.max()), (100, 100));
    tree.set_limit(tree.root(), Limit::Min, 1 << 20).unwrap();
    tree.set_max(tree.root(), 1 << 10).unwrap();
}

#[test]
fn a_min_of_all_there_is_takes_a_max_of_all_there_is_whichever_comes_first() {
    let tree = tree(1 << 20);
    let [first, second] = [(); 2].map(|()| tree.child(A, tree.root()).unwrap());
    // As bytes of `u64::MAX` come, in pages.
    let all = u64::MAX >> 12;
    tree.set_max(first, all).unwrap();
    tree.set_limit(first, Limit::Min, all).unwrap();
    tree.set_limit(second, Limit::Min, all).unwrap();
    tree.set_max(second, all).unwrap();
    for group in [first, second].map(|id| tree.get(id).unwrap()) {
        assert_eq!((group.limit(Limit::Min), group.max()), (NO_LIMIT, NO_LIMIT));
    }
}

#[test]
fn a_forced_charge_passes_every_limit_and_is_counted() {
    let tree = tree(1 << 20);
    let parent = tree.child(A, tree.root()).unwrap();
    let child = tree.child(A, parent).unwrap();
    tree.set_max(parent, 10).unwrap();
    tree.charge_forced(A, child, 8);
    assert_eq!(tree.get(child).unwrap().count(Count::Pgforced), 0);
    tree.charge_forced(A, child, 8);
    assert_eq!([usage(&tree, child), usage(&tree, parent)], [16, 16]);
    assert_eq!(tree.get(child).unwrap().count(Count::Pgforced), 8);
    tree.uncharge(A, child, 16);
    tree.drain(tree.root());
    assert_eq!([usage(&tree, child), usage(&tree, parent)], [0, 0]);
}

/// Siblings that use 600 and 300 pages under a parent with a `low` of 300.
fn siblings(lows: [u64; 2]) -> (Tree, [u32; 3]) {
    let tree = tree(1 << 20);
    let parent = tree.child(A, tree.root()).unwrap();
    let children = [600, 300].map(|nr_pages| {
        let child = tree.child(A, parent).unwrap();
        tree.set_max(child, 1 << 19).unwrap();
        tree.charge(A, child, nr_pages).unwrap();
        child
    });
    tree.drain(parent);
    tree.set_limit(parent, Limit::Low, 300).unwrap();
    for (child, low) in children.into_iter().zip(lows) {
        tree.set_limit(child, Limit::Low, low).unwrap();
    }
    (tree, [parent, children[0], children[1]])
}

#[test]
fn siblings_share_their_parents_protection_by_their_claims() {
    let (tree, [parent, big, small]) = siblings([500, 1000]);
    let low = |id| tree.protection(id, tree.root()).low;
    // Claims of 500 and 300 (its usage) on 300.
    assert_eq!([low(parent), low(big), low(small)], [300, 187, 112]);
    // Reclaim for the parent's own limit: its protection is not the children's bound.
    assert_eq!(tree.protection(big, parent).low, 500);
    assert_eq!(tree.protection(parent, parent), Protection::default());
    // What a child gives up goes to the other with the next charge or limit.
    tree.uncharge(B, small, 300);
    tree.drain(small);
    assert_eq!(low(big), 300);
}

#[test]
fn what_no_child_claims_protects_all_in_proportion() {
    let (tree, [_, big, small]) = siblings([0, 0]);
    let low = |id| tree.protection(id, tree.root()).low;
    assert_eq!([low(big), low(small)], [200, 100]);
}

#[test]
fn a_dead_group_protects_nothing() {
    let (tree, [parent, big, small]) = siblings([500, 1000]);
    tree.kill(small);
    let low = |id| tree.protection(id, tree.root()).low;
    assert_eq!([low(parent), low(big)], [300, 300]);
}

#[test]
fn claims_that_cross_are_not_read_as_more_than_all_protection() {
    let parent = Group::default();
    // The later change of a child is added before the earlier one.
    parent.add_claims([(10, 4), (0, 0)]);
    assert_eq!(parent.children_claim(Limit::Min), 0);
    parent.add_claims([(0, 10), (0, 0)]);
    assert_eq!(parent.children_claim(Limit::Min), 4);
}

#[test]
fn a_group_stays_while_somebody_has_statistics_in_hand() {
    let tree = Tree::try_new(2, 1 << 20, StockKind::Atomic).unwrap();
    let child = tree.child(A, tree.root()).unwrap();
    tree.kill(child);
    let taking = tree.in_hand.begin();
    assert_eq!(tree.bury(child), None);
    assert!(tree.get(child).is_some());
    drop(taking);
    assert_eq!(tree.bury(child), Some(0));
}

#[test]
fn where_nothing_is_below_a_group_no_other_one_is_looked_at() {
    let tree = tree(1 << 20);
    let groups: std::vec::Vec<u32> = (0..200)
        .map(|_| tree.child(A, tree.root()).unwrap())
        .collect();
    let group = groups[77];
    assert_eq!(tree.subtree_looks(group), 1);
    assert_eq!(tree.subtree(group).size_hint(), (1, Some(1)));
    let ids = || -> std::vec::Vec<u32> { tree.subtree(group).map(|(id, _)| id).collect() };
    assert_eq!(ids(), [group]);
    let child = tree.child(A, group).unwrap();
    assert_eq!(ids(), [group, child]);
    assert!(tree.subtree_looks(group) > 200);
    tree.kill(child);
    assert_eq!(tree.bury(child), Some(0));
    assert_eq!(tree.subtree_looks(group), 1);
}
