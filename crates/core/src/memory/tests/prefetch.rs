//! Named cases of pages that come in before anybody looks at them.

use super::*;
use crate::frame::flag;

/// Brings a page in as nobody's; returns its frame, without a pin.
fn prefetch(memory: &Memory, group: u32, key: PageKey) -> Frame {
    let mut effects = Effects::new();
    let mut op = PageIn::new(key, group, Access::Prefetch);
    loop {
        if let Step::Done(frame) = op.step(memory, CPU.into(), &mut effects).unwrap() {
            memory.unpin(CPU, frame, &mut effects);
            return frame;
        }
        assert!(op.is_reading());
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                memory.complete(CPU, io, Ok(()), &mut effects);
            }
        }
    }
}

#[test]
fn a_prefetched_page_is_unread_and_nobodys_fault() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(64, policy);
        let page = key(file, 7);
        assert!(!memory.is_resident(page));
        let frame = prefetch(&memory, group, page);
        // Once more does not count either.
        assert_eq!(prefetch(&memory, group, page), frame);
        let word = memory.frames().word(frame);
        assert!(memory.is_resident(page) && word.pins() == 0 && !word.has(flag::YOUNG));
        let record = memory.groups().get(group).unwrap();
        assert_eq!(
            (record.count(Count::Pgmajfault), record.nr_reading()),
            (0, 0)
        );
        // The first read is no fault, and makes it a page that came in to be read.
        assert!(!touch(&memory, group, page));
        let (read, _) = have(&memory, group, key(file, 8), Ok(())).unwrap();
        memory.unpin(CPU, read, &mut Effects::new());
        let refs = [frame, read].map(|frame| memory.frames().word(frame).refs());
        assert!(word.refs() < refs[0] && refs[0] == refs[1], "{policy:?}");
        memory.check();
    }
}

#[test]
fn a_scan_of_prefetched_pages_that_are_pinned_once_protects_none() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    for page in 0..64 {
        (0..4).for_each(|_| _ = touch(&memory, group, key(file, page)));
    }
    // What is pinned once after a prefetch goes as what was pinned without one.
    for page in 1000..1400 {
        let frame = prefetch(&memory, group, key(file, page));
        let found = pin(&memory, key(file, page), Access::Pin);
        assert_eq!(found, Found::Pinned(frame));
        memory.unpin(CPU, frame, &mut Effects::new());
    }
    let is_left = |&page: &u64| memory.is_resident(key(file, page));
    let nr_left = (0..64).filter(is_left).count();
    assert!(nr_left > 40, "{nr_left}");
    memory.check();
}

#[test]
fn of_two_pages_the_one_that_was_used_again_stays() {
    for policy in [Policy::Mglru, Policy::TwoList] {
        let (memory, group, file) = memory(64, policy);
        (0..32).for_each(|page| _ = prefetch(&memory, group, key(file, page)));
        for page in 32..64 {
            (0..3).for_each(|_| _ = touch(&memory, group, key(file, page)));
        }
        (100..116).for_each(|page| _ = touch(&memory, group, key(file, page)));
        let left = |pages: core::ops::Range<u64>| {
            let is_left = |&page: &u64| memory.is_resident(key(file, page));
            pages.filter(is_left).count()
        };
        assert!(left(0..32) < left(32..64), "{policy:?}");
        assert_eq!(left(32..64), 32, "{policy:?}");
    }
}

#[test]
fn who_holds_a_pin_gets_another_while_a_writer_waits() {
    let (memory, group, file) = memory(64, Policy::Mglru);
    let page = key(file, 7);
    let (frame, _) = have(&memory, group, page, Ok(())).unwrap();
    let mut effects = Effects::new();
    let latched = latch(&memory, page);
    assert!(matches!(latched, Latched::Busy { .. }));
    let found = pin(&memory, page, Access::Pin);
    assert_eq!(found, Found::Latched(frame));
    let mut op = PageIn::new(page, group, Access::Pin);
    let step = op.step(&memory, CPU.into(), &mut effects).unwrap();
    assert!(matches!(step, Step::Wait { .. }) && !op.is_reading());
    assert!(memory.pin_again(frame));
    assert_eq!(memory.frames().word(frame).pins(), 2);
    (0..2).for_each(|_| memory.unpin(CPU, frame, &mut effects));
    while effects.pop().is_some() {}
    let latched = latch(&memory, page);
    assert_eq!(latched, Latched::Held(frame));
    memory.unlatch(CPU, frame, false, &mut effects);
    memory.check();
}

#[test]
fn what_is_read_ahead_goes_where_nothing_else_can() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(64, policy);
        let pinned = (0..20).map(|page| have(&memory, group, key(file, page), Ok(())).unwrap().0);
        let pinned: Vec<Frame> = pinned.collect();
        (100..110).for_each(|page| _ = prefetch(&memory, group, key(file, page)));
        let nr_freed = (0..10).map(|_| memory.reclaim(CPU, group, 1)).sum::<u32>();
        assert_eq!(nr_freed, 10, "{policy:?}");
        let mut effects = Effects::new();
        pinned
            .into_iter()
            .for_each(|frame| memory.unpin(CPU, frame, &mut effects));
        memory.check();
    }
}

#[test]
fn what_is_read_ahead_waits_for_its_reader_and_not_for_ever() {
    let (memory, group, file) = memory(96, Policy::Gated2q);
    // A ring of pages that are used, and probation at its target: a tenth.
    for page in 0..96 {
        (0..4).for_each(|_| _ = touch(&memory, group, key(file, page)));
    }
    (1000..1100).for_each(|page| _ = touch(&memory, group, key(file, page)));
    // An eighth of the size, and only then the reader.
    for window in 0..20 {
        let pages = 2000 + window * 12..2012 + window * 12;
        pages
            .clone()
            .for_each(|page| _ = prefetch(&memory, group, key(file, page)));
        let missed = pages.filter(|&page| touch(&memory, group, key(file, page)));
        assert_eq!(missed.count(), 0, "window {window}");
    }
    // Nobody comes for these.
    (3000..3096).for_each(|page| _ = prefetch(&memory, group, key(file, page)));
    let left = (0..96).filter(|&page| memory.is_resident(key(file, page)));
    assert!(left.count() > 48, "pages in use are not lost for them");
    memory.check();
}

#[test]
fn what_was_read_ahead_goes_where_everything_else_is_pinned() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(64, policy);
        let pinned: Vec<Frame> = (0..60)
            .map(|page| have(&memory, group, key(file, page), Ok(())).unwrap().0)
            .collect();
        (100..104).for_each(|page| _ = prefetch(&memory, group, key(file, page)));
        for page in 60..64 {
            let had = have(&memory, group, key(file, page), Ok(()));
            let (frame, _) = had.unwrap_or_else(|error| panic!("{policy:?}: {error:?}"));
            memory.unpin(CPU, frame, &mut Effects::new());
        }
        for frame in pinned {
            memory.unpin(CPU, frame, &mut Effects::new());
        }
        memory.check();
    }
}
