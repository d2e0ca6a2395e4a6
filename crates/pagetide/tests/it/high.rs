//! Groups above their `high`.

use crate::data::numbered_file;
use crate::slow::{PAGE, group_of, slow};
use crate::swift::{assert_within, sleeps_of, timed};
use pagetide::{Buf, ByteSize, Error, File, Group, Memory, Order};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);

fn memory(mib: u64) -> Memory {
    let memory = Memory::builder().budget(ByteSize::mib(mib));
    memory.build().unwrap()
}

fn group(memory: &Memory, high: ByteSize) -> Group {
    memory.root().child("web").unwrap().high(high)
}

#[test]
fn the_cache_of_a_group_above_its_high_gives_way_to_working_memory() {
    let memory = memory(256);
    let group = group(&memory, ByteSize::mib(64));
    let file = slow(&memory, &group, Duration::ZERO);
    (0..20_000).for_each(|page| drop(file.pin(3 * page).unwrap()));
    let _used = group.reserve(ByteSize::mib(32)).unwrap();
    assert!(group.usage() <= ByteSize::mib(65), "{}", group.usage());
}

#[test]
fn nobody_is_slowed_down_while_clean_pages_go() {
    let memory = memory(64);
    let group = group(&memory, ByteSize::mib(32));
    let files = ["a", "b", "c"].map(|name| {
        let child = group.child(name).unwrap();
        slow(&memory, &child, Duration::ZERO)
    });
    let read = |pages: std::ops::Range<u64>| {
        for page in pages {
            files
                .iter()
                .for_each(|file| drop(file.pin(3 * page).unwrap()));
        }
    };
    read(0..2000);
    // Far below what there is: whoever reads on makes room, and does not sleep.
    group.set_high(ByteSize::mib(4));
    let mut pages = 2000;
    assert_within(500 * MS, || {
        pages += 1000;
        timed(|| read(pages - 1000..pages))
    });
    assert!(group.usage() <= ByteSize::mib(5), "{}", group.usage());
}

#[test]
fn a_group_with_a_high_is_not_all_dirty() {
    let memory = memory(256);
    for name in ["itself", "below"] {
        let group = group_of(&memory, name, 1 << 14).high(ByteSize::mib(4));
        let writes = match name {
            "below" => group.child("writes").unwrap(),
            _ => group.clone(),
        };
        let data = tempfile::NamedTempFile::new().unwrap();
        let file = memory.open_rw(data.path(), &writes).unwrap();
        for page in 0..4000 {
            file.write_at(&[1; 4096], 2 * page * PAGE).unwrap();
        }
        let dirty = ByteSize(writes.stat().file_dirty);
        assert!(dirty < ByteSize::mib(1), "{name}: {dirty}");
    }
}

/// Under the lock of the file nothing is reclaimed: before the next page is.
#[test]
fn who_changes_pages_stays_below_high_and_is_not_slowed_down_while_clean_pages_go() {
    type Change = fn(&File, u64) -> Result<(), Error>;
    let changes: [Change; 4] = [
        |file, page| file.write_at(&[1], page * PAGE).map(drop),
        |file, page| file.pin_mut(page).map(drop),
        |file, page| file.pin_new(page).map(drop),
        |file, page| file.punch(page * PAGE + 1..page * PAGE + 3),
    ];
    for change in changes {
        let memory = memory(256);
        let group = group(&memory, ByteSize::mib(4));
        let data = tempfile::NamedTempFile::new().unwrap();
        data.as_file().set_len(8000 * PAGE).unwrap();
        let file = memory.open_rw(data.path(), &group).unwrap();
        let mut next = 0;
        assert_within(1000 * MS, || {
            next += 1000;
            timed(|| (next - 1000..next).for_each(|page| change(&file, page % 8000).unwrap()))
        });
        (0..4000).for_each(|page| change(&file, page).unwrap());
        assert!(group.usage() <= ByteSize::mib(5), "{}", group.usage());
    }
}

/// Its pages are charged to another group than its map, and both are above their `high`.
#[test]
fn a_group_whose_region_others_change_stays_below_high() {
    let memory = memory(256);
    let web = group(&memory, ByteSize(64 * PAGE));
    let batch = memory.root().child("batch").unwrap();
    let batch = batch.high(ByteSize(16 * PAGE));
    let region = web.anon(1 << 20).unwrap().for_group(&batch);
    let file = slow(&memory, &web, Duration::ZERO);
    (0..64).for_each(|page| drop(file.pin(3 * page).unwrap()));
    // Each has a leaf of the map, of which seven are a page.
    for leaf in 0..350 {
        region.write_at(&[1], 128 * leaf * PAGE).unwrap();
    }
    let usage = web.usage();
    assert!(usage <= ByteSize(72 * PAGE), "{usage}");
}

#[test]
fn working_memory_above_high_is_slowed_down() {
    let memory = memory(64);
    let group = group(&memory, ByteSize(100 * PAGE));
    let begin = Instant::now();
    let used: Vec<_> = (0..220)
        .map(|_| group.alloc(Order::new(0)).unwrap())
        .collect();
    assert!(begin.elapsed() > 10 * MS, "{:?}", begin.elapsed());
    drop(used);
}

/// What nobody asked for would take the group above its `high`, and while it is being read nothing
/// of it can go.
#[test]
fn no_reader_is_slowed_down_by_what_is_read_ahead_of_it() {
    let data = numbered_file(300);
    let bound = 1000 * MS;
    for nr_high in [16, 256] {
        let builder = Memory::builder().budget(ByteSize::mib(64));
        let memory = builder.throttle_max(2000 * MS).build().unwrap();
        let group = group(&memory, ByteSize(nr_high * PAGE));
        let file = memory.open(data.path(), &group).unwrap();
        assert_within(bound, || {
            file.invalidate_range(..).unwrap();
            let begin = Instant::now();
            let pages = (0..300).take_while(|_| begin.elapsed() < bound);
            timed(|| pages.for_each(|page| drop(file.pin(page).unwrap())))
        });
        // A sixteenth of 16 pages is no window.
        let nr_ahead = memory.stats().readahead_pages;
        assert_eq!(nr_ahead > 0, nr_high > 16, "{nr_ahead} pages of {nr_high}");
    }
}

/// Has the calling thread owe for what it charges above the group's `high`: who has a page pinned
/// pays later.
fn owe(file: &File, group: &Group) -> Vec<Buf> {
    let _held = file.pin(0).unwrap();
    let alloc = |_| group.alloc(Order::new(0)).unwrap();
    (0..2000).map(alloc).collect()
}

/// For who pays for another group nobody waits.
#[test]
fn a_taken_name_is_refused_at_once_while_somebody_pays() {
    let is_refused_at_once = || {
        let builder = Memory::builder().budget(ByteSize::mib(64));
        let memory = builder.throttle_max(600 * MS).build().unwrap();
        let group = group(&memory, ByteSize(100 * PAGE));
        let beside = memory.root().child("beside").unwrap();
        let file = slow(&memory, &beside, Duration::ZERO);
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let used = owe(&file, &group);
                tell.send(()).unwrap();
                drop(file.pin(7).unwrap());
                // Nobody may listen any more.
                let _told = tell.send(());
                drop(used);
            });
            told.recv().unwrap();
            std::thread::sleep(50 * MS);
            let (refused, nr_sleeps) = sleeps_of(|| memory.root().child("beside").map(drop));
            refused.unwrap_err();
            // A run in which nobody pays any more tells nothing.
            nr_sleeps == 0 && told.try_recv().is_err()
        })
    };
    assert!((0..10).any(|_| is_refused_at_once()), "it waits each time");
}

/// Who charged it pays for it in a call of another group, and keeps it meanwhile.
#[test]
fn a_group_that_is_paid_for_as_it_goes_leaves_its_name_to_the_next_one() {
    let builder = Memory::builder().budget(ByteSize::mib(64));
    let memory = builder.throttle_max(150 * MS).build().unwrap();
    let group = group(&memory, ByteSize(100 * PAGE));
    let beside = memory.root().child("beside").unwrap();
    let file = slow(&memory, &beside, Duration::ZERO);
    let own = group.clone();
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let used = owe(&file, &own);
            drop(own);
            tell.send(()).unwrap();
            let begin = Instant::now();
            drop(file.pin(7).unwrap());
            assert!(begin.elapsed() > 100 * MS, "it does not pay");
            drop(used);
        });
        told.recv().unwrap();
        std::thread::sleep(50 * MS);
        drop(group);
        memory.root().child("web").unwrap();
    });
}
