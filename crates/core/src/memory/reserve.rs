//! Reservations: bytes of the program's own heap under the same budget; and the budget itself.

use super::{AllocError, Here, MIN_PAGES, Memory};
use crate::alloc::PAGEBLOCK_PAGES;
use crate::units::Cpu;

/// Bytes of a reservation and the pages that they are charged as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Bytes.
    pub nr_bytes: u64,
    /// Pages to charge.
    pub nr_pages: u32,
}

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
    pub fn reserve(
        &self,
        here: Here<'_>,
        group: u32,
        reserved: Reserved,
    ) -> Result<(), AllocError> {
        let nr_pages = reserved.nr_pages;
        let mut charged = Ok(());
        // Bytes within a page that is charged already need none, whatever the limits say.
        if nr_pages > 0 {
            let first = self.groups.charge(here.cpu, group, nr_pages);
            let by_region = nr_pages >= PAGEBLOCK_PAGES;
            charged = self.charge(here, group, nr_pages, (first, by_region));
        }
        if charged.is_ok() {
            self.count_reserved(group, reserved);
        }
        // What was emptied for it in vain, or beyond it, is of use to others.
        self.deflate();
        charged
    }

    fn count_reserved(&self, group: u32, reserved: Reserved) {
        self.add_reserved(reserved.nr_bytes, 0);
        if let Some(group) = self.groups.get(group) {
            group.add_reserved(reserved.nr_pages);
        }
    }

    /// As [`Memory::reserve`] for bytes that are there already: it goes past limits where it has
    /// to, and counts that.
    pub fn reserve_forced(&self, here: Here<'_>, group: u32, reserved: Reserved) {
        if self.reserve(here, group, reserved).is_err() {
            self.groups
                .charge_forced(here.cpu, group, reserved.nr_pages);
            self.count_reserved(group, reserved);
        }
    }

    /// Gives back what [`Memory::reserve`] charged.
    pub fn unreserve(&self, cpu: Cpu, group: u32, reserved: Reserved) {
        // Before it is uncharged: whoever charges it next finds the frames that it then may have.
        self.sub_reserved(reserved.nr_bytes, 0);
        if let Some(group) = self.groups.get(group) {
            group.sub_reserved(reserved.nr_pages);
        }
        if reserved.nr_pages > 0 {
            self.groups.uncharge(cpu, group, reserved.nr_pages);
        }
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
        let least = u64::from(self.config.metadata_pages() + MIN_PAGES);
        if !(least..=most).contains(&budget_pages) {
            return Err(BadBudget { least, most });
        }
        let over = self.set_max(here, self.groups.root(), budget_pages);
        let over = over.expect("the root's `max` has no lower bound");
        self.deflate();
        Ok(over)
    }
}
