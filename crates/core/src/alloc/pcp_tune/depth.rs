//! `depth`: `high` follows what was allocated and freed again within a period of a second.
//!
//! Source: RFC "alloc/free depth based PCP high auto-tuning", Huang 2023; the moves are those of
//! the kernel that it was written for (flushes double up to `high`).

use super::View;
use crate::units::SECOND;

const PERIOD: u64 = SECOND;

/// With `S` the pages allocated less those freed since the period began: its extremes, and the
/// largest rise and fall.
#[derive(Debug, Default)]
pub(super) struct Depth {
    count: i64,
    most: i64,
    least: i64,
    alloc_depth: i64,
    free_depth: i64,
    avg_alloc_depth: i64,
    avg_free_depth: i64,
    period_start: u64,
    /// Doublings of the next flush.
    free_factor: u32,
}

impl Depth {
    pub(super) fn allocated(&mut self, nr_pages: u32) {
        self.count += i64::from(nr_pages);
        self.most = self.most.max(self.count);
        self.alloc_depth = self.alloc_depth.max(self.count - self.least);
        self.free_factor >>= 1;
    }

    pub(super) fn freed(&mut self, high: &mut u32, nr_pages: u32, view: &View<'_>) {
        if view.sizes.high_min == 0 {
            *high = 0;
            self.period_start = 0;
            return;
        }
        self.count -= i64::from(nr_pages);
        self.least = self.least.min(self.count);
        self.free_depth = self.free_depth.max(self.most - self.count);
        let since = view.now.saturating_sub(self.period_start);
        if since <= PERIOD {
            return;
        }
        if since > 2 * PERIOD {
            *self = Depth {
                period_start: view.now,
                free_factor: self.free_factor,
                ..Depth::default()
            };
            *high = view.sizes.high_min;
            return;
        }
        self.avg_alloc_depth = (self.avg_alloc_depth + self.alloc_depth) / 2;
        self.avg_free_depth = (self.avg_free_depth + self.free_depth) / 2;
        self.period_start = view.now;
        (self.count, self.most, self.least) = (0, 0, 0);
        (self.alloc_depth, self.free_depth) = (0, 0);
        let wanted = self.avg_alloc_depth.min(self.avg_free_depth);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        *high = wanted.clamp(view.sizes.high_min, view.sizes.high_max);
    }

    pub(super) fn flush(&mut self, high: u32, count: u32, view: &View<'_>) -> Option<u32> {
        let batch = view.sizes.batch;
        let limit = if view.is_reclaim_active {
            high.min(4 * batch)
        } else {
            high
        };
        if count < limit {
            return None;
        }
        if limit < batch {
            return Some(1);
        }
        let most = limit - batch;
        let wanted = batch << self.free_factor;
        if wanted < most {
            self.free_factor += 1;
        }
        Some(wanted.clamp(batch, most.max(batch)))
    }

    #[cfg(test)]
    pub(super) fn depths(&self) -> (i64, i64) {
        (self.alloc_depth, self.free_depth)
    }
}
