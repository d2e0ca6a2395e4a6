//! Named cases of tables, words and locks.

use super::table::{FIRST_CHUNK, chunk_of};
use super::*;
use std::sync::Barrier;

/// Does something while `nr` other threads hold what `hold` gives each of them.
pub(crate) fn beside_holders<H, T>(
    nr: usize,
    hold: impl Fn() -> Option<H> + Sync,
    work: impl FnOnce() -> T,
) -> T {
    let (here, over) = (Barrier::new(nr + 1), Barrier::new(nr + 1));
    std::thread::scope(|scope| {
        for _ in 0..nr {
            scope.spawn(|| {
                let held = loop {
                    if let Some(held) = hold() {
                        break held;
                    }
                };
                here.wait();
                over.wait();
                drop(held);
            });
        }
        here.wait();
        let done = work();
        over.wait();
        done
    })
}

#[test]
fn chunks_cover_all_numbers_once() {
    let mut at = (0, 0);
    for number in 0..10_000 {
        assert_eq!(chunk_of(number), at);
        at.1 += 1;
        if at.1 == crate::units::index(FIRST_CHUNK << at.0) {
            at = (at.0 + 1, 0);
        }
    }
}

#[test]
fn a_stale_id_finds_nothing() {
    let table: Table<AtomicU32> = Table::new();
    let set = |value| move |_: u32, slot: &AtomicU32| slot.store(value, Ordering::Relaxed);
    let first = table.insert(|_| true, set(7)).unwrap();
    let second = table.insert(|_| true, set(8)).unwrap();
    assert_eq!(table.get(first).unwrap().load(Ordering::Relaxed), 7);
    table.remove(first);
    assert!(table.get(first).is_none());
    let third = table.insert(|_| true, set(9)).unwrap();
    assert!(third != first && table.get(first).is_none());
    assert_eq!(
        table.iter().map(|(id, _)| id).collect::<Vec<_>>(),
        [third, second]
    );
}

#[test]
fn a_refused_charge_leaves_the_table_as_it_was() {
    let table: Table<AtomicU32> = Table::new();
    assert!(table.insert(|_| false, |_, _| ()).is_err());
    let ids: Vec<u32> = (0..100)
        .map(|_| table.insert(|_| true, |_, _| ()).unwrap())
        .collect();
    assert_eq!(table.iter().count(), 100);
    ids.into_iter().for_each(|id| table.remove(id));
    assert_eq!(table.iter().count(), 0);
}

#[test]
fn a_brief_hold_excludes_others_until_it_opens() {
    let lock = SpinLock::<u32, { rank::ZONE }>::new(1);
    let mut held = lock.try_brief().unwrap();
    *held += 1;
    assert!(lock.try_brief().is_none() && lock.try_lock().is_none());
    held.open();
    assert_eq!(lock.try_lock().map(|value| *value), Some(2));
}

#[test]
#[should_panic(expected = "a lock of rank 8 is poisoned")]
fn a_brief_hold_that_does_not_open_poisons() {
    let lock = SpinLock::<u32, { rank::ZONE }>::new(1);
    drop(lock.try_brief());
    assert!(lock.try_brief().is_none());
    lock.lock();
}

#[test]
#[should_panic(expected = "index out of bounds: the len is 2 but the index is 2")]
fn a_chunk_beyond_the_words_panics() {
    let words = Words::try_new(10).unwrap();
    assert_eq!(words.chunk::<4>(1).len(), 4);
    _ = words.chunk::<4>(2);
}

#[test]
fn words_start_on_a_line() {
    let words = Words::try_new(100).unwrap();
    assert_eq!(std::ptr::from_ref(&words[0]).addr() % 64, 0);
    assert!((0..100).all(|word| words[word].load(Ordering::Relaxed) == 0));
}

#[test]
#[should_panic(expected = "poisoned")]
fn unwinding_poisons() {
    let lock: SpinLock<u32, { rank::ZONE }> = SpinLock::new(1);
    let unwound = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let _guard = lock.lock();
        panic!("on purpose");
    }));
    assert!(unwound.is_err());
    drop(lock.lock());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "taken under")]
fn a_lower_rank_under_a_higher_one_panics() {
    let zone: SpinLock<u32, { rank::ZONE }> = SpinLock::new(1);
    let index: SpinLock<u32, { rank::INDEX }> = SpinLock::new(1);
    let _zone = zone.lock();
    let _index = index.lock();
}

#[test]
fn a_destructor_that_locks_during_unwinding_poisons_nothing() {
    struct Locks<'a>(&'a SpinLock<u32, { rank::ZONE }>);
    impl Drop for Locks<'_> {
        fn drop(&mut self) {
            *self.0.lock() += 1;
        }
    }
    let lock = SpinLock::new(1);
    let unwound = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let _locks = Locks(&lock);
        panic!("on purpose");
    }));
    assert!(unwound.is_err());
    assert_eq!(*lock.lock(), 2);
}
