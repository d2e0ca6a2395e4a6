//! Reclaim because the program asks for it, or lowers a limit. Source: the kernel's
//! `memory.reclaim`.

use super::reach::{Reach, Reclaimer};
use super::rounds::Rounds;
use super::{Here, MAX_RETRIES, Memory};
use crate::group::{BATCH, Group, Limit, MinOverMax};
use crate::reclaim::MAX_BATCH;

impl Memory {
    /// Evicts `nr_pages` pages of the groups in `subtree`, and asks their shrinkers; returns the
    /// pages that came back.
    ///
    /// As for a limit, what `min` protects in the subtree stays, and what `low` protects as long
    /// as others have pages; what protects the subtree itself does not count. Fewer come back only
    /// where 16 rounds in a row found none, more by the rest of the last batch of 64. `swappiness`,
    /// 0 to 200, is the subtree's where none is named.
    pub fn reclaim_proactively(
        &self,
        here: Here<'_>,
        (subtree, swappiness): (u32, Option<u8>),
        nr_pages: u64,
    ) -> u64 {
        let reach = Reach::of(subtree).by(Reclaimer::Proactive);
        let reach = reach.at(swappiness);
        // What is charged for nobody goes first, and is nothing that a protection covers.
        let nr_drained = self.drain_magazines_of(subtree);
        self.groups.drain(subtree);
        let usage = || self.groups.get(subtree).map_or(0, Group::usage);
        let before = usage();
        let (mut nr_freed, mut nr_idle) = (u64::from(nr_drained), 0);
        while nr_freed < nr_pages && nr_idle < MAX_RETRIES && here.may_reclaim {
            let left = u32::try_from(nr_pages - nr_freed).unwrap_or(u32::MAX);
            match self.reclaim_all(here, reach, left.min(MAX_BATCH)).nr_freed {
                0 => nr_idle += 1,
                freed => {
                    nr_idle = 0;
                    nr_freed += u64::from(freed);
                }
            }
        }
        // What was given back is charged to nobody, so that it shows in the usage.
        self.drain_charges(subtree);
        // Some went when their writes ended, which no round counts.
        let nr_gone = u64::from(nr_drained) + before.saturating_sub(usage());
        nr_freed.max(nr_gone.min(nr_pages))
    }

    /// Sets a group's hard limit, and reclaims what is over it. Returns the pages that stay over
    /// because they are in use; the limit stays set.
    ///
    /// # Errors
    /// [`MinOverMax`]; nothing is changed.
    pub fn set_max(&self, here: Here<'_>, group: u32, max: u64) -> Result<u64, MinOverMax> {
        self.set_limit(group, Limit::Max, max)?;
        Ok(self.reclaim_below_max(here, group, 0))
    }

    /// Reclaims until a group's hard limit has room for `nr_more` pages, or no more can go. Returns
    /// the pages that are over it then.
    pub(super) fn reclaim_below_max(&self, here: Here<'_>, group: u32, nr_more: u64) -> u64 {
        let over = || {
            let record = self.groups.get(group);
            record.map_or(0, |record| {
                record
                    .usage()
                    .saturating_add(nr_more)
                    .saturating_sub(record.max())
            })
        };
        // Less than ever before is progress: what goes may come back, by a shrinker that looks at
        // pages.
        let (mut idle, mut least, mut rounds) = (0, u64::MAX, Rounds::default());
        while over() > 0 && idle < MAX_RETRIES && here.may_reclaim {
            if over() < least {
                idle = 0;
            } else if !self.wait_for_read(here, (group, group), 0, &mut rounds) {
                idle += 1;
            }
            least = least.min(over());
            let want = u32::try_from(over()).unwrap_or(u32::MAX).min(BATCH);
            self.reclaim_for(here, (group, group), want);
            self.drain_charges(group);
        }
        over()
    }
}
