//! Named cases of `min_ttl`: what came lately stays where the budget is met.

use super::*;
use core::ops::Range;

const SECOND: u64 = 1_000_000_000;
const KNOWING: [Policy; 4] = [
    Policy::Gated2q,
    Policy::Mglru,
    Policy::MglruNext,
    Policy::MglruSeed,
];

/// A memory in which pages stay for 5 s, at 10 s, and two groups and a file of it.
fn memory(policy: Policy) -> (Memory, [u32; 2], u32) {
    let mut config = Config::for_resident(1000, 2, policy);
    config.min_ttl_ns = 5 * SECOND;
    let memory = Memory::try_new(config).unwrap();
    memory.tick(CPU, 10 * SECOND);
    let root = memory.groups().root();
    let groups = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    (memory, groups, file)
}

fn usage(memory: &Memory, group: u32) -> u64 {
    memory.groups().drain(memory.groups().root());
    memory.groups().get(group).unwrap().usage()
}

/// Reads pages from `first` on until one is refused; how many came in, and why.
fn fill(memory: &Memory, group: u32, file: u32, first: u64) -> (u64, PageError) {
    for page in first..first + (1 << 20) {
        match have(memory, group, key(file, page), Ok(())) {
            Ok((frame, _)) => memory.unpin(CPU, frame, &mut Effects::new()),
            Err(error) => return (page - first, error),
        }
    }
    panic!("nothing was refused");
}

#[test]
fn who_would_evict_what_came_lately_is_refused() {
    for policy in KNOWING {
        let (memory, [group, small], file) = memory(policy);
        let root = memory.groups().root();
        let thrashing = PageError::Alloc(AllocError::Thrashing { group: root });
        let (filled, error) = fill(&memory, group, file, 0);
        assert!(filled >= 1000 && error == thrashing, "{policy}: {filled}");
        assert_eq!(memory.stats().pgsteal, 0, "{policy}");
        // What is asked for goes all the same, and a group at its own limit takes its own.
        assert!(memory.reclaim_proactively(CPU.into(), (group, None), 64) >= 64);
        memory.set_max(CPU.into(), small, 8).unwrap();
        (0..100).for_each(|page| _ = touch(&memory, small, key(file, 1 << 20 | page)));
        assert_eq!(usage(&memory, small), 8, "{policy}");
        // Until they are old enough.
        fill(&memory, group, file, 10_000);
        memory.tick(CPU, 15 * SECOND - 1);
        let refused = have(&memory, group, key(file, 20_000), Ok(()));
        assert_eq!(refused, Err(thrashing), "{policy}");
        memory.tick(CPU, 15 * SECOND);
        assert!(touch(&memory, group, key(file, 20_000)), "{policy}");
        memory.check();
    }
}

#[test]
fn who_has_old_pages_gives_and_who_has_young_ones_does_not() {
    for policy in KNOWING {
        let (memory, [old, young], file) = memory(policy);
        (0..500).for_each(|page| _ = touch(&memory, old, key(file, page)));
        memory.tick(CPU, 20 * SECOND);
        let mut page = 1000;
        while memory.stats().pgsteal == 0 {
            touch(&memory, young, key(file, page));
            page += 1;
        }
        for more in page..page + 100 {
            touch(&memory, young, key(file, more));
        }
        assert_eq!(usage(&memory, young), page + 100 - 1000, "{policy}");
        assert!(usage(&memory, old) < 500, "{policy}");
        memory.check();
    }
}

#[test]
fn what_is_charged_ahead_takes_no_young_pages() {
    for policy in KNOWING {
        let (memory, [group, _], file) = memory(policy);
        fill(&memory, group, file, 0);
        let before = usage(&memory, group);
        let ahead = memory.charge_ahead(CPU.into(), group, 32);
        assert_eq!(ahead.nr_pages(), 0, "{policy}");
        drop(ahead);
        let stolen = memory.stats().pgsteal;
        assert_eq!((usage(&memory, group), stolen), (before, 0), "{policy}");
        memory.tick(CPU, 15 * SECOND);
        let ahead = memory.charge_ahead(CPU.into(), group, 32);
        assert_eq!(ahead.nr_pages(), 32, "{policy}");
        drop(ahead);
        memory.check();
    }
}

#[test]
fn a_frame_of_a_node_is_refused_for_the_same_reason() {
    let topology = Topology::uniform(2).with_nodes(2).unwrap();
    let mut config = Config::on(topology, 0, Policy::default());
    config.fit(8 * 512);
    config.min_ttl_ns = 5 * SECOND;
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let group = memory.new_group(CPU.into(), root).unwrap();
    let second = NodeMask::of(Node::new(1).unwrap());
    memory.groups().set_mems(group, second);
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    let (filled, error) = fill(&memory, group, file, 0);
    let thrashing = AllocError::Thrashing { group: root };
    assert!(filled > 1000 && error == PageError::Alloc(thrashing));
    assert_eq!(memory.stats().pgsteal, 0);
    // Half of the budget is free; the clock goes on, and the node's pages may go.
    memory.tick(CPU, 5 * SECOND);
    assert!(touch(&memory, group, key(file, 1 << 20)));
    memory.check();
}

#[test]
fn a_far_node_is_used_before_young_pages_of_a_near_one_go() {
    for (later, is_evicted) in [(0, false), (5 * SECOND, true)] {
        let topology = Topology::uniform(2).with_nodes(2).unwrap();
        let mut config = Config::on(topology, 0, Policy::default());
        config.fit(8 * 512);
        config.min_ttl_ns = 5 * SECOND;
        config.alloc.node_reclaim = true;
        let memory = Memory::try_new(config).unwrap();
        let root = memory.groups().root();
        let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
        let read =
            |pages: Range<u64>| pages.for_each(|page| _ = touch(&memory, root, key(file, page)));
        // More than one node has, less than both.
        read(0..1500);
        memory.tick(CPU, later);
        read(1500..3000);
        assert_eq!(memory.stats().pgsteal > 0, is_evicted);
        memory.check();
    }
}

#[test]
fn background_reclaim_leaves_what_came_lately() {
    const NR_PAGES: u32 = 1 << 17;
    let mut config = Config::new(NR_PAGES, 1, Policy::default());
    config.min_ttl_ns = 5 * SECOND;
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    fill(&memory, root, file, 0);
    let node = Node::new(0).unwrap();
    while memory.balance(CPU.into(), node) == Balance::More {}
    assert_eq!(memory.stats().pgsteal, 0);
    memory.tick(CPU, 5 * SECOND);
    while memory.balance(CPU.into(), node) == Balance::More {}
    assert!(memory.stats().pgsteal_kswapd > 0);
}
