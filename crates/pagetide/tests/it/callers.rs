//! What callers do meanwhile: hold views, read in an iterator, wake by a waker that unwinds.

use crate::data::numbered_file;
use crate::disk::Disk;
use crate::gate::Gated;
use pagetide::{
    Buf, ByteSize, Error, File, Group, IoEngine, Memory, Order, PAGE_BYTES, Reservation, Shrinker,
};
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: u64 = PAGE_BYTES as u64;

fn file_of(nr_pages: usize) -> (Memory, Disk, File) {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let disk = Disk::of(vec![7; nr_pages * PAGE_BYTES]);
    let store = Box::new(disk.clone());
    let file = memory.open_store(store, "disk", &memory.root());
    (memory, disk, file.unwrap())
}

/// What another thread returns, if it does within a minute.
pub(crate) fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(act()));
    told.recv_timeout(Duration::from_secs(60)).ok()
}

#[test]
fn who_pins_many_pages_gives_up_as_who_pins_one() {
    let (_memory, _disk, file) = file_of(4);
    let view = file.pin_mut(1).unwrap();
    let other = file.clone();
    let began = Instant::now();
    let pinned = in_time(move || other.pin_many(&[0, 1]).map(|pages| pages.len()));
    assert!(
        matches!(pinned, Some(Err(Error::PageBusy { page: 1, .. }))),
        "{pinned:?}"
    );
    assert!(began.elapsed() >= Duration::from_millis(900));
    drop(view);
    assert_eq!(file.pin_many(&[0, 1]).unwrap().len(), 2);
}

#[test]
fn an_iterator_that_reads_what_it_has_prefetched_gets_it() {
    let (_memory, _disk, file) = file_of(64);
    let prefetched = in_time(move || {
        // A chain: each page is read to find the next one.
        let chain = (0..8).inspect(|&page: &u64| {
            if page > 0 {
                file.read_at(&mut [0], (page - 1) * PAGE).unwrap();
            }
        });
        file.prefetch(chain)
    });
    assert!(prefetched.is_some(), "it waits for its own read");
}

#[test]
fn a_prefetch_of_more_numbers_than_it_takes_at_a_time_reads_them_all() {
    let memory = Memory::builder().budget(ByteSize::mib(64));
    let memory = memory.without_thread().build().unwrap();
    let disk = Box::new(Disk::of(vec![7; 700 * PAGE_BYTES]));
    let file = memory.open_store(disk, "disk", &memory.root());
    assert_eq!(file.unwrap().prefetch(0..800), 700);
}

#[test]
fn a_write_that_failed_is_told_after_a_sync_that_could_not_be() {
    let (_memory, disk, file) = file_of(4);
    let other = file.clone();
    file.write_at(&[1], 0).unwrap();
    disk.state().is_full = true;
    assert!(other.flush_range(..).is_err());
    disk.state().is_full = false;
    other.flush_range(..).unwrap();
    // `file` has not been told. Somebody changes a dirty page.
    file.write_at(&[2], PAGE).unwrap();
    let view = file.pin_mut(1).unwrap();
    assert!(matches!(file.sync(), Err(Error::PageBusy { .. })));
    drop(view);
    assert!(matches!(file.sync(), Err(Error::WritebackFailed { .. })));
    file.sync().unwrap();
}

/// A waker that unwinds.
pub(crate) struct Unwinding;

impl Wake for Unwinding {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("a waker that unwinds"));
    }
}

/// Does something that wakes a task which waits for page 0.
fn before_a_waker_that_unwinds(file: &File, act: impl FnOnce()) {
    let file = file.clone();
    let mut task = pin!(file.pin_async(0));
    let waker = Waker::from(Arc::new(Unwinding));
    let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    assert!(catch_unwind(AssertUnwindSafe(act)).is_err());
}

#[test]
fn a_page_is_let_go_where_a_waker_unwinds() {
    let (_memory, _disk, file) = file_of(4);
    let view = file.pin_mut(0).unwrap();
    before_a_waker_that_unwinds(&file, || drop(view.downgrade()));
    let again = file.pin_mut(0).map(drop);
    if again.is_err() {
        // Its close would wait for ever.
        std::mem::forget(file);
    }
    again.unwrap();
}

/// A waker that unwinds as it goes.
struct UnwindsInTheEnd;

impl Wake for UnwindsInTheEnd {
    fn wake(self: Arc<Self>) {}
}

impl Drop for UnwindsInTheEnd {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("a waker that unwinds as it goes"));
    }
}

#[test]
fn a_page_that_is_read_is_let_go_where_its_waker_unwinds_as_it_goes() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.io_engine(IoEngine::Threads).build().unwrap();
    let store = Gated::of(vec![7; 4 * PAGE_BYTES]);
    let file = store.open(&memory, &memory.root());
    let shut = store.reads.shut();
    let mut task = Box::pin(file.pin_async(0));
    let waker = Waker::from(Arc::new(UnwindsInTheEnd));
    let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    // The library has the last one.
    drop(waker);
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(task)));
    assert!(dropped.is_err(), "it keeps the waker");
    drop(shut);
    // As soon as the read has ended.
    let began = Instant::now();
    while !memory.pins().is_empty() && began.elapsed() < Duration::from_secs(10) {
        thread::yield_now();
    }
    assert_eq!(memory.pins(), []);
}

#[test]
fn a_pin_budget_is_given_back_where_a_waker_unwinds() {
    let (memory, _disk, _) = file_of(1);
    let group = memory.root().child("web").unwrap();
    group.set_pin_max(Some(ByteSize(PAGE)));
    let disk = Box::new(Disk::of(vec![7; 4 * PAGE_BYTES]));
    let file = memory.open_store(disk, "d", &group).unwrap();
    let view = file.pin_mut(0).unwrap();
    let mut buf = [0];
    {
        let mut task = pin!(file.read_at_async(&mut buf, 0));
        let waker = Waker::from(Arc::new(Unwinding));
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        assert!(catch_unwind(AssertUnwindSafe(|| drop(view))).is_err());
    }
    file.pin(1).unwrap();
}

#[test]
fn a_file_is_closed_where_somebody_elses_waker_unwinds() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    if memory.io_engine().engine != IoEngine::IoUring {
        return println!("skipped: io_uring: {}", memory.io_engine());
    }
    let [data, others] = [(); 2].map(|()| numbered_file(64));
    let close_after = |wait| {
        let other = memory.open(others.path(), &memory.root()).unwrap();
        let file = memory.open(data.path(), &memory.root()).unwrap();
        let mut task = Box::pin(other.pin_async(7));
        let waker = Waker::from(Arc::new(Unwinding));
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        // Whoever closes it ends the other one's read with its own.
        assert_eq!(file.prefetch([1, 3, 5]), 3);
        // It has landed, too: nobody but the one who closes looks.
        thread::sleep(wait);
        let closed = catch_unwind(AssertUnwindSafe(|| drop(file)));
        drop(task);
        let (again, path) = (memory.clone(), data.path().to_owned());
        let opened = in_time(move || again.open(path, &again.root()).map(|file| file.len()));
        let is_open = matches!(opened, Some(Ok(len)) if len == 64 * PAGE);
        assert!(is_open, "it is closed for ever");
        closed.is_err()
    };
    // Reads take longer where the device has much else to do.
    let waits = [200, 500, 2000, 8000].map(Duration::from_millis);
    let is_told = waits.into_iter().any(close_after);
    assert!(is_told, "the waker was not told of");
}

/// A cache that says whose it is as it gives something up.
struct Says(Reservation);

impl Shrinker for Says {
    fn count(&self) -> u64 {
        self.0.size().as_u64() / PAGE
    }

    fn scan(&self, nr_objects: u64) -> Option<u64> {
        let nr_objects = nr_objects.min(self.count());
        assert_eq!(self.0.group().path(), "/foreign");
        self.0.shrink(ByteSize(nr_objects * PAGE));
        Some(nr_objects)
    }
}

#[test]
fn a_shrinker_asks_for_names_while_a_group_is_made() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let foreign = memory.root().child("foreign").unwrap();
    let held = foreign.reserve(ByteSize(0)).unwrap();
    while held.try_grow(ByteSize(PAGE)).is_ok() {}
    let _registered = foreign.add_shrinker(Says(held));
    let root = memory.root();
    let made = in_time(move || {
        let names = (0..100).map(|number| number.to_string());
        let made: Result<Vec<_>, _> = names.map(|name| root.child(&name)).collect();
        made.map(|groups| groups.len())
    });
    // Records of groups take memory, for which the shrinker is asked.
    assert!(matches!(made, Some(Ok(100))), "{made:?}");
}

/// For how long the calling thread has had a CPU.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap());
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

#[test]
fn who_waits_for_what_another_thread_reads_leaves_the_cpu_to_others() {
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = builder.io_engine(IoEngine::Threads).build().unwrap();
    let store = Gated::of(vec![7; PAGE_BYTES]);
    let file = store.open(&memory, &memory.root());
    thread::scope(|scope| {
        let shut = store.reads.shut();
        scope.spawn(|| assert_eq!(file.prefetch([0]), 1));
        shut.await_one();
        let waiter = scope.spawn(|| {
            let before = cpu_time();
            assert_eq!(file.pin(0).unwrap()[9], 7);
            cpu_time() - before
        });
        // Long enough to tell the one from the other.
        thread::sleep(Duration::from_millis(300));
        drop(shut);
        let spent = waiter.join().unwrap();
        assert!(spent < Duration::from_millis(50), "{spent:?} of 300 ms");
    });
}

/// A cache that unwinds where it is asked to give something up.
struct Unwinds;

impl Shrinker for Unwinds {
    fn count(&self) -> u64 {
        1 << 20
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        // Without a word to the panic hook.
        std::panic::resume_unwind(Box::new("a shrinker that unwinds"));
    }
}

#[test]
fn a_block_goes_back_where_what_is_paid_for_another_group_unwinds() {
    type Take = fn(&Group) -> Result<Buf, Error>;
    let takes: [Take; 2] = [
        |group| group.alloc(Order::new(0)),
        |group| group.alloc_unzeroed(Order::new(0)),
    ];
    for take in takes {
        let (memory, _disk, file) = file_of(4);
        let [web, batch] = ["web", "batch"].map(|name| memory.root().child(name).unwrap());
        let batch = batch.max(ByteSize(8 * PAGE)).unwrap();
        let file = file.for_group(&web);
        let _stays = file.pin(1).unwrap();
        web.set_high(ByteSize(PAGE));
        // Who changes a page leaves it to a later call to reclaim for it.
        drop(file.pin_new(0).unwrap());
        let _registered = web.add_shrinker(Unwinds);
        let taken = catch_unwind(AssertUnwindSafe(|| take(&batch).map(drop)));
        assert!(taken.is_err(), "it does not pay");
        assert_eq!(batch.usage(), ByteSize(0));
    }
}

/// Gives up a block where it is told to, and reads a page of a file.
struct Reads {
    blocks: Mutex<Vec<Buf>>,
    is_told: AtomicBool,
    file: File,
}

impl Shrinker for Reads {
    fn count(&self) -> u64 {
        self.is_told.load(Ordering::Relaxed).into()
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        self.file.read_at(&mut [0], 0).unwrap();
        self.blocks.lock().unwrap().pop().map(|_| 1)
    }
}

/// It comes in for somebody else just when there is memory for it, and then another one is to ask.
#[test]
fn a_page_that_was_waited_for_is_let_go_where_the_next_ones_waker_unwinds() {
    let (memory, _disk, file) = file_of(4);
    let full = memory.root().child("full").unwrap();
    let full = full.max(ByteSize(4 * PAGE)).unwrap();
    let reads = Arc::new(Reads {
        blocks: Mutex::new((0..4).map(|_| full.alloc(Order::new(0)).unwrap()).collect()),
        is_told: AtomicBool::new(false),
        file: file.clone(),
    });
    let _registered = full.add_shrinker(Arc::clone(&reads));
    let own = file.for_group(&full);
    {
        let (mut task, mut next) = (pin!(own.pin_async(0)), pin!(own.pin_async(1)));
        let waker = Waker::from(Arc::new(Unwinding));
        let mut idle = Context::from_waker(Waker::noop());
        assert!(task.as_mut().poll(&mut idle).is_pending());
        let polled = next.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        reads.is_told.store(true, Ordering::Relaxed);
        let polled = catch_unwind(AssertUnwindSafe(|| {
            task.as_mut().poll(&mut idle).is_ready()
        }));
        assert!(polled.is_err(), "nobody was woken: {polled:?}");
    }
    let again = file.pin_mut(0).map(drop);
    if again.is_err() {
        // Its close would wait for ever.
        std::mem::forget((file, own, reads));
    }
    again.unwrap();
}
