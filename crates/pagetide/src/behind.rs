//! What a store has to do yet: the file is cut or has a hole as far as anybody reads it, and the
//! store failed at it or is just doing it.
//!
//! There is at most one of each: who changes the file's bytes first sees to what is left.

use crate::shared::locked;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

#[derive(Clone, Debug, Default)]
struct Left {
    /// The store has bytes beyond the end of the file.
    is_too_long: bool,
    /// Pages that read as zeros.
    hole: Option<Range<u64>>,
}

/// What is left to do, and whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    is_any: AtomicBool,
    left: Mutex<Left>,
    turn: Mutex<()>,
}

/// The right to change the store's length and holes. Held from the moment that others see the file
/// changed until the store is, so that nobody does it while old pages can still be written.
pub(crate) struct Turn<'a> {
    behind: &'a Behind,
    _turn: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// All is done.
    pub(crate) fn end(&self) {
        *locked(&self.behind.left) = Left::default();
        self.behind.is_any.store(false, Ordering::Release);
    }
}

impl Behind {
    /// Whether anything is left. One load.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn {
            behind: self,
            _turn: locked(&self.turn),
        }
    }

    pub(crate) fn is_too_long(&self) -> bool {
        locked(&self.left).is_too_long
    }

    pub(crate) fn hole(&self) -> Option<Range<u64>> {
        locked(&self.left).hole.clone()
    }

    /// Whether a page reads as zeros, whatever the store has.
    pub(crate) fn has_hole_at(&self, page: u64) -> bool {
        self.is_any() && self.hole().is_some_and(|pages| pages.contains(&page))
    }

    pub(crate) fn set_too_long(&self) {
        locked(&self.left).is_too_long = true;
        self.is_any.store(true, Ordering::Release);
    }

    pub(crate) fn set_hole(&self, pages: Range<u64>) {
        locked(&self.left).hole = Some(pages);
        self.is_any.store(true, Ordering::Release);
    }
}
