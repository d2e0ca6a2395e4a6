//! Files written in turn in the background: a slow one keeps none of the others waiting.

use super::{Dirtiness, EXPIRE_SECONDS, nr_dirty_of};
use crate::backing::Backing;
use crate::shared::Shared;
use crate::trace;
use crate::writeback::Which;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// For how long a file is written before the next one has its turn.
pub(super) const SLICE: Duration = Duration::from_millis(50);
/// For how long a file is left alone whose last write failed.
const REST: Duration = Duration::from_secs(1);

/// Why pages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// They are dirty for too long.
    Expired,
    /// Too much is dirty at a level that they are charged to.
    Above,
}

/// How far it is in files that it writes in turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// How long a turn is; without it, until the file is done.
    slice: Option<Duration>,
    /// The page to go on at in files that are not done, by their mappings.
    next: BTreeMap<(Reason, u32), u64>,
    /// When a write failed, of files that rest.
    failed: BTreeMap<u32, Instant>,
    nr_written: u64,
    /// Pages that wait for the log, as the last round met them.
    nr_gated: u64,
}

impl Turns {
    /// Those of a thread, which others do not wait for.
    pub(super) fn of_a_thread() -> Turns {
        Turns {
            slice: Some(SLICE),
            ..Turns::default()
        }
    }

    /// Gives each file a turn for its pages that have been dirty for too long at second `now`, and
    /// for those of groups above their background limit; those that fail rest. Whether one of the
    /// others is not done. Errors are kept for each file's next `sync`.
    ///
    /// Cost: O(dirty pages of files) where a group is above its limit; O(groups) for each file of
    /// which some were written for that.
    pub(super) fn round(&mut self, shared: &Shared, now: u32) -> bool {
        let files = shared.dirty_files.all(shared);
        let is_there = |mapping| files.iter().any(|&(other, _)| other == mapping);
        self.next.retain(|&(_, mapping), _| is_there(mapping));
        let begin = Instant::now();
        self.failed
            .retain(|_, at| begin.saturating_duration_since(*at) < REST);
        (self.nr_written, self.nr_gated) = (0, 0);
        if let Some(before) = now.checked_sub(EXPIRE_SECONDS) {
            let expired = Which {
                before,
                ..Which::AT_HAND
            };
            for (_, file) in &files {
                self.turn(shared, file, Reason::Expired, expired);
            }
        }
        let mut above = shared.levels_above_background();
        for (_, file) in &files {
            if above.is_empty() {
                // What is written of the others is below the limit by now.
                self.next.retain(|&(reason, _), _| reason != Reason::Above);
                break;
            }
            let before = self.nr_written;
            self.turn(shared, file, Reason::Above, Which::below(&above));
            if self.nr_written > before {
                above = shared.levels_above_background();
            }
        }
        if self.nr_written > 0 {
            trace::written_back(self.nr_written);
        }
        !self.next.is_empty()
    }

    /// Whether most of what the last round met waits for the log: nothing else speaks for another
    /// round at once.
    pub(super) fn are_gated(&self) -> bool {
        self.nr_gated > self.nr_written
    }

    /// Writes pages of a file, where it is open still.
    fn turn(&mut self, shared: &Shared, file: &Weak<Backing>, reason: Reason, which: Which<'_>) {
        let Some(file) = file.upgrade() else {
            return;
        };
        if self.failed.contains_key(&file.mapping) {
            return;
        }
        let at = (reason, file.mapping);
        let from = self.next.remove(&at).unwrap_or(0);
        let which = Which {
            until: self.slice.map(|slice| Instant::now() + slice),
            ..which
        };
        let flushed = shared.flush_held(&file, from, which);
        self.nr_written += flushed.nr_pages;
        self.nr_gated += flushed.nr_gated;
        if flushed.has_failed && file.is_failing.load(Ordering::Relaxed) {
            self.failed.insert(file.mapping, Instant::now());
            self.next.retain(|&(_, mapping), _| mapping != file.mapping);
        } else if let Some(next) = flushed.next {
            self.next.insert(at, next);
        }
    }
}

impl Shared {
    /// [`Shared::flush_background`] where no thread does it.
    pub(crate) fn flush_without_thread(&self) {
        if !self.has_worker() {
            self.flush_background(self.second());
        }
    }

    /// What [`Turns::round`] does, of each file until it is done.
    pub(crate) fn flush_background(&self, now: u32) {
        let _is_left = Turns::default().round(self, now);
    }

    /// Groups of which too much is dirty by themselves, and levels with a limit of their own of
    /// which too much is, groups below them included; in order.
    ///
    /// Cost: O(groups), with what is dirty at each level of a path.
    fn levels_above_background(&self) -> Vec<u32> {
        let groups = self.core.groups();
        let (mut above, mut nr_dirty) = (BTreeSet::new(), BTreeMap::<u32, u64>::new());
        for (id, group) in groups.iter() {
            let of_group = nr_dirty_of(group);
            if of_group == 0 {
                continue;
            }
            if self.dirtiness(id) > Dirtiness::Fine {
                above.insert(id);
            }
            for level in self.limited_levels(id) {
                *nr_dirty.entry(level).or_default() += of_group;
            }
        }
        let is_above = |&(level, nr_dirty): &(u32, u64)| {
            Dirtiness::of(nr_dirty, self.max_of(level)) > Dirtiness::Fine
        };
        let together = nr_dirty.into_iter().filter(is_above);
        above.extend(together.map(|(level, _)| level));
        above.into_iter().collect()
    }
}
