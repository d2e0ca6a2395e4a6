//! Blocks that are emptied for requests, beside a naive look at every frame: one is refused only
//! where none could be emptied.

use pagetide_core::frame::{Place, State};
use pagetide_core::memory::{AllocError, Config, Effect, Effects, Memory, PageIn, Step};
use pagetide_core::page_cache::{Access, Found, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use proptest::prelude::*;
use std::collections::HashMap;

const CPU: Cpu = Cpu::new(0);
const NR_GROUPS: usize = 3;
const PAGEBLOCK: Order = match Order::new(9) {
    Some(order) => order,
    None => Order::ZERO,
};

/// Small random numbers that outlive versions.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A full memory, and its pins.
struct World {
    memory: Memory,
    groups: [u32; NR_GROUPS],
    /// Files of pages of order 0, 0 and 2.
    files: [u32; 3],
    random: Random,
    nr_read: u64,
    pinned: HashMap<Frame, PageKey>,
    bufs: Vec<(Frame, Order)>,
}

impl World {
    /// Room for `nr_pages` pages.
    fn new(policy: Policy, nr_pages: u32, seed: u64) -> World {
        let memory = Memory::try_new(Config::for_resident(nr_pages, 2, policy)).expect("memory");
        let root = memory.groups().root();
        let group = || memory.new_group(CPU.into(), root).expect("a group");
        let groups = [(); NR_GROUPS].map(|()| group());
        let open = |order| {
            let order = Order::new(order).expect("an order");
            memory.open_mapping(CPU.into(), order).expect("a file")
        };
        let files = [0, 0, 2].map(open);
        World {
            memory,
            groups,
            files,
            random: Random(seed),
            nr_read: 0,
            pinned: HashMap::new(),
            bufs: Vec::new(),
        }
    }

    /// Has a page, pinned.
    fn have(&self, group: usize, key: PageKey) -> Frame {
        self.run(PageIn::new(key, self.groups[group], Access::Copy))
    }

    fn run(&self, mut op: PageIn) -> Frame {
        let mut effects = Effects::new();
        loop {
            let step = op.step(&self.memory, CPU.into(), &mut effects);
            if let Step::Done(frame) = step.expect("room") {
                return frame;
            }
            while let Some(effect) = effects.pop() {
                if let Effect::Read(io) | Effect::Copy(io) = effect {
                    self.memory.complete(CPU, io, Ok(()), &mut effects);
                }
            }
        }
    }

    fn unpin(&self, frame: Frame) {
        self.memory.unpin(CPU, frame, &mut Effects::new());
    }

    /// Reads pages into every frame, in runs of one group and file. Some of all are pinned.
    fn fill(&mut self, nr_pages: u64, pins_per_1000: u64) {
        let (mut group, mut file) = (0, 0);
        for page in self.nr_read..self.nr_read + nr_pages {
            if self.random.below(40) == 0 {
                group = usize::try_from(self.random.below(3)).expect("small");
                file = usize::try_from(self.random.below(3)).expect("small");
            }
            let key = Mappings::key(self.files[file], page).expect("a small page");
            let frame = self.have(group, key);
            if self.random.below(1000) < pins_per_1000 && !self.pinned.contains_key(&frame) {
                self.pinned.insert(frame, key);
            } else {
                self.unpin(frame);
            }
        }
        self.nr_read += nr_pages;
    }

    /// As [`World::fill`], until the first page is evicted.
    fn fill_up(&mut self, pins_per_1000: u64) {
        while self.memory.stats().pgsteal == 0 {
            self.fill(1000, pins_per_1000);
        }
    }

    /// Aligned blocks in which every frame is free or holds a page that can be evicted.
    fn emptiable(&self, order: Order) -> usize {
        let frames = self.memory.frames();
        let mut stays = vec![false; usize::try_from(frames.len()).expect("small")];
        let mut at = 0;
        while at < frames.len() {
            let frame = Frame::new(at);
            let (size, place) = frames.block(frame);
            let word = frames.word(frame);
            // The record of a free block that nobody had yet says nothing.
            let is_free = place != Place::Out || word.state() == State::Free;
            let may_go = is_free || word.is_evictable();
            (at..at + size.nr_pages()).for_each(|frame| {
                stays[Frame::new(frame).index()] = !may_go;
            });
            at += size.nr_pages();
        }
        let size = usize::try_from(order.nr_pages()).expect("small");
        let blocks = stays.chunks_exact(size);
        blocks.filter(|block| !block.contains(&true)).count()
    }

    /// Asks for working memory; a refusal has to be true.
    fn alloc(&mut self, group: usize, order: Order) -> Result<(), AllocError> {
        let could_be = self.emptiable(order);
        match self.memory.alloc_buf(CPU.into(), self.groups[group], order) {
            Ok((frame, _)) => {
                assert_eq!(frame.number() % order.nr_pages(), 0, "not aligned");
                assert_ne!(could_be, 0);
                self.bufs.push((frame, order));
                Ok(())
            }
            Err(error) => {
                if error == (AllocError::NoBlock { order }) {
                    assert_eq!(self.emptiable(order), 0, "order {} is refused", order.get());
                }
                Err(error)
            }
        }
    }

    /// Nothing is lost: pins are where they were, every page is found, and frames add up.
    fn check(&self) {
        self.memory.check();
        let frames = self.memory.frames();
        for (&frame, &key) in &self.pinned {
            assert_eq!(frames.key(frame), Some(key));
            assert_eq!(frames.word(frame).pins(), 1);
        }
        for frame in (0..frames.len()).map(Frame::new) {
            if frames.word(frame).state() == State::Live {
                let key = frames.key(frame).expect("a live frame holds a page");
                let found = self
                    .memory
                    .pin(key, Access::Pin, |_| unreachable!("one thread"));
                assert_eq!(found, Found::Pinned(frame));
                self.unpin(frame);
            }
        }
        for &(frame, order) in &self.bufs {
            assert_eq!(frames.word(frame).state(), State::Buf);
            assert_eq!(frames.block(frame), (order, Place::Out));
        }
    }

    /// Gives everything back, and asserts that it came back.
    fn end(mut self) {
        for (frame, _) in self.bufs.drain(..) {
            self.memory.free_buf(CPU, frame);
        }
        for (frame, _) in std::mem::take(&mut self.pinned) {
            self.unpin(frame);
        }
        self.files.sort_unstable();
        for file in self.files {
            self.memory.close_mapping(CPU, file, &mut |_| ());
        }
        self.memory.check();
        assert_eq!(self.memory.stats().nr_used, 0);
    }
}

proptest! {
    #![proptest_config(crate::config(64))]

    #[test]
    fn a_block_is_refused_only_where_none_could_be_emptied(
        policy in prop::sample::select(Policy::ALL),
        pins_per_1000 in prop::sample::select(vec![0, 10, 50, 300, 1000]),
        is_full in any::<bool>(),
        orders in prop::collection::vec(1..=10u8, 1..40),
        seed in any::<u64>(),
    ) {
        const NR_PAGES: u32 = 6 * 512;
        let mut world = World::new(policy, NR_PAGES, seed);
        // A memory full of pins takes no page more; one that is not full has free blocks.
        let share = if is_full && pins_per_1000 < 1000 { 1200 } else { 300 };
        world.fill(u64::from(NR_PAGES) * share / 1000, pins_per_1000);
        // Holes, so that free memory is in pieces.
        let mut pinned: Vec<Frame> = world.pinned.keys().copied().collect();
        pinned.sort_unstable();
        for frame in pinned.into_iter().skip(1).step_by(9) {
            world.pinned.remove(&frame);
            world.unpin(frame);
        }
        for (turn, &order) in orders.iter().enumerate() {
            let order = Order::new(order).expect("an order");
            let _refused = world.alloc(turn % NR_GROUPS, order);
            if turn % 5 == 4 && let Some((frame, _)) = world.bufs.pop() {
                world.memory.free_buf(CPU, frame);
            }
        }
        world.check();
        world.end();
    }
}

#[test]
fn where_everything_is_pinned_free_frames_in_pieces_are_refused() {
    let mut world = World::new(Policy::default(), 4096, 1);
    let key = |page| Mappings::key(world.files[0], page).expect("a small page");
    let held: Vec<Frame> = (0..4000).map(|page| world.have(0, key(page))).collect();
    // Every fourth frame is free again.
    world.memory.groups().drain(world.memory.groups().root());
    let (gone, kept): (Vec<_>, Vec<_>) = held.into_iter().partition(|f| f.number() % 4 == 0);
    gone.iter().for_each(|&frame| world.unpin(frame));
    let order = Order::new(3).expect("an order");
    // What is left of the arena as a whole goes first.
    while world.alloc(1, order).is_ok() {}
    assert_eq!(world.alloc(1, order), Err(AllocError::NoBlock { order }));
    // Nothing was evicted for what cannot be had, and pages of order 0 can be had still.
    let before = world.memory.stats().pgsteal;
    assert_eq!(world.alloc(1, PAGEBLOCK).map_err(|_| ()), Err(()));
    world.alloc(2, Order::ZERO).expect("a frame");
    assert!(world.memory.stats().pgsteal <= before + 600);
    kept.into_iter().for_each(|frame| world.unpin(frame));
    world.end();
}

#[test]
fn a_small_block_costs_few_pages() {
    let mut world = World::new(Policy::default(), 4096, 2);
    // A batch of eviction is pages of any order.
    world.files[2] = world.files[1];
    world.fill_up(0);
    for order in (1..=10).filter_map(Order::new) {
        let before = world.memory.stats();
        world.alloc(0, order).expect("a block");
        let after = world.memory.stats();
        // A batch may go for the charge, which is at least 64 pages. The block's own move, but for
        // a few: what is free is kept above the low watermark.
        let lost = after.pgsteal - before.pgsteal;
        let most = u64::from(order.nr_pages()) * 9 / 8 + 64;
        assert!(lost <= most, "{lost} pages for order {}", order.get());
    }
    world.check();
    world.end();
}

/// 2 MiB each at a full limit: 512 of the coldest pages go, and none of those that are in use.
#[test]
fn pages_in_use_move_out_of_large_blocks() {
    const NR_HOT: u64 = 300;
    for &policy in Policy::ALL {
        let mut world = World::new(policy, 16 * 512, 6);
        let file = world.files[0];
        let key = |page| Mappings::key(file, page).expect("a small page");
        let touch = |page| world.unpin(world.have(0, key(page)));
        let mut page = NR_HOT;
        // Hot pages lie all over the arena, come in at different times, and go on being read.
        while world.memory.stats().pgsteal < 8192 {
            touch(page);
            (0..NR_HOT).filter(|hot| hot * 50 < page).for_each(touch);
            page += 1;
        }
        let is_resident = |world: &World, page| world.memory.is_resident(key(page));
        let hot: Vec<u64> = (0..NR_HOT)
            .filter(|&hot| is_resident(&world, hot))
            .collect();
        let before = world.memory.stats();
        for _ in 0..4 {
            world.alloc(1, PAGEBLOCK).expect("a pageblock");
        }
        let after = world.memory.stats();
        let lost = after.pgsteal - before.pgsteal;
        assert!(
            (4 * 512..=4 * (512 + 64)).contains(&lost),
            "{lost}, {policy}"
        );
        let nr_moved = after.pgmigrate_success - before.pgmigrate_success;
        assert!(nr_moved > 0 && nr_moved <= 4 * 512, "{nr_moved}, {policy}");
        let nr_left = hot.iter().filter(|&&hot| is_resident(&world, hot)).count();
        if policy != Policy::Fifo {
            assert_eq!((hot.len(), nr_left), (300, 300), "{policy}");
        }
        world.check();
        world.end();
    }
}

/// 4 GiB, each hundredth page pinned at random: a pageblock without pins is one of 170.
#[test]
fn every_pageblock_without_a_pin_can_be_had() {
    const NR_PAGES: u32 = 1 << 20;
    let mut world = World::new(Policy::default(), NR_PAGES, 3);
    world.files[2] = world.files[1];
    world.fill_up(10);
    let expected = world.emptiable(PAGEBLOCK);
    assert!(expected > 2, "{expected} pageblocks without a pin");
    let before = world.memory.stats();
    let mut nr_blocks = 0;
    while let Ok((frame, _)) = world
        .memory
        .alloc_buf(CPU.into(), world.groups[0], PAGEBLOCK)
    {
        world.bufs.push((frame, PAGEBLOCK));
        nr_blocks += 1;
    }
    assert_eq!(nr_blocks, expected);
    let after = world.memory.stats();
    // Once for those found, and then once for nothing: the last looks see a frame a pageblock.
    let nr_frames = u64::from(world.memory.frames().len());
    let looks = after.evacuate_scanned - before.evacuate_scanned;
    assert!(looks < 2 * nr_frames, "{looks} looks at {nr_frames} frames");
    let again = world.memory.stats().evacuate_scanned;
    let refused = world
        .memory
        .alloc_buf(CPU.into(), world.groups[0], PAGEBLOCK);
    assert_eq!(refused, Err(AllocError::NoBlock { order: PAGEBLOCK }));
    let looks = world.memory.stats().evacuate_scanned - again;
    assert!(looks < 3 * nr_frames / 512, "{looks} looks for nothing");
}

/// 256 MiB, 95 % of it pages, each hundredth of which is pinned for long at random.
#[test]
fn long_pins_leave_nearly_all_pageblocks() {
    const NR_PAGES: u32 = 1 << 16;
    const NR_RESIDENT: u64 = NR_PAGES as u64 * 95 / 100;
    for is_longterm in [true, false] {
        let mut world = World::new(Policy::default(), NR_PAGES, 4);
        let key = |page| Mappings::key(world.files[0], page).expect("a small page");
        for page in 0..NR_RESIDENT {
            world.unpin(world.have(0, key(page)));
        }
        let mut pinned = HashMap::new();
        for _ in 0..NR_RESIDENT / 100 {
            let key = key(world.random.below(NR_RESIDENT));
            let frame = match is_longterm {
                true => world.run(PageIn::longterm(key, world.groups[0])),
                false => world.have(0, key),
            };
            // One that is there already is pinned twice.
            if pinned.insert(frame, key).is_some() {
                world.unpin(frame);
            }
        }
        world.pinned = pinned;
        let root = world.memory.groups().root();
        let max = world.memory.groups().get(root).expect("the root").max();
        let mut nr_blocks = 0;
        while let Ok((frame, _)) = world
            .memory
            .alloc_buf(CPU.into(), world.groups[1], PAGEBLOCK)
        {
            world.bufs.push((frame, PAGEBLOCK));
            nr_blocks += 1;
        }
        // What the budget leaves beside the tables and the pins.
        let content = max - (u64::from(world.memory.config().metadata_pages()));
        let most = (content - NR_RESIDENT / 100) / 512;
        eprintln!(
            "FIG {nr_blocks} of {most} evacuated {:?}",
            world.memory.stats()
        );
        match is_longterm {
            true => assert!(nr_blocks + 2 >= most, "{nr_blocks} of {most}"),
            // Without them, some pageblocks were never touched, and one in 170 has no pin.
            false => assert!(nr_blocks * 4 < most, "{nr_blocks} of {most}"),
        }
        world.check();
        world.end();
    }
}
