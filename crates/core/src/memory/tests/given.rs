//! Named cases of pages that come in while others have their lruvec's lock.

use super::*;
use crate::reclaim::Lists;
use crate::sync::{nr_locks, rank};
use std::thread;

/// A group that has a page, and somebody who has its lruvec's lock, and takes what others bring.
fn beside_holder(act: impl FnOnce(&Memory, (u32, u32), Lists<'_>)) {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    let (frame, _) = have(&memory, group, key(file, 1000), Ok(())).unwrap();
    memory.unpin(CPU, frame, &mut Effects::new());
    let lists = memory.lruvec_at(frame).unwrap().lock();
    lists.open();
    act(&memory, (group, file), lists);
    memory.check();
}

#[test]
fn who_brings_a_page_in_does_not_wait_for_who_has_its_lruvec() {
    beside_holder(|memory, (group, file), lists| {
        let (record, lruvec) = (memory.groups().get(group).unwrap(), lists.record());
        // They end while the lock is held.
        thread::scope(|scope| {
            for cpu in 0..2 {
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
    });
}

#[test]
fn a_page_that_goes_before_it_is_listed_is_freed_when_that_is_seen() {
    beside_holder(|memory, (group, file), lists| {
        let record = memory.groups().get(group).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|page| _ = touch(memory, group, key(file, page))));
        });
        let mut held = Vec::new();
        for page in 0..2 {
            let Found::Pinned(frame) = pin(memory, key(file, page), Access::Copy) else {
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
    });
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
