//! Named cases of pages that are charged ahead, and of reads that end together.

use super::*;

/// Begins the read of a page from `here`; gives up waiting for it.
fn begin(memory: &Memory, here: Here<'_>, group: u32, key: PageKey) -> Io {
    let mut effects = Effects::new();
    let mut op = PageIn::missing(key, group, Access::Pin);
    let step = op.step(memory, here, &mut effects).unwrap();
    assert!(matches!(step, Step::Wait { .. }) && op.is_reading());
    let Some(Effect::Read(io)) = effects.pop() else {
        panic!("{key:?} is read by others");
    };
    op.abandon(memory, CPU, &mut effects);
    io
}

fn usage(memory: &Memory, group: u32) -> u64 {
    memory.groups().get(group).unwrap().usage()
}

/// As `usage`, with nothing in the stocks.
fn charged(memory: &Memory, group: u32) -> u64 {
    memory.groups().drain(group);
    usage(memory, group)
}

#[test]
fn requests_take_what_was_charged_ahead_and_the_rest_goes_back() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    let ahead = memory.charge_ahead(CPU.into(), group, 8);
    assert_eq!((ahead.nr_pages(), charged(&memory, group)), (8, 8));
    let here = Here::from(CPU).with_ahead(&ahead);
    let ios: Vec<Io> = (0..5)
        .map(|page| begin(&memory, here, group, key(file, page)))
        .collect();
    assert_eq!((ahead.nr_pages(), charged(&memory, group)), (3, 8));
    drop(ahead);
    assert_eq!(charged(&memory, group), 5);
    let record = memory.groups().get(group).unwrap();
    let counts = || (record.nr_reading(), record.count(Count::Pgmajfault));
    assert_eq!(counts(), (5, 5));
    let ended = ios.into_iter().map(|io| (io, Ok(())));
    memory.complete_many(CPU, ended, &mut |_| ());
    assert_eq!(counts(), (0, 5));
    memory.check();
}

#[test]
fn what_is_charged_ahead_hides_no_read() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    let record = memory.groups().get(group).unwrap();
    let other = begin(&memory, CPU.into(), group, key(file, 100));
    let ahead = memory.charge_ahead(CPU.into(), group, 8);
    let here = Here::from(CPU).with_ahead(&ahead);
    let first = begin(&memory, here, group, key(file, 0));
    let keys = [1, 2, 3].map(|page| key(file, page));
    let mut ended: Vec<Ended> = Vec::from([(first, Ok(()))]);
    let nr_begun = memory.begin_reads(here, (group, Access::Pin), &keys, &mut |op, io| {
        ended.push((io.unwrap(), Ok(())));
        op.abandon(&memory, CPU, &mut Effects::new());
    });
    assert_eq!(record.nr_reading(), 2 + nr_begun as u64);
    // They may end before whoever begins them has begun all.
    memory.complete_many(CPU, ended, &mut |_| ());
    assert_eq!(record.nr_reading(), 1);
    drop(ahead);
    assert_eq!(record.nr_reading(), 1);
    memory.complete(CPU, other, Ok(()), &mut Effects::new());
    memory.check();
}

#[test]
fn what_was_charged_ahead_is_for_its_group() {
    let (memory, group, file) = memory(64, Policy::Gated2q);
    let root = memory.groups().root();
    let other = memory.new_group(CPU.into(), root).unwrap();
    let ahead = memory.charge_ahead(CPU.into(), group, 4);
    let here = Here::from(CPU).with_ahead(&ahead);
    let io = begin(&memory, here, other, key(file, 1));
    assert_eq!(ahead.nr_pages(), 4);
    assert_eq!((charged(&memory, group), charged(&memory, other)), (4, 1));
    memory.complete(CPU, io, Ok(()), &mut Effects::new());
    drop(ahead);
    memory.check();
}

#[test]
fn what_has_no_room_together_is_charged_one_by_one() {
    let (memory, group, file) = memory(16, Policy::Gated2q);
    let pinned = have(&memory, group, key(file, 0), Ok(())).unwrap().0;
    for nr_pages in [16, 17, u32::MAX] {
        let ahead = memory.charge_ahead(CPU.into(), group, nr_pages);
        assert_eq!((ahead.nr_pages(), charged(&memory, group)), (0, 1));
        let here = Here::from(CPU).with_ahead(&ahead);
        let io = begin(&memory, here, group, key(file, nr_pages.into()));
        memory.complete(CPU, io, Err(5), &mut Effects::new());
    }
    memory.unpin(CPU, pinned, &mut Effects::new());
    memory.check();
}

#[test]
fn requests_do_not_reclaim_for_what_was_charged_ahead() {
    for &policy in Policy::ALL {
        let (memory, group, file) = memory(128, policy);
        (0..128).for_each(|page| _ = touch(&memory, group, key(file, page)));
        let ahead = memory.charge_ahead(CPU.into(), group, 96);
        assert_eq!(ahead.nr_pages(), 96);
        let stalls = memory.stats().allocstall;
        assert!(stalls > 0, "it was full");
        let here = Here::from(CPU).with_ahead(&ahead);
        let ios: Vec<Io> = (1000..1096)
            .map(|page| begin(&memory, here, group, key(file, page)))
            .collect();
        assert_eq!(memory.stats().allocstall, stalls, "{policy:?}");
        let ended = ios.into_iter().map(|io| (io, Ok(())));
        memory.complete_many(CPU, ended, &mut |_| ());
        drop(ahead);
        assert!(usage(&memory, group) <= 128);
        memory.check();
    }
}

#[test]
fn reads_that_end_together_go_to_their_own_groups_or_fail() {
    let (memory, group, file) = memory(200, Policy::Gated2q);
    let root = memory.groups().root();
    let other = memory.new_group(CPU.into(), root).unwrap();
    let here = Here::from(CPU);
    // More than are queued in one hold, of two groups by turns, and some that fail.
    let is_bad = |page: u64| page % 7 == 3;
    let of = |page: u64| if page % 16 < 11 { group } else { other };
    let ended = (0..150).map(|page| {
        let io = begin(&memory, here, of(page), key(file, page));
        let result = if is_bad(page) { Err(5) } else { Ok(()) };
        (io, result)
    });
    let ended: Vec<Ended> = ended.collect();
    let frames: Vec<Frame> = ended.iter().map(|(io, _)| io.frame()).collect();
    let mut woken = Vec::new();
    memory.complete_many(CPU, ended, &mut |frame| woken.push(frame));
    assert_eq!(woken, frames, "each is woken, in its turn");
    for (page, frame) in (0..).zip(frames) {
        let is_live = memory.is_resident(key(file, page));
        assert_eq!(is_live, !is_bad(page), "page {page}");
        if is_live {
            let word = memory.frames().word(frame);
            assert_eq!((word.state(), word.pins()), (State::Live, 0));
            assert_eq!(memory.frames().group(frame), of(page));
        }
    }
    for group in [group, other] {
        let record = memory.groups().get(group).unwrap();
        assert_eq!(record.nr_reading(), 0);
        let nr_live = (0..150).filter(|&page| of(page) == group && !is_bad(page));
        assert_eq!(charged(&memory, group), nr_live.count() as u64);
    }
    memory.check();
}

/// As seen by whoever comes between.
#[test]
fn pages_that_are_not_being_read_any_more_can_go_and_their_group_with_them() {
    let (memory, root_group, file) = memory(64, Policy::Gated2q);
    let group = memory.new_group(CPU.into(), root_group).unwrap();
    let ended = (0..20).map(|page| (begin(&memory, CPU.into(), group, key(file, page)), Ok(())));
    let ended: Vec<Ended> = ended.collect();
    memory.drop_group(CPU, group);
    assert_eq!(memory.groups().get(group).unwrap().nr_reading(), 20);
    let mut nr_freed = Vec::new();
    memory.complete_many(CPU, ended, &mut |_| {
        let reading = memory.groups().get(group).map_or(0, Group::nr_reading);
        assert_eq!(reading, 0);
        nr_freed.push(memory.reclaim(CPU, root_group, 64));
        memory.tick(CPU, 0);
        assert!(memory.groups().get(group).is_none());
    });
    assert_eq!((nr_freed.len(), nr_freed[0]), (20, 20));
    memory.check();
}

/// As seen by whoever comes between: a page that is not being read any more has no frame.
#[test]
fn pages_whose_reads_failed_go_before_they_are_not_being_read() {
    let (memory, root_group, file) = memory(64, Policy::Gated2q);
    let group = memory.new_group(CPU.into(), root_group).unwrap();
    let ended = (0..20).map(|page| (begin(&memory, CPU.into(), group, key(file, page)), Err(5)));
    let ended: Vec<Ended> = ended.collect();
    memory.drop_group(CPU, group);
    let mut nr_woken = 0;
    memory.complete_many(CPU, ended, &mut |_| {
        nr_woken += 1;
        let record = memory.groups().get(group);
        let left = record.map_or((0, 0), |record| (record.usage(), record.nr_reading()));
        assert_eq!(left, (0, 0));
        memory.tick(CPU, 0);
        assert!(memory.groups().get(group).is_none());
    });
    assert_eq!(nr_woken, 20);
    memory.check();
}

#[test]
fn what_a_batch_brings_back_counts_as_each_of_it_would() {
    let counts = |is_batch: bool| {
        let (memory, group, file) = memory(64, Policy::Gated2q);
        (0..200).for_each(|page| _ = touch(&memory, group, key(file, page)));
        for first in [100, 120, 60, 100, 180] {
            let here = Here::from(CPU);
            let pages = first..first + 12;
            let missing = pages.filter(|&page| !memory.is_resident(key(file, page)));
            let ios: Vec<Io> = missing
                .map(|page| begin(&memory, here, group, key(file, page)))
                .collect();
            let ended = ios.into_iter().map(|io| (io, Ok(())));
            if is_batch {
                memory.complete_many(CPU, ended, &mut |_| ());
            } else {
                for (io, result) in ended {
                    memory.complete(CPU, io, result, &mut Effects::new());
                }
            }
        }
        memory.check();
        workingset_counts(&memory, group)
    };
    let [refaults, activated, _] = counts(true);
    assert!(refaults > 0 && activated > 0);
    assert_eq!(counts(true), counts(false));
}
