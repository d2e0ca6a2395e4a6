//! Named cases of what reclaim leaves: by `min`, and of large pages.

use super::super::spare::Taken;
use super::*;
use crate::memory::Writes;
use std::cell::Cell;

/// A group of a memory that has room for more, with pages of an order that are dirty or clean.
fn group_with(memory: &Memory, nr_pages: u64, order: u8, is_dirty: bool) -> u32 {
    let root = memory.groups().root();
    let group = memory.new_group(CPU.into(), root).unwrap();
    add_pages(memory, group, nr_pages, order, is_dirty);
    group
}

fn add_pages(memory: &Memory, group: u32, nr_pages: u64, order: u8, is_dirty: bool) {
    let order = Order::new(order).unwrap();
    let file = memory.open_mapping(CPU.into(), order).unwrap();
    for page in 0..nr_pages {
        let (frame, _) = have(memory, group, key(file, page), Ok(())).unwrap();
        if is_dirty {
            memory.set_dirty(frame);
        }
        memory.unpin(CPU, frame, &mut Effects::new());
    }
}

fn resident(memory: &Memory, group: u32) -> u64 {
    memory.stat(group).file / PAGE_BYTES as u64
}

#[test]
fn what_is_in_stocks_is_no_page_that_may_go() {
    for &policy in Policy::ALL {
        let memory = Memory::try_new(Config::for_resident(1 << 16, 2, policy)).unwrap();
        let root = memory.groups().root();
        let group = group_with(&memory, 128, 0, false);
        memory.groups().set_limit(group, Limit::Min, 64).unwrap();
        memory.drain_charges(root);
        for _ in 0..4 {
            memory.reclaim(CPU, root, 64);
        }
        assert_eq!(resident(&memory, group), 64, "{policy}");
        memory.check();
    }
}

#[test]
fn what_one_reclaimer_takes_others_leave() {
    let memory = Memory::try_new(Config::for_resident(1 << 12, 1, Policy::default())).unwrap();
    let root = memory.groups().root();
    let group = group_with(&memory, 100, 0, false);
    memory.groups().set_limit(group, Limit::Min, 30).unwrap();
    memory.drain_charges(root);
    let lruvec = memory.groups().get(group).unwrap().lruvec();
    let lruvec = memory.lruvecs.get(lruvec).unwrap();
    let taken = || Taken::of(&memory, (group, root), true, lruvec);
    let (mut one, mut other, mut third) = (taken(), taken(), taken());
    assert!(one.take(64) && other.take(64) && !third.take(64));
    assert_eq!([one.most, other.most, third.most], [64, 6, 0]);
    assert_eq!(memory.spare(group, root, true), 0);
    one.keep(60);
    assert!(third.take(64) && third.most == 4);
    drop((one, other, third));
    assert_eq!(memory.spare(group, root, true), 70);
}

#[test]
fn what_reclaimers_of_several_levels_take_leaves_what_is_protected_above_them() {
    let memory = Memory::try_new(Config::for_resident(1 << 12, 1, Policy::default())).unwrap();
    let root = memory.groups().root();
    let parent = group_with(&memory, 100, 0, false);
    let child = memory.new_group(CPU.into(), parent).unwrap();
    add_pages(&memory, child, 100, 0, false);
    memory.groups().set_limit(parent, Limit::Min, 136).unwrap();
    memory.drain_charges(root);
    let taken = |group| {
        let lruvec = memory.groups().get(group).unwrap().lruvec();
        Taken::of(
            &memory,
            (group, root),
            true,
            memory.lruvecs.get(lruvec).unwrap(),
        )
    };
    let (mut of_parent, mut of_child) = (taken(parent), taken(child));
    of_parent.take(50);
    of_child.take(50);
    assert!(of_parent.most > 0 && of_child.most > 0);
    assert!(of_parent.most + of_child.most <= 200 - 136);
    drop((of_parent, of_child));
    // None stays taken.
    assert_eq!(memory.spare(parent, root, true), 200 - 136);
    assert_eq!(memory.groups().get(child).unwrap().spare(0), 100);
}

#[test]
fn what_becomes_protected_or_nobodys_before_it_is_taken_stays() {
    let memory = Memory::try_new(Config::for_resident(1 << 16, 1, Policy::default())).unwrap();
    let root = memory.groups().root();
    let group = group_with(&memory, 1, 0, false);
    memory.groups().set_limit(group, Limit::Min, 1000).unwrap();
    memory.drain_charges(root);
    let lruvec = memory.groups().get(group).unwrap().lruvec();
    let lruvec = memory.lruvecs.get(lruvec).unwrap();
    let mut taken = Taken::of(&memory, (group, root), true, lruvec);
    add_pages(&memory, group, 256, 0, false);
    assert!(!taken.take(64) && taken.most == 0);
    // Charged for nobody: in a stock.
    memory.groups().set_limit(group, Limit::Min, 200).unwrap();
    memory.drain_charges(root);
    let mut taken = Taken::of(&memory, (group, root), true, lruvec);
    let before = memory.groups().stocked(group);
    add_pages(&memory, group, 1, 0, false);
    let stocked = memory.groups().stocked(group);
    assert!(stocked > before, "a refill is larger");
    taken.take(1000);
    assert_eq!(taken.most, 258 - 200);
}

#[test]
fn large_pages_of_a_protected_group_go_as_those_of_others() {
    for &policy in Policy::ALL {
        for order in [4, 6, 7, 9] {
            let memory = Memory::try_new(Config::for_resident(1 << 15, 1, policy)).unwrap();
            let root = memory.groups().root();
            let group = group_with(&memory, 8192 >> order, order, false);
            add_pages(&memory, group, 8192, 0, false);
            memory.groups().set_limit(group, Limit::Min, 1).unwrap();
            memory.drain_charges(root);
            let large = || {
                let of_order = |frame: &Frame| memory.frames().block(*frame).0.get() == order;
                let all = (0..memory.frames().len()).map(Frame::new);
                let live = all.filter(|&frame| memory.frames().word(frame).state() == State::Live);
                live.filter(of_order).count() << order
            };
            let (before, mut freed) = (large(), 0);
            while freed < 4096 {
                freed += memory.reclaim(CPU, root, 64);
            }
            assert!(before - large() > 3000, "{policy}, order {order}: {freed}");
            memory.check();
        }
    }
}

#[test]
fn what_siblings_have_in_stocks_takes_no_part_in_what_is_protected_together() {
    for &policy in Policy::ALL {
        let memory = Memory::try_new(Config::for_resident(1 << 16, 2, policy)).unwrap();
        let root = memory.groups().root();
        let parent = memory.new_group(CPU.into(), root).unwrap();
        memory.groups().set_limit(parent, Limit::Min, 64).unwrap();
        let children = [64, 1].map(|nr_pages| {
            let child = memory.new_group(CPU.into(), parent).unwrap();
            memory.drain_charges(root);
            memory.groups().set_limit(child, Limit::Min, 64).unwrap();
            add_pages(&memory, child, nr_pages, 0, false);
            child
        });
        for _ in 0..4 {
            memory.reclaim(CPU, root, 64);
        }
        let left: u64 = children.map(|child| resident(&memory, child)).iter().sum();
        assert!(left >= 64, "{left}, {policy}");
        memory.check();
    }
}

#[test]
fn emptied_blocks_leave_what_is_protected_beside_stocks_and_magazines() {
    let memory = Memory::try_new(Config::for_resident(1 << 14, 2, Policy::default())).unwrap();
    let root = memory.groups().root();
    let group = group_with(&memory, 1000, 0, false);
    memory.drain_charges(root);
    memory.groups().set_limit(group, Limit::Min, 1000).unwrap();
    let alloc = |_| memory.alloc_buf(CPU.into(), group, Order::ZERO).unwrap().0;
    let bufs: Vec<Frame> = (0..700).map(alloc).collect();
    bufs.iter().for_each(|&frame| memory.free_buf(CPU, frame));
    for _ in 0..4 {
        memory.drain_much_of(root);
        memory.reclaim(CPU, root, 64);
        memory.take_used_region(CPU.into(), root);
    }
    assert_eq!(resident(&memory, group), 1000);
}

#[test]
fn a_page_that_is_too_large_hides_none_that_is_not() {
    for &policy in Policy::ALL {
        let memory = Memory::try_new(Config::for_resident(1 << 12, 1, policy)).unwrap();
        let root = memory.groups().root();
        let group = group_with(&memory, 4, 6, false);
        add_pages(&memory, group, 100, 0, false);
        memory.groups().set_limit(group, Limit::Min, 310).unwrap();
        memory.drain_charges(root);
        let mut freed = 0;
        while memory.reclaim(CPU, root, 64) > 0 {
            freed = 356 - resident(&memory, group);
        }
        // All that is not protected: pages of one frame.
        assert_eq!(freed, 46, "{policy}");
        memory.check();
    }
}

#[test]
fn a_page_larger_than_a_batch_goes_where_it_may() {
    for &policy in Policy::ALL {
        let memory = Memory::try_new(Config::for_resident(1 << 13, 1, policy)).unwrap();
        let root = memory.groups().root();
        let group = group_with(&memory, 5, 9, false);
        // A smaller one, which does not go.
        let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
        let (frame, _) = have(&memory, group, key(file, 0), Ok(())).unwrap();
        memory.groups().set_limit(group, Limit::Min, 1500).unwrap();
        memory.drain_charges(root);
        while memory.reclaim(CPU, root, 1) > 0 {}
        assert_eq!(resident(&memory, group), 3 * 512 + 1, "{policy}");
        memory.unpin(CPU, frame, &mut Effects::new());
        memory.check();
    }
}

#[test]
fn what_nobody_has_goes_before_pages_protected_or_not() {
    for min in [0, 500] {
        let memory = Memory::try_new(Config::for_resident(1 << 14, 2, Policy::default())).unwrap();
        let group = group_with(&memory, 500, 0, false);
        memory.groups().set_limit(group, Limit::Min, min).unwrap();
        let alloc = |_| memory.alloc_buf(CPU.into(), group, Order::ZERO).unwrap().0;
        let bufs: Vec<Frame> = (0..300).map(alloc).collect();
        bufs.iter().for_each(|&frame| memory.free_buf(CPU, frame));
        let root = memory.groups().root();
        let nr_freed = memory.reclaim_proactively(CPU.into(), (root, None), 200);
        assert!(nr_freed >= 200, "{nr_freed}");
        assert_eq!(resident(&memory, group), 500);
    }
}

#[test]
fn no_page_goes_in_vain_for_a_block_that_cannot_be_emptied() {
    let memory = Memory::try_new(Config::for_resident(1 << 12, 1, Policy::default())).unwrap();
    let root = memory.groups().root();
    let group = group_with(&memory, 2000, 0, false);
    memory.groups().set_limit(group, Limit::Min, 1990).unwrap();
    memory.drain_charges(root);
    assert!(memory.take_used_region(CPU.into(), root).is_none());
    assert_eq!(resident(&memory, group), 2000);
}

/// Counts the frames of dirty pages that it is offered, and writes them.
#[derive(Debug, Default)]
struct Counting(Cell<u32>);

impl Platform for Counting {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn write_back(&self, writes: &mut Writes<'_>, _nr_pages: u32) {
        while let Some(write) = writes.next() {
            self.0.set(self.0.get() + write.order().nr_pages());
            let memory = writes.memory();
            memory.complete_write(CPU, write, Ok(()), &mut Effects::new());
        }
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

#[test]
fn no_more_is_written_for_a_batch_than_a_batch_of_frames() {
    for &policy in Policy::ALL {
        let memory = Memory::try_new(Config::for_resident(1 << 13, 1, policy)).unwrap();
        let group = group_with(&memory, 64, 6, true);
        let counting = Counting::default();
        let here = Here::new(CPU, &counting);
        assert_eq!(memory.reclaim_proactively(here, (group, None), 64), 64);
        let nr_offered = counting.0.get();
        assert!(nr_offered <= 2 * 64, "{nr_offered} frames, {policy}");
        memory.check();
    }
}
