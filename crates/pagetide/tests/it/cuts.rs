//! A file that gets shorter while pages behind its new end are being written.

use crate::disk::{Bare, Disk, forward};
use pagetide::{ByteSize, Error, File, Group, Memory, Store};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// A store whose writes end, or begin, only when the test lets go of the gate.
#[derive(Clone, Default)]
struct Gated {
    disk: Disk,
    gate: Arc<Mutex<()>>,
    waits_first: bool,
    nr_waiting: Arc<AtomicU64>,
}

impl Gated {
    fn of(bytes: Vec<u8>) -> Gated {
        Gated {
            disk: Disk::of(bytes),
            ..Gated::default()
        }
    }

    fn open(&self, memory: &Memory, group: &Group) -> File {
        let store = Box::new(self.clone());
        memory.open_store(store, "gated", group).unwrap()
    }
}

impl Store for Gated {
    forward!(disk: read_at, len, is_writable, sync, set_len);

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let write = || self.disk.write_at(buf, offset);
        let early = (!self.waits_first).then(write);
        self.nr_waiting.fetch_add(1, Ordering::SeqCst);
        let _open = self.gate.lock().unwrap();
        early.unwrap_or_else(write)
    }
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
        let held = store.gate.lock().unwrap();
        scope.spawn(|| file.flush_range(..).unwrap());
        wait_until(|| store.nr_waiting.load(Ordering::SeqCst) > 0);
        scope.spawn(|| file.set_len(5 * PAGE as u64).unwrap());
        wait_until(|| file.len() == 5 * PAGE as u64);
        drop(held);
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
    file.write_at(&[1; PAGE], 9 * PAGE as u64).unwrap();
    file.write_at(&[1; PAGE], 13 * PAGE as u64).unwrap();
    std::thread::scope(|scope| {
        let held = store.gate.lock().unwrap();
        let pages = 9 * PAGE as u64..10 * PAGE as u64;
        scope.spawn(move || file.flush_range(pages).unwrap());
        wait_until(|| store.nr_waiting.load(Ordering::SeqCst) > 0);
        file.set_len(12 * PAGE as u64).unwrap();
        drop(held);
    });
    file.sync().unwrap();
    let on_disk = store.disk.state().durable.clone();
    assert_eq!(on_disk.len(), 12 * PAGE);
    let page = &on_disk[9 * PAGE..10 * PAGE];
    assert!(page.iter().all(|&byte| byte == 1), "the page is lost");
}

#[test]
fn a_page_behind_the_new_end_does_not_make_the_store_longer() {
    let store = Gated {
        waits_first: true,
        ..Gated::of(vec![7; 4 * PAGE])
    };
    let memory = &Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let group = &memory.root();
    let file = &store.open(memory, group);
    file.write_at(&[1; PAGE], 11 * PAGE as u64).unwrap();
    file.write_at(&[1; PAGE], 13 * PAGE as u64).unwrap();
    std::thread::scope(|scope| {
        let held = store.gate.lock().unwrap();
        let pages = 11 * PAGE as u64..12 * PAGE as u64;
        scope.spawn(move || file.flush_range(pages).unwrap());
        wait_until(|| store.nr_waiting.load(Ordering::SeqCst) > 0);
        scope.spawn(|| file.set_len(10 * PAGE as u64).unwrap());
        wait_until(|| file.len() == 10 * PAGE as u64);
        // Page 13 is still to be dropped: reclaim meets it first, and has nothing to write of it.
        scope.spawn(|| group.reclaim(ByteSize::kib(8)));
        wait_until(|| group.stat().file == PAGE as u64);
        let mut bytes = [9; PAGE];
        assert_eq!(file.read_at(&mut bytes, 8 * PAGE as u64).unwrap(), PAGE);
        assert!(bytes.iter().all(|&byte| byte == 0), "nobody wrote there");
        drop(held);
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
