//! Programs on virtual CPUs.

use crate::machine::{Next, Turn, Worker};
use crate::random::Random;
use pagetide_core::units::{Frame, Order};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Frames that one worker hands to another.
pub type Lane = RefCell<VecDeque<Frame>>;

/// Allocates pages, touches each, frees all in the order of their allocation, repeats.
#[derive(Debug)]
pub struct Fault {
    held: VecDeque<Frame>,
    is_filling: bool,
    nr_pages: u32,
    until: u64,
}

impl Fault {
    /// With `nr_pages` pages a cycle, for ever.
    #[must_use]
    pub fn new(nr_pages: u32) -> Fault {
        Fault::until(nr_pages, u64::MAX)
    }

    /// The same until a time; then it frees what it has and ends.
    #[must_use]
    pub fn until(nr_pages: u32, until: u64) -> Fault {
        Fault {
            held: VecDeque::with_capacity(nr_pages as usize),
            is_filling: true,
            nr_pages,
            until,
        }
    }
}

impl Worker for Fault {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        if self.is_filling {
            match turn.alloc(Order::ZERO) {
                Some(frame) => {
                    self.held.push_back(frame);
                    turn.touch();
                }
                None => self.is_filling = false,
            }
            if self.held.len() == self.nr_pages as usize || turn.now() >= self.until {
                self.is_filling = false;
            }
            return Next::Go;
        }
        match self.held.pop_front() {
            Some(frame) => turn.free(frame, Order::ZERO),
            None if turn.now() >= self.until => return Next::Done,
            None => self.is_filling = true,
        }
        Next::Go
    }
}

/// A compiler: grows by a random size, computes, exits, starts again on another CPU.
#[derive(Debug)]
pub struct Task {
    held: Vec<Frame>,
    target: usize,
    random: Random,
    until: u64,
    /// From this time on it runs on these CPUs only.
    narrow: (u64, usize),
    is_filling: bool,
}

impl Task {
    /// Ends at `until`; from `narrow.0` on it runs on CPUs below `narrow.1`.
    #[must_use]
    pub fn new(seed: usize, until: u64, narrow: (u64, usize)) -> Task {
        let mut random = Random::new(seed);
        Task {
            held: Vec::new(),
            target: 500 + random.below(20_000),
            random,
            until,
            narrow,
            is_filling: true,
        }
    }
}

impl Worker for Task {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        let is_late = turn.now() >= self.until;
        if self.is_filling && !is_late && self.held.len() < self.target {
            if let Some(frame) = turn.alloc(Order::ZERO) {
                self.held.push(frame);
                turn.touch();
            }
            turn.spend(300);
            return Next::Go;
        }
        self.is_filling = false;
        if let Some(frame) = self.held.pop() {
            turn.free(frame, Order::ZERO);
            return Next::Go;
        }
        if is_late {
            return Next::Done;
        }
        self.is_filling = true;
        self.target = 500 + self.random.below(20_000);
        let (from, cpus) = self.narrow;
        let nr_cpus = if turn.now() >= from { cpus } else { 56 };
        turn.migrate(self.random.below(nr_cpus));
        Next::At(turn.now())
    }
}

/// One side of a stream: allocates and sends, or receives and frees.
#[derive(Debug)]
pub struct Pair {
    lane: Rc<Lane>,
    gap_ns: u64,
    is_producer: bool,
}

/// Both sides of a stream over their own lane.
#[must_use]
pub fn pair(from: usize, to: usize, gap_ns: u64) -> [(usize, Box<dyn Worker>); 2] {
    let lane = Rc::new(Lane::default());
    [(from, true), (to, false)].map(|(cpu, is_producer)| {
        let lane = Rc::clone(&lane);
        let side = Pair {
            lane,
            gap_ns,
            is_producer,
        };
        (cpu, Box::new(side) as Box<dyn Worker>)
    })
}

impl Worker for Pair {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        /// Pages under way at most.
        const ROOM: usize = 4096;
        let start = turn.now();
        let mut lane = self.lane.borrow_mut();
        if self.is_producer {
            if lane.len() < ROOM
                && let Some(frame) = turn.alloc(Order::ZERO)
            {
                turn.touch();
                lane.push_back(frame);
            }
        } else if let Some(frame) = lane.pop_front() {
            turn.free(frame, Order::ZERO);
        }
        Next::At(turn.now().max(start + self.gap_ns))
    }
}

/// Holds 0 to 50 pages, at random.
#[derive(Debug)]
pub(super) struct Walk {
    held: Vec<Frame>,
    random: Random,
}

impl Walk {
    pub(super) fn new(seed: usize) -> Walk {
        Walk {
            held: Vec::new(),
            random: Random::new(seed),
        }
    }
}

impl Worker for Walk {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        let grows = self.held.is_empty() || (self.held.len() < 50 && self.random.below(2) == 0);
        if grows {
            self.held.extend(turn.alloc(Order::ZERO));
            turn.touch();
        } else if let Some(frame) = self.held.pop() {
            turn.free(frame, Order::ZERO);
        }
        Next::Go
    }
}

/// From a time on, takes pages and keeps them.
#[derive(Debug)]
pub(super) struct Hoard {
    from: u64,
    left: u32,
}

impl Hoard {
    pub(super) fn new(from: u64, most: u32) -> Hoard {
        Hoard { from, left: most }
    }
}

impl Worker for Hoard {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        if turn.now() < self.from {
            return Next::At(self.from);
        }
        if self.left == 0 || turn.alloc(Order::ZERO).is_none() {
            return Next::Done;
        }
        self.left -= 1;
        // No touch: 95 % of the memory in a second of virtual time.
        Next::Go
    }
}

/// Holds 400 to 1,100 pages.
#[derive(Debug)]
pub(super) struct Churn {
    held: Vec<Frame>,
    is_filling: bool,
    random: Random,
}

impl Churn {
    pub(super) fn new(seed: usize) -> Churn {
        Churn {
            held: Vec::new(),
            is_filling: true,
            random: Random::new(seed),
        }
    }
}

impl Worker for Churn {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        if self.is_filling {
            self.held.extend(turn.alloc(Order::ZERO));
            turn.touch();
            self.is_filling = self.held.len() < 1_100 - self.random.below(2);
        } else {
            if let Some(frame) = self.held.pop() {
                turn.free(frame, Order::ZERO);
            }
            self.is_filling = self.held.len() <= 400;
        }
        Next::Go
    }
}

/// Fills memory by 100 pages a millisecond.
#[derive(Debug)]
pub(super) struct Cache<'a> {
    pages: &'a Lane,
}

impl<'a> Cache<'a> {
    pub(super) fn new(pages: &'a Lane) -> Cache<'a> {
        Cache { pages }
    }
}

const MILLISECOND: u64 = 1_000_000;

impl Worker for Cache<'_> {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        let start = turn.now();
        // Before the load matters, memory is filled at once.
        let high: u32 = turn
            .zones()
            .iter()
            .map(|zone| zone.watermarks().0.high)
            .sum();
        let most = if turn.nr_free() > 4 * high {
            10_000
        } else {
            100
        };
        for _ in 0..most {
            self.pages.borrow_mut().extend(turn.alloc(Order::ZERO));
        }
        let pause = if most == 100 { MILLISECOND } else { 0 };
        Next::At(turn.now().max(start + pause))
    }
}

/// Frees 300 pages a millisecond from below `low` until above `high`.
#[derive(Debug)]
pub(super) struct Reclaimer<'a> {
    pages: &'a Lane,
    is_active: bool,
}

impl<'a> Reclaimer<'a> {
    pub(super) fn new(pages: &'a Lane) -> Reclaimer<'a> {
        Reclaimer {
            pages,
            is_active: false,
        }
    }
}

impl Worker for Reclaimer<'_> {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        let start = turn.now();
        let nr_free = turn.nr_free();
        let (mut low, mut high) = (0, 0);
        for zone in turn.zones().iter() {
            let marks = zone.watermarks().0;
            (low, high) = (low + marks.low, high + marks.high);
        }
        let was_active = self.is_active;
        self.is_active = nr_free < if was_active { high } else { low };
        if was_active != self.is_active {
            let is_active = self.is_active;
            turn.zones()
                .iter()
                .for_each(|zone| zone.set_reclaim_active(is_active));
        }
        if self.is_active {
            for _ in 0..300 {
                let Some(frame) = self.pages.borrow_mut().pop_front() else {
                    break;
                };
                turn.free(frame, Order::ZERO);
            }
        }
        let pause = if self.is_active {
            MILLISECOND
        } else {
            MILLISECOND / 10
        };
        Next::At(turn.now().max(start + pause))
    }
}

/// Allocates pages just before each period's end, frees them just after it.
#[derive(Debug)]
pub(super) struct Burst {
    held: Vec<Frame>,
    nr_pages: usize,
    period: u64,
    is_filling: bool,
}

impl Burst {
    pub(super) fn new(nr_pages: usize, period: u64) -> Burst {
        Burst {
            held: Vec::new(),
            nr_pages,
            period,
            is_filling: true,
        }
    }
}

impl Worker for Burst {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        let now = turn.now();
        // Far enough before the period's end that all pages are there when it comes.
        let lead = self.nr_pages as u64 * 400;
        let into = now % self.period;
        if self.is_filling {
            if self.held.is_empty() && into < self.period - lead {
                return Next::At(now - into + self.period - lead);
            }
            self.held.extend(turn.alloc(Order::ZERO));
            turn.touch();
            self.is_filling = self.held.len() < self.nr_pages;
            if !self.is_filling {
                return Next::At(now - into + self.period);
            }
            return Next::Go;
        }
        match self.held.pop() {
            Some(frame) => turn.free(frame, Order::ZERO),
            None => self.is_filling = true,
        }
        Next::Go
    }
}

/// Allocates on one CPU, frees on another, in turns if it swaps.
#[derive(Debug)]
pub(super) struct Hand {
    held: Vec<Frame>,
    cpus: [usize; 2],
    nr_pages: usize,
    swaps: bool,
    is_filling: bool,
}

impl Hand {
    pub(super) fn new(cpus: [usize; 2], nr_pages: u32, swaps: bool) -> Hand {
        Hand {
            held: Vec::new(),
            cpus,
            nr_pages: nr_pages as usize,
            swaps,
            is_filling: true,
        }
    }
}

impl Worker for Hand {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        if self.is_filling {
            self.held.extend(turn.alloc(Order::ZERO));
            turn.touch();
            if self.held.len() < self.nr_pages {
                return Next::Go;
            }
            self.is_filling = false;
            turn.migrate(self.cpus[1]);
            return Next::At(turn.now());
        }
        if let Some(frame) = self.held.pop() {
            turn.free(frame, Order::ZERO);
            return Next::Go;
        }
        self.is_filling = true;
        if self.swaps {
            self.cpus.swap(0, 1);
        }
        turn.migrate(self.cpus[0]);
        Next::At(turn.now())
    }
}

/// Allocates a page each so often until it has all, then frees them as slowly.
#[derive(Debug)]
pub(super) struct Slow {
    held: Vec<Frame>,
    nr_pages: usize,
    half: u64,
    is_filling: bool,
}

impl Slow {
    pub(super) fn new(nr_pages: u32, half: u64) -> Slow {
        Slow {
            held: Vec::new(),
            nr_pages: nr_pages as usize,
            half,
            is_filling: true,
        }
    }
}

impl Worker for Slow {
    fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        /// Pages a step.
        const CHUNK: usize = 64;
        let start = turn.now();
        for _ in 0..CHUNK {
            if self.is_filling {
                self.held.extend(turn.alloc(Order::ZERO));
                turn.touch();
            } else if let Some(frame) = self.held.pop() {
                turn.free(frame, Order::ZERO);
            }
        }
        if self.is_filling && self.held.len() >= self.nr_pages {
            self.is_filling = false;
        } else if self.held.is_empty() {
            self.is_filling = true;
        }
        let gap = self.half * CHUNK as u64 / self.nr_pages as u64;
        Next::At(turn.now().max(start + gap))
    }
}
