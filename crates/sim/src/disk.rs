//! A disk in memory: pages are numbers, operations take their time, some fail.
//!
//! A page's content is a stamp, a number that whoever changes the page chooses. The disk keeps the
//! stamp that was written last to each page, and what is in each frame. Reads and writes that were
//! submitted end one at a time, in an order that the seed decides; each may fail. What was written
//! is never lost. It runs core's reads and writes, and those that reclaim wants: it is the
//! [`Platform`] of a memory.

use pagetide_core::memory::{Effect, Effects, Here, Io, Memory, Platform, Write, Writes};
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The code of an operation that failed.
pub const FAILED: u32 = 5;
/// The code of a write whose store got no memory.
pub const NO_MEMORY: u32 = 12;

/// Writes that it runs for reclaim at a time.
const MAX_WRITES: usize = 4;

/// Which operations fail, counted from 0 in the order in which they end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Faults {
    /// None.
    #[default]
    None,
    /// One read.
    Read(u64),
    /// One write.
    Write(u64),
    /// Every write.
    AllWrites,
    /// One operation in so many, at random.
    OneIn(u64),
}

/// What the disk did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Reads that ended, failed ones too.
    pub nr_reads: u64,
    /// Writes that ended, failed ones too.
    pub nr_writes: u64,
    /// Of both, those that failed.
    pub nr_failed: u64,
}

#[derive(Debug)]
enum Op {
    Read(Io),
    /// A write, the stamp that was in the frame when it began, and its store's own blocks.
    Write(Write, u64, Vec<Frame>),
}

#[derive(Debug)]
struct State {
    random: u64,
    faults: Faults,
    /// Blocks that the store takes for each write.
    nr_blocks: u32,
    done: Done,
    /// The stamp on disk by page; 0 where none was written.
    stamps: BTreeMap<u64, u64>,
    /// The stamp in each frame that was read or changed.
    frames: BTreeMap<u32, u64>,
    pending: Vec<Op>,
}

/// A simulated disk, for one thread.
#[derive(Debug)]
pub struct Disk(RefCell<State>);

impl State {
    /// A number below `bound`. Source: `xorshift64*` (Vigna 2016).
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let number = self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(number).expect("31 bits") % bound
    }

    fn fails(&mut self, is_read: bool) -> bool {
        let fails = match self.faults {
            Faults::None => false,
            Faults::Read(which) => is_read && which == self.done.nr_reads,
            Faults::Write(which) => !is_read && which == self.done.nr_writes,
            Faults::AllWrites => !is_read,
            Faults::OneIn(bound) => {
                let bound = usize::try_from(bound).expect("a small number");
                self.below(bound) == 0
            }
        };
        self.done.nr_reads += u64::from(is_read);
        self.done.nr_writes += u64::from(!is_read);
        self.done.nr_failed += u64::from(fails);
        fails
    }

    /// Takes a pending operation at random, of those that are `meant`.
    fn take(&mut self, meant: impl Fn(&Op) -> bool) -> Option<Op> {
        let places: Vec<usize> = (0..self.pending.len())
            .filter(|&at| meant(&self.pending[at]))
            .collect();
        if places.is_empty() {
            return None;
        }
        let at = places[self.below(places.len())];
        Some(self.pending.swap_remove(at))
    }

    fn has_write_of(&self, key: PageKey) -> bool {
        let is_it = |op: &Op| matches!(op, Op::Write(write, ..) if write.key() == key);
        self.pending.iter().any(is_it)
    }
}

impl Disk {
    /// An empty disk: every page has the stamp 0.
    #[must_use]
    pub fn new(seed: u64) -> Disk {
        Disk(RefCell::new(State {
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            faults: Faults::None,
            nr_blocks: 0,
            done: Done::default(),
            stamps: BTreeMap::new(),
            frames: BTreeMap::new(),
            pending: Vec::new(),
        }))
    }

    /// Says what fails from now on; operations are counted from 0 again.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.0.borrow_mut();
        state.faults = faults;
        state.done = Done::default();
    }

    /// Says how many blocks of working memory its store takes for each write, and holds while that
    /// is under way. A write that does not get them fails.
    pub fn set_blocks(&self, nr_blocks: u32) {
        self.0.borrow_mut().nr_blocks = nr_blocks;
    }

    /// What it did since the faults were set.
    #[must_use]
    pub fn done(&self) -> Done {
        self.0.borrow().done
    }

    /// Operations that have not ended.
    #[must_use]
    pub fn nr_pending(&self) -> usize {
        self.0.borrow().pending.len()
    }

    fn nr_writing(&self) -> usize {
        let state = self.0.borrow();
        let is_write = |op: &&Op| matches!(op, Op::Write(..));
        state.pending.iter().filter(is_write).count()
    }

    /// The stamp of a page on disk.
    #[must_use]
    pub fn stamp(&self, key: PageKey) -> u64 {
        let state = self.0.borrow();
        state.stamps.get(&key.bits()).copied().unwrap_or(0)
    }

    /// The stamp in a frame. The caller holds its page.
    #[must_use]
    pub fn stamp_in(&self, frame: Frame) -> u64 {
        let state = self.0.borrow();
        state.frames.get(&frame.number()).copied().unwrap_or(0)
    }

    /// Changes the bytes of a page that the caller holds pinned.
    pub fn change(&self, memory: &Memory, frame: Frame, stamp: u64) {
        self.0.borrow_mut().frames.insert(frame.number(), stamp);
        memory.set_dirty(frame);
    }

    /// Begins a read that core asked for.
    ///
    /// # Panics
    /// Where the page is being written: nobody else may have let go of it.
    pub fn read(&self, io: Io) {
        let mut state = self.0.borrow_mut();
        assert!(!state.has_write_of(io.key()), "a read during a write");
        state.pending.push(Op::Read(io));
    }

    /// Begins a write that core gave out.
    ///
    /// # Panics
    /// Where the page is being written already.
    pub fn write(&self, memory: &Memory, write: Write) {
        let here = Here::new(Cpu::new(0), self).for_writes();
        let nr_blocks = self.0.borrow().nr_blocks;
        let group = memory.frames().group(write.frame());
        let take = |_| memory.alloc_buf(here, group, Order::ZERO).ok();
        let blocks: Vec<Frame> = (0..nr_blocks)
            .map_while(take)
            .map(|(frame, _)| frame)
            .collect();
        let is_short = blocks.len() < usize::try_from(nr_blocks).expect("a small number");
        let stamp = self.stamp_in(write.frame());
        assert!(
            !self.0.borrow().has_write_of(write.key()),
            "two writes of a page"
        );
        if is_short {
            free(memory, blocks);
            let mut state = self.0.borrow_mut();
            state.done.nr_writes += 1;
            state.done.nr_failed += 1;
            drop(state);
            complete(memory, write, Err(NO_MEMORY));
            return;
        }
        self.0
            .borrow_mut()
            .pending
            .push(Op::Write(write, stamp, blocks));
    }

    /// Ends one operation; false where none is under way.
    pub fn end_one(&self, memory: &Memory) -> bool {
        self.end(memory, |_| true).is_some()
    }

    /// Ends all operations.
    pub fn end_all(&self, memory: &Memory) {
        while self.end_one(memory) {}
    }

    /// Ends an operation that is `meant`, if there is one; whether it went well.
    fn end(&self, memory: &Memory, meant: impl Fn(&Op) -> bool) -> Option<bool> {
        let mut state = self.0.borrow_mut();
        let op = state.take(meant)?;
        let fails = state.fails(matches!(op, Op::Read(_)));
        let result = if fails { Err(FAILED) } else { Ok(()) };
        match op {
            Op::Read(io) => {
                // What a failed read leaves in the frame is nothing that was ever written.
                let stamp = state.stamps.get(&io.key().bits()).copied().unwrap_or(0);
                let stamp = if fails { u64::MAX } else { stamp };
                state.frames.insert(io.frame().number(), stamp);
                drop(state);
                let mut effects = Effects::new();
                memory.complete(Cpu::new(0), io, result, &mut effects);
            }
            Op::Write(write, began_with, blocks) => {
                // Bytes that changed meanwhile may be in it; one that failed may have got there.
                let now = state.frames.get(&write.frame().number()).copied();
                let stamp = match state.below(2) {
                    0 => began_with,
                    _ => now.unwrap_or(began_with),
                };
                if !fails || state.below(2) == 0 {
                    state.stamps.insert(write.key().bits(), stamp);
                }
                drop(state);
                complete(memory, write, result);
                free(memory, blocks);
            }
        }
        Some(!fails)
    }

    /// Begins what core wants done; who waits steps again when it has ended.
    pub fn run(&self, effects: &mut Effects) {
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                self.read(io);
            }
        }
    }
}

fn complete(memory: &Memory, write: Write, result: Result<(), u32>) {
    memory.complete_write(Cpu::new(0), write, result, &mut Effects::new());
}

fn free(memory: &Memory, blocks: Vec<Frame>) {
    for frame in blocks {
        memory.free_buf(Cpu::new(0), frame);
    }
}

impl Platform for Disk {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn write_back(&self, writes: &mut Writes<'_>, nr_pages: u32) {
        let mut nr_left = nr_pages;
        let is_write = |op: &Op| matches!(op, Op::Write(..));
        loop {
            while self.nr_writing() < MAX_WRITES {
                let Some(write) = writes.next() else { break };
                self.write(writes.memory(), write);
            }
            if nr_left == 0 {
                return;
            }
            match self.end(writes.memory(), is_write) {
                None => return,
                Some(is_ok) => nr_left -= u32::from(is_ok),
            }
        }
    }

    fn copy(&self, io: &mut Io) {
        let source = io.source().expect("a page that moves has a source");
        let stamp = self.stamp_in(source);
        let mut state = self.0.borrow_mut();
        state.frames.insert(io.frame().number(), stamp);
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}
