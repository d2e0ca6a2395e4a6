//! The group room beside a naive twin: a map of what is charged to each group.

use pagetide_core::group::{BATCH, Item, OverLimit, StockKind, Tree};
use pagetide_core::units::Cpu;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

/// Groups beside the root. The tree's first chunk of records holds them: nothing else is charged.
const MAX_GROUPS: usize = 12;
const NR_CPUS: u32 = 2;
const PAGE: u64 = 4096;

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
    ChargeBytes {
        cpu: u32,
        group: Index,
        nr_bytes: u64,
    },
    UnchargeBytes {
        cpu: u32,
        group: Index,
        part: u64,
    },
    ModState {
        cpu: u32,
        group: Index,
        item: Item,
        delta: i64,
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
    let nr_bytes = prop_oneof![6 => 1u64..300, 2 => 1u64..20_000, 1 => 3990u64..4200];
    let delta = prop_oneof![4 => 1i64..300, 1 => 1i64..9000];
    let item = any::<bool>().prop_map(|first| Item::ALL[usize::from(first)]);
    let max = prop_oneof![1 => 0u64..300, 4 => 256u64..900];
    prop_oneof![
        2 => any::<Index>().prop_map(|parent| Op::Child { parent }),
        10 => (cpu(), any::<Index>(), nr_pages)
            .prop_map(|(cpu, group, nr_pages)| Op::Charge { cpu, group, nr_pages }),
        5 => (cpu(), any::<Index>(), 1u32..9)
            .prop_map(|(cpu, group, part)| Op::Uncharge { cpu, group, part }),
        8 => (cpu(), any::<Index>(), nr_bytes)
            .prop_map(|(cpu, group, nr_bytes)| Op::ChargeBytes { cpu, group, nr_bytes }),
        6 => (cpu(), any::<Index>(), 1u64..9)
            .prop_map(|(cpu, group, part)| Op::UnchargeBytes { cpu, group, part }),
        6 => (cpu(), any::<Index>(), item, (delta, any::<bool>()))
            .prop_map(|(cpu, group, item, (delta, falls))| {
                let delta = if falls { -delta } else { delta };
                Op::ModState { cpu, group, item, delta }
            }),
        2 => (any::<Index>(), max).prop_map(|(group, max)| Op::SetMax { group, max }),
        1 => any::<Index>().prop_map(|group| Op::Drain { group }),
        1 => any::<Index>().prop_map(|group| Op::Drop { group }),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    max: u64,
    /// Pages charged to this very group.
    own: u64,
    /// Bytes charged to it.
    bytes: u64,
    /// Its statistics, never negative.
    state: [i64; 2],
}

impl Node {
    fn new(parent: u32, max: u64) -> Node {
        Node {
            parent,
            max,
            own: 0,
            bytes: 0,
            state: [0; 2],
        }
    }

    /// With nothing in stocks.
    fn pages(&self) -> u64 {
        self.own + self.bytes.div_ceil(PAGE)
    }
}

/// Groups by id, parents before children.
struct Twin {
    kind: StockKind,
    nodes: BTreeMap<u32, Node>,
    order: Vec<u32>,
}

impl Twin {
    fn path(&self, id: u32) -> Vec<u32> {
        let up = |id: &u32| self.nodes.get(id).map(|node| node.parent);
        let path = std::iter::successors(Some(id), up);
        path.take_while(|&id| id != 0).collect()
    }

    fn sum<T: std::iter::Sum>(&self, id: u32, of: impl Fn(&Node) -> T) -> T {
        let below = self
            .nodes
            .iter()
            .filter(|(node, _)| self.path(**node).contains(&id));
        below.map(|(_, node)| of(node)).sum()
    }

    fn live(&self, id: u32) -> u64 {
        self.sum(id, Node::pages)
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

/// A charge of what needs `nr_pages` more: done if and only if live charges leave room.
///
/// Under `Scheduled`, pages in another CPU's stock may be missed, until its owner ran; and there
/// may be some left of a stock that a new limit drains, which are charged already.
fn charge<T>(
    tree: &Tree,
    twin: &Twin,
    id: u32,
    nr_pages: u64,
    mut charge: impl FnMut() -> Result<T, OverLimit>,
) -> bool {
    let levels = twin.path(id);
    let has_room = nr_pages == 0 || twin.has_room(id, nr_pages);
    let usages = || -> Vec<u64> { levels.iter().map(|&id| usage(tree, id)).collect() };
    let before = usages();
    let mut done = charge();
    if twin.kind == StockKind::Scheduled && done.is_ok() && !has_room {
        let has_grown = usages()
            .iter()
            .zip(&before)
            .any(|(now, before)| now > before);
        assert!(!has_grown, "{nr_pages} pages over a limit of {levels:?}");
        return true;
    }
    if twin.kind == StockKind::Scheduled && done.is_err() && has_room {
        let stranded = u64::from(tree.stocked(tree.root())) * PAGE + tree.held_bytes(tree.root());
        assert!(stranded > 0, "refused with room and empty stocks");
        run_owners(tree);
        done = charge();
    }
    match done {
        Ok(_) => assert!(has_room, "{nr_pages} pages over a limit of {levels:?}"),
        Err(over) => {
            assert!(
                !has_room,
                "{nr_pages} pages refused by {over:?}, with room at {levels:?}"
            );
            assert!(levels.contains(&over.group));
        }
    }
    has_room
}

fn run_owners(tree: &Tree) {
    for cpu in (0..NR_CPUS).map(Cpu::new) {
        tree.run_scheduled(cpu);
    }
}

/// Drains a subtree: nothing is held back then, and its statistics are exact.
fn drain(tree: &Tree, twin: &Twin, id: u32) {
    tree.drain(id);
    run_owners(tree);
    assert_eq!((tree.stocked(id), usage(tree, id)), (0, twin.live(id)));
    for item in Item::ALL {
        let state: i64 = twin.sum(id, |node| node.state[item as usize]);
        assert_eq!(i64::try_from(tree.state(id, item)), Ok(state), "{item:?}");
    }
}

fn apply_bytes(tree: &Tree, twin: &mut Twin, id: u32, op: Op) {
    match op {
        Op::ChargeBytes { cpu, nr_bytes, .. } => {
            let bytes = twin.nodes[&id].bytes;
            let more = (bytes + nr_bytes).div_ceil(PAGE) - bytes.div_ceil(PAGE);
            let done = charge(tree, twin, id, more, || {
                tree.charge_bytes(Cpu::new(cpu), id, nr_bytes)
            });
            twin.node(id).bytes += if done { nr_bytes } else { 0 };
        }
        Op::UnchargeBytes { cpu, part, .. } => {
            let nr_bytes = twin.nodes[&id].bytes / part;
            tree.uncharge_bytes(Cpu::new(cpu), id, nr_bytes);
            twin.node(id).bytes -= nr_bytes;
        }
        Op::ModState {
            cpu, item, delta, ..
        } => {
            let state = &mut twin.node(id).state[item as usize];
            let delta = delta.max(-*state);
            *state += delta;
            tree.mod_state(Cpu::new(cpu), id, item, delta);
        }
        other => panic!("{other:?} is about pages"),
    }
}

fn apply(tree: &Tree, twin: &mut Twin, op: Op) {
    let pick = |which: Index, twin: &Twin| twin.order[which.index(twin.order.len())];
    match op {
        Op::Child { parent } if twin.order.len() <= MAX_GROUPS => {
            let parent = pick(parent, twin);
            if let Ok(id) = tree.child(Cpu::new(0), parent) {
                twin.nodes.insert(id, Node::new(parent, u64::MAX));
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
            let more = u64::from(nr_pages);
            let done = charge(tree, twin, id, more, || {
                tree.charge(Cpu::new(cpu), id, nr_pages)
            });
            twin.node(id).own += if done { more } else { 0 };
        }
        Op::Uncharge { cpu, group, part } => {
            let id = pick(group, twin);
            let nr_pages = twin.nodes[&id].own / u64::from(part);
            let count = u32::try_from(nr_pages).expect("few pages");
            tree.uncharge(Cpu::new(cpu), id, count);
            twin.node(id).own -= nr_pages;
        }
        Op::ChargeBytes { group, .. }
        | Op::UnchargeBytes { group, .. }
        | Op::ModState { group, .. } => {
            let id = pick(group, twin);
            apply_bytes(tree, twin, id, op);
        }
        Op::SetMax { group, max } => {
            let id = pick(group, twin);
            if id != tree.root() {
                assert_eq!(tree.set_max(id, max), Ok(()));
                twin.node(id).max = max;
            }
        }
        Op::Drain { group } => {
            drain(tree, twin, pick(group, twin));
        }
        Op::Drop { group } => {
            let id = pick(group, twin);
            let is_parent = twin.nodes.values().any(|node| node.parent == id);
            if id != tree.root() && !is_parent && twin.nodes[&id].pages() == 0 {
                for item in Item::ALL {
                    let left = twin.nodes[&id].state[item as usize];
                    tree.mod_state(Cpu::new(0), id, item, -left);
                }
                tree.kill(id);
                run_owners(tree);
                assert_eq!(tree.held_bytes(id), 0);
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
        // Bytes make up whole pages with what is held back of them.
        let bytes = twin.sum(id, |node| node.bytes) + tree.held_bytes(id);
        assert_eq!(bytes % PAGE, 0, "bytes of group {id}");
        let pages = twin.sum(id, |node| node.own) + bytes / PAGE;
        assert_eq!(usage, pages + u64::from(tree.stocked(id)), "group {id}");
        assert!(usage >= live);
        // A leaf's pages are in its own slots, each trimmed to a batch, and of its large blocks at
        // most 1/64 of its nearest limit.
        if twin.nodes.values().all(|node| node.parent != id) {
            let limits = twin.path(id).into_iter().map(|id| twin.nodes[&id].max);
            let large = limits.min().expect("at least the root") / 64;
            assert!(
                u64::from(tree.stocked(id)) <= u64::from(NR_CPUS * BATCH) + large,
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

/// A charge is refused if and only if live charges leave no room, and the books are exact.
fn run(kind: StockKind, root_max: u64, ops: Vec<Op>) {
    let tree = Tree::try_new(NR_CPUS, root_max, kind).expect("memory");
    let nodes = BTreeMap::from([(tree.root(), Node::new(0, root_max))]);
    let order = vec![tree.root()];
    let mut twin = Twin { kind, nodes, order };
    let mut usages = BTreeMap::new();
    for op in ops {
        apply(&tree, &mut twin, op);
        usages.retain(|id, _| twin.nodes.contains_key(id));
        check(&tree, &twin, &mut usages);
    }
    drain(&tree, &twin, tree.root());
    check(&tree, &twin, &mut usages);
}

fn root_max() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1u64 << 20), 900u64..3000]
}

proptest! {
    #![proptest_config(crate::config(2000))]

    #[test]
    fn atomic_stocks_refuse_only_where_live_charges_leave_no_room(
        root_max in root_max(),
        ops in prop::collection::vec(op(), 1..150),
    ) {
        run(StockKind::Atomic, root_max, ops);
    }
}

proptest! {
    #![proptest_config(crate::config(1000))]

    #[test]
    fn locked_stocks_refuse_only_where_live_charges_leave_no_room(
        root_max in root_max(),
        ops in prop::collection::vec(op(), 1..150),
    ) {
        run(StockKind::Spinlock, root_max, ops);
    }

    #[test]
    fn without_stocks_charges_are_refused_only_where_live_charges_leave_no_room(
        root_max in root_max(),
        ops in prop::collection::vec(op(), 1..150),
    ) {
        run(StockKind::None, root_max, ops);
    }

    #[test]
    fn scheduled_stocks_refuse_nothing_once_their_owners_ran(
        root_max in root_max(),
        ops in prop::collection::vec(op(), 1..150),
    ) {
        run(StockKind::Scheduled, root_max, ops);
    }
}

#[test]
fn stocks_are_drained_at_every_level_that_refuses() {
    let (here, there) = (Cpu::new(0), Cpu::new(1));
    let tree = Tree::try_new(NR_CPUS, 1 << 20, StockKind::Atomic).expect("memory");
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
