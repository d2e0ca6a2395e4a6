//! Dirty again against the end of a write, against eviction; truncate and unpin against its end.

use super::{FRAME, set, whole};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use pagetide_core::frame::{FrameTable, State, Word, flag};
use pagetide_core::memory::{Effect, Effects, Memory, PageIn, PageWrite, Step};
use pagetide_core::page_cache::{self, Access, Latched, Mappings};
use pagetide_core::units::{Cpu, Frame, Order, PageKey, PageType};

/// One live page with these flags and pins.
fn page(flags: u64, nr_pins: u32) -> FrameTable {
    let frames = FrameTable::try_new(1).expect("memory");
    set(&frames, State::Live);
    assert!(frames.update(FRAME, |word| Some(word.with(flags))).is_ok());
    for _ in 0..nr_pins {
        assert!(frames.update(FRAME, Word::pinned).is_ok());
    }
    frames
}

#[test]
fn a_change_of_a_page_is_in_its_write_or_in_the_next_one() {
    loom::model(|| {
        // The page's bytes, and those on disk.
        let bytes = [AtomicU64::new(1), AtomicU64::new(0)];
        let shared = Arc::new((page(flag::DIRTY, 1), bytes));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (frames, [bytes, disk]) = &*shared;
                assert!(page_cache::begin_write(frames, FRAME, frames.word(FRAME)));
                disk.store(bytes.load(Ordering::Relaxed), Ordering::Relaxed);
                page_cache::end_write(frames, FRAME);
            })
        };
        let (frames, [bytes, disk]) = &*shared;
        bytes.store(2, Ordering::Relaxed);
        page_cache::set_dirty(frames, FRAME);
        writer.join().expect("no word but the dirtier's is seen");
        if !frames.word(FRAME).has(flag::DIRTY) {
            assert_eq!(disk.load(Ordering::Relaxed), 2);
        }
    });
}

#[test]
fn a_page_that_is_dirtied_when_its_write_ends_is_not_evicted() {
    loom::model(|| {
        let frames = Arc::new(page(flag::WRITEBACK, 0));
        let spawn = |work: fn(&FrameTable) -> bool| {
            let frames = Arc::clone(&frames);
            thread::spawn(move || work(&frames))
        };
        let writer = spawn(|frames| {
            page_cache::end_write(frames, FRAME);
            true
        });
        let evictor = spawn(|frames| page_cache::detach(frames, FRAME, frames.word(FRAME)));
        let pin = |word: Word| word.pinned().filter(|_| word.state() == State::Live);
        let is_dirtied = frames.update(FRAME, pin).is_ok();
        if is_dirtied {
            assert!(page_cache::set_dirty(&frames, FRAME));
            frames.unpin(FRAME);
        }
        assert!(writer.join().expect("the writer does not panic"));
        let is_evicted = evictor.join().expect("the evictor does not panic");
        assert!(!(is_dirtied && is_evicted));
        let word = frames.word(FRAME);
        assert_eq!(word.has(flag::DIRTY), is_dirtied);
        assert!(!word.has(flag::WRITEBACK) && word.pins() == 0);
    });
}

#[test]
fn of_truncate_unpin_and_the_end_of_a_write_the_last_one_frees() {
    loom::model(|| {
        let frames = Arc::new(page(flag::WRITEBACK, 1));
        let spawn = |work: fn(&FrameTable) -> bool| {
            let frames = Arc::clone(&frames);
            thread::spawn(move || work(&frames))
        };
        fn unpin(frames: &FrameTable) -> bool {
            let before = frames.unpin(FRAME);
            let is_last = before.pins() == 1 && before.state() == State::Detached;
            is_last && page_cache::try_reap(frames, FRAME).is_some()
        }
        let writer = spawn(|frames| {
            let before = page_cache::end_write(frames, FRAME);
            before.state() == State::Detached && page_cache::try_reap(frames, FRAME).is_some()
        });
        let reader = spawn(unpin);
        let detach = |word: Word| {
            let pinned = word.pinned()?;
            Some(pinned.with_state(State::Detached).next_version())
        };
        assert!(frames.update(FRAME, detach).is_ok());
        let by_truncate = unpin(&frames);
        let by_writer = writer.join().expect("the writer does not panic");
        let by_reader = reader.join().expect("the reader does not panic");
        let nr_reaps = [by_truncate, by_writer, by_reader].map(u8::from);
        assert_eq!(nr_reaps.iter().sum::<u8>(), 1, "{nr_reaps:?}");
        assert_eq!(frames.word(FRAME).pins(), 0);
    });
}

#[test]
fn a_mapping_closed_during_a_write_goes_once() {
    loom::model(|| {
        let mappings = Arc::new(Mappings::default());
        let id = mappings
            .open(|_| true, Order::ZERO, PageType::File)
            .expect("memory");
        let writer = {
            let mappings = Arc::clone(&mappings);
            thread::spawn(move || {
                let Some(mapping) = mappings.get(id) else {
                    return;
                };
                if mapping.begin_write() {
                    assert!(mappings.get(id).is_some());
                    mappings.end_write(mapping);
                }
            })
        };
        mappings.close(id);
        writer.join().expect("the writer does not panic");
        assert!(mappings.get(id).is_none());
    });
}

/// A dirty page of the file, pinned.
fn dirty_page((memory, group, file): &(Memory, u32, u32)) -> (PageKey, Frame) {
    let (cpu, mut effects) = (Cpu::new(0), Effects::new());
    let key = Mappings::key(*file, 1).expect("a small page");
    let mut op = PageIn::new(key, *group, Access::Copy);
    let frame = loop {
        if let Ok(Step::Done(frame)) = op.step(memory, cpu.into(), &mut effects) {
            break frame;
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                memory.complete(cpu, io, Ok(()), &mut effects);
            }
        }
    };
    memory.set_dirty(frame);
    (key, frame)
}

#[test]
fn who_writes_back_waits_for_a_change_and_not_for_a_wish_for_one() {
    whole(|shared| {
        let memory = &shared.0;
        let (cpu, mut effects) = (Cpu::new(0), Effects::new());
        let (key, frame) = dirty_page(&shared);
        assert!(memory.upgrade(frame));
        let changer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let memory = &shared.0;
                memory.downgrade(frame, true, &mut Effects::new());
                // The pin is there still.
                let wanted = memory.latch(Cpu::new(0), (key, Access::Pin), |_| ());
                assert!(matches!(wanted, Latched::Busy { .. }), "{wanted:?}");
            })
        };
        let begun = memory.begin_page_write(key, None);
        changer.join().expect("the changer does not panic");
        match begun {
            // Of that nobody is told when it comes true.
            PageWrite::Wait { version, .. } => {
                assert_ne!(memory.frames().word(frame).version(), version);
            }
            PageWrite::Begun(write) => memory.complete_write(cpu, write, Ok(()), &mut effects),
            other => panic!("{other:?}"),
        }
        memory.unpin(cpu, frame, &mut effects);
    });
}

#[test]
fn a_write_that_begins_while_its_file_is_closed_holds_its_page_or_finds_none() {
    whole(|shared| {
        let (memory, group, file) = &*shared;
        let (cpu, mut effects) = (Cpu::new(0), Effects::new());
        let (key, frame) = dirty_page(&shared);
        memory.unpin(cpu, frame, &mut effects);
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let memory = &shared.0;
                let write = memory.begin_write(frame)?;
                assert_eq!(write.key(), key);
                memory.complete_write(Cpu::new(0), write, Err(5), &mut Effects::new());
                Some(())
            })
        };
        memory.close_mapping(cpu, *file, &mut |effects| while effects.pop().is_some() {});
        writer.join().expect("the writer does not panic");
        assert_eq!(memory.stats().nr_used, 0);
        let stat = memory.stat(*group);
        assert_eq!((stat.file_dirty, stat.file_writeback), (0, 0));
        assert_eq!(memory.write_errors(*file).nr_errors, 0);
    });
}
