//! The memory of the whole process: each test in a process of its own.

use crate::child;
use crate::status::status_bytes;
use pagetide::{BudgetSource, ByteSize, Error, Memory, memory_limit};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Barrier;

#[test]
fn first_calls_at_once_build_one_memory() {
    if child::role().is_none() {
        return child::run("global::first_calls_at_once_build_one_memory", "alone");
    }
    const NR_THREADS: usize = 8;
    let start = Barrier::new(NR_THREADS);
    let ask = || {
        start.wait();
        let memory: &'static Memory = Memory::global().unwrap();
        std::ptr::from_ref(memory).addr()
    };
    let before = status_bytes("VmPeak");
    let places: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..NR_THREADS).map(|_| scope.spawn(ask)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(
        places.iter().all(|&place| place == places[0]),
        "{places:x?}"
    );
    let memory = Memory::global().unwrap();
    let (budget, limit) = (
        memory.budget().as_u64(),
        memory_limit().unwrap().limit().as_u64(),
    );
    assert_eq!(budget, limit / 2 / 4096 * 4096);
    assert!(matches!(
        memory.budget_source(),
        BudgetSource::Share { fraction: 0.5, of } if of.limit().as_u64() == limit
    ));
    // Address space of one arena, not of two. A thread's heap takes 64 MiB of it, or 128.
    let arenas = status_bytes("VmPeak") - before;
    let of_threads = 8 * (136 << 20);
    println!("{budget} bytes of budget, {arenas} of address space");
    assert!(arenas < budget / 2 * 3 + of_threads);
    let late = Memory::builder().budget(ByteSize::mib(8)).install_global();
    assert!(matches!(late, Err(Error::GlobalExists)), "{late:?}");
    assert_eq!(memory.budget().as_u64(), budget);
}

/// What another crate of the process would do.
mod library {
    use pagetide::{Buf, Error, Memory, Order};

    pub(super) fn working_memory() -> Result<Buf, Error> {
        Memory::global()?
            .root()
            .child("library")?
            .alloc(Order::new(4))
    }
}

#[test]
fn an_installed_memory_is_the_one_that_all_share() {
    if child::role().is_none() {
        return child::run(
            "global::an_installed_memory_is_the_one_that_all_share",
            "alone",
        );
    }
    let refused = Memory::builder().budget(ByteSize(0)).install_global();
    assert!(
        matches!(refused, Err(Error::BudgetTooSmall { .. })),
        "{refused:?}"
    );
    let ours = Memory::builder()
        .budget(ByteSize::mib(8))
        .install_global()
        .unwrap();
    assert!(std::ptr::eq(ours, Memory::global().unwrap()));
    assert_eq!(ours.budget(), ByteSize::mib(8));
    assert_eq!(ours.budget_source(), &BudgetSource::Named);
    let before = ours.stats().resident_pages;
    let buf = library::working_memory().unwrap();
    assert_eq!(ours.stats().resident_pages, before + 16);
    drop(buf);
    let again = Memory::builder().budget(ByteSize::mib(8)).install_global();
    assert!(matches!(again, Err(Error::GlobalExists)), "{again:?}");
}

#[test]
fn a_memory_that_could_not_be_built_is_tried_again() {
    if child::role().is_none() {
        return child::run(
            "global::a_memory_that_could_not_be_built_is_tried_again",
            "alone",
        );
    }
    let limit = getrlimit(Resource::As);
    // Room for the tables, but not for the arena.
    let room = memory_limit().unwrap().limit().as_u64() / 4;
    let short = Rlimit {
        current: Some(status_bytes("VmSize") + room),
        ..limit
    };
    setrlimit(Resource::As, short).unwrap();
    for _ in 0..2 {
        let refused = Memory::global();
        assert!(matches!(refused, Err(Error::Arena { .. })), "{refused:?}");
    }
    setrlimit(Resource::As, limit).unwrap();
    let memory = Memory::global().unwrap();
    assert!(memory.root().child("web").is_ok());
}
