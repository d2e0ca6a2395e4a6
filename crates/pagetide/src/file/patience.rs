//! Which refusals are waited out, whatever way a page is brought in: those that other readers' pins
//! may be the cause of, because theirs are short.

use crate::shrinker::is_shrinking;
use pagetide_core::memory::{AllocError, PageError};
use std::time::{Duration, Instant};

/// How long a thread waits for other readers' pins, or for pages that are being read, before it is
/// refused.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);

/// Whether other readers' pins may be why there is no memory for a page: they fill the group, or
/// lie in every block.
pub(super) fn is_passing(error: &PageError) -> bool {
    matches!(
        error,
        PageError::Alloc(AllocError::OverLimit { .. } | AllocError::NoBlock { .. })
    )
}

/// What a thread has of it, for one call.
#[derive(Debug)]
pub(super) struct Patience {
    deadline: Option<Instant>,
}

impl Patience {
    /// Until then, or for [`PATIENCE`] from the first refusal on.
    pub(super) const fn until(deadline: Option<Instant>) -> Patience {
        Patience { deadline }
    }

    /// Whether to ask again after a refusal. Then others have run; the caller holds no page.
    pub(super) fn goes_on(&mut self, error: &PageError) -> bool {
        // Nothing is freed for who asks from within a shrinker.
        if !is_passing(error) || is_shrinking() {
            return false;
        }
        let now = Instant::now();
        let goes_on = now < *self.deadline.get_or_insert_with(|| now + PATIENCE);
        if goes_on {
            std::thread::yield_now();
        }
        goes_on
    }
}
