//! When tasks are woken that wait for something no longer than until then.

use crate::park;
use crate::shared::{Shared, locked};
use pagetide_core::units::Frame;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

/// All alarms that are set: told by the memory's thread, or by who ticks.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    /// Their number, to be looked at without the lock.
    count: AtomicU32,
    last_number: AtomicU64,
    queue: Mutex<BTreeMap<Number, Set>>,
}

/// By when, and which of those.
type Number = (Instant, u64);

/// What one does.
#[derive(Debug)]
struct Set {
    waker: Waker,
    /// Lets pins of this page in again, from which its task keeps them: also where nobody polls
    /// that any more.
    frame: Option<Frame>,
}

/// One that is set, until it is dropped.
#[derive(Debug)]
pub(crate) struct Alarm<'a> {
    shared: &'a Shared,
    number: Number,
}

impl<'a> Alarm<'a> {
    /// Wakes a task by then, unless it is dropped before; ends its wish to keep pins from a page.
    pub(crate) fn set(
        shared: &'a Shared,
        by: Instant,
        waker: &Waker,
        frame: Option<Frame>,
    ) -> Alarm<'a> {
        let alarms = &shared.alarms;
        let number = (by, alarms.last_number.fetch_add(1, Ordering::Relaxed));
        // Foreign code: neither copied nor dropped under the lock.
        let waker = waker.clone();
        let mut queue = locked(&alarms.queue);
        let is_next = queue
            .first_key_value()
            .is_none_or(|(&next, _)| number < next);
        queue.insert(number, Set { waker, frame });
        alarms.count.fetch_add(1, Ordering::Relaxed);
        drop(queue);
        if is_next {
            // It sleeps for longer than it may from now on.
            shared.nudge_worker();
        }
        Alarm { shared, number }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        let alarms = &self.shared.alarms;
        if self.shared.is_forked() {
            // In a child the lock is nobody's.
            return;
        }
        let set = locked(&alarms.queue).remove(&self.number);
        if set.is_some() {
            alarms.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// Wakes who waits for memory and may ask for it again, and who waits no longer than until now;
    /// returns how long until the next call is due, if one is.
    pub(crate) fn wake_due(&self) -> Option<Duration> {
        let retry = self.memory_waits.tick(self.core.groups());
        let alarm = self.tell_alarms();
        retry.into_iter().chain(alarm).min()
    }

    /// Tells whose time has come; returns how long until the next one's has.
    fn tell_alarms(&self) -> Option<Duration> {
        if self.alarms.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let now = Instant::now();
        let mut queue = locked(&self.alarms.queue);
        let later = queue.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut *queue, later);
        let next = queue.first_key_value().map(|(&(by, _), _)| by - now);
        let nr_due = u32::try_from(due.len()).expect("as many as are counted");
        self.alarms.count.fetch_sub(nr_due, Ordering::Relaxed);
        drop(queue);
        park::to_each(due.into_values(), |Set { waker, frame }| {
            if let Some(frame) = frame {
                self.withdraw(frame);
            }
            waker.wake();
        });
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::park::tests::Counted;
    use crate::{ByteSize, Memory};
    use std::sync::Arc;

    fn memory() -> Memory {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        memory.without_thread().build().unwrap()
    }

    #[test]
    fn who_waits_is_woken_once_when_the_time_has_come() {
        let memory = memory();
        let shared = memory.home();
        assert_eq!(shared.tell_alarms(), None);
        let [early, late, gone] = [(); 3].map(|()| Arc::new(Counted::default()));
        let set =
            |counted: &Arc<Counted>, by| Alarm::set(shared, by, &Arc::clone(counted).into(), None);
        let now = Instant::now();
        let hour = Duration::from_secs(3600);
        let alarms = [set(&late, now + hour), set(&early, now)];
        drop(set(&gone, now));
        let next = shared.tell_alarms();
        assert!(next.is_some_and(|next| next <= hour && next > hour / 2));
        let counts = || [&early, &late, &gone].map(|counted| counted.nr_wakes());
        assert_eq!(counts(), [1, 0, 0]);
        shared.tell_alarms();
        assert_eq!(counts(), [1, 0, 0]);
        drop(alarms);
        assert_eq!(shared.tell_alarms(), None);
        assert_eq!(Arc::strong_count(&late), 1, "no waker is kept");
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_asleep() {
        let memory = memory();
        let shared = memory.home();
        let good: Vec<_> = (0..2).map(|_| Arc::new(Counted::default())).collect();
        let bad = Arc::new(Counted::unwinding());
        let now = Instant::now();
        let set =
            |counted: &Arc<Counted>| Alarm::set(shared, now, &Arc::clone(counted).into(), None);
        let _alarms = [&good[0], &bad, &good[1]].map(set);
        let tell = std::panic::AssertUnwindSafe(|| shared.tell_alarms());
        assert!(std::panic::catch_unwind(tell).is_err());
        assert!(good.iter().all(|task| task.nr_wakes() == 1));
    }
}
