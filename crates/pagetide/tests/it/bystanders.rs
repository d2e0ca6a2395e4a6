//! Tenants of one file: who is slowed down or refused, and who goes on beside them.

use crate::slow::{PAGE, group_of, slow};
use crate::swift::assert_within;
use pagetide::{ByteSize, File, Group, Memory};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

fn memory() -> Memory {
    let memory = Memory::builder().budget(ByteSize::mib(64));
    memory.throttle_max(500 * MS).build().unwrap()
}

/// How long the middle one of so many calls takes: a machine that does something else for a moment
/// delays a few.
fn median(nr_calls: usize, mut call: impl FnMut()) -> Duration {
    let took = (0..nr_calls).map(|_| {
        let begin = Instant::now();
        call();
        let took = begin.elapsed();
        // What they wait for goes on meanwhile.
        thread::sleep(MS);
        took
    });
    let mut took: Vec<Duration> = took.collect();
    took.sort_unstable();
    took[nr_calls / 2]
}

/// One change of a page, by somebody who may be refused.
type Change = fn(&File, u64);

const CHANGES: [(&str, Change); 3] = [
    ("write_at", |file, page| {
        let _refused = file.write_at(&[1; 4096], page * PAGE);
    }),
    ("pin_mut", |file, page| drop(file.pin_mut(page))),
    ("pin_new", |file, page| drop(file.pin_new(page))),
];

/// Changes pages of another group's file on and on; how long its owner takes meanwhile for a hole,
/// and for a write to a page that is there.
fn beside(slowed: &Group, others: &File, change: Change, nr_calls: usize) -> [Duration; 2] {
    let file = others.for_group(slowed);
    let is_over = AtomicBool::new(false);
    let write = || _ = others.write_at(&[2], 20_000 * PAGE).unwrap();
    write();
    thread::scope(|scope| {
        scope.spawn(|| {
            let is_over = || is_over.load(Ordering::Relaxed);
            let pages = (0..20_000).cycle().take_while(|_| !is_over());
            pages.for_each(|page| change(&file, page));
        });
        thread::sleep(50 * MS);
        let punch = || others.punch(30_000 * PAGE..30_001 * PAGE).unwrap();
        let took = [median(nr_calls, punch), median(nr_calls, write)];
        is_over.store(true, Ordering::Relaxed);
        took
    })
}

#[test]
fn who_finds_no_memory_for_a_page_keeps_nobody_from_the_file() {
    for (name, change) in CHANGES {
        println!("beside {name}");
        assert_within(100 * MS, || {
            let memory = memory();
            let [slowed, other] = ["slowed", "other"].map(|name| group_of(&memory, name, 200));
            let file = slow(&memory, &other, Duration::ZERO);
            let own = file.for_group(&slowed);
            let pins: Result<Vec<_>, _> = (40_000..40_200).map(|page| own.pin(page)).collect();
            let _all_there_is = pins.unwrap();
            let [hole, write] = beside(&slowed, &file, change, 11);
            hole.max(write)
        });
    }
}

#[test]
fn who_is_slowed_down_keeps_nobody_from_the_file() {
    for (name, change) in CHANGES {
        println!("beside {name}");
        // It sleeps half a second and is swift for a while: the first call finds it asleep.
        assert_within(100 * MS, || {
            let memory = memory();
            let [slowed, other] = ["slowed", "other"].map(|name| group_of(&memory, name, 1000));
            let file = slow(&memory, &other, Duration::ZERO);
            let _used = slowed.reserve(ByteSize(900 * PAGE)).unwrap();
            slowed.set_high(ByteSize(100 * PAGE));
            let [hole, _write] = beside(&slowed, &file, change, 1);
            hole
        });
    }
}

#[test]
fn who_writes_back_keeps_nobody_from_the_file() {
    for (name, change) in [CHANGES[0], CHANGES[2]] {
        println!("beside {name}");
        // Less than one write of the store.
        assert_within(50 * MS, || {
            let memory = memory();
            let [slowed, other] = ["slowed", "other"].map(|name| group_of(&memory, name, 200));
            let file = slow(&memory, &other, 120 * MS);
            let [holes, _writes] = beside(&slowed, &file, change, 3);
            holes
        });
    }
}
