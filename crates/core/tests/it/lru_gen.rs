//! Aging of a whole memory: what it looks at, and generations by their numbers.

use pagetide_core::memory::{Config, Effect, Effects, Memory, PageIn, Step};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::{BadSeq, Policy};
use pagetide_core::units::{Cpu, Frame, Node, Order};

const CPU: Cpu = Cpu::new(0);
const NODE: Node = Node::ZERO;
/// Frames of a region.
const REGION: u64 = 64;

struct World {
    memory: Memory,
    file: u32,
}

impl World {
    fn new(policy: Policy, nr_pages: u32) -> World {
        let config = Config::for_resident(nr_pages, 1, policy);
        let memory = Memory::try_new(config).expect("memory");
        let file = memory.open_mapping(CPU.into(), Order::ZERO);
        World {
            memory,
            file: file.expect("a file"),
        }
    }

    fn group(&self) -> u32 {
        let root = self.memory.groups().root();
        self.memory.new_group(CPU.into(), root).expect("a group")
    }

    fn touch(&self, group: u32, page: u64, access: Access) -> Frame {
        let memory = &self.memory;
        let key = Mappings::key(self.file, page).expect("a small page");
        let mut effects = Effects::new();
        let mut op = PageIn::new(key, group, access);
        loop {
            let step = op.step(memory, CPU.into(), &mut effects);
            if let Step::Done(frame) = step.expect("room") {
                memory.unpin(CPU, frame, &mut effects);
                return frame;
            }
            while let Some(effect) = effects.pop() {
                if let Effect::Read(io) = effect {
                    memory.complete(CPU, io, Ok(()), &mut effects);
                }
            }
        }
    }

    fn max_seq(&self, group: u32) -> u64 {
        let mut nodes = self.memory.lru_gen(group);
        let generations = nodes.next().expect("a node").generations;
        let youngest = generations.into_iter().flatten().last();
        youngest.expect("two generations").seq
    }

    /// Opens a generation; frame records looked at, and pages promoted.
    fn age(&self, group: u32) -> (u64, u64) {
        let before = self.memory.stats();
        let aged = self.memory.age((group, NODE), self.max_seq(group), true);
        assert_eq!(aged, Ok(()));
        self.memory.check();
        let after = self.memory.stats();
        (
            after.aging_scanned - before.aging_scanned,
            after.aging_promoted - before.aging_promoted,
        )
    }

    /// Frames of each generation, the oldest first.
    fn sizes(&self, group: u32) -> Vec<u32> {
        let mut nodes = self.memory.lru_gen(group);
        let generations = nodes.next().expect("a node").generations;
        let of = |generation: pagetide_core::reclaim::Generation| generation.nr_frames[0];
        generations.into_iter().flatten().map(of).collect()
    }
}

/// Aging costs what was pinned since, not what there is: the same in 1 GiB and in 16.
#[test]
fn aging_costs_what_is_hot() {
    let mut costs = Vec::new();
    for nr_pages in [1 << 18, 1 << 22] {
        let world = World::new(Policy::Mglru, nr_pages);
        let group = world.group();
        let frames: Vec<Frame> = (0..20_000)
            .map(|page| world.touch(group, page, Access::Copy))
            .collect();
        assert_eq!(world.age(group), (0, 0), "nothing was pinned");
        let mut regions = std::collections::BTreeSet::new();
        for page in (0..20_000).step_by(700) {
            _ = world.touch(group, page, Access::Pin);
            _ = world.touch(group, page, Access::Pin);
            let frame = frames[usize::try_from(page).expect("small")];
            regions.insert(u64::from(frame.number()) / REGION);
        }
        let (looked, promoted) = world.age(group);
        let nr_regions = u64::try_from(regions.len()).expect("few");
        // The arena's last region may be a part of one.
        assert!(looked > REGION * (nr_regions - 1) && looked <= REGION * nr_regions);
        assert_eq!(promoted, 29);
        assert_eq!(world.sizes(group).last(), Some(&29));
        assert_eq!(world.age(group), (0, 0), "nothing was pinned since");
        costs.push(nr_regions);
    }
    assert_eq!(costs[0], costs[1]);
}

/// Aging of a small group looks at no more than its pages, whatever others have pinned.
#[test]
fn aging_of_a_small_group_costs_what_it_has() {
    for policy in [Policy::Mglru, Policy::MglruNext, Policy::MglruSeed] {
        let world = World::new(policy, 1 << 15);
        let [large, small] = [(); 2].map(|()| world.group());
        for _ in 0..2 {
            (0..20_000).for_each(|page| _ = world.touch(large, page, Access::Pin));
        }
        (20_000..20_100).for_each(|page| _ = world.touch(small, page, Access::Copy));
        (20_000..20_100)
            .step_by(10)
            .for_each(|page| _ = world.touch(small, page, Access::Pin));
        let (looked, promoted) = world.age(small);
        assert_eq!(promoted, 10, "{policy}");
        assert!(looked <= 100, "{policy}: {looked} looked at");
        assert_eq!(world.age(small).1, 0, "{policy}");
        assert_eq!(world.age(large).1, 20_000, "{policy}");
    }
}

/// A page that was promoted is on its old list still when that is evicted, and stays.
#[test]
fn what_aging_promoted_stays() {
    for policy in [Policy::Mglru, Policy::MglruNext, Policy::MglruSeed] {
        let world = World::new(policy, 2000);
        let group = world.group();
        (0..1000).for_each(|page| _ = world.touch(group, page, Access::Copy));
        (0..1000)
            .step_by(10)
            .for_each(|page| _ = world.touch(group, page, Access::Pin));
        assert_eq!(world.age(group).1, 100, "{policy}");
        let up_to = world.max_seq(group) - 2;
        let key = (group, NODE);
        let freed = world
            .memory
            .evict_generations(CPU, key, (up_to, None), u64::MAX);
        assert_eq!(freed, Ok(900), "{policy}");
        world.memory.check();
        let before = world.memory.stats().pgsteal;
        (0..1000)
            .step_by(10)
            .for_each(|page| _ = world.touch(group, page, Access::Copy));
        assert_eq!(world.memory.stats().pgsteal, before);
        assert_eq!(world.sizes(group).iter().sum::<u32>(), 100, "{policy}");
    }
}

/// Aging of one group leaves another's young pages marked for its own.
#[test]
fn young_pages_of_others_keep_their_mark() {
    let world = World::new(Policy::Mglru, 4000);
    let [left, right] = [world.group(), world.group()];
    for page in 0..2000 {
        let group = if page % 2 == 0 { left } else { right };
        _ = world.touch(group, page, Access::Copy);
    }
    (0..200).for_each(|page| _ = world.touch(left, page, Access::Pin));
    assert_eq!(world.age(left).1, 100);
    let (looked, promoted) = world.age(right);
    assert_eq!(promoted, 100);
    assert!(looked <= 6 * REGION, "{looked} frames for 200 pages");
    assert_eq!((world.age(left), world.age(right)), ((0, 0), (0, 0)));
}

#[test]
fn generations_by_their_numbers() {
    let world = World::new(Policy::Mglru, 2000);
    let group = world.group();
    let key = (group, NODE);
    let nothing = world.memory.age(key, 3, false);
    assert_eq!(nothing, Err(BadSeq::NoGenerations), "no page yet");
    (0..100).for_each(|page| _ = world.touch(group, page, Access::Copy));
    let max_seq = world.max_seq(group);
    let bad = Err(BadSeq::OutOfRange { max_seq });
    assert_eq!(world.memory.age(key, max_seq + 1, true), bad);
    assert_eq!(
        world.memory.age(key, max_seq - 1, true),
        Ok(()),
        "it is open"
    );
    assert_eq!(world.max_seq(group), max_seq);
    let four_are_open = Err(BadSeq::TooMany);
    assert_eq!(world.memory.age(key, max_seq, false), four_are_open);
    let young = world
        .memory
        .evict_generations(CPU, key, (max_seq - 1, None), 1);
    assert_eq!(young, Err(BadSeq::OutOfRange { max_seq }));
    assert_eq!(world.sizes(group), [0, 100, 0, 0]);
    let freed = world
        .memory
        .evict_generations(CPU, key, (max_seq - 2, None), 10);
    assert_eq!(freed, Ok(64), "whole batches");
    let freed = world
        .memory
        .evict_generations(CPU, key, (max_seq - 2, None), 1000);
    assert_eq!(freed, Ok(36));
    assert_eq!(world.memory.age(key, max_seq, false), Ok(()));
    assert_eq!(world.max_seq(group), max_seq + 1);
    let view = world.memory.lru_gen(group).next().expect("a node");
    assert_eq!((view.node, view.now_ns), (NODE, 0));
}

/// The births are those of the coarse clock, and a policy with two classes shows these.
#[test]
fn generations_have_their_age() {
    let world = World::new(Policy::Mglru, 2000);
    let group = world.group();
    _ = world.touch(group, 1, Access::Copy);
    world.memory.tick(CPU, 5_000_000_000);
    _ = world.age(group);
    let view = world.memory.lru_gen(group).next().expect("a node");
    let births: Vec<u64> = view
        .generations
        .into_iter()
        .flatten()
        .map(|generation| generation.birth_ns)
        .collect();
    assert_eq!(births, [0, 0, 0, 5_000_000_000]);

    let world = World::new(Policy::Gated2q, 2000);
    let group = world.group();
    world.memory.tick(CPU, 7_000_000_000);
    (0..500).for_each(|page| _ = world.touch(group, page, Access::Copy));
    let view = world.memory.lru_gen(group).next().expect("a node");
    let [Some(probation), Some(protected), None, None] = view.generations else {
        panic!("{view:?}");
    };
    let total = probation.nr_frames[0] + protected.nr_frames[0];
    assert_eq!((probation.seq, protected.seq, total), (0, 1, 500));
    assert_eq!(probation.birth_ns, 7_000_000_000);
    let refused = world.memory.age((group, NODE), 1, true);
    assert_eq!(refused, Err(BadSeq::NoGenerations));
}
