//! Named cases of blocks that are emptied for requests: whose pages go, and which block.

use super::region::{shared_by_two, usage};
use super::reserve::full_with;
use super::*;
use crate::alloc::{Mobility, PAGEBLOCK_ORDER, Pieces, Request, Topology};
use crate::frame::State;
use crate::group::Limit;
use crate::memory::evacuate::{Evacuated, UnderWay};
use std::boxed::Box;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Barrier;

const REGION: Order = match Order::new(PAGEBLOCK_ORDER) {
    Some(order) => order,
    None => Order::ZERO,
};

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

#[test]
fn min_keeps_its_pages_and_low_gives_way_last() {
    let (memory, [kept, other, work]) = shared_by_two(0);
    // However many frames there are beside the pages: no pageblock is free or nearly so.
    let spare = take_free(&memory);
    let all = usage(&memory, kept);
    memory.groups().set_limit(kept, Limit::Low, all).unwrap();
    // Every pageblock has pages of both, so that one has to go beyond `low`.
    memory.alloc_buf(CPU.into(), work, REGION).unwrap();
    assert!(usage(&memory, kept) < all);
    assert!(memory.groups().get(kept).unwrap().events().low > 0);
    // `min` is kept, and the refusal is told apart from one by a limit.
    memory.groups().drain(memory.groups().root());
    let left = usage(&memory, kept);
    memory.groups().set_limit(kept, Limit::Min, left).unwrap();
    let refused = memory.alloc_buf(CPU.into(), work, REGION);
    assert_eq!(refused, Err(AllocError::NoBlock { order: REGION }));
    assert_eq!(usage(&memory, kept), left);
    assert!(usage(&memory, other) > 0);
    put_free(&memory, spare);
    memory.check();
}

#[test]
fn a_frame_where_pages_are_beside_takes_no_others() {
    let (memory, [cached, work], _) = full_with(75);
    let before = usage(&memory, cached);
    let own = u64::from(memory.zones().zone(0).unwrap().managed());
    let mut bufs = Vec::new();
    let refused = loop {
        let before = memory.stats().pgsteal;
        match memory.alloc_buf(CPU.into(), work, Order::ZERO) {
            Ok((frame, _)) => bufs.push(frame),
            Err(refused) => break refused,
        }
        let evicted = memory.stats().pgsteal - before;
        assert!(evicted <= u64::from(REGION.nr_pages()) + 1, "{evicted}");
    };
    let order = Order::ZERO;
    assert_eq!(
        (refused, bufs.len() as u64),
        (AllocError::NoBlock { order }, own)
    );
    // What they took, and a part of a pageblock.
    let left = usage(&memory, cached);
    let least = before - own - u64::from(REGION.nr_pages());
    assert!(left >= least, "{left} of {before} pages");
    bufs.into_iter()
        .for_each(|frame| memory.free_buf(CPU, frame));
    memory.check();
}

/// Takes all frames that are free.
fn take_free(memory: &Memory) -> Vec<Frame> {
    memory.drain();
    take_cached(memory)
}

/// Takes all frames that are free, but those that wait in magazines.
fn take_cached(memory: &Memory) -> Vec<Frame> {
    let single = Request::new(Order::ZERO, Mobility::Movable);
    memory.zones().drain(memory.frames());
    std::iter::from_fn(|| memory.zones().alloc(memory.frames(), CPU, &single).ok()).collect()
}

fn put_free(memory: &Memory, frames: Vec<Frame>) {
    for frame in frames {
        memory
            .zones()
            .free(memory.frames(), CPU, frame, Order::ZERO);
    }
}

/// Empties a block and gives it back; its first frame.
fn evacuate(memory: &Memory, size: Order, mobility: Mobility) -> Option<Frame> {
    let root = memory.groups().root();
    let request = Request::new(size, mobility);
    let Evacuated::Block(frame) = memory.evacuate(CPU.into(), &request, root) else {
        return None;
    };
    assert_eq!(frame.number() % size.nr_pages(), 0);
    memory.zones().free(memory.frames(), CPU, frame, size);
    Some(frame)
}

#[test]
fn a_block_is_taken_of_a_larger_page_that_covers_it() {
    let (memory, group, _) = memory(2048, Policy::Fifo);
    let file = memory.open_mapping(CPU.into(), order(5)).unwrap();
    for page in 0..64 {
        touch(&memory, group, key(file, page));
    }
    let used = memory.stats().nr_used;
    let request = Request::new(order(4), Mobility::Movable);
    let mut nr_taken = 0;
    // Frames of blocks that are free in parts are the cheapest.
    while memory.stats().pgsteal == 0 {
        let taken = memory.evacuate(CPU.into(), &request, group);
        assert!(matches!(taken, Evacuated::Block(_)), "{taken:?}");
        nr_taken += 1;
    }
    assert_eq!(memory.stats().pgsteal, 32);
    // Half of it was left over.
    assert_eq!(memory.stats().nr_used, used + nr_taken * 16 - 32);
}

#[test]
fn who_is_bound_to_a_node_takes_its_own_pages_there() {
    let topology = Topology::uniform(2).with_nodes(2).unwrap();
    let mut config = Config::on(topology, 0, Policy::Fifo);
    config.fit(8 * 512);
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let [bound, free] = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let second = NodeMask::of(Node::new(1).unwrap());
    memory.groups().set_mems(bound, second);
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    (0..1100).for_each(|page| assert!(touch(&memory, bound, key(file, page))));
    let mut page = 2000;
    while memory.stats().pgsteal == 0 {
        touch(&memory, free, key(file, page));
        page += 1;
    }
    let others = usage(&memory, free);
    let (frame, _) = memory.alloc_buf(CPU.into(), bound, REGION).unwrap();
    let node = |frame: Frame| {
        let zones = memory.zones().iter();
        zones
            .into_iter()
            .find(|zone| zone.holds(frame))
            .unwrap()
            .config()
            .node
    };
    assert!(second.has(node(frame)));
    // Charging takes from all; the block only from the group that is bound.
    assert!(usage(&memory, free) + 600 > others);
    assert!(memory.stats().evacuate_success > 0);
    memory.check();
}

#[test]
fn what_cannot_move_is_put_among_its_like_first() {
    let (memory, [_, _, work]) = shared_by_two(0);
    let unmovable = |frame| {
        let mobility = memory.zones().mobility(memory.frames(), frame);
        mobility == Some(Mobility::Unmovable)
    };
    let small = evacuate(&memory, order(4), Mobility::Unmovable).unwrap();
    assert!(!unmovable(small), "there is no such pageblock yet");
    let large = evacuate(&memory, REGION, Mobility::Unmovable).unwrap();
    assert!(unmovable(large));
    let (first, _) = memory.alloc_buf(CPU.into(), work, Order::ZERO).unwrap();
    assert!(unmovable(first));
    // Pages come into that pageblock, and leave it again for what cannot move.
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    (0..2000).for_each(|page| assert!(touch(&memory, work, key(file, page))));
    for _ in 0..8 {
        let small = evacuate(&memory, order(4), Mobility::Unmovable);
        assert!(small.is_some_and(unmovable), "{small:?}");
    }
    // So does what would be settled there at the cost of a pageblock.
    let before = memory.stats().pgsteal;
    let request = Request::new(Order::ZERO, Mobility::Unmovable);
    let root = memory.groups().root();
    for _ in 0..8 {
        let single = memory.evacuate_unmovable(CPU.into(), &request, root);
        assert!(single.is_some_and(unmovable), "{single:?}");
    }
    let evicted = memory.stats().pgsteal - before;
    assert!(evicted <= 8, "{evicted}");
}

/// Others who have a pageblock in hand, and give it back while somebody looks for a frame for a
/// longer time than anybody would look who does not know of them.
#[derive(Debug)]
struct Others<'a> {
    memory: &'a Memory,
    in_hand: RefCell<Option<(Pieces, UnderWay<'a>)>>,
    nr_asked: Cell<u32>,
}

impl Platform for Others<'_> {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        self.nr_asked.set(self.nr_asked.get() + 1);
        if self.nr_asked.get() > 2 * MAX_RETRIES
            && let Some((pieces, under_way)) = self.in_hand.take()
        {
            self.memory
                .zones()
                .put_pieces(self.memory.frames(), &pieces);
            drop(under_way);
        }
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

#[test]
fn who_is_short_lets_those_run_who_have_frames_in_hand() {
    let (memory, group, file) = memory(2048, Policy::Fifo);
    let mut pinned = Vec::new();
    while let Ok((frame, _)) = have(&memory, group, key(file, pinned.len() as u64), Ok(())) {
        pinned.push(frame);
    }
    let first = Frame::new(512);
    let (inside, outside): (Vec<Frame>, Vec<Frame>) =
        (pinned.into_iter()).partition(|frame| frame.number() / 512 == 1);
    let unpin = |frame| memory.unpin(CPU, frame, &mut Effects::new());
    inside.into_iter().for_each(unpin);
    // The pageblock is in hand, and nothing else is free or can go.
    let under_way = memory.evacuation.begin();
    let captured = memory
        .capture(
            CPU.into(),
            (first, REGION),
            (memory.groups().root(), false),
            false,
        )
        .unwrap();
    let pieces = captured.pieces;
    let spare = take_free(&memory);
    let others = Others {
        memory: &memory,
        in_hand: RefCell::new(Some((pieces, under_way))),
        nr_asked: Cell::new(0),
    };
    let here = Here::new(CPU, &others);
    let taken = memory.alloc_buf(here, group, Order::ZERO);
    assert!(taken.is_ok(), "{taken:?}");
    put_free(&memory, spare);
    outside.into_iter().for_each(unpin);
    memory.check();
}

/// Another thread that holds a cache, and lets go of it while somebody looks for a block for a
/// longer time than anybody would look who does not know of it.
#[derive(Debug)]
struct Holder {
    /// It holds the cache, it shall let go, it has.
    steps: Barrier,
    nr_asked: Cell<u32>,
}

impl Platform for Holder {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        self.nr_asked.set(self.nr_asked.get() + 1);
        if self.nr_asked.get() == 2 * MAX_RETRIES {
            self.steps.wait();
            self.steps.wait();
        }
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

#[test]
fn who_asks_for_a_block_lets_those_run_who_hold_a_cache() {
    let (memory, group, _) = memory(2048, Policy::Fifo);
    // Much is free, and the other half of a block lies in a cache.
    let is_even = |frame: &Frame| frame.number().is_multiple_of(2);
    let (single, mut spare): (_, Vec<Frame>) = take_free(&memory).into_iter().partition(is_even);
    put_free(&memory, single);
    memory.drain();
    let (other, half) = (Cpu::new(1), spare.pop().unwrap());
    memory
        .zones()
        .free(memory.frames(), other, half, Order::ZERO);
    let steps = Barrier::new(2);
    let nr_asked = Cell::new(0);
    let holder = Holder { steps, nr_asked };
    let taken = std::thread::scope(|scope| {
        scope.spawn(|| {
            let held = memory.zones().zone(0).map(|zone| zone.hold_cache(other));
            holder.steps.wait();
            holder.steps.wait();
            drop(held);
            holder.steps.wait();
        });
        holder.steps.wait();
        let taken = memory.alloc_buf(Here::new(CPU, &holder), group, order(1));
        while holder.nr_asked.get() < 2 * MAX_RETRIES {
            holder.shrink(group, 0, 0);
        }
        taken
    });
    assert!(taken.is_ok(), "{taken:?}");
    put_free(&memory, spare);
    memory.check();
}

/// Others who lower the budget while a request looks for a frame, and raise it when that one has
/// asked for the last time.
#[derive(Debug)]
struct Budget<'a> {
    memory: &'a Memory,
    nr_pages: u64,
    nr_asked: Cell<u32>,
}

impl Platform for Budget<'_> {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        self.nr_asked.set(self.nr_asked.get() + 1);
        let nr_pages = match self.nr_asked.get() {
            1 => self.nr_pages / 2,
            asked if asked > MAX_RETRIES => self.nr_pages,
            _ => return 0,
        };
        let set = self.memory.set_budget(CPU.into(), nr_pages);
        assert!(set.is_ok(), "{set:?}");
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

#[test]
fn who_is_refused_while_the_budget_is_lower_is_over_a_limit() {
    let (memory, group, _) = memory(2048, Policy::Fifo);
    let alloc = |here| memory.alloc_buf(here, group, Order::ZERO);
    let mut bufs = Vec::new();
    while let Ok((frame, _)) = alloc(CPU.into()) {
        bufs.push(frame);
    }
    // What is charged for it stays with the CPU; its frame goes to somebody else.
    memory.free_buf(CPU, bufs.pop().unwrap());
    let spare = take_free(&memory);
    let root = memory.groups().root();
    let budget = Budget {
        memory: &memory,
        nr_pages: memory.groups().get(root).unwrap().max(),
        nr_asked: Cell::new(0),
    };
    let refused = alloc(Here::new(CPU, &budget));
    assert_eq!(refused, Err(AllocError::OverLimit { group: root }));
    assert_eq!(budget.nr_asked.get(), MAX_RETRIES + 1);
    put_free(&memory, spare);
    bufs.into_iter()
        .for_each(|frame| memory.free_buf(CPU, frame));
    memory.check();
}

/// A memory with blocks of working memory in magazines, and the pageblock that those are in.
fn with_waiting() -> (Memory, u32, Frame) {
    let (memory, group, _) = memory(1 << 14, Policy::Fifo);
    let take = || memory.alloc_buf(CPU.into(), group, Order::ZERO).unwrap().0;
    let bufs = [(); 4].map(|()| take());
    bufs.into_iter()
        .for_each(|frame| memory.free_buf(CPU, frame));
    assert!(memory.magazines.nr_pages(|_| true) > 0);
    let waiting = bufs.into_iter().find(|&frame| waits(&memory, frame));
    let first = waiting.unwrap().number() & !(REGION.nr_pages() - 1);
    (memory, group, Frame::new(first))
}

/// Whether a block waits in a magazine, where all working memory was given back.
fn waits(memory: &Memory, frame: Frame) -> bool {
    memory.frames().word(frame).state() == State::Buf
}

#[test]
fn a_block_that_waits_in_a_magazine_is_there_for_whoever_wants_it_emptied() {
    let (memory, _, _) = with_waiting();
    let spare = take_cached(&memory);
    // Nothing else is free, and no page can go.
    let request = Request::new(Order::ZERO, Mobility::Unmovable);
    let root = memory.groups().root();
    let single = memory.evacuate_unmovable(CPU.into(), &request, root);
    let single = single.expect("nobody has the blocks that wait");
    put_free(&memory, spare);
    put_free(&memory, std::vec![single]);
    memory.check();
}

#[test]
fn no_page_goes_in_vain_beside_a_block_that_waits_in_a_magazine() {
    let (memory, first) = with_pages_beside_waiting();
    let captured = memory.capture(
        CPU.into(),
        (first, REGION),
        (memory.groups().root(), false),
        false,
    );
    assert_eq!(captured.as_ref().err(), None, "pages gone in vain");
    let pieces = captured.unwrap().pieces;
    memory.zones().put_pieces(memory.frames(), &pieces);
    memory.check();
}

#[test]
fn a_pageblock_is_put_out_of_use_though_a_block_waits_in_a_magazine() {
    let (memory, first) = with_pages_beside_waiting();
    let root = memory.groups().root();
    assert_eq!(memory.take_used_region(CPU.into(), root), Some(first));
    memory.zones().free(memory.frames(), CPU, first, REGION);
    memory.check();
}

/// A memory with pages, and blocks that wait in magazines, in one pageblock.
fn with_pages_beside_waiting() -> (Memory, Frame) {
    let (memory, group, first) = with_waiting();
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    let is_near = |frame: &Frame| frame.number() / REGION.nr_pages() == first.number() / 512;
    // Pages come to where the blocks are: nothing is free elsewhere.
    let (near, far): (Vec<Frame>, Vec<Frame>) = take_cached(&memory).into_iter().partition(is_near);
    put_free(&memory, near);
    (0..100).for_each(|page| assert!(touch(&memory, group, key(file, page))));
    put_free(&memory, far);
    let frames = (0..REGION.nr_pages()).map(|at| Frame::new(first.number() + at));
    let is_live = |frame: &Frame| memory.frames().word(*frame).state() == State::Live;
    assert!(frames.clone().filter(is_live).count() == 100);
    assert!(frames.clone().any(|frame| waits(&memory, frame)));
    (memory, first)
}

/// Whoever is woken unwinds, after so many who did not.
#[derive(Debug)]
struct Unwinding(Cell<u32>);

impl Platform for Unwinding {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn wake(&self, _frame: Frame) {
        match self.0.get().checked_sub(1) {
            Some(left) => self.0.set(left),
            None if std::thread::panicking() => {}
            None => resume_unwind(Box::new("who is woken")),
        }
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

#[test]
fn who_is_woken_and_unwinds_keeps_nothing_of_a_block_that_is_emptied() {
    for nr_woken in [0, 1, 40] {
        let (memory, group, file) = memory(2048, Policy::Fifo);
        (0..1500).for_each(|page| assert!(touch(&memory, group, key(file, page))));
        for page in (0..1500).step_by(2) {
            let gone = memory.discard_page(CPU, key(file, page), &mut Effects::new());
            assert!(matches!(gone, Discard::Gone), "{gone:?}");
        }
        let nr_free = || {
            let free = take_free(&memory);
            let nr_free = free.len();
            put_free(&memory, free);
            nr_free
        };
        let before = nr_free();
        let platform = Unwinding(Cell::new(nr_woken));
        let (here, block) = (Here::new(CPU, &platform), (Frame::new(512), REGION));
        let captured = catch_unwind(AssertUnwindSafe(|| {
            memory.capture(here, block, (memory.groups().root(), false), true)
        }));
        assert!(captured.is_err(), "nobody was woken");
        assert_eq!(nr_free(), before);
        memory.check();
        // The pages are there, nobody holds them, and the block can be had after all.
        let pages = (1..1500).step_by(2);
        assert!(
            !pages
                .clone()
                .any(|page| touch(&memory, group, key(file, page)))
        );
        let captured = memory
            .capture(CPU.into(), block, (memory.groups().root(), false), true)
            .unwrap();
        memory.zones().put_pieces(memory.frames(), &captured.pieces);
        assert!(
            !pages
                .clone()
                .any(|page| touch(&memory, group, key(file, page)))
        );
        memory.check();
    }
}
