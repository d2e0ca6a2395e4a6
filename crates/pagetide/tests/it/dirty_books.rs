//! What dirty pages are charged for beside their frames: the numbers by which they are found.

use crate::disk::{Disk, EIO, Fault};
use pagetide::{ByteSize, Error, File, Memory, Order};

const PAGE: usize = 4096;
/// What is charged at a time, for 102 pages.
const CHUNK: u64 = 4096;

fn memory(mib: u64) -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(mib));
    builder.without_thread().build().unwrap()
}

fn open(memory: &Memory, disk: &Disk) -> File {
    let store = Box::new(disk.clone());
    let opened = memory.open_store(store, "disk", &memory.root());
    opened.unwrap()
}

fn listed_bytes(memory: &Memory) -> u64 {
    // It drains what CPUs hold back.
    assert_eq!(memory.audit(), Ok(()));
    memory.root().stat().slab_unreclaimable
}

/// Changes a page. Nothing is written back for it below a tenth of the budget.
fn change(file: &File, page: u64) -> Result<usize, Error> {
    file.write_at(&page.to_le_bytes(), page * PAGE as u64)
}

#[test]
fn the_root_is_charged_for_the_numbers_of_dirty_pages_and_gets_it_back() {
    let memory = memory(32);
    let disk = Disk::of(vec![7; 700 * PAGE]);
    let file = open(&memory, &disk);
    assert_eq!(listed_bytes(&memory), 0);
    for page in 0..700 {
        change(&file, page).unwrap();
        let nr_dirty = page + 1;
        let charged = listed_bytes(&memory);
        let (least, most) = (nr_dirty * 40, nr_dirty * 40 + 2 * CHUNK);
        assert!((least..most).contains(&charged), "{charged} for {nr_dirty}");
    }
    let stat = memory.root().stat();
    assert_eq!(stat.file_dirty, 700 * PAGE as u64);
    // Written once more they take nothing more.
    for page in 0..700 {
        change(&file, page).unwrap();
    }
    let again = listed_bytes(&memory);
    assert!(again.abs_diff(stat.slab_unreclaimable) <= CHUNK, "{again}");
    file.flush_range(..350 * PAGE as u64).unwrap();
    let charged = listed_bytes(&memory);
    assert!((350 * 40..350 * 40 + 2 * CHUNK).contains(&charged));
    file.sync().unwrap();
    assert_eq!(
        (listed_bytes(&memory), memory.root().stat().file_dirty),
        (0, 0)
    );
    // Cut, punched, discarded, dropped: whatever they come to.
    for end in 0..4 {
        for page in 0..300 {
            change(&file, page).unwrap();
        }
        assert!(listed_bytes(&memory) >= 300 * 40);
        match end {
            0 => file.set_len(0).unwrap(),
            1 => file.punch(..).unwrap(),
            2 => assert_eq!(file.discard_dirty().unwrap(), 300),
            _ => file.pin_mut(3).map(drop).unwrap(),
        }
        let nr_left = memory.root().stat().file_dirty / PAGE as u64;
        // Of a hole the last page is written: with it the store gets as long as the file.
        assert_eq!(nr_left, [0, 1, 0, 300][end]);
        let charged = listed_bytes(&memory);
        let most = nr_left * 40 + 2 * CHUNK * nr_left.min(1);
        assert!((nr_left * 40..=most).contains(&charged), "{charged}");
    }
    drop(file);
    assert_eq!(listed_bytes(&memory), 0);
    assert_eq!(memory.stats().pages_lost, 0);
}

#[test]
fn views_are_listed_while_they_live() {
    let memory = memory(8);
    let disk = Disk::of(vec![7; 300 * PAGE]);
    let file = open(&memory, &disk);
    let views: Vec<_> = (0..150).map(|page| file.pin_mut(page).unwrap()).collect();
    assert_eq!(listed_bytes(&memory), 2 * CHUNK);
    drop(views);
    // Nobody changed a byte.
    assert_eq!(
        (listed_bytes(&memory), memory.root().stat().file_dirty),
        (0, 0)
    );
    let page = file.pin(7).unwrap();
    let view = file.upgrade(page).unwrap();
    assert_eq!(listed_bytes(&memory), CHUNK);
    drop(view.downgrade());
    assert_eq!(listed_bytes(&memory), 0);
    let mut view = file.try_pin_mut(7).unwrap().unwrap();
    view[0] = 1;
    drop(view);
    assert_eq!(listed_bytes(&memory), CHUNK);
    file.sync().unwrap();
    assert_eq!(listed_bytes(&memory), 0);
}

#[test]
fn without_room_for_its_number_a_page_is_not_changed() {
    let memory = memory(8);
    let root = memory.root();
    let disk = Disk::of(vec![7; 300 * PAGE]);
    let file = open(&memory, &disk);
    let page = file.pin(5).unwrap();
    // All else is in use; the pin keeps page 5.
    let mut bufs = Vec::new();
    while let Ok(buf) = root.alloc(Order::new(0)) {
        bufs.push(buf);
    }
    let full = |error: &Error| matches!(error, Error::OverLimit { group, .. } if group == "/");
    let refused = file.upgrade(page).unwrap_err();
    assert!(full(refused.error()), "{refused:?}");
    drop(refused.into_page());
    // It cannot wait or reclaim.
    assert!(file.try_pin_mut(5).unwrap().is_none());
    assert_eq!(listed_bytes(&memory), 0);
    bufs.truncate(bufs.len() - 8);
    change(&file, 5).unwrap();
    while let Ok(buf) = root.alloc(Order::new(0)) {
        bufs.push(buf);
    }
    drop(bufs);
    file.sync().unwrap();
    assert_eq!(disk.state().durable[5 * PAGE..][..8], 5u64.to_le_bytes());
    assert_eq!(listed_bytes(&memory), 0);
}

#[test]
fn the_books_are_right_when_any_call_of_the_store_fails() {
    for from in 1.. {
        let memory = memory(8);
        let disk = Disk::of(vec![7; 400 * PAGE]);
        let file = open(&memory, &disk);
        disk.state().fault = Some((from, 1, Fault::Error(EIO)));
        let mut nr_failed = 0;
        for page in 0..250u64 {
            // Read first, as parts of pages are.
            nr_failed += u32::from(change(&file, page * 3 % 400).is_err());
        }
        nr_failed += u32::from(file.set_len(100 * PAGE as u64).is_err());
        nr_failed += u32::from(file.sync().is_err());
        let is_past = disk.state().nr_calls < from;
        assert!(nr_failed > 0 || is_past, "call {from} failed unseen");
        let nr_dirty = memory.root().stat().file_dirty / PAGE as u64;
        let charged = listed_bytes(&memory);
        assert!(nr_dirty * 40 <= charged, "{charged} for {nr_dirty}");
        drop(file);
        assert_eq!(listed_bytes(&memory), 0);
        if is_past {
            return;
        }
    }
}
