//! A latch against pins, eviction and the beginning of a write.

use super::{FRAME, key, one_page, set};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use pagetide_core::frame::{FrameTable, State, Word, flag};
use pagetide_core::page_cache::{self, Access, Found, Index, Latched};

fn latch(index: &Index, frames: &FrameTable) -> Latched {
    page_cache::latch(index, frames, (key(1), Access::Pin), |_, _| {
        panic!("one page, one frame")
    })
}

#[test]
fn bytes_under_a_pin_do_not_change() {
    loom::model(|| {
        // Two words of bytes, changed one after the other.
        let shared = Arc::new((one_page(), [AtomicU64::new(1), AtomicU64::new(1)]));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let ((index, frames), bytes) = (&*shared.0, &shared.1);
                let latched = latch(index, frames);
                if latched == Latched::Held(FRAME) {
                    assert_eq!(frames.word(FRAME).pins(), 1);
                    bytes.iter().for_each(|b| b.store(2, Ordering::Relaxed));
                    page_cache::set_dirty(frames, FRAME);
                    page_cache::unlatch(frames, FRAME);
                } else {
                    page_cache::withdraw(frames, FRAME);
                }
            })
        };
        let ((index, frames), bytes) = (&*shared.0, &shared.1);
        let found = page_cache::pin(index, frames, key(1), Access::Copy, |_| ());
        match found {
            Found::Pinned(frame) => {
                let seen = bytes.each_ref().map(|b| b.load(Ordering::Relaxed));
                assert_eq!(seen[0], seen[1], "bytes changed under a pin");
                frames.unpin(frame);
            }
            Found::Latched(frame) => assert_eq!(frame, FRAME),
            other => panic!("{other:?}"),
        }
        writer.join().expect("the writer does not panic");
        let word = frames.word(FRAME);
        assert!(word.may_be_pinned() && word.pins() == 0, "{word:?}");
    });
}

#[test]
fn a_latch_and_an_eviction_never_both_win() {
    loom::model(|| {
        let shared = one_page();
        let evictor = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (index, frames) = &*shared;
                let detached = page_cache::detach(frames, FRAME, frames.word(FRAME));
                detached && index.remove(key(1), FRAME)
            })
        };
        let (index, frames) = &*shared;
        let latched = latch(index, frames);
        let evicted = evictor.join().expect("the evictor does not panic");
        assert_eq!(evicted, latched == Latched::Miss, "{latched:?}");
    });
}

#[test]
fn of_a_latch_and_a_write_one_waits_for_the_other() {
    loom::model(|| {
        let frames = FrameTable::try_new(1).expect("memory");
        set(&frames, State::Live);
        let dirty = |word: Word| Some(word.with(flag::DIRTY).pinned().expect("one"));
        assert!(frames.update(FRAME, dirty).is_ok());
        let shared = Arc::new((frames, AtomicU64::new(1)));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (frames, bytes) = &*shared;
                if page_cache::begin_write(frames, FRAME, frames.word(FRAME)) {
                    let first = bytes.load(Ordering::Relaxed);
                    assert_eq!(bytes.load(Ordering::Relaxed), first, "not stable");
                    page_cache::end_write(frames, FRAME);
                }
            })
        };
        let (frames, bytes) = &*shared;
        if page_cache::upgrade(frames, FRAME) {
            bytes.store(2, Ordering::Relaxed);
            page_cache::set_dirty(frames, FRAME);
            page_cache::unlatch(frames, FRAME);
        }
        writer.join().expect("the writer does not panic");
    });
}

#[test]
fn a_latch_that_becomes_a_pin_shows_all_bytes_and_lets_no_second_latch_in() {
    loom::model(|| {
        let shared = Arc::new((one_page(), [AtomicU64::new(1), AtomicU64::new(1)]));
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let ((index, frames), bytes) = (&*shared.0, &shared.1);
                if latch(index, frames) != Latched::Held(FRAME) {
                    return page_cache::withdraw(frames, FRAME);
                }
                bytes.iter().for_each(|b| b.store(2, Ordering::Relaxed));
                page_cache::downgrade(frames, FRAME);
                // The pin is there: nobody has the latch, and what it sees nobody changes.
                assert!(!frames.word(FRAME).has(flag::LATCH));
                let seen = bytes.each_ref().map(|b| b.load(Ordering::Relaxed));
                assert_eq!(seen, [2, 2], "changed under a pin");
                frames.unpin(FRAME);
            })
        };
        let ((index, frames), bytes) = (&*shared.0, &shared.1);
        match page_cache::pin(index, frames, key(1), Access::Pin, |_| ()) {
            Found::Pinned(_) => {
                let seen = bytes.each_ref().map(|b| b.load(Ordering::Relaxed));
                assert_eq!(seen[0], seen[1], "seen half changed");
                if page_cache::upgrade(frames, FRAME) {
                    bytes.iter().for_each(|b| b.store(3, Ordering::Relaxed));
                    page_cache::unlatch(frames, FRAME);
                } else {
                    frames.unpin(FRAME);
                }
            }
            Found::Latched(_) => {}
            other => panic!("{other:?}"),
        }
        writer.join().expect("the writer does not panic");
        let word = frames.word(FRAME);
        assert!(!word.has(flag::LATCH) && word.pins() == 0, "{word:?}");
    });
}
