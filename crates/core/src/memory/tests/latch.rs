//! Named cases of latches, and of pages that are found by their number to be written.

use super::*;
use crate::frame::flag;
use crate::page_cache;

fn unlatch(memory: &Memory, frame: Frame, is_dirty: bool) -> bool {
    let mut effects = Effects::new();
    memory.unlatch(CPU, frame, is_dirty, &mut effects);
    matches!(effects.pop(), Some(Effect::Wake(woken)) if woken == frame)
}

fn unpin(memory: &Memory, frame: Frame) -> bool {
    let mut effects = Effects::new();
    memory.unpin(CPU, frame, &mut effects);
    matches!(effects.pop(), Some(Effect::Wake(woken)) if woken == frame)
}

#[test]
fn a_latch_keeps_pins_writes_and_eviction_out() {
    let (memory, group, file) = memory(1, Policy::Fifo);
    let page = key(file, 0);
    assert_eq!(latch(&memory, page), Latched::Miss);
    assert!(touch(&memory, group, page));
    let Latched::Held(frame) = latch(&memory, page) else {
        panic!("nobody has it pinned");
    };
    assert_eq!(pin(&memory, page, Access::Pin), Found::Latched(frame));
    assert_eq!(memory.reclaim(CPU, group, 1), 0);
    assert!(matches!(
        memory.begin_page_write(page, None),
        PageWrite::Changing
    ));
    assert!(!memory.is_clean(page));
    let Latched::Busy { version, .. } = latch(&memory, page) else {
        panic!("a second latch");
    };
    assert!(memory.is_held(frame, version));
    assert!(unlatch(&memory, frame, true), "the other one waits");
    assert!(!memory.is_held(frame, version));
    assert_eq!(memory.stat(group).file_dirty, PAGE_BYTES as u64);
    assert_eq!(pin(&memory, page, Access::Pin), Found::Pinned(frame));
    unpin(&memory, frame);
    memory.check();
}

#[test]
fn who_changes_a_page_has_used_it_as_who_reads_it_and_only_where_he_gets_it() {
    let (memory, group, file) = memory(1, Policy::Gated2q);
    let page = key(file, 0);
    assert!(touch(&memory, group, page));
    let ask = |access| memory.latch(CPU, (page, access), |_| unreachable!("nobody interferes"));
    let change = |access| {
        let Latched::Held(frame) = ask(access) else {
            panic!("nobody has it pinned");
        };
        assert!(matches!(ask(Access::Pin), Latched::Busy { .. }));
        unlatch(&memory, frame, false);
        memory.frames().word(frame)
    };
    let refs = change(Access::Prefetch).refs();
    assert_eq!(change(Access::Copy).refs(), refs + 1);
    assert_eq!(change(Access::Prefetch).refs(), refs + 1);
    assert!(!change(Access::Prefetch).has(flag::YOUNG));
    assert!(change(Access::Pin).has(flag::YOUNG));
    memory.check();
}

/// Has the page pinned while somebody waits for its latch: its frame, and the version to wait for.
fn pinned_and_wanted(memory: &Memory, group: u32, page: PageKey) -> (Frame, u32) {
    let (frame, _) = have(memory, group, page, Ok(())).unwrap();
    let Latched::Busy { version, .. } = latch(memory, page) else {
        panic!("it is pinned");
    };
    assert!(memory.is_held(frame, version));
    (frame, version)
}

#[test]
fn who_waits_for_a_change_to_end_does_not_wait_for_a_wish_for_one() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let (frame, version) = pinned_and_wanted(&memory, group, page);
    let frames = memory.frames();
    assert_eq!(page_cache::await_latch(frames, frame), None);
    assert_eq!(page_cache::await_open(frames, frame), Some(version));
    unpin(&memory, frame);
    assert_eq!(latch(&memory, page), Latched::Held(frame));
    let version = frames.word(frame).version();
    assert_eq!(page_cache::await_latch(frames, frame), Some(version));
    assert_eq!(page_cache::await_open(frames, frame), Some(version));
    assert!(unlatch(&memory, frame, false));
    assert_eq!(page_cache::await_open(frames, frame), None);
    memory.check();
}

#[test]
fn who_waits_for_a_page_that_leaves_its_file_is_woken_though_it_stays_pinned() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let (frame, version) = pinned_and_wanted(&memory, group, page);
    let mut effects = Effects::new();
    let gone = memory.discard_page(CPU, page, &mut effects);
    assert!(matches!(gone, Discard::Gone));
    assert!(matches!(effects.pop(), Some(Effect::Wake(woken)) if woken == frame));
    assert!(!memory.is_held(frame, version), "nothing to wait for");
    unpin(&memory, frame);
    memory.check();
}

#[test]
fn who_waits_for_pins_lets_no_new_one_in_until_it_gives_up() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let (frame, version) = pinned_and_wanted(&memory, group, page);
    assert_eq!(pin(&memory, page, Access::Pin), Found::Latched(frame));
    // A reader that comes now waits for the version to change.
    let mut op = PageIn::new(page, group, Access::Copy);
    let step = op.step(&memory, CPU.into(), &mut Effects::new()).unwrap();
    assert!(matches!(step, Step::Wait { frame: found, version: seen }
        if found == frame && seen == version));
    let mut effects = Effects::new();
    memory.withdraw(frame, &mut effects);
    assert!(matches!(effects.pop(), Some(Effect::Wake(_))));
    assert_ne!(memory.frames().word(frame).version(), version);
    assert_eq!(pin(&memory, page, Access::Pin), Found::Pinned(frame));
    unpin(&memory, frame);
    let Latched::Busy { version, .. } = latch(&memory, page) else {
        panic!("it is pinned");
    };
    assert!(unpin(&memory, frame), "the last pin wakes");
    assert!(!memory.is_held(frame, version));
    assert_eq!(latch(&memory, page), Latched::Held(frame));
    unlatch(&memory, frame, false);
    assert!(memory.is_clean(page));
}

#[test]
fn a_mapping_that_is_held_keeps_its_number_when_it_is_closed() {
    let (memory, _, file) = memory(2, Policy::Fifo);
    assert!(memory.hold_mapping(file));
    memory.close_mapping(CPU, file, &mut |_| ());
    assert!(memory.has_mapping(file) && !memory.hold_mapping(file));
    let other = memory.open_mapping(CPU.into(), Order::ZERO).unwrap();
    assert_ne!(key(file, 0), key(other, 0));
    memory.release_mapping(file);
    assert!(!memory.has_mapping(file) && !memory.hold_mapping(file));
}

#[test]
fn a_latch_becomes_a_pin_that_nobody_gets_between() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let (frame, _) = have(&memory, group, page, Ok(())).unwrap();
    assert!(memory.await_unlatched(page).is_none());
    assert!(memory.upgrade(frame));
    let (found, version) = memory.await_unlatched(page).unwrap();
    assert_eq!(found, frame);
    let mut effects = Effects::new();
    memory.downgrade(frame, true, &mut effects);
    assert!(matches!(effects.pop(), Some(Effect::Wake(_))));
    let word = memory.frames().word(frame);
    assert_ne!(word.version(), version);
    assert!(word.pins() == 1 && word.has(flag::DIRTY), "{word:?}");
    assert!(memory.await_unlatched(page).is_none());
    assert_eq!(pin(&memory, page, Access::Pin), Found::Pinned(frame));
    unpin(&memory, frame);
    assert!(matches!(latch(&memory, page), Latched::Busy { .. }));
    assert!(unpin(&memory, frame), "who wants the latch is woken");
    assert_eq!(memory.stat(group).file_dirty, PAGE_BYTES as u64);
    memory.check();
}

#[test]
fn the_only_pin_becomes_the_latch() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let (frame, _) = have(&memory, group, page, Ok(())).unwrap();
    have(&memory, group, page, Ok(())).unwrap();
    assert!(!memory.upgrade(frame), "two pins");
    unpin(&memory, frame);
    assert!(memory.upgrade(frame) && !memory.upgrade(frame));
    unlatch(&memory, frame, true);
    let PageWrite::Begun(write) = memory.begin_page_write(page, None) else {
        panic!("it is dirty");
    };
    assert!(matches!(
        memory.begin_page_write(page, None),
        PageWrite::Wait { .. }
    ));
    // Readers go on while it is written, writers wait.
    assert_eq!(pin(&memory, page, Access::Pin), Found::Pinned(frame));
    assert!(!memory.upgrade(frame));
    unpin(&memory, frame);
    assert!(matches!(latch(&memory, page), Latched::Busy { .. }));
    assert_eq!(pin(&memory, page, Access::Pin), Found::Pinned(frame));
    unpin(&memory, frame);
    memory.complete_write(CPU, write, Ok(()), &mut Effects::new());
    assert!(memory.is_clean(page));
}

#[test]
fn a_latched_page_that_left_its_file_stays_clean_and_goes() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    assert!(touch(&memory, group, key(file, 0)));
    let Latched::Held(frame) = latch(&memory, key(file, 0)) else {
        panic!("nobody has it pinned");
    };
    memory.close_mapping(CPU, file, &mut |_| ());
    assert_eq!(memory.stats().nr_used, 1);
    unlatch(&memory, frame, true);
    assert_eq!(memory.stats().nr_used, 0);
    assert_eq!(memory.stat(group).file_dirty, 0);
}

#[test]
fn a_page_that_is_filled_instead_of_read_is_dirty_when_it_is_live() {
    let (memory, group, file) = memory(2, Policy::Fifo);
    let page = key(file, 0);
    let mut effects = Effects::new();
    let mut op = PageIn::new(page, group, Access::Pin);
    let _wait = op.step(&memory, CPU.into(), &mut effects).unwrap();
    let Some(Effect::Read(io)) = effects.pop() else {
        panic!("it is not resident");
    };
    memory.set_dirty_early(&io);
    assert!(matches!(
        memory.begin_page_write(page, None),
        PageWrite::Wait { .. }
    ));
    memory.complete(CPU, io, Ok(()), &mut effects);
    while effects.pop().is_some() {}
    let Step::Done(frame) = op.step(&memory, CPU.into(), &mut effects).unwrap() else {
        panic!("it is there");
    };
    assert!(memory.frames().word(frame).has(flag::DIRTY));
    assert_eq!(memory.stat(group).file_dirty, PAGE_BYTES as u64);
    unpin(&memory, frame);
    assert_eq!(memory.reclaim(CPU, group, 1), 0);
    // Pages of other groups are left to others.
    let other = memory
        .new_group(CPU.into(), memory.groups().root())
        .unwrap();
    assert!(matches!(
        memory.begin_page_write(page, Some(&[other])),
        PageWrite::Changing
    ));
    let PageWrite::Begun(write) = memory.begin_page_write(page, Some(&[group])) else {
        panic!("it is dirty");
    };
    memory.complete_write(CPU, write, Ok(()), &mut effects);
}

#[test]
fn pages_are_found_and_dropped_by_their_numbers() {
    let (memory, group, file) = memory(200, Policy::Fifo);
    (0..150).for_each(|page| assert!(touch(&memory, group, key(file, page * 3))));
    let numbers = || {
        let mut numbers = Vec::new();
        memory.resident_pages(file, &mut |page| numbers.push(page));
        numbers.sort_unstable();
        numbers
    };
    let all: Vec<u64> = (0..150).map(|page| page * 3).collect();
    assert_eq!(numbers(), all);
    assert_eq!(numbers(), all, "again");
    let discard = |page| memory.discard_page(CPU, key(file, page), &mut Effects::new());
    assert_eq!(discard(1), Discard::Gone, "never there");
    let (frame, _) = have(&memory, group, key(file, 3), Ok(())).unwrap();
    memory.set_dirty(frame);
    let write = memory.begin_write(frame).unwrap();
    assert!(
        matches!(discard(3), Discard::Wait { .. }),
        "it is being written"
    );
    memory.complete_write(CPU, write, Err(5), &mut Effects::new());
    assert_eq!(discard(3), Discard::Gone);
    assert_eq!(memory.frames().word(frame).state(), State::Detached);
    assert_eq!(memory.stat(group).file_dirty, 0);
    unpin(&memory, frame);
    let Latched::Held(frame) = latch(&memory, key(file, 6)) else {
        panic!("nobody has it pinned");
    };
    assert!(
        matches!(discard(6), Discard::Wait { .. }),
        "it is being changed"
    );
    assert!(unlatch(&memory, frame, true));
    assert_eq!(discard(6), Discard::Gone);
    assert_eq!(numbers().len(), 148);
    assert_eq!(memory.stats().nr_used, 148);
    memory.check();
}
