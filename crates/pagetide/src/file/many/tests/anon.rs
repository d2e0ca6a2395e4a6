//! Runs of anon pages, which lie in the spill file as they went there.

use super::*;
use crate::file::Anon;
use crate::{Builder, Policy};

/// A region of which the first pages, filled with their number, are in a spill file of the system:
/// all but page 0, which is zeros.
fn swapped(of: impl FnOnce(Builder) -> Builder) -> (Anon, Memory, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = of(builder.spill(folder.path())).build().unwrap();
    let group = memory.root().child("small").unwrap();
    let group = group.max(ByteSize::kib(4 * 64)).unwrap();
    group.set_policy(Policy::Fifo).unwrap();
    let region = group.anon(200).unwrap();
    for page in 0..200 {
        let byte = u8::try_from(page).unwrap();
        region.pin_new(page).unwrap().fill(byte);
    }
    // No read has to be handed over because its page takes reclaim.
    group.set_max(ByteSize::mib(4)).unwrap();
    (region, memory, folder)
}

/// A run of the pages from 1 to 20.
fn run(region: &Anon) -> Run {
    let mut runs = begin(&region.file, 1..21);
    assert_eq!((runs.len(), runs[0].nr_pages()), (1, 20));
    runs.remove(0)
}

#[test]
fn pages_that_went_together_are_one_read() {
    for is_encrypted in [false, true] {
        let (region, memory, _folder) = swapped(|builder| match is_encrypted {
            true => builder.spill_encrypted(),
            false => builder,
        });
        let before = memory.stats().pswpin;
        run(&region).read_now();
        check_all(&region.file, 1..21);
        assert_eq!(memory.stats().pswpin - before, 20);
        // Not one of them is there a second time.
        region.discard(..).unwrap();
        assert_eq!(memory.stats().swap_used_bytes, 0);
    }
}

#[test]
fn pages_that_lie_apart_or_nowhere_are_reads_of_their_own() {
    let (region, _memory, _folder) = swapped(|builder| builder);
    // What is changed goes out once more, to another place.
    region.pin_mut(3).unwrap().fill(3);
    let group = &region.file.group;
    group.reclaim(ByteSize::mib(4)).unwrap_err();
    let mut runs = begin(&region.file, 0..6);
    let found = runs
        .iter()
        .map(|run| (run.nr_pages(), run.file().is_some()));
    let expected = [(1, false), (2, true), (1, true), (2, true)];
    assert!(found.eq(expected), "0, 1 and 2, 3, 4 and 5");
    runs.iter_mut().for_each(Run::read_now);
    drop(runs);
    check_all(&region.file, 0..6);
}

#[test]
fn slots_that_are_read_are_nobody_elses_until_the_read_has_ended() {
    let (region, memory, _folder) = swapped(|builder| builder);
    let used = || memory.stats().swap_used_bytes;
    let before = used();
    let run = run(&region);
    let slots = region.file.open.backing.source.region().unwrap();
    slots.drop_slots(1);
    assert_eq!(used(), before);
    drop(run);
    assert_eq!(used(), before - PAGE as u64);
}

#[test]
fn slots_are_let_go_of_whosever_reads_end_with_theirs() {
    let (region, memory, _folder) = swapped(|builder| builder);
    let (file, _data) = file(&memory, 3);
    let mut runs = [super::run(&file, 4), run(&region)];
    runs.iter_mut().for_each(Run::read_now);
    crate::io::end(&mut runs);
    check(&file, 4);
    check_all(&region.file, 1..21);
    region.discard(..).unwrap();
    assert_eq!(memory.stats().swap_used_bytes, 0);
}

#[test]
fn of_anon_pages_that_fail_together_each_is_read_by_itself() {
    let (region, memory, _folder) = swapped(|builder| builder);
    let mut run = run(&region);
    let failed = run.landed(Err(IoError::from_raw_os_error(libc::EIO)));
    assert_eq!(failed, Next::Over);
    drop(run);
    check_all(&region.file, 1..21);
    region.discard(..).unwrap();
    assert_eq!(memory.stats().swap_used_bytes, 0);
}
