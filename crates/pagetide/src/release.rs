//! Memory that goes back to the OS: what reservations and a smaller budget take out of use, and
//! what is idle. The only place that takes memory away from the process while it runs, because
//! that interrupts the CPUs on which its threads run.

use crate::shared::{Shared, locked};
use crate::trace;
use crate::worker;
use pagetide_core::memory::Idle;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Bytes that one tick gives back to the OS at most: each block is a system call and takes its
/// pages from all CPUs' address translation.
const RELEASE_BYTES_PER_TICK: u64 = 64 << 20;
/// Blocks that go after one look at where threads may run: 64 MiB, some 10 ms. That look takes a
/// few system calls a thread.
const BLOCKS_PER_LOOK: u32 = 32;

/// What went back to the OS, and what must not be interrupted by that.
#[derive(Debug)]
pub(crate) struct Release {
    /// CPUs that no release may interrupt.
    isolated: Vec<u32>,
    /// Held by the thread that takes memory out of use. Another one that finds nothing left to do
    /// waits for it: what it asked for may be in those hands.
    filling: Mutex<()>,
    /// Somebody who had a lock of a file left it to others.
    is_put_off: AtomicBool,
    nr_bytes: AtomicU64,
    nr_calls: AtomicU64,
    nr_deferred: AtomicU64,
}

impl Release {
    pub(crate) fn new(isolated: Vec<u32>) -> Release {
        Release {
            isolated,
            filling: Mutex::new(()),
            is_put_off: AtomicBool::new(false),
            nr_bytes: AtomicU64::new(0),
            nr_calls: AtomicU64::new(0),
            nr_deferred: AtomicU64::new(0),
        }
    }

    pub(crate) fn isolated(&self) -> &[u32] {
        &self.isolated
    }

    /// Bytes that went.
    pub(crate) fn nr_bytes(&self) -> u64 {
        self.nr_bytes.load(Ordering::Relaxed)
    }

    /// System calls for them.
    pub(crate) fn nr_calls(&self) -> u64 {
        self.nr_calls.load(Ordering::Relaxed)
    }

    /// Times that some did not go because of an isolated CPU.
    pub(crate) fn nr_deferred(&self) -> u64 {
        self.nr_deferred.load(Ordering::Relaxed)
    }

    /// More should go out of use, by somebody who has no lock of a file.
    pub(crate) fn put_off(&self) {
        self.is_put_off.store(true, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // The mutex guards no data, so a panic under it broke nothing.
        locked(&self.filling)
    }
}

/// Whether taking memory away interrupts a CPU that is not to be interrupted: looked at anew after
/// some blocks.
#[derive(Debug, Default)]
struct Look {
    may_release: bool,
    nr_blocks: u32,
}

impl Look {
    fn may_release(&mut self, release: &Release) -> bool {
        if release.isolated.is_empty() {
            return true;
        }
        if self.nr_blocks.is_multiple_of(BLOCKS_PER_LOOK) {
            self.may_release = !worker::may_run_on(&release.isolated);
        }
        self.nr_blocks += 1;
        if !self.may_release {
            release.nr_deferred.fetch_add(1, Ordering::Relaxed);
            trace::release_deferred();
        }
        self.may_release
    }
}

impl Shared {
    /// Takes as much of the arena out of use as should be, and lets the OS have its memory. When it
    /// returns, no other thread has any of it in its hands.
    pub(crate) fn fill_balloon(&self) {
        let _alone = self.release.lock();
        let mut look = Look::default();
        while let Some(idle) = self.core.next_offline(self.here()) {
            self.put_offline(&mut look, idle);
        }
    }

    /// What was put off. One load where nothing was.
    #[inline]
    pub(crate) fn fill_put_off(&self) {
        let is_put_off = &self.release.is_put_off;
        if is_put_off.load(Ordering::Relaxed) && is_put_off.swap(false, Ordering::Relaxed) {
            self.settle_short();
        }
    }

    /// [`Shared::settle`], by who has a lock of a file: it is put off.
    #[inline]
    pub(crate) fn settle_later(&self) {
        if self.core.is_balloon_short() {
            self.release.put_off();
        }
    }

    /// To be called after memory was freed: where a budget was lowered below what was in use then,
    /// or a reservation forced, what is freed now goes to the OS. One load where neither was.
    #[inline]
    pub(crate) fn settle(&self) {
        if self.core.is_balloon_short() {
            self.settle_short();
        }
    }

    #[cold]
    #[inline(never)]
    fn settle_short(&self) {
        let groups = self.core.groups();
        let root = groups.get(groups.root());
        if root.is_none_or(|root| root.usage() <= root.max()) {
            return self.fill_balloon();
        }
        // Too much is in use to make up for it. What is whole goes, so that the rest is quick.
        let _alone = self.release.lock();
        let mut look = Look::default();
        while let Some(idle) = self.core.next_free_offline() {
            self.put_offline(&mut look, idle);
        }
    }

    /// Puts a block out of use; whether the OS has its memory.
    fn put_offline(&self, look: &mut Look, idle: Idle) -> bool {
        let is_released = !idle.has_memory() || self.let_go(look, &idle).is_some();
        self.core.put_offline(idle, is_released);
        is_released
    }

    /// At a tick: makes up for what could not be done before, and gives a bounded part of what is
    /// free since `before` back to the OS.
    pub(crate) fn release_some(&self, before: Option<u64>) {
        self.fill_balloon();
        self.release_resident();
        if let Some(before) = before {
            self.release_free(before, RELEASE_BYTES_PER_TICK);
        }
    }

    /// What is out of use and the OS could not have.
    fn release_resident(&self) {
        let _alone = self.release.lock();
        let mut look = Look::default();
        while let Some(idle) = self.core.next_resident() {
            if !self.put_offline(&mut look, idle) {
                return;
            }
        }
    }

    /// Gives all memory of free blocks back to the OS; returns the bytes.
    pub(crate) fn release_all(&self) -> u64 {
        self.core.drain();
        self.release_free(u64::MAX, u64::MAX)
    }

    /// Gives blocks that are free since `before` back to the OS, up to `most` bytes and a block;
    /// returns the bytes.
    fn release_free(&self, before: u64, most: u64) -> u64 {
        let mut look = Look::default();
        let mut released = 0;
        while released < most
            && let Some(idle) = self.core.take_idle(before)
        {
            let bytes = self.let_go(&mut look, &idle);
            self.core.put_idle(idle, bytes.is_some());
            let Some(bytes) = bytes else { break };
            released += bytes;
        }
        released
    }

    /// One system call, where it interrupts no isolated CPU; the bytes that went.
    fn let_go(&self, look: &mut Look, idle: &Idle) -> Option<u64> {
        if !look.may_release(&self.release) {
            return None;
        }
        let bytes = idle.order().bytes() as u64;
        self.release.nr_calls.fetch_add(1, Ordering::Relaxed);
        let registry = &self.io.registry;
        registry.release(idle, || self.arena.release(idle)).ok()?;
        self.release.nr_bytes.fetch_add(bytes, Ordering::Relaxed);
        trace::released(bytes);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::park::tests::Counted;
    use crate::{ByteSize, Error, File, Memory, Order};
    use pagetide_core::page_cache::{Access, Latched};
    use std::future::Future;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::task::{Context, Waker};
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn a_reservation_returns_when_no_other_has_memory_in_its_hands() {
        let builder = Memory::builder().budget(ByteSize::mib(16));
        let memory = builder.without_thread().build().unwrap();
        let group = &memory.root().child("query").unwrap();
        let shared = group.shared();
        let bufs = [9; 6].map(|order| group.alloc(Order::new(order)).unwrap());
        drop(bufs);
        let alone = shared.release.lock();
        let returned = &AtomicBool::new(false);
        std::thread::scope(move |scope| {
            // Also where this fails: the other thread waits for it.
            let alone = alone;
            scope.spawn(move || {
                let reservation = group.reserve(ByteSize::mib(12)).unwrap();
                returned.store(true, Ordering::SeqCst);
                drop(reservation);
            });
            // Once it is charged, its memory is this thread's to give back.
            let mut idle = None;
            while idle.is_none() {
                idle = shared.core.next_offline(shared.here());
                assert!(!returned.load(Ordering::SeqCst));
            }
            let mut look = Look::default();
            while let Some(other) = shared.core.next_offline(shared.here()) {
                shared.put_offline(&mut look, other);
            }
            // Each may last long where others want the CPU.
            let end = Instant::now() + Duration::from_secs(1);
            for _ in (0..10_000).take_while(|_| Instant::now() < end) {
                std::thread::yield_now();
                assert!(!returned.load(Ordering::SeqCst));
            }
            idle.into_iter().for_each(|idle| {
                shared.put_offline(&mut look, idle);
            });
            assert!(shared.release.nr_calls() > 0);
            drop(alone);
        });
        assert!(returned.load(Ordering::SeqCst));
    }

    #[test]
    fn the_memory_of_pages_that_are_dropped_goes_without_their_file() {
        type Drops = fn(&File) -> Result<(), Error>;
        let drops: [Drops; 3] = [
            |file| file.punch(..),
            |file| file.set_len(0),
            |file| file.invalidate_range(..),
        ];
        for drop_them in drops {
            let builder = Memory::builder().budget(ByteSize::mib(16));
            let memory = builder.without_thread().build().unwrap();
            let (root, shared) = (memory.root(), memory.home());
            let data = tempfile::NamedTempFile::new().unwrap();
            data.as_file().set_len(4 * 4096).unwrap();
            let file = memory.open_rw(data.path(), &root).unwrap();
            let backing = shared.backings().values().next().cloned().unwrap();
            let pinned = file.pin_many(&[0, 1, 2, 3]).unwrap();
            // More is to go to the OS than there is.
            let forced = root.reserve(ByteSize(0)).unwrap();
            forced.grow(ByteSize::mib(32));
            drop(pinned);
            assert!(shared.core.is_balloon_short());
            let (is_free, is_waiting) = thread::scope(|scope| {
                let alone = shared.release.lock();
                let drops = scope.spawn(|| drop_them(&file).unwrap());
                while shared.core.nr_resident(backing.mapping) == 4 {
                    thread::yield_now();
                }
                let until = Instant::now() + Duration::from_secs(20);
                let is_free = || backing.length.try_share().is_some();
                while !is_free() && Instant::now() < until {
                    thread::yield_now();
                }
                let found = (is_free(), !drops.is_finished());
                drop(alone);
                found
            });
            assert!(is_free && is_waiting);
        }
    }

    #[test]
    fn what_goes_out_of_use_for_a_dropped_page_does_so_where_a_waker_unwinds() {
        let builder = Memory::builder().budget(ByteSize::mib(16));
        let memory = builder.without_thread().build().unwrap();
        let (root, shared) = (memory.root(), memory.home());
        let data = tempfile::NamedTempFile::new().unwrap();
        data.as_file().set_len(4096).unwrap();
        let file = memory.open_rw(data.path(), &root).unwrap();
        let pinned = file.pin(0).unwrap();
        let frame = pinned.frame_in(shared).unwrap();
        // Somebody waits to change it, and a task for him.
        let key = shared.core.frames().key(frame).unwrap();
        assert!(matches!(
            shared.latch(key, Access::Copy),
            Latched::Busy { .. }
        ));
        let waker = Waker::from(Arc::new(Counted::unwinding()));
        assert!(shared.waiters.register(frame, &waker, || true).is_some());
        let forced = root.reserve(ByteSize(0)).unwrap();
        forced.grow(ByteSize::mib(32));
        shared.fill_put_off();
        let punched = catch_unwind(AssertUnwindSafe(|| file.punch(..)));
        assert!(punched.is_err(), "nobody was woken");
        assert!(shared.release.is_put_off.load(Ordering::Relaxed));
    }

    #[test]
    fn what_a_reservation_took_out_of_use_comes_back_where_a_waker_unwinds() {
        // A reservation more may keep a pageblock of it out of use.
        let builder = Memory::builder().budget(ByteSize::mib(256));
        let memory = builder.without_thread().build().unwrap();
        let nr_offline = || memory.home().core.offline_pages();
        let before = nr_offline();
        let group = memory.root().child("query").unwrap();
        let group = group.max(ByteSize::mib(8)).unwrap();
        let held = group.reserve(ByteSize::mib(8)).unwrap();
        assert!(nr_offline() > before);
        let until = Instant::now() + Duration::from_secs(60);
        let mut task = pin!(group.alloc_async(Order::new(0), until));
        let waker = Waker::from(Arc::new(Counted::unwinding()));
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(held)));
        assert!(dropped.is_err(), "nobody was woken");
        assert_eq!(nr_offline(), before);
    }
}
