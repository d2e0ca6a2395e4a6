//! Reclaim because the program asks for it. Source: the kernel's `memory.reclaim`.

use super::reclaim::{Reach, Reclaimer};
use super::{Here, MAX_RETRIES, Memory};
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
        let (mut nr_freed, mut nr_idle) = (0, 0);
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
        nr_freed
    }
}
