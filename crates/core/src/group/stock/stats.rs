//! What stocks count.

use crate::sync::{AtomicU64, Ordering};

/// Counts of a tree's stocks since it was made, and what they hold now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StockStats {
    /// Charges of pages that a stock served. Approximate where threads of one CPU number race.
    pub hits: u64,
    /// Charges of bytes that a stock served. Approximate likewise.
    pub byte_hits: u64,
    /// Batches that were charged ahead.
    pub refills: u64,
    /// Refills of which pages went back to the counters: an overflow, or another group's place.
    pub trims: u64,
    /// Stocks of a group that drains emptied. Approximate where drains race.
    pub remote_drains: u64,
    /// Tries of a stock's lock that found it held.
    pub contended: u64,
    /// Stocks that their owners emptied because a drain asked them to.
    pub owner_actions: u64,
    /// Pages in stocks now.
    pub nr_pages: u32,
    /// Bytes in stocks and parked in groups' records now.
    pub nr_bytes: u64,
}

/// Counts of one CPU away from its stock's lines: none is on the path of a hit.
#[derive(Debug, Default)]
pub(in crate::group) struct Counts {
    pub(in crate::group) refills: AtomicU64,
    pub(in crate::group) trims: AtomicU64,
}

impl Counts {
    pub(in crate::group) fn count(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}
