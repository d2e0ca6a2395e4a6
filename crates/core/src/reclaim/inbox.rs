//! Pages that came in while somebody else has their lruvec's lock: they are left with him, who
//! lists them before he opens it.
//!
//! Who brings pages in one at a time, on many CPUs, has a lock to wait for each time, and its
//! holder has all that he touches fetched from another CPU. So nobody waits: of those who come at
//! once, one lists the pages of all.
//!
//! Source: flat combining (Hendler, Incze, Shavit, Tzafrir 2010), without the wait for the answer;
//! the kernel keeps such pages on their CPU instead (`lru_add`, a batch of 31), where reclaim does
//! not find them.

use crate::frame::{FrameTable, State, Word, flag};
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Frame, index};

/// Pages in an inbox at most: their holder lists all of them before he goes on.
pub const MAX_GIVEN: usize = 64;

/// Somebody takes what is given.
const OPEN: u64 = 1 << 63;
const COUNT_SHIFT: u32 = 32;

/// A stack of frames, linked in their records. Open only while somebody has the lruvec's lock, so
/// that nothing is in it when nobody has.
#[derive(Debug, Default)]
pub(super) struct Inbox(AtomicU64);

/// Pages that came into one lruvec, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    frames: [Frame; MAX_GIVEN],
    nr_frames: usize,
}

impl Default for Given {
    fn default() -> Self {
        Given {
            frames: [Frame::FIRST; MAX_GIVEN],
            nr_frames: 0,
        }
    }
}

impl Given {
    /// Adds one.
    ///
    /// # Panics
    /// Beyond [`MAX_GIVEN`].
    pub fn push(&mut self, frame: Frame) {
        self.frames[self.nr_frames] = frame;
        self.nr_frames += 1;
    }

    /// All of them.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.nr_frames]
    }
}

/// Makes pages `Live` that were read and are about to be given: to all others they are in the hands
/// of reclaim until they are listed. The caller has a pin on each.
pub(super) fn make_live(frames: &FrameTable, pages: &[Frame]) {
    for &frame in pages {
        let note = u32::try_from(frames.note(frame)).expect("a token, or nothing");
        frames.set_given(frame, note, None);
        let live = |word: Word| {
            let word = word.with_state(State::Live).with(flag::ISOLATED);
            Some(word.next_version())
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

impl Inbox {
    /// Lets others give. The caller has the lock, and takes what they gave before he opens that.
    pub(super) fn open(&self) {
        self.0.store(OPEN, Ordering::Relaxed);
    }

    /// Whether `nr_pages` more can be given now.
    pub(super) fn has_room(&self, nr_pages: usize) -> bool {
        has_room(self.0.load(Ordering::Relaxed), nr_pages)
    }

    /// Gives pages that are `Live`, at least one; false where nobody takes them.
    pub(super) fn give(&self, frames: &FrameTable, pages: &[Frame]) -> bool {
        let (&oldest, &newest) = (&pages[0], &pages[pages.len() - 1]);
        for pair in pages.windows(2) {
            let (note, _) = frames.given(pair[1]);
            frames.set_given(pair[1], note, Some(pair[0]));
        }
        let (note, _) = frames.given(oldest);
        let give = |inbox: u64| {
            if !has_room(inbox, pages.len()) {
                return None;
            }
            frames.set_given(oldest, note, Frame::unpack(first_of(inbox)));
            let count = (nr_given(inbox) + pages.len()) as u64;
            Some(OPEN | count << COUNT_SHIFT | u64::from(Frame::pack(Some(newest))))
        };
        // Release pairs with the Acquire in `take`.
        self.0
            .fetch_update(Ordering::Release, Ordering::Relaxed, give)
            .is_ok()
    }

    /// Lets nobody give more, if nobody gave anything; whether that is so.
    pub(super) fn close_empty(&self) -> bool {
        // Acquire, as in `take`.
        self.0
            .compare_exchange(OPEN, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes what was given so far, and from then on lets others give more, or not. The caller has
    /// the lock.
    pub(super) fn take(&self, frames: &FrameTable, stays_open: bool) -> Given {
        let after = if stays_open { OPEN } else { 0 };
        // Acquire pairs with the Release in `give`.
        let inbox = self.0.swap(after, Ordering::Acquire);
        let mut given = Given {
            nr_frames: nr_given(inbox),
            ..Given::default()
        };
        let mut next = Frame::unpack(first_of(inbox));
        for place in given.frames[..nr_given(inbox)].iter_mut().rev() {
            let frame = next.expect("as many as were counted");
            *place = frame;
            next = frames.given(frame).1;
        }
        given
    }
}

fn has_room(inbox: u64, nr_pages: usize) -> bool {
    inbox & OPEN != 0 && nr_given(inbox) + nr_pages <= MAX_GIVEN
}

/// The newest frame, packed: 0 for none.
const fn first_of(inbox: u64) -> u32 {
    (inbox & 0xFFFF_FFFF) as u32
}

const fn nr_given(inbox: u64) -> usize {
    index(((inbox & !OPEN) >> COUNT_SHIFT) as u32)
}
