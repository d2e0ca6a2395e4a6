//! Everything at once for as long as one likes, and nothing may be left of it: tenants that read
//! and write files, keep anon pages, buffers, pins and reservations, under limits and a budget that
//! move, while children are forked.
//!
//! `cargo xtask soak` runs it, in a process of its own: it counts the threads, files and resident
//! memory of all of it. Half a minute, or as many seconds as `PAGETIDE_SOAK_SECONDS` says.

use crate::{in_child, is_forked};
use pagetide::{
    Anon, Buf, ByteSize, Error, File, Group, Memory, Order, Reservation, resident_bytes,
};
use std::collections::VecDeque;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const TENANTS: u64 = 3;
/// Pages of each tenant's file and of its anon region.
const FILE_PAGES: usize = 3000;
const ANON_PAGES: usize = 1500;
/// Operations of a tenant before all that it has is dropped, its group too.
const LIFE: u64 = 20_000;
/// Budgets in MiB: each of them often, so that both halves of a run see the largest.
const BUDGETS: [u64; 4] = [24, 32, 40, 48];
/// What the second half may have resident beyond the first one's peak.
const MAX_GROWTH: u64 = 6 << 20;
/// Runs from this long on show whether it grows.
const GROWTH_TIME: Duration = Duration::from_secs(60);
/// Tables of records grow to what was needed at most, and stay charged.
const MAX_RECORDS: u64 = 512 << 10;
const SAMPLE: Duration = Duration::from_millis(100);
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// Pseudo-random numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// The low numbers more often.
    fn skewed(&mut self, end: usize) -> usize {
        let end = self.below(end) + 1;
        self.below(end)
    }
}

/// What a full machine may say. All else is a fault.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::OverLimit { .. }
            | Error::NoBlock { .. }
            | Error::StillOver { .. }
            | Error::ReclaimedLess { .. }
            | Error::SwapOut { .. }
            | Error::NoMetadata { .. }
    )
}

/// What all threads have.
struct World {
    memory: Memory,
    folder: PathBuf,
    is_over: AtomicBool,
    nr_done: AtomicU64,
    nr_refused: AtomicU64,
}

impl World {
    fn is_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Nothing where it was refused.
    fn done<T>(&self, result: Result<T, Error>) -> Option<T> {
        self.nr_done.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(is_refusal(&error), "{error:?}");
                self.nr_refused.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Moves limits and the budget, gives memory back, looks after the memory by hand.
    fn resize(&self) {
        let mut random = Random(0x9E37_79B9);
        while self.is_on() {
            match random.below(8) {
                0 | 1 => {
                    let budget = BUDGETS[random.below(BUDGETS.len())];
                    self.done(self.memory.set_budget(ByteSize::mib(budget)));
                }
                2..5 => {
                    let max = ByteSize::mib(4 + random.next() % 20);
                    for (name, group) in self.memory.groups() {
                        if !name.is_empty() && name != "/" && random.below(2) == 0 {
                            self.done(group.set_max(max));
                        }
                    }
                }
                5 => {
                    self.done(self.memory.root().reclaim(ByteSize::mib(2)));
                }
                6 => {
                    self.memory.tick();
                    self.memory.release();
                }
                _ => {
                    self.memory.drain();
                }
            }
            thread::sleep(Duration::from_millis(3));
        }
    }

    /// A child is refused, and changes nothing.
    fn fork(&self, path: &Path) -> u64 {
        let mut nr_forks = 0;
        while self.is_on() {
            let group = self.memory.root();
            let Some(file) = self.done(self.memory.open(path, &group)) else {
                continue;
            };
            let status = in_child(|| {
                assert!(is_forked(file.read_at(&mut [0; 8], 0)) && is_forked(file.pin(1)));
                assert!(is_forked(group.alloc(Order::new(0))) && is_forked(group.anon(1)));
            });
            assert!(status.exit_status() == Some(0), "{status:?}");
            nr_forks += 1;
            thread::sleep(Duration::from_millis(200));
        }
        nr_forks
    }
}

/// What a tenant has, and what it knows of it.
struct Tenant<'a> {
    world: &'a World,
    random: Random,
    group: Group,
    file: File,
    /// The last byte that was written to each page; 0 at first.
    written: &'a mut Vec<u8>,
    anon: Option<(Anon, Vec<u8>)>,
    bufs: VecDeque<(Buf, u8)>,
    reservations: VecDeque<Reservation>,
}

fn live(world: &World, number: u64) {
    let path = world.folder.join(format!("tenant{number}"));
    let on_disk = fs::File::create_new(&path).unwrap();
    on_disk.set_len((FILE_PAGES * PAGE) as u64).unwrap();
    let mut written = vec![0; FILE_PAGES];
    for life in 0.. {
        if !world.is_on() {
            break;
        }
        let root = world.memory.root();
        let group = match number {
            // Two levels. Each life has a name of its own: others may still have the last group.
            0 => root
                .child(&format!("deep{life}"))
                .and_then(|deep| deep.child("leaf")),
            _ => root.child(&format!("tenant{number}-{life}")),
        };
        let Some(group) = world.done(group) else {
            continue;
        };
        let Some(file) = world.done(world.memory.open_rw(&path, &group)) else {
            continue;
        };
        let mut tenant = Tenant {
            world,
            random: Random(number * 7919 + life + 1),
            group,
            file,
            written: &mut written,
            anon: None,
            bufs: VecDeque::new(),
            reservations: VecDeque::new(),
        };
        for _ in 0..LIFE {
            if !world.is_on() {
                break;
            }
            tenant.step();
        }
        let file = tenant.file.clone();
        drop(tenant);
        if life % 2 == 0 {
            file.sync().unwrap();
            let mut on_disk = fs::File::open(&path).unwrap();
            for (page, &written) in written.iter().enumerate() {
                let mut bytes = [1; PAGE];
                on_disk.read_exact(&mut bytes).unwrap();
                assert_eq!(bytes, [written; PAGE], "page {page}");
            }
        }
    }
}

impl Tenant<'_> {
    fn step(&mut self) {
        match self.random.below(100) {
            0..50 => self.read(),
            50..65 => self.write(),
            65..73 => self.pin_many(),
            73..86 => self.use_anon(),
            86..92 => self.use_buf(),
            92..97 => self.reserve(),
            97 => {
                self.file.prefetch(0..16);
            }
            98 => {
                self.world.done(self.file.flush_range(..1 << 20));
            }
            _ => {
                self.world.done(self.group.reclaim(ByteSize::kib(256)));
            }
        }
    }

    fn read(&mut self) {
        let page = self.random.skewed(FILE_PAGES);
        let mut bytes = [1; PAGE];
        let read = self.file.read_at(&mut bytes, (page * PAGE) as u64);
        if self.world.done(read).is_some() {
            assert_eq!(bytes, [self.written[page]; PAGE], "page {page}");
        }
    }

    fn write(&mut self) {
        let page = self.random.skewed(FILE_PAGES);
        let byte = self.random.byte();
        let wrote = self.file.write_at(&[byte; PAGE], (page * PAGE) as u64);
        if self.world.done(wrote).is_some() {
            self.written[page] = byte;
        }
    }

    fn pin_many(&mut self) {
        let pages = [0; 6].map(|_| self.random.below(FILE_PAGES) as u64);
        let pinned = self.file.pin_many(&pages);
        for (page, pinned) in pages.iter().zip(self.world.done(pinned).iter().flatten()) {
            let byte = self.written[usize::try_from(*page).unwrap()];
            assert!(pinned.iter().all(|&found| found == byte), "page {page}");
        }
    }

    fn use_anon(&mut self) {
        if self.anon.is_none() {
            let region = self.group.anon(ANON_PAGES as u64);
            let region = self.world.done(region);
            self.anon = region.map(|region| (region, vec![0; ANON_PAGES]));
        }
        let Some((region, written)) = &mut self.anon else {
            return;
        };
        let page = self.random.skewed(ANON_PAGES);
        let offset = (page * PAGE) as u64;
        if self.random.below(2) == 0 {
            let byte = self.random.byte();
            let wrote = region.write_at(&[byte; PAGE], offset);
            if self.world.done(wrote).is_some() {
                written[page] = byte;
            }
        } else {
            let mut bytes = [1; PAGE];
            let read = region.read_at(&mut bytes, offset);
            if self.world.done(read).is_some() {
                assert_eq!(bytes, [written[page]; PAGE], "anon page {page}");
            }
        }
        if self.random.below(2000) == 0 {
            self.anon = None;
        }
    }

    fn use_buf(&mut self) {
        let order = Order::new(u8::try_from(self.random.skewed(8)).unwrap());
        let byte = self.random.byte();
        if let Some(mut buf) = self.world.done(self.group.alloc(order)) {
            buf.fill(byte);
            self.bufs.push_back((buf, byte));
        }
        if self.bufs.len() > self.random.below(12) {
            let (buf, byte) = self.bufs.pop_front().expect("more than none");
            assert!(buf.iter().all(|&found| found == byte), "a buffer changed");
        }
    }

    fn reserve(&mut self) {
        let size = ByteSize(1 + self.random.next() % (1 << (10 + self.random.below(10))));
        if let Some(reservation) = self.world.done(self.group.reserve(size)) {
            if self.world.done(reservation.try_grow(size)).is_some() {
                reservation.shrink(size);
            }
            self.reservations.push_back(reservation);
        }
        if self.reservations.len() > self.random.below(8) {
            self.reservations.pop_front();
        }
    }
}

/// Threads and open files of this process.
fn threads_and_files() -> (usize, usize) {
    let count = |path| fs::read_dir(path).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// Runs everything for so long; the peaks of the resident memory of both halves.
fn run(world: &World, time: Duration) -> [u64; 2] {
    let path = world.folder.join("forked");
    fs::write(&path, [7; 4 * PAGE]).unwrap();
    let mut peaks = [0; 2];
    thread::scope(|scope| {
        let mut threads: Vec<_> = (0..TENANTS)
            .map(|number| scope.spawn(move || live(world, number)))
            .collect();
        threads.push(scope.spawn(|| world.resize()));
        threads.push(scope.spawn(|| println!("soak: {} forks", world.fork(&path))));
        let began = Instant::now();
        let mut told = Duration::ZERO;
        // Who fails ends all.
        while began.elapsed() < time && !threads.iter().any(|thread| thread.is_finished()) {
            thread::sleep(SAMPLE);
            let now = began.elapsed();
            let resident = resident_bytes().unwrap();
            let peak = &mut peaks[usize::from(now > time / 2)];
            *peak = resident.max(*peak);
            if now >= told + TOLD_EVERY {
                told = now;
                tell(world, now, resident);
            }
        }
        world.is_over.store(true, Ordering::Relaxed);
    });
    peaks
}

fn tell(world: &World, now: Duration, resident: u64) {
    println!(
        "soak: {:>4} s, usage {} of {}, resident {}, {} operations, {} refused",
        now.as_secs(),
        world.memory.root().usage(),
        world.memory.budget(),
        ByteSize(resident),
        world.nr_done.load(Ordering::Relaxed),
        world.nr_refused.load(Ordering::Relaxed),
    );
}

#[test]
#[ignore = "looks at the whole process, for half a minute at least: `cargo xtask soak`"]
fn nothing_is_left_of_a_mixed_load() {
    let seconds = std::env::var("PAGETIDE_SOAK_SECONDS");
    let time = Duration::from_secs(seconds.map_or(30, |text| text.parse().unwrap()));
    let (before, base) = (threads_and_files(), resident_bytes().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let most = ByteSize::mib(BUDGETS[BUDGETS.len() - 1]);
    let memory = Memory::builder().budget(most).build().unwrap();
    let usage = memory.root().usage();
    let world = World {
        memory,
        folder: folder.path().to_owned(),
        is_over: AtomicBool::new(false),
        nr_done: AtomicU64::new(0),
        nr_refused: AtomicU64::new(0),
    };
    let peaks = run(&world, time);
    tell(&world, time, resident_bytes().unwrap());
    println!("soak: resident at most {peaks:?} bytes in each half");
    let (done, refused) = (world.nr_done.into_inner(), world.nr_refused.into_inner());
    assert!(refused < done / 4, "{refused} of {done} refused");
    let memory = world.memory;
    memory.set_budget(most).unwrap();
    memory.tick();
    memory.drain();
    assert_eq!(memory.audit(), Ok(()));
    let stats = memory.stats();
    assert_eq!(
        (stats.resident_pages, stats.pages_lost),
        (0, 0),
        "{stats:?}"
    );
    let (first, last) = (usage.as_u64(), memory.root().usage().as_u64());
    println!("soak: usage {first} bytes at first, {last} at the end");
    assert!(
        (first..=first + MAX_RECORDS).contains(&last),
        "usage {first}, then {last}"
    );
    drop(memory);
    let bound = base + most.as_u64() * 51 / 50 + (16 << 20);
    assert!(peaks[0].max(peaks[1]) <= bound, "{peaks:?}, bound {bound}");
    // In less, not all of the arena has been touched by then.
    if time >= GROWTH_TIME {
        let is_flat = peaks[1] <= peaks[0] + MAX_GROWTH;
        assert!(is_flat, "the second half had more: {peaks:?}");
    }
    // A thread that has been waited for is counted for a moment longer.
    let patience = Instant::now() + Duration::from_secs(10);
    while threads_and_files() != before && Instant::now() < patience {
        thread::sleep(SAMPLE);
    }
    assert_eq!(threads_and_files(), before, "threads and files");
}
