//! Reads that go on while nobody waits for them: a ring that all share, and who reaps it.
//!
//! The kernel ends a read on the thread that handed it over, once that one runs or sleeps lightly.
//! Whoever begins one may be about to sleep where it does not, in a sync or a `vfork`, and others
//! would wait for his page as long. So where there is a thread that reaps, it alone hands over;
//! without threads a page comes when who began it goes on.

use super::run::{self, Next, Run};
use super::uring::Ring;
use super::{Counts, note_lost};
use crate::shared::locked;
use crate::worker::{keep_off, piece};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

struct Queue {
    ring: Ring,
    /// Runs that the ring has no room for, or that wait for the thread which hands over.
    waiting: VecDeque<Run>,
}

struct State {
    queue: Mutex<Queue>,
    /// Counts reads that landed, and runs that wait for the thread which hands over.
    event: OwnedFd,
    has_reaper: bool,
    /// The thread that reaps, once it runs.
    reaper: OnceLock<ThreadId>,
    is_over: AtomicBool,
    counts: Arc<Counts>,
    /// The engine's: the kernel allows no ring any more.
    is_lost: Arc<AtomicBool>,
}

/// The shared ring, with the thread that reaps it where there is one.
pub(crate) struct Background {
    state: Arc<State>,
    reaper: Mutex<Option<JoinHandle<()>>>,
}

impl State {
    /// Hands over as much as there is room for. Runs that a broken ring leaves come back.
    fn hand_over(&self, queue: &mut Queue, over: &mut Vec<Run>) {
        self.renew(queue);
        while queue.ring.has_room()
            && let Some(run) = queue.waiting.pop_front()
        {
            if let Err(run) = queue.ring.push(run) {
                over.push(run);
            }
        }
        queue.ring.enter(0);
        self.counts.add_enters(&mut queue.ring);
        if queue.ring.is_broken() {
            note_lost(&self.is_lost, &queue.ring);
            over.extend(queue.ring.take_back());
            over.extend(queue.waiting.drain(..));
        }
    }

    /// Takes another ring for one that was given up because the kernel had no memory.
    fn renew(&self, queue: &mut Queue) {
        let ring = &mut queue.ring;
        let is_spent = ring.is_broken() && !ring.is_refused() && ring.nr_in_flight() == 0;
        if is_spent
            && let Ok(new) = ring.another()
            && new.signal(self.event.as_fd()).is_ok()
        {
            *ring = new;
        }
    }

    /// Whether the calling thread is the one that reaps.
    fn is_reaper(&self) -> bool {
        self.reaper.get() == Some(&thread::current().id())
    }

    /// Whether the calling thread is one that hands over.
    fn hands_over(&self) -> bool {
        !self.has_reaper || self.is_reaper()
    }

    /// Hands over what waits, or has the thread do it that does.
    fn go_on(&self, mut queue: MutexGuard<'_, Queue>, over: &mut Vec<Run>) {
        if self.hands_over() {
            self.hand_over(&mut queue, over);
        } else if !queue.waiting.is_empty() {
            drop(queue);
            self.tell();
        }
    }

    fn submit(&self, runs: Vec<Run>) {
        let mut over = Vec::new();
        let mut queue = locked(&self.queue);
        self.renew(&mut queue);
        match queue.ring.is_broken() {
            true => over = runs,
            false => queue.waiting.extend(runs),
        }
        self.go_on(queue, &mut over);
        over.iter_mut().for_each(Run::read_now);
        run::end(&mut over);
    }

    /// Ends what has landed; whether something had.
    fn reap(&self) -> bool {
        let mut landed = Vec::new();
        let mut queue = locked(&self.queue);
        queue.ring.reap(|run, result| landed.push((run, result)));
        drop(queue);
        let has_landed = !landed.is_empty();
        let (mut ended, mut over) = (Vec::new(), Vec::new());
        let mut again = VecDeque::new();
        for (mut run, result) in landed {
            match run.landed(result) {
                Next::Again => again.push_back(run),
                Next::Over => ended.push(run),
            }
        }
        let mut queue = locked(&self.queue);
        queue.waiting.extend(again);
        self.go_on(queue, &mut over);
        over.iter_mut().for_each(Run::read_now);
        ended.extend(over);
        // Who is woken may wait here until the file's reads have ended.
        run::end(&mut ended);
        has_landed
    }

    /// Wakes the thread.
    fn tell(&self) {
        let _told = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn clear_event(&self) {
        let mut count = [0; 8];
        let _none = rustix::io::read(&self.event, &mut count);
    }

    fn wait(&self, longest: Option<Duration>) {
        let timeout = longest.map(|longest| Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(longest.subsec_nanos()),
        });
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        // Interrupted or not: whoever waits looks again.
        let _ready = poll(&mut fds, timeout.as_ref());
    }

    fn keep_reaping(&self) {
        self.reaper.get_or_init(|| thread::current().id());
        while !self.is_over.load(Ordering::Acquire) {
            self.wait(None);
            self.clear_event();
            piece(|| self.reap());
        }
    }
}

impl Background {
    /// Takes a ring; starts a thread for it that keeps off these CPUs, where there are threads.
    ///
    /// # Errors
    /// What the OS says.
    pub(crate) fn start(
        ring: Ring,
        (counts, is_lost): (Arc<Counts>, Arc<AtomicBool>),
        keeps_off: Option<&[u32]>,
    ) -> io::Result<Background> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.signal(event.as_fd())?;
        let queue = Queue {
            ring,
            waiting: VecDeque::new(),
        };
        let state = Arc::new(State {
            queue: Mutex::new(queue),
            event,
            has_reaper: keeps_off.is_some(),
            reaper: OnceLock::new(),
            is_over: AtomicBool::new(false),
            counts,
            is_lost,
        });
        let mut reaper = None;
        if let Some(isolated) = keeps_off {
            let (state, isolated) = (Arc::clone(&state), isolated.to_vec());
            let thread = thread::Builder::new().name("pagetide-io".to_owned());
            reaper = Some(thread.spawn(move || {
                keep_off(&isolated);
                state.keep_reaping();
            })?);
        }
        Ok(Background {
            state,
            reaper: Mutex::new(reaper),
        })
    }

    /// Begins reads, or queues them where as many are under way as the ring has room for, and where
    /// a thread begins them.
    pub(crate) fn submit(&self, runs: Vec<Run>) {
        self.state.submit(runs);
    }

    /// Ends what has landed; whether something had.
    pub(crate) fn reap(&self) -> bool {
        self.state.reap()
    }

    /// Whether the calling thread is the one that reaps.
    pub(crate) fn is_reaper(&self) -> bool {
        self.state.is_reaper()
    }

    /// Readable since a read landed, until [`Background::clear_event`].
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.state.event.as_fd()
    }

    /// Makes the descriptor wait for the next read: before reaping, so that none is missed.
    pub(crate) fn clear_event(&self) {
        self.state.clear_event();
    }

    /// Sleeps until a read lands, or `longest` is over.
    pub(crate) fn wait(&self, longest: Duration) {
        self.state.wait(Some(longest));
    }

    /// Ends the thread, and waits for it unless it is the calling one.
    pub(crate) fn end(&self) {
        self.state.is_over.store(true, Ordering::Release);
        self.state.tell();
        if let Some(thread) = locked(&self.reaper).take()
            && thread.thread().id() != thread::current().id()
        {
            // If it panicked, it said so itself.
            let _ = thread.join();
        }
    }

    /// In a forked child, which has no such thread: its handle would detach another one.
    pub(crate) fn disown(&mut self) {
        let reaper = self.reaper.get_mut();
        mem::forget(reaper.unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[cfg(test)]
impl Background {
    /// The next system calls for its ring come to these, the last one first.
    pub(super) fn fake(&self, faked: Vec<super::uring::Faked>) {
        locked(&self.state.queue).ring.faked = faked;
    }
}
