//! The tree of groups beside plain sums.

use pagetide_core::group::Tree;
use pagetide_core::units::Cpu;
use proptest::prelude::*;

/// The parent of each of the seven groups, by number; the first is the root.
const PARENTS: [usize; 7] = [0, 0, 0, 1, 1, 3, 2];

#[derive(Clone, Debug)]
enum Op {
    Charge {
        cpu: u32,
        group: usize,
        nr_pages: u32,
    },
    Uncharge {
        cpu: u32,
        group: usize,
        nr_pages: u32,
    },
    SetMax {
        group: usize,
        max: u64,
    },
    Drain {
        group: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let parts = || (0..2_u32, 1..7_usize, 1..100_u32);
    prop_oneof![
        6 => parts().prop_map(|(cpu, group, nr_pages)| Op::Charge { cpu, group, nr_pages }),
        5 => parts().prop_map(|(cpu, group, nr_pages)| Op::Uncharge { cpu, group, nr_pages }),
        1 => (1..7_usize, 0..2000_u64).prop_map(|(group, max)| Op::SetMax { group, max }),
        1 => (0..7_usize).prop_map(|group| Op::Drain { group }),
    ]
}

/// The group and its ancestors.
fn path(group: usize) -> Vec<usize> {
    let mut path = vec![group];
    while *path.last().unwrap() != 0 {
        path.push(PARENTS[*path.last().unwrap()]);
    }
    path
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]
    #[test]
    fn usage_is_live_charges_and_stocks(
        ops in prop::collection::vec(op(), 1..200),
        root_max in prop_oneof![Just(3000_u64), Just(1 << 20)],
    ) {
        let cpu = Cpu::new(0);
        let tree = Tree::try_new(2, root_max).unwrap();
        let mut ids = vec![tree.root()];
        for parent in &PARENTS[1..] {
            ids.push(tree.child(cpu, ids[*parent]).unwrap());
        }
        tree.drain(tree.root());
        // Live charges: of each group alone, and of its subtree. The root has the tree's records.
        let mut own = [0_u64; 7];
        let mut live = [0_u64; 7];
        live[0] = tree.get(ids[0]).unwrap().usage();
        let mut max = [u64::MAX; 7];
        max[0] = root_max;
        // Groups whose limit was set below what they use, until they come under it.
        let mut is_over = [false; 7];
        for op in ops {
            match op {
                Op::Charge { cpu, group, nr_pages } => {
                    let n = u64::from(nr_pages);
                    let fits = path(group).iter().all(|&level| live[level] + n <= max[level]);
                    let charged = tree.charge(Cpu::new(cpu), ids[group], nr_pages);
                    prop_assert_eq!(charged.is_ok(), fits, "{:?}", charged);
                    if fits {
                        own[group] += n;
                        path(group).iter().for_each(|&level| live[level] += n);
                    }
                }
                Op::Uncharge { cpu, group, nr_pages } => {
                    let n = u64::from(nr_pages).min(own[group]);
                    tree.uncharge(Cpu::new(cpu), ids[group], u32::try_from(n).unwrap());
                    own[group] -= n;
                    path(group).iter().for_each(|&level| live[level] -= n);
                }
                Op::SetMax { group, max: limit } => {
                    max[group] = limit;
                    is_over[group] = live[group] > limit;
                    tree.set_max(ids[group], limit);
                }
                Op::Drain { group } => {
                    tree.drain(ids[group]);
                    prop_assert_eq!(tree.stocked(ids[group]), 0);
                }
            }
            for (group, &id) in ids.iter().enumerate() {
                let usage = tree.get(id).unwrap().usage();
                prop_assert_eq!(usage, live[group] + u64::from(tree.stocked(id)), "group {}", group);
                is_over[group] &= usage > max[group];
                prop_assert!(is_over[group] || usage <= max[group]);
            }
            prop_assert!(u64::from(tree.stocked(tree.root())) <= root_max / 64);
        }
    }
}
