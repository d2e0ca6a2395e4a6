//! Frames out of use, so that the OS can have their memory: what the program reserves for its own
//! heap, and what the budget is below the arena.

use super::alloc::Idle;
use super::held::{Held, What};
use super::region::REGION;
use super::{Here, Memory};
use crate::alloc::{Mark, Mobility, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Request};
use crate::frame::{FrameTable, List, Place, State, Word};
use crate::sync::{AtomicU32, AtomicU64, Ordering, SpinLock, rank};
use crate::units::{Discrepancy, Frame, Order, PAGE_BYTES};

const REGION_PAGES: u64 = PAGEBLOCK_PAGES as u64;

/// Blocks out of use, by what the OS has of them.
#[derive(Debug, Default)]
struct Offline {
    /// On their way: taken for a reservation that is not done yet.
    pending: List,
    /// The OS would not take their memory, or must not yet.
    resident: List,
    /// Without memory.
    released: List,
}

/// One of the lists of [`Offline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Pending,
    Resident,
    Released,
}

impl Offline {
    fn list(&mut self, of: Of) -> &mut List {
        match of {
            Of::Pending => &mut self.pending,
            Of::Resident => &mut self.resident,
            Of::Released => &mut self.released,
        }
    }

    /// Lists a block: pageblocks behind the pieces, whose number is small.
    fn push(&mut self, frames: &FrameTable, frame: Frame, of: Of) {
        match frames.block(frame).0 {
            REGION => self.list(of).push_tail(frames, frame),
            _ => self.list(of).push_head(frames, frame),
        }
    }

    /// A block of at most so many pages that comes back into use: one that has memory before
    /// others. Looks at all pieces in the worst case.
    fn find(&mut self, frames: &FrameTable, nr_pages: u64) -> Option<(Frame, Of)> {
        let order = |frame: Frame| frames.block(frame).0;
        let fits = |frame: &Frame| u64::from(order(*frame).nr_pages()) <= nr_pages;
        [Of::Pending, Of::Resident, Of::Released]
            .into_iter()
            .find_map(|of| {
                let list = self.list(of);
                let mut pieces = list
                    .iter(frames)
                    .take_while(|&frame| order(frame) != REGION);
                let last = || list.tail().filter(fits);
                Some((pieces.find(fits).or_else(last)?, of))
            })
    }
}

/// How much is out of use, and how much should be.
#[derive(Debug, Default)]
pub(super) struct Balloon {
    offline: SpinLock<Offline, { rank::BALLOON }>,
    /// Pages that are out of use or on their way there.
    nr_pages: AtomicU64,
    /// Bytes that reservations hold.
    reserved_bytes: AtomicU64,
    nr_reservations: AtomicU32,
    /// Not 0: fewer pages are out of use than should be, nothing more was found.
    is_short: AtomicU32,
}

impl Balloon {
    /// Pages out of use or on their way there.
    pub(super) fn nr_pages(&self) -> u64 {
        self.nr_pages.load(Ordering::Relaxed)
    }

    /// Bytes that reservations hold.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Reservations there are.
    pub(super) fn nr_reservations(&self) -> u32 {
        self.nr_reservations.load(Ordering::Relaxed)
    }

    fn unclaim(&self, nr_pages: u64) {
        self.nr_pages.fetch_sub(nr_pages, Ordering::SeqCst);
    }
}

impl Memory {
    /// Bytes that reservations hold in all.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.balloon.reserved_bytes()
    }

    /// Pages out of use: their memory is the OS's, or on its way there.
    #[must_use]
    pub fn offline_pages(&self) -> u64 {
        self.balloon.nr_pages()
    }

    /// Pages that should be out of use: what is reserved, and what the budget does not leave of the
    /// arena for frames, which is what it is smaller by and what core's own records take. In whole
    /// pageblocks, rounded down, so that the arena keeps the few frames that it has beyond that.
    fn wanted_offline(&self) -> u64 {
        // SeqCst: see `take_back`.
        let reserved = self.balloon.reserved_bytes.load(Ordering::SeqCst) / PAGE_BYTES as u64;
        // By the limit itself, so that two threads that move it cannot leave another number here.
        let budget = self.groups.get(self.groups.root());
        let budget = budget.map_or(u64::MAX, |root| root.max());
        let left = budget.saturating_sub(u64::from(self.metadata_pages));
        let arena = u64::from(self.config.arena_pages);
        (reserved + arena.saturating_sub(left)) / REGION_PAGES * REGION_PAGES
    }

    /// Whether fewer pages are out of use than should be.
    fn is_short(&self) -> bool {
        self.balloon.nr_pages.load(Ordering::SeqCst) < self.wanted_offline()
    }

    /// Says whether fewer pages are out of use than should be. The flag falls first, so that of
    /// two that look at a time the later look counts.
    fn note_shortage(&self) {
        let flag = &self.balloon.is_short;
        flag.store(0, Ordering::SeqCst);
        if self.is_short() {
            flag.store(1, Ordering::SeqCst);
        }
    }

    /// Counts pages as on their way, if as many are still wanted.
    pub(super) fn claim_offline(&self, nr_pages: u64) -> bool {
        let claim = |now: u64| Some(now + nr_pages).filter(|&then| then <= self.wanted_offline());
        let nr_pages = &self.balloon.nr_pages;
        nr_pages
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim) // See `take_back`.
            .is_ok()
    }

    /// A reservation grows or shrinks by bytes, or one more or less is there.
    pub(super) fn add_reserved(&self, nr_bytes: u64, nr_reservations: u32) {
        let balloon = &self.balloon;
        // SeqCst: see `take_back`.
        balloon.reserved_bytes.fetch_add(nr_bytes, Ordering::SeqCst);
        balloon
            .nr_reservations
            .fetch_add(nr_reservations, Ordering::Relaxed);
    }

    /// See [`Memory::add_reserved`].
    pub(super) fn sub_reserved(&self, nr_bytes: u64, nr_reservations: u32) {
        let balloon = &self.balloon;
        let before = balloon
            .reserved_bytes
            .fetch_sub(nr_bytes, Ordering::Relaxed);
        assert!(before >= nr_bytes, "{nr_bytes} of {before} bytes go");
        balloon
            .nr_reservations
            .fetch_sub(nr_reservations, Ordering::Relaxed);
    }

    /// Whether fewer pages are out of use than should be because nothing more was found: what is
    /// freed now belongs to the OS. A hint that [`Memory::next_offline`] keeps. One load.
    #[must_use]
    #[inline]
    pub fn is_balloon_short(&self) -> bool {
        self.balloon.is_short.load(Ordering::Relaxed) != 0
    }

    /// The next block to go out of use, if more should be: the caller lets the OS have its memory,
    /// where it has some, and gives it to [`Memory::put_offline`].
    ///
    /// Free pageblocks first, those without memory all at once; else one is emptied; else, where
    /// pinned pages and working memory are everywhere, smaller free blocks.
    #[must_use]
    pub fn next_offline(&self, here: Here<'_>) -> Option<Idle> {
        if let Some(frame) = self.pop_pending() {
            return Some(self.take_offline(frame, REGION, true));
        }
        let mut was_drained = false;
        while self.claim_offline(REGION_PAGES) {
            if let Some((frame, has_memory)) = self.zones.take_region(&self.frames) {
                let idle = self.take_offline(frame, REGION, has_memory);
                if has_memory {
                    return Some(idle);
                }
                self.put_offline(idle, true);
                continue;
            }
            let used = match here.may_reclaim {
                true => self.take_used_region(here, self.groups.root()),
                false => None,
            };
            if let Some(frame) = used {
                return Some(self.take_offline(frame, REGION, true));
            }
            self.balloon.unclaim(REGION_PAGES);
            if was_drained {
                break;
            }
            self.drain();
            was_drained = true;
        }
        let piece = self.next_piece(here);
        let piece = match piece {
            None if !was_drained && self.is_short() => {
                self.drain();
                self.next_piece(here)
            }
            piece => piece,
        };
        if piece.is_none() {
            self.note_shortage();
        }
        piece
    }

    /// As [`Memory::next_offline`], of free pageblocks only: for callers that free memory while
    /// too much is in use to make up for all that should be out of use.
    #[must_use]
    pub fn next_free_offline(&self) -> Option<Idle> {
        if !self.claim_offline(REGION_PAGES) {
            return None;
        }
        let Some((frame, has_memory)) = self.zones.take_region(&self.frames) else {
            self.balloon.unclaim(REGION_PAGES);
            return None;
        };
        Some(self.take_offline(frame, REGION, has_memory))
    }

    /// A block out of use whose memory the OS could not have so far. The caller tries again, and
    /// gives it to [`Memory::put_offline`].
    #[must_use]
    pub fn next_resident(&self) -> Option<Idle> {
        let frame = self
            .balloon
            .offline
            .lock()
            .resident
            .pop_head(&self.frames)?;
        let (order, _) = self.frames.block(frame);
        Some(Idle::new(frame, order, true))
    }

    /// A free block smaller than a pageblock.
    fn next_piece(&self, here: Here<'_>) -> Option<Idle> {
        for order in (0..PAGEBLOCK_ORDER).rev().filter_map(Order::new) {
            let nr_pages = u64::from(order.nr_pages());
            if !self.claim_offline(nr_pages) {
                continue;
            }
            // Among what stays first; zones that are for pages only have pieces, too.
            let mut kinds = [Mobility::Unmovable, Mobility::Movable].into_iter();
            let taken = kinds.find_map(|mobility| {
                let request = Request {
                    mark: Mark::None,
                    ..Request::new(order, mobility)
                };
                self.zones.alloc(&self.frames, here.cpu, &request).ok()
            });
            if let Some(frame) = taken {
                return Some(self.take_offline(frame, order, true));
            }
            self.balloon.unclaim(nr_pages);
        }
        None
    }

    fn take_offline(&self, frame: Frame, order: Order, has_memory: bool) -> Idle {
        // Whoever gets it next does not get anybody's bytes.
        self.frames.set_group(frame, 0);
        let offline = |word: Word| word.with_state(State::Offline).next_version();
        self.frames.change_owned(frame, offline);
        Idle::new(frame, order, has_memory)
    }

    /// Puts a block of [`Memory::next_offline`] out of use; whether the OS has its memory.
    pub fn put_offline(&self, idle: Idle, is_released: bool) {
        let of = match is_released {
            true => Of::Released,
            false => Of::Resident,
        };
        self.list_offline(&idle, of);
        // The need may have ended while it was on its way.
        self.deflate();
    }

    /// Empties a pageblock of `subtree` for a reservation that is not charged yet, so that what is
    /// evicted for it is what goes to the OS.
    pub(super) fn take_pending(&self, here: Here<'_>, group: u32, subtree: u32) -> bool {
        // What was evicted is uncharged and not out of use yet: others may charge it meanwhile.
        let _under_way = self.evacuation.begin();
        let mut held = Held::new(self, here.cpu, What::Nothing);
        here.platform.stall(group, &mut || {
            if let Some(frame) = self.take_used_region(here, subtree) {
                held.what = What::Frame(frame, REGION);
            }
        });
        let What::Frame(frame, _) = held.keep() else {
            return false;
        };
        self.balloon
            .nr_pages
            .fetch_add(REGION_PAGES, Ordering::Relaxed);
        let idle = self.take_offline(frame, REGION, true);
        self.list_offline(&idle, Of::Pending);
        true
    }

    fn list_offline(&self, idle: &Idle, of: Of) {
        let (frame, order) = (idle.frame(), idle.order());
        self.frames.set_block(frame, order, Place::Out);
        let mut offline = self.balloon.offline.lock();
        offline.push(&self.frames, frame, of);
    }

    fn pop_pending(&self) -> Option<Frame> {
        self.balloon.offline.lock().pending.pop_head(&self.frames)
    }

    /// Takes blocks back into use that are out of it without need, beyond one pageblock for each
    /// reservation and 1/64 of the arena.
    pub(super) fn deflate(&self) {
        let slack = u64::from(self.balloon.nr_reservations());
        let most = u64::from(self.frames.len()) / 64 / REGION_PAGES;
        let slack = slack.min(most) * REGION_PAGES;
        while self.take_back(slack) {}
    }

    /// Takes a block back into use if it is out of it without need.
    pub(super) fn give_back_slack(&self) -> bool {
        self.take_back(0)
    }

    /// Takes a block back into use if more than `slack` pages are out of it without need.
    ///
    /// A reservation adds to what is wanted, then looks at what is out of use; here it is the other
    /// way round. In the one order of both that SeqCst makes, at least one of them sees the other:
    /// else a block would come back that the reservation took for out of use.
    fn take_back(&self, slack: u64) -> bool {
        let is_over = || self.balloon.nr_pages() > self.wanted_offline() + slack;
        if !is_over() {
            return false;
        }
        let mut offline = self.balloon.offline.lock();
        // Once more under the lock: threads that see one block too many do not take one each.
        if !is_over() {
            return false;
        }
        let is_over_by = self
            .balloon
            .nr_pages()
            .saturating_sub(self.wanted_offline());
        // What is less than any block too many stays.
        let Some((frame, of)) = offline.find(&self.frames, is_over_by) else {
            return false;
        };
        let (order, _) = self.frames.block(frame);
        let nr_pages = u64::from(order.nr_pages());
        self.balloon.unclaim(nr_pages);
        if self.is_short() {
            self.balloon.nr_pages.fetch_add(nr_pages, Ordering::SeqCst);
            return false;
        }
        let has_memory = of != Of::Released;
        offline.list(of).remove(&self.frames, frame);
        drop(offline);
        self.frames
            .change_owned(frame, |word| word.with_state(State::Free).next_version());
        let is_released = !has_memory && order == REGION;
        self.zones
            .put_idle(&self.frames, (frame, order), is_released);
        true
    }

    /// Counts anew what is out of use, at rest.
    pub(super) fn audit_balloon(&self) -> Result<(), Discrepancy> {
        let offline = self.balloon.offline.lock();
        let pages_of = |list: &List, frames: &FrameTable| -> u64 {
            let orders = list.iter(frames).map(|frame| frames.block(frame).0);
            orders.map(|order| u64::from(order.nr_pages())).sum()
        };
        let lists = [&offline.pending, &offline.resident, &offline.released];
        let nr_pages: u64 = lists.iter().map(|list| pages_of(list, &self.frames)).sum();
        Discrepancy::compare("pages out of use", 0, self.balloon.nr_pages(), nr_pages)
    }
}
