//! How many wait for a change: whoever makes it sees without a lock that nobody does.

use super::{AtomicU32, Ordering, full_fence};

/// Those who wait for something, each from before he looks whether he has to.
///
/// Source: Dekker's algorithm: each side says what it does before it looks at the other, so that
/// one of them sees the other at least.
#[derive(Debug, Default)]
pub struct Waiting(AtomicU32);

impl Waiting {
    /// One more waits, and looks after this whether he has to. [`Waiting::end`] follows.
    pub fn begin(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        full_fence();
    }

    /// One waits no more.
    pub fn end(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether somebody may wait for what the caller has just changed: whoever is not seen here
    /// sees the change when he looks. Cost: a fence; the line stays shared.
    #[must_use]
    #[inline]
    pub fn is_any(&self) -> bool {
        full_fence();
        self.0.load(Ordering::Relaxed) > 0
    }
}
