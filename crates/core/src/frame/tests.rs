//! Named cases of the frame table and its lists.

extern crate std;

use super::*;
use crate::units::Cpu;
use std::vec::Vec;

#[test]
fn lists_link_and_unlink() {
    let frames = FrameTable::try_new(8).unwrap();
    let [a, b, c] = [Frame::new(1), Frame::new(5), Frame::new(7)];
    let mut list = <List>::new();
    list.push_head(&frames, b);
    list.push_head(&frames, a);
    list.push_tail(&frames, c);
    assert_eq!(list.iter(&frames).collect::<Vec<_>>(), [a, b, c]);
    list.remove(&frames, b);
    assert_eq!(list.iter(&frames).collect::<Vec<_>>(), [a, c]);
    let [d, e] = [Frame::new(2), Frame::new(3)];
    list.replace(&frames, (a, b));
    list.replace(&frames, (c, d));
    assert_eq!(list.iter(&frames).collect::<Vec<_>>(), [b, d]);
    list.push_head(&frames, e);
    list.replace(&frames, (b, a));
    list.replace(&frames, (d, c));
    assert_eq!(list.iter_back(&frames).collect::<Vec<_>>(), [c, a, e]);
    list.remove(&frames, e);
    assert_eq!(
        (list.pop_tail(&frames), list.pop_head(&frames)),
        (Some(c), Some(a))
    );
    assert!(list.is_empty() && list.pop_head(&frames).is_none());
}

#[test]
#[should_panic(expected = "is not on this list")]
fn removing_a_stranger_panics() {
    let frames = FrameTable::try_new(4).unwrap();
    let mut list = <List>::new();
    list.push_head(&frames, Frame::new(1));
    list.remove(&frames, Frame::new(2));
}

#[test]
fn the_fields_of_a_record_are_separate() {
    let frames = FrameTable::try_new(4).unwrap();
    let frame = Frame::new(3);
    let key = PageKey::new(7, 1 << 39);
    frames.set_key(frame, key);
    frames.set_group(frame, u32::MAX);
    frames.set_block(frame, Order::new(10).unwrap(), Place::Pcp);
    assert_eq!(frames.key(frame), key);
    assert_eq!(frames.group(frame), u32::MAX);
    assert_eq!(frames.block(frame), (Order::new(10).unwrap(), Place::Pcp));
    assert_eq!(frames.word(frame), Word::FREE);
}

#[test]
fn a_record_tells_what_claims_would_have_saved() {
    let frames = FrameTable::try_new(4).unwrap();
    let frame = Frame::new(3);
    let (order, record) = (Order::new(10).unwrap(), frames.record(frame));
    frames.set_block(frame, order, Place::Out);
    frames.set_group(frame, u32::MAX);
    frames.set_page_type(frame, PageType::Anon);
    let [a, b] = [0, 4095].map(Cpu::new);
    for _ in 0..2 {
        // That the first one was no other is known after the allocator only.
        frames.set_block(frame, order, Place::Out);
        assert!(record.was_pinned_elsewhere(a));
        let cpus = [a, b, b, a, b, b];
        let is_enough = cpus.map(|cpu| record.note_pinned_on(cpu, 3 * BOUNCE));
        assert_eq!(is_enough, [false, false, false, false, true, false]);
        assert!(!record.was_pinned_elsewhere(b));
        assert!(record.was_pinned_elsewhere(a));
        // A move of the line is as much as so many pins where it is.
        assert!(!record.note_pinned_on(a, 2 * BOUNCE));
        let again = (1..=BOUNCE).map(|_| record.note_pinned_again(2 * BOUNCE));
        assert_eq!(again.filter(|&is_enough| is_enough).count(), 1);
        assert!(record.note_pinned_on(a, 2 * BOUNCE));
        assert!(!record.note_pinned_again(2));
    }
    // As much as there is room for is counted, and no more.
    frames.set_block(frame, order, Place::Out);
    record.note_pinned_on(a, u32::MAX);
    let again = (0..).find(|_| record.note_pinned_again(MAX_SAVING));
    assert_eq!(again, Some(MAX_SAVING - 1));
    assert!(record.note_pinned_on(b, u32::MAX));
    let nr_bounces = (0..).find(|at| record.note_pinned_on(Cpu::new(at % 2), u32::MAX));
    assert_eq!(nr_bounces, Some(MAX_SAVING / BOUNCE));
    assert!(!record.note_pinned_again(MAX_SAVING));
    frames.set_group(frame, u32::MAX);
    frames.set_page_type(frame, PageType::File);
    assert_eq!(frames.block(frame), (order, Place::Out));
    assert_eq!(frames.group(frame), u32::MAX);
    assert_eq!(frames.page_type(frame), PageType::File);
}

#[test]
fn a_stale_word_replaces_nothing() {
    let frames = FrameTable::try_new(1).unwrap();
    let frame = Frame::new(0);
    let stale = frames.word(frame);
    frames
        .update(frame, |word| Some(word.with_state(State::Live)))
        .unwrap();
    assert_eq!(
        frames.replace(frame, stale, stale),
        Err(stale.with_state(State::Live))
    );
}

#[test]
#[should_panic(expected = "without pins")]
fn an_unpin_too_many_panics() {
    FrameTable::try_new(1).unwrap().unpin(Frame::new(0));
}
