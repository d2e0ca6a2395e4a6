//! The forms of the multi-gen LRU: what its first patch says, what Linux 6.12 does, and what has
//! been done since 6.14.
//!
//! | | seed | 6.12 | next |
//! |---|---|---|---|
//! | pages that are read enter | oldest | second oldest, of 3: oldest | max_seq - 3 (W: - 2) |
//! | new anon pages enter | second oldest | second youngest | second youngest |
//! | pages that are pinned enter | youngest | youngest | second youngest (W: youngest) |
//! | three generations age | if uneven | if uneven | always |
//! | the type is chosen by | both tiers 0 | both tiers 0 | all tiers of both |
//! | a tier is compared with | tier 0 of the other | tier 0 of the other | its own tier 0 |
//! | what was used as often as is told apart | by its tier | protected | protected |
//! | gains of the two | 1:2 | 1:2 | 2:3 |
//! | a refault counts for | its generation | its generation | 4 generations |
//! | it restores | a full count | a count from 4 on | its count, or W |
//! | behind dirty pages of files | clean ones are taken | clean ones are taken | they go |
//! | types may drift apart | files ahead of anon | files ahead of anon | by one, either |
//!
//! Where the type is not chosen by refaults, 6.12 and the seed compare a tier with tier 0 of its
//! own type, by 1:2.
//!
//! W, the working set since 6.14, is what was used five times: the mark stays with the page and in
//! its shadow entry, and it is protected as tier 3 is.
//!
//! Source: multi-gen LRU, Zhao 2022; its corrections in 6.7 and 6.14, and the loop of 2026 that
//! opens generations without giving up its turn.

use super::Token;
use super::controller::{self, NR_TIERS};
use super::generations::{Generations, MAX_NR_GENS, MIN_NR_GENS};
use crate::frame::{Word, flag};
use crate::units::PageType;

/// Accesses that are told apart; the next ones change nothing.
const MAX_ACCESSES: u8 = 5;
/// Bits of a shadow token that hold accesses; the others hold `min_seq`.
const ACCESS_BITS: u32 = 3;
/// Of a token's `min_seq`: 17 bits more than generations there are at a time.
const SEQ_MASK: u32 = (1 << (Token::BITS - ACCESS_BITS)) - 1;
/// The mark of the working set, in the access bits of a form that keeps it.
const MARK: u8 = 0b100;

/// Which text is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// The first patch.
    Seed,
    /// Linux 6.12.
    Linux612,
    /// Since 6.14, with the reclaim loop of 2026.
    Next,
}

/// What a page did, as its word or its shadow entry has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// 0 to [`MAX_ACCESSES`].
    accesses: u8,
    is_workingset: bool,
}

impl Use {
    /// The tier of a page that was used so.
    pub(super) fn tier(self) -> usize {
        match self.is_workingset {
            true => NR_TIERS - 1,
            false => controller::tier_of(self.accesses),
        }
    }

    /// Whether it was used as often as is told apart.
    fn is_saturated(self) -> bool {
        self.accesses == MAX_ACCESSES || self.is_workingset && self.accesses == MAX_ACCESSES - 1
    }
}

/// A page that comes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newcomer {
    pub(super) page_type: PageType,
    /// It comes in to be pinned.
    pub(super) is_pinned: bool,
    /// It was evicted before, and is remembered.
    pub(super) is_refault: bool,
    pub(super) is_workingset: bool,
}

impl Form {
    /// What a page's word says that it did.
    pub(super) fn use_of(self, word: Word) -> Use {
        let accesses = word.refs().min(MAX_ACCESSES);
        let is_marked = accesses == MAX_ACCESSES || word.has(flag::WORKINGSET);
        Use {
            accesses,
            is_workingset: self == Form::Next && is_marked,
        }
    }

    /// The word of a page that goes on to another generation: its accesses count anew.
    pub(super) fn anew(self, word: Word) -> Word {
        let is_workingset = self.use_of(word).is_workingset;
        let word = word.with_refs(0);
        match is_workingset {
            true => word.with(flag::WORKINGSET),
            false => word,
        }
    }

    /// The word of a young page that goes to the youngest generation.
    pub(super) fn promoted(self, word: Word) -> Word {
        self.anew(word).without(flag::YOUNG)
    }

    /// Gains of the set-point and of the tiers beside it, where both are of one type.
    pub(super) fn gains(self) -> (u64, u64) {
        match self {
            Form::Seed | Form::Linux612 => (1, 2),
            Form::Next => (2, 3),
        }
    }

    /// The generation that a page enters.
    pub(super) fn entry(self, page: Newcomer, generations: &Generations) -> u64 {
        let (max_seq, min_seq) = (generations.max_seq(), generations.min_seq(page.page_type));
        let is_new_anon = page.page_type == PageType::Anon && !page.is_refault;
        let has_three = min_seq + MIN_NR_GENS < max_seq;
        let workingset = u64::from(page.is_workingset);
        let seq = match self {
            Form::Next if page.is_pinned => max_seq - 1 + workingset,
            _ if page.is_pinned => max_seq,
            Form::Seed if is_new_anon => min_seq + 1,
            _ if is_new_anon => max_seq - 1,
            Form::Seed => min_seq,
            Form::Linux612 => min_seq + u64::from(has_three),
            Form::Next => max_seq + 1 + workingset - MAX_NR_GENS,
        };
        seq.clamp(min_seq, max_seq)
    }

    /// Whether eviction moves a page on, whatever refaults say.
    pub(super) fn always_protects(self, page: Use) -> bool {
        self != Form::Seed && page.is_saturated()
    }

    /// Whether a dirty page of a file that would go counts as taken, as it goes once it is written.
    /// Else clean ones are looked for behind it. Anon pages are counted by the batch.
    pub(super) fn takes_dirty_file(self, page_type: PageType) -> bool {
        self == Form::Next && page_type == PageType::File
    }

    /// What a shadow entry says of a page that goes while `min_seq` is the oldest generation.
    pub(super) fn token(self, min_seq: u64, page: Use) -> Token {
        let seq = u32::try_from(min_seq & u64::from(SEQ_MASK)).expect("masked");
        let accesses = match self {
            Form::Next if page.is_workingset => (page.accesses.clamp(1, 4) - 1) | MARK,
            Form::Next => page.accesses.max(1) - 1,
            _ => page.accesses,
        };
        Token::new(seq << ACCESS_BITS | u32::from(accesses))
    }

    /// What a shadow entry remembers that a page did.
    pub(super) fn use_before(self, token: Token) -> Use {
        let bits = u8::try_from(token.bits() & ((1 << ACCESS_BITS) - 1)).expect("3 bits");
        match self {
            Form::Next => Use {
                accesses: (bits & !MARK) + 1,
                is_workingset: bits & MARK != 0,
            },
            _ => Use {
                accesses: bits,
                is_workingset: false,
            },
        }
    }

    /// Whether a page that comes back went so lately that it counts.
    pub(super) fn is_recent(self, token: Token, generations: &Generations, of: PageType) -> bool {
        let seq = |seq: u64| u32::try_from(seq & u64::from(SEQ_MASK)).expect("masked");
        let then = token.bits() >> ACCESS_BITS;
        match self {
            Form::Next => {
                let now = seq(generations.max_seq());
                u64::from(now.abs_diff(then)) < MAX_NR_GENS
            }
            _ => then == seq(generations.min_seq(of)),
        }
    }

    /// Whether a page that comes back should not have gone, if it went lately: it would have been
    /// protected, or, up to 6.12, is wanted in place.
    pub(super) fn is_restored(self, before: Use, is_pinned: bool) -> bool {
        match self {
            Form::Seed => is_pinned || before.accesses == MAX_ACCESSES,
            Form::Linux612 => is_pinned || before.accesses >= MAX_ACCESSES - 1,
            Form::Next => before.is_workingset,
        }
    }

    /// Whether a page that comes back lately counts as activated.
    pub(super) fn is_activated(self, is_pinned: bool) -> bool {
        self != Form::Next || is_pinned
    }

    /// The accesses that a page that comes back lately goes on from.
    pub(super) fn accesses_after(self, before: Use, is_restored: bool) -> Option<u8> {
        match self {
            Form::Next => (!before.is_workingset).then_some(before.accesses),
            _ => is_restored.then_some(MAX_ACCESSES),
        }
    }
}
