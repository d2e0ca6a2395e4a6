//! Room below the budget: made in the background before those who read need it.
//!
//! The kernel has no such mark: its limits of groups are kept by those who charge, and only free
//! memory has watermarks. Here the budget is what runs out, and every 64th miss would evict a
//! batch first. Limits of other groups stay exact: they are their owners' own.
//!
//! A reader that never pauses can still come to the end of it: of 1 GiB, half of the room is 512
//! pages, a millisecond of misses that take 2 us each, and a worker that finds no CPU within that
//! comes too late. Then the reader evicts a batch itself, as without a worker. Larger batches or
//! steps do not help, for the worker is late and not slow; what helps is more room, which caches
//! nothing, or a CPU that is free. `pgsteal_direct` beside `pgsteal_kswapd` tells how often.

use super::reach::Reclaimer;
use super::{Here, MAX_RETRIES, Memory};
use crate::reclaim::MAX_BATCH;
use crate::sync::{AtomicU32, Ordering};

/// The part of the budget that is kept free at most: less than the watermarks keep of a zone up to
/// 4 GiB.
const SHARE: u64 = 256;
/// Pages that are kept free at most: what a reader takes within the time that a thread needs to
/// wake up, twice.
const MAX_ROOM: u64 = 4096;
/// Below so many it is not worth a thread: two batches, to be woken at one.
const MIN_ROOM: u64 = 256;
/// Pages that one step evicts at most, but for the rest of its last batch.
const MAX_STEP: u64 = 1024;

/// What is remembered between two steps.
#[derive(Debug)]
pub(super) struct Room {
    /// Steps in a row that freed nothing.
    nr_failures: AtomicU32,
    /// 1 between the first step of a run and its last one.
    active: AtomicU32,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            nr_failures: AtomicU32::new(0),
            active: AtomicU32::new(0),
        }
    }
}

impl Room {
    /// Somebody evicted pages: another run may bring something.
    pub(super) fn made_progress(&self) {
        if self.nr_failures.load(Ordering::Relaxed) != 0 {
            self.nr_failures.store(0, Ordering::Relaxed);
        }
    }
}

/// Pages that a run leaves free below a budget of `max`; 0 where none is worth it.
fn room_below(max: u64) -> u64 {
    match (max / SHARE).min(MAX_ROOM) {
        0..MIN_ROOM => 0,
        room => room,
    }
}

impl Memory {
    /// Pages used beyond what leaves the room, or a part of it; 0 for a budget without.
    fn nr_over_room(&self, part: u64) -> u64 {
        let root = self.groups.get(self.groups.root());
        root.map_or(0, |root| {
            let (usage, max) = (root.usage(), root.max());
            match room_below(max) {
                0 => 0,
                room => (usage + room / part).saturating_sub(max),
            }
        })
    }

    /// Wakes background reclaim where less than half of the room is left. Two loads of the root.
    #[inline]
    pub(super) fn look_ahead(&self, here: Here<'_>) {
        if self.nr_over_room(2) > 0 {
            self.wake_for_room(here);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_for_room(&self, here: Here<'_>) {
        if self.room.nr_failures.load(Ordering::Relaxed) < MAX_RETRIES {
            let node = self.config.alloc.topology.node_of(here.cpu);
            here.platform.wake_reclaim(node);
        }
    }

    /// One step towards the room: evicts what is missing, 1024 pages at most, of whatever group
    /// beyond what protects it, and asks shrinkers in proportion. Whether there is more to do.
    pub(super) fn make_room(&self, here: Here<'_>) -> bool {
        let mut nr_over = self.nr_over_room(1);
        if nr_over > 0 {
            // What is in the depot is nobody's: before a page is evicted.
            self.drain_much_of(self.groups.root());
            nr_over = self.nr_over_room(1);
        }
        let goes_on = nr_over > 0 && here.may_reclaim && self.evict_for_room(here, nr_over);
        self.room
            .active
            .store(u32::from(goes_on), Ordering::Relaxed);
        goes_on
    }

    fn evict_for_room(&self, here: Here<'_>, nr_pages: u64) -> bool {
        if self.room.active.load(Ordering::Relaxed) == 0 {
            self.background.count_run();
        }
        let reach = self.budget_reach().by(Reclaimer::Background);
        let (budget, mut nr_freed) = (nr_pages.min(MAX_STEP), 0);
        while nr_freed < budget {
            match self.reclaim_all(here, reach, MAX_BATCH).nr_freed {
                0 => break,
                freed => nr_freed += u64::from(freed),
            }
        }
        let failures = &self.room.nr_failures;
        if nr_freed > 0 {
            failures.store(0, Ordering::Relaxed);
            return self.nr_over_room(1) > 0;
        }
        let nr_failures = failures.load(Ordering::Relaxed).saturating_add(1);
        failures.store(nr_failures, Ordering::Relaxed);
        nr_failures < MAX_RETRIES
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn room_is_a_share_within_bounds() {
        let gib = 1 << 18;
        let rooms = [gib / 5, gib / 4, gib, 4 * gib, 1000 * gib, u64::MAX].map(room_below);
        assert_eq!(rooms, [0, 256, 1024, 4096, 4096, 4096]);
    }
}
