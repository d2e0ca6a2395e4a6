//! On which nodes a group's blocks are: its memory policy, `mems` and `cpus` as a request.

use super::Memory;
use crate::alloc::{Mempolicy, Request};
use crate::group::{CpuMask, Place};
use crate::units::{Cpu, Node, NodeMask};

const LOCAL: u32 = 0;
const BIND: u32 = 1;
const PREFERRED: u32 = 2;
const INTERLEAVE: u32 = 3;
const WEIGHTED: u32 = 4;

impl Memory {
    /// In which order nodes serve a group's requests. Not inherited.
    pub fn set_mempolicy(&self, group: u32, policy: Mempolicy) {
        let (number, nodes) = match policy {
            Mempolicy::Local => (LOCAL, NodeMask::NONE),
            Mempolicy::Bind(nodes) => (BIND, nodes),
            Mempolicy::Preferred(node) => (PREFERRED, NodeMask::of(node)),
            Mempolicy::Interleave(nodes) => (INTERLEAVE, nodes),
            Mempolicy::WeightedInterleave(nodes) => (WEIGHTED, nodes),
        };
        self.groups.set_policy(group, number, nodes);
        self.forget_magazines_of(group);
    }

    /// [`Tree::set_mems`](crate::group::Tree::set_mems); working memory that waits on other nodes
    /// goes.
    pub fn set_mems(&self, group: u32, mems: NodeMask) {
        self.groups.set_mems(group, mems);
        self.forget_magazines_of(group);
    }

    /// [`Tree::set_cpus`](crate::group::Tree::set_cpus), likewise.
    pub fn set_cpus(&self, group: u32, cpus: CpuMask) {
        self.groups.set_cpus(group, cpus);
        self.forget_magazines_of(group);
    }

    /// A request from `cpu`, down to the last frame, of a group that is said to be at `place`; and
    /// whether it may go anywhere.
    #[cold]
    #[inline(never)]
    pub(super) fn placed(&self, cpu: Cpu, request: Request, place: &Place) -> (Request, bool) {
        let policy = self.mempolicy(cpu, place);
        // With all nodes that there are, a request is as good as unrestricted.
        let all = self.config.alloc.topology.node_mask();
        let is_everywhere = all.and(place.mems) == all;
        let mems = if is_everywhere {
            NodeMask::ALL
        } else {
            place.mems
        };
        let is_anywhere = is_everywhere && policy.allowed() == NodeMask::ALL;
        let turn = place.turn;
        (
            Request {
                mems,
                policy,
                turn,
                ..request
            },
            is_anywhere,
        )
    }

    fn mempolicy(&self, cpu: Cpu, place: &Place) -> Mempolicy {
        let (number, nodes) = place.policy;
        match number {
            BIND => Mempolicy::Bind(nodes),
            INTERLEAVE => Mempolicy::Interleave(nodes),
            WEIGHTED => Mempolicy::WeightedInterleave(nodes),
            PREFERRED => {
                let node = nodes.iter().next();
                node.map_or(Mempolicy::Local, Mempolicy::Preferred)
            }
            _ => {
                let home = self.home(cpu, place);
                home.map_or(Mempolicy::Local, Mempolicy::Preferred)
            }
        }
    }

    /// The node of a group's first CPU, for a caller that is on none of them.
    fn home(&self, cpu: Cpu, place: &Place) -> Option<Node> {
        if place.cpus.has(cpu) {
            return None;
        }
        let topology = &self.config.alloc.topology;
        let first = place.cpus.iter().next();
        first
            .filter(|cpu| cpu.number() < topology.nr_cpus())
            .map(|cpu| topology.node_of(cpu))
    }
}
