//! Pages that came in and are left with whoever has their lruvec's lock ([`crate::frame`]'s inbox).

use crate::frame::{FrameTable, State, Word, flag};
use crate::units::Frame;

/// Makes pages `Live` that were read and are about to be given, and drops their reads' own pins: to
/// all others they are in the hands of reclaim until they are listed, and nobody else frees them.
pub(super) fn make_live(frames: &FrameTable, pages: &[Frame]) {
    for &frame in pages {
        let note = u32::try_from(frames.note(frame)).expect("a token, or nothing");
        frames.set_given(frame, note);
        let live = |word: Word| {
            let word = word.with_state(State::Live).with(flag::ISOLATED);
            Some(word.unpinned().next_version())
        };
        let was_read = frames.update(frame, live);
        assert!(was_read.is_ok(), "an update without a condition");
    }
}

/// Has nobody's page, which was given and left its file before it was listed, be its last holder's
/// to free.
pub fn let_go(frames: &FrameTable, frame: Frame) {
    let let_go = |word: Word| Some(word.without(flag::ISOLATED));
    let let_go = frames.update(frame, let_go);
    assert!(let_go.is_ok(), "an update without a condition");
}
