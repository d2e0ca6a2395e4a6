//! In which order zones are tried: by node and kind of request, narrowed by a memory policy.

use super::pageblock::Mobility;
use super::topology::Topology;
use super::zonelist_cache::SeedCache;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{MAX_NODES, Node, NodeMask, index};

/// Zones that there may be in all, so that a set of them is one word.
pub const MAX_ZONES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

/// Which nodes a request may and should be served from.
///
/// Source: the kernel's memory policies, `mm/mempolicy.c`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mempolicy {
    /// The caller's node, then the others by distance.
    #[default]
    Local,
    /// These nodes only, nearest first.
    Bind(NodeMask),
    /// This node, then the others by their distance to it.
    Preferred(Node),
    /// These nodes in turn, one request each; then the others.
    Interleave(NodeMask),
    /// These nodes in turn, each for as many requests as its weight; then the others.
    WeightedInterleave(NodeMask),
}

impl Mempolicy {
    /// The node to begin with: `turn` counts the requests of whoever interleaves.
    ///
    /// A policy whose nodes are all forbidden begins at `local`.
    #[must_use]
    pub fn first(self, local: Node, turn: u32, mems: NodeMask, weights: &Weights) -> Node {
        match self {
            Mempolicy::Local | Mempolicy::Bind(_) => local,
            Mempolicy::Preferred(node) => node,
            Mempolicy::Interleave(nodes) => {
                let nodes = nodes.and(mems);
                let nth = |nth: u32| nodes.iter().nth(index(nth));
                turn.checked_rem(nodes.len()).and_then(nth).unwrap_or(local)
            }
            Mempolicy::WeightedInterleave(nodes) => {
                weights.nth(nodes.and(mems), turn).unwrap_or(local)
            }
        }
    }

    /// Nodes that may serve at all.
    #[must_use]
    pub const fn allowed(self) -> NodeMask {
        match self {
            Mempolicy::Bind(nodes) => nodes,
            _ => NodeMask::ALL,
        }
    }

    /// Whether its list is made by hand, so that the seed's zonelist cache does not know it.
    pub(super) const fn is_hand_built(self) -> bool {
        matches!(self, Mempolicy::Bind(_))
    }
}

/// Requests in a row that a node serves under weighted interleave, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights([u8; MAX_NODES]);

impl Weights {
    /// One each.
    pub const EQUAL: Weights = Weights([1; MAX_NODES]);

    /// The same with another weight of a node; 0 counts as 1.
    #[must_use]
    pub const fn with(mut self, node: Node, weight: u8) -> Weights {
        self.0[node.index()] = if weight == 0 { 1 } else { weight };
        self
    }

    /// The node of the `turn`-th request. `None` without nodes.
    fn nth(&self, nodes: NodeMask, turn: u32) -> Option<Node> {
        let weight = |node: Node| u32::from(self.0[node.index()]);
        let sum: u32 = nodes.iter().map(weight).sum();
        let mut left = turn.checked_rem(sum)?;
        nodes.iter().find(|&node| {
            let is_it = left < weight(node);
            left = left.saturating_sub(weight(node));
            is_it
        })
    }
}

/// The zones that a request may use, nearest first, inside a node those of other uses first.
#[derive(Debug)]
pub struct Zonelist {
    len: u8,
    zones: [u8; MAX_ZONES],
    /// The node of each position: what is looked at in the place of zones' own records.
    nodes: [u8; MAX_ZONES],
    /// The first zone, or [`NO_HEAD`] while a zonelist cache says that it may be short: so the
    /// hint costs nothing where the first zone has pages.
    head: AtomicU32,
    pub(super) seed: SeedCache,
}

const NO_HEAD: u32 = u32::MAX;

/// Requests that may use movable zones have lists of their own.
pub(super) const NR_CLASSES: usize = 2;

pub(super) const fn class_of(mobility: Mobility) -> usize {
    matches!(mobility, Mobility::Movable) as usize
}

impl Zonelist {
    /// The list for requests of `local`, of those zones that `zones_of` names for each node.
    pub(super) fn new<Zones: IntoIterator<Item = u8>>(
        nodes: impl IntoIterator<Item = Node>,
        zones_of: impl Fn(Node) -> Zones,
    ) -> Zonelist {
        let mut list = Zonelist {
            len: 0,
            zones: [0; MAX_ZONES],
            nodes: [0; MAX_ZONES],
            head: AtomicU32::new(NO_HEAD),
            seed: SeedCache::default(),
        };
        for node in nodes {
            for zone in zones_of(node) {
                list.zones[usize::from(list.len)] = zone;
                list.nodes[usize::from(list.len)] = node.number();
                list.len += 1;
            }
        }
        list.set_head(!list.is_empty());
        list
    }

    /// The first zone where nothing speaks against it, else no zone's number.
    pub(super) fn head(&self) -> usize {
        index(self.head.load(Ordering::Relaxed))
    }

    /// Says whether the first zone is to be tried without a look at any hint.
    pub(super) fn set_head(&self, is_tried: bool) {
        let head = if is_tried {
            u32::from(self.zones[0])
        } else {
            NO_HEAD
        };
        self.head.store(head, Ordering::Relaxed);
    }

    /// Zones on the list.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether no zone is on the list.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The zone at a position, and its node.
    pub(super) fn at(&self, position: usize) -> (usize, Node) {
        let node = Node::new(u32::from(self.nodes[position]));
        (
            usize::from(self.zones[position]),
            node.expect("only nodes are stored"),
        )
    }

    /// The first position of an allowed node.
    pub(super) fn first_of(&self, allowed: NodeMask) -> Option<usize> {
        (0..self.len()).find(|&position| allowed.has(self.at(position).1))
    }
}

/// The order of nodes for every node, by distance with load balancing.
pub(super) fn orders(topology: &Topology) -> impl Iterator<Item = (Node, [Node; MAX_NODES])> + '_ {
    let mut load = [0; MAX_NODES];
    topology.nodes().map(move |local| {
        let mut order = [local; MAX_NODES];
        for (place, node) in order
            .iter_mut()
            .zip(topology.fallback_order(local, &mut load))
        {
            *place = node;
        }
        (local, order)
    })
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    fn node(number: u32) -> Node {
        Node::new(number).unwrap()
    }

    fn order_of(topology: &Topology, local: u32) -> Vec<u8> {
        let nr_nodes = index(topology.nr_nodes());
        let (_, order) = orders(topology).nth(index(local)).unwrap();
        order[..nr_nodes].iter().map(|node| node.number()).collect()
    }

    #[test]
    fn nearer_nodes_come_first() {
        let mut topology = Topology::grid(4, 1).unwrap();
        for (from, to, distance) in [(0, 1, 30), (0, 2, 15), (0, 3, 20)] {
            topology = topology.with_distance(from, to, distance).unwrap();
        }
        assert_eq!(order_of(&topology, 0), [0, 2, 3, 1]);
    }

    #[test]
    fn equals_are_shared_among_those_who_fall_back() {
        // Among equals the nodes behind the local one come first, wrapping around.
        let topology = Topology::grid(4, 1).unwrap();
        let seconds: Vec<u8> = (0..4).map(|local| order_of(&topology, local)[1]).collect();
        assert_eq!(seconds, [1, 2, 3, 0]);
    }

    #[test]
    fn nodes_without_cpus_come_before_their_equals() {
        let mut topology = Topology::uniform(2).with_nodes(3).unwrap();
        topology = topology.with_cpu(crate::units::Cpu::new(1), 1).unwrap();
        assert_eq!(order_of(&topology, 0), [0, 2, 1]);
    }

    #[test]
    fn weights_are_requests_in_a_row() {
        let weights = Weights::EQUAL.with(node(1), 3);
        let nodes = NodeMask::from_bits(0b110);
        let policy = Mempolicy::WeightedInterleave(nodes);
        let firsts: Vec<u8> = (0..8)
            .map(|turn| {
                policy
                    .first(node(0), turn, NodeMask::ALL, &weights)
                    .number()
            })
            .collect();
        assert_eq!(firsts, [1, 1, 1, 2, 1, 1, 1, 2]);
        let plain = Mempolicy::Interleave(nodes);
        let nth = |turn| {
            plain
                .first(node(0), turn, NodeMask::of(node(2)), &weights)
                .number()
        };
        assert_eq!([0, 1, 2].map(nth), [2, 2, 2]);
        assert_eq!(
            plain.first(node(0), 5, NodeMask::of(node(0)), &weights),
            node(0)
        );
    }
}
