//! Named cases of requests that are refused whatever goes: they evict nothing.

use super::limits::Told;
use super::reserve::{REGION, full_of_pages, pages, settle};
use super::*;

/// A full memory and whose pages it has; then who asks for more, and whose limit refuses that: the
/// root's, or one further down, of which the same is true.
fn full_under(is_below: bool) -> (Memory, u32, (u32, u32)) {
    let (memory, [cached, work], _) = full_of_pages();
    if !is_below {
        let root = memory.groups().root();
        return (memory, cached, (work, root));
    }
    assert_eq!(memory.set_max(CPU.into(), cached, 8 * REGION), Ok(0));
    (memory, cached, (cached, cached))
}

#[test]
fn more_than_there_can_be_beside_the_memorys_own_evicts_nothing() {
    let (memory, [cached, work], _) = full_of_pages();
    let root = memory.groups().root();
    let before = memory.stats().pgsteal;
    let most = u64::from(memory.content_pages());
    for nr_pages in [most + 1, most + 200] {
        let refused = memory.reserve(CPU.into(), work, pages(nr_pages));
        assert_eq!(refused, Err(AllocError::OverLimit { group: root }));
    }
    assert_eq!(memory.stats().pgsteal, before);
    // A group below has none of them.
    assert_eq!(memory.set_max(CPU.into(), cached, REGION), Ok(0));
    memory.reserve(CPU.into(), cached, pages(REGION)).unwrap();
    memory.unreserve(CPU, cached, pages(REGION));
    let records = memory.groups().nr_record_pages();
    let all = most - u64::from(records);
    memory.reserve(CPU.into(), work, pages(all)).unwrap();
    settle(&memory);
}

#[test]
fn more_than_what_is_reserved_leaves_evicts_nothing() {
    for is_below in [false, true] {
        let (memory, _, (work, over)) = full_under(is_below);
        memory.reserve(CPU.into(), work, pages(3 * REGION)).unwrap();
        settle(&memory);
        let before = memory.stats().pgsteal;
        let refused = Err(AllocError::OverLimit { group: over });
        assert_eq!(memory.reserve(CPU.into(), work, pages(6 * REGION)), refused);
        let order = Order::new(10).unwrap();
        memory.reserve(CPU.into(), work, pages(4 * REGION)).unwrap();
        let large = memory.alloc_buf(CPU.into(), work, order);
        assert_eq!(large.map(drop), refused);
        memory.unreserve(CPU, work, pages(4 * REGION));
        settle(&memory);
        assert!(memory.stats().pgsteal - before <= 4 * REGION + 64);
        // A shrinker may give some of it back, so it is asked, and pages go in vain.
        let told = Told::default();
        let here = Here::new(CPU, &told);
        assert_eq!(memory.reserve(here, work, pages(6 * REGION)), refused);
        assert!(memory.stats().pgsteal - before > 4 * REGION + 64);
        memory.unreserve(CPU, work, pages(3 * REGION));
        memory.reserve(CPU.into(), work, pages(6 * REGION)).unwrap();
        settle(&memory);
    }
}

#[test]
fn more_than_working_memory_leaves_evicts_nothing() {
    for is_below in [false, true] {
        let (memory, cached, (work, over)) = full_under(is_below);
        let order = Order::new(9).unwrap();
        let alloc = || memory.alloc_buf(CPU.into(), work, order);
        let bufs = [(); 4].map(|()| alloc().unwrap().0);
        let before = memory.stats().pgsteal;
        let refused = Err(AllocError::OverLimit { group: over });
        for nr_pages in [5 * REGION, 7 * REGION] {
            assert_eq!(memory.reserve(CPU.into(), work, pages(nr_pages)), refused);
        }
        assert_eq!(memory.stats().pgsteal, before);
        // What is there anyway takes what it can.
        memory.reserve_forced(CPU.into(), work, pages(5 * REGION));
        assert_eq!(memory.stat(cached).file, 0);
        memory.unreserve(CPU, work, pages(5 * REGION));
        bufs.into_iter()
            .for_each(|frame| memory.free_buf(CPU, frame));
        memory.reserve(CPU.into(), work, pages(6 * REGION)).unwrap();
        memory.check();
    }
}

#[test]
fn what_is_too_little_for_a_request_stays_unless_many_groups_would_have_to_be_asked() {
    for nr_groups in [2, 2 * REGION] {
        let (memory, [_, work], _) = full_of_pages();
        let root = memory.groups().root();
        for _ in 2..nr_groups {
            assert!(memory.new_group(CPU.into(), root).is_ok());
        }
        let order = Order::new(8).unwrap();
        while memory.alloc_buf(CPU.into(), work, order).is_ok() {}
        let left = memory.stat(root).file;
        assert_eq!(left > 0, nr_groups == 2, "{left} bytes of pages");
    }
}
