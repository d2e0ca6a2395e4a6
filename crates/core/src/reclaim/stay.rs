//! What `gated-2q` remembers of a page that went: in which generation of its lruvec's page-ins, how
//! many generations it had been queued for, and from which class.

use super::Token;
use super::page_ins::{NR_STAMPS, REACH};

/// Bits of a token that hold the generations that a page was queued for.
const STAY_BITS: u32 = 6;
/// Bits of a token that hold the generation of its eviction; the lowest one says from which class
/// it came.
const SEQ_BITS: u32 = Token::BITS - STAY_BITS - 1;
const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;
const _: () = assert!(NR_STAMPS as u32 <= 1 << STAY_BITS);

/// The token of a page that goes in generation `seq`, queued `age` before.
pub(super) fn token(seq: u64, age: u64, is_protected: bool) -> Token {
    let bits = ((seq & SEQ_MASK) << STAY_BITS | age) << 1;
    let bits = u32::try_from(bits).expect("masked, and an age is below NR_STAMPS");
    Token::new(bits | u32::from(is_protected))
}

pub(super) const fn was_protected(token: Token) -> bool {
    token.bits() & 1 != 0
}

/// Generations until `seq` since a page was evicted.
pub(super) fn gone_for(token: Token, seq: u64) -> u64 {
    let evicted = u64::from(token.bits() >> (STAY_BITS + 1));
    seq.wrapping_sub(evicted) & SEQ_MASK
}

/// Generations until `seq` since an evicted page was queued last.
pub(super) fn age(token: Token, seq: u64) -> u64 {
    let stay = u64::from(token.bits() >> 1) & ((1 << STAY_BITS) - 1);
    gone_for(token, seq) + stay
}

/// Which pages that come back should not have gone, as of a moment: those that were queued fewer
/// than so many generations ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Horizon {
    seq: u64,
    nr_near: u64,
}

const NEAR_SHIFT: u32 = SEQ_BITS;
const IS_KNOWN: u64 = 1 << 63;
const _: () = assert!(REACH + 1 < 1 << (63 - NEAR_SHIFT));

impl Horizon {
    pub(super) const fn new(seq: u64, nr_near: u64) -> Horizon {
        Horizon {
            seq: seq & SEQ_MASK,
            nr_near,
        }
    }

    /// Whether a page should not have gone.
    #[must_use]
    pub fn has(self, token: Token) -> bool {
        age(token, self.seq) < self.nr_near
    }

    /// Packs one that may be unknown in a word: 0 is none.
    pub(super) fn pack(horizon: Option<Horizon>) -> u64 {
        horizon.map_or(0, |horizon| {
            IS_KNOWN | horizon.nr_near << NEAR_SHIFT | horizon.seq
        })
    }

    /// Reads what [`Horizon::pack`] wrote.
    pub(super) fn unpack(packed: u64) -> Option<Horizon> {
        (packed != 0).then_some(Horizon {
            seq: packed & SEQ_MASK,
            nr_near: (packed & !IS_KNOWN) >> NEAR_SHIFT,
        })
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_horizon_goes_by_when_a_page_was_queued_and_not_by_when_it_went() {
        for seq in [70, SEQ_MASK + 5] {
            for (gone_for, stay) in [(0, 0), (3, 7), (7, 3), (10, 0), (0, 10)] {
                let token = token(seq - gone_for, stay, gone_for % 2 == 0);
                assert_eq!(super::gone_for(token, seq), gone_for);
                assert_eq!(was_protected(token), gone_for % 2 == 0);
                let horizon = |nr_near| Horizon::new(seq, nr_near);
                assert!(horizon(gone_for + stay + 1).has(token));
                assert!(!horizon(gone_for + stay).has(token));
            }
        }
    }

    #[test]
    fn a_horizon_is_what_it_was_when_it_was_packed() {
        assert_eq!(Horizon::unpack(Horizon::pack(None)), None);
        for horizon in [Horizon::new(0, 0), Horizon::new(SEQ_MASK, REACH + 1)] {
            let packed = Horizon::pack(Some(horizon));
            assert_eq!(Horizon::unpack(packed), Some(horizon));
        }
    }
}
