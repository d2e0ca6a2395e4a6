//! Threads that read and change what is in pages, while these are written, evicted, moved, made
//! holes and closed: whoever holds a page sees words that were its own, and no older ones than were
//! there when he asked for it; what was written or evicted is read again.
//!
//! Claims are put by exchanges here: restartable sequences need what the runtime has.

#[path = "contents/device.rs"]
mod device;
#[path = "contents/world.rs"]
mod world;

use super::run_threads;
use device::{File, LATCHED, POISON, run, shared};
use pagetide_core::alloc::PAGEBLOCK_PAGES;
use pagetide_core::memory::{AllocError, PageIn};
use pagetide_core::page_cache::Access;
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Node, Order, SECOND};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use world::{Held, World};

const NR_THREADS: u32 = 6;
const NR_CPUS: u32 = 3;
const NR_PAGES: u32 = 3 * PAGEBLOCK_PAGES;
/// Orders, whether pages are anon, and pages: 4096 frames in all.
const FORMS: [(u8, bool, usize); 3] = [(0, false, 1536), (0, true, 1024), (2, false, 384)];
/// The `max` of the first group, in pages.
const MAX: u64 = 500;
/// Pages of a file that a fourth of all accesses go to.
const NR_HOT: u32 = 8;
/// Pages that follow each other.
const RUN: usize = 8;
/// What one thread keeps of each kind at most.
const MAX_HELD: usize = 5;
/// Times that a thread asks for a latch: whoever has the page pinned may ask for others, too.
const PATIENCE: u32 = 16;
/// Steps of a thread, at least, however slow the machine is.
const MIN_STEPS: u32 = 2000;

struct Worker {
    world: Arc<World>,
    id: u32,
    random: u64,
    held: Vec<Held>,
    bufs: Vec<(Frame, Order)>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if thread::panicking() {
            self.world.is_over.store(true, Ordering::Relaxed);
        }
    }
}

impl Worker {
    fn new(world: &Arc<World>, (round, id): (u32, u32)) -> Worker {
        let seed = u64::from(round * NR_THREADS + id);
        Worker {
            world: Arc::clone(world),
            id,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            held: Vec::new(),
            bufs: Vec::new(),
        }
    }

    /// A number below `bound`, by xorshift.
    fn below(&mut self, bound: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random >> 32).expect("32 bits") % bound
    }

    fn is_one_in(&mut self, bound: u32) -> bool {
        self.below(bound) == 0
    }

    fn group(&mut self) -> u32 {
        let which = self.below(2) as usize;
        self.world.groups[which]
    }

    /// A file, and one of its pages that leaves room for a run.
    fn page<'a>(&mut self, world: &'a World) -> (&'a File, usize) {
        let file = &world.device.files[self.below(3) as usize];
        let nr_pages = u32::try_from(file.pages.len() - RUN).expect("a few");
        let bound = if self.is_one_in(4) { NR_HOT } else { nr_pages };
        (file, self.below(bound) as usize)
    }

    /// Looks at a run of pages, some of which stay held.
    fn read(&mut self, world: &World, cpu: Cpu) {
        let (group, (file, start)) = (self.group(), self.page(world));
        let _open = shared(&file.open);
        for page in start..start + RUN {
            let (key, order) = (file.key(page), file.order);
            let access = [Access::Copy, Access::Pin][self.below(2) as usize];
            if self.is_one_in(16) {
                world.memory.contend(key);
            }
            let is_longterm = self.is_one_in(16);
            let since = file.pages[page].done();
            let hold = match is_longterm {
                // It moves, if it is there.
                true => world.have(cpu, PageIn::longterm(key, group), |io| {
                    world.device.read(io)
                }),
                false => None,
            };
            let hold = hold.map(|frame| (frame, None));
            let op = PageIn::new(key, group, access);
            let Some(hold) = hold.or_else(|| world.hold(cpu, op, access)) else {
                continue;
            };
            let words = world.check(key, (hold.0, order), since);
            if self.held.len() == MAX_HELD || !self.is_one_in(16) {
                world.give_back(cpu, hold);
                continue;
            }
            self.held.push(Held {
                hold,
                key,
                order,
                words,
            });
        }
    }

    fn release(&mut self, world: &World, cpu: Cpu) {
        if !self.held.is_empty() {
            world.release(cpu, &self.held.remove(0));
        }
    }

    /// Changes a page under its latch.
    fn change(&mut self, world: &World, cpu: Cpu) {
        let (group, (file, page)) = (self.group(), self.page(world));
        let (_open, _length) = (shared(&file.open), shared(&file.length));
        let (key, page) = (file.key(page), &file.pages[page]);
        let Some(frame) = world.latch(cpu, (key, group), self.is_one_in(2)) else {
            return;
        };
        let (block, mut effects) = ((frame, file.order), Default::default());
        match self.below(4) {
            0 => world.memory.unlatch(cpu, frame, false, &mut effects),
            1 => {
                world.change_latched(page, block);
                let since = page.done();
                world.memory.downgrade(frame, true, &mut effects);
                run(&mut effects);
                let words = world.check(key, block, since);
                assert_eq!(words[LATCHED], since[LATCHED], "it is still pinned");
                world.unpin(cpu, frame);
            }
            _ => {
                world.change_latched(page, block);
                world.memory.unlatch(cpu, frame, true, &mut effects);
            }
        }
        run(&mut effects);
    }

    /// Changes a page that others may look at or write meanwhile.
    fn change_shared(&mut self, world: &World, cpu: Cpu) {
        let (group, (file, page)) = (self.group(), self.page(world));
        let (_open, _length) = (shared(&file.open), shared(&file.length));
        let op = PageIn::new(file.key(page), group, Access::Copy);
        let Some((frame, claim)) = world.hold(cpu, op, Access::Copy) else {
            return;
        };
        if let Some(claim) = claim {
            let mut effects = Default::default();
            let is_kept = world.memory.keep(cpu, (frame, claim), &mut effects);
            assert!(is_kept, "few pins");
            run(&mut effects);
        }
        world.change_shared(&file.pages[page], frame);
        world.unpin(cpu, frame);
    }

    fn sync(&mut self, world: &World, cpu: Cpu) {
        let (file, start) = self.page(world);
        let _open = shared(&file.open);
        (start..start + RUN).for_each(|page| world.sync(cpu, (file, page)));
    }

    fn truncate(&mut self, world: &World, cpu: Cpu) {
        let (file, start) = self.page(world);
        let _open = shared(&file.open);
        let _alone = file.length.write().expect("nobody panicked");
        world.truncate(cpu, file, start..start + RUN);
    }

    /// Begins the reads of a run of pages together, which nobody waits for.
    fn prefetch(&mut self, world: &World, cpu: Cpu) {
        let (group, (file, start)) = (self.group(), self.page(world));
        let (_open, memory) = (shared(&file.open), &world.memory);
        let keys = (start..start + RUN).map(|page| file.key(page));
        let keys: Vec<_> = keys.filter(|&key| !memory.is_resident(key)).collect();
        let nr_pages = u32::try_from(keys.len()).expect("a few") * file.order.nr_pages();
        let ahead = memory.charge_ahead(world.here(cpu), group, nr_pages);
        let here = world.here(cpu).with_ahead(&ahead);
        let (mut ops, mut reads) = (Vec::new(), Vec::new());
        memory.begin_reads(here, (group, Access::Prefetch), &keys, &mut |op, io| {
            ops.push(op);
            reads.extend(io);
        });
        let read = |io| (world.device.read(&io), io);
        let ended = reads.into_iter().map(read).map(|(result, io)| (io, result));
        memory.complete_many(cpu, ended, &mut |_| ());
        for op in ops {
            let mut effects = Default::default();
            op.abandon(memory, cpu, &mut effects);
            run(&mut effects);
        }
    }

    /// Takes working memory, for which pages move, or gives some back.
    fn buf(&mut self, world: &World, cpu: Cpu) {
        if self.bufs.len() == MAX_HELD || self.is_one_in(4) {
            return self.free_buf(world, cpu);
        }
        let order = [0, 2, 3, 4][self.below(4) as usize];
        let order = Order::new(order).expect("an order");
        match world
            .memory
            .alloc_buf(world.here(cpu), world.groups[1], order)
        {
            Ok((frame, _)) => {
                world.device.set((frame, order), LATCHED, self.id.into());
                self.bufs.push((frame, order));
            }
            Err(AllocError::NoMetadata) => panic!("it has its records"),
            Err(_) => _ = world.nr_refused.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn free_buf(&mut self, world: &World, cpu: Cpu) {
        if let Some(block) = self.bufs.pop() {
            let words = world.device.look(block);
            assert_eq!(words[LATCHED], self.id.into(), "{block:?} was another's");
            world.device.set(block, LATCHED, POISON);
            world.memory.free_buf(cpu, block.0);
        }
    }

    /// What the runtime's own threads do, and changes of the budget.
    fn keep_house(&mut self, world: &World, cpu: Cpu) {
        let (memory, here) = (&world.memory, world.here(cpu));
        let is_released = self.is_one_in(2);
        match self.below(8) {
            0 | 1 => {
                let arena = u64::from(memory.config().arena_pages);
                let less = u64::from(self.below(2) * PAGEBLOCK_PAGES);
                let set = memory.set_budget(here, arena - less);
                assert!(set.is_ok(), "{set:?}");
                world.settle(cpu, is_released);
            }
            2 => _ = memory.drain(),
            3 => {
                let now = world.clock.fetch_add(SECOND / 4, Ordering::Relaxed);
                memory.tick(cpu, now);
                if let Some(idle) = memory.take_idle(now) {
                    world.take(&idle, is_released);
                    memory.put_idle(idle, is_released);
                }
            }
            4 => _ = memory.balance(here, Node::ZERO),
            5 => _ = memory.reclaim_proactively(here, (world.groups[1], None), 16),
            6 => _ = memory.reclaim(cpu, world.groups[0], 16),
            _ if self.is_one_in(4) => {
                let file = &world.device.files[self.below(3) as usize];
                world.reopen(cpu, file, self.is_one_in(2));
            }
            _ => {}
        }
    }

    fn step(&mut self, world: &World) {
        let cpu = Cpu::new(self.below(NR_CPUS));
        match self.below(64) {
            0..=23 => self.read(world, cpu),
            24..=29 => self.release(world, cpu),
            30..=39 => self.change(world, cpu),
            40..=47 => self.change_shared(world, cpu),
            48..=52 => self.sync(world, cpu),
            53..=55 => self.prefetch(world, cpu),
            56..=59 => self.buf(world, cpu),
            60 => self.truncate(world, cpu),
            61 => self.keep_house(world, cpu),
            62 => _ = world.device.end_one(&world.memory, cpu),
            _ => {}
        }
    }

    fn run(mut self, until: Instant) {
        let (world, cpu) = (Arc::clone(&self.world), Cpu::new(0));
        let mut nr_steps = 0;
        while Instant::now() < until || nr_steps < MIN_STEPS {
            (0..16).for_each(|_| self.step(&world));
            nr_steps += 16;
        }
        while !self.held.is_empty() {
            self.release(&world, cpu);
        }
        while !self.bufs.is_empty() {
            self.free_buf(&world, cpu);
        }
    }
}

#[test]
fn pages_have_what_was_last_written_to_them() {
    let until = Instant::now() + Duration::from_secs(super::seconds());
    let mut round = 0;
    // Each policy once, and again while there is time.
    while round == 0 || Instant::now() < until {
        for &policy in Policy::ALL {
            let world = Arc::new(World::new(policy));
            run_threads(NR_THREADS, |id| {
                let worker = Worker::new(&world, (round, id));
                move |until| worker.run(until)
            });
            world.end();
            println!("round {round}, {policy}: {}", world.tell());
            round += 1;
        }
    }
}
