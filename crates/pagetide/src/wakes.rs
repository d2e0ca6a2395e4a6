//! Tasks are woken with no lock of a file: a waker is foreign code, and may run its task at once,
//! which may want that file.

use crate::park;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::task::Waker;

thread_local! {
    static KEPT: Kept = const { Kept::new() };
}

/// What a thread has yet to wake.
struct Kept {
    /// Locks of files that it has.
    nr_locks: Cell<u32>,
    wakers: RefCell<Vec<Waker>>,
}

impl Kept {
    const fn new() -> Kept {
        Kept {
            nr_locks: Cell::new(0),
            wakers: RefCell::new(Vec::new()),
        }
    }
}

/// Wakes tasks, also where a waker panics: now, or as soon as the thread has let go of all files.
pub(crate) fn wake(mut wakers: Vec<Waker>) {
    let keep = |kept: &Kept| {
        if kept.nr_locks.get() > 0 {
            kept.wakers.borrow_mut().append(&mut wakers);
        }
    };
    // A thread that ends has none any more.
    let _ended = KEPT.try_with(keep);
    park::to_each(wakers, Waker::wake);
}

/// Keeps whom the thread is to wake until this is dropped: after the lock of a file. It stays on
/// its thread.
#[derive(Debug)]
pub(crate) struct Later(PhantomData<*const ()>);

impl Later {
    pub(crate) fn begin() -> Later {
        let _ended = KEPT.try_with(|kept| kept.nr_locks.update(|nr| nr + 1));
        Later(PhantomData)
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let end = |kept: &Kept| {
            kept.nr_locks.update(|nr| nr - 1);
            match kept.nr_locks.get() {
                0 => kept.wakers.take(),
                _ => Vec::new(),
            }
        };
        let wakers = KEPT.try_with(end).unwrap_or_default();
        park::to_each(wakers, Waker::wake);
    }
}

/// Until this is dropped, the locks that the thread has do not count: inside foreign code, which
/// may wait for whom it wakes itself.
#[derive(Debug)]
pub(crate) struct Apart {
    nr_locks: u32,
    wakers: Vec<Waker>,
}

impl Apart {
    pub(crate) fn begin() -> Apart {
        let begin = |kept: &Kept| (kept.nr_locks.take(), kept.wakers.take());
        let (nr_locks, wakers) = KEPT.try_with(begin).unwrap_or_default();
        Apart { nr_locks, wakers }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let wakers = std::mem::take(&mut self.wakers);
        let end = |kept: &Kept| {
            kept.nr_locks.set(self.nr_locks);
            kept.wakers.replace(wakers)
        };
        let left = KEPT.try_with(end);
        let left = left.unwrap_or_default();
        debug_assert!(left.is_empty(), "woken with the locks of foreign code");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::park::tests::Counted;
    use std::sync::Arc;

    #[test]
    fn tasks_are_woken_with_the_last_lock_and_at_once_by_foreign_code() {
        let counted = Arc::new(Counted::default());
        let wake_one = || {
            wake(vec![Arc::clone(&counted).into()]);
            counted.nr_wakes()
        };
        assert_eq!(wake_one(), 1);
        let locks = [(); 2].map(|()| Later::begin());
        assert_eq!(wake_one(), 1);
        let apart = Apart::begin();
        assert_eq!(wake_one(), 2);
        let inside = Later::begin();
        assert_eq!(wake_one(), 2);
        drop(inside);
        assert_eq!(counted.nr_wakes(), 3);
        drop(apart);
        assert_eq!(wake_one(), 3);
        let [first, second] = locks;
        drop(first);
        assert_eq!(counted.nr_wakes(), 3);
        drop(second);
        assert_eq!(counted.nr_wakes(), 5);
    }
}
