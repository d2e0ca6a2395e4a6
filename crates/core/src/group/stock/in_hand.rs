//! Statistics that somebody took out of a byte line and has not booked yet.
//!
//! Pages and bytes are charged, and so keep their group until they are booked. A change of a
//! statistic keeps nothing: this does, for all groups. The other variants book before they clear.

use crate::sync::{AtomicU32, Ordering, full_fence};

/// Threads that have some in hand.
#[derive(Debug, Default)]
pub struct InHand(AtomicU32);

/// A thread may have some in hand until this is dropped.
#[derive(Debug)]
pub(in crate::group) struct Taking<'a>(&'a InHand);

impl InHand {
    /// Said before any is taken out.
    pub(in crate::group) fn begin(&self) -> Taking<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        // Whoever finds the stock empty afterwards has a fence in `Tree::drain`, and who then sees
        // what it uncharged, in `is_any`.
        full_fence();
        Taking(self)
    }

    /// Whether any thread may have some in hand. Of a group without charges whose handle is gone,
    /// as seen before: none is taken out from here on.
    pub(in crate::group) fn is_any(&self) -> bool {
        // Pairs with those in `begin` and `Tree::drain`.
        full_fence();
        // Acquire pairs with the Release in `Taking::drop`: what was booked is seen.
        self.0.load(Ordering::Acquire) > 0
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `InHand::is_any`.
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}
