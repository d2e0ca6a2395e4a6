//! How long a memory is there.

use super::*;
use crate::{Buf, ByteSize, File, Hint, Memory, Order, Page};
use std::io::Write;
use std::sync::{Barrier, Weak};
use std::thread;

const NR_PAGES: u64 = 8;

static FORGOTTEN: Mutex<Vec<Arc<Shared>>> = Mutex::new(Vec::new());

fn data() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for page in 0..NR_PAGES {
        file.write_all(&[number(page); 4096]).unwrap();
    }
    file
}

fn number(page: u64) -> u8 {
    u8::try_from(page).unwrap() + 1
}

/// A memory that has no threads, by which alone it is kept; and a file of it.
fn open(data: &tempfile::NamedTempFile) -> (Memory, File, Weak<Shared>) {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.without_thread().build().unwrap();
    let file = memory.open_rw(data.path(), &memory.root()).unwrap();
    let shared = Arc::downgrade(memory.home().shared());
    (memory, file, shared)
}

fn check(page: &Page, at: u64) {
    assert!(page.iter().all(|&byte| byte == number(at)));
}

#[test]
fn a_memory_goes_with_its_last_handle_or_its_last_page() {
    let data = data();
    let (memory, file, shared) = open(&data);
    drop(file.pin(0).unwrap());
    let other = file.pin(1).unwrap();
    drop((memory, other));
    assert!(shared.upgrade().is_some());
    drop(file);
    assert!(shared.upgrade().is_none(), "no page is pinned");

    let (memory, file, shared) = open(&data);
    let pages = [0, 1, 1].map(|page| file.pin(page).unwrap());
    drop((memory, file));
    let [first, second, again] = pages;
    drop(second);
    drop(first);
    assert!(shared.upgrade().is_some());
    check(&again, 1);
    drop(again);
    assert!(shared.upgrade().is_none());
}

#[test]
fn a_page_is_in_no_count_of_shares() {
    let data = data();
    let (memory, file, _) = open(&data);
    let home = memory.home();
    let counts = || {
        let shares = Arc::strong_count(home.shared());
        [Arc::strong_count(&home.handles), shares]
    };
    // Nothing is read any more: reads in the background have shares.
    file.advise(Hint::Random);
    drop([0, 1, 2, 3].map(|page| file.pin(page).unwrap()));
    let before = counts();
    let pages = [0, 0, 1].map(|page| file.pin(page).unwrap());
    let many = file.pin_many(&[2, 3]).unwrap();
    let buf = memory.root().alloc(Order::new(0)).unwrap();
    assert_eq!(counts(), before);
    drop((pages, many, buf));
    assert_eq!(counts(), before);
}

#[test]
fn a_memory_goes_with_its_last_block() {
    let data = data();
    let (memory, file, shared) = open(&data);
    let group = memory.root().child("query").unwrap();
    // Some come back into the magazine, some out of it, one to another CPU's.
    let take = || group.alloc(Order::new(0)).unwrap();
    let mut bufs: Vec<Buf> = (0..100).map(|_| take()).collect();
    drop(bufs.split_off(70));
    bufs.extend((0..10).map(|_| take()));
    let page = file.pin(0).unwrap();
    drop((memory, file, group));
    let last = bufs.pop().unwrap();
    drop(bufs);
    drop(page);
    let shares = shared.upgrade().expect("a block is in use");
    assert_eq!(shares.core.audit(), Ok(()));
    drop(shares);
    assert!(last.iter().all(|&byte| byte == 0));
    thread::spawn(move || drop(last)).join().unwrap();
    assert!(shared.upgrade().is_none());
}

#[test]
fn blocks_go_on_other_threads_while_the_last_handle_does() {
    let data = data();
    for round in 0..300 {
        let (memory, file, shared) = open(&data);
        let root = memory.root();
        let begin = Arc::new(Barrier::new(3));
        let droppers = [0, 1].map(|_| {
            let take = |_| root.alloc_unzeroed(Order::new(0)).unwrap();
            let bufs: Vec<Buf> = (0..round % 40 + 1).map(take).collect();
            let begin = Arc::clone(&begin);
            thread::spawn(move || {
                begin.wait();
                drop(bufs);
            })
        });
        begin.wait();
        drop((memory, file, root));
        for dropper in droppers {
            dropper.join().unwrap();
        }
        assert!(shared.upgrade().is_none(), "round {round}");
    }
}

#[test]
fn a_view_that_writes_becomes_the_page_that_keeps_the_memory() {
    let data = data();
    let (memory, file, shared) = open(&data);
    let view = file.upgrade(file.pin(3).unwrap()).unwrap();
    drop((memory, file));
    let page = view.downgrade();
    check(&page, 3);
    assert!(shared.upgrade().is_some());
    drop(page);
    assert!(shared.upgrade().is_none());
}

#[test]
fn a_page_that_is_forgotten_keeps_the_memory_for_ever() {
    let data = data();
    let (memory, file, shared) = open(&data);
    let [page, forgotten] = [0, 0].map(|page| file.pin(page).unwrap());
    mem::forget(forgotten);
    drop((memory, file));
    drop(page);
    let stays = shared.upgrade().expect("a page is pinned");
    // Where it can be found, so that nobody takes it for a leak.
    locked(&FORGOTTEN).push(stays);
}

#[test]
fn pages_go_on_other_threads_while_the_last_handle_does() {
    let data = data();
    for round in 0..300 {
        let (memory, file, shared) = open(&data);
        let begin = Arc::new(Barrier::new(3));
        let droppers = [0, 1].map(|nr| {
            let pages: Vec<(u64, Page)> = (0..round % 4 + 1)
                .map(|page| (page, file.pin(page).unwrap()))
                .collect();
            let begin = Arc::clone(&begin);
            thread::spawn(move || {
                begin.wait();
                for (at, page) in pages {
                    check(&page, at);
                    drop(page);
                    if nr == 0 {
                        thread::yield_now();
                    }
                }
            })
        });
        begin.wait();
        drop((memory, file));
        for dropper in droppers {
            dropper.join().unwrap();
        }
        assert!(shared.upgrade().is_none(), "round {round}");
    }
}
