//! Named cases of limits, protections and what reclaim does about them.

use super::*;
use crate::alloc::Mobility;
use crate::group::Limit;
use crate::memory::alloc::Block;
use std::cell::Cell;

/// Two groups of 40 pages each under a budget of about 100, and a third that needs memory.
fn crowded(limit: Limit) -> (Memory, [u32; 3]) {
    let memory = Memory::try_new(Config::for_resident(100, 1, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let groups = [(); 3].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let mapping = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    for page in 0..80 {
        let group = groups[usize::from(page >= 40)];
        let (frame, _) = have(&memory, group, key(mapping, page), Ok(())).unwrap();
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    memory.groups().drain(root);
    memory.groups().set_limit(groups[0], limit, 40).unwrap();
    (memory, groups)
}

fn usages(memory: &Memory, groups: [u32; 3]) -> [u64; 3] {
    groups.map(|id| memory.groups().get(id).unwrap().usage())
}

#[test]
fn a_protected_group_keeps_its_pages_while_another_has_some() {
    for limit in [Limit::Min, Limit::Low] {
        let (memory, groups) = crowded(limit);
        let mut held = Vec::new();
        while usages(&memory, groups)[1] > 0 {
            held.push(
                memory
                    .alloc_buf(CPU.into(), groups[2], Order::ZERO)
                    .unwrap(),
            );
        }
        assert_eq!(usages(&memory, groups)[0], 40);
        assert_eq!(memory.groups().get(groups[0]).unwrap().events().low, 0);
    }
}

/// A group with pages of 16 frames each, of which it has read 40.
fn of_large_pages(policy: Policy) -> (Memory, u32, u32) {
    let memory = Memory::try_new(Config::for_resident(2000, 1, policy)).unwrap();
    let root = memory.groups().root();
    let group = memory.new_group(CPU.into(), root).unwrap();
    let order = Order::new(4).unwrap();
    let mapping = memory.open_mapping(CPU.into(), order).unwrap();
    for page in 0..40 {
        assert!(touch(&memory, group, key(mapping, page)));
    }
    memory.groups().drain(root);
    (memory, group, mapping)
}

#[test]
fn min_keeps_large_pages_to_the_frame() {
    for &policy in Policy::ALL {
        let (memory, group, _) = of_large_pages(policy);
        let usage = || memory.groups().get(group).unwrap().usage();
        assert_eq!(usage(), 640);
        let root = memory.groups().root();
        memory.groups().set_limit(group, Limit::Min, 600).unwrap();
        let other = memory.new_group(CPU.into(), root).unwrap();
        let alloc = || memory.alloc_buf(CPU.into(), other, Order::ZERO);
        while alloc().is_ok() {}
        memory.groups().drain(root);
        // The third page has frames that are kept.
        assert_eq!(usage(), 640 - 2 * 16, "{policy:?}");
        memory.check();
    }
}

#[test]
fn a_limit_that_is_met_takes_a_batch_of_frames_and_not_of_large_pages() {
    for &policy in Policy::ALL {
        let (memory, group, mapping) = of_large_pages(policy);
        assert_eq!(memory.set_max(CPU.into(), group, 640), Ok(0));
        assert!(touch(&memory, group, key(mapping, 40)));
        let nr_pages = memory.nr_resident(mapping);
        assert!((36..=40).contains(&nr_pages), "{policy:?}: {nr_pages}");
        memory.check();
    }
}

#[test]
fn low_gives_way_to_need_and_min_does_not() {
    for limit in [Limit::Min, Limit::Low] {
        let (memory, groups) = crowded(limit);
        let mut nr_taken = 0;
        let error = loop {
            match memory.alloc_buf(CPU.into(), groups[2], Order::ZERO) {
                Ok(_) => nr_taken += 1,
                Err(error) => break error,
            }
        };
        let root = memory.groups().root();
        assert_eq!(error, AllocError::OverLimit { group: root });
        let [kept, ..] = usages(&memory, groups);
        let events = memory.groups().get(groups[0]).unwrap().events_local();
        match limit {
            Limit::Min => assert_eq!((kept, events.low), (40, 0)),
            _ => assert!(kept == 0 && events.low > 0),
        }
        assert!(nr_taken >= 100 - kept, "{nr_taken} pages taken");
        assert!(memory.groups().get(root).unwrap().events().max > 0);
    }
}

#[test]
fn a_group_is_made_under_a_budget_full_of_cached_pages() {
    let (memory, groups) = crowded(Limit::Low);
    memory.groups().set_limit(groups[0], Limit::Low, 0).unwrap();
    let root = memory.groups().root();
    let before = memory.stats().pgsteal;
    while memory.stats().pgsteal == before {
        memory.new_group(CPU.into(), root).unwrap();
    }
}

#[test]
fn groups_that_hold_only_pins_hide_nobody() {
    let config = Config::for_resident(200, 1, Policy::Fifo);
    for limit in [Limit::Low, Limit::High] {
        let memory = Memory::try_new(config.clone()).unwrap();
        let root = memory.groups().root();
        let mapping = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
        // More groups than reclaim makes rounds, each with a page that cannot go.
        for page in 0..40 {
            let group = memory.new_group(CPU.into(), root).unwrap();
            have(&memory, group, key(mapping, page), Ok(())).unwrap();
        }
        let cached = memory.new_group(CPU.into(), root).unwrap();
        for page in 40..80 {
            let (frame, _) = have(&memory, cached, key(mapping, page), Ok(())).unwrap();
            memory.unpin(CPU, frame, &mut Effects::new());
        }
        memory.groups().set_limit(cached, limit, 40).unwrap();
        while memory.alloc_buf(CPU.into(), root, Order::ZERO).is_ok() {}
        assert_eq!(memory.groups().get(cached).unwrap().usage(), 0, "{limit:?}");
        let events = memory.groups().get(cached).unwrap().events();
        assert_eq!(events.low > 0, limit == Limit::Low);
    }
}

/// What a platform was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    nr_stalls: Cell<u32>,
    delay_ns: Cell<u64>,
    asked: Cell<(u32, u64)>,
}

impl Platform for Told {
    fn shrink(&self, _subtree: u32, nr_pages: u32, of: u64) -> u32 {
        self.asked.set((nr_pages, of));
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        self.nr_stalls.set(self.nr_stalls.get() + 1);
        work();
    }

    fn throttle(&self, _group: u32, delay_ns: u64) {
        self.delay_ns.set(delay_ns);
    }
}

#[test]
fn above_high_the_charger_reclaims_and_owes_a_delay() {
    let (memory, [_, group, _]) = crowded(Limit::Low);
    let told = Told::default();
    let here = Here::new(CPU, &told);
    // Its pages can go, so it comes back below: nothing is owed.
    memory.groups().set_limit(group, Limit::High, 20).unwrap();
    memory.alloc_buf(here, group, Order::ZERO).unwrap();
    assert!((told.nr_stalls.get(), told.delay_ns.get()) > (0, 0));
    for _ in 0..20 {
        memory.alloc_buf(here, group, Order::ZERO).unwrap();
    }
    assert!(usages(&memory, [group; 3])[0] > 20);
    assert!(told.delay_ns.get() > 0);
    let record = memory.groups().get(group).unwrap();
    assert!(record.events_local().high >= 20);
}

#[test]
fn inside_a_shrinker_nothing_is_reclaimed() {
    let (memory, [_, group, _]) = crowded(Limit::Low);
    let told = Told::default();
    let here = Here::new(CPU, &told).without_reclaim();
    memory.groups().set_max(group, 40).unwrap();
    let refused = memory.alloc_buf(here, group, Order::ZERO);
    assert_eq!(refused, Err(AllocError::OverLimit { group }));
    assert_eq!(memory.set_max(here, group, 30), Ok(10));
    assert_eq!(told.nr_stalls.get(), 0);
    assert_eq!(memory.set_max(here, group, 40), Ok(0));
    memory
        .alloc_buf(Here::new(CPU, &told), group, Order::ZERO)
        .unwrap();
    assert!(told.nr_stalls.get() > 0 && told.asked.get().0 > 0);
}

#[test]
fn inside_a_shrinker_no_node_is_reclaimed_on() {
    let mut config = Config::on(Topology::grid(2, 1).unwrap(), 4000, Policy::Fifo);
    config.alloc.node_reclaim = true;
    let memory = Memory::try_new(config).unwrap();
    let root = memory.groups().root();
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    for page in 0..1000 {
        let (frame, _) = have(&memory, root, key(file, page), Ok(())).unwrap();
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    for (may_reclaim, is_reclaimed) in [(false, false), (true, true)] {
        let told = Told::default();
        let here = Here {
            may_reclaim,
            ..Here::new(CPU, &told)
        };
        for _ in 0..1200 {
            memory.alloc_buf(here, root, Order::ZERO).unwrap();
        }
        assert_eq!(told.nr_stalls.get() > 0, is_reclaimed);
    }
}

/// Lowers the budget between the charge of a request and its frame.
#[derive(Debug)]
struct Lowers<'a>(&'a Memory, u64);

impl Platform for Lowers<'_> {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {
        let over = self.0.set_budget(CPU.into(), self.1);
        assert!(over.is_ok_and(|over| over > 0));
        while let Some(idle) = self.0.next_offline(CPU.into()) {
            self.0.put_offline(idle, true);
        }
    }
}

#[test]
fn a_page_without_a_frame_under_a_lowered_budget_is_over_the_limit() {
    let memory = Memory::try_new(Config::for_resident(2000, 1, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let group = memory.new_group(CPU.into(), root).unwrap();
    for _ in 0..1500 {
        memory.alloc_buf(CPU.into(), root, Order::ZERO).unwrap();
    }
    memory.groups().set_limit(group, Limit::High, 0).unwrap();
    let lowers = Lowers(&memory, 500);
    let refused = memory.alloc_buf(Here::new(CPU, &lowers), group, Order::ZERO);
    assert_eq!(refused, Err(AllocError::OverLimit { group: root }));
    assert_eq!(usages(&memory, [group; 3])[0], 0);
}

/// Adds up delays.
#[derive(Debug, Default)]
struct Owed(Cell<u64>);

impl Platform for Owed {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, delay_ns: u64) {
        self.0.set(self.0.get() + delay_ns);
    }
}

#[test]
fn who_charges_page_by_page_owes_no_more_than_who_charges_by_batches() {
    // A group of the second `high` is too small for stocks.
    let owed = [2000, 200].map(|high| {
        let config = Config::for_resident(1 << 16, 2, Policy::Fifo);
        let memory = Memory::try_new(config).unwrap();
        let group = memory.new_group(CPU.into(), memory.groups().root());
        let group = group.unwrap();
        memory.groups().set_max(group, high + high / 4).unwrap();
        memory.groups().set_limit(group, Limit::High, high).unwrap();
        let owed = Owed::default();
        for _ in 0..high + high / 20 {
            let here = Here::new(CPU, &owed);
            memory.alloc_buf(here, group, Order::ZERO).unwrap();
        }
        owed.0.get() / high
    });
    let [by_batches, by_pages] = owed;
    assert!(by_batches > 0 && by_pages > 0, "{owed:?}");
    assert!(by_pages <= 2 * by_batches, "{owed:?}");
}

#[test]
fn a_small_high_is_not_used_up_by_what_is_charged_ahead() {
    let memory = Memory::try_new(Config::for_resident(1 << 16, 16, Policy::default())).unwrap();
    let group = memory
        .new_group(CPU.into(), memory.groups().root())
        .unwrap();
    memory.groups().set_limit(group, Limit::High, 200).unwrap();
    let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    let owed = Owed::default();
    for page in 0..160 {
        let cpu = Cpu::new(page % 16);
        let (here, mut effects) = (Here::new(cpu, &owed), Effects::new());
        let mut op = PageIn::new(key(file, page.into()), group, Access::Copy);
        while !matches!(op.step(&memory, here, &mut effects), Ok(Step::Done(_))) {
            while let Some(effect) = effects.pop() {
                if let Effect::Read(io) = effect {
                    memory.complete(cpu, io, Ok(()), &mut effects);
                }
            }
        }
    }
    assert_eq!((owed.0.get(), memory.stat(group).pgsteal), (0, 0));
    assert_eq!(memory.groups().get(group).unwrap().events().high, 0);
}

#[test]
fn at_a_swappiness_of_0_no_anon_page_goes_while_there_are_pages_of_files() {
    for &policy in Policy::ALL.iter().filter(|&&policy| policy != Policy::Fifo) {
        for is_dirty in [false, true] {
            let (memory, group, file) = memory(3000, policy);
            memory.groups().get(group).unwrap().set_swappiness(0);
            let anon = memory.open_anon(CPU.into(), Order::ZERO).unwrap();
            (0..200).for_each(|page| _ = touch(&memory, group, key(anon, page)));
            for page in 0..2000 {
                let (frame, _) = have(&memory, group, key(file, page), Ok(())).unwrap();
                if is_dirty {
                    memory.set_dirty(frame);
                }
                memory.unpin(CPU, frame, &mut Effects::new());
                // Read often.
                (0..4).for_each(|_| _ = touch(&memory, group, key(file, page)));
            }
            for _ in 0..20 {
                assert_eq!(memory.reclaim(CPU, group, 1) > 0, !is_dirty, "{policy}");
            }
            assert_eq!(memory.stat(group).pgsteal_anon, 0, "{policy}: {is_dirty}");
        }
    }
}

#[test]
fn a_small_high_keeps_as_many_pages_as_a_small_limit() {
    for &policy in Policy::ALL {
        let left = [Limit::Max, Limit::High].map(|limit| {
            let memory = Memory::try_new(Config::for_resident(1 << 14, 1, policy)).unwrap();
            let group = memory.new_group(CPU.into(), memory.groups().root());
            let group = group.unwrap();
            memory.set_limit(group, limit, 120).unwrap();
            let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
            let visit = |page| {
                touch(&memory, group, key(file, page));
                memory.groups().get(group).unwrap().usage()
            };
            (0..120).for_each(|page| _ = visit(page));
            (120..300).map(visit).min()
        });
        assert!(
            left[1] >= left[0].map(|least| least - 8),
            "{policy}: {left:?}"
        );
    }
}

#[test]
fn a_frame_by_which_room_was_made_is_the_groups_still_if_it_was_before() {
    let memory = Memory::try_new(Config::for_resident(100, 1, Policy::Fifo)).unwrap();
    let root = memory.groups().root();
    let [ours, theirs] = [(); 2].map(|()| memory.new_group(CPU.into(), root).unwrap());
    let cycle = |group| {
        let block = memory.take_block(CPU.into(), group, Order::ZERO, Mobility::Movable);
        let Block { frame, was_ours } = block.unwrap();
        memory.put_block(CPU, frame);
        (frame, was_ours)
    };
    let make_room = |group| {
        let made = memory.make_room_for(CPU.into(), group, Order::ZERO);
        made.unwrap();
    };
    let (frame, _) = cycle(ours);
    make_room(ours);
    assert_eq!(cycle(ours), (frame, true));
    // Nobody has written to it since.
    make_room(theirs);
    assert_eq!(cycle(theirs), (frame, false));
}
