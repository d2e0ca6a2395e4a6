//! A machine of many CPUs in virtual time: real zones, and a queue before each zone's lock.
//!
//! Workers run the real allocator, one at a time, always the one that is furthest behind. What a
//! call did is read from the zones' own counters; what it cost comes from [`Costs`]: a hit, or for
//! each hold of a zone's lock the wait for those before it, and `hold_ns + pages * hold_page_ns`.
//! A worker runs on for [`WINDOW`] past the next one, so that order is exact to that.

mod costs;

pub use costs::Costs;

use hdrhistogram::Histogram;
use pagetide_core::alloc::{Config, DRAIN_PAGES, Mark, Mobility, Request, Zones};
use pagetide_core::frame::FrameTable;
use pagetide_core::units::{Cpu, Frame, Order, SECOND};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How far a worker runs ahead of the others, in ns.
pub const WINDOW: u64 = 2_000;
/// A longer wait gives the CPU away, in ns: 64 spins.
const SPIN_NS: u64 = 1_000;

/// Steps of the zones' clock in a second of theirs.
const STEPS: u64 = 8;

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Goes on at once.
    Go,
    /// Goes on at this time.
    At(u64),
    /// Has ended.
    Done,
}

/// A program on a simulated CPU.
pub trait Worker {
    /// Does one step: at most a few calls of the allocator.
    fn step(&mut self, turn: &mut Turn<'_>) -> Next;
}

/// A zone's lock.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    free_at: u64,
    last: Option<usize>,
    takes: u64,
    pages: u64,
}

/// What was measured between two looks.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Pages allocated, and given back.
    pub pgalloc: u64,
    /// See `pgalloc`.
    pub pgfree: u64,
    /// Times that a zone's lock was taken.
    pub lock_takes: u64,
    /// Virtual CPU time of all workers, in ns, without sleeping.
    pub busy_ns: u64,
    /// Of this, waiting for zones' locks.
    pub wait_ns: u64,
    /// Virtual time that passed.
    pub elapsed_ns: u64,
    /// Requests for which other CPUs' caches were drained.
    pub drains: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Blocks allocated.
    pub blocks: u64,
    /// Zone records that were looked at, and list positions.
    pub zones: u64,
    /// See `zones`.
    pub positions: u64,
    /// Pages in per-CPU page caches: mean and most over ticks.
    pub held_mean: f64,
    /// See `held_mean`.
    pub held_max: u64,
    /// ns of each allocation, and of each free.
    pub alloc_ns: Histogram<u64>,
    /// See `alloc_ns`.
    pub free_ns: Histogram<u64>,
}

impl Measured {
    /// Takes of zones' locks for 1,000 pages that were allocated and given back.
    #[must_use]
    pub fn takes_per_1000(&self) -> f64 {
        self.lock_takes as f64 * 1e3 / (self.pgalloc.max(1) as f64)
    }

    /// Share of the busy time that was spent waiting for zones' locks.
    #[must_use]
    pub fn wait_share(&self) -> f64 {
        self.wait_ns as f64 / self.busy_ns.max(1) as f64
    }

    /// Both of two measurements, one after the other.
    #[must_use]
    pub fn plus(&self, other: &Measured) -> Measured {
        let mut both = self.clone();
        both.pgalloc += other.pgalloc;
        both.pgfree += other.pgfree;
        both.lock_takes += other.lock_takes;
        both.busy_ns += other.busy_ns;
        both.wait_ns += other.wait_ns;
        both.elapsed_ns += other.elapsed_ns;
        both.drains += other.drains;
        both.failures += other.failures;
        both.blocks += other.blocks;
        both.zones += other.zones;
        both.positions += other.positions;
        let all_ns = both.elapsed_ns.max(1) as f64;
        both.held_mean = (self.held_mean * self.elapsed_ns as f64
            + other.held_mean * other.elapsed_ns as f64)
            / all_ns;
        both.held_max = self.held_max.max(other.held_max);
        both.alloc_ns += &other.alloc_ns;
        both.free_ns += &other.free_ns;
        both
    }

    /// Pages allocated in a second of virtual time.
    #[must_use]
    pub fn pages_per_s(&self) -> f64 {
        self.pgalloc as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

/// Real zones under virtual CPUs.
pub struct Machine {
    zones: Zones,
    frames: FrameTable,
    costs: Costs,
    /// Virtual ns in a second of the tuners.
    second_ns: u64,
    queues: Vec<Queue>,
    cpu_free_at: Vec<u64>,
    next_tick: u64,
    now: u64,
    totals: Totals,
    since: Totals,
    since_now: u64,
}

#[derive(Clone, Debug)]
struct Totals {
    busy_ns: u64,
    wait_ns: u64,
    drains: u64,
    failures: u64,
    held_sum: u64,
    held_max: u64,
    nr_ticks: u64,
    pgalloc: u64,
    pgfree: u64,
    lock_takes: u64,
    blocks: u64,
    positions: u64,
    zones: u64,
    alloc_ns: Histogram<u64>,
    free_ns: Histogram<u64>,
}

/// Delays up to a second, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, SECOND, 3).expect("constant bounds")
}

impl Totals {
    fn new() -> Totals {
        Totals {
            busy_ns: 0,
            wait_ns: 0,
            drains: 0,
            failures: 0,
            held_sum: 0,
            held_max: 0,
            nr_ticks: 0,
            pgalloc: 0,
            pgfree: 0,
            lock_takes: 0,
            blocks: 0,
            positions: 0,
            zones: 0,
            alloc_ns: histogram(),
            free_ns: histogram(),
        }
    }
}

/// Why there is no machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The configuration does not add up.
    #[error("the machine does not add up: {0:?}")]
    Config(pagetide_core::alloc::ConfigError),
    /// No memory for the records of its frames.
    #[error("no memory for the records of {0} frames")]
    NoMetadata(u32),
}

impl Machine {
    /// A machine of `nr_frames` frames, all free, whose tuners' second takes `second_ns` of
    /// virtual time.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn new(
        config: Config,
        nr_frames: u32,
        costs: Costs,
        second_ns: u64,
    ) -> Result<Machine, MachineError> {
        config.check().map_err(MachineError::Config)?;
        let refused = |_| MachineError::NoMetadata(nr_frames);
        let nr_cpus = config.topology.nr_cpus() as usize;
        let frames = FrameTable::try_new(nr_frames).map_err(refused)?;
        let zones = Zones::try_new(config, &frames).map_err(refused)?;
        Ok(Machine {
            queues: vec![Queue::default(); zones.iter().count()],
            zones,
            frames,
            costs,
            second_ns,
            cpu_free_at: vec![0; nr_cpus],
            next_tick: second_ns / STEPS,
            now: 0,
            totals: Totals::new(),
            since: Totals::new(),
            since_now: 0,
        })
    }

    /// The zones.
    #[must_use]
    pub fn zones(&self) -> &Zones {
        &self.zones
    }

    /// The frame table.
    #[must_use]
    pub fn frames(&self) -> &FrameTable {
        &self.frames
    }

    /// Virtual time, in ns.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Pages in per-CPU page caches.
    #[must_use]
    pub fn held(&self) -> u64 {
        let of_zone = |zone: &pagetide_core::alloc::Zone| {
            (0..self.cpu_free_at.len())
                .map(|cpu| u64::from(zone.pageset(cpu_of(cpu)).0))
                .sum::<u64>()
        };
        self.zones.iter().map(of_zone).sum()
    }

    /// Begins to measure anew.
    pub fn mark(&mut self) {
        self.count();
        self.totals.alloc_ns.clear();
        self.totals.free_ns.clear();
        self.totals.held_max = 0;
        self.since = self.totals.clone();
        self.since_now = self.now;
    }

    fn count(&mut self) {
        let stats = self.zones.stats();
        self.totals.pgalloc = stats.pgalloc;
        self.totals.pgfree = stats.pgfree;
        self.totals.lock_takes = stats.lock_takes;
        let looks = self.zones.look_stats();
        // A request that no scan served was served by the first zone that it looked at.
        let by_first = stats.numa_hit + stats.numa_miss - looks.served;
        self.totals.blocks = stats.numa_hit + stats.numa_miss;
        self.totals.positions = looks.positions + by_first;
        self.totals.zones = looks.zones + by_first;
    }

    /// What happened since [`Machine::mark`].
    pub fn measured(&mut self) -> Measured {
        self.count();
        let (now, was) = (&self.totals, &self.since);
        let nr_ticks = now.nr_ticks - was.nr_ticks;
        Measured {
            pgalloc: now.pgalloc - was.pgalloc,
            pgfree: now.pgfree - was.pgfree,
            lock_takes: now.lock_takes - was.lock_takes,
            busy_ns: now.busy_ns - was.busy_ns,
            wait_ns: now.wait_ns - was.wait_ns,
            elapsed_ns: self.now - self.since_now,
            drains: now.drains - was.drains,
            failures: now.failures - was.failures,
            blocks: now.blocks - was.blocks,
            zones: now.zones - was.zones,
            positions: now.positions - was.positions,
            held_mean: (now.held_sum - was.held_sum) as f64 / nr_ticks.max(1) as f64,
            held_max: now.held_max,
            alloc_ns: now.alloc_ns.clone(),
            free_ns: now.free_ns.clone(),
        }
    }

    /// Runs workers until all have ended or `until` has come. Each begins on its CPU; those that
    /// have not ended are left in `workers`, and go on when it is run again.
    pub fn run(&mut self, workers: &mut Vec<(usize, Box<dyn Worker + '_>)>, until: u64) {
        let mut heap: BinaryHeap<Reverse<(u64, usize)>> = (0..workers.len())
            .map(|at| Reverse((self.now, at)))
            .collect();
        let mut ended = vec![false; workers.len()];
        while let Some(Reverse((start, at))) = heap.pop() {
            if start >= until {
                break;
            }
            self.tick_until(start);
            let horizon = heap.peek().map_or(until, |Reverse((next, _))| *next) + WINDOW;
            let (cpu, worker) = &mut workers[at];
            let mut turn = Turn {
                now: start.max(self.cpu_free_at[*cpu]),
                machine: self,
                cpu: *cpu,
                is_locked: false,
            };
            let began = turn.now;
            let next = loop {
                match worker.step(&mut turn) {
                    Next::Go if turn.now < horizon && !turn.is_locked => {}
                    next => break next,
                }
            };
            let (now, new_cpu) = (turn.now, turn.cpu);
            self.cpu_free_at[*cpu] = now;
            *cpu = new_cpu;
            self.totals.busy_ns += now - began;
            match next {
                Next::Go => heap.push(Reverse((now, at))),
                Next::At(time) => heap.push(Reverse((time.max(now), at))),
                Next::Done => ended[at] = true,
            }
        }
        let mut at = 0;
        workers.retain(|_| {
            at += 1;
            !ended[at - 1]
        });
        self.tick_until(until);
        self.now = self.now.max(until);
    }

    /// The clock goes on; ticks are a background agent's.
    fn tick_until(&mut self, now: u64) {
        self.now = self.now.max(now);
        while self.next_tick <= now {
            let time = self.next_tick;
            let step = time / (self.second_ns / STEPS);
            self.zones.tick(&self.frames, step * (SECOND / STEPS));
            self.charge(time, None);
            self.next_tick += self.second_ns / STEPS;
            if !step.is_multiple_of(STEPS) {
                continue;
            }
            let held = self.held();
            self.totals.held_sum += held;
            self.totals.held_max = self.totals.held_max.max(held);
            self.totals.nr_ticks += 1;
        }
    }

    /// Charges the holds of zones' locks since the last look to whoever called at `now`; returns
    /// when it goes on and how long of this it waited.
    fn charge(&mut self, mut now: u64, cpu: Option<usize>) -> (u64, u64) {
        let mut waited = 0;
        let Machine {
            zones,
            queues,
            costs,
            ..
        } = self;
        for (zone, queue) in zones.iter().zip(queues) {
            let (takes, pages) = zone.holds_so_far();
            if takes == queue.takes {
                continue;
            }
            let (nr_holds, nr_pages) = (takes - queue.takes, pages - queue.pages);
            (queue.takes, queue.pages) = (takes, pages);
            let hold_pages = nr_pages / nr_holds;
            for nth in 0..nr_holds {
                let extra = if nth == 0 { nr_pages % nr_holds } else { 0 };
                let mut hold = costs.hold_ns + (hold_pages + extra) * costs.hold_page_ns;
                if queue.last != cpu {
                    hold += costs.line_transfer_ns;
                    queue.last = cpu;
                }
                let wait = queue.free_at.saturating_sub(now);
                waited += wait;
                let woken = if wait > SPIN_NS { costs.wake_up_ns } else { 0 };
                now += wait + woken + hold;
                queue.free_at = now;
            }
        }
        (now, waited)
    }
}

fn cpu_of(cpu: usize) -> Cpu {
    Cpu::new(u32::try_from(cpu).expect("few CPUs"))
}

/// A worker's turn: the allocator, and time.
pub struct Turn<'a> {
    machine: &'a mut Machine,
    cpu: usize,
    now: u64,
    /// A zone's lock was taken in this turn.
    is_locked: bool,
}

impl Turn<'_> {
    /// Virtual time, in ns.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The CPU's number.
    #[must_use]
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Goes to another CPU after this turn.
    pub fn migrate(&mut self, cpu: usize) {
        self.cpu = cpu % self.machine.cpu_free_at.len();
    }

    /// Works for a while.
    pub fn spend(&mut self, ns: u64) {
        self.now += ns;
    }

    /// Writes to a page for the first time.
    pub fn touch(&mut self) {
        self.now += self.machine.costs.touch_ns;
    }

    /// Free pages outside the caches.
    #[must_use]
    pub fn nr_free(&self) -> u32 {
        let zones = self.machine.zones.iter();
        zones.map(pagetide_core::alloc::Zone::nr_free_racy).sum()
    }

    /// The zones, for looking at.
    #[must_use]
    pub fn zones(&self) -> &Zones {
        &self.machine.zones
    }

    /// Allocates as a charged request does: above `low`, above `min`, whatever there is, and that
    /// after a drain.
    pub fn alloc(&mut self, order: Order) -> Option<Frame> {
        let request = Request::new(order, Mobility::Movable);
        for mark in [Mark::Low, Mark::Min, Mark::None] {
            if let Some(frame) = self.try_alloc(&Request { mark, ..request }) {
                return Some(frame);
            }
        }
        self.machine.totals.drains += 1;
        let Machine { zones, frames, .. } = &*self.machine;
        zones.drain_some(frames, DRAIN_PAGES);
        let frame = self.try_alloc(&request);
        self.machine.totals.failures += u64::from(frame.is_none());
        frame
    }

    /// Tries one request.
    pub fn try_alloc(&mut self, request: &Request) -> Option<Frame> {
        let Machine { zones, frames, .. } = &*self.machine;
        let has_nodes = zones.config().topology.nr_nodes() > 1;
        let before = has_nodes.then(|| zones.look_stats().zones);
        let frame = zones.alloc(frames, cpu_of(self.cpu), request).ok();
        if let Some(before) = before {
            let looked_at = zones.look_stats().zones - before;
            self.now += looked_at * self.machine.costs.zone_ns;
        }
        let took = self.charge();
        if frame.is_some() {
            self.machine.totals.alloc_ns.saturating_record(took);
        }
        frame
    }

    /// Gives a block back.
    pub fn free(&mut self, frame: Frame, order: Order) {
        let Machine { zones, frames, .. } = &*self.machine;
        zones.free(frames, cpu_of(self.cpu), frame, order);
        let took = self.charge();
        self.machine.totals.free_ns.saturating_record(took);
    }

    fn charge(&mut self) -> u64 {
        let start = self.now + self.machine.costs.hit_ns;
        let (now, waited) = self.machine.charge(start, Some(self.cpu));
        self.is_locked |= now != start;
        self.machine.totals.wait_ns += waited;
        let took = now - self.now;
        self.now = now;
        took
    }
}
