//! What reclaim did with a group's pages: counts in a record of their own, from the first page on.
//!
//! A group without pages has none, so that its own record stays small. The record of a group that
//! goes is its parent's, if that has none yet, so that counting on needs no memory.

use super::{Group, Tree};
use crate::sync::{AtomicU64, NoMetadata, Ordering};
use crate::units::Cpu;

/// What is counted of a group's own pages, by the names of `memory.stat`. The sums over all
/// reclaimers follow from these. Pages by type are both counted: a difference of two counts would
/// fall now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimCount {
    /// Pages looked at in the background.
    PgscanKswapd,
    /// Pages looked at for a request.
    PgscanDirect,
    /// Pages looked at because the program asked for it.
    PgscanProactive,
    /// Of all pages looked at, anon pages.
    PgscanAnon,
    /// Of all pages looked at, pages of files.
    PgscanFile,
    /// Pages evicted in the background.
    PgstealKswapd,
    /// Pages evicted for a request.
    PgstealDirect,
    /// Pages evicted because the program asked for it.
    PgstealProactive,
    /// Of all pages evicted, anon pages.
    PgstealAnon,
    /// Of all pages evicted, pages of files.
    PgstealFile,
    /// Pages that a policy had taken for pages in use and looked at all the same; of a multi-gen
    /// LRU, pages that eviction moved to another generation.
    Pgrefill,
    /// Pages that eviction met and took for pages in use from then on. Not of a multi-gen LRU.
    Pgactivate,
    /// Pages that were no longer taken for that.
    Pgdeactivate,
    /// [`Count::Pgmajfault`](super::Count::Pgmajfault) of groups below it that are gone: its own
    /// stands beside the requests of those who use it.
    PgmajfaultOfGone,
}

const NR_COUNTS: usize = 14;

/// The record.
#[derive(Debug, Default)]
pub(super) struct ReclaimCounts([AtomicU64; NR_COUNTS]);

impl Tree {
    fn reclaim_counts(&self, group: &Group) -> Option<&ReclaimCounts> {
        let id = group.reclaim_counts.load(Ordering::Acquire);
        self.reclaim_counts.get(id)
    }

    /// Gives a group its record of counts, if it has none: before its first page.
    ///
    /// # Errors
    /// [`NoMetadata`] where the budget or the allocator refuses the record.
    pub fn have_reclaim_counts(&self, cpu: Cpu, id: u32) -> Result<(), NoMetadata> {
        let group = self.live(id);
        if group.reclaim_counts.load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        let charge = |bytes: usize| self.charge_records(cpu, bytes).is_ok();
        let set_up = |_, record: &ReclaimCounts| {
            record
                .0
                .iter()
                .for_each(|one| one.store(0, Ordering::Relaxed));
        };
        let made = self.reclaim_counts.insert(charge, set_up)?;
        if !group.take_reclaim_counts(made) {
            self.reclaim_counts.remove(made);
        }
        Ok(())
    }

    /// Counts more of something. A look-up, and a read-modify-write where there is more.
    pub fn add_reclaim_count(&self, id: u32, count: ReclaimCount, more: u64) {
        let group = self.get(id).filter(|_| more > 0);
        if let Some(record) = group.and_then(|group| self.reclaim_counts(group)) {
            record.0[count as usize].fetch_add(more, Ordering::Relaxed);
        }
    }

    /// What was counted of a group's own pages so far, and of groups below it that are gone.
    #[must_use]
    pub fn reclaim_count(&self, id: u32, count: ReclaimCount) -> u64 {
        let record = self.get(id).and_then(|group| self.reclaim_counts(group));
        record.map_or(0, |record| record.0[count as usize].load(Ordering::Relaxed))
    }

    /// Takes over what a child that goes has counted.
    pub(super) fn inherit_reclaim_counts(&self, parent: &Group, child: &Group) {
        let id = child.reclaim_counts.swap(0, Ordering::AcqRel);
        if id == 0 || parent.take_reclaim_counts(id) {
            return;
        }
        let records = self.reclaim_counts.get(id).zip(self.reclaim_counts(parent));
        let (of_child, own) = records.expect("both have one");
        for (own, of_child) in own.0.iter().zip(&of_child.0) {
            own.fetch_add(of_child.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.reclaim_counts.remove(id);
    }
}

impl Group {
    /// Takes a record of counts; false where it has one already.
    fn take_reclaim_counts(&self, id: u32) -> bool {
        // Release pairs with the Acquire in `Tree::reclaim_counts`.
        self.reclaim_counts
            .compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}
