//! Whether reclaim for a limit gets anywhere.

use crate::group::{Group, Tree};

/// Rounds that free pages which others take each time, before they count as rounds without
/// progress: many more than threads that compete need.
const MAX_IN_VAIN: u32 = 4096;

/// Rounds of reclaim for a charge or a record that was refused. What each of them frees others may
/// take, shrinkers perhaps that look at pages.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The group whose limit the last one was for.
    of: u32,
    /// Its usage was never lower.
    least: u64,
    /// Since that fell.
    nr_in_vain: u32,
}

impl Rounds {
    /// One is over, for the limit of a group. Whether too many in a row were in vain.
    pub(super) fn are_in_vain(&mut self, groups: &Tree, of: u32) -> bool {
        self.count(of, groups.get(of).map_or(0, Group::usage))
    }

    fn count(&mut self, of: u32, usage: u64) -> bool {
        let is_same = of == self.of;
        if is_same && usage < self.least {
            self.nr_in_vain = 0;
        } else {
            self.nr_in_vain += 1;
        }
        let least = if is_same { self.least } else { u64::MAX };
        (self.of, self.least) = (of, usage.min(least));
        self.nr_in_vain > MAX_IN_VAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_by_which_the_usage_falls_are_not_in_vain_however_many() {
        let mut rounds = Rounds::default();
        for usage in (0..u64::from(3 * MAX_IN_VAIN)).rev() {
            assert!(!rounds.count(7, usage));
        }
        let nr_more = (0..).take_while(|_| !rounds.count(7, 100)).count();
        assert_eq!(nr_more, MAX_IN_VAIN as usize);
        // Limits by turns are no progress either.
        let mut rounds = Rounds::default();
        let is_over = (0..10 * MAX_IN_VAIN).any(|nr| rounds.count(nr % 2 + 1, 0));
        assert!(is_over);
    }
}
