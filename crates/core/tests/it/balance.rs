//! Reclaim on simulated nodes, in the background and by those who need a page there.

mod room;

use pagetide_core::frame::State;
use pagetide_core::memory::{
    Balance, Config, Effect, Effects, Here, Memory, PageIn, Platform, Step,
};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::{MAX_BATCH, Policy};
use pagetide_core::units::{Cpu, Frame, Node, NodeMask, Order, SECOND};
use pagetide_core::{alloc::Topology, group::Limit};
use proptest::prelude::*;
use std::cell::Cell;

const CPU: Cpu = Cpu::new(0);
const NR_NODES: u32 = 4;

/// Remembers the nodes that were woken.
#[derive(Debug, Default)]
struct Woken(Cell<u64>);

impl Platform for Woken {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}

    fn wake_reclaim(&self, node: Node) {
        self.0.set(self.0.get() | NodeMask::of(node).bits());
    }
}

struct World {
    memory: Memory,
    woken: Woken,
    file: u32,
}

fn node(number: u32) -> Node {
    Node::new(number).expect("a node")
}

impl World {
    /// Four nodes of about 8 MiB, a CPU each.
    fn new(policy: Policy) -> World {
        let topology = Topology::grid(NR_NODES, 1).expect("a topology");
        World::on(Config::on(topology, 8192, policy))
    }

    fn on(config: Config) -> World {
        let memory = Memory::try_new(config).expect("a memory");
        let file = memory.open_mapping(CPU.into(), Order::ZERO);
        World {
            file: file.expect("a file"),
            memory,
            woken: Woken::default(),
        }
    }

    fn here(&self) -> Here<'_> {
        Here::new(CPU, &self.woken)
    }

    /// A group that may use one node.
    fn group_on(&self, number: u32) -> u32 {
        let root = self.memory.groups().root();
        let group = self.memory.new_group(self.here(), root).expect("a group");
        let groups = self.memory.groups();
        groups.set_mems(group, NodeMask::of(node(number)));
        group
    }

    fn child(&self) -> u32 {
        let root = self.memory.groups().root();
        self.memory.new_group(self.here(), root).expect("a group")
    }

    /// Has a page, pinned; `None` where there is no memory for it.
    fn have(&self, group: u32, page: u64) -> Option<Frame> {
        let key = Mappings::key(self.file, page).expect("a small page");
        let mut effects = Effects::new();
        let mut op = PageIn::new(key, group, Access::Copy);
        loop {
            let step = op.step(&self.memory, self.here(), &mut effects).ok()?;
            if let Step::Done(frame) = step {
                return Some(frame);
            }
            while let Some(effect) = effects.pop() {
                if let Effect::Read(io) = effect {
                    self.memory.complete(CPU, io, Ok(()), &mut effects);
                }
            }
        }
    }

    fn touch(&self, group: u32, page: u64) -> bool {
        let frame = self.have(group, page);
        let unpin = |&frame: &Frame| self.memory.unpin(CPU, frame, &mut Effects::new());
        frame.inspect(unpin).is_some()
    }

    fn take_woken(&self) -> NodeMask {
        NodeMask::from_bits(self.woken.0.take())
    }

    fn file_pages(&self, group: u32) -> u64 {
        self.memory.stat(group).file / 4096
    }

    /// Fills a node with a group's pages until somebody is woken; returns the pages read.
    fn fill(&self, group: u32, first: u64) -> u64 {
        let pages = first..first + 8192;
        let mut filled = pages.take_while(|&page| {
            assert!(self.touch(group, page));
            self.woken.0.get() == 0
        });
        filled.by_ref().count() as u64 + 1
    }

    fn nr_free(&self, on: u32) -> u32 {
        let zones = self.memory.zones().iter();
        let of_node = zones.filter(|zone| zone.config().node == node(on));
        of_node.map(|zone| zone.nr_free_racy()).sum()
    }

    fn marks(&self, of: u32) -> (u32, u32) {
        let mut zones = self.memory.zones().iter();
        let zone = zones.find(|zone| zone.config().node == node(of));
        let (marks, _) = zone.expect("a zone").watermarks();
        (marks.low, marks.high)
    }
}

#[test]
fn a_node_is_woken_below_low_and_rests_above_high() {
    for &policy in Policy::ALL {
        let world = World::new(policy);
        let (low, high) = world.marks(1);
        let [web, batch] = [0, 1].map(|number| world.group_on(number));
        for page in 0..1000 {
            assert!(world.touch(web, page));
        }
        let nr_read = world.fill(batch, 1 << 20);
        assert_eq!(world.take_woken(), NodeMask::of(node(1)), "{policy}");
        assert!(world.nr_free(1) <= low, "{policy}");
        let before = world.memory.stats();
        assert_eq!(before.pgsteal_kswapd, 0);
        // Nothing is in the caches that would do.
        let missing = world.memory.zones().nr_missing(node(1));
        assert!(missing > 0 && missing <= high);
        while world.memory.balance(world.here(), node(1)) == Balance::More {}
        let stats = world.memory.stats();
        assert!(world.memory.zones().is_balanced(node(1)));
        assert!(world.nr_free(1) >= high);
        assert_eq!(stats.pageoutrun, before.pageoutrun + 1);
        let evicted = stats.pgsteal_kswapd;
        assert!(evicted >= u64::from(missing), "{policy}: {evicted}");
        assert!(
            evicted < u64::from(missing + MAX_BATCH),
            "{policy}: {evicted}"
        );
        assert_eq!(stats.pgsteal_direct, before.pgsteal_direct);
        // Only pages of that node went.
        assert_eq!(world.file_pages(web), 1000);
        assert_eq!(world.file_pages(batch), nr_read - evicted);
        assert!(world.memory.stat(batch).pgsteal >= evicted);
        assert_eq!(world.memory.balance(world.here(), node(1)), Balance::Done);
        assert_eq!(world.memory.stats().pageoutrun, stats.pageoutrun);
        // Again and again.
        for round in 2..20 {
            let _ = world.fill(batch, round << 20);
            while world.memory.balance(world.here(), node(1)) == Balance::More {}
            world.take_woken();
            assert_eq!(world.file_pages(web), 1000, "{policy} {round}");
        }
        world.memory.check();
    }
}

#[test]
fn what_caches_hold_is_fetched_back_before_a_page_goes() {
    let world = World::new(Policy::default());
    let group = world.group_on(2);
    let _ = world.fill(group, 0);
    while world.memory.balance(world.here(), node(2)) == Balance::More {}
    world.take_woken();
    // Working memory comes and goes: what it leaves is in the caches of the CPU.
    let evicted = world.memory.stats().pgsteal;
    let mut held = Vec::new();
    while world.memory.zones().is_balanced(node(2)) {
        let buf = world.memory.alloc_buf(world.here(), group, Order::ZERO);
        held.push(buf.expect("a page").0);
    }
    held.into_iter()
        .for_each(|frame| world.memory.free_buf(CPU, frame));
    assert!(!world.memory.zones().is_balanced(node(2)));
    assert_eq!(world.memory.balance(world.here(), node(2)), Balance::Done);
    assert!(world.memory.zones().is_balanced(node(2)));
    assert_eq!(world.memory.stats().pgsteal, evicted);
}

#[test]
fn a_hopeless_node_is_left_alone_until_something_changes() {
    for is_freed in [false, true] {
        let world = World::new(Policy::default());
        let group = world.group_on(3);
        let mut held = Vec::new();
        while world.woken.0.get() == 0 {
            held.extend(world.have(group, held.len() as u64));
        }
        let steps = || {
            let balance = || world.memory.balance(world.here(), node(3));
            std::iter::repeat_with(balance)
                .take_while(|&balance| balance == Balance::More)
                .count()
        };
        assert_eq!(steps(), 15, "the 16th gives up");
        assert!(world.memory.is_hopeless(node(3)));
        world.take_woken();
        held.extend(world.have(group, held.len() as u64));
        assert!(world.take_woken().is_empty(), "nobody is woken in vain");
        // Pages that can go, or frames that come back.
        let many = held.split_off(held.len() / 2);
        for frame in many {
            world.memory.unpin(CPU, frame, &mut Effects::new());
        }
        if is_freed {
            world.memory.close_mapping(CPU, world.file, &mut |_| ());
            let _ = world.memory.drain();
        } else {
            // A request that finds none reclaims itself.
            let mut pages = 1 << 20..;
            while world.memory.stats().pgsteal_direct == 0 {
                held.extend(world.have(group, pages.next().expect("endless")));
            }
        }
        assert!(!world.memory.is_hopeless(node(3)), "{is_freed}");
        if !is_freed {
            let mut pages = 1 << 21..(1 << 21) + 500;
            while world.woken.0.get() == 0 {
                held.extend(world.have(group, pages.next().expect("few pages")));
            }
            assert_eq!(world.take_woken(), NodeMask::of(node(3)));
            assert!(steps() < 15);
            assert!(world.memory.zones().is_balanced(node(3)));
        }
    }
}

#[test]
fn ticks_between_its_steps_do_not_stop_it() {
    let world = World::new(Policy::default());
    let group = world.group_on(0);
    let _ = world.fill(group, 0);
    let mut now = SECOND;
    let mut nr_steps = 0;
    loop {
        let before = world.memory.zones().nr_missing(node(0));
        let balance = world.memory.balance(world.here(), node(0));
        world.memory.tick(CPU, now);
        now += SECOND;
        nr_steps += 1;
        match balance {
            Balance::More => assert!(world.memory.zones().nr_missing(node(0)) < before),
            Balance::Done => break,
            Balance::Hopeless => panic!("pages can go"),
        }
        assert!(nr_steps < 8);
    }
    assert!(world.memory.zones().is_balanced(node(0)));
}

#[test]
fn protected_groups_keep_theirs_while_others_have_pages() {
    for &policy in Policy::ALL {
        for limit in [Limit::Min, Limit::Low] {
            let world = World::new(policy);
            let groups = world.memory.groups();
            let [safe, other] = [1, 1].map(|number| world.group_on(number));
            groups.set_limit(safe, limit, 700).expect("no limit below");
            (0..700).for_each(|page| assert!(world.touch(safe, page)));
            let mut next = 1 << 20;
            // As long as the other one has pages, and more than the node has in all.
            while next < (1 << 20) + 4000 {
                next += world.fill(other, next);
                world.take_woken();
                while world.memory.balance(world.here(), node(1)) == Balance::More {}
                assert_eq!(world.file_pages(safe), 700, "{policy} {limit:?}");
            }
            assert!(world.memory.stats().pgsteal_kswapd > 1000);
            // Alone, it gives what `low` protects, and never what `min` does.
            groups.kill(other);
            world.memory.drop_group(CPU, other);
            let freed = world.memory.reclaim(CPU, groups.root(), 64);
            assert_eq!(freed > 0, limit == Limit::Low, "{policy} {limit:?}");
        }
    }
}

/// Groups that do the same lose the same share of what they have, over many batches.
#[test]
fn equal_groups_lose_in_proportion_to_their_size() {
    const NR_PAGES: u64 = 96_000;
    for &policy in Policy::ALL {
        for nr_groups in [2, 24] {
            let topology = Topology::uniform(1);
            let world = World::on(Config::on(topology, 110_000, policy));
            let root = world.memory.groups().root();
            let child = |_| world.memory.new_group(world.here(), root).expect("a group");
            let groups: Vec<u32> = (0..nr_groups).map(child).collect();
            // Every second one has twice as many, read in turn.
            let turns = (0..).flat_map(|_| groups.iter().enumerate());
            let turns = turns.flat_map(|(at, &group)| std::iter::repeat_n(group, at % 2 + 1));
            for (page, group) in (0..NR_PAGES).zip(turns) {
                assert!(world.touch(group, page));
            }
            let size = |class: usize| -> u64 {
                let groups = groups.iter().skip(class).step_by(2);
                groups.map(|&group| world.file_pages(group)).sum()
            };
            let before = [0, 1].map(size);
            let mut freed = 0;
            while freed < NR_PAGES / 2 {
                freed += u64::from(world.memory.reclaim(CPU, root, MAX_BATCH));
            }
            for (class, before) in before.into_iter().enumerate() {
                let lost = (before - size(class)) as f64 / before as f64;
                let fair = freed as f64 / NR_PAGES as f64;
                let off = lost / fair - 1.0;
                assert!(off.abs() < 0.2, "{policy} {nr_groups} {class}: {off:.2}");
            }
        }
    }
}

#[test]
fn a_request_for_one_node_evicts_there_whosever_pages_are_there() {
    for &policy in Policy::ALL {
        let world = World::new(policy);
        let [web, batch, late] = [0, 1, 1].map(|number| world.group_on(number));
        (0..1000).for_each(|page| assert!(world.touch(web, page)));
        // All of the node, with nobody in the background.
        let mut page = 1 << 20;
        while world.memory.stats().pgsteal == 0 {
            assert!(world.touch(batch, page));
            page += 1;
        }
        let full = world.file_pages(batch);
        let free = world.nr_free(1);
        for page in 0..500 {
            assert!(world.touch(late, (2 << 20) + page), "{policy}");
        }
        let had = world.file_pages(late) + world.file_pages(batch);
        assert!(
            had + u64::from(MAX_BATCH) >= full,
            "{policy}: {had} of {full}, {free} free"
        );
        assert!(world.file_pages(late) > 0 && world.file_pages(batch) < full);
        assert_eq!(world.file_pages(web), 1000, "{policy}");
        let stats = world.memory.stats();
        assert_eq!(stats.pgsteal_direct, stats.pgsteal);
        assert!(stats.allocstall > 0);
        world.memory.check();
    }
}

#[test]
fn node_reclaim_takes_the_groups_own_pages_on_that_node() {
    let topology = Topology::grid(NR_NODES, 1).expect("a topology");
    let mut config = Config::on(topology, 8192, Policy::default());
    config.alloc.node_reclaim = true;
    let world = World::on(config);
    let [web, other] = [world.child(), world.child()];
    let groups = world.memory.groups();
    // Pages of the same group elsewhere, and of another one here.
    groups.set_mems(web, NodeMask::of(node(2)));
    (0..800).for_each(|page| assert!(world.touch(web, page)));
    (0..200).for_each(|page| assert!(world.touch(other, (1 << 20) + page)));
    groups.set_mems(web, NodeMask::ALL);
    let on = |number: u32| {
        let frames = world.memory.frames();
        let zones = world.memory.zones();
        let all = (0..frames.len()).map(Frame::new);
        let live = all.filter(|&frame| frames.word(frame).state() == State::Live);
        let on_node = live.filter(|&frame| zones.node_of(frames, frame) == node(number));
        on_node.filter(|&frame| frames.group(frame) == web).count()
    };
    let far = on(2);
    (0..4000).for_each(|page| assert!(world.touch(web, (2 << 20) + page)));
    assert!(world.memory.stats().pgsteal > 1500);
    assert_eq!((on(1), on(2), on(3)), (0, far, 0), "near pages made room");
    assert!(on(0) > 1000);
    assert_eq!(world.file_pages(other), 200);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Touch(usize, u64),
    Buf(usize),
    FreeBuf,
    Hold(usize, u64),
    Unpin,
    Balance(u32),
    Reclaim(usize, u64),
    Tick,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => (0..5usize, 0..6000u64).prop_map(|(group, page)| Op::Touch(group, page)),
        5 => (0..5usize).prop_map(Op::Buf),
        4 => Just(Op::FreeBuf),
        5 => (0..5usize, 0..6000u64).prop_map(|(group, page)| Op::Hold(group, page)),
        4 => Just(Op::Unpin),
        4 => (0..NR_NODES).prop_map(Op::Balance),
        1 => (0..5usize, 1..200u64).prop_map(|(group, pages)| Op::Reclaim(group, pages)),
        1 => Just(Op::Tick),
    ]
}

proptest! {
    #![proptest_config(crate::config(60))]

    /// Whatever happens: only nodes that are short are woken, a step evicts what is missing and no
    /// more than a batch beyond it, and ends with a node that is balanced or that gave nothing.
    #[test]
    fn a_step_does_what_is_missing(
        policy in prop::sample::select(Policy::ALL),
        ops in prop::collection::vec((op(), 1..60u64), 1..200),
    ) {
        let world = World::new(policy);
        let memory = &world.memory;
        let mut groups: Vec<u32> = (0..NR_NODES).map(|number| world.group_on(number)).collect();
        groups.push(memory.new_group(world.here(), memory.groups().root()).expect("a group"));
        let (mut bufs, mut held, mut now) = (Vec::new(), Vec::new(), 0);
        for (op, times) in ops {
            match op {
                Op::Touch(group, page) => {
                    for page in page..page + times * 20 {
                        let _ = world.touch(groups[group], page);
                    }
                }
                Op::Buf(group) => for _ in 0..times * 4 {
                    let buf = memory.alloc_buf(world.here(), groups[group], Order::ZERO);
                    bufs.extend(buf.ok().map(|(frame, _)| frame));
                },
                Op::FreeBuf => {
                    for frame in bufs.split_off(bufs.len() / 2) {
                        memory.free_buf(CPU, frame);
                    }
                }
                Op::Hold(group, page) => for page in page..page + times {
                    held.extend(world.have(groups[group], page));
                },
                Op::Unpin => {
                    for frame in held.split_off(held.len() / 2) {
                        memory.unpin(CPU, frame, &mut Effects::new());
                    }
                }
                Op::Balance(number) => {
                    let node = node(number);
                    let missing = memory.zones().nr_missing(node);
                    let before = memory.stats();
                    let balance = memory.balance(world.here(), node);
                    let after = memory.stats();
                    let evicted = after.pgsteal_kswapd - before.pgsteal_kswapd;
                    prop_assert_eq!(after.pgsteal_direct, before.pgsteal_direct);
                    let budget = missing.min(1024);
                    prop_assert!(evicted < u64::from(budget + MAX_BATCH));
                    prop_assert!(missing > 0 || evicted == 0);
                    match balance {
                        Balance::Done => prop_assert!(memory.zones().is_balanced(node)),
                        Balance::More => prop_assert!(evicted > 0 || !memory.is_hopeless(node)),
                        Balance::Hopeless => prop_assert!(evicted == 0 && memory.is_hopeless(node)),
                    }
                }
                Op::Reclaim(group, nr_pages) => {
                    let before = memory.stats();
                    let subtree = (groups[group], None);
                    let freed = memory.reclaim_proactively(world.here(), subtree, nr_pages);
                    let evicted = memory.stats().pgsteal_proactive - before.pgsteal_proactive;
                    prop_assert_eq!(freed, evicted);
                    prop_assert!(freed < nr_pages + u64::from(MAX_BATCH));
                    let left = memory.reclaim(CPU, groups[group], 1);
                    prop_assert!(freed >= nr_pages || left == 0);
                }
                Op::Tick => {
                    now += times * SECOND / 8;
                    memory.tick(CPU, now);
                }
            }
            memory.check();
        }
    }
}
