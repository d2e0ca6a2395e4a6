//! Reads that end beside somebody who lacks memory, who comes between wherever that can be.

use super::{RUNS, World, check_under};
use pagetide_core::memory::{Effects, Ended, PageIn};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::Cpu;
use shuttle::scheduler::PctScheduler;
use shuttle::thread;
use std::sync::Arc;

const CPU: Cpu = Cpu::new(0);

/// Begins the reads of pages that nobody waits for.
fn begin(world: &World, pages: [u64; 2]) -> Vec<Ended> {
    let begin = |page: u64| {
        let key = Mappings::key(world.file, page).expect("a small page");
        let mut effects = Effects::new();
        let mut op = PageIn::new(key, world.group, Access::Prefetch);
        let step = op.step(&world.memory, CPU.into(), &mut effects);
        assert!(step.is_ok() && op.is_reading());
        let io = effects.pop_io().expect("a read");
        op.abandon(&world.memory, CPU, &mut effects);
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
        let reads = [[0, 1], [2, 3]].map(|pages| begin(&world, pages));
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
