//! A whole memory beside a naive twin: which pages may be resident, and what must be.

use pagetide_core::frame::State;
use pagetide_core::memory::{
    AllocError, Config, Effect, Effects, Io, Memory, PageError, PageIn, Step,
};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};

const NR_GROUPS: usize = 2;
const NR_FILES: usize = 3;
/// The largest limit of a group.
const MAX_PAGES: u32 = 24;

#[derive(Clone, Copy, Debug)]
struct Request {
    cpu: u32,
    group: usize,
    file: usize,
    page: u64,
    access: Access,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Has a page, reading it where it must, and lets go of it.
    Touch(Request),
    /// Has a page and keeps the pin.
    Hold(Request),
    /// Asks for a page and leaves its read under way.
    Start(Request),
    Complete {
        which: Index,
        fails: bool,
    },
    Abandon {
        which: Index,
    },
    Unpin {
        cpu: u32,
        which: Index,
    },
    AllocBuf {
        cpu: u32,
        group: usize,
        order: u8,
    },
    FreeBuf {
        cpu: u32,
        which: Index,
    },
    SetMax {
        group: usize,
        max: u32,
    },
    Drain,
    Reopen {
        file: usize,
    },
}

fn request() -> impl Strategy<Value = Request> {
    let access = prop_oneof![Just(Access::Copy), Just(Access::Pin)];
    (0..2u32, 0..NR_GROUPS, 0..NR_FILES, 0..30u64, access).prop_map(
        |(cpu, group, file, page, access)| Request {
            cpu,
            group,
            file,
            page,
            access,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let index = || any::<Index>();
    let cpu = || 0..2u32;
    prop_oneof![
        24 => request().prop_map(Op::Touch),
        4 => request().prop_map(Op::Hold),
        3 => request().prop_map(Op::Start),
        3 => (index(), any::<bool>()).prop_map(|(which, fails)| Op::Complete { which, fails }),
        1 => index().prop_map(|which| Op::Abandon { which }),
        4 => (cpu(), index()).prop_map(|(cpu, which)| Op::Unpin { cpu, which }),
        2 => (cpu(), 0..NR_GROUPS, 0..3u8)
            .prop_map(|(cpu, group, order)| Op::AllocBuf { cpu, group, order }),
        2 => (cpu(), index()).prop_map(|(cpu, which)| Op::FreeBuf { cpu, which }),
        1 => (0..NR_GROUPS, 0..=MAX_PAGES).prop_map(|(group, max)| Op::SetMax { group, max }),
        1 => Just(Op::Drain),
        1 => (0..NR_FILES).prop_map(|file| Op::Reopen { file }),
    ]
}

/// A read that is under way, and the operations that wait for it.
struct Reading {
    io: Io,
    waiting: Vec<PageIn>,
}

struct World {
    memory: Memory,
    groups: [u32; NR_GROUPS],
    max: [u32; NR_GROUPS],
    /// Pages charged after the last operation.
    charged: [u32; NR_GROUPS],
    /// Id and order.
    files: [(u32, Order); NR_FILES],
    /// Pages that were read since their file was opened: no other page may be resident.
    may_be_resident: BTreeSet<u64>,
    /// Which page was read into which frame last: the frame's bytes.
    bytes: BTreeMap<u32, u64>,
    held: Vec<(Frame, PageKey)>,
    bufs: Vec<Frame>,
    reading: Vec<Reading>,
}

impl World {
    fn new(policy: Policy) -> World {
        let nr_pages = MAX_PAGES * u32::try_from(NR_GROUPS).expect("a few groups");
        let memory = Memory::try_new(Config::for_resident(nr_pages, 2, policy)).expect("memory");
        let cpu = Cpu::new(0);
        let root = memory.groups().root();
        let groups = [(); NR_GROUPS].map(|()| memory.new_group(cpu.into(), root).expect("a group"));
        for group in groups {
            assert_eq!(
                memory.set_max(cpu.into(), group, u64::from(MAX_PAGES)),
                Ok(0)
            );
        }
        let files = [0, 0, 1].map(|order| {
            let order = Order::new(order).expect("an order");
            (
                memory.open_mapping(cpu.into(), order).expect("a file"),
                order,
            )
        });
        World {
            memory,
            groups,
            max: [MAX_PAGES; NR_GROUPS],
            charged: [0; NR_GROUPS],
            files,
            may_be_resident: BTreeSet::new(),
            bytes: BTreeMap::new(),
            held: Vec::new(),
            bufs: Vec::new(),
            reading: Vec::new(),
        }
    }

    fn usage(&self, group: usize) -> u32 {
        let group = self.memory.groups().get(self.groups[group]);
        u32::try_from(group.expect("a live group").usage()).expect("few pages")
    }

    fn state(&self, frame: Frame) -> State {
        self.memory.frames().word(frame).state()
    }

    /// Pages of a group that cannot be evicted now, by the frames' heads that the twin holds.
    fn in_use(&self, group: usize) -> u32 {
        let held = self.held.iter().map(|(frame, _)| *frame);
        let reading = self.reading.iter().map(|reading| reading.io.frame());
        let frames: BTreeSet<Frame> = held
            .chain(reading)
            .chain(self.bufs.iter().copied())
            .collect();
        let table = self.memory.frames();
        frames
            .into_iter()
            .filter(|frame| table.group(*frame) == self.groups[group])
            .map(|frame| table.block(frame).0.nr_pages())
            .sum()
    }

    /// A refusal must be due to what is in use, and nothing else.
    fn assert_refusal(&self, error: AllocError, group: usize, order: Order) {
        let in_use = self.in_use(group);
        match error {
            AllocError::OverLimit { group: over } => {
                assert_eq!(over, self.groups[group]);
                let max = self.max[group];
                assert!(in_use + order.nr_pages() > max, "{in_use} of {max} in use");
            }
            AllocError::NoBlock { order } => assert_ne!(order, Order::ZERO),
            AllocError::Unwritten { .. } => panic!("no page is dirty"),
            AllocError::NoMetadata => panic!("the budget has room for tables"),
            AllocError::Thrashing { .. } => panic!("pages of any age may go"),
        }
    }

    /// Has a page. Runs its read where `completes`; else `None`, and the read stays under way.
    fn have(&mut self, request: Request, completes: bool) -> Option<Frame> {
        let Request { group, .. } = request;
        let (file, order) = self.files[request.file];
        let cpu = Cpu::new(request.cpu);
        let key = Mappings::key(file, request.page).expect("a small page");
        let mut effects = Effects::new();
        let mut op = PageIn::new(key, self.groups[group], request.access);
        let must_hit = self
            .held
            .iter()
            .any(|(frame, held)| *held == key && self.state(*frame) == State::Live);
        let has_room = self.usage(group) + order.nr_pages() <= self.max[group];
        let evicted = self.memory.stats().pgsteal;
        let step = match op.step(&self.memory, cpu.into(), &mut effects) {
            Ok(step) => step,
            Err(PageError::Alloc(error)) => {
                assert!(!must_hit, "{key:?} is pinned and was not found");
                self.assert_refusal(error, group, order);
                return None;
            }
            Err(error) => panic!("{error:?}"),
        };
        if has_room {
            assert_eq!(
                self.memory.stats().pgsteal,
                evicted,
                "evicted with room to spare"
            );
        }
        match step {
            Step::Done(frame) => {
                assert!(
                    self.may_be_resident.contains(&key.bits()),
                    "{key:?} was never read"
                );
                assert!(effects.pop().is_none());
                Some(frame)
            }
            Step::Wait { .. } => {
                assert!(!must_hit, "{key:?} is pinned and was not found");
                self.wait(cpu, key, op, completes, &mut effects)
            }
        }
    }

    fn wait(
        &mut self,
        cpu: Cpu,
        key: PageKey,
        mut op: PageIn,
        completes: bool,
        effects: &mut Effects,
    ) -> Option<Frame> {
        let Some(effect) = effects.pop() else {
            let shared = self
                .reading
                .iter_mut()
                .find(|reading| reading.io.key() == key);
            shared
                .expect("another's read is under way")
                .waiting
                .push(op);
            return None;
        };
        let Effect::Read(io) = effect else {
            panic!("{effect:?} before a read")
        };
        assert!(effects.pop().is_none() && io.key() == key);
        assert!(
            self.reading.iter().all(|reading| reading.io.key() != key),
            "a second read"
        );
        self.bytes.insert(io.frame().number(), key.bits());
        if !completes {
            self.reading.push(Reading {
                io,
                waiting: vec![op],
            });
            return None;
        }
        self.memory.complete(cpu, io, Ok(()), effects);
        self.may_be_resident.insert(key.bits());
        assert!(matches!(effects.pop(), Some(Effect::Wake(_))));
        match op.step(&self.memory, cpu.into(), effects) {
            Ok(Step::Done(frame)) => Some(frame),
            other => panic!("{other:?} after the read"),
        }
    }

    fn unpin(&self, cpu: Cpu, frame: Frame) {
        self.memory.unpin(cpu, frame, &mut Effects::new());
    }

    fn key_of(&self, frame: Frame) -> PageKey {
        PageKey::from_bits(self.bytes[&frame.number()]).expect("a key")
    }

    fn complete(&mut self, which: usize, fails: bool) {
        let reading = self.reading.swap_remove(which);
        let (cpu, key) = (Cpu::new(1), reading.io.key());
        let mut effects = Effects::new();
        let result = if fails { Err(5) } else { Ok(()) };
        self.memory.complete(cpu, reading.io, result, &mut effects);
        while effects.pop().is_some() {}
        if !fails {
            self.may_be_resident.insert(key.bits());
        }
        for mut op in reading.waiting {
            match op.step(&self.memory, cpu.into(), &mut effects) {
                Ok(Step::Done(frame)) => {
                    assert!(!fails && self.key_of(frame) == key);
                    self.unpin(cpu, frame);
                }
                Err(PageError::Io(5)) if fails => {}
                other => panic!("{other:?} after the read"),
            }
            while effects.pop().is_some() {}
        }
    }

    fn reopen(&mut self, file: usize) {
        let (id, order) = self.files[file];
        let is_file = |key: PageKey| Some(key) == Mappings::key(id, key.page());
        if self.reading.iter().any(|reading| is_file(reading.io.key())) {
            return;
        }
        let cpu = Cpu::new(0);
        self.memory.close_mapping(cpu, id, &mut |_| ());
        self.may_be_resident
            .retain(|bits| !is_file(PageKey::from_bits(*bits).expect("a key")));
        for (frame, key) in &self.held {
            assert!(!is_file(*key) || self.state(*frame) == State::Detached);
        }
        self.files[file] = (
            self.memory.open_mapping(cpu.into(), order).expect("a file"),
            order,
        );
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Touch(request) => {
                if let Some(frame) = self.have(request, true) {
                    self.unpin(Cpu::new(request.cpu), frame);
                }
            }
            Op::Hold(request) => {
                if let Some(frame) = self.have(request, true) {
                    let (file, _) = self.files[request.file];
                    let key = Mappings::key(file, request.page).expect("a small page");
                    self.held.push((frame, key));
                }
            }
            Op::Start(request) => {
                if let Some(frame) = self.have(request, false) {
                    self.unpin(Cpu::new(request.cpu), frame);
                }
            }
            Op::Complete { .. } | Op::Abandon { .. } if self.reading.is_empty() => {}
            Op::Complete { which, fails } => self.complete(which.index(self.reading.len()), fails),
            Op::Abandon { which } => {
                let which = which.index(self.reading.len());
                if let Some(op) = self.reading[which].waiting.pop() {
                    op.abandon(&self.memory, Cpu::new(0), &mut Effects::new());
                }
            }
            Op::Unpin { cpu, which } => {
                if !self.held.is_empty() {
                    let (frame, _) = self.held.swap_remove(which.index(self.held.len()));
                    self.unpin(Cpu::new(cpu), frame);
                }
            }
            Op::AllocBuf { cpu, group, order } => {
                let order = Order::new(order).expect("an order");
                match self
                    .memory
                    .alloc_buf(Cpu::new(cpu).into(), self.groups[group], order)
                {
                    Ok((frame, _)) => self.bufs.push(frame),
                    Err(error) => self.assert_refusal(error, group, order),
                }
            }
            Op::FreeBuf { cpu, which } => {
                if !self.bufs.is_empty() {
                    let frame = self.bufs.swap_remove(which.index(self.bufs.len()));
                    self.memory.free_buf(Cpu::new(cpu), frame);
                }
            }
            Op::SetMax { group, max } => {
                self.max[group] = max;
                let id = self.groups[group];
                let over = self.memory.set_max(Cpu::new(0).into(), id, u64::from(max));
                let in_use = self.in_use(group);
                assert_eq!(
                    over,
                    Ok(u64::from(in_use.saturating_sub(max))),
                    "{in_use} in use"
                );
            }
            Op::Drain => self.memory.drain_charges(self.memory.groups().root()),
            Op::Reopen { file } => self.reopen(file),
        }
        self.check();
    }

    /// Every frame of a page holds the bytes of its key, every page is in one frame, and the
    /// groups are charged for exactly what is theirs.
    fn check(&mut self) {
        self.memory.check();
        let table = self.memory.frames();
        let mut resident = BTreeSet::new();
        let mut charged = [0; NR_GROUPS];
        for frame in (0..table.len()).map(Frame::new) {
            let state = self.state(frame);
            if state == State::Free {
                continue;
            }
            let owner = table.group(frame);
            let group = self.groups.iter().position(|group| *group == owner);
            charged[group.expect("a group")] += table.block(frame).0.nr_pages();
            if state == State::Live {
                let key = table.key(frame).expect("a live frame holds a page").bits();
                assert_eq!(self.bytes.get(&frame.number()), Some(&key), "{frame:?}");
                assert!(
                    self.may_be_resident.contains(&key),
                    "{frame:?} should be gone"
                );
                assert!(
                    resident.insert(key),
                    "{frame:?} has a page of another frame"
                );
            }
        }
        for (frame, key) in &self.held {
            let is_kept = matches!(self.state(*frame), State::Live | State::Detached);
            assert!(
                is_kept && self.key_of(*frame) == *key,
                "{frame:?} lost its page"
            );
        }
        for (group, charged) in charged.into_iter().enumerate() {
            assert_eq!(self.usage(group), charged, "usage of group {group}");
            // Over a lowered limit there is only what was there before.
            let allowed = self.max[group].max(self.charged[group]);
            assert!(
                charged <= allowed,
                "{charged} of {allowed} pages in group {group}"
            );
            self.charged[group] = charged;
        }
    }

    fn give_all_back(mut self) {
        while !self.reading.is_empty() {
            self.complete(0, false);
        }
        for (frame, _) in std::mem::take(&mut self.held) {
            self.unpin(Cpu::new(1), frame);
        }
        for frame in std::mem::take(&mut self.bufs) {
            self.memory.free_buf(Cpu::new(1), frame);
        }
        self.check();
        for (file, _) in self.files {
            self.memory.close_mapping(Cpu::new(0), file, &mut |_| ());
        }
        self.memory.check();
        assert_eq!(self.memory.stats().nr_used, 0);
    }
}

proptest! {
    #![proptest_config(crate::config(600))]

    /// Hits find the bytes that were read, pins and limits hold, refusals have a reason.
    #[test]
    fn pages_limits_and_books(
        policy in prop::sample::select(Policy::ALL),
        ops in prop::collection::vec(op(), 1..250),
    ) {
        let mut world = World::new(policy);
        ops.into_iter().for_each(|op| world.apply(op));
        world.give_all_back();
    }
}
