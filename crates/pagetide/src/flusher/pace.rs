//! How long a file's store takes, so that nobody waits for it who writes to another file.

use crate::shared::{Shared, locked};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// From when on a store is slow: a turn and one write of many pages are less.
const SLOW: Duration = Duration::from_millis(200);

/// Of one file: hints, which nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the writes that are under way began, in ns of the memory's clock.
    under_way: Mutex<Vec<u64>>,
    /// The last one took long.
    was_slow: AtomicBool,
}

impl Pace {
    /// Writes to the file, and notes how long that takes. `write` does not unwind.
    pub(super) fn note<T>(&self, shared: &Shared, write: impl FnOnce() -> T) -> T {
        let begin = shared.now();
        locked(&self.under_way).push(begin);
        let written = write();
        let mut under_way = locked(&self.under_way);
        let own = under_way.iter().position(|&other| other == begin);
        under_way.swap_remove(own.expect("it was under way"));
        drop(under_way);
        let was_slow = is_long(begin, shared.now());
        self.was_slow.store(was_slow, Ordering::Relaxed);
        written
    }

    /// Whether it was slow, or is just now.
    pub(super) fn is_slow(&self, shared: &Shared) -> bool {
        let is_hanging = || {
            let now = shared.now();
            let under_way = locked(&self.under_way);
            under_way.iter().any(|&begin| is_long(begin, now))
        };
        self.was_slow.load(Ordering::Relaxed) || is_hanging()
    }
}

fn is_long(begin: u64, end: u64) -> bool {
    Duration::from_nanos(end.saturating_sub(begin)) > SLOW
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::Takes;
    use crate::writeback::Which;
    use crate::{ByteSize, Memory};
    use std::sync::atomic::AtomicU32;
    use std::sync::{Arc, OnceLock, mpsc};
    use std::thread;
    use std::time::Instant;

    #[test]
    fn of_a_slow_store_no_write_begins_when_its_time_is_over() {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let until = Arc::new(OnceLock::<Instant>::new());
        let nr_calls = Arc::new(AtomicU32::new(0));
        let (end, count) = (Arc::clone(&until), Arc::clone(&nr_calls));
        let store = Takes(move |buf: &[u8], _| {
            count.fetch_add(1, Ordering::Relaxed);
            let end = end.get().expect("nobody writes before");
            thread::sleep(end.saturating_duration_since(Instant::now()));
            Ok(buf.len())
        });
        let file = memory.open_store(Box::new(store), "slow", &memory.root());
        let file = file.unwrap();
        for page in [0, 2, 4] {
            file.write_at(&[7; 4096], page * 4096).unwrap();
        }
        let home = memory.home();
        let backing = home.backings().values().next().cloned().unwrap();
        let some = Which {
            until: Some(*until.get_or_init(|| Instant::now() + SLOW)),
            ..Which::ALL
        };
        let written = home.write_pass(&backing, 0..=u64::MAX, some, None).unwrap();
        assert_eq!(nr_calls.load(Ordering::Relaxed), 1);
        assert_eq!((written.nr_pages, written.next), (1, Some(2)));
    }

    #[test]
    fn a_write_that_hangs_is_slow_though_another_one_that_began_before_has_ended() {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let (pace, shared) = (Pace::default(), memory.home());
        let (begin, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let begun = shared.now();
        thread::scope(|scope| {
            pace.note(shared, || {
                let hangs = move || {
                    begin.send(()).unwrap();
                    may_end.recv().unwrap();
                };
                scope.spawn(|| pace.note(shared, hangs));
                has_begun.recv().unwrap();
            });
            assert!(!pace.is_slow(shared) || is_long(begun, shared.now()));
            thread::sleep(SLOW + SLOW / 4);
            let is_slow = pace.is_slow(shared);
            end.send(()).unwrap();
            assert!(is_slow);
        });
        // Until it is written again, fast.
        assert!(pace.is_slow(shared));
        pace.note(shared, || ());
        assert!(!pace.is_slow(shared));
    }

    #[test]
    fn a_write_that_hangs_is_slow_however_many_others_end() {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let (pace, shared) = (Pace::default(), memory.home());
        let begin = shared.now();
        pace.note(shared, || {
            while !is_long(begin, shared.now()) {
                pace.note(shared, || thread::sleep(SLOW / 20));
            }
            assert!(pace.is_slow(shared));
        });
    }
}
