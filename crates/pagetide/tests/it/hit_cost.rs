//! What a hit and a block of working memory cost, counted: read-modify-writes, and no lock.

use crate::by_cpu;
use futures_executor::block_on;
use pagetide::{ByteSize, Memory, Order, Topology};
use pagetide_core::sync::nr_rmws;

const NR_PAGES: u64 = 64;

/// Core's read-modify-writes of `step`, its spin locks included; `None` in a release build, which
/// does not count them.
fn rmws_of<T>(step: impl FnOnce() -> T) -> Option<u64> {
    let before = nr_rmws()?;
    step();
    Some(nr_rmws()? - before)
}

#[test]
fn a_hit_is_two_read_modify_writes() {
    let data = crate::data::numbered_file(NR_PAGES);
    // In restartable sequences it is fewer.
    let builder = Memory::builder().restartable_sequences(false);
    let builder = builder.budget(ByteSize::mib(8)).without_thread();
    let memory = builder.build().unwrap();
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let offset = |page: u64| page * 4096;
    let mut bytes = [0; 4096];
    let missed = rmws_of(|| file.read_at(&mut bytes, offset(1)).unwrap());
    if missed.is_none() {
        return println!("skipped: counted hits: a release build counts no read-modify-writes");
    }
    assert!(missed > Some(2), "a miss takes more: {missed:?}");
    // The first pin of a page after it came in may mark its region of 64 frames as touched.
    for page in (0..NR_PAGES).chain(0..NR_PAGES) {
        drop(file.pin(page).unwrap());
    }
    if cfg!(contended) {
        // Beside a claim, the first reads of a page are counted by an exchange of their own.
        for page in (0..7).flat_map(|_| 0..NR_PAGES) {
            file.read_at(&mut bytes, offset(page)).unwrap();
        }
    }
    for page in 0..NR_PAGES {
        // The first reads of a page are counted in its word by the exchange that pins it.
        for _ in 0..5 {
            let read = rmws_of(|| file.read_at(&mut bytes, offset(page)).unwrap());
            assert_eq!(read, Some(2), "read_at of page {page}");
            let pinned = rmws_of(|| drop(file.pin(page).unwrap()));
            assert_eq!(pinned, Some(2), "pin and drop of page {page}");
            let by_task = rmws_of(|| drop(block_on(file.pin_async(page)).unwrap()));
            assert_eq!(by_task, Some(2), "the same for a task");
        }
    }
    let across = rmws_of(|| file.read_at(&mut bytes, offset(7) + 100).unwrap());
    assert_eq!(across, Some(4), "a read of two pages");
}

#[test]
fn a_hit_of_a_page_that_is_used_often_is_none() {
    let data = crate::data::numbered_file(NR_PAGES);
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = builder.build().unwrap();
    if let Some(reason) = memory.without_rseq() {
        return println!("skipped: restartable sequences: {reason}");
    }
    let file = memory.open(data.path(), &memory.root()).unwrap();
    let mut bytes = [0; 4096];
    let mut hits = |nr_rounds: u64| {
        for page in (0..nr_rounds).flat_map(|_| 0..NR_PAGES) {
            drop(file.pin(page).unwrap());
            file.read_at(&mut bytes, page * 4096).unwrap();
            assert_eq!(bytes[..8], page.to_le_bytes());
        }
    };
    hits(1);
    // At first each is a pin.
    if let Some(rmws) = rmws_of(|| hits(8)).filter(|_| !cfg!(contended)) {
        assert!(rmws >= 8 * NR_PAGES * 4, "{rmws} for {}", 8 * NR_PAGES);
    }
    // With more CPUs, claims have more to save first.
    hits(3000);
    // But where the thread was preempted between or changed its CPU.
    if let Some(rmws) = rmws_of(|| hits(100)) {
        assert!(rmws < 100 * NR_PAGES / 20, "{rmws} for {}", 100 * NR_PAGES);
    }
    // A page of which one is pinned: the next claim has another word.
    let pinned = file.pin(0).unwrap();
    if let Some(rmws) = rmws_of(|| (0..1000).for_each(|_| drop(file.pin(1).unwrap()))) {
        assert!(rmws < 50, "{rmws} beside a pin");
    }
    drop(pinned);
}

#[test]
fn a_page_that_one_cpu_uses_often_is_claimed_where_there_are_many() {
    let data = crate::data::numbered_file(1);
    let many: Topology = "1x512".parse().unwrap();
    let builder = Memory::builder().budget(ByteSize::mib(256)).topology(many);
    let memory = builder.without_thread().build().unwrap();
    if let Some(reason) = memory.without_rseq() {
        return println!("skipped: restartable sequences: {reason}");
    }
    let file = memory.open(data.path(), &memory.root()).unwrap();
    (0..10_000).for_each(|_| drop(file.pin(0).unwrap()));
    // But where the thread was preempted between or changed its CPU.
    if let Some(rmws) = rmws_of(|| (0..1000).for_each(|_| drop(file.pin(0).unwrap()))) {
        assert!(rmws < 50, "{rmws} for a thousand");
    }
}

#[test]
fn a_block_taken_and_dropped_is_at_most_two_read_modify_writes() {
    for order in [0, 1, 4].map(Order::new) {
        // Each order alone: two that share a magazine of the CPU's take turns by the second.
        // Enough for blocks of each order to wait on each CPU.
        let builder = Memory::builder().budget(by_cpu::budget(ByteSize::mib(128)));
        let memory = builder.without_thread().build().unwrap();
        let group = memory.root().child("query").unwrap();
        let pair = || drop(group.alloc_unzeroed(order).unwrap());
        pair();
        // The thread may move to another CPU: most pairs are on one.
        let counted = rmws_of(|| (0..1000).for_each(|_| pair()));
        assert!(
            counted.is_none_or(|rmws| rmws < 2200),
            "{counted:?} for a thousand of {order:?}"
        );
    }
}
