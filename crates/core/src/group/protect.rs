//! How protection is shared out: a pure function of one level's numbers.

/// What decides a child's share of its parent's protection, in pages.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The child's usage.
    pub usage: u64,
    /// Its own `min` or `low`.
    pub setting: u64,
    /// Usage of the parent, all its children's and its own pages.
    pub parent_usage: u64,
    /// What the parent may hand out.
    pub parent_effective: u64,
    /// What all children claim: the sum of the smaller of usage and setting of each.
    pub claimed: u64,
}

/// The effective protection of a child, in pages: at most its usage.
///
/// Children that claim more than there is share it in proportion to their claims. What nobody
/// claims goes to the pages that are in excess of their groups' claims, in proportion.
/// Source: the kernel's effective protection, with `memory_recursiveprot`.
#[must_use]
pub fn effective(share: Share) -> u64 {
    let Share {
        usage,
        setting,
        parent_usage,
        parent_effective,
        claimed,
    } = share;
    let claim = usage.min(setting);
    if claimed > parent_effective {
        return part(parent_effective, claim, claimed).min(claim);
    }
    let unclaimed = parent_effective - claimed;
    let excess = usage - claim;
    let all_excess = parent_usage.saturating_sub(claimed);
    claim + part(unclaimed, excess, all_excess).min(excess)
}

/// `whole * numerator / denominator`, 0 where nothing is to be shared.
fn part(whole: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(whole) * u128::from(numerator);
    let share = product.checked_div(u128::from(denominator)).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Share = Share {
        usage: 100,
        setting: 60,
        parent_usage: 400,
        parent_effective: 200,
        claimed: 120,
    };

    #[test]
    fn claims_that_fit_are_kept_and_the_rest_is_shared_by_excess() {
        // 60 claimed, and of the 80 unclaimed its part: 40 of 280 pages in excess.
        assert_eq!(effective(BASE), 60 + 80 * 40 / 280);
    }

    #[test]
    fn claims_beyond_what_there_is_are_cut_in_proportion() {
        let share = Share {
            claimed: 300,
            ..BASE
        };
        assert_eq!(effective(share), 200 * 60 / 300);
    }

    #[test]
    fn nothing_is_protected_below_an_unprotected_parent() {
        let share = Share {
            parent_effective: 0,
            ..BASE
        };
        assert_eq!(effective(share), 0);
    }

    #[test]
    fn protection_is_at_most_usage() {
        let share = Share {
            usage: 10,
            parent_effective: u64::MAX,
            claimed: 10,
            ..BASE
        };
        assert_eq!(effective(share), 10);
    }
}
