//! A condition variable that costs no system call while nobody sleeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, LockResult, MutexGuard, PoisonError};

/// A [`Condvar`] that knows how many sleep: the standard one asks the kernel at each wake-up, and a
/// page that comes in is one, mostly for nobody.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    wakes: Condvar,
    /// Changed by those who hold the mutex.
    nr_asleep: AtomicUsize,
}

impl Sleepers {
    /// Sleeps as `wait` does, which has the guard of the mutex and gives it back.
    pub(crate) fn sleep<R>(&self, wait: impl FnOnce(&Condvar) -> LockResult<R>) -> R {
        self.nr_asleep.fetch_add(1, Ordering::Relaxed);
        let woken = wait(&self.wakes).unwrap_or_else(PoisonError::into_inner);
        self.nr_asleep.fetch_sub(1, Ordering::Relaxed);
        woken
    }

    /// Wakes all who sleep; returns how many. The guard shows that the caller has the mutex:
    /// whoever looked before is counted, whoever looks later sees what has changed.
    pub(crate) fn wake_all<T>(&self, _held: &MutexGuard<'_, T>) -> usize {
        let nr_asleep = self.nr_asleep.load(Ordering::Relaxed);
        if nr_asleep > 0 {
            self.wakes.notify_all();
        }
        nr_asleep
    }
}
