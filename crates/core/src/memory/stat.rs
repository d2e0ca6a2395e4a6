//! What a group's memory is: the numbers of `memory.stat`.

use super::Memory;
use crate::group::{Count, Gauge, Group, Item, ReclaimCount};
use crate::units::{PAGE_BYTES, PageType};

/// What is charged to a group and those below it, in bytes, and what they counted so far.
///
/// Named as in the kernel's `memory.stat`. At a moment: exact while nobody charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Anon pages, those being read too, working memory, and pages that left their file while
    /// pinned.
    pub anon: u64,
    /// Pages of files, those being read too.
    pub file: u64,
    /// Of these, pages that must be written before they can go.
    pub file_dirty: u64,
    /// Of these, pages that are being written, and pages that left their file meanwhile.
    pub file_writeback: u64,
    /// Core's own records, and the reserve of writes. They are the root's.
    pub kernel: u64,
    /// Bytes charged for objects that a shrinker can free.
    pub slab_reclaimable: u64,
    /// Bytes charged for objects that stay until their owner frees them: reservations of the
    /// program's own heap. Off by what CPUs hold back, a few pages each.
    pub slab_unreclaimable: u64,
    /// Charged ahead, in the stocks of CPUs, and what is left of the last pages of objects. The
    /// kernel has no such number.
    pub stock: u64,
    /// Pages that were not resident when asked for.
    pub pgmajfault: u64,
    /// Pages that reclaim looked at.
    pub pgscan: u64,
    /// Pages that reclaim evicted.
    pub pgsteal: u64,
    /// Of `pgscan`, in the background.
    pub pgscan_kswapd: u64,
    /// Of `pgscan`, for requests.
    pub pgscan_direct: u64,
    /// Of `pgscan`, because the program asked for it.
    pub pgscan_proactive: u64,
    /// Of `pgscan`, anon pages.
    pub pgscan_anon: u64,
    /// Of `pgscan`, pages of files.
    pub pgscan_file: u64,
    /// Of `pgsteal`, in the background.
    pub pgsteal_kswapd: u64,
    /// Of `pgsteal`, for requests.
    pub pgsteal_direct: u64,
    /// Of `pgsteal`, because the program asked for it.
    pub pgsteal_proactive: u64,
    /// Of `pgsteal`, anon pages.
    pub pgsteal_anon: u64,
    /// Of `pgsteal`, pages of files.
    pub pgsteal_file: u64,
    /// Pages looked at though the policy had taken them for pages in use; of a multi-gen LRU, pages
    /// that eviction moved to another generation.
    pub pgrefill: u64,
    /// Pages that reclaim took for pages in use from then on. A multi-gen LRU counts none.
    pub pgactivate: u64,
    /// Pages that reclaim no longer took for that.
    pub pgdeactivate: u64,
    /// Evicted pages of files that were asked for again while their shadow was there.
    pub workingset_refault_file: u64,
    /// The same of anon pages.
    pub workingset_refault_anon: u64,
    /// Of those of files, pages that the policy took for pages in use.
    pub workingset_activate_file: u64,
    /// The same of anon pages.
    pub workingset_activate_anon: u64,
    /// Of those of files, pages that should not have gone: what is waited for is a stall.
    pub workingset_restore_file: u64,
    /// The same of anon pages.
    pub workingset_restore_anon: u64,
    /// Pages charged past a limit because the charge could not fail. Not a name of the kernel's.
    pub pgforced: u64,
}

fn bytes(nr_pages: u64) -> u64 {
    nr_pages * PAGE_BYTES as u64
}

impl Memory {
    /// What a group's memory is. O(groups).
    #[must_use]
    pub fn stat(&self, id: u32) -> Stat {
        let mut stats = [(id, Stat::default())];
        self.fill_stats(&mut stats);
        stats[0].1
    }

    /// [`Memory::stat`] of many groups in one walk over all groups: of those whose ids stand in
    /// `stats`, in their order. O(groups), and for each a search for those above it.
    pub fn fill_stats(&self, stats: &mut [(u32, Stat)]) {
        debug_assert!(stats.is_sorted_by_key(|&(id, _)| id));
        self.groups.at_one_moment(|| {
            stats
                .iter_mut()
                .for_each(|(_, stat)| *stat = Stat::default());
            for (below, group) in self.groups.iter() {
                for (id, _) in self.groups.path(below) {
                    if let Ok(at) = stats.binary_search_by_key(&id, |&(id, _)| id) {
                        self.add_own(below, group, &mut stats[at].1);
                    }
                }
            }
        });
        for (id, stat) in stats {
            match self.groups.get(*id) {
                Some(group) => self.add_all(*id, group, stat),
                None => *stat = Stat::default(),
            }
        }
    }

    /// Adds the numbers of one group's own pages; of the stock, what is parked in its record.
    fn add_own(&self, id: u32, group: &Group, stat: &mut Stat) {
        stat.file += bytes(group.gauge(Gauge::FileReading));
        for (_, lruvec) in self.lruvecs_of(group) {
            stat.file += bytes(lruvec.lock().nr_frames(PageType::File).into());
        }
        stat.file_dirty += bytes(group.gauge(Gauge::FileDirty));
        stat.file_writeback += bytes(group.gauge(Gauge::FileWriteback));
        stat.stock += u64::from(group.parked());
        stat.pgmajfault += group.count(Count::Pgmajfault);
        self.add_reclaim_counts(id, stat);
        stat.workingset_refault_file += group.count(Count::WorkingsetRefaultFile);
        stat.workingset_refault_anon += group.count(Count::WorkingsetRefaultAnon);
        stat.workingset_activate_file += group.count(Count::WorkingsetActivateFile);
        stat.workingset_activate_anon += group.count(Count::WorkingsetActivateAnon);
        stat.workingset_restore_file += group.count(Count::WorkingsetRestoreFile);
        stat.workingset_restore_anon += group.count(Count::WorkingsetRestoreAnon);
        stat.pgforced += group.count(Count::Pgforced);
    }

    /// Adds what is told of a group and those below it at once, and what follows from the rest.
    fn add_all(&self, id: u32, group: &Group, stat: &mut Stat) {
        stat.pgscan = stat.pgscan_kswapd + stat.pgscan_direct + stat.pgscan_proactive;
        stat.pgsteal = stat.pgsteal_kswapd + stat.pgsteal_direct + stat.pgsteal_proactive;
        stat.slab_reclaimable = self.groups.state(id, Item::SlabReclaimable);
        stat.slab_unreclaimable = self.groups.state(id, Item::SlabUnreclaimable);
        let in_magazines = self
            .magazines
            .nr_pages(|group| self.groups.is_in(group, id));
        let (nr_stocked, on_cpus) = self.groups.held_on_cpus(id);
        stat.stock += bytes(u64::from(nr_stocked) + u64::from(in_magazines)) + on_cpus;
        if id == self.groups.root() {
            stat.kernel =
                bytes(u64::from(self.own_pages()) + u64::from(self.groups.nr_record_pages()));
        }
        let slab = stat.slab_reclaimable + stat.slab_unreclaimable;
        let others = stat.file + stat.kernel + slab + stat.stock;
        stat.anon = bytes(group.usage()).saturating_sub(others);
    }

    /// Adds what reclaim counted of one group's own pages, and the faults of groups that are gone.
    fn add_reclaim_counts(&self, id: u32, stat: &mut Stat) {
        for (sum, count) in [
            (&mut stat.pgscan_kswapd, ReclaimCount::PgscanKswapd),
            (&mut stat.pgscan_direct, ReclaimCount::PgscanDirect),
            (&mut stat.pgscan_proactive, ReclaimCount::PgscanProactive),
            (&mut stat.pgscan_anon, ReclaimCount::PgscanAnon),
            (&mut stat.pgscan_file, ReclaimCount::PgscanFile),
            (&mut stat.pgsteal_kswapd, ReclaimCount::PgstealKswapd),
            (&mut stat.pgsteal_direct, ReclaimCount::PgstealDirect),
            (&mut stat.pgsteal_proactive, ReclaimCount::PgstealProactive),
            (&mut stat.pgsteal_anon, ReclaimCount::PgstealAnon),
            (&mut stat.pgsteal_file, ReclaimCount::PgstealFile),
            (&mut stat.pgrefill, ReclaimCount::Pgrefill),
            (&mut stat.pgactivate, ReclaimCount::Pgactivate),
            (&mut stat.pgdeactivate, ReclaimCount::Pgdeactivate),
            (&mut stat.pgmajfault, ReclaimCount::PgmajfaultOfGone),
        ] {
            *sum += self.groups.reclaim_count(id, count);
        }
    }
}
