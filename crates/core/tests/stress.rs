//! Eight real threads over one set of zones: what loom and shuttle cannot reach, because they know
//! neither the spin lock nor the memory order of the machine.
//!
//! A binary of its own, so that it has the machine to itself. Two seconds, or as many as
//! `PAGETIDE_STRESS_SECONDS` says. The seeds are fixed, the threads are not: the one test here that
//! looks at a clock. No verdict depends on the time.
#![cfg(not(any(loom, shuttle)))]

#[path = "stress/contents.rs"]
mod contents;
#[path = "stress/memory.rs"]
mod memory;

use pagetide_core::alloc::{
    BulkFree, Config, Mark, Mempolicy, Mobility, NR_MOBILITIES, PcpSizes, Request, Topology, Tuner,
    ZonelistCache, Zones,
};
use pagetide_core::frame::{FrameTable, Place};
use pagetide_core::units::{Cpu, Frame, NR_ORDERS, Node, NodeMask, Order, SECOND};
use std::io::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const NR_THREADS: u32 = 8;
const NR_NODES: u32 = 2;
const NR_CPUS: u32 = 4;
/// Four pageblocks a node: enough for mobility types, few enough to run short.
const NR_FRAMES: u32 = NR_NODES * 4 * 512;
/// Blocks that one thread holds at most: all threads together want more than there is.
const MAX_HELD: usize = 300;
/// A round is built, used, emptied and checked.
const ROUND: Duration = Duration::from_millis(250);
/// A thread that does not end so long after its time never will: a list became a ring.
const GRACE: Duration = Duration::from_secs(120);

/// A block that was handed out, and the stamp that its frames have.
struct Block {
    frame: Frame,
    order: Order,
    owner: u32,
}

struct World {
    frames: FrameTable,
    zones: Zones,
    /// By frame: who has it, or 0.
    owners: Vec<AtomicU32>,
    /// Blocks on their way from one thread to another.
    passed: Mutex<Vec<Block>>,
    clock: AtomicU64,
}

impl World {
    fn new(zonelist_cache: ZonelistCache, bulk_free: BulkFree) -> World {
        let topology = Topology::grid(NR_NODES, NR_CPUS / NR_NODES).expect("two nodes");
        let mut config = Config::new(topology);
        config.tuner = Tuner::Adaptive;
        config.zonelist_cache = zonelist_cache;
        config.bulk_free = bulk_free;
        config.cached_orders = Config::KERNEL_ORDERS;
        config.pcp_sizes = Some(PcpSizes {
            batch: 8,
            high_min: 24,
            high_max: 256,
        });
        let frames = FrameTable::try_new(NR_FRAMES).expect("memory");
        let zones = Zones::try_new(config, &frames).expect("memory");
        World {
            frames,
            zones,
            owners: (0..NR_FRAMES).map(|_| AtomicU32::new(0)).collect(),
            passed: Mutex::default(),
            clock: AtomicU64::new(0),
        }
    }

    /// Changes the stamps of a block; each has to be what it should be.
    fn stamp(&self, frame: Frame, order: Order, old: u32, new: u32) {
        let nr_pages = order.nr_pages();
        assert_eq!(frame.number() % nr_pages, 0, "{frame:?} is not aligned");
        for owner in &self.owners[frame.index()..frame.index() + nr_pages as usize] {
            let found = owner.swap(new, Ordering::Relaxed);
            assert_eq!(found, old, "the stamp of {frame:?}, {order:?}");
        }
    }

    fn alloc(&self, cpu: Cpu, owner: u32, request: &Request) -> Option<Block> {
        let order = request.order;
        let frame = self.zones.alloc(&self.frames, cpu, request).ok()?;
        self.stamp(frame, order, 0, owner);
        assert_eq!(self.frames.block(frame), (order, Place::Out), "{frame:?}");
        self.frames.set_group(frame, owner);
        Some(Block {
            frame,
            order,
            owner,
        })
    }

    fn free(&self, cpu: Cpu, block: &Block) {
        let Block {
            frame,
            order,
            owner,
        } = *block;
        let record = (self.frames.group(frame), self.frames.block(frame));
        assert_eq!(record, (owner, (order, Place::Out)), "{frame:?}");
        self.stamp(frame, order, owner, 0);
        self.zones.free(&self.frames, cpu, frame, order);
    }

    fn passed(&self) -> std::sync::MutexGuard<'_, Vec<Block>> {
        self.passed.lock().expect("nobody panicked")
    }

    fn buddyinfo(&self) -> Vec<[u32; NR_ORDERS]> {
        self.zones.iter().map(|zone| zone.buddyinfo()).collect()
    }
}

/// One thread's blocks and random numbers.
struct Worker {
    world: Arc<World>,
    id: u32,
    random: u64,
    held: Vec<Block>,
    /// Whether it takes more than it gives: caches see bursts of both.
    is_filling: bool,
}

impl Worker {
    /// A number below `bound`, by xorshift.
    fn below(&mut self, bound: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let high = u32::try_from(self.random >> 32).expect("32 bits");
        high % bound
    }

    fn request(&mut self) -> Request {
        let order = match self.below(64) {
            0 => 9,
            1..=8 => 4,
            9..=16 => 3,
            17..=24 => 2,
            25..=32 => 1,
            _ => 0,
        };
        let kind = self.below(4) as usize % NR_MOBILITIES;
        let mark = [Mark::None, Mark::Min, Mark::Low][self.below(3) as usize];
        let policy = match self.below(8) {
            0 => Mempolicy::Interleave(NodeMask::ALL),
            1 => Mempolicy::Bind(NodeMask::of(Node::ZERO)),
            _ => Mempolicy::Local,
        };
        Request {
            mark,
            policy,
            turn: self.below(4),
            ..Request::new(Order::new(order).expect("an order"), Mobility::ALL[kind])
        }
    }

    fn alloc(&mut self, cpu: Cpu) {
        let request = self.request();
        if self.held.len() < MAX_HELD
            && let Some(block) = self.world.alloc(cpu, self.id, &request)
        {
            self.held.push(block);
        }
    }

    /// Any of the blocks that the thread has.
    fn take_held(&mut self) -> Option<Block> {
        let nr_held = u32::try_from(self.held.len()).expect("at most MAX_HELD and some");
        let which = (nr_held > 0).then(|| self.below(nr_held))?;
        Some(self.held.swap_remove(which as usize))
    }

    fn free(&mut self, cpu: Cpu) {
        if let Some(block) = self.take_held() {
            self.world.free(cpu, &block);
        }
    }

    /// One operation as any CPU, so that threads share caches, and as a CPU that is not there.
    fn step(&mut self) {
        let cpu = Cpu::new(self.below(NR_CPUS + 1));
        if self.below(64) == 0 {
            self.is_filling = !self.is_filling;
        }
        match self.below(256) {
            0 => _ = self.world.zones.drain(&self.world.frames),
            1 => {
                let now = self.world.clock.fetch_add(SECOND / 4, Ordering::Relaxed);
                self.world.zones.tick(&self.world.frames, now);
            }
            2..=5 => self.give_idle(),
            6..=15 => {
                if let Some(block) = self.take_held() {
                    self.world.passed().push(block);
                }
            }
            16..=25 => {
                let passed = self.world.passed().pop();
                self.held.extend(passed);
            }
            // Looks wait for locks that everybody else only tries.
            26 => _ = (self.world.zones.nr_free(), self.world.zones.stats()),
            27 => {
                let is_active = self.below(2) == 0;
                let zones = self.world.zones.iter();
                zones.for_each(|zone| zone.set_reclaim_active(is_active));
            }
            roll => {
                if self.is_filling == (roll % 4 != 0) {
                    self.alloc(cpu);
                } else {
                    self.free(cpu);
                }
            }
        }
    }

    /// Takes an idle block as the one who gives memory to the OS does, and puts it back.
    fn give_idle(&mut self) {
        let is_released = self.below(2) == 0;
        let World { zones, frames, .. } = &*self.world;
        if let Some((frame, order)) = zones.take_idle(frames, zones.now()) {
            self.world.stamp(frame, order, 0, self.id);
            thread::yield_now();
            self.world.stamp(frame, order, self.id, 0);
            zones.put_idle(frames, (frame, order), is_released);
        }
    }

    fn run(mut self, until: Instant) -> Vec<Block> {
        while Instant::now() < until {
            (0..64).for_each(|_| self.step());
        }
        self.held
    }
}

/// Ends the test where a thread hangs: one that runs in a ring cannot be joined.
fn give_up() -> ! {
    let _ = writeln!(std::io::stderr(), "a thread of the stress test hangs");
    std::process::exit(101)
}

/// How long one test runs.
fn seconds() -> u64 {
    let seconds = std::env::var("PAGETIDE_STRESS_SECONDS").ok();
    seconds.map_or(2, |seconds| seconds.parse().expect("a number of seconds"))
}

/// Runs threads for a round, of the numbers from 1 on, each with what `worker` makes for it;
/// returns what they leave.
fn run_threads<T, W>(nr_threads: u32, worker: impl Fn(u32) -> W) -> Vec<T>
where
    T: Send + 'static,
    W: FnOnce(Instant) -> T + Send + 'static,
{
    let until = Instant::now() + ROUND;
    let (done, all_done) = mpsc::channel();
    let threads: Vec<_> = (1..=nr_threads)
        .map(|id| {
            let (run, done) = (worker(id), done.clone());
            thread::spawn(move || done.send(run(until)).expect("the test waits"))
        })
        .collect();
    drop(done);
    let mut left = Vec::new();
    loop {
        match all_done.recv_timeout(ROUND + GRACE) {
            Ok(one) => left.push(one),
            // All have ended, in one way or another.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => give_up(),
        }
    }
    for thread in threads {
        thread.join().expect("a thread of the stress test panicked");
    }
    left
}

#[test]
fn threads_that_share_caches_lose_and_double_no_frame() {
    let until = Instant::now() + Duration::from_secs(seconds());
    let caches = ZonelistCache::ALL.into_iter().cycle();
    let forms = [BulkFree::SinglePass, BulkFree::TwoPass]
        .into_iter()
        .cycle();
    for (round, ((_, cache), form)) in (0..).zip(caches.zip(forms)) {
        let world = Arc::new(World::new(cache, form));
        let World { zones, frames, .. } = &*world;
        let first = world.buddyinfo();
        let left = run_threads(NR_THREADS, |id| {
            let worker = Worker {
                world: Arc::clone(&world),
                id,
                random: u64::from(round * NR_THREADS + id).wrapping_mul(0x9E37_79B9_7F4A_7C15),
                held: Vec::new(),
                is_filling: true,
            };
            move |until| worker.run(until)
        });
        let passed = std::mem::take(&mut *world.passed());
        for block in left.iter().flatten().chain(&passed) {
            world.free(Cpu::new(0), block);
        }
        assert_eq!(zones.drain(frames).not_reached, 0);
        zones.audit(frames).expect("agreement");
        assert_eq!(zones.nr_free(), zones.managed());
        assert_eq!(world.buddyinfo(), first);
        let stats = zones.stats();
        assert_eq!(stats.pgalloc, stats.pgfree);
        println!("round {round}: {} pages served, {stats:?}", stats.pgalloc);
        if Instant::now() >= until {
            break;
        }
    }
}
