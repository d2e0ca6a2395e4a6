//! Random interleavings of whole memories, by shuttle: longer than loom can go.
#![cfg(shuttle)]

#[path = "shuttle/longterm.rs"]
mod longterm;
#[path = "shuttle/reads.rs"]
mod reads;
#[path = "shuttle/reserve.rs"]
mod reserve;
#[path = "shuttle/short.rs"]
mod short;
#[path = "shuttle/statistics.rs"]
mod statistics;

use pagetide_core::alloc::{Config as ZonesConfig, Mark, Mobility, Request, Topology, Zones};
use pagetide_core::frame::FrameTable;
use pagetide_core::group::{Count, Item, StockKind, Tree};
use pagetide_core::memory::{Config, Effect, Effects, Memory, PageError, PageIn, Step};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use shuttle::scheduler::{RandomScheduler, Scheduler};
use shuttle::sync::{Condvar, Mutex};
use shuttle::{Runner, thread};
use std::collections::HashMap;
use std::sync::Arc;

const RUNS: usize = 300;
const STEPS: u64 = 12;

/// Runs `test` under interleavings that are the same on every run.
fn check(test: impl Fn() + Send + Sync + 'static) {
    check_under(RandomScheduler::new_from_seed(1, RUNS), test);
}

fn check_under(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    // A memory is built on a model's stack, its topology by value.
    config.stack_size = 1 << 18;
    // Each frame that is looked at is a step.
    config.max_steps = shuttle::MaxSteps::FailAfter(10_000_000);
    Runner::new(scheduler, config).run(test);
}

/// A memory, its one group and file, and which page was read into which frame.
struct World {
    memory: Memory,
    group: u32,
    file: u32,
    content: Mutex<HashMap<u32, PageKey>>,
    /// Where readers park, as the runtime's do: a wake-up that is lost is a deadlock here.
    parked: (Mutex<()>, Condvar),
}

impl World {
    fn new(policy: Policy, nr_pages: u32) -> World {
        let memory = Memory::try_new(Config::for_resident(nr_pages, 2, policy)).expect("memory");
        let cpu = Cpu::new(0);
        let group = memory
            .new_group(cpu.into(), memory.groups().root())
            .expect("a group");
        assert_eq!(
            memory.set_max(cpu.into(), group, u64::from(nr_pages)),
            Ok(0)
        );
        let file = memory
            .open_mapping(cpu.into(), Order::ZERO)
            .expect("a file");
        World {
            memory,
            group,
            file,
            content: Mutex::new(HashMap::new()),
            parked: (Mutex::new(()), Condvar::new()),
        }
    }

    /// Runs what a call of core left: reads end as `result` says.
    fn run(&self, cpu: Cpu, result: Result<(), u32>, effects: &mut Effects) {
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Wake(_) => {
                    let _guard = self.parked.0.lock().expect("no panic");
                    self.parked.1.notify_all();
                }
                Effect::LastPin => unreachable!("nobody abandons the memory"),
                Effect::Copy(io) => {
                    let source = io.source().expect("a copy has a source");
                    self.expect(source, io.key());
                    thread::yield_now();
                    self.expect(source, io.key());
                    let mut content = self.content.lock().expect("no panic");
                    content.insert(io.frame().number(), io.key());
                    drop(content);
                    self.memory.complete(cpu, io, result, effects);
                }
                Effect::Read(io) => {
                    let mut content = self.content.lock().expect("no panic");
                    content.insert(io.frame().number(), io.key());
                    drop(content);
                    thread::yield_now();
                    self.memory.complete(cpu, io, result, effects);
                }
            }
        }
    }

    /// Parks until the frame's version is no longer `version`.
    fn park(&self, frame: Frame, version: u32) {
        let mut guard = self.parked.0.lock().expect("no panic");
        while self.memory.frames().word(frame).version() == version {
            guard = self.parked.1.wait(guard).expect("no panic");
        }
    }

    /// Asserts that a pinned frame has the bytes of its page.
    fn expect(&self, frame: Frame, key: PageKey) {
        let content = self.content.lock().expect("no panic");
        let found = content.get(&frame.number());
        assert_eq!(found, Some(&key), "another page's bytes");
    }

    /// Has a page pinned; `None` where the group is full of others' pins or the read failed.
    fn have(&self, cpu: Cpu, key: PageKey, fails: bool) -> Option<Frame> {
        self.run_op(cpu, key, fails, PageIn::new(key, self.group, Access::Copy))
    }

    fn run_op(&self, cpu: Cpu, key: PageKey, fails: bool, mut op: PageIn) -> Option<Frame> {
        let mut effects = Effects::new();
        loop {
            let step = op.step(&self.memory, cpu.into(), &mut effects);
            let result = if fails { Err(5) } else { Ok(()) };
            self.run(cpu, result, &mut effects);
            match step {
                Ok(Step::Done(frame)) => {
                    self.expect(frame, key);
                    return Some(frame);
                }
                Ok(Step::Wait { frame, version }) => self.park(frame, version),
                Err(PageError::Alloc(_) | PageError::Io(5)) => return None,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Closes the file, and asserts that everything came back.
    fn close(&self) {
        self.memory.check();
        let cpu = Cpu::new(0);
        let run = &mut |effects: &mut Effects| self.run(cpu, Ok(()), effects);
        self.memory.close_mapping(cpu, self.file, run);
        self.memory.check();
        assert_eq!(self.memory.stats().nr_used, 0);
    }

    fn unpin(&self, cpu: Cpu, frame: Frame) {
        let mut effects = Effects::new();
        self.memory.unpin(cpu, frame, &mut effects);
        self.run(cpu, Ok(()), &mut effects);
    }
}

/// A reader of pages `0..nr_pages`, on a CPU that changes.
fn reader(world: &World, seed: u64, nr_pages: u64) {
    for step in 0..STEPS {
        let number = (seed + 1) * 7919 * (step + 3) ^ (step << seed);
        let cpu = Cpu::new(u32::try_from((number >> 3) & 1).expect("a bit"));
        let key = Mappings::key(world.file, number % nr_pages).expect("a small page");
        if let Some(frame) = world.have(cpu, key, number.is_multiple_of(11)) {
            thread::yield_now();
            world.unpin(cpu, frame);
        }
    }
}

fn run(policy: Policy) {
    let world = Arc::new(World::new(policy, 4));
    let readers: Vec<_> = (0..3)
        .map(|seed| {
            let world = Arc::clone(&world);
            thread::spawn(move || reader(&world, seed, 9))
        })
        .collect();
    let worker = {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            let cpu = Cpu::new(1);
            for step in 0..STEPS {
                if let Ok((frame, _)) = world.memory.alloc_buf(cpu.into(), world.group, Order::ZERO)
                {
                    thread::yield_now();
                    world.memory.free_buf(cpu, frame);
                }
                world.memory.drain_charges(world.memory.groups().root());
                let over = world.memory.set_max(cpu.into(), world.group, 3 + step % 2);
                assert!(over.is_ok());
            }
        })
    };
    readers
        .into_iter()
        .for_each(|reader| reader.join().expect("a reader"));
    worker.join().expect("the worker");
    world.close();
}

#[test]
fn readers_evictions_limits_and_working_memory_under_mglru() {
    check(|| run(Policy::Mglru));
}

#[test]
fn readers_evictions_limits_and_working_memory_under_gated_2q() {
    check(|| run(Policy::Gated2q));
}

#[test]
fn readers_evictions_limits_and_working_memory_under_fifo() {
    check(|| run(Policy::Fifo));
}

#[test]
fn one_read_a_page_whoever_asks() {
    check(|| {
        let world = Arc::new(World::new(Policy::Mglru, 8));
        let readers: Vec<_> = (0..3)
            .map(|number| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let cpu = Cpu::new(number % 2);
                    let key = Mappings::key(world.file, 1).expect("a small page");
                    let frame = world.have(cpu, key, false).expect("room for all");
                    world.unpin(cpu, frame);
                })
            })
            .collect();
        readers
            .into_iter()
            .for_each(|reader| reader.join().expect("a reader"));
        let misses = world
            .memory
            .groups()
            .get(world.group)
            .expect("the group")
            .count(Count::Pgmajfault);
        assert_eq!(misses, 1);
        world.memory.check();
    });
}

#[test]
fn a_file_closed_during_evictions_gives_everything_back() {
    check(|| {
        let world = Arc::new(World::new(Policy::Mglru, 4));
        let reading = {
            let world = Arc::clone(&world);
            thread::spawn(move || reader(&world, 1, 7))
        };
        let cpu = Cpu::new(0);
        let other = world
            .memory
            .open_mapping(cpu.into(), Order::ZERO)
            .expect("a file");
        for page in 0..4 {
            let key = Mappings::key(other, page).expect("a small page");
            if let Some(frame) = world.have(cpu, key, false) {
                world.unpin(cpu, frame);
            }
        }
        let run = &mut |effects: &mut Effects| world.run(cpu, Ok(()), effects);
        world.memory.close_mapping(cpu, other, run);
        reading.join().expect("the reader");
        world.memory.check();
    });
}

/// Asks for pages in place and gives some of the operations up before they are done.
fn abandoner(world: &World) {
    for step in 0..STEPS {
        let cpu = Cpu::new(u32::from(step % 3 == 0));
        let key = Mappings::key(world.file, step * 5 % 9).expect("a small page");
        let mut effects = Effects::new();
        let mut op = PageIn::new(key, world.group, Access::Pin);
        let step_taken = op.step(&world.memory, cpu.into(), &mut effects);
        thread::yield_now();
        if let Ok(Step::Done(frame)) = step_taken {
            world.expect(frame, key);
            world.unpin(cpu, frame);
        } else if step_taken.is_ok() {
            let mut effects = Effects::new();
            op.abandon(&world.memory, cpu, &mut effects);
            world.run(cpu, Ok(()), &mut effects);
        }
        let result = if step % 4 == 0 { Err(5) } else { Ok(()) };
        world.run(cpu, result, &mut effects);
    }
}

/// Opens a file of its own, reads it, and closes it while a pin is held.
fn closer(world: &World) {
    let cpu = Cpu::new(1);
    for _ in 0..3 {
        let file = world
            .memory
            .open_mapping(cpu.into(), Order::ZERO)
            .expect("a file");
        let page = |page| Mappings::key(file, page).expect("a small page");
        let kept = world.have(cpu, page(0), false);
        for number in 1..4 {
            if let Some(frame) = world.have(cpu, page(number), false) {
                world.unpin(cpu, frame);
            }
        }
        let run = &mut |effects: &mut Effects| world.run(cpu, Ok(()), effects);
        world.memory.close_mapping(cpu, file, run);
        if let Some(frame) = kept {
            world.expect(frame, page(0));
            world.unpin(cpu, frame);
        }
    }
}

fn run_all(policy: Policy) {
    let world = Arc::new(World::new(policy, 6));
    let works: [fn(&World); 4] = [
        |world| reader(world, 2, 9),
        abandoner,
        closer,
        |world| {
            for step in 0..STEPS {
                let here = Cpu::new(0).into();
                assert!(
                    world
                        .memory
                        .set_max(here, world.group, 4 + step % 3)
                        .is_ok()
                );
                world.memory.drain_charges(world.group);
                thread::yield_now();
            }
        },
    ];
    let threads = works.map(|work| {
        let world = Arc::clone(&world);
        thread::spawn(move || work(&world))
    });
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
    world.memory.check();
    let frames = world.memory.frames();
    for frame in (0..frames.len()).map(Frame::new) {
        assert_eq!(frames.word(frame).pins(), 0, "{frame:?} is still pinned");
    }
    world
        .memory
        .close_mapping(Cpu::new(0), world.file, &mut |_| ());
    world.memory.check();
    assert_eq!(world.memory.stats().nr_used, 0);
}

#[test]
fn operations_given_up_and_files_closed_under_gated_2q() {
    check(|| run_all(Policy::Gated2q));
}

#[test]
fn operations_given_up_and_files_closed_under_mglru() {
    check(|| run_all(Policy::Mglru));
}

#[test]
fn operations_given_up_and_files_closed_under_fifo() {
    check(|| run_all(Policy::Fifo));
}

/// Threads that take and give back blocks of zones on two nodes, whatever CPU they say they run on,
/// while one drains and ticks: no block is handed out twice, none is lost.
#[test]
fn zones_lose_and_double_no_frame() {
    check(|| {
        let frames = FrameTable::try_new(1024).expect("memory");
        let config = ZonesConfig::new(Topology::grid(2, 2).expect("two nodes"));
        let zones = Zones::try_new(config, &frames).expect("memory");
        let first = zones.buddyinfo().to_string();
        let taken = Mutex::new(HashMap::new());
        let shared = Arc::new((frames, zones, taken));
        let workers: Vec<_> = (0..4_u32)
            .map(|worker| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || work_on_zones(&shared, worker))
            })
            .collect();
        for worker in workers {
            worker.join().expect("no panic");
        }
        let (frames, zones, taken) = &*shared;
        assert!(taken.lock().expect("no panic").is_empty());
        zones.drain(frames);
        zones.audit(frames).expect("agreement");
        assert_eq!(zones.nr_free(), 1024);
        assert_eq!(zones.buddyinfo().to_string(), first);
    });
}

fn work_on_zones(shared: &(FrameTable, Zones, Mutex<HashMap<u32, u32>>), worker: u32) {
    let (frames, zones, taken) = shared;
    let mut held = Vec::new();
    for step in 0..6_u32 {
        let order = Order::new(u8::try_from(step % 2).expect("small")).expect("an order");
        let request = Request {
            mark: Mark::Min,
            ..Request::new(order, Mobility::ALL[(worker % 3) as usize])
        };
        // A number that is wrong as often as not.
        let cpu = Cpu::new((worker + step) % 4);
        if let Ok(frame) = zones.alloc(frames, cpu, &request) {
            for page in 0..order.nr_pages() {
                let before = taken
                    .lock()
                    .expect("no panic")
                    .insert(frame.number() + page, worker);
                assert_eq!(before, None, "{frame:?} is handed out twice");
            }
            held.push((frame, order));
        }
        if worker == 0 {
            zones.drain(frames);
            zones.tick(frames, u64::from(step) * 1_000_000_000);
        } else if step % 3 == 2
            && let Some((frame, order)) = held.pop()
        {
            give_back(shared, worker, frame, order);
        }
    }
    for (frame, order) in held {
        give_back(shared, worker, frame, order);
    }
}

fn give_back(
    (frames, zones, taken): &(FrameTable, Zones, Mutex<HashMap<u32, u32>>),
    worker: u32,
    frame: Frame,
    order: Order,
) {
    for page in 0..order.nr_pages() {
        let owner = taken
            .lock()
            .expect("no panic")
            .remove(&(frame.number() + page));
        assert_eq!(owner, Some(worker));
    }
    zones.free(frames, Cpu::new(worker), frame, order);
}

/// Worker `worker` of a tree of three groups: charges and gives back on a CPU that it may share,
/// drains, and moves a limit. Leaves some pages and bytes charged, which it returns.
fn charger(tree: &Tree, groups: [u32; 3], worker: u32) -> [(u64, u64); 3] {
    let mut live = [(0, 0); 3];
    let mut seed = u64::from(worker) + 1;
    for step in 0..STEPS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (which, cpu) = ((seed >> 33) as usize % 3, Cpu::new((seed >> 40) as u32 % 3));
        let (id, (pages, bytes)) = (groups[which], &mut live[which]);
        match (seed >> 48) % 8 {
            0..=2 if tree.charge(cpu, id, 1 + worker).is_ok() => *pages += u64::from(1 + worker),
            3 if *pages > 0 => {
                tree.uncharge(cpu, id, 1);
                *pages -= 1;
            }
            4 | 5 if tree.charge_bytes(cpu, id, 900 * (1 + step)).is_ok() => {
                *bytes += 900 * (1 + step);
                tree.mod_state(cpu, id, Item::SlabReclaimable, 900);
            }
            6 if *bytes > 0 => {
                tree.uncharge_bytes(cpu, id, 900);
                tree.mod_state(cpu, id, Item::SlabReclaimable, -900);
                *bytes -= 900;
            }
            7 if worker == 0 => {
                assert_eq!(tree.set_max(id, 20 + 400 * (step % 2)), Ok(()));
            }
            _ => tree.drain(id),
        }
        let usage = tree.get(id).expect("a group").usage();
        assert!(
            usage >= *pages + bytes.div_ceil(4096),
            "usage below live charges"
        );
    }
    live
}

/// Five workers over three CPUs; afterwards the books are exact, and the groups go.
fn chargers(kind: StockKind) {
    check(move || {
        let tree = Arc::new(Tree::try_new(3, 1 << 14, kind).expect("memory"));
        let cpu = Cpu::new(0);
        let parent = tree.child(cpu, tree.root()).expect("a group");
        let [left, right] = [(); 2].map(|()| tree.child(cpu, parent).expect("a group"));
        tree.drain(tree.root());
        let before = tree.get(tree.root()).expect("the root").usage();
        let groups = [parent, left, right];
        let workers: Vec<_> = (0..5)
            .map(|worker| {
                let tree = Arc::clone(&tree);
                thread::spawn(move || charger(&tree, groups, worker))
            })
            .collect();
        let mut live = [(0, 0); 3];
        for worker in workers {
            let more = worker.join().expect("a worker does not panic");
            for (sum, more) in live.iter_mut().zip(more) {
                *sum = (sum.0 + more.0, sum.1 + more.1);
            }
        }
        let bytes: u64 = live.iter().map(|(_, bytes)| bytes).sum();
        let pages: u64 = live.iter().map(|(pages, _)| pages).sum();
        let usage = || tree.get(parent).expect("the group").usage();
        let held = tree.held_bytes(parent) + u64::from(tree.stocked(parent)) * 4096;
        assert_eq!(usage() * 4096, pages * 4096 + bytes + held);
        for ((pages, bytes), id) in live.into_iter().zip(groups).rev() {
            tree.kill(id);
            tree.uncharge(cpu, id, u32::try_from(pages).expect("few"));
            tree.uncharge_bytes(cpu, id, bytes);
            assert_eq!((tree.stocked(id), tree.held_bytes(id)), (0, 0));
            assert_eq!(tree.bury(id), Some(0));
        }
        tree.drain(tree.root());
        assert_eq!(tree.get(tree.root()).expect("the root").usage(), before);
    });
}

#[test]
fn pages_bytes_limits_and_drains_with_atomic_stocks() {
    chargers(StockKind::Atomic);
}

#[test]
fn pages_bytes_limits_and_drains_with_locked_stocks() {
    chargers(StockKind::Spinlock);
}

#[test]
fn pages_bytes_limits_and_drains_without_stocks() {
    chargers(StockKind::None);
}

/// Groups that die while others charge, uncharge and drain on their CPUs.
fn deaths(kind: StockKind) {
    check(move || {
        let tree = Arc::new(Tree::try_new(2, 1 << 14, kind).expect("memory"));
        let cpu = Cpu::new(0);
        let group = tree.child(cpu, tree.root()).expect("a group");
        tree.charge(cpu, group, 5).expect("room");
        tree.charge_bytes(cpu, group, 5 * 1000).expect("room");
        let workers: Vec<_> = (0..5)
            .map(|worker| {
                let tree = Arc::clone(&tree);
                thread::spawn(move || {
                    let cpu = Cpu::new(worker % 2);
                    if worker == 4 {
                        tree.kill(group);
                    }
                    tree.mod_state(cpu, group, Item::SlabUnreclaimable, -7);
                    tree.uncharge_bytes(cpu, group, 1000);
                    tree.uncharge(cpu, group, 1);
                    tree.bury(group).is_some()
                })
            })
            .collect();
        let buried = workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"));
        let nr_buried = buried.filter(|&is_buried| is_buried).count();
        // Whoever was last found it empty, or a drain of its last charge came later.
        assert!(nr_buried == 1 || nr_buried == 0 && tree.bury(group).is_some());
        tree.mod_state(cpu, tree.root(), Item::SlabUnreclaimable, 40);
        tree.drain(tree.root());
        assert_eq!(tree.state(tree.root(), Item::SlabUnreclaimable), 5);
    });
}

#[test]
fn a_group_dies_among_atomic_stocks() {
    deaths(StockKind::Atomic);
}

#[test]
fn a_group_dies_among_locked_stocks() {
    deaths(StockKind::Spinlock);
}
