//! How long a file's store takes, so that nobody waits for it who writes to another file.

use crate::shared::Shared;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// From when on a store is slow: a turn and one write of many pages are less.
const SLOW: Duration = Duration::from_millis(200);

/// Of one file: hints, which nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the writes that are under way began, in ns of the memory's clock, and one; 0 where none
    /// are.
    begun: AtomicU64,
    /// The last ones took long.
    was_slow: AtomicBool,
}

impl Pace {
    /// Writes to the file, and notes how long that takes. `write` does not unwind.
    pub(super) fn note<T>(&self, shared: &Shared, write: impl FnOnce() -> T) -> T {
        let begin = shared.now() + 1;
        let relaxed = Ordering::Relaxed;
        let begun = self.begun.compare_exchange(0, begin, relaxed, relaxed);
        let written = write();
        if begun.is_ok() {
            self.was_slow.store(self.is_long(shared), relaxed);
            self.begun.store(0, relaxed);
        }
        written
    }

    /// Whether it was slow, or is just now.
    pub(super) fn is_slow(&self, shared: &Shared) -> bool {
        self.was_slow.load(Ordering::Relaxed) || self.is_long(shared)
    }

    fn is_long(&self, shared: &Shared) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        begun > 0 && Duration::from_nanos(shared.now().saturating_sub(begun)) > SLOW
    }
}
