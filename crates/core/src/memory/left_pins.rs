//! Pins on pages that left their files, and working memory: while there are any, the memory is
//! needed though nobody has a handle of it.

use super::Memory;
use crate::sync::{AtomicU64, Ordering};

/// Nobody has a handle any more.
const ABANDONED: u64 = 1 << 63;

/// Added as long as somebody has a handle: without what CPUs count, and before the pins of a page
/// that just left its file are counted, the number may be below zero. More than there can be.
const BIAS: u64 = 1 << 40;

/// How many pins there are on detached pages, and [`ABANDONED`]: whoever makes of it the latter
/// alone is the last to need the memory.
///
/// Counted are the pins that a page has when it leaves its file, but not that of whoever takes it
/// out, nor those on a frame that its page moved out of; and blocks of working memory, but for
/// those that the CPUs count as long as somebody has a handle.
#[derive(Debug)]
pub(super) struct LeftPins(AtomicU64);

impl Default for LeftPins {
    fn default() -> LeftPins {
        LeftPins(AtomicU64::new(BIAS))
    }
}

impl LeftPins {
    /// Pins on a page that has just left its file, some of which may be dropped already; or one
    /// more on such a page.
    pub(super) fn add(&self, nr_pins: u32) {
        if nr_pins > 0 {
            // Relaxed: the caller has a handle, and whoever drops the last one comes after it.
            self.0.fetch_add(nr_pins.into(), Ordering::Relaxed);
        }
    }

    /// One that was counted is none after all, and not the last.
    pub(super) fn take_back(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// One of them was dropped; whether it was the last one and nobody has a handle.
    #[cold]
    pub(super) fn drop_one(&self) -> bool {
        // AcqRel pairs with itself and `abandon`: the last one comes after all others.
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        assert!(before & !ABANDONED > 0, "a pin that was not counted");
        before == ABANDONED | 1
    }

    /// Nobody has a handle any more, and so many blocks are to be counted here. Whether anything
    /// is.
    fn abandon(&self, nr_out: i64) -> bool {
        let change = ABANDONED.wrapping_add_signed(nr_out).wrapping_sub(BIAS);
        let before = self.0.fetch_add(change, Ordering::AcqRel);
        before.wrapping_add(change) != ABANDONED
    }

    /// Those there are by this count: below zero where CPUs count more.
    pub(super) fn get(&self) -> i64 {
        let counted = self.0.load(Ordering::Relaxed);
        let bias = if counted & ABANDONED == 0 { BIAS } else { 0 };
        (counted & !ABANDONED).cast_signed() - bias.cast_signed()
    }
}

impl Memory {
    /// Says that nobody has a handle any more: all mappings are closed, nobody takes working
    /// memory. Whether there are pins on their pages, or working memory; then the drop of the last
    /// pin leaves [`super::Effect::LastPin`], or [`Memory::drop_buf`] says so of the last block,
    /// and whoever gets that is the last to need the memory.
    ///
    /// Cost: a lock for each CPU.
    #[must_use]
    pub fn abandon(&self) -> bool {
        let nr_out = self.magazines.close();
        self.drain_magazines(|_| true);
        self.left_pins.abandon(nr_out)
    }

    /// Whether there is a mapping that was not closed, or whose last write is under way.
    #[must_use]
    pub fn has_mappings(&self) -> bool {
        self.mappings.iter().next().is_some()
    }
}
