//! Who gives the next victims: one class of pages, of one type, of one lruvec.
//!
//! While probation as a whole is over its targets, the one gives that is furthest over its own;
//! else the protected pages that were queued longest ago, by a clock that all lruvecs share. A page
//! of a type that is dear to bring back counts as younger.
//!
//! Source: our own; that the oldest of several lists gives is global LRU's rule, and the two costs
//! are the kernel's swappiness.

use crate::units::PageType;

/// The most that a swappiness is: anon pages alone are evicted.
pub const MAX_SWAPPINESS: u8 = 200;

/// A class of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// On trial.
    Probation,
    /// Used often, or soon again.
    Protected,
}

/// How cold the pages of one type in one lruvec are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coldness {
    /// Frames in probation.
    pub nr_probation: u32,
    /// Protected frames.
    pub nr_protected: u32,
    /// Frames that probation should have.
    pub target: u32,
    /// When the coldest protected page was queued, in frames that had come in by then, of all
    /// lruvecs.
    pub since: u64,
}

impl Coldness {
    /// Frames in both classes.
    #[must_use]
    pub fn nr_frames(&self) -> u32 {
        self.nr_probation + self.nr_protected
    }

    /// Frames that probation has beyond its target.
    #[must_use]
    pub fn surplus(&self) -> i64 {
        i64::from(self.nr_probation) - i64::from(self.target)
    }
}

/// What is to give, and for how long: until another is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Pages of this type.
    pub page_type: PageType,
    /// Pages of this class.
    pub class: Class,
    /// Probation: while it has more than this beyond its target.
    pub down_to: i64,
    /// Protected: while the coldest page was queued before this, by the clock of all lruvecs.
    pub before: u64,
}

/// One who may give.
#[derive(Clone, Copy, Debug)]
pub struct Member<K> {
    /// Its name.
    pub key: K,
    /// Whose pages are of this type.
    pub page_type: PageType,
    /// How cold they are.
    pub coldness: Coldness,
}

impl<K> Member<K> {
    /// What bringing a page of its type back costs beside the other type.
    fn cost(&self, swappiness: u8) -> i128 {
        match self.page_type {
            PageType::File => i128::from(swappiness.max(1)),
            PageType::Anon => i128::from((MAX_SWAPPINESS - swappiness).max(1)),
        }
    }

    fn surplus(&self) -> i128 {
        self.coldness.surplus().into()
    }

    /// What `number` of this one's is worth as another's.
    fn as_of(&self, number: i128, other: &Self, swappiness: u8) -> i128 {
        number * other.cost(swappiness) / self.cost(swappiness)
    }

    /// Whether its probation is further over its target, in what that costs.
    fn is_fuller(&self, other: &Self, swappiness: u8) -> bool {
        let (cost, other_cost) = (self.cost(swappiness), other.cost(swappiness));
        match (self.surplus() > 0, other.surplus() > 0) {
            (true, true) => self.surplus() * other_cost > other.surplus() * cost,
            (true, false) => true,
            (false, true) => false,
            (false, false) => self.surplus() * cost > other.surplus() * other_cost,
        }
    }

    fn age(&self, now: u64) -> i128 {
        now.saturating_sub(self.coldness.since).into()
    }

    /// Whether its coldest protected page is older, in what that costs.
    fn is_older(&self, other: &Self, (now, swappiness): (u64, u8)) -> bool {
        self.age(now) * other.cost(swappiness) > other.age(now) * self.cost(swappiness)
    }
}

/// The best two of some.
fn best_two<T: Copy>(
    all: impl Iterator<Item = T>,
    is_better: impl Fn(&T, &T) -> bool,
) -> Option<(T, Option<T>)> {
    all.fold(None, |best, one| match best {
        None => Some((one, None)),
        Some((first, _)) if is_better(&one, &first) => Some((one, Some(first))),
        Some((first, None)) => Some((first, Some(one))),
        Some((first, Some(second))) if is_better(&one, &second) => Some((first, Some(one))),
        kept => kept,
    })
}

/// Chooses among members; `None` where none of them has a page. `surplus` is what probation has
/// beyond its targets in all, `now` the moment by the clock that `since` is of.
///
/// At a swappiness of 0 files alone give while they have pages, at [`MAX_SWAPPINESS`] anon pages.
/// Cost: two passes.
pub fn choose<K: Copy>(
    members: impl Iterator<Item = Member<K>> + Clone,
    surplus: i64,
    (now, swappiness): (u64, u8),
) -> Option<(Member<K>, Part)> {
    let swappiness = swappiness.min(MAX_SWAPPINESS);
    let only = match swappiness {
        0 => Some(PageType::File),
        MAX_SWAPPINESS => Some(PageType::Anon),
        _ => None,
    };
    let all = members.filter(|member| member.coldness.nr_frames() > 0);
    let has_only = only.is_some_and(|only| all.clone().any(|member| member.page_type == only));
    let members = all.filter(|member| !has_only || Some(member.page_type) == only);
    let fullest = || {
        let probation = members.clone().filter(|one| one.coldness.nr_probation > 0);
        let (first, second) = best_two(probation, |a, b| a.is_fuller(b, swappiness))?;
        // Down to the next one's level, and while all of it is over its targets.
        let next = second.map_or(0, |next| next.as_of(next.surplus(), &first, swappiness));
        let level = next.max(first.surplus() - i128::from(surplus) - 1).max(0);
        let part = Part {
            page_type: first.page_type,
            class: Class::Probation,
            down_to: i64::try_from(level).unwrap_or(0),
            before: 0,
        };
        Some((first, part))
    };
    let oldest = || {
        let protected = members.clone().filter(|one| one.coldness.nr_protected > 0);
        let (first, second) = best_two(protected, |a, b| a.is_older(b, (now, swappiness)))?;
        let next = second.map_or(0, |next| next.as_of(next.age(now), &first, swappiness));
        let part = Part {
            page_type: first.page_type,
            class: Class::Protected,
            down_to: 0,
            before: now.saturating_sub(u64::try_from(next).unwrap_or(u64::MAX)),
        };
        Some((first, part))
    };
    match surplus >= 0 {
        true => fullest().or_else(oldest),
        false => oldest().or_else(fullest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(key: u8, page_type: PageType, sizes: [u32; 3], since: u64) -> Member<u8> {
        let [nr_probation, nr_protected, target] = sizes;
        let coldness = Coldness {
            nr_probation,
            nr_protected,
            target,
            since,
        };
        Member {
            key,
            page_type,
            coldness,
        }
    }

    fn file(key: u8, sizes: [u32; 3], since: u64) -> Member<u8> {
        member(key, PageType::File, sizes, since)
    }

    fn chosen(members: &[Member<u8>], swappiness: u8) -> Option<(u8, Class)> {
        let surplus = members.iter().map(|member| member.coldness.surplus()).sum();
        let chosen = choose(members.iter().copied(), surplus, (1000, swappiness));
        chosen.map(|(member, part)| (member.key, part.class))
    }

    #[test]
    fn the_fullest_probation_gives_while_all_of_it_is_over_target() {
        let (a, b) = (file(1, [40, 60, 30], 0), file(2, [25, 75, 20], 500));
        assert_eq!(chosen(&[a, b], 100), Some((1, Class::Probation)));
        let c = file(3, [1, 100, 17], 900);
        // 10 + 5 - 16: under target as a whole, so the oldest protected page goes.
        assert_eq!(chosen(&[b, a, c], 100), Some((1, Class::Protected)));
    }

    #[test]
    fn who_has_none_of_a_class_does_not_give_of_it() {
        let (a, b) = (file(1, [50, 0, 10], 0), file(2, [0, 50, 100], 900));
        assert_eq!(chosen(&[a, b], 100), Some((2, Class::Protected)));
        assert_eq!(chosen(&[a], 100), Some((1, Class::Probation)));
        assert_eq!(chosen(&[file(1, [0, 0, 1], 0)], 100), None);
        assert_eq!(
            chosen(&[file(1, [9, 0, 10], 0)], 100),
            Some((1, Class::Probation))
        );
    }

    #[test]
    fn a_dear_type_counts_as_younger() {
        let old = member(1, PageType::Anon, [1, 50, 9], 200);
        let young = file(2, [1, 50, 9], 400);
        // 800 / (200 - s) against 600 / s.
        let at = |swappiness| chosen(&[old, young], swappiness).unwrap().0;
        assert_eq!([0, 60, 85, 86, 100, 200].map(at), [2, 2, 2, 1, 1, 1]);
    }

    #[test]
    fn swappiness_never_makes_files_more_likely() {
        let anon = member(1, PageType::Anon, [30, 50, 20], 300);
        for file in [[40, 60, 10], [5, 60, 40], [0, 60, 40], [40, 0, 40]] {
            let file = self::file(2, file, 500);
            let took_anon = |swappiness| chosen(&[anon, file], swappiness).unwrap().0 == 1;
            for swappiness in 0..200 {
                assert!(
                    !took_anon(swappiness) || took_anon(swappiness + 1),
                    "{swappiness}"
                );
            }
        }
    }
}
