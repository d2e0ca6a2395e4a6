//! Giving back: from the per-CPU page caches to the zone, and from the zone to the OS.

use super::{BulkFree, Here, PcpGuard, Zone};
use crate::alloc::buddy;
use crate::alloc::pageblock::{self, PAGEBLOCK_PAGES};
use crate::alloc::pcp::Pcp;
use crate::frame::{FrameTable, List};
use crate::sync::Ordering;
use crate::units::{Cpu, Frame, Order};

/// Ticks without use after which a cache of another node's frames gives back a batch a tick.
///
/// Source: kernel `per_cpu_pages.expire`.
const EXPIRE_TICKS: u8 = 3;

/// What a drain did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Pages moved to the zone.
    pub nr_pages: u32,
    /// Caches that another thread held, so that they were not or not wholly emptied.
    pub not_reached: u32,
}

impl core::ops::AddAssign for Drained {
    fn add_assign(&mut self, other: Drained) {
        self.nr_pages += other.nr_pages;
        self.not_reached += other.not_reached;
    }
}

impl Zone {
    /// Gives `nr_pages` pages of cache `here.cpu` back, or all there are, beginning at list
    /// `first`; returns how many and whether that is all. Both locks are dropped between batches,
    /// and another thread that takes the cache meanwhile ends it.
    #[cold]
    #[inline(never)]
    pub(super) fn flush<'a>(
        &'a self,
        frames: &FrameTable,
        here: Here,
        mut pcp: PcpGuard<'a>,
        first: usize,
        nr_pages: u32,
    ) -> (u32, bool) {
        let (mut at, mut freed) = (first, 0);
        loop {
            let want = (nr_pages - freed).min(self.config.sizes.batch);
            let chunk = self.bulk_free(frames, &mut pcp, &mut at, want, here.now);
            let count = pcp.count();
            pcp.tune.gave_back(chunk, count, &self.view(here.now));
            freed += chunk;
            if freed >= nr_pages || count == 0 {
                return (freed, true);
            }
            drop(pcp);
            match self.pcps.of(here.cpu).try_lock() {
                Some(again) => pcp = again,
                None => return (freed, false),
            }
        }
    }

    /// Frees at least `nr_pages` pages of a cache (or all it has) in one hold, list by list from
    /// `at`, the coldest block first; up to the size of the last block more.
    ///
    /// Source: single-pass bulk free, Gorman 2022 (kernel `free_pcppages_bulk()`).
    fn bulk_free(
        &self,
        frames: &FrameTable,
        pcp: &mut Pcp,
        at: &mut usize,
        nr_pages: u32,
        now: u64,
    ) -> u32 {
        let mut picked = <List>::new();
        let mut freed = 0;
        if self.config.bulk_free == BulkFree::TwoPass {
            while freed < nr_pages
                && let Some((frame, order)) = pcp.pop_coldest(frames, at)
            {
                picked.push_tail(frames, frame);
                freed += order.nr_pages();
            }
        }
        self.hold(|buddy, _| {
            while let Some(frame) = picked.pop_head(frames) {
                buddy.free(frames, frame, frames.block(frame).0, now);
            }
            while freed < nr_pages
                && let Some((frame, order)) = pcp.pop_coldest(frames, at)
            {
                buddy.free(frames, frame, order, now);
                freed += order.nr_pages();
            }
            self.after_free(buddy, freed);
            freed
        });
        freed
    }

    /// Empties the caches of all CPUs into the zone, from any thread; returns the pages moved and
    /// the caches that were locked by another thread and so not reached.
    ///
    /// Both locks are dropped between batches.
    pub fn drain(&self, frames: &FrameTable, now: u64) -> Drained {
        self.drain_some(frames, now, u32::MAX)
    }

    /// Empties caches, those of other CPUs than the last time first, until at least `nr_pages`
    /// pages have come back. See [`Zone::drain`].
    pub fn drain_some(&self, frames: &FrameTable, now: u64, nr_pages: u32) -> Drained {
        let mut drained = Drained::default();
        let first = crate::units::index(self.drain_hand.load(Ordering::Relaxed));
        let nr_caches = self.pcps.iter().count();
        let caches = self.pcps.iter_by_cpu().cycle().skip(first % nr_caches);
        for (cpu, cache) in caches.take(nr_caches) {
            if drained.nr_pages >= nr_pages {
                self.drain_hand.store(cpu.number(), Ordering::Relaxed);
                break;
            }
            match cache.try_lock() {
                Some(pcp) if pcp.count() == 0 => {}
                Some(pcp) => {
                    let here = Here { cpu, now };
                    let (nr_pages, is_all) = self.flush(frames, here, pcp, 0, u32::MAX);
                    drained.nr_pages += nr_pages;
                    drained.not_reached += u32::from(!is_all);
                }
                None => drained.not_reached += 1,
            }
        }
        drained
    }

    /// A tick of the clock: caches give back what their tuner does not want any more, those of
    /// other nodes' CPUs what they did not use, and a boost wears off.
    ///
    /// A cache that another thread holds is left for the next tick.
    pub fn tick(&self, frames: &FrameTable, now: u64, is_local: impl Fn(Cpu) -> bool) -> Drained {
        let boost = self.boost.load(Ordering::Relaxed);
        self.boost.store(boost / 2, Ordering::Relaxed);
        let mut drained = Drained::default();
        for (cpu, cache) in self.pcps.iter_by_cpu() {
            let Some(mut pcp) = cache.try_lock() else {
                drained.not_reached += 1;
                continue;
            };
            let count = pcp.count();
            let mut keeps = pcp.tune.tick(count, &self.view(now));
            if !is_local(self.cpu_of(cpu)) && pcp.is_expired(EXPIRE_TICKS) {
                keeps = keeps.min(count.saturating_sub(self.config.sizes.batch));
            }
            if count > keeps {
                let here = Here { cpu, now };
                let (nr_pages, _) = self.flush(frames, here, pcp, 0, count - keeps);
                drained.nr_pages += nr_pages;
            }
        }
        drained
    }

    /// Blocks of whole pageblocks enter and leave the zone without a group's name from now on.
    pub(in crate::alloc) fn begin_forgetting(&self) {
        self.hold(|buddy, _| {
            buddy.begin_forgetting();
            0
        });
    }

    /// Ends [`Zone::begin_forgetting`]: no block in the zone has a group's name any more.
    pub(in crate::alloc) fn end_forgetting(&self, frames: &FrameTable) {
        self.hold(|buddy, _| {
            buddy.end_forgetting(frames);
            0
        });
    }

    /// Takes a free block of at least a pageblock that the OS holds memory for, free since `before`
    /// or longer. The caller lets the OS have the memory and calls [`Zone::put_released`].
    ///
    /// Cost: a look without the lock at each pageblock, from the one that went last up to that one.
    pub fn take_idle(&self, frames: &FrameTable, before: u64) -> Option<(Frame, Order)> {
        let range = self.frames();
        let first = range.start / PAGEBLOCK_PAGES;
        let nr_pageblocks = range.end.div_ceil(PAGEBLOCK_PAGES) - first;
        let hand = self.idle_hand.load(Ordering::Relaxed);
        for step in 0..nr_pageblocks {
            let number = (hand + step) % nr_pageblocks;
            let pageblock = Frame::new((first + number) * PAGEBLOCK_PAGES);
            let since = pageblock::idle_since(frames, pageblock);
            let may_be_idle = since.is_some_and(|since| since <= before)
                && buddy::whole_of(frames, pageblock).is_some();
            if !may_be_idle {
                continue;
            }
            let mut taken = None;
            self.hold(|buddy, _| {
                taken = buddy.take_idle(frames, pageblock, before);
                taken.map_or(0, |(_, order)| order.nr_pages())
            });
            if taken.is_some() {
                self.idle_hand.store(number, Ordering::Relaxed);
                return taken;
            }
        }
        None
    }

    /// Gives back a block of [`Zone::take_idle`]; whether the OS has its memory.
    pub fn put_released(
        &self,
        frames: &FrameTable,
        now: u64,
        (frame, order): (Frame, Order),
        is_released: bool,
    ) {
        self.hold(|buddy, _| {
            buddy.free(frames, frame, order, now);
            if is_released {
                buddy::for_pageblocks(frame, order, |block| {
                    pageblock::released(frames, block);
                });
            }
            self.after_free(buddy, order.nr_pages());
            order.nr_pages()
        });
    }
}
