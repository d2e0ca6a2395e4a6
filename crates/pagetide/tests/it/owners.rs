//! Threads that each have a part of one file for themselves, and change it in every way there is,
//! beside others who write back, evict, look again and open the file: each finds what it left.
//!
//! Five seconds, or as many as `PAGETIDE_STRESS_SECONDS` says.

use crate::page_sizes::Random;
use crate::torture::seconds;
use pagetide::{ByteSize, Content, Error, File, Group, Hooks, Memory, OpenOptions, Order};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Who has a part of the file; the last one has its end.
const OWNERS: usize = 4;
/// Pages of a part.
const PART: usize = 7;

/// Puts other bytes in the place of those that are written, and them back.
struct Masked(AtomicU64);

fn mask(page: u64, bytes: &mut [u8]) {
    let key = (page * 37 + 11).to_le_bytes()[0];
    bytes.iter_mut().for_each(|byte| {
        // What is zero stays: a hole comes as zeros.
        if *byte != 0 && *byte != key {
            *byte ^= key;
        }
    });
}

impl Hooks for Masked {
    fn log_position(&self, page: u64, _bytes: &[u8]) -> u64 {
        page % 5
    }

    fn flush_log(&self, position: u64) -> io::Result<u64> {
        // Every now and then it is behind.
        match self.0.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => Ok(position / 2),
            _ => Ok(position),
        }
    }

    fn before_write(&self, page: u64, bytes: &[u8], instead: &mut [u8]) -> io::Result<Content> {
        instead.copy_from_slice(bytes);
        mask(page, instead);
        Ok(Content::Instead)
    }

    fn after_read(&self, page: u64, bytes: &mut [u8]) -> io::Result<()> {
        mask(page, bytes);
        Ok(())
    }
}

struct World<'a> {
    memory: &'a Memory,
    group: &'a Group,
    options: &'a OpenOptions,
    path: &'a Path,
    base: u64,
    is_plain: bool,
    is_over: AtomicBool,
    nr_steps: AtomicU64,
}

/// Of errors that others' pins and dirty pages bring.
fn is_passing(error: &Error) -> bool {
    matches!(
        error,
        Error::PageBusy { .. }
            | Error::OverLimit { .. }
            | Error::LogBehind { .. }
            | Error::DirtyLimit { .. }
            | Error::PageDirty { .. }
    )
}

fn passing<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(error) if is_passing(&error) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Again until it is done.
fn done<T>(mut act: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        if let Some(done) = passing(act()) {
            return done;
        }
    }
}

struct Owner<'a> {
    world: &'a World<'a>,
    file: File,
    start: usize,
    /// What it has there; the last owner's may end before its part does.
    bytes: Vec<u8>,
    has_end: bool,
    page_bytes: usize,
    random: Random,
}

impl<'a> Owner<'a> {
    fn new(world: &'a World<'a>, file: File, number: usize) -> Owner<'a> {
        let page_bytes = file.page_bytes();
        let len = PART * page_bytes;
        Owner {
            world,
            file,
            start: number * len,
            bytes: vec![0; len],
            has_end: number + 1 == OWNERS,
            page_bytes,
            random: Random(number as u64 + 77),
        }
    }

    fn most(&self) -> usize {
        PART * self.page_bytes
    }

    /// A place in its part.
    fn part(&mut self) -> (usize, usize) {
        let most = self.most();
        let (page, pages) = (self.random.below(PART), 1 + self.random.below(3));
        let (at, len) = match self.random.below(3) {
            0 => (page * self.page_bytes, pages * self.page_bytes),
            1 => (self.random.below(most), 1 + self.random.below(600)),
            _ => (
                self.random.below(most),
                1 + self.random.below(2 * self.page_bytes),
            ),
        };
        (at, len.min(most - at))
    }

    fn offset(&self, at: usize) -> u64 {
        (self.start + at) as u64
    }

    fn write(&mut self) {
        let (at, mut len) = self.part();
        if !self.has_end {
            len = len.min(self.bytes.len() - at);
        }
        let byte = 1 + self.random.below(255).to_le_bytes()[0] % 250;
        let bytes: Vec<u8> = (0..len)
            .map(|at| byte.wrapping_add((at / 300).to_le_bytes()[0]) | 1)
            .collect();
        done(|| self.file.write_at(&bytes, self.offset(at)));
        self.bytes.resize(self.bytes.len().max(at + len), 0);
        self.bytes[at..at + len].copy_from_slice(&bytes);
    }

    fn view(&mut self) {
        let page = self.random.below(PART);
        let first = page * self.page_bytes;
        let number = self.offset(first) / self.page_bytes as u64;
        if first >= self.bytes.len() {
            assert!(matches!(
                self.file.pin_mut(number),
                Err(Error::PastEnd { .. })
            ));
            return;
        }
        let end = (first + self.page_bytes).min(self.bytes.len());
        let byte = 1 + self.random.below(250).to_le_bytes()[0];
        let is_pinned_first = self.random.below(3) == 0;
        let view = match is_pinned_first {
            false => passing(self.file.pin_mut(number)),
            true => {
                let page = done(|| self.file.pin(number));
                assert!(*page == self.bytes[first..end], "page {number}");
                self.file.upgrade(page).ok()
            }
        };
        let Some(mut view) = view else { return };
        assert!(*view == self.bytes[first..end], "page {number}");
        let (skip, len) = (self.random.below(view.len()), 1 + self.random.below(900));
        let to = (skip + len).min(view.len());
        view[skip..to].fill(byte);
        self.bytes[first + skip..first + to].fill(byte);
        if self.random.below(2) == 0 {
            let page = view.downgrade();
            assert!(*page == self.bytes[first..end]);
        }
    }

    fn new_page(&mut self) {
        let page = self.random.below(PART);
        let first = page * self.page_bytes;
        let number = self.offset(first) / self.page_bytes as u64;
        let Some(mut view) = passing(self.file.pin_new(number)) else {
            return;
        };
        let byte = self.random.below(250).to_le_bytes()[0];
        view[..700].fill(byte);
        drop(view);
        let end = first + self.page_bytes;
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[first..end].fill(0);
        self.bytes[first..first + 700].fill(byte);
    }

    fn punch(&mut self) {
        let (at, len) = self.part();
        let end = if self.has_end && self.random.below(3) == 0 {
            u64::MAX
        } else {
            self.offset(at + len)
        };
        done(|| self.file.punch(self.offset(at)..end));
        let to = usize::try_from(end - self.start as u64)
            .map_or(usize::MAX, |to| to)
            .min(self.bytes.len());
        if at < to {
            self.bytes[at..to].fill(0);
        }
    }

    fn set_len(&mut self) {
        let len = match self.random.below(2) {
            0 => self.random.below(self.most()),
            _ => self.random.below(PART) * self.page_bytes,
        };
        done(|| self.file.set_len(self.offset(len)));
        self.bytes.resize(len, 0);
        assert_eq!(self.file.len(), self.offset(len));
    }

    fn read(&mut self) {
        let (at, len) = self.part();
        let expected = &self.bytes[at.min(self.bytes.len())..];
        let expected = &expected[..len.min(expected.len())];
        let mut found = vec![9; len];
        let nr_read = done(|| self.file.read_at(&mut found, self.offset(at)));
        assert_eq!(nr_read, expected.len(), "at {at}");
        if let Some(wrong) = (0..nr_read).find(|&at| found[at] != expected[at]) {
            panic!(
                "byte {} + {at} + {wrong} is {}, not {}",
                self.start, found[wrong], expected[wrong]
            );
        }
        if self.random.below(4) == 0 && !expected.is_empty() {
            let range = self.offset(at)..self.offset(at + expected.len());
            if let Some(range) = passing(self.file.pin_range(range)) {
                assert!(range.slices().flatten().eq(expected), "{at} and {len} more");
            }
        }
    }

    fn flush(&mut self) {
        let (at, len) = self.part();
        let range = self.offset(at)..self.offset(at + len);
        let flushed = match self.random.below(2) {
            0 => self.file.flush_range(range),
            _ => self.file.sync_range(range),
        };
        if passing(flushed).is_none() || !self.world.is_plain {
            return;
        }
        let expected = &self.bytes[at.min(self.bytes.len())..];
        let expected = &expected[..len.min(expected.len())];
        let mut found = vec![0; expected.len()];
        let file = fs::File::open(self.world.path).unwrap();
        let nr_read = file
            .read_at(&mut found, self.world.base + self.offset(at))
            .unwrap();
        if nr_read < found.len() {
            found[nr_read..].fill(0);
        }
        assert!(found == expected, "the disk has other bytes");
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..5 => self.write(),
            5..7 => self.view(),
            7..9 => self.new_page(),
            9..12 => self.punch(),
            12 if self.has_end => self.set_len(),
            12..17 => self.read(),
            17 => self.flush(),
            18 => {
                let (at, len) = self.part();
                let range = self.offset(at)..self.offset(at + len);
                passing(self.file.invalidate_range(range));
            }
            _ => {
                self.file = self.file.clone();
            }
        }
        self.world.nr_steps.fetch_add(1, Ordering::Relaxed);
    }

    fn run(mut self) -> (usize, Vec<u8>) {
        while !self.world.is_over.load(Ordering::Relaxed) {
            self.step();
        }
        (self.start, self.bytes)
    }
}

impl World<'_> {
    /// Has all go on for some time; what they left in the file.
    fn all_at_once(&self, file: &File, for_how_long: Duration) -> Vec<u8> {
        let end = Instant::now() + for_how_long;
        let owned: Vec<_> = thread::scope(|scope| {
            let owner = |number| Owner::new(self, file.clone(), number);
            let owners: Vec<_> = (0..OWNERS)
                .map(|number| scope.spawn(move || owner(number).run()))
                .collect();
            let pushers: Vec<_> = (0..2)
                .map(|number| scope.spawn(move || self.push(file, number + 5)))
                .collect();
            // Who fails ends all.
            while Instant::now() < end
                && !owners.iter().any(|one| one.is_finished())
                && !pushers.iter().any(|one| one.is_finished())
            {
                thread::sleep(Duration::from_millis(10));
            }
            self.is_over.store(true, Ordering::Relaxed);
            owners.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let mut left = Vec::new();
        for (start, bytes) in owned {
            left.resize(start, 0);
            left.extend(bytes);
        }
        left
    }

    fn push(&self, file: &File, number: u64) {
        let mut random = Random(number);
        let nr_pages = (OWNERS * PART) as u64;
        while !self.is_over.load(Ordering::Relaxed) {
            match random.below(9) {
                0 => _ = passing(file.sync()),
                1 => _ = passing(file.flush_range(..)),
                2 => _ = self.group.reclaim(ByteSize::kib(64)),
                3 => _ = passing(file.invalidate_range(..)),
                4 => _ = file.prefetch(0..nr_pages),
                5 => {
                    let page = random.below(OWNERS * PART) as u64;
                    match file.pin(page) {
                        Ok(page) => {
                            let before = page.to_vec();
                            thread::yield_now();
                            assert!(*page == before[..], "bytes under a pin have changed");
                        }
                        Err(Error::PastEnd { .. }) => {}
                        Err(error) => assert!(is_passing(&error), "{error:?}"),
                    }
                }
                6 => {
                    let file = self
                        .options
                        .open(self.memory, self.path, self.group)
                        .unwrap();
                    let mut bytes = vec![0; 5000];
                    passing(file.read_at(&mut bytes, random.below(1 << 17) as u64));
                }
                7 => thread::sleep(Duration::from_millis(1)),
                _ => {
                    let nr_pages = random.below(OWNERS * PART) as u64;
                    file.log_durable(nr_pages % 5);
                }
            }
        }
    }
}

fn run(order: u8, base: u64, has_hooks: bool, for_how_long: Duration) {
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("data");
    fs::write(path, vec![0xAA; usize::try_from(base).unwrap()]).unwrap();
    let memory = &Memory::builder().budget(ByteSize::mib(64)).build().unwrap();
    let group = memory.root().child("small").unwrap();
    let page_bytes = 4096 << order;
    let hooks = if has_hooks {
        page_bytes.max(64 << 10)
    } else {
        0
    };
    let group = &group
        .max(ByteSize((OWNERS * PART) as u64 * page_bytes / 2 + hooks))
        .unwrap();
    let mut options = OpenOptions::new()
        .write(true)
        .order(Order::new(order))
        .base_offset(base);
    if has_hooks {
        options = options.hooks(Arc::new(Masked(AtomicU64::new(0))));
    }
    let options = &options;
    let file = &options.open(memory, path, group).unwrap();
    file.set_len((OWNERS * PART) as u64 * page_bytes).unwrap();
    let world = &World {
        memory,
        group,
        options,
        path,
        base,
        is_plain: !has_hooks,
        is_over: AtomicBool::new(false),
        nr_steps: AtomicU64::new(0),
    };
    let expected = &world.all_at_once(file, for_how_long)[..];
    done(|| file.sync());
    assert_eq!(file.len(), expected.len() as u64);
    let mut found = vec![1; expected.len()];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), expected.len());
    assert!(found == expected);
    let on_disk = fs::read(path).unwrap();
    let (header, on_disk) = on_disk.split_at(usize::try_from(base).unwrap());
    assert!(header.iter().all(|&byte| byte == 0xAA));
    assert!(has_hooks || on_disk == expected);
    assert_eq!(on_disk.len(), expected.len());
    println!(
        "{} steps, {:?}",
        world.nr_steps.load(Ordering::Relaxed),
        memory.stats()
    );
    assert_eq!(memory.stats().pages_lost, 0);
    assert_eq!(memory.audit(), Ok(()));
}

#[test]
fn owners_of_parts_find_what_they_left() {
    for (order, base, has_hooks) in [
        (0, 0, false),
        (0, 512, false),
        (2, 4096, false),
        (0, 0, true),
        (5, 1001, true),
    ] {
        println!("{order} {base} {has_hooks}");
        run(order, base, has_hooks, seconds() / 5);
    }
}
