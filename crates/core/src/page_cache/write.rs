//! Dirty pages and their writes: moves of the state word.
//!
//! `DIRTY` and `WRITEBACK` tell four states apart: clean, dirty, being written, and being written
//! while dirty again. Both bits keep a page from being evicted; `WRITEBACK` keeps the frame of a
//! page that left its file, too, because its bytes are on their way.

use crate::frame::{FrameTable, State, Word, flag};
use crate::units::Frame;

/// Marks a page dirty that the caller holds, after it changed the bytes; whether it was not before.
///
/// A page that left its file stays as it is: nobody will write it. One read-modify-write, of a
/// dirty page too: a mere look could still see it dirty after a write has begun that does not see
/// the bytes.
pub fn set_dirty(frames: &FrameTable, frame: Frame) -> bool {
    let dirty = |word: Word| (word.state() == State::Live).then(|| word.with(flag::DIRTY));
    let before = frames.update(frame, dirty);
    before.is_ok_and(|before| !before.has(flag::DIRTY))
}

/// Begins a write of a dirty page if its word is still exactly `seen`. One read-modify-write.
///
/// Whoever dirties it from here on makes it dirty anew: the write may not have those bytes.
pub fn begin_write(frames: &FrameTable, frame: Frame, seen: Word) -> bool {
    let writing = seen.without(flag::DIRTY).with(flag::WRITEBACK);
    seen.may_be_written() && frames.replace(frame, seen, writing).is_ok()
}

/// Ends a write; of one that failed the page was made dirty again before, by [`set_dirty`].
/// Returns the word before: the caller reaps a page that left its file.
///
/// The version moves on, so that whoever waits for the end sees it.
pub fn end_write(frames: &FrameTable, frame: Frame) -> Word {
    let ended = |word: Word| {
        assert!(word.has(flag::WRITEBACK), "{frame:?} is not being written");
        Some(word.without(flag::WRITEBACK).next_version())
    };
    let before = frames.update(frame, ended);
    before.expect("an update without a condition")
}
