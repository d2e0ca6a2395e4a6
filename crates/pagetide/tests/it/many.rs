//! Many pages at once: pinned together, prefetched, looked at without a read.

use crate::by_cpu;
use crate::data::numbered_file;
use crate::swift::{Watch, assert_within};
use pagetide::{Builder, ByteSize, Error, File, IoEngine, Memory, OpenOptions, Order, Page, Store};
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Each engine, with and without threads.
pub(crate) fn memories(mib: u64) -> Vec<Memory> {
    let builder = || Memory::builder().budget(by_cpu::mib(mib));
    let threads = || builder().io_engine(IoEngine::Threads);
    let builders = [
        builder(),
        builder().without_thread(),
        threads(),
        threads().without_thread(),
    ];
    builders.map(|builder| builder.build().unwrap()).into()
}

#[test]
fn a_setting_that_nobody_made_is_what_the_memory_chooses() {
    let chosen = |builder: Builder| builder.without_thread().build().unwrap().io_engine();
    let builder = || Memory::builder().budget(ByteSize::mib(8));
    let asked = || builder().io_engine(IoEngine::Threads);
    assert_eq!(chosen(asked()).reason.as_deref(), Some("as asked"));
    assert_eq!(chosen(asked().io_engine(None)), chosen(builder()));
}

fn is_ring(memory: &Memory) -> bool {
    memory.io_engine().engine == IoEngine::IoUring
}

/// The page number that a numbered page of 4 KiB has at its end and its beginning.
pub(crate) fn number(page: &[u8]) -> u64 {
    let last = page.len() - 8;
    assert_eq!(page[..8], page[last..]);
    u64::from_le_bytes(page[..8].try_into().unwrap())
}

pub(crate) fn numbers(pages: &[Page]) -> Vec<u64> {
    pages.iter().map(|page| number(page)).collect()
}

/// Numbers in a fixed disorder.
fn shuffled(nr_pages: u64) -> Vec<u64> {
    let mut pages: Vec<u64> = (0..nr_pages).collect();
    pages.sort_by_key(|page| page.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(20));
    pages
}

#[test]
fn pages_come_in_the_order_asked_for_and_twice_where_named_twice() {
    let data = numbered_file(300);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        let mut asked = shuffled(300);
        asked.extend([7, 299, 7, 0]);
        // Some are there already.
        let first = file.pin_many(&[5, 6, 290]).unwrap();
        assert_eq!(numbers(&first), [5, 6, 290]);
        let pages = file.pin_many(&asked).unwrap();
        assert_eq!(numbers(&pages), asked, "{}", memory.io_engine());
        assert_eq!(memory.stats().bytes_read, 300 * 4096);
        assert_eq!(group.misses(), 300);
        assert!(file.pin_many(&[]).unwrap().is_empty());
        drop((first, pages));
        assert_eq!(numbers(&file.pin_many(&asked).unwrap()), asked);
        assert_eq!(memory.stats().bytes_read, 300 * 4096);
    }
}

#[test]
fn large_pages_and_the_end_of_a_file_have_their_bytes() {
    let mut data = numbered_file(100);
    io::Write::write_all(&mut data, &[7; 100]).unwrap();
    for memory in memories(16) {
        for order in [0, 2, 4] {
            let group = memory.root().child(&format!("order {order}")).unwrap();
            let file = OpenOptions::new()
                .order(Order::new(order))
                .open(&memory, data.path(), &group)
                .unwrap();
            let frames = 1_u64 << order;
            let pages: Vec<u64> = (0..file.len().div_ceil(frames * 4096)).collect();
            let pinned = file.pin_many(&pages).unwrap();
            let small = pinned.iter().flat_map(|page| page.chunks(4096));
            for (at, small) in small.enumerate() {
                match at {
                    100 => assert_eq!(*small, [7; 100]),
                    _ => assert_eq!(number(small), at as u64),
                }
            }
            let past = file.pin_many(&[0, pages.len() as u64]).unwrap_err();
            assert!(matches!(past, Error::PastEnd { .. }));
        }
    }
}

#[test]
fn neighbours_are_one_read_and_a_batch_is_few_system_calls() {
    let data = numbered_file(1024);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        // As far as nothing is read ahead of who asks for 64 pages.
        let options = OpenOptions::new().readahead(ByteSize::kib(128));
        let file = options.open(&memory, data.path(), &group).unwrap();
        let in_order: Vec<u64> = (0..64).collect();
        assert_eq!(numbers(&file.pin_many(&in_order).unwrap()), in_order);
        let one = memory.stats();
        assert_eq!((one.batched_reads, one.batched_pages), (1, 64));
        assert_eq!(one.ring_enters, 0, "one read is one call by itself");
        let apart: Vec<u64> = (0..128).map(|page| 100 + page * 7).collect();
        assert_eq!(numbers(&file.pin_many(&apart).unwrap()), apart);
        let many = memory.stats();
        assert_eq!((many.batched_reads, many.batched_pages), (129, 192));
        let nr_calls = many.ring_enters;
        match is_ring(&memory) {
            // A set of bounce buffers or half of what is under way at each, unless a signal comes.
            true => assert!((1..=16).contains(&nr_calls), "{nr_calls}"),
            false => assert_eq!(nr_calls, 0),
        }
    }
}

/// A store that counts its reads, and fails or panics at one page.
#[derive(Clone, Default)]
struct Counting {
    reads: Arc<AtomicU64>,
    bad_page: Option<u64>,
    panics: bool,
}

const COUNTING_PAGES: u64 = 512;

impl Store for Counting {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(200));
        let page = offset / 4096;
        if self.bad_page == Some(page) {
            assert!(!self.panics, "a store that panics");
            return Err(io::Error::from_raw_os_error(5));
        }
        buf.copy_from_slice(&page.to_le_bytes().repeat(512));
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(COUNTING_PAGES * 4096)
    }
}

fn counting(memory: &Memory, store: &Counting) -> File {
    let group = memory.root().child("store").unwrap();
    let store = Box::new(store.clone());
    memory.open_store(store, "counting", &group).unwrap()
}

#[test]
fn who_asks_for_the_same_pages_reads_them_once() {
    for memory in memories(16) {
        let store = Counting::default();
        let file = counting(&memory, &store);
        std::thread::scope(|scope| {
            for thread in 0..6_u64 {
                let file = &file;
                scope.spawn(move || {
                    let pages: Vec<u64> = (thread * 8..thread * 8 + 64).rev().collect();
                    if thread % 2 == 0 {
                        file.prefetch(pages.iter().copied());
                    }
                    assert_eq!(numbers(&file.pin_many(&pages).unwrap()), pages);
                });
            }
        });
        assert_eq!(store.reads.load(Ordering::Relaxed), 5 * 8 + 64);
    }
}

#[test]
fn a_page_that_fails_is_named_and_the_others_stay() {
    for panics in [false, true] {
        for memory in memories(16) {
            let mut store = Counting::default();
            (store.bad_page, store.panics) = (Some(20), panics);
            let file = counting(&memory, &store);
            let pages: Vec<u64> = (0..40).collect();
            let pin = || file.pin_many(&pages).map(|_| ());
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(pin));
            if let Ok(failed) = failed {
                let error = failed.unwrap_err();
                assert_eq!(error.to_string(), "cannot read page 20 of counting");
            } else {
                assert!(panics, "only a store panics");
            }
            let rest: Vec<u64> = pages.iter().copied().filter(|&page| page != 20).collect();
            assert_eq!(numbers(&file.pin_many(&rest).unwrap()), rest);
            assert!(file.try_pin(20).unwrap().is_none());
        }
    }
}

#[test]
fn a_file_that_shrank_fails_where_it_ends() {
    let data = numbered_file(64);
    for memory in memories(16) {
        data.as_file().set_len(64 * 4096).unwrap();
        let group = memory.root().child("web").unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        data.as_file().set_len(10 * 4096).unwrap();
        let pages: Vec<u64> = (0..20).collect();
        let error = file.pin_many(&pages).unwrap_err();
        let is_end = |source: &io::Error| source.kind() == io::ErrorKind::UnexpectedEof;
        assert!(matches!(error, Error::Io { page: 10, source, .. } if is_end(&source)));
        // What is there was read.
        assert!((0..10).all(|page| file.try_pin(page).unwrap().is_some()));
        data.as_file().set_len(64 * 4096).unwrap();
        assert_eq!(file.pin_many(&pages).unwrap().len(), 20);
    }
}

#[test]
fn more_than_the_group_may_have_is_refused_at_once() {
    let data = numbered_file(256);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        let group = group.max(ByteSize::kib(64)).unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        let pages = shuffled(17);
        // It does not wait for its own pins.
        assert_within(Duration::from_millis(150), || {
            let watch = Watch::start();
            let refused = file.pin_many(&pages).unwrap_err();
            assert!(
                matches!(refused, Error::OverLimit { max_pages: 16, .. }),
                "{refused}"
            );
            watch.elapsed()
        });
        // Nothing is held: as many as there is room for can be had.
        let all = file.pin_many(&pages[..16]).unwrap();
        assert_eq!(numbers(&all), &pages[..16]);
        assert!(group.usage() <= ByteSize::kib(64));
    }
}

#[test]
fn batches_share_a_full_group() {
    let data = numbered_file(256);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        let group = group.max(ByteSize::kib(4 * 40)).unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..40 {
                        let pages = (0..16).map(|at| (at * 11 + round * 5 + thread * 17) % 256);
                        let pages: Vec<u64> = pages.collect();
                        match file.pin_many(&pages) {
                            Ok(pinned) => assert_eq!(numbers(&pinned), pages),
                            // Four batches do not fit at once, and one may starve.
                            Err(error) => assert!(matches!(error, Error::OverLimit { .. })),
                        }
                    }
                });
            }
        });
        assert!(group.usage() <= ByteSize::kib(4 * 40));
    }
}

#[test]
fn a_pin_budget_is_taken_for_all_or_none() {
    let data = numbered_file(64);
    let memory = &memories(16)[0];
    let group = memory.root().child("web").unwrap();
    group.set_pin_max(Some(ByteSize::kib(32)));
    let file = memory.open(data.path(), &group).unwrap();
    let refused = file.pin_many(&[0, 1, 2, 3, 4, 5, 6, 7, 7]).unwrap_err();
    assert!(matches!(refused, Error::PinLimit { asked_pages: 9, .. }));
    assert_eq!(group.pin_usage(), ByteSize(0));
    let pages = file.pin_many(&[0, 1, 2, 3, 4, 5, 7, 7]).unwrap();
    assert_eq!(group.pin_usage(), ByteSize::kib(32));
    assert!(matches!(file.try_pin(0), Err(Error::PinLimit { .. })));
    drop(pages);
    assert!(file.pin_many(&[0, 99]).is_err());
    assert_eq!(group.pin_usage(), ByteSize(0));
    let permit = group.pin_permit(4).unwrap();
    let pages = permit.pin_many(&file, &[1, 2, 3]).unwrap();
    assert!(matches!(
        permit.pin_many(&file, &[1, 2]),
        Err(Error::PermitSpent { .. })
    ));
    drop((pages, permit));
    assert_eq!(group.pin_usage(), ByteSize(0));
}

#[test]
fn writers_and_batches_of_the_same_pages_let_each_other_go_on() {
    let data = numbered_file(64);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        let file = &memory.open_rw(data.path(), &group).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                scope.spawn(move || {
                    for round in 0..200 {
                        let page = (round * 7 + thread) % 64;
                        let bytes = page.to_le_bytes().repeat(512);
                        file.write_at(&bytes, page * 4096).unwrap();
                    }
                });
                scope.spawn(move || {
                    for round in 0..100 {
                        // In both orders, and one of them twice.
                        let mut pages: Vec<u64> = (0..24).map(|at| (at * 3 + round) % 64).collect();
                        if thread == 0 {
                            pages.reverse();
                        }
                        pages.push(pages[0]);
                        assert_eq!(numbers(&file.pin_many(&pages).unwrap()), pages);
                    }
                });
            }
        });
    }
}

#[test]
fn a_batch_holds_nothing_while_it_waits_for_who_changes_a_page() {
    let data = numbered_file(64);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        let file = &memory.open_rw(data.path(), &group).unwrap();
        let change = file.pin_mut(10).unwrap();
        std::thread::scope(|scope| {
            let batch = scope.spawn(|| numbers(&file.pin_many(&[10, 5, 20]).unwrap()));
            // It came as far as the page that is changed: the one before was read.
            let begin = Instant::now();
            while file.try_pin(5).unwrap().is_none() {
                assert!(
                    begin.elapsed() < Duration::from_secs(20),
                    "the batch never began"
                );
            }
            let bytes = 5_u64.to_le_bytes().repeat(512);
            assert_eq!(file.write_at(&bytes, 5 * 4096).unwrap(), 4096);
            drop(change);
            assert_eq!(batch.join().unwrap(), [10, 5, 20]);
        });
    }
}

/// Until all of these pages are resident.
fn await_resident(memory: &Memory, file: &File, pages: std::ops::Range<u64>) {
    let begin = Instant::now();
    while !pages
        .clone()
        .all(|page| file.try_pin(page).unwrap().is_some())
    {
        let elapsed = begin.elapsed();
        assert!(elapsed < Duration::from_secs(20), "a prefetch does not end");
        memory.tick();
        std::thread::yield_now();
    }
}

#[test]
fn a_prefetch_brings_in_without_being_a_fault() {
    let data = numbered_file(256);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        assert_eq!(file.prefetch(0..100), 100);
        assert_eq!(file.prefetch([3, 4, 5]), 0);
        await_resident(&memory, &file, 0..100);
        assert_eq!(group.misses(), 0);
        let stats = memory.stats();
        assert_eq!((stats.bytes_read, stats.batched_reads), (100 * 4096, 2));
        // It ends where the file does.
        assert_eq!(file.prefetch(200..u64::MAX), 56);
        assert_eq!(file.prefetch([9_999, 120]), 0);
        let pages: Vec<u64> = (0..256).collect();
        assert_eq!(numbers(&file.pin_many(&pages).unwrap()), pages);
        assert_eq!(memory.stats().bytes_read, 256 * 4096);
        assert_eq!(group.misses(), 100);
    }
}

#[test]
fn a_page_that_a_prefetch_names_twice_is_read_and_counted_once() {
    let data = numbered_file(64);
    for memory in memories(16) {
        let group = memory.root().child("web").unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        // Of a group that has had no page, and of one that has.
        for first in [0, 20] {
            let named = [0, 0, 1, 0].map(|page| first + page);
            assert_eq!(file.prefetch(named), 2);
            await_resident(&memory, &file, first..first + 2);
        }
        assert_eq!(memory.stats().bytes_read, 4 * 4096);
    }
}

#[test]
fn a_prefetch_takes_a_sixteenth_and_evicts_no_more_than_it_brings_in() {
    let data = numbered_file(4096);
    for memory in memories(32) {
        let group = memory.root().child("web").unwrap();
        let group = group.max(ByteSize::mib(4)).unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        for page in 0..1024 {
            assert_eq!(number(&file.pin(page).unwrap()), page);
        }
        let before = memory.stats().pgsteal;
        assert_eq!(file.prefetch(2000..4000), 64);
        await_resident(&memory, &file, 2000..2064);
        let nr_evicted = memory.stats().pgsteal - before;
        // A batch of charges and one of reclaim more.
        assert!(nr_evicted <= 64 + 64 + 64, "{nr_evicted}");
        // A group full of pins: nothing can be had, and nothing is lost.
        let small = memory.root().child("small").unwrap();
        let small = small.max(ByteSize::kib(16)).unwrap();
        let other = file.for_group(&small);
        let pins = other.pin_many(&[3000, 3001, 3002, 3003]).unwrap();
        assert_eq!(other.prefetch(3500..3600), 0);
        assert_eq!(numbers(&pins), [3000, 3001, 3002, 3003]);
    }
}

#[test]
fn a_prefetch_that_fails_is_nobodys_error() {
    for memory in memories(16) {
        let store = Counting {
            bad_page: Some(5),
            ..Counting::default()
        };
        let file = counting(&memory, &store);
        assert_eq!(file.prefetch(0..10), 10);
        await_resident(&memory, &file, 6..10);
        assert!(matches!(file.pin(5), Err(Error::Io { page: 5, .. })));
    }
}

#[test]
fn a_file_is_closed_while_reads_are_under_way() {
    let data = numbered_file(2048);
    for memory in memories(64) {
        let group = memory.root().child("web").unwrap();
        for _ in 0..20 {
            let file = memory.open(data.path(), &group).unwrap();
            assert_eq!(file.prefetch(shuffled(512)), 512);
            drop(file);
            assert_eq!(
                memory.stats().resident_pages,
                0,
                "a closed file keeps no page"
            );
        }
        let store = Counting::default();
        let file = counting(&memory, &store);
        assert_eq!(file.prefetch(0..64), 64);
        drop(file);
        assert_eq!(store.reads.load(Ordering::Relaxed), 64);
        // And a memory with its last file.
        let file = memory.open(data.path(), &group).unwrap();
        file.prefetch(shuffled(512));
        drop((group, memory));
        drop(file);
    }
}

#[test]
fn without_threads_waiters_reap_and_a_descriptor_tells() {
    let data = numbered_file(512);
    let builder = Memory::builder().budget(ByteSize::mib(16)).without_thread();
    let memory = builder.build().unwrap();
    let group = memory.root().child("web").unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    if !is_ring(&memory) {
        assert!(memory.event_fd().is_none());
        return;
    }
    // Whoever wants a page of it ends the read himself; nobody ticks.
    assert_eq!(file.prefetch(0..64), 64);
    std::thread::scope(|scope| {
        for page in [0, 63, 63] {
            let file = &file;
            scope.spawn(move || assert_eq!(number(&file.pin(page).unwrap()), page));
        }
    });
    let event = memory.event_fd().unwrap();
    let is_readable = |longest: i32| {
        let mut fds = [rustix::event::PollFd::new(
            &event,
            rustix::event::PollFlags::IN,
        )];
        let longest = rustix::event::Timespec {
            tv_sec: longest.into(),
            tv_nsec: 0,
        };
        rustix::event::poll(&mut fds, Some(&longest)).unwrap() > 0
    };
    memory.tick();
    assert!(!is_readable(0));
    assert_eq!(file.prefetch(100..164), 64);
    assert!(is_readable(20));
    memory.tick();
    assert_eq!(number(&file.try_pin(100).unwrap().unwrap()), 100);
    assert!(!is_readable(0), "a tick has seen to it");
    assert!(memory_with_threads().event_fd().is_none());
}

fn memory_with_threads() -> Memory {
    Memory::builder().budget(ByteSize::mib(8)).build().unwrap()
}

#[test]
fn a_look_reads_nothing() {
    let data = numbered_file(16);
    let memory = memory_with_threads();
    let group = memory.root().child("web").unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    assert!(file.try_pin(3).unwrap().is_none());
    assert_eq!((memory.stats().bytes_read, group.misses()), (0, 0));
    drop(file.pin(3).unwrap());
    assert_eq!(number(&file.try_pin(3).unwrap().unwrap()), 3);
    let past = file.try_pin(16).unwrap_err();
    assert!(matches!(past, Error::PastEnd { page: 16, .. }));
}

#[test]
fn several_buffers_are_filled_in_turn() {
    let data = numbered_file(4);
    let memory = memory_with_threads();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let (mut a, mut b, mut c) = ([0; 5000], [0; 3192], [9; 20_000]);
    let mut bufs = [&mut a[..], &mut [], &mut b, &mut c].map(IoSliceMut::new);
    assert_eq!(file.read_vectored_at(&mut bufs, 0).unwrap(), 4 * 4096);
    let all: Vec<u8> = [&a[..], &b, &c[..8192]].concat();
    assert!(
        all.chunks(4096)
            .enumerate()
            .all(|(at, page)| number(page) == at as u64)
    );
    assert!(c[8192..].iter().all(|&byte| byte == 9));
    assert_eq!(file.read_vectored_at(&mut [], 0).unwrap(), 0);
}

#[test]
fn the_engine_is_chosen_and_shown() {
    let shown: Vec<String> = memories(8)
        .iter()
        .map(|memory| memory.io_engine().to_string())
        .collect();
    assert_eq!(shown[2..], ["threads (as asked)", "threads (as asked)"]);
    // Where io_uring is not allowed, it says why.
    assert!(shown[..2].iter().all(
        |shown| shown.starts_with("io_uring") || shown.starts_with("threads (io_uring_setup: ")
    ));
}
