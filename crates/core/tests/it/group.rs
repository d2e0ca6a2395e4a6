//! The group room beside a naive twin: a map of what is charged to each group.

use pagetide_core::group::{BATCH, Tree};
use pagetide_core::units::Cpu;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

/// Groups beside the root. The tree's first chunk of records holds them: nothing else is charged.
const MAX_GROUPS: usize = 12;
const NR_CPUS: u32 = 2;

#[derive(Clone, Copy, Debug)]
enum Op {
    Child {
        parent: Index,
    },
    Charge {
        cpu: u32,
        group: Index,
        nr_pages: u32,
    },
    Uncharge {
        cpu: u32,
        group: Index,
        part: u32,
    },
    SetMax {
        group: Index,
        max: u64,
    },
    Drain {
        group: Index,
    },
    Drop {
        group: Index,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let cpu = || 0..NR_CPUS;
    let nr_pages = prop_oneof![4 => 1u32..8, 2 => 1u32..130, 1 => 1u32..600];
    let max = prop_oneof![1 => 0u64..300, 4 => 256u64..900];
    prop_oneof![
        2 => any::<Index>().prop_map(|parent| Op::Child { parent }),
        10 => (cpu(), any::<Index>(), nr_pages)
            .prop_map(|(cpu, group, nr_pages)| Op::Charge { cpu, group, nr_pages }),
        5 => (cpu(), any::<Index>(), 1u32..9)
            .prop_map(|(cpu, group, part)| Op::Uncharge { cpu, group, part }),
        2 => (any::<Index>(), max).prop_map(|(group, max)| Op::SetMax { group, max }),
        1 => any::<Index>().prop_map(|group| Op::Drain { group }),
        1 => any::<Index>().prop_map(|group| Op::Drop { group }),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    max: u64,
    /// Charged to this very group.
    own: u64,
}

/// Groups by id, parents before children.
struct Twin {
    nodes: BTreeMap<u32, Node>,
    order: Vec<u32>,
}

impl Twin {
    fn path(&self, id: u32) -> Vec<u32> {
        let up = |id: &u32| self.nodes.get(id).map(|node| node.parent);
        let path = std::iter::successors(Some(id), up);
        path.take_while(|&id| id != 0).collect()
    }

    fn live(&self, id: u32) -> u64 {
        let below = self
            .nodes
            .iter()
            .filter(|(node, _)| self.path(**node).contains(&id));
        below.map(|(_, node)| node.own).sum()
    }

    fn has_room(&self, id: u32, nr_pages: u64) -> bool {
        self.path(id)
            .iter()
            .all(|level| self.live(*level) + nr_pages <= self.nodes[level].max)
    }

    fn node(&mut self, id: u32) -> &mut Node {
        self.nodes.get_mut(&id).expect("a group of the twin")
    }
}

fn usage(tree: &Tree, id: u32) -> u64 {
    tree.get(id).expect("a live group").usage()
}

fn charge(tree: &Tree, twin: &mut Twin, cpu: Cpu, id: u32, nr_pages: u32) {
    let levels = twin.path(id);
    let has_room = twin.has_room(id, u64::from(nr_pages));
    match tree.charge(cpu, id, nr_pages) {
        Ok(_) => {
            assert!(has_room, "{nr_pages} pages over a limit of {levels:?}");
            twin.node(id).own += u64::from(nr_pages);
        }
        Err(over) => {
            assert!(
                !has_room,
                "{nr_pages} pages refused by {over:?}, with room at {levels:?}"
            );
            assert!(levels.contains(&over.group));
        }
    }
}

fn apply(tree: &Tree, twin: &mut Twin, op: Op) {
    let pick = |which: Index, twin: &Twin| twin.order[which.index(twin.order.len())];
    match op {
        Op::Child { parent } if twin.order.len() <= MAX_GROUPS => {
            let parent = pick(parent, twin);
            if let Ok(id) = tree.child(Cpu::new(0), parent) {
                twin.nodes.insert(
                    id,
                    Node {
                        parent,
                        max: u64::MAX,
                        own: 0,
                    },
                );
                twin.order.push(id);
            }
        }
        Op::Child { .. } => {}
        Op::Charge {
            cpu,
            group,
            nr_pages,
        } => {
            let id = pick(group, twin);
            charge(tree, twin, Cpu::new(cpu), id, nr_pages);
        }
        Op::Uncharge { cpu, group, part } => {
            let id = pick(group, twin);
            let nr_pages = twin.nodes[&id].own / u64::from(part);
            let count = u32::try_from(nr_pages).expect("few pages");
            tree.uncharge(Cpu::new(cpu), id, count);
            twin.node(id).own -= nr_pages;
        }
        Op::SetMax { group, max } => {
            let id = pick(group, twin);
            if id != tree.root() {
                assert_eq!(tree.set_max(id, max), Ok(()));
                twin.node(id).max = max;
            }
        }
        Op::Drain { group } => {
            let id = pick(group, twin);
            tree.drain(id);
            assert_eq!((tree.stocked(id), usage(tree, id)), (0, twin.live(id)));
        }
        Op::Drop { group } => {
            let id = pick(group, twin);
            let is_parent = twin.nodes.values().any(|node| node.parent == id);
            if id != tree.root() && !is_parent && twin.nodes[&id].own == 0 {
                tree.kill(id);
                assert_eq!(tree.bury(id), Some(0));
                twin.nodes.remove(&id);
                twin.order.retain(|other| *other != id);
            }
        }
    }
}

fn check(tree: &Tree, twin: &Twin, peaks: &mut BTreeMap<u32, u64>) {
    for (&id, node) in &twin.nodes {
        let (usage, live) = (usage(tree, id), twin.live(id));
        assert_eq!(usage, live + u64::from(tree.stocked(id)), "group {id}");
        // A leaf's pages are in its own slots, each trimmed to a batch.
        if twin.nodes.values().all(|node| node.parent != id) {
            assert!(
                tree.stocked(id) <= NR_CPUS * BATCH,
                "the stock of group {id}"
            );
        }
        // Only live charges that were there before a limit may exceed it.
        let peak = peaks.entry(id).or_default();
        if usage > node.max {
            assert!(usage <= *peak, "group {id}: {usage} over {}", node.max);
        }
        *peak = usage;
    }
    let stocked = u64::from(tree.stocked(tree.root()));
    assert!(
        stocked <= twin.nodes[&tree.root()].max / 64,
        "{stocked} pages in stocks"
    );
}

proptest! {
    #![proptest_config(crate::config(2000))]

    /// A charge is refused if and only if live charges leave no room, and the books are exact.
    #[test]
    fn charges_are_refused_only_where_live_charges_leave_no_room(
        root_max in prop_oneof![Just(1u64 << 20), 900u64..3000],
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let tree = Tree::try_new(NR_CPUS, root_max).expect("memory");
        let root = Node { parent: 0, max: root_max, own: 0 };
        let nodes = BTreeMap::from([(tree.root(), root)]);
        let mut twin = Twin { nodes, order: vec![tree.root()] };
        let mut usages = BTreeMap::new();
        for op in ops {
            apply(&tree, &mut twin, op);
            usages.retain(|id, _| twin.nodes.contains_key(id));
            check(&tree, &twin, &mut usages);
        }
    }
}

#[test]
fn stocks_are_drained_at_every_level_that_refuses() {
    let (here, there) = (Cpu::new(0), Cpu::new(1));
    let tree = Tree::try_new(NR_CPUS, 1 << 20).expect("memory");
    let parent = tree.child(here, tree.root()).expect("a group");
    let [child, sibling] = [(); 2].map(|()| tree.child(here, parent).expect("a group"));
    assert_eq!(tree.set_max(parent, 340), Ok(()));
    assert_eq!(tree.set_max(child, 300), Ok(()));
    tree.charge(here, child, 199).expect("room");
    tree.charge(there, child, 1).expect("room");
    tree.charge(there, sibling, 1).expect("room");
    // Refused by the child for its own stock first, then by the parent for the sibling's.
    assert_eq!((usage(&tree, child), usage(&tree, parent)), (263, 327));
    assert!(tree.charge(here, child, 100).is_ok());
    assert_eq!(
        tree.charge(here, child, 1).map_err(|over| over.group),
        Err(child)
    );
}
