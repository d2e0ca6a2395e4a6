//! The multi-gen LRU in the form of Linux 6.12, for pages of files.

use super::controller::{self, NR_TIERS, Position};
use super::{Batch, Listing, Moment, Rules, ScanControl, Token, Victim};
use crate::frame::{FrameTable, List, Word, flag};
use crate::units::{Frame, PageType};

const MIN_NR_GENS: u64 = 2;
const MAX_NR_GENS: u64 = NR_LISTS as u64;
const NR_LISTS: usize = 4;
/// Accesses that are told apart; the next ones change nothing.
pub(super) const MAX_ACCESSES: u8 = 5;
/// Bits of a shadow token that hold accesses; the others hold `min_seq`.
const ACCESS_BITS: u32 = 3;

/// What differs between forms of this policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Whether pages enter the oldest generation while there are more than two, too.
    pub(super) enters_oldest: bool,
    /// Accesses from which on a refault in the same generation saturates the count again.
    pub(super) restores_from: u8,
}

/// Linux 6.12.
pub(super) const FORM: Form = Form {
    enters_oldest: false,
    restores_from: MAX_ACCESSES - 1,
};

/// Generations of like recency, the oldest evicted first, tiers protected by refaults.
#[derive(Debug)]
pub(super) struct Mglru {
    form: Form,
    generations: [List; NR_LISTS],
    max_seq: u64,
    min_seq: u64,
    /// What the current history counts: evicted or protected, and refaulted.
    counted: [Position; NR_TIERS],
    /// Averages over earlier histories.
    averages: [Position; NR_TIERS],
}

impl Mglru {
    /// A lruvec without pages.
    pub(super) const fn new(form: Form) -> Mglru {
        const NONE: Position = Position {
            refaulted: 0,
            total: 0,
        };
        Mglru {
            form,
            generations: [const { List::new() }; NR_LISTS],
            max_seq: MIN_NR_GENS + 1,
            min_seq: 0,
            counted: [NONE; NR_TIERS],
            averages: [NONE; NR_TIERS],
        }
    }

    fn nr_gens(&self) -> u64 {
        self.max_seq - self.min_seq + 1
    }

    fn list(&mut self, seq: u64) -> &mut List {
        &mut self.generations[slot(seq)]
    }

    fn len(&self, seq: u64) -> u64 {
        u64::from(self.generations[slot(seq)].len())
    }

    /// Whether to open a generation before evicting: always with the two youngest left, and with
    /// three where they are out of proportion.
    fn should_age(&self) -> bool {
        match self.nr_gens() {
            0..=MIN_NR_GENS => true,
            3 => {
                let total = u64::from(self.nr_pages());
                let (young, old) = (self.len(self.max_seq), self.len(self.min_seq));
                young * MIN_NR_GENS > total || old * (MIN_NR_GENS + 2) < total
            }
            _ => false,
        }
    }

    /// Opens a generation; where four live already the oldest joins the next one.
    fn age(&mut self, frames: &FrameTable) {
        if self.nr_gens() == MAX_NR_GENS {
            let next = self.min_seq + 1;
            while let Some(frame) = self.list(self.min_seq).pop_head(frames) {
                self.list(next).push_tail(frames, frame);
                moved(frames, frame, next);
            }
            self.advance_min_seq();
        }
        self.max_seq += 1;
    }

    /// Passes the oldest generations that are empty.
    fn drop_empty(&mut self) {
        while self.min_seq + MIN_NR_GENS <= self.max_seq && self.len(self.min_seq) == 0 {
            self.advance_min_seq();
        }
    }

    fn advance_min_seq(&mut self) {
        self.min_seq += 1;
        for (average, counted) in self.averages.iter_mut().zip(&mut self.counted) {
            average.refaulted = (average.refaulted + counted.refaulted) / 2;
            average.total = (average.total + counted.total) / 2;
            *counted = Position::default();
        }
    }

    fn cut_off(&self) -> usize {
        controller::tier_cut_off(&core::array::from_fn(|tier| Position {
            refaulted: self.averages[tier].refaulted + self.counted[tier].refaulted,
            total: self.averages[tier].total + self.counted[tier].total,
        }))
    }

    /// Whether a page is worth keeping: its accesses are of a tier that is protected, or it was
    /// looked at in place.
    fn is_kept(word: Word, cut_off: usize) -> bool {
        word.has(flag::YOUNG) || Self::is_protected(word, cut_off)
    }

    fn is_protected(word: Word, cut_off: usize) -> bool {
        let accesses = word.refs().min(MAX_ACCESSES);
        controller::tier_of(accesses) > cut_off || accesses == MAX_ACCESSES
    }

    /// Looks at the coldest page of the oldest generation; true where it moved up instead.
    fn sort(&mut self, frames: &FrameTable, frame: Frame, word: Word, cut_off: usize) -> bool {
        let next = self.min_seq + 1;
        if word.has(flag::YOUNG) {
            let youngest = self.max_seq;
            self.list(self.min_seq).remove(frames, frame);
            self.list(youngest).push_head(frames, frame);
            moved(frames, frame, youngest);
            return true;
        }
        let is_protected = Self::is_protected(word, cut_off);
        if is_protected || !word.is_evictable() {
            self.list(self.min_seq).remove(frames, frame);
            self.list(next).push_tail(frames, frame);
            moved(frames, frame, next);
            if is_protected {
                let tier = controller::tier_of(word.refs().min(MAX_ACCESSES));
                self.counted[tier].total += 1;
            }
            return true;
        }
        false
    }

    fn token_of(&self, accesses: u8) -> Token {
        let min_seq = u32::try_from(self.min_seq & 0xFFFF).expect("16 bits");
        Token::new(min_seq << ACCESS_BITS | u32::from(accesses))
    }
}

fn slot(seq: u64) -> usize {
    usize::try_from(seq % MAX_NR_GENS).expect("below MAX_NR_GENS")
}

fn listed_in(seq: u64) -> u8 {
    u8::try_from(seq % MAX_NR_GENS + 1).expect("at most MAX_NR_GENS")
}

fn accesses_of(token: Token) -> u8 {
    u8::try_from(token.bits() & ((1 << ACCESS_BITS) - 1)).expect("3 bits")
}

/// Writes a frame's new generation; its accesses count anew.
fn moved(frames: &FrameTable, frame: Frame, seq: u64) {
    let change = |word: Word| {
        Some(
            word.with_generation(listed_in(seq))
                .with_refs(0)
                .without(flag::YOUNG),
        )
    };
    let changed = frames.update(frame, change);
    assert!(changed.is_ok(), "an update without a condition");
}

impl Rules for Mglru {
    fn insert(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        refault: Option<Token>,
        _moment: Moment,
    ) -> Listing {
        let mut restored = false;
        if let Some(token) = refault
            && token.bits() >> ACCESS_BITS == self.token_of(0).bits() >> ACCESS_BITS
        {
            let accesses = accesses_of(token);
            self.counted[controller::tier_of(accesses)].refaulted += 1;
            restored = accesses >= self.form.restores_from;
        }
        let few = self.min_seq + MIN_NR_GENS >= self.max_seq;
        let seq = match few || self.form.enters_oldest {
            true => self.min_seq,
            false => self.min_seq + 1,
        };
        self.list(seq).push_head(frames, frame);
        Listing {
            refs: restored.then_some(MAX_ACCESSES),
            ..Listing::of(listed_in(seq))
        }
    }

    fn isolate(&mut self, frames: &FrameTable, control: &ScanControl, batch: &mut Batch) -> u32 {
        let want = control.nr_pages;
        let mut scanned = 0;
        if self.should_age() {
            self.age(frames);
        }
        // Each round empties a generation or fills the batch; a page that moves to the youngest
        // is met again only after all others.
        for _ in 0..2 * MAX_NR_GENS {
            self.drop_empty();
            if self.nr_gens() <= MIN_NR_GENS {
                self.age(frames);
            }
            let cut_off = self.cut_off();
            while batch.len() < want
                && let Some(frame) = self.generations[slot(self.min_seq)].tail()
            {
                scanned += 1;
                let word = frames.word(frame);
                if self.sort(frames, frame, word, cut_off) {
                    if word.is_unwritten() && !Self::is_kept(word, cut_off) {
                        batch.note(frame, word);
                    }
                    continue;
                }
                let token = self.token(frames, frame, word);
                self.list(self.min_seq).remove(frames, frame);
                let word = super::isolated(frames, frame);
                batch.push(Victim { frame, word, token });
            }
            if batch.len() >= want || self.nr_pages() == 0 {
                break;
            }
        }
        self.drop_empty();
        scanned
    }

    fn coldest(&self) -> Option<Frame> {
        let mut seqs = self.min_seq..=self.max_seq;
        seqs.find_map(|seq| self.generations[slot(seq)].tail())
    }

    fn token(&self, _frames: &FrameTable, _frame: Frame, word: Word) -> Token {
        self.token_of(word.refs().min(MAX_ACCESSES))
    }

    fn is_workingset(&self, _page_type: PageType, refault: Token) -> bool {
        let is_recent = refault.bits() >> ACCESS_BITS == self.token_of(0).bits() >> ACCESS_BITS;
        is_recent && accesses_of(refault) >= self.form.restores_from
    }

    fn evicted(&mut self, _page_type: PageType, token: Token, _nr_frames: u32) {
        let accesses = accesses_of(token);
        self.counted[controller::tier_of(accesses)].total += 1;
    }

    fn put_back(&mut self, frames: &FrameTable, frame: Frame) -> Listing {
        // Somebody uses it just now: not into the oldest, where it would be scanned again at once.
        let youngest = self.max_seq;
        self.list(youngest).push_head(frames, frame);
        Listing::of(listed_in(youngest))
    }

    fn remove(&mut self, frames: &FrameTable, frame: Frame, word: Word) {
        self.generations[usize::from(word.generation()) - 1].remove(frames, frame);
    }

    fn nr_pages(&self) -> u32 {
        self.generations.iter().map(List::len).sum()
    }

    fn check(&self, frames: &FrameTable) {
        assert!(
            (MIN_NR_GENS..=MAX_NR_GENS).contains(&self.nr_gens()),
            "{} generations",
            self.nr_gens()
        );
        for seq in self.min_seq..=self.max_seq {
            for frame in self.generations[slot(seq)].iter(frames) {
                assert_eq!(frames.word(frame).generation(), listed_in(seq), "{frame:?}");
            }
        }
    }
}
