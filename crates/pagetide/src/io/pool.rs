//! Threads that do one job at a time each. Jobs are reads where io_uring may not be used, and of
//! stores that are no files of the system; and syncs that tasks wait for.

use super::run::Run;
use crate::park;
use crate::shared::locked;
use crate::sleepers::Sleepers;
use crate::worker::{keep_off, piece};
use std::collections::VecDeque;
use std::iter;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Threads of one pool at most: as many reads as a device of today needs to be busy.
const MAX_THREADS: usize = 16;

/// What a thread does.
pub(crate) trait Job: Send + 'static {
    /// Does it. Whoever waits for it is told also where a store or a waker panics.
    fn run(self);
}

impl Job for Run {
    fn run(mut self) {
        self.read_now();
    }
}

struct Queue<J> {
    jobs: VecDeque<J>,
    is_over: bool,
}

struct State<J> {
    queue: Mutex<Queue<J>>,
    idle: Sleepers,
}

impl<J: Job> State<J> {
    fn new() -> State<J> {
        let queue = Queue {
            jobs: VecDeque::new(),
            is_over: false,
        };
        State {
            queue: Mutex::new(queue),
            idle: Sleepers::default(),
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            piece(|| job.run());
        }
    }

    fn next(&self) -> Option<J> {
        let mut queue = locked(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.is_over {
                return None;
            }
            queue = self.idle.sleep(|idle| idle.wait(queue));
        }
    }
}

/// The threads, started when there is something to do for them. Told to end when it is dropped, and
/// waited for.
pub(crate) struct Pool<J> {
    name: &'static str,
    state: Arc<State<J>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// 0: whoever asks does it.
    max_threads: usize,
    isolated: Vec<u32>,
}

impl<J: Job> Pool<J> {
    /// Threads of this name, with numbers.
    pub(crate) fn new(name: &'static str, has_threads: bool, isolated: Vec<u32>) -> Pool<J> {
        Pool {
            name,
            state: Arc::new(State::new()),
            threads: Mutex::default(),
            max_threads: if has_threads { MAX_THREADS } else { 0 },
            isolated,
        }
    }

    /// Whether what is queued gets done without whoever queues it.
    pub(crate) fn has_threads(&self) -> bool {
        self.max_threads > 0
    }

    /// Queues jobs that the caller does not wait for. Where no thread can be started for them, they
    /// are done here.
    pub(crate) fn queue(&self, jobs: impl IntoIterator<Item = J>) {
        if self.enqueue(|queued| queued.extend(jobs)) == 0 {
            self.help(usize::MAX);
        }
    }

    /// Queues a job from within another one: whoever does that looks for more.
    pub(crate) fn queue_from_job(&self, job: J) {
        self.enqueue(|queued| queued.push_back(job));
    }

    /// Does jobs for whoever waits for them, before all that is queued. The caller takes part;
    /// what others have begun may go on when it returns.
    pub(crate) fn work_on(&self, jobs: Vec<J>) {
        let nr_jobs = jobs.len();
        self.enqueue(|queued| {
            jobs.into_iter()
                .rev()
                .for_each(|job| queued.push_front(job))
        });
        self.help(nr_jobs);
    }

    /// Queues jobs; returns how many threads there are for them.
    fn enqueue(&self, push: impl FnOnce(&mut VecDeque<J>)) -> usize {
        let mut queue = locked(&self.state.queue);
        push(&mut queue.jobs);
        let nr_idle = self.state.idle.wake_all(&queue);
        let missing = queue.jobs.len().saturating_sub(nr_idle);
        drop(queue);
        self.start(missing)
    }

    /// Starts as many threads more, up to the limit; returns how many there are.
    fn start(&self, missing: usize) -> usize {
        let mut threads = locked(&self.threads);
        let room = self.max_threads - threads.len();
        for _ in 0..missing.min(room) {
            let (state, isolated) = (Arc::clone(&self.state), self.isolated.clone());
            let name = format!("{}-{}", self.name, threads.len());
            let started = std::thread::Builder::new().name(name).spawn(move || {
                keep_off(&isolated);
                state.work();
            });
            match started {
                Ok(thread) => threads.push(thread),
                // The others do it, or whoever asks.
                Err(_) => break,
            }
        }
        threads.len()
    }

    /// Does on this thread what nobody has begun, so many jobs at most; whether there was one.
    pub(crate) fn help(&self, most: usize) -> bool {
        let mut has_helped = false;
        let queued = iter::from_fn(|| locked(&self.state.queue).jobs.pop_front());
        park::to_each(queued.take(most), |job| {
            has_helped = true;
            job.run();
        });
        has_helped
    }

    /// As [`Background::disown`](super::background::Background::disown).
    pub(crate) fn disown(&mut self) {
        let threads = self.threads.get_mut();
        mem::forget(mem::take(threads.unwrap_or_else(PoisonError::into_inner)));
    }

    /// Ends the threads. Nobody has the memory any more, so that no read is queued; and syncs that
    /// are do nothing.
    pub(crate) fn end(&mut self) {
        let mut queue = locked(&self.state.queue);
        queue.is_over = true;
        self.state.idle.wake_all(&queue);
        drop(queue);
        let me = std::thread::current().id();
        let threads = mem::take(&mut *locked(&self.threads));
        for thread in threads
            .into_iter()
            .filter(|thread| thread.thread().id() != me)
        {
            // One that panicked said so itself.
            let _ = thread.join();
        }
    }
}
