//! What a zone counts, shows and asserts.

use super::Zone;
use crate::alloc::pageblock::NR_MOBILITIES;
use crate::alloc::pcp_tune::Tuner;
use crate::alloc::watermark::Watermarks;
use crate::frame::FrameTable;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Cpu, Discrepancy, NR_ORDERS};

/// Counts of one zone, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneStats {
    /// Times that the zone's lock was taken.
    pub lock_takes: u64,
    /// Of these, times that another thread held it.
    pub lock_contended: u64,
    /// Pages moved under the lock.
    pub hold_pages: u64,
    /// Most pages given back in one hold.
    pub hold_free_pages_max: u64,
    /// Pages served.
    pub pgalloc: u64,
    /// Pages given back.
    pub pgfree: u64,
    /// Blocks served from the node that was wanted.
    pub numa_hit: u64,
    /// Blocks served though another node was wanted.
    pub numa_miss: u64,
    /// Blocks served to a CPU of the node, and of another one.
    pub numa_local: u64,
    /// See `numa_local`.
    pub numa_other: u64,
    /// Pageblocks that changed their mobility.
    pub claims: u32,
    /// Blocks taken out of a pageblock of another mobility.
    pub steals: u32,
}

impl core::ops::Add for ZoneStats {
    type Output = ZoneStats;

    fn add(self, other: ZoneStats) -> ZoneStats {
        ZoneStats {
            lock_takes: self.lock_takes + other.lock_takes,
            lock_contended: self.lock_contended + other.lock_contended,
            hold_pages: self.hold_pages + other.hold_pages,
            hold_free_pages_max: self.hold_free_pages_max.max(other.hold_free_pages_max),
            pgalloc: self.pgalloc + other.pgalloc,
            pgfree: self.pgfree + other.pgfree,
            numa_hit: self.numa_hit + other.numa_hit,
            numa_miss: self.numa_miss + other.numa_miss,
            numa_local: self.numa_local + other.numa_local,
            numa_other: self.numa_other + other.numa_other,
            claims: self.claims + other.claims,
            steals: self.steals + other.steals,
        }
    }
}

/// Counts that are kept outside the per-CPU page caches: under the zone's lock, or by those whose
/// cache was locked by another thread.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) lock_takes: AtomicU64,
    pub(super) lock_contended: AtomicU64,
    pub(super) hold_pages: AtomicU64,
    pub(super) hold_free_pages_max: AtomicU64,
    pub(super) served: [AtomicU64; 4],
    pub(super) pgalloc: AtomicU64,
    pub(super) pgfree: AtomicU64,
}

impl Zone {
    /// Frames in the zone and in its per-CPU page caches.
    #[must_use]
    pub fn nr_free(&self) -> u32 {
        let cached: u32 = self.pcps.iter().map(|pcp| pcp.lock().count()).sum();
        cached + self.buddy.lock().nr_free()
    }

    /// Pages in a CPU's caches, and the sum of the `high` of those that have some; of a CPU that
    /// has none, the largest.
    #[must_use]
    pub fn pageset(&self, cpu: Cpu) -> (u32, u32) {
        let caches = self.pcps.iter_by_cpu();
        let of_cpu = caches.filter(|&(number, _)| self.cpu_of(number) == self.cpu_of(cpu));
        let (mut nr_held, mut sum, mut largest) = (0, 0, 0);
        for (_, cache) in of_cpu {
            let pcp = cache.lock();
            let (count, high) = (pcp.count(), pcp.tune.high());
            nr_held += count;
            sum += if count > 0 { high } else { 0 };
            largest = high.max(largest);
        }
        (nr_held, sum.max(largest))
    }

    /// Free blocks of each order, without those in per-CPU page caches.
    #[must_use]
    pub fn buddyinfo(&self) -> [u32; NR_ORDERS] {
        self.pagetypeinfo().map(|kinds| kinds.iter().sum())
    }

    /// Free blocks of each order and mobility, without those in per-CPU page caches.
    #[must_use]
    pub fn pagetypeinfo(&self) -> [[u32; NR_MOBILITIES]; NR_ORDERS] {
        self.buddy.lock().pagetypeinfo()
    }

    /// The watermarks as they are now, with the boost.
    #[must_use]
    pub fn watermarks(&self) -> (Watermarks, u32) {
        (self.config.watermarks, self.boost.load(Ordering::Relaxed))
    }

    /// What was counted so far. Takes the zone's lock and those of its caches, one at a time.
    #[must_use]
    pub fn stats(&self) -> ZoneStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        let mut served: [u64; 4] = core::array::from_fn(|class| load(&counters.served[class]));
        let (mut pgalloc, mut pgfree) = (load(&counters.pgalloc), load(&counters.pgfree));
        for slot in self.pcps.iter() {
            let pcp = slot.lock();
            for (sum, more) in served.iter_mut().zip(pcp.counts.served) {
                *sum += more;
            }
            pgalloc += pcp.counts.pgalloc;
            pgfree += pcp.counts.pgfree;
        }
        let (claims, steals) = self.buddy.lock().nr_fallbacks();
        ZoneStats {
            lock_takes: load(&counters.lock_takes),
            lock_contended: load(&counters.lock_contended),
            hold_pages: load(&counters.hold_pages),
            hold_free_pages_max: load(&counters.hold_free_pages_max),
            pgalloc,
            pgfree,
            numa_hit: served[0] + served[1],
            numa_miss: served[2] + served[3],
            numa_local: served[0] + served[2],
            numa_other: served[1] + served[3],
            claims,
            steals,
        }
    }

    /// Times that the lock was taken and pages moved under it, without taking it.
    #[must_use]
    pub fn holds_so_far(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (
            load(&self.counters.lock_takes),
            load(&self.counters.hold_pages),
        )
    }

    /// The sum of all caches' `high`, as `adaptive` keeps it.
    #[must_use]
    pub fn sum_high(&self) -> u32 {
        self.shared.sum_high()
    }

    /// Counts anew what the room's invariants say, at rest. O(frames).
    ///
    /// # Errors
    /// [`Discrepancy`] where one does not hold.
    pub fn audit(&self, frames: &FrameTable) -> Result<(), Discrepancy> {
        self.buddy.lock().audit(frames)?;
        let sizes = &self.config.sizes;
        let is_adaptive = self.config.tuner == Tuner::Adaptive;
        let mut sum_high = self.config.nr_local_cpus * sizes.high_min;
        for (cpu, slot) in self.pcps.iter_by_cpu() {
            let pcp = slot.lock();
            pcp.audit(frames)?;
            let high = pcp.tune.high();
            let is_within = sizes.high_min <= high && (is_adaptive || high <= sizes.high_max);
            let what = "the bounds of the `high` of a CPU";
            Discrepancy::require(what, cpu.number(), is_within)?;
            sum_high += high - sizes.high_min;
        }
        if !is_adaptive {
            return Ok(());
        }
        let booked = u64::from(self.sum_high());
        Discrepancy::compare("the sum of all `high`", 0, booked, sum_high.into())
    }
}
