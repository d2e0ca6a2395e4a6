//! Writes for tasks of any executor.

use crate::disk::forward;
use crate::gate::{Gate, Gated};
use crate::in_hand::Stacked;
use crate::many::memories;
use crate::slow::{Forgets, PAGE};
use crate::tasks::{Executor, Random};
use futures_executor::block_on;
use pagetide::{ByteSize, Error, File, Hint, Hooks, Memory, OpenOptions, Order, Shrinker, Store};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anybody waits for pins.
const LONGER: Duration = Duration::from_millis(1500);

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn memory() -> Memory {
    Memory::builder().budget(ByteSize::mib(8)).build().unwrap()
}

#[test]
fn bytes_of_tasks_are_where_those_of_threads_would_be() {
    for memory in memories(8) {
        let before: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let gated = Gated::of(before.clone());
        let file = gated.open(&memory, &memory.root());
        let mut expected = before;
        expected.resize(30_000, 0);
        for (start, len, byte) in [(4000, 200, 1), (9_990, 20, 2), (20_000, 10_000, 3)] {
            let bytes = vec![byte; len];
            let written = file.write_at_async(&bytes, start as u64);
            assert_eq!(block_on(written).unwrap(), len);
            expected[start..start + len].fill(byte);
        }
        let mut view = block_on(file.pin_mut_async(1)).unwrap();
        view[0..5].fill(4);
        expected[4096..4101].fill(4);
        drop(view);
        let mut view = block_on(file.pin_new_async(3)).unwrap();
        view[7] = 5;
        expected[3 * 4096..4 * 4096].fill(0);
        expected[3 * 4096 + 7] = 5;
        drop(view);
        let mut bytes = vec![0; 40_000];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 30_000);
        assert!(bytes[..30_000] == expected);
        let past = block_on(file.pin_mut_async(8));
        assert!(matches!(past, Err(Error::PastEnd { .. })), "{past:?}");
        block_on(file.sync_async()).unwrap();
        drop(file);
        assert!(gated.disk.state().bytes == expected);
        let region = memory.root().anon(4).unwrap();
        block_on(region.write_at_async(&[6; 5000], 3000)).unwrap();
        assert_eq!(region.pin(1).unwrap()[3903..3905], [6, 0]);
        assert!(block_on(region.write_at_async(&[6; 5000], 4 * PAGE)).is_err());
        block_on(region.pin_mut_async(2)).unwrap()[9] = 7;
        block_on(region.pin_new_async(1)).unwrap()[9] = 8;
        let bytes = [0, 1, 2].map(|page| region.pin(page).unwrap()[9]);
        assert_eq!(bytes, [0, 8, 7]);
    }
}

#[test]
fn a_task_flushes_what_it_asks_for_and_makes_nothing_durable() {
    for memory in memories(8) {
        let gated = Gated::of(vec![0; 8 * 4096]);
        let file = gated.open(&memory, &memory.root());
        for page in [1, 2, 5] {
            block_on(file.write_at_async(&[7; 4096], page * PAGE)).unwrap();
        }
        block_on(file.flush_range_async(2 * PAGE + 9..2 * PAGE + 10)).unwrap();
        let written = |page: usize| gated.disk.state().bytes[page * 4096];
        assert_eq!([1, 2, 5].map(written), [0, 7, 0]);
        block_on(file.flush_range_async(8 * PAGE..)).unwrap();
        assert_eq!(memory.root().stat().file_dirty, 2 * PAGE);
        block_on(file.flush_range_async(..)).unwrap();
        assert_eq!([1, 2, 5].map(written), [7; 3]);
        assert_eq!(memory.root().stat().file_dirty, 0);
        assert_eq!(gated.disk.state().nr_syncs, 0);
    }
}

#[test]
fn a_handle_that_only_reads_writes_for_no_task() {
    let memory = memory();
    let data = tempfile::NamedTempFile::new().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let refused = [
        block_on(file.write_at_async(&[1], 0)).err(),
        block_on(file.write_at_async(&[], 0)).err(),
        block_on(file.pin_mut_async(0)).err(),
        block_on(file.pin_new_async(0)).err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(Error::ReadOnly { .. })), "{error:?}");
    }
}

#[test]
fn a_task_that_writes_waits_for_a_read_without_a_thread() {
    // Who has no threads reads while he polls.
    for memory in memories(8).into_iter().step_by(2) {
        let gated = Gated::of(vec![7; 3 * 4096]);
        let file = gated.open(&memory, &memory.root());
        file.advise(Hint::Random);
        let shut = gated.reads.shut();
        let mut part = pin!(file.write_at_async(&[1; 10], 10));
        assert!(poll(part.as_mut()).is_pending());
        // Others' read, of a page of which nothing is to be left.
        assert_eq!(file.prefetch([1, 2]), 2);
        shut.await_some(2);
        let mut whole = pin!(file.write_at_async(&[2; 4096], PAGE));
        assert!(poll(whole.as_mut()).is_pending());
        let mut view = pin!(file.pin_new_async(2));
        assert!(poll(view.as_mut()).is_pending());
        drop(shut);
        assert_eq!(block_on(part).unwrap(), 10);
        assert_eq!(block_on(whole).unwrap(), 4096);
        assert_eq!(file.pin(0).unwrap()[8..12], [7, 7, 1, 1]);
        assert_eq!(file.pin(1).unwrap()[..], [2; 4096]);
        assert_eq!(block_on(view).unwrap()[..], [0; 4096]);
    }
}

#[test]
fn a_task_waits_for_pins_and_keeps_new_ones_out_as_long_as_a_thread() {
    let memory = memory();
    let file = Gated::of(vec![7; 8192]).open(&memory, &memory.root());
    let held = file.pin(0).unwrap();
    let mut write = pin!(file.write_at_async(&[1; 10], 0));
    assert!(poll(write.as_mut()).is_pending());
    assert!(file.try_pin(0).unwrap().is_none(), "no new pins");
    drop(held);
    assert_eq!(block_on(write).unwrap(), 10);
    // Nobody polls it: readers come in again all the same.
    let held = file.pin(0).unwrap();
    let mut write = Box::pin(file.write_at_async(&[2; 10], 0));
    assert!(poll(write.as_mut()).is_pending());
    thread::sleep(LONGER);
    assert!(file.try_pin(0).unwrap().is_some());
    let busy = poll(write.as_mut());
    assert!(matches!(busy, Poll::Ready(Err(Error::PageBusy { .. }))));
    // One that is dropped waits no more.
    let mut write = Box::pin(file.pin_mut_async(0));
    while file.try_pin(0).unwrap().is_some() {
        assert!(poll(write.as_mut()).is_pending());
    }
    drop(write);
    assert_eq!(file.try_pin(0).unwrap().unwrap()[0], 1);
    drop(held);
}

#[test]
fn a_task_that_waits_for_pins_in_vain_is_woken() {
    let memory = memory();
    let file = Gated::of(vec![7; 8192]).open(&memory, &memory.root());
    let held = file.pin(0).unwrap();
    let begin = Instant::now();
    for _ in 0..2 {
        let busy = block_on(file.write_at_async(&[1; 10], 0));
        assert!(matches!(busy, Err(Error::PageBusy { .. })), "{busy:?}");
    }
    assert!(begin.elapsed() >= Duration::from_secs(2));
    drop(held);
    // Without a thread, by ticks.
    let memory = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = memory.build().unwrap();
    let file = Gated::of(vec![7; 8192]).open(&memory, &memory.root());
    let _held = file.pin(0).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ticks = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(memory.tick().min(Duration::from_millis(10)));
            }
        });
        let busy = block_on(file.write_at_async(&[1; 10], 0));
        is_over.store(true, Ordering::Relaxed);
        assert!(matches!(busy, Err(Error::PageBusy { .. })), "{busy:?}");
        ticks.join().unwrap();
    });
}

/// A file in memory whose writes are counted by thread.
fn told(memory: &Memory, writers: &Arc<Mutex<Vec<thread::ThreadId>>>) -> File {
    let writers = Arc::clone(writers);
    let store = Forgets(move |bytes: &[u8], _| {
        writers.lock().unwrap().push(thread::current().id());
        Ok(bytes.len())
    });
    let file = memory.open_store(Box::new(store), "told", &memory.root());
    file.unwrap()
}

#[test]
fn what_is_dirty_is_written_by_a_thread_that_no_task_is_polled_on() {
    let memory = memory();
    let writers = Arc::default();
    let file = told(&memory, &writers);
    // Of 2,048 pages a fifth may be dirty.
    for page in 0..1500 {
        block_on(file.write_at_async(&[1; 4096], page * 2 * PAGE)).unwrap();
        assert!(memory.root().stat().file_dirty < 1000 * PAGE);
    }
    let writers = writers.lock().unwrap();
    assert!(writers.len() > 500, "{}", writers.len());
    assert!(!writers.contains(&thread::current().id()));
}

#[test]
fn a_task_waits_for_the_store_where_much_is_dirty() {
    let memory = memory();
    let gated = Gated::default();
    let file = gated.open(&memory, &memory.root());
    let shut = gated.writes.shut();
    let mut tasks = Vec::new();
    for page in 0..600 {
        let file = file.clone();
        let mut task = Box::pin(async move { file.write_at_async(&[1; 4096], page * PAGE).await });
        if poll(task.as_mut()).is_pending() {
            tasks.push(task);
        }
    }
    shut.await_one();
    // Those beyond a fifth.
    assert!((100..300).contains(&tasks.len()), "{}", tasks.len());
    drop(tasks.pop());
    assert!(poll(tasks[0].as_mut()).is_pending());
    drop(shut);
    tasks
        .into_iter()
        .for_each(|task| _ = block_on(task).unwrap());
    assert_eq!(file.len(), 600 * PAGE);
}

#[test]
fn a_store_that_failed_is_tried_for_a_task_by_a_thread() {
    let memory = memory();
    let fails = Arc::new(AtomicBool::new(true));
    let (by, is_failing) = (Arc::new(Mutex::new(Vec::new())), Arc::clone(&fails));
    let writers = Arc::clone(&by);
    let store = Forgets(move |bytes: &[u8], _| {
        writers.lock().unwrap().push(thread::current().id());
        match is_failing.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(bytes.len()),
        }
    });
    let file = memory.open_store(Box::new(store), "fails", &memory.root());
    let file = file.unwrap();
    block_on(file.write_at_async(&[1; 10], 0)).unwrap();
    assert!(block_on(file.sync_async()).is_err());
    for _ in 0..2 {
        let failed = block_on(file.write_at_async(&[1; 10], 0));
        assert!(
            matches!(failed, Err(Error::WritebackFailed { .. })),
            "{failed:?}"
        );
        let failed = block_on(file.pin_mut_async(0));
        assert!(
            matches!(failed, Err(Error::WritebackFailed { .. })),
            "{failed:?}"
        );
    }
    let failed = block_on(file.flush_range_async(..));
    assert!(
        matches!(failed, Err(Error::WritebackFailed { .. })),
        "{failed:?}"
    );
    fails.store(false, Ordering::SeqCst);
    block_on(file.write_at_async(&[2; 10], 0)).unwrap();
    block_on(file.flush_range_async(..)).unwrap();
    assert!(!by.lock().unwrap().contains(&thread::current().id()));
}

#[test]
fn a_store_that_panics_while_a_task_writes_does_so_in_the_task() {
    let memory = memory();
    let has_failed = AtomicBool::new(false);
    let store = Forgets(
        move |_: &[u8], _| match has_failed.swap(true, Ordering::SeqCst) {
            false => Err(io::Error::from_raw_os_error(5)),
            true => std::panic::resume_unwind(Box::new("a store that unwinds")),
        },
    );
    let file = memory.open_store(Box::new(store), "unwinds", &memory.root());
    let file = file.unwrap();
    file.write_at(&[1; 10], 0).unwrap();
    assert!(file.flush_range(..).is_err());
    let write = std::panic::AssertUnwindSafe(|| block_on(file.write_at_async(&[1; 10], 0)));
    assert!(std::panic::catch_unwind(write).is_err());
    file.discard_dirty().unwrap();
}

struct Behind;

impl Hooks for Behind {
    fn log_position(&self, page: u64, _bytes: &[u8]) -> u64 {
        page + 1
    }
}

#[test]
fn a_task_is_refused_where_too_many_pages_wait_for_the_log() {
    let memory = memory();
    let writers = Arc::new(Mutex::new(Vec::new()));
    let count = Arc::clone(&writers);
    let store = Forgets(move |bytes: &[u8], _| {
        count.lock().unwrap().push(thread::current().id());
        Ok(bytes.len())
    });
    let options = OpenOptions::new().hooks(Arc::new(Behind));
    let file = options.open_store(&memory, Box::new(store), "gated", &memory.root());
    let file = file.unwrap();
    let write = |page| block_on(file.write_at_async(&[1; 4096], page * PAGE));
    let refused = (0..1000).find_map(|page| write(page).err().map(|error| (page, error)));
    let (page, error) = refused.unwrap();
    assert!(matches!(error, Error::DirtyLimit { .. }), "{error:?}");
    assert!((400..600).contains(&page), "{page}");
    file.log_durable(1000);
    write(page).unwrap();
    assert!(!writers.lock().unwrap().contains(&thread::current().id()));
}

#[test]
fn a_task_that_writes_waits_for_memory_that_others_have_pinned() {
    let memory = Memory::builder().budget(ByteSize::mib(16));
    let memory = memory.build().unwrap();
    let small = memory.root().child("small").unwrap();
    let small = small.max(ByteSize::kib(64)).unwrap();
    let gated = Gated::of(vec![7; 64 * 4096]);
    let file = gated.open(&memory, &small);
    let mut pins: Vec<_> = (0..16).map(|page| file.pin(page).unwrap()).collect();
    let mut write = pin!(file.write_at_async(&[1; 4096], 40 * PAGE));
    assert!(poll(write.as_mut()).is_pending());
    pins.pop();
    assert_eq!(block_on(write).unwrap(), 4096);
    pins.push(file.pin(0).unwrap());
    let late = block_on(file.pin_new_async(41));
    match late {
        // The page that was written has gone.
        Ok(view) => drop(view),
        Err(error) => assert!(matches!(error, Error::TimedOut { .. }), "{error:?}"),
    }
}

/// Tasks and threads that write numbers to parts of pages, of which each has one.
#[test]
fn tasks_and_threads_that_write_lose_nothing_though_some_are_dropped() {
    const NR_TASKS: u8 = 16;
    for memory in memories(16) {
        let small = memory.root().child("small").unwrap();
        let small = small.max(ByteSize::kib(512)).unwrap();
        let gated = Gated::of(vec![0; 300 * 4096]);
        let file = gated.open(&memory, &small);
        let mut executor = Executor::default();
        for task in 0..NR_TASKS {
            let file = file.clone();
            executor.spawn(async move {
                let mut random = Random(0x5EED + u64::from(task));
                let mut last = BTreeMap::<u64, u64>::new();
                for number in 1..400_u64 {
                    let page = random.below(300);
                    let at = page * PAGE + u64::from(task) * 8;
                    let write = async {
                        match number % 3 {
                            0 => file.pin_mut_async(page).await.map(|mut view| {
                                let bytes = &mut view[usize::from(task) * 8..][..8];
                                bytes.copy_from_slice(&number.to_le_bytes());
                            }),
                            _ => {
                                let bytes = number.to_le_bytes();
                                let written = file.write_at_async(&bytes, at);
                                written.await.map(drop)
                            }
                        }
                    };
                    let mut write = Box::pin(write);
                    let is_dropped = random.below(4) == 0;
                    let polled = std::future::poll_fn(|context| {
                        let polled = write.as_mut().poll(context);
                        match polled {
                            Poll::Pending if is_dropped => Poll::Ready(None),
                            polled => polled.map(Some),
                        }
                    });
                    match polled.await {
                        Some(written) => {
                            written.unwrap();
                            last.insert(page, number);
                        }
                        // A write that was dropped has happened, or has not.
                        None => {
                            drop(write);
                            let mut bytes = [0; 8];
                            file.read_at_async(&mut bytes, at).await.unwrap();
                            let found = u64::from_le_bytes(bytes);
                            let before = last.get(&page).copied().unwrap_or(0);
                            assert!([before, number].contains(&found));
                            last.insert(page, found);
                        }
                    }
                }
                for (page, number) in last {
                    let at = page * PAGE + u64::from(task) * 8;
                    let mut bytes = [0; 8];
                    file.read_at_async(&mut bytes, at).await.unwrap();
                    assert_eq!(u64::from_le_bytes(bytes), number, "page {page}");
                }
            });
        }
        executor.run(|| _ = memory.tick());
        block_on(file.sync_async()).unwrap();
        assert_eq!(memory.root().stat().file_dirty, 0);
    }
}

/// A store that takes long to make an end.
struct SlowEnd(Gated, Gate);

impl Store for SlowEnd {
    forward!(0: read_at, write_at, len, is_writable, sync);

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.1.pass();
        self.0.set_len(len)
    }
}

#[test]
fn who_has_the_file_for_himself_is_waited_for_by_a_thread() {
    let memory = memory();
    let (gated, gate) = (Gated::of(vec![7; 64 * 4096]), Gate::default());
    let store = SlowEnd(gated, gate.clone());
    let file = memory.open_store(Box::new(store), "slow", &memory.root());
    let file = file.unwrap();
    let shut = gate.shut();
    thread::scope(|scope| {
        let cut = scope.spawn(|| file.set_len(10 * PAGE));
        shut.await_one();
        let mut write = Box::pin(file.write_at_async(&[1; 4096], 30 * PAGE));
        assert!(poll(write.as_mut()).is_pending());
        let mut given_up = Box::pin(file.pin_new_async(5));
        assert!(poll(given_up.as_mut()).is_pending());
        drop(given_up);
        drop(shut);
        assert_eq!(block_on(write).unwrap(), 4096);
        cut.join().unwrap().unwrap();
    });
    assert_eq!(file.pin(30).unwrap()[..], [1; 4096]);
    assert_eq!(file.pin(9).unwrap()[..], [7; 4096]);
    assert_eq!(file.pin(20).unwrap()[..], [0; 4096]);
}

#[test]
fn a_task_waits_for_no_write_of_a_page_that_had_failed() {
    type Change = fn(&File) -> Result<(), Error>;
    let changes: [Change; 3] = [
        |file| file.write_at(&[2; 10], 5 * PAGE).map(drop),
        |file| block_on(file.write_at_async(&[2; 10], 5 * PAGE)).map(drop),
        |file| block_on(file.pin_mut_async(5)).map(drop),
    ];
    let builders = [Memory::builder(), Memory::builder().without_thread()];
    for (builder, change) in builders
        .iter()
        .flat_map(|it| changes.map(|change| (it, change)))
    {
        let memory = builder.clone().budget(ByteSize::mib(8)).build().unwrap();
        let (has_failed, gate) = (AtomicBool::new(false), Gate::default());
        let own = gate.clone();
        let store = Forgets(move |bytes: &[u8], _| {
            if !has_failed.swap(true, Ordering::SeqCst) {
                return Err(io::Error::from_raw_os_error(5));
            }
            own.pass();
            Ok(bytes.len())
        });
        let file = memory.open_store(Box::new(store), "fails once", &memory.root());
        let file = file.unwrap();
        file.write_at(&[1; 10], 0).unwrap();
        assert!(file.flush_range(..).is_err());
        let shut = gate.shut();
        thread::scope(|scope| {
            let again = scope.spawn(|| file.flush_range(..));
            shut.await_one();
            change(&file).unwrap();
            drop(shut);
            again.join().unwrap().unwrap();
        });
    }
}

/// What a task meets inside a shrinker.
struct Changes(File, Mutex<Vec<Result<(), Error>>>);

impl Shrinker for Changes {
    fn count(&self) -> u64 {
        1
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        let written = block_on(self.0.write_at_async(&[1], 30 * PAGE));
        let view = block_on(self.0.pin_new_async(5)).map(drop);
        self.1.lock().unwrap().extend([written.map(drop), view]);
        None
    }
}

#[test]
fn inside_a_shrinker_a_task_waits_for_nobody_who_has_the_file_for_himself() {
    for builder in [Memory::builder(), Memory::builder().without_thread()] {
        let memory = builder.budget(ByteSize::mib(8)).build().unwrap();
        let (gated, gate) = (Gated::of(vec![7; 64 * 4096]), Gate::default());
        let store = SlowEnd(gated, gate.clone());
        let file = memory.open_store(Box::new(store), "slow", &memory.root());
        let file = file.unwrap();
        let web = memory.root().child("web").unwrap();
        let web = web.max(ByteSize::kib(32)).unwrap();
        let changes = Arc::new(Changes(file.clone(), Mutex::default()));
        let registered = web.add_shrinker(Arc::clone(&changes));
        let shut = gate.shut();
        thread::scope(|scope| {
            let cut = scope.spawn(|| file.set_len(10 * PAGE));
            shut.await_one();
            assert!(web.alloc(Order::new(4)).is_err());
            let _full = web.alloc(Order::new(3)).unwrap();
            assert!(web.alloc(Order::new(0)).is_err());
            drop(shut);
            cut.join().unwrap().unwrap();
        });
        drop(registered);
        let met = changes.1.lock().unwrap();
        assert!(!met.is_empty());
        let is_busy = |met: &Result<(), Error>| matches!(met, Err(Error::PageBusy { .. }));
        assert!(met.iter().all(is_busy), "{met:?}");
    }
}

/// A store that keeps its bytes in another file of the same memory.
struct Above(Stacked);

impl Store for Above {
    forward!(0: read_at, len, is_writable);

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        if thread::current().name() == Some("pagetide-flush") {
            // So that others have some to write.
            thread::sleep(Duration::from_millis(20));
        }
        let Stacked(below) = &self.0;
        block_on(below.write_at_async(buf, offset)).map_err(io::Error::other)
    }

    fn sync(&self) -> io::Result<()> {
        let Stacked(below) = &self.0;
        block_on(below.sync_async()).map_err(io::Error::other)
    }
}

#[test]
fn a_store_that_writes_to_another_file_of_its_memory_waits_for_no_thread_that_it_is_on() {
    let (end, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let memory = memory();
        let below = Forgets(|bytes: &[u8], _| Ok(bytes.len()));
        let below = memory.open_store(Box::new(below), "below", &memory.root());
        let below = below.unwrap();
        let above = Box::new(Above(Stacked(below.clone())));
        let above = memory.open_store(above, "above", &memory.root()).unwrap();
        let mut bytes = vec![0; 800 * 4096];
        below.read_at(&mut bytes, 0).unwrap();
        for _ in 0..5 {
            let mut views: Vec<_> = (0..600).map(|page| above.pin_mut(page).unwrap()).collect();
            views.iter_mut().for_each(|view| view[0] = 1);
            // Much is dirty now.
            drop(views);
            for page in 600..800 {
                block_on(below.write_at_async(&[1; 4096], page * PAGE)).unwrap();
            }
        }
        end.send(()).unwrap();
    });
    has_ended
        .recv_timeout(Duration::from_secs(20))
        .expect("it waits for itself");
}
