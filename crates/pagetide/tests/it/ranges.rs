//! Ranges of bytes that are pinned: in one page and in several, at the end of the file, under
//! limits, and while the file gets shorter and longer.

use crate::disk::{Disk, EIO, Fault};
use pagetide::{ByteSize, Error, File, Memory, OpenOptions, Order, PinnedRange, Store};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;

fn memory(mib: u64) -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(mib));
    builder.without_thread().build().unwrap()
}

/// No two bytes in a page's length are alike by accident.
fn content(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at % 251).to_le_bytes()[0] ^ (at >> 12).to_le_bytes()[0])
        .collect()
}

fn open(memory: &Memory, disk: &Disk, order: u8) -> File {
    let options = OpenOptions::new().order(Order::new(order));
    let store = Box::new(disk.clone());
    options
        .open_store(memory, store, "disk", &memory.root())
        .unwrap()
}

fn joined(range: &PinnedRange) -> Vec<u8> {
    range.slices().flatten().copied().collect()
}

#[test]
fn a_range_is_one_piece_in_a_page_and_one_for_each_otherwise() {
    for order in 0..10 {
        let page_bytes = PAGE << order;
        let bytes = content(2 * page_bytes + 777);
        let (memory, disk) = (memory(32), Disk::of(bytes.clone()));
        let file = open(&memory, &disk, order);
        let len = bytes.len();
        for (start, end) in [
            (0, page_bytes),
            (5, page_bytes - 7),
            (page_bytes, page_bytes + 1),
            (page_bytes - 1, page_bytes + 1),
            (17, len),
            (2 * page_bytes, len),
            (len - 1, len + 5 * page_bytes),
            (page_bytes + 9, usize::MAX),
        ] {
            let range = file.pin_range(start as u64..end as u64).unwrap();
            let expected = &bytes[start..end.min(len)];
            assert_eq!(
                (range.offset(), range.len()),
                (start as u64, expected.len())
            );
            assert!(
                joined(&range) == expected,
                "{start}..{end} of order {order}"
            );
            let is_one = start / page_bytes == (end.min(len) - 1) / page_bytes;
            assert_eq!(range.as_slice(), is_one.then_some(expected));
            assert!(range.slices().all(|slice| !slice.is_empty()));
        }
        // It keeps its bytes, whatever becomes of the file.
        let range = file.pin_range(..).unwrap();
        file.set_len(3).unwrap();
        drop(file);
        assert!(joined(&range) == bytes);
    }
}

#[test]
fn empty_ranges_ranges_behind_the_end_and_ranges_that_have_no_room() {
    let (memory, disk) = (memory(8), Disk::of(content(10 * PAGE + 5)));
    let file = open(&memory, &disk, 0);
    let empty = file.pin_range(7..7).unwrap();
    assert!(empty.is_empty() && empty.slices().next().is_none());
    assert_eq!(empty.as_slice(), Some(&[][..]));
    let end = 10 * PAGE as u64 + 5;
    for start in [end, end + 1, u64::MAX] {
        let past = file.pin_range(start..);
        assert!(matches!(past, Err(Error::PastEnd { .. })), "{start}");
    }
    // More pages than can be listed: refused before anybody tries.
    let memory_of_large = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = OpenOptions::new().write(true).create(true);
    let path = folder.path().join("large");
    let large = options.open(&memory_of_large, path, &memory_of_large.root());
    let large = large.unwrap();
    large.set_len(1 << 42).unwrap();
    let root = memory_of_large.root();
    let small = root.child("small").unwrap().max(ByteSize::mib(1)).unwrap();
    // Whose limit it is, whoever asks.
    for (group, of) in [(&root, "/"), (&small, "/small")] {
        for group in [group, &group.child("below").unwrap()] {
            let refused = large.for_group(group).pin_range(..).unwrap_err();
            let is_of = |group: &str| group == of;
            assert!(
                matches!(&refused, Error::OverLimit { group, .. } if is_of(group)),
                "{refused}"
            );
        }
    }
    assert_eq!(
        large.pin_range(1 << 41..(1 << 41) + 9000).unwrap().len(),
        9000
    );
}

#[test]
fn ranges_count_in_pin_budgets_all_or_none() {
    let (memory, disk) = (memory(8), Disk::of(content(10 * PAGE)));
    let file = open(&memory, &disk, 0);
    memory.root().set_pin_max(Some(ByteSize::kib(12)));
    let range = file.pin_range(1..2 * PAGE as u64 + 1).unwrap();
    assert_eq!(memory.root().pin_usage(), ByteSize::kib(12));
    assert!(matches!(file.pin_range(..9), Err(Error::PinLimit { .. })));
    drop(range);
    assert!(matches!(file.pin_range(..), Err(Error::PinLimit { .. })));
    assert_eq!(memory.root().pin_usage(), ByteSize(0));
    file.pin_range(..9).unwrap();
}

#[test]
fn a_range_is_whole_or_an_error_when_any_read_fails() {
    for from in 1..=6 {
        let bytes = content(5 * PAGE);
        let (memory, disk) = (memory(8), Disk::of(bytes.clone()));
        let file = open(&memory, &disk, 0);
        disk.state().fault = Some((from, 1, Fault::Error(EIO)));
        match file.pin_range(3..) {
            Ok(range) => assert!(from == 6 && joined(&range) == bytes[3..]),
            Err(error) => {
                assert!(matches!(error, Error::Io { .. }) && from < 6, "{error}");
                assert!(memory.pins().is_empty());
                assert!(joined(&file.pin_range(3..).unwrap()) == bytes[3..]);
            }
        }
    }
}

#[test]
fn a_range_of_a_file_that_moves_has_no_gap() {
    let memory = memory(16);
    let disk = Disk::of(Vec::new());
    let file = &open(&memory, &disk, 0);
    // Byte `at` of the file is always this, wherever it ends.
    let bytes = &content(40 * PAGE);
    file.write_at(bytes, 0).unwrap();
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..300 {
                let len = round * 7919 % (40 * PAGE);
                // Pinned pages keep nobody from cutting.
                file.set_len(len as u64).unwrap();
                file.write_at(&bytes[len..], len as u64).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        scope.spawn(move || {
            let mut round = 0;
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                let start = round * 104_729 % (39 * PAGE);
                let found = match file.pin_range(start as u64..) {
                    Ok(range) => joined(&range),
                    Err(Error::PastEnd { .. } | Error::PageBusy { .. }) => continue,
                    Err(error) => panic!("{error}"),
                };
                assert!(!found.is_empty());
                // What was just made longer may read as zeros up to the page's end.
                let expected = &bytes[start..][..found.len()];
                let differs = found.iter().zip(expected).any(|(a, b)| a != b && *a != 0);
                assert!(!differs, "from {start}");
            }
        });
    });
    assert!(joined(&file.pin_range(..).unwrap()) == *bytes);
}

/// A store that says that it has a page at every number, and more.
struct Endless;

impl Store for Endless {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        buf.fill(7);
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(1 << 60)
    }
}

#[test]
fn a_range_beyond_the_last_page_number_is_refused() {
    let memory = memory(8);
    let root = memory.root();
    let file = memory.open_store(Box::new(Endless), "endless", &root);
    let file = file.unwrap();
    let end = 1 << 52;
    assert_eq!(file.pin_range(end - 10..end).unwrap().len(), 10);
    for range in [
        end..end + 10,
        end - 10..end + 10,
        end - 10_000..end + 10_000,
    ] {
        let refused = file.pin_range(range);
        assert!(matches!(refused, Err(Error::PastEnd { .. })));
    }
}

#[test]
fn a_page_can_own_what_others_take_as_bytes() {
    fn owner<T: AsRef<[u8]> + Send + 'static>(of: T) -> Vec<u8> {
        let thread = std::thread::spawn(move || of.as_ref().to_vec());
        thread.join().unwrap()
    }
    let (memory, disk) = (memory(8), Disk::of(content(PAGE)));
    let page = open(&memory, &disk, 0).pin(0).unwrap();
    assert!(owner(page) == content(PAGE));
}
