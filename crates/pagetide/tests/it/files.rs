//! Reads and pins: bytes, ends of files, sharing, failures, races.

use crate::slow::Forgets;
use pagetide::{ByteSize, Error, File, Memory, OpenOptions, Order, Store};
use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn memory(mib: u64) -> Memory {
    Memory::builder()
        .budget(ByteSize::mib(mib))
        .readahead(ByteSize::b(0))
        .build()
        .unwrap()
}

fn byte_at(offset: u64) -> u8 {
    let mixed = (offset ^ offset >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

fn data_file(len: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), (0..len).map(byte_at).collect::<Vec<u8>>()).unwrap();
    file
}

fn check(file: &File, offset: u64, len: usize) {
    let mut bytes = vec![0; len];
    let read = file.read_at(&mut bytes, offset).unwrap();
    let expected = usize::try_from(file.len().saturating_sub(offset))
        .unwrap()
        .min(len);
    assert_eq!(read, expected, "at {offset}");
    assert!(
        (offset..)
            .zip(&bytes[..read])
            .all(|(at, &byte)| byte == byte_at(at)),
        "at {offset}"
    );
}

#[test]
fn every_offset_and_length_gives_the_files_bytes() {
    let data = data_file(3 * 65_536 + 1234);
    let memory = memory(8);
    for order in [0, 2, 4] {
        let group = memory.root().child(&format!("order {order}")).unwrap();
        let file = OpenOptions::new()
            .order(Order::new(order))
            .open(&memory, data.path(), &group)
            .unwrap();
        for (offset, len) in [
            (0, 1),
            (4095, 2),
            (1, 70_000),
            (196_000, 5000),
            (0, 300_000),
            (197_841, 9),
            (197_842, 9),
        ] {
            check(&file, offset, len);
        }
    }
    assert_eq!(
        memory.stats().resident_pages,
        0,
        "files that are closed keep no page"
    );
}

#[test]
fn a_page_outlives_its_file_and_its_bytes_stay() {
    let data = data_file(10_000);
    let memory = memory(8);
    let group = memory.root().child("web").unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    let (first, last) = (file.pin(0).unwrap(), file.pin(2).unwrap());
    assert!(matches!(
        file.pin(3),
        Err(Error::PastEnd {
            page: 3,
            len: 10_000,
            ..
        })
    ));
    drop((file, group, memory));
    assert_eq!((first.len(), last.len()), (4096, 10_000 - 8192));
    assert!(
        (8192..)
            .zip(&last[..])
            .all(|(at, &byte)| byte == byte_at(at))
    );
    std::thread::spawn(move || assert_eq!(first[7], byte_at(7)))
        .join()
        .unwrap();
}

#[test]
fn handles_of_one_file_share_its_pages() {
    let data = data_file(40_960);
    let memory = memory(8);
    let [web, batch] = ["web", "batch"].map(|name| memory.root().child(name).unwrap());
    let one = memory.open(data.path(), &web).unwrap();
    let other = memory.open(data.path(), &batch).unwrap();
    check(&one, 0, 40_960);
    check(&other, 0, 40_960);
    check(&one.for_group(&batch), 0, 40_960);
    assert_eq!((web.misses(), batch.misses()), (10, 0));
    assert_eq!(memory.stats().bytes_read, 40_960);
}

/// A store whose reads fail where told, and are counted.
struct Faulty {
    reads: Arc<AtomicU64>,
    fails: fn(u64) -> bool,
    panics: bool,
}

impl Store for Faulty {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(1));
        if (self.fails)(number) {
            assert!(!self.panics, "a store that panics");
            return Err(io::Error::from_raw_os_error(5));
        }
        // Short reads: a store may give less than asked.
        let part = buf.len().min(1000);
        (offset..)
            .zip(&mut buf[..part])
            .for_each(|(at, byte)| *byte = byte_at(at));
        Ok(part)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }
}

fn faulty(memory: &Memory, fails: fn(u64) -> bool, panics: bool) -> (File, Arc<AtomicU64>) {
    let reads = Arc::new(AtomicU64::new(0));
    let store = Faulty {
        reads: Arc::clone(&reads),
        fails,
        panics,
    };
    let group = memory.root().child("store").unwrap();
    (
        memory
            .open_store(Box::new(store), "faulty", &group)
            .unwrap(),
        reads,
    )
}

#[test]
fn a_failed_read_names_file_and_page_and_is_tried_again() {
    let memory = memory(8);
    let (file, _) = faulty(&memory, |number| number == 0, false);
    let error = file.read_at(&mut [0; 10], 8192).unwrap_err();
    assert_eq!(error.to_string(), "cannot read page 2 of faulty");
    assert!(matches!(error, Error::Io { page: 2, source, .. } if source.raw_os_error() == Some(5)));
    check(&file, 8192, 10);
}

#[test]
fn readers_of_one_page_share_one_read() {
    let memory = memory(8);
    let (file, reads) = faulty(&memory, |_| false, false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| check(&file, 0, 4096));
        }
    });
    assert_eq!(reads.load(Ordering::Relaxed), 5, "one page, in short reads");
}

#[test]
fn a_store_that_panics_leaves_nobody_waiting() {
    let memory = memory(8);
    let (file, _) = faulty(&memory, |number| number == 0, true);
    let results: Vec<bool> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| file.read_at(&mut [0; 10], 0).is_ok()))
            .collect();
        readers
            .into_iter()
            .map(|reader| reader.join().unwrap_or(false))
            .collect()
    });
    assert!(results.contains(&false));
    check(&file, 0, 10);
}

#[test]
fn a_file_that_shrank_is_an_error() {
    let data = data_file(40_960);
    let memory = memory(8);
    let group = memory.root().child("web").unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    data.as_file().set_len(5000).unwrap();
    check_error(&file, 5);
    let mut bytes = [0; 4096];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 4096);
}

fn check_error(file: &File, page: u64) {
    let error = file.pin(page).unwrap_err();
    assert!(matches!(error, Error::Io { source, .. }
        if source.kind() == io::ErrorKind::UnexpectedEof));
}

#[test]
fn many_threads_read_right_bytes_under_a_tiny_limit() {
    let data = data_file(1 << 20);
    let memory = memory(8);
    let group = memory
        .root()
        .child("web")
        .unwrap()
        .max(ByteSize::kib(64))
        .unwrap();
    let file = memory.open(data.path(), &group).unwrap();
    std::thread::scope(|scope| {
        for seed in 1..=6_u64 {
            let file = &file;
            scope.spawn(move || {
                let mut number = seed;
                for _ in 0..2000 {
                    number = number
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(seed);
                    check(file, (number >> 33) % (1 << 20), 100);
                    let page = (number >> 40) % 256;
                    assert_eq!(file.pin(page).unwrap()[0], byte_at(page * 4096));
                }
            });
        }
    });
    assert!(group.usage() <= ByteSize::kib(64));
}

#[test]
fn what_cannot_be_opened_is_named() {
    let memory = memory(8);
    let root = memory.root();
    let error = memory.open("/nonexistent/file", &root).unwrap_err();
    assert_eq!(error.to_string(), "cannot open /nonexistent/file");
    assert!(matches!(memory.open("/", &root), Err(Error::Open { .. })));
}

/// The time of the last access, in seconds.
fn accessed(data: &tempfile::NamedTempFile) -> i64 {
    use std::os::unix::fs::MetadataExt;
    data.path().metadata().unwrap().atime()
}

#[test]
fn reads_past_the_page_cache_leave_the_access_time_alone() {
    let data = data_file(64 << 10);
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
    let set = |file: &std::fs::File| {
        let times = std::fs::FileTimes::new().set_accessed(long_ago);
        file.set_times(times).unwrap();
    };
    // Where the file system keeps no such time, a plain read leaves it alone, too.
    set(data.as_file());
    std::fs::read(data.path()).unwrap();
    if accessed(&data) == 1 {
        return println!("skipped: access times: the file system keeps none");
    }
    let memory = memory(8);
    for by_descriptor in [false, true] {
        set(data.as_file());
        let file = match by_descriptor {
            false => memory.open(data.path(), &memory.root()),
            true => memory.open_file(data.reopen().unwrap(), &memory.root()),
        };
        let file = file.unwrap();
        check(&file, 0, 64 << 10);
        if memory.stats().buffered_reads == 0 {
            assert_eq!(accessed(&data), 1);
        }
    }
}

#[test]
fn a_page_at_whose_write_a_store_unwinds_keeps_no_other_from_it_at_the_end() {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let written = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&written);
    let store = Forgets(move |bytes: &[u8], offset| {
        if offset == 3 * 4096 {
            resume_unwind(Box::new("a store that unwinds"));
        }
        seen.lock().unwrap().insert(offset / 4096);
        Ok(bytes.len())
    });
    let file = memory.open_store(Box::new(store), "disk", &memory.root());
    let file = file.unwrap();
    (0..100).for_each(|page| _ = file.write_at(&[7; 4096], page * 4096).unwrap());
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(file)));
    assert!(dropped.is_err());
    let is_missing = |page: &u64| !written.lock().unwrap().contains(page);
    assert_eq!((0..100).filter(is_missing).collect::<Vec<_>>(), [3]);
    assert_eq!(memory.stats().pages_lost, 1);
}
