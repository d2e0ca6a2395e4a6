//! Anon pages: byte for byte, through the spill file, when it is full and when it fails.

use crate::by_cpu;
use crate::child;
use crate::disk::{Disk, EIO, ENOSPC, Fault, forward};
use crate::gate::Gated;
use pagetide::{
    Anon, Builder, ByteSize, Error, Group, Memory, Order, PAGE_BYTES, Policy, Store, resident_bytes,
};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const PAGE: u64 = PAGE_BYTES as u64;

fn builder(most: ByteSize) -> Builder {
    let builder = Memory::builder().budget(by_cpu::mib(8)).without_thread();
    builder.spill_max(most)
}

/// A memory that swaps out to a store of the test's.
pub(crate) fn builder_on(disk: &Disk, most: ByteSize) -> Builder {
    let store: Arc<dyn Store> = Arc::new(disk.clone());
    builder(most).spill_store(store)
}

/// A memory that swaps out to a file in a folder.
pub(crate) fn builder_in(folder: &TempDir, most: ByteSize) -> Builder {
    builder(most).spill(folder.path())
}

fn memory_on(disk: &Disk, most: ByteSize) -> Memory {
    builder_on(disk, most).build().unwrap()
}

pub(crate) fn tenant(memory: &Memory, nr_pages: u64) -> Group {
    let group = memory.root().child("tenant").unwrap();
    group.max(ByteSize(nr_pages * PAGE)).unwrap()
}

pub(crate) fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Bytes that tell a page and a round from all others.
pub(crate) fn content(page: u64, round: u64) -> Vec<u8> {
    let words = (0..PAGE / 8).map(|word| (page << 40 | round << 20 | word) + 1);
    words.flat_map(u64::to_le_bytes).collect()
}

pub(crate) fn write(region: &Anon, page: u64, round: u64) {
    region.write_at(&content(page, round), page * PAGE).unwrap();
}

pub(crate) fn check(region: &Anon, page: u64, round: u64) {
    let seen = region.pin(page).unwrap();
    assert!(
        *seen == content(page, round),
        "page {page} of round {round}"
    );
}

#[test]
fn pages_come_back_as_they_went() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.spill(folder.path()).spill_max(ByteSize::mib(32));
    let memory = memory.build().unwrap();
    let group = tenant(&memory, 256);
    let region = group.anon(4096).unwrap();
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "no name"
    );
    for round in 0..2 {
        (0..4096).for_each(|page| write(&region, page, round));
        (0..4096).for_each(|page| check(&region, page, round));
    }
    let stats = memory.stats();
    assert!(group.peak() <= ByteSize(256 * PAGE), "{}", group.peak());
    assert!(
        stats.pswpin >= 2 * 3840 && stats.pswpout >= 2 * 3840,
        "{stats:?}"
    );
    assert!(stats.swap_used_bytes <= 4096 * PAGE, "{stats:?}");
    assert_eq!(group.stat().file, 0);
    drop(region);
    assert_eq!(memory.stats().swap_used_bytes, 0);
}

#[test]
fn what_is_never_swapped_out_costs_no_call_of_the_store() {
    let disk = Disk::default();
    let memory = memory_on(&disk, ByteSize::mib(8));
    let region = memory.root().anon(1 << 30).unwrap();
    let far = (1 << 30) - 1;
    assert!(region.pin(far).unwrap().iter().all(|&byte| byte == 0));
    [0, 77, far]
        .iter()
        .for_each(|&page| write(&region, page, 1));
    [0, 77, far]
        .iter()
        .for_each(|&page| check(&region, page, 1));
    region.discard(..).unwrap();
    assert!(region.pin(77).unwrap().iter().all(|&byte| byte == 0));
    assert!(matches!(region.pin(far + 1), Err(Error::PastEnd { .. })));
    assert!(matches!(
        region.write_at(&[1; 2], (far + 1) * PAGE - 1),
        Err(Error::PastEnd { .. })
    ));
    assert_eq!(disk.state().nr_calls, 0);
}

#[test]
fn a_clean_page_is_not_written_twice_and_zeros_not_once() {
    let memory = memory_on(&Disk::default(), ByteSize::mib(8));
    let region = tenant(&memory, 64).anon(1024).unwrap();
    (0..1024).for_each(|page| write(&region, page, 0));
    (0..1024).for_each(|page| check(&region, page, 0));
    let before = memory.stats().pswpout;
    (0..1024).for_each(|page| check(&region, page, 0));
    let after = memory.stats().pswpout;
    assert!(before >= 960 && after <= 1024, "{before} and {after} pages");
    for page in 0..1024 {
        region.write_at(&[0; PAGE_BYTES], page * PAGE).unwrap();
    }
    for page in 0..1024 {
        assert!(region.pin(page).unwrap().iter().all(|&byte| byte == 0));
    }
    let stats = memory.stats();
    assert_eq!((stats.pswpout, stats.swap_used_bytes), (after, 0));
}

#[test]
fn a_page_that_is_changed_gives_its_slot_up_and_one_that_is_read_keeps_it() {
    let memory = memory_on(&Disk::default(), ByteSize::mib(1));
    let group = tenant(&memory, 40);
    let region = group.anon(1024).unwrap();
    let used = || memory.stats().swap_used_bytes / PAGE;
    (0..30).for_each(|page| write(&region, page, 1));
    group.reclaim(ByteSize(30 * PAGE)).unwrap();
    assert_eq!(used(), 30);
    (0..10).for_each(|page| check(&region, page, 1));
    assert_eq!(used(), 30);
    // Half of these are resident, half are changed on their way in.
    (5..15).for_each(|page| write(&region, page, 2));
    assert_eq!(used(), 20);
    (5..15).for_each(|page| check(&region, page, 2));
}

/// Counts writes, which take several buffers each.
#[derive(Default)]
struct Vectored {
    disk: Disk,
    nr_writes: AtomicU64,
}

impl Store for Vectored {
    forward!(disk: read_at, len);

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.nr_writes.fetch_add(1, Ordering::Relaxed);
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.disk.write_at(&bytes, offset)
    }
}

#[test]
fn pages_that_go_together_go_in_one_write() {
    let store = Arc::new(Vectored::default());
    let builder = Memory::builder().budget(ByteSize::mib(32)).without_thread();
    let builder = builder.spill_store(Arc::<Vectored>::clone(&store));
    let memory = builder.spill_max(ByteSize::mib(64)).build().unwrap();
    let region = tenant(&memory, 4096).anon(16_384).unwrap();
    // In an order that no file would like.
    for at in 0..16_384 {
        write(&region, at * 1231 % 16_384, 0);
    }
    let (nr_pages, nr_writes) = (
        memory.stats().pswpout,
        store.nr_writes.load(Ordering::Relaxed),
    );
    println!("anon: {nr_pages} scattered pages in {nr_writes} writes");
    assert!(
        nr_writes * 32 <= nr_pages,
        "{nr_pages} pages in {nr_writes} writes"
    );
}

#[test]
fn pages_that_went_together_come_back_in_few_reads() {
    let folder = tempfile::tempdir().unwrap();
    let memory = builder_in(&folder, ByteSize::mib(8)).build().unwrap();
    let group = tenant(&memory, 200);
    group.set_policy(Policy::Fifo).unwrap();
    let region = group.anon(1000).unwrap();
    (0..1000).for_each(|page| write(&region, page, 1));
    let counts = || {
        let stats = memory.stats();
        (stats.batched_reads, stats.batched_pages, stats.pswpin)
    };
    let before = counts();
    let pages: Vec<u64> = (0..128).collect();
    let seen = region.pin_many(&pages).unwrap();
    assert!(
        (0..)
            .zip(seen)
            .all(|(page, seen)| *seen == content(page, 1))
    );
    let after = counts();
    assert_eq!((after.1 - before.1, after.2 - before.2), (128, 128));
    let nr_reads = after.0 - before.0;
    assert!(nr_reads <= 4, "{nr_reads} reads");
}

#[test]
fn a_full_spill_file_is_an_error_and_loses_nothing() {
    let memory = memory_on(&Disk::default(), ByteSize(200 * PAGE));
    let group = tenant(&memory, 64);
    let region = group.anon(4096).unwrap();
    (0..200).for_each(|page| write(&region, page, 0));
    let full = region.write_at(&[1], 300 * PAGE);
    let Err(Error::SpillFull { max_bytes }) = full else {
        panic!("{full:?}");
    };
    assert_eq!(max_bytes, 200 * PAGE);
    // What is there is there and can be changed, and room that is made can be used.
    (0..200).for_each(|page| check(&region, page, 0));
    (0..200).for_each(|page| write(&region, page, 1));
    assert!(region.pin(300).unwrap().iter().all(|&byte| byte == 0));
    let other = group.anon(1).unwrap();
    assert!(matches!(
        other.write_at(&[1], 0),
        Err(Error::SpillFull { .. })
    ));
    region.discard(10..40).unwrap();
    (4000..4029).for_each(|page| write(&region, page, 1));
    write(&other, 0, 1);
    assert!(matches!(
        region.write_at(&[1], 10 * PAGE),
        Err(Error::SpillFull { .. })
    ));
    (40..200)
        .chain(0..10)
        .chain(4000..4029)
        .for_each(|page| check(&region, page, 1));
    drop(region);
    let region = group.anon(199).unwrap();
    (0..199).for_each(|page| write(&region, page, 2));
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    let disk = Disk::default();
    let memory = memory_on(&disk, ByteSize::mib(8));
    let region = tenant(&memory, 64).anon(1024).unwrap();
    (0..200).for_each(|page| write(&region, page, 0));
    disk.state().is_full = true;
    let is_written = |&page: &u64| region.write_at(&content(page, 0), page * PAGE).is_ok();
    let end = 200 + (200..1024).take_while(is_written).count() as u64;
    let error = region.write_at(&[1], 1000 * PAGE).unwrap_err();
    let Error::SwapOut { source, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(source.raw_os_error(), Some(ENOSPC), "{error}");
    let text = error.to_string();
    assert!(text.contains("over max: 1 more than 64 of 64"), "{text}");
    disk.state().is_full = false;
    (0..end).for_each(|page| check(&region, page, 0));
    write(&region, 1000, 1);
}

#[test]
fn a_spill_file_that_cannot_be_made_is_an_error() {
    let builder = Memory::builder().budget(ByteSize::mib(8));
    let memory = builder.spill("/nowhere/at/all").build().unwrap();
    let error = memory.root().anon(10).unwrap_err();
    assert!(matches!(error, Error::Spill { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "cannot make a spill file in /nowhere/at/all"
    );
    let error = memory.root().anon(1 << 41).unwrap_err();
    assert!(matches!(error, Error::AnonTooLarge { .. }), "{error}");
}

/// Writes, reads and discards with a fault; what a call refused is tried again when it is over.
fn run_with(fault: Fault, at: u64, nr: u64) -> bool {
    let disk = Disk::default();
    let memory = memory_on(&disk, ByteSize::mib(4));
    let region = tenant(&memory, 48).anon(96).unwrap();
    let mut rounds = [0; 96];
    disk.state().fault = Some((at, nr, fault));
    let mut nr_errors = 0;
    for step in 0..192_u64 {
        let page = step * 37 % 96;
        let tried = match step % 3 {
            0 | 1 => {
                let written = region.write_at(&content(page, step + 1), page * PAGE);
                written.map(|_| step + 1)
            }
            _ => region.pin(page).map(|seen| {
                let round = rounds[to_usize(page)];
                match round {
                    0 => assert!(seen.iter().all(|&byte| byte == 0)),
                    _ => assert!(*seen == content(page, round), "page {page}, {fault:?} {at}"),
                }
                round
            }),
        };
        match tried {
            Ok(round) => rounds[to_usize(page)] = round,
            Err(Error::SwapOut { .. } | Error::Io { .. }) => nr_errors += 1,
            Err(error) => panic!("{error}, {fault:?} {at}"),
        }
    }
    let is_hit = disk.state().nr_calls >= at;
    disk.state().fault = None;
    for (page, &round) in (0..).zip(&rounds) {
        match round {
            0 => assert!(region.pin(page).unwrap().iter().all(|&byte| byte == 0)),
            _ => check(&region, page, round),
        }
    }
    drop(region);
    assert_eq!(
        memory.stats().swap_used_bytes,
        0,
        "{fault:?} {at}, {nr_errors} errors"
    );
    is_hit
}

#[test]
fn nothing_is_lost_when_any_call_of_the_spill_file_fails() {
    for fault in [Fault::Error(EIO), Fault::Short, Fault::Nothing] {
        for nr in [1, 10_000] {
            let first_unhit = (1..).find(|&at| !run_with(fault, at, nr)).unwrap();
            assert!(first_unhit > 20, "{first_unhit} calls");
        }
    }
}

#[test]
fn a_slot_that_is_being_read_is_nobody_elses_though_its_page_is_discarded() {
    let store = Gated::default();
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let builder = builder.spill_store(Arc::new(store.clone()));
    let memory = builder.spill_max(ByteSize(130 * PAGE)).build().unwrap();
    let group = tenant(&memory, 40);
    group.set_policy(Policy::Fifo).unwrap();
    let [region, other] = [(); 2].map(|()| group.anon(1024).unwrap());
    // The first ones are swapped out.
    (0..80).for_each(|page| write(&region, page, 1));
    thread::scope(|scope| {
        let shut = store.reads.shut_for(1);
        let reader = scope.spawn(|| region.pin(0).unwrap().to_vec());
        shut.await_one();
        let discarder = scope.spawn(|| region.discard(0..1).unwrap());
        // The discard waits for the read: only time tells that it has begun.
        thread::sleep(Duration::from_millis(50));
        // Each change of a page gives its slot up: all slots that are free have their turn.
        for round in 2..6 {
            (0..50).for_each(|page| write(&other, page, round));
        }
        drop(shut);
        let seen = reader.join().unwrap();
        let is_zero = seen.iter().all(|&byte| byte == 0);
        assert!(is_zero || seen == content(0, 1), "{:?}", &seen[..16]);
        discarder.join().unwrap();
    });
    assert!(region.pin(0).unwrap().iter().all(|&byte| byte == 0));
    (0..50).for_each(|page| check(&other, page, 5));
    (1..80).for_each(|page| check(&region, page, 1));
    drop((region, other));
    assert_eq!(memory.stats().swap_used_bytes, 0);
}

#[test]
fn threads_find_what_they_wrote_while_regions_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Memory::builder()
        .budget(ByteSize::mib(8))
        .spill(folder.path());
    let memory = builder.spill_max(ByteSize::mib(32)).build().unwrap();
    let group = tenant(&memory, 200);
    let region = group.anon(2048).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers = [0_u64, 1, 2, 3].map(|worker| {
            let (region, is_over) = (region.clone(), &is_over);
            scope.spawn(move || {
                let mut rounds = [0_u64; 512];
                for step in 0..6000_u64 {
                    let at = step * (97 + worker) % 512;
                    let page = at * 4 + worker;
                    if rounds[to_usize(at)] > 0 {
                        check(&region, page, rounds[to_usize(at)]);
                    }
                    if step % 50 == 13 {
                        region.discard(page..page + 1).unwrap();
                        assert!(region.pin(page).unwrap().iter().all(|&byte| byte == 0));
                    }
                    write(&region, page, step + 1);
                    rounds[to_usize(at)] = step + 1;
                }
                is_over.store(true, Ordering::Relaxed);
            })
        });
        // A region that goes while its pages are being written.
        while !is_over.load(Ordering::Relaxed) {
            let short = group.anon(300).unwrap();
            (0..300).for_each(|page| write(&short, page, 1));
        }
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
    drop(region);
    let stats = memory.stats();
    assert!(stats.pswpout > 5000 && stats.pswpin > 5000, "{stats:?}");
    assert_eq!(stats.swap_used_bytes, 0);
}

/// Pages of a file and anon ones that come in in turn, and are looked at again now and then: how
/// many of each stay.
fn share(swappiness: u8) -> (u64, u64) {
    let file = crate::data::numbered_file(4096);
    let builder = Memory::builder().budget(ByteSize::mib(16)).without_thread();
    // Of the file what is asked for, as of the region.
    let builder = builder.readahead(ByteSize::b(0));
    let memory = builder.spill_max(ByteSize::mib(64)).build().unwrap();
    let group = tenant(&memory, 1024);
    group.set_swappiness(swappiness);
    let file = memory.open(file.path(), &group).unwrap();
    let region = group.anon(4096).unwrap();
    let mut random = 7_u64;
    for step in 0..60_000_u64 {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        // The lower ones more often.
        let page = (random >> 33) % (1 + (random >> 20) % 4096);
        let _nr_bytes = match step % 2 {
            0 => file.read_at(&mut [0], page * PAGE).unwrap(),
            _ if step < 30_000 || step % 8 == 1 => {
                region.write_at(&page.to_le_bytes(), page * PAGE).unwrap()
            }
            _ => region.read_at(&mut [0], page * PAGE).unwrap(),
        };
    }
    let stat = group.stat();
    (stat.file / PAGE, stat.anon / PAGE)
}

#[test]
fn files_and_anon_pages_share_a_group_by_swappiness() {
    let shares = [0, 60, 100, 140, 200].map(|swappiness| (swappiness, share(swappiness)));
    println!("anon: pages of files and anon ones by swappiness: {shares:?}");
    let [none, _, even, _, all] = shares.map(|(_, share)| share);
    assert!(none.1 > all.1, "{shares:?}");
    assert!(even.0 > 100 && even.1 > 100, "{shares:?}");
}

#[test]
fn resident_memory_stays_in_the_budget_with_four_times_as_much() {
    const BUDGET: u64 = 64 << 20;
    let Some(role) = child::role() else {
        if child::is_sanitized() {
            return println!("skipped: promise of the budget: the sanitizer keeps what is freed");
        }
        let folder = tempfile::tempdir().unwrap();
        let test = "anon::resident_memory_stays_in_the_budget_with_four_times_as_much";
        let role = folder.path().to_str().unwrap();
        let said = child::run_after(":", test, role);
        let lines = said.lines().filter(|line| line.starts_with("anon: "));
        return lines.for_each(|line| println!("{line}"));
    };
    let base = resident_bytes().unwrap();
    let builder = Memory::builder().budget(ByteSize(BUDGET)).spill(role);
    let memory = builder.spill_max(ByteSize(5 * BUDGET)).build().unwrap();
    let region = memory.root().anon(4 * BUDGET / PAGE).unwrap();
    let (most, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(resident_bytes().unwrap(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(10));
            }
        });
        for round in 0..2 {
            (0..region.nr_pages()).for_each(|page| write(&region, page, round));
            (0..region.nr_pages()).for_each(|page| check(&region, page, round));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let most = most.load(Ordering::Relaxed).saturating_sub(base);
    println!("anon: at most {most} bytes resident, {:?}", memory.stats());
    assert!(most <= BUDGET + BUDGET / 50 + (16 << 20), "{most} bytes");
    assert!(memory.stats().pswpout >= 2 * 3 * BUDGET / PAGE);
}

#[test]
fn a_large_block_is_had_where_all_memory_is_anon_pages() {
    let memory = memory_on(&Disk::default(), ByteSize::mib(32));
    let region = memory.root().anon(4096).unwrap();
    (0..4096).for_each(|page| write(&region, page, 1));
    let block = memory.root().alloc(Order::new(6)).unwrap();
    let large = memory.root().alloc(Order::new(9));
    println!("anon: {large:?}");
    drop(block);
    let reserved = memory.root().reserve(ByteSize::mib(3)).unwrap();
    (0..4096).for_each(|page| check(&region, page, 1));
    drop(reserved);
    drop(large.unwrap());
}
