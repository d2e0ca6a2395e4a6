//! Frames that came while somebody else has their list's lock: they are left with him, who lists
//! them before he opens it.
//!
//! Who brings pages in one at a time, on many CPUs, has locks to wait for each time, and whoever
//! has one has all that he touches fetched from another CPU. So nobody waits: of those who come at
//! once, one lists the frames of all.
//!
//! Source: flat combining (Hendler, Incze, Shavit, Tzafrir 2010), without the wait for the answer;
//! the kernel keeps such pages on their CPU instead (`lru_add`, a batch of 31), where reclaim does
//! not find them.

use super::{Chain, FrameTable};
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Frame, index};

/// Frames in an inbox at most: who takes them lists all of them before he goes on.
const MAX_GIVEN: usize = 64;

/// Somebody takes what is given.
const OPEN: u64 = 1 << 63;
const COUNT_SHIFT: u32 = 32;

/// A stack of frames that are on no list of a chain, linked by it; with a note of 32 bits each on
/// the main one. Open only while somebody has the list's lock, so that nothing is in it when nobody
/// has.
#[derive(Debug, Default)]
pub(crate) struct Inbox<const IS_FILE: bool = false>(AtomicU64);

/// Frames for one list, in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
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
    pub(crate) fn push(&mut self, frame: Frame) {
        self.frames[self.nr_frames] = frame;
        self.nr_frames += 1;
    }

    /// All of them.
    #[must_use]
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames[..self.nr_frames]
    }
}

impl<const IS_FILE: bool> Inbox<IS_FILE> {
    const CHAIN: Chain = if IS_FILE { Chain::File } else { Chain::Main };

    /// Lets others give. The caller has the lock, and takes what they gave before he opens that.
    pub(crate) fn open(&self) {
        self.0.store(OPEN, Ordering::Relaxed);
    }

    /// Whether `nr_frames` more are taken now.
    pub(crate) fn has_room(&self, nr_frames: usize) -> bool {
        has_room(self.0.load(Ordering::Relaxed), nr_frames)
    }

    /// Gives frames, at least one; false where nobody takes them.
    pub(crate) fn give(&self, frames: &FrameTable, given: &[Frame]) -> bool {
        if !self.has_room(given.len()) {
            return false;
        }
        let (&oldest, &newest) = (&given[0], &given[given.len() - 1]);
        for pair in given.windows(2) {
            frames.chain_given(Self::CHAIN, pair[1], Some(pair[0]));
        }
        let give = |inbox: u64| {
            if !has_room(inbox, given.len()) {
                return None;
            }
            frames.chain_given(Self::CHAIN, oldest, Frame::unpack(first_of(inbox)));
            let count = (nr_given(inbox) + given.len()) as u64;
            Some(OPEN | count << COUNT_SHIFT | u64::from(Frame::pack(Some(newest))))
        };
        // Release pairs with the Acquire in `take`.
        self.0
            .fetch_update(Ordering::Release, Ordering::Relaxed, give)
            .is_ok()
    }

    /// Lets nobody give more, once `list` has had what was given, in its order. The caller has the
    /// lock.
    pub(crate) fn close(&self, frames: &FrameTable, mut list: impl FnMut(&[Frame])) {
        if self.close_empty() {
            return;
        }
        // Those first that are there: who comes meanwhile need not wait either.
        for stays_open in [true, false] {
            list(self.take(frames, stays_open).frames());
        }
    }

    /// Lets nobody give more, if nobody gave anything; whether that is so.
    pub(crate) fn close_empty(&self) -> bool {
        // Acquire, as in `take`.
        self.0
            .compare_exchange(OPEN, 0, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes what was given so far, and from then on lets others give more, or not.
    fn take(&self, frames: &FrameTable, stays_open: bool) -> Given {
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
            next = frames.given(Self::CHAIN, frame).1;
        }
        given
    }
}

fn has_room(inbox: u64, nr_frames: usize) -> bool {
    inbox & OPEN != 0 && nr_given(inbox) + nr_frames <= MAX_GIVEN
}

/// The newest frame, packed: 0 for none.
const fn first_of(inbox: u64) -> u32 {
    (inbox & 0xFFFF_FFFF) as u32
}

const fn nr_given(inbox: u64) -> usize {
    index(((inbox & !OPEN) >> COUNT_SHIFT) as u32)
}
