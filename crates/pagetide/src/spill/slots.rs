//! Which slots of a spill file are free.
//!
//! A bit for each slot, and a count for each cluster of them. A cluster is filled to its end before
//! another one is begun, so that pages that go together lie together; the next one is the first
//! that is half free, so that the file stays short.
//!
//! Source: the kernel's clusters of swap slots (`mm/swapfile.c`). Changed: one cursor for all CPUs,
//! because a write of up to 64 slots follows each look.

use std::ops::Range;

/// Slots of a cluster: 1 MiB, the unit in which the disk gets its space back.
pub(super) const CLUSTER: u32 = 256;
/// Bits of a word.
const WORD: u32 = u64::BITS;

/// The slots of one file.
#[derive(Debug)]
pub(super) struct Slots {
    /// A bit for each slot that is in use or beyond the last one.
    used: Vec<u64>,
    /// Free slots of each cluster.
    nr_free_of: Vec<u16>,
    /// Clusters that may have space on the disk: a slot was taken since the last hole.
    is_backed: Vec<bool>,
    /// Of these, the ones without a used slot.
    nr_idle: u32,
    nr_slots: u32,
    nr_free: u32,
    /// Where the next slots are looked for.
    next: u32,
}

fn at(number: u32) -> usize {
    usize::try_from(number).expect("64 bits")
}

impl Slots {
    /// All of them free.
    pub(super) fn new(nr_slots: u32) -> Slots {
        let nr_clusters = nr_slots.div_ceil(CLUSTER);
        let mut slots = Slots {
            used: vec![0; at(nr_clusters * (CLUSTER / WORD))],
            nr_free_of: vec![0; at(nr_clusters)],
            is_backed: vec![false; at(nr_clusters)],
            nr_idle: 0,
            nr_slots,
            nr_free: nr_slots,
            next: 0,
        };
        for slot in nr_slots..nr_clusters * CLUSTER {
            slots.used[at(slot / WORD)] |= 1 << (slot % WORD);
        }
        for cluster in 0..nr_clusters {
            let nr_free = (nr_slots - cluster * CLUSTER).min(CLUSTER);
            slots.nr_free_of[at(cluster)] = u16::try_from(nr_free).expect("a cluster is short");
        }
        slots
    }

    /// Bytes of the heap for so many slots.
    pub(super) fn bytes(nr_slots: u32) -> usize {
        at(nr_slots.div_ceil(CLUSTER)) * (at(CLUSTER) / 8 + size_of::<u16>() + 1)
    }

    pub(super) fn nr_used(&self) -> u32 {
        self.nr_slots - self.nr_free
    }

    fn is_free(&self, slot: u32) -> bool {
        self.used[at(slot / WORD)] >> (slot % WORD) & 1 == 0
    }

    fn nr_slots_of(&self, cluster: u32) -> u16 {
        let nr_slots = (self.nr_slots - cluster * CLUSTER).min(CLUSTER);
        u16::try_from(nr_slots).expect("a cluster is short")
    }

    fn is_empty(&self, cluster: u32) -> bool {
        self.nr_free_of[at(cluster)] == self.nr_slots_of(cluster)
    }

    /// Takes slots that follow each other: as many as there are in one place, up to `want`. `None`
    /// where no slot is free.
    ///
    /// O(clusters) where a cluster was filled, else O(slots of a cluster).
    pub(super) fn take(&mut self, want: u32) -> Option<Range<u32>> {
        let first = self.next_free().or_else(|| self.next_cluster())?;
        let end = (first / CLUSTER + 1) * CLUSTER;
        let mut past = first;
        while past < end && past - first < want && self.is_free(past) {
            past += 1;
        }
        self.take_all(first..past);
        self.next = past;
        Some(first..past)
    }

    fn take_all(&mut self, slots: Range<u32>) {
        let cluster = at(slots.start / CLUSTER);
        let is_first = self.is_empty(slots.start / CLUSTER);
        if is_first && self.is_backed[cluster] {
            self.nr_idle -= 1;
        }
        self.is_backed[cluster] = true;
        let nr_slots = slots.end - slots.start;
        self.nr_free -= nr_slots;
        self.nr_free_of[cluster] -= u16::try_from(nr_slots).expect("slots of one cluster");
        for slot in slots {
            self.used[at(slot / WORD)] |= 1 << (slot % WORD);
        }
    }

    /// The first free slot of the cluster that is being filled.
    fn next_free(&self) -> Option<u32> {
        let end = self.next.div_ceil(CLUSTER) * CLUSTER;
        (self.next..end).find(|&slot| self.is_free(slot))
    }

    /// The first free slot of the cluster to be filled next.
    fn next_cluster(&self) -> Option<u32> {
        let mut counts = self.nr_free_of.iter();
        let half_free = counts.position(|&nr_free| u32::from(nr_free) >= CLUSTER / 2);
        let any_free = || self.nr_free_of.iter().position(|&nr_free| nr_free > 0);
        let cluster = u32::try_from(half_free.or_else(any_free)?).expect("fewer than slots");
        let slots = cluster * CLUSTER..(cluster + 1) * CLUSTER;
        slots.into_iter().find(|&slot| self.is_free(slot))
    }

    /// Gives a slot back.
    ///
    /// # Panics
    /// Where it is free.
    pub(super) fn give(&mut self, slot: u32) {
        assert!(
            slot < self.nr_slots && !self.is_free(slot),
            "slot {slot} is free"
        );
        self.used[at(slot / WORD)] &= !(1 << (slot % WORD));
        self.nr_free += 1;
        let cluster = slot / CLUSTER;
        self.nr_free_of[at(cluster)] += 1;
        if self.is_empty(cluster) {
            self.nr_idle += 1;
        }
    }

    /// Takes a cluster that has space on the disk and nothing in it, so that a hole can be made of
    /// it; [`Slots::give_hole`] gives it back. O(clusters), one look where there is none.
    pub(super) fn take_idle(&mut self) -> Option<Range<u32>> {
        if self.nr_idle == 0 {
            return None;
        }
        let clusters = 0..self.nr_slots.div_ceil(CLUSTER);
        // The last ones first: the first ones are used next.
        let mut idle = clusters.rev();
        let cluster = idle.find(|&one| self.is_backed[at(one)] && self.is_empty(one))?;
        let first = cluster * CLUSTER;
        let slots = first..first + u32::from(self.nr_slots_of(cluster));
        self.take_all(slots.clone());
        Some(slots)
    }

    /// Gives back what [`Slots::take_idle`] gave; whether it has no space on the disk any more.
    pub(super) fn give_hole(&mut self, slots: Range<u32>, is_hole: bool) {
        let cluster = slots.start / CLUSTER;
        slots.for_each(|slot| self.give(slot));
        if is_hole {
            self.is_backed[at(cluster)] = false;
            self.nr_idle -= 1;
        }
    }

    /// Asserts what the counts say. O(slots).
    ///
    /// # Panics
    /// Where they are wrong.
    #[cfg(test)]
    fn check(&self) {
        let nr_free = |cluster: u32| {
            let slots = cluster * CLUSTER..(cluster + 1) * CLUSTER;
            slots.into_iter().filter(|&slot| self.is_free(slot)).count()
        };
        let clusters = 0..self.nr_slots.div_ceil(CLUSTER);
        for cluster in clusters.clone() {
            let counted = usize::from(self.nr_free_of[at(cluster)]);
            assert_eq!(nr_free(cluster), counted, "of cluster {cluster}");
        }
        let sum: usize = clusters.clone().map(nr_free).sum();
        assert_eq!(sum, at(self.nr_free));
        let idle = clusters.filter(|&one| self.is_backed[at(one)] && self.is_empty(one));
        assert_eq!(idle.count(), at(self.nr_idle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn slots_follow_each_other_and_a_cluster_is_filled_first() {
        let mut slots = Slots::new(1000);
        assert_eq!(slots.take(64), Some(0..64));
        assert_eq!(slots.take(190), Some(64..254));
        slots.give(10);
        assert_eq!(slots.take(64), Some(254..256), "to the end of the cluster");
        assert_eq!(slots.take(64), Some(256..320), "not the one free slot");
        slots.check();
    }

    #[test]
    fn the_last_free_slots_are_found_wherever_they_are() {
        let mut slots = Slots::new(CLUSTER + 3);
        while slots.take(64).is_some() {}
        assert_eq!(slots.nr_used(), CLUSTER + 3);
        [5, CLUSTER + 2]
            .into_iter()
            .for_each(|slot| slots.give(slot));
        let mut found = [slots.take(9), slots.take(9)].map(Option::unwrap);
        found.sort_by_key(|slots| slots.start);
        assert_eq!(found, [5..6, CLUSTER + 2..CLUSTER + 3]);
        assert_eq!(slots.take(1), None);
        slots.check();
    }

    #[test]
    fn an_empty_cluster_is_made_a_hole_once() {
        let mut slots = Slots::new(4 * CLUSTER);
        assert_eq!(slots.take_idle(), None, "nothing was written");
        for _ in 0..8 {
            slots.take(64);
        }
        (CLUSTER..2 * CLUSTER).for_each(|slot| slots.give(slot));
        slots.give(0);
        let hole = slots.take_idle().unwrap();
        assert_eq!(hole, CLUSTER..2 * CLUSTER);
        assert_eq!(slots.take_idle(), None);
        slots.give_hole(hole, true);
        assert_eq!(slots.take_idle(), None, "it is one already");
        slots.check();
    }

    proptest! {
        #[test]
        fn no_slot_has_two_owners(
            nr_slots in 1_u32..1500,
            steps in prop::collection::vec((0_u8..4, 1_u32..70, any::<u32>()), 1..200),
        ) {
            let (mut slots, mut mine) = (Slots::new(nr_slots), BTreeSet::new());
            for (what, want, random) in steps {
                match what {
                    0 | 1 => match slots.take(want) {
                        Some(taken) => {
                            prop_assert!(taken.end - taken.start <= want);
                            for slot in taken {
                                prop_assert!(slot < nr_slots && mine.insert(slot));
                            }
                        }
                        None => prop_assert_eq!(mine.len(), at(nr_slots)),
                    },
                    2 => {
                        let from = random % nr_slots;
                        let some = mine.range(from..).copied().take(at(want) * 4);
                        let some: Vec<u32> = some.collect();
                        for slot in some {
                            mine.remove(&slot);
                            slots.give(slot);
                        }
                    }
                    _ => {
                        if let Some(hole) = slots.take_idle() {
                            prop_assert!(mine.range(hole.clone()).next().is_none());
                            slots.give_hole(hole, random % 2 == 0);
                        }
                    }
                }
                slots.check();
                prop_assert_eq!(at(slots.nr_used()), mine.len());
            }
        }
    }
}
