//! What all handles of one memory share: core, arena, waiters, names, open files.

use crate::Error;
use crate::arena::Arena;
use crate::cpu;
use crate::file::Open;
use crate::wait::Waiters;
use pagetide_core::memory::{AllocError, Effect, Effects, Memory as Core};
use pagetide_core::units::{Frame, Order};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Device, inode and page size of an open file.
pub(crate) type FileKey = (u64, u64, u8);

/// One memory. Dropped with its last handle.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) core: Core,
    pub(crate) arena: Arena,
    pub(crate) waiters: Waiters,
    /// Names of live groups, each with its parent's id.
    names: Mutex<HashMap<u32, (u32, String)>>,
    files: Mutex<HashMap<FileKey, Weak<Open>>>,
    nr_bytes_read: AtomicU64,
    nr_buffered_reads: AtomicU64,
    /// When the memory was built: core counts time from there.
    start: Instant,
}

/// A map that a panicking thread held is whole: its entries are inserted and removed at once.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(core: Core, arena: Arena) -> Shared {
        let root = core.groups().root();
        Shared {
            core,
            arena,
            waiters: Waiters::new(),
            names: Mutex::new(HashMap::from([(root, (0, "root".to_owned()))])),
            files: Mutex::default(),
            nr_bytes_read: AtomicU64::new(0),
            nr_buffered_reads: AtomicU64::new(0),
            start: Instant::now(),
        }
    }

    /// Nanoseconds since the memory was built.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A tick of core's clock; returns how long until the next one is due.
    pub(crate) fn tick(&self) -> Duration {
        let now = self.now();
        let next = self.core.tick(cpu::current(), now);
        Duration::from_nanos(next.saturating_sub(now))
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, HashMap<u32, (u32, String)>> {
        locked(&self.names)
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, HashMap<FileKey, Weak<Open>>> {
        locked(&self.files)
    }

    pub(crate) fn name_of(&self, group: u32) -> String {
        self.names()
            .get(&group)
            .map_or_else(|| format!("#{group}"), |(_, name)| name.clone())
    }

    /// Wakes whom core names; the effects of calls that cannot ask for a read.
    pub(crate) fn wake_all(&self, effects: &mut Effects) {
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Wake(frame) => self.waiters.wake(frame),
                Effect::Read(_) => unreachable!("only an operation's step asks for reads"),
            }
        }
    }

    /// Parks until the frame's version is no longer `version`.
    pub(crate) fn wait(&self, frame: Frame, version: u32) {
        let is_same = || self.core.frames().word(frame).version() == version;
        self.waiters.wait_while(frame, is_same);
    }

    pub(crate) fn alloc_error(&self, error: AllocError, group: u32, order: Order) -> Error {
        match error {
            AllocError::OverLimit { group } => {
                let record = self.core.groups().get(group);
                Error::OverLimit {
                    group: self.name_of(group),
                    usage_pages: record.map_or(0, |group| group.usage()),
                    max_pages: record.map_or(0, |group| group.max()),
                }
            }
            AllocError::NoBlock { .. } => Error::NoBlock {
                order: order.get(),
                group: self.name_of(group),
            },
            AllocError::NoMetadata => Error::NoMetadata {
                what: "a group's pages",
            },
        }
    }

    pub(crate) fn count_read(&self, bytes: u64) {
        self.nr_bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_buffered(&self, reads: u64) {
        self.nr_buffered_reads.fetch_add(reads, Ordering::Relaxed);
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.nr_bytes_read.load(Ordering::Relaxed)
    }

    pub(crate) fn buffered_reads(&self) -> u64 {
        self.nr_buffered_reads.load(Ordering::Relaxed)
    }

    /// Drops a mapping with its pages.
    pub(crate) fn close_mapping(&self, mapping: u32) {
        self.core
            .close_mapping(cpu::current(), mapping, &mut |effects| {
                self.wake_all(effects)
            });
    }
}
