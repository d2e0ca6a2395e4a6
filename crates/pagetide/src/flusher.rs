//! Writing back in the background: pages that are dirty for long, and groups with many of them.

use crate::backing::Backing;
use crate::shared::Shared;
use crate::worker::{Stop, keep_off};
use crate::writeback::Which;
use pagetide_core::group::Gauge;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it looks for pages that are dirty for long. Source: `vm.dirty_writeback_centisecs`.
const PERIOD: Duration = Duration::from_secs(5);
/// For how many seconds a page may be dirty. Source: `vm.dirty_expire_centisecs`, of which it is a
/// sixth: what is not durable is lost with the process here, not only with the machine.
const EXPIRE_SECONDS: u32 = 5;
/// Of 100 pages that a group may have, how many may be dirty before some are written in the
/// background. Source: `vm.dirty_background_ratio`.
const BACKGROUND_PERCENT: u64 = 10;
/// Of 100 pages that a group may have, how many may be dirty before its writers write some back
/// themselves. Source: `vm.dirty_ratio`.
const HARD_PERCENT: u64 = 20;

/// A thread that writes back; told to end when dropped, and waited for.
#[derive(Debug)]
pub(crate) struct Flusher {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    /// The process that started it: a child that it forked has none to wait for.
    process: u32,
    /// It has been told, and has not looked yet.
    is_told: Arc<AtomicBool>,
}

impl Flusher {
    /// Starts the thread. It lives as long as somebody else has the memory.
    ///
    /// # Errors
    /// What the OS says.
    pub(crate) fn start(of: &Arc<Shared>) -> std::io::Result<Flusher> {
        let mut flusher = Flusher {
            stop: Arc::default(),
            thread: None,
            process: std::process::id(),
            is_told: Arc::default(),
        };
        let (stop, is_told) = (Arc::clone(&flusher.stop), Arc::clone(&flusher.is_told));
        let (shared, isolated) = (Arc::downgrade(of), of.release.isolated().to_vec());
        let thread = std::thread::Builder::new().name("pagetide-flush".to_owned());
        let thread = thread.spawn(move || {
            keep_off(&isolated);
            run(&stop, &is_told, &shared);
        })?;
        flusher.thread = Some(thread);
        Ok(flusher)
    }

    /// Makes it look now.
    fn tell(&self) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            self.stop.nudge();
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        self.stop.end();
        // Nobody has the memory any more. It may be the thread itself that had it last.
        let me = std::thread::current().id();
        if let Some(thread) = self
            .thread
            .take()
            .filter(|thread| thread.thread().id() != me)
        {
            // If it panicked, it said so itself.
            let _ = thread.join();
        }
    }
}

fn run(stop: &Stop, is_told: &AtomicBool, shared: &Weak<Shared>) {
    while stop.wait(Some(PERIOD)) {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        is_told.store(false, Ordering::Relaxed);
        shared.flush_background(shared.second());
    }
}

/// Keeps a file's mapping, so that no other file gets its number meanwhile.
struct Held<'a> {
    shared: &'a Shared,
    backing: &'a Backing,
}

impl<'a> Held<'a> {
    fn new(shared: &'a Shared, backing: &'a Backing) -> Option<Held<'a>> {
        let is_open = shared.core.hold_mapping(backing.mapping);
        // Not made where it is closed: what is dropped lets go.
        is_open.then(|| Held { shared, backing })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared.core.release_mapping(self.backing.mapping);
        self.shared.landings.count();
    }
}

/// How much of a group is dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dirtiness {
    Fine,
    /// Above the background limit.
    Background,
    /// Above the hard limit.
    Hard,
}

impl Shared {
    /// How much of what a group may have is dirty: pages charged to itself. Of a group that was
    /// dropped each page is one too many.
    pub(crate) fn dirtiness(&self, id: u32) -> Dirtiness {
        let groups = self.core.groups();
        let Some(group) = groups.get(id) else {
            return Dirtiness::Fine;
        };
        let nr_dirty = group.gauge(Gauge::FileDirty) + group.gauge(Gauge::FileWriteback);
        let max = groups.path(id).map(|(_, group)| group.max()).min();
        let is_above = |percent| nr_dirty > max.unwrap_or(0).saturating_mul(percent) / 100;
        // Of a group that was dropped nobody writes any more, and its record waits for its pages.
        let is_left = group.is_dead() && nr_dirty > 0;
        match (
            is_above(HARD_PERCENT),
            is_above(BACKGROUND_PERCENT) || is_left,
        ) {
            (true, _) => Dirtiness::Hard,
            (_, true) => Dirtiness::Background,
            _ => Dirtiness::Fine,
        }
    }

    /// Starts the thread that writes back, at the first file that is written, unless this memory
    /// has no thread at all.
    pub(crate) fn start_flusher(self: &Arc<Shared>) {
        // Where none can be started, `sync`, writers and reclaim write as without one.
        self.flusher.get_or_init(|| match self.has_worker() {
            true => Flusher::start(self).ok(),
            false => None,
        });
    }

    /// There is something to write in the background.
    pub(crate) fn tell_flusher(&self) {
        if let Some(Some(flusher)) = self.flusher.get() {
            flusher.tell();
        }
    }

    /// [`Shared::flush_background`] where no thread does it.
    pub(crate) fn flush_without_thread(&self) {
        if !self.has_worker() {
            self.flush_background(self.second());
        }
    }

    /// Writes pages that have been dirty for too long at second `now`, and of groups above their
    /// background limit what brings them below it. Errors are kept for each file's next `sync`.
    pub(crate) fn flush_background(&self, now: u32) {
        let backings: Vec<Arc<Backing>> = self.backings().values().cloned().collect();
        for backing in &backings {
            if let Some(before) = now.checked_sub(EXPIRE_SECONDS) {
                let expired = Which {
                    before,
                    waits: false,
                    asks_log: false,
                    ..Which::ALL
                };
                self.flush_held(backing, expired);
            }
        }
        for (id, _) in self.core.groups().iter() {
            for backing in &backings {
                if self.dirtiness(id) == Dirtiness::Fine {
                    break;
                }
                let of_group = Which {
                    subtree: Some(id),
                    waits: false,
                    asks_log: false,
                    ..Which::ALL
                };
                self.flush_held(backing, of_group);
            }
        }
    }

    fn flush_held(&self, backing: &Backing, which: Which) {
        if let Some(_held) = Held::new(self, backing) {
            let _failed = self.write_dirty(backing, 0..=u64::MAX, which);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory, Order, Store};
    use std::io;

    struct Zeros;

    impl Store for Zeros {
        fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
            buf.fill(0);
            Ok(buf.len())
        }

        fn len(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }
    }

    #[test]
    fn a_file_that_was_just_closed_is_not_written_nor_let_go() {
        let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
        let memory = builder.build().unwrap();
        let open = |name| {
            let store = Box::new(Zeros);
            memory.open_store(store, name, Order::new(0), &memory.root())
        };
        let file = open("closed").unwrap();
        let listed: Vec<_> = memory.home().backings().values().cloned().collect();
        drop(file);
        // Of the closed one's record, with another stamp.
        let other = open("open").unwrap();
        for backing in &listed {
            assert!(Held::new(memory.home(), backing).is_none());
            memory.home().flush_held(backing, Which::ALL);
        }
        assert_eq!(other.read_at(&mut [1; 10], 0).unwrap(), 10);
    }
}
