//! Counts of a memory, and views of its zones.

use crate::Memory;
use pagetide_core::units::{Cpu, Node};
use std::fmt;
use std::sync::atomic::Ordering;

/// The fields of a struct with their names, in this order; one that is left out does not compile.
macro_rules! by_name {
    ($of:expr => $name:ident { $($field:ident),+ $(,)? }) => {{
        let $name { $($field),+ } = $of;
        [$((stringify!($field), $field)),+]
    }};
}
pub(crate) use by_name;

/// Counts since the memory was built. Displayed as `/proc/vmstat` has them: a name and a number a
/// line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes that stores gave.
    pub bytes_read: u64,
    /// Bytes that stores took.
    pub bytes_written: u64,
    /// Dirty pages of files that were dropped and could not be written. [`File::close`] loses none.
    ///
    /// [`File::close`]: crate::File::close
    pub pages_lost: u64,
    /// Reads that went through the kernel's page cache because `O_DIRECT` was refused.
    pub buffered_reads: u64,
    /// System calls that handed reads or writes over to io_uring, or waited for them.
    pub ring_enters: u64,
    /// Reads of one or more pages together, of those that were asked for as many.
    pub batched_reads: u64,
    /// Pages of `batched_reads`.
    pub batched_pages: u64,
    /// Those of `batched_reads` that went into frames registered with io_uring
    /// ([`Builder::registered_buffers`](crate::Builder::registered_buffers)).
    pub fixed_reads: u64,
    /// Those of `batched_reads` that came by way of memory that a ring has registered for that, and
    /// were copied ([`IoChoice::bounce_buffers`](crate::IoChoice::bounce_buffers)).
    pub bounced_reads: u64,
    /// Bytes of frames that rings have registered now, counted for each ring.
    pub registered_bytes: u64,
    /// Pages of 4 KiB that came back from the spill file.
    pub pswpin: u64,
    /// Pages of 4 KiB that were swapped out to it. Pages of zeros are not written.
    pub pswpout: u64,
    /// Pages that were kept compressed in memory instead, came back from there, and went on to the
    /// spill file (which counts as `pswpout`, too).
    pub zswpout: u64,
    /// See `zswpout`.
    pub zswpin: u64,
    /// See `zswpout`.
    pub zswpwb: u64,
    /// Bytes of the spill file that are in use.
    pub swap_used_bytes: u64,
    /// Pages whose reads were begun before anybody asked for them, or with the page that was.
    pub readahead_pages: u64,
    /// Pages that sequential readers have come past.
    pub readahead_passed: u64,
    /// Pages that were gone again when their reader came: too much was read ahead.
    pub readahead_lost: u64,
    /// Pages that are cached, being read, or working memory.
    pub resident_pages: u64,
    /// Pages that reclaim looked at, whatever their size.
    pub pgscan: u64,
    /// Pages of 4 KiB that reclaim evicted: a larger one counts as so many. Those of blocks that
    /// were emptied, for reservations and large requests, are not among `pgscan`:
    /// `evacuate_scanned` has their records.
    pub pgsteal: u64,
    /// Those of `pgscan` that were looked at in the background, by those who needed memory, and for
    /// [`Group::reclaim`](crate::Group::reclaim).
    pub pgscan_kswapd: u64,
    /// See `pgscan_kswapd`.
    pub pgscan_direct: u64,
    /// See `pgscan_kswapd`.
    pub pgscan_proactive: u64,
    /// Those of `pgsteal` that were evicted in the background, by those who needed memory, and for
    /// [`Group::reclaim`](crate::Group::reclaim).
    pub pgsteal_kswapd: u64,
    /// See `pgsteal_kswapd`.
    pub pgsteal_direct: u64,
    /// See `pgsteal_kswapd`.
    pub pgsteal_proactive: u64,
    /// Times that a call had to reclaim itself.
    pub allocstall: u64,
    /// Runs of reclaim in the background on a node.
    pub pageoutrun: u64,
    /// Times that one was wanted again less than 100 ms after it had ended.
    pub kswapd_low_wmark_hit_quickly: u64,
    /// Times that a node was below its high watermark again 100 ms after a run had ended, though
    /// nobody wanted one.
    pub kswapd_high_wmark_hit_quickly: u64,
    /// Frame records looked at for blocks to empty.
    pub evacuate_scanned: u64,
    /// Blocks that were emptied for working memory or larger pages.
    pub evacuate_success: u64,
    /// Looks for one that found none, and blocks that were emptied in vain.
    pub evacuate_fail: u64,
    /// Pages that moved out of blocks to other frames; larger ones count as often as they have
    /// frames.
    pub pgmigrate_success: u64,
    /// Times that a zone's lock was taken.
    pub zone_lock_takes: u64,
    /// Pages allocated and given back.
    pub pgalloc: u64,
    /// Of those allocated, from zones for all pages, and from those for movable ones only.
    pub pgalloc_normal: u64,
    /// See `pgalloc_normal`.
    pub pgalloc_movable: u64,
    /// See `pgalloc`.
    pub pgfree: u64,
    /// Bytes that went back to the OS, of idle blocks and of those that reservations and a smaller
    /// budget took out of use.
    pub released_bytes: u64,
    /// System calls that gave them back, each of which interrupts the CPUs where other threads of
    /// the process run.
    pub release_calls: u64,
    /// Times that some did not go because a thread may run on an isolated CPU.
    pub releases_deferred: u64,
}

impl Stats {
    /// Those that fall, too.
    #[cfg(feature = "metrics")]
    pub(crate) const GAUGES: [&str; 3] = ["resident_pages", "registered_bytes", "swap_used_bytes"];

    /// The numbers by their names. All but [`Stats::GAUGES`] only grow.
    pub(crate) fn lines(&self) -> [(&'static str, u64); 44] {
        by_name!(*self => Stats {
            bytes_read, bytes_written, pages_lost, buffered_reads, resident_pages, pgscan, pgsteal,
            pgscan_kswapd, pgscan_direct, pgscan_proactive, pgsteal_kswapd, pgsteal_direct,
            pgsteal_proactive, allocstall, pageoutrun, kswapd_low_wmark_hit_quickly,
            kswapd_high_wmark_hit_quickly, evacuate_scanned, evacuate_success, evacuate_fail,
            pgmigrate_success, zone_lock_takes, pgalloc, pgalloc_normal, pgalloc_movable, pgfree,
            released_bytes, release_calls, releases_deferred, ring_enters, batched_reads,
            batched_pages, fixed_reads, bounced_reads, registered_bytes, readahead_pages,
            readahead_passed, readahead_lost, pswpin, pswpout, zswpin, zswpout, zswpwb,
            swap_used_bytes,
        })
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines()
            .iter()
            .try_for_each(|(name, number)| writeln!(f, "{name} {number}"))
    }
}

/// The per-CPU page cache of a CPU in one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pageset {
    /// The zone's node.
    pub node: u32,
    /// The zone's number, as in the order of [`Memory::zoneinfo`].
    pub zone: u32,
    /// The CPU.
    pub cpu: u32,
    /// Free pages that it holds.
    pub count: u32,
    /// What it may hold: it follows how deep the CPU's allocations and frees go. Where threads that
    /// were preempted with pages of it have made it several, all of them that have pages now count.
    /// Just after it fell, there may still be more.
    pub high: u32,
}

/// Blocks served by a node, as `numastat` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStats {
    /// Served from this node, which was wanted.
    pub numa_hit: u64,
    /// Served from this node though another was wanted.
    pub numa_miss: u64,
    /// Served elsewhere though this node was wanted.
    pub numa_foreign: u64,
    /// Served from this node to one of its CPUs.
    pub local_node: u64,
    /// Served from this node to another node's CPU.
    pub other_node: u64,
}

impl Memory {
    /// Counts of a node; zeros for one that is not there, and in a forked child.
    #[must_use]
    pub fn node_stats(&self, node: u32) -> NodeStats {
        let node = Node::new(node).filter(|_| !self.home().is_forked());
        let Some(node) = node else {
            return NodeStats::default();
        };
        let core = self.home().core.zones().node_stats(node);
        NodeStats {
            numa_hit: core.numa_hit,
            numa_miss: core.numa_miss,
            numa_foreign: core.numa_foreign,
            local_node: core.local_node,
            other_node: core.other_node,
        }
    }

    /// Watermarks, free pages and per-CPU page caches of each zone, in the words of
    /// `/proc/zoneinfo`. Empty in a forked child.
    #[must_use]
    pub fn zoneinfo(&self) -> String {
        if self.home().is_forked() {
            return String::new();
        }
        self.home().core.zones().zoneinfo().to_string()
    }

    /// The per-CPU page caches, zone by zone. Takes the lock of each for a moment. None in a forked
    /// child.
    #[must_use]
    pub fn pagesets(&self) -> Vec<Pageset> {
        if self.home().is_forked() {
            return Vec::new();
        }
        let zones = self.home().core.zones();
        let nr_cpus = zones.config().topology.nr_cpus();
        let of_zone = |(number, zone): (u32, &pagetide_core::alloc::Zone)| {
            let node = zone.config().node.number().into();
            let of_cpu = |cpu| {
                let (count, high) = zone.pageset(Cpu::new(cpu));
                Pageset {
                    node,
                    zone: number,
                    cpu,
                    count,
                    high,
                }
            };
            (0..nr_cpus).map(of_cpu).collect::<Vec<_>>()
        };
        (0..).zip(zones.iter()).flat_map(of_zone).collect()
    }

    /// Free blocks of each zone by order, in the words of `/proc/buddyinfo`. Empty in a forked
    /// child.
    #[must_use]
    pub fn buddyinfo(&self) -> String {
        if self.home().is_forked() {
            return String::new();
        }
        self.home().core.zones().buddyinfo().to_string()
    }

    /// Counts. Zeros in a forked child: another thread may have had their locks when it was forked.
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.home().is_forked() {
            return Stats::default();
        }
        let core = self.home().core.stats();
        let io = &self.home().io;
        let [
            ring_enters,
            batched_reads,
            batched_pages,
            fixed_reads,
            bounced_reads,
        ] = io.counts.get();
        let [readahead_pages, readahead_passed, readahead_lost] = self.home().readahead.get();
        Stats {
            bytes_read: self.home().bytes_read(),
            bytes_written: self.home().bytes_written(),
            pages_lost: self.home().pages_lost(),
            buffered_reads: self.home().buffered_reads(),
            ring_enters,
            batched_reads,
            batched_pages,
            fixed_reads,
            bounced_reads,
            registered_bytes: io.registry.nr_bytes(),
            pswpin: self.home().swap.pswpin.load(Ordering::Relaxed),
            pswpout: self.home().swap.pswpout.load(Ordering::Relaxed),
            zswpout: self.home().swap.zswpout.load(Ordering::Relaxed),
            zswpin: self.home().swap.zswpin.load(Ordering::Relaxed),
            zswpwb: self.home().swap.zswpwb.load(Ordering::Relaxed),
            swap_used_bytes: self.home().swap.used_bytes().0,
            readahead_pages,
            readahead_passed,
            readahead_lost,
            resident_pages: u64::from(core.nr_used),
            pgscan: core.pgscan,
            pgsteal: core.pgsteal,
            pgscan_kswapd: core.pgscan_kswapd,
            pgscan_direct: core.pgscan_direct,
            pgscan_proactive: core.pgscan_proactive,
            pgsteal_kswapd: core.pgsteal_kswapd,
            pgsteal_direct: core.pgsteal_direct,
            pgsteal_proactive: core.pgsteal_proactive,
            allocstall: core.allocstall,
            pageoutrun: core.pageoutrun,
            kswapd_low_wmark_hit_quickly: self.home().reclaim.nr_low_hits(),
            kswapd_high_wmark_hit_quickly: self.home().reclaim.nr_high_hits(),
            evacuate_scanned: core.evacuate_scanned,
            evacuate_success: core.evacuate_success,
            evacuate_fail: core.evacuate_fail,
            pgmigrate_success: core.pgmigrate_success,
            zone_lock_takes: core.zone.lock_takes,
            pgalloc: core.zone.pgalloc,
            pgalloc_normal: core.zone.pgalloc - core.pgalloc_movable,
            pgalloc_movable: core.pgalloc_movable,
            pgfree: core.zone.pgfree,
            released_bytes: self.home().release.nr_bytes(),
            release_calls: self.home().release.nr_calls(),
            releases_deferred: self.home().release.nr_deferred(),
        }
    }
}
