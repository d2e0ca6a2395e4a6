//! Where threads and tasks wait for a frame: a table of condition variables and wakers.

use crate::park;
use crate::shared::locked;
use crate::sleepers::Sleepers;
use pagetide_core::units::Frame;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

const NR_BUCKETS: usize = 64;

/// Tasks that wait, by the number of their frame and a ticket.
type Tasks = BTreeMap<(u32, u64), Waker>;

/// Threads and tasks that wait until a frame changes. For threads frames share buckets: a wake-up
/// may be for another one.
#[derive(Debug)]
pub(crate) struct Waiters {
    buckets: [(Mutex<Tasks>, Sleepers); NR_BUCKETS],
    last_ticket: AtomicU64,
}

/// The place of a task among those who wait for a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    frame: Frame,
    number: u64,
}

impl Ticket {
    fn key(self) -> (u32, u64) {
        (self.frame.number(), self.number)
    }
}

impl Waiters {
    /// Nobody waits.
    pub(crate) fn new() -> Waiters {
        Waiters {
            buckets: std::array::from_fn(|_| Default::default()),
            last_ticket: AtomicU64::new(0),
        }
    }

    fn bucket(&self, frame: Frame) -> (MutexGuard<'_, Tasks>, &Sleepers) {
        let (lock, wakes) = &self.buckets[frame.index() % NR_BUCKETS];
        (locked(lock), wakes)
    }

    /// Parks while `has_to_wait`, which is asked again under the bucket's lock: a wake-up between
    /// the question and the sleep cannot be lost, because waking takes the same lock.
    pub(crate) fn wait_while(&self, frame: Frame, has_to_wait: impl Fn() -> bool) {
        let (mut guard, wakes) = self.bucket(frame);
        while has_to_wait() {
            guard = wakes.sleep(|wakes| wakes.wait(guard));
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
            guard = wakes.sleep(|wakes| wakes.wait_timeout(guard, left)).0;
        }
        true
    }

    /// Has a task woken at the next change of the frame, if it has to wait: asked under the lock,
    /// as by [`Waiters::wait_while`].
    pub(crate) fn register(
        &self,
        frame: Frame,
        waker: &Waker,
        has_to_wait: impl Fn() -> bool,
    ) -> Option<Ticket> {
        // Foreign code: neither copied nor dropped under the lock.
        let waker = waker.clone();
        let number = self.last_ticket.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket { frame, number };
        let (mut tasks, _) = self.bucket(frame);
        if !has_to_wait() {
            drop(tasks);
            return None;
        }
        tasks.insert(ticket.key(), waker);
        Some(ticket)
    }

    /// Has a task not woken any more.
    pub(crate) fn forget(&self, ticket: Ticket) {
        let (mut tasks, _) = self.bucket(ticket.frame);
        let waker = tasks.remove(&ticket.key());
        drop(tasks);
        drop(waker);
    }

    /// Wakes the threads that wait for this frame, which is no foreign code; returns whether tasks
    /// may wait, too, for a caller that wakes those later.
    pub(crate) fn wake_threads(&self, frame: Frame) -> bool {
        let (tasks, wakes) = self.bucket(frame);
        wakes.wake_all(&tasks);
        !tasks.is_empty()
    }

    /// Wakes all who wait for this frame.
    pub(crate) fn wake(&self, frame: Frame) {
        let (mut tasks, wakes) = self.bucket(frame);
        wakes.wake_all(&tasks);
        if tasks.is_empty() {
            return;
        }
        let number = frame.number();
        let of_frame = tasks.range((number, 0)..=(number, u64::MAX));
        let tickets: Vec<_> = of_frame.map(|(&ticket, _)| ticket).collect();
        let wakers = tickets.iter().filter_map(|ticket| tasks.remove(ticket));
        let wakers: Vec<Waker> = wakers.collect();
        drop(tasks);
        park::to_each(wakers, Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::park::tests::Counted;
    use std::sync::Arc;

    fn count(counted: &Counted) -> u32 {
        counted.nr_wakes()
    }

    #[test]
    fn a_task_is_woken_once_by_its_own_frame() {
        let waiters = Waiters::new();
        let [task, other] = [(); 2].map(|()| Arc::new(Counted::default()));
        // Frames of one bucket.
        let [frame, beside] = [5, 69].map(Frame::new);
        assert!(
            waiters
                .register(frame, &Arc::clone(&task).into(), || true)
                .is_some()
        );
        assert!(
            waiters
                .register(beside, &Arc::clone(&other).into(), || true)
                .is_some()
        );
        assert!(
            waiters
                .register(frame, &Arc::clone(&task).into(), || false)
                .is_none()
        );
        waiters.wake(frame);
        waiters.wake(frame);
        assert_eq!((count(&task), count(&other)), (1, 0));
        let again = waiters.register(frame, &Arc::clone(&task).into(), || true);
        waiters.forget(again.unwrap());
        waiters.wake(frame);
        waiters.wake(beside);
        assert_eq!((count(&task), count(&other)), (1, 1));
        assert_eq!(Arc::strong_count(&task), 1, "no waker is kept");
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_asleep() {
        let waiters = Waiters::new();
        let frame = Frame::new(7);
        let bad = Arc::new(Counted::unwinding());
        let good: Vec<_> = (0..3).map(|_| Arc::new(Counted::default())).collect();
        for task in [&good[0], &bad, &good[1], &bad, &good[2]] {
            waiters.register(frame, &Arc::clone(task).into(), || true);
        }
        let wake = std::panic::AssertUnwindSafe(|| waiters.wake(frame));
        assert!(std::panic::catch_unwind(wake).is_err());
        assert!(good.iter().all(|task| count(task) == 1) && count(&bad) == 2);
    }
}
