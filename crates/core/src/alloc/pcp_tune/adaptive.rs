//! `adaptive`, the default: `high` grows by pages that were given back and are taken again, and
//! what two ticks did not use goes.
//!
//! Pages given back are the free depth, the refills that follow them the alloc depth: growth by the
//! smaller of both, without a period, an average or a counter on the path of a hit. Pure allocation
//! has given nothing back, pure freeing never refills: neither moves `high`. All caches of a zone
//! share one cap, and fall back to `high_min` while the zone is below its high watermark.
//! Compared with the other forms in `docs/pcp-tuners.md`.

use super::{SCALE_MAX, View};
use crate::units::Order;

/// Batches that one refill takes at most; half as many while others wait for the zone.
const REFILL_BATCHES: u32 = 16;
/// Batches that one flush gives back at most.
const FLUSH_BATCHES: u32 = 2;
/// Ticks without an operation until a cache gives everything back.
const IDLE_TICKS: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Adaptive {
    /// Doublings of the next refill, and of the next flush.
    alloc_factor: u32,
    free_factor: u32,
    /// Pages given back and not yet taken again.
    out: u32,
    /// Least `count` since the last tick, and in the period before.
    low_water: u32,
    last_low_water: u32,
    /// `count` after the last tick.
    count_at_tick: u32,
    /// Ticks in a row without an operation.
    quiet: u32,
}

impl Adaptive {
    #[inline]
    pub(super) fn allocated(&mut self, count: u32) {
        self.low_water = self.low_water.min(count);
        self.free_factor >>= 1;
    }

    /// Blocks to take for a refill of `order`.
    pub(super) fn refill(
        &mut self,
        high: &mut u32,
        order: Order,
        is_contended: bool,
        view: &View<'_>,
    ) -> u32 {
        let sizes = view.sizes;
        let batch = sizes.batch;
        self.yield_to_pressure(high, view);
        let most = (REFILL_BATCHES * batch).min((sizes.high_max / 2).max(batch));
        let mut nr_pages = (batch << self.alloc_factor).min(most);
        let is_pressed = view.is_below_high || view.is_reclaim_active;
        if is_pressed {
            nr_pages = nr_pages.min(sizes.high_min.saturating_sub(batch).max(batch));
        }
        if batch << self.alloc_factor < REFILL_BATCHES * batch && self.alloc_factor < SCALE_MAX {
            self.alloc_factor += 1;
        }
        let nr_blocks = |nr_pages: u32| (nr_pages >> order.get()).max(1);
        if !is_pressed {
            let taken = nr_blocks(nr_pages) << order.get();
            let grown = view.shared.grow(taken.min(self.out));
            *high += grown;
            self.out -= grown;
        }
        if is_contended {
            nr_pages = nr_pages.min(REFILL_BATCHES / 2 * batch);
        }
        nr_blocks(nr_pages)
    }

    #[inline]
    pub(super) fn freed(&mut self, high: &mut u32, view: &View<'_>) {
        self.alloc_factor >>= 1;
        self.yield_to_pressure(high, view);
    }

    #[inline]
    fn yield_to_pressure(&mut self, high: &mut u32, view: &View<'_>) {
        if view.is_below_high && *high > view.sizes.high_min {
            view.shared.shrink(*high - view.sizes.high_min);
            *high = view.sizes.high_min;
        }
    }

    /// Pages to give back from a cache that is full.
    pub(super) fn flush(&mut self, high: u32, count: u32, view: &View<'_>) -> u32 {
        let batch = view.sizes.batch;
        let most = FLUSH_BATCHES * batch;
        let nr_pages = (batch << self.free_factor)
            .min(most)
            .min(high.saturating_sub(batch).max(batch))
            .min(count);
        if nr_pages < most && self.free_factor < SCALE_MAX {
            self.free_factor += 1;
        }
        nr_pages
    }

    pub(super) fn gave_back(&mut self, nr_pages: u32, count: u32, view: &View<'_>) {
        self.out = (self.out + nr_pages).min(view.shared.cap());
        self.low_water = self.low_water.min(count);
    }

    pub(super) fn tick(&mut self, high: &mut u32, count: u32, view: &View<'_>) -> u32 {
        let least = view.sizes.high_min;
        let low_water = self.low_water.min(count);
        let unused = low_water.min(self.last_low_water);
        self.last_low_water = low_water;
        let is_quiet = low_water == count && count == self.count_at_tick;
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        let is_idle = count > 0 && self.quiet >= IDLE_TICKS;
        let wanted = if is_idle || view.is_below_high {
            least
        } else if unused >= view.sizes.batch {
            high.saturating_sub(unused - unused / 4).max(least)
        } else {
            *high
        };
        view.shared.shrink(*high - wanted);
        *high = wanted;
        self.out -= self.out / 4;
        let keeps = if is_idle { 0 } else { *high };
        self.count_at_tick = count.min(keeps);
        self.low_water = self.count_at_tick;
        keeps
    }
}
