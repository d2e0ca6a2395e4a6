//! Charges of blocks that wait in magazines: how many may, and what a CPU's stock has for them.

use super::stock::Stocks;
use super::{BATCH, Tree};
use crate::sync::Ordering;
use crate::units::{Cpu, Order};

/// Pages of blocks of less than a batch that a magazine has at most.
const MAX_SMALL: u32 = 512;

impl Tree {
    /// Blocks of an order that a magazine may have of a group: half a batch of pages, more under a
    /// large budget, of large ones half of what the depot may have; none of a group that is exact,
    /// dead, over a limit above it, or keeps to some nodes.
    ///
    /// With all of a rack's magazines full these are at most 1/11 of the root's `max` on all CPUs,
    /// without the one for large blocks 1/36.
    #[must_use]
    pub fn magazine_blocks(&self, id: u32, order: Order) -> u32 {
        let group = self.live(id);
        let batch = group.batch.load(Ordering::Relaxed);
        let has_stocks = matches!(self.stocks, Stocks::Atomic(_));
        // What a group over its limit gives back must not serve a new request.
        if !has_stocks || !self.is_anywhere(id) || self.is_over(group) {
            return 0;
        }
        if cfg!(any(loom, shuttle)) {
            // A checker's memory is too small for any, and a checker's group for a limit.
            return if group.is_dead() { 0 } else { 2 };
        }
        let large = group.large();
        let nr_pages = match order.nr_pages() {
            BATCH.. if order.nr_pages() > large => 0,
            BATCH.. => group.depot() / 2,
            _ => (large / 4).min(MAX_SMALL).max(batch / 2),
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
        self.live(id).depot()
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
