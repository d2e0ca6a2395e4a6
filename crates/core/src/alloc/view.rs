//! Views with the kernel's words: `/proc/zoneinfo` and `/proc/buddyinfo`.

use super::watermark::Watermarks;
use super::zone::{Kind, Zone};
use super::zones::Zones;
use crate::units::Cpu;
use core::fmt;

/// `/proc/zoneinfo` of an arena, printed by `Display`.
#[derive(Clone, Copy, Debug)]
pub struct Zoneinfo<'a>(pub(super) &'a Zones);

/// `/proc/buddyinfo` of an arena, printed by `Display`.
#[derive(Clone, Copy, Debug)]
pub struct Buddyinfo<'a>(pub(super) &'a Zones);

impl Zones {
    /// Watermarks, free pages and per-CPU page caches of each zone, as text.
    #[must_use]
    pub fn zoneinfo(&self) -> Zoneinfo<'_> {
        Zoneinfo(self)
    }

    /// Free blocks of each zone by order, as text.
    #[must_use]
    pub fn buddyinfo(&self) -> Buddyinfo<'_> {
        Buddyinfo(self)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Normal => "Normal",
            Kind::Movable => "Movable",
        })
    }
}

impl fmt::Display for Zoneinfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for zone in self.0.iter() {
            self.zone(f, zone)?;
        }
        Ok(())
    }
}

impl Zoneinfo<'_> {
    fn zone(self, f: &mut fmt::Formatter<'_>, zone: &Zone) -> fmt::Result {
        let config = zone.config();
        let stats = zone.stats();
        let (Watermarks { min, low, high }, boost) = zone.watermarks();
        writeln!(f, "Node {}, zone {:>8}", config.node.number(), config.kind)?;
        writeln!(f, "  pages free     {}", zone.nr_free_racy())?;
        for (name, pages) in [
            ("boost", boost),
            ("min", min + boost),
            ("low", low + boost),
            ("high", high + boost),
            ("present", zone.managed()),
            ("managed", zone.managed()),
        ] {
            writeln!(f, "        {name:<8} {pages}")?;
        }
        writeln!(f, "        protection: ({})", config.lowmem_reserve)?;
        for (name, count) in [
            ("numa_hit", stats.numa_hit),
            ("numa_miss", stats.numa_miss),
            ("numa_local", stats.numa_local),
            ("numa_other", stats.numa_other),
        ] {
            writeln!(f, "      {name:<12} {count}")?;
        }
        writeln!(f, "  pagesets")?;
        let sizes = config.sizes;
        for cpu in 0..self.0.config().topology.nr_cpus() {
            let (count, high) = zone.pageset(Cpu::new(cpu));
            writeln!(f, "    cpu: {cpu}")?;
            for (name, pages) in [
                ("count:", count),
                ("high:", high),
                ("batch:", sizes.batch),
                ("high_min:", sizes.high_min),
                ("high_max:", sizes.high_max),
            ] {
                writeln!(f, "              {name:<9} {pages}")?;
            }
        }
        let node = config.node;
        writeln!(f, "  node_distance")?;
        let topology = &self.0.config().topology;
        for other in topology.nodes() {
            let distance = topology.distance(node, other);
            writeln!(f, "    node {}: {distance}", other.number())?;
        }
        Ok(())
    }
}

impl fmt::Display for Buddyinfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for zone in self.0.iter() {
            let config = zone.config();
            write!(f, "Node {}, zone {:>8} ", config.node.number(), config.kind)?;
            for nr_free in zone.buddyinfo() {
                write!(f, "{nr_free:>6} ")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
