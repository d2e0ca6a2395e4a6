//! What the stocks cost, counted in read-modify-writes, and what they say of themselves.

use pagetide_core::group::{BATCH, Item, Limit, NR_BYTE_WORDS, NR_SLOTS, StockKind, Tree};
use pagetide_core::sync::nr_rmws;
use pagetide_core::units::{Cpu, PAGE_BYTES};

const A: Cpu = Cpu::new(0);
const B: Cpu = Cpu::new(1);
const ROOM: u64 = 1 << 22;

/// A tree and a group `depth` levels below the root.
fn chain(nr_cpus: u32, depth: u32, kind: StockKind) -> (Tree, u32) {
    let tree = Tree::try_new(nr_cpus, ROOM, kind).expect("memory");
    let below = |parent, _| tree.child(A, parent).expect("a group");
    let id = (0..depth).fold(tree.root(), below);
    // Peaks are where they will be, and no stock holds anything.
    tree.charge(A, id, 1 << 16).expect("room");
    tree.uncharge(A, id, 1 << 16);
    tree.drain(tree.root());
    tree.run_scheduled(A);
    (tree, id)
}

/// Read-modify-writes of `work`.
fn rmws(work: impl FnOnce()) -> u64 {
    let now = || nr_rmws().expect("a debug build counts");
    let before = now();
    work();
    now() - before
}

#[test]
fn a_hit_is_one_read_modify_write_at_any_depth() {
    for (kind, nr) in [
        (StockKind::Atomic, 1),
        (StockKind::Spinlock, 1),
        (StockKind::Scheduled, 0),
    ] {
        for depth in [0, 3, 6] {
            let (tree, id) = chain(2, depth, kind);
            tree.charge(A, id, 1).expect("room");
            assert_eq!(rmws(|| _ = tree.charge(A, id, 1)), nr, "{kind:?}");
            tree.charge_bytes(A, id, 100).expect("room");
            assert_eq!(rmws(|| _ = tree.charge_bytes(A, id, 100)), nr, "{kind:?}");
            assert_eq!(rmws(|| tree.uncharge_bytes(A, id, 100)), nr, "{kind:?}");
            let item = Item::SlabReclaimable;
            assert_eq!(rmws(|| tree.mod_state(A, id, item, 100)), nr, "{kind:?}");
        }
    }
}

#[test]
fn an_uncharge_is_one_with_the_atomic_stock_and_one_a_level_with_the_others() {
    for kind in [
        StockKind::Atomic,
        StockKind::Spinlock,
        StockKind::Scheduled,
        StockKind::None,
    ] {
        let (tree, id) = chain(2, 3, kind);
        tree.charge(A, id, 2).expect("room");
        let nr = if kind == StockKind::Atomic { 1 } else { 4 };
        assert_eq!(rmws(|| tree.uncharge(A, id, 1)), nr, "{kind:?}");
    }
}

#[test]
fn a_charge_costs_the_same_beside_ten_thousand_groups() {
    for kind in [StockKind::Atomic, StockKind::Spinlock, StockKind::None] {
        let (tree, id) = chain(4, 3, kind);
        let both = || {
            let run = |cpu| {
                for nr_pages in [1, 1, 70, 3] {
                    tree.charge(cpu, id, nr_pages).expect("room");
                    tree.charge_bytes(cpu, id, 300).expect("room");
                    tree.uncharge_bytes(cpu, id, 300);
                    tree.uncharge(cpu, id, nr_pages);
                }
            };
            tree.drain(tree.root());
            rmws(|| [A, B].into_iter().for_each(run))
        };
        let alone = both();
        let parent = tree.child(A, tree.root()).expect("a group");
        for _ in 0..10_000 {
            tree.child(A, parent).expect("a group");
        }
        assert_eq!(both(), alone, "{kind:?}");
    }
}

#[test]
fn an_idle_group_costs_at_most_512_bytes_whatever_the_cpus() {
    // Records come in chunks of 32, 64, .. that double: 10,000 groups and the root make nine.
    const MADE: u64 = 32 * ((1 << 9) - 1);
    let cost = |nr_cpus| {
        let tree = Tree::try_new(nr_cpus, ROOM, StockKind::Atomic).expect("memory");
        for _ in 0..10_000 {
            tree.child(A, tree.root()).expect("a group");
        }
        tree.drain(tree.root());
        tree.get(tree.root()).expect("the root").usage() * PAGE_BYTES as u64
    };
    let [few, many] = [1, 128].map(cost);
    assert_eq!(few, many);
    assert!(few <= MADE * 512, "{} bytes a record", few / MADE);
}

#[test]
fn all_stocks_together_hold_at_most_a_64th_of_the_budget() {
    for (nr_cpus, max) in [
        (1, 1 << 13),
        (2, 1 << 13),
        (4, 1 << 14),
        (16, 1 << 16),
        (2, 600),
        (2, 1 << 18),
        (4, 1 << 20),
    ] {
        let tree = Tree::try_new(nr_cpus, max, StockKind::Atomic).expect("memory");
        let groups: Vec<u32> = (0..12)
            .filter_map(|_| tree.child(A, tree.root()).ok())
            .collect();
        let parked = groups.len() as u64 * 4095;
        for &group in &groups {
            for cpu in (0..nr_cpus).map(Cpu::new) {
                tree.charge(cpu, group, 1).expect("room");
                tree.charge_bytes(cpu, group, 1).expect("room");
                for nr_pages in [512, 100, BATCH] {
                    if tree.charge(cpu, group, nr_pages).is_ok() {
                        tree.uncharge(cpu, group, nr_pages);
                    }
                }
            }
            let held = u64::from(tree.stocked(tree.root())) * 4096 + tree.held_bytes(tree.root());
            assert!(
                held <= max / 64 * 4096 + parked,
                "{held} bytes of {max} pages"
            );
        }
    }
}

#[test]
fn a_freed_large_block_pays_for_the_next_with_one_read_modify_write() {
    for depth in [0, 3, 6] {
        let (tree, id) = chain(2, depth, StockKind::Atomic);
        tree.charge_many(A, id, 512).expect("room");
        assert_eq!(tree.stocked(id), 0);
        tree.charge(A, id, 512).expect("room");
        assert_eq!(tree.stocked(id), 3 * 512);
        tree.uncharge_many(A, id, 512);
        assert_eq!(rmws(|| tree.uncharge(A, id, 512)), 1);
        assert_eq!(rmws(|| _ = tree.charge(A, id, 512)), 1);
        tree.uncharge(A, id, 512);
        // Smaller ones, and a batch, find their pages in it; pages do not.
        assert_eq!(rmws(|| _ = tree.charge(A, id, BATCH)), 1);
        assert!(rmws(|| _ = tree.charge(A, id, 1)) > 1);
        tree.drain(tree.root());
        assert_eq!(tree.stocked(id), 0);
        // What many blocks had is nobody's block.
        tree.uncharge_many(A, id, BATCH + 1);
        assert_eq!(tree.stocked(id), 0);
    }
}

#[test]
fn at_a_limit_a_large_block_of_another_cpu_is_taken_by_one_move() {
    let (tree, id) = chain(2, 1, StockKind::Atomic);
    assert_eq!(tree.set_max(id, 1 << 15), Ok(()));
    tree.charge(A, id, 1 << 15).expect("room");
    tree.uncharge(B, id, 256);
    assert_eq!(tree.stocked(id), 256);
    assert_eq!(rmws(|| _ = tree.charge(A, id, 256)), 1);
    assert!(tree.charge(A, id, 1).is_err());
    // And by small charges after a drain.
    tree.uncharge(B, id, 256);
    assert!(tree.charge(A, id, 1).is_ok());
}

#[test]
fn what_is_over_a_limit_is_not_kept_for_large_blocks() {
    let (tree, id) = chain(2, 1, StockKind::Atomic);
    assert_eq!(tree.set_max(id, 1 << 15), Ok(()));
    tree.charge(A, id, 1 << 15).expect("room");
    tree.charge_forced(A, id, 200);
    tree.uncharge(A, id, 200);
    assert_eq!(tree.stocked(id), 0);
    tree.uncharge(A, id, 200);
    assert_eq!(tree.stocked(id), 200);
}

#[test]
fn a_lower_limit_or_high_leaves_no_large_block_in_a_stock() {
    for limit in [Limit::High, Limit::Max] {
        let (tree, id) = chain(2, 1, StockKind::Atomic);
        tree.charge(A, id, 512).expect("room");
        tree.uncharge(A, id, 512);
        assert!(tree.stocked(id) > 0);
        assert_eq!(tree.set_limit(id, limit, 1 << 13), Ok(()));
        assert_eq!(tree.stocked(id), 0);
        tree.charge(A, id, 512).expect("room");
        tree.uncharge(A, id, 512);
        assert_eq!(tree.stocked(id), 0, "{limit:?}");
    }
}

#[test]
fn a_drain_is_one_exchange_a_slot_that_holds_something() {
    for nr_cpus in [1, 8, 128] {
        let (tree, id) = chain(nr_cpus, 2, StockKind::Atomic);
        for cpu in (0..nr_cpus).step_by(2).map(Cpu::new) {
            tree.charge(cpu, id, 1).expect("room");
        }
        let full = u64::from(nr_cpus.div_ceil(2));
        // One walk over three levels for all of them.
        assert_eq!(rmws(|| tree.drain(tree.root())), full + 3);
        assert_eq!(
            (tree.stocked(id), tree.stock_stats().remote_drains),
            (0, full)
        );
        assert_eq!(rmws(|| tree.drain(tree.root())), 0);
    }
}

#[test]
fn a_drain_under_locks_takes_those_of_stocks_that_hold_something() {
    let (tree, id) = chain(8, 2, StockKind::Spinlock);
    for cpu in [0, 3, 7].map(Cpu::new) {
        tree.charge(cpu, id, 1).expect("room");
        tree.charge_bytes(cpu, id, 1).expect("room");
    }
    // A lock each, the bytes parked, the walk (once for the pages, once for two pages of bytes).
    let nr = rmws(|| tree.drain(id));
    assert_eq!(nr, 3 + 3 + 2 * 3 + 3);
    assert_eq!(tree.stock_stats().owner_actions, 0);
    assert_eq!(rmws(|| tree.drain(id)), 0);
}

#[test]
fn a_scheduled_drain_waits_for_each_owner() {
    let (tree, id) = chain(8, 2, StockKind::Scheduled);
    for cpu in (0..8).map(Cpu::new) {
        tree.charge(cpu, id, 1).expect("room");
    }
    let before = tree.stock_stats().owner_actions;
    assert_eq!(rmws(|| tree.drain(id)), 8);
    assert_eq!(tree.stocked(id), 8 * (BATCH - 1));
    // One runs because it charges, the others because they are told to.
    tree.charge(Cpu::new(5), id, BATCH).expect("room");
    assert_eq!(tree.stocked(id), 7 * (BATCH - 1));
    assert_eq!(
        (0..8)
            .filter(|&cpu| tree.run_scheduled(Cpu::new(cpu)))
            .count(),
        7
    );
    assert_eq!(
        (tree.stocked(id), tree.stock_stats().owner_actions - before),
        (0, 8)
    );
}

#[test]
fn a_charge_near_a_limit_is_refused_while_another_owner_holds_the_pages() {
    for (kind, is_refused) in [(StockKind::Scheduled, true), (StockKind::Spinlock, false)] {
        let (tree, id) = chain(2, 1, kind);
        assert_eq!(tree.set_max(id, 300), Ok(()));
        for cpu in [A, B] {
            tree.run_scheduled(cpu);
        }
        tree.charge(B, id, 1).expect("room");
        assert_eq!(tree.charge(A, id, 290).is_err(), is_refused, "{kind:?}");
        tree.run_scheduled(B);
        assert!(tree.charge(A, id, 9).is_ok(), "{kind:?}");
    }
}

#[test]
fn the_stocks_count_what_they_do() {
    let (tree, id) = chain(2, 1, StockKind::Atomic);
    let before = tree.stock_stats();
    for _ in 0..BATCH {
        tree.charge(A, id, 1).expect("room");
    }
    for _ in 0..=BATCH {
        tree.uncharge(B, id, 1);
        tree.charge_bytes(A, id, 40).expect("room");
    }
    let stats = tree.stock_stats();
    let hits = u64::from(BATCH - 1);
    // A page for 65 times 40 bytes: one hit fewer, and a batch of its own.
    assert_eq!(
        (stats.hits - before.hits, stats.byte_hits),
        (hits, u64::from(BATCH))
    );
    assert_eq!(
        (stats.refills - before.refills, stats.trims - before.trims),
        (2, 1)
    );
    assert_eq!(stats.nr_pages, BATCH / 2 + BATCH - 1);
    assert_eq!(stats.nr_bytes, 4096 - 65 * 40);
    tree.drain(tree.root());
    assert_eq!(tree.stock_stats().remote_drains - before.remote_drains, 3);
}

#[test]
fn more_groups_than_slots_do_not_drive_each_other_out_each_time() {
    let (tree, parent) = chain(1, 2, StockKind::Atomic);
    let groups: Vec<u32> = (0..16)
        .map(|_| tree.child(A, parent).expect("a group"))
        .collect();
    let mean = |groups: &[u32]| {
        let pair = |group: &u32| {
            tree.charge(A, *group, 1).expect("room");
            tree.uncharge(A, *group, 1);
        };
        (0..100).for_each(|_| groups.iter().for_each(pair));
        let nr = rmws(|| (0..1000).for_each(|_| groups.iter().for_each(pair)));
        nr as f64 / (1000 * groups.len()) as f64
    };
    assert_eq!(mean(&groups[..1]), 2.0);
    assert_eq!(mean(&groups[..NR_SLOTS]), 2.0);
    let eight = mean(&groups[..8]);
    assert!(eight < 4.0, "{eight} read-modify-writes a pair");
}

#[test]
fn a_group_near_its_limit_does_not_walk_up_each_time() {
    let (tree, id) = chain(2, 3, StockKind::Atomic);
    let straight = rmws(|| (0..64).for_each(|_| _ = tree.charge(A, id, 1)));
    tree.drain(id);
    assert_eq!(tree.set_max(id, 1064), Ok(()));
    tree.charge(B, id, 1000 - 64).expect("room");
    tree.drain(id);
    let near = rmws(|| (0..64).for_each(|_| _ = tree.charge(A, id, 1)));
    assert!(
        near <= 2 * straight,
        "{near} near the limit, {straight} far from it"
    );
}

#[test]
fn at_a_limit_pages_on_another_cpu_are_one_move_away() {
    let (tree, id) = chain(2, 3, StockKind::Atomic);
    assert_eq!(tree.set_max(id, 1000), Ok(()));
    tree.charge(A, id, 1000).expect("room");
    tree.uncharge(B, id, 2);
    assert_eq!(rmws(|| _ = tree.charge(A, id, 1)), 1);
    assert_eq!(tree.stocked(id), 1);
    assert!(tree.charge(A, id, 1).is_ok() && tree.charge(A, id, 1).is_err());
}

#[test]
fn what_is_given_back_above_a_limit_goes_into_no_stock() {
    let (tree, id) = chain(2, 2, StockKind::Atomic);
    assert_eq!(tree.set_max(id, 1000), Ok(()));
    tree.charge(A, id, 1000).expect("room");
    tree.charge_forced(A, id, 5);
    tree.uncharge(A, id, 3);
    tree.uncharge_bytes(A, id, 4096);
    assert_eq!((tree.stocked(id), tree.held_bytes(id)), (0, 0));
    tree.uncharge(A, id, 1);
    // At the limit again; and no longer asked about once a limit was set.
    tree.uncharge(A, id, 1);
    assert_eq!(tree.stocked(id), 1);
    assert_eq!(tree.set_max(id, 2000), Ok(()));
    assert_eq!(rmws(|| tree.uncharge(A, id, 1)), 1);
}

#[test]
fn bytes_beyond_a_line_are_parked_with_their_groups() {
    let (tree, parent) = chain(1, 1, StockKind::Atomic);
    let nr_groups = NR_BYTE_WORDS as u64 + 3;
    let groups: Vec<u32> = (0..nr_groups)
        .map(|_| tree.child(A, parent).expect("a group"))
        .collect();
    for _ in 0..50 {
        for &group in &groups {
            tree.charge_bytes(A, group, 100).expect("room");
        }
    }
    tree.drain(parent);
    let usage = |id| tree.get(id).expect("a group").usage();
    assert_eq!((usage(groups[0]), usage(parent)), (2, 2 * nr_groups));
    assert_eq!(tree.held_bytes(parent), nr_groups * (2 * 4096 - 5000));
    for &group in &groups {
        tree.uncharge_bytes(A, group, 5000);
        tree.kill(group);
        assert_eq!(tree.bury(group), Some(0));
    }
    tree.drain(parent);
    assert_eq!((usage(parent), tree.held_bytes(parent)), (0, 0));
}
