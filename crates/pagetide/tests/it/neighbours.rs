//! What others do in a memory keeps nobody waiting, and takes nobody's room.

use crate::data::numbered_file;
use crate::gate::Gated;
use crate::many::memories;
use crate::rseq::Over;
use crate::slow::{PAGE, group_of, slow};
use pagetide::{ByteSize, File, Group, OpenOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
/// For as long pages are prefetched at most: more than all that is done beside takes.
const LONGEST: Duration = Duration::from_secs(40);

/// Runs `work` while pages of a file are prefetched all the time, for nobody.
fn beside_prefetches(file: &File, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let goes_on = || !stop.load(Ordering::Relaxed) && begin.elapsed() < LONGEST;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut page, nr_pages) = (0, file.len() / PAGE);
            while goes_on() {
                page = (page + 7919) % (nr_pages - 64);
                file.prefetch(page..page + 64);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        work();
        // Who waits for all of them goes on when there are no more.
        let went_on = goes_on();
        stop.store(true, Ordering::Relaxed);
        assert!(went_on, "{:?}", begin.elapsed());
    });
}

#[test]
fn a_batch_of_pins_takes_as_long_as_its_own_reads() {
    for memory in memories(64) {
        let [ours, theirs] = ["ours", "theirs"].map(|name| group_of(&memory, name, 512));
        let our = slow(&memory, &ours, MS * 5);
        let store = Gated::of(vec![7; 4096 * 4096]);
        let their = store.open(&memory, &theirs);
        let shut = store.reads.shut();
        beside_prefetches(&their, || {
            for page in 0..3 {
                drop(our.pin_many(&[page, 1000 + page, 2000 + page]).unwrap());
            }
            drop(shut);
        });
    }
}

#[test]
fn working_memory_comes_before_prefetches() {
    for memory in memories(64) {
        let group = group_of(&memory, "web", 1024);
        let file = slow(&memory, &group, MS * 20);
        beside_prefetches(&file, || {
            for _ in 0..5 {
                drop(group.reserve(ByteSize::mib(2)).unwrap());
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    }
}

#[test]
fn what_is_being_written_is_waited_for_also_while_others_write() {
    let data = numbered_file(64);
    for memory in memories(64) {
        let [ours, theirs] = ["ours", "theirs"].map(|name| group_of(&memory, name, 32));
        let our = slow(&memory, &ours, MS * 40);
        let their = memory.open_rw(data.path(), &theirs).unwrap();
        for page in 0..6 {
            our.write_at(&[7; 4096], page * PAGE).unwrap();
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| our.flush_range(..).unwrap());
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    their.write_at(&[1; 100], 0).unwrap();
                    their.flush_range(..).unwrap();
                }
            });
            std::thread::sleep(Duration::from_millis(10));
            let reserved = ours.reserve(ByteSize(31 * PAGE)).map(drop);
            stop.store(true, Ordering::Relaxed);
            reserved.unwrap();
        });
    }
}

#[test]
fn groups_that_went_leave_their_room_to_others() {
    let data = numbered_file(4096);
    for memory in memories(8) {
        // A group stays as long as a page of it is being read, ahead for nobody too.
        let options = OpenOptions::new().readahead(ByteSize(0));
        let open = |group: &Group| options.open(&memory, data.path(), group).unwrap();
        let _kept = open(&memory.root());
        let (nr_made, is_over) = ([const { AtomicU64::new(0) }; 4], AtomicBool::new(false));
        std::thread::scope(|scope| {
            for (thread, own) in nr_made.iter().enumerate() {
                let (memory, open, nr_made, is_over) = (&memory, &open, &nr_made, &is_over);
                scope.spawn(move || {
                    let _over = Over(is_over);
                    for nr in 0..4000 {
                        own.store(nr, Ordering::Relaxed);
                        // Nobody is far ahead of one that has lost its CPU with what groups need to
                        // go: it has no bound how many are left then.
                        let is_behind = |made: &AtomicU64| made.load(Ordering::Relaxed) + 50 < nr;
                        while nr_made.iter().any(is_behind) && !is_over.load(Ordering::Relaxed) {
                            std::thread::yield_now();
                        }
                        let group = memory.root().child(&format!("{thread}-{nr}")).unwrap();
                        drop(open(&group).pin(nr % 4096).unwrap());
                    }
                });
            }
        });
        // Whoever is not buried yet.
        std::thread::sleep(Duration::from_millis(50));
        memory.tick();
        let half = memory.root().reserve(ByteSize::mib(4)).map(drop);
        half.unwrap();
    }
}
