//! Syncs of many at once.

use crate::gate::{Gate, Gated, Shut};
use crate::many::memories;
use crate::slow::PAGE;
use futures_executor::block_on;
use pagetide::{ByteSize, Error, File, Memory, Store};
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

/// What a store was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Write,
    Sync,
}

/// What a disk was asked for so far, and whether its syncs are held up.
#[derive(Debug, Default)]
struct Calls {
    calls: Mutex<Vec<Call>>,
    syncs: Gate,
    held: Mutex<Option<Shut>>,
    fails: AtomicBool,
}

impl Calls {
    fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    fn add(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }

    fn hold(&self, is_held: bool) {
        *self.held.lock().unwrap() = is_held.then(|| self.syncs.shut());
    }

    fn count(&self, of: Call) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|&&call| call == of).count()
    }

    fn wait_for(&self, nr_calls: usize, of: Call) {
        while self.count(of) < nr_calls {
            thread::yield_now();
        }
    }
}

struct Disk(Arc<Calls>);

impl Store for Disk {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> io::Result<usize> {
        if self.0.fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("a disk that fails"));
        }
        self.0.add(Call::Write);
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.add(Call::Sync);
        self.0.syncs.pass();
        Ok(())
    }
}

/// A file on a disk of its own.
fn disk(memory: &Memory) -> (File, Arc<Calls>) {
    let calls = Arc::new(Calls::default());
    let store = Box::new(Disk(Arc::clone(&calls)));
    let file = memory.open_store(store, "disk", &memory.root());
    (file.unwrap(), calls)
}

#[test]
fn of_many_who_wait_for_a_sync_the_first_makes_all_durable() {
    const NR_THREADS: usize = 16;
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let (file, calls) = disk(&memory);
    let write_and_sync = &|page: usize| {
        file.write_at(&[1; 10], page as u64 * PAGE).unwrap();
        file.sync().unwrap();
    };
    calls.hold(true);
    thread::scope(|scope| {
        scope.spawn(|| write_and_sync(0));
        calls.wait_for(1, Call::Sync);
        for page in 1..=NR_THREADS {
            scope.spawn(move || write_and_sync(page));
        }
        calls.wait_for(1 + NR_THREADS, Call::Write);
        // They have nothing else to do than to wait.
        thread::sleep(Duration::from_millis(50));
        calls.hold(false);
    });
    let nr_syncs = calls.count(Call::Sync);
    // Not all of them, also where some were slow.
    assert!((2..NR_THREADS / 2).contains(&nr_syncs), "{nr_syncs}");
    let last = calls.calls.lock().unwrap().last().copied();
    assert_eq!(last, Some(Call::Sync), "one began after the last write");
}

#[test]
fn a_task_that_waits_for_a_sync_keeps_no_thread() {
    for (at, memory) in memories(8).into_iter().enumerate() {
        // Each other one has none.
        let has_threads = at % 2 == 0;
        let [(slow, held), (fast, calls)] = [(); 2].map(|()| disk(&memory));
        held.hold(has_threads);
        slow.write_at(&[1; 10], 0).unwrap();
        fast.write_at(&[1; 10], 0).unwrap();
        let mut long = Box::pin(slow.sync_async());
        let polled = long.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled.is_pending(), has_threads);
        block_on(fast.sync_async()).unwrap();
        assert_eq!((calls.count(Call::Write), calls.count(Call::Sync)), (1, 1));
        block_on(fast.sync_range_async(PAGE..2 * PAGE)).unwrap();
        held.hold(false);
        if polled.is_pending() {
            block_on(long).unwrap();
        }
        assert_eq!((held.count(Call::Write), held.count(Call::Sync)), (1, 1));
    }
}

#[test]
fn a_sync_that_no_task_waits_for_is_not_begun() {
    const NR_THREADS: usize = 16;
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let files: Vec<_> = (0..=NR_THREADS).map(|_| disk(&memory)).collect();
    let mut context = Context::from_waker(Waker::noop());
    let mut tasks = Vec::new();
    for (file, calls) in &files {
        file.write_at(&[1; 10], 0).unwrap();
        calls.hold(true);
        let mut task = Box::pin(file.sync_async());
        assert!(task.as_mut().poll(&mut context).is_pending());
        tasks.push(task);
    }
    files[..NR_THREADS]
        .iter()
        .for_each(|(_, calls)| calls.wait_for(1, Call::Sync));
    // All threads are held up, so that the last one waits; and one that is dropped goes on.
    drop(tasks.pop());
    drop(tasks.pop());
    files.iter().for_each(|(_, calls)| calls.hold(false));
    tasks.into_iter().for_each(|task| block_on(task).unwrap());
    let (file, calls) = &files[0];
    file.write_at(&[2; 10], 0).unwrap();
    block_on(file.sync_async()).unwrap();
    assert_eq!(calls.count(Call::Sync), 2);
    let nr_syncs: Vec<_> = files[NR_THREADS - 1..]
        .iter()
        .map(|(_, calls)| calls.count(Call::Sync))
        .collect();
    assert_eq!(nr_syncs, [1, 0]);
}

#[test]
fn a_file_is_closed_when_whoever_waited_for_its_sync_is_told() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let (file, calls) = disk(&memory);
    calls.hold(true);
    let shared = Arc::downgrade(&calls);
    let mut task = Box::pin(async move {
        file.write_at(&[1; 10], 0).unwrap();
        file.sync_async().await
    });
    let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    calls.wait_for(1, Call::Sync);
    calls.hold(false);
    block_on(task).unwrap();
    drop(calls);
    assert!(shared.upgrade().is_none(), "the store is gone");
    // Also where a task gives up, and the memory goes before the sync ends.
    let (file, calls) = disk(&memory);
    calls.hold(true);
    let mut task = Box::pin(async move { file.sync_async().await });
    let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    calls.wait_for(1, Call::Sync);
    drop((task, memory));
    calls.hold(false);
    while Arc::strong_count(&calls) > 1 {
        thread::yield_now();
    }
}

/// Polls a sync that has to wait.
fn assert_waits(sync: &mut Pin<Box<impl Future<Output = Result<(), Error>>>>) {
    let polled = sync.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "{polled:?}");
}

#[test]
fn a_slow_file_takes_one_thread_however_many_tasks_sync_it() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let (fast, _) = disk(&memory);
    fast.write_at(&[1; 10], 0).unwrap();
    // One alone never has all threads.
    let slow = [(); 2].map(|()| disk(&memory));
    let mut tasks = Vec::new();
    for (slow, held) in &slow {
        held.hold(true);
        slow.write_at(&[1; 10], 0).unwrap();
        let mut first = Box::pin(slow.sync_async());
        assert_waits(&mut first);
        held.wait_for(1, Call::Sync);
        tasks.push(first);
        for _ in 1..40 {
            let mut task = Box::pin(slow.sync_async());
            assert_waits(&mut task);
            // A thread that was to do it would have it by now.
            thread::sleep(Duration::from_millis(2));
            tasks.push(task);
        }
    }
    block_on(fast.sync_async()).unwrap();
    slow.iter().for_each(|(_, held)| held.hold(false));
    tasks.into_iter().for_each(|task| block_on(task).unwrap());
}

#[test]
fn tasks_that_ask_while_a_file_is_synced_are_served_together() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let (file, calls) = disk(&memory);
    let ask = |nr_tasks: u64| {
        calls.hold(true);
        let nr_syncs = calls.count(Call::Sync);
        let mut first = Box::pin(file.sync_async());
        assert_waits(&mut first);
        calls.wait_for(nr_syncs + 1, Call::Sync);
        let mut tasks: Vec<_> = (0..nr_tasks)
            .map(|page| {
                file.write_at(&[1; 10], page * PAGE).unwrap();
                // Each of its own pages, and some of all.
                Box::pin(file.sync_range_async(page % 4 * PAGE..))
            })
            .collect();
        tasks.iter_mut().for_each(assert_waits);
        (first, tasks)
    };
    let (first, tasks) = ask(20);
    calls.hold(false);
    block_on(first).unwrap();
    tasks.into_iter().for_each(|task| block_on(task).unwrap());
    assert_eq!(calls.count(Call::Sync), 2);
    let last = calls.calls.lock().unwrap().last().copied();
    assert_eq!(last, Some(Call::Sync), "it began after the last write");
    // Each is told of what fails.
    let (first, tasks) = ask(5);
    calls.fail(true);
    calls.hold(false);
    block_on(first).unwrap();
    for task in tasks {
        let failed = block_on(task);
        assert!(
            matches!(failed, Err(Error::WritebackFailed { .. })),
            "{failed:?}"
        );
    }
    calls.fail(false);
}

#[test]
fn a_file_that_is_dropped_is_written_though_a_sync_of_it_waits_for_a_thread() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let slow: Vec<_> = (0..16).map(|_| disk(&memory)).collect();
    let mut tasks: Vec<_> = slow
        .iter()
        .map(|(file, calls)| {
            calls.hold(true);
            Box::pin(file.sync_async())
        })
        .collect();
    tasks.iter_mut().for_each(assert_waits);
    slow.iter()
        .for_each(|(_, calls)| calls.wait_for(1, Call::Sync));
    // All threads are held up.
    let (file, calls) = disk(&memory);
    file.write_at(&[1; 10], 0).unwrap();
    let mut given_up = Box::pin(file.sync_async());
    assert_waits(&mut given_up);
    drop(given_up);
    drop(file);
    let nr_writes = calls.count(Call::Write);
    let is_closed = Arc::strong_count(&calls) == 1;
    slow.iter().for_each(|(_, calls)| calls.hold(false));
    assert!((nr_writes, is_closed) == (1, true), "{nr_writes} writes");
}

#[test]
fn a_file_that_is_dropped_is_written_though_a_sync_of_it_is_under_way() {
    const NR_PAGES: u64 = 200;
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let gate = Gated::default();
    let file = gate.open(&memory, &memory.root());
    // Of which 64 are written at a time.
    (0..NR_PAGES).for_each(|page| _ = file.write_at(&[7; 4096], page * PAGE).unwrap());
    let shut = gate.writes.shut();
    let mut given_up = Box::pin(file.sync_async());
    assert_waits(&mut given_up);
    shut.await_one();
    drop(given_up);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            drop(shut);
        });
        drop(file);
        let len = gate.len().unwrap();
        assert_eq!(len, NR_PAGES * PAGE, "pages are dirty, and nobody has them");
    });
    assert_eq!(memory.stats().pages_lost, 0);
}

#[test]
fn a_failed_write_is_told_once_by_a_task_or_a_thread() {
    for by_task in [false, true] {
        let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
        let (file, calls) = disk(&memory);
        file.write_at(&[1; 10], 0).unwrap();
        calls.fail(true);
        assert!(file.flush_range(..).is_err());
        calls.fail(false);
        let sync = |by_task| match by_task {
            true => block_on(file.sync_async()),
            false => file.sync(),
        };
        let failed = Err::<(), _>(sync(by_task).unwrap_err());
        assert!(
            matches!(failed, Err(Error::WritebackFailed { .. })),
            "{failed:?}"
        );
        sync(!by_task).unwrap();
        sync(by_task).unwrap();
    }
}

#[test]
fn a_store_that_panics_does_so_in_the_task() {
    struct Panics;

    impl Store for Panics {
        fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<usize> {
            Ok(0)
        }

        fn len(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn is_writable(&self) -> bool {
            true
        }

        fn sync(&self) -> io::Result<()> {
            // Without a word to the panic hook.
            std::panic::resume_unwind(Box::new("a store that unwinds"))
        }
    }

    for memory in memories(8) {
        let file = memory.open_store(Box::new(Panics), "bad", &memory.root());
        let file = file.unwrap();
        let sync = AssertUnwindSafe(|| block_on(file.sync_async()));
        let unwound = catch_unwind(sync).unwrap_err();
        assert_eq!(unwound.downcast_ref(), Some(&"a store that unwinds"));
        let poisoned = block_on(file.sync_async());
        assert!(
            matches!(poisoned, Err(Error::WritebackFailed { .. })),
            "{poisoned:?}"
        );
    }
}
