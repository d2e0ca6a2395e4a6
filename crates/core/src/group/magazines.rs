//! Charges of blocks that wait in magazines: how many may, and what a CPU's stock has for them.

use super::record::{Group, Limit};
use super::stock::Stocks;
use super::{BATCH, Tree};
use crate::sync::Ordering;
use crate::units::{Cpu, Order};

/// Pages of blocks of less than a batch that a magazine has at most.
const MAX_SMALL: u32 = 512;

impl Tree {
    /// Blocks of an order that a magazine may have of a group: half a batch of pages, more of large
    /// ones under a large budget; none of a group that is exact, dead, or keeps to some nodes.
    ///
    /// With all of a rack's magazines full these are at most 1/23 of the root's `max` on all CPUs.
    #[must_use]
    pub fn magazine_blocks(&self, id: u32, order: Order) -> u32 {
        let group = self.live(id);
        let batch = group.batch.load(Ordering::Relaxed);
        let has_stocks = matches!(self.stocks, Stocks::Atomic(_));
        if !has_stocks || !self.is_anywhere(id) {
            return 0;
        }
        if cfg!(any(loom, shuttle)) {
            // A checker's memory is too small for any, and a checker's group for a limit.
            return if group.is_dead() { 0 } else { 2 };
        }
        let nr_pages = match order.nr_pages() >= BATCH {
            true => group.large(),
            false => (group.large() / 4).min(MAX_SMALL).max(batch / 2),
        };
        nr_pages >> order.get()
    }

    /// Pages that a CPU's part of the depot may have of a group that has magazines: its part of an
    /// eighth of the group's nearest limit or `high`, at most a 16th. All groups together may have
    /// the root's.
    #[must_use]
    pub fn depot_pages(&self, id: u32) -> u32 {
        if cfg!(any(loom, shuttle)) {
            return 2;
        }
        let limit = |(_, group): (u32, &Group)| group.max().min(group.limit(Limit::High));
        let least = self.path(id).map(limit).min().unwrap_or(0);
        u32::try_from(least / 8 / u64::from(self.nr_cpus.max(2))).unwrap_or(u32::MAX)
    }

    /// Takes up to `most` blocks of `unit` pages out of the CPU's stock, as many as it has. Returns
    /// how many. One read-modify-write, none where it has no block.
    pub fn consume_blocks(&self, cpu: Cpu, id: u32, unit: u32, most: u32) -> u32 {
        match &self.stocks {
            Stocks::Atomic(lines) => lines.pages(cpu, id).consume_blocks(id, unit, most),
            _ => 0,
        }
    }
}
