//! Threads that read, one run at a time each: where io_uring may not be used, and for stores that
//! are no files of the system.

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

/// Threads at most: as many reads as a device of today needs to be busy.
const MAX_THREADS: usize = 16;

#[derive(Default)]
struct Queue {
    runs: VecDeque<Run>,
    is_over: bool,
}

#[derive(Default)]
struct State {
    queue: Mutex<Queue>,
    idle: Sleepers,
}

impl State {
    fn work(&self) {
        while let Some(mut run) = self.next() {
            // The run has ended also where a store or a waker panicked.
            piece(move || run.read_now());
        }
    }

    fn next(&self) -> Option<Run> {
        let mut queue = locked(&self.queue);
        loop {
            if let Some(run) = queue.runs.pop_front() {
                return Some(run);
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
pub(crate) struct Pool {
    state: Arc<State>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// 0: whoever asks reads.
    max_threads: usize,
    isolated: Vec<u32>,
}

impl Pool {
    pub(crate) fn new(has_threads: bool, isolated: Vec<u32>) -> Pool {
        Pool {
            state: Arc::default(),
            threads: Mutex::default(),
            max_threads: if has_threads { MAX_THREADS } else { 0 },
            isolated,
        }
    }

    /// Whether what is queued gets read without whoever queues it.
    pub(crate) fn has_threads(&self) -> bool {
        self.max_threads > 0
    }

    /// Queues runs that nobody waits for. Where no thread can be started for them, they are read
    /// here.
    pub(crate) fn queue(&self, runs: Vec<Run>) {
        if self.enqueue(|queued| queued.extend(runs)) == 0 {
            self.help(usize::MAX);
        }
    }

    /// Reads runs for whoever waits for them, before all that is queued. The caller takes part;
    /// what others have begun may go on when it returns.
    pub(crate) fn read(&self, runs: Vec<Run>) {
        let nr_runs = runs.len();
        self.enqueue(|queued| {
            runs.into_iter()
                .rev()
                .for_each(|run| queued.push_front(run))
        });
        self.help(nr_runs);
    }

    /// Queues runs; returns how many threads there are for them.
    fn enqueue(&self, push: impl FnOnce(&mut VecDeque<Run>)) -> usize {
        let mut queue = locked(&self.state.queue);
        push(&mut queue.runs);
        let nr_idle = self.state.idle.wake_all(&queue);
        let missing = queue.runs.len().saturating_sub(nr_idle);
        drop(queue);
        self.start(missing)
    }

    /// Starts as many threads more, up to the limit; returns how many there are.
    fn start(&self, missing: usize) -> usize {
        let mut threads = locked(&self.threads);
        let room = self.max_threads - threads.len();
        for _ in 0..missing.min(room) {
            let (state, isolated) = (Arc::clone(&self.state), self.isolated.clone());
            let name = format!("pagetide-io-{}", threads.len());
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

    /// Reads on this thread what nobody has begun, so many runs at most; whether there was one.
    pub(crate) fn help(&self, most: usize) -> bool {
        let mut has_helped = false;
        let queued = iter::from_fn(|| locked(&self.state.queue).runs.pop_front());
        park::to_each(queued.take(most), |mut run| {
            has_helped = true;
            run.read_now();
        });
        has_helped
    }

    /// As [`Background::disown`](super::background::Background::disown).
    pub(crate) fn disown(&mut self) {
        let threads = self.threads.get_mut();
        mem::forget(mem::take(threads.unwrap_or_else(PoisonError::into_inner)));
    }

    /// Ends the threads. Nobody has the memory any more, so that nothing is queued.
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
