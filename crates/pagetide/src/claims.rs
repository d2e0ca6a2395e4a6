//! Whether a wait could be ended by anybody but those who wait.

/// What somebody who waits holds, and wants before anything of that comes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a, L> {
    /// Where it counts: all of them or none.
    pub(crate) levels: &'a [L],
    /// Pages held at each level.
    pub(crate) held: u64,
    /// Pages wanted at each level.
    pub(crate) need: u64,
}

impl<L: Copy + Eq> Claim<'_, L> {
    /// Whether no level's `max` would ever let it have what it holds and wants together.
    pub(crate) fn is_hopeless(&self, max_of: impl Fn(L) -> u64) -> bool {
        let total = self.held.saturating_add(self.need);
        self.levels.iter().any(|&level| total > max_of(level))
    }
}

/// Pages that the claims hold at a level.
pub(crate) fn held_at<L: Copy + Eq>(claims: &[Claim<'_, L>], level: L) -> u64 {
    let there = claims.iter().filter(|claim| claim.levels.contains(&level));
    there.map(|claim| claim.held).sum()
}

/// Whether the last of the claims can never be met, though all that those who do not wait hold
/// came back, and though each claim that can be met is, and then gives everything back.
///
/// O(claims^2 * levels^2); at once where it holds nothing.
/// Source: reduction of the graph of claims, Holt 1972, for a resource of many units.
pub(crate) fn is_stuck<L: Copy + Eq>(claims: &[Claim<'_, L>], max_of: impl Fn(L) -> u64) -> bool {
    let Some(&last) = claims.last() else {
        return false;
    };
    if last.is_hopeless(&max_of) {
        return true;
    }
    // Who holds nothing ends nobody's wait, and waits for those who do: none of them is stuck,
    // because it would have been refused.
    if last.held == 0 {
        return false;
    }
    let mut left: Vec<Claim<'_, L>> = claims.iter().copied().filter(|c| c.held > 0).collect();
    loop {
        let can_go = |claim: &Claim<'_, L>| {
            let mut levels = claim.levels.iter();
            levels.all(|&level| held_at(&left, level).saturating_add(claim.need) <= max_of(level))
        };
        // The last first: whether it can go is the question.
        match left.iter().rposition(can_go) {
            Some(at) if at + 1 == left.len() => return false,
            Some(at) => {
                left.remove(at);
            }
            None => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_one_level(held_and_need: &[(u64, u64)], max: u64) -> bool {
        let claim = |&(held, need)| Claim {
            levels: &[0_u8],
            held,
            need,
        };
        let claims: Vec<_> = held_and_need.iter().map(claim).collect();
        is_stuck(&claims, |_| max)
    }

    #[test]
    fn two_who_hold_half_and_grow_are_stuck() {
        assert!(!at_one_level(&[(2, 1)], 4));
        assert!(at_one_level(&[(2, 1), (2, 1)], 4));
        assert!(!at_one_level(&[(2, 1), (1, 1)], 4));
    }

    #[test]
    fn who_goes_first_lets_the_others_go() {
        // Only the second fits at first; what it holds is enough for the first.
        assert!(!at_one_level(&[(3, 2), (2, 1)], 6));
        assert!(!at_one_level(&[(2, 1), (3, 2)], 6));
        // Somebody who could go, but holds nothing, helps nobody.
        assert!(at_one_level(&[(2, 2), (0, 1), (1, 2)], 4));
    }

    #[test]
    fn more_than_the_limit_is_hopeless() {
        assert!(at_one_level(&[(0, 5)], 4));
        assert!(at_one_level(&[(2, 3)], 4));
        assert!(!at_one_level(&[(0, 4)], 4));
    }

    #[test]
    fn levels_are_claimed_together() {
        let max_of = |level: char| if level == 'r' { 6 } else { 4 };
        let (a, b) = (['a', 'r'], ['b', 'r']);
        let of_a = Claim {
            levels: &a[..],
            held: 3,
            need: 1,
        };
        let of_b = Claim {
            levels: &b[..],
            held: 3,
            need: 1,
        };
        // Each has room in its own group, but not in the one above.
        assert!(is_stuck(&[of_a, of_b], max_of));
        let small = Claim { held: 2, ..of_b };
        assert!(!is_stuck(&[of_a, small], max_of));
    }
}
