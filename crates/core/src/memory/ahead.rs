//! Pages that are charged ahead of the requests which take them: reclaim once, for all of them.

use super::{Here, Memory};
use crate::units::Cpu;
use core::cell::Cell;

/// Pages charged to a group for requests that come next: [`Here::with_ahead`]. What they leave is
/// uncharged when this is dropped.
#[derive(Debug)]
#[must_use = "what was charged goes back when it is dropped"]
pub struct Ahead<'a> {
    memory: &'a Memory,
    cpu: Cpu,
    group: u32,
    nr_pages: Cell<u32>,
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
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        let nr_pages = self.nr_pages.get();
        if nr_pages > 0 {
            self.memory.groups.uncharge(self.cpu, self.group, nr_pages);
        }
    }
}

impl Memory {
    /// Charges pages ahead to a group, which somebody keeps, and reclaims for them as a request of
    /// them all would. Where they have no room together, none is charged, and each request charges
    /// its own.
    ///
    /// Cost: that of one charge, and a batch of reclaim for each 64 pages that have no room.
    pub fn charge_ahead(&self, here: Here<'_>, group: u32, nr_pages: u32) -> Ahead<'_> {
        let charged = self.charge_pages(here, group, nr_pages);
        let nr_pages = Cell::new(charged.map_or(0, |()| nr_pages));
        let (memory, cpu) = (self, here.cpu);
        Ahead {
            memory,
            cpu,
            group,
            nr_pages,
        }
    }
}
