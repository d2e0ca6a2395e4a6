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
    /// Of which file it is: the same number for all of one.
    fn file(&self) -> usize;

    /// Does it. Whoever waits for it is told also where a store or a waker panics.
    fn run(self);
}

impl Job for Run {
    fn file(&self) -> usize {
        self.of_file()
    }

    fn run(mut self) {
        self.read_now();
    }
}

/// Files have turns, and none has all threads: a store that hangs keeps no other waiting.
struct Queue<J> {
    /// Files with jobs that nobody has begun, whose turn is next first, and the jobs of each.
    files: VecDeque<(usize, VecDeque<J>)>,
    nr_jobs: usize,
    /// The files of jobs that threads have begun.
    begun: Vec<usize>,
    is_over: bool,
}

impl<J: Job> Queue<J> {
    /// The jobs of this one's file, which is made the first or the last where it has none yet.
    fn jobs_beside(&mut self, job: &J, is_first: bool) -> &mut VecDeque<J> {
        self.nr_jobs += 1;
        let file = job.file();
        let at = self.files.iter().position(|&(other, _)| other == file);
        let at = at.unwrap_or_else(|| {
            let at = if is_first { 0 } else { self.files.len() };
            self.files.insert(at, (file, VecDeque::new()));
            at
        });
        &mut self.files[at].1
    }

    fn push_back(&mut self, job: J) {
        self.jobs_beside(&job, false).push_back(job);
    }

    fn push_front(&mut self, job: J) {
        self.jobs_beside(&job, true).push_front(job);
    }

    /// The next job of a file; its next turn comes after the others'.
    fn take(&mut self, is_wanted: impl Fn(usize) -> bool) -> Option<J> {
        let mut files = self.files.iter();
        let at = files.position(|&(file, _)| is_wanted(file))?;
        let (file, mut jobs) = self.files.remove(at)?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.files.push_back((file, jobs));
        }
        self.nr_jobs -= 1;
        job
    }

    /// A job that nobody has begun. O(jobs).
    fn take_one(&mut self, is_it: impl Fn(&J) -> bool) -> Option<J> {
        let mut files = self.files.iter().enumerate();
        let (file, at) =
            files.find_map(|(file, (_, jobs))| Some((file, jobs.iter().position(&is_it)?)))?;
        let jobs = &mut self.files[file].1;
        let job = jobs.remove(at);
        if jobs.is_empty() {
            self.files.remove(file);
        }
        self.nr_jobs -= 1;
        job
    }

    /// The next job for a thread.
    fn begin(&mut self) -> Option<J> {
        let begun = mem::take(&mut self.begun);
        let nr_begun = |file| begun.iter().filter(|&&other| other == file).count();
        let job = self.take(|file| nr_begun(file) < MAX_THREADS - 1);
        self.begun = begun;
        self.begun.extend(job.as_ref().map(Job::file));
        job
    }

    fn end(&mut self, file: usize) {
        let at = self.begun.iter().position(|&other| other == file);
        self.begun.swap_remove(at.expect("it was begun"));
    }
}

struct State<J> {
    queue: Mutex<Queue<J>>,
    idle: Sleepers,
}

impl<J: Job> State<J> {
    fn new() -> State<J> {
        let queue = Queue {
            files: VecDeque::new(),
            nr_jobs: 0,
            begun: Vec::new(),
            is_over: false,
        };
        State {
            queue: Mutex::new(queue),
            idle: Sleepers::default(),
        }
    }

    fn work(&self) {
        let mut ended = None;
        while let Some(job) = self.next(ended) {
            ended = Some(job.file());
            piece(|| job.run());
        }
    }

    fn next(&self, ended: Option<usize>) -> Option<J> {
        let mut queue = locked(&self.queue);
        if let Some(file) = ended {
            queue.end(file);
        }
        loop {
            if let Some(job) = queue.begin() {
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
        if self.enqueue(|queue| jobs.into_iter().for_each(|job| queue.push_back(job))) == 0 {
            self.help_with(usize::MAX, |_| true);
        }
    }

    /// Queues a job from within another one: whoever does that looks for more.
    pub(crate) fn queue_from_job(&self, job: J) {
        self.enqueue(|queue| queue.push_back(job));
    }

    /// Does jobs of one file for whoever waits for them, before all that is queued of it. The
    /// caller takes part; what others have begun may go on when it returns.
    pub(crate) fn work_on(&self, jobs: Vec<J>) {
        let Some(file) = jobs.first().map(Job::file) else {
            return;
        };
        let nr_jobs = jobs.len();
        self.enqueue(|queue| {
            let jobs = jobs.into_iter().rev();
            jobs.for_each(|job| queue.push_front(job));
        });
        self.help_with(nr_jobs, |other| other == file);
    }

    /// Queues jobs; returns how many threads there are for them.
    fn enqueue(&self, push: impl FnOnce(&mut Queue<J>)) -> usize {
        let mut queue = locked(&self.state.queue);
        push(&mut queue);
        let nr_idle = self.state.idle.wake_all(&queue);
        let missing = queue.nr_jobs.saturating_sub(nr_idle);
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

    /// Does a job of a file on this thread that nobody has begun; whether there was one.
    pub(crate) fn help(&self, file: usize) -> bool {
        self.help_with(1, |other| other == file)
    }

    /// Does one on this thread where nobody has begun it; whether that is so.
    pub(crate) fn help_with_one(&self, is_it: impl Fn(&J) -> bool) -> bool {
        let job = locked(&self.state.queue).take_one(is_it);
        job.map(Job::run).is_some()
    }

    /// Does so many jobs of these files at most.
    fn help_with(&self, most: usize, is_wanted: impl Fn(usize) -> bool) -> bool {
        let mut has_helped = false;
        let queued = iter::from_fn(|| locked(&self.state.queue).take(&is_wanted));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A job of a file, with its number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Numbered(usize, u32);

    impl Job for Numbered {
        fn file(&self) -> usize {
            self.0
        }

        fn run(self) {}
    }

    #[test]
    fn files_have_turns_none_has_all_threads_and_who_waits_is_first_of_his() {
        let state = State::new();
        let mut queue = locked(&state.queue);
        for job in [Numbered(1, 1), Numbered(1, 2), Numbered(2, 3)] {
            queue.push_back(job);
        }
        queue.push_front(Numbered(1, 0));
        let taken = [(); 4].map(|()| queue.take(|_| true).unwrap().1);
        assert_eq!(taken, [0, 3, 1, 2]);
        assert_eq!((queue.take(|_| true), queue.nr_jobs), (None, 0));
        (0..20).for_each(|number| queue.push_back(Numbered(1, number)));
        let begun = iter::from_fn(|| queue.begin()).count();
        assert_eq!(begun, MAX_THREADS - 1);
        queue.push_back(Numbered(2, 0));
        assert_eq!(queue.begin(), Some(Numbered(2, 0)));
        assert_eq!(queue.begin(), None);
        queue.end(1);
        assert_eq!(queue.begin(), Some(Numbered(1, 15)));
    }
}
