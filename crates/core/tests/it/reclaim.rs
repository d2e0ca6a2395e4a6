//! Progress: where a page can go, reclaim finds it, whatever the policy and the others are doing.

use pagetide_core::frame::State;
use pagetide_core::memory::{Config, Effect, Effects, Memory, PageIn, Step};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::VecDeque;

const CPU: Cpu = Cpu::new(0);

/// One group with one file at a time.
struct World {
    memory: Memory,
    group: u32,
    file: u32,
    held: Vec<Frame>,
    dirty: Vec<Frame>,
}

/// Has a page, pinned, and whether it was missed; `None` where all others are in use.
fn have(memory: &Memory, mut op: PageIn) -> Option<(Frame, bool)> {
    let (mut effects, mut has_missed) = (Effects::new(), false);
    loop {
        if let Step::Done(frame) = op.step(memory, CPU.into(), &mut effects).ok()? {
            return Some((frame, has_missed));
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                has_missed = true;
                memory.complete(CPU, io, Ok(()), &mut effects);
            }
        }
    }
}

impl World {
    fn new(policy: Policy, nr_pages: u32) -> World {
        let memory = Memory::try_new(Config::for_resident(nr_pages, 1, policy)).expect("memory");
        let root = memory.groups().root();
        let group = memory.new_group(CPU.into(), root).expect("a group");
        let over = memory.set_max(CPU.into(), group, u64::from(nr_pages));
        assert_eq!(over, Ok(0));
        let file = memory.open_mapping(CPU.into(), Order::ZERO);
        World {
            memory,
            group,
            file: file.expect("a file"),
            held: Vec::new(),
            dirty: Vec::new(),
        }
    }

    /// Has a page, pinned; `None` where all others are in use.
    fn have(&self, page: u64, access: Access) -> Option<Frame> {
        let key = Mappings::key(self.file, page).expect("a small page");
        let found = have(&self.memory, PageIn::new(key, self.group, access));
        found.map(|(frame, _)| frame)
    }

    fn unpin(&self, frame: Frame) {
        self.memory.unpin(CPU, frame, &mut Effects::new());
    }

    fn touch(&self, page: u64, access: Access) -> Option<Frame> {
        let frame = self.have(page, access);
        frame.inspect(|&frame| self.unpin(frame))
    }

    fn mark(&mut self, frame: Frame) {
        self.memory.set_dirty(frame);
        self.dirty.push(frame);
    }

    /// As a writer that is done: the page is clean.
    fn clean(&self, frame: Frame) {
        if let Some(write) = self.memory.begin_write(frame) {
            let mut effects = Effects::new();
            self.memory.complete_write(CPU, write, Ok(()), &mut effects);
        }
    }

    fn nr_evictable(&self) -> u32 {
        let frames = self.memory.frames();
        let evictable = (0..frames.len())
            .map(Frame::new)
            .filter(|&frame| frames.word(frame).is_evictable());
        u32::try_from(evictable.count()).expect("few pages")
    }

    /// Reclaims once: something goes where something can.
    fn reclaim(&self, nr_pages: u32) -> u32 {
        let nr_evictable = self.nr_evictable();
        let before = self.memory.stats().pgscan;
        let freed = self.memory.reclaim(CPU, self.group, nr_pages);
        let scanned = self.memory.stats().pgscan - before;
        let nr_resident = u64::from(self.memory.stats().nr_used);
        assert_eq!(freed > 0, nr_evictable > 0, "{freed} of {nr_evictable}");
        let most = 24 * (nr_resident + u64::from(freed)) + 2048;
        assert!(scanned <= most, "{scanned} scanned");
        self.memory.check();
        freed
    }

    fn reopen(&mut self) {
        self.memory.close_mapping(CPU, self.file, &mut |_| ());
        let file = self.memory.open_mapping(CPU.into(), Order::ZERO);
        self.file = file.expect("a file");
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Touch(u64, Access),
    Hold(u64, Access),
    Unpin(Index),
    Mark(u64),
    Clean(Index),
    Reclaim(u32),
    SetMax(u32),
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let access = || prop_oneof![3 => Just(Access::Copy), 1 => Just(Access::Pin)];
    prop_oneof![
        20 => (0..80u64, access()).prop_map(|(page, access)| Op::Touch(page, access)),
        6 => (0..80u64, access()).prop_map(|(page, access)| Op::Hold(page, access)),
        3 => any::<Index>().prop_map(Op::Unpin),
        4 => (0..80u64).prop_map(Op::Mark),
        2 => any::<Index>().prop_map(Op::Clean),
        4 => (1..20u32).prop_map(Op::Reclaim),
        1 => (20..60u32).prop_map(Op::SetMax),
        1 => Just(Op::Reopen),
    ]
}

proptest! {
    #![proptest_config(crate::config(400))]

    /// Pins, hits, dirty pages, moving limits, files that go: what can go is found.
    #[test]
    fn what_can_go_is_found(
        policy in prop::sample::select(Policy::ALL),
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let mut world = World::new(policy, 60);
        for op in ops {
            match op {
                Op::Touch(page, access) => _ = world.touch(page, access),
                Op::Hold(page, access) => {
                    let frame = world.have(page, access);
                    world.held.extend(frame);
                }
                Op::Unpin(_) if world.held.is_empty() => {}
                Op::Unpin(which) => {
                    let frame = world.held.swap_remove(which.index(world.held.len()));
                    world.unpin(frame);
                }
                Op::Mark(page) => {
                    if let Some(frame) = world.touch(page, Access::Copy) {
                        world.mark(frame);
                    }
                }
                Op::Clean(_) if world.dirty.is_empty() => {}
                Op::Clean(which) => {
                    let frame = world.dirty.swap_remove(which.index(world.dirty.len()));
                    world.clean(frame);
                }
                Op::Reclaim(nr_pages) => _ = world.reclaim(nr_pages),
                Op::SetMax(max) => {
                    let max = u64::from(max);
                    _ = world.memory.set_max(CPU.into(), world.group, max);
                }
                Op::Reopen => world.reopen(),
            }
        }
    }
}

/// Thousands of pages, all in use but a few: none of those is missed, and no hold looks at all.
#[test]
fn the_last_pages_that_can_go_are_found_among_thousands() {
    const NR_PAGES: u32 = 5000;
    for &policy in Policy::ALL {
        for access in [Access::Copy, Access::Pin] {
            let world = World::new(policy, NR_PAGES);
            // A part is read again and again, and is protected where a policy protects.
            for step in 0..u64::from(NR_PAGES) * 6 {
                let page = if step % 3 == 0 {
                    step / 3
                } else {
                    step * step % 1999
                };
                assert!(world.touch(page, access).is_some());
            }
            let frames = world.memory.frames();
            let live: Vec<Frame> = (0..frames.len())
                .map(Frame::new)
                .filter(|&frame| frames.word(frame).state() == State::Live)
                .collect();
            let (mut held, mut nr_free) = (Vec::new(), 0);
            for (at, &frame) in live.iter().enumerate() {
                if at % 997 == 5 {
                    nr_free += 1;
                    continue;
                }
                let pin = frames.update(frame, |word| word.pinned());
                assert!(pin.is_ok());
                held.push(frame);
            }
            assert!(nr_free > 3, "{policy}: {} pages", live.len());
            let mut freed = 0;
            while freed < nr_free {
                freed += world.reclaim(1);
            }
            assert_eq!((freed, world.reclaim(1)), (nr_free, 0), "{policy}");
            held.into_iter().for_each(|frame| world.unpin(frame));
            while world.reclaim(64) > 0 {}
            assert_eq!(world.memory.stats().nr_used, 0, "{policy}");
        }
    }
}

/// Where every page is pinned, a refusal looks at each of them a few times, and not as often as one
/// of many might be let go meanwhile.
#[test]
fn a_refusal_looks_at_pinned_pages_a_few_times() {
    const NR_PAGES: u32 = 3000;
    for &policy in Policy::ALL {
        let world = World::new(policy, NR_PAGES);
        let pinned = (0..).map_while(|page| world.have(page, Access::Pin));
        let pinned: Vec<Frame> = pinned.collect();
        let nr_pinned = pinned.len() as u64;
        assert!(nr_pinned + 64 > NR_PAGES.into(), "{policy}: {nr_pinned}");
        let before = world.memory.stats().pgscan;
        assert_eq!(world.have(nr_pinned, Access::Pin), None);
        let nr_looks = world.memory.stats().pgscan - before;
        assert!(nr_looks >= nr_pinned, "{policy}: {nr_looks} looks");
        assert!(nr_looks <= 12 * nr_pinned, "{policy}: {nr_looks} looks");
        // One of them let go is found at once.
        world.unpin(pinned[pinned.len() / 2]);
        assert!(world.have(nr_pinned, Access::Pin).is_some(), "{policy}");
    }
}

/// A group that writes new pages all the time takes none of another one's that are in use.
#[test]
fn a_group_that_writes_strips_no_other_one_of_what_it_uses() {
    const NR_HOT: u64 = 8192;
    const NR_WRITTEN: u64 = 100_000;
    /// Reads of the other group's pages for each page that is written.
    const READS: u64 = 20;
    let memory = Memory::try_new(Config::for_resident(40_000, 1, Policy::Gated2q)).expect("memory");
    let groups = [(); 2].map(|()| memory.new_group(CPU.into(), memory.groups().root()));
    let [reader, writer] = groups.map(|group| group.expect("a group"));
    let over = memory.set_max(CPU.into(), memory.groups().root(), 33_000);
    assert_eq!(over, Ok(0));
    let files = [(); 2].map(|()| memory.open_mapping(CPU.into(), Order::ZERO));
    let [read, written] = files.map(|file| file.expect("a file"));
    let use_page = |group, file, page| {
        let key = Mappings::key(file, page).expect("a small page");
        let op = PageIn::new(key, group, Access::Copy);
        let (frame, has_missed) = have(&memory, op).expect("room");
        memory.unpin(CPU, frame, &mut Effects::new());
        (frame, has_missed)
    };
    for at in 0..4 * NR_HOT {
        use_page(reader, read, at % NR_HOT);
    }
    let (mut dirty, mut nr_missed, mut at) = (VecDeque::new(), 0_u64, 0);
    for page in 0..NR_WRITTEN {
        let (frame, _) = use_page(writer, written, page);
        memory.set_dirty(frame);
        dirty.push_back(frame);
        if dirty.len() > 6000
            && let Some(write) = dirty
                .pop_front()
                .and_then(|frame| memory.begin_write(frame))
        {
            memory.complete_write(CPU, write, Ok(()), &mut Effects::new());
        }
        for _ in 0..READS {
            // In any order.
            at = (at + 2777) % NR_HOT;
            nr_missed += u64::from(use_page(reader, read, at).1);
        }
    }
    assert!(nr_missed < NR_HOT / 100, "{nr_missed} misses");
    memory.check();
}

/// A batch that has all that can go looks at the pinned pages beside it a few times, too.
#[test]
fn few_pinned_pages_are_looked_at_a_few_times() {
    for &policy in Policy::ALL {
        for nr_pinned in [1, 8] {
            let world = World::new(policy, 2000);
            let pinned = (0..nr_pinned).map_while(|page| world.have(page, Access::Pin));
            let pinned: Vec<Frame> = pinned.collect();
            for page in 100..108 {
                assert!(world.touch(page, Access::Copy).is_some());
            }
            let before = world.memory.stats().pgscan;
            assert_eq!(world.reclaim(64), 8, "{policy}");
            let nr_looks = world.memory.stats().pgscan - before;
            assert!(nr_looks <= 12 * (nr_pinned + 8), "{policy}: {nr_looks}");
            pinned.into_iter().for_each(|frame| world.unpin(frame));
            assert_eq!(u64::from(world.reclaim(64)), nr_pinned, "{policy}");
        }
    }
}

/// So are few dirty ones by who cannot have them written, as when their group goes.
#[test]
fn few_dirty_pages_are_looked_at_a_few_times() {
    for &policy in Policy::ALL {
        let mut world = World::new(policy, 2000);
        for page in 0..3 {
            let frame = world.touch(page, Access::Copy).expect("room");
            world.mark(frame);
        }
        let before = world.memory.stats().pgscan;
        assert_eq!(world.reclaim(64), 0, "{policy}");
        let nr_looks = world.memory.stats().pgscan - before;
        assert!(nr_looks <= 2 * 17 * 3, "{policy}: {nr_looks}");
    }
}

/// Of many groups whose pages are all pinned, each is asked once; beside many groups a refusal
/// takes two rounds, as where there are many pages.
#[test]
fn many_groups_without_a_page_to_give_are_asked_once() {
    const NR_GROUPS: u64 = 40;
    let mut world = World::new(Policy::Gated2q, 3000);
    let parent = world.group;
    let child = || world.memory.new_group(CPU.into(), parent).expect("a group");
    let groups: Vec<u32> = (0..NR_GROUPS).map(|_| child()).collect();
    let _idle: Vec<u32> = (0..1500).map(|_| child()).collect();
    let mut pinned = Vec::new();
    for page in 0..10 * NR_GROUPS {
        world.group = groups[usize::try_from(page % NR_GROUPS).expect("few")];
        pinned.extend(world.have(page, Access::Pin));
    }
    world.group = parent;
    let before = world.memory.stats();
    assert_eq!(world.memory.reclaim(CPU, parent, 1), 0);
    let nr_looks = world.memory.stats().pgscan - before.pgscan;
    assert!(nr_looks <= 60 * (NR_GROUPS + 3), "{nr_looks} looks");
    let over = world.memory.set_max(CPU.into(), parent, 400);
    assert_eq!(over, Ok(0));
    let before = world.memory.stats();
    assert_eq!(world.have(1000, Access::Copy), None);
    let nr_rounds = world.memory.stats().allocstall - before.allocstall;
    assert_eq!(nr_rounds, 2);
    pinned.into_iter().for_each(|frame| world.unpin(frame));
}
