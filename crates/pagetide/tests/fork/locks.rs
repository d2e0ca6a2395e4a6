//! Locks that threads of the parent have when it forks.

use crate::{ends_in, in_child};
use pagetide::{ByteSize, Error, File, Group, Memory, Shrinker};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
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

type Writing = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// A write that waits for a pin, or for memory that is pinned.
fn waiting(file: &File, page: u64) -> Writing {
    let file = file.clone();
    let mut write: Writing =
        Box::pin(async move { file.write_at_async(&[1; 4096], page * 4096).await.map(drop) });
    assert!(poll(&mut write).is_pending());
    write
}

fn poll(write: &mut Writing) -> Poll<Result<(), Error>> {
    write.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_child_that_drops_a_task_which_waits_to_write_takes_no_lock() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let group = memory.root().child("web").unwrap();
    let group = group.max(ByteSize::kib(64)).unwrap();
    let data = tempfile::NamedTempFile::new().unwrap();
    data.as_file().set_len(64 * 4096).unwrap();
    let file = memory.open_rw(data.path(), &group).unwrap();
    let pinned: Vec<_> = (0..16).map(|page| file.pin(page).unwrap()).collect();
    let is_over = AtomicBool::new(false);
    let nr_bad = thread::scope(|scope| {
        for page in [0, 40] {
            let (file, is_over) = (&file, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    drop(waiting(file, page));
                }
            });
        }
        let ends = (0..40).map(|number| {
            // Of both kinds.
            let mut write = waiting(&file, number % 2 * 40);
            in_child(|| {
                ends_in(1);
                let told = poll(&mut write);
                drop(write);
                assert!(matches!(told, Poll::Ready(Err(Error::Forked))));
            })
        });
        let nr_bad = ends.filter(|end| end.exit_status() != Some(0)).count();
        is_over.store(true, Ordering::Relaxed);
        nr_bad
    });
    assert_eq!(nr_bad, 0, "of 40 children hang");
    drop(pinned);
}
