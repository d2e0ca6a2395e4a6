//! The pages of one anon region on their way to the spill file and back.

use super::map::{Place, SlotMap};
use super::zswap::{Pool, Stored};
use super::{Bytes, MAX_RUN, Spill};
use crate::shared::{Shared, locked};
use crate::store::{DirectFile, Store};
use crate::told::Told;
use crate::{ByteSize, Error, Group, PAGE_BYTES, Reservation, page};
use pagetide_core::memory::{AllocError, Io};
use pagetide_core::units::Order;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// The pages of one anon region, those that are not in memory.
#[derive(Debug)]
pub(crate) struct Region {
    spill: Arc<Spill>,
    map: Arc<SlotMap>,
    /// Charges the map, and keeps the region's group, while there are handles of the region.
    records: Mutex<Option<Arc<Reservation>>>,
    order: Order,
}

/// What came of swapping pages out.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) nr_bytes: u64,
    /// Why not all of the pages.
    pub(crate) result: Result<(), u32>,
}

/// Units that are to be written together.
struct Pending<'a, 'b> {
    region: &'a Region,
    units: [(u64, &'b [u8]); MAX_RUN],
    /// Whose they are, by the places of their pages.
    places: [usize; MAX_RUN],
    len: usize,
    /// What became of the pages that came by.
    outcomes: &'a mut [Result<(), u32>],
    written: Written,
}

impl<'a, 'b> Pending<'a, 'b> {
    fn push(&mut self, place: usize, unit: (u64, &'b [u8])) {
        if self.len == MAX_RUN {
            self.flush();
        }
        (self.units[self.len], self.places[self.len]) = (unit, place);
        self.len += 1;
    }

    /// A disk that refuses one is asked no more. Pages that do not need it are no worse off.
    fn flush(&mut self) {
        let len = mem::take(&mut self.len);
        let mut done = 0;
        while done < len && self.written.result.is_ok() {
            match self.region.write_some(&self.units[done..len]) {
                Ok(nr_written) => {
                    self.written.nr_bytes += (nr_written * PAGE_BYTES) as u64;
                    done += nr_written;
                }
                Err(code) => self.written.result = Err(code),
            }
        }
        for &place in &self.places[done..len] {
            self.outcomes[place] = self.written.result;
        }
    }
}

/// Slots of a page that are being read; let go of when dropped.
struct Reading<'a> {
    region: &'a Region,
    page: u64,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.region.end_read(self.page);
    }
}

/// A page that its holder is about to change. One that was never changed before is forgotten when
/// this is dropped, unless it says that it was.
#[derive(Debug)]
pub(crate) struct Expected<'a> {
    region: &'a Region,
    page: u64,
    /// Where it was known before, there is nothing to forget.
    is_counted: bool,
    is_changed: bool,
}

impl Expected<'_> {
    /// The page is dirty, or about to be for certain.
    pub(crate) fn changed(mut self) {
        self.is_changed = true;
    }

    /// Whether [`Region::end_expected`] has to say what became of the page.
    pub(crate) fn keep(self) -> bool {
        ManuallyDrop::new(self).is_counted
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            self.region.end_expected(self.page, self.is_changed);
        }
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
            map: Arc::default(),
            records: Mutex::new(Some(Arc::new(group.reserve(ByteSize(0))?))),
            order,
        })
    }

    /// What is said of its failures.
    pub(crate) fn told(&self) -> Arc<Told> {
        Arc::clone(&self.spill.told)
    }

    /// What the slots are in, where it is a file of the system.
    pub(crate) fn file(&self) -> Option<&DirectFile> {
        match &self.spill.bytes {
            Bytes::File(file) => Some(file),
            Bytes::Store(_) => None,
        }
    }

    /// Whether what slots have is to be decrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.spill.cipher.is_some()
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
        self.spill.give(slot);
    }

    fn records(&self) -> Arc<Reservation> {
        let records = locked(&self.records).clone();
        records.expect("who changes or discards pages has a handle of the region")
    }

    /// Makes room for what has to be known of a page that is about to be changed: without reclaim,
    /// unless it `may_reclaim`. The refusal is inside then.
    ///
    /// # Errors
    /// [`Error::SpillFull`].
    pub(crate) fn expect(
        &self,
        page: u64,
        may_reclaim: bool,
    ) -> Result<Result<Expected<'_>, AllocError>, Error> {
        let commit = |nr_units| self.spill.commit(nr_units);
        let records = self.records();
        let charge = (&*records, may_reclaim);
        let expected = self.map.expect(self.units_of(page), charge, commit)?;
        Ok(expected.map(|is_counted| self.expected(page, is_counted)))
    }

    /// [`Region::expect`] of a page of which all that is known already; `None` where it is not.
    pub(crate) fn expect_known(&self, page: u64) -> Option<Expected<'_>> {
        let expected = self.map.expect_known(self.units_of(page));
        expected.map(|is_counted| self.expected(page, is_counted))
    }

    fn expected(&self, page: u64, is_counted: bool) -> Expected<'_> {
        Expected {
            region: self,
            page,
            is_counted,
            is_changed: false,
        }
    }

    /// What became of a page that was expected, and [kept](Expected::keep) as one.
    pub(crate) fn end_expected(&self, page: u64, is_changed: bool) {
        let (units, records) = (self.units_of(page), self.records());
        let uncommit = |nr_units| self.spill.uncommit(nr_units);
        self.map.end_expected(units, is_changed, &records, uncommit);
    }

    /// Forgets a page that has no slots and is not in memory.
    pub(crate) fn forget(&self, page: u64) {
        let uncommit = |nr_units| self.spill.uncommit(nr_units);
        let (units, records) = (self.units_of(page), self.records());
        self.map.forget(units, &records, uncommit);
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

    /// Gives up all that the spill file has of it, and its group: its last page has gone.
    pub(crate) fn give_up(&self) {
        let nr_known = self.map.take_all(|slot| self.give(slot));
        self.spill.uncommit(nr_known);
        let records = locked(&self.records).take();
        drop(records);
    }

    /// Keeps the slots of a page until [`Region::end_read`], for who reads them in the place of
    /// [`Region::fill`], and returns the first; `None` where they do not follow each other.
    pub(crate) fn begin_read_of_slots(&self, page: u64) -> Option<u32> {
        self.map.begin_read_of_slots(self.units_of(page))
    }

    /// Lets go of slots.
    pub(crate) fn end_read(&self, page: u64) {
        let units = self.units_of(page);
        self.map.end_read(units, |slot| self.give(slot));
    }

    /// What slots have, from `first` on, was read into a page.
    pub(crate) fn came(&self, shared: &Shared, first: u32, bytes: &mut [u8]) {
        self.spill.decrypt(first, bytes);
        count_in(shared, bytes.len());
    }

    /// Fills a page; returns the bytes read.
    pub(crate) fn fill(&self, shared: &Shared, io: &mut Io) -> Result<usize, u32> {
        let page = io.key().page();
        let units = self.units_of(page);
        let may_show_old_bytes = !io.was_ours() && matches!(self.spill.bytes, Bytes::Store(_));
        let buf = page::target(&shared.arena, io);
        if !self.map.begin_read(units.clone()) {
            buf.fill(0);
            return Ok(0);
        }
        let _reading = Reading { region: self, page };
        if may_show_old_bytes {
            // As files do: a foreign store gets no bytes of another group.
            buf.fill(0);
        }
        let (mut at, mut nr_read) = (0, 0);
        while at < buf.len() {
            let unit = units.start + (at / PAGE_BYTES) as u64;
            let place = self.map.read_of(unit);
            let nr_units = match place {
                Place::Slot(slot) => {
                    let slots = (unit..units.end).zip(slot..);
                    let is_here =
                        |&(unit, slot): &(u64, u32)| self.map.read_of(unit) == Place::Slot(slot);
                    slots.take_while(is_here).count()
                }
                _ => 1,
            };
            let part = &mut buf[at..][..nr_units * PAGE_BYTES];
            match (place, &self.spill.pool) {
                (Place::Nowhere, _) => part.fill(0),
                (Place::Slot(slot), _) => {
                    self.spill.read(slot, part)?;
                    nr_read += part.len();
                }
                (Place::Compressed(_), Some(pool)) if pool.load(shared, &self.map, unit, part) => {}
                // It has just gone to the spill file: look again.
                (Place::Compressed(_), _) => continue,
            }
            at += part.len();
        }
        count_in(shared, nr_read);
        Ok(nr_read)
    }

    /// Writes pages, in order, to slots that follow each other where there are such; what became of
    /// each is in `outcomes` then.
    pub(crate) fn write_out<'b>(
        &self,
        shared: &Shared,
        pages: impl Iterator<Item = (u64, &'b [u8])>,
        outcomes: &mut [Result<(), u32>],
    ) -> Written {
        let mut pending = Pending {
            region: self,
            units: [(0, &[]); MAX_RUN],
            places: [0; MAX_RUN],
            len: 0,
            outcomes,
            written: Written {
                nr_bytes: 0,
                result: Ok(()),
            },
        };
        self.write_pages(shared, &mut pending, pages);
        let written = pending.written;
        let nr_pages = written.nr_bytes / PAGE_BYTES as u64;
        shared.swap.pswpout.fetch_add(nr_pages, Ordering::Relaxed);
        written
    }

    /// Whether the pool of compressed pages has taken a unit. One that is full is asked no more:
    /// each time may be one more write of older pages that fails.
    fn is_compressed(
        &self,
        shared: &Shared,
        pool: &mut Option<&Pool>,
        (unit, bytes): (u64, &[u8]),
    ) -> bool {
        let map = || Arc::downgrade(&self.map);
        let stored = pool.map(|pool| pool.store((shared, &self.spill), (map(), unit), bytes));
        *pool = pool.filter(|_| stored != Some(Stored::Full));
        stored == Some(Stored::Kept)
    }

    fn write_pages<'b>(
        &self,
        shared: &Shared,
        pending: &mut Pending<'_, 'b>,
        pages: impl Iterator<Item = (u64, &'b [u8])>,
    ) {
        let mut pool = self.spill.pool.as_ref();
        for (place, (page, bytes)) in pages.enumerate() {
            pending.outcomes[place] = Ok(());
            for (unit, bytes) in self.units_of(page).zip(bytes.chunks_exact(PAGE_BYTES)) {
                // What it had before the page changed is of no use.
                self.map.take(unit, |slot| self.give(slot));
                if !is_zero(bytes) && !self.is_compressed(shared, &mut pool, (unit, bytes)) {
                    pending.push(place, (unit, bytes));
                }
            }
        }
        pending.flush();
    }

    /// Writes the first units of those that are left; returns how many.
    fn write_some(&self, units: &[(u64, &[u8])]) -> Result<usize, u32> {
        let slots = self.spill.write_some(units)?.keep();
        let nr_units = slots.len();
        for (slot, (unit, _)) in slots.zip(units) {
            self.map.put(*unit, Place::Slot(slot));
        }
        Ok(nr_units)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Counts bytes that slots had.
fn count_in(shared: &Shared, nr_bytes: usize) {
    let nr_pages = (nr_bytes / PAGE_BYTES) as u64;
    shared.swap.pswpin.fetch_add(nr_pages, Ordering::Relaxed);
}

fn is_zero(bytes: &[u8]) -> bool {
    let (head, tail) = bytes.split_at(64);
    head.iter().all(|&byte| byte == 0) && tail.iter().all(|&byte| byte == 0)
}
