//! The byte line of one CPU: words of (group, bytes) and of (group, item, delta).
//!
//! As the stock line, every move is one compare-and-swap or one exchange, by any thread.

use super::{InHand, Item, NR_ITEMS, Out, PAGE, Sink, carry};
use crate::sync::{AtomicU64, Ordering};

/// Groups whose bytes one CPU's line can hold, each at most a page. Loom gets few.
pub const NR_BYTE_WORDS: usize = if cfg!(loom) { 1 } else { 4 };
/// Statistics that one CPU's line can hold.
const NR_STATE_WORDS: usize = if cfg!(loom) { 1 } else { 3 };
/// As of the stock line: a group without a word in a full line gets one in one of so many tries.
const TRIES: u64 = 8;
/// Bits of `counts` for the turns of bytes, and as many for those of statistics.
const TURN_BITS: u32 = 8;

/// Bytes of charged pages, and changes of statistics, on one CPU. 64 bytes.
#[derive(Debug)]
pub struct ByteLine {
    /// Group id in the high half, bytes in the low one.
    bytes: [AtomicU64; NR_BYTE_WORDS],
    /// Group id in the high half, then the item, then a signed delta; no delta: free to take.
    states: [AtomicU64; NR_STATE_WORDS],
    /// Charges served, turns of statistics, turns of bytes. Loaded and stored, as in the stock
    /// line.
    counts: AtomicU64,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<ByteLine>() == 64);

/// Bits of a state word for the delta.
const DELTA_BITS: u32 = 24;
const _: () = assert!(2 * PAGE < 1 << (DELTA_BITS - 1) && NR_ITEMS <= 1 << (32 - DELTA_BITS));

fn pack(group: u32, nr_bytes: u32) -> u64 {
    u64::from(group) << 32 | u64::from(nr_bytes)
}

fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, (word & 0xFFFF_FFFF) as u32)
}

fn pack_state(group: u32, item: Item, delta: i32) -> u64 {
    let delta = delta.cast_unsigned() & ((1 << DELTA_BITS) - 1);
    pack(group, (item as u32) << DELTA_BITS | delta)
}

/// `None` where the word is free.
fn unpack_state(word: u64) -> Option<(u32, Item, i32)> {
    let (group, low) = unpack(word);
    // Moved up and down again: the sign fills the upper bits.
    let delta = (low << (32 - DELTA_BITS)).cast_signed() >> (32 - DELTA_BITS);
    let item = Item::ALL[crate::units::index(low >> DELTA_BITS)];
    (delta != 0).then_some((group, item, delta))
}

fn send_bytes(word: u64, out: Sink<'_>) {
    let (group, nr_bytes) = unpack(word);
    if nr_bytes > 0 {
        out(Out::Bytes { group, nr_bytes });
    }
}

fn send_state(word: u64, out: Sink<'_>) {
    if let Some((group, item, delta)) = unpack_state(word) {
        out(Out::State { group, item, delta });
    }
}

/// Puts a word in the place of the one seen. AcqRel pairs with itself in [`ByteLine::publish`].
fn put(word: &AtomicU64, seen: u64, new: u64) -> bool {
    word.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

impl Default for ByteLine {
    fn default() -> Self {
        ByteLine {
            bytes: core::array::from_fn(|_| AtomicU64::new(0)),
            states: core::array::from_fn(|_| AtomicU64::new(0)),
            counts: AtomicU64::new(0),
        }
    }
}

impl ByteLine {
    /// Takes bytes of a group out. One read-modify-write where it succeeds.
    #[inline]
    pub fn consume(&self, group: u32, nr_bytes: u32) -> bool {
        for place in &self.bytes {
            let word = place.load(Ordering::Relaxed);
            let (holder, held) = unpack(word);
            if holder != group || held < nr_bytes {
                continue;
            }
            let left = pack(group, held - nr_bytes);
            // Relaxed: the word carries all that it says, and orders nothing else.
            if place
                .compare_exchange(word, left, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                let counts = self.counts.load(Ordering::Relaxed);
                let more = counts.wrapping_add(1 << (2 * TURN_BITS));
                self.counts.store(more, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Charges that the line served, about.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.counts.load(Ordering::Relaxed) >> (2 * TURN_BITS)
    }

    /// Puts bytes of charged pages in, at most a page; a word keeps at most a page.
    ///
    /// Returns whole pages of the group that are to be given back. A group that takes a word brings
    /// what `parked` has; where the line is full and keeps its groups, its bytes go to `out`, as
    /// do those of a victim. One read-modify-write, and that of `parked`.
    #[inline]
    pub fn refill(
        &self,
        group: u32,
        nr_bytes: u32,
        parked: impl FnOnce() -> u32,
        out: Sink<'_>,
    ) -> u32 {
        for place in &self.bytes {
            let word = place.load(Ordering::Relaxed);
            let (holder, held) = unpack(word);
            if holder == group {
                let (kept, nr_pages) = carry(held + nr_bytes);
                if put(place, word, pack(group, kept)) {
                    return nr_pages;
                }
            }
        }
        self.take_word(group, nr_bytes, parked, out)
    }

    #[cold]
    fn take_word(
        &self,
        group: u32,
        nr_bytes: u32,
        parked: impl FnOnce() -> u32,
        out: Sink<'_>,
    ) -> u32 {
        let (kept, nr_pages) = carry(nr_bytes + parked());
        let new = pack(group, kept);
        for place in &self.bytes {
            let word = place.load(Ordering::Relaxed);
            if unpack(word).1 == 0 && put(place, word, new) {
                return nr_pages;
            }
        }
        match self.turn(0, &self.bytes) {
            Some(victim) => send_bytes(victim.swap(new, Ordering::AcqRel), out),
            None => send_bytes(new, out),
        }
        nr_pages
    }

    /// Changes a statistic of a group by at most a page. More than a page of change goes to `out`.
    ///
    /// One read-modify-write; where the line changes hands, `in_hand` is told.
    #[inline]
    pub fn mod_state(
        &self,
        (group, item, delta): (u32, Item, i32),
        in_hand: &InHand,
        out: Sink<'_>,
    ) {
        for place in &self.states {
            let word = place.load(Ordering::Relaxed);
            let Some((holder, of, held)) = unpack_state(word) else {
                continue;
            };
            if (holder, of) != (group, item) {
                continue;
            }
            let total = held + delta;
            let is_due = total.unsigned_abs() > PAGE;
            let kept = if is_due { 0 } else { total };
            if put(place, word, pack_state(group, item, kept)) {
                if is_due {
                    let delta = total;
                    out(Out::State { group, item, delta });
                }
                return;
            }
        }
        self.take_state(pack_state(group, item, delta), in_hand, out);
    }

    fn take_state(&self, new: u64, in_hand: &InHand, out: Sink<'_>) {
        for place in &self.states {
            let word = place.load(Ordering::Relaxed);
            if unpack_state(word).is_none() && put(place, word, new) {
                return;
            }
        }
        match self.turn(TURN_BITS, &self.states) {
            Some(victim) => {
                let _taking = in_hand.begin();
                send_state(victim.swap(new, Ordering::AcqRel), out);
            }
            None => send_state(new, out),
        }
    }

    /// Counts a try of a group without a word; the victim, where one changes hands.
    fn turn<'a>(&self, shift: u32, words: &'a [AtomicU64]) -> Option<&'a AtomicU64> {
        let counts = self.counts.load(Ordering::Relaxed);
        let mask = ((1 << TURN_BITS) - 1) << shift;
        let turn = (counts & mask) >> shift;
        let next = counts & !mask | counts.wrapping_add(1 << shift) & mask;
        self.counts.store(next, Ordering::Relaxed);
        let victim = usize::try_from(turn / TRIES).expect("few bits") % words.len();
        turn.is_multiple_of(TRIES).then(|| &words[victim])
    }

    /// Makes what this thread wrote before seen by every later refill, and sees every earlier one.
    pub fn publish(&self) {
        for word in self.bytes.iter().chain(&self.states) {
            // An exchange that changes nothing. AcqRel pairs with itself in `put` and the swaps.
            word.fetch_add(0, Ordering::AcqRel);
        }
    }

    /// Takes out everything of the groups that `wanted` names, one exchange for each word that
    /// holds something of them and none for the others. Statistics first: bytes keep their group.
    /// `in_hand` is told of statistics.
    pub fn drain(&self, wanted: impl Fn(u32) -> bool, in_hand: &InHand, out: Sink<'_>) {
        // Most lines are empty: one question to all words first, whose counts are below the item.
        let words = self.bytes.iter().chain(&self.states);
        let all = words.fold(0, |all, word| all | word.load(Ordering::Relaxed));
        if all & ((1 << DELTA_BITS) - 1) == 0 {
            return;
        }
        let is_wanted = |group: u32, is_held: bool| is_held && wanted(group);
        for place in &self.states {
            let word = place.load(Ordering::Relaxed);
            if is_wanted(unpack(word).0, unpack_state(word).is_some()) {
                let _taking = in_hand.begin();
                send_state(place.swap(0, Ordering::Relaxed), out);
            }
        }
        for place in &self.bytes {
            let (group, nr_bytes) = unpack(place.load(Ordering::Relaxed));
            if is_wanted(group, nr_bytes > 0) {
                send_bytes(place.swap(0, Ordering::Relaxed), out);
            }
        }
    }

    /// Bytes that the line holds for the groups that `wanted` names.
    pub fn held(&self, wanted: impl Fn(u32) -> bool) -> u32 {
        let words = self
            .bytes
            .iter()
            .map(|word| unpack(word.load(Ordering::Relaxed)));
        words
            .filter(|&(group, _)| wanted(group))
            .map(|(_, nr_bytes)| nr_bytes)
            .sum()
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    const A: Item = Item::SlabReclaimable;
    const B: Item = Item::SlabUnreclaimable;

    fn outs(work: impl FnOnce(Sink<'_>)) -> Vec<Out> {
        let mut outs = Vec::new();
        work(&mut |out| outs.push(out));
        outs
    }

    fn state(group: u32, item: Item, delta: i32) -> Out {
        Out::State { group, item, delta }
    }

    #[test]
    fn consume_takes_from_its_own_group_only_and_never_more_than_there_is() {
        let line = ByteLine::default();
        assert_eq!(line.refill(7, 4000, || 0, &mut |_| ()), 0);
        assert!(line.consume(7, 100) && !line.consume(8, 1) && !line.consume(7, 3901));
        assert_eq!((line.held(|_| true), line.hits()), (3900, 1));
    }

    #[test]
    fn a_word_keeps_a_page_and_gives_back_what_is_more() {
        let line = ByteLine::default();
        assert_eq!(line.refill(7, 4000, || 0, &mut |_| ()), 0);
        assert_eq!(line.refill(7, 96, || 9, &mut |_| ()), 0);
        assert_eq!(line.held(|_| true), 4096);
        assert_eq!(line.refill(7, 1, || 9, &mut |_| ()), 1);
        assert_eq!(line.held(|_| true), 1);
        // What was parked comes with a word of its own only.
        assert_eq!(line.refill(8, 4095, || 4095, &mut |_| ()), 1);
        assert_eq!(line.held(|group| group == 8), 4094);
    }

    #[test]
    fn a_fifth_group_is_sent_on_or_takes_a_victims_word() {
        let line = ByteLine::default();
        for group in 1..=4 {
            assert_eq!(line.refill(group, 10, || 0, &mut |_| ()), 0);
        }
        let bytes = |group, nr_bytes| Out::Bytes { group, nr_bytes };
        let fifth = || outs(|out| assert_eq!(line.refill(5, 20, || 1, out), 0));
        assert_eq!(fifth(), [bytes(1, 10)]);
        let sixth = || outs(|out| assert_eq!(line.refill(6, 20, || 1, out), 0));
        for _ in 1..8 {
            assert_eq!(sixth(), [bytes(6, 21)]);
        }
        assert_eq!(sixth(), [bytes(2, 10)]);
    }

    #[test]
    fn statistics_of_a_page_are_held_and_more_goes_out() {
        let line = ByteLine::default();
        let change = |group, item, delta| {
            outs(|out| line.mod_state((group, item, delta), &InHand::default(), out))
        };
        assert_eq!(change(7, A, 4096), []);
        assert_eq!(change(7, B, -4096), []);
        assert_eq!(change(7, A, 1), [state(7, A, 4097)]);
        assert_eq!(change(7, B, -1), [state(7, B, -4097)]);
        assert_eq!(change(7, B, -5), []);
        let drained = outs(|out| line.drain(|_| true, &InHand::default(), out));
        assert_eq!(drained, [state(7, B, -5)]);
    }

    #[test]
    fn a_drain_takes_the_bytes_and_statistics_of_its_groups() {
        let (line, in_hand) = (ByteLine::default(), &InHand::default());
        for group in [7, 8] {
            assert_eq!(line.refill(group, 30, || 0, &mut |_| ()), 0);
            line.mod_state((group, A, -3), in_hand, &mut |_| ());
        }
        let bytes = Out::Bytes {
            group: 7,
            nr_bytes: 30,
        };
        let drained = outs(|out| line.drain(|group| group == 7, in_hand, out));
        assert_eq!(drained, [state(7, A, -3), bytes]);
        assert_eq!(line.held(|_| true), 30);
    }

    #[test]
    fn statistics_are_said_to_be_in_hand_until_they_are_booked() {
        let (line, in_hand) = (ByteLine::default(), &InHand::default());
        let mut booked = Vec::new();
        let mut book = |out| booked.push((out, in_hand.is_any()));
        for group in 1..=3 {
            line.mod_state((group, A, 5), in_hand, &mut book);
        }
        // A victim's, its own, and what a drain finds.
        line.mod_state((4, A, 6), in_hand, &mut book);
        line.mod_state((5, A, 7), in_hand, &mut book);
        line.drain(|group| group == 2, in_hand, &mut book);
        let expected = [
            (state(1, A, 5), true),
            (state(5, A, 7), false),
            (state(2, A, 5), true),
        ];
        assert_eq!(booked, expected);
        assert!(!in_hand.is_any());
    }
}
