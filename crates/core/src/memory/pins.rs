//! What is pinned, found by looking at every frame: for error messages and views.

use super::Memory;
use crate::frame::{State, flag};
use crate::units::{Frame, PageKey};

/// A page that is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Its first frame.
    pub frame: Frame,
    /// Which page, or `None` where it left its file meanwhile.
    pub key: Option<PageKey>,
    /// The group that it is charged to.
    pub group: u32,
    /// Pins and claims held on it.
    pub pins: u32,
    /// Frames that they keep.
    pub nr_pages: u32,
}

impl Memory {
    /// All pinned pages of the groups in `subtree`, at a moment. O(frames), no lock.
    pub fn pinned(&self, subtree: u32) -> impl Iterator<Item = Pinned> {
        (0..self.frames.len()).filter_map(move |number| {
            let frame = Frame::new(number);
            let word = self.frames.word(frame);
            let is_page = matches!(
                word.state(),
                State::Reading | State::Live | State::Detached | State::Failed
            );
            let nr_claims = match word.has(flag::CONTENDED) {
                true if is_page => self.claims.nr_on(frame),
                _ => 0,
            };
            let pins = word.pins() + nr_claims;
            if pins == 0 || !is_page {
                return None;
            }
            let group = self.frames.group(frame);
            self.groups.is_in(group, subtree).then(|| Pinned {
                frame,
                key: self.frames.key(frame),
                group,
                pins,
                nr_pages: self.frames.block(frame).0.nr_pages(),
            })
        })
    }
}
