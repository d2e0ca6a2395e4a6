//! Whether a node is short, for those who reclaim on it.

use super::watermark::Watermarks;
use super::zone::Zone;
use super::zones::Zones;
use crate::frame::FrameTable;
use crate::units::Node;

impl Zone {
    /// Pages missing to the high watermark, with its boost if wanted, where `nr_free` are free.
    fn nr_missing(&self, nr_free: u32, with_boost: bool) -> u32 {
        let (Watermarks { high, .. }, boost) = self.watermarks();
        let boost = if with_boost { boost } else { 0 };
        (high + boost).saturating_sub(nr_free)
    }
}

impl Zones {
    fn of_node(&self, node: Node) -> impl Iterator<Item = (usize, &Zone)> {
        let zones = self.iter().enumerate();
        zones.filter(move |(_, zone)| zone.config().node == node)
    }

    /// Whether a zone of the node has its high watermark free, outside the per-CPU page caches; one
    /// is enough. A look without a lock. Source: kernel `pgdat_balanced()`.
    #[must_use]
    pub fn is_balanced(&self, node: Node) -> bool {
        let mut zones = self.of_node(node);
        zones.any(|(_, zone)| zone.nr_missing(zone.nr_free_racy(), true) == 0)
    }

    /// Pages to be freed on a node before one of its zones has its high watermark free, where what
    /// caches hold is free, and a boost does not count. Takes the locks of its caches and zones.
    #[must_use]
    pub fn nr_missing(&self, node: Node) -> u32 {
        let zones = self.of_node(node);
        let missing = zones.map(|(_, zone)| zone.nr_missing(zone.nr_free(), false));
        missing.min().unwrap_or(0)
    }

    /// Takes pages out of the caches of a node's zones until those have their high watermarks.
    pub fn fetch_back(&self, frames: &FrameTable, node: Node) {
        for (number, zone) in self.of_node(node) {
            let missing = zone.nr_missing(zone.nr_free_racy(), true);
            if missing > 0 {
                let _ = zone.drain_some(frames, self.now(), missing);
                self.after_free(number, zone);
            }
        }
    }

    /// Says whether somebody reclaims on a node: see [`Zone::set_reclaim_active`].
    pub fn set_reclaim_active(&self, node: Node, is_active: bool) {
        self.of_node(node)
            .for_each(|(_, zone)| zone.set_reclaim_active(is_active));
    }

    /// Ends the boosts of a node's zones: room was made.
    pub fn end_boost(&self, node: Node) {
        self.of_node(node).for_each(|(_, zone)| zone.end_boost());
    }

    /// Times that frees took zones of a node above their high watermarks.
    #[must_use]
    pub fn nr_recoveries(&self, node: Node) -> u32 {
        let zones = self.of_node(node);
        zones.fold(0, |sum, (_, zone)| sum.wrapping_add(zone.nr_recoveries()))
    }
}
