//! Isolated CPUs: whatever other CPUs do with memory, they interrupt none.
//!
//! In processes of their own, one for each case: which CPUs a process's threads may run on is what
//! decides. A thread spins on CPU 1, the others stay on CPU 0 and take memory away in all ways that
//! there are; `/proc/interrupts` says how often CPU 1 was interrupted meanwhile.
//!
//! In a program of its own: what other tests' threads do at the same time wakes threads that ran on
//! CPU 1 last, which interrupts it.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

#[allow(dead_code)] // Other programs use all of it.
#[path = "it/child.rs"]
mod child;

use pagetide::{ByteSize, File, Group, Memory, Order, Store, resident_bytes};
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const ISOLATED: usize = 1;
const NR_WINDOWS: usize = 100;
/// glibc keeps what is freed: giving it back would interrupt, too.
const GLIBC: &str = "export GLIBC_TUNABLES=glibc.malloc.trim_threshold=1073741824:\
                     glibc.malloc.mmap_threshold=1073741824:glibc.malloc.arena_max=1";

#[test]
fn nothing_interrupts_an_isolated_cpu() {
    let test = "nothing_interrupts_an_isolated_cpu";
    let Some(role) = child::role() else {
        if let Err(reason) = can_count() {
            return println!("skipped: isolated CPU: {reason}");
        }
        for role in ["isolated", "control"] {
            let said = child::run_after(GLIBC, test, role);
            let lines = said.lines().filter(|line| line.starts_with("windows"));
            lines.for_each(|line| println!("{role}: {line}"));
        }
        return;
    };
    match &*role {
        "isolated" => isolated(),
        _ => control(),
    }
}

/// Whether interruptions of a second CPU can be counted here.
fn can_count() -> Result<(), String> {
    if child::is_sanitized() {
        return Err("the sanitizer takes memory away of itself".to_owned());
    }
    let allowed = sched_getaffinity(None).map_err(|error| error.to_string())?;
    if !(allowed.is_set(0) && allowed.is_set(ISOLATED)) {
        return Err("CPUs 0 and 1 are not both allowed".to_owned());
    }
    nr_interruptions().map(drop)
}

/// Times that CPU 1 had to forget addresses, or to do something else at once, because another one
/// asked it to.
fn nr_interruptions() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/interrupts").map_err(|error| error.to_string())?;
    let count = |name: &str| {
        let mut lines = text.lines();
        let row = lines.find_map(|line| line.trim().strip_prefix(name));
        let row = row.ok_or_else(|| format!("no row {name} in /proc/interrupts"))?;
        let count = row.split_whitespace().nth(ISOLATED);
        let count = count.and_then(|count| count.parse::<u64>().ok());
        count.ok_or_else(|| "no column for CPU 1 in /proc/interrupts".to_owned())
    };
    Ok(count("TLB:")? + count("CAL:")?)
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

/// Binds all threads that there are to CPU 0.
fn stay_on_cpu_0() {
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let number = task.file_name().to_str().unwrap().parse().unwrap();
        match sched_setaffinity(Pid::from_raw(number), &only(0)) {
            // It has ended since it was listed.
            Err(Errno::SRCH) => {}
            bound => bound.unwrap(),
        }
    }
}

fn builder() -> pagetide::Builder {
    let builder = Memory::builder().budget(ByteSize::mib(64));
    builder.release_after(Some(Duration::ZERO))
}

/// A thread on CPU 1, which uses memory there.
struct Spinner {
    ready: Barrier,
    is_over: AtomicBool,
    thread: AtomicU64,
}

impl Spinner {
    fn new() -> Spinner {
        Spinner {
            ready: Barrier::new(2),
            is_over: AtomicBool::new(false),
            thread: AtomicU64::new(0),
        }
    }

    fn spin(&self, group: &Group, file: &File) {
        sched_setaffinity(None, &only(ISOLATED)).unwrap();
        let number = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread
            .store(u64::try_from(number).unwrap(), Ordering::Relaxed);
        self.ready.wait();
        while !self.is_over.load(Ordering::Relaxed) {
            // Fills this CPU's stock and cache, for others to drain.
            drop(group.alloc_unzeroed(Order::new(0)).unwrap());
            // Claims there what others change.
            drop(file.pin(0).unwrap());
        }
    }

    /// Times that it had to leave its CPU: another's interruptions would be counted then, and its
    /// own not.
    fn nr_switches(&self) -> u64 {
        let thread = self.thread.load(Ordering::Relaxed);
        let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        let counts = lines.map(|line| line.split_whitespace().last().unwrap());
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    }
}

/// Takes memory away in all ways that there are.
fn take_away(memory: &Memory, groups: &[Group; 2], file: &File) {
    let [work, query] = groups;
    let bufs = [9, 9, 5, 0].map(|order| work.alloc(Order::new(order)).unwrap());
    drop(bufs);
    memory.drain();
    memory.release();
    let reservation = query.reserve(ByteSize::mib(8)).unwrap();
    reservation.try_grow(ByteSize::mib(5)).unwrap();
    drop(reservation);
    work.set_max(ByteSize::mib(32)).unwrap();
    work.set_max(ByteSize::mib(64)).unwrap();
    memory.set_budget(ByteSize::mib(48)).unwrap();
    memory.set_budget(ByteSize::mib(64)).unwrap();
    let bufs = [9, 9, 0].map(|order| work.alloc(Order::new(order)).unwrap());
    drop(bufs);
    // Often enough for these pages to be claimed.
    for page in (0..140).flat_map(|_| 0..2) {
        drop(file.pin(page).unwrap());
    }
    drop(file.upgrade(file.pin(0).unwrap()));
    drop(file.pin_mut(1).unwrap());
    // Less is there.
    drop(memory.reclaim(ByteSize::mib(1)));
    memory.tick();
}

/// Pages that come from no device, which would interrupt.
struct Zeros;

impl Store for Zeros {
    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }

    fn write_at(&self, buf: &[u8], _: u64) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn is_writable(&self) -> bool {
        true
    }
}

fn pages(memory: &Memory) -> File {
    let store = Box::new(Zeros);
    let file = memory.open_store(store, "pages", &memory.root());
    file.unwrap()
}

/// Takes memory away while a thread spins on CPU 1; says in how many windows of those in which it
/// kept its CPU that was interrupted, and in how many not; and how often memory went to the OS.
fn windows(memory: &Memory) -> ([usize; 2], u64) {
    let groups = ["work", "query"].map(|name| memory.root().child(name).unwrap());
    let spinning = memory.root().child("spinning").unwrap();
    let file = pages(memory);
    let spinner = Spinner::new();
    let (mut counts, mut nr_calls) = ([0; 2], 0);
    thread::scope(|scope| {
        scope.spawn(|| spinner.spin(&spinning, &file));
        spinner.ready.wait();
        let before = memory.stats().release_calls;
        take_away(memory, &groups, &file);
        for _ in 0..20 * NR_WINDOWS {
            let switches = spinner.nr_switches();
            let before = nr_interruptions().unwrap();
            take_away(memory, &groups, &file);
            let after = nr_interruptions().unwrap();
            if spinner.nr_switches() == switches {
                counts[usize::from(after == before)] += 1;
            }
            if counts[0] + counts[1] == NR_WINDOWS {
                break;
            }
        }
        nr_calls = memory.stats().release_calls - before;
        spinner.is_over.store(true, Ordering::Relaxed);
    });
    println!(
        "windows: {} with interruptions, {} without",
        counts[0], counts[1]
    );
    println!("windows: {:?}", memory.stats());
    assert!(
        counts[0] + counts[1] > 0,
        "the thread never kept its CPU for a window"
    );
    (counts, nr_calls)
}

fn control() {
    let memory = builder().isolated_cpus(&[]).build().unwrap();
    stay_on_cpu_0();
    let ([with, without], _) = windows(&memory);
    // A virtual CPU that the host does not run is not interrupted: it forgets when it runs again.
    assert!(with > without / 8, "is it counted at all?");
    assert!(memory.stats().release_calls > 0);
    assert_eq!(memory.stats().releases_deferred, 0);
}

fn isolated() {
    let isolated = u32::try_from(ISOLATED).unwrap();
    let memory = builder().isolated_cpus(&[isolated]).build().unwrap();
    keeps_off_by_itself();
    stay_on_cpu_0();
    // Nobody there: nobody is interrupted.
    let groups = ["a", "b"].map(|name| memory.root().child(name).unwrap());
    take_away(&memory, &groups, &pages(&memory));
    let free = memory.stats();
    assert!(free.release_calls > 0);
    assert_eq!(free.releases_deferred, 0, "{free:?}");
    // What others do (the kernel may join pages, or wake a thread there) is not there every time.
    let is_quiet = (0..40).any(|_| {
        let (counts, nr_calls) = windows(&memory);
        // Before and after nobody is there, and a tick may give back what it likes.
        assert_eq!(nr_calls, 0);
        counts[0] == 0
    });
    assert!(is_quiet, "CPU 1 was interrupted");
    let stats = memory.stats();
    assert!(stats.releases_deferred > 0, "{stats:?}");
    what_was_kept_goes();
}

/// The housekeeping thread does, before it may be asked.
fn keeps_off_by_itself() {
    let housekeeper = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
        let mut all = tasks.filter_map(status);
        all.find(|status| status.starts_with("Name:\tpagetide\n"))
    };
    let keeps_off = || {
        let status = housekeeper()?;
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let mut parts = allowed.trim().split(',');
        (!parts.any(|part| part == "1" || part.starts_with("0-"))).then_some(())
    };
    let soon = (0..500).any(|_| {
        thread::sleep(Duration::from_millis(10));
        keeps_off().is_some()
    });
    assert!(soon, "{:?}", housekeeper());
}

/// What a reservation could not give back while the thread was there goes at a tick after it.
fn what_was_kept_goes() {
    let isolated = u32::try_from(ISOLATED).unwrap();
    let builder = builder().release_after(None).without_thread();
    let memory = builder.isolated_cpus(&[isolated]).build().unwrap();
    let query = memory.root().child("query").unwrap();
    let bufs = [9; 24].map(|order| query.alloc(Order::new(order)).unwrap());
    drop(bufs);
    let spinner = Spinner::new();
    let spinning = memory.root().child("spins").unwrap();
    let file = pages(&memory);
    let mut held = None;
    thread::scope(|scope| {
        scope.spawn(|| spinner.spin(&spinning, &file));
        spinner.ready.wait();
        held = Some(query.reserve(ByteSize::mib(40)).unwrap());
        memory.tick();
        spinner.is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(memory.stats().release_calls, 0);
    let before = resident_bytes().unwrap();
    // A thread that has been joined is listed a little longer.
    let is_gone = (0..500).any(|_| {
        memory.tick();
        memory.stats().released_bytes > 0 || {
            thread::sleep(Duration::from_millis(10));
            false
        }
    });
    assert!(is_gone, "{:?}", memory.stats());
    let after = resident_bytes().unwrap();
    // What was never touched went first.
    let gone = memory.stats().released_bytes;
    assert!(gone >= 16 << 20, "{gone} bytes went");
    assert!(after + (16 << 20) <= before, "{after} after {before}");
    memory.tick();
    assert_eq!(memory.stats().released_bytes, gone, "once");
}
