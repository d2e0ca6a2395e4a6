//! Reads that end beside somebody who lacks memory, who comes between wherever that can be.

use super::{RUNS, World, check, check_under};
use pagetide_core::memory::{Discard, Effects, Ended, PageIn};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::Cpu;
use shuttle::scheduler::PctScheduler;
use shuttle::thread;
use std::sync::Arc;

const CPU: Cpu = Cpu::new(0);

/// Begins the reads of pages that nobody waits for.
fn begin(world: &World, group: u32, pages: [u64; 2]) -> Vec<Ended> {
    let begin = |page: u64| {
        let key = Mappings::key(world.file, page).expect("a small page");
        let mut effects = Effects::new();
        let mut op = PageIn::new(key, group, Access::Prefetch);
        let step = op.step(&world.memory, CPU.into(), &mut effects);
        assert!(step.is_ok() && op.is_reading());
        let io = effects.pop_io().expect("a read");
        op.abandon(&world.memory, CPU, &mut effects);
        let mut content = world.content.lock().expect("no panic");
        content.insert(io.frame().number(), key);
        let result = if page % 4 == 3 { Err(5) } else { Ok(()) };
        (io, result)
    };
    pages.map(begin).into()
}

/// What is charged when all is evicted that can be was being read before.
#[test]
fn at_no_moment_is_a_page_neither_being_read_nor_to_be_had() {
    let scheduler = PctScheduler::new_from_seed(1, 2, 3 * RUNS);
    check_under(scheduler, || {
        let world = Arc::new(World::new(Policy::Gated2q, 16));
        let reads = [[0, 1], [2, 3]].map(|pages| begin(&world, world.group, pages));
        let ending = reads.map(|ended| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.memory.complete_many(Cpu::new(1), ended, &mut |_| ());
            })
        });
        let memory = &world.memory;
        let group = memory.groups().get(world.group).expect("the group");
        for _ in 0..3 {
            let nr_reading = group.nr_reading();
            while memory.reclaim(CPU, world.group, 1) > 0 {}
            let nr_left = group.usage();
            assert!(nr_left <= nr_reading, "{nr_left} of {nr_reading} are left");
        }
        for one in ending {
            one.join().expect("no panic");
        }
        while memory.reclaim(CPU, world.group, 1) > 0 {}
        assert_eq!(group.usage(), 0);
        memory.check();
    });
}

/// Ends reads, and wakes those who wait for them.
fn end(world: &World, ended: Vec<Ended>) {
    let mut nr_woken = ended.len();
    let cpu = Cpu::new(1);
    world
        .memory
        .complete_many(cpu, ended, &mut |_| nr_woken -= 1);
    assert_eq!(nr_woken, 0);
    let _guard = world.parked.0.lock().expect("no panic");
    world.parked.1.notify_all();
}

/// Drops pages that may just come in.
fn discarder(world: &World) {
    for page in 0..6 {
        let key = Mappings::key(world.file, page).expect("a small page");
        for _ in 0..4 {
            let mut effects = Effects::new();
            let discard = world.memory.discard_page(CPU, key, &mut effects);
            world.run(CPU, Ok(()), &mut effects);
            if discard == Discard::Gone {
                break;
            }
            thread::yield_now();
        }
    }
}

/// Pins a page for long, for which it moves, and is in the midst of that perhaps.
fn pinner(world: &World, page: u64) {
    let key = Mappings::key(world.file, page).expect("a small page");
    let op = PageIn::longterm(key, world.group);
    if let Some(frame) = world.run_op(CPU, key, false, op) {
        world.unpin(CPU, frame);
    }
}

/// Pages that come in are dropped, moved and evicted at once, and one of their groups goes.
fn come_and_go(policy: Policy) {
    // Four pageblocks: mobility is kept apart from three on.
    let world = Arc::new(World::new(policy, 256));
    let root = world.memory.groups().root();
    let other = world.memory.new_group(CPU.into(), root).expect("a group");
    let of = [world.group, other, world.group];
    let mut reads = [[0, 1], [2, 3], [4, 5]].into_iter().zip(of);
    let [first, second, third] = core::array::from_fn(|_| {
        let (pages, group) = reads.next().expect("three");
        begin(&world, group, pages)
    });
    let works: [Box<dyn FnOnce(&World) + Send>; 5] = [
        Box::new(|world| end(world, first)),
        Box::new(|world| end(world, second.into_iter().chain(third).collect())),
        Box::new(discarder),
        Box::new(|world| pinner(world, 1)),
        Box::new(|world| pinner(world, 2)),
    ];
    let threads = works.map(|work| {
        let world = Arc::clone(&world);
        thread::spawn(move || work(&world))
    });
    let memory = &world.memory;
    memory.drop_group(CPU, other);
    for _ in 0..3 {
        memory.reclaim(CPU, root, 2);
        memory.tick(CPU, 0);
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
    memory.check();
    while memory.reclaim(CPU, root, 1) > 0 {}
    memory.tick(CPU, 0);
    assert!(memory.groups().get(other).is_none());
    world.close();
}

#[test]
fn pages_that_come_in_go_at_once_and_their_groups() {
    for policy in [Policy::Gated2q, Policy::Mglru] {
        check(move || come_and_go(policy));
        let scheduler = PctScheduler::new_from_seed(1, 3, RUNS);
        check_under(scheduler, move || come_and_go(policy));
    }
}
