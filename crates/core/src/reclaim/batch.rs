//! What reclaim takes off the lists at once.

use super::{MAX_BATCH, MAX_SWAPPINESS, Part, Token, Unwritten};
use crate::frame::{FrameTable, Word};
use crate::units::{Frame, index};

/// What is to be taken.
#[derive(Clone, Copy, Debug)]
pub struct ScanControl {
    /// Frames wanted, at most [`MAX_BATCH`]. A page of several counts as so many, and the last one
    /// may have more, where the batch [may take them](Batch::take_at_most).
    pub nr_pages: u32,
    /// Frames that a part gives, even where another becomes the better one: 1 or more, unless each
    /// of its pages was looked at.
    pub at_least: u32,
    /// Whose turn it is; `None` leaves that to the lruvec.
    pub part: Option<Part>,
    /// What bringing back a page of a file costs, and 200 less it what an anon page costs.
    pub swappiness: u8,
    /// Frames that had come in, of all lruvecs.
    pub page_ins: u64,
    /// The coarse clock, in ns.
    pub ns: u64,
}

impl ScanControl {
    /// So many pages of whichever part the lruvec chooses, both types as dear.
    #[must_use]
    pub const fn of(nr_pages: u32) -> ScanControl {
        ScanControl {
            nr_pages,
            at_least: 1,
            part: None,
            swappiness: MAX_SWAPPINESS / 2,
            page_ins: 0,
            ns: 0,
        }
    }
}

/// When a page comes in, by the clocks that lruvecs share.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Frames that had come in before, of all lruvecs.
    pub page_ins: u64,
    /// Frames that all lruvecs together may have.
    pub capacity: u32,
    /// The coarse clock, in ns.
    pub ns: u64,
}

/// A page that reclaim took off its list.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    /// Where it is.
    pub frame: Frame,
    /// Its word at that moment: evicted only if it is still exactly this.
    pub word: Word,
    /// What its shadow entry will say.
    pub token: Token,
}

/// What isolating did with pages, those that it took included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Pages looked at, by type.
    pub nr_scanned: [u32; 2],
    /// Pages looked at that had been taken for pages in use; of a multi-gen LRU, pages that were
    /// moved to another generation.
    pub nr_refilled: u32,
    /// Pages that were taken for pages in use from then on.
    pub nr_activated: u32,
    /// Pages that were no longer taken for that.
    pub nr_deactivated: u32,
}

/// Up to [`MAX_BATCH`] victims, and the pages met on the way that must be written first.
#[derive(Debug)]
pub struct Batch {
    victims: [Option<Victim>; MAX_BATCH as usize],
    len: u32,
    /// Frames of the victims.
    nr_frames: u32,
    /// Frames that they may have.
    most: u32,
    pub(super) looked: Looked,
    /// A page was looked at that nobody holds.
    has_met_free: bool,
    /// `None` where nobody asks for them.
    unwritten: Option<Unwritten>,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            victims: [None; MAX_BATCH as usize],
            len: 0,
            nr_frames: 0,
            most: u32::MAX,
            looked: Looked::default(),
            has_met_free: false,
            unwritten: None,
        }
    }
}

impl Batch {
    /// Victims in the batch.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, frames: &FrameTable, victim: Victim) {
        self.victims[index(self.len)] = Some(victim);
        self.len += 1;
        self.nr_frames += frames.block(victim.frame).0.nr_pages();
    }

    /// Frames of the victims.
    #[must_use]
    pub fn nr_frames(&self) -> u32 {
        self.nr_frames
    }

    /// Says how many frames all victims together may have: of a protected group, what it can spare.
    /// A page that has more than are left stays, as one in use does.
    pub fn take_at_most(&mut self, nr_frames: u32) {
        self.most = nr_frames;
    }

    /// Whether a page has no more frames than may be taken still.
    pub(super) fn has_room_for(&self, frames: &FrameTable, frame: Frame) -> bool {
        frames.block(frame).0.nr_pages() <= self.most.saturating_sub(self.nr_frames)
    }

    /// An empty batch; where `unwritten` is there, what must be written is added to it.
    #[must_use]
    pub fn noting(unwritten: Option<Unwritten>) -> Batch {
        Batch {
            unwritten,
            ..Batch::default()
        }
    }

    /// What became of the pages that were looked at.
    #[must_use]
    pub fn looked(&self) -> Looked {
        self.looked
    }

    /// Notes the word of a page that is looked at.
    pub(super) fn look_at(&mut self, word: Word) {
        self.has_met_free |= !word.is_held();
    }

    /// Whether all pages of a lruvec of `nr_pages` are held, as far as so many looks tell.
    #[must_use]
    pub fn is_in_vain(&self, nr_looks: u32, nr_pages: u32) -> bool {
        !self.has_met_free && super::is_each_held(nr_looks, nr_pages)
    }

    /// Whether no more pages can be noted that must be written.
    #[must_use]
    pub fn is_noted_full(&self) -> bool {
        self.unwritten.as_ref().is_some_and(Unwritten::is_full)
    }

    /// What must be written, where that was noted.
    #[must_use]
    pub fn into_unwritten(self) -> Option<Unwritten> {
        self.unwritten
    }

    /// Notes a page that its policy would take if it were written; whether it can be written now.
    pub(super) fn note(&mut self, frames: &FrameTable, page: (Frame, Word), token: Token) -> bool {
        let unwritten = self.unwritten.as_mut();
        unwritten.is_some_and(|unwritten| unwritten.note(frames, page, token))
    }

    /// Frames of victims, and of dirty anon pages that were noted, which are as good: they go by a
    /// write now.
    #[must_use]
    pub fn nr_going(&self) -> u32 {
        let unwritten = self.unwritten.as_ref();
        self.nr_frames + unwritten.map_or(0, Unwritten::nr_anon)
    }

    /// The victims, to say more of them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Victim> {
        self.victims.iter_mut().flatten()
    }

    /// Says what the shadow entry of the last victim will say.
    pub fn set_token(&mut self, token: Token) {
        let last = self.len.checked_sub(1);
        if let Some(Some(victim)) = last.map(|last| &mut self.victims[index(last)]) {
            victim.token = token;
        }
    }

    /// Whether it holds as many frames as are wanted, those included that go once they are written:
    /// of pages of files that are none it holds one at least.
    pub(super) fn is_enough(&self, nr_pages: u32) -> bool {
        let nr_noted = self.unwritten.as_ref().map_or(0, Unwritten::nr_frames);
        self.nr_going() >= nr_pages || self.len > 0 && self.nr_frames + nr_noted >= nr_pages
    }

    /// The victims in the order in which they were taken.
    pub fn iter(&self) -> impl Iterator<Item = &Victim> + Clone {
        self.victims.iter().flatten()
    }
}

/// What became of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It left the page cache.
    Evicted,
    /// Somebody uses it: it goes back.
    Refused,
}
