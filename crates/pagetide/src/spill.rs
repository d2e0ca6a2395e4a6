//! The spill file: where anon pages go when their memory is needed.
//!
//! One file for all regions of a memory, without a name, made with the first of them and gone with
//! the last. A page keeps its slots when it comes back, until it is changed: a clean page is not
//! written twice. Pages of zeros have none.

mod cipher;
mod map;
mod options;
mod region;
mod slots;
mod syncs;
mod zswap;

pub(crate) use options::Config;
pub(crate) use region::{Expected, Region};

use crate::shared::{Shared, locked};
use crate::shrinker;
use crate::sleepers::Sleepers;
use crate::store::{DirectFile, Store, uninterrupted};
use crate::told::{self, Told};
use crate::writeback::write_all;
use crate::{ByteSize, Error, Group, PAGE_BYTES, Reservation};
use cipher::Cipher;
use map::MAX_SLOTS;
use options::Target;
use slots::Slots;
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};
use syncs::Syncs;
use zswap::{Object, Pool};

/// Slots of one write at most. They are listed on the stack: swapping out needs no memory.
const MAX_RUN: usize = 64;
/// Holes that one tick makes at most, of 1 MiB each.
const HOLES_PER_TICK: u32 = 64;
/// How long who needs the spill file waits for whoever makes it.
const PATIENCE: Duration = Duration::from_secs(1);
/// No error.
const NONE: u32 = 0;

/// The spill file of a memory, while it has anon pages, and what was swapped so far.
#[derive(Debug)]
pub(crate) struct Swap {
    config: Config,
    spill: Mutex<Weak<Spill>>,
    turns: Arc<Turns>,
    /// Pages of 4 KiB, in the kernel's names.
    pub(crate) pswpin: AtomicU64,
    pub(crate) pswpout: AtomicU64,
    pub(crate) zswpin: AtomicU64,
    pub(crate) zswpout: AtomicU64,
    pub(crate) zswpwb: AtomicU64,
}

impl Swap {
    pub(crate) fn new(mut config: Config) -> Swap {
        config.target = config.target.settled();
        Swap {
            config,
            spill: Mutex::default(),
            turns: Arc::default(),
            pswpin: AtomicU64::new(0),
            pswpout: AtomicU64::new(0),
            zswpin: AtomicU64::new(0),
            zswpout: AtomicU64::new(0),
            zswpwb: AtomicU64::new(0),
        }
    }

    fn spill(&self) -> Option<Arc<Spill>> {
        locked(&self.spill).upgrade()
    }

    /// Bytes of the spill file in use, and how many may be.
    pub(crate) fn used_bytes(&self) -> (u64, u64) {
        self.spill().map_or((0, 0), |spill| spill.used_bytes())
    }

    /// Why the last page that was to go could not, if so.
    pub(crate) fn last_error(&self) -> Option<io::Error> {
        let spill = self.spill()?;
        let error = spill.error.load(Ordering::Relaxed);
        (error != NONE).then(|| spill.told.error_of(error))
    }

    /// Gives the disk back what large parts of the file have no page any more: a bounded part.
    pub(crate) fn tick(&self) {
        if let Some(spill) = self.spill() {
            spill.make_holes();
        }
    }

    /// The spill file, made if there is none.
    fn have_spill(&self, root: &Group) -> Result<Arc<Spill>, Error> {
        let turn = match self.begin_making() {
            Err(spill) => return Ok(spill),
            Ok(turn) => turn,
        };
        // Without the lock: to charge its records may take a swap-out, or end in an error.
        let spill = Arc::new(Spill::new(&self.config, root, turn)?);
        let mut current = locked(&self.spill);
        if let Some(another) = current.upgrade() {
            return Ok(another);
        }
        *current = Arc::downgrade(&spill);
        drop(current);
        self.turns.tell();
        Ok(spill)
    }

    /// The turn to make the spill file. Where there is one, or somebody makes one, that one; where
    /// the last one just goes, once it has gone: there may be no room for two of them.
    ///
    /// Who makes one runs foreign code, which may wait for who waits here. So that has an end, and
    /// then both make one.
    fn begin_making(&self) -> Result<Turn, Arc<Spill>> {
        let patience = match shrinker::is_shrinking() {
            true => Duration::ZERO,
            false => PATIENCE,
        };
        let until = Instant::now() + patience;
        let mut nr_spills = locked(&self.turns.nr_spills);
        loop {
            if let Some(spill) = self.spill() {
                return Err(spill);
            }
            let left = until.saturating_duration_since(Instant::now());
            if *nr_spills == 0 || left.is_zero() {
                *nr_spills += 1;
                return Ok(Turn(Arc::clone(&self.turns)));
            }
            let wait = |changed: &Condvar| changed.wait_timeout(nr_spills, left);
            nr_spills = self.turns.changed.sleep(wait).0;
        }
    }
}

/// Spill files that are being made, are there, or are going.
#[derive(Debug, Default)]
struct Turns {
    nr_spills: Mutex<u32>,
    changed: Sleepers,
}

impl Turns {
    /// One of them was made.
    fn tell(&self) {
        self.changed.wake_all(&locked(&self.nr_spills));
    }
}

/// One of them, from its beginning to its end.
#[derive(Debug)]
struct Turn(Arc<Turns>);

impl Drop for Turn {
    fn drop(&mut self) {
        *locked(&self.0.nr_spills) -= 1;
        self.0.tell();
    }
}

/// What slots are in.
enum Bytes {
    File(DirectFile),
    Store(Arc<dyn Store>),
}

impl Bytes {
    fn store(&self) -> &dyn Store {
        match self {
            Bytes::File(file) => file,
            Bytes::Store(store) => store.as_ref(),
        }
    }
}

/// One spill file.
struct Spill {
    bytes: Bytes,
    cipher: Option<Cipher>,
    /// Compressed pages, before they come here.
    pool: Option<Pool>,
    slots: Mutex<Slots>,
    syncs: Syncs,
    /// Held while a hole is made, whose slots nobody can have.
    punching: Mutex<()>,
    nr_slots: u32,
    /// Units that may have been written, each of which may need a slot: at most as many as there
    /// are. So a page that has to go finds one, and who cannot get one hears of it before.
    nr_committed: AtomicU32,
    /// Why the last write failed.
    error: AtomicU32,
    /// What its store said of failures.
    told: Arc<Told>,
    /// Charges what says which slots are free.
    _records: Reservation,
    /// The last of it to go.
    _turn: Turn,
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used_bytes, max_bytes) = self.used_bytes();
        f.debug_struct("Spill")
            .field("used_bytes", &used_bytes)
            .field("max_bytes", &max_bytes)
            .finish_non_exhaustive()
    }
}

impl Spill {
    fn new(config: &Config, root: &Group, turn: Turn) -> Result<Spill, Error> {
        let shared = root.shared();
        let most_pages = shared.core.config().arena_pages;
        let named = config.max_bytes.map(|bytes| bytes / PAGE_BYTES as u64);
        let nr_slots = named.map_or(most_pages, |pages| u32::try_from(pages).unwrap_or(u32::MAX));
        let nr_slots = nr_slots.min(MAX_SLOTS);
        let bytes = match &config.target {
            Target::Store(store) => Bytes::Store(Arc::clone(store)),
            Target::Folder(folder) => {
                let failed = |source| Error::Spill {
                    folder: folder.clone(),
                    source,
                };
                let file = tempfile::tempfile_in(folder).map_err(failed)?;
                Bytes::File(DirectFile::new(file, true).map_err(failed)?)
            }
        };
        let pool_bytes = shared.budget_pages() * PAGE_BYTES as u64 / 100;
        let pool_bytes = pool_bytes * u64::from(config.zswap_percent);
        let has_pool = config.zswap_percent > 0;
        let pool_records = has_pool.then(|| Pool::record_bytes(pool_bytes));
        let records = Slots::bytes(nr_slots) as u64 + pool_records.unwrap_or(0);
        let records = root.reserve(ByteSize(records))?;
        let cipher = config.is_encrypted.then(|| Cipher::new(root)).transpose()?;
        let pool = has_pool.then(|| Pool::new(root, pool_bytes)).transpose()?;
        Ok(Spill {
            bytes,
            cipher,
            pool,
            _records: records,
            slots: Mutex::new(Slots::new(nr_slots)),
            syncs: Syncs::default(),
            punching: Mutex::default(),
            nr_slots,
            nr_committed: AtomicU32::new(0),
            error: AtomicU32::new(NONE),
            told: Arc::default(),
            _turn: turn,
        })
    }

    fn used_bytes(&self) -> (u64, u64) {
        let bytes = |nr_slots: u32| u64::from(nr_slots) * PAGE_BYTES as u64;
        (bytes(locked(&self.slots).nr_used()), bytes(self.nr_slots))
    }

    /// Says that so many units more may need a slot: all of them, or none where there are too few.
    fn commit(&self, nr_units: u32) -> Result<(), Error> {
        let add = |nr: u32| nr.checked_add(nr_units).filter(|&sum| sum <= self.nr_slots);
        let committed = &self.nr_committed;
        let added = committed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map(|_| ()).map_err(|_| Error::SpillFull {
            max_bytes: u64::from(self.nr_slots) * PAGE_BYTES as u64,
        })
    }

    fn uncommit(&self, nr_units: u32) {
        self.nr_committed.fetch_sub(nr_units, Ordering::Relaxed);
    }

    fn make_holes(&self) {
        let Bytes::File(file) = &self.bytes else {
            return;
        };
        for _ in 0..HOLES_PER_TICK {
            let _punching = locked(&self.punching);
            let Some(idle) = locked(&self.slots).take_idle() else {
                return;
            };
            let len = offset_of(idle.end) - offset_of(idle.start);
            // Where the file system makes none, the space is used again all the same.
            let punched = uninterrupted(|| file.punch_hole(offset_of(idle.start), len));
            locked(&self.slots).give_hole(idle, true);
            if punched.is_err() {
                return;
            }
        }
    }

    fn give(&self, slot: u32) {
        locked(&self.slots).give(slot);
    }

    /// Takes slots for so many units, as [`Slots::take`].
    fn take(&self, nr_units: usize) -> Option<Range<u32>> {
        let want = u32::try_from(nr_units).expect("a run is short");
        let taken = locked(&self.slots).take(want);
        taken.or_else(|| {
            // The only free ones may be those of a hole.
            let _no_hole = locked(&self.punching);
            locked(&self.slots).take(want)
        })
    }

    /// Writes the first units of those that are left to slots that follow each other.
    fn write_some(&self, units: &[(u64, &[u8])]) -> Result<Taken<'_>, u32> {
        let take = || self.take(units.len());
        let slots = take().or_else(|| {
            // The pool writes pages that have changed since: their slots come back.
            self.pool.as_ref().and_then(|pool| pool.at_rest(take))
        });
        self.write_to(slots, units)
    }

    fn write_to(
        &self,
        slots: Option<Range<u32>>,
        units: &[(u64, &[u8])],
    ) -> Result<Taken<'_>, u32> {
        let full = || told::code_of(&io::Error::from(rustix::io::Errno::NOSPC));
        let written = slots.ok_or_else(full).and_then(|slots| {
            let taken = Taken { spill: self, slots };
            self.write(taken.slots.start, &units[..taken.slots.len()])?;
            Ok(taken)
        });
        let error = written.as_ref().err().copied();
        self.error.store(error.unwrap_or(NONE), Ordering::Relaxed);
        written
    }

    /// Writes pages that were compressed, and that are wanted here now; whether it went well.
    fn write_back(
        &self,
        shared: &Shared,
        mut units: &[(u64, &[u8])],
        mut from: &[Option<&Object>],
    ) -> bool {
        while !units.is_empty() {
            let Ok(taken) = self.write_to(self.take(units.len()), units) else {
                return false;
            };
            let taken = taken.keep();
            let nr_units = taken.len();
            for (slot, object) in taken.zip(from) {
                if !object.is_some_and(|object| object.moved_to(slot)) {
                    self.give(slot);
                }
            }
            shared.count_written((nr_units * PAGE_BYTES) as u64);
            for counter in [&shared.swap.pswpout, &shared.swap.zswpwb] {
                counter.fetch_add(nr_units as u64, Ordering::Relaxed);
            }
            (units, from) = (&units[nr_units..], &from[nr_units..]);
        }
        true
    }

    /// Writes to slots from `first` on.
    fn write(&self, first: u32, units: &[(u64, &[u8])]) -> Result<(), u32> {
        let (store, offset) = (self.bytes.store(), offset_of(first));
        let (nr_buffered, nr_failed) = (self.nr_buffered_writes(), self.syncs.nr_failed());
        match &self.cipher {
            Some(cipher) => {
                let write = |bytes: &[u8]| {
                    let written = write_all(store, &mut [IoSlice::new(bytes)], offset);
                    written.map_err(|error| self.told.code_of(&error))
                };
                cipher.seal(first, units, write)?;
            }
            None => self.write_plain(offset, units)?,
        }
        match &self.bytes {
            // The kernel writes its copy later, and tells of an error those alone who sync: while
            // the pages are here still.
            Bytes::File(file) if self.nr_buffered_writes() != nr_buffered => {
                self.syncs.sync(nr_failed, || uninterrupted(|| file.sync()))
            }
            _ => Ok(()),
        }
    }

    /// Writes of a file that went through the kernel's page cache.
    fn nr_buffered_writes(&self) -> u64 {
        match &self.bytes {
            Bytes::File(file) => file.nr_buffered_writes(),
            Bytes::Store(_) => 0,
        }
    }

    /// Writes slots as their pages are.
    fn write_plain(&self, offset: u64, units: &[(u64, &[u8])]) -> Result<(), u32> {
        let store = self.bytes.store();
        let mut slices = [(); MAX_RUN].map(|()| IoSlice::new(&[]));
        for (slice, (_, bytes)) in slices.iter_mut().zip(units) {
            *slice = IoSlice::new(bytes);
        }
        let slices = &mut slices[..units.len()];
        write_all(store, slices, offset).map_err(|error| self.told.code_of(&error))
    }

    /// Reads slots that follow each other.
    fn read(&self, first: u32, area: &mut [u8]) -> Result<(), u32> {
        let mut offset = offset_of(first);
        let mut buf = &mut *area;
        while !buf.is_empty() {
            match uninterrupted(|| self.bytes.store().read_at(buf, offset)) {
                Ok(0) => return Err(crate::backing::SHORT),
                Ok(read) => {
                    let read = read.min(buf.len());
                    offset += read as u64;
                    buf = &mut buf[read..];
                }
                Err(error) => return Err(self.told.code_of(&error)),
            }
        }
        self.decrypt(first, area);
        Ok(())
    }

    /// Makes what slots have, from `first` on, the bytes of pages.
    fn decrypt(&self, first: u32, area: &mut [u8]) {
        if let Some(cipher) = &self.cipher {
            cipher.open(first, area);
        }
    }
}

fn offset_of(slot: u32) -> u64 {
    u64::from(slot) * PAGE_BYTES as u64
}

/// Slots that nobody has yet: given back when dropped, by a store that panics, too.
struct Taken<'a> {
    spill: &'a Spill,
    slots: Range<u32>,
}

impl Taken<'_> {
    fn keep(mut self) -> Range<u32> {
        std::mem::take(&mut self.slots)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.slots.clone().for_each(|slot| self.spill.give(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn spill_of(memory: &Memory) -> Spill {
        let swap = &memory.home().swap;
        let turn = swap.begin_making().unwrap();
        Spill::new(&swap.config, &memory.root(), turn).unwrap()
    }

    fn memory() -> Memory {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().spill_max(ByteSize::mib(1));
        memory.build().unwrap()
    }

    /// Bytes that no file system writes past the kernel's page cache.
    fn unaligned(area: &mut [u8; PAGE_BYTES + 1]) -> &[u8] {
        let odd = 1 - area.as_ptr().addr() % 2;
        area.fill(7);
        &area[odd..][..PAGE_BYTES]
    }

    #[test]
    fn what_goes_through_the_page_cache_is_synced_wherever_it_was_to_go() {
        let memory = memory();
        let spill = spill_of(&memory);
        let nr_syncs = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&nr_syncs);
        spill.syncs.fake(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Err(io::Error::from_raw_os_error(libc::EIO))
        });
        let mut area = [0; PAGE_BYTES + 1];
        let written = spill.write_some(&[(0, unaligned(&mut area))]).map(drop);
        assert_eq!((written, nr_syncs.load(Ordering::Relaxed)), (Err(5), 1));
    }

    /// As Linux tells of an error: once, and not whose bytes they were.
    #[test]
    fn an_error_that_another_one_was_told_is_everybodys_who_wrote_before() {
        let memory = memory();
        let spill = Arc::new(spill_of(&memory));
        let (weak, nr_syncs) = (Arc::downgrade(&spill), AtomicU32::new(0));
        spill.syncs.fake(move || {
            while weak.upgrade().unwrap().nr_buffered_writes() < 2 {
                std::thread::yield_now();
            }
            match nr_syncs.fetch_add(1, Ordering::Relaxed) {
                0 => Err(io::Error::from_raw_os_error(libc::EIO)),
                _ => Ok(()),
            }
        });
        let write = || {
            let mut area = [0; PAGE_BYTES + 1];
            spill.write_some(&[(0, unaligned(&mut area))]).map(drop)
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(write);
            assert_eq!((write(), other.join().unwrap()), (Err(5), Err(5)));
        });
        // Whoever writes later has nothing to do with it.
        assert_eq!(write(), Ok(()));
    }

    #[test]
    fn who_swaps_out_finds_a_slot_beside_who_makes_holes() {
        let memory = memory();
        let spill = spill_of(&memory);
        let bytes = [7; PAGE_BYTES];
        let write = || spill.write_some(&[(0, &bytes)]).map(drop);
        write().unwrap();
        // All of its slots.
        let punching = locked(&spill.punching);
        let hole = locked(&spill.slots).take_idle().unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(write);
            // Whether it waits, only time tells.
            std::thread::sleep(std::time::Duration::from_millis(50));
            locked(&spill.slots).give_hole(hole, true);
            drop(punching);
            assert_eq!(writer.join().unwrap(), Ok(()));
        });
        spill.make_holes();
        write().unwrap();
    }
}
