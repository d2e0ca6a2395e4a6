//! Pages that would be evicted but for their unwritten bytes.

use super::{MAX_BATCH, Token};
use crate::frame::{FrameTable, Word, flag};
use crate::units::{Frame, PageType, index};

/// What reclaim met at the cold end and could not evict, because it is not written: up to
/// [`MAX_BATCH`] frames of dirty pages, of which the last page may have more, and the first page
/// that is being written.
///
/// A hint: any of the frames may hold something else when they are looked at.
#[derive(Clone, Debug)]
pub struct Unwritten {
    dirty: [(Frame, Token); MAX_BATCH as usize],
    nr_dirty: u32,
    /// Frames of dirty pages, and of anon ones among them.
    nr_frames: u32,
    nr_anon: u32,
    /// Pages that somebody writes or changes were met.
    has_met_others: bool,
    writeback: Option<Frame>,
}

impl Default for Unwritten {
    fn default() -> Self {
        Unwritten {
            dirty: [(Frame::FIRST, Token::new(0)); MAX_BATCH as usize],
            nr_dirty: 0,
            nr_frames: 0,
            nr_anon: 0,
            has_met_others: false,
            writeback: None,
        }
    }
}

impl Unwritten {
    /// Frames of dirty pages, coldest first, and what their shadow entries would have said. A page
    /// may be there twice.
    pub fn dirty(&self) -> impl Iterator<Item = (Frame, Token)> + '_ {
        self.dirty[..index(self.nr_dirty)].iter().copied()
    }

    /// Dirty pages that were noted.
    #[must_use]
    pub fn nr_dirty(&self) -> u32 {
        self.nr_dirty
    }

    /// Frames of the anon pages among them. Nobody but reclaim writes those: they go as clean ones
    /// do.
    #[must_use]
    pub fn nr_anon(&self) -> u32 {
        self.nr_anon
    }

    /// Frames of the dirty pages.
    pub(super) fn nr_frames(&self) -> u32 {
        self.nr_frames
    }

    /// The frame of the first page that was being written.
    #[must_use]
    pub fn writeback(&self) -> Option<Frame> {
        self.writeback
    }

    /// Whether there is nothing to write and nothing to wait for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nr_dirty == 0 && !self.has_met_others
    }

    /// Whether as many are noted as a batch may have: no more fits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.nr_dirty == MAX_BATCH || self.nr_frames >= MAX_BATCH
    }

    /// Adds the page of a frame that would go if it were written, as its word has it.
    pub fn add(&mut self, frames: &FrameTable, frame: Frame, word: Word) {
        let _is_dirty = self.note(frames, (frame, word), Token::new(0));
    }

    /// Notes a page; whether as one that is to be written.
    pub(super) fn note(
        &mut self,
        frames: &FrameTable,
        (frame, word): (Frame, Word),
        token: Token,
    ) -> bool {
        if !word.as_written().is_evictable() {
            return false;
        }
        if !word.may_be_written() {
            self.has_met_others = true;
            if word.has(flag::WRITEBACK) {
                self.writeback.get_or_insert(frame);
            }
            return false;
        }
        let has_room = !self.is_full();
        if has_room {
            self.dirty[index(self.nr_dirty)] = (frame, token);
            self.nr_dirty += 1;
            let nr_frames = frames.block(frame).0.nr_pages();
            self.nr_frames += nr_frames;
            if frames.page_type(frame) == PageType::Anon {
                self.nr_anon += nr_frames;
            }
        }
        has_room
    }
}
