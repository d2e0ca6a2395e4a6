//! Views that write: whose they are, who waits for them, what is dirty after them.

use crate::disk::{Disk, EIO, Fault};
use crate::gate::Gated;
use futures_executor::block_on;
use pagetide::{ByteSize, Error, File, Group, Memory, Page, PageMut};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn memory() -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    builder.without_thread().build().unwrap()
}

fn open(memory: &Memory, group: &Group, disk: &Disk) -> File {
    let disk = Box::new(disk.clone());
    memory.open_store(disk, "disk", group).unwrap()
}

/// A file of so many pages of sevens.
fn sevens(nr_pages: usize) -> (Disk, Memory, File) {
    let (disk, memory) = (Disk::of(vec![7; nr_pages * PAGE]), memory());
    let file = open(&memory, &memory.root(), &disk);
    (disk, memory, file)
}

fn is_busy<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::PageBusy { .. }))
}

#[test]
fn a_view_is_owned_and_goes_to_other_threads() {
    fn is_owned<T: Send + Sync + 'static>() {}
    is_owned::<PageMut>();
    let (_disk, _memory, file) = sevens(2);
    let mut view = file.pin_mut(1).unwrap();
    assert_eq!(view.page(), 1);
    let other = std::thread::spawn(move || view.fill(8));
    other.join().unwrap();
    assert!(file.pin(1).unwrap().iter().all(|&byte| byte == 8));
}

#[test]
fn what_a_view_changed_is_read_written_and_durable_and_the_file_is_as_long_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, vec![7; 10_000]).unwrap();
    let memory = memory();
    let file = memory.open_rw(&path, &memory.root()).unwrap();
    let mut view = file.pin_mut(2).unwrap();
    assert_eq!(view.len(), 10_000 - 2 * PAGE);
    view[0] = 1;
    *view.last_mut().unwrap() = 2;
    drop(view);
    let mut byte = [0];
    file.read_at(&mut byte, 9_999).unwrap();
    assert_eq!(byte, [2]);
    file.sync().unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[2 * PAGE], bytes[9_999]), (10_000, 1, 2));
    assert!(matches!(
        file.pin_mut(3),
        Err(Error::PastEnd { page: 3, .. })
    ));
    assert!(matches!(file.try_pin_mut(3), Err(Error::PastEnd { .. })));
    let reader = memory.open(&path, &memory.root()).unwrap();
    assert!(matches!(reader.pin_mut(0), Err(Error::ReadOnly { .. })));
    assert!(matches!(reader.pin_new(0), Err(Error::ReadOnly { .. })));
    assert!(matches!(reader.try_pin_mut(0), Err(Error::ReadOnly { .. })));
    let far = file.pin_new(u64::MAX / PAGE as u64);
    assert!(matches!(far, Err(Error::PastEnd { .. })));
}

#[test]
fn nobody_else_has_the_page_and_who_waits_is_told_in_the_end() {
    let (_disk, _memory, file) = sevens(4);
    let view = file.pin_mut(1).unwrap();
    let begin = Instant::now();
    assert!(file.try_pin_mut(1).unwrap().is_none());
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(is_busy(file.read_at(&mut [0; 10], 5000))));
        scope.spawn(|| assert!(is_busy(file.pin(1))));
        scope.spawn(|| assert!(is_busy(file.pin_mut(1))));
        scope.spawn(|| assert!(is_busy(file.pin_new(1))));
        scope.spawn(|| assert!(is_busy(file.write_at(b"x", 5000))));
        // Others' pages are in nobody's way.
        file.pin_mut(2).unwrap().fill(2);
    });
    assert!(begin.elapsed() >= Duration::from_secs(1));
    drop(view);
    assert!(file.pin(1).unwrap().iter().all(|&byte| byte == 7));
    let page = file.pin(1).unwrap();
    assert!(file.try_pin_mut(1).unwrap().is_none() && is_busy(file.pin_mut(1)));
    assert!(file.pin(1).is_ok(), "who gave up is in nobody's way");
    drop(page);
    std::thread::scope(|scope| {
        let mut view = file.try_pin_mut(1).unwrap().unwrap();
        let waiting = scope.spawn(|| file.pin(1).unwrap()[..].to_vec());
        view.fill(9);
        drop(view);
        assert!(waiting.join().unwrap().iter().all(|&byte| byte == 9));
    });
}

#[test]
fn a_try_reads_nothing() {
    let (disk, _memory, file) = sevens(4);
    let nr_calls = disk.state().nr_calls;
    assert!(file.try_pin_mut(2).unwrap().is_none());
    assert_eq!(disk.state().nr_calls, nr_calls);
    drop(file.pin(2).unwrap());
    file.try_pin_mut(2).unwrap().unwrap().fill(1);
    file.sync().unwrap();
    assert_eq!(disk.state().durable[2 * PAGE], 1);
}

#[test]
fn a_page_whose_bytes_were_only_looked_at_stays_clean() {
    let (disk, _memory, file) = sevens(4);
    let view = file.pin_mut(1).unwrap();
    assert!(view.iter().all(|&byte| byte == 7));
    // Nothing of it has to be waited for.
    file.sync().unwrap();
    drop(view);
    file.sync().unwrap();
    assert_eq!(disk.state().nr_writes, 0);
    let mut view = file.pin_mut(1).unwrap();
    view[5] = 1;
    assert_eq!(view.downgrade()[4..7], [7, 1, 7]);
    file.sync().unwrap();
    assert_eq!(disk.state().nr_writes, 1);
    assert_eq!(disk.state().durable[PAGE + 4..PAGE + 7], [7, 1, 7]);
}

#[test]
fn a_sync_waits_for_a_view_of_a_dirty_page() {
    let (disk, _memory, file) = sevens(4);
    file.write_at(&[1; 10], 0).unwrap();
    let mut view = file.pin_mut(0).unwrap();
    assert!(is_busy(file.sync()));
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| file.sync());
        view[0] = 2;
        drop(view);
        syncing.join().unwrap().unwrap();
    });
    assert_eq!(disk.state().durable[..3], [2, 1, 1]);
}

#[test]
fn the_only_pin_becomes_a_view_and_a_view_a_pin() {
    let (disk, memory, file) = sevens(4);
    let (page, other) = (file.pin(1).unwrap(), file.pin(1).unwrap());
    let error = file.upgrade(page).unwrap_err();
    assert!(matches!(error.error(), Error::PageBusy { page: 1, .. }));
    let told = "page 1 of disk stays pinned, or somebody changes it";
    assert_eq!(error.error().to_string(), told);
    let page = error.into_page();
    assert!(page.iter().all(|&byte| byte == 7));
    drop(other);
    let mut view = file.upgrade(page).unwrap();
    view[0] = 1;
    let page: Page = view.downgrade();
    assert_eq!(page.page(), 1);
    assert_eq!(file.pin(1).unwrap()[0], 1);
    // Of another file, and of one that was cut meanwhile.
    let elsewhere = open(&memory, &memory.root(), &disk);
    let page = elsewhere.upgrade(page).unwrap_err().into_page();
    let foreign = sevens(2).2.upgrade(page).unwrap_err();
    assert!(matches!(foreign.error(), Error::PageBusy { .. }));
    let page = foreign.into_page();
    file.set_len(PAGE as u64).unwrap();
    let page = file.upgrade(page).unwrap_err().into_page();
    assert_eq!(page.page(), 1, "it is of no file any more");
    assert_eq!(file.pin(0).unwrap().len(), PAGE);
}

#[test]
fn who_asks_for_no_page_back_has_the_error_alone() {
    fn changed(file: &File, page: Page) -> Result<PageMut, Error> {
        Ok(file.upgrade(page)?)
    }
    let (_disk, _memory, file) = sevens(4);
    let (page, other) = (file.pin(1).unwrap(), file.pin(1).unwrap());
    let refused = changed(&file, page).map(drop);
    assert!(matches!(refused, Err(Error::PageBusy { page: 1, .. })));
    // Its pin is gone.
    drop(file.upgrade(other).unwrap());
}

#[test]
fn a_new_page_is_not_read_and_makes_the_file_longer_once_it_is_let_go() {
    let (disk, memory, file) = sevens(2);
    let nr_calls = disk.state().nr_calls;
    for page in [1, 5, 2] {
        let mut view = file.pin_new(page).unwrap();
        assert_eq!(view.len(), PAGE);
        assert!(view.iter().all(|&byte| byte == 0));
        let len = file.len();
        view[0] = 9;
        file.sync_range(5 * PAGE as u64..).unwrap();
        assert_eq!(file.len(), len);
        drop(view);
        assert_eq!(file.len(), len.max((page + 1) * PAGE as u64));
    }
    assert_eq!(memory.stats().bytes_read, 0);
    assert!(disk.state().nr_calls > nr_calls, "it is synced");
    // Over what is cached, too; and dirty though nobody changed a byte.
    drop(file.pin(0).unwrap());
    drop(file.pin_new(0).unwrap());
    file.sync().unwrap();
    let durable = disk.state().durable.clone();
    assert_eq!(durable.len(), 6 * PAGE);
    for (page, bytes) in durable.chunks(PAGE).enumerate() {
        let first = if [1, 2, 5].contains(&page) { 9 } else { 0 };
        assert_eq!(bytes[0], first, "page {page}");
        assert!(bytes[1..].iter().all(|&byte| byte == 0), "page {page}");
    }
    // A part of a page becomes a whole one.
    file.set_len(6 * PAGE as u64 + 100).unwrap();
    file.pin_new(6).unwrap()[200] = 1;
    assert_eq!(file.len(), 7 * PAGE as u64);
}

/// A read ahead of a page that is torn, perhaps, fails while somebody makes that page anew.
#[test]
fn who_gives_a_page_new_content_needs_no_read_of_it_that_fails() {
    type Change = fn(&File) -> Result<(), Error>;
    fn fill(mut view: PageMut) {
        view.fill(8);
    }

    let changes: [Change; 4] = [
        |file| file.pin_new(1).map(fill),
        |file| file.write_at(&[8; PAGE], PAGE as u64).map(drop),
        |file| block_on(file.pin_new_async(1)).map(fill),
        |file| block_on(file.write_at_async(&[8; PAGE], PAGE as u64)).map(drop),
    ];
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    for change in changes {
        let gated = Gated::of(vec![7; 4 * PAGE]);
        let file = gated.open(&memory, &memory.root());
        gated.disk.fail_next(1, Fault::Error(EIO));
        let shut = gated.reads.shut();
        assert_eq!(file.prefetch([1]), 1);
        shut.await_one();
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| change(&file));
            // Enough to meet the read, mostly; who comes later finds nothing in the way.
            std::thread::sleep(Duration::from_millis(20));
            drop(shut);
            changing.join().unwrap().unwrap();
        });
        assert!(file.pin(1).unwrap().iter().all(|&byte| byte == 8));
    }
}

#[test]
fn the_length_waits_for_views_behind_it_and_loses_nothing_where_they_stay() {
    let (_disk, _memory, file) = sevens(4);
    let mut view = file.pin_mut(3).unwrap();
    view.fill(8);
    assert!(is_busy(file.set_len(2 * PAGE as u64 + 1)));
    assert!(is_busy(file.discard_dirty().map(|_| ())));
    assert_eq!(file.len(), 4 * PAGE as u64);
    // In nobody's way: what is behind stays.
    file.set_len(9 * PAGE as u64).unwrap();
    std::thread::scope(|scope| {
        let cutting = scope.spawn(|| file.set_len(PAGE as u64));
        // Who has a view can go on, also where it takes another one.
        drop(file.pin_mut(0).unwrap());
        drop(view);
        cutting.join().unwrap().unwrap();
    });
    file.set_len(4 * PAGE as u64).unwrap();
    assert!(file.pin(3).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn who_drops_pages_waits_for_a_view_as_long_behind_who_has_the_file_as_without_him() {
    type Drops = fn(&File) -> Result<(), Error>;
    let drops: [Drops; 2] = [
        |file| file.set_len(PAGE as u64),
        |file| file.punch(PAGE as u64..),
    ];
    for drop_pages in drops {
        let gate = Gated::of(vec![7; 4 * PAGE]);
        let memory = memory();
        let file = &gate.open(&memory, &memory.root());
        let ms = Duration::from_millis(1);
        let mut view = file.pin_mut(3).unwrap();
        file.write_at(&[8], 0).unwrap();
        gate.disk.state().is_full = true;
        assert!(file.flush_range(..).is_err());
        gate.disk.state().is_full = false;
        let shut = gate.writes.shut();
        std::thread::scope(|scope| {
            // With the file it has that written first which has failed.
            scope.spawn(|| file.write_at(&[9], 0).unwrap());
            shut.await_one();
            let dropping = scope.spawn(|| drop_pages(file));
            // Longer than it waits for a view.
            std::thread::sleep(1200 * ms);
            drop(shut);
            std::thread::sleep(100 * ms);
            view.fill(8);
            drop(view);
            dropping.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_page_that_failed_and_is_gone_keeps_nobody_from_others_though_a_view_was_out() {
    let (disk, _memory, file) = sevens(8);
    file.write_at(&[1], 5 * PAGE as u64).unwrap();
    let view = file.pin_mut(0).unwrap();
    disk.state().is_full = true;
    assert!(file.flush_range(5 * PAGE as u64..).is_err());
    disk.state().is_full = false;
    file.punch(5 * PAGE as u64..6 * PAGE as u64).unwrap();
    // Of an unchanged page: nothing is dirty any more.
    drop(view);
    drop(file.upgrade(file.pin(1).unwrap()).unwrap());
    assert!(file.try_pin_mut(1).unwrap().is_some());
}

#[test]
fn a_view_counts_as_a_pin() {
    let (_disk, memory, file) = sevens(8);
    let root = memory.root();
    root.set_pin_max(Some(ByteSize::kib(8)));
    let (a, b) = (file.pin_mut(0).unwrap(), file.pin_new(1).unwrap());
    assert_eq!(root.pin_usage(), ByteSize::kib(8));
    for refused in [file.pin_mut(2), file.pin_new(2)] {
        assert!(matches!(refused, Err(Error::PinLimit { .. })));
    }
    assert!(matches!(file.try_pin_mut(2), Err(Error::PinLimit { .. })));
    let page = b.downgrade();
    assert_eq!(root.pin_usage(), ByteSize::kib(8));
    let view = file.upgrade(page).unwrap();
    drop((a, view));
    assert_eq!(root.pin_usage(), ByteSize::kib(0));
    let permit = root.pin_permit(2).unwrap();
    let views = (
        permit.pin_mut(&file, 3).unwrap(),
        permit.pin_new(&file, 4).unwrap(),
    );
    assert!(matches!(
        permit.pin_mut(&file, 5),
        Err(Error::PermitSpent { .. })
    ));
    drop((permit, views));
    assert_eq!(root.pin_usage(), ByteSize::kib(0));
}

#[test]
fn a_view_keeps_its_file_open_until_it_is_written_back() {
    let (disk, memory, file) = sevens(2);
    let mut view = file.pin_mut(0).unwrap();
    drop(file);
    view.fill(1);
    drop(view);
    assert!(disk.state().bytes[..PAGE].iter().all(|&byte| byte == 1));
    let stats = memory.stats();
    assert_eq!((stats.resident_pages, stats.pages_lost), (0, 0));
}

/// Every way to change a page, by four threads that count in the same pages, with memory for a
/// third of them: no count is lost, and nobody sees half of one.
#[test]
fn threads_that_count_in_the_same_pages_lose_no_count() {
    const NR_PAGES: u64 = 24;
    let disk = Disk::of(vec![0; usize::try_from(NR_PAGES).unwrap() * PAGE]);
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let group = memory.root().child("small").unwrap();
    let group = group.max(ByteSize::kib(4 * NR_PAGES / 3)).unwrap();
    let file = &open(&memory, &group, &disk);
    let (nr_counted, is_over) = (&AtomicU64::new(0), &AtomicBool::new(false));
    let count = |view: &mut PageMut| {
        let first = u64::from_le_bytes(view[..8].try_into().unwrap()) + 1;
        assert_eq!(view[PAGE - 8..], view[..8], "half of a count is seen");
        view[..8].copy_from_slice(&first.to_le_bytes());
        view[PAGE - 8..].copy_from_slice(&first.to_le_bytes());
        nr_counted.fetch_add(1, Ordering::Relaxed);
    };
    let check = |page: &[u8]| assert_eq!(page[..8], page[PAGE - 8..]);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|seed| {
                scope.spawn(move || {
                    for step in 0..3000_u64 {
                        let page = (step * 7 + seed * 5 + step / 24) % NR_PAGES;
                        match (step + seed) % 4 {
                            0 => count(&mut file.pin_mut(page).unwrap()),
                            1 => {
                                if let Some(mut view) = file.try_pin_mut(page).unwrap() {
                                    count(&mut view);
                                    check(&view.downgrade());
                                }
                            }
                            2 => {
                                if let Ok(mut view) = file.upgrade(file.pin(page).unwrap()) {
                                    count(&mut view);
                                }
                            }
                            _ => check(&file.pin(page).unwrap()),
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                file.sync().unwrap();
            }
        });
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    file.sync().unwrap();
    let durable = disk.state().durable.clone();
    let counts = durable.chunks(PAGE).map(|page| {
        check(page);
        u64::from_le_bytes(page[..8].try_into().unwrap())
    });
    assert_eq!(counts.sum::<u64>(), nr_counted.load(Ordering::Relaxed));
    assert!(nr_counted.load(Ordering::Relaxed) > 3000);
}

#[test]
fn who_waits_for_a_pin_and_then_for_a_write_waits_for_both_and_lets_readers_in() {
    let gate = Gated::default();
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let file = gate.open(&memory, &memory.root());
    file.write_at(&[1; 4096], 0).unwrap();
    let shut = gate.writes.shut();
    let pin = file.pin(0).unwrap();
    std::thread::scope(|scope| {
        let ms = Duration::from_millis(1);
        let writer = scope.spawn(|| file.write_at(&[2], 0));
        // It waits for the pin by now.
        std::thread::sleep(50 * ms);
        scope.spawn(|| file.flush_range(..).unwrap());
        shut.await_one();
        drop(pin);
        std::thread::sleep(50 * ms);
        assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
        let is_written = writer.is_finished();
        // Longer than it waits for pins.
        std::thread::sleep(1000 * ms);
        drop(shut);
        writer.join().unwrap().unwrap();
        assert!(!is_written, "it is being written still");
    });
}
