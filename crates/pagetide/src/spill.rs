//! The spill file: where anon pages go when their memory is needed.
//!
//! One file for all regions of a memory, without a name, made with the first of them and gone with
//! the last. A page keeps its slots when it comes back, until it is changed: a clean page is not
//! written twice. Pages of zeros have none.

mod map;
mod slots;

use crate::backing::code_of;
use crate::shared::{Shared, locked};
use crate::store::{DirectFile, Store};
use crate::writeback::write_all;
use crate::{ByteSize, Error, Group, PAGE_BYTES, Reservation, page};
use map::{MAX_SLOTS, SlotMap};
use pagetide_core::memory::Io;
use pagetide_core::units::Order;
use slots::Slots;
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Slots of one write at most. They are listed on the stack: swapping out needs no memory.
const MAX_RUN: usize = 64;
/// Holes that one tick makes at most, of 1 MiB each.
const HOLES_PER_TICK: u32 = 64;
/// No error.
const NONE: u32 = 0;

/// Where anon pages go.
#[derive(Clone)]
pub(crate) enum Target {
    /// A file without a name in a folder.
    Folder(PathBuf),
    /// A store of the program's own.
    Store(Arc<dyn Store>),
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Folder(folder) => folder.fmt(f),
            Target::Store(_) => f.write_str("a store"),
        }
    }
}

impl Default for Target {
    /// `TMPDIR`, or `/var/tmp`, which is not in memory on most systems.
    fn default() -> Target {
        let folder = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty());
        Target::Folder(folder.map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from))
    }
}

/// How a memory swaps out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) target: Target,
    /// As many bytes at most; as many as the budget may have by default.
    pub(crate) max_bytes: Option<u64>,
}

/// The spill file of a memory, while it has anon pages, and what was swapped so far.
#[derive(Debug)]
pub(crate) struct Swap {
    config: Config,
    spill: Mutex<Weak<Spill>>,
    /// Pages of 4 KiB, in the kernel's names.
    pub(crate) pswpin: AtomicU64,
    pub(crate) pswpout: AtomicU64,
}

impl Swap {
    pub(crate) fn new(config: Config) -> Swap {
        Swap {
            config,
            spill: Mutex::default(),
            pswpin: AtomicU64::new(0),
            pswpout: AtomicU64::new(0),
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
    pub(crate) fn last_error(&self) -> Option<u32> {
        let error = self.spill()?.error.load(Ordering::Relaxed);
        (error != NONE).then_some(error)
    }

    /// Gives the disk back what large parts of the file have no page any more: a bounded part.
    pub(crate) fn tick(&self) {
        if let Some(spill) = self.spill() {
            spill.make_holes();
        }
    }

    /// The spill file, made if there is none.
    fn have_spill(&self, root: &Group) -> Result<Arc<Spill>, Error> {
        if let Some(spill) = self.spill() {
            return Ok(spill);
        }
        // Without the lock: to charge its records may take a swap-out, or end in an error.
        let spill = Arc::new(Spill::new(&self.config, root)?);
        let mut current = locked(&self.spill);
        if let Some(another) = current.upgrade() {
            return Ok(another);
        }
        *current = Arc::downgrade(&spill);
        Ok(spill)
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
    slots: Mutex<Slots>,
    nr_slots: u32,
    /// Units that may have been written, each of which may need a slot: at most as many as there
    /// are. So a page that has to go finds one, and who cannot get one hears of it before.
    nr_committed: AtomicU32,
    /// Why the last write failed.
    error: AtomicU32,
    /// Charges what says which slots are free.
    _records: Reservation,
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
    fn new(config: &Config, root: &Group) -> Result<Spill, Error> {
        let shared = root.shared();
        let budget_pages = shared.core.config().arena_pages;
        let named = config.max_bytes.map(|bytes| bytes / PAGE_BYTES as u64);
        let nr_slots = named.map_or(budget_pages, |pages| {
            u32::try_from(pages).unwrap_or(u32::MAX)
        });
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
        let records = Slots::bytes(nr_slots) as u64;
        Ok(Spill {
            bytes,
            _records: root.reserve(ByteSize(records))?,
            slots: Mutex::new(Slots::new(nr_slots)),
            nr_slots,
            nr_committed: AtomicU32::new(0),
            error: AtomicU32::new(NONE),
        })
    }

    fn used_bytes(&self) -> (u64, u64) {
        let bytes = |nr_slots: u32| u64::from(nr_slots) * PAGE_BYTES as u64;
        (bytes(locked(&self.slots).nr_used()), bytes(self.nr_slots))
    }

    /// Says that one unit more may need a slot.
    fn commit(&self) -> Result<(), Error> {
        let one_more = |nr: u32| (nr < self.nr_slots).then_some(nr + 1);
        let committed = &self.nr_committed;
        let added = committed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
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
            let Some(idle) = locked(&self.slots).take_idle() else {
                return;
            };
            let len = offset_of(idle.end) - offset_of(idle.start);
            // Where the file system makes none, the space is used again all the same.
            let punched = file.punch_hole(offset_of(idle.start), len);
            locked(&self.slots).give_hole(idle, true);
            if punched.is_err() {
                return;
            }
        }
    }

    /// Writes to slots that follow each other.
    fn write(&self, slots: &Range<u32>, units: &[(u64, &[u8])]) -> Result<(), u32> {
        let mut slices = [(); MAX_RUN].map(|()| IoSlice::new(&[]));
        for (slice, (_, bytes)) in slices.iter_mut().zip(units) {
            *slice = IoSlice::new(bytes);
        }
        let slices = &mut slices[..units.len()];
        write_all(self.bytes.store(), slices, offset_of(slots.start))
    }

    /// Reads slots that follow each other.
    fn read(&self, first: u32, mut buf: &mut [u8]) -> Result<(), u32> {
        let mut offset = offset_of(first);
        while !buf.is_empty() {
            match self.bytes.store().read_at(buf, offset) {
                Ok(0) => return Err(crate::backing::SHORT),
                Ok(read) => {
                    let read = read.min(buf.len());
                    offset += read as u64;
                    buf = &mut buf[read..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(code_of(&error)),
            }
        }
        Ok(())
    }
}

fn offset_of(slot: u32) -> u64 {
    u64::from(slot) * PAGE_BYTES as u64
}

/// The pages of one anon region, those that are not in memory.
#[derive(Debug)]
pub(crate) struct Region {
    spill: Arc<Spill>,
    map: SlotMap,
    order: Order,
}

/// What came of swapping pages out.
#[derive(Debug)]
pub(crate) struct Written {
    /// Of the pages, the first so many.
    pub(crate) nr_pages: usize,
    pub(crate) nr_bytes: u64,
    /// Why not the others.
    pub(crate) result: Result<(), u32>,
}

/// Units that are to be written together.
struct Pending<'a, 'b> {
    region: &'a Region,
    units: [(u64, &'b [u8]); MAX_RUN],
    len: usize,
    /// Pages all of whose units came by, and those of them that are written.
    nr_seen: usize,
    nr_pages: usize,
    nr_bytes: u64,
}

impl<'a, 'b> Pending<'a, 'b> {
    fn push(&mut self, unit: u64, bytes: &'b [u8]) -> Result<(), u32> {
        if self.len == MAX_RUN {
            self.flush()?;
        }
        self.units[self.len] = (unit, bytes);
        self.len += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), u32> {
        let mut left = &self.units[..self.len];
        self.len = 0;
        while !left.is_empty() {
            let nr_written = self.region.write_some(left)?;
            self.nr_bytes += (nr_written * PAGE_BYTES) as u64;
            left = &left[nr_written..];
        }
        self.nr_pages = self.nr_seen;
        Ok(())
    }
}

/// Slots of a page that are being read; let go of when dropped.
struct Reading<'a> {
    region: &'a Region,
    units: Range<u64>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let region = self.region;
        region
            .map
            .end_read(self.units.clone(), |slot| region.give(slot));
    }
}

impl Region {
    /// A region without pages, of a group.
    ///
    /// # Errors
    /// [`Error::Spill`], [`Error::OverLimit`].
    pub(crate) fn new(group: &Group, order: Order) -> Result<Region, Error> {
        let shared = group.shared();
        Ok(Region {
            spill: shared.swap.have_spill(&Group::root(shared))?,
            map: SlotMap::new(group)?,
            order,
        })
    }

    /// What the slots are in.
    pub(crate) fn store(&self) -> &dyn Store {
        self.spill.bytes.store()
    }

    fn units_of(&self, page: u64) -> Range<u64> {
        let nr_units = u64::from(self.order.nr_pages());
        page * nr_units..(page + 1) * nr_units
    }

    fn give(&self, slot: u32) {
        locked(&self.spill.slots).give(slot);
    }

    /// Makes room for what has to be known of a page that is about to be changed.
    ///
    /// # Errors
    /// [`Error::OverLimit`], [`Error::SpillFull`].
    pub(crate) fn expect(&self, page: u64) -> Result<(), Error> {
        let commit = || self.spill.commit();
        self.map.expect(self.units_of(page), commit)
    }

    /// Forgets a page that has no slots and is not in memory.
    pub(crate) fn forget(&self, page: u64) {
        let nr_units = self.map.forget(self.units_of(page));
        self.spill.uncommit(nr_units);
    }

    /// The first page in a range that may have been written.
    pub(crate) fn next_known(&self, pages: Range<u64>) -> Option<u64> {
        let nr_units = u64::from(self.order.nr_pages());
        let units = pages.start.checked_mul(nr_units)?..pages.end.checked_mul(nr_units)?;
        let unit = self.map.next_known(units)?;
        Some(unit / nr_units)
    }

    /// Whether the spill file has bytes of a page.
    pub(crate) fn has_slots(&self, page: u64) -> bool {
        self.map.has_any(self.units_of(page))
    }

    /// Gives up what the spill file has of a page.
    pub(crate) fn drop_slots(&self, page: u64) {
        for unit in self.units_of(page) {
            self.map.take(unit, |slot| self.give(slot));
        }
    }

    /// Fills a page; returns the bytes read.
    pub(crate) fn fill(&self, shared: &Shared, io: &mut Io) -> Result<usize, u32> {
        let units = self.units_of(io.key().page());
        let may_show_old_bytes = !io.was_ours() && matches!(self.spill.bytes, Bytes::Store(_));
        let buf = page::target(&shared.arena, io);
        if !self.map.begin_read(units.clone()) {
            buf.fill(0);
            return Ok(0);
        }
        let reading = Reading {
            region: self,
            units,
        };
        if may_show_old_bytes {
            // As files do: a foreign store gets no bytes of another group.
            buf.fill(0);
        }
        let (mut unit, mut buf, mut nr_read) = (reading.units.start, buf, 0);
        while !buf.is_empty() {
            let slot = self.map.read_of(unit);
            let max = buf.len() / PAGE_BYTES;
            let follows = |&more: &usize| {
                let next = self.map.read_of(unit + more as u64);
                let after = |slot| next.is_some_and(|next| next as usize == slot as usize + more);
                slot.map_or(next.is_none(), after)
            };
            let nr_units = 1 + (1..max).take_while(follows).count();
            let (part, rest) = buf.split_at_mut(nr_units * PAGE_BYTES);
            match slot {
                Some(slot) => {
                    self.spill.read(slot, part)?;
                    nr_read += part.len();
                }
                None => part.fill(0),
            }
            (unit, buf) = (unit + nr_units as u64, rest);
        }
        let nr_pages = (nr_read / PAGE_BYTES) as u64;
        shared.swap.pswpin.fetch_add(nr_pages, Ordering::Relaxed);
        Ok(nr_read)
    }

    /// Writes pages, in order, to slots that follow each other where there are such.
    pub(crate) fn write_out<'b>(
        &self,
        shared: &Shared,
        pages: impl Iterator<Item = (u64, &'b [u8])>,
    ) -> Written {
        let mut pending = Pending {
            region: self,
            units: [(0, &[]); MAX_RUN],
            len: 0,
            nr_seen: 0,
            nr_pages: 0,
            nr_bytes: 0,
        };
        let result = self.write_pages(&mut pending, pages);
        let nr_pages = pending.nr_bytes / PAGE_BYTES as u64;
        shared.swap.pswpout.fetch_add(nr_pages, Ordering::Relaxed);
        match result {
            Ok(()) if nr_pages > 0 => self.spill.error.store(NONE, Ordering::Relaxed),
            Ok(()) => {}
            Err(code) => self.spill.error.store(code, Ordering::Relaxed),
        }
        Written {
            nr_pages: pending.nr_pages,
            nr_bytes: pending.nr_bytes,
            result,
        }
    }

    fn write_pages<'b>(
        &self,
        pending: &mut Pending<'_, 'b>,
        pages: impl Iterator<Item = (u64, &'b [u8])>,
    ) -> Result<(), u32> {
        for (page, bytes) in pages {
            for (unit, bytes) in self.units_of(page).zip(bytes.chunks_exact(PAGE_BYTES)) {
                // What it had before the page changed is of no use.
                self.map.take(unit, |slot| self.give(slot));
                if !is_zero(bytes) {
                    pending.push(unit, bytes)?;
                }
            }
            pending.nr_seen += 1;
        }
        pending.flush()
    }

    /// Writes the first units of those that are left; returns how many.
    fn write_some(&self, units: &[(u64, &[u8])]) -> Result<usize, u32> {
        let want = u32::try_from(units.len()).expect("a run is short");
        let slots = locked(&self.spill.slots).take(want);
        let full = || code_of(&io::Error::from(rustix::io::Errno::NOSPC));
        let slots = Taken {
            region: self,
            slots: slots.ok_or_else(full)?,
        };
        let nr_units = slots.slots.len();
        self.spill.write(&slots.slots, &units[..nr_units])?;
        for (slot, (unit, _)) in slots.keep().zip(units) {
            self.map.put(*unit, slot);
        }
        Ok(nr_units)
    }
}

/// Slots that nobody has yet: given back when dropped, by a store that panics, too.
struct Taken<'a> {
    region: &'a Region,
    slots: Range<u32>,
}

impl Taken<'_> {
    fn keep(mut self) -> Range<u32> {
        std::mem::take(&mut self.slots)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.slots.clone().for_each(|slot| self.region.give(slot));
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let mut slots = locked(&self.spill.slots);
        let nr_known = self.map.take_all(|slot| slots.give(slot));
        self.spill.uncommit(nr_known);
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (head, tail) = bytes.split_at(64);
    head.iter().all(|&byte| byte == 0) && tail.iter().all(|&byte| byte == 0)
}
