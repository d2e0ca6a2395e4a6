//! Where threads wait for a frame: a table of condition variables.

use pagetide_core::units::Frame;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const NR_BUCKETS: usize = 64;

/// Threads parked until a frame changes. Frames share buckets: a wake-up may be for another one.
#[derive(Debug)]
pub(crate) struct Waiters {
    buckets: [(Mutex<()>, Condvar); NR_BUCKETS],
}

impl Waiters {
    /// Nobody waits.
    pub(crate) fn new() -> Waiters {
        Waiters {
            buckets: std::array::from_fn(|_| Default::default()),
        }
    }

    fn bucket(&self, frame: Frame) -> (MutexGuard<'_, ()>, &Condvar) {
        let (lock, wakes) = &self.buckets[frame.index() % NR_BUCKETS];
        // The mutex guards no data, so a panic under it broke nothing.
        (lock.lock().unwrap_or_else(PoisonError::into_inner), wakes)
    }

    /// Parks while `has_to_wait`, which is asked again under the bucket's lock: a wake-up between
    /// the question and the sleep cannot be lost, because waking takes the same lock.
    pub(crate) fn wait_while(&self, frame: Frame, has_to_wait: impl Fn() -> bool) {
        let (mut guard, wakes) = self.bucket(frame);
        while has_to_wait() {
            guard = wakes.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// [`Waiters::wait_while`] until `deadline`; whether it has not to wait any more.
    pub(crate) fn wait_until(
        &self,
        frame: Frame,
        deadline: Instant,
        has_to_wait: impl Fn() -> bool,
    ) -> bool {
        let (mut guard, wakes) = self.bucket(frame);
        while has_to_wait() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = wakes.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Wakes all who wait for this frame.
    pub(crate) fn wake(&self, frame: Frame) {
        let (_guard, wakes) = self.bucket(frame);
        wakes.notify_all();
    }
}
