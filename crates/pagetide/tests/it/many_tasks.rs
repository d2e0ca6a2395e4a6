//! Many pages at once for a task.

use crate::data::numbered_file;
use crate::many::{memories, number};
use crate::swift::Watch;
use crate::tasks::{Executor, Flag, Random, await_wake, gated, poll};
use pagetide::{ByteSize, Error, File, Memory};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

fn are_numbered(file: &File, pages: &[u64]) -> impl Future<Output = ()> + Send + 'static + use<> {
    let (file, pages) = (file.clone(), pages.to_vec());
    async move {
        let pinned = file.pin_many_async(&pages).await.unwrap();
        assert!(pinned.iter().map(|page| number(page)).eq(pages));
    }
}

#[test]
fn a_task_gets_all_of_its_pages_in_its_order_or_none() {
    let data = numbered_file(1024);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        let before = memory.stats().bytes_read;
        let mut executor = Executor::default();
        executor.spawn(are_numbered(&file, &[]));
        executor.spawn(are_numbered(&file, &[900, 7, 8, 9, 7, 1023, 0]));
        executor.run(|| _ = memory.tick());
        let read = memory.stats().bytes_read - before;
        assert_eq!(read, 6 * 4096, "each page once");
        let past = file.pin_many_async(&[3, 1024, 4]);
        let past = futures_executor::block_on(past).unwrap_err();
        assert!(matches!(past, Error::PastEnd { page: 1024, .. }), "{past}");
        assert!(memory.pins().is_empty(), "{:?}", memory.pins());
    }
}

#[test]
fn of_tasks_that_each_need_most_of_what_there_is_one_comes_after_the_other() {
    let data = numbered_file(64);
    for memory in memories(8) {
        let group = memory.root().child("web").unwrap();
        let group = group.max(ByteSize::kib(64)).unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        let (mut random, mut executor) = (Random(0x5EED), Executor::default());
        let [nr_done, nr_late] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let (begin, watch) = (Instant::now(), Watch::start());
        for at in 0..40 {
            let pages: Vec<u64> = (0..12).map(|_| random.below(64)).collect();
            let (done, late) = (Arc::clone(&nr_done), Arc::clone(&nr_late));
            let file = file.clone();
            executor.spawn(async move {
                let pinned = loop {
                    match file.pin_many_async(&pages).await {
                        Err(Error::TimedOut { .. }) => _ = late.fetch_add(1, Ordering::Relaxed),
                        pinned => break pinned.unwrap(),
                    }
                };
                assert!(pinned.iter().map(|page| number(page)).eq(pages));
                done.fetch_add(1, Ordering::Relaxed);
            });
            if at % 4 == 3 {
                executor.run(|| _ = memory.tick());
            }
        }
        assert_eq!(nr_done.load(Ordering::Relaxed), 40);
        // Nobody's time is over before his turn but where others have the CPU most of the time.
        let is_busy = 2 * watch.elapsed() < begin.elapsed();
        let nr_late = nr_late.load(Ordering::Relaxed);
        assert!(nr_late == 0 || is_busy, "{nr_late} waited in vain");
    }
}

#[test]
fn a_task_that_waits_for_who_changes_a_page_lets_him_have_its_others() {
    let data = numbered_file(8);
    for memory in memories(8) {
        let group = memory.root().child("web").unwrap();
        let file = memory.open_rw(data.path(), &group).unwrap();
        drop(file.pin_many(&[1, 2]).unwrap());
        let mut change = file.pin_mut(3).unwrap();
        let flag = Arc::default();
        let mut future = Box::pin(file.pin_many_async(&[1, 2, 3]));
        assert!(poll(&mut future, &flag).is_pending());
        // Where the task holds it, this waits for a second and is refused.
        file.pin_mut(1).unwrap()[..8].copy_from_slice(&71_u64.to_le_bytes());
        change[..8].copy_from_slice(&73_u64.to_le_bytes());
        drop(change);
        await_wake(&memory, &flag);
        let Poll::Ready(Ok(pages)) = poll(&mut future, &flag) else {
            panic!("nobody changes it any more");
        };
        let first = |page: &[u8]| u64::from_le_bytes(page[..8].try_into().unwrap());
        assert!(pages.iter().map(|page| first(page)).eq([71, 2, 73]));
    }
}

#[test]
fn more_than_a_group_may_have_is_refused_at_once() {
    let data = numbered_file(64);
    for memory in memories(8) {
        let group = memory.root().child("web").unwrap();
        let group = group.max(ByteSize::kib(64)).unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        let flag = Arc::<Flag>::default();
        let pages = Vec::from_iter(0..17);
        let mut future = Box::pin(file.pin_many_async(&pages));
        let refused = loop {
            if let Poll::Ready(done) = poll(&mut future, &flag) {
                break done.unwrap_err();
            }
            await_wake(&memory, &flag);
        };
        // Who has waited for memory is told that its time is over.
        assert!(matches!(refused, Error::OverLimit { .. }), "{refused}");
        let mut executor = Executor::default();
        executor.spawn(are_numbered(&file, &Vec::from_iter(0..16)));
        executor.run(|| _ = memory.tick());
    }
}

fn await_no_pins(memory: &Memory) {
    let begin = Instant::now();
    while !memory.pins().is_empty() {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{:?}",
            memory.pins()
        );
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_task_that_is_dropped_on_its_way_holds_none_of_its_pages() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let (file, gate) = gated(&memory);
    let shut = gate.shut();
    let flag = Arc::<Flag>::default();
    let mut future = Box::pin(file.pin_many_async(&[1, 2, 3]));
    assert!(poll(&mut future, &flag).is_pending());
    drop(shut);
    await_wake(&memory, &flag);
    drop(future);
    // The reads that have not ended go on without it.
    await_no_pins(&memory);
    let mut failed = Box::pin(file.pin_many_async(&[1, 5, 2]));
    let failed = loop {
        if let Poll::Ready(done) = poll(&mut failed, &flag) {
            break done.unwrap_err();
        }
        await_wake(&memory, &flag);
    };
    assert!(matches!(failed, Error::Io { page: 5, .. }), "{failed}");
    await_no_pins(&memory);
}

/// Counts how often it is woken by one thread.
struct WokenHere {
    thread: ThreadId,
    nr_woken: AtomicU64,
}

impl Wake for WokenHere {
    fn wake(self: Arc<WokenHere>) {
        let is_here = thread::current().id() == self.thread;
        self.nr_woken
            .fetch_add(u64::from(is_here), Ordering::Relaxed);
    }
}

#[test]
fn a_task_that_waits_for_memory_is_not_woken_by_what_it_lets_go_itself() {
    let data = numbered_file(64);
    for memory in memories(8) {
        // A run that takes as long as a task waits for memory tells nothing.
        let mut runs = (0..10).map(|_| wake_who_waits(&memory, data.path()));
        let told = runs.find(|told| !matches!(told, Err(Error::TimedOut { .. })));
        told.expect("some run is short").unwrap();
    }
}

/// Has a task wait for memory, and then have it.
fn wake_who_waits(memory: &Memory, data: &Path) -> Result<(), Error> {
    let group = memory.root().child("web").unwrap();
    let group = group.max(ByteSize::kib(64)).unwrap();
    let file = memory.open(data, &group).unwrap();
    drop(file.pin_many(&[40, 41]).unwrap());
    let held = file.pin_many(&Vec::from_iter(0..12)).unwrap();
    let pages = Vec::from_iter(38..48);
    let mut future = Box::pin(file.pin_many_async(&pages));
    let here = Arc::new(WokenHere {
        thread: thread::current().id(),
        nr_woken: AtomicU64::new(0),
    });
    let waker = Waker::from(Arc::clone(&here));
    let begin = Instant::now();
    for _ in (0..20).take_while(|_| begin.elapsed() < Duration::from_secs(1)) {
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(done) = polled {
            return Err(done.map(drop).expect_err("others have all there is"));
        }
    }
    // By reads that end at a poll.
    let nr_woken = here.nr_woken.load(Ordering::Relaxed);
    assert!(nr_woken <= 5, "{nr_woken} times");
    let flag = Arc::<Flag>::default();
    if let Poll::Ready(done) = poll(&mut future, &flag) {
        return Err(done.map(drop).expect_err("others have all there is"));
    }
    drop(held);
    await_wake(memory, &flag);
    let begin = Instant::now();
    let pages = loop {
        if let Poll::Ready(pages) = poll(&mut future, &flag) {
            break pages?;
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
        memory.tick();
    };
    assert!(pages.iter().map(|page| number(page)).eq(38..48));
    Ok(())
}
