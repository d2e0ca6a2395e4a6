//! Named cases of emptied pageblocks: whose pages go, whose bytes stay, and what is given back.

use super::reserve::{pages, settle};
use super::*;
use crate::alloc::{PAGEBLOCK_PAGES, Pieces};
use crate::group::Limit;
use crate::memory::reach::Reclaimer;
use crate::reclaim::{Batch, MAX_BATCH, ScanControl};

const REGION: u64 = PAGEBLOCK_PAGES as u64;

/// Eight pageblocks full of pages of two groups in turn, and a third group with `nr_bufs`
/// pageblocks of working memory beside them.
pub(super) fn shared_by_two(nr_bufs: u64) -> (Memory, [u32; 3]) {
    let config = Config::for_resident(8 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let groups = [(); 3].map(|()| memory.new_group(CPU.into(), root).unwrap());
    for _ in 0..nr_bufs {
        let order = Order::new(9).unwrap();
        memory.alloc_buf(CPU.into(), groups[2], order).unwrap();
    }
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    for page in 0..(9 - nr_bufs) * REGION {
        let group = groups[usize::from(page % 2 == 1)];
        let (frame, _) = have(&memory, group, key(file, page), Ok(())).unwrap();
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    memory.groups().drain(root);
    (memory, groups)
}

pub(super) fn usage(memory: &Memory, group: u32) -> u64 {
    memory.groups().get(group).unwrap().usage()
}

#[test]
fn a_pageblock_emptied_in_vain_has_nobodys_name() {
    let (memory, [left, right, work]) = shared_by_two(4);
    // More than the pages leave, so pageblocks are emptied and then given back.
    let refused = memory.reserve(CPU.into(), work, pages(6 * REGION));
    let root = memory.groups().root();
    assert_eq!(refused, Err(AllocError::OverLimit { group: root }));
    let order = Order::new(9).unwrap();
    for group in [left, right, left, right] {
        let (_, was_ours) = memory.alloc_buf(CPU.into(), group, order).unwrap();
        assert!(!was_ours, "bytes of two groups in one pageblock");
    }
}

#[test]
fn a_page_larger_than_the_pageblock_is_freed_and_not_kept() {
    let config = Config::for_resident(4 * PAGEBLOCK_PAGES, 1, Policy::Fifo);
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let file = memory.open_mapping(CPU.into(), Order::new(10).unwrap());
    let (frame, _) = have(&memory, root, key(file.unwrap(), 0), Ok(())).unwrap();
    memory.unpin(CPU, frame, &mut Effects::new());
    let lruvec = memory.groups().get(root).unwrap().lruvec();
    let lruvec = memory.lruvecs.get(lruvec).unwrap();
    let (mut batch, mut pieces) = (Batch::default(), Pieces::of(frame, Order::new(9).unwrap()));
    assert_eq!(
        lruvec
            .lock()
            .isolate(memory.frames(), &ScanControl::of(MAX_BATCH), &mut batch),
        1
    );
    let freed = memory.evict((CPU, Reclaimer::Direct), lruvec, &batch, Some(&mut pieces));
    assert_eq!((freed, pieces.has(frame)), (1 << 10, false));
    memory.check();
    assert_eq!(memory.stats().nr_used, 0);
}

#[test]
fn a_groups_own_limit_takes_nothing_of_others() {
    let (memory, [cached, other, _]) = shared_by_two(0);
    let kept = usage(&memory, other);
    let max = usage(&memory, cached);
    memory.set_max(CPU.into(), cached, max).unwrap();
    memory.reserve(CPU.into(), cached, pages(REGION)).unwrap();
    assert_eq!(usage(&memory, other), kept);
    assert!(usage(&memory, cached) <= max);
    settle(&memory);
    assert_eq!(memory.offline_pages(), REGION);
}

#[test]
fn low_keeps_pages_in_mixed_pageblocks_while_others_have_some() {
    let (memory, [kept, other, work]) = shared_by_two(0);
    let low = usage(&memory, kept);
    memory.groups().set_limit(kept, Limit::Low, low).unwrap();
    memory.reserve(CPU.into(), work, pages(2 * REGION)).unwrap();
    settle(&memory);
    assert_eq!(usage(&memory, kept), low);
    assert_eq!(memory.groups().get(kept).unwrap().events().low, 0);
    assert!(usage(&memory, other) > 0);
    // With nothing else left it gives way, and that is counted.
    memory.reserve(CPU.into(), work, pages(4 * REGION)).unwrap();
    settle(&memory);
    assert!(usage(&memory, kept) < low);
    assert!(memory.groups().get(kept).unwrap().events().low > 0);
}

#[test]
fn what_was_emptied_beyond_need_comes_back_into_use() {
    let (memory, [left, right, _]) = shared_by_two(0);
    // Every pageblock is about half free: two or three are emptied for the pages of one.
    memory.set_max(CPU.into(), left, 0).unwrap();
    let max = usage(&memory, right);
    memory.set_max(CPU.into(), right, max).unwrap();
    let before = memory.stats().pgsteal;
    memory.reserve(CPU.into(), right, pages(REGION)).unwrap();
    let evicted = memory.stats().pgsteal - before;
    assert!((REGION..REGION * 3 / 2).contains(&evicted), "{evicted}");
    assert_eq!(settle(&memory), [9]);
    assert_eq!(memory.offline_pages(), REGION);
}
