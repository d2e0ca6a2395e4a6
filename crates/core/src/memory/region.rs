//! Emptying a whole pageblock: its pages are evicted, its free frames taken in hand.

use super::{Here, Memory};
use crate::alloc::{PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pieces};
use crate::frame::{Place, State};
use crate::group::Event;
use crate::reclaim::{Batch, MAX_BATCH};
use crate::sync::Ordering;
use crate::units::{Frame, index};

/// Pageblocks looked at beside that of the coldest page.
const MAX_BLOCKS: u32 = 64;
/// Rounds of evicting and collecting: frames are freed to caches and zones meanwhile.
const MAX_ROUNDS: u32 = 3;

impl Memory {
    /// Empties a pageblock of pages of the groups in `subtree`: that of the coldest page of the
    /// group whose turn it is, else the next one with nothing in it that has to stay.
    ///
    /// Looks at `MAX_BLOCKS` pageblocks at most. The frames are the caller's. What `low` protects
    /// goes only where no group of the subtree has other pages.
    pub(super) fn take_used_region(&self, here: Here<'_>, subtree: u32) -> Option<Frame> {
        let giver = self.next_giver(subtree)?;
        let is_low_kept = giver.is_low_kept;
        let coldest = giver.lruvec.lock().coldest();
        let from = (subtree, is_low_kept);
        let cold = coldest.and_then(|frame| self.capture(here, frame, from));
        let taken = cold.or_else(|| {
            (0..MAX_BLOCKS).find_map(|_| {
                let nr_blocks = self.frames.len() / PAGEBLOCK_PAGES;
                let hand = self.region_hand.fetch_add(1, Ordering::Relaxed);
                let block = hand.checked_rem(nr_blocks)?;
                self.capture(here, Frame::new(block * PAGEBLOCK_PAGES), from)
            })
        });
        if taken.is_some() && !is_low_kept {
            self.groups.count_event(giver.group, Event::Low);
        }
        taken
    }

    /// Empties the pageblock that a frame lies in, if all of it can go.
    fn capture(&self, here: Here<'_>, frame: Frame, from: (u32, bool)) -> Option<Frame> {
        let mut pieces = Pieces::of(frame);
        if !self.may_empty(&pieces, from) {
            return None;
        }
        for round in 0..MAX_ROUNDS {
            // Caches of other CPUs are emptied only where pages alone do not make it.
            self.zones.take_pieces(&self.frames, &mut pieces, round > 0);
            if !pieces.is_full() {
                self.evict_pieces(here, &mut pieces);
            }
            if pieces.is_full() {
                return Some(pieces.first());
            }
        }
        self.zones.put_pieces(&self.frames, &pieces);
        None
    }

    /// Whether a pageblock has only free frames and pages of groups in `subtree` that may be
    /// evicted, at least one. A look without a lock.
    ///
    /// Not a page of anybody else, because the limit that was met is not his.
    fn may_empty(&self, pieces: &Pieces, (subtree, is_low_kept): (u32, bool)) -> bool {
        if !self.zones.may_take(&self.frames, pieces) {
            return false;
        }
        let mut last = None;
        let (mut nr_pages, mut spare) = (0, u64::MAX);
        let mut end = pieces.first().number();
        for frame in pieces.frames() {
            if frame.number() < end {
                continue;
            }
            let (order, place) = self.frames.block(frame);
            if order.get() > PAGEBLOCK_ORDER {
                return false;
            }
            end = frame.number() + order.nr_pages();
            if place != Place::Out {
                continue;
            }
            let word = self.frames.word(frame);
            if word.state() != State::Live || !word.is_evictable() {
                return false;
            }
            nr_pages += u64::from(order.nr_pages());
            let group = self.frames.group(frame);
            if last != Some(group) {
                last = Some(group);
                if !self.groups.is_in(group, subtree) {
                    return false;
                }
                spare = spare.min(self.spare(group, subtree, is_low_kept));
            }
        }
        // All of them might be the group's that can spare least.
        nr_pages > 0 && nr_pages <= spare
    }

    /// Evicts the pages of a pageblock that are not in hand, into it.
    fn evict_pieces(&self, here: Here<'_>, pieces: &mut Pieces) {
        const NONE: Frame = Frame::FIRST;
        let mut run = (0, [NONE; index(MAX_BATCH)], 0);
        for frame in pieces.frames() {
            let word = self.frames.word(frame);
            if pieces.has(frame) || word.state() != State::Live || !word.is_evictable() {
                continue;
            }
            let group = self.frames.group(frame);
            if run.0 != group || run.2 == run.1.len() {
                self.evict_run(here, run.0, &run.1[..run.2], pieces);
                run = (group, run.1, 0);
            }
            run.1[run.2] = frame;
            run.2 += 1;
        }
        self.evict_run(here, run.0, &run.1[..run.2], pieces);
    }

    /// Evicts pages of one group.
    fn evict_run(&self, here: Here<'_>, group: u32, run: &[Frame], pieces: &mut Pieces) {
        // All of them are in one pageblock, so on one node.
        let lruvec = run.first().and_then(|&frame| self.lruvec_at(frame));
        let Some(lruvec) = lruvec.filter(|lruvec| lruvec.group() == group) else {
            return;
        };
        let mut batch = Batch::default();
        let mut lists = lruvec.lock();
        for &frame in run {
            lists.isolate_frame(&self.frames, (group, frame), &mut batch);
        }
        drop(lists);
        self.evict(here.cpu, lruvec, &batch, Some(pieces));
    }
}
