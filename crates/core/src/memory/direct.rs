//! Direct reclaim: rounds of it for requests that a limit refuses, or that went above a `high`.

use super::reach::Reach;
use super::write::Reclaimed;
use super::{Here, Memory};
use crate::group::{BATCH, Event, Group};
use crate::sync::Ordering;

/// Pages that one charge brings a level nearer to its `high` by, beyond what it charged.
const MAX_BELOW: u32 = 16 * BATCH;

impl Memory {
    /// Whether as much may go under the limit of `over` as a request lacks there: pages, and what
    /// CPUs hold back. What a program has stays, reserved or working memory, where no shrinker
    /// gives some back. So that a request that is refused anyway evicts nothing.
    ///
    /// Says yes where that is not worth a look: a small request evicts little, and many groups cost
    /// more to look at than the pages of a few to evict. O(groups + CPUs) otherwise.
    pub(super) fn may_make_room(&self, here: Here<'_>, over: u32, nr_lacking: u32) -> bool {
        let is_looked_for = nr_lacking > BATCH
            && self.groups.subtree_looks(over) <= nr_lacking
            && !here.platform.may_shrink();
        match self.groups.get(over) {
            Some(level) if is_looked_for => {
                let wanted = level.usage() + u64::from(nr_lacking);
                let left = wanted.saturating_sub(self.may_go(over));
                // Lines of other CPUs: only where they may decide.
                let held_back = || u64::from(self.groups.held_on_cpus(over).0);
                left <= level.max() || left.saturating_sub(held_back()) <= level.max()
            }
            _ => true,
        }
    }

    /// A round of reclaim for a request of `group` that the limit of `over` refuses. What protects
    /// groups from others keeps nothing from themselves: where nobody else gives, those on the path
    /// between both do, the outermost first. A request for one page, or for several ahead, leaves
    /// young ones where they are, under the budget.
    pub(super) fn reclaim_over(
        &self,
        here: Here<'_>,
        (group, over): (u32, u32),
        nr_pages: u32,
        is_page: bool,
    ) -> Reclaimed {
        let reach = |level| match is_page && over == self.groups.root() {
            true => Reach::of(level).keeping_young(),
            false => Reach::of(level),
        };
        let mut round = self.reclaim_round(here, group, reach(over), nr_pages);
        let below = || self.groups.path(group).take_while(|&(id, _)| id != over);
        let mut left = match self.groups.is_protected() {
            true => below().count(),
            false => 0,
        };
        while round.nr_freed == 0
            && let Some(next) = left.checked_sub(1)
            && let Some((level, _)) = below().nth(next)
        {
            left = next;
            // What it gives beyond that others would take, though it is protected.
            let own = self.reclaim_round(here, group, reach(level).exactly(), nr_pages);
            round = round.and(own);
        }
        round
    }

    /// One round of reclaim in `subtree`, of pages and of what shrinkers have, as a stall of a
    /// caller that charges `group`. Returns the pages that came back.
    pub(super) fn reclaim_for(
        &self,
        here: Here<'_>,
        (group, subtree): (u32, u32),
        nr_pages: u32,
    ) -> u32 {
        self.reclaim_round(here, group, Reach::of(subtree), nr_pages)
            .nr_freed
    }

    /// [`Memory::reclaim_for`] of what is in reach, and why it freed nothing.
    pub(super) fn reclaim_round(
        &self,
        here: Here<'_>,
        group: u32,
        reach: Reach,
        nr_pages: u32,
    ) -> Reclaimed {
        let mut round = Reclaimed::default();
        self.stats.stalls.fetch_add(1, Ordering::Relaxed);
        here.platform.stall(group, &mut || {
            round = self.reclaim_all(here, reach, nr_pages);
        });
        round
    }

    /// One round of reclaim of what is in reach, of pages and of what shrinkers have, for a caller
    /// that may wait for writes.
    pub(super) fn reclaim_all(&self, here: Here<'_>, reach: Reach, nr_pages: u32) -> Reclaimed {
        let subtree = reach.subtree;
        let usage = self.groups.get(subtree).map_or(0, |group| group.usage());
        let mut round = self.reclaim_writing(here, reach, nr_pages);
        // Shrinkers give in proportion to what pages gave, or all that is asked where those gave
        // nothing.
        let freed = &mut round.nr_freed;
        let of = if *freed == 0 { 0 } else { usage };
        *freed += here.platform.shrink(subtree, nr_pages.max(*freed), of);
        round
    }

    /// After a charge that took levels above their `high`: reclaims on each, as long as that frees
    /// pages, and where it does not free as many as were charged tells the platform for how long to
    /// slow the charger down for what is over it still. Or has it called later, where the caller
    /// [defers](Here::deferring_high) it.
    ///
    /// Source: the kernel's `mem_cgroup_handle_over_high`, which goes on while it makes progress.
    /// Changed: for one charge no more than [`MAX_BELOW`] pages beyond it.
    pub fn reclaim_high(&self, here: Here<'_>, group: u32, nr_charged: u32) {
        if here.defers_high {
            return here.platform.defer_high(group, nr_charged);
        }
        let mut is_stuck = false;
        for (level, _) in self.groups.over_high(group) {
            self.groups.count_event(level, Event::High);
            // What is in the depot is nobody's: before a page is evicted.
            self.drain_much_of(level);
            is_stuck |= self.bring_below_high(here, (group, level), nr_charged) < nr_charged;
        }
        if !is_stuck {
            return;
        }
        // What the stocks serve until the next time was charged with it.
        let delay_ns = self.groups.delay_ns(group, nr_charged);
        if delay_ns > 0 {
            here.platform.throttle(group, delay_ns);
        }
    }

    /// Returns the pages freed, or as many as were charged where it is below.
    fn bring_below_high(&self, here: Here<'_>, (group, level): (u32, u32), nr_charged: u32) -> u32 {
        let mut nr_freed = 0;
        while nr_freed < nr_charged.saturating_add(MAX_BELOW) {
            let over = self.groups.get(level).map_or(0, Group::over_high);
            if over == 0 {
                return nr_charged;
            }
            let want = u32::try_from(over).unwrap_or(u32::MAX);
            let freed = match here.may_reclaim {
                true => self.reclaim_for(here, (group, level), want.min(nr_charged.max(BATCH))),
                false => 0,
            };
            if freed == 0 {
                break;
            }
            nr_freed = nr_freed.saturating_add(freed);
        }
        nr_freed
    }
}
