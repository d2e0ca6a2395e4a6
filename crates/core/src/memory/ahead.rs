//! Pages that are charged ahead of the requests which take them: reclaim once, for all of them.

use super::alloc::Amount;
use super::{Here, Memory};
use crate::group::{Charged, Count};
use crate::units::{Cpu, PageType};
use core::cell::Cell;

/// Pages charged to a group for requests that come next: [`Here::with_ahead`]. What they leave is
/// uncharged when this is dropped, and the faults that they were are counted then.
#[derive(Debug)]
#[must_use = "what was charged goes back when it is dropped"]
pub struct Ahead<'a> {
    memory: &'a Memory,
    cpu: Cpu,
    group: u32,
    nr_pages: Cell<u32>,
    /// Of the requests so far, to be counted together.
    nr_faults: Cell<u32>,
}

impl Ahead<'_> {
    /// Pages that are left.
    #[must_use]
    pub fn nr_pages(&self) -> u32 {
        self.nr_pages.get()
    }

    /// Takes pages for a request of `group`; false where they are another group's, or too few.
    #[inline]
    pub(super) fn take(&self, group: u32, nr_pages: u32) -> bool {
        let left = self.nr_pages.get().checked_sub(nr_pages);
        let left = left.filter(|_| group == self.group);
        if let Some(left) = left {
            self.nr_pages.set(left);
        }
        left.is_some()
    }

    /// Whether it is for requests of `group`.
    #[inline]
    pub(super) fn is_of(&self, group: u32) -> bool {
        self.group == group
    }

    /// Reads of pages of the group begin: as [`crate::group::Group::begin_read`]. They are counted
    /// at once, as they may end before this does.
    #[inline]
    pub(super) fn begin_read(&self, page_type: PageType, nr_pages: u32, nr_faults: u32) {
        if let Some(group) = self.memory.groups.get(self.group) {
            group.begin_copy(page_type, nr_pages);
        }
        self.nr_faults.set(self.nr_faults.get() + nr_faults);
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        let nr_faults = self.nr_faults.get();
        if let Some(group) = self.memory.groups.get(self.group)
            && nr_faults > 0
        {
            group.add_count(Count::Pgmajfault, nr_faults.into());
        }
        let nr_pages = self.nr_pages.get();
        if nr_pages > 0 {
            let groups = &self.memory.groups;
            groups.uncharge_many(self.cpu, self.group, nr_pages);
        }
    }
}

impl Memory {
    /// Charges pages ahead to a group, which somebody keeps, and reclaims for them as a request of
    /// them all would, but leaves young pages where they are, as each of those requests does. Where
    /// they have no room together, none is charged, and each request charges its own.
    ///
    /// Cost: that of one charge, and a batch of reclaim for each 64 pages that have no room.
    pub fn charge_ahead(&self, here: Here<'_>, group: u32, nr_pages: u32) -> Ahead<'_> {
        let charged = match self.groups.charge_many(here.cpu, group, nr_pages) {
            Ok(Charged::Within) => Ok(()),
            charged => self.charge(here, group, Amount::Ahead(nr_pages), charged),
        };
        let nr_pages = Cell::new(charged.map_or(0, |()| nr_pages));
        let (memory, cpu) = (self, here.cpu);
        Ahead {
            memory,
            cpu,
            group,
            nr_pages,
            nr_faults: Cell::default(),
        }
    }
}
