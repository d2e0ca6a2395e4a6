//! Emptying an aligned block: its pages are moved or evicted, its free frames taken in hand.

use super::reach::Reclaimer;
use super::spare::Taken;
use super::{Here, Memory};
use crate::alloc::{PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pieces};
use crate::frame::State;
use crate::group::Event;
use crate::reclaim::{Batch, MAX_BATCH};
use crate::units::{Frame, Order, index};

/// The order of a pageblock.
pub(super) const REGION: Order = match Order::new(PAGEBLOCK_ORDER) {
    Some(order) => order,
    None => Order::ZERO,
};
/// Pageblocks looked at beside that of the coldest page.
const MAX_BLOCKS: u32 = 64;
/// Rounds of evicting and collecting: frames are freed to caches and zones meanwhile.
const MAX_ROUNDS: u32 = 3;

/// A block that was emptied.
#[derive(Debug)]
pub(super) struct Captured {
    /// All of it.
    pub(super) pieces: Pieces,
    /// Pages that went for it.
    pub(super) nr_evicted: u32,
}

/// Frames in hand while others are woken, who are code of the program and may unwind: they go back
/// when this is dropped.
struct InHand<'a> {
    memory: &'a Memory,
    pieces: Pieces,
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let memory = self.memory;
        memory.zones.put_pieces(&memory.frames, &self.pieces);
    }
}

impl Memory {
    /// Empties a pageblock of pages of the groups in `subtree`: that of the coldest page of the
    /// group whose turn it is, else the next one with nothing in it that has to stay.
    ///
    /// Looks at `MAX_BLOCKS` pageblocks at most. The frames are the caller's. What `low` protects
    /// goes only where no group of the subtree has other pages.
    pub(super) fn take_used_region(&self, here: Here<'_>, subtree: u32) -> Option<Frame> {
        // What waits in a magazine looks like what somebody has.
        self.drain_magazines(|_| true);
        self.drain_if_protected(subtree);
        let giver = self.next_giver(subtree)?;
        let (is_low_kept, is_of_low) = (giver.is_low_kept, self.is_of_low(&giver, subtree));
        let coldest = giver.lruvec.lock().coldest();
        let from = (subtree, is_low_kept);
        let cold = coldest.and_then(|frame| self.empty_region(here, frame, from));
        let taken = cold.or_else(|| {
            (0..MAX_BLOCKS).find_map(|_| {
                let nr_blocks = self.frames.len() / PAGEBLOCK_PAGES;
                let block = self.evacuation.next_hand().checked_rem(nr_blocks)?;
                self.empty_region(here, Frame::new(block * PAGEBLOCK_PAGES), from)
            })
        });
        if taken.is_some() && is_of_low {
            self.groups.count_event(giver.group, Event::Low);
        }
        taken
    }

    /// Empties the pageblock that a frame lies in, if all of it can go and there is a page in it.
    fn empty_region(&self, here: Here<'_>, frame: Frame, from: (u32, bool)) -> Option<Frame> {
        let first = Frame::new(frame.number() & !(PAGEBLOCK_PAGES - 1));
        if !self.zones.may_take(&self.frames, first) {
            return None;
        }
        let found = self.look_at(first, REGION, from, false).0.ok()?;
        let is_worth_it = found.nr_pages > 0 && found.order == REGION;
        if !is_worth_it {
            return None;
        }
        let captured = self.capture(here, (first, REGION), from, false).ok()?;
        Some(captured.pieces.first())
    }

    /// Empties a block whose pages may all go: they are moved to free frames where they may and
    /// there are any, else evicted. Where that fails, because somebody uses one of them again,
    /// everything is given back. What is protected in `from`, a subtree and whether `low` counts,
    /// stays.
    ///
    /// # Errors
    /// The pages that were evicted or moved in vain.
    pub(super) fn capture(
        &self,
        here: Here<'_>,
        (first, order): (Frame, Order),
        from: (u32, bool),
        may_move: bool,
    ) -> Result<Captured, u32> {
        let mut in_hand = InHand {
            memory: self,
            pieces: Pieces::of(first, order),
        };
        let pieces = &mut in_hand.pieces;
        let (mut nr_moved, mut nr_evicted) = (0, 0);
        for round in 0..MAX_ROUNDS {
            // Magazines, and caches of other CPUs, are emptied only where pages alone do not make
            // it.
            if round > 0 {
                self.drain_magazines(|_| true);
            }
            self.zones.take_pieces(&self.frames, pieces, round > 0);
            if !pieces.is_full() && may_move {
                nr_moved += self.move_pieces(here, pieces);
            }
            if !pieces.is_full() {
                nr_evicted += self.evict_pieces(here, pieces, from);
            }
            if pieces.is_full() {
                let pieces = core::mem::replace(pieces, Pieces::of(first, order));
                return Ok(Captured { pieces, nr_evicted });
            }
        }
        Err(nr_evicted + nr_moved)
    }

    /// Evicts the pages of a block that are not in hand, into it. Returns the pages.
    fn evict_pieces(&self, here: Here<'_>, pieces: &mut Pieces, from: (u32, bool)) -> u32 {
        const NONE: Frame = Frame::FIRST;
        let mut nr_evicted = 0;
        let mut run = (0, [NONE; index(MAX_BATCH)], 0);
        for frame in pieces.frames() {
            let word = self.frames.word(frame);
            if pieces.has(frame) || word.state() != State::Live || !word.is_evictable() {
                continue;
            }
            let group = self.frames.group(frame);
            if run.0 != group || run.2 == run.1.len() {
                nr_evicted += self.evict_run(here, (run.0, from), &run.1[..run.2], pieces);
                run = (group, run.1, 0);
            }
            run.1[run.2] = frame;
            run.2 += 1;
        }
        nr_evicted + self.evict_run(here, (run.0, from), &run.1[..run.2], pieces)
    }

    /// Evicts pages of one group; returns those that went.
    fn evict_run(
        &self,
        here: Here<'_>,
        (group, (subtree, is_low_kept)): (u32, (u32, bool)),
        run: &[Frame],
        pieces: &mut Pieces,
    ) -> u32 {
        // All of them are in one block, so on one node.
        let lruvec = run.first().and_then(|&frame| self.lruvec_at(frame));
        let Some(lruvec) = lruvec.filter(|lruvec| lruvec.group() == group) else {
            return 0;
        };
        // A page that came there since somebody looked may be anybody's.
        if !self.groups.is_in(group, subtree) {
            return 0;
        }
        let nr_frames = run
            .iter()
            .map(|&frame| self.frames.block(frame).0.nr_pages());
        let mut taken = Taken::of(self, (group, subtree), is_low_kept, lruvec);
        if !taken.take(nr_frames.sum()) {
            return 0;
        }
        let mut batch = Batch::default();
        batch.take_at_most(taken.most);
        let mut lists = lruvec.lock();
        for &frame in run {
            lists.isolate_frame(&self.frames, (group, frame), &mut batch);
        }
        drop(lists);
        taken.keep(batch.nr_frames());
        self.evict((here.cpu, Reclaimer::Direct), lruvec, &batch, Some(pieces))
    }
}
