//! Named cases over all rooms.

extern crate std;

mod ahead;
mod audit;
mod begin;
mod bufs;
mod bytes;
mod claims;
mod evacuate;
mod gated_2q;
mod gather;
mod given;
mod idle;
mod in_vain;
mod latch;
mod left_pins;
mod likely;
mod limits;
mod longterm;
mod min_ttl;
mod prefetch;
mod reads;
mod refusals;
mod region;
mod reserve;
mod spare;
mod stat;
mod write;

use super::*;
use crate::alloc::{Mempolicy, Topology};
use crate::frame::State;
use crate::frame::flag;
use crate::group::{Count, CpuMask, Limit, NO_LIMIT, StockKind};
use crate::page_cache::{Access, Found, Latched};
use crate::reclaim::Policy;
use crate::units::{Frame, Node, NodeMask, PAGE_BYTES};
use std::vec::Vec;

const CPU: Cpu = Cpu::new(0);

fn memory(nr_pages: u32, policy: Policy) -> (Memory, u32, u32) {
    let memory = Memory::try_new(Config::for_resident(nr_pages, 2, policy)).unwrap();
    let group = memory
        .new_group(CPU.into(), memory.groups().root())
        .unwrap();
    assert_eq!(
        memory.set_max(CPU.into(), group, u64::from(nr_pages)),
        Ok(0)
    );
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    (memory, group, file)
}

/// Refaults of a group's file pages, those that went among the used ones, and all page-ins that
/// were waited for.
fn workingset_counts(memory: &Memory, group: u32) -> [u64; 3] {
    let record = memory.groups().get(group).unwrap();
    let counts = [
        Count::WorkingsetRefaultFile,
        Count::WorkingsetActivateFile,
        Count::Pgmajfault,
    ];
    counts.map(|count| record.count(count))
}

fn key(file: u32, page: u64) -> PageKey {
    Mappings::key(file, page).unwrap()
}

/// Has the page, reading it with `result`; returns its pinned frame and whether it was a miss.
fn have(
    memory: &Memory,
    group: u32,
    key: PageKey,
    result: Result<(), u32>,
) -> Result<(Frame, bool), PageError> {
    let mut effects = Effects::new();
    let mut op = PageIn::new(key, group, Access::Copy);
    let mut missed = false;
    loop {
        if let Step::Done(frame) = op.step(memory, CPU.into(), &mut effects)? {
            return Ok((frame, missed));
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                missed = true;
                memory.complete(CPU, io, result, &mut effects);
            }
        }
    }
}

/// [`Memory::pin`] where nobody interferes.
fn pin(memory: &Memory, key: PageKey, access: Access) -> Found {
    memory.pin(key, access, |_| unreachable!("nobody interferes"))
}

/// [`Memory::latch`] where nobody interferes.
fn latch(memory: &Memory, key: PageKey) -> Latched {
    memory.latch(CPU, (key, Access::Copy), |effects| {
        assert!(effects.pop().is_none())
    })
}

fn touch(memory: &Memory, group: u32, key: PageKey) -> bool {
    let (frame, missed) = have(memory, group, key, Ok(())).unwrap();
    memory.unpin(CPU, frame, &mut Effects::new());
    missed
}

#[test]
fn fifo_evicts_in_the_order_of_arrival() {
    let (memory, group, file) = memory(4, Policy::Fifo);
    let misses: Vec<bool> = [1, 2, 3, 4, 1, 5, 1, 2]
        .map(|page| touch(&memory, group, key(file, page)))
        .to_vec();
    assert_eq!(misses, [true, true, true, true, false, true, true, true]);
    memory.check();
    assert_eq!(
        memory.groups().get(group).unwrap().count(Count::Pgmajfault),
        7
    );
}

#[test]
fn every_policy_keeps_the_limit_and_the_books() {
    for &policy in Policy::ALL {
        for nr_pages in [1, 5, 64, 700] {
            let (memory, group, file) = memory(nr_pages, policy);
            for step in 0..5000u64 {
                touch(&memory, group, key(file, step * step % 911));
                assert!(memory.groups().get(group).unwrap().usage() <= u64::from(nr_pages));
            }
            memory.check();
            memory.close_mapping(CPU, file, &mut |_| ());
            memory.check();
            assert_eq!(memory.stats().nr_used, 0);
        }
    }
}

#[test]
fn a_pinned_page_stays_and_a_group_full_of_pins_refuses() {
    let (memory, group, file) = memory(4, Policy::Mglru);
    let pinned: Vec<Frame> = (0..4)
        .map(|page| have(&memory, group, key(file, page), Ok(())).unwrap().0)
        .collect();
    let refused = have(&memory, group, key(file, 9), Ok(()));
    assert_eq!(
        refused,
        Err(PageError::Alloc(AllocError::OverLimit { group }))
    );
    memory.unpin(CPU, pinned[2], &mut Effects::new());
    assert!(touch(&memory, group, key(file, 9)));
    assert!(!touch(&memory, group, key(file, 3)));
    assert!(touch(&memory, group, key(file, 2)));
    [0, 1, 3]
        .into_iter()
        .for_each(|at| memory.unpin(CPU, pinned[at], &mut Effects::new()));
    memory.check();
}

#[test]
fn a_failed_read_is_told_and_forgotten() {
    let (memory, group, file) = memory(4, Policy::Mglru);
    assert_eq!(
        have(&memory, group, key(file, 1), Err(5)),
        Err(PageError::Io(5))
    );
    assert_eq!(memory.stats().nr_used, 0);
    assert!(touch(&memory, group, key(file, 1)));
    memory.check();
}

#[test]
fn who_waits_for_a_read_counts_as_one_access() {
    for access in [Access::Copy, Access::Pin] {
        let (memory, group, file) = memory(4, Policy::Mglru);
        let mut effects = Effects::new();
        let mut ahead = PageIn::new(key(file, 1), group, Access::Prefetch);
        let begun = ahead.step(&memory, CPU.into(), &mut effects);
        assert!(matches!(begun, Ok(Step::Wait { .. })));
        let Some(Effect::Read(io)) = effects.pop() else {
            panic!("no read")
        };
        let accesses = |frame| {
            let word = memory.frames().word(frame);
            (word.refs(), word.has(flag::YOUNG))
        };
        // A reader looks, then has an operation look, which waits.
        let Found::Reading(frame) = pin(&memory, key(file, 1), access) else {
            panic!("it is being read")
        };
        memory.unpin(CPU, frame, &mut effects);
        assert_eq!(accesses(frame).0, 0);
        let mut op = PageIn::new(key(file, 1), group, access);
        let waits = op.step(&memory, CPU.into(), &mut effects);
        assert!(matches!(waits, Ok(Step::Wait { .. })));
        let is_copy = access == Access::Copy;
        let counted = (u8::from(is_copy), !is_copy);
        assert_eq!(accesses(frame), counted);
        memory.complete(CPU, io, Ok(()), &mut effects);
        let listed = accesses(frame);
        let done = op.step(&memory, CPU.into(), &mut effects);
        assert!(matches!(done, Ok(Step::Done(done)) if done == frame));
        assert_eq!(accesses(frame), listed);
        memory.unpin(CPU, frame, &mut effects);
        ahead.abandon(&memory, CPU, &mut effects);
        memory.check();
    }
}

#[test]
fn two_operations_share_one_read() {
    let (memory, group, file) = memory(4, Policy::Mglru);
    let mut effects = Effects::new();
    let mut first = PageIn::new(key(file, 1), group, Access::Pin);
    let mut second = PageIn::new(key(file, 1), group, Access::Pin);
    let mut third = PageIn::new(key(file, 1), group, Access::Pin);
    assert!(matches!(
        first.step(&memory, CPU.into(), &mut effects),
        Ok(Step::Wait { .. })
    ));
    let Some(Effect::Read(io)) = effects.pop() else {
        panic!("no read")
    };
    assert!(matches!(
        second.step(&memory, CPU.into(), &mut effects),
        Ok(Step::Wait { .. })
    ));
    assert!(matches!(
        third.step(&memory, CPU.into(), &mut effects),
        Ok(Step::Wait { .. })
    ));
    assert!(effects.pop().is_none());
    // The first one gives up; its read goes on and serves the others.
    first.abandon(&memory, CPU, &mut effects);
    memory.complete(CPU, io, Ok(()), &mut effects);
    let Ok(Step::Done(frame)) = second.step(&memory, CPU.into(), &mut effects) else {
        panic!("wait")
    };
    third.abandon(&memory, CPU, &mut effects);
    assert_eq!(memory.frames().word(frame).pins(), 1);
    memory.unpin(CPU, frame, &mut effects);
    memory.check();
}

#[test]
fn a_page_pinned_over_the_close_of_its_file_goes_with_its_pin() {
    let (memory, group, file) = memory(4, Policy::Mglru);
    let (frame, _) = have(&memory, group, key(file, 1), Ok(())).unwrap();
    touch(&memory, group, key(file, 2));
    let mut effects = Effects::new();
    memory.close_mapping(CPU, file, &mut |_| ());
    assert_eq!(memory.frames().word(frame).state(), State::Detached);
    assert_eq!(memory.stats().nr_used, 1);
    memory.unpin(CPU, frame, &mut effects);
    assert_eq!(memory.stats().nr_used, 0);
    memory.check();
}

#[test]
fn the_page_cache_yields_to_working_memory() {
    let config = Config::new(4096, 2, Policy::Mglru);
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let [cache, work] = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    (0..8000).for_each(|page| _ = touch(&memory, cache, key(file, page)));
    let full = memory.stats().nr_used;
    assert!(
        full > memory.content_pages() - 128,
        "{full} of {}",
        memory.content_pages()
    );
    let bufs: Vec<Frame> = (0..1000)
        .map(|_| memory.alloc_buf(CPU.into(), work, Order::ZERO).unwrap().0)
        .collect();
    assert!(memory.groups().get(root).unwrap().usage() <= 4096);
    memory.check();
    bufs.into_iter()
        .for_each(|frame| memory.free_buf(CPU, frame));
    memory.check();
}

#[test]
fn a_dropped_group_gives_everything_back() {
    let (memory, group, file) = memory(50, Policy::Mglru);
    (0..50).for_each(|page| _ = touch(&memory, group, key(file, page)));
    let (frame, _) = have(&memory, group, key(file, 7), Ok(())).unwrap();
    memory.drop_group(CPU, group);
    assert_eq!(memory.stats().nr_used, 1);
    memory.unpin(CPU, frame, &mut Effects::new());
    memory.tick(CPU, 0);
    assert_eq!(memory.stats().nr_used, 0);
    assert!(memory.groups().get(group).is_none());
    memory.check();
}

#[test]
fn a_lowered_limit_acts_at_once_and_says_what_stays() {
    let (memory, group, file) = memory(64, Policy::Mglru);
    let pinned: Vec<Frame> = (0..10)
        .map(|page| have(&memory, group, key(file, page), Ok(())).unwrap().0)
        .collect();
    (10..64).for_each(|page| _ = touch(&memory, group, key(file, page)));
    assert_eq!(memory.set_max(CPU.into(), group, 20), Ok(0));
    assert!(memory.groups().get(group).unwrap().usage() <= 20);
    assert_eq!(memory.set_max(CPU.into(), group, 4), Ok(6));
    pinned
        .into_iter()
        .for_each(|frame| memory.unpin(CPU, frame, &mut Effects::new()));
    assert_eq!(memory.set_max(CPU.into(), group, 4), Ok(0));
    memory.check();
}

#[test]
fn a_budget_of_a_few_frames_is_refused() {
    let refused = Memory::try_new(Config::new(20, 2, Policy::Fifo));
    assert!(matches!(
        refused,
        Err(BuildError::BudgetTooSmall {
            budget_pages: 20,
            ..
        })
    ));
}

#[test]
fn groups_go_to_their_nodes() {
    let topology = Topology::grid(4, 2).unwrap();
    let memory = Memory::try_new(Config::on(topology, 16_384, Policy::Mglru)).unwrap();
    let group = memory
        .new_group(CPU.into(), memory.groups().root())
        .unwrap();
    let node_of = |cpu| {
        let (frame, _) = memory
            .alloc_buf(Cpu::new(cpu).into(), group, Order::ZERO)
            .unwrap();
        let zone = memory.zones().iter().find(|zone| zone.holds(frame));
        let node = zone.unwrap().config().node.number();
        memory.free_buf(CPU, frame);
        node
    };
    assert_eq!([0, 2, 7].map(node_of), [0, 1, 3]);
    let nodes = NodeMask::from_bits(0b1010);
    memory.set_mempolicy(group, Mempolicy::Interleave(nodes));
    assert_eq!([0, 0, 0].map(node_of), [1, 3, 1]);
    memory.set_mempolicy(group, Mempolicy::Preferred(Node::new(2).unwrap()));
    assert_eq!(node_of(0), 2);
    memory.set_mempolicy(group, Mempolicy::Bind(nodes));
    assert_eq!(node_of(6), 3);
    memory.set_mempolicy(group, Mempolicy::Local);
    // A caller elsewhere is served where the group's CPUs are.
    memory.set_cpus(group, CpuMask::of([4, 5].map(Cpu::new)));
    assert_eq!([0, 4].map(node_of), [2, 2]);
    memory.set_mems(group, NodeMask::from_bits(0b1000));
    assert_eq!([0, 4].map(node_of), [3, 3]);
    memory.check();
}

#[test]
fn a_block_that_was_in_its_zone_is_nobodys() {
    let memory = Memory::try_new(Config::new(4096, 2, Policy::Mglru)).unwrap();
    let root = memory.groups().root();
    let [web, batch] = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let order = Order::new(1).unwrap();
    let (first, was_ours) = memory.alloc_buf(CPU.into(), web, order).unwrap();
    assert!(!was_ours);
    memory.free_buf(CPU, first);
    let (again, was_ours) = memory.alloc_buf(CPU.into(), web, order).unwrap();
    assert!(again == first && was_ours);
    memory.free_buf(CPU, again);
    // In its zone the block is cut: its second half becomes another group's.
    memory.drain();
    let halves: Vec<(Frame, bool)> = (0..4096 / 8)
        .map(|_| memory.alloc_buf(CPU.into(), batch, Order::ZERO).unwrap())
        .collect();
    assert!(halves.iter().all(|&(_, was_ours)| !was_ours));
    halves
        .into_iter()
        .for_each(|(frame, _)| memory.free_buf(CPU, frame));
    memory.drain();
    let (_, was_ours) = memory.alloc_buf(CPU.into(), web, order).unwrap();
    assert!(!was_ours);
}

#[test]
fn bytes_of_a_block_that_was_joined_are_nobodys() {
    let (memory, ours, _) = memory(4096, Policy::Fifo);
    let theirs = memory
        .new_group(CPU.into(), memory.groups().root())
        .unwrap();
    let order = Order::new(1).unwrap();
    // Pages of both groups in turn, so that a pair of frames has bytes of both: groups near their
    // limits have no magazines.
    let limit = |group, max| assert_eq!(memory.set_max(CPU.into(), group, max), Ok(0));
    limit(ours, 100);
    limit(theirs, 100);
    let pages: Vec<Frame> = [ours, theirs]
        .into_iter()
        .cycle()
        .take(64)
        .map(|group| memory.alloc_buf(CPU.into(), group, Order::ZERO).unwrap().0)
        .collect();
    let is_mixed = |pair: &&[Frame]| {
        let [first, second] = [pair[0], pair[1]].map(Frame::number);
        first % 2 == 0 && second == first + 1
    };
    assert!(pages.chunks(2).filter(is_mixed).count() > 8, "{pages:?}");
    pages
        .into_iter()
        .for_each(|frame| memory.free_buf(CPU, frame));
    memory.drain();
    limit(ours, NO_LIMIT);
    let take = || memory.alloc_buf(CPU.into(), ours, order).unwrap();
    let blocks: Vec<(Frame, bool)> = (0..64).map(|_| take()).collect();
    assert!(blocks.iter().all(|(_, was_ours)| !was_ours));
    // What only passed through the CPU's cache is as the group left it.
    let last = blocks.last().unwrap().0;
    memory.free_buf(CPU, last);
    assert_eq!(take(), (last, true));
}

#[test]
fn node_reclaim_keeps_a_group_near() {
    let far_blocks = |node_reclaim| {
        let topology = Topology::grid(2, 1).unwrap();
        let mut config = Config::on(topology, 8192, Policy::Fifo);
        config.alloc.node_reclaim = node_reclaim;
        let memory = Memory::try_new(config).unwrap();
        let group = memory
            .new_group(CPU.into(), memory.groups().root())
            .unwrap();
        let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
        (0..6000).for_each(|page| _ = touch(&memory, group, key(file, page)));
        memory.check();
        memory.zones().node_stats(Node::new(1).unwrap()).numa_miss
    };
    assert!(far_blocks(false) > 1000, "half of the frames are near");
    assert_eq!(far_blocks(true), 0);
}

#[test]
fn a_whole_pageblock_is_its_groups_until_it_is_cut() {
    let memory = Memory::try_new(Config::new(8192, 2, Policy::Mglru)).unwrap();
    let root = memory.groups().root();
    let [web, batch] = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let [order, larger] = [9, 10].map(|order| Order::new(order).unwrap());
    let cycle = |group, order| {
        let (frame, was_ours) = memory.alloc_buf(CPU.into(), group, order).unwrap();
        memory.free_buf(CPU, frame);
        memory.drain();
        memory.check();
        (frame, was_ours)
    };
    let (first, was_ours) = cycle(web, order);
    assert!(!was_ours);
    assert_eq!(cycle(web, order), (first, true));
    // Another group gets it as nobody's, and then it is that one's.
    assert_eq!(cycle(batch, order), (first, false));
    assert_eq!(cycle(batch, order), (first, true));
    // Two pageblocks are a group's where both are.
    let (wide, was_ours) = cycle(batch, larger);
    assert!(!was_ours && wide.number() <= first.number());
    assert_eq!(cycle(batch, larger), (wide, true));
    let (half, was_ours) = cycle(web, order);
    assert!(half == wide && !was_ours);
    assert_eq!(cycle(web, larger), (wide, false));
    // Cut and joined again: whoever had a piece of it may have left bytes there.
    assert_eq!(cycle(web, order), (wide, true));
    assert_eq!(cycle(batch, Order::new(1).unwrap()), (wide, false));
    assert_eq!(cycle(web, order), (wide, false));
}

#[test]
fn a_group_whose_number_comes_back_finds_nothing_of_its_own() {
    let memory = Memory::try_new(Config::new(4096, 2, Policy::Mglru)).unwrap();
    let root = memory.groups().root();
    let order = Order::new(9).unwrap();
    let first = memory.new_group(CPU.into(), root).unwrap();
    let leave = |group| {
        let (frame, was_ours) = memory.alloc_buf(CPU.into(), group, order).unwrap();
        memory.free_buf(CPU, frame);
        was_ours
    };
    leave(first);
    memory.drain();
    memory.drop_group(CPU, first);
    let mut nr_between = 0;
    let again = loop {
        let group = memory.new_group(CPU.into(), root).unwrap();
        if group == first {
            break group;
        }
        nr_between += 1;
        memory.drop_group(CPU, group);
    };
    assert_eq!(nr_between, 4095);
    assert!(!leave(again) && leave(again));
}

#[test]
fn a_group_is_buried_once_whoever_does_it() {
    let memory = Memory::try_new(Config::new(4096, 2, Policy::Mglru)).unwrap();
    let is_over = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_over.load(Ordering::Relaxed) == 0 {
                memory.tick(CPU, 0);
            }
        });
        for _ in 0..20_000 {
            let group = memory
                .new_group(CPU.into(), memory.groups().root())
                .unwrap();
            memory.drop_group(CPU, group);
        }
        is_over.store(1, Ordering::Relaxed);
    });
    memory.tick(CPU, 0);
    assert_eq!(memory.groups().iter().count(), 1, "the root alone");
}

#[test]
fn groups_that_could_not_be_buried_do_not_wait_for_a_tick() {
    let memory = Memory::try_new(Config::new(4096, 2, Policy::Gated2q)).unwrap();
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    // Dropped with a page that somebody has pinned.
    let drop_in_use = |page: u32| {
        let root = memory.groups().root();
        let group = memory.new_group(CPU.into(), root).unwrap();
        let (frame, _) = have(&memory, group, key(file, page.into()), Ok(())).unwrap();
        memory.drop_group(CPU, group);
        frame
    };
    let pinned: Vec<Frame> = (1..MAX_UNBURIED).map(drop_in_use).collect();
    for frame in pinned {
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    let nr_groups = || memory.groups().iter().count();
    assert_eq!(nr_groups(), MAX_UNBURIED as usize, "none is looked at");
    let last = drop_in_use(0);
    assert_eq!(nr_groups(), 2, "the root, and the one in use");
    memory.unpin(CPU, last, &mut Effects::new());
    memory.check();
}
