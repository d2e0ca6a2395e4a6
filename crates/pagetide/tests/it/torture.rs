//! Readers, writers, cuts, eviction, writeback, pins and handles that come and go, all at once over
//! one file: what a reader sees of a page is what some order of the writes left.
//!
//! Each word of the file tells its page, its place there, and the write that it is of; which words
//! a write covers follows from its number. So of any page that is read, these are checked:
//! 1. Every word is of its own place, and of a write that covers it.
//! 2. The writes that are seen can be put in an order: whoever is seen at a word came after all
//!    others that cover it.
//! 3. Nothing is seen of a word that was overwritten before the read began.
//!
//! Five seconds, or as many as `PAGETIDE_STRESS_SECONDS` says.

use pagetide::{ByteSize, Error, File, Group, Memory};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const WORDS: u64 = 512;
const WRITERS: usize = 3;
const NR_WRITERS: u64 = WRITERS as u64;
/// The file is never cut below this page, so that its words are never zero.
const NR_KEPT: u64 = 40;
const NR_PAGES: u64 = 80;
/// Half of the file's pages.
const LIMIT_KIB: u64 = 4 * NR_PAGES / 2;
/// Later writes of a word's writer that are looked at.
const LOOK_BACK: u64 = 256;

pub(crate) fn seconds() -> Duration {
    let text = std::env::var("PAGETIDE_STRESS_SECONDS");
    Duration::from_secs(text.map_or(5, |text| text.parse().unwrap()))
}

fn mixed(seed: u64) -> u64 {
    let mixed = (seed ^ seed >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 16
}

/// A write: words `start..end` of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Write {
    writer: u64,
    number: u64,
}

impl Write {
    /// A few words, a page, or up to three pages, anywhere; the first writes of all fill the file.
    fn words(self) -> std::ops::Range<u64> {
        if self.number == 0 {
            return 0..NR_PAGES * WORDS;
        }
        let random = mixed(self.number * NR_WRITERS + self.writer);
        let page = random % NR_PAGES;
        let (start, len) = match random >> 20 & 3 {
            0 => (page * WORDS, WORDS),
            1 => (
                page * WORDS + (random >> 24) % WORDS,
                1 + (random >> 34) % 16,
            ),
            2 => (
                page * WORDS + (random >> 24) % WORDS,
                1 + (random >> 34) % WORDS,
            ),
            _ => (
                page * WORDS + (random >> 24) % WORDS,
                1 + (random >> 34) % (3 * WORDS),
            ),
        };
        start..(start + len).min(NR_PAGES * WORDS)
    }

    /// 20 bits for the place, 4 for the writer, 40 for the number; never 0.
    fn word(self, at: u64) -> u64 {
        at << 44 | (self.writer + 1) << 40 | self.number
    }

    fn bytes(self) -> Vec<u8> {
        let words = self.words().map(|at| self.word(at).to_le_bytes());
        words.flatten().collect()
    }
}

/// What was written to one file.
#[derive(Default)]
struct Written {
    /// The last write of each writer that has ended.
    done: [AtomicU64; WRITERS],
}

impl Written {
    fn write(&self, file: &File, write: Write) {
        let words = write.words();
        let is_changed = write.number.is_multiple_of(3) && Written::change(file, write);
        if !is_changed {
            // A page that others keep pinned: none does so for long, but the machine may be slow.
            while let Err(error) = file.write_at(&write.bytes(), words.start * 8) {
                let is_busy = matches!(error, Error::PageBusy { .. } | Error::OverLimit { .. });
                assert!(is_busy, "{error:?}");
            }
        }
        let at = usize::try_from(write.writer).unwrap();
        self.done[at].store(write.number, Ordering::Release);
    }

    /// Writes by a view, where it is in one page and before the end of the file.
    fn change(file: &File, write: Write) -> bool {
        let words = write.words();
        let page = words.start / WORDS;
        if words.end > (page + 1) * WORDS {
            return false;
        }
        let mut view = match file.pin_mut(page) {
            Ok(view) => view,
            Err(Error::PageBusy { .. } | Error::PastEnd { .. } | Error::OverLimit { .. }) => {
                return false;
            }
            Err(error) => panic!("{error}"),
        };
        let byte = |word: u64| usize::try_from((word - page * WORDS) * 8).unwrap();
        if byte(words.end) > view.len() {
            return false;
        }
        view[byte(words.start)..byte(words.end)].copy_from_slice(&write.bytes());
        true
    }

    fn done(&self) -> [u64; WRITERS] {
        self.done
            .each_ref()
            .map(|done| done.load(Ordering::Acquire))
    }

    /// Checks what was read of a page. `done`: before it was read.
    fn check(page: u64, bytes: &[u8], done: &[u64], may_be_zero: bool) {
        let mut seen: BTreeMap<Write, Vec<u64>> = BTreeMap::new();
        for (at, word) in (page * WORDS..).zip(bytes.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().unwrap());
            if word == 0 {
                assert!(
                    may_be_zero,
                    "word {at} is zero, and the file was never cut there"
                );
                continue;
            }
            let write = Write {
                writer: (word >> 40 & 15).wrapping_sub(1),
                number: word & ((1 << 40) - 1),
            };
            assert_eq!(word >> 44, at, "word {at} is another's: {write:?}");
            assert!(
                write.writer < NR_WRITERS,
                "word {at} is of nobody: {write:?}"
            );
            assert!(write.words().contains(&at), "word {at} is not of {write:?}");
            seen.entry(write).or_default().push(at);
        }
        for (&write, words) in &seen {
            let done = done[usize::try_from(write.writer).unwrap()];
            for number in write.number + 1..=done.min(write.number + LOOK_BACK) {
                let later = Write { number, ..write }.words();
                let stale = words.iter().find(|at| later.contains(at));
                assert_eq!(stale, None, "{write:?} was overwritten there by {number}");
            }
        }
        if !order_of(&seen) {
            let first_and_last = |words: &Vec<u64>| (words[0], words[words.len() - 1]);
            let seen: Vec<_> = seen
                .iter()
                .map(|(write, words)| (write, write.words(), words.len(), first_and_last(words)))
                .collect();
            panic!("page {page}: no order of these writes leaves it: {seen:?}, done {done:?}");
        }
    }
}

/// Whether the writes that are seen at these words can have happened one after the other.
fn order_of(seen: &BTreeMap<Write, Vec<u64>>) -> bool {
    let is_before = |one: &Write, other: &Write, at: &[u64]| {
        let of_one = one.writer == other.writer && one.number < other.number;
        of_one || at.iter().any(|at| one.words().contains(at))
    };
    let mut left: BTreeSet<Write> = seen.keys().copied().collect();
    while !left.is_empty() {
        // The last one: it comes before none of those that are left.
        let last = left.iter().copied().find(|one| {
            let mut others = left.iter().filter(|&other| other != one);
            others.all(|other| !is_before(one, other, &seen[other]))
        });
        match last {
            Some(last) => left.remove(&last),
            None => return false,
        };
    }
    true
}

/// What all threads have.
struct World<'a> {
    memory: &'a Memory,
    group: &'a Group,
    path: &'a Path,
    file: &'a File,
    written: Written,
    is_over: AtomicBool,
    nr_checks: AtomicU64,
}

impl World<'_> {
    fn is_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn until_over(&self, seed: u64, mut step: impl FnMut(u64)) {
        let mut number = seed << 40;
        while self.is_on() {
            number += 1;
            step(mixed(number));
        }
    }

    fn read(&self, file: &File, random: u64) {
        let page = random % NR_PAGES;
        let done = self.written.done();
        let mut bytes = [0; PAGE];
        match file.read_at(&mut bytes, page * PAGE as u64) {
            Ok(nr_read) => self.check(page, &bytes[..nr_read], &done),
            // The others' pins and dirty pages fill the group for longer than a reader waits.
            Err(Error::OverLimit { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    /// Bytes under a pin stay.
    fn pin(&self, file: &File, random: u64) {
        let page = random % NR_PAGES;
        let done = self.written.done();
        let pinned = match file.pin(page) {
            Err(Error::PastEnd { .. }) if page >= NR_KEPT => return,
            Err(Error::OverLimit { .. }) => return,
            pinned => pinned.unwrap(),
        };
        let before = pinned.to_vec();
        if random & 1 << 50 == 0 {
            std::thread::yield_now();
        }
        self.check(page, &before, &done);
        assert!(*pinned == before[..], "page {page} changed under a pin");
    }

    /// Several at once.
    fn pin_many(&self, file: &File, random: u64) {
        let pages = [0, 8, 16, 24].map(|shift| (random >> shift) % NR_PAGES);
        let done = self.written.done();
        match file.pin_many(&pages) {
            Ok(pinned) => {
                for (&page, pinned) in pages.iter().zip(&pinned) {
                    self.check(page, pinned, &done);
                }
            }
            Err(Error::PastEnd { page, .. }) if page >= NR_KEPT => {}
            Err(Error::OverLimit { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    fn check(&self, page: u64, bytes: &[u8], done: &[u64]) {
        assert!(
            page >= NR_KEPT || bytes.len() == PAGE,
            "page {page} is there"
        );
        Written::check(page, bytes, done, page >= NR_KEPT);
        self.nr_checks.fetch_add(1, Ordering::Relaxed);
    }

    fn writer(&self, writer: u64) {
        for number in 1.. {
            if !self.is_on() {
                break;
            }
            self.written.write(self.file, Write { writer, number });
        }
    }

    /// Makes the file shorter and longer.
    fn cutter(&self) {
        self.until_over(11, |random| {
            let bytes = NR_KEPT * PAGE as u64 + random % ((NR_PAGES - NR_KEPT) * PAGE as u64);
            // The end of a word: the rest of one would be no word.
            let len = bytes / 8 * 8;
            match self.file.set_len(len) {
                Ok(()) | Err(Error::PageBusy { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            std::thread::sleep(Duration::from_millis(random >> 20 & 3));
        });
    }

    /// Writes back, evicts, moves the limit.
    fn pusher(&self) {
        self.until_over(12, |random| {
            match random & 7 {
                0..3 => self.retry(|| self.file.sync()),
                3..5 => self.retry(|| self.file.flush_range(random % (1 << 18)..)),
                5 if random & 8 != 0 => {
                    let first = (random >> 20) % NR_PAGES;
                    self.file.prefetch(first..first + 8);
                }
                5 => {
                    let _some = self.group.reclaim(ByteSize::kib(64));
                }
                6 => {
                    // Full of pins or dirty pages for now: the limit holds all the same.
                    let _still_over = self.group.set_max(ByteSize::kib(LIMIT_KIB / 2));
                    std::thread::yield_now();
                    self.group.set_max(ByteSize::kib(LIMIT_KIB)).unwrap();
                }
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        });
    }

    fn retry(&self, step: impl Fn() -> Result<(), Error>) {
        match step() {
            Ok(()) | Err(Error::PageBusy { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Opens the file, reads, and closes it.
    fn opener(&self) {
        self.until_over(13, |random| {
            let file = match random & 1 << 30 {
                0 => self.memory.open_rw(self.path, self.group),
                _ => self.memory.open(self.path, self.group),
            };
            let file = file.unwrap();
            self.read(&file, random);
            self.pin(&file, random >> 8);
        });
    }
}

fn memory() -> (Memory, Group) {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let group = memory.root().child("small").unwrap();
    let group = group.max(ByteSize::kib(LIMIT_KIB)).unwrap();
    (memory, group)
}

fn fill(path: &Path, writer: u64) {
    fs::write(path, Write { writer, number: 0 }.bytes()).unwrap();
}

#[test]
fn everything_at_once_over_one_file_leaves_what_some_order_of_writes_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("data");
    fill(path, 0);
    let (memory, group) = &memory();
    let file = &memory.open_rw(path, group).unwrap();
    let world = &World {
        memory,
        group,
        path,
        file,
        written: Written::default(),
        is_over: AtomicBool::new(false),
        nr_checks: AtomicU64::new(0),
    };
    let end = Instant::now() + seconds();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for writer in 0..NR_WRITERS {
            threads.push(scope.spawn(move || world.writer(writer)));
        }
        for seed in 0..2 {
            threads.push(scope.spawn(move || {
                world.until_over(seed, |random| world.read(file, random));
            }));
        }
        threads.push(scope.spawn(|| world.until_over(2, |random| world.pin(file, random))));
        threads.push(scope.spawn(|| world.until_over(3, |random| world.pin_many(file, random))));
        threads.push(scope.spawn(|| world.cutter()));
        threads.push(scope.spawn(|| world.pusher()));
        threads.push(scope.spawn(|| world.opener()));
        // Who fails ends all.
        while Instant::now() < end && !threads.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        world.is_over.store(true, Ordering::Relaxed);
    });
    file.sync().unwrap();
    let mut bytes = vec![0; usize::try_from(NR_PAGES + 1).unwrap() * PAGE];
    let nr_read = file.read_at(&mut bytes, 0).unwrap();
    for (page, bytes) in (0..).zip(bytes[..nr_read].chunks(PAGE)) {
        world.check(page, bytes, &world.written.done());
    }
    assert!(
        fs::read(path).unwrap() == bytes[..nr_read],
        "the disk has other bytes"
    );
    let (nr_checks, done) = (&world.nr_checks, world.written.done());
    println!(
        "{} pages checked, writes {done:?}, {:?}",
        nr_checks.load(Ordering::Relaxed),
        memory.stats()
    );
    assert_eq!(memory.stats().pages_lost, 0);
}

/// Nobody else has the file open: each drop is the last one, and each open finds what was written.
#[test]
fn files_that_are_dropped_and_opened_at_once_keep_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("data");
    fill(path, 0);
    let (memory, group) = &memory();
    let written = &Written::default();
    let end = Instant::now() + seconds() / 2;
    std::thread::scope(|scope| {
        for writer in 0..NR_WRITERS {
            scope.spawn(move || {
                for number in (1..).take_while(|_| Instant::now() < end) {
                    let write = Write { writer, number };
                    let file = memory.open_rw(path, group).unwrap();
                    written.write(&file, write);
                    let page = mixed(number) % NR_PAGES;
                    let done = written.done();
                    let mut bytes = [0; PAGE];
                    assert_eq!(file.read_at(&mut bytes, page * PAGE as u64).unwrap(), PAGE);
                    Written::check(page, &bytes, &done, false);
                }
            });
        }
    });
    assert_eq!(memory.stats().pages_lost, 0);
    let bytes = fs::read(path).unwrap();
    for (page, bytes) in (0..).zip(bytes.chunks(PAGE)) {
        Written::check(page, bytes, &written.done(), false);
    }
}

#[test]
#[should_panic(expected = "no order of these writes")]
fn a_mixed_page_is_found_out() {
    // Two writes of whole pages over the same one.
    let whole = |writer| {
        let writes = (1..).map(move |number| Write { writer, number });
        let mut whole = writes.filter(|write| write.words() == (5 * WORDS..6 * WORDS));
        whole.next().unwrap()
    };
    let mut bytes = whole(0).bytes();
    bytes[..1000].copy_from_slice(&whole(1).bytes()[..1000]);
    Written::check(5, &bytes, &[0; WRITERS], false);
}

#[test]
#[should_panic(expected = "was overwritten there")]
fn a_stale_page_is_found_out() {
    let writes = (1..).map(|number| Write { writer: 0, number });
    let mut over = writes.filter(|write| write.words().contains(&(7 * WORDS + 9)));
    let (old, new) = (over.next().unwrap(), over.next().unwrap());
    assert!(new.number - old.number <= LOOK_BACK);
    let mut bytes = vec![0; PAGE];
    bytes[72..80].copy_from_slice(&old.word(7 * WORDS + 9).to_le_bytes());
    Written::check(7, &bytes, &[new.number, 0, 0], true);
}
