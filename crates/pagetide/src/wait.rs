//! Where threads and tasks wait for a frame: a table of condition variables and wakers.

use crate::park;
use crate::shared::locked;
use crate::sleepers::Sleepers;
use pagetide_core::sync::Waiting;
use pagetide_core::units::Frame;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Instant;

const NR_BUCKETS: usize = 64;

/// Tasks that wait, by the number of their frame and a ticket.
type Tasks = BTreeMap<(u32, u64), Waker>;

/// Those who wait for one of some frames.
#[derive(Debug, Default)]
struct Bucket {
    tasks: Mutex<Tasks>,
    threads: Sleepers,
    /// All of them, and threads that are about to.
    waiting: Waiting,
    /// The frame whose page no writer is to keep readers from, and until when: one gave up. A later
    /// one takes its place.
    readers_turn: Mutex<Option<(Frame, Instant)>>,
}

/// Threads and tasks that wait until a frame changes. For threads frames share buckets: a wake-up
/// may be for another one.
#[derive(Debug)]
pub(crate) struct Waiters {
    buckets: [Bucket; NR_BUCKETS],
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

    fn bucket(&self, frame: Frame) -> &Bucket {
        &self.buckets[frame.index() % NR_BUCKETS]
    }

    /// Parks while `has_to_wait`, which is asked again under the bucket's lock: a wake-up between
    /// the question and the sleep cannot be lost, because waking takes the same lock.
    pub(crate) fn wait_while(&self, frame: Frame, has_to_wait: impl Fn() -> bool) {
        let counted = Waits::begin(self.bucket(frame));
        let Bucket { tasks, threads, .. } = counted.0;
        let mut guard = locked(tasks);
        while has_to_wait() {
            guard = threads.sleep(|wakes| wakes.wait(guard));
        }
    }

    /// [`Waiters::wait_while`] until `deadline`; whether it has not to wait any more.
    pub(crate) fn wait_until(
        &self,
        frame: Frame,
        deadline: Instant,
        has_to_wait: impl Fn() -> bool,
    ) -> bool {
        let counted = Waits::begin(self.bucket(frame));
        let Bucket { tasks, threads, .. } = counted.0;
        let mut guard = locked(tasks);
        while has_to_wait() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            guard = threads.sleep(|wakes| wakes.wait_timeout(guard, left)).0;
        }
        true
    }

    /// A writer gives up: no other one is to keep readers from the page until then.
    pub(crate) fn give_readers(&self, frame: Frame, until: Instant) {
        *locked(&self.bucket(frame).readers_turn) = Some((frame, until));
    }

    /// Whether that is so.
    pub(crate) fn is_turn_of_readers(&self, frame: Frame) -> bool {
        let turn = *locked(&self.bucket(frame).readers_turn);
        turn.is_some_and(|(other, until)| other == frame && Instant::now() < until)
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
        let counted = Waits::begin(self.bucket(frame));
        let mut tasks = locked(&counted.0.tasks);
        if !has_to_wait() {
            drop(tasks);
            return None;
        }
        tasks.insert(ticket.key(), waker);
        drop(tasks);
        // It waits until it is taken out.
        mem::forget(counted);
        Some(ticket)
    }

    /// Has a task not woken any more.
    pub(crate) fn forget(&self, ticket: Ticket) {
        let bucket = self.bucket(ticket.frame);
        let mut tasks = locked(&bucket.tasks);
        let waker = tasks.remove(&ticket.key());
        drop(tasks);
        if waker.is_some() {
            bucket.waiting.end();
        }
    }

    /// Wakes the threads that wait for this frame, which is no foreign code; returns whether tasks
    /// may wait, too, for a caller that wakes those later.
    pub(crate) fn wake_threads(&self, frame: Frame) -> bool {
        let bucket = self.bucket(frame);
        if !bucket.waiting.is_any() {
            return false;
        }
        let tasks = locked(&bucket.tasks);
        bucket.threads.wake_all(&tasks);
        !tasks.is_empty()
    }

    /// Whether somebody may wait for this frame, as the caller has just changed it. Takes no lock.
    #[inline]
    pub(crate) fn are_any(&self, frame: Frame) -> bool {
        self.bucket(frame).waiting.is_any()
    }

    /// Wakes all who wait for this frame. Takes no lock where nobody does.
    pub(crate) fn wake(&self, frame: Frame) {
        if self.are_any(frame) {
            self.wake_some(frame);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_some(&self, frame: Frame) {
        let bucket = self.bucket(frame);
        let mut tasks = locked(&bucket.tasks);
        bucket.threads.wake_all(&tasks);
        if tasks.is_empty() {
            return;
        }
        let number = frame.number();
        let of_frame = tasks.range((number, 0)..=(number, u64::MAX));
        let tickets: Vec<_> = of_frame.map(|(&ticket, _)| ticket).collect();
        let wakers = tickets.iter().filter_map(|ticket| tasks.remove(ticket));
        let wakers: Vec<Waker> = wakers.collect();
        drop(tasks);
        wakers.iter().for_each(|_| bucket.waiting.end());
        park::to_each(wakers, Waker::wake);
    }
}

/// One who waits, until dropped.
struct Waits<'a>(&'a Bucket);

impl<'a> Waits<'a> {
    fn begin(bucket: &'a Bucket) -> Waits<'a> {
        bucket.waiting.begin();
        Waits(bucket)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.end();
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
