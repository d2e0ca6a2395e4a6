//! Named cases of claims on contended pages.

use super::*;
use crate::frame::{MAX_REFS, flag};
use crate::page_cache::{Claim, Claims};

/// A resident page that readers claim, and its frame.
fn contended(memory: &Memory, group: u32, page: PageKey) -> Frame {
    let (frame, _) = have(memory, group, page, Ok(())).unwrap();
    memory.unpin(CPU, frame, &mut Effects::new());
    memory.contend(page);
    frame
}

fn hold(memory: &Memory, cpu: Cpu, page: PageKey, access: Access) -> (Found, Option<Claim>) {
    let unpin = |_| panic!("no page comes or goes");
    memory.hold(cpu, (page, access), |_| (), unpin)
}

/// Claims a page of `frame`.
fn claim(memory: &Memory, page: PageKey, frame: Frame, access: Access) -> Claim {
    let (found, claim) = hold(memory, CPU, page, access);
    assert_eq!(found, Found::Pinned(frame));
    claim.expect("a claim and no pin")
}

/// Gives a claim up; whether somebody is woken.
fn give_up(memory: &Memory, frame: Frame, claim: Claim) -> bool {
    let mut effects = Effects::new();
    memory.give_up(CPU, (frame, claim), &mut effects);
    matches!(effects.pop(), Some(Effect::Wake(woken)) if woken == frame)
}

#[test]
fn the_frame_of_a_page_is_told_before_it_is_held() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let frame = contended(&memory, group, key(file, 0));
    for (page, is_there) in [(0, true), (1, false)] {
        let mut told = None;
        let likely = |frame| {
            assert_eq!(memory.claims().nr_on(frame), 0, "before it is held");
            told = Some(frame);
        };
        let wish = (key(file, page), Access::Copy);
        let (_, claim) = memory.hold(CPU, wish, likely, |_| panic!("no page comes or goes"));
        assert_eq!(told, is_there.then_some(frame));
        assert_eq!(claim.is_some(), is_there);
        if let Some(claim) = claim {
            give_up(&memory, frame, claim);
        }
    }
}

#[test]
fn a_claim_changes_the_word_as_long_as_a_mark_is_missing() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let frame = contended(&memory, group, page);
    let word = || memory.frames().word(frame);
    let before = word().refs();
    for refs in before + 1..=MAX_REFS {
        let held = claim(&memory, page, frame, Access::Copy);
        assert_eq!((word().refs(), word().pins()), (refs, 0));
        assert!(!give_up(&memory, frame, held));
    }
    let held = claim(&memory, page, frame, Access::Pin);
    assert!(word().has(flag::YOUNG));
    let seen = word();
    for access in [Access::Copy, Access::Pin, Access::Prefetch] {
        let another = claim(&memory, page, frame, access);
        give_up(&memory, frame, another);
    }
    assert_eq!(word(), seen);
    assert_eq!(memory.claims().nr_on(frame), 1);
    give_up(&memory, frame, held);
    assert_eq!(memory.claims().nr_on(frame), 0);
    memory.check();
}

/// Pins a page and drops it; whether a claim had it.
fn hit(memory: &Memory, cpu: u32, page: PageKey) -> bool {
    let cpu = Cpu::new(cpu);
    let (found, claim) = hold(memory, cpu, page, Access::Copy);
    let Found::Pinned(frame) = found else {
        panic!("it is resident: {found:?}")
    };
    let mut effects = Effects::new();
    match claim {
        Some(claim) => memory.give_up(cpu, (frame, claim), &mut effects),
        None => memory.unpin(cpu, frame, &mut effects),
    }
    claim.is_some()
}

#[test]
fn a_page_that_goes_from_cpu_to_cpu_is_claimed_after_as_many_moves_as_there_are_lines() {
    for nr_cpus in [1, 2, 8, 9, 100] {
        let memory = Memory::try_new(Config::for_resident(2, nr_cpus, Policy::Fifo)).unwrap();
        let group = memory.groups().root();
        let file = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
        let page = key(file, 0);
        touch(&memory, group, page);
        assert!(!(0..1000).any(|_| hit(&memory, 1, page)), "one CPU");
        let mut cpu = 0;
        let mut is_claimed = || {
            cpu = 1 - cpu;
            hit(&memory, cpu, page)
        };
        assert!(!is_claimed());
        for _ in 0..2 {
            assert!(!(0..nr_cpus.max(8)).any(|_| is_claimed()), "{nr_cpus} CPUs");
            assert!((0..1000).all(|_| is_claimed()), "{nr_cpus} CPUs");
            // Somebody changes it, and it is pinned again.
            let mut effects = Effects::new();
            let Latched::Held(frame) = latch(&memory, page) else {
                panic!("nobody has it")
            };
            memory.unlatch(CPU, frame, false, &mut effects);
        }
        memory.check();
    }
}

#[test]
fn what_a_frame_knows_of_cpus_goes_with_its_page() {
    let (memory, group, file) = memory(1, Policy::Fifo);
    for page in (0..100).map(|page| key(file, page)) {
        touch(&memory, group, page);
        assert!(!(0..8).any(|cpu| hit(&memory, cpu % 2, page)));
    }
    memory.check();
}

#[test]
fn a_claimed_page_is_not_evicted() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(8, policy);
        let page = key(file, 0);
        let frame = contended(&memory, group, page);
        let held = claim(&memory, page, frame, Access::Copy);
        for other in 1..8 {
            touch(&memory, group, key(file, other));
        }
        // A batch may find this page and no other.
        let reclaim = || memory.reclaim(CPU, group, 1);
        while reclaim() + reclaim() > 0 {}
        assert_eq!(memory.nr_resident(file), 1, "{policy:?}");
        assert_eq!(memory.frames().key(frame), Some(page), "{policy:?}");
        let pins = memory.pinned(group).map(|pinned| pinned.pins);
        assert_eq!(pins.sum::<u32>(), 1);
        memory.check();
        give_up(&memory, frame, held);
        assert_eq!(memory.pinned(group).count(), 0);
        while memory.reclaim(CPU, group, 1) > 0 {}
        assert!(!memory.is_resident(page), "{policy:?}");
        memory.check();
    }
}

/// Of two pages that were read as often, the one that nobody claims.
fn goes_before_a_request_is_refused(policy: Policy, nr_reads: u8) {
    let (memory, group, file) = memory(8, policy);
    let [page, other] = [0, 1].map(|page| key(file, page));
    let frame = contended(&memory, group, page);
    touch(&memory, group, other);
    for page in [other, page].repeat(nr_reads.into()) {
        touch(&memory, group, page);
    }
    let held = claim(&memory, page, frame, Access::Copy);
    let buf = || memory.alloc_buf(CPU.into(), group, Order::ZERO);
    while buf().is_ok() {}
    assert!(!memory.is_resident(other), "{policy:?}, {nr_reads} reads");
    assert_eq!(memory.frames().key(frame), Some(page), "{policy:?}");
    give_up(&memory, frame, held);
    memory.check();
}

#[test]
fn what_is_claimed_does_not_keep_the_rest_from_going() {
    for &policy in Policy::ALL {
        (0..8).for_each(|nr_reads| goes_before_a_request_is_refused(policy, nr_reads));
    }
}

#[test]
fn a_latch_waits_for_claims_as_for_pins() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let frame = contended(&memory, group, page);
    let [first, second] = [(); 2].map(|()| claim(&memory, page, frame, Access::Copy));
    let mut effects = Effects::new();
    let Latched::Busy { version, .. } = latch(&memory, page) else {
        panic!("it is claimed")
    };
    assert!(effects.pop().is_none());
    assert!(memory.is_held(frame, version));
    assert_eq!(memory.frames().word(frame).pins(), 2);
    let (found, _) = hold(&memory, CPU, page, Access::Copy);
    assert_eq!(found, Found::Latched(frame));
    assert!(!give_up(&memory, frame, second));
    assert!(give_up(&memory, frame, first), "the writer is woken");
    assert!(!memory.is_held(frame, version));
    assert_eq!(latch(&memory, page), Latched::Held(frame));
    memory.unlatch(CPU, frame, true, &mut effects);
    effects.pop();
    // Unclaimed, it is latched at once.
    memory.contend(page);
    assert_eq!(latch(&memory, page), Latched::Held(frame));
    memory.unlatch(CPU, frame, false, &mut effects);
    assert!(effects.pop().is_none());
    memory.check();
}

#[test]
fn a_claimed_page_that_leaves_its_file_goes_with_the_claim() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let frame = contended(&memory, group, page);
    let held = claim(&memory, page, frame, Access::Pin);
    let mut effects = Effects::new();
    memory.discard_page(CPU, page, &mut effects);
    assert_eq!(memory.frames().word(frame).state(), State::Detached);
    assert_eq!(memory.stats().nr_used, 1);
    memory.check();
    give_up(&memory, frame, held);
    assert_eq!(memory.stats().nr_used, 0);
    memory.check();
}

#[test]
fn a_claim_becomes_a_pin_and_the_latch_where_it_is_the_only_one() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let frame = contended(&memory, group, page);
    let [mine, other] = [(); 2].map(|()| claim(&memory, page, frame, Access::Pin));
    let mut effects = Effects::new();
    assert!(memory.keep(CPU, (frame, mine), &mut effects));
    assert!(!memory.upgrade(frame), "claimed by another one");
    give_up(&memory, frame, other);
    assert!(memory.upgrade(frame));
    memory.unlatch(CPU, frame, false, &mut effects);
    memory.check();
}

#[test]
fn a_claimed_page_is_not_moved() {
    let (memory, group, file) = memory(2048, Policy::Fifo);
    let page = key(file, 0);
    let frame = contended(&memory, group, page);
    let held = claim(&memory, page, frame, Access::Copy);
    let mut effects = Effects::new();
    let mut op = PageIn::longterm(page, group);
    let step = op.step(&memory, CPU.into(), &mut effects);
    assert!(
        matches!(step, Ok(Step::Done(done)) if done == frame),
        "{step:?}"
    );
    memory.unpin(CPU, frame, &mut effects);
    give_up(&memory, frame, held);
    assert_eq!(memory.frames().word(frame).pins(), 0);
    memory.check();
}

#[test]
fn claims_on_pages_of_a_file_that_is_closed_are_pins_afterwards() {
    let (memory, group, file) = memory(300, Policy::Fifo);
    let frames: Vec<Frame> = (0..200)
        .map(|page| contended(&memory, group, key(file, page)))
        .collect();
    // Of the first and the last that are looked for together, and among those of which none is.
    let claimed = [0, 1, 63, 64, 130, 199].map(|page| {
        let frame = frames[usize::try_from(page).unwrap()];
        (frame, claim(&memory, key(file, page), frame, Access::Copy))
    });
    let mut nr_run = 0;
    memory.close_mapping(CPU, file, &mut |_| nr_run += 1);
    assert_eq!(nr_run, 200);
    assert_eq!(memory.claims().frames().count(), 0);
    for (frame, held) in claimed {
        let word = memory.frames().word(frame);
        assert_eq!((word.state(), word.pins()), (State::Detached, 1));
        give_up(&memory, frame, held);
    }
    assert_eq!(memory.stats().nr_used, 0);
    memory.check();
}

#[test]
fn views_leave_claims_to_copies_and_beyond_them_pages_are_pinned() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let frame = contended(&memory, group, page);
    let views: Vec<Claim> = (0..8)
        .map(|_| claim(&memory, page, frame, Access::Pin))
        .collect();
    let mut effects = Effects::new();
    let (found, none) = hold(&memory, CPU, page, Access::Pin);
    assert_eq!((found, none), (Found::Pinned(frame), None));
    let copies: Vec<Claim> = (0..7)
        .map(|_| claim(&memory, page, frame, Access::Copy))
        .collect();
    let (_, none) = hold(&memory, CPU, page, Access::Copy);
    assert_eq!(none, None);
    assert_eq!(memory.frames().word(frame).pins(), 2);
    memory.unpin(CPU, frame, &mut effects);
    memory.unpin(CPU, frame, &mut effects);
    let all = views.into_iter().chain(copies);
    for held in all.map(|held| Claim::unpack(Claim::pack(Some(held))).unwrap()) {
        give_up(&memory, frame, held);
    }
    assert_eq!(memory.claims().frames().count(), 0);
    // A CPU beyond those that are known shares a line.
    let (_, shared) = hold(&memory, Cpu::new(65_000), page, Access::Copy);
    give_up(&memory, frame, shared.unwrap());
    let (_, none) = hold(&memory, Cpu::new(66_000), page, Access::Copy);
    assert_eq!(none, None);
    memory.unpin(CPU, frame, &mut effects);
    assert_eq!(Claims::bytes(3), 192);
    memory.check();
}
