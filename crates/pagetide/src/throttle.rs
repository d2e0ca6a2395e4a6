//! Slowing down those who charge a group above its `high`: a debt of the thread, paid by sleeping
//! when it holds no page.

use std::cell::Cell;
use std::time::Duration;

/// Debts below this wait for more: a sleep takes about as long by itself.
const MIN_SLEEP_NS: u64 = 100_000;

/// A memory, by its address, and a group of it. Neither need be there any more.
pub(crate) type About = (usize, u32);

/// What the calling thread owes and holds.
struct Thread {
    owed_ns: Cell<u64>,
    /// What the debt is about.
    about: Cell<About>,
    /// Pages that were charged above a `high` and not reclaimed for yet, and whose: of two groups,
    /// the last first. With one lock of a file a page is charged, and what is noted of it perhaps.
    deferred: Cell<[(About, u32); 2]>,
    /// Pinned pages made here less those dropped here. One that is dropped by another thread keeps
    /// this one from ever being slowed down again, until it drops one that it did not make.
    nr_held: Cell<u32>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            owed_ns: Cell::new(0),
            about: Cell::new((0, 0)),
            deferred: Cell::new([((0, 0), 0); 2]),
            nr_held: Cell::new(0),
        }
    };
}

/// Adds to what the thread owes, up to `max` in all.
pub(crate) fn owe(about: About, delay_ns: u64, max: Duration) {
    let max = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
    THREAD.with(|thread| {
        let owed = thread.owed_ns.get().saturating_add(delay_ns);
        thread.owed_ns.set(owed.min(max));
        thread.about.set(about);
    });
}

/// What the thread has to sleep for now, and what that is about: then nothing is owed any more.
pub(crate) fn take_debt() -> Option<(About, Duration)> {
    owes().then(|| {
        THREAD.with(|thread| {
            let owed = Duration::from_nanos(thread.owed_ns.take());
            (thread.about.get(), owed)
        })
    })
}

/// Whether [`take_debt`] would say something.
#[inline]
pub(crate) fn owes() -> bool {
    THREAD.with(|thread| thread.owed_ns.get() >= MIN_SLEEP_NS && thread.nr_held.get() == 0)
}

/// Notes pages that were charged above a `high`, for which the thread is to reclaim. Of three
/// groups it remembers the last two.
pub(crate) fn defer(about: About, nr_charged: u32) {
    THREAD.with(|thread| {
        let [last, first] = thread.deferred.get();
        let (nr_before, other) = match about {
            _ if last.0 == about => (last.1, first),
            _ if first.0 == about => (first.1, last),
            _ => (0, last),
        };
        let nr_pages = nr_before.saturating_add(nr_charged);
        thread.deferred.set([(about, nr_pages), other]);
    });
}

/// A group of a memory, and the pages for which the thread is to reclaim there: then it is not any
/// more. There may be another one.
pub(crate) fn take_deferred(memory: usize) -> Option<(u32, u32)> {
    THREAD.with(|thread| {
        let [last, first] = thread.deferred.get();
        let is_here = |((whose, _), nr_pages): (About, u32)| nr_pages > 0 && whose == memory;
        let (((_, group), nr_pages), other) = match is_here(last) {
            true => (last, first),
            false if is_here(first) => (first, last),
            false => return None,
        };
        thread.deferred.set([other, Default::default()]);
        Some((group, nr_pages))
    })
}

/// Whether [`take_deferred`] would say something of this memory.
pub(crate) fn is_deferred_in(memory: usize) -> bool {
    THREAD.with(|thread| {
        let mut all = thread.deferred.get().into_iter();
        all.any(|((whose, _), nr_pages)| nr_pages > 0 && whose == memory)
    })
}

/// Whether [`take_deferred`] would say something, for some memory.
#[inline]
pub(crate) fn is_deferred() -> bool {
    THREAD.with(|thread| thread.deferred.get()[0].1 > 0)
}

/// The thread holds one more pinned page.
#[cold]
#[inline(never)] // Off the path of those who are under no `high`.
pub(crate) fn hold() {
    THREAD.with(|thread| thread.nr_held.set(thread.nr_held.get().saturating_add(1)));
}

/// The thread dropped a pinned page.
#[cold]
#[inline(never)]
pub(crate) fn let_go() {
    // A thread whose locals are gone drops pages too.
    let _ = THREAD.try_with(|thread| thread.nr_held.set(thread.nr_held.get().saturating_sub(1)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_millis(10);

    #[test]
    fn debts_add_up_to_the_most_that_is_slept() {
        owe((1, 3), 60_000, MAX);
        assert_eq!(take_debt(), None);
        owe((1, 3), 60_000, MAX);
        assert_eq!(take_debt(), Some(((1, 3), Duration::from_nanos(120_000))));
        owe((1, 4), u64::MAX, MAX);
        assert_eq!(take_debt(), Some(((1, 4), MAX)));
        assert_eq!(take_debt(), None);
    }

    #[test]
    fn what_was_deferred_is_of_one_memory_and_adds_up() {
        assert!(!is_deferred());
        for nr_charged in [3, 4] {
            defer((1, 3), nr_charged);
        }
        assert_eq!((is_deferred(), take_deferred(2)), (true, None));
        assert_eq!(take_deferred(1), Some((3, 7)));
        assert_eq!((is_deferred(), take_deferred(1)), (false, None));
    }

    #[test]
    fn what_was_deferred_for_two_groups_is_remembered_for_both() {
        for (group, nr_charged) in [(3, 5), (4, 6), (3, 1), (4, 2)] {
            defer((1, group), nr_charged);
        }
        let taken = [(); 3].map(|()| take_deferred(1));
        assert_eq!(taken, [Some((4, 8)), Some((3, 6)), None]);
        assert!(!is_deferred());
        // Of two memories, too; of three the first is forgotten.
        for memory in 1..=3 {
            defer((memory, 7), 1);
        }
        assert_eq!([1, 2, 3].map(is_deferred_in), [false, true, true]);
        assert_eq!(take_deferred(2), Some((7, 1)));
        assert!(is_deferred());
        assert_eq!(take_deferred(3), Some((7, 1)));
        assert!(!is_deferred());
    }

    #[test]
    fn who_holds_a_page_pays_later() {
        owe((1, 3), 5_000_000, MAX);
        hold();
        assert_eq!(take_debt(), None);
        let_go();
        assert_eq!(take_debt(), Some(((1, 3), Duration::from_millis(5))));
    }
}
