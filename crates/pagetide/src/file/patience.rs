//! Which refusals are waited out, whatever way a page is brought in: those that other readers' pins
//! may be the cause of, because theirs are short.

use crate::shrinker::is_shrinking;
use pagetide_core::memory::{AllocError, Memory, PageError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread waits for other readers' pins, or for pages that are being read, before it is
/// refused.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);

/// Times that a thread lets others run before it sleeps between two tries: most pins are short.
const MAX_YIELDS: u32 = 32;
/// How long it sleeps then.
const PAUSE: Duration = Duration::from_micros(250);
/// Tries in a row that find no page of anybody, before that is so: one that comes in is charged
/// before it is seen.
const MAX_HOPELESS: u32 = 16;

/// Whether other readers' pins may be why there is no memory for a page: they fill the group, or
/// lie in every block. Where a page would go once it was written, they may be why as well.
pub(super) fn is_passing(error: &PageError) -> bool {
    let PageError::Alloc(error) = error else {
        return false;
    };
    matches!(
        error,
        AllocError::OverLimit { .. } | AllocError::Unwritten { .. } | AllocError::NoBlock { .. }
    )
}

/// Whether nobody has a page under the limit that refuses: working memory alone is in the way.
fn is_hopeless(core: &Memory, error: &PageError) -> bool {
    match error {
        PageError::Alloc(AllocError::OverLimit { group } | AllocError::Unwritten { group }) => {
            !core.has_pages(*group)
        }
        _ => false,
    }
}

/// What a thread has of it, for one call.
#[derive(Debug)]
pub(super) struct Patience {
    deadline: Option<Instant>,
    nr_yields: u32,
    /// Refusals in a row without hope.
    nr_hopeless: u32,
}

impl Patience {
    /// Until then, or for [`PATIENCE`] from the first refusal on.
    pub(super) const fn until(deadline: Option<Instant>) -> Patience {
        Patience {
            deadline,
            nr_yields: 0,
            nr_hopeless: 0,
        }
    }

    /// Whether to ask again after a refusal. Then others have run; the caller holds no page.
    pub(super) fn goes_on(&mut self, core: &Memory, error: &PageError) -> bool {
        // Nothing is freed for who asks from within a shrinker.
        if !is_passing(error) || is_shrinking() {
            return false;
        }
        self.nr_hopeless = match is_hopeless(core, error) {
            true => self.nr_hopeless + 1,
            false => 0,
        };
        if self.nr_hopeless > MAX_HOPELESS {
            return false;
        }
        let now = Instant::now();
        let goes_on = now < *self.deadline.get_or_insert_with(|| now + PATIENCE);
        if goes_on && self.nr_yields < MAX_YIELDS {
            self.nr_yields += 1;
            thread::yield_now();
        } else if goes_on {
            thread::sleep(PAUSE);
        }
        goes_on
    }
}
