//! Reads with options, pages that are written where no thread does it, stores that cannot sync.

use crate::disk::{Bare, Disk};
use crate::swift::assert_within;
use pagetide::{ByteSize, Error, Group, Memory, OpenOptions, Order, Policy, ReadOptions};
use std::io;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const P: u64 = PAGE as u64;

fn memory() -> Memory {
    let builder = Memory::builder()
        .budget(ByteSize::mib(8))
        .policy(Policy::Mglru);
    builder.without_thread().build().unwrap()
}

fn child(memory: &Memory, name: &str, nr_pages: u64) -> Group {
    let group = memory.root().child(name).unwrap();
    group.max(ByteSize::kib(4 * nr_pages)).unwrap()
}

#[test]
fn a_read_is_charged_to_the_group_of_its_options_and_has_its_bytes() {
    let memory = memory();
    let (own, other) = (child(&memory, "own", 64), child(&memory, "other", 64));
    let disk = Box::new(Disk::of(vec![7; 20 * PAGE]));
    let file = memory.open_store(disk, "disk", &own).unwrap();
    let options = ReadOptions::new().group(&other);
    let mut bytes = vec![0; 10 * PAGE];
    assert_eq!(
        file.read_at_with(&mut bytes, P, &options).unwrap(),
        10 * PAGE
    );
    assert!(bytes.iter().all(|&byte| byte == 7));
    assert_eq!((own.misses(), other.misses()), (0, 10));
    other.set_pin_max(Some(ByteSize::kib(4)));
    let page = file.pin_with(12, &options).unwrap();
    assert!(page.iter().all(|&byte| byte == 7) && other.misses() == 11);
    assert!(matches!(
        file.pin_with(13, &options),
        Err(Error::PinLimit { .. })
    ));
    assert!(file.pin_with(13, &ReadOptions::new()).is_ok());
    assert!(matches!(
        file.pin_with(20, &ReadOptions::new()),
        Err(Error::PastEnd { .. })
    ));
}

#[test]
fn what_is_read_without_reuse_goes_before_what_is_read_again() {
    let nr_read = |is_noreuse| {
        let memory = memory();
        let group = child(&memory, "small", 100);
        let disk = Box::new(Disk::of(vec![7; 2000 * PAGE]));
        let file = memory.open_store(disk, "disk", &group).unwrap();
        // Hot pages, and between them a scan that looks at each page three times.
        for round in 0..40 {
            for hot in 0..60 {
                drop(file.pin(hot).unwrap());
            }
            let options = ReadOptions::new().noreuse(is_noreuse);
            for page in (0..100).flat_map(|page| [100 + (round * 100 + page) % 1900; 3]) {
                drop(file.pin_with(page, &options).unwrap());
            }
        }
        memory.stats().bytes_read / P
    };
    let (with, without) = (nr_read(true), nr_read(false));
    assert!(
        with < without,
        "{with} pages read, {without} where all is counted"
    );
}

#[test]
fn a_deadline_ends_waits_for_memory_and_for_who_changes_a_page() {
    // Each of the waits would take 200 ms or a second.
    assert_within(Duration::from_millis(900), || {
        let memory = memory();
        let group = child(&memory, "small", 4);
        let disk = Box::new(Disk::of(vec![7; 20 * PAGE]));
        let file = memory.open_store(disk, "disk", &group);
        let file = file.unwrap();
        let view = file.pin_mut(0).unwrap();
        let begin = Instant::now();
        let options = ReadOptions::new().deadline(begin + Duration::from_millis(20));
        assert!(matches!(
            file.pin_with(0, &options),
            Err(Error::PageBusy { page: 0, .. })
        ));
        let pins: Vec<_> = (1..20)
            .map_while(|page| file.pin_with(page, &options).ok())
            .collect();
        assert!((1..4).contains(&pins.len()));
        let full = file.read_at_with(&mut [0], 19 * P, &options);
        assert!(matches!(full, Err(Error::OverLimit { .. })), "{full:?}");
        let took = begin.elapsed();
        drop((view, pins));
        assert!(file.read_at_with(&mut [0], 19 * P, &options).is_ok());
        took
    });
}

/// Beside a pin that fills what the group has, and might go.
#[test]
fn a_page_for_which_a_limit_leaves_no_room_at_all_is_refused_at_once() {
    let memory = memory();
    let group = child(&memory, "small", 100);
    let disk = Box::new(Disk::of(vec![7; 20 * PAGE]));
    let file = memory.open_store(disk, "disk", &group).unwrap();
    let order = Order::new(2);
    let disk = Box::new(Disk::of(vec![7; 20 * PAGE]));
    let large = OpenOptions::new().order(order);
    let large = large.open_store(&memory, disk, "large", &group).unwrap();
    let pinned = file.pin(0).unwrap();
    let at_once = Duration::from_millis(100);
    for nr_pages in [3, 0] {
        let set = group.set_max(ByteSize::kib(4 * nr_pages));
        assert_eq!(set.is_ok(), nr_pages > 0, "{set:?}");
        for file in [&large, &file] {
            let has_room = file.page_bytes() as u64 <= nr_pages * P;
            let calls: [&dyn Fn() -> Result<(), Error>; 3] = [
                &|| file.pin(1).map(drop),
                &|| file.pin_mut(1).map(drop),
                &|| file.write_at(&[1], 2 * file.page_bytes() as u64).map(drop),
            ];
            for call in calls.into_iter().filter(|_| !has_room) {
                assert_within(at_once, || {
                    let begin = Instant::now();
                    let refused = call();
                    assert!(
                        matches!(refused, Err(Error::OverLimit { .. })),
                        "{refused:?}"
                    );
                    begin.elapsed()
                });
            }
        }
    }
    drop(pinned);
}

#[test]
fn a_tick_writes_back_where_no_thread_does() {
    let memory = memory();
    let group = child(&memory, "small", 100);
    let disk = Disk::default();
    let store = Box::new(disk.clone());
    let file = memory.open_store(store, "disk", &group).unwrap();
    file.write_at(&[1; 9 * PAGE], 0).unwrap();
    memory.tick();
    assert_eq!(disk.state().nr_writes, 0, "below a tenth, and not for long");
    file.write_at(&[1; 3 * PAGE], 9 * P).unwrap();
    memory.tick();
    assert_eq!(disk.state().bytes.len(), 12 * PAGE);
}

#[test]
fn a_tick_writes_what_a_dropped_group_has_left() {
    let memory = memory();
    let (own, gone) = (child(&memory, "own", 100), child(&memory, "gone", 100));
    let disk = Disk::default();
    let store = Box::new(disk.clone());
    let file = memory.open_store(store, "disk", &own);
    let file = file.unwrap();
    file.write_at(&[1; PAGE], 0).unwrap();
    file.for_group(&gone).write_at(&[2; PAGE], P).unwrap();
    memory.tick();
    assert_eq!(disk.state().nr_writes, 0);
    drop(gone);
    memory.tick();
    assert_eq!(disk.state().nr_writes, 1);
    assert_eq!(disk.state().bytes[PAGE..], [2; PAGE]);
    file.sync().unwrap();
}

#[test]
fn a_store_that_cannot_sync_says_so_and_goes_on_taking_writes() {
    let memory = memory();
    let disk = Disk::default();
    let store = Box::new(Bare(disk.clone()));
    let root = memory.root();
    let file = memory.open_store(store, "volatile", &root).unwrap();
    for byte in 1..3 {
        file.write_at(&[byte; 10], 0).unwrap();
        let Err(Error::WritebackFailed { source, .. }) = file.sync() else {
            panic!("nothing is durable");
        };
        assert_eq!(source.kind(), io::ErrorKind::Unsupported);
        assert_eq!(disk.state().bytes, [byte; 10]);
    }
    file.close().unwrap();
}
