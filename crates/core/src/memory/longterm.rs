//! Long-term pins: a page that is to stay is brought among its like first, or moved there, so that
//! other pageblocks can be emptied.

use super::alloc::Block;
use super::held::{Held, What};
use super::region::REGION;
use super::{AllocError, Effect, Effects, Here, Memory};
use crate::alloc::{Mobility, Request};
use crate::frame::Word;
use crate::units::{Frame, Order};

impl Memory {
    /// A block charged to `group` in an unmovable pageblock, where there is one or a pageblock can
    /// be emptied for it; else anywhere.
    ///
    /// The allocator takes free pageblocks for what stays, but where there is none, what stays
    /// would be spread over all others.
    ///
    /// # Errors
    /// [`AllocError`].
    pub(super) fn take_unmovable(
        &self,
        here: Here<'_>,
        group: u32,
        order: Order,
    ) -> Result<Block, AllocError> {
        self.charge_pages(here, group, order.nr_pages())?;
        let request = Request::new(order, Mobility::Unmovable);
        // Once: both blocks are of one turn.
        let (request, is_anywhere) = match self.groups.place(group) {
            None => (request, true),
            Some(place) => self.placed(here.cpu, request, &place),
        };
        let frame = self.take_charged(here, group, request, is_anywhere)?;
        let block = self.block_of(group, frame);
        let is_settled = order >= REGION || !self.is_movable(block.frame);
        if is_settled || !here.may_reclaim {
            return Ok(block);
        }
        let subtree = if is_anywhere {
            self.groups.root()
        } else {
            group
        };
        let taken = Held::new(self, here.cpu, What::Block(block.frame));
        let mut emptied = Held::new(self, here.cpu, What::Nothing);
        here.platform.stall(group, &mut || {
            if let Some(frame) = self.evacuate_unmovable(here, &request, subtree) {
                emptied.what = What::Frame(frame, order);
            }
        });
        taken.keep();
        let What::Frame(frame, _) = emptied.keep() else {
            return Ok(block);
        };
        // The charge goes over to it. Nobody wrote to the other one.
        self.frames.set_group(block.frame, 0);
        self.zones.free(&self.frames, here.cpu, block.frame, order);
        self.frames.set_group(frame, group);
        let was_ours = false;
        Ok(Block { frame, was_ours })
    }

    /// Whether a frame's pageblock is meant for what can move.
    fn is_movable(&self, frame: Frame) -> bool {
        let mobility = self.zones.mobility(&self.frames, frame);
        mobility.is_some_and(|mobility| mobility != Mobility::Unmovable)
    }

    /// Begins to move a page that the caller has pinned into an unmovable pageblock: from here on
    /// the page is being copied, for all who look it up. Returns the frame that it goes to, with a
    /// pin of the caller's; the one on the old frame is the copy's.
    ///
    /// `None` leaves everything as it was, with the caller's pin: the page is where it should be or
    /// not in its file any more, somebody else has it pinned or has to write it, or no frame can be
    /// had there within the limits.
    pub(super) fn begin_move(
        &self,
        here: Here<'_>,
        old: Frame,
        effects: &mut Effects,
    ) -> Option<Frame> {
        let (order, _) = self.frames.block(old);
        let may_move = |word: Word| word.pins() == 1 && word.unpinned().is_evictable();
        if order >= REGION || !self.is_movable(old) || !may_move(self.frames.word(old)) {
            return None;
        }
        // The page's charge keeps its record, even if the group is dropped meanwhile.
        let group = self.frames.group(old);
        let Block { frame, was_ours } = self.take_unmovable(here, group, order).ok()?;
        let block = Held::new(self, here.cpu, What::Block(frame));
        let record = self.groups.get(group)?;
        let has_lruvec = || self.have_lruvec(here, (group, record), frame).is_ok();
        if self.is_movable(frame) || !has_lruvec() {
            return None;
        }
        block.keep();
        let Some(io) = self.exchange((old, frame), was_ours, 1) else {
            self.put_foreign(here.cpu, frame);
            return None;
        };
        effects.push(Effect::Copy(io));
        Some(frame)
    }
}
