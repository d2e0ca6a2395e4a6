//! The promise of the budget: what is resident, and what is reserved beyond that, is at most the
//! budget, 2 % of it and 16 MiB, at every sample of 10 ms, whatever else happens meanwhile.
//!
//! In a process of its own, whose resident memory before the memory is built is left out. There,
//! glibc maps blocks from 64 KiB on, so that what is freed is gone before it is given back. The
//! data lies on a file system with direct reads where the temporary folder is on one: elsewhere
//! the kernel's page cache of it fills the cgroup, and that test is skipped.

use crate::memcg::{self, TestGroup};
use crate::{child, data};
use pagetide::{
    Buf, Builder, ByteSize, Error, File, Group, Memory, OpenOptions, Order, PAGE_BYTES, Page,
    Reservation, resident_bytes,
};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// What the budget may be raised to, and where it begins.
const MOST: u64 = 96 * MIB;
const LEAST: u64 = 56 * MIB;
/// Pages of the data file: more than the largest budget.
const FILE_PAGES: u64 = 128 * MIB / PAGE_BYTES as u64;
const SAMPLE: Duration = Duration::from_millis(10);

/// How long the tests go on: 3 s, or what `cargo xtask test` says.
const SECONDS: &str = "PAGETIDE_PROMISE_SECONDS";
/// Settings of glibc's for the process.
const GLIBC: &str =
    "export GLIBC_TUNABLES=glibc.malloc.mmap_threshold=65536:glibc.malloc.arena_max=1";

fn promise(budget: u64) -> u64 {
    budget + budget / 50 + 16 * MIB
}

fn shown(said: &str) {
    let lines = said.lines().filter(|line| line.starts_with("promise: "));
    lines.for_each(|line| println!("{line}"));
}

#[test]
fn the_budget_holds_while_everything_changes() {
    if let Some(role) = child::role() {
        return World::new(Memory::builder(), Path::new(&role), None).run();
    }
    run_alone("promise::the_budget_holds_while_everything_changes");
}

#[test]
fn the_budget_holds_with_small_pages() {
    if let Some(role) = child::role() {
        let builder = Memory::builder().huge_pages(false);
        return World::new(builder, Path::new(&role), None).run();
    }
    run_alone("promise::the_budget_holds_with_small_pages");
}

fn run_alone(test: &str) {
    if child::is_sanitized() {
        return println!("skipped: promise of the budget: the sanitizer keeps what is freed");
    }
    let file = data::numbered_file(FILE_PAGES);
    file.as_file().sync_data().unwrap();
    let role = file.path().to_str().unwrap();
    shown(&child::run_after(GLIBC, test, role));
}

#[test]
fn a_memory_cgroup_of_that_size_is_never_full() {
    if let Some(role) = child::role() {
        let (file, limit) = role.split_once('\n').unwrap();
        let limit = Some(PathBuf::from(limit));
        return World::new(Memory::builder(), Path::new(file), limit).run();
    }
    if child::is_sanitized() {
        return println!("skipped: promise of the budget: the sanitizer keeps what is freed");
    }
    let group = match TestGroup::limited("promise", 1 << 30) {
        Ok(group) => group,
        Err(reason) => return println!("skipped: memory cgroup: {reason}"),
    };
    let file = data::numbered_file(FILE_PAGES);
    file.as_file().sync_data().unwrap();
    if !reads_directly(file.path()) {
        return println!("skipped: memory cgroup: no direct reads in the temporary folder");
    }
    let test = "promise::a_memory_cgroup_of_that_size_is_never_full";
    let role = format!("{}\n{}", file.path().display(), group.file().display());
    shown(&group.run(GLIBC, test, &role));
    assert_eq!(group.nr_refused(), 0, "times that the kernel refused");
}

/// Whether reads of this file go past the kernel's page cache.
fn reads_directly(path: &Path) -> bool {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let file = memory.open(path, &memory.root()).unwrap();
    file.read_at(&mut [0], 0).unwrap();
    // Counted when the file is closed.
    drop(file);
    memory.stats().buffered_reads == 0
}

/// Pseudo-random numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A page of the file, the low ones far more often.
    fn hot_page(&mut self) -> u64 {
        let mut end = FILE_PAGES;
        for _ in 0..3 {
            end = self.below(end) + 1;
        }
        end - 1
    }

    /// A size from 1 byte to 32 MiB, each power of two as often.
    fn size(&mut self) -> u64 {
        let power = self.below(25);
        1 + self.below(2 << power)
    }
}

/// What all threads look at.
struct World {
    memory: Memory,
    groups: [Group; 4],
    path: PathBuf,
    /// The memory cgroup's limit, which follows the budget.
    limit_file: Option<PathBuf>,
    /// What the process had before the memory: of its own heap, and charged to its cgroup.
    base: u64,
    cgroup_base: u64,
    /// The budget that the promise is about now. It is raised before the budget is, and lowered
    /// after: a sample that falls into a change is held against the larger one.
    bound: AtomicU64,
    /// Bytes that are reserved and not yet written. Added after they were reserved, taken off
    /// before they are written.
    untouched: AtomicU64,
    /// Changes of `untouched`: a sample during which it changed leaves it out.
    nr_changes: AtomicU64,
    is_over: AtomicBool,
}

/// What the sampler saw.
#[derive(Debug, Default)]
struct Seen {
    nr_samples: u64,
    most: u64,
    least_room: Option<i64>,
    lowest_bound: Option<u64>,
}

impl World {
    fn new(builder: Builder, path: &Path, limit_file: Option<PathBuf>) -> World {
        let base = resident_bytes().unwrap();
        let cgroup_base = limit_file.as_deref().map_or(0, memcg::usage);
        let builder = builder.budget(ByteSize(MOST)).arena_max(ByteSize(MOST));
        let memory = builder.build().unwrap();
        let names = ["web", "batch", "work", "query"];
        let world = World {
            groups: names.map(|name| memory.root().child(name).unwrap()),
            memory,
            path: path.to_owned(),
            limit_file,
            base,
            cgroup_base,
            bound: AtomicU64::new(MOST),
            untouched: AtomicU64::new(0),
            nr_changes: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        };
        world.limit_cgroup(MOST);
        world
    }

    fn run(&self) {
        let seconds = std::env::var(SECONDS).map_or(3, |text| text.parse().unwrap());
        let seen = thread::scope(|scope| {
            let sampler = scope.spawn(|| self.sample());
            let workers = [
                scope.spawn(|| self.read_hot_pages(1)),
                scope.spawn(|| self.scan_and_pin(2)),
                scope.spawn(|| self.use_bufs(3)),
                scope.spawn(|| self.reserve(4)),
                scope.spawn(|| self.reserve(5)),
                scope.spawn(|| self.resize(6)),
            ];
            thread::sleep(Duration::from_secs(seconds));
            self.is_over.store(true, Ordering::Relaxed);
            let done: Vec<u64> = workers.map(|worker| worker.join().unwrap()).into();
            println!("promise: operations of each thread: {done:?}");
            assert!(done.iter().all(|&done| done > 0), "{done:?}");
            sampler.join().unwrap()
        });
        let stats = self.memory.stats();
        println!("promise: {seen:?}, base {} bytes", self.base);
        println!("promise: {stats:?}");
        assert!(seen.least_room.unwrap() >= 0, "{seen:?}");
        assert!(seen.nr_samples >= seconds * 10, "{seen:?}");
        assert!(seen.most > MOST / 2, "was the cache filled? {seen:?}");
        assert!(
            seen.lowest_bound.unwrap() < MOST,
            "was the budget lowered? {seen:?}"
        );
        assert!(stats.released_bytes > 0, "{stats:?}");
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// What is resident and what is reserved beyond it, and the bound for that.
    fn look(&self) -> (u64, u64) {
        let before = self.nr_changes.load(Ordering::SeqCst);
        let untouched = self.untouched.load(Ordering::SeqCst);
        let bound = self.bound.load(Ordering::SeqCst);
        let resident = resident_bytes().unwrap();
        let bound = bound.max(self.bound.load(Ordering::SeqCst));
        let has_changed = self.nr_changes.load(Ordering::SeqCst) != before;
        let reserved = if has_changed { 0 } else { untouched };
        (resident.saturating_sub(self.base) + reserved, bound)
    }

    fn sample(&self) -> Seen {
        let mut seen = Seen::default();
        while self.goes_on() {
            let (used, bound) = self.look();
            let room = i64::try_from(promise(bound)).unwrap() - i64::try_from(used).unwrap();
            seen.nr_samples += 1;
            seen.most = seen.most.max(used);
            seen.least_room = Some(seen.least_room.map_or(room, |least| least.min(room)));
            seen.lowest_bound = Some(seen.lowest_bound.map_or(bound, |least| least.min(bound)));
            if room < 0 {
                println!("promise: {used} bytes under a budget of {bound}");
            }
            thread::sleep(SAMPLE);
        }
        seen
    }

    fn open(&self, order: u8, group: &Group) -> File {
        let file =
            OpenOptions::new()
                .order(Order::new(order))
                .open(&self.memory, &self.path, group);
        file.unwrap()
    }

    fn read_hot_pages(&self, seed: u64) -> u64 {
        let (mut random, mut bytes) = (Random(seed), [0; 8]);
        let file = self.open(0, &self.groups[0]);
        let mut nr_read = 0;
        while self.goes_on() {
            let page = random.hot_page();
            match file.read_at(&mut bytes, page * PAGE_BYTES as u64) {
                Ok(_) => assert_eq!(u64::from_le_bytes(bytes), page),
                Err(error) => assert!(is_full(&error), "{error}"),
            }
            nr_read += 1;
        }
        nr_read
    }

    /// Reads the file from end to end in pages of 16 KiB, with some of them pinned for a while.
    fn scan_and_pin(&self, seed: u64) -> u64 {
        let mut random = Random(seed);
        let file = self.open(2, &self.groups[1]);
        let mut pins: VecDeque<Page> = VecDeque::new();
        let mut nr_read = 0;
        for page in (0..FILE_PAGES / 4).cycle().take_while(|_| self.goes_on()) {
            match file.pin(page) {
                Ok(pin) if random.below(16) == 0 => pins.push_back(pin),
                Ok(pin) => assert_eq!(pin[..8], (page * 4).to_le_bytes()),
                Err(error) => assert!(is_full(&error), "{error}"),
            }
            if pins.len() > 64 {
                pins.pop_front();
            }
            nr_read += 1;
        }
        nr_read
    }

    /// Working memory of all orders up to 2 MiB, at most 24 MiB.
    fn use_bufs(&self, seed: u64) -> u64 {
        let mut random = Random(seed);
        let mut bufs: VecDeque<Buf> = VecDeque::new();
        let (mut nr_taken, mut nr_no_block) = (0, 0);
        while self.goes_on() {
            let order = Order::new(u8::try_from(random.below(10)).unwrap());
            match self.groups[2].alloc(order) {
                Ok(buf) => bufs.push_back(buf),
                Err(Error::NoBlock { .. }) => nr_no_block += 1,
                Err(error) => assert!(is_full(&error), "{error}"),
            }
            nr_taken += 1;
            let most = random.below(24 * MIB);
            while bufs.iter().map(|buf| buf.len() as u64).sum::<u64>() > most {
                let at = random.below(bufs.len() as u64);
                bufs.swap_remove_back(usize::try_from(at).unwrap());
            }
        }
        println!("promise: {nr_no_block} blocks refused");
        nr_taken
    }

    /// Reserves, then writes; frees, then gives back.
    fn reserve(&self, seed: u64) -> u64 {
        let mut random = Random(seed);
        let reservation = self.groups[3].reserve(ByteSize(0)).unwrap();
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        let mut nr_grown = 0;
        while self.goes_on() {
            let size = random.size();
            let held = reservation.size().as_u64();
            if held + size > 24 * MIB || random.below(4) == 0 {
                let nr_left = random.below(blocks.len() as u64 + 1);
                for block in blocks.drain(usize::try_from(nr_left).unwrap()..) {
                    give_back(&reservation, block);
                }
                continue;
            }
            match reservation.try_grow(ByteSize(size)) {
                Ok(()) => {
                    self.count_untouched(|untouched| untouched + size);
                    thread::sleep(Duration::from_micros(random.below(2000)));
                    self.count_untouched(|untouched| untouched - size);
                    blocks.push(vec![1; usize::try_from(size).unwrap()]);
                    nr_grown += 1;
                }
                Err(error) => assert!(is_full(&error), "{error}"),
            }
        }
        blocks
            .into_iter()
            .for_each(|block| give_back(&reservation, block));
        nr_grown
    }

    fn count_untouched(&self, change: impl Fn(u64) -> u64) {
        let change = |now| Some(change(now));
        let order = Ordering::SeqCst;
        let changed = self.untouched.fetch_update(order, order, change);
        changed.unwrap();
        self.nr_changes.fetch_add(1, order);
    }

    /// Moves the budget and the limits of groups; makes groups and drops them.
    fn resize(&self, seed: u64) -> u64 {
        let mut random = Random(seed);
        let mut nr_resized = 0;
        while self.goes_on() {
            match random.below(3) {
                0 => self.resize_group(&mut random),
                1 => self.set_budget(LEAST + random.below(MOST - LEAST)),
                _ => self.come_and_go(&mut random),
            }
            nr_resized += 1;
            thread::sleep(Duration::from_millis(random.below(60)));
        }
        nr_resized
    }

    fn resize_group(&self, random: &mut Random) {
        let at = usize::try_from(random.below(4)).unwrap();
        let max = ByteSize(8 * MIB + random.below(MOST));
        match self.groups[at].set_max(max) {
            Ok(()) | Err(Error::StillOver { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn set_budget(&self, budget: u64) {
        let before = self.bound.load(Ordering::SeqCst);
        if budget > before {
            self.bound.store(budget, Ordering::SeqCst);
            self.limit_cgroup(budget);
            return self.memory.set_budget(ByteSize(budget)).unwrap();
        }
        match self.memory.set_budget(ByteSize(budget)) {
            Ok(()) => {}
            Err(Error::StillOver { .. }) => {
                if !self.comes_under(budget) {
                    return self.memory.set_budget(ByteSize(before)).unwrap();
                }
            }
            Err(error) => panic!("{error}"),
        }
        self.bound.store(budget, Ordering::SeqCst);
        let (used, bound) = self.look();
        assert!(
            used <= promise(bound),
            "{used} bytes at once under a budget of {bound}"
        );
        self.limit_cgroup(budget);
    }

    /// Waits until what was in use is given back; then it holds from the next sample on.
    fn comes_under(&self, budget: u64) -> bool {
        let start = Instant::now();
        while self.memory.root().usage() > ByteSize(budget) {
            if start.elapsed() > Duration::from_secs(1) {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(SAMPLE);
        true
    }

    fn limit_cgroup(&self, budget: u64) {
        if let Some(file) = &self.limit_file {
            let limit = promise(budget) + self.cgroup_base;
            fs::write(file, limit.to_string()).unwrap();
        }
    }

    /// A tenant that reads a little and goes.
    fn come_and_go(&self, random: &mut Random) {
        let group = self.groups[0].child("tenant").unwrap();
        let file = self.open(0, &group);
        let mut bytes = [0; 64 << 10];
        let start = random.below(FILE_PAGES) * PAGE_BYTES as u64;
        if let Err(error) = file.read_at(&mut bytes, start) {
            assert!(is_full(&error), "{error}");
        }
    }
}

fn give_back(reservation: &Reservation, block: Vec<u8>) {
    let size = block.len() as u64;
    drop(block);
    reservation.shrink(ByteSize(size));
}

/// Refused because everything in the way is in use: allowed where limits move.
fn is_full(error: &Error) -> bool {
    matches!(error, Error::OverLimit { .. } | Error::NoMetadata { .. })
}
