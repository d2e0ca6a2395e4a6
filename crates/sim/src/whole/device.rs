//! The bytes: what each frame holds, and disks whose operations take their time, fail, tear, and
//! lose what was not made durable.
//!
//! A page's content is a stamp, a number that grows with each change, so that of two versions the
//! later one is known.

use super::scenario::Plant;
use crate::random::Random;
use pagetide_core::frame::FrameTable;
use pagetide_core::memory::{Io, Write};
use pagetide_core::units::{Frame, Order, index};
use std::collections::BTreeMap;

/// What a failed read leaves, and a page of which a crash left a part.
pub(super) const TORN: u64 = u64::MAX;
/// The code of an operation that failed.
pub(super) const FAILED: u32 = 5;

/// An operation under way, of a file.
#[derive(Debug)]
pub(super) enum Pending {
    /// With what was stored when it began.
    Read(usize, Io, u64),
    Copy(usize, Io, u64),
    /// With the stamp that was in the frame when it began, and its store's own blocks.
    Write(usize, Write, u64, Vec<Frame>),
}

impl Pending {
    pub(super) fn file(&self) -> usize {
        match self {
            Pending::Read(file, ..) | Pending::Copy(file, ..) | Pending::Write(file, ..) => *file,
        }
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self, Pending::Write(..))
    }
}

/// A page of a store.
#[derive(Clone, Debug, Default)]
struct Stored {
    /// What is there whatever happens.
    durable: u64,
    /// What was written since, the last one last.
    unsynced: Vec<u64>,
}

impl Stored {
    fn now(&self) -> u64 {
        self.unsynced.last().copied().unwrap_or(self.durable)
    }
}

/// Stores that survive a crash.
#[derive(Debug)]
pub(super) struct Disk {
    random: Random,
    stores: Vec<BTreeMap<u64, Stored>>,
    /// What syncs said to be durable.
    promised: Vec<BTreeMap<u64, u64>>,
    /// One operation in so many fails; 0: none.
    pub(super) fails_one_in: u8,
    /// Reads that ended.
    pub(super) nr_reads: u64,
    /// Times that somebody was told of a read that failed.
    pub(super) nr_read_errors: u64,
    /// Reads ahead that were begun.
    pub(super) nr_ahead: u64,
    /// Anon pages that were written to slots, and read back.
    pub(super) nr_swapped_out: u64,
    pub(super) nr_swapped_in: u64,
}

impl Disk {
    pub(super) fn new(seed: u64, nr_files: usize) -> Disk {
        Disk {
            random: Random::new(usize::try_from(seed ^ 0x5EED).expect("64 bits")),
            stores: vec![BTreeMap::new(); nr_files],
            promised: vec![BTreeMap::new(); nr_files],
            fails_one_in: 0,
            nr_reads: 0,
            nr_read_errors: 0,
            nr_ahead: 0,
            nr_swapped_out: 0,
            nr_swapped_in: 0,
        }
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound)
    }

    /// Whether the next operation fails.
    pub(super) fn fails(&mut self) -> bool {
        let one_in = usize::from(self.fails_one_in);
        one_in > 0 && self.random.below(one_in) == 0
    }

    /// Counts a read; whether it is the one that is to fail.
    pub(super) fn read_fails(&mut self, at: Option<u64>) -> bool {
        self.nr_reads += 1;
        at == Some(self.nr_reads)
    }

    /// What a read of a page gives.
    pub(super) fn stamp(&self, file: usize, page: u64) -> u64 {
        self.stores[file].get(&page).map_or(0, Stored::now)
    }

    /// All pages that were written, and what a read of each gives.
    pub(super) fn stamps(&self, file: usize) -> impl Iterator<Item = (u64, u64)> {
        self.stores[file]
            .iter()
            .map(|(&page, stored)| (page, stored.now()))
    }

    pub(super) fn write(&mut self, file: usize, page: u64, stamp: u64) {
        let stored = self.stores[file].entry(page).or_default();
        stored.unsynced.push(stamp);
    }

    /// Makes a store durable.
    pub(super) fn sync(&mut self, file: usize) {
        for stored in self.stores[file].values_mut() {
            stored.durable = stored.now();
            stored.unsynced.clear();
        }
    }

    /// Somebody was told that these pages are durable in these versions or later ones.
    pub(super) fn promise(&mut self, file: usize, pages: &BTreeMap<u64, u64>) {
        // What a crash has torn is of no version.
        for (&page, &stamp) in pages.iter().filter(|&(_, &stamp)| stamp != TORN) {
            let promised = self.promised[file].entry(page).or_default();
            *promised = stamp.max(*promised);
        }
    }

    /// Each page keeps any of its versions since the durable one, or a part of one. `under_way` are
    /// writes that may have got anywhere.
    pub(super) fn crash(&mut self, under_way: &[(usize, u64, u64)]) -> Result<(), String> {
        for &(file, page, stamp) in under_way {
            self.write(file, page, stamp);
        }
        for (file, store) in self.stores.iter_mut().enumerate() {
            for (&page, stored) in store {
                let nr_versions = stored.unsynced.len() + 1;
                let found = match self
                    .random
                    .below(nr_versions + usize::from(nr_versions > 1))
                {
                    0 => stored.durable,
                    version if version < nr_versions => stored.unsynced[version - 1],
                    _ => TORN,
                };
                (stored.durable, stored.unsynced) = (found, Vec::new());
                let promised = self.promised[file].insert(page, 0).unwrap_or(0);
                // In numbers, a torn page is later than all: only a later write tears.
                if found < promised {
                    return Err(format!(
                        "page {page} of file {file} is {found} after a crash, and {promised} was \
                         said to be durable"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// What is in each frame, and whose it is: a stamp and a group, 0 where nobody was since the OS had
/// it.
#[derive(Debug)]
pub(super) struct Frames(Vec<(u64, u32)>);

impl Frames {
    pub(super) fn new(table: &FrameTable) -> Frames {
        Frames(vec![(0, 0); index(table.len())])
    }

    fn block(&self, frame: Frame, order: Order) -> &[(u64, u32)] {
        &self.0[frame.index()..][..index(order.nr_pages())]
    }

    pub(super) fn fill(&mut self, frame: Frame, order: Order, bytes: (u64, u32)) {
        self.0[frame.index()..][..index(order.nr_pages())].fill(bytes);
    }

    /// The stamp of a block; [`TORN`] where it has several.
    pub(super) fn stamp(&self, frame: Frame, order: Order) -> u64 {
        let block = self.block(frame, order);
        match block.iter().all(|bytes| bytes.0 == block[0].0) {
            true => block[0].0,
            false => TORN,
        }
    }

    /// Whether no other group's bytes are in a block.
    pub(super) fn is_of(&self, frame: Frame, order: Order, group: u32) -> bool {
        let is_own = |&(_, owner): &(u64, u32)| owner == group || owner == 0;
        self.block(frame, order).iter().all(is_own)
    }
}

/// Numbers that tell content apart, and how often a fault was planted.
#[derive(Debug)]
pub(super) struct Stamps {
    next: u64,
    plant: Option<Plant>,
    nr_passed: u32,
}

/// Occasions that a planted fault lets pass: the run is under way then.
const PASSES: u32 = 3;

impl Stamps {
    pub(super) fn new(plant: Option<Plant>) -> Stamps {
        Stamps {
            next: 1,
            plant,
            nr_passed: 0,
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether the fault is made now: once.
    pub(super) fn is_planted(&mut self, plant: Plant) -> bool {
        if self.plant != Some(plant) {
            return false;
        }
        self.nr_passed += 1;
        self.nr_passed == PASSES + 1
    }
}
