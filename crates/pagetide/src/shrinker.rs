//! Shrinkers: foreign caches that give memory back when reclaim asks.

use crate::group::Group;
use crate::shared::locked;
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A cache of the program's own whose memory is charged to a group, by a
/// [`Reservation`](crate::Reservation) or as working memory, and that gives some of it back when
/// reclaim asks.
///
/// Both methods are called by whatever thread needs memory. They must not wait for a lock that
/// somebody holds while calling the same `Memory`: the call that needs memory may hold what that
/// one waits for, a file's length. So they try such a lock, and have nothing to give where it is
/// held. Inside them pagetide never reclaims: what is there is given, else the call is refused at
/// once. Nor does it wait there to change a file or region that a call has in hand, which may be
/// the one that asked: that is [`Error::PageBusy`](crate::Error::PageBusy).
/// Source: the count and scan convention of the kernel's shrinkers.
pub trait Shrinker: Send + Sync {
    /// Objects that could be given up now; 0 for none. Called often: it should cost little.
    fn count(&self) -> u64;

    /// Looks at up to `nr_objects` objects and gives up those that are not in use. Returns how many
    /// it gave up, or `None` where it cannot make progress now (a lock is held, say): it is not
    /// asked again in this round.
    ///
    /// What it gives up counts as it is uncharged: shrink or drop the reservation here.
    fn scan(&self, nr_objects: u64) -> Option<u64>;
}

impl<T: Shrinker + ?Sized> Shrinker for Arc<T> {
    fn count(&self) -> u64 {
        (**self).count()
    }

    fn scan(&self, nr_objects: u64) -> Option<u64> {
        (**self).scan(nr_objects)
    }
}

/// Keeps a [`Shrinker`] registered until it is dropped. A call that is under way then still ends.
#[must_use = "a shrinker is registered as long as this lives"]
pub struct Registration {
    entry: Arc<Entry>,
    group: Group,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.group).finish()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.group.shared().is_forked() {
            return;
        }
        self.group.shared().shrinkers.remove(&self.entry);
    }
}

struct Entry {
    group: u32,
    shrinker: Box<dyn Shrinker>,
    /// Objects that it was to look at and that were too few for a call.
    deferred: AtomicU64,
    /// Its registration was dropped, perhaps by one that is asked before it.
    is_gone: AtomicBool,
}

/// All shrinkers of a memory.
#[derive(Default)]
pub(crate) struct Shrinkers {
    entries: Mutex<Vec<Arc<Entry>>>,
    /// Their number, to be looked at without the lock.
    count: AtomicU32,
}

impl fmt::Debug for Shrinkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shrinkers", self.count.load(Ordering::Relaxed))
    }
}

/// Objects that a shrinker is asked to look at in one call. Source: `SHRINK_BATCH`.
const BATCH: u64 = 128;

thread_local! {
    static IS_SHRINKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a shrinker: then it must not reclaim.
#[inline]
pub(crate) fn is_shrinking() -> bool {
    IS_SHRINKING.with(Cell::get)
}

/// Marks the thread as shrinking until dropped, by unwinding too.
struct Shrinking;

impl Shrinking {
    fn begin() -> Shrinking {
        IS_SHRINKING.with(|flag| flag.set(true));
        Shrinking
    }
}

impl Drop for Shrinking {
    fn drop(&mut self) {
        IS_SHRINKING.with(|flag| flag.set(false));
    }
}

impl Shrinkers {
    pub(crate) fn add(&self, group: Group, shrinker: Box<dyn Shrinker>) -> Registration {
        let entry = Arc::new(Entry {
            group: group.id(),
            shrinker,
            deferred: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
        });
        if !group.shared().is_forked() {
            let mut entries = locked(&self.entries);
            entries.push(Arc::clone(&entry));
            self.set_count(entries.len());
        }
        Registration { entry, group }
    }

    fn remove(&self, entry: &Arc<Entry>) {
        entry.is_gone.store(true, Ordering::Relaxed);
        let mut entries = locked(&self.entries);
        entries.retain(|other| !Arc::ptr_eq(other, entry));
        self.set_count(entries.len());
        // The shrinker itself is dropped with no lock held, by the registration.
    }

    fn set_count(&self, len: usize) {
        let count = u32::try_from(len).unwrap_or(u32::MAX);
        self.count.store(count, Ordering::Relaxed);
    }

    /// Whether there is one.
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Asks all shrinkers of the groups that `is_wanted`: for the part `nr_pages` of `of` of what
    /// they have, twice that as the kernel does; for a quarter of it where `of` is 0.
    pub(crate) fn shrink(&self, is_wanted: impl Fn(u32) -> bool, nr_pages: u32, of: u64) {
        if !self.is_any() || is_shrinking() {
            return;
        }
        let entries = locked(&self.entries);
        let wanted: Vec<Arc<Entry>> = entries
            .iter()
            .filter(|entry| is_wanted(entry.group))
            .map(Arc::clone)
            .collect();
        drop(entries);
        let _shrinking = Shrinking::begin();
        for entry in wanted {
            entry.shrink(u64::from(nr_pages), of);
        }
    }
}

impl Entry {
    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    fn shrink(&self, nr_pages: u64, of: u64) {
        if self.is_gone() {
            return;
        }
        let freeable = self.shrinker.count();
        if freeable == 0 {
            return;
        }
        let share = u128::from(freeable) * 2 * u128::from(nr_pages);
        let share = match share.checked_div(u128::from(of)) {
            Some(share) => u64::try_from(share).unwrap_or(u64::MAX),
            None => (freeable / 4).max(BATCH),
        };
        let deferred = self.deferred.swap(0, Ordering::Relaxed);
        // More than twice what there is would empty it for what other times left undone.
        let mut left = deferred
            .saturating_add(share)
            .min(freeable.saturating_mul(2));
        while !self.is_gone() && (left >= BATCH || left >= freeable) {
            let nr_objects = left.min(BATCH);
            if self.shrinker.scan(nr_objects).is_none() {
                break;
            }
            left -= nr_objects;
            if left == 0 {
                break;
            }
        }
        self.deferred.fetch_add(left, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives up whatever it is asked for; counts the calls.
    #[derive(Default)]
    struct Objects {
        left: AtomicU64,
        nr_calls: AtomicU64,
        is_stuck: bool,
    }

    impl Shrinker for Objects {
        fn count(&self) -> u64 {
            self.left.load(Ordering::Relaxed)
        }

        fn scan(&self, nr_objects: u64) -> Option<u64> {
            assert!(is_shrinking());
            self.nr_calls.fetch_add(1, Ordering::Relaxed);
            if self.is_stuck {
                return None;
            }
            let freed = nr_objects.min(self.count());
            self.left.fetch_sub(freed, Ordering::Relaxed);
            Some(freed)
        }
    }

    fn entry(objects: &Arc<Objects>) -> Entry {
        Entry {
            group: 1,
            shrinker: Box::new(Arc::clone(objects)),
            deferred: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
        }
    }

    fn objects(left: u64, is_stuck: bool) -> Arc<Objects> {
        Arc::new(Objects {
            left: AtomicU64::new(left),
            is_stuck,
            ..Objects::default()
        })
    }

    #[test]
    fn twice_the_share_of_pages_is_scanned_in_batches() {
        let objects = objects(100_000, false);
        let entry = entry(&objects);
        let _shrinking = Shrinking::begin();
        // 2 * 100,000 * 64 / 10,000 = 1,280: ten batches.
        entry.shrink(64, 10_000);
        assert_eq!(
            (objects.count(), objects.nr_calls.load(Ordering::Relaxed)),
            (98_720, 10)
        );
    }

    #[test]
    fn small_shares_are_saved_up_for_a_batch() {
        let objects = objects(1000, false);
        let entry = entry(&objects);
        let _shrinking = Shrinking::begin();
        // 50 objects a time.
        entry.shrink(25, 1000);
        entry.shrink(25, 1000);
        assert_eq!(objects.count(), 1000);
        entry.shrink(25, 1000);
        assert_eq!(objects.count(), 1000 - 128);
    }

    #[test]
    fn a_stuck_shrinker_is_asked_once_a_round_and_owes_the_rest() {
        let objects = objects(1000, true);
        let entry = entry(&objects);
        let _shrinking = Shrinking::begin();
        entry.shrink(500, 1000);
        assert_eq!(objects.nr_calls.load(Ordering::Relaxed), 1);
        assert_eq!(entry.deferred.load(Ordering::Relaxed), 1000);
    }

    #[test]
    fn where_pages_gave_nothing_the_last_objects_go() {
        let objects = objects(3, false);
        let entry = entry(&objects);
        let _shrinking = Shrinking::begin();
        entry.shrink(1, 0);
        assert_eq!(objects.count(), 0);
    }

    /// Drops registrations when it is asked.
    struct Drops {
        registrations: Arc<Mutex<Vec<Registration>>>,
        nr_calls: Arc<AtomicU64>,
    }

    impl Shrinker for Drops {
        fn count(&self) -> u64 {
            1000
        }

        fn scan(&self, nr_objects: u64) -> Option<u64> {
            self.nr_calls.fetch_add(1, Ordering::Relaxed);
            locked(&self.registrations).clear();
            Some(nr_objects)
        }
    }

    #[test]
    fn nobody_is_asked_whose_registration_was_dropped() {
        let memory = crate::Memory::builder().budget(crate::ByteSize::mib(8));
        let root = memory.without_thread().build().unwrap().root();
        let registrations = Arc::new(Mutex::new(Vec::new()));
        let calls = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        for nr_calls in &calls {
            let drops = Drops {
                registrations: Arc::clone(&registrations),
                nr_calls: Arc::clone(nr_calls),
            };
            let registration = root.add_shrinker(drops);
            locked(&registrations).push(registration);
        }
        // The first is asked for ten batches, and drops both in the first of them.
        root.shared().shrinkers.shrink(|_| true, 64, 100);
        let calls = calls.map(|calls| calls.load(Ordering::Relaxed));
        assert_eq!(calls, [1, 0]);
        assert_eq!(root.shared().shrinkers.count.load(Ordering::Relaxed), 0);
    }
}
