//! The stock that seed 002 replaced: its CPU alone reaches it, and drains it when asked to.

use super::single::{Single, bump};
use super::{Item, Sink, StockStats};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// One CPU's stock, and whether its owner was asked to empty it, on one line.
#[derive(Debug, Default)]
pub struct OwnerStock {
    stock: Single,
    /// 1 from a drain until the owner ran. Source: `FLUSHING_CACHED_CHARGE`.
    flushing: AtomicU32,
    owner_actions: AtomicU64,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<OwnerStock>() <= 64);

impl OwnerStock {
    /// Takes pages of a group out, unless the owner has a drain to run first.
    #[inline]
    pub fn consume(&self, group: u32, nr_pages: u32) -> bool {
        !self.is_scheduled() && self.stock.consume(group, nr_pages)
    }

    /// Puts charged pages in; more than a batch empties the slot.
    #[inline]
    pub fn refill(&self, group: u32, nr_pages: u32, batch: u32, out: Sink<'_>) {
        self.stock.refill(group, nr_pages, batch, out);
    }

    /// Takes bytes of a group out, unless the owner has a drain to run first.
    #[inline]
    pub fn consume_bytes(&self, group: u32, nr_bytes: u32) -> bool {
        !self.is_scheduled() && self.stock.consume_bytes(group, nr_bytes)
    }

    /// Puts bytes in, and what is parked where the group comes in anew; returns whole pages to
    /// give back.
    #[inline]
    pub fn refill_bytes(
        &self,
        group: u32,
        nr_bytes: u32,
        parked: impl FnOnce() -> u32,
        out: Sink<'_>,
    ) -> u32 {
        self.stock.refill_bytes(group, nr_bytes, parked, out)
    }

    /// Changes a statistic by at most a page.
    #[inline]
    pub fn mod_state(&self, change: (u32, Item, i32), parked: impl FnOnce() -> u32, out: Sink<'_>) {
        self.stock.mod_state(change, parked, out);
    }

    #[inline]
    pub(super) fn is_scheduled(&self) -> bool {
        // Acquire pairs with the AcqRel in `schedule`: the owner sees what was changed before.
        self.flushing.load(Ordering::Acquire) != 0
    }

    /// Asks the owner to empty the stock when it next runs, if it was not asked yet.
    pub(super) fn schedule(&self) {
        // AcqRel: the release half pairs with the Acquire in `is_scheduled`.
        self.flushing.fetch_or(1, Ordering::AcqRel);
    }

    /// Runs on the owner's CPU: empties the stock if a drain asked for it.
    pub(super) fn run(&self, out: Sink<'_>) -> bool {
        let is_due = self.is_scheduled();
        if is_due {
            // First: a drain that comes from now on asks again.
            self.flushing.store(0, Ordering::Relaxed);
            bump(&self.owner_actions);
            self.stock.drain(out);
        }
        is_due
    }

    pub(super) fn holds(&self, wanted: impl Fn(u32) -> bool) -> bool {
        self.stock.holds(wanted)
    }

    pub(super) fn held(&self, wanted: impl Fn(u32) -> bool) -> (u32, u32) {
        self.stock.held(wanted)
    }

    pub(super) fn add_stats(&self, stats: &mut StockStats) {
        stats.hits += self.stock.hits.load(Ordering::Relaxed);
        stats.byte_hits += self.stock.byte_hits.load(Ordering::Relaxed);
        stats.owner_actions += self.owner_actions.load(Ordering::Relaxed);
    }
}
