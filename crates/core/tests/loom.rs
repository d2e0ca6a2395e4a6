//! Every interleaving of the two-sided protocols, by loom.
//!
//! Loom treats sequentially consistent accesses as acquire and release ones and does not model all
//! of relaxed ordering; nothing here needs more.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use pagetide_core::frame::{FrameTable, State, Word};
use pagetide_core::group::{StockLine, Tree};
use pagetide_core::page_cache::{self, Access, Found, Index};
use pagetide_core::units::{Cpu, Frame, PageKey};

const FRAME: Frame = Frame::FIRST;

fn key(page: u64) -> PageKey {
    PageKey::new(1, page).expect("a small page")
}

/// One frame that holds page 1, and its entry.
fn one_page() -> Arc<(Index, FrameTable)> {
    let frames = FrameTable::try_new(1).expect("memory");
    let index = Index::try_new(1).expect("memory");
    frames.set_key(FRAME, Some(key(1)));
    set(&frames, State::Live);
    index.lock(key(1)).insert(FRAME);
    Arc::new((index, frames))
}

fn set(frames: &FrameTable, state: State) {
    let change = |word: Word| Some(word.with_state(state).next_version());
    assert!(frames.update(FRAME, change).is_ok());
}

#[test]
fn drain_against_consume_loses_no_page() {
    loom::model(|| {
        let line = Arc::new(StockLine::default());
        assert_eq!(line.refill(7, 2, 64), None);
        let drainer = {
            let line = Arc::clone(&line);
            thread::spawn(move || {
                let mut out = 0;
                line.drain(|_| true, |surplus| out += surplus.nr_pages);
                out
            })
        };
        let consumed = u32::from(line.consume(7, 1));
        let returned = line.refill(7, 3, 64).map_or(0, |surplus| surplus.nr_pages);
        let drained = drainer.join().expect("the drainer does not panic");
        assert_eq!(consumed + returned + drained + line.held(|_| true), 5);
    });
}

#[test]
fn a_drain_during_charges_keeps_usage_at_live_charges_and_stocks() {
    loom::model(|| {
        let tree = Arc::new(Tree::try_new(1, 1 << 13).expect("memory"));
        let group = tree.root();
        let drainer = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.drain(tree.root()))
        };
        tree.charge(Cpu::new(0), group, 2).expect("room");
        assert!(tree.get(group).expect("the root").usage() >= 2);
        tree.uncharge(Cpu::new(0), group, 1);
        drainer.join().expect("the drainer does not panic");
        let usage = tree.get(group).expect("the root").usage();
        assert_eq!(usage, 1 + u64::from(tree.stocked(group)));
    });
}

#[test]
fn a_pin_and_an_eviction_never_both_win() {
    loom::model(|| {
        let shared = one_page();
        let evictor = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (index, frames) = &*shared;
                let seen = frames.word(FRAME);
                if !page_cache::detach(frames, FRAME, seen) {
                    return false;
                }
                assert_eq!(frames.word(FRAME).pins(), 0);
                assert!(index.lock(key(1)).remove(FRAME));
                true
            })
        };
        let (index, frames) = &*shared;
        let found = page_cache::pin(index, frames, key(1), Access::Copy, |frame| {
            frames.unpin(frame);
        });
        if found == Found::Pinned(FRAME) {
            assert_eq!(frames.word(FRAME).state(), State::Live);
            assert_eq!(frames.key(FRAME), Some(key(1)));
        }
        let evicted = evictor.join().expect("the evictor does not panic");
        assert!(!(evicted && found == Found::Pinned(FRAME)));
        assert!(evicted || found == Found::Pinned(FRAME));
    });
}

#[test]
fn a_stale_entry_never_gives_another_page() {
    loom::model(|| {
        let shared = one_page();
        let reuser = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (index, frames) = &*shared;
                if page_cache::detach(frames, FRAME, frames.word(FRAME)) {
                    assert!(index.lock(key(1)).remove(FRAME));
                    frames.set_key(FRAME, Some(key(2)));
                    set(frames, State::Live);
                    index.lock(key(2)).insert(FRAME);
                }
            })
        };
        let (index, frames) = &*shared;
        let unpin = |frame| _ = frames.unpin(frame);
        if let Found::Pinned(frame) = page_cache::pin(index, frames, key(1), Access::Pin, unpin) {
            assert_eq!(frames.key(frame), Some(key(1)));
            frames.unpin(frame);
        }
        reuser.join().expect("the reuser does not panic");
        assert_eq!(frames.word(FRAME).pins(), 0);
    });
}

#[test]
fn of_two_last_holders_one_reaps() {
    loom::model(|| {
        let frames = Arc::new(FrameTable::try_new(1).expect("memory"));
        set(&frames, State::Failed);
        for _ in 0..2 {
            assert!(frames.update(FRAME, Word::pinned).is_ok());
        }
        let drop_pin = |frames: &FrameTable| {
            let before = frames.unpin(FRAME);
            before.pins() == 1 && page_cache::try_reap(frames, FRAME)
        };
        let other = {
            let frames = Arc::clone(&frames);
            thread::spawn(move || drop_pin(&frames))
        };
        let mine = drop_pin(&frames);
        let other = other.join().expect("the other does not panic");
        assert!(
            mine ^ other,
            "reaped by {}",
            u8::from(mine) + u8::from(other)
        );
    });
}
