//! The latch of a page: exclusive access to its bytes, as moves of the state word.
//!
//! A latch is taken from a page without pins that is not being written, and holds one pin itself,
//! so that whatever spares pinned pages spares this one. While it is held nobody else pins the
//! page. Who wants it and finds pins says so by `INTENT`, which lets no new pin in: it ends with
//! the next latch, or when whoever waited gives up.

use super::{Access, Index};
use crate::frame::{FrameTable, State, Word, flag};
use crate::units::{Frame, PageKey};

/// What came of asking for the latch of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latched {
    /// The caller has it, and one pin with it.
    Held(Frame),
    /// Others have the page pinned or latched, or it is being written. Wait while the frame has
    /// this version and is still so, then ask again or [`withdraw`].
    Busy {
        /// The frame.
        frame: Frame,
        /// Its version.
        version: u32,
    },
    /// Not resident, or being read.
    Miss,
}

/// The word of a page whose latch is taken by the holder of its only pin.
fn latched(word: Word) -> Word {
    word.with(flag::LATCH).without(flag::INTENT).next_version()
}

/// What [`latch`] holds of a frame and has no use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwanted {
    /// The latch of another page.
    Latch,
    /// The wish for the latch of another page.
    Wish,
    /// A pin on a page that is not contended any more. Claims become pins first
    /// ([`super::Claims::make_pins`]).
    Claims,
}

/// Takes the latch of a page that nobody has pinned or claimed, which counts as this access. One
/// read-modify-write where it is free; waits for nobody. Claims become pins once: where the page is
/// contended again by then, the caller has to ask again.
///
/// `give_back` gets what is held of a frame that turned out to hold another page, or has claims.
pub fn latch(
    index: &Index,
    frames: &FrameTable,
    (key, access): (PageKey, Access),
    mut give_back: impl FnMut(Frame, Unwanted),
) -> Latched {
    let mut may_end_claims = true;
    while let Some(frame) = index.find(frames, key) {
        let asked = frames.update(frame, |word| {
            if word.may_be_latched(0) {
                return access.mark(word).pinned().map(latched);
            }
            if may_end_claims && let Some(ended) = word.ending_claims() {
                return Some(ended);
            }
            // Readers go on while it is written, and a latch ends soon: neither has to keep new
            // pins out.
            let waits_for_pins = !word.has_any(flag::LATCH | flag::WRITEBACK);
            let wish = if waits_for_pins { flag::INTENT } else { 0 };
            (word.state() == State::Live).then(|| word.with(wish | flag::WAIT))
        });
        let Ok(before) = asked else {
            return Latched::Miss;
        };
        if may_end_claims && before.ending_claims().is_some() {
            give_back(frame, Unwanted::Claims);
            may_end_claims = false;
            continue;
        }
        let is_held = before.may_be_latched(0);
        // The frame may hold another page by now: the record decides, not the index.
        if frames.key(frame) != Some(key) {
            let unwanted = if is_held {
                Unwanted::Latch
            } else {
                Unwanted::Wish
            };
            give_back(frame, unwanted);
        } else if is_held {
            return Latched::Held(frame);
        } else {
            let version = before.version();
            return Latched::Busy { frame, version };
        }
    }
    Latched::Miss
}

/// Makes the caller's pin the latch, if it is the only pin and the page is not being written. After
/// [`super::Claims::end`].
#[must_use]
pub fn upgrade(frames: &FrameTable, frame: Frame) -> bool {
    let upgrade = |word: Word| word.may_be_latched(1).then(|| latched(word));
    frames.update(frame, upgrade).is_ok()
}

/// The word of a page whose latch ends, with its pin.
fn opened(word: Word) -> Word {
    assert!(word.has(flag::LATCH), "the page is not latched: {word:?}");
    word.without(flag::LATCH | flag::WAIT).next_version()
}

/// Gives a latch and its pin back; returns the word before: the caller wakes those who wait, and
/// reaps a page that left its file.
pub fn unlatch(frames: &FrameTable, frame: Frame) -> Word {
    let before = frames.update(frame, |word| Some(opened(word).unpinned()));
    before.expect("an update without a condition")
}

/// Gives a latch back and keeps its pin; returns the word before: the caller wakes those who wait.
pub fn downgrade(frames: &FrameTable, frame: Frame) -> Word {
    let before = frames.update(frame, |word| Some(opened(word)));
    before.expect("an update without a condition")
}

/// Waits for a latch no more, so that pins come in again; the caller wakes all who wait for the
/// frame: others who want the latch ask anew.
pub fn withdraw(frames: &FrameTable, frame: Frame) {
    let withdrawn = |word: Word| {
        let open = word.without(flag::INTENT | flag::WAIT).next_version();
        word.has(flag::INTENT).then_some(open)
    };
    // Whoever took the latch meanwhile has taken the flag away, too.
    let _gone = frames.update(frame, withdrawn);
}

/// Says that somebody waits for a latch to end; the version to wait for, or `None` where there is
/// none any more. A wish for one is not waited for: it ends without a word when it comes true.
#[must_use]
pub fn await_latch(frames: &FrameTable, frame: Frame) -> Option<u32> {
    await_none(frames, frame, flag::LATCH)
}

/// Says that somebody waits to pin a page: until nobody has its latch, or wishes for it. The
/// version to wait for, or `None` where nobody does any more.
#[must_use]
pub fn await_open(frames: &FrameTable, frame: Frame) -> Option<u32> {
    await_none(frames, frame, flag::LATCH | flag::INTENT)
}

fn await_none(frames: &FrameTable, frame: Frame, flags: u64) -> Option<u32> {
    let waits = |word: Word| {
        let is_closed = word.state() == State::Live && word.has_any(flags);
        is_closed.then(|| word.with(flag::WAIT))
    };
    frames.update(frame, waits).ok().map(Word::version)
}
