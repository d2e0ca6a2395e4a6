//! The classic pair of an inactive and an active list, with refault distances.
//!
//! A page enters the inactive list. Read twice there, it is promoted; the active list is demoted
//! from its cold end while it is the longer one by more than a ratio that grows with the size. An
//! evicted page that comes back after fewer evictions and promotions than there are active pages is
//! promoted at once.
//!
//! Source: the kernel's LRU lists of files (`mark_page_accessed()`, `inactive_is_low()`) and
//! `workingset.c`. Changed: a second read only counts, and the page is promoted when eviction meets
//! it; the kernel moves it at the read.

use super::by_type::OneType;
use super::choice::MAX_SWAPPINESS;
use super::{
    Batch, Listing, MAX_BUSY, MAX_ROUNDS, Moment, Refault, Rules, ScanControl, Token, Victim,
};
use crate::frame::{FrameTable, List, MAX_REFS, Word, flag};
use crate::units::{Discrepancy, Frame, PageType};

/// The count of a page that was not read: two reads are told apart.
const NO_REFS: u8 = MAX_REFS - 2;
const INACTIVE: u8 = 1;
const ACTIVE: u8 = 2;
/// Pages that one isolation looks at. It may find none worth evicting among them. Loom explores
/// each look: it gets few.
const MAX_SCAN: u32 = if cfg!(loom) { 2 } else { 1024 };
/// Log2 of the pages in a GiB.
const GIB_SHIFT: u32 = 18;

/// An active and an inactive list.
#[derive(Debug)]
pub(super) struct TwoList {
    active: List,
    inactive: List,
    /// Evictions and promotions: the clock of refault distances, which shadow entries hold the low
    /// bits of. Above 2^23 active pages a refault from long ago may look near.
    nonresident_age: u64,
    /// Refaults of pages that should not have gone, lately.
    cost: u64,
}

impl TwoList {
    /// Whether an evicted page that comes back now would have been kept by a longer inactive list.
    fn is_near(&self, refault: Token) -> bool {
        let now = Self::token_at(self.nonresident_age).bits();
        let distance = Token::new(now.wrapping_sub(refault.bits())).bits();
        distance <= self.active.len()
    }

    /// Counts a refault that reclaim is to blame for; old ones count half.
    ///
    /// Source: the kernel's `lru_note_cost()`. Changed: each type's cost is halved by itself.
    fn note_cost(&mut self) {
        self.cost += 1;
        if self.cost > u64::from(self.nr_pages() / 4) {
            self.cost /= 2;
        }
    }

    fn list(&mut self, generation: u8) -> &mut List {
        match generation {
            ACTIVE => &mut self.active,
            _ => &mut self.inactive,
        }
    }

    fn push(&mut self, frames: &FrameTable, frame: Frame, generation: u8, refs: u8) -> Listing {
        self.list(generation).push_head(frames, frame);
        Listing {
            refs: Some(NO_REFS + refs),
            ..Listing::of(generation)
        }
    }

    fn requeue(&mut self, frames: &FrameTable, frame: Frame, (generation, refs): (u8, u8)) {
        let from = frames.word(frame).generation();
        self.list(from).remove(frames, frame);
        let listing = self.push(frames, frame, generation, refs);
        let changed = frames.update(frame, |word| Some(listing.mark(word)));
        assert!(changed.is_ok(), "an update without a condition");
    }

    /// Where a page goes that is met at the inactive list's end, with the reads that stay counted:
    /// `None` where it is evicted. A look in place counts as a read, and saves the page once. An
    /// unused one stays where it is unless it `may_go`.
    fn kept(word: Word, may_go: bool) -> Option<(u8, u8)> {
        let refs = word.refs().saturating_sub(NO_REFS);
        match word.has(flag::YOUNG) {
            _ if refs >= 2 => Some((ACTIVE, 0)),
            true if refs == 1 => Some((ACTIVE, 0)),
            true => Some((INACTIVE, 1)),
            false if !may_go => Some((INACTIVE, refs)),
            false => None,
        }
    }

    fn is_inactive_low(&self) -> bool {
        is_low(self.inactive.len(), self.active.len())
    }

    /// Moves the coldest active page to the inactive list; returns 1 where there is one. One read
    /// since it was promoted counts.
    fn demote(&mut self, frames: &FrameTable) -> u32 {
        let Some(frame) = self.active.tail() else {
            return 0;
        };
        let refs = frames.word(frame).refs().saturating_sub(NO_REFS);
        self.requeue(frames, frame, (INACTIVE, refs.min(1)));
        1
    }

    fn token_at(nonresident_age: u64) -> Token {
        let mask = (1 << Token::BITS) - 1;
        Token::new(u32::try_from(nonresident_age & mask).expect("masked"))
    }
}

/// Whether the inactive list is too short beside the active one: under half of both where they are
/// small, under a tenth at 10 GiB.
fn is_low(nr_inactive: u32, nr_active: u32) -> bool {
    let (nr_inactive, nr_active) = (u64::from(nr_inactive), u64::from(nr_active));
    let gib = (nr_inactive + nr_active) >> GIB_SHIFT;
    let ratio = (10 * gib).isqrt().max(1);
    nr_inactive * ratio < nr_active
}

impl OneType for TwoList {
    fn new() -> TwoList {
        TwoList {
            active: List::new(),
            inactive: List::new(),
            nonresident_age: 0,
            cost: 0,
        }
    }

    /// In proportion to the pages of each type, to swappiness, and to how seldom the type's pages
    /// came back lately; over many batches. Source: the kernel's `get_scan_count()`.
    fn pick(types: &[TwoList; 2], control: &ScanControl, credit: &mut u64) -> PageType {
        let share = |page_type: PageType, swappiness: u8| {
            let (this, other) = (&types[page_type.index()], &types[page_type.other().index()]);
            // How cheap it is, with a third of all refaults at least taken as the other type's.
            let total = this.cost + other.cost;
            let cheap = u128::from(total + other.cost + 1);
            cheap * u128::from(swappiness) * u128::from(this.nr_pages())
        };
        let swappiness = control.swappiness.min(MAX_SWAPPINESS);
        let anon = share(PageType::Anon, swappiness);
        let file = share(PageType::File, MAX_SWAPPINESS - swappiness);
        let Some(part) = (anon << 32).checked_div(anon + file) else {
            return PageType::File;
        };
        *credit += u64::try_from(part).expect("at most 1 << 32");
        match credit.checked_sub(1 << 32) {
            Some(rest) => {
                *credit = rest;
                PageType::Anon
            }
            None => PageType::File,
        }
    }
}

impl Rules for TwoList {
    fn insert(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        refault: Option<Token>,
        _moment: Moment,
    ) -> Listing {
        let word = frames.word(frame);
        // What brought it in is its first access, whichever kind it was.
        let refs = u8::from(word.refs() > 0 || word.has(flag::YOUNG));
        if !refault.is_some_and(|token| self.is_near(token)) {
            return self.push(frames, frame, INACTIVE, refs);
        }
        self.nonresident_age += 1;
        self.note_cost();
        Listing {
            refault: Refault {
                is_activated: true,
                is_restored: true,
            },
            ..self.push(frames, frame, ACTIVE, 0)
        }
    }

    fn isolate(&mut self, frames: &FrameTable, control: &ScanControl, batch: &mut Batch) -> u32 {
        let want = control.nr_pages;
        let (mut nr_scanned, mut nr_busy, mut nr_held) = (0, 0, 0);
        let most = MAX_SCAN.min(self.nr_pages().saturating_mul(MAX_ROUNDS));
        while !batch.is_enough(want)
            && nr_scanned < most
            && !super::is_each_held(nr_held, self.nr_pages())
        {
            if self.is_inactive_low() || nr_busy > MAX_BUSY.min(self.nr_pages()) {
                nr_scanned += 1;
                let nr_demoted = self.demote(frames);
                batch.looked.nr_refilled += nr_demoted;
                batch.looked.nr_deactivated += nr_demoted;
            }
            let Some(frame) = self.inactive.tail() else {
                break;
            };
            nr_scanned += 1;
            let word = frames.word(frame);
            batch.look_at(word);
            let may_go = word.is_evictable() && batch.has_room_for(frames, frame);
            nr_busy += u32::from(!may_go);
            nr_held = if word.is_held() { nr_held + 1 } else { 0 };
            let written = word.as_written();
            if word.is_unwritten() && Self::kept(written, written.is_evictable()).is_none() {
                batch.note(frames, (frame, word), Self::token_at(self.nonresident_age));
            }
            if let Some(to) = Self::kept(word, may_go) {
                let is_activated = to.0 == ACTIVE;
                self.nonresident_age += u64::from(is_activated);
                batch.looked.nr_activated += u32::from(is_activated);
                self.requeue(frames, frame, to);
                continue;
            }
            let Some(isolated) = super::isolated(frames, frame, word) else {
                continue;
            };
            self.inactive.remove(frames, frame);
            // Those of the batch before it count as evicted.
            let token = Self::token_at(self.nonresident_age + u64::from(batch.len()));
            let word = isolated;
            batch.push(frames, Victim { frame, word, token });
        }
        nr_scanned
    }

    fn coldest(&self) -> Option<Frame> {
        self.inactive.tail().or(self.active.tail())
    }

    fn token(&self, _frames: &FrameTable, _frame: Frame, _word: Word) -> Token {
        Self::token_at(self.nonresident_age)
    }

    fn is_workingset(&self, _page_type: PageType, refault: Token) -> bool {
        self.is_near(refault)
    }

    fn evicted(&mut self, _page_type: PageType, _token: Token, _nr_frames: u32) {
        self.nonresident_age += 1;
    }

    fn put_back(&mut self, frames: &FrameTable, frame: Frame) -> Listing {
        let word = frames.word(frame);
        let refs = word.refs().saturating_sub(NO_REFS);
        let (generation, refs) = Self::kept(word, true).unwrap_or((INACTIVE, refs));
        self.nonresident_age += u64::from(generation == ACTIVE);
        self.push(frames, frame, generation, refs)
    }

    fn replace(&mut self, frames: &FrameTable, pages: (Frame, Frame), word: Word) {
        self.list(word.generation()).replace(frames, pages);
    }

    fn remove(&mut self, frames: &FrameTable, frame: Frame, word: Word) {
        self.list(word.generation()).remove(frames, frame);
    }

    fn nr_pages(&self) -> u32 {
        self.active.len() + self.inactive.len()
    }

    fn audit(&self, frames: &FrameTable) -> Result<u32, Discrepancy> {
        let nr_active = super::audit_list(frames, &self.active, ACTIVE)?;
        Ok(nr_active + super::audit_list(frames, &self.inactive, INACTIVE)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inactive_list_may_be_shorter_the_larger_both_are() {
        assert!(!is_low(500, 500) && is_low(499, 500) && !is_low(0, 0));
        let gib = 1 << GIB_SHIFT;
        // 10 GiB: the ratio is 10. 1 GiB: 3. Below 1 GiB: 1.
        assert!(is_low(gib * 9 / 10, gib * 92 / 10) && !is_low(gib * 19 / 20, gib * 182 / 20));
        assert!(is_low(gib * 6 / 25, gib * 4 / 5) && !is_low(gib / 4, gib * 3 / 4));
        assert!(is_low(gib / 4, gib / 2) && !is_low(gib / 4, gib / 4));
    }
}
