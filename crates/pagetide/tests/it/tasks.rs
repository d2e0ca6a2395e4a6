//! Futures: pages and bytes for tasks of any executor.

use crate::data::numbered_file;
use crate::gate::Gate;
use crate::many::{memories, number};
use pagetide::{ByteSize, Error, File, Memory, Page, Store};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An executor of one thread: polls what was woken, drops what it is told to.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: Vec<Option<Task>>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken {
    queue: Mutex<VecDeque<usize>>,
    some: Condvar,
}

struct WakeOne {
    woken: Arc<Woken>,
    task: usize,
}

impl Wake for WakeOne {
    fn wake(self: Arc<WakeOne>) {
        self.woken.queue.lock().unwrap().push_back(self.task);
        self.woken.some.notify_one();
    }
}

impl Executor {
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.woken.queue.lock().unwrap().push_back(self.tasks.len());
        self.tasks.push(Some(Box::pin(task)));
    }

    /// Polls one task that was woken, if one is within `longest`.
    fn poll_one(&mut self, longest: Duration) -> bool {
        let queue = self.woken.queue.lock().unwrap();
        let is_empty = |queue: &mut VecDeque<usize>| queue.is_empty();
        let waited = self.woken.some.wait_timeout_while(queue, longest, is_empty);
        let Some(task) = waited.unwrap().0.pop_front() else {
            return false;
        };
        let woken = Arc::clone(&self.woken);
        let waker = Waker::from(Arc::new(WakeOne { woken, task }));
        if let Some(polled) = &mut self.tasks[task]
            && polled
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
        {
            self.tasks[task] = None;
        }
        true
    }

    fn nr_left(&self) -> usize {
        self.tasks.iter().flatten().count()
    }

    /// Polls until all are over; `tick` is what the program's loop does beside.
    pub(crate) fn run(&mut self, tick: impl Fn()) {
        let begin = Instant::now();
        while self.nr_left() > 0 {
            self.poll_one(Duration::from_millis(1));
            tick();
            let nr_left = self.nr_left();
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "{nr_left} tasks never end"
            );
        }
    }
}

/// Random numbers of one seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

#[test]
fn thousands_of_tasks_get_their_bytes_though_half_are_dropped() {
    let data = numbered_file(1024);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        let group = group.max(ByteSize::mib(3)).unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        let mut random = Random(0x5EED);
        let mut executor = Executor::default();
        let nr_done = Arc::new(AtomicU64::new(0));
        for _ in 0..3000 {
            let page = random.below(1024);
            let (file, done) = (file.clone(), Arc::clone(&nr_done));
            if random.below(2) == 0 {
                executor.spawn(async move {
                    assert_eq!(number(&file.pin_async(page).await.unwrap()), page);
                    done.fetch_add(1, Ordering::Relaxed);
                });
            } else {
                executor.spawn(async move {
                    let mut bytes = vec![0; 3 * 4096];
                    let read = file.read_at_async(&mut bytes, page * 4096).await.unwrap();
                    assert_eq!(read as u64, 4096 * (1024 - page).min(3));
                    for (at, part) in bytes[..read].chunks(4096).enumerate() {
                        assert_eq!(number(part), page + at as u64);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            // Between polls, at random points of their lives.
            for _ in 0..random.below(4) {
                executor.poll_one(Duration::ZERO);
            }
            if random.below(2) == 0 {
                let dropped = random.below(executor.tasks.len() as u64);
                executor.tasks[usize::try_from(dropped).unwrap()] = None;
            }
        }
        executor.run(|| _ = memory.tick());
        assert!(nr_done.load(Ordering::Relaxed) > 1000);
        assert!(group.usage() <= ByteSize::mib(3));
        // Nothing is left pinned: as much as the group may have can be pinned at once.
        let all: Vec<u64> = (0..768).collect();
        let begin = Instant::now();
        let pages = loop {
            match file.pin_many(&all) {
                Ok(pages) => break pages,
                // Reads of dropped tasks may be under way.
                Err(error @ Error::OverLimit { .. }) => assert!(
                    begin.elapsed() < Duration::from_secs(20),
                    "{error}: {:?}, {}",
                    memory.pins(),
                    group.stat()
                ),
                Err(error) => panic!("{error}"),
            }
            memory.tick();
        };
        assert!(pages.iter().zip(&all).all(|(page, &at)| number(page) == at));
    }
}

#[test]
fn an_executor_of_others_runs_them() {
    let data = numbered_file(256);
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let group = memory.root().child("web").unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    let page = futures_executor::block_on(file.pin_async(3)).unwrap();
    assert_eq!(number(&page), 3);
    let mut bytes = vec![0; 300 * 4096];
    let read = futures_executor::block_on(file.read_at_async(&mut bytes, 0)).unwrap();
    assert_eq!(read, 256 * 4096);
    let mut pages = bytes[..read].chunks(4096).enumerate();
    assert!(pages.all(|(at, page)| number(page) == at as u64));
    assert_eq!(memory.stats().bytes_read, 256 * 4096, "each page once");
    let past = futures_executor::block_on(file.pin_async(256)).unwrap_err();
    assert!(matches!(past, Error::PastEnd { page: 256, .. }));
}

#[test]
fn a_task_pins_a_range_as_a_thread_does() {
    let data = numbered_file(256);
    let end = 256 * 4096;
    for memory in memories(16) {
        let file = memory.open(data.path(), &memory.root()).unwrap();
        let region = memory.root().anon(4).unwrap();
        region.write_at(&[3; 200], 4000).unwrap();
        let mut executor = Executor::default();
        executor.spawn(async move {
            for (start, len) in [
                (100, 50),
                (4000, 200),
                (9 * 4096, 30 * 4096),
                (end - 5, 100),
            ] {
                let range = file.pin_range_async(start..start + len).await.unwrap();
                assert_eq!(range.offset(), start);
                assert_eq!(range.len() as u64, len.min(end - start));
                let expected = file.pin_range(start..start + len).unwrap();
                assert!(range.slices().eq(expected.slices()), "{start}");
            }
            assert!(file.pin_range_async(7..7).await.unwrap().is_empty());
            let past = file.pin_range_async(end..).await.unwrap_err();
            assert!(matches!(past, Error::PastEnd { page: 256, .. }), "{past}");
            let range = region.pin_range_async(4000..4200).await.unwrap();
            let lens: Vec<usize> = range.slices().map(<[u8]>::len).collect();
            assert_eq!(lens, [96, 104]);
            assert!(range.slices().flatten().all(|&byte| byte == 3));
        });
        executor.run(|| _ = memory.tick());
    }
}

#[derive(Default)]
pub(crate) struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Flag>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Flag {
    pub(crate) fn is_woken(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

pub(crate) fn poll<F: Future + Unpin>(future: &mut F, flag: &Arc<Flag>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(flag));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

/// Until woken, with ticks.
pub(crate) fn await_wake(memory: &Memory, flag: &Flag) {
    let begin = Instant::now();
    while !flag.is_woken() {
        memory.tick();
        assert!(begin.elapsed() < Duration::from_secs(20), "never woken");
        std::thread::yield_now();
    }
}

/// A store whose reads wait at a gate, fail at page 5, and panic at page 6.
struct Numbered(Gate);

impl Store for Numbered {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.pass();
        let page = offset / 4096;
        assert_ne!(page, 6, "a store that panics");
        if page == 5 {
            return Err(io::Error::from_raw_os_error(5));
        }
        buf.copy_from_slice(&page.to_le_bytes().repeat(512));
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(64 * 4096)
    }
}

/// A file whose reads wait at a gate.
pub(crate) fn gated(memory: &Memory) -> (File, Gate) {
    let gate = Gate::default();
    let group = memory.root().child("gated").unwrap();
    let store = Box::new(Numbered(gate.clone()));
    let file = memory.open_store(store, "gated", &group).unwrap();
    (file, gate)
}

#[test]
fn a_read_outlives_the_task_that_began_it_and_is_shared() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let (file, gate) = gated(&memory);
    let shut = gate.shut();
    let (one, two) = (Arc::default(), Arc::default());
    let mut first = Box::pin(file.pin_async(9));
    let mut second = Box::pin(file.pin_async(9));
    assert!(poll(&mut first, &one).is_pending() && poll(&mut second, &two).is_pending());
    drop(first);
    let reader = {
        let file = file.clone();
        std::thread::spawn(move || number(&file.pin(9).unwrap()))
    };
    drop(shut);
    assert_eq!(reader.join().unwrap(), 9);
    await_wake(&memory, &two);
    let Poll::Ready(Ok(page)) = poll(&mut second, &two) else {
        panic!("it was woken for nothing");
    };
    assert_eq!(number(&page), 9);
    assert!(!one.is_woken(), "who is gone is not woken");
    assert_eq!(gate.nr_came(), 1);
}

#[test]
fn errors_and_panics_of_a_store_reach_the_task() {
    for memory in memories(8) {
        let (file, _gate) = gated(&memory);
        for page in [5, 6] {
            let future = file.pin_async(page);
            let future = std::panic::AssertUnwindSafe(|| futures_executor::block_on(future));
            match std::panic::catch_unwind(future) {
                Ok(failed) => {
                    let is_named = matches!(failed, Err(Error::Io { page: at, .. }) if at == page);
                    assert!(is_named);
                }
                // On this thread, where there is no other.
                Err(_) => assert_eq!(page, 6),
            }
        }
        assert_eq!(
            number(&futures_executor::block_on(file.pin_async(7)).unwrap()),
            7
        );
    }
}

#[test]
fn a_task_waits_for_memory_without_a_thread() {
    let data = numbered_file(64);
    for memory in memories(8) {
        let group = memory.root().child("web").unwrap();
        let group = group.max(ByteSize::kib(16)).unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        let mut pins: Vec<Page> = (0..4).map(|page| file.pin(page).unwrap()).collect();
        let flag = Arc::default();
        let mut future = Box::pin(file.pin_async(9));
        assert!(poll(&mut future, &flag).is_pending());
        pins.pop();
        // Else the memory's thread may be just about to: it lets waiters ask again, now and then.
        assert!(flag.is_woken() || memory.event_fd().is_none());
        let begin = Instant::now();
        let page = loop {
            if let Poll::Ready(page) = poll(&mut future, &flag) {
                break page.unwrap();
            }
            assert!(begin.elapsed() < Duration::from_secs(20));
            memory.tick();
        };
        assert_eq!(number(&page), 9);
        if memory.event_fd().is_none() {
            continue;
        }
        // Nobody lets go: the wait ends by itself. Long, so once.
        let mut late = Box::pin(file.pin_async(10));
        let begin = Instant::now();
        let error = loop {
            if let Poll::Ready(done) = poll(&mut late, &flag) {
                break done.unwrap_err();
            }
            await_wake(&memory, &flag);
        };
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        assert!(begin.elapsed() >= Duration::from_secs(2));
    }
}

#[test]
fn a_task_waits_for_whoever_changes_the_page() {
    let data = numbered_file(8);
    for memory in memories(8) {
        let group = memory.root().child("web").unwrap();
        let file = memory.open_rw(data.path(), &group).unwrap();
        let mut change = file.pin_mut(3).unwrap();
        let flag = Arc::default();
        let mut future = Box::pin(file.pin_async(3));
        assert!(poll(&mut future, &flag).is_pending());
        assert!(file.try_pin(3).unwrap().is_none());
        change.copy_from_slice(&77_u64.to_le_bytes().repeat(512));
        drop(change);
        assert!(flag.is_woken());
        let Poll::Ready(Ok(page)) = poll(&mut future, &flag) else {
            panic!("nobody changes it any more");
        };
        assert_eq!(number(&page), 77);
    }
}

#[test]
fn a_pin_budget_counts_tasks_too() {
    let data = numbered_file(8);
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let group = memory.root().child("web").unwrap();
    group.set_pin_max(Some(ByteSize::kib(4)));
    let file = memory.open(data.path(), &group).unwrap();
    let page = futures_executor::block_on(file.pin_async(1)).unwrap();
    let refused = futures_executor::block_on(file.pin_async(2)).unwrap_err();
    assert!(matches!(refused, Error::PinLimit { .. }));
    drop(page);
    let dropped = Box::pin(file.pin_async(3));
    drop(dropped);
    assert_eq!(group.pin_usage(), ByteSize(0));
    futures_executor::block_on(file.pin_async(3)).unwrap();
}

/// A task that is dropped, with the last handle of its file, by whoever wakes it.
struct Dropped {
    task: Mutex<Option<Task>>,
    is_gone: AtomicBool,
}

impl Wake for Dropped {
    fn wake(self: Arc<Dropped>) {
        drop(self.task.lock().unwrap().take());
        self.is_gone.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_task_may_close_its_file_on_the_thread_that_wakes_it() {
    let data = numbered_file(1024);
    for memory in memories(32) {
        let group = memory.root().child("web").unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        let own = file.clone();
        let dropped = Arc::new(Dropped {
            task: Mutex::new(Some(Box::pin(async move { drop(own.pin_async(50).await) }))),
            is_gone: AtomicBool::new(false),
        });
        let waker = Waker::from(Arc::clone(&dropped));
        let mut task = dropped.task.lock().unwrap();
        let mut context = Context::from_waker(&waker);
        let polled = task.as_mut().unwrap().as_mut().poll(&mut context);
        // Many reads are under way when the last handle goes.
        file.prefetch(100..400);
        drop((file, task));
        let begin = Instant::now();
        while polled.is_pending() && !dropped.is_gone.load(Ordering::SeqCst) {
            memory.tick();
            assert!(begin.elapsed() < Duration::from_secs(20), "never woken");
        }
        drop(dropped.task.lock().unwrap().take());
        assert_eq!(memory.stats().resident_pages, 0, "the file is closed");
        let file = memory.open(data.path(), &group).unwrap();
        assert_eq!(number(&file.pin(7).unwrap()), 7);
    }
}

/// A waker that reads a page before it returns, which was not begun before.
struct Reads {
    file: File,
    page: u64,
    found: mpsc::Sender<u64>,
}

impl Wake for Reads {
    fn wake(self: Arc<Reads>) {
        self.file.prefetch([self.page]);
        let page = self.file.pin(self.page).unwrap();
        self.found.send(number(&page)).unwrap();
    }
}

#[test]
fn a_waker_that_reads_a_page_keeps_neither_itself_nor_others_waiting() {
    let data = numbered_file(64);
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.readahead(ByteSize(0)).build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let (found, reads) = mpsc::channel();
    let waker = Waker::from(Arc::new(Reads {
        file: file.clone(),
        page: 63,
        found,
    }));
    let mut context = Context::from_waker(&waker);
    let mut tasks: Vec<_> = (0..60).map(|page| Box::pin(file.pin_async(page))).collect();
    // Of one whose read ends while it is begun nobody is woken.
    let mut polled = tasks
        .iter_mut()
        .map(|task| task.as_mut().poll(&mut context));
    assert!(polled.any(|polled| polled.is_pending()));
    let found = reads.recv_timeout(Duration::from_secs(30));
    assert_eq!(found, Ok(63), "the waker has not returned");
    file.prefetch([62]);
    assert_eq!(number(&file.pin(62).unwrap()), 62);
}
