//! `batch`: `high` grows with each refill, decays by an eighth each tick, and falls under pressure.
//!
//! Source: kernel 6.7 `nr_pcp_alloc()`, `nr_pcp_high()`, `nr_pcp_free()`, `decay_pcp_high()`.
//! Changed: the decay is at least one page, so that a small `high` also reaches `high_min`.

use super::{SCALE_MAX, View};
use crate::units::Order;

#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Doublings of the next refill.
    alloc_factor: u32,
}

impl Batch {
    /// Pages to take for a refill of `order`.
    pub(super) fn refill(
        &mut self,
        high: &mut u32,
        order: Order,
        count: u32,
        view: &View<'_>,
    ) -> u32 {
        let sizes = view.sizes;
        *high = (*high).clamp(sizes.high_min, sizes.high_max);
        let is_single = order == Order::ZERO;
        let mut nr_pages = if is_single {
            sizes.batch << self.alloc_factor
        } else {
            sizes.batch
        };
        if sizes.high_min != sizes.high_max && !view.is_below_high {
            *high = high.saturating_add(nr_pages).min(sizes.high_max);
        }
        if is_single {
            let room = high.saturating_sub(count + sizes.batch).max(sizes.batch);
            if nr_pages <= room && self.alloc_factor < SCALE_MAX {
                self.alloc_factor += 1;
            }
            nr_pages = nr_pages.min(room);
        }
        nr_pages
    }

    pub(super) fn freed(&mut self) {
        self.alloc_factor >>= 1;
    }

    /// Pages to give back after a free, if the cache holds too many.
    pub(super) fn flush(
        &mut self,
        high: &mut u32,
        free_count: u32,
        count: u32,
        view: &View<'_>,
    ) -> Option<u32> {
        let sizes = view.sizes;
        let batch = sizes.batch;
        *high = (*high).clamp(sizes.high_min, sizes.high_max);
        let old = *high;
        let less = old
            .saturating_sub(free_count.max(batch))
            .max(sizes.high_min);
        let threshold = if old == 0 {
            0
        } else if view.is_reclaim_active {
            *high = less;
            (4 * batch).min(*high)
        } else if sizes.high_min == sizes.high_max {
            old
        } else if view.is_below_high {
            *high = less;
            count.max(sizes.high_min)
        } else {
            let needed = free_count + batch;
            if count >= old && old < needed {
                *high = needed.clamp(sizes.high_min, sizes.high_max);
            }
            old
        };
        if count < threshold {
            return None;
        }
        Some(if threshold < batch {
            1
        } else {
            free_count.clamp(batch, (threshold - batch).max(batch))
        })
    }

    pub(super) fn tick(&mut self, high: &mut u32, count: u32, view: &View<'_>) -> u32 {
        let sizes = view.sizes;
        if *high > sizes.high_min {
            let decayed = *high - (*high / 8).max(1);
            let debt = count.saturating_sub(sizes.batch << SCALE_MAX);
            *high = debt.max(decayed).clamp(sizes.high_min, sizes.high_max);
        }
        *high
    }
}
