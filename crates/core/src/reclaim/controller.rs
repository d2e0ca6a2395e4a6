//! The refault controller: which tiers of a lruvec are worth protecting. Pure functions.
//!
//! Source: multi-gen LRU, Zhao 2022 (kernel `positive_ctrl_err()`, `get_tier_idx()`).

/// Tiers there are: a page accessed `N` times by copy is in tier `ceil(log2 N)`.
pub const NR_TIERS: usize = 4;
/// Refaults below which a sample says nothing.
const MIN_SAMPLE: u64 = 64;

/// What happened to one tier: refaults, and pages that were evicted or protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Evicted pages that came back.
    pub refaulted: u64,
    /// Pages that were evicted or protected.
    pub total: u64,
}

/// What was counted of one tier of a type since its oldest generation became that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Evicted pages that came back.
    pub refaulted: u64,
    /// Pages that were evicted.
    pub evicted: u64,
    /// Pages that would have been, but for refaults of their tier or as many accesses as are told
    /// apart.
    pub protected: u64,
}

/// What happened to the pages of one type, by tier: since its oldest generation became that, and
/// averages of before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tiers {
    counted: [Counted; NR_TIERS],
    averages: [Position; NR_TIERS],
}

impl Tiers {
    /// Nothing counted.
    pub const NONE: Tiers = Tiers {
        counted: [Counted {
            refaulted: 0,
            evicted: 0,
            protected: 0,
        }; NR_TIERS],
        averages: [Position {
            refaulted: 0,
            total: 0,
        }; NR_TIERS],
    };

    /// What was counted, by tier.
    #[must_use]
    pub fn counted(&self) -> [Counted; NR_TIERS] {
        self.counted
    }

    /// What is carried over, by tier.
    #[must_use]
    pub fn averages(&self) -> [Position; NR_TIERS] {
        self.averages
    }

    /// Counts an evicted page that came back.
    pub fn count_refault(&mut self, tier: usize) {
        self.counted[tier].refaulted += 1;
    }

    /// Counts a page that was evicted.
    pub fn count_evicted(&mut self, tier: usize) {
        self.counted[tier].evicted += 1;
    }

    /// Counts a page that was protected.
    pub fn count_protected(&mut self, tier: usize) {
        self.counted[tier].protected += 1;
    }

    /// Each tier with what is carried over.
    #[must_use]
    pub fn positions(&self) -> [Position; NR_TIERS] {
        core::array::from_fn(|tier| {
            let counted = self.counted[tier];
            self.averages[tier].plus(Position {
                refaulted: counted.refaulted,
                total: counted.evicted + counted.protected,
            })
        })
    }

    /// All tiers together.
    #[must_use]
    pub fn sum(&self) -> Position {
        let tiers = self.positions();
        tiers.into_iter().fold(Position::default(), Position::plus)
    }

    /// Carries what was counted over into the averages: half of it, and half of what was there.
    pub fn carry_over(&mut self) {
        let halved = self.positions().map(|sum| Position {
            refaulted: sum.refaulted / 2,
            total: sum.total / 2,
        });
        *self = Tiers {
            averages: halved,
            ..Tiers::NONE
        };
    }
}

impl Position {
    fn plus(self, other: Position) -> Position {
        Position {
            refaulted: self.refaulted + other.refaulted,
            total: self.total + other.total,
        }
    }
}

/// Whether the refault rate of `value` is no worse than that of the set-point, weighted by the
/// gains. Products are taken in 128 bits.
#[must_use]
pub fn is_fine(set_point: Position, gain: u64, value: Position, value_gain: u64) -> bool {
    let wide = |a: u64, b: u64, c: u64| u128::from(a).saturating_mul(u128::from(b) * u128::from(c));
    value.refaulted < MIN_SAMPLE
        || wide(
            value.refaulted,
            set_point.total.saturating_add(MIN_SAMPLE),
            gain,
        ) <= wide(
            set_point.refaulted.saturating_add(1),
            value.total,
            value_gain,
        )
}

/// The last tier that is evicted: those above it refault too often. The gains are those of the
/// set-point and of the tiers.
#[must_use]
pub fn cut_off(
    set_point: Position,
    tiers: &[Position; NR_TIERS],
    (gain, tier_gain): (u64, u64),
) -> usize {
    let is_protected = |&tier: &usize| !is_fine(set_point, gain, tiers[tier], tier_gain);
    (1..NR_TIERS).find(is_protected).unwrap_or(NR_TIERS) - 1
}

/// The tier of a page accessed `accesses` times by copy.
#[must_use]
pub fn tier_of(accesses: u8) -> usize {
    match accesses {
        0 | 1 => 0,
        2 => 1,
        3 | 4 => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(refaulted: u64, total: u64) -> Position {
        Position { refaulted, total }
    }

    /// The gains of the first patch.
    fn twice(tiers: [Position; NR_TIERS]) -> usize {
        cut_off(tiers[0], &tiers, (1, 2))
    }

    #[test]
    fn nothing_counted_protects_nothing() {
        assert_eq!(twice([Position::default(); NR_TIERS]), 3);
    }

    #[test]
    fn a_tier_that_refaults_twice_as_often_is_protected() {
        let quiet = at(0, 1000);
        // 200 * (1000 + 64) * 1 against (100 + 1) * 1000 * 2: just worse.
        assert_eq!(twice([at(100, 1000), at(200, 1000), quiet, quiet]), 0);
        assert_eq!(twice([at(100, 1000), at(180, 1000), quiet, quiet]), 3);
        assert_eq!(twice([at(100, 1000), quiet, at(500, 1000), quiet]), 1);
    }

    #[test]
    fn half_is_carried_over() {
        let mut tiers = Tiers::NONE;
        (0..5).for_each(|_| tiers.count_evicted(1));
        (0..3).for_each(|_| tiers.count_protected(1));
        (0..3).for_each(|_| tiers.count_refault(1));
        tiers.carry_over();
        assert_eq!(tiers.positions()[1], at(1, 4));
        tiers.count_protected(1);
        assert_eq!((tiers.positions()[1], tiers.sum()), (at(1, 5), at(1, 5)));
        tiers.carry_over();
        assert_eq!(tiers.sum(), at(0, 2));
    }

    #[test]
    fn a_small_sample_is_fine() {
        assert!(is_fine(at(0, 0), 1, at(63, 1), 2) && !is_fine(at(0, 0), 1, at(64, 1), 2));
    }

    #[test]
    fn large_counters_do_not_overflow() {
        let large = at(u64::MAX, u64::MAX);
        assert!(is_fine(large, 100, large, 200) || !is_fine(large, 100, large, 200));
    }

    #[test]
    fn tiers_are_the_logarithm_of_accesses() {
        assert_eq!([0, 1, 2, 3, 4, 5, 7].map(tier_of), [0, 0, 1, 2, 2, 3, 3]);
    }
}
