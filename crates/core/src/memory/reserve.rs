//! Reservations: bytes of the program's own heap under the same budget; and the budget itself.

use super::alloc::Amount;
use super::{AllocError, Here, MIN_PAGES, Memory};
use crate::group::Item;
use crate::units::{Cpu, PAGE_BYTES};

/// A budget that the memory cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadBudget {
    /// Pages that it must have at least.
    pub least: u64,
    /// Pages that it can have at most: the arena's.
    pub most: u64,
}

impl Memory {
    /// Charges a group for bytes of the program's own heap. Afterwards the caller runs
    /// [`Memory::next_offline`] until it has no more, so that the process gives up as much as it
    /// takes.
    ///
    /// Where a limit is met, whole pageblocks are emptied, because their frames go out of use.
    ///
    /// # Errors
    /// [`AllocError::OverLimit`]; nothing stays charged.
    pub fn reserve(&self, here: Here<'_>, group: u32, nr_bytes: u64) -> Result<(), AllocError> {
        let first = self.groups.charge_bytes(here.cpu, group, nr_bytes);
        let charged = self.charge(here, group, Amount::Bytes(nr_bytes), first);
        if charged.is_ok() {
            self.count_reserved(here.cpu, group, nr_bytes);
        }
        // What was emptied for it in vain, or beyond it, is of use to others.
        self.deflate();
        charged
    }

    fn count_reserved(&self, cpu: Cpu, group: u32, nr_bytes: u64) {
        self.add_reserved(nr_bytes, 0);
        let delta = i64::try_from(nr_bytes).expect("bytes that were charged");
        self.groups
            .mod_state(cpu, group, Item::SlabUnreclaimable, delta);
    }

    /// As [`Memory::reserve`] for bytes that are there already: it goes past limits where it has
    /// to, by no more than that, and counts it.
    ///
    /// # Panics
    /// Beyond 2^32 - 1 pages.
    pub fn reserve_forced(&self, here: Here<'_>, group: u32, nr_bytes: u64) {
        if self.reserve(here, group, nr_bytes).is_ok() {
            return;
        }
        let nr_pages = nr_bytes.div_ceil(PAGE_BYTES as u64);
        let surplus = nr_pages * PAGE_BYTES as u64 - nr_bytes;
        let nr_pages = u32::try_from(nr_pages).expect("at most 2^32 - 1 pages");
        let levels = || self.groups.path(group);
        let is_too_much = |level| {
            u64::from(nr_pages) > self.room_under(level)
                || !self.may_make_room(here, level, nr_pages)
        };
        if levels().any(|(level, _)| is_too_much(level)) {
            // Nothing was evicted: what is there anyway takes what it can, on each level.
            for (level, _) in levels() {
                self.reclaim_below_max(here, level, nr_pages.into());
            }
        }
        self.groups.charge_forced(here.cpu, group, nr_pages);
        if let Some((over, _)) = levels()
            .filter(|(_, level)| level.usage() > level.max())
            .last()
        {
            // What comes back to a magazine that is there would serve a new request.
            self.forget_magazines_of(over);
        }
        self.groups.uncharge_bytes(here.cpu, group, surplus);
        self.count_reserved(here.cpu, group, nr_bytes);
    }

    /// Gives back what [`Memory::reserve`] charged, or a part of it.
    pub fn unreserve(&self, cpu: Cpu, group: u32, nr_bytes: u64) {
        if nr_bytes == 0 {
            return;
        }
        // Before it is uncharged: whoever charges it next finds the frames that it then may have,
        // and the group may go with its last page.
        self.sub_reserved(nr_bytes, 0);
        let delta = i64::try_from(nr_bytes).expect("bytes that were charged");
        self.groups
            .mod_state(cpu, group, Item::SlabUnreclaimable, -delta);
        self.groups.uncharge_bytes(cpu, group, nr_bytes);
        self.deflate();
    }

    /// A reservation begins: a pageblock more may stay out of use without need, so that one that
    /// shrinks and grows by turns makes no system calls.
    pub fn begin_reservation(&self) {
        self.add_reserved(0, 1);
    }

    /// A reservation ends; its bytes were given back.
    pub fn end_reservation(&self) {
        self.sub_reserved(0, 1);
        self.deflate();
    }

    /// Changes the budget, in pages; reclaims what is over it. Returns the pages that stay over
    /// because they are in use. Afterwards the caller runs [`Memory::next_offline`].
    ///
    /// # Errors
    /// [`BadBudget`] beyond the arena, or too small for core's records; nothing is changed.
    pub fn set_budget(&self, here: Here<'_>, budget_pages: u64) -> Result<u64, BadBudget> {
        let most = u64::from(self.config.arena_pages);
        let least = u64::from(self.own_pages() + MIN_PAGES);
        if !(least..=most).contains(&budget_pages) {
            return Err(BadBudget { least, most });
        }
        let over = self.set_max(here, self.groups.root(), budget_pages);
        let over = over.expect("the root's `max` has no lower bound");
        self.deflate();
        Ok(over)
    }
}
