//! Which pageblocks are made of small pages where huge ones are wished for.

use std::collections::BTreeSet;

/// Pageblocks that are made of small pages while others are huge, at most: each may cost two of the
/// process's mappings, of which Linux gives it 65,530 by default.
const MOST_SMALL: usize = 1024;

/// The pageblocks that are made of small pages.
#[derive(Debug)]
pub(super) enum Small {
    /// Of each of these a part went to the OS, and it has not gone as a whole since.
    Some(BTreeSet<u32>),
    /// There were more than [`MOST_SMALL`]: one mapping again, for good.
    All,
}

/// What is to be made of small or of huge pages from now on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    ToHuge,
    ToSmall,
    AllToSmall,
}

impl Default for Small {
    fn default() -> Small {
        Small::Some(BTreeSet::new())
    }
}

impl Small {
    /// All of a pageblock, or a part of it, goes to the OS.
    pub(super) fn gone(&mut self, pageblock: u32, is_whole: bool) -> Change {
        let Small::Some(some) = self else {
            return Change::None;
        };
        match is_whole {
            true if some.remove(&pageblock) => Change::ToHuge,
            false if some.insert(pageblock) && some.len() <= MOST_SMALL => Change::ToSmall,
            false if some.len() > MOST_SMALL => {
                *self = Small::All;
                Change::AllToSmall
            }
            _ => Change::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pageblock_is_small_from_when_a_part_goes_until_all_of_it_does() {
        let mut small = Small::default();
        assert_eq!(small.gone(7, true), Change::None);
        assert_eq!(small.gone(7, false), Change::ToSmall);
        assert_eq!(small.gone(7, false), Change::None);
        assert_eq!(small.gone(8, true), Change::None);
        assert_eq!(small.gone(7, true), Change::ToHuge);
        assert_eq!(small.gone(7, true), Change::None);
        assert_eq!(small.gone(7, false), Change::ToSmall);
    }

    #[test]
    fn there_are_no_more_mappings_than_a_process_can_spare() {
        let mut small = Small::default();
        for pageblock in (0..).take(MOST_SMALL) {
            assert_eq!(small.gone(2 * pageblock, false), Change::ToSmall);
        }
        assert_eq!(small.gone(1, false), Change::AllToSmall);
        for is_whole in [false, true] {
            assert_eq!(small.gone(1, is_whole), Change::None, "for good");
            assert_eq!(small.gone(0, is_whole), Change::None);
        }
    }
}
