//! The promise of the budget, release to the OS, the housekeeping thread: in a process of its
//! own, because other tests' memory would be resident too.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

#[path = "it/data.rs"]
mod data;

use data::numbered_file;
use pagetide::{Buf, ByteSize, Memory, Order, resident_bytes};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const HUGE: Order = Order::new(9);

/// One test at a time: each looks at the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nr_threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|comm| comm.trim() == name).count()
}

fn quiet() -> pagetide::Builder {
    Memory::builder()
        .budget(ByteSize::mib(96))
        .without_thread()
        .release_after(None)
}

#[test]
fn resident_memory_keeps_the_promise_while_cache_and_working_memory_change() {
    if std::env::var_os("PAGETIDE_SANITIZER").is_some() {
        return println!("skipped: promise of the budget: the sanitizer keeps what is freed");
    }
    let _alone = alone();
    let data = numbered_file(16_384);
    let baseline = resident_bytes().unwrap();
    let budget = ByteSize::mib(24);
    let memory = Memory::builder().budget(budget).build().unwrap();
    let [web, work] = ["web", "work"].map(|name| memory.root().child(name).unwrap());
    let file = memory.open(data.path(), &web).unwrap();
    let promise = budget.as_u64() + budget.as_u64() / 50 + (16 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = 0;
            while !stop.load(Ordering::Relaxed) {
                peak = peak.max(resident_bytes().unwrap().saturating_sub(baseline));
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            peak
        });
        let mut bytes = [0; 8];
        for round in 0..4 {
            for page in 0..16_384_u64 {
                file.read_at(&mut bytes, page * 4096).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), page);
            }
            let order = Order::new(0);
            let bufs: Vec<_> = (0..1000 * (round + 1))
                .map(|_| work.alloc(order).unwrap())
                .collect();
            assert!(
                bufs.iter().all(|buf| buf.iter().all(|&byte| byte == 0)),
                "old bytes"
            );
            assert!(memory.root().usage() <= budget);
        }
        stop.store(true, Ordering::Relaxed);
        let peak = sampler.join().unwrap();
        assert!(peak <= promise, "{peak} bytes resident, {promise} promised");
        assert!(
            peak > budget.as_u64() / 2,
            "{peak} bytes resident: was the cache filled?"
        );
    });
}

#[test]
fn released_memory_is_not_resident_any_more() {
    let _alone = alone();
    let memory = quiet().build().unwrap();
    let group = memory.root().child("work").unwrap();
    let bufs: Vec<Buf> = (0..16).map(|_| group.alloc(HUGE).unwrap()).collect();
    let full = resident_bytes().unwrap();
    drop(bufs);
    let released = memory.release().as_u64();
    assert!(released >= 32 << 20, "{released}");
    let after = resident_bytes().unwrap();
    assert!(after + (30 << 20) < full, "{after} after {full}");
    assert_eq!(memory.release().as_u64(), 0, "once");
    assert_eq!(memory.stats().released_bytes, released);
    assert!(
        group
            .alloc_unzeroed(HUGE)
            .unwrap()
            .iter()
            .all(|&byte| byte == 0)
    );
}

#[test]
fn idle_memory_goes_back_by_itself() {
    let _alone = alone();
    let memory = quiet().release_after(Some(Duration::ZERO)).build().unwrap();
    let group = memory.root().child("work").unwrap();
    let bufs: Vec<Buf> = (0..16).map(|_| group.alloc(HUGE).unwrap()).collect();
    memory.tick();
    let before = memory.stats().released_bytes;
    drop(bufs);
    // Three ticks of a second each empty the caches; here the clock has hardly moved.
    memory.tick();
    let stats = memory.stats();
    assert!(
        stats.released_bytes > before || stats.releases_deferred > 0,
        "{stats:?}"
    );
}

#[test]
fn one_thread_keeps_house_unless_told_otherwise() {
    let _alone = alone();
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    // A thread names itself once it runs, and ends soon after the last handle.
    let soon = |has_thread| {
        (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            (nr_threads("pagetide") > 0) == has_thread
        })
    };
    assert!(soon(true));
    drop(memory);
    assert!(soon(false));
    let _quiet = quiet().build().unwrap();
    assert_eq!(nr_threads("pagetide"), 0);
}

#[test]
fn what_is_freed_under_a_budget_that_was_exceeded_goes_at_once() {
    let _alone = alone();
    for order in [9, 5, 0] {
        let memory = quiet().build().unwrap();
        let group = memory.root().child("work").unwrap();
        let alloc = || {
            let buf = group.alloc(Order::new(order)).ok()?;
            (memory.root().usage() < ByteSize::mib(88)).then_some(buf)
        };
        let bufs: Vec<Buf> = std::iter::from_fn(alloc).collect();
        let (full, used) = (resident_bytes().unwrap(), memory.root().usage().as_u64());
        let least = ByteSize::mib(24);
        let over = memory.set_budget(least).unwrap_err();
        assert!(matches!(over, pagetide::Error::StillOver { .. }), "{over}");
        // One in eight stays, so that small ones leave no pageblock whole.
        let _left: Vec<Buf> = bufs.into_iter().step_by(8).collect();
        assert!(memory.root().usage() < least);
        // All that the budget is below what was used, but for frames beyond the budget.
        let gone = full.saturating_sub(resident_bytes().unwrap());
        let least_gone = used - least.as_u64() - (8 << 20);
        assert!(gone >= least_gone, "{gone} bytes went, order {order}");
    }
}
