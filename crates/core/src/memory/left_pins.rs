//! Pins on pages that left their files: while there are any, the memory is needed though nobody has
//! a handle of it.

use super::Memory;
use crate::sync::{AtomicU64, Ordering};

/// Nobody has a handle any more.
const ABANDONED: u64 = 1 << 63;

/// How many pins there are on detached pages, and [`ABANDONED`]: whoever makes of it the latter
/// alone is the last to need the memory.
///
/// Counted are the pins that a page has when it leaves its file, but not that of whoever takes it
/// out, nor those on a frame that its page moved out of.
#[derive(Debug, Default)]
pub(super) struct LeftPins(AtomicU64);

impl LeftPins {
    /// A page with so many pins is about to leave its file: before their holders can see that.
    pub(super) fn add(&self, nr_pins: u32) {
        if nr_pins > 0 {
            // Relaxed: the caller has a handle, and whoever drops the last one comes after it.
            self.0.fetch_add(nr_pins.into(), Ordering::Relaxed);
        }
    }

    /// The page stays in its file after all.
    pub(super) fn take_back(&self, nr_pins: u32) {
        if nr_pins > 0 {
            self.0.fetch_sub(nr_pins.into(), Ordering::Relaxed);
        }
    }

    /// One of them was dropped; whether it was the last one and nobody has a handle.
    #[cold]
    pub(super) fn drop_one(&self) -> bool {
        // AcqRel pairs with itself and `abandon`: the last one comes after all others.
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        assert!(before & !ABANDONED > 0, "a pin that was not counted");
        before == ABANDONED | 1
    }

    fn abandon(&self) -> bool {
        self.0.fetch_or(ABANDONED, Ordering::AcqRel) > 0
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & !ABANDONED
    }
}

impl Memory {
    /// Says that nobody has a handle any more: all mappings are closed. Whether there are pins on
    /// their pages; then the drop of the last one leaves [`super::Effect::LastPin`], and whoever
    /// gets that is the last to need the memory.
    #[must_use]
    pub fn abandon(&self) -> bool {
        self.left_pins.abandon()
    }

    /// Whether there is a mapping that was not closed, or whose last write is under way.
    #[must_use]
    pub fn has_mappings(&self) -> bool {
        self.mappings.iter().next().is_some()
    }
}
