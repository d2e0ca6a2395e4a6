//! A file that gets shorter while pages behind its new end are being written.

use crate::disk::{Bare, Disk, EIO, Fault, forward};
use crate::gate::Gated;
use pagetide::{ByteSize, Error, File, Memory, Store};
use std::io;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// Makes a file of four pages shorter. From then on its store is not asked whether it can be cut:
/// it would be made as long as the file is for that.
fn asked_before(file: &File) {
    file.set_len(3 * PAGE as u64).unwrap();
}

fn wait_until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "it never is");
        std::thread::yield_now();
    }
}

#[test]
fn a_write_under_way_brings_nothing_back_that_was_cut() {
    let store = Gated::of(vec![7; 16 * PAGE]);
    let memory = &Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let group = &memory.root();
    let file = &store.open(memory, group);
    file.write_at(&[1; PAGE], 12 * PAGE as u64).unwrap();
    std::thread::scope(|scope| {
        let shut = store.answers.shut();
        scope.spawn(|| file.flush_range(..).unwrap());
        shut.await_one();
        scope.spawn(|| file.set_len(5 * PAGE as u64).unwrap());
        wait_until(|| file.len() == 5 * PAGE as u64);
        drop(shut);
    });
    assert_eq!(store.disk.state().bytes.len(), 5 * PAGE);
    file.write_at(&[2; PAGE], 14 * PAGE as u64).unwrap();
    let mut bytes = vec![9; 9 * PAGE];
    assert_eq!(file.read_at(&mut bytes, 5 * PAGE as u64).unwrap(), 9 * PAGE);
    assert!(bytes.iter().all(|&byte| byte == 0), "old bytes are back");
}

#[test]
fn a_write_under_way_before_the_new_end_is_not_cut_off() {
    let store = Gated::of(vec![7; 4 * PAGE]);
    let memory = &Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let group = &memory.root();
    let file = &store.open(memory, group);
    asked_before(file);
    file.write_at(&[1; PAGE], 9 * PAGE as u64).unwrap();
    file.write_at(&[1; PAGE], 13 * PAGE as u64).unwrap();
    std::thread::scope(|scope| {
        let shut = store.answers.shut();
        let pages = 9 * PAGE as u64..10 * PAGE as u64;
        scope.spawn(move || file.flush_range(pages).unwrap());
        shut.await_one();
        file.set_len(12 * PAGE as u64).unwrap();
        drop(shut);
    });
    file.sync().unwrap();
    let on_disk = store.disk.state().durable.clone();
    assert_eq!(on_disk.len(), 12 * PAGE);
    let page = &on_disk[9 * PAGE..10 * PAGE];
    assert!(page.iter().all(|&byte| byte == 1), "the page is lost");
}

#[test]
fn a_page_behind_the_new_end_does_not_make_the_store_longer() {
    let store = Gated::of(vec![7; 4 * PAGE]);
    let memory = &Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let group = &memory.root();
    let file = &store.open(memory, group);
    asked_before(file);
    file.write_at(&[1; PAGE], 11 * PAGE as u64).unwrap();
    file.write_at(&[1; PAGE], 13 * PAGE as u64).unwrap();
    std::thread::scope(|scope| {
        let shut = store.writes.shut();
        let pages = 11 * PAGE as u64..12 * PAGE as u64;
        scope.spawn(move || file.flush_range(pages).unwrap());
        shut.await_one();
        scope.spawn(|| file.set_len(10 * PAGE as u64).unwrap());
        wait_until(|| file.len() == 10 * PAGE as u64);
        // Page 13 is still to be dropped: reclaim meets it first, and has nothing to write of it.
        scope.spawn(|| group.reclaim(ByteSize::kib(8)));
        wait_until(|| group.stat().file == PAGE as u64);
        let mut bytes = [9; PAGE];
        assert_eq!(file.read_at(&mut bytes, 8 * PAGE as u64).unwrap(), PAGE);
        assert!(bytes.iter().all(|&byte| byte == 0), "nobody wrote there");
        drop(shut);
    });
    assert_eq!(store.disk.state().bytes.len(), 10 * PAGE);
}

#[test]
fn a_file_whose_store_has_no_way_to_be_cut_stays_as_it_was() {
    let disk = Disk::of(vec![7; 4 * PAGE]);
    let memory = &Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let store = Box::new(Bare(disk.clone()));
    let file = memory.open_store(store, "uncut", &memory.root());
    let file = file.unwrap();
    let page = PAGE as u64;
    // In memory alone.
    file.write_at(&[8; 2 * PAGE], 3 * page).unwrap();
    for len in [2 * page, page + 10, 9 * page] {
        let refused = file.set_len(len);
        let Err(Error::WritebackFailed { source, .. }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(source.kind(), io::ErrorKind::Unsupported);
        assert_eq!(file.len(), 5 * page);
    }
    assert_eq!([2, 3, 4].map(|at| file.pin(at).unwrap()[0]), [7, 8, 8]);
    file.write_at(&[9; 10], 0).unwrap();
    file.flush_range(..).unwrap();
    file.punch(page..2 * page).unwrap();
    assert_eq!(
        file.set_len(page).unwrap_err().to_string(),
        "the store of uncut failed; none of the file's pages is dirty now"
    );
    let state = disk.state();
    assert_eq!(
        [0, 1, 2, 3, 4].map(|at| state.bytes[at * PAGE]),
        [9, 0, 7, 8, 8]
    );
}

/// A store that is as long as it was told and says that it failed, where its disk has the fault.
struct LateLength(Disk);

impl Store for LateLength {
    forward!(0: read_at, len, is_writable, write_at, sync);

    fn set_len(&self, len: u64) -> io::Result<()> {
        let is_late = self.0.state().fault.take().is_some();
        self.0.set_len(len)?;
        match is_late {
            true => Err(io::Error::from_raw_os_error(EIO)),
            false => Ok(()),
        }
    }
}

#[test]
fn a_store_that_got_longer_and_failed_is_as_long_as_the_file_again() {
    let disk = Disk::of(vec![7; 2 * PAGE]);
    let memory = &Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let store = Box::new(LateLength(disk.clone()));
    let file = memory.open_store(store, "late", &memory.root()).unwrap();
    disk.state().fault = Some((0, 0, Fault::Late));
    let refused = file.set_len(4 * PAGE as u64);
    assert!(
        matches!(refused, Err(Error::WritebackFailed { .. })),
        "{refused:?}"
    );
    assert_eq!(file.len(), 2 * PAGE as u64);
    file.sync().unwrap();
    assert_eq!(disk.state().durable.len(), 2 * PAGE);
}

/// A disk that cannot be longer than 16 pages.
struct Bounded(Disk);

impl Store for Bounded {
    forward!(0: read_at, len, is_writable, sync);

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Bounded::check(offset + buf.len() as u64)?;
        self.0.write_at(buf, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Bounded::check(len)?;
        self.0.set_len(len)
    }
}

impl Bounded {
    fn check(end: u64) -> io::Result<()> {
        match end > 16 * PAGE as u64 {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(()),
        }
    }
}

#[test]
fn an_end_that_the_store_cannot_have_is_followed_by_one_that_it_can() {
    let disk = Disk::of(vec![7; 4 * PAGE]);
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let store = Box::new(Bounded(disk.clone()));
    let file = memory.open_store(store, "bounded", &memory.root()).unwrap();
    file.write_at(&[1; PAGE], 100 * PAGE as u64).unwrap();
    assert!(file.set_len(50 * PAGE as u64).is_err());
    assert_eq!(file.len(), 50 * PAGE as u64);
    assert!(file.write_at(&[2], 0).is_err(), "its end is not made");
    file.set_len(3 * PAGE as u64).unwrap();
    file.write_at(&[2], 0).unwrap();
    file.sync().unwrap();
    let durable = disk.state().durable.clone();
    assert_eq!((durable.len(), durable[0], durable[1]), (3 * PAGE, 2, 7));
}
