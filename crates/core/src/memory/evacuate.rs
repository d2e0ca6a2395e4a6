//! Evacuation: an aligned block of any order is emptied for a request that finds none free.
//!
//! The search looks at the frames of a block until the first one that has to stay, and remembers
//! that one for each pageblock: while it stays, the pageblock costs the next search one look.

use super::region::{Captured, REGION};
use super::{Here, Memory};
use crate::alloc::{Mobility, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Request};
use crate::frame::{Place, State, Word};
use crate::group::Event;
use crate::reclaim::Unwritten;
use crate::sync::{AtomicU32, AtomicU64, NoMetadata, Ordering, Words};
use crate::units::{Frame, Order, index};
use core::ops::Range;

/// Blocks' worth of frames looked at before the cheapest one so far is taken.
const WINDOW_BLOCKS: u32 = 64;
/// The same, for large blocks.
const WINDOW_FRAMES: u32 = 8192;
/// Groups of one block that are told apart. Where `min` or `low` protects any group, a block with
/// pages of more groups is passed over.
const MAX_GROUPS: usize = 16;
/// Requests for a frame among what stays that are not looked for after one that found none.
const NR_SKIPPED: u32 = 63;

/// Where the search for blocks goes on, what it remembers, and what it counted.
#[derive(Debug)]
pub(super) struct Evacuation {
    hand: AtomicU32,
    /// Where the last page was found that could leave an unmovable pageblock.
    unmovable_hand: AtomicU32,
    /// For each pageblock a frame of it that had to stay when it was last looked at, packed. A
    /// hint: its word decides.
    obstacles: Words,
    /// Requests that are not looked for among what stays, because for one just now none was found.
    nr_skipped: AtomicU32,
    /// Threads that empty a block just now, or let the OS have one: what they evicted or have in
    /// hand is neither in use nor free.
    nr_under_way: AtomicU32,
    pub(super) scanned: AtomicU64,
    pub(super) success: AtomicU64,
    pub(super) fail: AtomicU64,
    /// Frames of the pages that were moved out of blocks.
    pub(super) migrated: AtomicU64,
}

/// A thread empties a block until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay<'a>(&'a Evacuation);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Evacuation {
    const fn nr_pageblocks(nr_frames: u32) -> usize {
        index(nr_frames.div_ceil(PAGEBLOCK_PAGES))
    }

    /// Bytes that [`Evacuation::try_new`] takes: a word a pageblock.
    pub(super) const fn bytes(nr_frames: u32) -> usize {
        Words::bytes(Self::nr_pageblocks(nr_frames))
    }

    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub(super) fn try_new(nr_frames: u32) -> Result<Evacuation, NoMetadata> {
        Ok(Evacuation {
            hand: AtomicU32::new(0),
            unmovable_hand: AtomicU32::new(0),
            obstacles: Words::try_new(Self::nr_pageblocks(nr_frames))?,
            nr_skipped: AtomicU32::new(0),
            nr_under_way: AtomicU32::new(0),
            scanned: AtomicU64::new(0),
            success: AtomicU64::new(0),
            fail: AtomicU64::new(0),
            migrated: AtomicU64::new(0),
        })
    }

    /// The pageblock that is looked at next.
    pub(super) fn next_hand(&self) -> u32 {
        self.hand.fetch_add(1, Ordering::Relaxed)
    }

    /// Says that the caller empties a block, until the answer is dropped.
    pub(super) fn begin(&self) -> UnderWay<'_> {
        self.nr_under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    /// Ends what was begun, where the answer was forgotten because a free block is in hand.
    pub(super) fn end(&self) {
        // Release pairs with the Acquire in `is_under_way`: what was given back is seen then.
        self.nr_under_way.fetch_sub(1, Ordering::Release);
    }

    /// Whether any thread empties a block, or has a free one in hand.
    pub(super) fn is_under_way(&self) -> bool {
        // Acquire pairs with the Release in `end`.
        self.nr_under_way.load(Ordering::Acquire) > 0
    }

    fn obstacle(&self, pageblock: Frame) -> &AtomicU64 {
        &self.obstacles[pageblock.index() >> PAGEBLOCK_ORDER]
    }
}

/// What an evacuation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evacuated {
    /// The block.
    Block(Frame),
    /// None; so many pages were evicted or moved all the same.
    Pages(u32),
}

/// A block that can be emptied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Emptiable {
    pub(super) first: Frame,
    /// As asked for, or that of the one larger page or free block that covers it.
    pub(super) order: Order,
    /// Pages that go.
    pub(super) nr_pages: u32,
}

/// What a search saw.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Records looked at.
    nr_looks: u32,
    /// Something was in the way that could go if it were written.
    has_unwritten: bool,
}

/// A frame that has to stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Obstacle {
    frame: Frame,
    /// The first frame behind its block.
    end: u32,
}

/// What may be emptied: `order` of which subtree, whether `low` is kept, only in pageblocks of one
/// mobility, and whether dirty pages are written for it.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    order: Order,
    from: (u32, bool),
    only: Option<Mobility>,
    may_write: bool,
}

/// The groups in a block, with the pages that they can still spare.
struct Spares {
    spares: [(u32, u64); MAX_GROUPS],
    len: usize,
}

impl Spares {
    fn new() -> Spares {
        Spares {
            spares: [(0, 0); MAX_GROUPS],
            len: 0,
        }
    }

    /// Whether a group can spare as many pages more.
    fn take(&mut self, memory: &Memory, group: u32, nr_pages: u32, from: (u32, bool)) -> bool {
        let known = self.spares[..self.len].iter();
        let at = match known.rev().position(|&(id, _)| id == group) {
            Some(back) => self.len - 1 - back,
            None => {
                let (subtree, is_low_kept) = from;
                if !memory.groups.is_in(group, subtree) {
                    return false;
                }
                if self.len == MAX_GROUPS {
                    if memory.groups.is_protected() {
                        return false;
                    }
                    self.len = 0;
                }
                let spare = memory.spare(group, subtree, is_low_kept);
                self.spares[self.len] = (group, spare);
                self.len += 1;
                self.len - 1
            }
        };
        match self.spares[at].1.checked_sub(u64::from(nr_pages)) {
            Some(left) => {
                self.spares[at].1 = left;
                true
            }
            None => false,
        }
    }
}

/// Whether a frame that is neither free nor in anybody's hand has to stay, by its word.
fn has_to_stay(word: Word, may_write: bool) -> bool {
    word.state() != State::Free && !may_go(word, may_write)
}

fn may_go(word: Word, may_write: bool) -> bool {
    let word = if may_write { word.as_written() } else { word };
    word.is_evictable()
}

impl Memory {
    /// Empties an aligned block for a request, of those in the request's reach in which nothing
    /// has to stay one with few pages to lose. The caller was charged for it.
    ///
    /// Finds one if there is one and nobody interferes: pinned pages, working memory, and what
    /// groups outside `subtree` or the protection of those in it keep have to stay. What `low`
    /// protects goes only where no other block is found, and dirty pages are written only where
    /// there is none without.
    ///
    /// Cost: of [`WINDOW_BLOCKS`] blocks each frame up to the first that has to stay; more only
    /// while none of them can go.
    pub(super) fn evacuate(&self, here: Here<'_>, request: &Request, subtree: u32) -> Evacuated {
        self.drain_if_protected(subtree);
        // Who wants one frame wants others: a whole pageblock, if one can be had.
        if request.order == Order::ZERO
            && let Some(frame) = self.evacuate_unmovable(here, request, subtree)
        {
            return Evacuated::Block(frame);
        }
        let _under_way = self.evacuation.begin();
        let kept = [true, false].into_iter();
        let kept = kept.take(1 + usize::from(self.groups.is_protected()));
        let passes = [false, true].map(|may_write| kept.clone().map(move |low| (may_write, low)));
        let mut seen = Seen::default();
        for (may_write, is_low_kept) in passes.into_iter().flatten() {
            if may_write && !seen.has_unwritten {
                break;
            }
            let wanted = Wanted {
                order: request.order,
                from: (subtree, is_low_kept),
                only: None,
                may_write,
            };
            if let Some(found) = self.find_for(here, request, wanted, &mut seen) {
                if may_write {
                    self.write_block(here, found, subtree);
                }
                return self.take_emptied(here, found, request, wanted);
            }
        }
        self.evacuation.fail.fetch_add(1, Ordering::Relaxed);
        Evacuated::Pages(0)
    }

    /// A block that can be emptied, of what cannot move among its like first, so that it does not
    /// spread.
    fn find_for(
        &self,
        here: Here<'_>,
        request: &Request,
        wanted: Wanted,
        seen: &mut Seen,
    ) -> Option<Emptiable> {
        let is_unmovable = request.mobility == Mobility::Unmovable && request.order < REGION;
        let only = is_unmovable.then_some(Mobility::Unmovable);
        let among = only.and_then(|_| self.find(here, request, Wanted { only, ..wanted }, seen));
        among.or_else(|| self.find(here, request, wanted, seen))
    }

    /// Writes the dirty pages of a block.
    fn write_block(&self, here: Here<'_>, block: Emptiable, subtree: u32) {
        let mut at = block.first.number();
        let end = at + block.order.nr_pages();
        while at < end {
            let mut unwritten = Unwritten::default();
            while at < end && !unwritten.is_full() {
                let frame = Frame::new(at);
                let (size, place) = self.frames.block(frame);
                at += size.nr_pages();
                let word = self.frames.word(frame);
                if place == Place::Out && word.is_unwritten() {
                    unwritten.add(&self.frames, frame, word);
                }
            }
            if !unwritten.is_empty() {
                let nr_needed = unwritten.nr_dirty().max(1);
                let _have_failed = self.offer(here, subtree, &unwritten, (nr_needed, 0));
            }
        }
    }

    /// Empties a block that was found, and takes what was asked for of it.
    fn take_emptied(
        &self,
        here: Here<'_>,
        found: Emptiable,
        request: &Request,
        wanted: Wanted,
    ) -> Evacuated {
        // Of the first one in it, where there are more.
        let beyond_low = match wanted.from {
            (subtree, false) => {
                let kept = self
                    .look_at(found.first, found.order, (subtree, true), false)
                    .0;
                kept.err().map(|stays| self.frames.group(stays.frame))
            }
            _ => None,
        };
        // For a larger block than was charged others would miss the frames that pages move to.
        let may_move = wanted.order == request.order;
        let captured = self.capture(here, (found.first, found.order), wanted.from, may_move);
        let Captured {
            mut pieces,
            nr_evicted,
        } = match captured {
            Ok(captured) => captured,
            Err(nr_gone) => {
                self.evacuation.fail.fetch_add(1, Ordering::Relaxed);
                return Evacuated::Pages(nr_gone);
            }
        };
        if let Some(group) = beyond_low.filter(|_| nr_evicted > 0) {
            self.groups.count_event(group, Event::Low);
        }
        let first = pieces.take_first(request.order);
        let block = (first, request.order);
        self.zones.take_whole(&self.frames, block, request.mobility);
        if wanted.order > request.order {
            // The rest of it is for what else stays.
            let block = (found.first, found.order);
            self.zones
                .set_mobility(&self.frames, block, request.mobility);
        }
        self.zones.put_pieces(&self.frames, &pieces);
        self.evacuation.success.fetch_add(1, Ordering::Relaxed);
        Evacuated::Block(first)
    }

    /// A block below the order of a pageblock in an unmovable one: a page of those there goes, or
    /// a whole pageblock becomes one, whose other frames are free for more of its like.
    pub(super) fn evacuate_unmovable(
        &self,
        here: Here<'_>,
        request: &Request,
        subtree: u32,
    ) -> Option<Frame> {
        let skip = |left: u32| left.checked_sub(1);
        let skipped = &self.evacuation.nr_skipped;
        if skipped
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, skip)
            .is_ok()
        {
            return None;
        }
        let _under_way = self.evacuation.begin();
        let among = Wanted {
            order: request.order,
            from: (subtree, true),
            only: Some(Mobility::Unmovable),
            may_write: false,
        };
        let whole = Wanted {
            order: REGION,
            from: (subtree, true),
            only: None,
            may_write: false,
        };
        for wanted in [among, whole] {
            if let Some(found) = self.find(here, request, wanted, &mut Seen::default())
                && let Evacuated::Block(frame) = self.take_emptied(here, found, request, wanted)
            {
                return Some(frame);
            }
        }
        skipped.store(NR_SKIPPED, Ordering::Relaxed);
        None
    }

    /// The cheapest block of those looked at, in the nearest zone that has one.
    fn find(
        &self,
        here: Here<'_>,
        request: &Request,
        wanted: Wanted,
        seen: &mut Seen,
    ) -> Option<Emptiable> {
        let mut look = || {
            let mut reach = self.zones.reach(here.cpu, request);
            reach.find_map(|zone| self.find_in(&zone, wanted, seen))
        };
        look().or_else(|| {
            // What waits in a magazine looks like what somebody has.
            let is_more_free = self.drain_magazines(|_| true) > 0;
            is_more_free.then(look).flatten()
        })
    }

    /// The cheapest block of those looked at in a range of frames: the whole of it, as long as none
    /// is found.
    fn find_in(&self, zone: &Range<u32>, wanted: Wanted, seen: &mut Seen) -> Option<Emptiable> {
        let size = wanted.order.max(REGION).nr_pages();
        let (first, end) = (zone.start / size, zone.end.div_ceil(size));
        let hand = match wanted.only {
            None => &self.evacuation.hand,
            Some(_) => &self.evacuation.unmovable_hand,
        };
        let start = hand.load(Ordering::Relaxed);
        let window = (WINDOW_BLOCKS << wanted.order.get()).min(WINDOW_FRAMES);
        let before = seen.nr_looks;
        let mut best: Option<Emptiable> = None;
        for step in 0..end - first {
            let region = first + (start % (end - first) + step) % (end - first);
            let part = (region * size).max(zone.start)..(region * size + size).min(zone.end);
            let found = self.find_in_region(&part, wanted, seen);
            if found.is_some_and(|found| best.is_none_or(|best| found.nr_pages < best.nr_pages)) {
                best = found;
                // A pageblock of one mobility is used up before the next one.
                let next = u32::from(wanted.only.is_none());
                hand.store(region - first + next, Ordering::Relaxed);
            }
            let is_cheap = best.is_some_and(|best| best.nr_pages <= 1);
            if is_cheap || best.is_some() && seen.nr_looks - before >= window {
                break;
            }
        }
        let scanned = u64::from(seen.nr_looks - before);
        self.evacuation
            .scanned
            .fetch_add(scanned, Ordering::Relaxed);
        best
    }

    /// The cheapest block of one pageblock, or, where one takes several, the block of those.
    fn find_in_region(
        &self,
        part: &Range<u32>,
        wanted: Wanted,
        seen: &mut Seen,
    ) -> Option<Emptiable> {
        let first = Frame::new(part.start);
        let is_other = |only| self.zones.mobility(&self.frames, first) != Some(only);
        if wanted.only.is_some_and(is_other) {
            return None;
        }
        if wanted.order >= REGION
            && let Some(word) = self.known_to_stay(part, wanted.may_write)
        {
            seen.nr_looks += 1;
            seen.has_unwritten |= may_go(word, true);
            return None;
        }
        let nr_pages = wanted.order.nr_pages();
        let mut best: Option<Emptiable> = None;
        let mut at = part.start.next_multiple_of(nr_pages);
        while part.end.saturating_sub(at) >= nr_pages && best.is_none_or(|best| best.nr_pages > 1) {
            let (found, looks) =
                self.look_at(Frame::new(at), wanted.order, wanted.from, wanted.may_write);
            seen.nr_looks += looks;
            at += nr_pages;
            match found {
                Ok(found) => {
                    at = at.max(found.first.number() + found.order.nr_pages());
                    if best.is_none_or(|best| found.nr_pages < best.nr_pages) {
                        best = Some(found);
                    }
                }
                Err(obstacle) => {
                    at = at.max(obstacle.end.next_multiple_of(nr_pages));
                    seen.has_unwritten |= may_go(self.frames.word(obstacle.frame), true);
                    let hint = u64::from(Frame::pack(Some(obstacle.frame)));
                    let place = self.evacuation.obstacle(obstacle.frame);
                    place.store(hint, Ordering::Relaxed);
                }
            }
        }
        best
    }

    /// The word of a frame that had to stay when its pageblock was last looked at, if it still has.
    fn known_to_stay(&self, part: &Range<u32>, may_write: bool) -> Option<Word> {
        let pageblocks = part.clone().step_by(index(PAGEBLOCK_PAGES));
        pageblocks.map(Frame::new).find_map(|pageblock| {
            let hint = self.evacuation.obstacle(pageblock).load(Ordering::Relaxed);
            let frame = u32::try_from(hint).ok().and_then(Frame::unpack);
            let word = self.frames.word(frame?);
            has_to_stay(word, may_write).then_some(word)
        })
    }

    /// What it costs to empty a block, or the first frame of it that has to stay; and the records
    /// looked at. Without a lock: who empties it may find it changed.
    ///
    /// Where it `may_write`, what goes includes pages that have to be written first. From head to
    /// head: `first` is the head of a block or of something larger that covers it.
    pub(super) fn look_at(
        &self,
        first: Frame,
        order: Order,
        from: (u32, bool),
        may_write: bool,
    ) -> (Result<Emptiable, Obstacle>, u32) {
        let mut spares = Spares::new();
        let mut emptiable = Emptiable {
            first,
            order,
            nr_pages: 0,
        };
        let (mut at, mut looks) = (first.number(), 0);
        let end = at + order.nr_pages();
        while at < end {
            let frame = Frame::new(at);
            let (size, place) = self.frames.block(frame);
            looks += 1;
            at += size.nr_pages();
            let stays = Err(Obstacle { frame, end: at });
            if size > order {
                // One page or free block covers it: that goes as a whole.
                let is_first = frame == first && frame.number().is_multiple_of(size.nr_pages());
                if !is_first {
                    return (stays, looks);
                }
                emptiable.order = size;
            }
            if place != Place::Out {
                continue;
            }
            let word = self.frames.word(frame);
            let group = self.frames.group(frame);
            // A free block that nobody had yet stays: whoever wants one finds it in its zone first.
            let may_go = word.state() == State::Live && may_go(word, may_write);
            if !may_go || !spares.take(self, group, size.nr_pages(), from) {
                return (stays, looks);
            }
            emptiable.nr_pages += size.nr_pages();
        }
        (Ok(emptiable), looks)
    }
}
