//! Where the pages of one region lie in the spill file.
//!
//! A word for each 4 KiB that was ever written, in leaves of 128. A leaf is made, and charged,
//! before a page of it is changed for the first time: so swapping out needs no memory. Where such a
//! change then fails, the page is forgotten, unless somebody else is about to change it or did.

use crate::shared::locked;
use crate::{ByteSize, Error, Reservation};
use pagetide_core::memory::AllocError;
use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Words of a leaf.
const LEAF: usize = 128;
/// Bytes of the heap that a leaf takes, with its share of the tree's nodes.
const LEAF_BYTES: u64 = 4 * LEAF as u64 + 64;

/// It may have been written: its page may be dirty, or its bytes are in a slot.
const KNOWN: u32 = 1 << 31;
/// Its slot is being read.
const READING: u32 = 1 << 30;
/// Its slot goes when that read ends.
const DOOMED: u32 = 1 << 29;
/// Its number is that of a place in the pool of compressed pages, not of a slot.
const COMPRESSED: u32 = 1 << 28;
/// The number of its place and one; 0 for none.
const NUMBER: u32 = COMPRESSED - 1;

/// Slots that can be named, or places in the pool.
pub(super) const MAX_SLOTS: u32 = NUMBER - 1;

/// Where the bytes of a unit are that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has none but zeros.
    Nowhere,
    Slot(u32),
    /// In the pool of compressed pages.
    Compressed(u32),
}

#[derive(Debug)]
struct Leaf {
    words: [u32; LEAF],
    nr_known: u32,
}

/// Units that were not known before, and that somebody is about to change.
#[derive(Debug)]
struct Expected {
    /// Who is about to.
    nr_callers: u32,
    /// Somebody did.
    is_changed: bool,
}

/// The words, and what is expected of them.
#[derive(Debug, Default)]
struct Leaves {
    leaves: BTreeMap<u64, Box<Leaf>>,
    /// By the first unit: one for each page that somebody changes for the first time.
    expected: BTreeMap<u64, Expected>,
}

impl Leaves {
    fn get(&self, number: u64) -> Option<&Leaf> {
        self.leaves.get(&number).map(|leaf| &**leaf)
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Leaf> {
        self.leaves.get_mut(&number).map(|leaf| &mut **leaf)
    }

    fn is_known(&self, unit: u64) -> bool {
        let (number, word) = place(unit);
        let leaf = self.get(number);
        leaf.is_some_and(|leaf| leaf.words[word] & KNOWN != 0)
    }

    /// Counts one more who is about to change units; false where that makes no difference, because
    /// they stay known in any case.
    fn join(&mut self, first: u64) -> bool {
        let expected = self.expected.get_mut(&first);
        let joined = expected.map(|expected| expected.nr_callers += 1);
        joined.is_some()
    }

    /// Forgets units; returns how many, and the leaves that went with them.
    fn forget(&mut self, units: Range<u64>) -> (u32, u32) {
        let (mut nr_units, mut nr_leaves) = (0, 0);
        for unit in units {
            if !self.is_known(unit) {
                continue;
            }
            let (number, word) = place(unit);
            let leaf = self.get_mut(number).expect("it has a known unit");
            leaf.words[word] &= !KNOWN;
            leaf.nr_known -= 1;
            nr_units += 1;
            if leaf.nr_known == 0 {
                self.leaves.remove(&number);
                nr_leaves += 1;
            }
        }
        (nr_units, nr_leaves)
    }
}

/// What came of marking units as known.
enum Marked {
    /// Not yet: this leaf is missing.
    Missing(u64),
    /// They are. Counted, the caller has to say what became of it.
    Known { is_counted: bool },
}

/// The words of a region. Units of 4 KiB are counted from its beginning.
#[derive(Debug, Default)]
pub(super) struct SlotMap {
    leaves: Mutex<Leaves>,
}

fn place(unit: u64) -> (u64, usize) {
    let leaf = LEAF as u64;
    let word = usize::try_from(unit % leaf).expect("below the length of a leaf");
    (unit / leaf, word)
}

/// Gives back what leaves were charged; the caller may have the lock of the file.
fn shrink(records: &Reservation, nr_leaves: u32) {
    if nr_leaves > 0 {
        records.shrink_reclaiming(ByteSize(LEAF_BYTES * u64::from(nr_leaves)), false);
    }
}

/// The place that a word names.
fn named_by(word: u32) -> Place {
    match (word & NUMBER).checked_sub(1) {
        None => Place::Nowhere,
        Some(number) if word & COMPRESSED != 0 => Place::Compressed(number),
        Some(slot) => Place::Slot(slot),
    }
}

/// The place that a word names, if it is not on its way out.
fn place_of(word: u32) -> Place {
    match word & DOOMED {
        0 => named_by(word),
        _ => Place::Nowhere,
    }
}

/// Units whose leaves may be made for nothing: such go when this is dropped, by a shrinker that
/// unwinds, too.
struct Unused<'a> {
    map: &'a SlotMap,
    units: Range<u64>,
    records: &'a Reservation,
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        self.map.drop_unused(self.units.clone(), self.records);
    }
}

impl SlotMap {
    /// Makes room for the words of units that are about to be changed, charged to `records`: of
    /// all or none. `commit` says whether there may be so many more. It `may_reclaim` where the
    /// caller holds no latch and no lock of the file; the refusal is inside. True where the caller
    /// has to say what became of it ([`SlotMap::end_expected`]).
    ///
    /// # Errors
    /// What `commit` says.
    pub(super) fn expect(
        &self,
        units: Range<u64>,
        (records, may_reclaim): (&Reservation, bool),
        commit: impl Fn(u32) -> Result<(), Error>,
    ) -> Result<Result<bool, AllocError>, Error> {
        let unused = Unused {
            map: self,
            units: units.clone(),
            records,
        };
        let expected = self.try_expect(units, (records, may_reclaim), commit);
        if matches!(expected, Ok(Ok(_))) {
            mem::forget(unused);
        }
        expected
    }

    fn try_expect(
        &self,
        units: Range<u64>,
        (records, may_reclaim): (&Reservation, bool),
        commit: impl Fn(u32) -> Result<(), Error>,
    ) -> Result<Result<bool, AllocError>, Error> {
        loop {
            let number = match self.mark_known(units.clone(), &commit)? {
                Marked::Known { is_counted } => return Ok(Ok(is_counted)),
                Marked::Missing(number) => number,
            };
            if let Err(error) = records.grow_reclaiming(ByteSize(LEAF_BYTES), may_reclaim) {
                return Ok(Err(error));
            }
            let mut leaf = Some(Box::new(Leaf {
                words: [0; LEAF],
                nr_known: 0,
            }));
            let mut leaves = locked(&self.leaves);
            let make = || leaf.take().expect("called once");
            leaves.leaves.entry(number).or_insert_with(make);
            drop(leaves);
            if leaf.is_some() {
                // Somebody else was faster.
                shrink(records, 1);
            }
        }
    }

    /// Marks all of the units, where each has a leaf.
    fn mark_known(
        &self,
        units: Range<u64>,
        commit: &impl Fn(u32) -> Result<(), Error>,
    ) -> Result<Marked, Error> {
        let mut leaves = locked(&self.leaves);
        let mut nr_new = 0;
        for (number, word) in units.clone().map(place) {
            let Some(leaf) = leaves.get(number) else {
                return Ok(Marked::Missing(number));
            };
            nr_new += u32::from(leaf.words[word] & KNOWN == 0);
        }
        if nr_new > 0 {
            commit(nr_new)?;
            for (number, word) in units.clone().map(place) {
                let leaf = leaves.get_mut(number).expect("found above");
                leaf.nr_known += u32::from(leaf.words[word] & KNOWN == 0);
                leaf.words[word] |= KNOWN;
            }
        }
        // Not before: who is refused is nobody who is about to.
        let mut is_counted = leaves.join(units.start);
        if nr_new > 0 && !is_counted {
            let expected = Expected {
                nr_callers: 1,
                is_changed: false,
            };
            leaves.expected.insert(units.start, expected);
            is_counted = true;
        }
        Ok(Marked::Known { is_counted })
    }

    /// [`SlotMap::expect`] of units that are known already; `None` where they are not.
    pub(super) fn expect_known(&self, units: Range<u64>) -> Option<bool> {
        let mut leaves = locked(&self.leaves);
        let mut all = units.clone();
        let are_known = all.all(|unit| leaves.is_known(unit));
        are_known.then(|| leaves.join(units.start))
    }

    /// What became of units that were expected, and counted. If nobody changed them and nobody is
    /// about to, they are forgotten: `uncommit` is told how many.
    pub(super) fn end_expected(
        &self,
        units: Range<u64>,
        is_changed: bool,
        records: &Reservation,
        uncommit: impl FnOnce(u32),
    ) {
        let mut leaves = locked(&self.leaves);
        let expected = leaves.expected.get_mut(&units.start);
        let expected = expected.expect("it was counted");
        expected.is_changed |= is_changed;
        let is_changed = expected.is_changed;
        expected.nr_callers -= 1;
        if expected.nr_callers > 0 {
            return;
        }
        leaves.expected.remove(&units.start);
        if !is_changed {
            SlotMap::forget_with(leaves, units, records, uncommit);
        }
    }

    fn forget_with(
        mut leaves: MutexGuard<'_, Leaves>,
        units: Range<u64>,
        records: &Reservation,
        uncommit: impl FnOnce(u32),
    ) {
        let (nr_units, nr_leaves) = leaves.forget(units);
        drop(leaves);
        uncommit(nr_units);
        // Last: who waits for memory is woken, and may unwind.
        shrink(records, nr_leaves);
    }

    /// Drops leaves of units that were made for nothing.
    fn drop_unused(&self, units: Range<u64>, records: &Reservation) {
        for number in units.start / LEAF as u64..units.end.div_ceil(LEAF as u64) {
            let mut leaves = locked(&self.leaves);
            if leaves.get(number).is_some_and(|leaf| leaf.nr_known == 0) {
                leaves.leaves.remove(&number);
                drop(leaves);
                shrink(records, 1);
            }
        }
    }

    /// Forgets units that nobody changes and that have no slots: `uncommit` is told how many.
    pub(super) fn forget(
        &self,
        units: Range<u64>,
        records: &Reservation,
        uncommit: impl FnOnce(u32),
    ) {
        let mut leaves = locked(&self.leaves);
        // Who is about to change them, and waits without the lock of the file, comes after that.
        if let Some(expected) = leaves.expected.get_mut(&units.start) {
            expected.is_changed = false;
        }
        SlotMap::forget_with(leaves, units, records, uncommit);
    }

    /// The first unit in a range that may have been written.
    pub(super) fn next_known(&self, units: Range<u64>) -> Option<u64> {
        let leaves = locked(&self.leaves);
        let numbers = units.start / LEAF as u64..units.end.div_ceil(LEAF as u64);
        let mut known = leaves.leaves.range(numbers).flat_map(|(number, leaf)| {
            let words = (number * LEAF as u64..).zip(leaf.words);
            words.filter(|(_, word)| word & KNOWN != 0)
        });
        known.find_map(|(unit, _)| units.contains(&unit).then_some(unit))
    }

    /// Where a unit is.
    pub(super) fn get(&self, unit: u64) -> Place {
        let (leaf, word) = place(unit);
        let leaves = locked(&self.leaves);
        let leaf = leaves.get(leaf);
        leaf.map_or(Place::Nowhere, |leaf| place_of(leaf.words[word]))
    }

    /// Whether one of the units has a place.
    pub(super) fn has_any(&self, mut units: Range<u64>) -> bool {
        units.any(|unit| self.get(unit) != Place::Nowhere)
    }

    /// Names the place of a unit that was expected and has none.
    ///
    /// # Panics
    /// Where it was not expected, or has one.
    pub(super) fn put(&self, unit: u64, at: Place) {
        let (leaf, word) = place(unit);
        let mut leaves = locked(&self.leaves);
        let leaf = leaves.get_mut(leaf).expect("expected before it changed");
        let word = &mut leaf.words[word];
        assert_eq!(*word, KNOWN, "a page that is written has no place");
        *word |= match at {
            Place::Nowhere => 0,
            Place::Slot(slot) => slot + 1,
            Place::Compressed(at) => COMPRESSED | (at + 1),
        };
    }

    /// Moves a unit from the pool to a slot; false where it is not there any more.
    pub(super) fn replace(&self, unit: u64, at: u32, slot: u32) -> bool {
        let (leaf, word) = place(unit);
        let mut leaves = locked(&self.leaves);
        let Some(leaf) = leaves.get_mut(leaf) else {
            return false;
        };
        let word = &mut leaf.words[word];
        let is_there = named_by(*word) == Place::Compressed(at);
        if is_there {
            *word = *word & !(COMPRESSED | NUMBER) | (slot + 1);
        }
        is_there
    }

    /// Takes the place of a unit away, and tells `give` a slot that can go now.
    pub(super) fn take(&self, unit: u64, give: impl FnOnce(u32)) {
        let (leaf, word) = place(unit);
        let mut leaves = locked(&self.leaves);
        let Some(leaf) = leaves.get_mut(leaf) else {
            return;
        };
        let word = &mut leaf.words[word];
        match place_of(*word) {
            Place::Nowhere => {}
            // Whoever reads it looks once more.
            Place::Compressed(_) => *word &= !(COMPRESSED | NUMBER),
            Place::Slot(slot) if *word & READING == 0 => {
                *word &= !NUMBER;
                give(slot);
            }
            Place::Slot(_) => *word |= DOOMED,
        }
    }

    /// Keeps the slots of units until [`SlotMap::end_read`]; whether they have any.
    pub(super) fn begin_read(&self, units: Range<u64>) -> bool {
        let mut has_any = false;
        for unit in units {
            let (leaf, word) = place(unit);
            let mut leaves = locked(&self.leaves);
            if let Some(leaf) = leaves.get_mut(leaf)
                && place_of(leaf.words[word]) != Place::Nowhere
            {
                leaf.words[word] |= READING;
                has_any = true;
            }
        }
        has_any
    }

    /// Keeps the slots of units until [`SlotMap::end_read`], and returns the first; `None` where
    /// they do not follow each other.
    pub(super) fn begin_read_of_slots(&self, units: Range<u64>) -> Option<u32> {
        let mut leaves = locked(&self.leaves);
        let place_at = |unit| {
            let (leaf, word) = place(unit);
            leaves.get(leaf).map(|leaf| place_of(leaf.words[word]))
        };
        let Some(Place::Slot(first)) = place_at(units.start) else {
            return None;
        };
        let mut slots = units.clone().zip(first..);
        if !slots.all(|(unit, slot)| place_at(unit) == Some(Place::Slot(slot))) {
            return None;
        }
        for (leaf, word) in units.map(place) {
            let leaf = leaves.get_mut(leaf).expect("its place was found above");
            leaf.words[word] |= READING;
        }
        Some(first)
    }

    /// Where a read under way finds a unit: in a slot, it stays there.
    pub(super) fn read_of(&self, unit: u64) -> Place {
        let (leaf, word) = place(unit);
        let leaves = locked(&self.leaves);
        let word = leaves.get(leaf).map_or(0, |leaf| leaf.words[word]);
        match word & READING {
            0 => Place::Nowhere,
            _ => named_by(word),
        }
    }

    /// Lets go of them; tells `give` which ones went meanwhile.
    pub(super) fn end_read(&self, units: Range<u64>, mut give: impl FnMut(u32)) {
        for unit in units {
            let (leaf, word) = place(unit);
            let mut leaves = locked(&self.leaves);
            let Some(leaf) = leaves.get_mut(leaf) else {
                continue;
            };
            let word = &mut leaf.words[word];
            if *word & DOOMED != 0 {
                give((*word & NUMBER) - 1);
                *word &= !NUMBER;
            }
            *word &= !(READING | DOOMED);
        }
    }

    /// Takes all slots away: nobody uses the region any more. Returns the units that were known.
    pub(super) fn take_all(&self, mut give: impl FnMut(u32)) -> u32 {
        let leaves = std::mem::take(&mut locked(&self.leaves).leaves);
        let mut nr_known = 0;
        for leaf in leaves.into_values() {
            nr_known += leaf.nr_known;
            for word in leaf.words {
                if let Place::Slot(slot) = named_by(word) {
                    give(slot);
                }
            }
        }
        nr_known
    }
}

#[cfg(test)]
mod tests;
