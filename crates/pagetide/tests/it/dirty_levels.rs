//! What groups have dirty together, where each alone has little.

use crate::disk::Disk;
use crate::swift::{assert_within, timed};
use pagetide::{ByteSize, File, Group, Memory};
use std::time::Duration;

const PAGE: usize = 4096;

fn memory() -> Memory {
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    builder.build().unwrap()
}

/// Files of ten children of a group of 500 pages, each of which may have as many itself.
fn of_ten_children(memory: &Memory) -> Vec<(Disk, File)> {
    let parent = memory.root().child("parent").unwrap();
    let parent = parent.max(ByteSize(500 * PAGE as u64)).unwrap();
    let open = |number: u32| {
        let (disk, name) = (Disk::default(), format!("disk{number}"));
        let group = parent.child(&name).unwrap();
        let store = Box::new(disk.clone());
        let file = memory.open_store(store, &name, &group);
        (disk, file.unwrap())
    };
    (0..10).map(open).collect()
}

/// Pages that were written back. Of a file they go in order.
fn nr_written(files: &[(Disk, File)]) -> usize {
    let of_file = |(disk, _): &(Disk, File)| disk.state().bytes.len() / PAGE;
    files.iter().map(of_file).sum()
}

#[test]
fn groups_that_are_above_the_hard_limit_together_write() {
    let memory = memory();
    let files = of_ten_children(&memory);
    let mut nr_changed = 0;
    // In turn, so that each child alone has 40 pages dirty at most: 8 of 100.
    for page in 0..40u64 {
        for (_, file) in &files {
            file.write_at(&[1; PAGE], page * PAGE as u64).unwrap();
            nr_changed += 1;
            let nr_written = nr_written(&files);
            // Of 100 pages 20, and what becomes dirty between two looks.
            assert!(
                nr_changed - nr_written <= 100 + 64,
                "{nr_changed} {nr_written}"
            );
            assert!(nr_changed > 100 || nr_written == 0, "not above the limit");
        }
    }
    for (disk, file) in &files {
        file.sync().unwrap();
        assert_eq!(disk.state().durable, [1; 40 * PAGE]);
    }
}

#[test]
fn who_has_little_dirty_writes_what_its_siblings_have() {
    // A file is left out whose last write took long, as where somebody had its writer's CPU.
    let nr_written: Vec<_> = (0..5).map(|_| nr_written_for_a_sibling()).collect();
    assert_eq!(nr_written.iter().max(), Some(&100), "{nr_written:?}");
}

/// Pages of its siblings that one has written, of which a hundred are to go.
fn nr_written_for_a_sibling() -> usize {
    let memory = memory();
    let files = of_ten_children(&memory);
    let (others, writer) = (&files[..9], &files[9].1);
    for (_, file) in others {
        file.write_at(&[1; 11 * PAGE], 0).unwrap();
    }
    others[0].1.write_at(&[1; PAGE], 11 * PAGE as u64).unwrap();
    // One page above the limit, time and again.
    for _ in 0..64 {
        writer.write_at(&[1; PAGE], 0).unwrap();
        assert!(nr_written(others) <= 100);
        writer.flush_range(..).unwrap();
    }
    nr_written(others)
}

#[test]
fn groups_that_are_above_the_background_limit_together_are_written() {
    let memory = memory();
    let files = of_ten_children(&memory);
    for (_, file) in &files {
        file.write_at(&[1; 5 * PAGE], 0).unwrap();
    }
    memory.tick();
    assert_eq!(nr_written(&files), 0, "10 of 100 are not above the limit");
    files[3].1.write_at(&[1; PAGE], 5 * PAGE as u64).unwrap();
    memory.tick();
    assert!(nr_written(&files) > 0);
}

/// A file of 60 pages that are cached, in a group with room for 100.
fn cached(memory: &Memory) -> (Group, Disk, File) {
    let group = memory.root().child("small").unwrap();
    let group = group.max(ByteSize(100 * PAGE as u64)).unwrap();
    let disk = Disk::of(vec![1; 60 * PAGE]);
    let file = memory.open_store(Box::new(disk.clone()), "disk", &group);
    let file = file.unwrap();
    file.pin_many(&(0..60).collect::<Vec<_>>()).unwrap();
    (group, disk, file)
}

#[test]
fn a_view_for_which_others_are_to_be_written_first_is_not_had_at_once() {
    let memory = memory();
    let (group, disk, file) = cached(&memory);
    let change = |page| match file.try_pin_mut(page).unwrap() {
        Some(mut view) => view.fill(2),
        None => panic!("page {page} is not to be had"),
    };
    // Of 100 pages 20, and the one that is above.
    (0..21).for_each(change);
    for page in [3, 30] {
        assert!(file.try_pin_mut(page).unwrap().is_none());
    }
    assert_eq!(group.stat().file_dirty, 21 * PAGE as u64);
    file.pin_mut(30).unwrap().fill(2);
    assert!(disk.state().nr_writes > 0);
    change(31);
    file.sync().unwrap();
}

#[test]
fn who_makes_holes_in_pages_writes_some_where_many_are_dirty() {
    let memory = memory();
    let (group, disk, file) = cached(&memory);
    for page in 0..30 {
        // A part of each of two pages.
        let end = (2 * page + 1) * PAGE as u64;
        file.punch(end - 10..end + 10).unwrap();
        let nr_dirty = group.stat().file_dirty / PAGE as u64;
        assert!(nr_dirty <= 22, "{nr_dirty}");
        assert!(page >= 10 || disk.state().nr_writes == 0);
    }
    file.sync().unwrap();
    let zeros = disk
        .state()
        .durable
        .iter()
        .filter(|&&byte| byte == 0)
        .count();
    assert_eq!(zeros, 30 * 20);
}

#[test]
fn a_view_is_not_had_at_once_where_groups_have_too_much_dirty_together() {
    let memory = memory();
    let files = of_ten_children(&memory);
    for (_, file) in &files {
        file.write_at(&[1; 40 * PAGE], 0).unwrap();
        file.sync().unwrap();
    }
    let mut nr_refused = 0;
    for page in 0..40 {
        for (_, file) in &files {
            let view = file.try_pin_mut(page).unwrap();
            nr_refused += u32::from(view.is_none());
            view.unwrap_or_else(|| file.pin_mut(page).unwrap()).fill(2);
            let nr_dirty = memory.root().stat().file_dirty / PAGE as u64;
            assert!(nr_dirty <= 100 + 64, "{nr_dirty}");
        }
    }
    assert!((1..10).contains(&nr_refused), "{nr_refused}");
}

#[test]
fn pages_that_are_upgraded_are_written_in_the_background_where_many_are() {
    // What is dirty for long is written after 5 s.
    assert_within(Duration::from_secs(3), || {
        let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
        let (group, _disk, file) = cached(&memory);
        for page in 0..50 {
            let upgraded = file.upgrade(file.pin(page).unwrap());
            // But for those that are being written just then.
            if let Ok(mut view) = upgraded {
                view.fill(2);
            }
        }
        timed(|| {
            while group.stat().file_dirty > 10 * PAGE as u64 {
                std::thread::yield_now();
            }
        })
    });
}

#[test]
fn who_changes_anon_pages_writes_none_of_files() {
    let memory = memory();
    let files = of_ten_children(&memory);
    for (_, file) in &files {
        file.write_at(&[1; 5 * PAGE], 0).unwrap();
    }
    let parent = memory.root().open_child("parent").unwrap();
    parent.set_max(ByteSize(200 * PAGE as u64)).unwrap();
    // 50 pages of 200 are dirty now, and nobody who writes to files has looked since.
    let anon = parent.open_child("anon").unwrap().anon(100).unwrap();
    for page in 0..100 {
        anon.write_at(&[1; PAGE], page * PAGE as u64).unwrap();
    }
    assert_eq!(nr_written(&files), 0);
    let file = &files[0].1;
    for page in 0..64 {
        file.write_at(&[1; PAGE], page * PAGE as u64).unwrap();
    }
    assert!(nr_written(&files) > 0);
}
