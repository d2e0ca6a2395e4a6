//! Named cases of reads that are begun together.

use super::*;
use crate::frame::flag;
use crate::memory::MAX_TOGETHER;

/// Begins the reads of pages together; returns of how many, and what became of each.
fn begin_all(
    memory: &Memory,
    here: Here<'_>,
    group: u32,
    keys: &[PageKey],
) -> (usize, Vec<(PageIn, Option<Io>)>) {
    let mut begun = Vec::new();
    let mut began = |op, io| begun.push((op, io));
    let nr_begun = memory.begin_reads(here, (group, Access::Pin), keys, &mut began);
    assert_eq!(nr_begun, begun.len());
    (nr_begun, begun)
}

/// Ends them, and gives up waiting for them. Returns their frames.
fn end_all(memory: &Memory, begun: Vec<(PageIn, Option<Io>)>) -> Vec<Frame> {
    let mut effects = Effects::new();
    let mut frames = Vec::new();
    for (mut op, io) in begun {
        let io = io.expect("nobody was faster");
        frames.push(io.frame());
        memory.complete(CPU, io, Ok(()), &mut effects);
        while effects.pop().is_some() {}
        let frame = op.take_live(memory).expect("its read has ended");
        memory.unpin(CPU, frame, &mut effects);
    }
    frames
}

fn keys(file: u32, pages: core::ops::Range<u64>) -> Vec<PageKey> {
    pages.map(|page| key(file, page)).collect()
}

/// As `memory`, where the group has had a page, and the CPU's cache has frames.
fn warm(nr_pages: u32) -> (Memory, u32, u32) {
    let (memory, group, file) = memory(nr_pages, Policy::Gated2q);
    (10_000..10_064).for_each(|page| _ = touch(&memory, group, key(file, page)));
    while memory.reclaim(CPU, group, 64) > 0 {}
    touch(&memory, group, key(file, 9999));
    (memory, group, file)
}

#[test]
fn reads_begun_together_are_as_if_each_was_begun_alone() {
    // What is there afterwards, of pages that come back, too.
    let states = |is_together: bool| {
        let (memory, group, file) = warm(64);
        (0..200).for_each(|page| _ = touch(&memory, group, key(file, page)));
        for first in [100, 120, 60, 100, 180] {
            let pages = first..first + 12;
            let missing = pages.filter(|&page| !memory.is_resident(key(file, page)));
            let keys: Vec<PageKey> = missing.map(|page| key(file, page)).collect();
            let nr_pages = u32::try_from(keys.len()).unwrap();
            let ahead = memory.charge_ahead(CPU.into(), group, nr_pages);
            let here = Here::from(CPU).with_ahead(&ahead);
            let mut left = &keys[..];
            while let Some(&key) = left.first() {
                let nr_begun = match is_together {
                    true => {
                        let (nr_begun, begun) = begin_all(&memory, here, group, left);
                        end_all(&memory, begun);
                        nr_begun
                    }
                    false => 0,
                };
                if nr_begun > 0 {
                    left = &left[nr_begun..];
                    continue;
                }
                let mut effects = Effects::new();
                let mut op = PageIn::missing(key, group, Access::Pin);
                assert!(op.step(&memory, here, &mut effects).is_ok());
                let Some(Effect::Read(io)) = effects.pop() else {
                    panic!("{key:?} is read by others");
                };
                end_all(&memory, [(op, Some(io))].into());
                left = &left[1..];
            }
            drop(ahead);
        }
        memory.check();
        let resident: Vec<bool> = keys(file, 0..200)
            .into_iter()
            .map(|key| memory.is_resident(key))
            .collect();
        (workingset_counts(&memory, group), resident)
    };
    let (counts, resident) = states(true);
    assert!(counts.iter().all(|&count| count > 0));
    assert_eq!((counts, resident), states(false));
}

#[test]
fn reads_begun_together_take_what_was_charged() {
    let (memory, group, file) = warm(4096);
    let record = memory.groups().get(group).unwrap();
    let (faults, pages) = (record.count(Count::Pgmajfault), keys(file, 0..100));
    let ahead = memory.charge_ahead(CPU.into(), group, 40);
    let here = Here::from(CPU).with_ahead(&ahead);
    let mut begun = Vec::new();
    while begun.len() < 40 {
        let (nr_begun, more) = begin_all(&memory, here, group, &pages[begun.len()..]);
        assert!(nr_begun > 0 && nr_begun <= MAX_TOGETHER, "{nr_begun}");
        begun.extend(more);
    }
    // No more were charged.
    assert_eq!((begun.len(), ahead.nr_pages()), (40, 0));
    assert_eq!(begin_all(&memory, here, group, &pages[40..]).0, 0);
    drop(ahead);
    assert_eq!(record.nr_reading(), 40);
    assert_eq!(record.count(Count::Pgmajfault) - faults, 40);
    let found = (0..).zip(end_all(&memory, begun));
    for (page, frame) in found {
        let word = memory.frames().word(frame);
        assert_eq!((word.state(), word.pins()), (State::Live, 0));
        assert_eq!(memory.frames().key(frame), Some(key(file, page)));
        assert!(word.generation() > 0 && memory.frames().group(frame) == group);
    }
    assert_eq!(memory.mappings.get(file).unwrap().nr_pages(), 41);
    memory.groups().drain(group);
    assert_eq!(record.usage(), 41);
    memory.check();
}

#[test]
fn who_was_faster_keeps_the_page_and_the_frame_goes_back() {
    let (memory, group, file) = warm(4096);
    touch(&memory, group, key(file, 2));
    let ahead = memory.charge_ahead(CPU.into(), group, 4);
    let here = Here::from(CPU).with_ahead(&ahead);
    let (nr_begun, mut begun) = begin_all(&memory, here, group, &keys(file, 0..4));
    drop(ahead);
    assert_eq!(nr_begun, 4);
    let (mut op, io) = begun.remove(2);
    assert!(io.is_none() && !op.is_reading());
    let step = op.step(&memory, CPU.into(), &mut Effects::new());
    let Ok(Step::Done(frame)) = step else {
        panic!("{step:?}");
    };
    memory.unpin(CPU, frame, &mut Effects::new());
    assert_eq!(memory.groups().get(group).unwrap().nr_reading(), 3);
    end_all(&memory, begun);
    memory.groups().drain(group);
    assert_eq!(memory.groups().get(group).unwrap().usage(), 5);
    memory.check();
}

#[test]
fn neighbours_come_to_frames_that_ascend() {
    let (memory, group, file) = warm(4096);
    let ahead = memory.charge_ahead(CPU.into(), group, 16);
    let here = Here::from(CPU).with_ahead(&ahead);
    let (nr_begun, begun) = begin_all(&memory, here, group, &keys(file, 0..16));
    drop(ahead);
    let frames = end_all(&memory, begun);
    assert!(nr_begun > 4 && frames.is_sorted(), "{frames:?}");
}

#[test]
fn a_page_that_is_named_twice_is_read_once() {
    let (memory, group, file) = warm(4096);
    let ahead = memory.charge_ahead(CPU.into(), group, 4);
    let here = Here::from(CPU).with_ahead(&ahead);
    let pages = [0, 1, 0, 2].map(|page| key(file, page));
    let (nr_begun, mut begun) = begin_all(&memory, here, group, &pages);
    drop(ahead);
    assert_eq!(nr_begun, 4);
    let (mut again, io) = begun.remove(2);
    assert!(io.is_none());
    let step = again.step(&memory, CPU.into(), &mut Effects::new());
    assert!(matches!(step, Ok(Step::Wait { .. })) && again.is_reading());
    assert_eq!(memory.groups().get(group).unwrap().nr_reading(), 3);
    let frames = end_all(&memory, begun);
    assert_eq!(again.take_live(&memory), Some(frames[0]));
    memory.unpin(CPU, frames[0], &mut Effects::new());
    memory.groups().drain(group);
    assert_eq!(memory.groups().get(group).unwrap().usage(), 4);
    memory.check();
}

#[test]
fn reads_are_begun_one_by_one_where_more_is_to_be_done() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    let pages = keys(file, 0..4);
    // Nothing was charged ahead.
    assert_eq!(begin_all(&memory, CPU.into(), group, &pages).0, 0);
    let ahead = memory.charge_ahead(CPU.into(), group, 4);
    let here = Here::from(CPU).with_ahead(&ahead);
    // The group has no lruvec yet.
    assert_eq!(begin_all(&memory, here, group, &pages).0, 0);
    let root = memory.groups().root();
    assert_eq!(begin_all(&memory, here, root, &pages).0, 0, "another group");
    drop(ahead);
    touch(&memory, group, key(file, 9));
    memory.drain();
    let ahead = memory.charge_ahead(CPU.into(), group, 4);
    let here = Here::from(CPU).with_ahead(&ahead);
    // The CPU's cache has no frame.
    assert_eq!(begin_all(&memory, here, group, &pages).0, 0);
    assert_eq!(ahead.nr_pages(), 4);
    drop(ahead);
    memory.check();
}

#[test]
fn pages_that_should_not_have_gone_are_marked() {
    let (memory, group, file) = warm(64);
    // Nothing is protected: whatever comes back should not have gone.
    (0..80).for_each(|page| _ = touch(&memory, group, key(file, page)));
    let missing = keys(file, 0..80);
    let missing = missing.into_iter().filter(|&key| !memory.is_resident(key));
    let missing: Vec<PageKey> = missing.collect();
    let nr_pages = u32::try_from(missing.len()).unwrap();
    let is_marked = |frame| memory.frames().word(frame).has(flag::WORKINGSET);
    let ahead = memory.charge_ahead(CPU.into(), group, nr_pages);
    let here = Here::from(CPU).with_ahead(&ahead);
    let mut op = PageIn::missing(missing[0], group, Access::Pin);
    let mut effects = Effects::new();
    assert!(op.step(&memory, here, &mut effects).is_ok());
    let Some(Effect::Read(io)) = effects.pop() else {
        panic!("it was missing");
    };
    assert!(is_marked(io.frame()), "alone");
    let (nr_begun, begun) = begin_all(&memory, here, group, &missing[1..]);
    assert!(nr_begun > 0);
    let read = begun.iter().flat_map(|(_, io)| io);
    assert!(read.clone().any(|io| is_marked(io.frame())), "together");
    drop(ahead);
    end_all(&memory, [(op, Some(io))].into());
    end_all(&memory, begun);
    memory.check();
}
