//! Moving a page to another frame: the exchange of the two, and pages of a block that is emptied.
//!
//! Source: kernel `migrate_pages()` and compaction. Changed: who looks the page up meanwhile waits
//! as for a read, and the new frame has the page's place in the lruvec from the exchange on.

use super::{Effects, Here, Io, Memory};
use crate::alloc::{Mark, Mobility, Pieces, Request};
use crate::frame::{State, Word, flag};
use crate::page_cache;
use crate::sync::Ordering;
use crate::units::{Frame, NodeMask};

/// What a page keeps when it moves.
const KEPT: [u64; 2] = [flag::YOUNG, flag::WORKINGSET];

/// The word of the frame that a page moves to, with a pin for the copy and those of who asked for
/// it; `was` is the page's word before.
fn moved(word: Word, was: Word, nr_pins: u32) -> Word {
    let word = word.bare().with_state(State::Reading).next_version();
    let pinned = (0..=nr_pins).try_fold(word, |word, _| word.pinned());
    let word = pinned.expect("a bare word takes a few pins");
    let kept = KEPT.into_iter().filter(|&flag| was.has(flag));
    kept.fold(word.with_refs(was.refs()), Word::with)
}

impl Memory {
    /// Has a page that the caller alone has pinned move to a frame that is charged or takes over
    /// the charge, with `nr_pins` of the caller's: from here on the page is being copied. The pin
    /// on the old frame is the copy's. `None` leaves all as it was: somebody uses the page.
    ///
    /// The page keeps its class or generation, its place there and how often it was used, but is
    /// queued anew where it comes to another node. It counts neither as read nor as a refault.
    pub(super) fn exchange(
        &self,
        (old, new): (Frame, Frame),
        was_ours: bool,
        nr_pins: u32,
    ) -> Option<Io> {
        let (order, _) = self.frames.block(old);
        let key = self.frames.key(old).expect("a pinned frame holds a page");
        self.frames.set_key(new, Some(key));
        self.frames.set_page_type(new, self.frames.page_type(old));
        self.end_claims(old);
        let bucket = self.index.lock(key);
        let was = page_cache::detach_pinned(&self.frames, old)?;
        self.frames.set_note(new, 0);
        self.frames
            .change_owned(new, |word| moved(word, was, nr_pins));
        assert!(self.index.remove(key, old), "{old:?} has no entry");
        bucket.insert(new);
        drop(bucket);
        // In one step: who closes the file or walks its pages finds that one, once.
        let mapping = self.mapping_of(key);
        mapping.replace(&self.frames, (old, new));
        if !self.keep_place(old, new) {
            let group = self.groups.get(self.frames.group(new));
            let group = group.expect("a group lives while a page is charged to it");
            group.begin_copy(mapping.page_type(), order.nr_pages());
        }
        Some(Io {
            frame: new,
            key,
            order,
            was_ours,
            source: Some(old),
        })
    }

    /// Has the frame that a page moves to take its place, where one lruvec lists both; else it
    /// is on no list until it is queued anew.
    fn keep_place(&self, old: Frame, new: Frame) -> bool {
        let lruvec = |frame| self.lruvec_at(frame).expect("was made before");
        let (from, to) = (lruvec(old), lruvec(new));
        let mut lists = from.lock();
        let is_kept = core::ptr::eq(from, to) && lists.replace(&self.frames, (old, new));
        if !is_kept {
            lists.remove(&self.frames, old);
        } else if self.frames.word(new).has(flag::YOUNG) {
            self.frames.mark_touched(new);
        }
        is_kept
    }

    /// Moves pages of a block, whose free frames are in hand, to free frames of its node above the
    /// low watermark, as long as there are any; takes what they leave in hand. Returns the frames.
    pub(super) fn move_pieces(&self, here: Here<'_>, pieces: &mut Pieces) -> u32 {
        let mut nr_moved = 0;
        for frame in pieces.frames() {
            let word = self.frames.word(frame);
            if pieces.has(frame) || !may_move(word) {
                continue;
            }
            match self.move_page(here, frame, pieces) {
                Moved::Page(nr_frames) => nr_moved += nr_frames,
                Moved::InUse => {}
                Moved::NoFrame => break,
            }
        }
        self.evacuation
            .migrated
            .fetch_add(nr_moved.into(), Ordering::Relaxed);
        nr_moved
    }

    /// Moves one page and takes its frame in hand.
    fn move_page(&self, here: Here<'_>, old: Frame, pieces: &mut Pieces) -> Moved {
        let pin = |word: Word| may_move(word).then(|| word.pinned())?;
        if self.frames.update(old, pin).is_err() {
            return Moved::InUse;
        }
        // Pinned, so that it is this page from here on.
        let order = self.frames.block(old).0;
        if order >= pieces.order() {
            // It came there since somebody looked.
            self.leave(here, old);
            return Moved::InUse;
        }
        let Some(new) = self.take_beside(here, old, pieces) else {
            self.leave(here, old);
            return Moved::NoFrame;
        };
        let group = self.frames.group(old);
        let was_ours = self.frames.group(new) == group;
        self.frames.set_group(new, group);
        let Some(mut io) = self.exchange((old, new), was_ours, 1) else {
            self.make_bare(new);
            self.frames.set_group(new, 0);
            self.zones.free(&self.frames, here.cpu, new, order);
            self.leave(here, old);
            return Moved::InUse;
        };
        let pinned = self.frames.update(old, Word::pinned);
        assert!(pinned.is_ok(), "the copy's is the only pin");
        here.platform.copy(&mut io);
        let mut effects = Effects::new();
        self.complete(here.cpu, io, Ok(()), &mut effects);
        // On no list, with the last pin: nobody else frees it, also who comes late to reap an
        // earlier page of the frame. The charge went with the page.
        let taken = |word: Word| {
            assert!(word.pins() == 1, "{old:?} has a pin that is not this one");
            Some(word.bare().with_state(State::Evicting).next_version())
        };
        let taken = self.frames.update(old, taken);
        assert!(taken.is_ok(), "an update without a condition");
        self.make_bare(old);
        pieces.add(old, order);
        // The caller may have no handle: whoever closes the file waits for the copy, and not for
        // the end of this. So the pin that goes last is one whose drop says that it was the last.
        let _left_last = Pinned {
            memory: self,
            here,
            frame: new,
        };
        // Foreign code, which may unwind: `capture` gives back what is in hand then.
        here.wake_all(&mut effects);
        Moved::Page(order.nr_pages())
    }

    /// A free frame, or block, for a page of a block that is emptied. What is free within that
    /// block is taken in hand.
    fn take_beside(&self, here: Here<'_>, old: Frame, pieces: &mut Pieces) -> Option<Frame> {
        let order = self.frames.block(old).0;
        let node = self.zones.node_of(&self.frames, old);
        let request = Request {
            mark: Mark::Low,
            mems: NodeMask::of(node),
            ..Request::new(order, Mobility::Movable)
        };
        loop {
            let new = self.zones.alloc(&self.frames, here.cpu, &request).ok()?;
            if !pieces.holds(new) {
                return Some(new);
            }
            pieces.add(new, order);
        }
    }

    /// Drops the caller's pin of a page that has moved, or does not after all.
    fn leave(&self, here: Here<'_>, frame: Frame) {
        let mut effects = Effects::new();
        self.unpin(here.cpu, frame, &mut effects);
        here.wake_all(&mut effects);
    }
}

/// A page that has moved, with the caller's pin until this is dropped.
struct Pinned<'a> {
    memory: &'a Memory,
    here: Here<'a>,
    frame: Frame,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.memory.leave(self.here, self.frame);
    }
}

/// What became of a page that was to move.
enum Moved {
    /// So many frames are in hand.
    Page(u32),
    /// Somebody uses it, or it is none of the block's any more.
    InUse,
    /// There is no frame for it.
    NoFrame,
}

/// Whether a page may move: nobody uses it, and reclaim does not have it in hand.
fn may_move(word: Word) -> bool {
    word.is_evictable() && word.generation() != 0
}
