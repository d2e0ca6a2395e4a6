//! Stocks of groups whose limits fall while they charge.

use loom::sync::Arc;
use loom::thread;
use pagetide_core::group::{StockKind, Tree};
use pagetide_core::units::Cpu;

#[test]
fn a_charge_beside_a_falling_limit_is_refused_or_seen() {
    loom::model(|| {
        let tree = Arc::new(Tree::try_new(1, 1 << 13, StockKind::None).expect("memory"));
        let group = tree.child(Cpu::new(0), tree.root()).expect("a group");
        let limiter = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                assert_eq!(tree.set_max(group, 5), Ok(()));
                tree.get(group).expect("the group").usage()
            })
        };
        let is_charged = tree.charge(Cpu::new(0), group, 6).is_ok();
        let seen = limiter.join().expect("the limiter does not panic");
        // Who lowers it reclaims what it sees, and says what stays.
        assert!(
            !is_charged || seen == 6,
            "charged {is_charged}, seen {seen}"
        );
        let usage = tree.get(group).expect("the group").usage();
        assert_eq!(usage, if is_charged { 6 } else { 0 });
    });
}

/// A group that becomes exact, or dies, while `work` runs, has no stock afterwards.
fn no_stock_after(limits: fn(&Tree, u32), work: fn(&Tree, u32), live: u64) {
    no_stock_of_after((1 << 13, 2), limits, work, live);
}

/// [`no_stock_after`] under a root of `max` pages, with `nr_pages` charged before.
fn no_stock_of_after(
    (max, nr_pages): (u64, u32),
    limits: fn(&Tree, u32),
    work: fn(&Tree, u32),
    live: u64,
) {
    loom::model(move || {
        let tree = Arc::new(Tree::try_new(1, max, StockKind::Atomic).expect("memory"));
        let group = tree.child(Cpu::new(0), tree.root()).expect("a group");
        tree.charge(Cpu::new(0), group, nr_pages).expect("room");
        tree.drain(group);
        let limiter = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || limits(&tree, group))
        };
        work(&tree, group);
        limiter.join().expect("the limiter does not panic");
        assert_eq!(tree.stocked(group), 0);
        assert_eq!(tree.get(group).expect("the group").usage(), live);
    });
}

#[test]
fn a_group_that_becomes_exact_during_an_uncharge_has_no_stock() {
    let work = |tree: &Tree, group| tree.uncharge(Cpu::new(0), group, 2);
    no_stock_after(
        |tree, group| assert_eq!(tree.set_max(group, 9), Ok(())),
        work,
        0,
    );
}

#[test]
fn a_group_whose_limit_falls_during_an_uncharge_keeps_no_large_block() {
    no_stock_of_after(
        (1 << 16, 200),
        |tree, group| assert_eq!(tree.set_max(group, 1 << 12), Ok(())),
        |tree, group| tree.uncharge(Cpu::new(0), group, 200),
        0,
    );
}

#[test]
fn a_group_that_dies_during_an_uncharge_has_no_stock() {
    let work = |tree: &Tree, group| tree.uncharge(Cpu::new(0), group, 2);
    no_stock_after(|tree, group| tree.kill(group), work, 0);
}

#[test]
fn a_group_that_becomes_exact_during_a_charge_has_no_stock() {
    let work = |tree: &Tree, group| {
        assert!(tree.charge(Cpu::new(0), group, 3).is_ok());
    };
    no_stock_after(
        |tree, group| assert_eq!(tree.set_max(group, 9), Ok(())),
        work,
        5,
    );
}
