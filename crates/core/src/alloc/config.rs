//! What the zones are built from, and how frames are dealt out to them.

use super::pageblock::PAGEBLOCK_PAGES;
use super::pcp_tune::Tuner;
use super::topology::{Topology, TopologyError};
use super::watermark::{PcpSizes, Watermarks};
use super::zone::{BulkFree, Kind, ZoneConfig};
use super::zonelist::{MAX_ZONES, Weights};
use super::zonelist_cache::ZonelistCache;
use crate::units::{NR_ORDERS, Node};

/// Sizes and choices of the allocator room.
#[derive(Clone, Debug)]
pub struct Config {
    /// Nodes, CPUs and distances.
    pub topology: Topology,
    /// What sets the `high` of the per-CPU page caches.
    pub tuner: Tuner,
    /// Sizes of the per-CPU page caches of every zone; `None`: the kernel's for the zone.
    pub pcp_sizes: Option<PcpSizes>,
    /// How the per-CPU page caches give back.
    pub bulk_free: BulkFree,
    /// Which hints the zonelists keep.
    pub zonelist_cache: ZonelistCache,
    /// Share of each node that is a zone for movable blocks only, in percent. Default 0: working
    /// memory may have everything.
    pub movable_percent: u8,
    /// Distance between watermarks in 1/10,000 of a zone. Default 10, the kernel's.
    pub watermark_scale: u32,
    /// A bit for each order that the per-CPU page caches keep from the start. Default: order 0;
    /// an order is added when a file or working memory first uses it.
    pub cached_orders: u32,
    /// Whether a batch of freed high-order pages is kept because it is still in the CPU's cache.
    /// Default no; for CPUs whose share of the last-level cache exceeds three batches.
    pub keeps_batch: bool,
    /// Whether a request first reclaims on near nodes that are short. Default no, as in the kernel.
    pub node_reclaim: bool,
    /// Requests in a row that nodes serve under weighted interleave. Default one each.
    pub weights: Weights,
}

/// What does not add up in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Nodes, CPUs or distances.
    Topology(TopologyError),
    /// More than 100 percent for movable blocks.
    MovablePercent(u8),
    /// An order above the largest one is to be kept by per-CPU page caches: their bits.
    CachedOrders(u32),
    /// Sizes of per-CPU page caches without a batch, or whose least is above their most.
    PcpSizes(PcpSizes),
    /// More than [`MAX_ZONES`] zones.
    TooManyZones(u32),
}

/// A zone to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) config: ZoneConfig,
}

impl Config {
    /// The orders that the kernel's per-CPU page caches keep: 0 to 3, and 9.
    pub const KERNEL_ORDERS: u32 = 0b10_0000_1111;

    /// The defaults.
    #[must_use]
    pub fn new(topology: Topology) -> Config {
        Config {
            topology,
            tuner: Tuner::default(),
            pcp_sizes: None,
            bulk_free: BulkFree::default(),
            zonelist_cache: ZonelistCache::default(),
            movable_percent: 0,
            watermark_scale: 10,
            cached_orders: 1,
            keeps_batch: false,
            node_reclaim: false,
            weights: Weights::EQUAL,
        }
    }

    /// # Errors
    /// What does not add up.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.movable_percent > 100 {
            return Err(ConfigError::MovablePercent(self.movable_percent));
        }
        if self.cached_orders >> NR_ORDERS != 0 {
            return Err(ConfigError::CachedOrders(self.cached_orders));
        }
        if let Some(sizes) = self.pcp_sizes
            && (sizes.batch == 0 || sizes.high_min > sizes.high_max)
        {
            return Err(ConfigError::PcpSizes(sizes));
        }
        let per_node = if self.movable_percent > 0 { 2 } else { 1 };
        let nr_zones = self.topology.nr_nodes() * per_node;
        if crate::units::index(nr_zones) > MAX_ZONES {
            return Err(ConfigError::TooManyZones(nr_zones));
        }
        Ok(())
    }

    /// Frames of each node: equal shares in whole pageblocks, the last one what is left. Nodes
    /// that would get less than a pageblock get nothing.
    #[must_use]
    pub fn node_range(&self, node: Node, nr_frames: u32) -> core::ops::Range<u32> {
        let nr_nodes = self
            .topology
            .nr_nodes()
            .min(nr_frames / PAGEBLOCK_PAGES)
            .max(1);
        let share = nr_frames / nr_nodes / PAGEBLOCK_PAGES * PAGEBLOCK_PAGES;
        let node = u32::from(node.number());
        match node + 1 {
            after if after < nr_nodes => node * share..after * share,
            after if after == nr_nodes => node * share..nr_frames,
            _ => nr_frames..nr_frames,
        }
    }

    /// Frames that an arena needs beyond what its groups may be charged, so that only the groups'
    /// limits evict: what the caches of near CPUs hold at `high_min`, and the high watermarks.
    #[must_use]
    pub fn slack(&self, nr_frames: u32) -> u32 {
        let slack = |plan: Plan| {
            let sizes = plan.config.sizes;
            let nr_cpus = self.topology.nr_cpus_of(plan.config.node);
            let cached = sizes.high_min.saturating_add(sizes.batch);
            nr_cpus
                .saturating_mul(cached)
                .saturating_add(plan.config.watermarks.high)
        };
        self.plans(nr_frames)
            .map(slack)
            .fold(0, u32::saturating_add)
    }

    /// The zones of an arena of `nr_frames`: each node's normal one, and its movable one behind.
    pub(super) fn plans(&self, nr_frames: u32) -> impl Iterator<Item = Plan> + '_ {
        let of_node = move |node: Node| {
            let range = self.node_range(node, nr_frames);
            let len = range.end - range.start;
            let share = u64::from(len) * u64::from(self.movable_percent.min(100)) / 100;
            let share = u32::try_from(share).expect("at most the whole of it");
            // No pageblock lies in two zones: its word has room for one.
            let middle = (range.end - share).checked_next_multiple_of(PAGEBLOCK_PAGES);
            let middle = middle.map_or(range.end, |middle| middle.min(range.end));
            let parts = [
                (Kind::Normal, range.start, middle),
                (Kind::Movable, middle, range.end),
            ];
            let nr_movable = range.end - middle;
            parts
                .into_iter()
                .filter(|&(_, start, end)| start < end)
                .map(move |(kind, start, end)| Plan {
                    start,
                    end,
                    config: self.zone(node, kind, end - start, nr_frames, nr_movable),
                })
        };
        self.topology.nodes().flat_map(of_node)
    }

    fn zone(&self, node: Node, kind: Kind, managed: u32, all: u32, nr_movable: u32) -> ZoneConfig {
        /// Source: kernel `sysctl_lowmem_reserve_ratio` of normal zones.
        const RESERVE_RATIO: u32 = 32;
        let watermarks = match kind {
            Kind::Normal => Watermarks::new(managed, all, self.watermark_scale),
            Kind::Movable => Watermarks::movable(managed, all, self.watermark_scale),
        };
        let local = self.topology.nr_cpus_of(node);
        let nr_cpus = if local > 0 {
            local
        } else {
            self.topology.nr_cpus()
        };
        let sizes = || PcpSizes::new(managed, watermarks.low, nr_cpus);
        ZoneConfig {
            node,
            kind,
            watermarks,
            lowmem_reserve: match kind {
                Kind::Normal => nr_movable / RESERVE_RATIO,
                Kind::Movable => 0,
            },
            nr_local_cpus: nr_cpus,
            sizes: self.pcp_sizes.unwrap_or_else(sizes),
            tuner: self.tuner,
            bulk_free: self.bulk_free,
            cached_orders: self.cached_orders,
            keeps_batch: self.keeps_batch,
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    #[test]
    fn zones_begin_with_a_pageblock() {
        // A pageblock has one word, with the number of the zone that it lies in.
        let mut config = Config::new(Topology::uniform(1));
        let mut ranges = |movable_percent| -> Vec<_> {
            config.movable_percent = movable_percent;
            let plans = config.plans(5000);
            plans.map(|plan| (plan.start, plan.end)).collect()
        };
        assert_eq!(ranges(50), [(0, 2560), (2560, 5000)]);
        assert_eq!(ranges(9), [(0, 4608), (4608, 5000)]);
        assert_eq!(ranges(7), [(0, 5000)]);
        assert_eq!(ranges(100), [(0, 5000)]);
    }
}
