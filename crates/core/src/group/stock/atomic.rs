//! The stock line of one CPU: words of (group, pages), seven or one, and a word of counts.
//!
//! Every move is one compare-and-swap or one exchange, by any thread: a thread that moved to
//! another CPU, or a drain from elsewhere, makes a move fail or find less, never wrong.

use super::Surplus;
use crate::sync::{AtomicU64, Ordering};

/// Groups whose pages one CPU's line can hold. Loom explores every word there is: it gets few.
pub const NR_SLOTS: usize = if cfg!(loom) { 2 } else { 7 };

/// Pre-charged pages of up to `N` groups on one CPU.
#[derive(Debug)]
pub struct Line<const N: usize> {
    /// Group id in the high half, pages in the low one; no pages: the word is free to take.
    slots: [AtomicU64; N],
    /// Charges served in the upper bits, turns of [`Line::turn`] in the lower ones. Loaded and
    /// stored: a count that two threads race for is off by one.
    counts: AtomicU64,
}

/// The line that most charges find their pages in. 64 bytes.
pub type StockLine = Line<NR_SLOTS>;

/// Bits of `counts` for the turns.
const TURN_BITS: u32 = 16;
/// A group without a slot in a full line gets one in one of so many tries: more groups than slots
/// that charge in turn would else drive each other out each time.
const TRIES: u64 = 32;

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<StockLine>() == 64);

fn pack(group: u32, nr_pages: u32) -> u64 {
    u64::from(group) << 32 | u64::from(nr_pages)
}

fn unpack(word: u64) -> Surplus {
    Surplus {
        group: (word >> 32) as u32,
        nr_pages: (word & 0xFFFF_FFFF) as u32,
    }
}

impl<const N: usize> Default for Line<N> {
    fn default() -> Self {
        Line {
            slots: core::array::from_fn(|_| AtomicU64::new(0)),
            counts: AtomicU64::new(0),
        }
    }
}

impl<const N: usize> Line<N> {
    /// Takes `nr_pages` of `group` out of the line. One read-modify-write where it succeeds.
    #[inline]
    pub fn consume(&self, group: u32, nr_pages: u32) -> bool {
        for slot in &self.slots {
            let word = slot.load(Ordering::Relaxed);
            let held = unpack(word);
            if held.group != group || held.nr_pages < nr_pages {
                continue;
            }
            let left = pack(group, held.nr_pages - nr_pages);
            // Relaxed: the word carries all that it says, and orders nothing else.
            if slot
                .compare_exchange(word, left, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                let counts = self.counts.load(Ordering::Relaxed);
                let more = counts.wrapping_add(1 << TURN_BITS);
                self.counts.store(more, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Takes as many blocks of `unit` pages of a group as the line has, up to `most`; returns how
    /// many. One read-modify-write, none where it has no block or somebody interferes.
    pub fn consume_blocks(&self, group: u32, unit: u32, most: u32) -> u32 {
        for slot in &self.slots {
            let word = slot.load(Ordering::Relaxed);
            let held = unpack(word);
            let nr_blocks = (held.nr_pages / unit).min(most);
            if held.group != group || nr_blocks == 0 {
                continue;
            }
            let left = pack(group, held.nr_pages - nr_blocks * unit);
            // Relaxed: as in `consume`.
            let done = slot.compare_exchange(word, left, Ordering::Relaxed, Ordering::Relaxed);
            return if done.is_ok() { nr_blocks } else { 0 };
        }
        0
    }

    /// Charges that the line served, about.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.counts.load(Ordering::Relaxed) >> TURN_BITS
    }

    /// Counts a try of a group without a slot; the victim, where the line now changes hands.
    fn turn(&self) -> Option<&AtomicU64> {
        let counts = self.counts.load(Ordering::Relaxed);
        let (turn, mask) = (counts & ((1 << TURN_BITS) - 1), (1 << TURN_BITS) - 1);
        let next = counts & !mask | (turn + 1) & mask;
        self.counts.store(next, Ordering::Relaxed);
        let victim = usize::try_from(turn / TRIES % N as u64).expect("below N");
        turn.is_multiple_of(TRIES).then(|| &self.slots[victim])
    }

    /// Whether a batch for a group would find a place: its own slot, a free one, or, in one of
    /// [`TRIES`] tries, a victim's.
    #[must_use]
    pub fn takes(&self, group: u32) -> bool {
        let mut slots = self
            .slots
            .iter()
            .map(|slot| unpack(slot.load(Ordering::Relaxed)));
        let is_due = |counts: u64| (counts & ((1 << TURN_BITS) - 1)).is_multiple_of(TRIES);
        let has_place = slots.any(|held| held.group == group || held.nr_pages == 0)
            || is_due(self.counts.load(Ordering::Relaxed));
        if !has_place {
            self.turn();
        }
        has_place
    }

    /// Puts charged pages into the line; a slot keeps at most `batch`, and half of that where it
    /// would be more. Returns what must be uncharged instead: the excess, what a victim held, or
    /// all of it where the line is full and keeps its groups.
    ///
    /// AcqRel where it puts pages in pairs with itself in [`Line::publish`].
    #[inline]
    pub fn refill(&self, group: u32, nr_pages: u32, batch: u32) -> Option<Surplus> {
        let mut empty = None;
        for slot in &self.slots {
            let word = slot.load(Ordering::Relaxed);
            let held = unpack(word);
            if held.nr_pages == 0 {
                empty = empty.or(Some((slot, word)));
            }
            if held.group != group {
                continue;
            }
            let total = held.nr_pages + nr_pages;
            // Half a batch: a run of frees would else take every page to the counters.
            let kept = if total > batch { batch / 2 } else { total };
            let new = pack(group, kept);
            if slot
                .compare_exchange(word, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                let excess = Surplus {
                    group,
                    nr_pages: total - kept,
                };
                return (total > kept).then_some(excess);
            }
        }
        let kept = nr_pages.min(batch);
        let own = (nr_pages > kept).then_some(Surplus {
            group,
            nr_pages: nr_pages - kept,
        });
        let new = pack(group, kept);
        if let Some((slot, word)) = empty
            && slot
                .compare_exchange(word, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            return own;
        }
        if own.is_some() {
            // Two surpluses cannot be told at once: keep nothing of an oversized refill.
            return Some(Surplus { group, nr_pages });
        }
        let Some(victim) = self.turn() else {
            return Some(Surplus { group, nr_pages });
        };
        let out = unpack(victim.swap(new, Ordering::AcqRel));
        (out.nr_pages > 0).then_some(out)
    }

    /// Makes what this thread wrote before seen by every later refill, and sees every earlier one.
    pub fn publish(&self) {
        for slot in &self.slots {
            // An exchange that changes nothing. AcqRel pairs with itself in `refill`.
            slot.fetch_add(0, Ordering::AcqRel);
        }
    }

    /// Takes out all pages of the groups that `wanted` names, one exchange for each slot that
    /// holds some and none for the others; `uncharge` gets each.
    pub fn drain(&self, wanted: impl Fn(u32) -> bool, mut uncharge: impl FnMut(Surplus)) {
        // Most lines are empty, and one question to all slots is cheaper than one to each.
        let add = |all, slot: &AtomicU64| all | slot.load(Ordering::Relaxed);
        if unpack(self.slots.iter().fold(0, add)).nr_pages == 0 {
            return;
        }
        for slot in &self.slots {
            let seen = unpack(slot.load(Ordering::Relaxed));
            if seen.nr_pages == 0 || !wanted(seen.group) {
                continue;
            }
            // The owner may have put another group there meanwhile: what came out counts.
            let out = unpack(slot.swap(0, Ordering::Relaxed));
            if out.nr_pages > 0 {
                uncharge(out);
            }
        }
    }

    /// Pages that the line holds for the groups that `wanted` names.
    pub fn held(&self, wanted: impl Fn(u32) -> bool) -> u32 {
        let slots = self
            .slots
            .iter()
            .map(|slot| unpack(slot.load(Ordering::Relaxed)));
        slots
            .filter(|held| wanted(held.group))
            .map(|held| held.nr_pages)
            .sum()
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn consume_takes_what_refill_left() {
        let line = StockLine::default();
        assert_eq!(line.refill(7, 60, 64), None);
        assert!(line.consume(7, 50) && !line.consume(7, 11) && !line.consume(8, 1));
        assert!(line.consume(7, 10) && !line.consume(7, 1));
    }

    #[test]
    fn an_overflowing_refill_leaves_half_a_batch() {
        let line = StockLine::default();
        assert_eq!(line.refill(7, 60, 64), None);
        assert_eq!(
            line.refill(7, 10, 64),
            Some(Surplus {
                group: 7,
                nr_pages: 38
            })
        );
        assert_eq!(line.held(|group| group == 7), 32);
    }

    #[test]
    fn an_eighth_group_gets_a_victims_slot_in_one_of_many_tries() {
        let line = StockLine::default();
        for group in 1..=7 {
            assert_eq!(line.refill(group, group, 64), None);
        }
        assert_eq!(
            line.refill(8, 5, 64),
            Some(Surplus {
                group: 1,
                nr_pages: 1
            })
        );
        let own = Surplus {
            group: 9,
            nr_pages: 5,
        };
        for _ in 1..TRIES {
            assert_eq!(line.refill(9, 5, 64), Some(own));
        }
        assert!(line.takes(9));
        assert_eq!(
            line.refill(9, 5, 64),
            Some(Surplus {
                group: 2,
                nr_pages: 2
            })
        );
        assert_eq!(line.held(|_| true), 5 + 5 + 3 + 4 + 5 + 6 + 7);
    }

    #[test]
    fn a_full_line_says_beforehand_that_it_keeps_its_groups() {
        let line = StockLine::default();
        for group in 1..=7 {
            assert!(line.takes(group));
            assert_eq!(line.refill(group, group, 64), None);
        }
        let _first = line.refill(8, 5, 64);
        let tries = TRIES + 8;
        let told: u64 = (0..tries).map(|_| u64::from(line.takes(9))).sum();
        // The last try is told that it may, and stays the next until somebody refills.
        assert_eq!(told, tries - (TRIES - 1));
        assert!((2..=8).all(|group| line.takes(group)));
    }

    #[test]
    fn hits_are_counted_beside_the_turns() {
        let line = StockLine::default();
        assert_eq!(line.refill(7, 60, 64), None);
        assert!(line.consume(7, 50) && line.consume(7, 3) && !line.consume(7, 8));
        assert_eq!(line.hits(), 2);
    }

    #[test]
    fn drain_returns_what_consume_left() {
        let line = StockLine::default();
        assert_eq!(
            (line.refill(1, 64, 64), line.refill(2, 9, 64)),
            (None, None)
        );
        assert!(line.consume(1, 4));
        let mut out = 0;
        line.drain(|group| group == 1, |surplus| out += surplus.nr_pages);
        assert_eq!((out, line.held(|_| true)), (60, 9));
    }

    #[test]
    fn nothing_is_lost_where_the_line_is_full_and_the_refill_too_large() {
        let line = StockLine::default();
        for group in 1..=7 {
            assert_eq!(line.refill(group, 1, 8), None);
        }
        assert_eq!(
            line.refill(8, 20, 8),
            Some(Surplus {
                group: 8,
                nr_pages: 20
            })
        );
        assert_eq!(line.held(|_| true), 7);
    }
}
