#![doc = include_str!("README.md")]

mod buddy;
mod pcp;

pub use buddy::Buddy;
pub use pcp::{Pcp, caches};

use crate::frame::FrameTable;
use crate::sync::{AtomicU64, NoMetadata, Ordering, PerCpu, SpinLock, rank};
use crate::units::{Cpu, Frame, NR_ORDERS, Order};

/// Sizes of the allocator room.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Pages that move between a per-CPU page cache and its zone in one lock hold.
    pub batch: u32,
    /// Pages that a per-CPU page cache holds before it gives a batch back; 0 turns it off.
    pub high: u32,
}

impl Config {
    /// The kernel's static sizes for a zone of `managed` pages shared by `nr_cpus` CPUs.
    ///
    /// `batch` is 63 from 1 GiB on, less below. `high` is four batches: what the kernel's
    /// `high_min` amounts to on small zones.
    #[must_use]
    pub fn for_zone(managed: u32) -> Config {
        let quarter = ((managed / 1024).min(256) / 4).max(1);
        let rounded = quarter + quarter / 2;
        let batch = ((1 << rounded.ilog2()) - 1).max(1);
        Config {
            batch,
            high: 4 * batch,
        }
    }

    /// Pages that all per-CPU page caches of `nr_cpus` CPUs hold at most: the frames that an arena
    /// needs beyond what its groups may be charged, so that only the groups' limits evict.
    #[must_use]
    pub fn slack(&self, nr_cpus: u32) -> u32 {
        // One block of the largest cached order may come on top of `high`.
        nr_cpus * (self.high + self.batch)
    }
}

/// Counts of one zone, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneStats {
    /// Times that the zone's lock was taken.
    pub lock_takes: u64,
    /// Most pages moved in one hold.
    pub hold_pages_max: u64,
}

/// A range of frames with its own lock, and the per-CPU page caches before it.
#[derive(Debug)]
pub struct Zone {
    buddy: SpinLock<Buddy, { rank::ZONE }>,
    pcps: PerCpu<SpinLock<Pcp, { rank::PCP }>>,
    config: Config,
    managed: u32,
    lock_takes: AtomicU64,
    hold_pages_max: AtomicU64,
}

impl Zone {
    /// Bytes that [`Zone::try_new`] takes beside the zone itself.
    #[must_use]
    pub const fn bytes(nr_cpus: u32) -> usize {
        PerCpu::<SpinLock<Pcp, { rank::PCP }>>::bytes(nr_cpus)
    }

    /// A zone of frames `start..end`, all free.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(
        frames: &FrameTable,
        start: u32,
        end: u32,
        nr_cpus: u32,
        config: Config,
    ) -> Result<Zone, NoMetadata> {
        Ok(Zone {
            buddy: SpinLock::new(Buddy::new(frames, start, end)),
            pcps: PerCpu::try_new(nr_cpus, SpinLock::default)?,
            config,
            managed: end - start,
            lock_takes: AtomicU64::new(0),
            hold_pages_max: AtomicU64::new(0),
        })
    }

    /// Frames that the zone began with.
    #[must_use]
    pub fn managed(&self) -> u32 {
        self.managed
    }

    /// Runs `work` under the zone's lock; it returns the pages that it moved.
    fn hold(&self, work: impl FnOnce(&mut Buddy) -> u32) {
        let mut buddy = self.buddy.lock();
        let moved = u64::from(work(&mut buddy));
        // Plain stores: both are written under the zone's lock only.
        self.lock_takes.store(
            self.lock_takes.load(Ordering::Relaxed) + 1,
            Ordering::Relaxed,
        );
        let max = self.hold_pages_max.load(Ordering::Relaxed).max(moved);
        self.hold_pages_max.store(max, Ordering::Relaxed);
    }

    /// Takes a block of `order`, or `None` where neither the CPU's cache nor the zone has one.
    ///
    /// One try-lock where the cache has a block; else one hold of the zone's lock as well, which
    /// refills a batch. A CPU whose cache is locked goes to the zone directly.
    pub fn alloc(&self, frames: &FrameTable, cpu: Cpu, order: Order) -> Option<Frame> {
        let mut taken = None;
        if caches(order)
            && self.config.high > 0
            && let Some(mut pcp) = self.pcps.of(cpu).try_lock()
        {
            if let Some(frame) = pcp.pop(frames, order) {
                return Some(frame);
            }
            let nr_blocks = (self.config.batch >> order.get()).max(1);
            self.hold(|buddy| {
                taken = buddy.alloc(frames, order);
                let mut moved = taken.map_or(0, |_| order.nr_pages());
                for _ in 1..nr_blocks {
                    let Some(frame) = buddy.alloc(frames, order) else {
                        break;
                    };
                    pcp.push_cold(frames, frame, order);
                    moved += order.nr_pages();
                }
                moved
            });
            return taken;
        }
        self.hold(|buddy| {
            taken = buddy.alloc(frames, order);
            order.nr_pages()
        });
        taken
    }

    /// Gives a block back to the CPU's cache, which passes a batch on where it holds too many.
    ///
    /// # Panics
    /// Where the block is free already.
    pub fn free(&self, frames: &FrameTable, cpu: Cpu, frame: Frame, order: Order) {
        if caches(order)
            && self.config.high > 0
            && let Some(mut pcp) = self.pcps.of(cpu).try_lock()
        {
            pcp.push(frames, frame, order);
            while pcp.count() > self.config.high {
                let excess = pcp.count() - self.config.high;
                self.bulk_free(frames, &mut pcp, order, excess.max(self.config.batch));
            }
            return;
        }
        self.hold(|buddy| {
            buddy.free(frames, frame, order);
            order.nr_pages()
        });
    }

    /// Frees at least `nr_pages` pages of a cache (or all it has) in one pass and one hold: at most
    /// a batch and the last block's order beyond it.
    ///
    /// Source: single-pass bulk free, Gorman 2022 (kernel `free_pcppages_bulk()`).
    fn bulk_free(&self, frames: &FrameTable, pcp: &mut Pcp, first: Order, nr_pages: u32) {
        let nr_pages = nr_pages.min(self.config.batch);
        self.hold(|buddy| {
            let mut freed = 0;
            while freed < nr_pages {
                let Some((frame, order)) = pcp.pop_coldest(frames, first) else {
                    break;
                };
                buddy.free(frames, frame, order);
                freed += order.nr_pages();
            }
            freed
        });
    }

    /// Empties the caches of all CPUs into the zone, from any thread; returns the pages moved and
    /// the caches that were locked by another thread and so not reached.
    ///
    /// Both locks are dropped between batches.
    pub fn drain(&self, frames: &FrameTable) -> Drained {
        let mut drained = Drained::default();
        for slot in self.pcps.iter() {
            loop {
                let Some(mut pcp) = slot.try_lock() else {
                    drained.not_reached += 1;
                    break;
                };
                let before = pcp.count();
                if before == 0 {
                    break;
                }
                self.bulk_free(frames, &mut pcp, Order::ZERO, self.config.batch);
                drained.nr_pages += before - pcp.count();
            }
        }
        drained
    }

    /// Frames in the zone and in its per-CPU page caches.
    #[must_use]
    pub fn nr_free(&self) -> u32 {
        let cached: u32 = self.pcps.iter().map(|pcp| pcp.lock().count()).sum();
        cached + self.buddy.lock().nr_free()
    }

    /// Free blocks of each order, without those in per-CPU page caches.
    #[must_use]
    pub fn buddyinfo(&self) -> [u32; NR_ORDERS] {
        self.buddy.lock().nr_free_by_order()
    }

    /// What was counted so far.
    #[must_use]
    pub fn stats(&self) -> ZoneStats {
        ZoneStats {
            lock_takes: self.lock_takes.load(Ordering::Relaxed),
            hold_pages_max: self.hold_pages_max.load(Ordering::Relaxed),
        }
    }

    /// Asserts the room's invariants at rest. O(frames).
    ///
    /// # Panics
    /// Where one does not hold.
    pub fn check(&self, frames: &FrameTable) {
        self.buddy.lock().check(frames);
        self.pcps.iter().for_each(|pcp| pcp.lock().check(frames));
    }
}

/// What a drain did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Pages moved to the zone.
    pub nr_pages: u32,
    /// Caches that another thread held.
    pub not_reached: u32,
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
