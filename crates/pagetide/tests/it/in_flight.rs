//! Requests for memory while pages are being read that nobody has come for.

use crate::anon;
use crate::data::numbered_file;
use crate::gate::{Gated, Shut};
use crate::many::memories;
use crate::slow::{PAGE, group_of, slow};
use crate::swift::{Watch, assert_within, sleeps_of, timed};
use futures_executor::block_on;
use pagetide::{
    ByteSize, Error, File, Group, Hint, Hooks, IoEngine, Memory, OpenOptions, Order, PAGE_BYTES,
    Reservation,
};
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Less than somebody waits at a gate that stays shut.
const SOON: Duration = Duration::from_millis(500);
/// How long a request waits for one that does not end.
const PATIENCE: Duration = Duration::from_millis(200);

/// Reserves so many bytes beside reads that nobody waits for, and gives them back. Where those
/// take longer than a request waits, it is refused and asks again; whether that was so.
#[track_caller]
fn is_reserved_late(group: &Group, bytes: ByteSize) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    let mut is_late = false;
    loop {
        let begin = Instant::now();
        let Err(refused) = group.reserve(bytes).map(drop) else {
            return is_late;
        };
        is_late = begin.elapsed() >= PATIENCE;
        assert!(is_late && begin < end, "{refused}, {:?}", begin.elapsed());
    }
}

#[test]
fn working_memory_gets_what_is_being_read_ahead() {
    let data = numbered_file(1024);
    for memory in memories(64) {
        let mut nr_late = 0;
        for nr_pages in 1..100 {
            let group = group_of(&memory, &format!("scan{nr_pages}"), 256);
            let file = memory.open(data.path(), &group).unwrap();
            for page in 0..nr_pages {
                drop(file.pin(page).unwrap());
            }
            // The next window is on its way, for nobody.
            nr_late += u32::from(is_reserved_late(&group, ByteSize::mib(1)));
        }
        assert!(nr_late < 10, "{nr_late} had to ask again");
    }
}

#[test]
fn working_memory_gets_anon_pages_that_are_brought_back_for_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || Memory::builder().budget(ByteSize::mib(16));
    for builder in [builder(), builder().io_engine(IoEngine::Threads)] {
        let builder = builder.spill(folder.path()).spill_max(ByteSize::mib(32));
        let memory = builder.build().unwrap();
        let group = group_of(&memory, "anon", 256);
        let region = group.anon(512).unwrap();
        for page in 0..512 {
            anon::write(&region, page, 0);
        }
        let mut nr_late = 0;
        let nr_begun: u64 = (0..100)
            .map(|page| {
                let nr_begun = region.prefetch(page..page + 40);
                nr_late += u32::from(is_reserved_late(&group, ByteSize(248 * PAGE)));
                nr_begun
            })
            .sum();
        assert!(nr_begun > 100, "{nr_begun}");
        assert!(nr_late < 10, "{nr_late} had to ask again");
    }
}

#[test]
fn a_limit_is_met_once_what_is_being_read_has_come() {
    for memory in memories(64) {
        let group = group_of(&memory, "prefetched", 64);
        let file = slow(&memory, &group, Duration::from_millis(5));
        file.prefetch(0..8);
        drop(group.alloc(Order::new(4)).unwrap());
        drop(group.reserve(ByteSize(64 * PAGE)).unwrap());
        file.prefetch(0..8);
        let group = group.max(ByteSize(PAGE)).unwrap();
        assert!(group.usage() <= ByteSize(PAGE), "{}", group.usage());
    }
}

/// A file of which nothing is read as long as its gate is shut.
fn gated(memory: &Memory, group: &Group) -> (File, Shut) {
    let store = Gated::of(vec![1; 512 * PAGE_BYTES]);
    (store.open(memory, group), store.reads.shut())
}

#[test]
fn the_books_are_right_while_many_pages_are_being_read() {
    // The first one by somebody else, so that one less is begun of those that are charged together.
    for (nr_pages, is_read) in [(256, false), (300, true)] {
        let memory = Memory::builder().budget(ByteSize::mib(64));
        let memory = memory.build().unwrap();
        let group = group_of(&memory, "reads", 512);
        let (file, shut) = gated(&memory, &group);
        let pages: Vec<u64> = (0..nr_pages).collect();
        let until = Instant::now() + Duration::from_secs(60);
        let wait_for = |nr_pages: u64| {
            while group.usage() < ByteSize(nr_pages * PAGE) && Instant::now() < until {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let other = is_read.then(|| scope.spawn(|| file.pin(0).map(drop)));
            wait_for(u64::from(is_read));
            let reader = scope.spawn(|| file.pin_many(&pages).map(drop));
            wait_for(256);
            let found = memory.audit();
            drop(shut);
            reader.join().unwrap().unwrap();
            assert!(other.is_none_or(|other| other.join().unwrap().is_ok()));
            assert_eq!(found, Ok(()));
        });
        assert_eq!(memory.audit(), Ok(()));
    }
}

#[test]
fn a_prefetch_waits_for_no_read() {
    assert_within(SOON, || {
        let memory = Memory::builder().budget(ByteSize::mib(64));
        let memory = memory.build().unwrap();
        let group = group_of(&memory, "prefetches", 64);
        let (file, _shut) = gated(&memory, &group);
        let nr_begun = file.prefetch(0..8);
        assert!(nr_begun > 0);
        let _used = group.reserve(ByteSize((64 - nr_begun) * PAGE)).unwrap();
        timed(|| assert_eq!(file.prefetch(100..108), 0))
    });
}

/// A group of 64 pages, of which there is one too few for a block of 16 while a page is read.
fn all_but_a_read() -> (Group, File, Reservation, Shut) {
    let memory = Memory::builder().budget(ByteSize::mib(64));
    let memory = memory.build().unwrap();
    let group = group_of(&memory, "full", 64);
    let (file, shut) = gated(&memory, &group);
    assert_eq!(file.prefetch(0..1), 1);
    let used = group.reserve(ByteSize(48 * PAGE)).unwrap();
    (group, file, used, shut)
}

#[test]
fn a_future_waits_for_no_read_where_it_is_polled() {
    assert_within(SOON, || {
        let (group, _file, _used, shut) = all_but_a_read();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut task = Box::pin(group.alloc_async(Order::new(4), deadline));
        let mut context = Context::from_waker(Waker::noop());
        let took = timed(|| assert!(task.as_mut().poll(&mut context).is_pending()));
        drop(shut);
        drop(block_on(task).unwrap());
        took
    });
}

#[test]
fn a_deadline_is_kept_beside_a_read_that_takes_longer() {
    assert_within(SOON, || {
        let (group, _file, _used, shut) = all_but_a_read();
        let by = |longest| group.alloc_by(Order::new(4), Instant::now() + longest);
        let watch = Watch::start();
        let late = by(PATIENCE / 2);
        let took = watch.elapsed();
        assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
        drop(shut);
        drop(by(300 * PATIENCE).unwrap());
        took
    });
}

#[test]
fn a_read_that_takes_long_is_not_waited_for() {
    let (group, _file, _used, _shut) = all_but_a_read();
    let begin = Instant::now();
    let refused = group.alloc(Order::new(4));
    assert!(
        matches!(refused, Err(Error::OverLimit { .. })),
        "{refused:?}"
    );
    assert!(begin.elapsed() >= PATIENCE, "{:?}", begin.elapsed());
}

#[test]
fn who_reaps_what_it_waits_for_goes_on_at_once() {
    let data = numbered_file(64);
    let memory = Memory::builder().budget(ByteSize::mib(16)).without_thread();
    let memory = memory.build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    file.advise(Hint::Random);
    let took = (0..64).map(|page| {
        assert_eq!(file.prefetch([page]), 1);
        // Until it has landed, also where reads take longer.
        std::thread::sleep(Duration::from_millis(2 + page / 4));
        let begin = Instant::now();
        drop(file.pin(page).unwrap());
        begin.elapsed()
    });
    let least = took.min().unwrap();
    assert!(least < Duration::from_micros(900), "{least:?}");
}

/// Hooks that need memory.
struct Hungry {
    group: Group,
    /// Where it was refused, how often it slept before.
    refused: Mutex<Option<u64>>,
}

impl Hooks for Hungry {
    fn after_read(&self, _page: u64, _bytes: &mut [u8]) -> io::Result<()> {
        let (refused, nr_sleeps) = sleeps_of(|| self.group.reserve(ByteSize(PAGE)));
        assert!(
            matches!(refused, Err(Error::OverLimit { .. })),
            "{refused:?}"
        );
        *self.refused.lock().unwrap() = Some(nr_sleeps);
        Ok(())
    }
}

#[test]
fn who_has_a_read_in_hand_does_not_wait_for_it() {
    let data = numbered_file(64);
    for memory in memories(64) {
        let group = group_of(&memory, "hungry", 32);
        let hungry = Arc::new(Hungry {
            group: group.clone(),
            refused: Mutex::default(),
        });
        let hooks = Arc::clone(&hungry) as Arc<dyn Hooks>;
        let file = OpenOptions::new()
            .hooks(hooks)
            .open(&memory, data.path(), &group)
            .unwrap();
        let left = 32 * PAGE - group.usage().as_u64();
        let _used = group.reserve(ByteSize(left - PAGE)).unwrap();
        let is_at_once = |page| {
            drop(file.pin(page).unwrap());
            let refused = hungry.refused.lock().unwrap().take();
            refused.expect("the page is read") == 0
        };
        assert!((40..50).any(is_at_once), "it waits each time");
    }
}
