//! What stands behind the pages of a file: its store, its length, and which of its pages are dirty.
//!
//! Kept apart from the handles, so that whoever writes pages back has it for as long as a write of
//! the file is under way.

use crate::behind::{Behind, Turn};
use crate::dirty_list::DirtyList;
use crate::durability::Durability;
use crate::file::Asked;
use crate::hooks::Hooked;
use crate::length_lock::LengthLock;
use crate::shared::Shared;
use crate::spill::Region;
use crate::stall::in_read;
use crate::store::{DirectFile, Store, uninterrupted};
use crate::told::Told;
use crate::writeback::{Pace, in_write};
use crate::{Error, page};
use pagetide_core::memory::Io;
use pagetide_core::page_cache::Mappings;
use pagetide_core::units::{Order, PageKey};
use std::fmt;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

mod dirty;

pub(crate) use dirty::Room;

/// The code of an I/O that ended before the page did. Others are error numbers of the system.
pub(crate) const SHORT: u32 = u32::MAX;
/// The code of an I/O whose store panicked or told no error number.
pub(crate) const NO_NUMBER: u32 = u32::MAX - 1;
/// The code of a page that somebody changes for too long.
pub(crate) const BUSY: u32 = u32::MAX - 2;
/// The code of a page whose write did not begin in time.
pub(crate) const LEFT: u32 = u32::MAX - 5;
/// No error.
const NONE: u32 = 0;

/// Where a file's bytes are.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each open file, mostly of the largest kind"
)]
pub(crate) enum Source {
    File {
        reader: DirectFile,
        /// Opened for writing: with the first handle that may.
        writer: OnceLock<DirectFile>,
    },
    Store(Box<dyn Store>),
    /// Anon pages: in the spill file, where they are not in memory.
    Region(Region),
}

impl Source {
    /// Whether some handle may write.
    pub(crate) fn is_writable(&self) -> bool {
        self.region().is_some() || self.written().is_writable()
    }

    /// The file of the system for reading, if it is one; of anon pages, the spill file.
    pub(crate) fn file(&self) -> Option<&DirectFile> {
        match self {
            Source::File { reader, .. } => Some(reader),
            Source::Store(_) => None,
            Source::Region(region) => region.file(),
        }
    }

    /// For reading.
    pub(crate) fn store(&self) -> &dyn Store {
        match self {
            Source::File { reader, .. } => reader,
            Source::Store(store) => store.as_ref(),
            Source::Region(region) => region.store(),
        }
    }

    /// How many bytes to ask for from `start` on, where it has `wanted` of a page.
    fn asked(&self, start: u64, wanted: usize) -> usize {
        match self {
            Source::File { reader, .. } => reader.asked(reader.base() + start, wanted),
            Source::Store(_) | Source::Region(_) => usize::MAX,
        }
    }

    /// For writing; the store says itself where it cannot.
    pub(crate) fn written(&self) -> &dyn Store {
        match self {
            Source::File { reader, writer } => writer.get().unwrap_or(reader),
            Source::Store(store) => store.as_ref(),
            Source::Region(region) => region.store(),
        }
    }

    /// The file of the system for writing, if it is one.
    pub(crate) fn written_file(&self) -> Option<&DirectFile> {
        match self {
            Source::File { reader, writer } => Some(writer.get().unwrap_or(reader)),
            Source::Store(_) | Source::Region(_) => None,
        }
    }

    /// What anon pages are in.
    pub(crate) fn region(&self) -> Option<&Region> {
        match self {
            Source::Region(region) => Some(region),
            _ => None,
        }
    }
}

/// An open file, apart from its handles.
pub(crate) struct Backing {
    pub(crate) mapping: u32,
    pub(crate) order: Order,
    pub(crate) name: Arc<str>,
    pub(crate) source: Source,
    len: AtomicU64,
    /// Bytes that the store has: pages beyond read as zeros, wherever the file ends.
    stored: AtomicU64,
    /// Where the file is about to end: pages are read up to there already.
    expected: AtomicU64,
    /// Up to where it was given bytes: it may have those of a write that failed.
    tried: AtomicU64,
    dirty: DirtyList,
    /// Why the file takes no more writes, or 0.
    poison: AtomicU32,
    /// What its store and its hooks said of failures.
    pub(crate) told: Arc<Told>,
    /// The last write of its pages failed.
    pub(crate) is_failing: AtomicBool,
    /// The last page whose write failed.
    pub(crate) failed_page: AtomicU64,
    /// Its store has said that its length can be set.
    pub(crate) can_be_cut: AtomicBool,
    pub(crate) behind: Behind,
    pub(crate) hooked: OnceLock<Hooked>,
    pub(crate) durability: Durability,
    pub(crate) pace: Pace,
    /// Syncs that tasks wait for.
    pub(crate) asked: Asked,
    /// Reads in the background.
    nr_flights: AtomicU32,
    pub(crate) length: LengthLock,
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backing")
            .field("name", &self.name)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Backing {
    pub(crate) fn new(
        mapping: u32,
        order: Order,
        name: Arc<str>,
        source: Source,
        len: u64,
    ) -> Backing {
        let told = source.region().map_or_else(Arc::default, Region::told);
        Backing {
            mapping,
            order,
            name,
            source,
            len: AtomicU64::new(len),
            stored: AtomicU64::new(len),
            expected: AtomicU64::new(0),
            tried: AtomicU64::new(0),
            dirty: DirtyList::default(),
            poison: AtomicU32::new(NONE),
            told,
            is_failing: AtomicBool::new(false),
            failed_page: AtomicU64::new(0),
            can_be_cut: AtomicBool::new(false),
            behind: Behind::default(),
            hooked: OnceLock::new(),
            durability: Durability::default(),
            pace: Pace::default(),
            asked: Asked::default(),
            nr_flights: AtomicU32::new(0),
            length: LengthLock::default(),
        }
    }

    /// The number of the mapping in the keys of its pages.
    pub(crate) fn number(&self) -> u32 {
        number_of(self.mapping)
    }

    pub(crate) fn key(&self, page: u64) -> Option<PageKey> {
        Mappings::key(self.mapping, page)
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        // Acquire pairs with the Release in `grow`: whoever sees the length finds the bytes.
        self.len.load(Ordering::Acquire)
    }

    /// Makes the file at least this long.
    pub(crate) fn grow(&self, len: u64) {
        self.len.fetch_max(len, Ordering::AcqRel);
    }

    /// Makes the file this short; whoever calls this has the file for itself, and its turn until
    /// pages behind the end are gone and the store is cut: a write of one may be under way.
    pub(crate) fn cut(&self, len: u64) {
        self.len.store(len, Ordering::Release);
        self.stored.fetch_min(len, Ordering::AcqRel);
        self.behind.set_too_long();
    }

    /// Pages are gone that may be those which could not be written, or waited for the log: what is
    /// left is tried anew.
    pub(crate) fn forget_failures(&self) {
        self.is_failing.store(false, Ordering::Relaxed);
        if let Some(hooked) = self.hooked.get() {
            hooked.set_awaited(0, 0);
        }
    }

    /// Whether who writes first has to give the store another chance.
    pub(crate) fn is_obstructed(&self) -> bool {
        self.behind.is_any() || self.is_failing.load(Ordering::Relaxed)
    }

    /// Whole pages read as zeros from now on, as in [`Backing::cut`].
    pub(crate) fn begin_hole(&self, pages: Range<u64>) {
        self.behind.set_hole(pages);
    }

    /// Does what the store has to do yet: its end, its hole.
    ///
    /// # Errors
    /// [`Error::WritebackFailed`].
    pub(crate) fn catch_up(&self, shared: &Shared) -> Result<(), Error> {
        match self.behind.is_any() {
            true => self.catch_up_in(shared, &self.behind.turn()),
            false => Ok(()),
        }
    }

    /// [`Backing::catch_up`] in the caller's turn.
    pub(crate) fn catch_up_in(&self, shared: &Shared, turn: &Turn<'_>) -> Result<(), Error> {
        let store = self.source.written();
        // One that knows no better makes a hole by writes.
        let _in_write = in_write(shared);
        if self.behind.is_too_long() {
            // Nobody makes the file longer before this is done. The store may be shorter, too,
            // where only what was behind the new end had been written.
            let len = self.len();
            uninterrupted(|| store.set_len(len)).map_err(|error| self.failed_with(&error))?;
            self.has_stored(len);
            self.tried.fetch_min(len, Ordering::AcqRel);
        }
        if let Some(pages) = self.behind.hole() {
            let page_bytes = self.order.bytes() as u64;
            let start = pages.start * page_bytes;
            // Beyond what it has there is nothing to give up.
            let mut end = self.stored_len();
            if self.may_have_more() {
                let found = uninterrupted(|| store.len());
                end = found.map_err(|error| self.failed_with(&error))?;
            }
            let end = end.min(pages.end.saturating_mul(page_bytes));
            if start < end {
                let punched = uninterrupted(|| store.punch(start, end - start));
                punched.map_err(|error| {
                    // As where a page could not be written.
                    if store.has_lost_writes() {
                        self.poison(self.told.code_of(&error));
                    }
                    self.failed_with(&error)
                })?;
            }
        }
        turn.end();
        Ok(())
    }

    /// Makes the file as long as the store was found; whoever calls this has its length for itself.
    pub(crate) fn set_len_found(&self, len: u64) {
        self.stored.store(len, Ordering::Release);
        self.len.store(len, Ordering::Release);
        self.expected.store(0, Ordering::Release);
    }

    /// The store was found this long. A file that is longer ends there from now on; one that is
    /// shorter still ends where it did, but pages that come in have what is behind, too: the ones
    /// with zeros there can go before anybody sees them by [`Backing::set_len_found`].
    pub(crate) fn expect_len(&self, len: u64) {
        self.expected.store(len, Ordering::Release);
        self.stored.store(len, Ordering::Release);
        self.len.fetch_min(len, Ordering::AcqRel);
    }

    /// Gives the file the length of what the store has; whoever calls this has its length for
    /// itself. Returns from where on its bytes may be others than before.
    ///
    /// A store that does not say how much it has may have more: where it `can_be_cut`, it is,
    /// before it gets anything else.
    pub(crate) fn cut_to_stored(&self, can_be_cut: impl FnOnce() -> bool) -> Option<u64> {
        let stored = self.stored_len();
        // What it took and said it had not is what it has. A hole that is left to do moves no end.
        let is_to_ask = self.may_have_more() && !self.behind.is_too_long();
        if is_to_ask && let Ok(found) = uninterrupted(|| self.source.store().len()) {
            self.set_len_found(found);
            return Some(stored.min(found));
        }
        let before = self.len.fetch_min(stored, Ordering::AcqRel);
        if is_to_ask && can_be_cut() {
            self.behind.set_too_long();
        }
        (stored < before).then_some(stored)
    }

    /// Whether the store may have bytes that it did not say it took.
    fn may_have_more(&self) -> bool {
        self.tried.load(Ordering::Acquire) > self.stored_len()
    }

    /// The pages that the bytes from one to another lie in.
    pub(crate) fn pages_of(&self, (first, last): (u64, u64)) -> RangeInclusive<u64> {
        let page_bytes = self.order.bytes() as u64;
        first / page_bytes..=last / page_bytes
    }

    /// Bytes of a page that lie before `len`.
    #[inline]
    pub(crate) fn bytes_of(&self, page: u64, len: u64) -> usize {
        let bytes = self.order.bytes();
        let start = page.saturating_mul(bytes as u64);
        usize::try_from(len.saturating_sub(start)).map_or(bytes, |left| left.min(bytes))
    }

    /// Bytes of a page that the store has.
    pub(crate) fn stored_of(&self, page: u64) -> usize {
        if let Some(region) = self.source.region() {
            return if region.has_slots(page) {
                self.order.bytes()
            } else {
                0
            };
        }
        if self.behind.has_hole_at(page) {
            return 0;
        }
        let end = self.len().max(self.expected.load(Ordering::Acquire));
        self.bytes_of(page, self.stored_len().min(end))
    }

    /// The store is given bytes up to there.
    pub(crate) fn may_take(&self, end: u64) {
        self.tried.fetch_max(end, Ordering::AcqRel);
    }

    /// The store has bytes up to there now.
    pub(crate) fn has_stored(&self, end: u64) {
        self.stored.fetch_max(end, Ordering::AcqRel);
    }

    /// Bytes that the store has at least.
    pub(crate) fn stored_len(&self) -> u64 {
        self.stored.load(Ordering::Acquire)
    }

    /// The store took bytes. Of pages behind an end that the file has just got there are none to
    /// take: it is no longer for them.
    pub(crate) fn has_taken(&self, start: u64, nr_bytes: u64) {
        if nr_bytes > 0 {
            self.has_stored(start + nr_bytes);
        }
    }

    /// Whether the store is as long as the file.
    pub(crate) fn has_all(&self) -> bool {
        self.stored_len() >= self.len()
    }

    /// Fills a page from the store, or from where it was before; what lies beyond is zeroed.
    /// Returns the bytes read.
    #[inline(always)] // As `File::read`.
    pub(crate) fn fill(&self, shared: &Shared, io: &mut Io) -> Result<usize, u32> {
        if io.source().is_some() {
            page::copy(&shared.arena, io);
            return Ok(0);
        }
        if let Some(region) = self.source.region() {
            return region.fill(shared, io);
        }
        let page = io.key().page();
        let start = page * self.order.bytes() as u64;
        let wanted = self.stored_of(page);
        let may_show_old_bytes = !io.was_ours() && matches!(self.source, Source::Store(_));
        let buf = page::target(&shared.arena, io);
        if may_show_old_bytes {
            // A store is foreign code: it gets no bytes of another group, and cannot pass them on
            // by saying that it read more than it did. The kernel does neither.
            buf.fill(0);
        }
        let _in_read = matches!(self.source, Source::Store(_)).then(|| in_read(shared));
        let mut filled = 0;
        let until = self.source.asked(start, wanted).min(buf.len());
        while filled < wanted {
            let store = self.source.store();
            match uninterrupted(|| store.read_at(&mut buf[filled..until], start + filled as u64)) {
                // Somebody may have cut the file meanwhile.
                Ok(0) if self.stored_of(page) <= filled => break,
                Ok(0) => return Err(SHORT),
                Ok(read) => filled += read,
                Err(error) => return Err(self.told.code_of(&error)),
            }
        }
        let filled = filled.min(wanted);
        // Most pages are whole: no call for them, of which the kernel has left nothing in the CPU.
        if filled < buf.len() {
            buf[filled..].fill(0);
        }
        self.after_read(shared, page, &mut buf[..filled])?;
        Ok(filled)
    }

    /// What is done with bytes that were read, before anybody sees them.
    pub(crate) fn after_read(
        &self,
        shared: &Shared,
        page: u64,
        bytes: &mut [u8],
    ) -> Result<(), u32> {
        match self.hooked.get() {
            Some(hooked) if !bytes.is_empty() => {
                let _in_read = in_read(shared);
                let read = hooked.after_read(page, bytes);
                read.map_err(|error| self.told.code_of(&error))
            }
            _ => Ok(()),
        }
    }

    /// A read begins that nobody's stack waits for.
    pub(crate) fn begin_flight(&self) {
        self.nr_flights.fetch_add(1, Ordering::Relaxed);
    }

    /// It has ended; whether it was the last one.
    pub(crate) fn end_flight(&self) -> bool {
        // Release pairs with the Acquire in `is_in_flight`: who closes the file sees its pages.
        self.nr_flights.fetch_sub(1, Ordering::Release) == 1
    }

    /// Whether reads are under way that nobody's stack waits for.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.nr_flights.load(Ordering::Acquire) > 0
    }

    /// Lets no more writes in: the store may have lost some that it took.
    pub(crate) fn poison(&self, code: u32) {
        let first = self
            .poison
            .compare_exchange(NONE, code, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            self.told.keep_for_good(code);
        }
    }

    /// Why the file takes no more writes, where it does not.
    pub(crate) fn poison_code(&self) -> Option<u32> {
        Some(self.poison.load(Ordering::Acquire)).filter(|&code| code != NONE)
    }

    /// # Errors
    /// [`Error::WritebackFailed`] where the file was poisoned.
    pub(crate) fn check_poison(&self) -> Result<(), Error> {
        match self.poison_code() {
            None => Ok(()),
            Some(code) => Err(self.failed(code)),
        }
    }

    /// The error of a read that found fewer bytes than there were.
    pub(crate) fn ended_early(&self) -> io::Error {
        let told = match self.source.region() {
            Some(_) => "the spill file ended before the page".to_owned(),
            None => format!("the file ended before its {} bytes", self.len()),
        };
        io::Error::new(io::ErrorKind::UnexpectedEof, told)
    }

    /// The error of pages that wait for the log.
    pub(crate) fn log_behind(&self) -> Error {
        Error::LogBehind {
            file: self.name.to_string(),
            dirty_pages: self.nr_dirty(),
            durable: self.hooked.get().map_or(0, Hooked::was_durable),
            source: self.log_error(),
        }
    }

    /// Why pages wait for the log.
    pub(crate) fn log_error(&self) -> io::Error {
        let said = self.hooked.get().and_then(Hooked::log_error);
        said.unwrap_or_else(|| io::Error::other("the log is no further"))
    }

    /// The error of a store. What it has no way to do is told as that.
    pub(crate) fn failed_with(&self, error: &io::Error) -> Error {
        match error.kind() {
            kind @ io::ErrorKind::Unsupported => self.failed_by(kind.into()),
            _ => self.failed(self.told.code_of(error)),
        }
    }

    /// The error of a write that failed with a code.
    pub(crate) fn failed(&self, code: u32) -> Error {
        self.failed_by(self.told.error_of(code))
    }

    fn failed_by(&self, source: io::Error) -> Error {
        Error::WritebackFailed {
            file: self.name.to_string(),
            dirty_pages: self.nr_dirty(),
            is_poisoned: self.poison_code().is_some(),
            source,
        }
    }
}

/// The number of a mapping in the keys of its pages.
pub(crate) fn number_of(mapping: u32) -> u32 {
    mapping & PageKey::MAX_MAPPING
}
