//! What a group is said to need.

use crate::data;
use pagetide::{ByteSize, File, Group, Memory, Policy, WorkingSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Pages of a file that is read round and round, by a group of a MiB.
const NR_PAGES: u64 = 384;

/// What is read ahead at most, in these tests.
const WINDOW: ByteSize = ByteSize::kib(128);

fn loop_of(policy: Policy, readahead: ByteSize) -> (Memory, Group, File) {
    let builder = Memory::builder().budget(ByteSize::mib(16));
    let builder = builder.readahead(readahead);
    let memory = builder.policy(policy).build().unwrap();
    let web = memory.root().child("web").unwrap();
    let web = web.max(ByteSize::mib(1)).unwrap();
    let source = data::numbered_file(NR_PAGES);
    let file = memory.open(source.path(), &web).unwrap();
    (memory, web, file)
}

fn read(file: &File, nr_reads: usize) {
    let mut page = [0; 4096];
    for at in (0..NR_PAGES).cycle().take(nr_reads) {
        file.read_at(&mut page, at * 4096).unwrap();
    }
}

fn at(set: &WorkingSet, size: ByteSize) -> f64 {
    set.misses_at(size).unwrap()
}

/// The estimates of a loop are this near, in parts of its misses.
fn check_loop(readahead: ByteSize, bound: f64) {
    let (_memory, web, file) = loop_of(Policy::Gated2q, readahead);
    assert_eq!(web.working_set(), None);
    read(&file, 10_000);
    let set = web.working_set().unwrap();
    let near = |size: ByteSize, expected: f64| {
        let at = at(&set, size);
        assert!((at - expected).abs() < bound, "{at} at {size}");
    };
    // A third of it is missing; what is not resident misses, and a quarter less misses two thirds
    // of that more.
    near(set.resident(), 1.0);
    near(ByteSize::kib(1280), 0.5);
    near(ByteSize::kib(1536), 0.0);
    near(ByteSize::kib(768), 1.5);
    let (short, refaults) = (ByteSize::kib(512), set.refaults());
    let nearest: u64 = refaults
        .filter(|&(missing, _)| missing <= short + ByteSize::kib(64))
        .map(|(_, bytes)| bytes.as_u64())
        .sum();
    let all = set.page_ins().as_u64();
    assert!(nearest > all * 3 / 4, "{nearest} of {all}");
}

#[test]
fn a_loop_needs_all_of_itself() {
    check_loop(ByteSize(0), 0.15);
}

#[test]
fn what_is_read_ahead_moves_the_needs_of_a_loop_by_its_windows() {
    // Two, each a sixteenth of the group. How much is on its way is a matter of time.
    check_loop(WINDOW, 0.15 + 2.0 / 16.0);
}

#[test]
fn other_policies_keep_no_distances() {
    let (_memory, web, file) = loop_of(Policy::Mglru, WINDOW);
    read(&file, 10_000);
    assert_eq!(web.working_set(), None);
}

#[test]
fn others_may_read_meanwhile() {
    let (_memory, web, file) = loop_of(Policy::Gated2q, WINDOW);
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| read(&file, 20_000));
        }
        let looker = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let set = web.working_set();
                let more = set.is_none_or(|set| at(&set, set.resident() * 2u64) <= 1.0);
                assert!(more, "{set:?}");
            }
        });
        read(&file, 20_000);
        is_done.store(true, Ordering::Relaxed);
        looker.join().unwrap();
    });
}
