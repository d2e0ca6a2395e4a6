//! Named cases of pages that come in while others have their lruvec's lock.

use super::*;
use crate::reclaim::LruvecRecord;
use crate::sync::{nr_locks, rank};
use std::thread;

/// The lruvec of a group's page, which stays.
fn lruvec(memory: &Memory, group: u32, file: u32) -> &LruvecRecord {
    let (frame, _) = have(memory, group, key(file, 1000), Ok(())).unwrap();
    memory.unpin(CPU, frame, &mut Effects::new());
    memory.lruvec_at(frame).unwrap()
}

#[test]
fn who_brings_a_page_in_does_not_wait_for_who_has_its_lruvec() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    let lruvec = lruvec(&memory, group, file);
    let record = memory.groups().get(group).unwrap();
    let lists = lruvec.lock();
    lists.open();
    // They end while the lock is held.
    thread::scope(|scope| {
        for cpu in 0..2 {
            let memory = &memory;
            scope.spawn(move || {
                for page in (0..20).filter(|page| page % 2 == cpu) {
                    assert!(touch(memory, group, key(file, page)));
                    assert!(!touch(memory, group, key(file, page)), "it is there");
                }
            });
        }
    });
    assert_eq!(lists.nr_pages(), 1);
    assert_eq!(record.nr_reading(), 20, "until they can be found");
    memory.close_lists(CPU, lists);
    assert_eq!(lruvec.lock().nr_pages(), 21);
    memory.check();
    assert_eq!(record.nr_reading(), 0);
    // All of them can go.
    assert_eq!(memory.reclaim(CPU, group, 64), 21);
    memory.check();
}

#[test]
fn a_page_that_goes_before_it_is_listed_is_freed_when_that_is_seen() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    let lruvec = lruvec(&memory, group, file);
    let record = memory.groups().get(group).unwrap();
    let lists = lruvec.lock();
    lists.open();
    thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(|page| _ = touch(&memory, group, key(file, page))));
    });
    let mut held = Vec::new();
    for page in 0..2 {
        let Found::Pinned(frame) = pin(&memory, key(file, page), Access::Copy) else {
            panic!("it is there");
        };
        held.push(frame);
    }
    thread::scope(|scope| {
        // Takes the lock, and so waits for its end.
        let dropping = scope.spawn(|| {
            (0..2).for_each(|page| {
                memory.discard_page(CPU, key(file, page), &mut Effects::new());
            });
        });
        while memory.is_resident(key(file, 0)) {
            thread::yield_now();
        }
        memory.unpin(CPU, held[0], &mut Effects::new());
        memory.close_lists(CPU, lists);
        dropping.join().unwrap();
    });
    assert_eq!(record.usage(), 3, "the second one is pinned");
    memory.unpin(CPU, held[1], &mut Effects::new());
    assert_eq!(record.usage(), 2);
    memory.check();
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not count")]
fn a_page_that_comes_back_takes_its_lruvecs_lock_once() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    (0..100).for_each(|page| _ = touch(&memory, group, key(file, page)));
    assert!(memory.reclaim(CPU, group, 32) >= 16);
    let back: Vec<u64> = (30..100)
        .filter(|&page| !memory.is_resident(key(file, page)))
        .collect();
    let before = workingset_counts(&memory, group);
    let nr_taken = || nr_locks(rank::LRUVEC).unwrap();
    let taken = nr_taken();
    back[..16]
        .iter()
        .for_each(|&page| _ = touch(&memory, group, key(file, page)));
    assert_eq!(nr_taken() - taken, 16);
    let after = workingset_counts(&memory, group);
    assert_eq!(after[0] - before[0], 16, "they came back");
}
