//! Nodes, CPUs and distances: from sysfs, or made up.

use crate::arena::Arena;
use crate::{Error, Memory, cpu};
use pagetide_core::alloc;
use pagetide_core::memory::Memory as Core;
use pagetide_core::units::Cpu;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Which NUMA nodes and CPUs there are, and how far apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    core: alloc::Topology,
    /// The kernel's numbers of the nodes, where they are this machine's.
    os_nodes: Option<Vec<u32>>,
}

/// Text that names no topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no topology: {problem}")]
pub struct BadTopology {
    text: String,
    problem: String,
}

const NODES: &str = "/sys/devices/system/node";
/// CPUs of a made-up machine at most: far above what a kernel can have, so that all tables of CPUs
/// can be counted.
const MAX_CPUS: u32 = 1 << 16;

impl Topology {
    /// This machine's. One node with all possible CPUs where the kernel shows no nodes, or none
    /// that make sense.
    #[must_use]
    pub fn of_machine() -> Topology {
        let nr_cpus = cpu::nr_possible();
        Topology::read(Path::new(NODES), nr_cpus).unwrap_or_else(|| Topology {
            core: alloc::Topology::uniform(nr_cpus),
            os_nodes: None,
        })
    }

    /// The nodes with memory or CPUs under a folder like `/sys/devices/system/node`.
    fn read(nodes: &Path, nr_cpus: u32) -> Option<Topology> {
        let list = |name: &str| fs::read_to_string(nodes.join(name)).ok();
        let online = list_of(&list("online")?)?;
        let node_dir = |node: u32| nodes.join(format!("node{node}"));
        let nr_nodes = u32::try_from(online.len()).ok()?;
        let mut core = alloc::Topology::uniform(nr_cpus)
            .with_nodes(nr_nodes)
            .ok()?;
        for (number, &node) in (0..).zip(&online) {
            let cpus = fs::read_to_string(node_dir(node).join("cpulist")).ok()?;
            for cpu in list_of(&cpus)? {
                core = core.with_cpu(Cpu::new(cpu), number).ok()?;
            }
            let distances = fs::read_to_string(node_dir(node).join("distance")).ok()?;
            let distances: Option<Vec<u8>> = distances
                .split_whitespace()
                .map(|d| d.parse().ok())
                .collect();
            for (other, distance) in (0..nr_nodes).zip(distances?) {
                core = core.with_distance(number, other, distance).ok()?;
            }
        }
        Some(Topology {
            core,
            os_nodes: Some(online),
        })
    }

    /// A made-up machine of `nr_nodes` nodes with `cpus_per_node` CPUs each: for tests. Its nodes
    /// are ranges of the arena that the kernel knows nothing of.
    ///
    /// # Errors
    /// [`BadTopology`] for no node, no CPU, more than 64 nodes, or more than 65,536 CPUs.
    pub fn grid(nr_nodes: u32, cpus_per_node: u32) -> Result<Topology, BadTopology> {
        let bad = |problem| BadTopology {
            text: format!("{nr_nodes}x{cpus_per_node}"),
            problem,
        };
        if nr_nodes.saturating_mul(cpus_per_node) > MAX_CPUS {
            return Err(bad(format!("more than {MAX_CPUS} CPUs")));
        }
        let core = alloc::Topology::grid(nr_nodes, cpus_per_node);
        let core = core.map_err(|error| bad(problem_of(error)))?;
        Ok(Topology {
            core,
            os_nodes: None,
        })
    }

    /// Nodes there are.
    #[must_use]
    pub fn nr_nodes(&self) -> u32 {
        self.core.nr_nodes()
    }

    /// Possible CPUs.
    #[must_use]
    pub fn nr_cpus(&self) -> u32 {
        self.core.nr_cpus()
    }

    pub(crate) fn core(&self) -> &alloc::Topology {
        &self.core
    }

    /// Binds each node's frames to the kernel's node; why that was not possible, for the first of
    /// those where it was not: it may be one without memory.
    pub(crate) fn bind(&self, arena: &Arena, core: &Core) -> Option<std::io::Error> {
        let bound = self.core.nodes().filter_map(|node| {
            let os_node = self.os_node(node.index())?;
            let frames = core.zones().config().node_range(node, core.frames().len());
            Some(arena.prefer_node(frames, os_node))
        });
        // All of them.
        let refused: Vec<_> = bound.filter_map(Result::err).collect();
        refused.into_iter().next()
    }

    /// The kernel's number of a node, if its memory can be bound to it: on machines with several.
    pub(crate) fn os_node(&self, node: usize) -> Option<u32> {
        let nodes = self.os_nodes.as_ref().filter(|nodes| nodes.len() > 1)?;
        nodes.get(node).copied()
    }
}

pub(crate) fn problem_of(error: alloc::TopologyError) -> String {
    use alloc::TopologyError;
    match error {
        TopologyError::Nodes { nr_nodes } => format!("{nr_nodes} nodes, expected 1 to 64"),
        TopologyError::NoCpus => "a node without CPUs".to_owned(),
        TopologyError::NodeOfCpu { cpu, node } => {
            format!("CPU {cpu} is on node {node}, which is not there")
        }
        TopologyError::Distance { from, to, distance } => format!(
            "distance {distance} from node {from} to {to}: 10 is a node's own, others are above"
        ),
    }
}

pub(crate) fn config_error(error: alloc::ConfigError) -> Error {
    use alloc::ConfigError;
    let problem = match error {
        ConfigError::Topology(error) => problem_of(error),
        ConfigError::MovablePercent(percent) => {
            format!("{percent} percent for movable pages, at most 100")
        }
        ConfigError::CachedOrders(bits) => format!("orders {bits:#b}, the largest is 10"),
        ConfigError::PcpSizes(sizes) => format!("per-CPU page caches of {sizes:?}"),
        ConfigError::TooManyZones(zones) => format!("{zones} zones, at most {}", alloc::MAX_ZONES),
    };
    Error::Config { problem }
}

impl FromStr for Topology {
    type Err = BadTopology;

    /// Reads `28x2`: nodes times CPUs of each.
    fn from_str(text: &str) -> Result<Topology, BadTopology> {
        let bad = || BadTopology {
            text: text.to_owned(),
            problem: "expected nodes and CPUs of each, as in 28x2".to_owned(),
        };
        let (nodes, cpus) = text.split_once('x').ok_or_else(bad)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| bad());
        Topology::grid(number(nodes)?, number(cpus)?)
    }
}

/// Bytes of the last-level cache that are each CPU's share, as CPU 0 sees it; 0 where the kernel
/// does not say.
pub(crate) fn cache_share() -> u64 {
    share_of(Path::new("/sys/devices/system/cpu/cpu0/cache"))
}

fn share_of(caches: &Path) -> u64 {
    let last = (0..8)
        .map(|index| caches.join(format!("index{index}")))
        .take_while(|cache| cache.is_dir())
        .last();
    let read = |name: &str| fs::read_to_string(last.as_ref()?.join(name)).ok();
    let kib = || read("size")?.trim().strip_suffix('K')?.parse::<u64>().ok();
    let cpus = || list_of(&read("shared_cpu_list")?);
    let nr_cpus = cpus().map_or(1, |cpus| cpus.len() as u64).max(1);
    kib().map_or(0, |kib| kib * 1024 / nr_cpus)
}

/// The numbers of a list like `0-3,8-11`.
pub(crate) fn list_of(list: &str) -> Option<Vec<u32>> {
    let ranges = list.trim().split(',').filter(|range| !range.is_empty());
    let mut numbers = Vec::new();
    for range in ranges {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(numbers)
}

impl Memory {
    /// Nodes and CPUs.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        self.home().topology()
    }

    /// Why the nodes' memory is not bound to them, where the kernel refused that.
    #[must_use]
    pub fn unbound(&self) -> Option<&std::io::Error> {
        self.home().unbound()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_core::units::Node;

    #[test]
    fn this_machine_adds_up() {
        let topology = Topology::of_machine();
        assert!(topology.nr_cpus() >= 1 && topology.nr_nodes() >= 1);
    }

    #[test]
    fn two_nodes_in_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("online"), "0,3\n").unwrap();
        for (node, cpus, distance) in [(0, "0-1\n", "10 21\n"), (3, "2\n", "21 10\n")] {
            let node = dir.path().join(format!("node{node}"));
            fs::create_dir(&node).unwrap();
            fs::write(node.join("cpulist"), cpus).unwrap();
            fs::write(node.join("distance"), distance).unwrap();
        }
        let topology = Topology::read(dir.path(), 4).unwrap();
        let [first, second] = [0, 1].map(|node| Node::new(node).unwrap());
        assert_eq!(topology.core.node_of(Cpu::new(2)), second);
        assert_eq!(topology.core.distance(first, second), 21);
        assert_eq!(
            (topology.os_node(0), topology.os_node(1)),
            (Some(0), Some(3))
        );
        fs::write(dir.path().join("node3/distance"), "9 10\n").unwrap();
        assert_eq!(Topology::read(dir.path(), 4), None);
    }

    #[test]
    fn nodes_that_the_kernel_refuses_are_said_and_not_bound() {
        let topology = Topology {
            core: alloc::Topology::grid(2, 1).unwrap(),
            // No machine that runs tests has these.
            os_nodes: Some(vec![61, 62]),
        };
        let memory = crate::Memory::builder().topology(topology).build().unwrap();
        let refused = memory.unbound().expect("nodes that are not there");
        assert!(refused.raw_os_error().is_some(), "{refused}");
        let group = memory.root().child("web").unwrap();
        assert!(group.alloc(crate::Order::new(3)).is_ok());
    }

    #[test]
    fn the_last_caches_share() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(share_of(dir.path()), 0);
        for (index, size, cpus) in [(0, "32K\n", "0\n"), (1, "32768K\n", "0-7\n")] {
            let cache = dir.path().join(format!("index{index}"));
            fs::create_dir(&cache).unwrap();
            fs::write(cache.join("size"), size).unwrap();
            fs::write(cache.join("shared_cpu_list"), cpus).unwrap();
        }
        assert_eq!(share_of(dir.path()), 4 << 20);
    }

    #[test]
    fn topologies_as_people_write_them() {
        let topology: Topology = "28x2".parse().unwrap();
        assert_eq!((topology.nr_nodes(), topology.nr_cpus()), (28, 56));
        for bad in ["", "28", "28x", "ax2", "0x2", "2x0", "65x1", "-1x2"] {
            assert!(bad.parse::<Topology>().is_err(), "{bad}");
        }
        for bad in ["1x65537", "1x4000000000", "64x100000000"] {
            assert!(bad.parse::<Topology>().is_err(), "{bad}");
        }
        assert_eq!(list_of("0-2,7\n"), Some(vec![0, 1, 2, 7]));
        assert_eq!(list_of("\n"), Some(vec![]));
        assert_eq!(list_of("a"), None);
    }
}
