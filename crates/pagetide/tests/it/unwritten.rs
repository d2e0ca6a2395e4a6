//! Requests that are refused beside pages which cannot be written, or are just being written.

use crate::disk::Disk;
use crate::slow::{Forgets, PAGE, group_of, slow};
use crate::swift::nr_sleeps;
use futures_executor::block_on;
use pagetide::{ByteSize, Error, File, Group, Hint, Hooks, Memory, OpenOptions, Order, Policy};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

fn memory(mib: u64) -> Memory {
    let memory = Memory::builder().budget(ByteSize::mib(mib));
    memory.build().unwrap()
}

/// Pages wait for a log that nobody makes durable.
struct Log;

impl Hooks for Log {
    fn log_position(&self, _page: u64, _bytes: &[u8]) -> u64 {
        10
    }
}

/// A group of 64 pages, of which one waits for the log.
fn with_a_page_that_waits(memory: &Memory) -> (Group, File) {
    let group = group_of(memory, "engine", 64);
    let options = OpenOptions::new().hooks(Arc::new(Log));
    let file = options.open_store(memory, Box::new(Disk::default()), "engine", &group);
    let file = file.unwrap();
    file.write_at(&[1], 0).unwrap();
    (group, file)
}

fn all_but(group: &Group, nr_pages: u64) -> ByteSize {
    let left = 64 - group.usage().as_u64().div_ceil(PAGE);
    ByteSize((left - nr_pages) * PAGE)
}

#[test]
fn who_waits_for_memory_waits_beside_a_page_that_cannot_be_written() {
    let memory = memory(16);
    let (group, file) = with_a_page_that_waits(&memory);
    for is_task in [false, true] {
        let used = group.reserve(all_but(&group, 4)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(MS * 100);
                drop(used);
            });
            let deadline = Instant::now() + Duration::from_secs(60);
            let block = match is_task {
                true => block_on(group.alloc_async(Order::new(4), deadline)),
                false => group.alloc_by(Order::new(4), deadline),
            };
            block.map(drop).unwrap();
        });
    }
    file.log_durable(10);
}

/// How long who finds no memory beside others' pins waits for some.
const PATIENCE: Duration = Duration::from_millis(200);

/// Whether a call was refused, before which it has waited.
fn is_refused<T>(call: impl FnOnce() -> Result<T, Error>) -> bool {
    let begin = Instant::now();
    let refused = call().err();
    let took = begin.elapsed();
    assert!(
        refused.is_none() || took >= PATIENCE,
        "{refused:?} after {took:?}"
    );
    refused.is_some()
}

/// Who gets no CPU for as long as that lasts is refused, so that not every run counts.
#[track_caller]
fn assert_few_refused(run: impl FnMut() -> u64) {
    let nr_refused: Vec<u64> = std::iter::repeat_with(run).take(3).collect();
    assert!(nr_refused.iter().min() < Some(&12), "{nr_refused:?}");
}

/// Eight readers of a group with room for four pages, whose pins are short; how many are refused.
fn read_beside_each_other(file: &File) -> u64 {
    file.advise(Hint::Random);
    let nr_refused = AtomicU64::new(0);
    let end = Instant::now() + Duration::from_millis(500);
    thread::scope(|scope| {
        for number in 0..8_u64 {
            let nr_refused = &nr_refused;
            scope.spawn(move || {
                let mut page = number * 100;
                while Instant::now() < end {
                    page = (page + 17) % 1000;
                    let read = || file.pin(page).map(|_pin| thread::sleep(MS / 2));
                    nr_refused.fetch_add(is_refused(read).into(), Ordering::Relaxed);
                }
            });
        }
    });
    nr_refused.into_inner()
}

#[test]
fn readers_wait_for_each_others_pins_beside_a_page_that_cannot_be_written() {
    let memory = memory(16);
    let (group, engine) = with_a_page_that_waits(&memory);
    let file = slow(&memory, &group, Duration::ZERO);
    let _used = group.reserve(all_but(&group, 4)).unwrap();
    assert_few_refused(|| read_beside_each_other(&file));
    engine.log_durable(10);
}

#[test]
fn readers_wait_for_each_others_pins_beside_pages_that_are_being_written() {
    let memory = memory(16);
    let group = group_of(&memory, "engine", 64);
    let [written, read] = [2, 0].map(|ms| slow(&memory, &group, MS * ms));
    let _used = group.reserve(all_but(&group, 3)).unwrap();
    assert_few_refused(|| {
        let end = Instant::now() + Duration::from_millis(500);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let pages = (0..100).cycle().take_while(|_| Instant::now() < end);
                let refused = pages.filter(|page| {
                    let is_refused = is_refused(|| written.write_at(&[1], page * 3 * PAGE));
                    thread::sleep(MS / 5);
                    is_refused
                });
                refused.count() as u64
            });
            read_beside_each_other(&read) + writer.join().unwrap()
        })
    });
}

#[test]
fn who_has_no_anon_pages_to_write_is_not_told_that_they_cannot_be_swapped_out() {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let dead = Forgets(|_: &[u8], _| Err(io::Error::from_raw_os_error(libc::EIO)));
    let memory = builder.spill_store(Arc::new(dead)).build().unwrap();
    let other = group_of(&memory, "other", 64);
    let region = other.anon(1000).unwrap();
    let refused = (0..1000).find_map(|page| region.write_at(&[5; 4096], page * PAGE).err());
    assert!(
        matches!(refused, Some(Error::SwapOut { .. })),
        "{refused:?}"
    );
    let (group, file) = with_a_page_that_waits(&memory);
    let refuse = || group.reserve(ByteSize(63 * PAGE)).unwrap_err();
    let refused = refuse();
    assert!(matches!(refused, Error::OverLimit { .. }), "{refused}");
    // Nor who has one that nobody has written to.
    let clean = group.anon(1).unwrap();
    let pinned = clean.pin(0).unwrap();
    let refused = refuse();
    file.log_durable(10);
    assert!(matches!(refused, Error::OverLimit { .. }), "{refused}");
    drop(pinned);
}

#[test]
fn who_reads_waits_for_no_write_where_clean_pages_are_behind() {
    for policy in [
        Policy::Gated2q,
        Policy::Mglru,
        Policy::TwoList,
        Policy::Fifo,
    ] {
        read_beside_slow_writes(policy);
    }
}

/// Reads 10,000 pages in a group that has many pages whose store is slow.
fn read_beside_slow_writes(policy: Policy) {
    let memory = memory(128);
    let group = group_of(&memory, "group", 4096);
    group.set_policy(policy).unwrap();
    let takes_ms = Arc::new(AtomicU64::new(20));
    let (ms, nr_own) = (Arc::clone(&takes_ms), Arc::new(AtomicU64::new(0)));
    let (reader, nr_writes) = (thread::current().id(), Arc::clone(&nr_own));
    let store = Forgets(move |buf: &[u8], _| {
        thread::sleep(Duration::from_millis(ms.load(Ordering::Relaxed)));
        let is_own = thread::current().id() == reader;
        nr_writes.fetch_add(is_own.into(), Ordering::Relaxed);
        Ok(buf.len())
    });
    let written = memory.open_store(Box::new(store), "written", &group);
    let written = written.unwrap();
    for page in 0..700 {
        written.write_at(&[1], page * 2 * PAGE).unwrap();
    }
    let read = slow(&memory, &group, Duration::ZERO);
    read.advise(Hint::Random);
    let pages = (0..10_000_u64).map(|at| at * 7919 % 60_000);
    // Writes that the reader itself does inside a read.
    let nr_writes = pages.map(|page| {
        let before = nr_own.load(Ordering::Relaxed);
        drop(read.pin(page).unwrap());
        nr_own.load(Ordering::Relaxed) - before
    });
    let most = nr_writes.max().unwrap();
    takes_ms.store(0, Ordering::Relaxed);
    // All that were noted are 64.
    assert!(most < 8, "{policy:?}: {most} in one read");
}

#[test]
fn a_read_for_which_there_never_is_room_is_refused_at_once() {
    let memory = memory(32);
    let group = group_of(&memory, "full", 100);
    let file = slow(&memory, &group, Duration::ZERO);
    let _used = group.reserve(ByteSize(100 * PAGE)).unwrap();
    let before = nr_sleeps();
    assert!(file.pin(3).is_err());
    assert!(file.pin_many(&[3, 5]).is_err());
    // Each would wait 200 ms for others' pins.
    let nr_sleeps = nr_sleeps() - before;
    assert!(nr_sleeps < 8, "{nr_sleeps}");
}

#[test]
fn a_prefetch_writes_nothing_to_make_room() {
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = &builder.build().unwrap();
    let group = &group_of(memory, "engine", 128);
    let open = |disk: &Disk| {
        let store = Box::new(disk.clone());
        memory.open_store(store, "disk", group).unwrap()
    };
    let disk = Disk::default();
    let [written, wanted] = [&disk, &Disk::of(vec![7; 8 * 4096])].map(open);
    let alloc = || group.alloc(Order::new(0)).unwrap();
    let mut bufs: Vec<_> = (0..117).map(|_| alloc()).collect();
    (0..11).for_each(|page| drop(written.write_at(&[1], page * PAGE)));
    assert_eq!(wanted.prefetch(0..8), 0, "all that could go is dirty");
    assert_eq!(disk.state().nr_writes, 0);
    bufs.truncate(100);
    assert!(wanted.prefetch(0..8) > 0);
    // Who asks for a page has them written.
    bufs.extend(std::iter::from_fn(|| group.alloc(Order::new(0)).ok()));
    assert!(disk.state().nr_writes > 0);
}

#[test]
fn a_hit_writes_nothing_to_make_room_for_what_is_read_ahead() {
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = &builder.build().unwrap();
    let group = &group_of(memory, "engine", 128);
    let data = crate::data::numbered_file(64);
    let read = memory.open(data.path(), group).unwrap();
    let disk = Disk::default();
    let written = memory.open_store(Box::new(disk.clone()), "disk", group);
    let written = written.unwrap();
    // Windows of 2, 4 and 8 pages, of which the last begins at page 6.
    let mut pins: Vec<_> = (0..6).map(|page| read.pin(page).unwrap()).collect();
    let nr_pages = memory.stats().readahead_pages;
    assert_eq!(nr_pages, 14);
    while pins.len() < 13 {
        memory.tick();
        pins.extend(read.try_pin(pins.len() as u64 + 1).unwrap());
    }
    let nr_bufs = 128 - 11 - nr_pages;
    let alloc = |_| group.alloc(Order::new(0)).unwrap();
    let _bufs: Vec<_> = (0..nr_bufs).map(alloc).collect();
    (0..11).for_each(|page| drop(written.write_at(&[1], page * PAGE)));
    drop(read.pin(6).unwrap());
    assert_eq!(disk.state().nr_writes, 0);
    assert_eq!(memory.stats().readahead_pages, nr_pages);
}
