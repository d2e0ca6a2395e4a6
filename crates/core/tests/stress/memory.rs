//! Threads over one memory: pages, pins, working memory, reservations, limits, a budget that moves
//! and groups that go.

use super::run_threads;
use pagetide_core::alloc::PAGEBLOCK_PAGES;
use pagetide_core::group::Limit;
use pagetide_core::memory::{AllocError, Config, Effect, Effects, Memory, PageError, PageIn, Step};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order, PAGE_BYTES, PageKey};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const NR_THREADS: u32 = 6;
const NR_CPUS: u32 = 3;
const NR_REGIONS: u32 = 8;
/// What one thread keeps of each kind at most.
const MAX_HELD: usize = 6;

struct World {
    memory: Memory,
    /// The second has a `min` now and then.
    groups: [u32; 2],
    file: u32,
}

impl World {
    fn new(policy: Policy) -> World {
        let nr_pages = NR_REGIONS * PAGEBLOCK_PAGES;
        let config = Config::for_resident(nr_pages, NR_CPUS, policy);
        let memory = Memory::try_new(config).expect("memory");
        let here = || Cpu::new(0).into();
        let root = memory.groups().root();
        World {
            groups: [(); 2].map(|()| memory.new_group(here(), root).expect("a group")),
            file: memory.open_mapping(here(), Order::ZERO).expect("a file"),
            memory,
        }
    }

    /// Has a page pinned, and asserts that the pin holds it.
    fn have(&self, cpu: Cpu, group: u32, key: PageKey) -> Option<Frame> {
        let mut effects = Effects::new();
        let mut op = PageIn::new(key, group, Access::Copy);
        loop {
            match op.step(&self.memory, cpu.into(), &mut effects) {
                Ok(Step::Done(frame)) => {
                    assert_eq!(self.memory.frames().key(frame), Some(key));
                    return Some(frame);
                }
                Ok(Step::Wait { .. }) => {}
                Err(PageError::Alloc(error)) => {
                    assert_over_limit(error);
                    return None;
                }
                Err(error) => panic!("{error:?}"),
            }
            match effects.pop() {
                Some(Effect::Read(io) | Effect::Copy(io)) => {
                    self.memory.complete(cpu, io, Ok(()), &mut effects);
                }
                Some(Effect::Wake(_) | Effect::LastPin) => {}
                // Another thread reads it.
                None => thread::yield_now(),
            }
        }
    }

    fn unpin(&self, cpu: Cpu, frame: Frame) {
        self.memory.unpin(cpu, frame, &mut Effects::new());
    }

    fn settle(&self, cpu: Cpu, is_released: bool) {
        while let Some(idle) = self.memory.next_offline(cpu.into()) {
            self.memory.put_offline(idle, is_released);
        }
    }
}

/// What is charged has a frame: a single page is refused by limits only.
fn assert_over_limit(error: AllocError) {
    assert!(matches!(error, AllocError::OverLimit { .. }), "{error:?}");
}

struct Worker {
    world: Arc<World>,
    id: u32,
    random: u64,
    pinned: Vec<(Frame, PageKey)>,
    bufs: Vec<Frame>,
    reserved: Vec<(u32, u64)>,
}

impl Worker {
    /// A number below `bound`, by xorshift.
    fn below(&mut self, bound: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random >> 32).expect("32 bits") % bound
    }

    fn group(&mut self) -> u32 {
        let which = self.below(2) as usize;
        self.world.groups[which]
    }

    /// A run of pages, some of which stay pinned.
    fn read(&mut self, cpu: Cpu) {
        let (group, start) = (self.group(), u64::from(self.below(6000)));
        for page in start..start + 64 {
            let key = Mappings::key(self.world.file, page).expect("a small page");
            let Some(frame) = self.world.have(cpu, group, key) else {
                break;
            };
            if self.pinned.len() < MAX_HELD && self.below(64) == 0 {
                self.pinned.push((frame, key));
            } else {
                self.world.unpin(cpu, frame);
            }
        }
    }

    fn unpin(&mut self, cpu: Cpu) {
        if let Some((frame, key)) = self.pinned.pop() {
            assert_eq!(self.world.memory.frames().key(frame), Some(key));
            self.world.unpin(cpu, frame);
        }
    }

    fn buf(&mut self, cpu: Cpu) {
        if self.bufs.len() == MAX_HELD {
            let frame = self.bufs.swap_remove(0);
            return self.world.memory.free_buf(cpu, frame);
        }
        let order = [0, 0, 1, 4, 9][self.below(5) as usize];
        let order = Order::new(order).expect("an order");
        let group = self.group();
        match self.world.memory.alloc_buf(cpu.into(), group, order) {
            Ok((frame, _)) => self.bufs.push(frame),
            Err(error) if order == Order::ZERO => assert_over_limit(error),
            Err(_) => {}
        }
    }

    fn reserve(&mut self, cpu: Cpu) {
        let nr_pages = [1_u32, 7, 300, 512, 700][self.below(5) as usize];
        let group = self.group();
        let reserved = u64::from(nr_pages) * PAGE_BYTES as u64;
        let memory = &self.world.memory;
        match memory.reserve(cpu.into(), group, reserved) {
            Ok(()) => {
                memory.begin_reservation();
                self.reserved.push((group, reserved));
            }
            Err(error) => assert_over_limit(error),
        }
        let is_released = self.below(2) == 0;
        self.world.settle(cpu, is_released);
    }

    fn unreserve(&mut self, cpu: Cpu) {
        if let Some((group, reserved)) = self.reserved.pop() {
            self.world.memory.unreserve(cpu, group, reserved);
            self.world.memory.end_reservation();
        }
    }

    /// A group of its own that is dropped while something is charged to it.
    fn drop_group(&mut self, cpu: Cpu) {
        let memory = &self.world.memory;
        let Ok(group) = memory.new_group(cpu.into(), memory.groups().root()) else {
            return;
        };
        let reserved = PAGE_BYTES as u64;
        memory.reserve_forced(cpu.into(), group, reserved);
        let buf = memory.alloc_buf(cpu.into(), group, Order::ZERO);
        memory.drop_group(cpu, group);
        if let Ok((frame, _)) = buf {
            memory.free_buf(cpu, frame);
        }
        memory.unreserve(cpu, group, reserved);
    }

    fn limits(&mut self, cpu: Cpu) {
        let pages = u64::from(self.below(3) * PAGEBLOCK_PAGES);
        let limit = [Limit::Min, Limit::Low, Limit::High][self.below(3) as usize];
        let roll = self.below(4);
        let World { memory, groups, .. } = &*self.world;
        match roll {
            0 => {
                let arena = u64::from(memory.config().arena_pages);
                let set = memory.set_budget(cpu.into(), arena - pages);
                assert!(set.is_ok(), "{set:?}");
                self.world.settle(cpu, true);
            }
            1 => {
                let set = memory.groups().set_limit(groups[1], limit, pages);
                assert!(set.is_ok(), "{set:?}");
            }
            2 => _ = memory.drain(),
            _ => _ = (memory.tick(cpu, 0), memory.stats()),
        }
    }

    fn step(&mut self) {
        let cpu = Cpu::new(self.below(NR_CPUS));
        match self.below(16) {
            0..=6 => self.read(cpu),
            7..=8 => self.unpin(cpu),
            9..=10 => self.buf(cpu),
            11..=12 => self.reserve(cpu),
            13 => self.unreserve(cpu),
            14 => self.drop_group(cpu),
            _ if self.id == 1 || self.below(8) == 0 => self.limits(cpu),
            _ => self.unreserve(cpu),
        }
    }

    fn run(mut self, until: Instant) {
        let cpu = Cpu::new(0);
        while Instant::now() < until {
            (0..16).for_each(|_| self.step());
        }
        while !self.pinned.is_empty() {
            self.unpin(cpu);
        }
        while !self.reserved.is_empty() {
            self.unreserve(cpu);
        }
        for frame in std::mem::take(&mut self.bufs) {
            self.world.memory.free_buf(cpu, frame);
        }
    }
}

#[test]
fn a_memory_used_by_all_at_once_keeps_its_books() {
    let until = Instant::now() + Duration::from_secs(super::seconds());
    let policies = [Policy::Mglru, Policy::Fifo].into_iter().cycle();
    for (round, policy) in (0..).zip(policies) {
        let world = Arc::new(World::new(policy));
        run_threads(NR_THREADS, |id| {
            let seed = u64::from(round * NR_THREADS + id);
            let worker = Worker {
                world: Arc::clone(&world),
                id,
                random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15),
                pinned: Vec::new(),
                bufs: Vec::new(),
                reserved: Vec::new(),
            };
            move |until| worker.run(until)
        });
        let (memory, cpu) = (&world.memory, Cpu::new(0));
        let arena = u64::from(memory.config().arena_pages);
        assert_eq!(memory.set_budget(cpu.into(), arena), Ok(0));
        assert_eq!((memory.reserved_bytes(), memory.offline_pages()), (0, 0));
        memory.check();
        for group in world.groups {
            memory.drain_charges(group);
            let usage = memory.groups().get(group).expect("a group").usage();
            let frames = memory.frames();
            let is_its = |frame: &Frame| frames.group(*frame) == group;
            let live = (0..frames.len()).map(Frame::new).filter(is_its);
            let live = live.filter(|&frame| frames.word(frame).is_evictable());
            assert_eq!(usage, u64::try_from(live.count()).expect("few frames"));
        }
        memory.close_mapping(cpu, world.file, &mut |_| ());
        memory.tick(cpu, 0);
        memory.drain();
        memory.check();
        assert_eq!(memory.zones().nr_free(), memory.frames().len());
        // The root and the two: dropped groups have all gone.
        assert_eq!(memory.groups().iter().count(), 3);
        let stats = memory.stats();
        println!(
            "round {round}: {} scanned, {} evicted",
            stats.pgscan, stats.pgsteal
        );
        if Instant::now() >= until {
            break;
        }
    }
}
