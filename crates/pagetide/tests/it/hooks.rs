//! Engines: checksums, encryption, a log that is written first, and hooks that fail.

use crate::disk::{Disk, forward};
use pagetide::{ByteSize, Content, Error, File, Group, Hooks, Memory, OpenOptions, Store};
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 4096;
const P: u64 = PAGE as u64;

fn memory() -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    builder.without_thread().build().unwrap()
}

/// A group with room for so many pages.
fn group(memory: &Memory, nr_pages: u64) -> Group {
    let group = memory.root().child("small").unwrap();
    group.max(ByteSize::kib(4 * nr_pages)).unwrap()
}

fn open(memory: &Memory, group: &Group, disk: &Disk, hooks: Arc<dyn Hooks>) -> File {
    let options = OpenOptions::new().hooks(hooks);
    let store = Box::new(disk.clone());
    options.open_store(memory, store, "disk", group).unwrap()
}

/// The last eight bytes of each page are the sum of the others.
struct Checksums;

fn sum(bytes: &[u8]) -> [u8; 8] {
    let mix = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix).to_le_bytes()
}

impl Hooks for Checksums {
    fn before_write(&self, _page: u64, bytes: &[u8], instead: &mut [u8]) -> io::Result<Content> {
        instead.copy_from_slice(bytes);
        let (content, end) = instead.split_at_mut(PAGE - 8);
        end.copy_from_slice(&sum(content));
        Ok(Content::Instead)
    }

    fn after_read(&self, page: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (content, end) = bytes.split_at(PAGE - 8);
        let is_hole = bytes.iter().all(|&byte| byte == 0);
        match is_hole || end == sum(content) {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("page {page}"),
            )),
        }
    }
}

#[test]
fn a_flipped_bit_is_an_error_for_all_who_read_it_and_is_not_cached() {
    let (disk, memory) = (Disk::default(), memory());
    let file = open(&memory, &memory.root(), &disk, Arc::new(Checksums));
    for page in 0..8 {
        file.pin_new(page).unwrap()[..100].fill(1);
    }
    file.sync().unwrap();
    file.invalidate_range(..).unwrap();
    let flip = || disk.state().bytes[3 * PAGE + 50] ^= 4;
    flip();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let error = file.pin(3).unwrap_err();
                let Error::Io {
                    page: 3, source, ..
                } = error
                else {
                    panic!("{error}");
                };
                assert_eq!(source.kind(), io::ErrorKind::InvalidData);
                assert_eq!(source.to_string(), "page 3");
            });
        }
    });
    assert!(file.write_at(b"x", 3 * P + 7).is_err(), "of a part");
    assert!(file.pin(2).unwrap()[..100] == [1; 100]);
    flip();
    assert!(file.pin(3).unwrap()[..100] == [1; 100]);
}

/// Each page under a key of its own.
struct Xor;

fn xor(page: u64, from: &[u8], to: &mut [u8]) {
    let key = sum(&page.to_le_bytes());
    for (at, (from, to)) in from.iter().zip(to).enumerate() {
        *to = from ^ key[at % 8];
    }
}

impl Hooks for Xor {
    fn before_write(&self, page: u64, bytes: &[u8], instead: &mut [u8]) -> io::Result<Content> {
        xor(page, bytes, instead);
        Ok(Content::Instead)
    }

    fn after_read(&self, page: u64, bytes: &mut [u8]) -> io::Result<()> {
        let cipher = bytes.to_vec();
        xor(page, &cipher, bytes);
        Ok(())
    }
}

#[test]
fn the_store_never_sees_plain_text_and_readers_see_nothing_else() {
    const NR_PAGES: u64 = 100;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let memory = memory();
    let group = group(&memory, 48);
    let hooks: Arc<dyn Hooks> = Arc::new(Xor);
    let options = OpenOptions::new().write(true).create(true);
    let options = options.hooks(Arc::clone(&hooks));
    let file = options.open(&memory, &path, &group).unwrap();
    let plain = |page: u64| [b"plain text", &page.to_le_bytes()[..]].concat();
    for page in 0..NR_PAGES {
        let mut view = file.pin_new(page).unwrap();
        view[40..58].copy_from_slice(&plain(page));
    }
    file.sync().unwrap();
    let on_disk = fs::read(&path).unwrap();
    assert_eq!(on_disk.len() as u64, NR_PAGES * P);
    assert!(on_disk.windows(10).all(|bytes| bytes != b"plain text"));
    file.invalidate_range(..).unwrap();
    let pages: Vec<u64> = (10..26).collect();
    for (page, view) in pages.iter().zip(file.pin_many(&pages).unwrap()) {
        assert_eq!(view[40..58], plain(*page));
    }
    for page in 0..NR_PAGES {
        assert_eq!(file.pin(page).unwrap()[40..58], plain(page));
    }
    // Who opens it again shares them, or means the same.
    let reader = memory.open(&path, &group).unwrap();
    assert_eq!(reader.pin(5).unwrap()[40..58], plain(5));
    // It costs that group nothing, which has no room for a buffer of the hooks.
    let narrow = memory.root().child("narrow").unwrap();
    let narrow = narrow.max(ByteSize::kib(8)).unwrap();
    assert!(options.open(&memory, &path, &narrow).is_ok());
    let other = options.clone().hooks(Arc::new(Xor));
    assert!(matches!(
        other.open(&memory, &path, &group),
        Err(Error::Open { .. })
    ));
}

/// A log of which only positions count, and a store that refuses pages that are ahead of it.
#[derive(Default)]
struct Log {
    /// Of the newest record.
    end: AtomicU64,
    durable: AtomicU64,
    is_broken: AtomicBool,
    nr_flushes: AtomicU64,
}

fn position_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

impl Hooks for Log {
    fn log_position(&self, _page: u64, bytes: &[u8]) -> u64 {
        position_of(bytes)
    }

    fn flush_log(&self, position: u64) -> io::Result<u64> {
        self.nr_flushes.fetch_add(1, Ordering::Relaxed);
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(28));
        }
        let end = self.end.load(Ordering::Relaxed);
        assert!(position <= end, "no page is newer than the log");
        self.durable.fetch_max(end, Ordering::Relaxed);
        Ok(end)
    }
}

struct Checked {
    disk: Disk,
    log: Arc<Log>,
}

impl Store for Checked {
    forward!(disk: read_at, len, is_writable, sync, set_len);

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let durable = self.log.durable.load(Ordering::Relaxed);
        for page in buf.chunks(PAGE) {
            assert!(position_of(page) <= durable, "ahead of the log");
        }
        self.disk.write_at(buf, offset)
    }
}

/// A file of so many pages whose store is behind its log.
fn logged(memory: &Memory, group: &Group) -> (Arc<Log>, Disk, File) {
    let (log, disk) = (Arc::new(Log::default()), Disk::default());
    let store = Checked {
        disk: disk.clone(),
        log: Arc::clone(&log),
    };
    let options = OpenOptions::new().hooks(Arc::clone(&log) as Arc<dyn Hooks>);
    let file = options.open_store(memory, Box::new(store), "disk", group);
    (log, disk, file.unwrap())
}

/// A change of a page, in the log first.
fn change(log: &Log, file: &File, page: u64) -> Result<u64, Error> {
    let mut view = match page * P < file.len() {
        true => file.pin_mut(page)?,
        false => file.pin_new(page)?,
    };
    let position = log.end.fetch_add(1, Ordering::Relaxed) + 1;
    view[..8].copy_from_slice(&position.to_le_bytes());
    view[8..].fill(position.to_le_bytes()[0]);
    Ok(position)
}

#[test]
fn no_page_is_on_the_store_before_its_log_whatever_wants_it_written() {
    const NR_PAGES: u64 = 60;
    for seed in 1..6_u64 {
        let memory = memory();
        let group = group(&memory, 40);
        let (log, disk, file) = logged(&memory, &group);
        let mut newest = vec![0; usize::try_from(NR_PAGES).unwrap()];
        let mut random = seed;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..2000 {
            let page = next(NR_PAGES);
            match next(20) {
                0 => file.flush_range(page * P..).unwrap(),
                1 => drop(group.reclaim(ByteSize::kib(64))),
                2 => {
                    let end = log.end.load(Ordering::Relaxed);
                    log.durable.fetch_max(end, Ordering::Relaxed);
                    file.log_durable(end);
                }
                3..8 if page * P < file.len() => {
                    let found = position_of(&file.pin(page).unwrap());
                    assert_eq!(found, newest[usize::try_from(page).unwrap()]);
                }
                _ => newest[usize::try_from(page).unwrap()] = change(&log, &file, page).unwrap(),
            }
            // A crash now: what is there after it is no newer than the log.
            let durable = log.durable.load(Ordering::Relaxed);
            let image = disk.crash(|| true);
            let mut pages = image.chunks_exact(PAGE);
            assert!(pages.all(|page| position_of(page) <= durable));
        }
        file.sync().unwrap();
        for (page, &newest) in newest.iter().enumerate() {
            let durable = disk.state().durable.clone();
            let found = durable.get(page * PAGE..page * PAGE + 8);
            assert_eq!(found.map_or(0, position_of), newest, "page {page}");
        }
    }
}

/// Breaks the log and changes pages until there are too many that wait for it; which could not be.
fn change_until_stopped(log: &Log, file: &File) -> u64 {
    log.is_broken.store(true, Ordering::Relaxed);
    let stopped = (0..200).find_map(|page| Some((page, change(log, file, page).err()?)));
    let (page, error) = stopped.expect("more dirty pages than the group has room for");
    assert!(matches!(error, Error::DirtyLimit { .. }), "{error}");
    page
}

#[test]
fn without_the_log_nothing_is_written_nobody_hangs_and_the_log_cures_it() {
    let memory = memory();
    let group = group(&memory, 64);
    let (log, disk, file) = logged(&memory, &group);
    change_until_stopped(&log, &file);
    let nr_flushes = log.nr_flushes.load(Ordering::Relaxed);
    let error = file.sync().unwrap_err();
    let Error::LogBehind {
        dirty_pages,
        durable: 0,
        source,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(source.raw_os_error(), Some(28));
    assert!(dirty_pages > 5 && log.nr_flushes.load(Ordering::Relaxed) > nr_flushes);
    assert!(disk.state().bytes.is_empty());
    let file = file.close().unwrap_err().into_file();
    // The log itself, not by way of the hook.
    let end = log.end.load(Ordering::Relaxed);
    log.durable.store(end, Ordering::Relaxed);
    file.log_durable(end);
    file.sync().unwrap();
    assert_eq!(disk.state().durable.len() as u64, file.len());
    change(&log, &file, 0).unwrap();
    log.is_broken.store(false, Ordering::Relaxed);
    file.sync().unwrap();
    assert_eq!(memory.stats().pages_lost, 0);
}

#[test]
fn a_log_that_is_no_further_lets_nobody_write_on() {
    let memory = memory();
    let group = group(&memory, 64);
    let (log, _disk, file) = logged(&memory, &group);
    let stopped = change_until_stopped(&log, &file);
    for page in stopped..stopped + 3 {
        file.log_durable(0);
        let refused = change(&log, &file, page).expect_err("as many are dirty as before");
        assert!(matches!(refused, Error::DirtyLimit { .. }), "{refused}");
    }
    log.is_broken.store(false, Ordering::Relaxed);
    change(&log, &file, stopped).unwrap();
}

#[test]
fn pages_that_wait_for_the_log_can_be_dropped() {
    let memory = memory();
    let group = group(&memory, 64);
    let (log, disk, file) = logged(&memory, &group);
    change_until_stopped(&log, &file);
    file.punch(P..3 * P).unwrap();
    assert!(file.pin(2).unwrap()[..] == [0; PAGE]);
    let nr_dirty = group.stat().file_dirty;
    file.set_len(5 * P).unwrap();
    assert!(group.stat().file_dirty < nr_dirty);
    assert_eq!(position_of(&file.pin(4).unwrap()), 5);
    file.set_len(0).unwrap();
    assert_eq!(group.stat().file_dirty, 0);
    assert!(disk.state().bytes.is_empty());
    assert!(change_until_stopped(&log, &file) > 10);
}

#[test]
fn who_changes_pages_of_another_group_is_held_to_the_limit_of_that_one() {
    for is_view in [true, false] {
        let memory = memory();
        let (small, big) = (group(&memory, 64), memory.root().child("big").unwrap());
        let (log, _disk, file) = logged(&memory, &small);
        for page in 0..40 {
            change(&log, &file, page).unwrap();
        }
        file.sync().unwrap();
        log.is_broken.store(true, Ordering::Relaxed);
        let other = file.for_group(&big);
        let refused = match is_view {
            true => (0..40).find_map(|page| change(&log, &other, page).err()),
            false => other.write_at(&[1; 40 * PAGE], 0).err(),
        };
        let Some(Error::DirtyLimit { group, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(group, "/small");
        // A fifth, and one or two more: the others can go.
        let nr_dirty = small.stat().file_dirty / P;
        assert!((12..=15).contains(&nr_dirty), "{nr_dirty}");
        assert_eq!(big.stat().file_dirty, 0);
        let pages: Vec<u64> = (20..40).collect();
        drop(file.pin_many(&pages).unwrap());
        log.is_broken.store(false, Ordering::Relaxed);
        let end = log.end.fetch_max(u64::MAX, Ordering::Relaxed);
        assert!(end >= 40);
        file.sync().unwrap();
    }
}

/// Two groups of one with room for 100 pages, with a logged file in the first one.
fn siblings(memory: &Memory) -> (Group, (Arc<Log>, Disk, File)) {
    let parent = group(memory, 100);
    let [first, second] = ["first", "second"].map(|name| parent.child(name).unwrap());
    (second, logged(memory, &first))
}

#[test]
fn what_siblings_have_dirty_together_is_a_limit_for_each() {
    let memory = memory();
    let (second, (log, _disk, file)) = siblings(&memory);
    let (other_log, _other_disk, other) = logged(&memory, &second);
    log.is_broken.store(true, Ordering::Relaxed);
    other_log.is_broken.store(true, Ordering::Relaxed);
    // In turn: each has a tenth of what the parent may have.
    for page in 0..10 {
        change(&log, &file, page).unwrap();
        change(&other_log, &other, page).unwrap();
    }
    file.flush_range(..).unwrap_err();
    change(&log, &file, 10).unwrap();
    let Error::DirtyLimit { group, .. } = change(&log, &file, 11).unwrap_err() else {
        panic!("it has to say that the level above is full");
    };
    assert_eq!(group, "/small");
    // The other's log is enough: its pages are written instead.
    let end = other_log.end.load(Ordering::Relaxed);
    other_log.durable.store(end, Ordering::Relaxed);
    other.log_durable(end);
    change(&log, &file, 11).unwrap();
    assert_eq!(second.stat().file_dirty, 0);
}

#[test]
fn who_waits_for_the_log_has_what_others_may_write_written() {
    let memory = memory();
    let (second, (log, _disk, file)) = siblings(&memory);
    let plain = Disk::default();
    let store = Box::new(plain.clone());
    let other = memory.open_store(store, "plain", &second);
    let other = other.unwrap();
    log.is_broken.store(true, Ordering::Relaxed);
    other.write_at(&[1; 12 * PAGE], 0).unwrap();
    for page in 0..9 {
        change(&log, &file, page).unwrap();
    }
    file.flush_range(..).unwrap_err();
    assert_eq!(plain.state().nr_writes, 0);
    change(&log, &file, 9).unwrap();
    assert_eq!(plain.state().bytes.len(), 12 * PAGE);
}

/// Fails or panics while it is told to.
#[derive(Default)]
struct Broken {
    fails: AtomicBool,
    panics: AtomicBool,
}

impl Broken {
    fn answer(&self) -> io::Result<()> {
        assert!(!self.panics.load(Ordering::Relaxed), "as told");
        match self.fails.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    }
}

impl Hooks for Broken {
    fn before_write(&self, page: u64, _bytes: &[u8], _instead: &mut [u8]) -> io::Result<Content> {
        // One of several neighbours.
        if page == 2 {
            self.answer()?;
        }
        Ok(Content::AsIs)
    }

    fn after_read(&self, _page: u64, _bytes: &mut [u8]) -> io::Result<()> {
        self.answer()
    }
}

#[test]
fn a_hook_that_fails_or_panics_loses_nothing_and_stops_its_own_page_only() {
    let (disk, memory) = (Disk::default(), memory());
    let hooks = Arc::new(Broken::default());
    let file = open(&memory, &memory.root(), &disk, Arc::clone(&hooks) as _);
    for (is_panic, byte) in [(false, 1), (true, 2)] {
        let told = if is_panic {
            &hooks.panics
        } else {
            &hooks.fails
        };
        file.write_at(&vec![byte; 5 * PAGE], 0).unwrap();
        told.store(true, Ordering::Relaxed);
        let synced = file.sync();
        assert!(matches!(
            synced,
            Err(Error::WritebackFailed { dirty_pages: 1, .. })
        ));
        let firsts = |bytes: &[u8]| -> Vec<u8> { bytes.chunks(PAGE).map(|page| page[0]).collect() };
        let before = byte - 1;
        assert_eq!(
            firsts(&disk.state().bytes),
            [byte, byte, before, byte, byte]
        );
        told.store(false, Ordering::Relaxed);
        file.sync().unwrap();
        assert_eq!(firsts(&disk.state().durable), [byte; 5]);
        file.invalidate_range(..).unwrap();
        told.store(true, Ordering::Relaxed);
        assert!(matches!(file.pin(1), Err(Error::Io { page: 1, .. })));
        told.store(false, Ordering::Relaxed);
        assert_eq!(file.pin(1).unwrap()[0], byte);
    }
    assert_eq!(memory.stats().pages_lost, 0);
}

/// A log that is durable whenever it is asked for. Background writes are held up when told.
#[derive(Default)]
struct Ready {
    holds: AtomicBool,
    is_held: AtomicBool,
    nr_flushes: AtomicU64,
}

impl Hooks for Ready {
    fn log_position(&self, _page: u64, _bytes: &[u8]) -> u64 {
        let is_background = std::thread::current().name() == Some("background");
        while is_background && self.holds.load(Ordering::SeqCst) {
            self.is_held.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        1
    }

    fn flush_log(&self, position: u64) -> io::Result<u64> {
        self.nr_flushes.fetch_add(1, Ordering::SeqCst);
        Ok(position)
    }
}

#[test]
fn nobody_is_refused_for_a_log_that_nobody_asked_for() {
    let memory = memory();
    let group = group(&memory, 56);
    let log = Arc::new(Ready::default());
    let file = open(&memory, &group, &Disk::default(), Arc::clone(&log) as _);
    file.set_len(40 * P).unwrap();
    // More than a fifth, at once.
    let mut views: Vec<_> = (0..14).map(|page| file.pin_mut(page).unwrap()).collect();
    views.iter_mut().for_each(|view| view.fill(7));
    drop(views);
    // In the background nobody asks for the log.
    memory.tick();
    assert_eq!(log.nr_flushes.load(Ordering::SeqCst), 0);
    // The next time they are in its hands when somebody writes.
    log.holds.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let background = std::thread::Builder::new().name("background".to_owned());
        background.spawn_scoped(scope, || memory.tick()).unwrap();
        while !log.is_held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let log = &log;
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            log.holds.store(false, Ordering::SeqCst);
        });
        file.write_at(&[8; 10], 20 * P).unwrap();
    });
}
