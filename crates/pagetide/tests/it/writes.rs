//! Writes: bytes, ends of files, files of the system, limits, threads.

use crate::disk::{Disk, EIO, Fault};
use pagetide::{ByteSize, Error, File, Memory, OpenOptions, Order};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn memory(mib: u64) -> Memory {
    Memory::builder()
        .budget(ByteSize::mib(mib))
        .build()
        .unwrap()
}

#[test]
fn a_file_has_what_was_written_and_is_no_longer() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(8);
    for (order, len) in [(0, 10_000), (0, PAGE), (2, 70_001), (0, 511), (1, 8704)] {
        let path = folder.path().join(format!("{order} {len}"));
        let options = OpenOptions::new().write(true).create_new(true);
        let options = options.order(Order::new(order));
        let file = options.open(&memory, &path, &memory.root()).unwrap();
        assert!(file.is_empty());
        let bytes: Vec<u8> = (0..len)
            .map(|at: usize| (at % 251).to_le_bytes()[0])
            .collect();
        // In pieces that end anywhere.
        for (piece, part) in bytes.chunks(1717).enumerate() {
            file.write_at(part, piece as u64 * 1717).unwrap();
            if piece % 3 == 0 {
                file.flush_range(..).unwrap();
                let on_disk = fs::metadata(&path).unwrap().len();
                assert_eq!(on_disk, file.len());
            }
        }
        file.sync().unwrap();
        assert!(
            fs::read(&path).unwrap() == bytes,
            "order {order}, {len} bytes"
        );
        // A hole, seen before it is one in the file, and after.
        file.write_at(b"end", 300_000).unwrap();
        let mut found = vec![1; 300_003];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 300_003);
        let mut expected = bytes;
        expected.resize(300_000, 0);
        expected.extend(b"end");
        assert!(found == expected);
        drop(file);
        assert!(fs::read(&path).unwrap() == expected);
    }
    assert_eq!(memory.stats().pages_lost, 0);
}

#[test]
fn whole_pages_are_not_read_and_parts_of_pages_are() {
    let disk = Disk::of(vec![7; 16 * PAGE]);
    let memory = memory(8);
    let store = Box::new(disk.clone());
    let file = memory.open_store(store, "disk", &memory.root()).unwrap();
    file.write_at(&[1; 3 * PAGE], PAGE as u64).unwrap();
    // Behind the end there is nothing to read.
    file.write_at(&[1; 10], 16 * PAGE as u64 + 5).unwrap();
    assert_eq!(memory.stats().bytes_read, 0);
    file.write_at(&[1; 10], 5).unwrap();
    assert_eq!(memory.stats().bytes_read, PAGE as u64);
    file.flush_range(..).unwrap();
    let state = disk.state();
    // Neighbours go together: pages 0 to 3, and the last one.
    assert!(state.nr_writes <= 5 && state.bytes.len() == 16 * PAGE + 15);
}

#[test]
fn handles_share_what_is_written_and_only_writers_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, vec![1; 9000]).unwrap();
    let memory = memory(8);
    let reader = memory.open(&path, &memory.root()).unwrap();
    assert!(matches!(
        reader.write_at(b"x", 0),
        Err(Error::ReadOnly { .. })
    ));
    let writer = memory.open_rw(&path, &memory.root()).unwrap();
    writer.write_at(&[2; 9001], 0).unwrap();
    let mut bytes = vec![0; 10_000];
    assert_eq!(reader.read_at(&mut bytes, 0).unwrap(), 9001);
    assert!(bytes[..9001].iter().all(|&byte| byte == 2));
    assert!(matches!(
        reader.write_at(b"x", 0),
        Err(Error::ReadOnly { .. })
    ));
    // Other pages of the same bytes would not see it.
    let other = OpenOptions::new()
        .order(Order::new(1))
        .open(&memory, &path, &memory.root());
    assert!(matches!(other, Err(Error::Open { .. })));
    drop(writer);
    reader.sync().unwrap();
    assert_eq!(fs::read(&path).unwrap(), vec![2; 9001]);
    assert!(matches!(
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&memory, &path, &memory.root()),
        Err(Error::Open { .. })
    ));
    let far = memory
        .open_rw(&path, &memory.root())
        .unwrap()
        .write_at(b"x", u64::MAX - 3);
    assert!(matches!(far, Err(Error::PastEnd { .. })));
    let text = far.unwrap_err().to_string();
    assert!(
        text.ends_with("the last one that there can be, 2^40 - 1"),
        "{text}"
    );
}

#[test]
fn bytes_under_a_pin_stay_and_their_writer_gets_an_error_in_the_end() {
    let disk = Disk::of(vec![7; 4 * PAGE]);
    let memory = memory(8);
    let file = memory
        .open_store(Box::new(disk), "disk", &memory.root())
        .unwrap();
    let page = file.pin(1).unwrap();
    assert!(matches!(
        file.write_at(b"x", 4096),
        Err(Error::PageBusy { page: 1, .. })
    ));
    file.write_at(b"x", 0).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_at(&[8; PAGE], PAGE as u64));
        assert!(page.iter().all(|&byte| byte == 7));
        drop(page);
        writer.join().unwrap().unwrap();
    });
    assert!(file.pin(1).unwrap().iter().all(|&byte| byte == 8));
}

#[test]
fn a_group_full_of_dirty_pages_goes_on() {
    let disk = Disk::default();
    let memory = memory(8);
    let group = memory
        .root()
        .child("small")
        .unwrap()
        .max(ByteSize::kib(64))
        .unwrap();
    let file = memory
        .open_store(Box::new(disk.clone()), "disk", &group)
        .unwrap();
    for page in 0..400u16 {
        let [low, high] = page.to_le_bytes();
        file.write_at(&[low ^ high; PAGE], u64::from(page) * PAGE as u64)
            .unwrap();
    }
    file.sync().unwrap();
    let state = disk.state();
    let mut pages = state.durable.chunks(PAGE).zip(0..400u16);
    assert!(pages.all(|(bytes, page)| {
        let [low, high] = page.to_le_bytes();
        bytes.iter().all(|&byte| byte == low ^ high)
    }));
    assert_eq!(state.durable.len(), 400 * PAGE);
}

#[test]
fn a_failing_store_stops_its_own_writers_only() {
    let memory = memory(8);
    let group = memory
        .root()
        .child("small")
        .unwrap()
        .max(ByteSize::kib(256))
        .unwrap();
    let [bad, good] = [Disk::default(), Disk::default()];
    let open = |disk: &Disk, name| {
        let disk = Box::new(disk.clone());
        memory.open_store(disk, name, &group).unwrap()
    };
    let (failing, working) = (open(&bad, "bad"), open(&good, "good"));
    bad.state().is_full = true;
    let stopped = (0..64u64).find_map(|page| {
        let written = failing.write_at(&[1; PAGE], page * PAGE as u64);
        written.err().map(|error| (page, error))
    });
    let (nr_written, error) = stopped.unwrap();
    let message = error.to_string();
    assert!(matches!(error, Error::WritebackFailed { .. }), "{message}");
    assert!(nr_written < 40, "{nr_written} pages were let in");
    for page in 0..200u64 {
        working.write_at(&[2; PAGE], page * PAGE as u64).unwrap();
    }
    working.sync().unwrap();
    let back = failing.close().unwrap_err().into_file();
    bad.state().is_full = false;
    back.write_at(&[1; PAGE], nr_written * PAGE as u64).unwrap();
    assert!(
        back.sync().is_err() && back.sync().is_ok(),
        "cured, and told once"
    );
    assert!(bad.state().durable.iter().all(|&byte| byte == 1));
    assert_eq!(
        bad.state().durable.len() as u64,
        (nr_written + 1) * PAGE as u64
    );
}

#[test]
fn who_asks_for_no_handle_back_has_the_error_alone() {
    fn closed(file: File) -> Result<(), Error> {
        Ok(file.close()?)
    }
    let (memory, disk) = (memory(8), Disk::default());
    let store = Box::new(disk.clone());
    let file = memory.open_store(store, "disk", &memory.root());
    let file = file.unwrap();
    file.write_at(&[1; 3 * PAGE], 0).unwrap();
    disk.state().is_full = true;
    let refused = closed(file.clone());
    assert!(matches!(refused, Err(Error::WritebackFailed { .. })));
    // It was not the last handle.
    assert_eq!(memory.stats().pages_lost, 0);
    assert!(closed(file).is_err());
    assert_eq!(memory.stats().pages_lost, 3);
}

#[test]
fn readers_see_whole_pages_while_others_write_evict_and_sync() {
    const NR_PAGES: u64 = 96;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, vec![0; usize::try_from(NR_PAGES).unwrap() * PAGE]).unwrap();
    let memory = memory(8);
    let group = memory
        .root()
        .child("small")
        .unwrap()
        .max(ByteSize::kib(128))
        .unwrap();
    let file = &memory.open_rw(&path, &group).unwrap();
    let (is_over, stamp) = (&AtomicBool::new(false), &AtomicU64::new(1));
    let check = &|page: u64| {
        let mut bytes = vec![0; PAGE];
        assert_eq!(file.read_at(&mut bytes, page * PAGE as u64).unwrap(), PAGE);
        let first: [u8; 8] = bytes[..8].try_into().unwrap();
        assert!(
            bytes.chunks(8).all(|word| word == first),
            "page {page} is torn"
        );
        let stamp = u64::from_le_bytes(first);
        assert!(
            stamp == 0 || stamp % NR_PAGES == page,
            "page {page} has another's bytes"
        );
        stamp / NR_PAGES
    };
    let work = &|seed: u64, step: &dyn Fn(u64)| {
        let mut random = seed;
        while !is_over.load(Ordering::Relaxed) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            step((random >> 33) % NR_PAGES);
        }
    };
    let end = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn(move || {
                work(seed, &|page| {
                    let stamp = stamp.fetch_add(1, Ordering::Relaxed) * NR_PAGES + page;
                    let bytes = stamp.to_le_bytes().repeat(PAGE / 8);
                    file.write_at(&bytes, page * PAGE as u64).unwrap();
                });
            });
            scope.spawn(move || {
                work(seed + 2, &|page| {
                    check(page);
                });
            });
        }
        scope.spawn(|| work(9, &|_| file.sync().unwrap()));
        while Instant::now() < end {
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    file.sync().unwrap();
    let on_disk = fs::read(&path).unwrap();
    for page in 0..NR_PAGES {
        let at = usize::try_from(page).unwrap() * PAGE;
        let first = u64::from_le_bytes(on_disk[at..at + 8].try_into().unwrap());
        assert_eq!(check(page), first / NR_PAGES, "page {page} was not written");
    }
}

#[test]
fn pages_are_written_in_the_background_where_much_of_the_group_is_dirty() {
    let disk = Disk::default();
    let memory = memory(8);
    let group = memory
        .root()
        .child("small")
        .unwrap()
        .max(ByteSize::kib(400))
        .unwrap();
    let file = memory
        .open_store(Box::new(disk.clone()), "disk", &group)
        .unwrap();
    // Of 100 pages: 11 are above the background limit, and below the hard one.
    file.write_at(&[1; 10 * PAGE], 0).unwrap();
    assert_eq!(disk.state().nr_writes, 0);
    file.write_at(&[1; PAGE], 10 * PAGE as u64).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while disk.state().nr_writes == 0 {
        assert!(Instant::now() < end, "nobody writes");
        std::thread::yield_now();
    }
    drop(file);
    assert_eq!(disk.state().bytes, vec![1; 11 * PAGE]);
}

#[test]
fn without_a_thread_writers_write_above_the_hard_limit() {
    let disk = Disk::default();
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = builder.build().unwrap();
    let group = memory
        .root()
        .child("small")
        .unwrap()
        .max(ByteSize::kib(400))
        .unwrap();
    let file = memory
        .open_store(Box::new(disk.clone()), "disk", &group)
        .unwrap();
    file.write_at(&[1; 20 * PAGE], 0).unwrap();
    assert_eq!(disk.state().nr_writes, 0);
    file.write_at(&[1; PAGE], 20 * PAGE as u64).unwrap();
    assert_eq!(disk.state().bytes.len(), 21 * PAGE);
}

#[test]
fn a_file_is_cut_and_grows_with_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, vec![1; 20_000]).unwrap();
    let memory = memory(8);
    let file = memory.open_rw(&path, &memory.root()).unwrap();
    let mut bytes = vec![0; 50_000];
    file.write_at(&[2; 9000], 8000).unwrap();
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 20_000);
    let (kept, gone) = (file.pin(2).unwrap(), file.pin(4).unwrap());
    for (len, expected) in [
        (9500_u64, 9500),
        (9000, 9000),
        (30_000, 30_000),
        (8192, 8192),
    ] {
        file.set_len(len).unwrap();
        assert_eq!((file.len(), fs::metadata(&path).unwrap().len()), (len, len));
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), expected);
        let is_as_written = |(at, &byte): (usize, &u8)| {
            byte == match at {
                0..8000 => 1,
                8000..9000 => 2,
                9000..9500 if len == 9500 => 2,
                _ => 0,
            }
        };
        assert!(
            bytes[..expected].iter().enumerate().all(is_as_written),
            "{len} bytes"
        );
    }
    assert!(kept.iter().all(|&byte| byte == 2) && gone[616..].iter().all(|&byte| byte == 1));
    assert!(matches!(file.pin(2), Err(Error::PastEnd { .. })));
    file.write_at(b"x", 20_000).unwrap();
    file.sync().unwrap();
    let on_disk = fs::read(&path).unwrap();
    assert_eq!(on_disk.len(), 20_001);
    assert!(on_disk[8192..20_000].iter().all(|&byte| byte == 0));
    let options = OpenOptions::new().write(true).truncate(true);
    let again = options.open(&memory, &path, &memory.root()).unwrap();
    assert!(again.is_empty() && file.is_empty());
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    drop((kept, gone));
    drop((file, again));
    assert_eq!(memory.stats().resident_pages, 0);
}

#[test]
fn a_file_that_is_cut_where_its_store_has_nothing_yet_is_as_long_as_said() {
    let disk = Disk::default();
    let memory = memory(8);
    let store = Box::new(disk.clone());
    let file = memory.open_store(store, "disk", &memory.root()).unwrap();
    file.write_at(b"x", 2 * PAGE as u64).unwrap();
    file.set_len(100).unwrap();
    file.close().unwrap();
    assert_eq!(disk.state().bytes, [0; 100]);
}

#[test]
fn a_store_that_cannot_be_cut_shows_no_old_bytes() {
    let disk = Disk::of(vec![7; 4 * PAGE]);
    let memory = memory(8);
    let store = Box::new(disk.clone());
    let file = memory.open_store(store, "disk", &memory.root()).unwrap();
    disk.fail_next(3, Fault::Error(EIO));
    assert!(matches!(
        file.set_len(100),
        Err(Error::WritebackFailed { .. })
    ));
    assert_eq!(file.len(), 100);
    assert!(
        file.write_at(b"x", 5000).is_err(),
        "there are old bytes before"
    );
    assert!(file.sync().is_err());
    file.write_at(b"x", 5000).unwrap();
    let mut bytes = vec![1; 5001];
    file.sync().unwrap();
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 5001);
    assert!(bytes[..100].iter().all(|&byte| byte == 7));
    assert!(bytes[100..5000].iter().all(|&byte| byte == 0));
    assert!(disk.state().durable == bytes);
}

#[test]
fn dirty_pages_that_nobody_needs_are_dropped() {
    let disk = Disk::of(vec![7; 4 * PAGE]);
    let memory = memory(8);
    let store = Box::new(disk.clone());
    let file = memory.open_store(store, "disk", &memory.root()).unwrap();
    file.write_at(&[1; 100], PAGE as u64).unwrap();
    file.flush_range(..).unwrap();
    disk.state().is_full = true;
    file.write_at(&[2; 3 * PAGE], PAGE as u64).unwrap();
    file.write_at(&[2; PAGE], 9 * PAGE as u64).unwrap();
    assert!(file.sync().is_err() && file.write_at(b"x", 0).is_err());
    assert_eq!(file.discard_dirty().unwrap(), 4);
    assert_eq!(file.len(), 4 * PAGE as u64);
    file.sync().unwrap();
    let mut bytes = vec![0; 5 * PAGE];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 4 * PAGE);
    assert!(bytes[..4 * PAGE] == disk.state().durable);
    assert!(bytes[PAGE..PAGE + 100].iter().all(|&byte| byte == 1));
}

#[test]
fn a_file_shrinks_and_grows_under_readers_and_writers() {
    const MOST: u64 = 40;
    let disk = Disk::default();
    let memory = memory(8);
    let group = memory
        .root()
        .child("small")
        .unwrap()
        .max(ByteSize::kib(80))
        .unwrap();
    let file = &memory
        .open_store(Box::new(disk.clone()), "disk", &group)
        .unwrap();
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2_u8 {
            scope.spawn(move || {
                for page in (0..MOST)
                    .cycle()
                    .take_while(|_| !is_over.load(Ordering::Relaxed))
                {
                    file.write_at(&[seed + 1; PAGE], page * PAGE as u64)
                        .unwrap();
                }
            });
            scope.spawn(move || {
                let mut bytes = vec![0; PAGE];
                for page in (0..MOST)
                    .cycle()
                    .take_while(|_| !is_over.load(Ordering::Relaxed))
                {
                    let nr_read = file.read_at(&mut bytes, page * PAGE as u64).unwrap();
                    let is_whole = bytes[..nr_read].iter().all(|&byte| byte == bytes[0]);
                    assert!(is_whole, "page {page} is torn");
                }
            });
        }
        for round in 0..400_u64 {
            file.set_len(round * 7 % MOST * PAGE as u64).unwrap();
            if round % 5 == 0 {
                file.sync().unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    file.sync().unwrap();
    let mut bytes = vec![0; usize::try_from(MOST + 1).unwrap() * PAGE];
    let nr_read = file.read_at(&mut bytes, 0).unwrap();
    assert!(bytes[..nr_read] == disk.state().durable);
}

#[test]
fn pages_that_are_only_written_are_used_and_stay_beside_reads_of_others() {
    const NR_HOT: u64 = 64;
    const NR_COLD: u64 = 4096;
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    fs::write(path("hot"), [1; 64 * PAGE]).unwrap();
    fs::write(path("cold"), vec![1; 4096 * PAGE]).unwrap();
    let ways: [fn(&File, u64); 2] = [
        |hot, page| _ = hot.write_at(&[2; 64], page * 4096).unwrap(),
        |hot, page| hot.pin_mut(page).unwrap()[7] = 3,
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let builder = Memory::builder().budget(ByteSize::mib(8));
        let memory = builder.without_thread().build().unwrap();
        let group = memory.root().child("hot").unwrap();
        let hot = memory.open_rw(path("hot"), &group).unwrap();
        let cold = OpenOptions::new().readahead(ByteSize::b(0));
        let cold = cold.open(&memory, path("cold"), &memory.root()).unwrap();
        (0..NR_HOT).for_each(|page| way(&hot, page));
        let before = group.misses();
        for at in 0..4 * NR_COLD {
            way(&hot, at % NR_HOT);
            let page = at.wrapping_mul(0x9E37_79B9) % NR_COLD;
            cold.read_at(&mut [0; 64], page * 4096).unwrap();
        }
        assert_eq!(group.misses(), before, "way {number}");
    }
}
