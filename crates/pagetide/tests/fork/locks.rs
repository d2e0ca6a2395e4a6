//! Locks that threads of the parent have when it forks.

use crate::{ends_in, in_child};
use pagetide::{ByteSize, Group, Memory, Shrinker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

struct Nothing;

impl Shrinker for Nothing {
    fn count(&self) -> u64 {
        0
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        None
    }
}

/// Children that do what threads of the parent do all the time.
fn forks_beside(work: impl Fn(&Memory, &Group) + Sync) {
    let memory = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = memory.build().unwrap();
    let group = memory.root().child("web").unwrap();
    let is_over = AtomicBool::new(false);
    let nr_bad = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    work(&memory, &group);
                }
            });
        }
        let ends = (0..40).map(|_| {
            in_child(|| {
                ends_in(1);
                work(&memory, &group);
            })
        });
        let nr_bad = ends.filter(|end| end.exit_status() != Some(0)).count();
        is_over.store(true, Ordering::Relaxed);
        nr_bad
    });
    assert_eq!(nr_bad, 0, "of 40 children hang");
}

#[test]
fn a_child_that_declares_a_task_takes_no_lock() {
    forks_beside(|_, group| drop(group.task()));
}

#[test]
fn a_child_that_adds_a_shrinker_takes_no_lock() {
    forks_beside(|_, group| drop(group.add_shrinker(Nothing)));
}

#[test]
fn a_child_that_looks_for_pins_takes_no_lock() {
    forks_beside(|memory, _| drop(memory.pins()));
}
