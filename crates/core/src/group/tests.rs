//! Named cases of charging, limits and stocks.

extern crate std;

use super::*;

const A: Cpu = Cpu::new(0);
const B: Cpu = Cpu::new(1);

fn tree(max: u64) -> Tree {
    Tree::try_new(2, max).unwrap()
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
    tree.set_max(parent, 100);
    tree.charge(A, child, 90).unwrap();
    let root = usage(&tree, tree.root());
    assert_eq!(tree.charge(A, child, 11), Err(OverLimit { group: parent }));
    assert_eq!([usage(&tree, child), usage(&tree, parent)], [90, 90]);
    assert_eq!(usage(&tree, tree.root()), root);
    assert_eq!(tree.get(parent).unwrap().events_max(), 1);
    tree.charge(A, child, 10).unwrap();
}

#[test]
fn no_page_is_refused_while_it_is_stranded_in_a_stock() {
    let tree = tree(1 << 20);
    let group = tree.child(A, tree.root()).unwrap();
    tree.set_max(group, 300);
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
    tree.set_max(group, 2 * 2 * 64 - 1);
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
    assert!(size_of::<Group>() <= 512);
}
