//! How long a file's store takes, so that nobody waits for it who writes to another file.

use crate::shared::Shared;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// From when on a store hangs: a turn and one write of many pages are less.
const HANGS: Duration = Duration::from_millis(200);
/// How long writes take together before they are judged: who writes others' pages has no more time.
const LONG: Duration = Duration::from_millis(50);
/// What a page of 4 KiB takes where as many as one has to write of others take as long as that.
const PER_PAGE: Duration = LONG.checked_div(128).unwrap();
/// Times in a row that they took longer, from which on a store is slow: once, a thread may have
/// waited for a CPU.
const FEW: u32 = 2;
/// Writes under way at once that are noted, of one file.
const MAX_NOTED: usize = 8;

/// Of one file: hints, which nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the writes that are under way began, in ns of the memory's clock; 0 for none.
    under_way: [AtomicU64; MAX_NOTED],
    /// What writes took since they were last judged, and the pages of 4 KiB that they were of.
    took_ns: AtomicU64,
    nr_pages: AtomicU32,
    /// Times in a row that it took longer than it may.
    nr_long: AtomicU32,
}

/// Writes that are under way; over when dropped, as where the store unwinds.
pub(super) struct UnderWay<'a> {
    shared: &'a Shared,
    pace: &'a Pace,
    begin: u64,
    /// Where that is noted.
    slot: Option<&'a AtomicU64>,
}

impl Pace {
    /// Writes begin.
    pub(super) fn begin<'a>(&'a self, shared: &'a Shared) -> UnderWay<'a> {
        let begin = shared.now().max(1);
        let take = |slot: &&AtomicU64| {
            let taken = slot.compare_exchange(0, begin, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok()
        };
        UnderWay {
            shared,
            pace: self,
            begin,
            slot: self.under_way.iter().find(take),
        }
    }

    /// Whether it was slow, or hangs just now.
    pub(crate) fn is_slow(&self, shared: &Shared) -> bool {
        let now = shared.now();
        let mut begun = self.under_way.iter().map(|at| at.load(Ordering::Relaxed));
        let is_hanging = |begin| begin > 0 && since(begin, now) > HANGS;
        self.nr_long.load(Ordering::Relaxed) >= FEW || begun.any(is_hanging)
    }

    /// So many pages of 4 KiB took so long.
    fn note(&self, took: Duration, nr_pages: u32) {
        if took > HANGS {
            return self.nr_long.store(FEW, Ordering::Relaxed);
        }
        let took_ns = u64::try_from(took.as_nanos()).expect("it did not hang");
        let all_ns = took_ns + self.took_ns.fetch_add(took_ns, Ordering::Relaxed);
        let all = Duration::from_nanos(all_ns);
        let nr_all = nr_pages.saturating_add(self.nr_pages.fetch_add(nr_pages, Ordering::Relaxed));
        if all <= LONG {
            return;
        }
        self.took_ns.store(0, Ordering::Relaxed);
        self.nr_pages.store(0, Ordering::Relaxed);
        let nr_long = match all > PER_PAGE.saturating_mul(nr_all) {
            true => FEW.min(1 + self.nr_long.load(Ordering::Relaxed)),
            false => 0,
        };
        self.nr_long.store(nr_long, Ordering::Relaxed);
    }
}

impl UnderWay<'_> {
    /// They have ended, of so many pages of 4 KiB.
    pub(super) fn end(self, nr_pages: u32) {
        let took = since(self.begin, self.shared.now());
        self.pace.note(took, nr_pages);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.store(0, Ordering::Relaxed);
        }
    }
}

fn since(begin: u64, now: u64) -> Duration {
    Duration::from_nanos(now.saturating_sub(begin))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory};
    use std::thread;

    fn memory() -> Memory {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        memory.without_thread().build().unwrap()
    }

    #[test]
    fn a_write_that_hangs_is_slow_though_others_that_began_before_or_after_have_ended() {
        let (memory, pace) = (memory(), Pace::default());
        let shared = memory.home();
        let before = pace.begin(shared);
        let hangs = pace.begin(shared);
        before.end(1);
        while since(hangs.begin, shared.now()) <= HANGS {
            pace.begin(shared).end(1000);
            thread::sleep(HANGS / 20);
        }
        assert!(pace.is_slow(shared));
        hangs.end(1);
        assert!(pace.is_slow(shared));
        // Until it is written again, fast.
        pace.note(2 * LONG, 1000);
        assert!(!pace.is_slow(shared));
    }

    #[test]
    fn writes_that_unwind_are_not_under_way() {
        let (memory, pace) = (memory(), Pace::default());
        for _ in 0..MAX_NOTED {
            let begun = pace.begin(memory.home());
            assert!(begun.slot.is_some());
            drop(begun);
        }
        assert!(pace.begin(memory.home()).slot.is_some());
        // More at once than are noted.
        let begun = [(); MAX_NOTED + 1].map(|()| pace.begin(memory.home()));
        assert!(begun.iter().filter(|begun| begun.slot.is_none()).count() == 1);
    }

    #[test]
    fn few_pages_in_a_long_time_are_slow_twice_in_a_row() {
        let (memory, pace) = (memory(), Pace::default());
        let is_slow = || pace.is_slow(memory.home());
        let long = LONG + LONG / 4;
        // As many as in that time are to be written.
        pace.note(long, 200);
        pace.note(long, 200);
        pace.note(long, 3);
        assert!(!is_slow(), "a thread may have waited for a CPU");
        // One by one, too; some are faster.
        (0..2).for_each(|_| pace.note(2 * LONG / 5, 1));
        pace.note(LONG / 1000, 1);
        assert!(!is_slow());
        pace.note(2 * LONG / 5, 1);
        assert!(is_slow());
        // A few do not say that it is fast now.
        pace.note(LONG / 10, 64);
        assert!(is_slow());
        (0..10).for_each(|_| pace.note(LONG / 10, 64));
        assert!(!is_slow());
    }
}
