//! Which nodes and CPUs a group uses: its `mems`, `cpus` and memory policy, and its ancestors'.

use super::{Group, Tree};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Cpu, MAX_CPUS, NodeMask, index};

const CPU_WORDS: usize = index(MAX_CPUS).div_ceil(64);

/// A set of CPUs; numbers from [`MAX_CPUS`] on are folded into them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMask([u64; CPU_WORDS]);

impl CpuMask {
    /// Every CPU.
    pub const ALL: CpuMask = CpuMask([u64::MAX; CPU_WORDS]);

    /// The set of these CPUs.
    #[must_use]
    pub fn of(cpus: impl IntoIterator<Item = Cpu>) -> CpuMask {
        let mut words = [0; CPU_WORDS];
        for cpu in cpus {
            let cpu = index(cpu.number() % MAX_CPUS);
            words[cpu / 64] |= 1 << (cpu % 64);
        }
        CpuMask(words)
    }

    /// Whether a CPU is in the set.
    #[must_use]
    pub fn has(&self, cpu: Cpu) -> bool {
        let cpu = index(cpu.number() % MAX_CPUS);
        self.0[cpu / 64] >> (cpu % 64) & 1 != 0
    }

    /// The CPUs of the set, in rising order.
    pub fn iter(self) -> impl Iterator<Item = Cpu> {
        (0..MAX_CPUS)
            .map(Cpu::new)
            .filter(move |&cpu| self.has(cpu))
    }

    fn and(self, other: CpuMask) -> Option<CpuMask> {
        let both: [u64; CPU_WORDS] = core::array::from_fn(|at| self.0[at] & other.0[at]);
        both.iter().any(|&word| word != 0).then_some(CpuMask(both))
    }
}

/// One group's own settings; zero is "no restriction".
#[derive(Debug, Default)]
pub(super) struct Placement {
    mems: AtomicU64,
    cpus: [AtomicU64; CPU_WORDS],
    policy: AtomicU32,
    nodes: AtomicU64,
    /// Requests placed so far.
    turn: AtomicU32,
}

/// Where a group's requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Nodes that it and its ancestors allow.
    pub mems: NodeMask,
    /// CPUs that it and its ancestors allow.
    pub cpus: CpuMask,
    /// The policy's number and nodes, as they were set: both 0 by default.
    pub policy: (u32, NodeMask),
    /// Requests placed before this one.
    pub turn: u32,
}

impl Placement {
    pub(super) fn reset(&self) {
        for word in self.cpus.iter().chain([&self.mems, &self.nodes]) {
            word.store(0, Ordering::Relaxed);
        }
        self.policy.store(0, Ordering::Relaxed);
        self.turn.store(0, Ordering::Relaxed);
    }
}

impl Tree {
    /// Nodes that a group and those below it may use, of those that its ancestors may; an empty
    /// set lifts the group's own restriction.
    ///
    /// Where nothing is left, the ancestors' nodes are used, as the kernel's cpuset does.
    pub fn set_mems(&self, id: u32, mems: NodeMask) {
        self.change_placement(id, |own| own.mems.store(mems.bits(), Ordering::Relaxed));
    }

    /// CPUs that a group's threads are expected on; none lifts the restriction.
    pub fn set_cpus(&self, id: u32, cpus: CpuMask) {
        self.change_placement(id, |own| {
            for (own, word) in own.cpus.iter().zip(cpus.0) {
                own.store(word, Ordering::Relaxed);
            }
        });
    }

    /// A group's memory policy, by a number that the caller understands. Not inherited.
    pub fn set_policy(&self, id: u32, policy: u32, nodes: NodeMask) {
        self.change_placement(id, |own| {
            // Two stores: a request between them may go to another node than either policy says.
            own.nodes.store(nodes.bits(), Ordering::Relaxed);
            own.policy.store(policy, Ordering::Relaxed);
        });
    }

    fn change_placement(&self, id: u32, change: impl FnOnce(&Placement)) {
        let _shape = self.shape.lock();
        if let Some(group) = self.get(id) {
            change(&group.placement);
            // Release pairs with the Acquire in `place`.
            self.is_placed.store(1, Ordering::Release);
        }
    }

    /// Where the next request of a group goes, whose turn this takes; `None`, after one load, where
    /// no group ever said.
    #[inline]
    #[must_use]
    pub fn place(&self, id: u32) -> Option<Place> {
        if !self.is_placed() {
            return None;
        }
        self.place_of(id)
    }

    /// Whether any group ever said where it is. One load, and no turn of any.
    #[inline]
    #[must_use]
    pub fn is_placed(&self) -> bool {
        // Acquire pairs with the Release in `change_placement`.
        self.is_placed.load(Ordering::Acquire) != 0
    }

    /// Whether a group's blocks may be anywhere, the nearest node first.
    pub(super) fn is_anywhere(&self, id: u32) -> bool {
        let is_anywhere = |group: &Group| {
            let is_local = group.placement.policy.load(Ordering::Relaxed) == 0;
            is_local && self.allowed(id) == (NodeMask::ALL, CpuMask::ALL)
        };
        !self.is_placed() || self.get(id).is_some_and(is_anywhere)
    }

    #[cold]
    #[inline(never)]
    fn place_of(&self, id: u32) -> Option<Place> {
        let own = &self.get(id)?.placement;
        let (mems, cpus) = self.allowed(id);
        let nodes = NodeMask::from_bits(own.nodes.load(Ordering::Relaxed));
        Some(Place {
            mems,
            cpus,
            policy: (own.policy.load(Ordering::Relaxed), nodes),
            turn: own.turn.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Nodes and CPUs that a group and its ancestors allow. All where nobody said.
    #[must_use]
    pub fn allowed(&self, id: u32) -> (NodeMask, CpuMask) {
        let mut path = [id; index(super::MAX_DEPTH) + 1];
        let mut depth = 0;
        for (place, (id, _)) in path.iter_mut().zip(self.path(id)) {
            *place = id;
            depth += 1;
        }
        let (mut mems, mut cpus) = (NodeMask::ALL, CpuMask::ALL);
        // From the root down: a level that would leave nothing is passed over.
        for group in path[..depth].iter().rev().filter_map(|&id| self.get(id)) {
            let own = NodeMask::from_bits(group.placement.mems.load(Ordering::Relaxed));
            if !mems.and(own).is_empty() {
                mems = mems.and(own);
            }
            let words = group.placement.cpus.each_ref();
            let own = CpuMask(words.map(|word| word.load(Ordering::Relaxed)));
            cpus = cpus.and(own).unwrap_or(cpus);
        }
        (mems, cpus)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    const CPU: Cpu = Cpu::new(0);

    fn tree() -> (Tree, [u32; 2]) {
        let tree = Tree::try_new(8, 1 << 20, crate::group::StockKind::Atomic).unwrap();
        let parent = tree.child(CPU, tree.root()).unwrap();
        let child = tree.child(CPU, parent).unwrap();
        (tree, [parent, child])
    }

    #[test]
    fn nothing_said_is_anywhere() {
        let (tree, [_, child]) = tree();
        assert_eq!(tree.place(child), None);
        assert_eq!(tree.allowed(child), (NodeMask::ALL, CpuMask::ALL));
    }

    #[test]
    fn nodes_are_those_of_all_ancestors() {
        let (tree, [parent, child]) = tree();
        tree.set_mems(parent, NodeMask::from_bits(0b0110));
        tree.set_mems(child, NodeMask::from_bits(0b1100));
        assert_eq!(tree.allowed(child).0, NodeMask::from_bits(0b0100));
        // Nothing is left: the parent's are used.
        tree.set_mems(child, NodeMask::from_bits(0b1000));
        assert_eq!(tree.allowed(child).0, NodeMask::from_bits(0b0110));
        tree.set_mems(parent, NodeMask::NONE);
        tree.set_mems(child, NodeMask::NONE);
        assert_eq!(tree.allowed(child).0, NodeMask::ALL);
    }

    #[test]
    fn cpus_are_those_of_all_ancestors() {
        let (tree, [parent, child]) = tree();
        tree.set_cpus(parent, CpuMask::of([4, 5, 6].map(Cpu::new)));
        tree.set_cpus(child, CpuMask::of([6, 7].map(Cpu::new)));
        let cpus: Vec<u32> = tree.allowed(child).1.iter().map(Cpu::number).collect();
        assert_eq!(cpus, [6]);
        tree.set_cpus(child, CpuMask::of([7].map(Cpu::new)));
        assert_eq!(tree.allowed(child).1, tree.allowed(parent).1);
    }

    #[test]
    fn requests_are_counted_and_policies_are_a_groups_own() {
        let (tree, [parent, child]) = tree();
        tree.set_policy(parent, 3, NodeMask::from_bits(0b11));
        let turns = [(); 3].map(|()| tree.place(parent).unwrap().turn);
        assert_eq!(turns, [0, 1, 2]);
        assert_eq!(tree.place(child).unwrap().policy, (0, NodeMask::NONE));
    }
}
