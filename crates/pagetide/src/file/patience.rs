//! Which refusals are waited out, whatever way a page is brought in: those that other readers' pins
//! may be the cause of, because theirs are short.

use crate::memory_wait::MemoryWait;
use crate::shrinker::is_shrinking;
use crate::stall::Stall;
use crate::{Error, Group, PAGE_BYTES};
use pagetide_core::memory::{AllocError, Memory, PageError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread waits for other readers' pins, or for pages that are being read, before it is
/// refused.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);

/// How long a task waits for that: longer than a thread, because a page whose read has ended is
/// pinned for its task until that is polled.
const TASK_PATIENCE: Duration = Duration::from_secs(2);

/// Times that a thread lets others run before it sleeps between two tries: most pins are short.
const MAX_YIELDS: u32 = 32;
/// How long it sleeps then at least, and at most: as long as the last try took, which looks at all
/// pages a few times where all are pinned.
const PAUSES: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(5)];
/// Tries in a row that find no page of anybody, before that is so: one that comes in is charged
/// before it is seen.
const MAX_HOPELESS: u32 = 16;

/// Whether other readers' pins may be why there is no memory for a page: they fill the group, or
/// lie in every block. Where a page would go once it was written, they may be why as well.
fn is_passing(error: &AllocError) -> bool {
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
    /// When the last try began, unless that was the first one.
    began: Option<Instant>,
    nr_yields: u32,
    /// Refusals in a row without hope.
    nr_hopeless: u32,
}

impl Patience {
    /// Until then, or for [`PATIENCE`] from the first refusal on.
    pub(super) const fn until(deadline: Option<Instant>) -> Patience {
        Patience {
            deadline,
            began: None,
            nr_yields: 0,
            nr_hopeless: 0,
        }
    }

    /// Whether to ask again after a refusal of memory of a group. Then others have run, for which
    /// the thread has stalled; the caller holds no page.
    pub(super) fn goes_on(&mut self, group: &Group, error: &PageError) -> bool {
        // Nothing is freed for who asks from within a shrinker.
        let is_worth_it = matches!(error, PageError::Alloc(error) if is_passing(error));
        if !is_worth_it || is_shrinking() {
            return false;
        }
        self.nr_hopeless = match is_hopeless(&group.shared().core, error) {
            true => self.nr_hopeless + 1,
            false => 0,
        };
        if self.nr_hopeless > MAX_HOPELESS {
            return false;
        }
        let now = Instant::now();
        let deadline = *self.deadline.get_or_insert_with(|| now + PATIENCE);
        if now >= deadline {
            return false;
        }
        let [least, most] = PAUSES;
        let took = self.began.map_or(Duration::ZERO, |began| now - began);
        // Without hope it ends in a moment.
        let is_short = took < least || self.nr_hopeless > 0;
        let _stall = Stall::begin(group.shared(), group.id());
        if self.nr_yields < MAX_YIELDS && is_short {
            self.nr_yields += 1;
            thread::yield_now();
        } else {
            thread::sleep(took.clamp(least, most).min(deadline - now));
        }
        self.began = Some(Instant::now());
        true
    }
}

/// Asks for pages of a group for a task: `nr_bytes` by `ask`, again and again, from the first
/// refusal that passes on until the answer with a wait for memory in `wait`.
pub(super) fn poll<T>(
    wait: &mut Option<MemoryWait>,
    (group, nr_bytes): (&Group, impl Fn() -> u64),
    waker: &Waker,
    mut ask: impl FnMut() -> Result<T, AllocError>,
) -> Poll<Result<T, Error>> {
    let shared = group.shared();
    let waiting = match wait {
        Some(waiting) => waiting,
        None => match ask() {
            Err(error) if is_passing(&error) => {
                let deadline = Instant::now() + TASK_PATIENCE;
                wait.insert(MemoryWait::new(group, nr_bytes(), None, deadline).driven())
            }
            Err(error) => {
                let asked_pages = nr_bytes().div_ceil(PAGE_BYTES as u64);
                return Poll::Ready(Err(shared.alloc_error(error, group.id(), asked_pages)));
            }
            Ok(done) => return Poll::Ready(Ok(done)),
        },
    };
    let (root, may_wait) = (shared.core.groups().root(), waiting.may_wait());
    let mut attempt = || match ask() {
        // Whoever drops a pin may make a block, wherever that is charged.
        Err(AllocError::NoBlock { .. }) if may_wait => Err(AllocError::OverLimit { group: root }),
        done => done,
    };
    let polled = waiting.poll(waker, &mut attempt);
    if polled.is_ready() {
        *wait = None;
    }
    polled
}
