//! Seed 002's stock: one record a CPU under a spin lock, which drains take from other CPUs.

use super::single::{Single, bump};
use super::{Item, Sink, StockStats};
use crate::sync::{AtomicU64, Guard, Ordering, SpinLock, rank};

/// One CPU's stock and its lock, on one line.
#[derive(Debug, Default)]
pub struct SpinStock {
    lock: SpinLock<(), { rank::STOCK }>,
    stock: Single,
    /// Takes of the lock that found it held. Written under the lock.
    contended: AtomicU64,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<SpinStock>() <= 64);

impl SpinStock {
    #[inline]
    fn lock(&self) -> Guard<'_, (), { rank::STOCK }> {
        if let Some(guard) = self.lock.try_lock() {
            return guard;
        }
        let guard = self.lock.lock();
        bump(&self.contended);
        guard
    }

    /// Takes pages of a group out. Source: `consume_stock`.
    #[inline]
    pub fn consume(&self, group: u32, nr_pages: u32) -> bool {
        let _guard = self.lock();
        self.stock.consume(group, nr_pages)
    }

    /// Puts charged pages in; more than a batch empties the slot. Source: `refill_stock`.
    #[inline]
    pub fn refill(&self, group: u32, nr_pages: u32, batch: u32, out: Sink<'_>) {
        let _guard = self.lock();
        self.stock.refill(group, nr_pages, batch, out);
    }

    /// Takes bytes of a group out. Source: `consume_obj_stock`.
    #[inline]
    pub fn consume_bytes(&self, group: u32, nr_bytes: u32) -> bool {
        let _guard = self.lock();
        self.stock.consume_bytes(group, nr_bytes)
    }

    /// Puts bytes in, and what is parked where the group comes in anew; returns whole pages to
    /// give back. Source: `refill_obj_stock`.
    #[inline]
    pub fn refill_bytes(
        &self,
        group: u32,
        nr_bytes: u32,
        parked: impl FnOnce() -> u32,
        out: Sink<'_>,
    ) -> u32 {
        let _guard = self.lock();
        self.stock.refill_bytes(group, nr_bytes, parked, out)
    }

    /// Changes a statistic by at most a page. Source: `mod_objcg_state`.
    #[inline]
    pub fn mod_state(&self, change: (u32, Item, i32), parked: impl FnOnce() -> u32, out: Sink<'_>) {
        let _guard = self.lock();
        self.stock.mod_state(change, parked, out);
    }

    /// Takes the lock once, so that every earlier holder is seen and every later one sees.
    pub(super) fn publish(&self) {
        drop(self.lock());
    }

    /// Empties the whole record where it holds something of a group that `wanted` names.
    ///
    /// A look without the lock, then one take of it; none for a record that holds nothing of them.
    pub(super) fn drain(&self, wanted: impl Fn(u32) -> bool, out: Sink<'_>) {
        if self.stock.holds(wanted) {
            let _guard = self.lock();
            self.stock.drain(out);
        }
    }

    pub(super) fn held(&self, wanted: impl Fn(u32) -> bool) -> (u32, u32) {
        self.stock.held(wanted)
    }

    pub(super) fn add_stats(&self, stats: &mut StockStats) {
        stats.hits += self.stock.hits.load(Ordering::Relaxed);
        stats.byte_hits += self.stock.byte_hits.load(Ordering::Relaxed);
        stats.contended += self.contended.load(Ordering::Relaxed);
    }
}
