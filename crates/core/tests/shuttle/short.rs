//! Who finds nothing while others have in hand what is there: one thread goes a long way while
//! another one stands still anywhere, as if it were preempted there.

use super::{RUNS, World, check_under, reader};
use pagetide_core::alloc::{Mobility, Request};
use pagetide_core::memory::{Config, Effects, Here, Memory};
use pagetide_core::page_cache::Mappings;
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Order};
use shuttle::scheduler::PctScheduler;
use shuttle::thread;
use std::sync::Arc;

const CPU: Cpu = Cpu::new(0);
const OTHER: Cpu = Cpu::new(1);

fn check(nr_runs: usize, test: impl Fn() + Send + Sync + 'static) {
    check_under(PctScheduler::new_from_seed(1, 2, nr_runs), test);
}

#[test]
fn a_file_is_closed_while_its_pages_are_evicted_by_somebody_slow() {
    check(3 * RUNS, || {
        let world = Arc::new(World::new(Policy::Fifo, 4));
        let file = world.memory.open_mapping(CPU.into(), Order::ZERO);
        let file = file.expect("a file");
        for page in 0..4 {
            let key = Mappings::key(file, page).expect("a small page");
            let frame = world.have(CPU, key, false).expect("room");
            world.unpin(CPU, frame);
        }
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || reader(&world, 1, 7))
        };
        let run = &mut |effects: &mut Effects| world.run(CPU, Ok(()), effects);
        world.memory.close_mapping(CPU, file, run);
        reading.join().expect("the reader");
        world.memory.check();
    });
}

/// A memory in which a group of the limit `MAX` is charged for all but `nr_left` pages.
fn nearly_full(mut config: Config, nr_left: u32) -> (Memory, u32) {
    const MAX: u32 = 256;
    config.shadow_frames = 16;
    let memory = Memory::try_new(config).expect("memory");
    let group = memory.new_group(CPU.into(), memory.groups().root());
    let group = group.expect("a group");
    assert_eq!(memory.set_max(CPU.into(), group, MAX.into()), Ok(0));
    let charged = memory.groups().charge_many(CPU, group, MAX - nr_left);
    assert!(charged.is_ok());
    (memory, group)
}

#[test]
fn charges_that_fit_are_not_refused_while_somebody_has_the_stocks_in_hand() {
    check(RUNS / 3, || {
        let (memory, group) = nearly_full(Config::new(1500, 2, Policy::Fifo), 2);
        let groups = memory.groups();
        // What is left below the limit lies in the stocks of two CPUs.
        for cpu in [CPU, OTHER] {
            assert!(groups.charge_many(cpu, group, 1).is_ok());
        }
        for cpu in [CPU, OTHER] {
            groups.uncharge(cpu, group, 1);
        }
        assert_eq!(groups.stocked(group), 2);
        let memory = Arc::new(memory);
        let take =
            move |memory: &Memory, cpu: Cpu| memory.alloc_buf(cpu.into(), group, Order::ZERO);
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || take(&memory, OTHER))
        };
        let both = [take(&memory, CPU), other.join().expect("no panic")];
        assert!(both.iter().all(Result::is_ok), "{both:?}");
    });
}

#[test]
fn the_reserve_of_writes_is_there_while_somebody_has_a_frame_in_hand() {
    check(RUNS, || {
        let config = Config::for_resident(300, 2, Policy::Fifo);
        let (memory, group) = nearly_full(config, 0);
        let request = Request::new(Order::ZERO, Mobility::Movable);
        let take = || memory.zones().alloc(memory.frames(), CPU, &request).ok();
        let last = std::iter::from_fn(take).last().expect("a frame");
        let memory = Arc::new(memory);
        let other = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                memory
                    .zones()
                    .free(memory.frames(), OTHER, last, Order::ZERO);
            })
        };
        let here = Here::new(CPU, &()).for_writes();
        let taken = memory.alloc_buf(here, group, Order::ZERO);
        other.join().expect("no panic");
        assert!(taken.is_ok(), "{taken:?}");
    });
}

#[test]
fn a_policy_that_was_set_is_that_of_the_first_page() {
    check(RUNS, || {
        let world = Arc::new(World::new(Policy::Fifo, 4));
        let other = Arc::clone(&world);
        let setter = thread::spawn(move || other.memory.set_policy(other.group, Policy::Mglru));
        let key = Mappings::key(world.file, 0).expect("a small page");
        let frame = world.have(CPU, key, false).expect("room");
        world.unpin(CPU, frame);
        let is_set = setter.join().expect("the setter");
        let mut lists = world.memory.lru_gen(world.group);
        assert_eq!(
            lists.next().expect("a page is there").tiers.is_some(),
            is_set
        );
        assert_eq!(world.memory.policy(world.group) == Policy::Mglru, is_set);
    });
}
