//! Files over a store that fails at any call, beside a model: what each byte may be, on the store
//! and after a crash, whatever was done to the file meanwhile.

use crate::disk::{Bare, Disk, EINTR, EIO, ENOSPC, Fault, forward};
use crate::durability::pattern;
use pagetide::{ByteSize, Content, Error, File, Group, Hooks, Memory, OpenOptions, Order, Store};
use proptest::prelude::*;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 4096;
const NR_PAGES: usize = 20;

/// A disk of which is known whether a sync of it failed, and that makes holes by itself or not.
struct Flaky {
    disk: Disk,
    is_sync_failed: Arc<AtomicBool>,
    has_holes: bool,
}

impl Store for Flaky {
    forward!(disk: read_at, len, is_writable, write_at, set_len);

    fn sync(&self) -> io::Result<()> {
        let synced = self.disk.sync();
        // What a signal ends is made again.
        let is_failed = synced
            .as_ref()
            .is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        self.is_sync_failed.fetch_or(is_failed, Ordering::Relaxed);
        synced
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let range = offset..offset + len;
        assert!(range.end <= self.len()?, "it has no such bytes: {range:?}");
        match self.has_holes {
            // As one write that takes all or nothing.
            true => match self
                .disk
                .write_at(&vec![0; usize::try_from(len).unwrap()], offset)?
            {
                all if all as u64 == len => Ok(()),
                _ => Err(io::Error::from_raw_os_error(EIO)),
            },
            false => Bare(self.disk.clone()).punch(offset, len),
        }
    }
}

/// Hooks that leave the bytes as they are, mostly by way of others; the log is behind at times.
#[derive(Default)]
struct Copies {
    nr_calls: AtomicU64,
    /// From this one on, for some calls, they fail or the log is behind.
    fails_from: AtomicU64,
}

impl Copies {
    fn call(&self) -> io::Result<u64> {
        let now = self.nr_calls.fetch_add(1, Ordering::Relaxed);
        let from = self.fails_from.load(Ordering::Relaxed);
        match from > 0 && (from..from + 3).contains(&now) {
            true => Err(io::Error::from_raw_os_error(EIO)),
            false => Ok(now),
        }
    }
}

impl Hooks for Copies {
    fn log_position(&self, page: u64, _bytes: &[u8]) -> u64 {
        page % 3
    }

    fn flush_log(&self, position: u64) -> io::Result<u64> {
        self.call().map(|_| position)
    }

    fn before_write(&self, _page: u64, bytes: &[u8], instead: &mut [u8]) -> io::Result<Content> {
        instead.fill(0xEE);
        match self.call()? % 4 {
            0 => Ok(Content::AsIs),
            _ => {
                instead.copy_from_slice(bytes);
                Ok(Content::Instead)
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write { at: usize, len: usize, byte: u8 },
    View { at: usize, len: usize, byte: u8 },
    New { page: usize, byte: u8 },
    Read { at: usize, len: usize },
    Flush { at: usize, len: usize },
    Sync,
    SetLen(usize),
    Punch { at: usize, len: usize },
    Invalidate { at: usize, len: usize },
    Discard,
    Reclaim,
    Prefetch,
    Close,
    Drop,
}

/// What goes wrong while an operation is under way, and after it.
#[derive(Clone, Debug)]
struct Trouble {
    /// Calls of the store that go well before.
    after: u64,
    nr_calls: u64,
    fault: Fault,
    /// The hooks fail, too.
    is_of_hooks: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let part = (
        0..NR_PAGES * PAGE,
        prop_oneof![Just(1), Just(PAGE), 1..3 * PAGE],
    );
    let whole = (0..NR_PAGES, 1..4usize).prop_map(|(page, nr)| (page * PAGE, nr * PAGE));
    let place = prop_oneof![part, whole];
    let end = prop_oneof![
        0..NR_PAGES * PAGE,
        (0..NR_PAGES).prop_map(|page| page * PAGE)
    ];
    prop_oneof![
        8 => (place.clone(), any::<u8>()).prop_map(|((at, len), byte)| Op::Write { at, len, byte }),
        3 => (place.clone(), any::<u8>()).prop_map(|((at, len), byte)| Op::View { at, len, byte }),
        2 => (0..NR_PAGES / 2, any::<u8>()).prop_map(|(page, byte)| Op::New { page, byte }),
        3 => place.clone().prop_map(|(at, len)| Op::Read { at, len }),
        3 => place.clone().prop_map(|(at, len)| Op::Flush { at, len }),
        3 => Just(Op::Sync),
        4 => end.prop_map(Op::SetLen),
        4 => place.clone().prop_map(|(at, len)| Op::Punch { at, len }),
        2 => place.prop_map(|(at, len)| Op::Invalidate { at, len }),
        2 => Just(Op::Discard),
        2 => Just(Op::Reclaim),
        1 => Just(Op::Prefetch),
        1 => Just(Op::Close),
        1 => Just(Op::Drop),
    ]
}

fn trouble() -> impl Strategy<Value = Option<Trouble>> {
    let fault = prop_oneof![
        3 => Just(Fault::Error(EIO)),
        1 => Just(Fault::Error(EINTR)),
        2 => Just(Fault::Error(ENOSPC)),
        3 => Just(Fault::Late),
        3 => Just(Fault::Short),
        1 => Just(Fault::Nothing),
    ];
    let calls = (0..4_u64, 1..4_u64);
    let trouble =
        (calls, fault, any::<bool>()).prop_map(|((after, nr_calls), fault, of_hooks)| Trouble {
            after,
            nr_calls,
            fault,
            is_of_hooks: of_hooks,
        });
    prop_oneof![3 => Just(None), 2 => trouble.prop_map(Some)]
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    order: u8,
    base: usize,
    has_hooks: bool,
    has_holes: bool,
}

/// A file, what it has, and what each byte of its store may be.
struct World {
    memory: Memory,
    group: Group,
    disk: Disk,
    is_sync_failed: Arc<AtomicBool>,
    hooks: Arc<Copies>,
    kind: Kind,
    file: Option<File>,
    now: Vec<u8>,
    /// What was there since the last sync that went well.
    since: Vec<Vec<u8>>,
    /// The store has a cut or a hole to make yet, perhaps.
    is_behind: bool,
}

fn expect_known(error: &Error) {
    use Error::{DirtyLimit, Io, LogBehind, OverLimit, PageDirty, WritebackFailed};
    let is_of_store = matches!(error, Io { .. } | WritebackFailed { .. } | LogBehind { .. });
    let is_other = matches!(error, DirtyLimit { .. } | OverLimit { .. });
    let is_dirty = matches!(error, PageDirty { .. });
    assert!(is_of_store || is_other || is_dirty, "{error:?}");
}

impl World {
    fn new(kind: Kind, old_len: usize) -> World {
        let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
        let memory = builder.build().unwrap();
        let group = memory.root().child("small").unwrap();
        let max = if kind.has_hooks { 128 } else { 64 };
        let group = group.max(ByteSize::kib(max)).unwrap();
        let old = pattern(0, old_len, 7);
        let disk = Disk::of([vec![0xAA; kind.base], old.clone()].concat());
        let mut world = World {
            memory,
            group,
            disk,
            is_sync_failed: Arc::default(),
            hooks: Arc::default(),
            kind,
            file: None,
            now: old.clone(),
            since: old.iter().map(|&byte| vec![byte]).collect(),
            is_behind: false,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        self.is_sync_failed.store(false, Ordering::Relaxed);
        let store = Box::new(Flaky {
            disk: self.disk.clone(),
            is_sync_failed: Arc::clone(&self.is_sync_failed),
            has_holes: self.kind.has_holes,
        });
        let options = OpenOptions::new().order(Order::new(self.kind.order));
        let mut options = options.base_offset(self.kind.base as u64);
        if self.kind.has_hooks {
            options = options.hooks(self.hooks.clone());
        }
        let file = options.open_store(&self.memory, store, "disk", &self.group);
        self.file = Some(file.unwrap());
    }

    fn file(&self) -> &File {
        self.file.as_ref().unwrap()
    }

    fn is_poisoned(&self) -> bool {
        self.is_sync_failed.load(Ordering::Relaxed)
    }

    fn begin(&self, trouble: Option<&Trouble>) {
        let mut state = self.disk.state();
        let from = |after| state.nr_calls + 1 + after;
        state.fault = trouble.map(|one| (from(one.after), one.nr_calls, one.fault));
        drop(state);
        let nr_hooks = self.hooks.nr_calls.load(Ordering::Relaxed);
        let from = trouble
            .filter(|one| one.is_of_hooks)
            .map_or(0, |one| nr_hooks + one.after);
        self.hooks.fails_from.store(from, Ordering::Relaxed);
    }

    fn cure(&self) {
        self.begin(None);
    }

    /// What the file has, once nothing fails any more.
    fn read_all(&self) -> Vec<u8> {
        self.cure();
        let file = self.file();
        let mut bytes = vec![9; usize::try_from(file.len()).unwrap() + 1];
        let mut read = file.read_at(&mut bytes, 0);
        if matches!(read, Err(Error::OverLimit { .. })) && self.is_poisoned() {
            // Pages that nobody can write fill the group.
            self.group.set_max(ByteSize::mib(1)).unwrap();
            read = file.read_at(&mut bytes, 0);
        }
        bytes.truncate(read.unwrap());
        assert_eq!(bytes.len() as u64, file.len());
        bytes
    }

    /// The file has these bytes in this place, perhaps of several moments.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.now.resize(self.now.len().max(end), 0);
        self.since.resize(self.since.len().max(end), vec![0]);
        self.now[at..end].copy_from_slice(bytes);
        for (since, &byte) in self.since[at..].iter_mut().zip(bytes) {
            since.push(byte);
        }
    }

    fn cut(&mut self, len: usize) {
        let old_len = self.now.len();
        if len > old_len {
            self.put(old_len, &vec![0; len - old_len]);
        }
        self.now.truncate(len);
        self.since.resize(self.since.len().max(len), vec![0]);
        self.since[len..].iter_mut().for_each(|since| since.push(0));
    }

    fn synced(&mut self) {
        let now = self.now.iter().map(|&byte| vec![byte]);
        self.since = now.collect();
    }

    /// A change of `range` to `new` bytes failed: what is there is of before or after, by pages.
    fn failed_change(&mut self, at: usize, new: &[u8]) {
        let found = self.read_all();
        for (place, &byte) in found.iter().enumerate() {
            let is_new = place.checked_sub(at).and_then(|place| new.get(place)) == Some(&byte);
            let before = self.now.get(place).copied().unwrap_or(0);
            assert!(byte == before || is_new, "byte {place}: {byte}, {before}");
        }
        assert!(found.len() >= self.now.len());
        let from = at.min(found.len());
        let to = (at + new.len()).min(found.len());
        self.put(from, &found[from..to]);
        assert!(self.now == found);
    }

    fn write(&mut self, at: usize, len: usize, byte: u8) {
        let bytes = pattern(at, len, byte);
        match self.file().write_at(&bytes, at as u64) {
            Ok(written) => {
                assert_eq!(written, len);
                self.put(at, &bytes);
            }
            Err(error) => {
                expect_known(&error);
                self.failed_change(at, &bytes);
            }
        }
    }

    fn view(&mut self, at: usize, len: usize, byte: u8) {
        let page_bytes = self.file().page_bytes();
        let (page, skip) = (at / page_bytes, at % page_bytes);
        match self.file().pin_mut(page as u64) {
            Ok(mut view) => {
                let expected = &self.now[page * page_bytes..];
                assert!(*view == expected[..page_bytes.min(expected.len())]);
                let end = (skip + len).min(view.len()).max(skip.min(view.len()));
                let start = skip.min(end);
                let bytes = pattern(page * page_bytes + start, end - start, byte);
                view[start..end].copy_from_slice(&bytes);
                drop(view);
                self.put(page * page_bytes + start, &bytes);
            }
            Err(Error::PastEnd { .. }) => assert!(page * page_bytes >= self.now.len()),
            Err(error) => expect_known(&error),
        }
    }

    fn new_page(&mut self, page: usize, byte: u8) {
        let page_bytes = self.file().page_bytes();
        match self.file().pin_new(page as u64) {
            Ok(mut view) => {
                view.fill(byte);
                drop(view);
                self.put(page * page_bytes, &vec![byte; page_bytes]);
            }
            Err(error) => expect_known(&error),
        }
    }

    fn set_len(&mut self, len: usize) {
        match self.file().set_len(len as u64) {
            Ok(()) => {
                self.is_behind = false;
                self.cut(len);
            }
            Err(error) => {
                expect_known(&error);
                let found = self.file().len();
                if found == len as u64 && len < self.now.len() {
                    self.cut(len);
                    self.is_behind = true;
                }
                assert_eq!(found, self.now.len() as u64);
            }
        }
    }

    fn punch(&mut self, range: Range<usize>) {
        let end = range.end.min(self.now.len());
        let zeros = vec![0; end.saturating_sub(range.start)];
        let punched = self.file().punch(range.start as u64..range.end as u64);
        match punched {
            Ok(()) => {
                self.is_behind = false;
                if !zeros.is_empty() {
                    self.put(range.start, &zeros);
                }
            }
            Err(error) => {
                expect_known(&error);
                let found = self.read_all();
                if found != self.now {
                    // All of it.
                    self.put(range.start, &zeros);
                    assert!(found == self.now);
                    self.is_behind = true;
                }
            }
        }
    }

    fn stored(&self) -> Vec<u8> {
        let state = self.disk.state();
        state.bytes.get(self.kind.base..).unwrap_or(&[]).to_vec()
    }

    fn discard(&mut self) {
        self.file().discard_dirty().unwrap();
        let (found, stored) = (self.read_all(), self.stored());
        for (at, &byte) in found.iter().enumerate() {
            let of_store = stored.get(at).copied();
            let is_its = of_store == Some(byte) || self.is_behind && byte == 0;
            assert!(is_its, "byte {at} is {byte}, on the store {of_store:?}");
        }
        assert!(self.is_behind || found.len() == stored.len());
        self.now.truncate(found.len());
        let to = self.now.len();
        self.since[to..].iter_mut().for_each(|since| since.push(0));
        self.put(0, &found);
    }

    fn invalidate(&mut self, range: Range<usize>) {
        let old = self.now.len();
        match self
            .file()
            .invalidate_range(range.start as u64..range.end as u64)
        {
            Ok(()) => {
                self.is_behind = false;
                assert_eq!(
                    self.file().len(),
                    old as u64,
                    "{} stored",
                    self.stored().len()
                );
            }
            Err(error) => expect_known(&error),
        }
    }

    /// Closes the file, or drops it, and opens it anew.
    fn reopen(&mut self, by_close: bool) {
        let nr_lost = self.memory.stats().pages_lost;
        let file = self.file.take().unwrap();
        let is_closed = match by_close {
            true => file
                .close()
                .map_err(|error| drop(error.into_file()))
                .is_ok(),
            false => {
                drop(file);
                false
            }
        };
        let may_be_behind = self.is_behind && !is_closed;
        let is_lost = self.memory.stats().pages_lost > nr_lost;
        assert!(!(is_lost && is_closed), "lost pages of a closed file");
        self.cure();
        let stored = self.stored();
        if !is_lost && !may_be_behind {
            assert!(stored == self.now, "it was closed, and nothing was lost");
        }
        self.check_store();
        self.is_behind = false;
        self.open();
        self.cut(stored.len());
        self.put(0, &stored);
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Write { at, len, byte } => self.write(at, len, byte),
            Op::View { at, len, byte } => self.view(at, len, byte),
            Op::New { page, byte } => self.new_page(page, byte),
            Op::Read { at, len } => {
                let mut bytes = vec![0; len];
                match self.file().read_at(&mut bytes, at as u64) {
                    Ok(nr_read) => {
                        let expected = &self.now[at.min(self.now.len())..];
                        assert!(bytes[..nr_read] == expected[..len.min(expected.len())]);
                    }
                    Err(error) => expect_known(&error),
                }
            }
            Op::Flush { at, len } => {
                let flushed = self.file().flush_range(at as u64..(at + len) as u64);
                match flushed {
                    Ok(()) => {
                        self.is_behind = false;
                        let stored = self.stored();
                        for at in at..(at + len).min(self.now.len()) {
                            let found = stored.get(at).copied().unwrap_or(0);
                            assert_eq!(found, self.now[at], "byte {at} was not written");
                        }
                    }
                    Err(error) => expect_known(&error),
                }
            }
            Op::Sync => match self.file().sync() {
                Ok(()) => {
                    self.is_behind = false;
                    let durable = self.disk.state().durable.clone();
                    assert!(durable[self.kind.base.min(durable.len())..] == self.now);
                    self.synced();
                }
                Err(error) => expect_known(&error),
            },
            Op::SetLen(len) => self.set_len(len),
            Op::Punch { at, len } => self.punch(at..at + len),
            Op::Invalidate { at, len } => self.invalidate(at..at + len),
            Op::Discard => self.discard(),
            Op::Reclaim => _ = self.group.reclaim(ByteSize::kib(32)),
            Op::Prefetch => _ = self.file().prefetch(0..NR_PAGES as u64),
            Op::Close => self.reopen(true),
            Op::Drop => self.reopen(false),
        }
    }

    /// Each byte of the store, and of what a crash leaves of it, was there since the last sync.
    fn check_store(&self) {
        let stored = self.disk.state().bytes.clone();
        let images = [stored, self.disk.crash(|| false)];
        for image in images {
            let (header, stored) = image.split_at(self.kind.base.min(image.len()));
            assert!(header.iter().all(|&byte| byte == 0xAA), "of the header");
            for (at, since) in self.since.iter().enumerate() {
                let found = stored.get(at).copied().unwrap_or(0);
                assert!(since.contains(&found), "byte {at} is {found}, of {since:?}");
            }
        }
    }

    fn run(&mut self, ops: &[(Op, Option<Trouble>)]) {
        for (op, trouble) in ops {
            self.begin(trouble.as_ref());
            self.step(op);
            assert_eq!(self.file().len(), self.now.len() as u64);
            self.check_store();
        }
        assert!(self.read_all() == self.now, "after all");
        if self.is_poisoned() {
            assert!(self.file().sync().is_err());
            return;
        }
        // Nothing fails any more: what failed before is told, once.
        let _told = self.file().sync();
        self.file().sync().unwrap();
        assert!(self.stored() == self.now);
        self.reopen(true);
        assert!(self.read_all() == self.now);
        assert_eq!(self.memory.audit(), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn whatever_fails_each_byte_is_one_that_was_there(
        ops in prop::collection::vec((op(), trouble()), 1..40),
        order in prop_oneof![3 => Just(0u8), 1 => Just(1)],
        base in prop_oneof![Just(0), Just(700)],
        (has_hooks, has_holes) in any::<(bool, bool)>(),
        old_len in prop_oneof![Just(0), Just(8 * PAGE), 0..NR_PAGES * PAGE],
    ) {
        let kind = Kind { order, base, has_hooks, has_holes };
        World::new(kind, old_len).run(&ops);
    }
}
