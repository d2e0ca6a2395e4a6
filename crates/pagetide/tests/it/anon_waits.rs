//! Anon pages beside a slow spill file: who waits for it, and who does not.

use crate::disk::{EIO, Fault};
use crate::gate::{Gate, Gated};
use crate::rseq::Over;
use crate::slow::{Forgets, PAGE, group_of};
use crate::swift::sleeps_of;
use crate::tasks::{Flag, poll};
use futures_executor::block_on;
use pagetide::{Anon, ByteSize, Error, File, Memory, Order, Shrinker, Topology};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(1);

/// A page that is there once more as it went: pseudo-random first, then zeros.
fn compressible(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let random = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    });
    let mut page: Vec<u8> = random.take(1200).collect();
    page.resize(4096, 0);
    page
}

#[test]
fn who_discards_a_page_that_is_being_written_keeps_nobody_from_the_others() {
    let gate = Gated::default();
    let memory = Memory::builder().budget(ByteSize::mib(16));
    let memory = memory.spill_store(Arc::new(gate.clone())).build().unwrap();
    let group = group_of(&memory, "group", 256);
    let region = group.anon(1000).unwrap();
    for page in 0..200 {
        region.write_at(&compressible(page), page * PAGE).unwrap();
    }
    let shut = gate.writes.shut();
    thread::scope(|scope| {
        scope.spawn(|| group.reclaim(ByteSize(16 * PAGE)));
        shut.await_one();
        let is_free = |page: &u64| region.try_pin_mut(*page).unwrap().is_some();
        let (free, written): (Vec<u64>, Vec<u64>) = (0..200).partition(is_free);
        let (region, written) = (&region, written[0]);
        let discard = scope.spawn(move || region.discard(written..=written).unwrap());
        // Whether it waits by now, only time tells.
        thread::sleep(50 * MS);
        region.write_at(&[1], free[0] * PAGE).unwrap();
        assert!(!discard.is_finished(), "it is being written still");
        drop(shut);
        discard.join().unwrap();
        assert!(region.pin(written).unwrap().iter().all(|&byte| byte == 0));
    });
}

/// Discards a page where memory is asked for; whether somebody had it, and whether it slept.
struct Discards(Anon, Mutex<Vec<(bool, bool)>>);

impl Shrinker for Discards {
    fn count(&self) -> u64 {
        1
    }

    fn scan(&self, _nr_objects: u64) -> Option<u64> {
        let (discarded, nr_sleeps) = sleeps_of(|| self.0.discard(5..=5));
        let is_busy = matches!(discarded, Err(Error::PageBusy { page: 5, .. }));
        self.1.lock().unwrap().push((is_busy, nr_sleeps > 0));
        None
    }
}

#[test]
fn who_discards_inside_a_shrinker_does_not_wait_for_who_asked_it() {
    let memory = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = memory.build().unwrap();
    let group = group_of(&memory, "group", 64);
    let region = group.anon(1000).unwrap();
    let mut view = region.pin_mut(5).unwrap();
    view[0] = 7;
    let discards = Arc::new(Discards(region.clone(), Mutex::default()));
    let registered = group.add_shrinker(Arc::clone(&discards));
    assert!(group.alloc(Order::new(6)).is_err());
    drop((registered, view));
    let asked = discards.1.lock().unwrap();
    // The kernel makes a thread sleep, too, now and then.
    let nr_late = asked.iter().filter(|&&(_, is_late)| is_late).count();
    assert!(2 * nr_late < asked.len(), "{asked:?}");
    assert!(asked.iter().all(|&(is_busy, _)| is_busy), "{asked:?}");
    region.discard(..).unwrap();
}

/// One tenant changes pages of a region whose map has no room in its own group. Another one changes
/// and drops other pages of it meanwhile.
#[test]
fn nobody_waits_for_a_region_while_room_is_made_for_its_map() {
    type Change = fn(&Anon, u64) -> Result<(), Error>;
    let changes: [Change; 3] = [
        |region, page| region.write_at(&[1], page * PAGE).map(drop),
        |region, page| region.pin_mut(page).map(|mut view| view[0] = 1),
        |region, page| region.pin_new(page).map(|mut view| view[0] = 1),
    ];
    for change in changes {
        let gate = Gated::default();
        let memory = Memory::builder().budget(ByteSize::mib(16));
        let memory = memory.spill_store(Arc::new(gate.clone())).build().unwrap();
        let full = group_of(&memory, "full", 64);
        let region = full.anon(1 << 20).unwrap();
        for page in 0..128 {
            region.write_at(&[1], page * PAGE).unwrap();
        }
        // Its pages are charged elsewhere; so what it waits for is the map.
        let other = region.for_group(&memory.root().child("other").unwrap());
        other.write_at(&[1], 128 * PAGE).unwrap();
        let shut = gate.writes.shut();
        thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for leaf in 2..300 {
                    change(&other, 128 * leaf).unwrap();
                }
            });
            shut.await_one();
            region.discard(1 << 19..).unwrap();
            other.write_at(&[2], 128 * PAGE).unwrap();
            assert!(!changes.is_finished(), "what it needs is being written");
            drop(shut);
            changes.join().unwrap();
        });
        for leaf in 2..300 {
            assert_eq!(other.pin(128 * leaf).unwrap()[0], 1);
        }
    }
}

#[test]
fn who_drops_a_page_that_is_being_written_keeps_nobody_from_the_others() {
    type Drops = fn(&File) -> Result<(), Error>;
    // And what the first and the last page have then.
    let drops: [(Drops, [u8; 2]); 2] = [
        (|file| file.punch(9 * PAGE..10 * PAGE), [3, 0]),
        // It was written by then, and the other one is dirty.
        (|file| file.discard_dirty().map(drop), [1, 2]),
    ];
    for (drop_it, expected) in drops {
        let gate = Gated::default();
        let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
        let file = gate.open(&memory, &memory.root());
        file.write_at(&[1; 10 * 4096], 0).unwrap();
        file.flush_range(..).unwrap();
        file.write_at(&[2], 9 * PAGE).unwrap();
        let shut = gate.writes.shut();
        thread::scope(|scope| {
            scope.spawn(|| file.flush_range(9 * PAGE..).unwrap());
            shut.await_one();
            let drops = scope.spawn(|| drop_it(&file).unwrap());
            // Whether it waits by now, only time tells.
            thread::sleep(50 * MS);
            file.write_at(&[3], 0).unwrap();
            assert!(!drops.is_finished(), "it is being written still");
            drop(shut);
        });
        assert_eq!([0, 9].map(|page| file.pin(page).unwrap()[0]), expected);
    }
}

#[test]
fn a_prefetch_of_a_region_that_is_mostly_empty_ends_soon() {
    let memory = Memory::builder().budget(ByteSize::mib(16)).build().unwrap();
    let region = memory.root().anon(1 << 26).unwrap();
    region.write_at(&[1], 0).unwrap();
    let mut nr_asked = 0_u64;
    let pages = (0..region.nr_pages()).inspect(|_| nr_asked += 1);
    assert_eq!(region.prefetch(pages), 0);
    assert!(nr_asked < 1 << 21, "{nr_asked} pages");
}

#[test]
fn a_compressed_page_comes_back_while_older_ones_are_being_written() {
    let gate = Gated::default();
    let builder = Memory::builder().budget(ByteSize::mib(64)).zswap(2);
    let memory = builder.spill_store(Arc::new(gate.clone())).build().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| group_of(&memory, name, 64));
    let (our, their) = (ours.anon(400).unwrap(), theirs.anon(16_000).unwrap());
    let write = |page: u64| their.write_at(&compressible(page), page * PAGE).unwrap();
    // Until the pool is full, and older pages have gone to the spill file.
    let mut pages = (0..16_000).cycle();
    while memory.stats().zswpwb == 0 {
        write(pages.next().unwrap());
    }
    for page in 0..300 {
        our.write_at(&compressible(page), page * PAGE).unwrap();
    }
    // From here on nobody needs room for ours.
    ours.set_max(ByteSize(1000 * PAGE)).unwrap();
    let shut = gate.writes.shut();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                write(pages.next().unwrap());
            }
        });
        let _over = Over(&is_over);
        shut.await_one();
        for page in 0..100 {
            assert!(*our.pin(page).unwrap() == compressible(page));
        }
        drop(shut);
    });
    assert_eq!(memory.stats().pswpin, 0, "they were in memory all the time");
}

#[test]
fn compressed_pages_of_many_threads_are_what_was_written() {
    const NR_THREADS: u64 = 4;
    const NR_PAGES: usize = 1500;
    let gate = Gated::default();
    let builder = Memory::builder().budget(ByteSize::mib(64)).zswap(2);
    let memory = builder.spill_store(Arc::new(gate.clone())).build().unwrap();
    let group = group_of(&memory, "group", 256);
    let region = group.anon(NR_THREADS * NR_PAGES as u64).unwrap();
    let is_over = AtomicBool::new(false);
    let has_done_all = || {
        let stats = memory.stats();
        stats.zswpwb > 0 && stats.zswpin > 0
    };
    thread::scope(|scope| {
        for thread in 0..NR_THREADS {
            let (region, is_over) = (&region, &is_over);
            scope.spawn(move || {
                // The seed of what each page has; 0 for zeros.
                let mut seeds = [0; NR_PAGES];
                let mut at = thread + 1;
                while !is_over.load(Ordering::Relaxed) {
                    at = at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let number = (at >> 40) % NR_PAGES as u64;
                    let page = thread * NR_PAGES as u64 + number;
                    let seed = &mut seeds[usize::try_from(number).unwrap()];
                    match at >> 33 & 7 {
                        0..=2 => {
                            *seed = at | 1;
                            region.write_at(&compressible(*seed), page * PAGE).unwrap();
                        }
                        3 if at & 1 << 37 == 0 => {
                            *seed = 0;
                            region.discard(page..=page).unwrap();
                        }
                        _ => {
                            let expected = match *seed {
                                0 => vec![0; 4096],
                                seed => compressible(seed),
                            };
                            assert!(*region.pin(page).unwrap() == expected, "page {page}");
                        }
                    }
                }
            });
        }
        // Longer where a busy machine lets too little be done.
        let begin = Instant::now();
        while begin.elapsed() < 2000 * MS || (!has_done_all() && begin.elapsed() < 60_000 * MS) {
            thread::sleep(10 * MS);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(has_done_all(), "{:?}", memory.stats());
}

#[test]
fn a_page_finds_a_slot_while_compressed_ones_are_being_written() {
    const NR_PAGES: u64 = 1024;
    let is_over = Arc::new(AtomicBool::new(false));
    let (goes_on, nr_writes) = (Arc::clone(&is_over), Arc::new(AtomicU64::new(0)));
    let nr_begun = Arc::clone(&nr_writes);
    let spill = Forgets(move |buf: &[u8], _| {
        let begin = Instant::now();
        let is_first = nr_begun.fetch_add(1, Ordering::SeqCst) == 0;
        while is_first && !goes_on.load(Ordering::SeqCst) && begin.elapsed() < SOON {
            thread::sleep(MS);
        }
        Ok(buf.len())
    });
    let builder = Memory::builder().budget(ByteSize::mib(16)).zswap(2);
    let builder = builder.spill_max(ByteSize(NR_PAGES * PAGE));
    let memory = builder.spill_store(Arc::new(spill)).build().unwrap();
    let [ours, theirs] =
        [("ours", 24), ("theirs", 16)].map(|(name, nr)| group_of(&memory, name, nr));
    // All that there are slots for.
    let our = ours.anon(NR_PAGES).unwrap();
    let their = our.for_group(&theirs);
    let last = AtomicU64::new(0);
    let is_writing = || nr_writes.load(Ordering::SeqCst) > 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            for page in (0..NR_PAGES).take_while(|_| !is_writing()) {
                last.store(page, Ordering::SeqCst);
                their.write_at(&compressible(page), page * PAGE).unwrap();
            }
        });
        while !is_writing() {
            thread::yield_now();
        }
        // But for what their thread has in hand: those that are being written change, and go.
        let last = last.load(Ordering::SeqCst);
        for page in (0..NR_PAGES).filter(|&page| page + 16 < last || page > last) {
            our.write_at(&compressible(page), page * PAGE).unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_pool_that_cannot_be_emptied_is_asked_once_for_many_pages() {
    let spill = crate::disk::Disk::default();
    let builder = Memory::builder().budget(ByteSize::mib(16)).zswap(4);
    let builder = builder
        .spill_store(Arc::new(spill.clone()))
        .without_thread();
    let memory = builder.spill_max(ByteSize::mib(64)).build().unwrap();
    let region = memory.root().anon(1 << 14).unwrap();
    spill.state().fault = Some((0, u64::MAX, Fault::Error(EIO)));
    let write = |page: &u64| region.write_at(&compressible(*page), page * PAGE).is_ok();
    let nr_pages = (0..1 << 14).take_while(write).count();
    assert!(nr_pages < 1 << 14, "there is room for all");
    let before = spill.state().nr_calls;
    memory.root().alloc(Order::new(0)).unwrap_err();
    // One by one they were some hundreds.
    let nr_calls = spill.state().nr_calls - before;
    assert!((1..100).contains(&nr_calls), "{nr_calls}");
}

/// Who reclaims in the background waits for the spill file, and nobody for him.
#[test]
fn a_deadline_of_a_task_is_kept_while_the_spill_file_hangs() {
    let gate = Gate::default();
    let behind_gate = gate.clone();
    let spill = Forgets(move |buf: &[u8], _| {
        // What the memory's own threads write.
        if thread::current().name().unwrap().starts_with("pagetide") {
            behind_gate.pass();
        }
        Ok(buf.len())
    });
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let builder = builder.topology("2x1".parse::<Topology>().unwrap());
    let memory = builder.spill_store(Arc::new(spill)).build().unwrap();
    let full = group_of(&memory, "full", 1);
    let _held = full.alloc(Order::new(0)).unwrap();
    let first = memory.root().child("first").unwrap();
    first.set_mems(&[0]).unwrap();
    let region = first.anon(4000).unwrap();
    let shut = gate.shut();
    // Until the first node is short, and its thread writes for it.
    let begin = Instant::now();
    for page in (0..4000).cycle().take_while(|_| gate.nr_came() == 0) {
        region.write_at(&[1], page * PAGE).unwrap();
        assert!(begin.elapsed() < 20 * SOON, "it is not short");
    }
    shut.await_one();
    let flag = Arc::<Flag>::default();
    let deadline = Instant::now() + 50 * MS;
    let mut future = Box::pin(full.alloc_async(Order::new(0), deadline));
    assert!(poll(&mut future, &flag).is_pending());
    let late = loop {
        if flag.is_woken()
            && let Poll::Ready(late) = poll(&mut future, &flag)
        {
            break late;
        }
        assert!(Instant::now() < deadline + 5 * SOON, "nobody wakes it");
        thread::sleep(MS);
    };
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
}

#[test]
fn a_task_that_waited_in_vain_is_told_that_the_disk_is_full() {
    let full = Forgets(|_: &[u8], _| Err(io::Error::from_raw_os_error(libc::ENOSPC)));
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let memory = builder.spill_store(Arc::new(full)).build().unwrap();
    let group = group_of(&memory, "full", 64);
    let region = group.anon(100).unwrap();
    let refused = (0..100).find_map(|page| region.write_at(&[5; 4096], page * PAGE).err());
    let is_told = |error: Option<Error>| match error {
        Some(Error::SwapOut { source, .. }) => source.raw_os_error() == Some(libc::ENOSPC),
        _ => false,
    };
    assert!(is_told(refused));
    let soon = || Instant::now() + 50 * MS;
    let tasks = block_on(group.alloc_async(Order::new(0), soon()));
    assert!(is_told(tasks.err()));
    assert!(is_told(group.reserve_by(ByteSize::kib(4), soon()).err()));
    assert!(is_told(block_on(region.pin_async(99)).err()));
}
