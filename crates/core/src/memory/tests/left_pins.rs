//! Pins on pages that left their files, and who is the last to need the memory.

use super::*;
use crate::frame::MAX_PINS;
use crate::memory::Discard;
use std::cell::Cell;

fn pinned(memory: &Memory, group: u32, key: PageKey) -> Frame {
    have(memory, group, key, Ok(())).unwrap().0
}

/// Drops a pin; whether it was the last to keep the memory.
fn unpin(memory: &Memory, frame: Frame) -> bool {
    let mut effects = Effects::new();
    memory.unpin(CPU, frame, &mut effects);
    let is_last = matches!(effects.pop(), Some(Effect::LastPin));
    assert!(effects.pop().is_none());
    is_last
}

#[test]
fn of_an_abandoned_memory_the_last_pin_says_so() {
    let (memory, group, file) = memory(4, Policy::Mglru);
    let [one, two] = [1, 2].map(|page| pinned(&memory, group, key(file, page)));
    assert!(memory.pin_again(one));
    memory.close_mapping(CPU, file, &mut |_| ());
    assert!(!unpin(&memory, two), "there are handles");
    memory.check();
    assert!(memory.pin_again(one));
    assert!(!memory.has_mappings() && memory.abandon());
    memory.check();
    let is_last = [(); 3].map(|()| {
        // Something is to be done afterwards, so that it is not dropped in silence.
        assert!(!memory.frames().pinned(one).try_unpin());
        unpin(&memory, one)
    });
    assert_eq!(is_last, [false, false, true]);
    assert_eq!(memory.stats().nr_used, 0);
    memory.check();
}

#[test]
fn a_latch_is_a_pin_that_is_left() {
    let (memory, group, file) = memory(4, Policy::Fifo);
    let page = key(file, 1);
    assert!(touch(&memory, group, page));
    let latched = latch(&memory, page);
    let Latched::Held(frame) = latched else {
        panic!("nobody has it pinned");
    };
    memory.close_mapping(CPU, file, &mut |_| ());
    memory.check();
    assert!(memory.abandon());
    let mut effects = Effects::new();
    memory.unlatch(CPU, frame, true, &mut effects);
    assert!(matches!(effects.pop(), Some(Effect::LastPin)));
    memory.check();
}

#[test]
fn pages_in_their_files_are_in_no_count() {
    let (memory, group, file) = memory(4, Policy::Fifo);
    let frame = pinned(&memory, group, key(file, 1));
    assert!(memory.pin_again(frame) && memory.has_mappings());
    assert!(memory.frames().pinned(frame).try_unpin());
    assert!(!unpin(&memory, frame));
    memory.close_mapping(CPU, file, &mut |_| ());
    assert!(!memory.has_mappings() && !memory.abandon());
    memory.check();
}

#[test]
fn a_pin_that_somebody_waits_for_is_not_dropped_in_silence() {
    let (memory, group, file) = memory(4, Policy::Fifo);
    let page = key(file, 1);
    let frame = pinned(&memory, group, page);
    let busy = latch(&memory, page);
    assert!(matches!(busy, Latched::Busy { .. }));
    assert!(!memory.frames().pinned(frame).try_unpin());
    let mut effects = Effects::new();
    memory.unpin(CPU, frame, &mut effects);
    assert!(matches!(effects.pop(), Some(Effect::Wake(woken)) if woken == frame));
}

/// The last handle goes when a page has been copied.
#[derive(Debug)]
struct Goes<'a> {
    memory: &'a Memory,
    file: u32,
    is_left: Cell<bool>,
    nr_told: Cell<u32>,
}

impl Platform for Goes<'_> {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}

    fn wake(&self, _frame: Frame) {
        if self.memory.has_mappings() {
            let run = &mut |effects: &mut Effects| while effects.pop().is_some() {};
            self.memory.close_mapping(CPU, self.file, run);
            self.is_left.set(self.memory.abandon());
        }
    }

    fn last_pin(&self) {
        self.nr_told.set(self.nr_told.get() + 1);
    }
}

#[test]
fn a_memory_that_is_abandoned_during_a_move_ends_with_it() {
    let (memory, group, file) = memory(2048, Policy::Fifo);
    let mut frames = (1..).map(|page| {
        let frame = pinned(&memory, group, key(file, page));
        assert!(!unpin(&memory, frame));
        frame
    });
    // Of a block of two that lies in the arena.
    let frame = frames.find(|frame| frame.number() | 1 < memory.frames().len());
    let frame = frame.unwrap();
    let goes = Goes {
        memory: &memory,
        file,
        is_left: Cell::new(false),
        nr_told: Cell::new(0),
    };
    // Whoever moves pages in the background has no handle.
    let here = Here::new(CPU, &goes);
    let block = (Frame::new(frame.number() & !1), Order::new(1).unwrap());
    let captured = memory
        .capture(here, block, (memory.groups().root(), false), true)
        .unwrap();
    assert_eq!(memory.stats().pgmigrate_success, 1);
    assert!(
        goes.is_left.get(),
        "the page is pinned until its move is over"
    );
    assert_eq!(goes.nr_told.get(), 1);
    let pieces = &captured.pieces;
    memory.zones().put_pieces(memory.frames(), pieces);
    assert_eq!(memory.stats().nr_used, 0);
    memory.check();
}

#[test]
fn a_page_with_as_many_pins_as_there_may_be_leaves_its_file() {
    let (memory, group, file) = memory(4, Policy::Fifo);
    let pages = [1, 2].map(|page| key(file, page));
    let frames = pages.map(|page| pinned(&memory, group, page));
    for frame in frames {
        (1..MAX_PINS).for_each(|_| assert!(memory.pin_again(frame)));
        assert!(!memory.pin_again(frame));
    }
    let discarded = memory.discard_page(CPU, pages[0], &mut Effects::new());
    assert_eq!(discarded, Discard::Gone);
    memory.close_mapping(CPU, file, &mut |_| ());
    memory.check();
    for frame in frames {
        (0..MAX_PINS).for_each(|_| assert!(!unpin(&memory, frame)));
    }
    assert_eq!(memory.stats().nr_used, 0);
    memory.check();
}
