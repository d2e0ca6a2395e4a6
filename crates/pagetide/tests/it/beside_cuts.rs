//! Reads, pins and moves of pages beside a file that is made shorter and longer.

use crate::by_cpu;
use crate::callers::Unwinding;
use crate::disk::Disk;
use crate::gate::Gated;
use pagetide::{ByteSize, File, Hint, Memory, Order, PAGE_BYTES, Store};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

const PAGE: u64 = PAGE_BYTES as u64;

/// A file of sevens.
fn sevens(nr_pages: usize) -> (Memory, File) {
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let disk = Box::new(Disk::of(vec![7; nr_pages * PAGE_BYTES]));
    let file = memory.open_store(disk, "disk", &memory.root());
    (memory, file.unwrap())
}

/// Polls a future that waits for page 0, makes the file shorter, and polls it again.
fn beside_a_cut<T>(file: &File, future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    let mut future = pin!(future);
    let view = file.pin_mut(0).unwrap();
    assert!(future.as_mut().poll(&mut context).is_pending());
    drop(view);
    file.set_len(100).unwrap();
    match future.poll(&mut context) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("nobody has the page"),
    }
}

#[test]
fn a_task_gets_no_bytes_behind_an_end_that_came_while_it_waited() {
    let (_memory, file) = sevens(4);
    let mut buf = vec![9; PAGE_BYTES];
    let len = beside_a_cut(&file, file.read_at_async(&mut buf, 0)).unwrap();
    assert_eq!(buf[..len], [7; 100]);
    let (_memory, file) = sevens(4);
    let page = beside_a_cut(&file, file.pin_async(0)).unwrap();
    assert_eq!(page[..], [7; 100]);
}

#[test]
fn a_read_beside_a_cut_returns_what_the_file_had_at_some_time() {
    let (_memory, file) = sevens(4);
    type Read = fn(&File) -> Vec<u8>;
    let reads: [Read; 4] = [
        |file| {
            let mut buf = vec![9; PAGE_BYTES];
            let len = file.read_at(&mut buf, 0).unwrap();
            buf[..len].to_vec()
        },
        |file| file.pin(0).unwrap().to_vec(),
        |file| file.pin_many(&[0]).unwrap()[0].to_vec(),
        |file| file.pin_longterm(0).unwrap().to_vec(),
    ];
    for round in 0..200 {
        file.write_at(&[7; PAGE_BYTES], 0).unwrap();
        let view = file.pin_mut(0).unwrap();
        let read = reads[round % reads.len()];
        thread::scope(|scope| {
            let reader = scope.spawn(|| read(&file));
            let cutter = scope.spawn(|| file.set_len(100).unwrap());
            thread::sleep(Duration::from_millis(2));
            drop(view);
            cutter.join().unwrap();
            let bytes = reader.join().unwrap();
            assert!(bytes.iter().all(|&byte| byte == 7), "round {round}");
        });
    }
}

#[test]
fn pages_that_move_while_the_file_is_cut_go_too() {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let builder = builder.topology(by_cpu::two()).without_thread();
    let memory = builder.build().unwrap();
    let root = memory.root();
    let content = (ByteSize::mib(16).as_u64() - root.stat().kernel) / PAGE;
    // Two such files leave a few frames to move to, and no block.
    let nr_pages = content / 2 - 60;
    let bytes = vec![7; usize::try_from(nr_pages * PAGE).unwrap()];
    let gated = Gated::of(bytes.clone());
    let stores: [(Box<dyn Store>, _); 2] = [
        (Box::new(gated.clone()), "gated"),
        (Box::new(Disk::of(bytes)), "filler"),
    ];
    let [file, filler] = stores.map(|(store, name)| {
        let file = memory.open_store(store, name, &root).unwrap();
        file.advise(Hint::Random);
        file
    });
    thread::scope(|scope| {
        // The last page is listed first, and its read takes long.
        let shut = gated.reads.shut_for(1);
        let reader = scope.spawn(|| file.read_at(&mut [0], (nr_pages - 1) * PAGE).unwrap());
        shut.await_one();
        for page in 0..nr_pages - 1 {
            file.read_at(&mut [0], page * PAGE).unwrap();
            filler.read_at(&mut [0], page * PAGE).unwrap();
        }
        filler.invalidate_range(..).unwrap();
        let cutter = scope.spawn(|| file.set_len(nr_pages / 2 * PAGE).unwrap());
        while file.len() > nr_pages / 2 * PAGE {
            thread::yield_now();
        }
        // It waits for the last page by now.
        thread::sleep(Duration::from_millis(100));
        let blocks = (0..24).map_while(|_| root.alloc(Order::new(5)).ok());
        let blocks: Vec<_> = blocks.collect();
        assert!(memory.stats().pgmigrate_success > 0, "no page has moved");
        drop(shut);
        reader.join().unwrap();
        cutter.join().unwrap();
        drop(blocks);
    });
    file.set_len(nr_pages * PAGE).unwrap();
    let is_stale = |&page: &u64| {
        let mut byte = [9];
        file.read_at(&mut byte, page * PAGE).unwrap();
        byte != [0]
    };
    let stale: Vec<u64> = (nr_pages / 2..nr_pages).filter(is_stale).collect();
    assert!(stale.is_empty(), "pages {stale:?} have old bytes");
}

/// Calls `change` while a task waits for page 5, whose waker unwinds.
fn unwinding(file: &File, change: fn(&File)) {
    let pinned = file.pin(5).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_at(&[9; 10], 5 * PAGE));
        // He waits for the pin, and the task for him.
        while file.try_pin(5).unwrap().is_some() {
            thread::yield_now();
        }
        let waker = Waker::from(Arc::new(Unwinding));
        let mut task = pin!(file.pin_async(5));
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let changed = catch_unwind(AssertUnwindSafe(|| change(file)));
        assert!(changed.is_err(), "nobody was woken");
        writer.join().unwrap().unwrap();
    });
    drop(pinned);
}

#[test]
fn all_that_is_cut_off_or_in_a_hole_is_gone_where_a_waker_unwinds() {
    let all = || {
        let (memory, file) = sevens(10);
        drop(file.pin_many(&(0..10).collect::<Vec<_>>()).unwrap());
        (memory, file)
    };
    let firsts = |file: &File| {
        let first = |page| file.pin(page).unwrap()[100];
        (0..10).map(first).collect::<Vec<_>>()
    };
    let (_memory, file) = all();
    unwinding(&file, |file| file.set_len(PAGE).unwrap());
    file.write_at(&[9], 10 * PAGE).unwrap();
    assert_eq!(firsts(&file), [7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for change in [
        (|file| file.punch(..9 * PAGE).unwrap()) as fn(&File),
        |file| file.punch(3 * PAGE..9 * PAGE).unwrap(),
    ] {
        let (_memory, file) = all();
        unwinding(&file, change);
        let found = firsts(&file);
        file.sync().unwrap();
        file.invalidate_range(..).unwrap();
        assert_eq!(found, firsts(&file), "the store has other bytes");
        assert_eq!(found[3..], [0, 0, 0, 0, 0, 0, 7]);
    }
}

#[test]
fn who_reads_while_the_end_that_others_made_is_found_sees_no_zeros_before_it() {
    let gated = Gated::of(vec![7; PAGE_BYTES + 100]);
    let memory = Memory::builder().budget(ByteSize::mib(8));
    let memory = memory.without_thread().build().unwrap();
    let file = gated.open(&memory, &memory.root());
    assert_eq!(file.pin(1).unwrap()[..], [7; 100]);
    // Others write behind its end.
    gated.disk.state().bytes.resize(2 * PAGE_BYTES, 7);
    let shut = gated.reads.shut_for(1);
    let is_sevens = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 7);
    thread::scope(|scope| {
        scope.spawn(|| file.read_at(&mut [0; 10], 0).unwrap());
        shut.await_one();
        // It drops that page first, and waits for who reads it.
        let found = scope.spawn(|| file.invalidate_range(..PAGE));
        let mut buf = vec![9; PAGE_BYTES];
        for _ in 0..20_000 {
            let len = file.read_at(&mut buf, PAGE).unwrap();
            assert!(
                is_sevens(&buf[..len]),
                "{len} bytes, not all of them the file's"
            );
            assert!(is_sevens(&file.pin(1).unwrap()));
            thread::yield_now();
        }
        drop(shut);
        found.join().unwrap().unwrap();
    });
    assert_eq!(file.len(), 2 * PAGE);
    let mut buf = vec![9; 2 * PAGE_BYTES];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 2 * PAGE_BYTES);
    assert!(is_sevens(&buf));
}
