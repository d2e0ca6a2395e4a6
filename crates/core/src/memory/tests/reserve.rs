//! Named cases of reservations, the balloon and a budget that moves.

use super::super::config::TABLE_PAGES;
use super::*;
use crate::alloc::PAGEBLOCK_PAGES;
use crate::group::Limit;

pub(super) const REGION: u64 = PAGEBLOCK_PAGES as u64;

/// Eight pageblocks of content, all of it pages of one group.
pub(super) fn full_of_pages() -> (Memory, [u32; 2], u32) {
    full_with(0)
}

/// The same, of which a share is for movable pages only.
pub(super) fn full_with(movable_percent: u8) -> (Memory, [u32; 2], u32) {
    let mut config = Config::for_resident(8 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    config.alloc.movable_percent = movable_percent;
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let groups = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    for page in 0..9 * REGION {
        let (frame, _) = have(&memory, groups[0], key(file, page), Ok(())).unwrap();
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    memory.groups().drain(root);
    (memory, groups, file)
}

pub(super) fn pages(nr_pages: u64) -> u64 {
    nr_pages * PAGE_BYTES as u64
}

/// Runs what a reservation needs; returns the blocks that had memory, by order.
pub(super) fn settle(memory: &Memory) -> Vec<u8> {
    let mut released = Vec::new();
    while let Some(idle) = memory.next_offline(CPU.into()) {
        if idle.has_memory() {
            released.push(idle.order().get());
        }
        memory.put_offline(idle, true);
    }
    memory.check();
    released
}

#[test]
fn a_reservation_takes_whole_pageblocks_out_of_a_full_cache() {
    let (memory, [_, work], _) = full_of_pages();
    let before = memory.stats().pgsteal;
    memory.reserve(CPU.into(), work, pages(3 * REGION)).unwrap();
    assert_eq!(settle(&memory), [9, 9, 9]);
    assert_eq!(memory.offline_pages(), 3 * REGION);
    // What was evicted for it is what went, but for the last, incomplete, batch.
    let evicted = memory.stats().pgsteal - before;
    assert!(evicted <= 3 * REGION + 64, "{evicted} pages evicted");
    memory.unreserve(CPU, work, pages(3 * REGION));
    assert_eq!((memory.offline_pages(), memory.reserved_bytes()), (0, 0));
    memory.check();
}

#[test]
fn untouched_pageblocks_cost_nothing() {
    let config = Config::for_resident(8 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    let memory = Memory::try_new(config).unwrap();
    let work = memory.new_group(CPU.into(), memory.groups().root());
    let work = work.unwrap();
    memory.reserve(CPU.into(), work, pages(4 * REGION)).unwrap();
    assert_eq!(settle(&memory), []);
    assert_eq!(memory.offline_pages(), 4 * REGION);
}

#[test]
fn a_forced_reservation_goes_past_a_limit_by_no_more_than_it_has_to() {
    let (memory, [_, work], _) = full_of_pages();
    let root = memory.groups().root();
    let most = u64::from(memory.content_pages());
    for nr_pages in [most - REGION, 2 * REGION, 2 * most] {
        memory.reserve_forced(CPU.into(), work, pages(nr_pages));
    }
    settle(&memory);
    memory.groups().drain(root);
    let own = memory.config().own_pages() + memory.groups().nr_record_pages();
    let usage = memory.groups().get(root).unwrap().usage();
    assert_eq!(usage, 3 * most + REGION + u64::from(own));
    memory.unreserve(CPU, work, pages(3 * most + REGION));
    memory.check();
}

#[test]
fn a_refused_reservation_leaves_everything_in_use() {
    let (memory, [cached, work], _) = full_of_pages();
    let root = memory.groups().root();
    let limit = |memory: &Memory, pages| memory.groups().set_limit(cached, Limit::Min, pages);
    limit(&memory, 6 * REGION).unwrap();
    let refused = memory.reserve(CPU.into(), work, pages(4 * REGION));
    assert_eq!(refused, Err(AllocError::OverLimit { group: root }));
    assert_eq!(settle(&memory), []);
    assert_eq!((memory.offline_pages(), memory.reserved_bytes()), (0, 0));
    let kept = memory.groups().get(cached).unwrap().usage();
    assert!(kept >= 6 * REGION, "{kept} pages of a protected group");
    assert_eq!(memory.groups().get(work).unwrap().usage(), 0);
}

#[test]
fn where_pins_are_everywhere_smaller_blocks_go() {
    smaller_blocks_go(full_of_pages(), 3 * REGION);
}

#[test]
fn smaller_blocks_go_where_only_pages_may_be_too() {
    smaller_blocks_go(full_with(75), 5 * REGION);
}

/// Reserves so much where one page of each pageblock is pinned.
fn smaller_blocks_go(full: (Memory, [u32; 2], u32), nr_pages: u64) {
    let (memory, [cached, work], file) = full;
    // One page of each pageblock stays.
    let mut pinned = Vec::new();
    let mut seen = [false; 16];
    for page in 0..9 * REGION {
        let Found::Pinned(frame) = pin(&memory, key(file, page), Access::Pin) else {
            continue;
        };
        let block = &mut seen[usize::try_from(frame.number() / PAGEBLOCK_PAGES).unwrap()];
        if core::mem::replace(block, true) {
            memory.unpin(CPU, frame, &mut Effects::new());
        } else {
            pinned.push(frame);
        }
    }
    // The frames beyond the budget may be a pageblock without any page.
    memory.reserve(CPU.into(), work, pages(nr_pages)).unwrap();
    let orders = settle(&memory);
    assert_eq!(memory.offline_pages(), nr_pages, "in blocks of {orders:?}");
    assert!(orders.iter().any(|&order| order < 9), "{orders:?}");
    let pins: usize = memory.pinned(cached).count();
    assert_eq!(pins, pinned.len());
    memory.unreserve(CPU, work, pages(nr_pages));
    memory.check();
    for frame in pinned {
        memory.unpin(CPU, frame, &mut Effects::new());
    }
}

#[test]
fn a_reservation_that_goes_up_and_down_keeps_its_last_pageblock_out() {
    let (memory, [_, work], _) = full_of_pages();
    // Eight pageblocks are too few for slack: 1/64 of the arena is none.
    memory.begin_reservation();
    memory.reserve(CPU.into(), work, pages(REGION)).unwrap();
    assert_eq!(settle(&memory), [9]);
    memory.unreserve(CPU, work, pages(REGION));
    assert_eq!(memory.offline_pages(), 0);
    memory.end_reservation();
    // A hundred give room for one.
    let config = Config::for_resident(100 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    let memory = Memory::try_new(config).unwrap();
    let work = memory.new_group(CPU.into(), memory.groups().root());
    let work = work.unwrap();
    // What core's records take of the budget is out of use anyway.
    let records = memory.offline_pages();
    memory.begin_reservation();
    for _ in 0..3 {
        memory.reserve(CPU.into(), work, pages(3 * REGION)).unwrap();
        assert_eq!(settle(&memory), []);
        memory.unreserve(CPU, work, pages(3 * REGION));
        assert_eq!(memory.offline_pages(), records + REGION);
    }
    memory.end_reservation();
    assert_eq!(memory.offline_pages(), records);
}

#[test]
fn the_budget_moves_within_the_arena() {
    let mut config = Config::for_resident(8 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    let arena = u64::from(config.arena_pages);
    config.budget_pages -= 4 * PAGEBLOCK_PAGES;
    let memory = Memory::try_new(config).unwrap();
    assert_eq!(memory.offline_pages(), 4 * REGION);
    let root = memory.groups().root();
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    let fill = |memory: &Memory| {
        for page in 0..9 * REGION {
            let (frame, _) = have(memory, root, key(file, page), Ok(())).unwrap();
            memory.unpin(CPU, frame, &mut Effects::new());
        }
        u64::from(memory.stats().nr_used)
    };
    let small = fill(&memory);
    assert!(small <= 4 * REGION + 200, "{small} pages");
    assert_eq!(memory.set_budget(CPU.into(), arena), Ok(0));
    assert_eq!(settle(&memory), []);
    assert_eq!(memory.offline_pages(), 0);
    let large = fill(&memory);
    assert!(large >= 8 * REGION - 200, "{large} pages");
    assert_eq!(memory.set_budget(CPU.into(), arena - 6 * REGION), Ok(0));
    assert_eq!(settle(&memory), [9; 6]);
    let (most, least) = match memory.set_budget(CPU.into(), arena + 1) {
        Err(BadBudget { most, least }) => (most, least),
        Ok(over) => panic!("{over} pages over a budget beyond the arena"),
    };
    assert_eq!(most, arena);
    assert!(memory.set_budget(CPU.into(), least - 1).is_err());
}

#[test]
fn a_forced_reservation_is_counted_and_given_back() {
    let (memory, [_, work], _) = full_of_pages();
    memory.set_max(CPU.into(), work, 100).unwrap();
    memory.reserve_forced(CPU.into(), work, pages(REGION));
    assert_eq!(
        memory.groups().get(work).unwrap().count(Count::Pgforced),
        REGION
    );
    // The budget has room for it, as others' pages can go.
    let root = memory.groups().get(memory.groups().root()).unwrap();
    assert!(root.usage() <= root.max());
    assert_eq!(settle(&memory), [9]);
    memory.unreserve(CPU, work, pages(REGION));
    memory.check();
    assert_eq!(memory.groups().get(work).unwrap().usage(), 0);
}

#[test]
fn a_budget_may_go_below_the_roots_min() {
    let config = Config::for_resident(8 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    let budget = u64::from(config.budget_pages);
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    memory.groups().set_limit(root, Limit::Min, budget).unwrap();
    assert_eq!(memory.set_budget(CPU.into(), budget - REGION), Ok(0));
    assert_eq!(settle(&memory), []);
    assert_eq!(memory.offline_pages(), REGION);
}

#[test]
fn reservations_of_a_group_share_the_page_of_their_last_bytes() {
    let config = Config::for_resident(8 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let byte = 1;
    let before = memory.groups().get(root).unwrap().usage();
    for _ in 0..3 * TABLE_PAGES {
        memory.begin_reservation();
        memory.reserve(CPU.into(), root, byte).unwrap();
    }
    memory.groups().drain(root);
    assert_eq!(memory.groups().get(root).unwrap().usage(), before + 1);
    memory.check();
    for _ in 0..3 * TABLE_PAGES {
        memory.unreserve(CPU, root, byte);
        memory.end_reservation();
    }
    memory.check();
}

#[test]
fn a_count_taken_while_pages_go_out_of_use_is_a_count() {
    let config = Config::for_resident(8 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    memory.reserve(CPU.into(), root, pages(REGION)).unwrap();
    // Between the claim and the taking, the frames are free and counted as out of use.
    assert!(memory.claim_offline(REGION));
    assert_eq!(memory.stats().nr_used, 0);
}

#[test]
fn bytes_within_a_charged_page_are_never_refused() {
    let (memory, [_, work], _) = full_of_pages();
    memory.reserve(CPU.into(), work, pages(10) - 100).unwrap();
    assert_eq!(memory.set_max(CPU.into(), work, 5), Ok(5));
    let events = memory.groups().get(work).unwrap().events();
    memory.reserve(CPU.into(), work, 100).unwrap();
    assert_eq!(memory.groups().get(work).unwrap().events(), events);
    memory.unreserve(CPU, work, pages(10));
    memory.check();
}

#[test]
fn an_arena_below_the_budget_is_as_large_as_the_budget() {
    let mut config = Config::for_resident(2 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    config.arena_pages = 0;
    let budget = u64::from(config.budget_pages);
    let memory = Memory::try_new(config).unwrap();
    assert_eq!(memory.offline_pages(), 0);
    assert_eq!(memory.set_budget(CPU.into(), budget), Ok(0));
    assert!(memory.set_budget(CPU.into(), budget + 1).is_err());
}

#[test]
fn a_budget_below_the_arena_is_there_from_the_start_whatever_the_sizes() {
    for (nr_nodes, nr_cpus) in [(1, 1), (2, 1), (3, 2)] {
        for nr_pages in (700..9000).step_by(411) {
            let topology = Topology::grid(nr_nodes, nr_cpus).unwrap();
            let mut config = Config::on(topology, nr_pages, Policy::Fifo);
            config.budget_pages = config.own_pages() + MIN_PAGES;
            if config.budget_pages > nr_pages {
                continue;
            }
            let memory = Memory::try_new(config).unwrap();
            let below = u64::from(nr_pages - memory.content_pages());
            assert!(memory.offline_pages() <= below);
            memory.check();
        }
    }
}

#[test]
fn a_reservation_takes_all_that_may_go_however_many_rounds_that_needs() {
    // Of order 6, a batch each; one in eight is another group's, so that no pageblock is emptied.
    const NR_BATCHES: u64 = 5000;
    let order = Order::new(6).unwrap();
    let nr_pages = 64 * u32::try_from(2 * NR_BATCHES).unwrap();
    let memory = Memory::try_new(Config::for_resident(nr_pages, 1, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let [group, other] = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let file = memory.open_mapping(CPU.into(), order).unwrap();
    for page in 0..NR_BATCHES * 8 / 7 {
        let group = if page % 8 == 0 { other } else { group };
        touch(&memory, group, key(file, page));
    }
    memory.drain_charges(root);
    let usage = memory.groups().get(group).unwrap().usage();
    assert_eq!(memory.set_max(CPU.into(), group, usage), Ok(0));
    memory
        .reserve(CPU.into(), group, pages(usage - 100))
        .unwrap();
}

#[test]
fn the_least_budget_is_the_least_and_lets_a_page_in() {
    for (nr_cpus, budget) in [1, 2, 64, 256]
        .map(|n| [0, 30].map(|b| (n, b)))
        .as_flattened()
    {
        let config = |nr_pages| Config::new(nr_pages, *nr_cpus, Policy::default());
        let Err(BuildError::BudgetTooSmall { needed_pages, .. }) = Memory::try_new(config(*budget))
        else {
            panic!("{budget} pages are too few");
        };
        assert!(Memory::try_new(config(needed_pages - 1)).is_err());
        let memory = Memory::try_new(config(needed_pages)).unwrap();
        let root = memory.groups().root();
        let group = memory.new_group(CPU.into(), root).unwrap();
        let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
        for page in 0..100 {
            touch(&memory, group, key(file, page));
        }
        memory.check();
    }
}

#[test]
fn frames_in_use_and_records_keep_the_promise_of_the_budget() {
    const MIB: u64 = 1 << 20;
    let budgets = [16, 64, 512, 2048, 8192, 65_536].map(|mib| mib * MIB);
    for (nr_cpus, budget) in [2, 256].into_iter().flat_map(|n| budgets.map(|b| (n, b))) {
        let nr_pages = u32::try_from(budget / PAGE_BYTES as u64).unwrap();
        let config = Config::new(nr_pages, nr_cpus, Policy::Mglru);
        let memory = Memory::try_new(config).unwrap();
        let frames = u64::from(memory.frames().len()) - memory.offline_pages();
        let records = u64::from(memory.config().metadata_pages());
        let most = (frames + records) * PAGE_BYTES as u64;
        let promise = budget + budget / 50 + 16 * MIB;
        // Room for a block on its way to the OS.
        assert!(
            most + 2 * MIB <= promise,
            "{most} of {promise} bytes at {budget} with {nr_cpus} CPUs"
        );
    }
}

#[test]
fn what_is_freed_under_a_budget_that_is_exceeded_goes_out_of_use() {
    let config = Config::for_resident(8 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
    let arena = u64::from(config.arena_pages);
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let order = Order::new(9).unwrap();
    let alloc = || memory.alloc_buf(CPU.into(), root, order).unwrap().0;
    let bufs = [(); 8].map(|()| alloc());
    assert!(!memory.is_balloon_short());
    assert!(memory.set_budget(CPU.into(), arena - 4 * REGION).unwrap() > 3 * REGION);
    settle(&memory);
    assert!(memory.is_balloon_short());
    let mut nr_whole = 0;
    for buf in bufs {
        memory.free_buf(CPU, buf);
        memory.drain();
        let out = memory.offline_pages();
        let Some(idle) = memory.next_free_offline() else {
            assert!(out > 3 * REGION, "{out} pages out of use");
            continue;
        };
        nr_whole += 1;
        assert_eq!((idle.order().get(), idle.has_memory()), (9, true));
        memory.put_offline(idle, true);
        assert_eq!(memory.offline_pages(), out + REGION);
    }
    assert!(nr_whole > 0);
    settle(&memory);
    assert!(!memory.is_balloon_short());
    assert_eq!(memory.offline_pages(), 4 * REGION);
}

#[test]
fn what_the_os_could_not_have_is_offered_again() {
    let (memory, [_, work], _) = full_of_pages();
    memory.reserve(CPU.into(), work, pages(2 * REGION)).unwrap();
    while let Some(idle) = memory.next_offline(CPU.into()) {
        memory.put_offline(idle, false);
    }
    for left in (0..2).rev() {
        let idle = memory.next_resident().unwrap();
        assert!(idle.has_memory());
        memory.put_offline(idle, true);
        memory.check();
        assert_eq!(memory.offline_pages(), 2 * REGION, "{left} left");
    }
    assert!(memory.next_resident().is_none());
}

#[test]
fn pieces_come_back_though_a_pageblock_went_after_them() {
    let (memory, [group, work], file) = full_of_pages();
    // A pin in each pageblock: none can be emptied.
    let mut pins: Vec<Frame> = (0..9 * REGION)
        .filter_map(|page| memory.resident(key(file, page)))
        .collect();
    pins.sort();
    pins.dedup_by_key(|frame| frame.number() / PAGEBLOCK_PAGES);
    for &frame in &pins {
        let page = memory.frames.key(frame).unwrap();
        assert_eq!(have(&memory, group, page, Ok(())).unwrap().0, frame);
    }
    // A whole one that nobody has used yet goes first.
    let (mut nr_whole, mut in_pieces) = (0, 0);
    while in_pieces == 0 {
        memory.reserve(CPU.into(), work, pages(REGION)).unwrap();
        let idle = memory.next_offline(CPU.into()).unwrap();
        match u64::from(idle.order().nr_pages()) {
            REGION => nr_whole += 1,
            piece => in_pieces = piece,
        }
        memory.put_offline(idle, true);
    }
    let idle = memory.next_offline(CPU.into()).unwrap();
    in_pieces += u64::from(idle.order().nr_pages());
    memory.put_offline(idle, true);
    assert!(in_pieces < REGION);
    for frame in pins.drain(..) {
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    memory.reserve(CPU.into(), work, pages(REGION)).unwrap();
    let idle = memory.next_offline(CPU.into()).unwrap();
    assert_eq!(u64::from(idle.order().nr_pages()), REGION);
    memory.put_offline(idle, true);
    let whole = (nr_whole + 1) * REGION;
    assert_eq!(memory.offline_pages(), whole + in_pieces);
    // One pageblock less is wanted: the pieces are too many.
    memory.unreserve(CPU, work, pages(REGION));
    assert_eq!(memory.offline_pages(), whole);
    memory.unreserve(CPU, work, pages(whole));
    assert_eq!(memory.offline_pages(), 0);
    memory.check();
}

#[test]
fn what_is_kept_for_writes_is_there_beside_zones_for_pages() {
    let (memory, [_, work], _) = full_with(75);
    let take = |here| memory.alloc_buf(here, work, Order::ZERO);
    let taken = core::iter::from_fn(|| take(Here::from(CPU)).ok());
    let mut bufs: Vec<Frame> = taken.map(|(frame, _)| frame).collect();
    let kept = [1, 2].map(|_| take(Here::from(CPU).for_writes()).unwrap().0);
    bufs.extend(kept);
    for frame in bufs {
        memory.free_buf(CPU, frame);
    }
    memory.check();
}

#[test]
fn what_comes_back_after_a_forced_reservation_serves_no_new_request() {
    let memory = Memory::try_new(Config::new(1 << 18, 2, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let parent = memory.new_group(CPU.into(), root).unwrap();
    let group = memory.new_group(CPU.into(), parent).unwrap();
    assert_eq!(memory.set_max(CPU.into(), parent, 4000), Ok(0));
    let alloc = || memory.alloc_buf(CPU.into(), group, Order::ZERO);
    let bufs: Vec<Frame> = (0..209).map(|_| alloc().unwrap().0).collect();
    bufs.into_iter()
        .for_each(|frame| memory.free_buf(CPU, frame));
    // Its magazines are there, and empty.
    let bufs: Vec<Frame> = (0..209).map(|_| alloc().unwrap().0).collect();
    memory.reserve_forced(CPU.into(), group, pages(5000));
    bufs.into_iter()
        .for_each(|frame| memory.free_buf(CPU, frame));
    assert_eq!(memory.groups().get(parent).unwrap().usage(), 5000);
    let refused = alloc().map(|_| ());
    assert_eq!(refused, Err(AllocError::OverLimit { group: parent }));
    memory.unreserve(CPU, group, pages(5000));
    // Below its limit again, it has magazines.
    let (frame, _) = alloc().unwrap();
    memory.free_buf(CPU, frame);
    assert!(memory.magazines.nr_blocks() > 0);
    memory.check();
}
