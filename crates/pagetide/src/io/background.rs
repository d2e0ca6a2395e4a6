//! Reads that go on while nobody waits for them: a ring that all share, and who reaps it.

use super::run::{self, Next, Run};
use super::uring::Ring;
use super::{Counts, note_lost};
use crate::shared::locked;
use crate::worker::{keep_off, piece};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

struct Queue {
    ring: Ring,
    /// Runs that the ring has no room for.
    waiting: VecDeque<Run>,
}

struct State {
    queue: Mutex<Queue>,
    /// Counts reads that landed.
    event: OwnedFd,
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

    fn submit(&self, runs: Vec<Run>) {
        let mut over = Vec::new();
        let mut queue = locked(&self.queue);
        queue.waiting.extend(runs);
        self.hand_over(&mut queue, &mut over);
        drop(queue);
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
        self.hand_over(&mut queue, &mut over);
        drop(queue);
        over.iter_mut().for_each(Run::read_now);
        ended.extend(over);
        // Who is woken may wait here until the file's reads have ended.
        run::end(&mut ended);
        has_landed
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
            is_over: AtomicBool::new(false),
            counts,
            is_lost,
        });
        let mut reaper = None;
        if let Some(isolated) = keeps_off {
            let (state, isolated) = (Arc::clone(&state), isolated.to_vec());
            let thread = std::thread::Builder::new().name("pagetide-io".to_owned());
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

    /// Begins reads, or queues them where as many are under way as the ring has room for.
    pub(crate) fn submit(&self, runs: Vec<Run>) {
        self.state.submit(runs);
    }

    /// Ends what has landed; whether something had.
    pub(crate) fn reap(&self) -> bool {
        self.state.reap()
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
        let _told = rustix::io::write(&self.state.event, &1_u64.to_ne_bytes());
        if let Some(thread) = locked(&self.reaper).take()
            && thread.thread().id() != std::thread::current().id()
        {
            // If it panicked, it said so itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
impl Background {
    /// The next system calls for its ring come to these, the last one first.
    pub(super) fn fake(&self, faked: Vec<super::uring::Faked>) {
        locked(&self.state.queue).ring.faked = faked;
    }
}
