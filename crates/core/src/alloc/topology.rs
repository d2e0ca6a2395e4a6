//! Which CPUs and nodes there are, and how far apart.

use crate::units::{Cpu, MAX_CPUS, MAX_NODES, Node, NodeMask, index};

/// Distance of a node to itself.
pub const LOCAL_DISTANCE: u8 = 10;
/// Distance to another node where nothing else is known.
pub const REMOTE_DISTANCE: u8 = 20;

/// Nodes, their CPUs and their distances, as firmware tells the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nr_nodes: u32,
    nr_cpus: u32,
    node_of: [u8; index(MAX_CPUS)],
    distance: [[u8; MAX_NODES]; MAX_NODES],
}

/// What does not add up in a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// No node, or more than [`Node::MAX`].
    Nodes {
        /// Nodes asked for.
        nr_nodes: u32,
    },
    /// No CPU.
    NoCpus,
    /// A CPU lies on a node that is not there.
    NodeOfCpu {
        /// The CPU.
        cpu: u32,
        /// The node's number.
        node: u32,
    },
    /// A distance below 10, or one of 10 to another node, or another one to itself.
    Distance {
        /// From this node.
        from: u32,
        /// To this one.
        to: u32,
        /// The distance given.
        distance: u8,
    },
}

impl Topology {
    /// One node with `nr_cpus` possible CPUs (at least one).
    #[must_use]
    pub fn uniform(nr_cpus: u32) -> Topology {
        let mut distance = [[REMOTE_DISTANCE; MAX_NODES]; MAX_NODES];
        for (node, row) in distance.iter_mut().enumerate() {
            row[node] = LOCAL_DISTANCE;
        }
        Topology {
            nr_nodes: 1,
            nr_cpus: nr_cpus.max(1),
            node_of: [0; index(MAX_CPUS)],
            distance,
        }
    }

    /// `nr_nodes` nodes of `cpus_per_node` CPUs each, every node [`REMOTE_DISTANCE`] from the
    /// others. CPUs are numbered node by node.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn grid(nr_nodes: u32, cpus_per_node: u32) -> Result<Topology, TopologyError> {
        let nr_cpus = nr_nodes.saturating_mul(cpus_per_node);
        if cpus_per_node == 0 {
            return Err(TopologyError::NoCpus);
        }
        let mut topology = Topology::uniform(nr_cpus).with_nodes(nr_nodes)?;
        for cpu in 0..nr_cpus.min(MAX_CPUS) {
            topology = topology.with_cpu(Cpu::new(cpu), cpu / cpus_per_node)?;
        }
        Ok(topology)
    }

    /// The same with another number of nodes.
    ///
    /// # Errors
    /// [`TopologyError::Nodes`], [`TopologyError::NodeOfCpu`].
    pub fn with_nodes(mut self, nr_nodes: u32) -> Result<Topology, TopologyError> {
        if nr_nodes == 0 || nr_nodes > Node::MAX {
            return Err(TopologyError::Nodes { nr_nodes });
        }
        self.nr_nodes = nr_nodes;
        let misplaced = (0..)
            .zip(self.node_of)
            .find(|&(_, node)| u32::from(node) >= nr_nodes);
        match misplaced {
            Some((cpu, node)) => Err(TopologyError::NodeOfCpu {
                cpu,
                node: u32::from(node),
            }),
            None => Ok(self),
        }
    }

    /// The same with a CPU on another node.
    ///
    /// # Errors
    /// [`TopologyError::NodeOfCpu`].
    pub fn with_cpu(mut self, cpu: Cpu, node: u32) -> Result<Topology, TopologyError> {
        let cpu = cpu.number();
        match Node::new(node).filter(|_| node < self.nr_nodes) {
            Some(_) if cpu >= MAX_CPUS => Ok(self),
            Some(node) => {
                self.node_of[index(cpu)] = node.number();
                Ok(self)
            }
            None => Err(TopologyError::NodeOfCpu { cpu, node }),
        }
    }

    /// The same with another distance from one node to another.
    ///
    /// # Errors
    /// [`TopologyError::Distance`], [`TopologyError::Nodes`].
    pub fn with_distance(
        mut self,
        from: u32,
        to: u32,
        distance: u8,
    ) -> Result<Topology, TopologyError> {
        let nr_nodes = from.max(to).saturating_add(1);
        if nr_nodes > self.nr_nodes {
            return Err(TopologyError::Nodes { nr_nodes });
        }
        if (distance == LOCAL_DISTANCE) != (from == to) || distance < LOCAL_DISTANCE {
            return Err(TopologyError::Distance { from, to, distance });
        }
        self.distance[index(from)][index(to)] = distance;
        Ok(self)
    }

    /// Nodes there are.
    #[must_use]
    pub fn nr_nodes(&self) -> u32 {
        self.nr_nodes
    }

    /// Possible CPUs.
    #[must_use]
    pub fn nr_cpus(&self) -> u32 {
        self.nr_cpus
    }

    /// The nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.nr_nodes).filter_map(Node::new)
    }

    /// The set of the nodes.
    #[must_use]
    pub fn node_mask(&self) -> NodeMask {
        NodeMask::from_bits(u64::MAX >> (64 - self.nr_nodes))
    }

    /// The node of a CPU.
    #[must_use]
    #[inline]
    pub fn node_of(&self, cpu: Cpu) -> Node {
        let node = self.node_of[index(cpu.number() % MAX_CPUS)];
        Node::new(u32::from(node)).expect("only nodes are stored")
    }

    /// CPUs of a node.
    #[must_use]
    pub fn nr_cpus_of(&self, node: Node) -> u32 {
        let on_it = |&cpu: &u32| self.node_of(Cpu::new(cpu)) == node;
        crate::units::count((0..self.nr_cpus).filter(on_it).count())
    }

    /// The distance from one node to another: 10 is local.
    #[must_use]
    pub fn distance(&self, from: Node, to: Node) -> u8 {
        self.distance[from.index()][to.index()]
    }

    /// The nodes from `local` outwards: nearest first; among equals those after `local`, those
    /// without CPUs, those that fewer others begin with. `load` is carried from node to node.
    ///
    /// Source: kernel `find_next_best_node()`, `build_zonelists()`.
    pub fn fallback_order(
        &self,
        local: Node,
        load: &mut [u32; MAX_NODES],
    ) -> impl Iterator<Item = Node> + use<> {
        let mut order = [local; MAX_NODES];
        let mut used = NodeMask::of(local);
        let mut last = local;
        let cpus =
            (0..self.nr_cpus.min(MAX_CPUS)).map(|cpu| NodeMask::of(self.node_of(Cpu::new(cpu))));
        let with_cpus = cpus.fold(NodeMask::NONE, NodeMask::or);
        for place in order.iter_mut().take(index(self.nr_nodes)).skip(1) {
            let cost = |node: &Node| {
                let before = u32::from(*node < local);
                let busy = u32::from(with_cpus.has(*node));
                let near = u32::from(self.distance(local, *node)) + before + busy;
                near * Node::MAX + load[node.index()]
            };
            let unused = self.nodes().filter(|&node| !used.has(node));
            let next = unused.min_by_key(cost).expect("a node for every place");
            if self.distance(local, next) != self.distance(local, last) {
                load[next.index()] += 1;
            }
            used = used.or(NodeMask::of(next));
            last = next;
            *place = next;
        }
        order.into_iter().take(index(self.nr_nodes))
    }
}
