//! What a group's memory is, for people and programs.

use crate::builder::bytes_of;
use crate::stats::by_name;
use crate::{ByteSize, Group, Memory};
use pagetide_core::memory::Stat;
use std::fmt;

/// What is charged to a group and those below it, in bytes, and what they counted so far. Displayed
/// as `memory.stat` has it.
///
/// Taken at a moment: exact while nobody charges. What it counts of a group that is gone, its
/// parent has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStat {
    /// Pages of [`Anon`](crate::Anon) regions, working memory, and pages that left their file while
    /// pinned.
    pub anon: u64,
    /// Pages of files, those being read too.
    pub file: u64,
    /// Of `file`, pages that must be written before they can go.
    pub file_dirty: u64,
    /// Pages of files that are being written, those that left their file meanwhile too.
    pub file_writeback: u64,
    /// pagetide's own records. They are the root's.
    pub kernel: u64,
    /// A name of the kernel's, 0 here: what a [`Shrinker`](crate::Shrinker) can free is charged as
    /// the rest of the program's heap is, in `slab_unreclaimable`.
    pub slab_reclaimable: u64,
    /// Bytes of the program's own heap: reservations; of the root also the numbers of dirty pages,
    /// in pages. Off by what CPUs hold back, at most three pages each.
    pub slab_unreclaimable: u64,
    /// Charged ahead, in the stocks of CPUs and as free working memory in their magazines, and what
    /// is left of reservations' last pages. The kernel has no such number.
    pub stock: u64,
    /// Pages that were not resident when asked for.
    pub pgmajfault: u64,
    /// Pages that reclaim looked at, whatever their size.
    pub pgscan: u64,
    /// Pages of 4 KiB that reclaim evicted: a larger one counts as so many. Those of blocks that
    /// were emptied, for reservations and large requests, are not among `pgscan`.
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
    /// Evicted pages of files that were asked for again while they were remembered.
    pub workingset_refault_file: u64,
    /// The same of anon pages.
    pub workingset_refault_anon: u64,
    /// Of those of files, pages that the policy took for pages in use.
    pub workingset_activate_file: u64,
    /// The same of anon pages.
    pub workingset_activate_anon: u64,
    /// Of those of files, pages that should not have gone: to wait for one is pressure.
    pub workingset_restore_file: u64,
    /// The same of anon pages.
    pub workingset_restore_anon: u64,
    /// Pages charged past a limit, because the charge could not fail. Not a name of the kernel's.
    pub pgforced: u64,
}

impl GroupStat {
    /// The numbers by the kernel's names: first bytes, then counts from `workingset_refault_anon`.
    pub(crate) fn lines(&self) -> [(&'static str, u64); 31] {
        by_name!(*self => GroupStat {
            anon, file, file_dirty, file_writeback, kernel, slab_reclaimable, slab_unreclaimable,
            stock, workingset_refault_anon, workingset_refault_file, workingset_activate_anon,
            workingset_activate_file, workingset_restore_anon, workingset_restore_file, pgscan,
            pgsteal, pgscan_kswapd, pgscan_direct, pgscan_proactive, pgsteal_kswapd, pgsteal_direct,
            pgsteal_proactive, pgscan_anon, pgscan_file, pgsteal_anon, pgsteal_file, pgrefill,
            pgactivate, pgdeactivate, pgmajfault, pgforced,
        })
    }
}

impl fmt::Display for GroupStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines()
            .iter()
            .try_for_each(|(name, number)| writeln!(f, "{name} {number}"))
    }
}

/// What the stocks of pages and bytes charged ahead did since the memory was built, and what they
/// hold now. Displayed a name and a number a line, as the kernel's files have it; the kernel itself
/// tells nothing of its stocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StockStats {
    /// Charges that a stock served: nothing shared was touched. Approximate.
    pub hits: u64,
    /// Batches that were charged ahead.
    pub refills: u64,
    /// Refills of which pages went back: too many, or another group's place.
    pub trims: u64,
    /// Stocks of a group that were emptied by whoever needed the room. Approximate.
    pub remote_drains: u64,
    /// Bytes charged ahead now.
    pub held_bytes: u64,
}

impl fmt::Display for StockStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "stock_hit {}", self.hits)?;
        writeln!(f, "stock_refill {}", self.refills)?;
        writeln!(f, "stock_trim {}", self.trims)?;
        writeln!(f, "stock_drain_remote {}", self.remote_drains)?;
        writeln!(f, "stock {}", self.held_bytes)
    }
}

impl Memory {
    /// [`Group::stat`] of each of some groups. Cost: a look at every group of the memory.
    #[cfg(any(feature = "metrics", feature = "watch"))]
    pub(crate) fn group_stats(&self, groups: &[(String, Group)]) -> Vec<GroupStat> {
        let ids = groups
            .iter()
            .map(|(_, group)| (group.id(), Stat::default()));
        let mut stats: Vec<_> = ids.collect();
        stats.sort_unstable_by_key(|&(id, _)| id);
        if !self.home().is_forked() {
            self.home().core.fill_stats(&mut stats);
        }
        let of = |id| {
            let at = stats.binary_search_by_key(&id, |&(id, _)| id);
            at.map_or(Stat::default(), |at| stats[at].1)
        };
        let all = groups.iter().map(|(_, group)| of(group.id()).into());
        all.collect()
    }

    /// What the stocks did. Cost: a look at every CPU's and every group's.
    #[must_use]
    pub fn stock_stats(&self) -> StockStats {
        let stats = self.root().shared().core.groups().stock_stats();
        StockStats {
            hits: stats.hits + stats.byte_hits,
            refills: stats.refills,
            trims: stats.trims,
            remote_drains: stats.remote_drains,
            held_bytes: bytes_of(u64::from(stats.nr_pages)) + stats.nr_bytes,
        }
    }
}

impl Group {
    /// What the group's memory is. Cost: a look at every group of the memory.
    #[must_use]
    pub fn stat(&self) -> GroupStat {
        match self.shared().is_forked() {
            true => GroupStat::default(),
            false => self.shared().core.stat(self.id()).into(),
        }
    }

    /// The largest [`Group::usage`] so far.
    #[must_use]
    pub fn peak(&self) -> ByteSize {
        ByteSize(bytes_of(self.record().peak()))
    }
}

impl From<Stat> for GroupStat {
    fn from(core: Stat) -> GroupStat {
        GroupStat {
            anon: core.anon,
            file: core.file,
            file_dirty: core.file_dirty,
            file_writeback: core.file_writeback,
            kernel: core.kernel,
            slab_reclaimable: core.slab_reclaimable,
            slab_unreclaimable: core.slab_unreclaimable,
            stock: core.stock,
            pgmajfault: core.pgmajfault,
            pgscan: core.pgscan,
            pgsteal: core.pgsteal,
            pgscan_kswapd: core.pgscan_kswapd,
            pgscan_direct: core.pgscan_direct,
            pgscan_proactive: core.pgscan_proactive,
            pgscan_anon: core.pgscan_anon,
            pgscan_file: core.pgscan_file,
            pgsteal_kswapd: core.pgsteal_kswapd,
            pgsteal_direct: core.pgsteal_direct,
            pgsteal_proactive: core.pgsteal_proactive,
            pgsteal_anon: core.pgsteal_anon,
            pgsteal_file: core.pgsteal_file,
            pgrefill: core.pgrefill,
            pgactivate: core.pgactivate,
            pgdeactivate: core.pgdeactivate,
            workingset_refault_file: core.workingset_refault_file,
            workingset_refault_anon: core.workingset_refault_anon,
            workingset_activate_file: core.workingset_activate_file,
            workingset_activate_anon: core.workingset_activate_anon,
            workingset_restore_file: core.workingset_restore_file,
            workingset_restore_anon: core.workingset_restore_anon,
            pgforced: core.pgforced,
        }
    }
}
