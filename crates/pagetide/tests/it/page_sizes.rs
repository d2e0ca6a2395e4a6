//! Files with pages of all sizes, and files whose pages begin behind a header, beside twins in
//! plain memory: on a disk that is watched, and on files of the system with tails of any length.

use crate::disk::{Disk, EIO, Fault};
use pagetide::{ByteSize, Content, Error, File, Hint, Hooks, Memory, OpenOptions, Order};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const PAGE: usize = 4096;

/// What is before the first page.
fn header(base: usize) -> Vec<u8> {
    (0..base)
        .map(|at| (at % 199).to_le_bytes()[0] | 1)
        .collect()
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end.max(1)
    }
}

/// A file and what is in it.
struct Twin {
    file: File,
    bytes: Vec<u8>,
    page_bytes: usize,
    random: Random,
    /// Never more than this.
    max_len: usize,
}

impl Twin {
    fn new(file: File, seed: u64) -> Twin {
        let page_bytes = file.page_bytes();
        Twin {
            file,
            bytes: Vec::new(),
            page_bytes,
            random: Random(seed),
            max_len: 5 * page_bytes + 3000,
        }
    }

    fn part(&mut self) -> (usize, usize) {
        let start = self.random.below(self.max_len);
        let longest = [9, 700, 2 * self.page_bytes][self.random.below(3)];
        let len = 1 + self.random.below(longest);
        (start, len.min(self.max_len - start))
    }

    fn write(&mut self, by_view: bool) {
        let (start, len) = self.part();
        let byte = self.random.below(255).to_le_bytes()[0] + 1;
        if by_view && start < self.bytes.len() {
            let page = start / self.page_bytes;
            let mut view = self.file.pin_mut(page as u64).unwrap();
            let skip = start % self.page_bytes;
            let end = (skip + len).min(view.len());
            view[skip..end].fill(byte);
            self.bytes[start..start + end - skip].fill(byte);
            return;
        }
        let end = start + len;
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[start..end].fill(byte);
        self.file.write_at(&vec![byte; len], start as u64).unwrap();
    }

    fn read(&mut self) {
        let (start, len) = self.part();
        let expected = &self.bytes[start.min(self.bytes.len())..];
        let expected = &expected[..len.min(expected.len())];
        let mut found = vec![0; len];
        let nr_read = self.file.read_at(&mut found, start as u64).unwrap();
        assert!(found[..nr_read] == *expected, "{start} and {len} more");
        match self.file.pin_range(start as u64..(start + len) as u64) {
            Ok(range) => assert!(range.slices().flatten().eq(expected)),
            Err(error) => {
                assert!(matches!(error, Error::PastEnd { .. }) && expected.is_empty());
            }
        }
        if start < self.bytes.len() {
            let page = start / self.page_bytes;
            let end = ((page + 1) * self.page_bytes).min(self.bytes.len());
            let view = self.file.pin(page as u64).unwrap();
            assert!(*view == self.bytes[page * self.page_bytes..end]);
        }
    }

    fn step(&mut self) {
        let (start, len) = self.part();
        let (from, to) = (start as u64, (start + len) as u64);
        match self.random.below(16) {
            0..6 => self.write(false),
            6 => self.write(true),
            7..11 => self.read(),
            11 => {
                self.file.set_len(from).unwrap();
                self.bytes.resize(start, 0);
            }
            12 => {
                self.file.punch(from..to).unwrap();
                let end = (start + len).min(self.bytes.len());
                self.bytes[start.min(end)..end].fill(0);
            }
            13 => self.file.flush_range(from..to).unwrap(),
            14 => {
                self.file.sync().unwrap();
                self.file.invalidate_range(from..to).unwrap();
            }
            _ => _ = self.file.prefetch(0..6),
        }
        assert_eq!(self.file.len(), self.bytes.len() as u64);
    }

    fn run(&mut self, nr_steps: u32) {
        for _ in 0..nr_steps {
            self.step();
        }
        // From one end to the other, ahead of which is read.
        self.file.advise(Hint::Sequential);
        self.file.sync().unwrap();
        self.file.invalidate_range(..).unwrap();
        let mut found = vec![0; self.bytes.len() + 1];
        let mut at = 0;
        while at < self.bytes.len() {
            let end = (at + self.page_bytes / 2 + 1).min(found.len());
            at += self.file.read_at(&mut found[at..end], at as u64).unwrap();
        }
        assert!(found[..at] == *self.bytes, "after all");
    }
}

fn memory() -> Memory {
    Memory::builder().budget(ByteSize::mib(32)).build().unwrap()
}

#[test]
fn pages_of_all_sizes_and_beginnings_on_a_store() {
    for order in 0..10 {
        for (seed, base) in [(1, 0), (2, 4096), (3, 8192 + 512), (4, 77)] {
            let memory = memory();
            let disk = Disk::of(header(base));
            let options = OpenOptions::new().order(Order::new(order));
            let options = options.base_offset(base as u64);
            let store = Box::new(disk.clone());
            let file = options.open_store(&memory, store, "disk", &memory.root());
            let mut twin = Twin::new(file.unwrap(), seed);
            twin.run(if order < 7 { 300 } else { 60 });
            let found = disk.state().durable.clone();
            assert!(found[..base] == *header(base), "the header has changed");
            assert!(found[base..] == twin.bytes, "order {order}, base {base}");
            assert_eq!(memory.stats().pages_lost, 0);
        }
    }
}

#[test]
fn pages_of_all_sizes_and_beginnings_on_files_of_the_system() {
    let folder = tempfile::tempdir().unwrap();
    for order in 0..10 {
        for (seed, base) in [(5, 0), (6, 4096), (7, 512), (8, 1001)] {
            let path = folder.path().join(format!("{order} {base}"));
            fs::write(&path, header(base)).unwrap();
            let memory = memory();
            let options = OpenOptions::new().write(true).order(Order::new(order));
            let options = options.base_offset(base as u64);
            let file = options.open(&memory, &path, &memory.root()).unwrap();
            let mut twin = Twin::new(file, seed);
            twin.run(if order < 7 { 120 } else { 40 });
            // As long as what was written, and no unit of the device longer.
            let found = fs::read(&path).unwrap();
            assert!(found[..base] == *header(base), "the header has changed");
            assert!(found[base..] == twin.bytes, "order {order}, base {base}");
            let bytes = twin.bytes;
            drop(twin.file);
            // And read by another memory, whose pages are as large or small.
            let memory = Memory::builder().budget(ByteSize::mib(32)).build().unwrap();
            for order in [order, 9 - order] {
                let options = OpenOptions::new().order(Order::new(order));
                let options = options.base_offset(base as u64);
                let file = options.open(&memory, &path, &memory.root()).unwrap();
                let mut found = vec![0; bytes.len() + 1];
                assert_eq!(file.read_at(&mut found, 0).unwrap(), bytes.len());
                assert!(found[..bytes.len()] == bytes);
            }
        }
    }
}

#[test]
fn pages_of_all_sizes_are_read_ahead_behind_a_header_too() {
    let folder = tempfile::tempdir().unwrap();
    for (order, base) in (0..10).flat_map(|order| [(order, 0), (order, 512)]) {
        let page_bytes = PAGE << order;
        let path = folder.path().join("ahead");
        let len = 11 * page_bytes + 1234;
        let content = |at: usize| (at % 253).to_le_bytes()[0] ^ (at >> 16).to_le_bytes()[0];
        let bytes: Vec<u8> = (0..len).map(content).collect();
        fs::write(&path, [header(base), bytes.clone()].concat()).unwrap();
        let memory = Memory::builder()
            .budget(ByteSize::mib(256))
            .build()
            .unwrap();
        let options = OpenOptions::new().order(Order::new(order));
        let options = options.base_offset(base as u64).readahead(ByteSize::mib(8));
        let file = options.open(&memory, &path, &memory.root()).unwrap();
        let mut found = vec![0; len];
        let mut at = 0;
        while at < len {
            let end = (at + page_bytes).min(len);
            at += file.read_at(&mut found[at..end], at as u64).unwrap();
        }
        assert!(found == bytes, "order {order}, base {base}");
        let nr_ahead = memory.stats().readahead_pages;
        assert!(
            (1..=12).contains(&nr_ahead),
            "order {order}: {nr_ahead} pages"
        );
    }
}

#[test]
fn a_file_that_ends_in_its_header_has_no_byte_and_gets_its_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short");
    fs::write(&path, b"head").unwrap();
    let memory = memory();
    let options = OpenOptions::new().write(true).base_offset(100);
    let file = options.open(&memory, &path, &memory.root()).unwrap();
    assert!(file.is_empty());
    assert_eq!(file.read_at(&mut [0; 9], 0).unwrap(), 0);
    file.write_at(b"first", 0).unwrap();
    file.sync().unwrap();
    let mut expected = b"head".to_vec();
    expected.resize(100, 0);
    expected.extend(b"first");
    assert_eq!(fs::read(&path).unwrap(), expected);
    // Truncating it leaves the header.
    let truncated = options.truncate(true).open(&memory, &path, &memory.root());
    assert!(truncated.unwrap().is_empty() && file.is_empty());
    assert_eq!(fs::read(&path).unwrap(), expected[..100]);
}

#[test]
fn one_beginning_for_those_who_write_and_any_for_those_who_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, [vec![1; PAGE], vec![2; PAGE]].concat()).unwrap();
    let memory = memory();
    let at = |base| OpenOptions::new().base_offset(base);
    let open = |options: OpenOptions| options.open(&memory, &path, &memory.root());
    let (whole, rest) = (open(at(0)).unwrap(), open(at(PAGE as u64)).unwrap());
    assert_eq!((whole.len(), rest.len()), (2 * PAGE as u64, PAGE as u64));
    assert_eq!((whole.pin(0).unwrap()[0], rest.pin(0).unwrap()[0]), (1, 2));
    let refused = open(at(0).write(true)).unwrap_err();
    let Error::Open { source, .. } = refused else {
        panic!("{refused}")
    };
    let open_as = "it is open with pages of 4096 bytes, the first at byte 4096";
    assert_eq!(source.to_string(), open_as);
    drop(rest);
    let writer = open(at(0).write(true)).unwrap();
    assert!(open(at(PAGE as u64)).is_err());
    drop((whole, writer));
    open(at(PAGE as u64).write(true)).unwrap();
    let far = open(at(u64::MAX)).unwrap_err();
    assert!(matches!(&far, Error::Open { source, .. }
        if source.kind() == std::io::ErrorKind::InvalidInput));
    let store = Box::new(Disk::default());
    let far = at(1 << 63).open_store(&memory, store, "disk", &memory.root());
    assert!(matches!(far, Err(Error::Open { .. })));
}

#[test]
fn behind_a_header_nothing_is_lost_when_any_call_of_the_store_fails() {
    const BASE: usize = 700;
    for from in 1.. {
        let memory = memory();
        let disk = Disk::of(header(BASE));
        let options = OpenOptions::new()
            .base_offset(BASE as u64)
            .order(Order::new(1));
        let store = Box::new(disk.clone());
        let file = options.open_store(&memory, store, "disk", &memory.root());
        let file = file.unwrap();
        disk.state().fault = Some((from, 1, Fault::Error(EIO)));
        let mut bytes = vec![3; 5 * PAGE];
        file.write_at(&bytes, 0).unwrap();
        let mut is_synced = file.sync().is_ok();
        if file.punch(10..3 * PAGE as u64).is_ok() {
            bytes[10..3 * PAGE].fill(0);
        } else {
            // The hole is there for who reads, or nothing has changed.
            let mut found = vec![1; bytes.len()];
            file.read_at(&mut found, 0).unwrap();
            assert!(found[10..3 * PAGE].iter().all(|&byte| byte == found[10]));
            assert!(found[..10] == [3; 10] && found[3 * PAGE..] == bytes[3 * PAGE..]);
            bytes = found;
        }
        if file.set_len(4 * PAGE as u64 + 1).is_ok() || file.len() == 4 * PAGE as u64 + 1 {
            bytes.truncate(4 * PAGE + 1);
        }
        is_synced &= file.sync().is_ok();
        let is_past = disk.state().nr_calls < from;
        assert!(
            is_synced || !is_past,
            "nothing failed, and it is not synced"
        );
        let mut found = vec![1; bytes.len()];
        let mut read = || file.read_at(&mut found, 0);
        let nr_read = read().or_else(|_| read());
        assert_eq!(nr_read.unwrap(), bytes.len());
        assert!(found == bytes, "call {from}");
        assert!(disk.state().bytes[..BASE] == *header(BASE));
        if is_past {
            assert!(disk.state().durable[BASE..] == bytes);
            return;
        }
    }
}

#[test]
fn a_header_that_is_written_meanwhile_fails_no_write() {
    let data = tempfile::NamedTempFile::new().unwrap();
    fs::write(data.path(), header(512)).unwrap();
    let memory = memory();
    let options = OpenOptions::new().write(true).base_offset(512);
    let file = options.open(&memory, data.path(), &memory.root()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Beside the first page's bytes, in one page of the kernel's.
            let owner = fs::File::options().write(true).open(data.path()).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                owner.write_all_at(&header(512), 0).unwrap();
            }
        });
        let synced = (0..=199).cycle().take(400).try_for_each(|round: u8| {
            // Two writes: they are under way at once, with no lock of the file's.
            file.write_at(&[round; PAGE], 0)?;
            file.write_at(&[round; PAGE], 2 * PAGE as u64)?;
            file.sync()
        });
        is_over.store(true, Ordering::Relaxed);
        synced.unwrap();
    });
    let found = fs::read(data.path()).unwrap();
    assert!(found[..512] == *header(512) && found[512..512 + PAGE] == [199; PAGE]);
}

/// Keeps a write waiting.
struct Slow {
    is_writing: Barrier,
    may_go: Barrier,
}

impl Hooks for Slow {
    fn before_write(&self, _page: u64, _bytes: &[u8], _instead: &mut [u8]) -> io::Result<Content> {
        self.is_writing.wait();
        self.may_go.wait();
        Ok(Content::AsIs)
    }
}

#[test]
fn who_opens_a_file_with_other_pages_waits_until_it_is_written_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, [1; 100]).unwrap();
    let memory = memory();
    let slow = Arc::new(Slow {
        is_writing: Barrier::new(2),
        may_go: Barrier::new(2),
    });
    let options = OpenOptions::new().write(true);
    let options = options.hooks(Arc::clone(&slow) as Arc<dyn Hooks>);
    let file = options.open(&memory, &path, &memory.root()).unwrap();
    file.write_at(&[2; 200], 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| drop(file));
        slow.is_writing.wait();
        let reader = scope.spawn(|| {
            let options = OpenOptions::new().order(Order::new(1));
            let file = options.open(&memory, &path, &memory.root()).unwrap();
            let mut bytes = vec![0; 300];
            let nr_read = file.read_at(&mut bytes, 0).unwrap();
            bytes.truncate(nr_read);
            bytes
        });
        // Whether it waits, only time tells.
        thread::sleep(Duration::from_millis(50));
        slow.may_go.wait();
        assert!(reader.join().unwrap() == [2; 200]);
    });
}
