//! The buddy allocator of one zone: free lists by order and mobility, merging in O(1).

use super::pageblock::{self, Mobility, NR_MOBILITIES, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use crate::frame::{FrameTable, List, Place, State};
use crate::units::{Discrepancy, Frame, MAX_ORDER, NR_ORDERS, Order, index};
use core::ops::Range;

/// The free blocks of frames `start..end`. Guarded by its zone's lock.
#[derive(Debug)]
pub struct Buddy {
    pub(super) lists: [[List; NR_MOBILITIES]; NR_ORDERS],
    start: u32,
    end: u32,
    /// Frames of blocks of the largest order that nobody had yet, in turn behind those of their
    /// list, which has one where there are any: a block that is listed writes to its record, and a
    /// large arena that is not used would have a page of records for each.
    unlisted: Range<u32>,
    /// With those that are not listed.
    nr_free: u32,
    /// Too small a zone keeps all its blocks on the movable lists.
    has_mobility: bool,
    nr_claims: u32,
    nr_steals: u32,
    /// A part of a pageblock was claimed since this was last asked.
    was_claimed: bool,
    /// How many want that no block is remembered as a group's, whether it comes or goes.
    nr_forgetting: u32,
}

/// The order of the largest blocks.
const LARGEST: Order = match Order::new(MAX_ORDER) {
    Some(order) => order,
    None => Order::ZERO,
};

/// Where the last block of a batch came from: the next one is looked for there.
///
/// Source: kernel `rmqueue_mode` (2025): a batch does not search again what has just failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Found {
    /// Its own mobility's lists, filled up by a claim where they were empty.
    #[default]
    Own,
    /// Another mobility's pageblock, which stays what it is.
    Stolen,
}

impl Buddy {
    /// All frames of `start..end`, free and movable, in the largest aligned blocks.
    #[must_use]
    pub fn new(frames: &FrameTable, start: u32, end: u32) -> Buddy {
        let mut buddy = Buddy {
            lists: [const { [const { List::new() }; NR_MOBILITIES] }; NR_ORDERS],
            start,
            end,
            unlisted: 0..0,
            nr_free: 0,
            // As the kernel: types are told apart where each can have a pageblock.
            has_mobility: index((end - start) / PAGEBLOCK_PAGES) >= NR_MOBILITIES,
            nr_claims: 0,
            nr_steals: 0,
            was_claimed: false,
            nr_forgetting: 0,
        };
        let mut at = start;
        while at < end {
            let fits = (end - at)
                .ilog2()
                .min(at.trailing_zeros())
                .min(u32::from(MAX_ORDER));
            let order = order_of(fits);
            if order == LARGEST {
                let last = end & !(LARGEST.nr_pages() - 1);
                buddy.unlisted = at..last;
                buddy.nr_free += last - at;
                at = last;
                continue;
            }
            // At the tail, so that low frames are taken first and high ones stay untouched.
            buddy.list(Frame::new(at), order, Mobility::Movable, frames, End::Tail);
            at += order.nr_pages();
        }
        buddy.list_next(frames);
        buddy
    }

    /// Lists a block that nobody had yet where else none of its list would be there.
    fn list_next(&mut self, frames: &FrameTable) {
        let list = &self.lists[LARGEST.index()][Mobility::Movable.index()];
        if list.is_empty() && !self.unlisted.is_empty() {
            let first = self.unlisted.start;
            self.unlisted.start += LARGEST.nr_pages();
            self.list_new(frames, first);
        }
    }

    /// Lists the last of the blocks that nobody had yet.
    pub(super) fn list_last(&mut self, frames: &FrameTable) {
        if !self.unlisted.is_empty() {
            self.unlisted.end -= LARGEST.nr_pages();
            self.list_new(frames, self.unlisted.end);
        }
    }

    fn list_new(&mut self, frames: &FrameTable, first: u32) {
        let movable = Mobility::Movable;
        self.list(Frame::new(first), LARGEST, movable, frames, End::Tail);
        // It was free before.
        self.nr_free -= LARGEST.nr_pages();
    }

    /// Blocks that nobody had yet and that are not listed.
    fn nr_unlisted(&self) -> u32 {
        crate::units::count(self.unlisted.len()) / LARGEST.nr_pages()
    }

    /// Frames in free blocks.
    #[must_use]
    pub fn nr_free(&self) -> u32 {
        self.nr_free
    }

    /// Pageblocks that changed their type, and blocks taken out of ones that did not.
    #[must_use]
    pub fn nr_fallbacks(&self) -> (u32, u32) {
        (self.nr_claims, self.nr_steals)
    }

    /// Free blocks of each order and mobility, as `/proc/pagetypeinfo` lists them.
    #[must_use]
    pub fn pagetypeinfo(&self) -> [[u32; NR_MOBILITIES]; NR_ORDERS] {
        let mut lens: [[u32; NR_MOBILITIES]; NR_ORDERS] =
            core::array::from_fn(|order| self.lists[order].each_ref().map(List::len));
        lens[LARGEST.index()][Mobility::Movable.index()] += self.nr_unlisted();
        lens
    }

    /// Whether a block of at least `order` is free that `mobility` may have.
    #[must_use]
    pub fn has_block(&self, order: Order) -> bool {
        let larger = self.lists.iter().skip(order.index());
        larger.flatten().any(|list| !list.is_empty())
    }

    /// Whether blocks of different mobility are kept apart.
    #[must_use]
    pub fn has_mobility(&self) -> bool {
        self.has_mobility
    }

    /// Whether a pageblock in use lost its mobility since this was last asked: others will soon
    /// want room of the old one.
    pub(super) fn take_was_claimed(&mut self) -> bool {
        core::mem::take(&mut self.was_claimed)
    }

    pub(super) fn list(
        &mut self,
        frame: Frame,
        order: Order,
        kind: Mobility,
        frames: &FrameTable,
        end: End,
    ) {
        frames.set_block(frame, order, Place::Zone);
        let list = &mut self.lists[order.index()][kind.index()];
        match end {
            End::Head => list.push_head(frames, frame),
            End::Tail => list.push_tail(frames, frame),
        }
        self.nr_free += order.nr_pages();
    }

    pub(super) fn unlist(
        &mut self,
        frame: Frame,
        order: Order,
        kind: Mobility,
        frames: &FrameTable,
    ) {
        self.lists[order.index()][kind.index()].remove(frames, frame);
        frames.set_block(frame, order, Place::Out);
        self.nr_free -= order.nr_pages();
        self.list_next(frames);
    }

    /// Takes a block of `order`: the smallest of its own type that is large enough, split; else a
    /// pageblock of another type is claimed; else a block is stolen from one.
    ///
    /// `found` is where the last block of this batch came from, and is updated.
    /// Cost: at most one list move for each order above; a claim also looks at the 512 records of a
    /// pageblock.
    pub fn alloc(
        &mut self,
        frames: &FrameTable,
        order: Order,
        mobility: Mobility,
        found: &mut Found,
    ) -> Option<Frame> {
        let kind = if self.has_mobility {
            mobility
        } else {
            Mobility::Movable
        };
        if *found == Found::Own {
            let own = self.take(frames, order, kind);
            if own.is_some() || !self.has_mobility {
                return own;
            }
            if let Some(claimed) = self.claim(frames, order, kind) {
                return Some(claimed);
            }
            *found = Found::Stolen;
        }
        self.steal(frames, order, kind)
    }

    fn take(&mut self, frames: &FrameTable, order: Order, kind: Mobility) -> Option<Frame> {
        let have = (order.index()..NR_ORDERS)
            .find(|&order| !self.lists[order][kind.index()].is_empty())?;
        let frame = self.lists[have][kind.index()].head();
        let frame = frame.expect("the list is not empty");
        self.split(frames, frame, have, kind, order, kind);
        Some(frame)
    }

    /// Takes a free block of order `have` off the lists of `from`, keeps its first block of
    /// `order`, and lists the rest as `to`.
    fn split(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        have: usize,
        from: Mobility,
        order: Order,
        to: Mobility,
    ) {
        let mut have = order_of(crate::units::count(have));
        self.unlist(frame, have, from, frames);
        let was_whole = have.get() >= PAGEBLOCK_ORDER;
        while have > order {
            have = order_of(u32::from(have.get()) - 1);
            let upper = Frame::new(frame.number() + have.nr_pages());
            self.list(upper, have, to, frames, End::Head);
        }
        frames.set_block(frame, order, Place::Out);
        if was_whole {
            for_pageblocks(frame, order, |block| pageblock::touch(frames, block));
        }
        if order.get() >= PAGEBLOCK_ORDER && self.nr_forgetting == 0 {
            frames.set_group(frame, last_group(frames, frame, order));
        }
    }

    /// Whole pageblocks come and go without a group's name until [`Buddy::end_forgetting`].
    pub(super) fn begin_forgetting(&mut self) {
        self.nr_forgetting += 1;
    }

    /// No free block is remembered as a group's any more. O(free blocks of whole pageblocks).
    pub(super) fn end_forgetting(&mut self, frames: &FrameTable) {
        self.nr_forgetting -= 1;
        for have in usize::from(PAGEBLOCK_ORDER)..NR_ORDERS {
            let order = order_of(crate::units::count(have));
            for frame in self.lists[have].iter().flat_map(|list| list.iter(frames)) {
                for_pageblocks(frame, order, |block| frames.set_last_group(block, 0));
            }
        }
    }

    /// Makes a pageblock of another type one of `kind`, largest free blocks first, and takes a
    /// block of it.
    ///
    /// Source: kernel `__rmqueue_claim()`.
    fn claim(&mut self, frames: &FrameTable, order: Order, kind: Mobility) -> Option<Frame> {
        for have in (order.index()..NR_ORDERS).rev() {
            let is_worth_it = kind != Mobility::Movable || have >= usize::from(PAGEBLOCK_ORDER / 2);
            if !is_worth_it {
                break;
            }
            for from in kind.fallbacks() {
                let Some(frame) = self.lists[have][from.index()].head() else {
                    continue;
                };
                if have >= usize::from(PAGEBLOCK_ORDER) {
                    let whole = order_of(crate::units::count(have));
                    for_pageblocks(frame, whole, |block| {
                        pageblock::set_mobility(frames, block, kind);
                    });
                    self.split(frames, frame, have, from, order, kind);
                    self.nr_claims += 1;
                    return Some(frame);
                }
                if self.convert(frames, frame, from, kind) {
                    self.nr_claims += 1;
                    self.was_claimed = true;
                    return self.take(frames, order, kind);
                }
            }
        }
        None
    }

    /// Moves the free blocks of a pageblock to `to`, if at least half of it is free or used alike.
    /// To movable, only if nothing in it is working memory or pinned.
    ///
    /// Source: kernel `try_to_claim_block()`. Changed: the kernel asks for half in both directions,
    /// so that a pageblock with one frame that cannot move is movable again as pages come in, and
    /// the next such frame takes another pageblock.
    fn convert(&mut self, frames: &FrameTable, frame: Frame, from: Mobility, to: Mobility) -> bool {
        let first = frame.number() & !(PAGEBLOCK_PAGES - 1);
        let last = first + PAGEBLOCK_PAGES;
        if first < self.start || last > self.end {
            return false;
        }
        let (mut nr_free, mut nr_movable, mut nr_fixed) = (0, 0, 0);
        let mut at = first;
        while at < last {
            let frame = Frame::new(at);
            match frames.block(frame) {
                (order, Place::Zone) => {
                    nr_free += order.nr_pages();
                    at += order.nr_pages();
                    continue;
                }
                _ => {
                    let word = frames.word(frame);
                    match word.state() {
                        State::Buf => nr_fixed += 1,
                        State::Live if word.pins() > 0 => nr_fixed += 1,
                        State::Reading | State::Live => nr_movable += 1,
                        _ => {}
                    }
                }
            }
            at += 1;
        }
        let nr_alike = match (to, from) {
            (Mobility::Movable, _) if nr_fixed > 0 => return false,
            (Mobility::Movable, _) => nr_movable,
            (_, Mobility::Movable) => PAGEBLOCK_PAGES - nr_free - nr_movable,
            _ => 0,
        };
        if nr_free + nr_alike < PAGEBLOCK_PAGES / 2 {
            return false;
        }
        let mut at = first;
        while at < last {
            let (order, place) = frames.block(Frame::new(at));
            if place == Place::Zone {
                self.unlist(Frame::new(at), order, from, frames);
                self.list(Frame::new(at), order, to, frames, End::Tail);
                at += order.nr_pages();
            } else {
                at += 1;
            }
        }
        pageblock::set_mobility(frames, frame, to);
        true
    }

    /// Takes the smallest block of another type that is large enough.
    fn steal(&mut self, frames: &FrameTable, order: Order, kind: Mobility) -> Option<Frame> {
        for have in order.index()..NR_ORDERS {
            for from in kind.fallbacks() {
                if let Some(frame) = self.lists[have][from.index()].head() {
                    self.split(frames, frame, have, from, order, from);
                    self.nr_steals += 1;
                    return Some(frame);
                }
            }
        }
        None
    }

    /// Gives a block back and merges it with its free buddies. O(1) for each order: a look at the
    /// buddy's record, no search. `now` in ns is when, for blocks that are whole pageblocks.
    ///
    /// # Panics
    /// Where the block is free already or does not lie in this zone.
    pub fn free(&mut self, frames: &FrameTable, frame: Frame, order: Order, now: u64) {
        let inside = frame.number() >= self.start
            && self.end.saturating_sub(frame.number()) >= order.nr_pages();
        assert!(
            inside,
            "{frame:?} of order {} is outside its zone",
            order.get()
        );
        assert!(
            frames.block(frame).1 != Place::Zone,
            "{frame:?} is freed twice"
        );
        let kind = pageblock::mobility(frames, frame);
        let was_whole = order.get() >= PAGEBLOCK_ORDER;
        let freed = (frame, order);
        let group = if self.nr_forgetting == 0 {
            frames.group(frame)
        } else {
            0
        };
        let mut at = frame.number();
        let mut order = order;
        while order.get() < MAX_ORDER {
            let buddy = at ^ order.nr_pages();
            if !self.is_free(frames, buddy, order) {
                break;
            }
            let buddy = Frame::new(buddy);
            let other = pageblock::mobility(frames, buddy);
            self.unlist(buddy, order, other, frames);
            if other != kind {
                // Only whole pageblocks differ: one type from here on, that of what was freed.
                for_pageblocks(buddy, order, |block| {
                    pageblock::set_mobility(frames, block, kind);
                });
            }
            frames.set_block(Frame::new(at), Order::ZERO, Place::Out);
            at &= buddy.number();
            order = order_of(u32::from(order.get()) + 1);
        }
        if was_whole {
            for_pageblocks(freed.0, freed.1, |block| {
                pageblock::stamp(frames, block, now);
                frames.set_last_group(block, group);
            });
        } else if order.get() >= PAGEBLOCK_ORDER {
            pageblock::stamp(frames, freed.0, now);
            // Joined of pieces that were anybody's.
            let first = Frame::new(freed.0.number() & !(PAGEBLOCK_PAGES - 1));
            frames.set_last_group(first, 0);
        }
        self.list(Frame::new(at), order, kind, frames, End::Head);
    }

    pub(super) fn is_free(&self, frames: &FrameTable, first: u32, order: Order) -> bool {
        first >= self.start
            && self.end.saturating_sub(first) >= order.nr_pages()
            && frames.block(Frame::new(first)) == (order, Place::Zone)
    }

    /// Takes the free block that a pageblock lies in as a whole, where it has memory of the OS and
    /// is free since `before` or longer.
    pub fn take_idle(
        &mut self,
        frames: &FrameTable,
        pageblock: Frame,
        before: u64,
    ) -> Option<(Frame, Order)> {
        let (frame, order) = whole_of(frames, pageblock)?;
        if !is_idle(frames, frame, order, before) {
            return None;
        }
        let kind = pageblock::mobility(frames, frame);
        self.unlist(frame, order, kind, frames);
        Some((frame, order))
    }

    /// Counts anew what the room's invariants 1 and 2 say. O(frames).
    ///
    /// # Errors
    /// [`Discrepancy`] where one does not hold.
    pub fn audit(&self, frames: &FrameTable) -> Result<(), Discrepancy> {
        let mut nr_free = 0;
        for (order, lists) in (0..).zip(&self.lists) {
            let order = order_of(order);
            for (kind, list) in Mobility::ALL.into_iter().zip(lists) {
                let listed = list.iter(frames).count() as u64;
                let at = u32::from(order.get());
                Discrepancy::compare("blocks of a free list", at, list.len().into(), listed)?;
                for frame in list.iter(frames) {
                    let first = frame.number();
                    let require = |what, holds| Discrepancy::require(what, first, holds);
                    let is_here = frames.block(frame) == (order, Place::Zone);
                    require("a frame of a free list", is_here)?;
                    let is_kind = pageblock::mobility(frames, frame) == kind;
                    require("the mobility of a free block", is_kind)?;
                    let is_aligned = first.is_multiple_of(order.nr_pages());
                    require("the alignment of a free block", is_aligned)?;
                    let buddy = first ^ order.nr_pages();
                    let twin = order.get() < MAX_ORDER && self.is_free(frames, buddy, order);
                    require("a free block whose buddy is not free", !twin)?;
                    nr_free += order.nr_pages();
                }
            }
        }
        for first in self.unlisted.clone().step_by(index(LARGEST.nr_pages())) {
            let is_new = frames.block(Frame::new(first)) == (Order::ZERO, Place::Out);
            Discrepancy::require("a block that nobody had yet", first, is_new)?;
            nr_free += LARGEST.nr_pages();
        }
        let booked = u64::from(self.nr_free);
        Discrepancy::compare("free frames of a zone", 0, booked, nr_free.into())
    }
}

/// The group that all pageblocks of a free block were last charged to, or 0.
fn last_group(frames: &FrameTable, frame: Frame, order: Order) -> u32 {
    let group = frames.last_group(frame);
    let mut is_one = true;
    for_pageblocks(frame, order, |block| {
        is_one &= frames.last_group(block) == group;
    });
    if is_one { group } else { 0 }
}

/// The free block that a pageblock lies in as a whole, by its first frame. Without the zone's lock
/// a hint.
pub(super) fn whole_of(frames: &FrameTable, pageblock: Frame) -> Option<(Frame, Order)> {
    let orders = (PAGEBLOCK_ORDER..=MAX_ORDER).map(|order| order_of(order.into()));
    let mut blocks = orders.map(|order| {
        let head = pageblock.number() & !(order.nr_pages() - 1);
        (Frame::new(head), order)
    });
    blocks.find(|&(head, order)| frames.block(head) == (order, Place::Zone))
}

/// Whether a pageblock of a free block has had memory to give since then.
fn is_idle(frames: &FrameTable, frame: Frame, order: Order, before: u64) -> bool {
    let mut is_idle = false;
    for_pageblocks(frame, order, |block| {
        is_idle |= pageblock::idle_since(frames, block).is_some_and(|since| since <= before);
    });
    is_idle
}

/// Calls `work` with a frame of each pageblock of a block of at least one, else with its own.
pub(super) fn for_pageblocks(frame: Frame, order: Order, mut work: impl FnMut(Frame)) {
    for block in 0..order.nr_pages().div_ceil(PAGEBLOCK_PAGES) {
        work(Frame::new(frame.number() + block * PAGEBLOCK_PAGES));
    }
}

#[derive(Clone, Copy)]
pub(super) enum End {
    Head,
    Tail,
}

pub(super) fn order_of(order: u32) -> Order {
    u8::try_from(order)
        .ok()
        .and_then(Order::new)
        .expect("orders here are at most MAX_ORDER")
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_nobody_had_are_free_and_written_to_when_they_come_next() {
        let block = LARGEST.nr_pages();
        let frames = FrameTable::try_new(6 * block).unwrap();
        // Pieces on both sides of four such blocks.
        let mut buddy = Buddy::new(&frames, block - 512, 5 * block + 7);
        let movable = Mobility::Movable;
        assert_eq!(buddy.nr_free(), 4 * block + 512 + 7);
        for taken in 1..=4 {
            let listed = (1..=4).filter(|number| {
                frames.block(Frame::new(number * block)) == (LARGEST, Place::Zone)
            });
            assert_eq!(listed.count(), 1);
            buddy.audit(&frames).unwrap();
            let nr_left = buddy.pagetypeinfo()[LARGEST.index()][movable.index()];
            assert_eq!((nr_left, buddy.has_block(LARGEST)), (5 - taken, true));
            let frame = buddy.alloc(&frames, LARGEST, movable, &mut Found::default());
            assert_eq!(frame, Some(Frame::new(taken * block)));
        }
        assert!(!buddy.has_block(LARGEST));
        buddy.free(&frames, Frame::new(2 * block), LARGEST, 0);
        buddy.audit(&frames).unwrap();
        assert_eq!(buddy.nr_free(), block + 512 + 7);
    }
}
