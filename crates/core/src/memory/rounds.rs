//! Whether reclaim for a limit gets anywhere, or will when pages have come in that are being read.

use super::{Here, MAX_RETRIES, Memory};
use crate::group::{Group, Tree};
use crate::reclaim::LruvecRecord;

/// Rounds that free pages which others take each time, before they count as rounds without
/// progress: many more than threads that compete need.
const MAX_IN_VAIN: u32 = 4096;
/// The same, before a request for many pages keeps those that it finds.
const MAX_TAKEN: u32 = 16;

/// Pages of a subtree, and groups that are looked at for it, for which a round that came to nothing
/// counts as one: each looks at all of them several times.
const PER_ROUND: u64 = 128;
/// A round counts as so many at most: after two in a row the request is refused.
const MAX_WORTH: u64 = MAX_RETRIES as u64 / 2 + 1;

/// Rounds of reclaim for a charge or a record that was refused. What each of them frees others may
/// take, shrinkers perhaps that look at pages.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The group whose limit the last one was for.
    of: u32,
    /// Its usage was never lower.
    least: u64,
    /// Since that fell.
    nr_in_vain: u32,
    /// Until when it waits for reads: the platform's own.
    reads_until: Option<u64>,
    /// That was in vain.
    has_no_patience: bool,
}

impl Rounds {
    /// One is over, for the limit of a group, of whose usage the request has `nr_gathered` pages
    /// already. Whether too many in a row were in vain.
    pub(super) fn are_in_vain(&mut self, groups: &Tree, of: u32, nr_gathered: u32) -> bool {
        let usage = groups.get(of).map_or(0, Group::usage);
        self.count(of, usage.saturating_sub(nr_gathered.into()))
    }

    /// Whether others take what they free.
    pub(super) fn do_others_take(&self) -> bool {
        self.nr_in_vain > MAX_TAKEN
    }

    fn count(&mut self, of: u32, usage: u64) -> bool {
        let is_same = of == self.of;
        if is_same && usage < self.least {
            self.nr_in_vain = 0;
        } else {
            self.nr_in_vain += 1;
        }
        let least = if is_same { self.least } else { u64::MAX };
        (self.of, self.least) = (of, usage.min(least));
        self.nr_in_vain > MAX_IN_VAIN
    }
}

impl Memory {
    /// A round of reclaim for a request of `nr_pages` of `group`, which the limit of `over`
    /// refuses, freed nothing. Where as many pages as it lacks are being read there, waits until
    /// one has come in, as a stall of the caller: nobody may want it, as after a scan that read
    /// ahead. Whether to look again.
    ///
    /// Cost: O(groups).
    pub(super) fn wait_for_read(
        &self,
        here: Here<'_>,
        (group, over): (u32, u32),
        nr_pages: u32,
        rounds: &mut Rounds,
    ) -> bool {
        let Some(level) = self.groups.get(over) else {
            return false;
        };
        let lacking = (level.usage() + u64::from(nr_pages)).saturating_sub(level.max());
        if lacking == 0 || rounds.has_no_patience || !here.waits_for_reads {
            return false;
        }
        let before = self.reads_in(over);
        if before.nr_reading < lacking {
            return false;
        }
        let mut has_ended = false;
        here.platform.stall(group, &mut || {
            here.platform
                .wait_for_read(&mut rounds.reads_until, &mut || {
                    has_ended = self.reads_in(over) != before;
                    has_ended
                });
        });
        rounds.has_no_patience = !has_ended;
        has_ended
    }

    /// As how many rounds one counts that found no page to free in a subtree. It finds one where
    /// there is one: a further round is for what others do meanwhile, and takes the longer the more
    /// pages and groups there are. O(groups).
    pub(super) fn rounds_worth(&self, subtree: u32) -> u32 {
        let nr_groups = u64::from(self.groups.subtree_looks(subtree));
        let worth = (self.reads_in(subtree).nr_listed + nr_groups) / PER_ROUND;
        u32::try_from(worth.clamp(1, MAX_WORTH)).expect("few")
    }

    /// Whether pages of files, or anon pages, are charged to a subtree, those that are being read
    /// included. O(groups).
    #[must_use]
    pub fn has_pages(&self, subtree: u32) -> bool {
        self.reads_in(subtree) != Reads::default()
    }

    /// Pages charged to a subtree that may go, now or when they have come in, at most: many of them
    /// may be pinned. O(groups).
    pub(super) fn may_go(&self, subtree: u32) -> u64 {
        let reads = self.reads_in(subtree);
        reads.nr_reading + reads.nr_listed
    }

    fn reads_in(&self, subtree: u32) -> Reads {
        self.groups
            .subtree(subtree)
            .fold(Reads::default(), |reads, (_, group)| {
                let lruvecs = self.lruvecs_of(group);
                let nr_frames = |(_, lruvec): (_, &LruvecRecord)| u64::from(lruvec.nr_frames());
                Reads {
                    nr_reading: reads.nr_reading + group.nr_reading(),
                    nr_listed: reads.nr_listed + lruvecs.map(nr_frames).sum::<u64>(),
                }
            })
    }
}

/// Pages of a subtree that are being read, and those that are there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Reads {
    nr_reading: u64,
    nr_listed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_by_which_the_usage_falls_are_not_in_vain_however_many() {
        let mut rounds = Rounds::default();
        for usage in (0..u64::from(3 * MAX_IN_VAIN)).rev() {
            assert!(!rounds.count(7, usage));
        }
        let nr_more = (0..).take_while(|_| !rounds.count(7, 100)).count();
        assert_eq!(nr_more, MAX_IN_VAIN as usize);
        // Limits by turns are no progress either.
        let mut rounds = Rounds::default();
        let is_over = (0..10 * MAX_IN_VAIN).any(|nr| rounds.count(nr % 2 + 1, 0));
        assert!(is_over);
    }
}
