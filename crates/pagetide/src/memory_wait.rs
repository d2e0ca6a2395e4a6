//! Waiting for memory of a group: until something in its path comes back, or a deadline.
//!
//! A waiter asks for its memory as everybody does; refused, it queues under the group whose limit
//! refused it, and asks again when woken. Of those under one limit the first alone asks, and who
//! holds something that others may wait for. What comes back is kept for nobody: who does not wait
//! may take it. Who is woken has to ask within [`TURN`], or others ask before.
//!
//! Giving memory back looks at one counter without any fence, so that it costs next to nothing
//! while nobody waits. A wake-up may be lost by that; who waits asks again after [`RETRY`].

mod queue;

use crate::shared::{Shared, locked};
use crate::shrinker;
use crate::stall::Stall;
use crate::{Error, Group, park};
use pagetide_core::group::{Event, Tree};
use pagetide_core::memory::{AllocError, Memory as Core};
use pagetide_core::units::Frame;
use queue::{Queue, Wanted, pages_of};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// After this long who waits asks again without being woken.
const RETRY: Duration = Duration::from_millis(10);
/// After this long who was woken and has not asked stands in nobody's way: a future may be kept and
/// not polled.
const TURN: Duration = Duration::from_secs(1);
/// Limits in turn that one poll is refused by, before it waits.
const MAX_TRIES: u32 = 4;

/// All who wait for memory.
#[derive(Default)]
pub(crate) struct MemoryWaits {
    /// Their number, to be looked at without the lock.
    count: AtomicU32,
    queue: Mutex<Queue>,
}

impl std::fmt::Debug for MemoryWaits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryWaits")
            .field("count", &self.count)
            .finish()
    }
}

impl MemoryWaits {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Entries are inserted and removed at once: a panic under the lock broke nothing.
        locked(&self.queue)
    }

    /// Whether anybody waits. One load.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Wakes those of the firsts that are wanted, with the lock let go: wakers are foreign code.
    fn wake(&self, take: impl FnOnce(&mut Queue, Instant) -> Vec<Waker>) {
        let now = Instant::now();
        let wakers = take(&mut self.lock(), now);
        park::to_each(wakers, Waker::wake);
    }

    /// Wakes whose deadline has come, and lets the firsts ask again. Returns how long until the
    /// next call is due, if one is.
    pub(crate) fn tick(&self, groups: &Tree) -> Option<Duration> {
        if !self.is_any() {
            return None;
        }
        let now = Instant::now();
        let mut queue = self.lock();
        let mut wakers = queue.take_late(now);
        wakers.extend(queue.wake_all(groups, now));
        // Who is late was woken above, or has not been polled since: nothing is to be done for it.
        let driven = queue
            .waiters
            .values()
            .filter(|waiter| waiter.wanted.is_driven && !waiter.wanted.is_late(now));
        let next = driven
            .map(|waiter| waiter.wanted.deadline.saturating_duration_since(now))
            .min();
        let next = next.map(|next| next.min(RETRY));
        queue.next_tick = next.map(|next| now + next);
        drop(queue);
        park::to_each(wakers, Waker::wake);
        next
    }

    /// Queues, or goes over to another limit. Whoever gives memory back from now on sees it, or the
    /// next attempt sees that memory. Returns the ticket, and whether the thread that ticks has to
    /// be told: it sleeps for longer than it may from now on.
    ///
    /// # Errors
    /// The pages that waiters hold under this limit, where only they could end the wait.
    fn enter(
        &self,
        core: &Core,
        ticket: Option<u64>,
        wanted: &Wanted,
        level: u32,
    ) -> Result<(u64, bool), u64> {
        let now = Instant::now();
        let mut queue = self.lock();
        queue.check_stuck(core, (ticket, wanted), level, now)?;
        let ticket = match ticket {
            Some(ticket) => {
                queue.go_over(ticket, level);
                ticket
            }
            None => {
                self.count.fetch_add(1, Ordering::Relaxed);
                queue.enter(wanted.clone(), level)
            }
        };
        let is_to_tell = wanted.is_driven && queue.wants_tick(wanted.deadline, now);
        drop(queue);
        // With the read-modify-writes before `Shared::came_back`, which are barriers on x86: there
        // a wake-up is lost only where the owner of a pin or of working memory looked just before
        // he let it go. To look behind that would cost more than `RETRY`: a fence, and with a pin
        // the memory may be gone.
        fence(Ordering::SeqCst);
        Ok((ticket, is_to_tell))
    }

    fn leave(&self, groups: &Tree, ticket: u64) {
        let Some(left) = self.lock().leave(ticket) else {
            return;
        };
        self.count.fetch_sub(1, Ordering::Relaxed);
        // There may be room for the next one, too.
        if self.is_any() {
            self.wake(|queue, now| queue.wake_behind(groups, now, &left));
        }
    }
}

/// One wait for memory: polled until it has an answer, or dropped.
///
/// Whoever asks for something else than a block (a reservation that grows, say) passes what does
/// that as `attempt`, and says how much it holds meanwhile.
#[derive(Debug)]
pub(crate) struct MemoryWait {
    group: Group,
    wanted: Wanted,
    ticket: Option<u64>,
}

impl Drop for MemoryWait {
    fn drop(&mut self) {
        self.leave();
    }
}

impl MemoryWait {
    /// For `nr_bytes` of a group by an asker that keeps as many bytes of it as `holds` says.
    pub(crate) fn new(
        group: &Group,
        nr_bytes: u64,
        holds: Option<Arc<AtomicU64>>,
        deadline: Instant,
    ) -> Self {
        let wanted = Wanted {
            group: group.id(),
            nr_bytes,
            holds,
            deadline,
            is_driven: false,
        };
        MemoryWait {
            group: group.clone(),
            wanted,
            ticket: None,
        }
    }

    /// The same, for a future.
    pub(crate) fn driven(mut self) -> Self {
        self.wanted.is_driven = true;
        self
    }

    fn leave(&mut self) {
        if self.group.shared().is_forked() {
            return;
        }
        if let Some(ticket) = self.ticket.take() {
            let shared = self.group.shared();
            shared.memory_waits.leave(shared.core.groups(), ticket);
        }
    }

    /// Parks until `attempt` succeeds or is refused for good, or the deadline has come.
    ///
    /// # Errors
    /// As [`MemoryWait::poll`].
    pub(crate) fn block<T>(
        mut self,
        mut attempt: impl FnMut() -> Result<T, AllocError>,
    ) -> Result<T, Error> {
        let (group, deadline) = (self.group.clone(), self.wanted.deadline);
        let mut stall = None;
        park::block(deadline, RETRY, |waker| {
            drop(stall.take());
            let polled = self.poll(waker, &mut attempt);
            stall = polled
                .is_pending()
                .then(|| Stall::begin(group.shared(), group.id()));
            polled
        })
    }

    /// Asks, if it is this one's turn, and queues where a limit refuses. From the deadline on it is
    /// always ready, and asks once more whoever is ahead: that one may not take what came back yet.
    ///
    /// # Errors
    /// [`Error::OverLimit`] where a limit never allows it, [`Error::WouldDeadlock`],
    /// [`Error::TimedOut`], [`Error::SwapOut`], and what else `attempt` says.
    pub(crate) fn poll<T>(
        &mut self,
        waker: &Waker,
        attempt: &mut dyn FnMut() -> Result<T, AllocError>,
    ) -> Poll<Result<T, Error>> {
        self.group.shared().check_process()?;
        let is_over = Instant::now() >= self.wanted.deadline;
        let mut level = self.group.id();
        let mut is_unwritten = false;
        for _ in 0..MAX_TRIES {
            let ahead = self.turn(waker).filter(|_| !is_over);
            let refused = match ahead.filter(|_| self.may_wait()) {
                Some(ahead) => ahead,
                None => match attempt() {
                    Err(
                        error @ (AllocError::OverLimit { group }
                        | AllocError::Unwritten { group }
                        | AllocError::Thrashing { group }),
                    ) if self.may_wait() => {
                        is_unwritten = matches!(error, AllocError::Unwritten { .. });
                        group
                    }
                    done => {
                        self.leave();
                        return Poll::Ready(done.map_err(|error| self.error(error)));
                    }
                },
            };
            level = refused;
            // Refused by a limit that it is queued under, with its waker there all the time.
            if is_over || self.has_asked_under(level) {
                break;
            }
            if let Err(error) = self.queue_under(level) {
                self.leave();
                return Poll::Ready(Err(error));
            }
        }
        if is_over {
            self.leave();
            return Poll::Ready(Err(self.timed_out(level, is_unwritten)));
        }
        Poll::Pending
    }

    /// Leaves the waker and says under which limit another one is ahead; `None`: may ask.
    fn turn(&mut self, waker: &Waker) -> Option<u32> {
        let shared = self.group.shared();
        if self.ticket.is_none() && !shared.memory_waits.is_any() {
            return None;
        }
        let waker = waker.clone();
        let mut queue = shared.memory_waits.lock();
        let waiter = self
            .ticket
            .and_then(|ticket| queue.waiters.get_mut(&ticket));
        // Dropped with the lock let go, as all that is foreign.
        let unused = match waiter {
            Some(waiter) => {
                waiter.woken = None;
                waiter.asker = Some(thread::current().id());
                waiter.waker.replace(waker)
            }
            None => Some(waker),
        };
        let (groups, now) = (shared.core.groups(), Instant::now());
        let behind = queue.behind(groups, now, self.ticket, &self.wanted);
        drop(queue);
        drop(unused);
        behind
    }

    /// It has asked. Whether it is queued under this limit.
    fn has_asked_under(&self, level: u32) -> bool {
        let mut queue = self.group.shared().memory_waits.lock();
        let ticket = self.ticket;
        let waiter = ticket.and_then(|ticket| queue.waiters.get_mut(&ticket));
        waiter.is_some_and(|waiter| {
            waiter.asker = None;
            waiter.level == level
        })
    }

    fn queue_under(&mut self, level: u32) -> Result<(), Error> {
        let shared = self.group.shared();
        let waits = &shared.memory_waits;
        let entered = waits.enter(&shared.core, self.ticket, &self.wanted, level);
        let (ticket, is_to_tell) = entered.map_err(|held_pages| Error::WouldDeadlock {
            group: shared.path_of(level),
            what: "memory",
            asked_pages: self.wanted.nr_pages(),
            held_pages,
            max_pages: shared.core.room_under(level),
            by_file: shared.pinned_by_file(level),
        })?;
        self.ticket = Some(ticket);
        if is_to_tell {
            shared.nudge_worker();
        }
        Ok(())
    }

    /// Whether the limits would ever allow it, and the thread may wait: not inside a shrinker, for
    /// which somebody waits in turn.
    pub(crate) fn may_wait(&self) -> bool {
        let room = self.group.shared().room(self.wanted.group);
        let held = self.wanted.held_bytes();
        let total = pages_of(held.saturating_add(self.wanted.nr_bytes));
        !shrinker::is_shrinking() && total <= room
    }

    fn error(&self, error: AllocError) -> Error {
        let shared = self.group.shared();
        shared.alloc_error(error, self.wanted.group, self.wanted.nr_pages())
    }

    #[cold]
    fn timed_out(&self, level: u32, is_unwritten: bool) -> Error {
        let shared = self.group.shared();
        shared.core.groups().count_event(level, Event::Oom);
        let asked_pages = self.wanted.nr_pages();
        // Pins are not why.
        if is_unwritten && let Some(error) = shared.not_swapped_out(level, asked_pages) {
            return error;
        }
        let (usage_pages, max_pages) = shared.usage_and_max(level);
        Error::TimedOut {
            group: shared.path_of(level),
            what: "memory",
            asked_pages,
            usage_pages,
            max_pages,
            by_file: shared.pinned_by_file(level),
        }
    }
}

impl Shared {
    /// Tells who waits that a block was given back or a page unpinned. A load where nobody waits.
    #[inline]
    pub(crate) fn came_back(&self, frame: Frame) {
        if self.memory_waits.is_any() {
            self.frame_came_back(frame);
        }
    }

    #[cold]
    fn frame_came_back(&self, frame: Frame) {
        if self.core.frames().word(frame).pins() == 0 {
            // The group that had it, or another that took it meanwhile: then a wake-up is lost.
            self.group_came_back(self.core.frames().group(frame));
        }
    }

    /// Tells who waits that memory of a group came back, or that it may have more.
    pub(crate) fn group_came_back(&self, freed: u32) {
        if self.memory_waits.is_any() {
            let groups = self.core.groups();
            self.memory_waits
                .wake(|queue, now| queue.wake_above(groups, now, freed));
        }
    }
}

#[cfg(test)]
mod tests;
