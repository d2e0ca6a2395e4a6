//! A spill file: slots for the units of 4 KiB of all regions' pages. What has none is zeros.

use std::collections::BTreeMap;
use std::ops::Range;

/// Slots, of which each unit that was swapped out has one.
#[derive(Debug)]
pub(super) struct Spill {
    /// The stamp in each.
    slots: Vec<u64>,
    free: Vec<usize>,
    /// The slot of each unit, by region.
    places: BTreeMap<(usize, u64), usize>,
}

impl Spill {
    pub(super) fn new(nr_slots: u32) -> Spill {
        let nr_slots = pagetide_core::units::index(nr_slots);
        Spill {
            slots: vec![0; nr_slots],
            free: (0..nr_slots).collect(),
            places: BTreeMap::new(),
        }
    }

    /// What a read of units gives.
    pub(super) fn read(&self, region: usize, units: Range<u64>) -> impl Iterator<Item = u64> {
        units.map(move |unit| {
            let slot = self.places.get(&(region, unit));
            slot.map_or(0, |&slot| self.slots[slot])
        })
    }

    pub(super) fn has(&self, region: usize, units: Range<u64>) -> bool {
        let mut found = self
            .places
            .range((region, units.start)..(region, units.end));
        found.next().is_some()
    }

    /// Writes the first `nr_landed` of the units, to slots anew; whether there was one for each.
    pub(super) fn write(
        &mut self,
        region: usize,
        (units, nr_landed): (Range<u64>, usize),
        stamp: u64,
    ) -> bool {
        self.give(region, units.clone());
        for unit in units.take(nr_landed) {
            let Some(slot) = self.free.pop() else {
                return false;
            };
            self.slots[slot] = stamp;
            self.places.insert((region, unit), slot);
        }
        true
    }

    /// Gives the slots of units back.
    pub(super) fn give(&mut self, region: usize, units: Range<u64>) {
        let all = self
            .places
            .range((region, units.start)..(region, units.end));
        let all: Vec<(usize, u64)> = all.map(|(&unit, _)| unit).collect();
        for unit in all {
            self.free.extend(self.places.remove(&unit));
        }
    }

    pub(super) fn nr_used(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
