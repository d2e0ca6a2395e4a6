//! Doubly linked lists of frames, linked by frame number in the frame table.

use super::{Chain, FrameTable};
use crate::units::Frame;

/// A list of frames over one pair of links. Whoever owns it holds the lock that guards it.
///
/// Which links is part of the type, so that no operation has to ask. Every one is O(1) and touches
/// at most four frame records.
#[derive(Debug, Default)]
pub struct List<const IS_FILE: bool = false> {
    head: Option<Frame>,
    tail: Option<Frame>,
    len: u32,
}

/// A list of the frames of one mapping.
pub type FileList = List<true>;

impl<const IS_FILE: bool> List<IS_FILE> {
    const CHAIN: Chain = if IS_FILE { Chain::File } else { Chain::Main };

    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        List {
            head: None,
            tail: None,
            len: 0,
        }
    }

    /// Frames on the list.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether no frame is on the list.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first frame.
    #[must_use]
    pub const fn head(&self) -> Option<Frame> {
        self.head
    }

    /// The last frame: the coldest, where the head is the hottest.
    #[must_use]
    pub const fn tail(&self) -> Option<Frame> {
        self.tail
    }

    /// Puts `frame` first. It must be on no list of this chain.
    #[inline]
    pub fn push_head(&mut self, frames: &FrameTable, frame: Frame) {
        frames.set_links(Self::CHAIN, frame, None, self.head);
        match self.head {
            Some(head) => frames.set_prev(Self::CHAIN, head, Some(frame)),
            None => self.tail = Some(frame),
        }
        self.head = Some(frame);
        self.len += 1;
    }

    /// Puts `frame` last. It must be on no list of this chain.
    pub fn push_tail(&mut self, frames: &FrameTable, frame: Frame) {
        frames.set_links(Self::CHAIN, frame, self.tail, None);
        match self.tail {
            Some(tail) => frames.set_next(Self::CHAIN, tail, Some(frame)),
            None => self.head = Some(frame),
        }
        self.tail = Some(frame);
        self.len += 1;
    }

    /// Takes `frame` off. It must be on this list.
    ///
    /// # Panics
    /// Where its neighbours show that it is not.
    pub fn remove(&mut self, frames: &FrameTable, frame: Frame) {
        let (prev, next) = frames.links(Self::CHAIN, frame);
        match prev {
            Some(prev) => frames.set_next(Self::CHAIN, prev, next),
            None => {
                assert!(self.head == Some(frame), "{frame:?} is not on this list");
                self.head = next;
            }
        }
        match next {
            Some(next) => frames.set_prev(Self::CHAIN, next, prev),
            None => {
                assert!(self.tail == Some(frame), "{frame:?} is not on this list");
                self.tail = prev;
            }
        }
        frames.set_links(Self::CHAIN, frame, None, None);
        self.len -= 1;
    }

    /// Puts `new`, which is on no list of this chain, where `old` is, and takes `old` off.
    ///
    /// # Panics
    /// Where the neighbours of `old` show that it is not on this list.
    pub fn replace(&mut self, frames: &FrameTable, (old, new): (Frame, Frame)) {
        let (prev, next) = frames.links(Self::CHAIN, old);
        self.remove(frames, old);
        frames.set_links(Self::CHAIN, new, prev, next);
        match prev {
            Some(prev) => frames.set_next(Self::CHAIN, prev, Some(new)),
            None => self.head = Some(new),
        }
        match next {
            Some(next) => frames.set_prev(Self::CHAIN, next, Some(new)),
            None => self.tail = Some(new),
        }
        self.len += 1;
    }

    /// Takes the first frame off.
    #[inline]
    pub fn pop_head(&mut self, frames: &FrameTable) -> Option<Frame> {
        let head = self.head?;
        let (prev, next) = frames.links(Self::CHAIN, head);
        assert!(prev.is_none(), "{head:?} is not the first of its list");
        match next {
            Some(next) => frames.set_prev(Self::CHAIN, next, None),
            None => self.tail = None,
        }
        self.head = next;
        frames.set_links(Self::CHAIN, head, None, None);
        self.len -= 1;
        Some(head)
    }

    /// Takes the last frame off.
    pub fn pop_tail(&mut self, frames: &FrameTable) -> Option<Frame> {
        let tail = self.tail?;
        self.remove(frames, tail);
        Some(tail)
    }

    /// The frames from head to tail. O(n), for checks.
    pub fn iter<'a>(
        &self,
        frames: &'a FrameTable,
    ) -> impl Iterator<Item = Frame> + use<'a, IS_FILE> {
        core::iter::successors(self.head, |&frame| frames.links(Self::CHAIN, frame).1)
    }

    /// The frames from tail to head.
    pub fn iter_back<'a>(
        &self,
        frames: &'a FrameTable,
    ) -> impl Iterator<Item = Frame> + use<'a, IS_FILE> {
        core::iter::successors(self.tail, |&frame| frames.links(Self::CHAIN, frame).0)
    }
}
