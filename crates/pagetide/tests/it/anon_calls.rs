//! What can be done with files can be done with anon pages: permits, tries, futures.

use crate::anon::{PAGE, builder_on, check, content, tenant, write};
use crate::callers::Unwinding;
use crate::disk::{Disk, EIO, Fault};
use pagetide::{Anon, ByteSize, Error, Group, Memory, Order, Policy};
use std::future::Future;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

const NR_PAGES: u64 = 200;

/// A region of which a part only is in memory.
fn swapped() -> (Disk, Memory, Group, Anon) {
    let disk = Disk::default();
    let memory = builder_on(&disk, ByteSize::mib(4)).build().unwrap();
    let group = tenant(&memory, 64);
    let region = group.anon(NR_PAGES).unwrap();
    for page in 0..NR_PAGES - 10 {
        write(&region, page, 1);
    }
    (disk, memory, group, region)
}

#[test]
fn permits_count_the_pages_of_regions() {
    let (_disk, _memory, group, region) = swapped();
    group.set_pin_max(Some(ByteSize(4 * PAGE)));
    let permit = group.pin_permit(4).unwrap();
    assert!(matches!(region.pin(0), Err(Error::PinLimit { .. })));
    let pinned = permit.pin_many(&region, &[3, 100]).unwrap();
    assert!(*pinned[0] == content(3, 1) && *pinned[1] == content(100, 1));
    permit.pin_mut(&region, 5).unwrap()[..].copy_from_slice(&content(5, 2));
    permit.pin_new(&region, 6).unwrap()[..].copy_from_slice(&content(6, 2));
    let last = permit.pin(&region, 7).unwrap();
    let more = permit.pin_many(&region, &[8, 9]);
    assert!(matches!(more, Err(Error::PermitSpent { .. })));
    // A region does not grow.
    let behind = permit.pin_new(&region, NR_PAGES);
    assert!(matches!(behind, Err(Error::PastEnd { .. })));
    assert_eq!(region.nr_pages(), NR_PAGES);
    drop((pinned, last));
    assert_eq!(permit.pin_many(&region, &[8, 9, 10, 11]).unwrap().len(), 4);
    drop(permit);
    assert_eq!(group.pin_usage(), ByteSize(0));
    check(&region, 5, 2);
    check(&region, 6, 2);
}

#[test]
fn tries_find_what_is_there_and_read_nothing() {
    let (_disk, memory, _group, region) = swapped();
    let nr_read = || memory.stats().pswpin;
    let before = nr_read();
    let mut nr_found = 0;
    for page in 0..NR_PAGES {
        if let Some(found) = region.try_pin(page).unwrap() {
            assert!(*found == content(page, 1));
            nr_found += 1;
        }
        if let Some(mut found) = region.try_pin_mut(page).unwrap() {
            found.copy_from_slice(&content(page, 2));
        }
    }
    assert!((1..=64).contains(&nr_found), "{nr_found}");
    assert_eq!(nr_read(), before);
    // One that was never written is there once somebody looked, and cannot be changed at once.
    let last = NR_PAGES - 1;
    assert!(region.try_pin(last).unwrap().is_none());
    drop(region.pin(last).unwrap());
    assert!(region.try_pin(last).unwrap().is_some());
    assert!(region.try_pin_mut(last).unwrap().is_none());
    region.pin_mut(last).unwrap()[0] = 1;
    let mut again = region.try_pin_mut(last).unwrap().unwrap();
    assert!(region.try_pin(last).unwrap().is_none(), "somebody has it");
    again[0] = 2;
    drop(again);
    assert_eq!(region.pin(last).unwrap()[0], 2);
    let across = region.write_at(&[1; 8192], last * 4096);
    assert!(matches!(across, Err(Error::PastEnd { page: NR_PAGES, .. })));
    for behind in [NR_PAGES, u64::MAX] {
        assert!(matches!(region.try_pin(behind), Err(Error::PastEnd { .. })));
        assert!(matches!(
            region.try_pin_mut(behind),
            Err(Error::PastEnd { .. })
        ));
    }
    let nr_changed = (0..NR_PAGES - 10).filter(|&page| {
        let page_has = region.pin(page).unwrap();
        let is_changed = *page_has == content(page, 2);
        assert!(is_changed || *page_has == content(page, 1));
        is_changed
    });
    assert_eq!(nr_changed.count(), nr_found);
}

#[test]
fn a_pinned_page_that_was_never_written_becomes_a_view_if_there_is_room_for_it() {
    let disk = Disk::default();
    let memory = builder_on(&disk, ByteSize(16 * PAGE)).build().unwrap();
    let region = tenant(&memory, 64).anon(40).unwrap();
    let mut nr_changed = 0;
    let refused = loop {
        let page = region.pin(nr_changed).unwrap();
        match region.upgrade(page) {
            Ok(mut view) => view[..].copy_from_slice(&content(nr_changed, 3)),
            Err(refused) => break refused,
        }
        nr_changed += 1;
    };
    assert!(
        matches!(refused.error(), Error::SpillFull { .. }),
        "{refused:?}"
    );
    assert!(nr_changed >= 8, "{nr_changed}");
    assert!(refused.into_page().iter().all(|&byte| byte == 0));
    for page in 0..nr_changed {
        check(&region, page, 3);
    }
    let other = memory.root().anon(1).unwrap();
    let foreign = region.upgrade(other.pin(0).unwrap()).unwrap_err();
    assert!(matches!(foreign.error(), Error::PageBusy { .. }));
}

#[test]
fn prefetch_brings_back_what_went_and_nothing_else() {
    let (_disk, memory, _group, region) = swapped();
    let out: Vec<u64> = (0..NR_PAGES)
        .filter(|&page| region.try_pin(page).unwrap().is_none())
        .collect();
    let [first, second] = [out[3], out[9]];
    // The last ten were never written, and beyond there is none.
    let asked = [first, NR_PAGES - 1, second, NR_PAGES + 5, out[0]];
    assert_eq!(region.prefetch(asked), 2);
    while region.try_pin(second).unwrap().is_none() {
        memory.tick();
    }
    assert!(*region.try_pin(first).unwrap().unwrap() == content(first, 1));
    assert!(region.try_pin(NR_PAGES - 1).unwrap().is_none());
}

#[test]
fn tasks_get_pages_and_bytes_and_errors_of_the_spill_file() {
    let (disk, memory, _group, region) = swapped();
    for page in [0, 50, 150, NR_PAGES - 1] {
        let pinned = futures_executor::block_on(region.pin_async(page)).unwrap();
        if page < NR_PAGES - 10 {
            assert!(*pinned == content(page, 1));
        }
    }
    let mut bytes = vec![1; 70 * 4096];
    let read = region.read_at_async(&mut bytes, 20 * PAGE + 9);
    assert_eq!(futures_executor::block_on(read).unwrap(), bytes.len());
    let expected: Vec<u8> = (20..91).flat_map(|page| content(page, 1)).collect();
    assert!(bytes == expected[9..][..bytes.len()]);
    let past = futures_executor::block_on(region.pin_async(NR_PAGES));
    assert!(matches!(past, Err(Error::PastEnd { .. })));
    let is_out = |page: &u64| region.try_pin(*page).unwrap().is_none();
    let out = (0..NR_PAGES - 10).find(is_out).unwrap();
    let now = disk.state().nr_calls;
    disk.state().fault = Some((now + 1, 1, Fault::Error(EIO)));
    let failed = futures_executor::block_on(region.pin_async(out));
    assert!(matches!(failed, Err(Error::Io { .. })));
    let again = futures_executor::block_on(region.pin_async(out)).unwrap();
    assert!(*again == content(out, 1));
    memory.tick();
}

#[test]
fn a_page_that_is_too_busy_to_be_discarded_stays_as_it_was() {
    let disk = Disk::default();
    let memory = builder_on(&disk, ByteSize::mib(4)).build().unwrap();
    let group = tenant(&memory, 64);
    group.set_policy(Policy::Fifo).unwrap();
    let region = group.anon(NR_PAGES).unwrap();
    (0..100).for_each(|page| write(&region, page, 1));
    // It comes back, and what the spill file has of it stays there.
    let view = region.pin_mut(0).unwrap();
    let busy = region.discard(..5).unwrap_err();
    assert!(matches!(busy, Error::PageBusy { page: 0, .. }), "{busy}");
    drop(view);
    // It goes once more.
    (100..NR_PAGES).for_each(|page| write(&region, page, 1));
    assert!(region.try_pin(0).unwrap().is_none());
    (0..NR_PAGES).for_each(|page| check(&region, page, 1));
}

#[test]
fn a_large_page_that_finds_no_room_in_the_spill_file_takes_none() {
    let disk = Disk::default();
    let memory = builder_on(&disk, ByteSize(5 * PAGE)).build().unwrap();
    let large = memory.root().anon_with(Order::new(2), 1000).unwrap();
    large.write_at(&[1], 0).unwrap();
    for page in 1..1000 {
        let full = large.write_at(&[1], page * 4 * PAGE);
        assert!(matches!(full, Err(Error::SpillFull { .. })));
    }
    let small = memory.root().anon(2).unwrap();
    small.write_at(&[1], 0).unwrap();
    let full = small.write_at(&[1], PAGE);
    assert!(matches!(full, Err(Error::SpillFull { .. })));
}

#[test]
fn a_page_can_be_changed_in_place_after_the_spill_file_has_failed() {
    let (disk, _memory, _group, region) = swapped();
    disk.state().is_full = true;
    let is_refused = |page| region.write_at(&content(page, 2), page * PAGE).is_err();
    assert!((0..NR_PAGES).any(is_refused));
    disk.state().is_full = false;
    let mut pages = (0..NR_PAGES).filter_map(|page| region.try_pin(page).unwrap());
    let view = region.upgrade(pages.next().unwrap()).unwrap();
    let page = view.page();
    drop(view);
    assert!(region.try_pin_mut(page).unwrap().is_some());
}

#[test]
fn who_changes_two_pages_is_waited_for_by_who_discards_them() {
    let (_disk, _memory, _group, region) = swapped();
    let view = region.pin_mut(3).unwrap();
    thread::scope(|scope| {
        let discarder = scope.spawn(|| region.discard(..));
        // Whether it waits, only time tells.
        thread::sleep(Duration::from_millis(50));
        region.write_at(&[1], 7 * PAGE).unwrap();
        drop(view);
        discarder.join().unwrap().unwrap();
    });
    for page in (0..NR_PAGES).filter(|&page| page != 7) {
        assert!(region.pin(page).unwrap().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_page_whose_change_fails_takes_no_room_in_the_spill_file() {
    let memory = builder_on(&Disk::default(), ByteSize(16 * PAGE));
    let memory = memory.build().unwrap();
    // Eight pages, and what is known of them.
    let group = tenant(&memory, 9);
    let region = group.anon(32).unwrap();
    let held = (0..8).map(|page| region.pin_new(page).unwrap());
    let held = held.collect::<Vec<_>>();
    let before = memory.root().usage();
    for page in 20..26 {
        let refused = region.pin_new(page).map(drop).unwrap_err();
        assert!(matches!(refused, Error::OverLimit { .. }), "{refused}");
        let refused = region.write_at(&[1], page * PAGE).unwrap_err();
        assert!(matches!(refused, Error::OverLimit { .. }), "{refused}");
    }
    assert_eq!(memory.root().usage(), before);
    drop(held);
    // All the rest of the 16.
    (8..16).for_each(|page| drop(region.pin_new(page).unwrap()));
    let full = region.pin_new(16).map(drop);
    assert!(matches!(full, Err(Error::SpillFull { .. })));
}

#[test]
fn a_view_through_which_nothing_was_changed_takes_no_room_in_the_spill_file() {
    let memory = builder_on(&Disk::default(), ByteSize(PAGE))
        .build()
        .unwrap();
    let region = tenant(&memory, 64).anon(1000).unwrap();
    let view = |page| region.pin_mut(page).unwrap();
    drop(view(0));
    drop(view(1).downgrade());
    drop(region.upgrade(region.pin(2).unwrap()).unwrap());
    // Two, of which the first changes the page and the other does not.
    view(3)[0] = 7;
    drop(view(3));
    assert!(matches!(region.pin_mut(4), Err(Error::SpillFull { .. })));
    memory.root().reclaim(ByteSize(4 * PAGE)).unwrap();
    assert_eq!(memory.stats().swap_used_bytes, PAGE);
    assert_eq!(region.pin(3).unwrap()[0], 7);
    region.discard(..).unwrap();
    view(4)[0] = 7;
}

/// Does something while a task waits for memory of a group, whose waker unwinds.
fn before_a_waker_that_unwinds(group: &Group, act: impl FnOnce()) {
    let order = Order::new(0);
    let _all: Vec<_> = iter::from_fn(|| group.alloc(order).ok()).collect();
    let until = Instant::now() + Duration::from_secs(60);
    let mut task = pin!(group.alloc_async(order, until));
    let waker = Waker::from(Arc::new(Unwinding));
    let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    let acted = catch_unwind(AssertUnwindSafe(act));
    assert!(acted.is_err(), "nobody was woken");
}

#[test]
fn room_in_the_spill_file_is_given_back_where_a_waker_unwinds() {
    let memory = builder_on(&Disk::default(), ByteSize(PAGE))
        .build()
        .unwrap();
    let group = tenant(&memory, 64);
    let region = group.anon(1000).unwrap();
    let view = region.pin_mut(0).unwrap();
    before_a_waker_that_unwinds(&group, || drop(view));
    region.pin_mut(1).unwrap()[0] = 7;
    before_a_waker_that_unwinds(&group, || region.discard(..).unwrap());
    region.pin_mut(2).unwrap()[0] = 7;
}

#[test]
fn all_pages_are_discarded_where_a_waker_unwinds() {
    let memory = builder_on(&Disk::default(), ByteSize(10 * PAGE));
    let group = tenant(&memory.build().unwrap(), 64);
    let region = group.anon(10_000).unwrap();
    // Of each goes a part of the region's map, for which the task waits.
    let pages = || (0..10).map(|nth| nth * 1000);
    pages().for_each(|page| write(&region, page, 1));
    before_a_waker_that_unwinds(&group, || region.discard(..).unwrap());
    let left = pages().filter(|&page| region.pin(page).unwrap()[0] != 0);
    assert_eq!(left.collect::<Vec<_>>(), [0_u64; 0]);
    pages().for_each(|page| write(&region, page + 1, 1));
}

#[test]
fn a_limit_that_is_not_kept_says_how_many_anon_pages_are_to_be_written() {
    for order in [0, 2] {
        let disk = Disk::default();
        let memory = builder_on(&disk, ByteSize::mib(4)).build().unwrap();
        let group = tenant(&memory, 64);
        let region = group.anon_with(Order::new(order), 10).unwrap();
        (0..10).for_each(|page| region.pin_new(page).unwrap()[0] = 7);
        disk.state().is_full = true;
        match group.set_max(ByteSize(PAGE)).unwrap_err() {
            Error::StillOver { dirty_pages, .. } => assert_eq!(dirty_pages, 10 << order),
            other => panic!("{other}"),
        }
    }
}
