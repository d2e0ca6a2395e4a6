//! Core over a simulated disk beside a naive twin: no change is lost, no page goes unwritten.

use pagetide_core::frame::{State, flag};
use pagetide_core::memory::{AllocError, Config, Effects, Here, Memory, PageError, PageIn, Step};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order, PAGE_BYTES, PageKey};
use pagetide_sim::disk::{Disk, FAILED, Faults};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config as Runner, RngSeed};
use std::collections::BTreeMap;

const CPU: Cpu = Cpu::new(0);
const NR_FILES: usize = 2;
const MAX_PAGES: u32 = 24;
/// Pins held at most: others can always come in where writes succeed.
const MAX_HELD: usize = 12;

#[derive(Clone, Debug)]
enum Op {
    Read {
        file: usize,
        page: u64,
        is_held: bool,
    },
    Change {
        file: usize,
        page: u64,
    },
    ChangeHeld(Index),
    Release(Index),
    Write(Index),
    EndOne,
    Reclaim(u32),
    Reopen(usize),
    Fail(Faults),
    Blocks(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let faults = prop_oneof![
        3 => Just(Faults::None),
        2 => (2..6u64).prop_map(Faults::OneIn),
        1 => (0..4u64).prop_map(Faults::Write),
        1 => Just(Faults::AllWrites),
    ];
    let page = || (0..NR_FILES, 0..40u64);
    prop_oneof![
        16 => (page(), 0..6u8).prop_map(|((file, page), number)| Op::Read {
            file,
            page,
            is_held: number == 0,
        }),
        16 => page().prop_map(|(file, page)| Op::Change { file, page }),
        3 => any::<Index>().prop_map(Op::ChangeHeld),
        3 => any::<Index>().prop_map(Op::Release),
        6 => any::<Index>().prop_map(Op::Write),
        6 => Just(Op::EndOne),
        3 => (1..8u32).prop_map(Op::Reclaim),
        1 => (0..NR_FILES).prop_map(Op::Reopen),
        1 => faults.prop_map(Op::Fail),
        1 => (0..3u32).prop_map(Op::Blocks),
    ]
}

struct World {
    memory: Memory,
    disk: Disk,
    group: u32,
    files: [u32; NR_FILES],
    /// What was last written to each page, by its key. The twin.
    stamps: BTreeMap<u64, u64>,
    next_stamp: u64,
    held: Vec<(Frame, PageKey)>,
    faults: Faults,
}

impl World {
    /// A group of at most `max` pages; where there is none the budget is the limit.
    fn new(config: Config, max: Option<u32>, seed: u64) -> World {
        let memory = Memory::try_new(config).unwrap();
        let root = memory.groups().root();
        let group = match max {
            None => root,
            Some(max) => {
                let group = memory.new_group(CPU.into(), root).unwrap();
                assert_eq!(memory.set_max(CPU.into(), group, max.into()), Ok(0));
                group
            }
        };
        let open = |_| memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
        World {
            files: [0; NR_FILES].map(open),
            memory,
            disk: Disk::new(seed),
            group,
            stamps: BTreeMap::new(),
            next_stamp: 1,
            held: Vec::new(),
            faults: Faults::None,
        }
    }

    fn key(&self, file: usize, page: u64) -> PageKey {
        Mappings::key(self.files[file], page).unwrap()
    }

    /// Has a page pinned, with the bytes that it must have; `None` where its read failed.
    fn have(&mut self, key: PageKey) -> Result<Option<Frame>, AllocError> {
        let (mut effects, here) = (Effects::new(), Here::new(CPU, &self.disk));
        let mut op = PageIn::new(key, self.group, Access::Copy);
        loop {
            match op.step(&self.memory, here, &mut effects) {
                Ok(Step::Done(frame)) => {
                    let stamp = self.disk.stamp_in(frame);
                    let expected = *self.stamps.entry(key.bits()).or_insert(stamp);
                    assert_eq!(stamp, expected, "{key:?} has other bytes");
                    return Ok(Some(frame));
                }
                Ok(Step::Wait { .. }) => {
                    self.disk.run(&mut effects);
                    assert!(self.disk.end_one(&self.memory), "nothing to wait for");
                }
                Err(PageError::Io(FAILED)) => return Ok(None),
                Err(PageError::Alloc(error)) => return Err(error),
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn unpin(&self, frame: Frame) {
        self.memory.unpin(CPU, frame, &mut Effects::new());
    }

    fn change(&mut self, frame: Frame, key: PageKey) {
        self.disk.change(&self.memory, frame, self.next_stamp);
        // A page that left its file is nobody's any more.
        if self.memory.frames().word(frame).state() == State::Live {
            self.stamps.insert(key.bits(), self.next_stamp);
        }
        self.next_stamp += 1;
    }

    /// Has a page, changes it and lets it go.
    fn have_changed(&mut self, key: PageKey) -> Result<(), AllocError> {
        if let Some(frame) = self.have(key)? {
            self.change(frame, key);
            self.unpin(frame);
        }
        Ok(())
    }

    /// Pins leave room, so only writes that fail refuse a request.
    fn expect_room<T: Default>(&self, had: Result<T, AllocError>) -> T {
        had.unwrap_or_else(|error| {
            let group = self.group;
            assert_eq!(error, AllocError::Unwritten { group });
            assert_ne!(self.faults, Faults::None, "all writes succeed");
            T::default()
        })
    }

    fn begin_write(&self, frame: Frame) {
        if let Some(write) = self.memory.begin_write(frame) {
            self.disk.write(&self.memory, write);
        }
    }

    fn reopen(&mut self, file: usize) {
        let id = self.files[file];
        let is_file = |key: PageKey| Some(key) == Mappings::key(id, key.page());
        self.stamps
            .retain(|&bits, _| !is_file(PageKey::from_bits(bits).unwrap()));
        self.memory.close_mapping(CPU, id, &mut |_| ());
        self.files[file] = self.memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Read {
                file,
                page,
                is_held,
            } => {
                let key = self.key(file, page);
                let had = self.have(key);
                match self.expect_room(had) {
                    Some(frame) if is_held && self.held.len() < MAX_HELD => {
                        self.held.push((frame, key));
                    }
                    Some(frame) => self.unpin(frame),
                    None => {}
                }
            }
            Op::Change { file, page } => {
                let key = self.key(file, page);
                let had = self.have_changed(key);
                self.expect_room(had);
            }
            Op::ChangeHeld(which) if !self.held.is_empty() => {
                let (frame, key) = self.held[which.index(self.held.len())];
                self.change(frame, key);
            }
            Op::Release(which) if !self.held.is_empty() => {
                let (frame, _) = self.held.swap_remove(which.index(self.held.len()));
                self.unpin(frame);
            }
            Op::ChangeHeld(_) | Op::Release(_) => {}
            Op::Write(which) => {
                let nr_frames = self.memory.frames().len() as usize;
                let from = which.index(nr_frames);
                let frames = (from..nr_frames).chain(0..from);
                let mut frames = frames.map(|number| Frame::new(u32::try_from(number).unwrap()));
                let table = self.memory.frames();
                let dirty = frames.find(|&frame| table.word(frame).may_be_written());
                dirty.into_iter().for_each(|frame| self.begin_write(frame));
            }
            Op::EndOne => _ = self.disk.end_one(&self.memory),
            Op::Reclaim(nr_pages) => _ = self.memory.reclaim(CPU, self.group, nr_pages),
            Op::Reopen(file) => self.reopen(file),
            Op::Fail(faults) => {
                self.disk.set_faults(faults);
                self.faults = faults;
            }
            Op::Blocks(nr_blocks) => self.disk.set_blocks(nr_blocks),
        }
        self.check();
    }

    /// What is resident has the bytes of the twin; what is not, and what is clean, is on disk.
    fn check(&self) {
        let table = self.memory.frames();
        let mut resident = BTreeMap::new();
        let (mut nr_dirty, mut nr_writeback) = (0, 0);
        for frame in (0..table.len()).map(Frame::new) {
            let word = table.word(frame);
            nr_writeback += u64::from(word.has(flag::WRITEBACK) && word.state() != State::Buf);
            if word.state() == State::Live {
                nr_dirty += u64::from(word.has(flag::DIRTY));
                resident.insert(table.key(frame).unwrap().bits(), frame);
            }
        }
        for (&bits, &stamp) in &self.stamps {
            let key = PageKey::from_bits(bits).unwrap();
            let frame = resident.get(&bits);
            if let Some(&frame) = frame {
                assert_eq!(self.disk.stamp_in(frame), stamp, "{key:?} in {frame:?}");
            }
            if frame.is_none_or(|&frame| !table.word(frame).is_unwritten()) {
                assert_eq!(self.disk.stamp(key), stamp, "{key:?} on disk");
            }
        }
        let stat = self.memory.stat(self.group);
        let counted = (stat.file_dirty, stat.file_writeback);
        let page = PAGE_BYTES as u64;
        assert_eq!(counted, (nr_dirty * page, nr_writeback * page));
    }

    /// Writes everything back and gives everything up.
    fn end(mut self) {
        self.disk.set_faults(Faults::None);
        self.disk.set_blocks(0);
        self.disk.end_all(&self.memory);
        (0..self.memory.frames().len()).for_each(|frame| self.begin_write(Frame::new(frame)));
        self.disk.end_all(&self.memory);
        self.check();
        for (&bits, &stamp) in &self.stamps {
            assert_eq!(self.disk.stamp(PageKey::from_bits(bits).unwrap()), stamp);
        }
        for (frame, _) in std::mem::take(&mut self.held) {
            self.unpin(frame);
        }
        for file in self.files {
            self.memory.close_mapping(CPU, file, &mut |_| ());
        }
        self.memory.check();
        assert_eq!(self.memory.stats().nr_used, 0);
    }
}

fn model(policy: Policy, ops: Vec<Op>, seed: u64) {
    let config = Config::for_resident(MAX_PAGES, 1, policy);
    let mut world = World::new(config, Some(MAX_PAGES), seed);
    ops.into_iter().for_each(|op| world.apply(op));
    world.end();
}

proptest! {
    #![proptest_config(Runner {
        cases: 300,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Runner::default()
    })]

    /// Writes end in any order, fail, and pages change and leave their files meanwhile.
    #[test]
    fn no_change_is_lost_and_no_page_goes_unwritten(
        ops in prop::collection::vec(op(), 1..200),
        seed in any::<u64>(),
    ) {
        Policy::ALL.iter().for_each(|&policy| model(policy, ops.clone(), seed));
    }
}

/// A memory whose budget is full of changed pages; the number of the next page.
fn full(policy: Policy, seed: u64) -> (World, u64) {
    let mut world = World::new(Config::new(400, 1, policy), None, seed);
    let (content, mut page) = (u64::from(world.memory.content_pages()), 0);
    while page < content {
        let key = world.key(0, page);
        world.have_changed(key).unwrap();
        page += 1;
    }
    assert!(world.disk.done().nr_writes < content / 4);
    (world, page)
}

#[test]
fn with_everything_dirty_requests_go_on_through_writes() {
    for &policy in Policy::ALL {
        for nr_blocks in [0, 1, 3] {
            let (mut world, from) = full(policy, 7);
            world.disk.set_blocks(nr_blocks);
            for page in from..from + 400 {
                let key = world.key(0, page);
                world.have_changed(key).unwrap();
            }
            world.check();
            assert!(world.disk.done().nr_writes >= 300, "{policy}");
            let nr_failed = world.disk.done().nr_failed;
            assert_eq!(nr_failed, 0, "{policy}, {nr_blocks} blocks");
            world.end();
        }
    }
}

#[test]
fn whichever_write_fails_nothing_is_lost_and_the_request_succeeds() {
    for &policy in Policy::ALL {
        for which in 0.. {
            let (mut world, from) = full(policy, which);
            world.disk.set_faults(Faults::Write(which));
            for page in from..from + 16 {
                let key = world.key(0, page);
                world.have_changed(key).unwrap();
            }
            let done = world.disk.done();
            let errors = world.memory.write_errors(world.files[0]);
            assert_eq!(u64::from(errors.nr_errors), done.nr_failed);
            world.check();
            world.end();
            if done.nr_failed == 0 {
                assert!(which > 0, "{policy}: no write at all");
                break;
            }
        }
    }
}

#[test]
fn where_no_write_succeeds_the_request_ends_with_an_error_and_nothing_is_lost() {
    for &policy in Policy::ALL {
        let (mut world, from) = full(policy, 3);
        let group = world.group;
        world.disk.set_faults(Faults::AllWrites);
        let refused = (from..from + 100).find_map(|page| {
            let key = world.key(0, page);
            world.have_changed(key).err()
        });
        assert_eq!(refused, Some(AllocError::Unwritten { group }), "{policy}");
        world.check();
        // A store that wants more than the reserve is no better.
        world.disk.set_faults(Faults::None);
        world
            .disk
            .set_blocks(world.memory.config().write_reserve_pages + 1);
        let key = world.key(0, from + 200);
        assert_eq!(
            world.have_changed(key),
            Err(AllocError::Unwritten { group })
        );
        world.check();
        world.disk.set_blocks(0);
        world.have_changed(key).unwrap();
        world.check();
        world.end();
    }
}
