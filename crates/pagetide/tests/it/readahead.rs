//! Reading ahead: how many reads it takes, whose bytes, and what it may not do.

use crate::data::numbered_file;
use futures_executor::block_on;
use pagetide::{
    Builder, ByteSize, File, Hint, IoEngine, Memory, OpenOptions, Order, Page, PinnedRange, Stats,
    Store,
};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NR_PAGES: u64 = 1024;
const PAGE: u64 = 4096;
const BYTES: usize = 4096;

/// Reads 128 KiB ahead, whatever the device is set to.
fn builder() -> Builder {
    let builder = Memory::builder().budget(ByteSize::mib(64));
    builder.readahead(ByteSize::kib(128))
}

/// Reads a page and checks it.
fn read(file: &File, page: u64) {
    let mut bytes = [0; BYTES];
    assert_eq!(file.read_at(&mut bytes, page * PAGE).unwrap(), bytes.len());
    let expected = page.to_le_bytes();
    assert!(bytes.chunks(8).all(|word| word == expected), "page {page}");
}

/// Reads a whole file through a memory, once what is read ahead is in.
fn scan(memory: &Memory, path: &Path, read_page: impl Fn(&File, u64)) -> Stats {
    let file = memory.open(path, &memory.root()).unwrap();
    (0..NR_PAGES).for_each(|page| read_page(&file, page));
    memory.stats()
}

#[test]
fn a_scan_costs_a_read_a_window_and_reads_no_page_twice() {
    let data = numbered_file(NR_PAGES);
    let pin = |file: &File, page: u64| {
        assert_eq!(file.pin(page).unwrap()[..8], page.to_le_bytes());
    };
    for engine in [IoEngine::IoUring, IoEngine::Threads] {
        for read_page in [read, pin] {
            let memory = builder().io_engine(engine).build().unwrap();
            let stats = scan(&memory, data.path(), read_page);
            // Windows of 4, 8, 16, then 32 pages.
            assert_eq!(stats.batched_reads, 35, "{stats:?}");
            assert_eq!(stats.readahead_pages, NR_PAGES);
            assert_eq!(stats.readahead_lost, 0);
            assert_eq!(
                memory.root().misses(),
                1,
                "all others were there, or on their way"
            );
            assert_eq!(stats.bytes_read, NR_PAGES * PAGE);
            // Of the last window nobody tells.
            assert!((NR_PAGES - 32..=NR_PAGES).contains(&stats.readahead_passed));
        }
    }
}

/// Ways to change a word of a page, whose others stay.
const CHANGES: [fn(&File, u64); 4] = [
    |file, page| file.pin_mut(page).unwrap()[8..16].fill(7),
    |file, page| _ = file.write_at(&[7; 8], page * PAGE + 8).unwrap(),
    |file, page| block_on(file.pin_mut_async(page)).unwrap()[8..16].fill(7),
    |file, page| _ = block_on(file.write_at_async(&[7; 8], page * PAGE + 8)).unwrap(),
];

#[test]
fn who_changes_pages_in_order_has_them_read_ahead() {
    for change in CHANGES {
        let data = numbered_file(NR_PAGES);
        let memory = builder().build().unwrap();
        let file = memory.open_rw(data.path(), &memory.root()).unwrap();
        (0..NR_PAGES).for_each(|page| change(&file, page));
        let stats = memory.stats();
        assert_eq!(stats.batched_reads, 35, "{stats:?}");
        assert_eq!(stats.readahead_pages, NR_PAGES);
        assert_eq!(stats.bytes_read, NR_PAGES * PAGE);
        assert_eq!(memory.root().misses(), 1);
        file.sync().unwrap();
        let written = fs::read(data.path()).unwrap();
        for (page, bytes) in (0_u64..).zip(written.chunks(BYTES)) {
            let mut expected = page.to_le_bytes().repeat(BYTES / 8);
            expected[8..16].fill(7);
            assert!(bytes == expected, "page {page}");
        }
    }
}

/// Pins several pages that follow each other, and shows the first word of the last one.
type PinRun = fn(&File, &[u64]) -> [u8; 8];

const RUNS: [PinRun; 4] = [
    |file, run| last_of(&file.pin_many(run).unwrap()),
    |file, run| last_of(&block_on(file.pin_many_async(run)).unwrap()),
    |file, run| last_in(&file.pin_range(within(run)).unwrap()),
    |file, run| last_in(&block_on(file.pin_range_async(within(run))).unwrap()),
];

fn within(run: &[u64]) -> Range<u64> {
    run[0] * PAGE + 8..(run[run.len() - 1] + 1) * PAGE
}

fn last_of(pages: &[Page]) -> [u8; 8] {
    pages.last().unwrap()[..8].try_into().unwrap()
}

fn last_in(range: &PinnedRange) -> [u8; 8] {
    range.slices().last().unwrap()[..8].try_into().unwrap()
}

#[test]
fn who_asks_for_a_few_pages_after_the_other_has_more_read_ahead() {
    let data = numbered_file(NR_PAGES);
    for pin_run in RUNS {
        let memory = builder().build().unwrap();
        let file = memory.open(data.path(), &memory.root()).unwrap();
        let pages: Vec<u64> = (0..NR_PAGES).collect();
        for run in pages.chunks(8) {
            assert_eq!(pin_run(&file, run), run[7].to_le_bytes());
        }
        let stats = memory.stats();
        // The first ones are read by themselves.
        assert_eq!(stats.readahead_pages, NR_PAGES - 8, "{stats:?}");
        assert_eq!(stats.batched_reads, 34);
        assert_eq!(stats.bytes_read, NR_PAGES * PAGE);
        assert_eq!(memory.root().misses(), 8);
        // Here and there, no more than is asked for; nor is it of more than a window at once.
        file.invalidate_range(..).unwrap();
        let before = memory.stats();
        for first in [900, 300, 600, 100] {
            pin_run(&file, &pages[first..][..8]);
        }
        (0..2).for_each(|_| _ = pin_run(&file, &pages[700..][..40]));
        let stats = memory.stats();
        assert_eq!(stats.readahead_pages, before.readahead_pages);
        assert_eq!(stats.bytes_read - before.bytes_read, 72 * PAGE);
    }
}

#[test]
fn of_what_is_changed_as_a_whole_nothing_is_read_ahead() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().build().unwrap();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    // Up to a window's marker.
    (0..5).for_each(|page| read(&file, page));
    let before = memory.stats().readahead_pages;
    for page in 0..NR_PAGES {
        file.write_at(&[7; BYTES], page * PAGE).unwrap();
        file.pin_new(page).unwrap()[0] = 7;
    }
    assert_eq!(memory.stats().readahead_pages, before);
}

#[test]
fn who_misses_a_page_reads_the_window_from_there_on_himself() {
    let data = numbered_file(NR_PAGES);
    for engine in [IoEngine::IoUring, IoEngine::Threads] {
        let memory = builder().io_engine(engine).build().unwrap();
        let file = memory.open(data.path(), &memory.root()).unwrap();
        read(&file, 0);
        // Nobody else was asked, and nothing is on its way.
        let is_there = |page| file.try_pin(page).unwrap().is_some();
        assert!((0..4).all(is_there) && !is_there(4));
        let stats = memory.stats();
        assert_eq!((stats.batched_reads, stats.ring_enters), (1, 0));
    }
}

#[test]
fn without_threads_the_reader_itself_reads_a_window() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().without_thread().build().unwrap();
    let stats = scan(&memory, data.path(), read);
    assert_eq!(
        (stats.batched_reads, stats.bytes_read),
        (35, NR_PAGES * PAGE)
    );
}

#[test]
fn one_large_request_is_read_by_windows() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let mut bytes = vec![0; 1024 * BYTES];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    let words = bytes.chunks(BYTES).zip(0_u64..);
    assert!(
        words
            .clone()
            .all(|(bytes, page)| bytes[..8] == page.to_le_bytes())
    );
    let stats = memory.stats();
    assert_eq!(
        (stats.batched_reads, stats.bytes_read),
        (32, NR_PAGES * PAGE)
    );
}

#[test]
fn hints_and_options_say_how_far() {
    let data = numbered_file(NR_PAGES);
    let nr_reads = |builder: Builder, options: OpenOptions, hint: Hint| {
        let memory = builder.build().unwrap();
        let file = options.open(&memory, data.path(), &memory.root()).unwrap();
        file.advise(hint);
        // Clones read as far.
        let file = file.clone();
        (0..NR_PAGES).for_each(|page| read(&file, page));
        let stats = memory.stats();
        assert_eq!(stats.bytes_read, NR_PAGES * PAGE);
        assert_eq!(stats.batched_pages, stats.readahead_pages);
        stats.batched_reads
    };
    let (normal, new) = (Hint::Normal, OpenOptions::new);
    assert_eq!(nr_reads(builder(), new(), normal), 35);
    // Windows of 4, 8, 16, 32, then 64 pages.
    assert_eq!(nr_reads(builder(), new(), Hint::Sequential), 20);
    assert_eq!(nr_reads(builder(), new(), Hint::Random), 0);
    let none = ByteSize::b(0);
    assert_eq!(nr_reads(builder().readahead(none), new(), normal), 0);
    assert_eq!(nr_reads(builder(), new().readahead(none), normal), 0);
    let most = ByteSize::kib(64);
    assert_eq!(
        nr_reads(builder().readahead(none), new().readahead(most), normal),
        67
    );
    // A page of 64 KiB is two to a window.
    assert_eq!(nr_reads(builder(), new().order(Order::new(4)), normal), 32);
}

#[test]
fn reads_here_and_there_read_nothing_ahead() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    (1..300).for_each(|nr| read(&file, nr * 389 % NR_PAGES));
    let stats = memory.stats();
    assert_eq!(stats.bytes_read, 299 * PAGE);
    assert_eq!((stats.readahead_pages, stats.readahead_lost), (0, 0));
}

#[test]
fn readers_of_one_handle_have_a_window_each() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    for page in 0..NR_PAGES / 4 {
        (0..4).for_each(|reader| read(&file, reader * NR_PAGES / 4 + page));
    }
    let stats = memory.stats();
    assert!(stats.batched_reads < 4 * 15, "{stats:?}");
    assert!(stats.bytes_read == NR_PAGES * PAGE, "{stats:?}");
}

#[test]
fn a_small_group_reads_less_ahead_and_keeps_its_limit() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().build().unwrap();
    for (nr_pages, max) in [(512, 8), (64, 1), (16, 0), (2, 0)] {
        let group = memory.root().child(&format!("of {nr_pages}")).unwrap();
        group.set_max(ByteSize::kib(nr_pages * 4)).unwrap();
        let file = memory.open(data.path(), &group).unwrap();
        let before = memory.stats();
        (0..NR_PAGES).for_each(|page| {
            read(&file, page);
            assert!(group.usage().as_u64() <= nr_pages * PAGE);
        });
        let after = memory.stats();
        // A batch of reclaim in the midst of a window divides its read.
        let nr_reads = after.batched_reads - before.batched_reads;
        match max {
            0 => assert_eq!(nr_reads, 0),
            max => assert!(nr_reads < NR_PAGES / max + 16, "{nr_reads} for {nr_pages}"),
        }
        let nr_bytes = after.bytes_read - before.bytes_read;
        // In the smallest, a page may be gone again where its reader is kept waiting.
        let once = NR_PAGES * PAGE;
        let is_about_once = (once..=once + once / 32).contains(&nr_bytes);
        assert!(is_about_once, "of {nr_pages}: {nr_bytes} of {once}");
    }
}

#[test]
fn above_its_high_a_group_reads_only_what_it_asks_for() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().build().unwrap();
    let group = memory.root().child("slow").unwrap();
    let _held = group.alloc(Order::new(6)).unwrap();
    group.set_high(ByteSize::kib(128));
    let file = memory.open(data.path(), &group).unwrap();
    (0..20).for_each(|page| read(&file, page));
    assert_eq!(memory.stats().readahead_pages, 0);
}

#[test]
fn a_file_that_is_cut_meanwhile_is_read_to_its_new_end() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().build().unwrap();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    for page in 0..300 {
        read(&file, page);
    }
    // In the middle of a window, and of a page.
    file.set_len(305 * PAGE + 100).unwrap();
    (300..305).for_each(|page| read(&file, page));
    let mut bytes = [1; BYTES];
    assert_eq!(file.read_at(&mut bytes, 305 * PAGE).unwrap(), 100);
    assert_eq!(file.read_at(&mut bytes, 306 * PAGE).unwrap(), 0);
    assert!(file.pin(306).is_err());
    // Longer again: what is behind the cut is zeros.
    file.set_len(400 * PAGE).unwrap();
    for page in 306..400 {
        assert_eq!(file.read_at(&mut bytes, page * PAGE).unwrap(), bytes.len());
        assert_eq!(bytes, [0; BYTES], "page {page}");
    }
}

#[test]
fn a_file_that_ends_sooner_than_it_says_fails_only_who_reads_there() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    // Behind the memory's back.
    data.as_file().set_len(10 * PAGE).unwrap();
    (0..10).for_each(|page| read(&file, page));
    assert!(file.pin(10).is_err());
}

/// Numbered pages, one of which cannot be read.
struct Flawed {
    bad: u64,
    nr_reads: Arc<AtomicU64>,
}

impl Store for Flawed {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.nr_reads.fetch_add(1, Ordering::Relaxed);
        if offset / PAGE == self.bad {
            return Err(io::Error::from_raw_os_error(5));
        }
        for (word, at) in buf.chunks_mut(8).zip((offset..).step_by(8)) {
            word.copy_from_slice(&(at / PAGE).to_le_bytes()[..word.len()]);
        }
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(NR_PAGES * PAGE)
    }
}

#[test]
fn a_page_that_cannot_be_read_fails_only_those_who_read_it() {
    for has_threads in [true, false] {
        let nr_reads = Arc::new(AtomicU64::new(0));
        let store = Flawed {
            bad: 107,
            nr_reads: Arc::clone(&nr_reads),
        };
        let builder = match has_threads {
            true => builder(),
            false => builder().without_thread(),
        };
        let memory = builder.build().unwrap();
        let root = memory.root();
        let file = memory.open_store(Box::new(store), "flawed", &root);
        let file = file.unwrap();
        (0..107).for_each(|page| read(&file, page));
        assert!(file.pin(107).is_err());
        (108..NR_PAGES).for_each(|page| read(&file, page));
        assert!(file.pin(107).is_err(), "and again");
        // A read that failed was tried again, by whoever came to the page.
        let nr_reads = nr_reads.load(Ordering::Relaxed);
        assert!(
            (NR_PAGES + 1..NR_PAGES + 6).contains(&nr_reads),
            "{nr_reads}"
        );
        assert_eq!(memory.stats().readahead_pages > 0, has_threads);
    }
}

#[test]
fn readers_from_many_threads_get_the_right_bytes() {
    let data = numbered_file(NR_PAGES);
    let memory = builder().build().unwrap();
    let group = memory.root().child("crowd").unwrap();
    group.set_max(ByteSize::kib(400 * 4)).unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let file = &file;
            scope.spawn(move || {
                let start = reader * 131 % NR_PAGES;
                (0..NR_PAGES).for_each(|page| read(file, (start + page) % NR_PAGES));
            });
        }
    });
    let stats = memory.stats();
    assert!(stats.readahead_pages > 0);
    assert!(group.usage().as_u64() <= 400 * PAGE);
}

/// What a call asks for is read together where nothing is read ahead, and no more than that.
#[test]
fn who_reads_here_and_there_has_all_of_a_span_by_one_read() {
    const SPAN: usize = 64;
    const SPAN_PAGES: u64 = 64;
    let data = numbered_file(NR_PAGES);
    let random = builder();
    let none = builder().readahead(ByteSize(0));
    for (builder, hint) in [(random, Hint::Random), (none, Hint::Normal)] {
        let memory = builder.build().unwrap();
        let file = memory.open(data.path(), &memory.root()).unwrap();
        file.advise(hint);
        for first in [512, 0, 900] {
            let before = memory.stats();
            let mut bytes = vec![0; SPAN * BYTES];
            let read = file.read_at(&mut bytes, first * PAGE).unwrap();
            assert_eq!(read, bytes.len());
            for (page, bytes) in (first..).zip(bytes.chunks(BYTES)) {
                assert!(bytes.chunks(8).all(|word| word == page.to_le_bytes()));
            }
            let stats = memory.stats();
            // A batch of reclaim would divide it; there is none.
            assert_eq!(stats.batched_reads - before.batched_reads, 1);
            assert_eq!(stats.bytes_read - before.bytes_read, SPAN_PAGES * PAGE);
            assert_eq!(stats.readahead_pages, 0);
        }
        assert_eq!(memory.root().misses(), 3 * SPAN_PAGES);
    }
}
