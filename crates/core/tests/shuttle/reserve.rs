//! Reservations, the budget and dropped groups against page faults, pins and working memory. Under
//! a checker a pageblock has 64 pages, so that a memory of a few hundred has several.

use super::{RUNS, World, check, check_under, reader};
use pagetide_core::alloc::PAGEBLOCK_PAGES;
use pagetide_core::memory::{AllocError, Config, Memory};
use pagetide_core::page_cache::Mappings;
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Order, PAGE_BYTES};
use shuttle::scheduler::PctScheduler;
use shuttle::sync::Mutex;
use shuttle::thread;
use std::collections::HashMap;
use std::sync::Arc;

const NR_REGIONS: u32 = 3;

/// A memory of a few pageblocks, all content of one group that only the budget limits.
fn world() -> World {
    let nr_pages = NR_REGIONS * PAGEBLOCK_PAGES;
    let config = Config::for_resident(nr_pages, 2, Policy::Fifo);
    let memory = Memory::try_new(config).expect("memory");
    let cpu = Cpu::new(0);
    let root = memory.groups().root();
    let group = memory.new_group(cpu.into(), root).expect("a group");
    let file = memory.open_mapping(cpu.into(), Order::ZERO);
    let world = World {
        memory,
        group,
        file: file.expect("a file"),
        content: Mutex::new(HashMap::new()),
        parked: Default::default(),
    };
    for page in 0..u64::from(nr_pages) {
        let key = Mappings::key(world.file, page).expect("a small page");
        let frame = world.have(cpu, key, false).expect("room");
        world.unpin(cpu, frame);
    }
    world
}

/// A charged request has a frame: only limits may refuse a single page.
fn assert_over_limit(error: AllocError) {
    assert!(matches!(error, AllocError::OverLimit { .. }), "{error:?}");
}

/// Runs what a reservation or a budget leaves to do.
fn settle(world: &World, cpu: Cpu) {
    while let Some(idle) = world.memory.next_offline(cpu.into()) {
        thread::yield_now();
        world.memory.put_offline(idle, true);
    }
}

/// Grows and shrinks a reservation by pieces below and above a pageblock.
fn reserver(world: &World, cpu: Cpu, sizes: &[u32]) {
    let memory = &world.memory;
    memory.begin_reservation();
    let mut held = Vec::new();
    for &nr_pages in sizes {
        let reserved = u64::from(nr_pages) * PAGE_BYTES as u64;
        match memory.reserve(cpu.into(), world.group, reserved) {
            Ok(()) => held.push(reserved),
            Err(error) => assert_over_limit(error),
        }
        settle(world, cpu);
        if held.len() > 1 {
            memory.unreserve(cpu, world.group, held.swap_remove(0));
        }
    }
    for reserved in held {
        memory.unreserve(cpu, world.group, reserved);
    }
    memory.end_reservation();
}

/// Takes working memory and gives it back.
fn worker(world: &World, cpu: Cpu) {
    for order in [0, 2, 0, 6, 0] {
        let order = Order::new(order).expect("an order");
        match world.memory.alloc_buf(cpu.into(), world.group, order) {
            Ok((frame, _)) => {
                thread::yield_now();
                world.memory.free_buf(cpu, frame);
            }
            Err(error) if order == Order::ZERO => assert_over_limit(error),
            Err(_) => {}
        }
    }
}

/// A group that is dropped while it holds a page and a reservation.
fn dropper(world: &World, cpu: Cpu) {
    let memory = &world.memory;
    let group = memory.new_group(cpu.into(), memory.groups().root());
    let group = group.expect("room for a record");
    let pages = 3 * PAGE_BYTES as u64;
    memory.reserve_forced(cpu.into(), group, pages);
    let buf = memory.alloc_buf(cpu.into(), group, Order::ZERO);
    memory.drop_group(cpu, group);
    memory.unreserve(cpu, group, pages);
    match buf {
        Ok((frame, _)) => memory.free_buf(cpu, frame),
        Err(error) => assert_over_limit(error),
    }
    memory.tick(cpu, 0);
    assert!(
        memory.groups().get(group).is_none(),
        "nothing is left of it"
    );
}

/// Moves the budget by a pageblock and back.
fn mover(world: &World, cpu: Cpu) {
    let arena = u64::from(world.memory.config().arena_pages);
    for below in [u64::from(PAGEBLOCK_PAGES), 0] {
        let set = world.memory.set_budget(cpu.into(), arena - below);
        assert!(set.is_ok());
        settle(world, cpu);
    }
}

/// Asserts at rest that nothing is reserved, out of use or lost.
fn end(world: &World) {
    let memory = &world.memory;
    memory.check();
    assert_eq!((memory.reserved_bytes(), memory.offline_pages()), (0, 0));
    memory.drain();
    world.close();
    let frames = memory.zones().managed();
    assert_eq!(memory.zones().nr_free(), frames);
}

fn run(works: [fn(&World); 4]) {
    let world = Arc::new(world());
    let threads = works.map(|work| {
        let world = Arc::clone(&world);
        thread::spawn(move || work(&world))
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    end(&world);
}

#[test]
fn reservations_against_faults_pins_and_working_memory() {
    check(|| {
        run([
            |world| reserver(world, Cpu::new(0), &[70, 1, 64]),
            |world| reserver(world, Cpu::new(1), &[1, 66, 5]),
            |world| reader(world, 2, 200),
            |world| worker(world, Cpu::new(1)),
        ]);
    });
}

#[test]
fn a_budget_that_moves_and_groups_that_go_against_reservations() {
    check(|| {
        run([
            |world| reserver(world, Cpu::new(0), &[65, 2]),
            |world| mover(world, Cpu::new(1)),
            |world| mover(world, Cpu::new(0)),
            |world| dropper(world, Cpu::new(1)),
        ]);
    });
}

/// One reservation gives a pageblock back while another takes one: afterwards as much is out of
/// use as is reserved, whoever of them looked first.
#[test]
fn what_one_reservation_gives_back_another_does_not_lose() {
    const BYTES: u64 = PAGEBLOCK_PAGES as u64 * 4096;
    // One thread goes a long way between two steps of the other: few switches, anywhere.
    check_under(PctScheduler::new_from_seed(1, 2, 10 * RUNS), || {
        let config = Config::for_resident(3 * PAGEBLOCK_PAGES, 2, Policy::Fifo);
        let memory = Arc::new(Memory::try_new(config).expect("memory"));
        let cpu = Cpu::new(0);
        let root = memory.groups().root();
        let settle = |memory: &Memory| {
            while let Some(idle) = memory.next_offline(cpu.into()) {
                memory.put_offline(idle, true);
            }
        };
        for _ in 0..2 {
            memory.reserve(cpu.into(), root, BYTES).expect("room");
        }
        settle(&memory);
        let other = Arc::clone(&memory);
        let gives = thread::spawn(move || other.unreserve(Cpu::new(1), root, BYTES));
        memory.reserve(cpu.into(), root, BYTES).expect("room");
        settle(&memory);
        gives.join().expect("no panic");
        let reserved = memory.reserved_bytes() / 4096;
        assert_eq!(reserved, 2 * u64::from(PAGEBLOCK_PAGES));
        assert!(memory.offline_pages() >= reserved);
        assert!(!memory.is_balloon_short());
    });
}
