//! A page whose turn to go is known better than its policy can: it goes next, or last.

use super::Lruvec;
use crate::frame::{FrameTable, State};
use crate::units::{Frame, PageKey};

/// When a page goes, beside the others of its lruvec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Before the others that nobody protects, unless it is read again: the kernel's
    /// `deactivate_file_folio()`.
    Next,
    /// As one that was found in use just now.
    Last,
}

impl Lruvec {
    /// Queues the page `key` of `group`, whose lruvec this is, by its turn. Its reads so far are
    /// forgotten. False where the frame does not list that page, or its word changes just now.
    pub fn set_turn(
        &mut self,
        frames: &FrameTable,
        (group, key, frame): (u32, PageKey, Frame),
        turn: Turn,
    ) -> bool {
        let word = frames.word(frame);
        let is_listed = word.generation() != 0 && word.state() == State::Live;
        let is_ours = frames.group(frame) == group && frames.key(frame) == Some(key);
        // Still the very word that was seen before group and key were: another page that took the
        // frame between the looks would be of another lruvec, or on no list yet.
        if !is_listed || !is_ours || frames.replace(frame, word, word).is_err() {
            return false;
        }
        self.rules().set_turn(frames, frame, turn);
        true
    }
}
