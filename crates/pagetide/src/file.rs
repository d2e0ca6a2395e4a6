//! Files read and written through cached pages.

mod ahead;
mod anon;
mod balance;
mod begun;
mod changes;
mod hit;
mod latch_wait;
mod many;
mod open;
mod options;
pub(crate) mod patience;
mod punch;
mod range;
mod resize;
mod sync;
mod tasks;
mod view;
mod write;

pub(crate) use ahead::Counts as AheadCounts;
pub use ahead::Hint;
pub use anon::Anon;
pub(crate) use open::{Open, expect_together};
pub use options::ReadOptions;
pub use range::PinnedRange;
pub(crate) use sync::{Asked, SyncJob};
pub(crate) use view::Content;
pub use view::UpgradeError;
pub use write::CloseError;

use crate::backing::{BUSY, NO_NUMBER, Room, SHORT};
use crate::group::Group;
use crate::home::Home;
use crate::page::{self, Page, Pin};
use crate::park::Panics;
use crate::pins::Counted;
use crate::stall::Stall;
use crate::trace;
use crate::writeback::LATCH_PATIENCE;
use crate::{Error, cpu};
use ahead::{By, Wish};
use pagetide_core::frame::flag;
use pagetide_core::memory::{Effects, Io, PageError, PageIn, Step};
use pagetide_core::page_cache::{Access, Found, Mappings};
use pagetide_core::units::{Frame, PageKey};
use patience::Patience;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;
use write::Part;

/// A file whose pages are cached, seen by one group. A cheap handle.
///
/// All handles of one file (same device, inode and page size) share its pages; a page is charged
/// to the group whose handle brings it in. When the last handle is dropped, dirty pages are
/// written, and all go.
pub struct File {
    open: Arc<Open>,
    group: Group,
    may_write: bool,
    /// How far its reads are read ahead.
    wish: Wish,
    /// Writes of the file's pages that failed, as far as this handle has told.
    seen_errors: AtomicU32,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("open", &self.open)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// Where the bytes of a page that comes in are from.
struct Fill<'a> {
    /// Bytes that change it on the way.
    part: Option<Part<'a>>,
    /// The place that it then takes among the dirty pages.
    room: Cell<Option<Room<'a>>>,
    /// Zeros, and not what the store has.
    is_zeros: bool,
    /// It has them: nobody else brought the page in.
    is_done: Cell<bool>,
    /// What unwinds on the way, of zeros: they are nobody's content before the caller has them, and
    /// go by the pin that he gets.
    panics: RefCell<Panics>,
    /// Until when to wait for memory, and for who changes the page, where that is not as ever.
    until: Option<Instant>,
    /// Not by who has a lock of the file, for which others wait.
    may_reclaim: bool,
}

impl<'a> Fill<'a> {
    /// From the store.
    fn from_store() -> Fill<'a> {
        Fill {
            part: None,
            room: Cell::new(None),
            is_zeros: false,
            is_done: Cell::new(false),
            panics: RefCell::default(),
            until: None,
            may_reclaim: true,
        }
    }

    fn changed(part: Part<'a>, room: Room<'a>) -> Fill<'a> {
        Fill {
            part: Some(part),
            room: Cell::new(Some(room)),
            ..Fill::from_store()
        }
    }

    /// The same, with or without reclaim.
    fn reclaiming(self, may_reclaim: bool) -> Fill<'a> {
        Fill {
            may_reclaim,
            ..self
        }
    }

    /// Zeros, which are clean: for a caller that overwrites them before anybody sees them.
    fn zeros() -> Fill<'a> {
        Fill {
            is_zeros: true,
            ..Fill::from_store()
        }
    }

    fn is_done(&self) -> bool {
        self.is_done.get()
    }

    /// Runs what may be foreign code, and has it unwind now unless it is kept.
    #[inline]
    fn run(&self, foreign: impl FnOnce()) {
        match self.is_zeros {
            true => self.panics.borrow_mut().catch(foreign),
            false => foreign(),
        }
    }
}

/// A read under way: completed when dropped, so that a panic of a store leaves nobody waiting.
struct Reading<'a> {
    open: &'a Open,
    io: Option<Io>,
    result: Result<(), u32>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let Some(io) = self.io.take() else { return };
        let mut effects = Effects::new();
        let shared = &self.open.shared;
        shared
            .core
            .complete(cpu::current(), io, self.result, &mut effects);
        shared.wake_all(&mut effects);
    }
}

/// An operation under way: abandoned when dropped.
struct Fault<'a> {
    shared: &'a Home,
    op: Option<PageIn>,
}

impl Fault<'_> {
    /// The page, pinned, where its read has ended well.
    #[inline]
    fn take_live(&mut self) -> Option<Frame> {
        let frame = self.op.as_mut()?.take_live(&self.shared.core)?;
        self.op = None;
        Some(frame)
    }
}

impl Drop for Fault<'_> {
    fn drop(&mut self) {
        if let Some(frame) = self.op.take().and_then(PageIn::into_pin) {
            // Also tells who waits for memory.
            self.shared.unpin(frame);
        }
    }
}

impl File {
    pub(crate) fn home(&self) -> &Home {
        &self.open.shared
    }

    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    fn check_process(&self) -> Result<(), Error> {
        self.open.shared.check_process()
    }

    /// Length in bytes: that of the store when the file was opened, or what was written since.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.open.backing.len()
    }

    /// Whether the file has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.open.order.bytes()
    }

    /// The page that a byte is on, and how far it is from its start.
    #[inline]
    fn place(&self, offset: u64) -> (u64, usize) {
        let order = self.open.order;
        let skip = offset & (order.bytes() as u64 - 1);
        let skip = usize::try_from(skip).expect("below the page size");
        (offset >> order.shift(), skip)
    }

    /// Copies bytes out of pages that `pinned` gives: the first of those that are still asked for.
    fn copy_out<'a>(
        &'a self,
        buf: &mut [u8],
        offset: u64,
        pinned: impl Fn(Range<u64>) -> Result<Pin<'a>, Error>,
    ) -> Result<usize, Error> {
        self.check_process()?;
        let (order, shift) = (self.open.order, self.open.order.shift());
        let in_page = order.bytes() as u64 - 1;
        let end = offset.saturating_add(buf.len() as u64);
        let until = end.saturating_add(in_page) >> shift;
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            // Once for this page: others may make the file longer or shorter.
            let len = self.open.backing.len();
            if at >= len {
                break;
            }
            let (page, skip) = self.place(at);
            let pin = pinned(page..until)?;
            // A page that came in after somebody made the file shorter has zeros there.
            let end = self
                .open
                .backing
                .bytes_of(page, len.min(self.open.backing.len()));
            if end <= skip {
                break;
            }
            let bytes = &pin.bytes()[skip..end];
            let left = &mut buf[done..];
            let part = bytes.len().min(left.len());
            left[..part].copy_from_slice(&bytes[..part]);
            done += part;
            if skip + part == end && end < order.bytes() {
                // The end: whoever moves it now gives the rest of the page another moment's bytes.
                break;
            }
        }
        Ok(done)
    }

    /// [`File::pin`] for a page that is kept for long, as the kernel's `FOLL_LONGTERM`: it is
    /// brought where working memory lives, or moved there, so that large blocks of working memory
    /// can still be had of the rest of the memory.
    ///
    /// A move costs a copy of the page, and where the cache is full a page that is evicted; once
    /// for as many pages as fill them, 2 MiB of pages. A page that somebody else has pinned just
    /// now is not moved, and neither is one for which there is no room: then the pin is as good as
    /// one of [`File::pin`]. When it is dropped, the page stays cached where it is.
    ///
    /// # Errors
    /// As [`File::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_longterm(&self, page: u64) -> Result<Page, Error> {
        self.check_process()?;
        let nr_pages = self.open.order.nr_pages();
        let counted = self.group.count_if_limited(nr_pages.into())?;
        self.pin_longterm_counted(&self.group, page, counted)
    }

    /// [`File::pin_longterm`] for `group`, as which it is counted already where it is.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn pin_longterm_counted(
        &self,
        group: &Group,
        page: u64,
        counted: Option<Counted<'_>>,
    ) -> Result<Page, Error> {
        let len = self.len_of(page);
        if len == 0 {
            return Err(self.past_end(page));
        }
        let make = |key| PageIn::longterm(key, group.id());
        let pin = self.bring_in(group, page, make, &Fill::from_store())?;
        let len = self.still_of(page, len)?;
        Ok(pin.into_page(len, counted.map(Counted::into_account)))
    }

    /// Pins a page for `group`, as which it is counted already.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn pin_counted(
        &self,
        group: &Group,
        page: u64,
        counted: Counted<'_>,
    ) -> Result<Page, Error> {
        let (pin, len) = self.pinned_with_len(group, page)?;
        Ok(pin.into_page(len, Some(counted.into_account())))
    }

    /// Bytes of a page that lie in the file.
    #[inline]
    fn len_of(&self, page: u64) -> usize {
        let backing = &self.open.backing;
        backing.bytes_of(page, backing.len())
    }

    /// What is left of the `len` bytes that a page had in the file before it was pinned: somebody
    /// may have made the file shorter, and the page may have come in since.
    ///
    /// # Errors
    /// [`Error::PastEnd`] where nothing is.
    fn still_of(&self, page: u64, len: usize) -> Result<usize, Error> {
        match len.min(self.len_of(page)) {
            0 => Err(self.past_end(page)),
            len => Ok(len),
        }
    }

    #[cold]
    fn past_end(&self, page: u64) -> Error {
        Error::PastEnd {
            file: self.open.backing.name.to_string(),
            page,
            len: self.len(),
        }
    }

    /// Pins the first of `pages`, which somebody asks for; where they are none, a page of which
    /// readahead is not to know. Waits for memory, and for who changes the page, until then.
    #[inline(always)] // A hit is little else.
    fn pinned(
        &self,
        group: &Group,
        pages: Range<u64>,
        access: Access,
        until: Option<Instant>,
    ) -> Result<Pin<'_>, Error> {
        let open = &*self.open;
        let Some(key) = Mappings::key(open.mapping, pages.start) else {
            return Err(self.past_end(pages.start));
        };
        let (found, claim) = open.shared.hold(key, access, 0);
        match found {
            Found::Pinned(frame) => {
                let pin = Pin::held(&open.shared, frame, open.order, claim);
                if !pages.is_empty() {
                    self.look_ahead(group, pages.start);
                }
                Ok(pin)
            }
            found => self.pinned_late(found, group, pages, access, until),
        }
    }

    /// [`File::pinned`] for those who do more than it.
    #[inline(never)]
    fn pinned_until(
        &self,
        group: &Group,
        pages: Range<u64>,
        access: Access,
        until: Option<Instant>,
    ) -> Result<Pin<'_>, Error> {
        self.pinned(group, pages, access, until)
    }

    /// Pins a page that was not found, or not to be had at once.
    #[cold]
    #[inline(never)] // In place, it would take the registers of the hit path.
    fn pinned_late(
        &self,
        found: Found,
        group: &Group,
        pages: Range<u64>,
        access: Access,
        until: Option<Instant>,
    ) -> Result<Pin<'_>, Error> {
        let (page, is_read) = (pages.start, !pages.is_empty());
        if let Found::Reading(frame) = found {
            // The operation below takes its own pin on it.
            self.open.shared.unpin(frame);
        }
        let mut is_begun = false;
        match found {
            _ if !is_read => {}
            Found::Miss => {
                // A read on this thread may take longer than until then.
                let by = until.map_or(By::Caller, |_| By::Background);
                is_begun = self.missed(group, pages, access, by);
            }
            _ => self.look_ahead(group, page),
        }
        // The first time it need not be looked for once more.
        let is_missing = Cell::new(found == Found::Miss && !is_begun);
        let make = |key| match is_missing.take() {
            true => PageIn::missing(key, group.id(), access),
            false => PageIn::new(key, group.id(), access),
        };
        let fill = Fill {
            until,
            ..Fill::from_store()
        };
        self.bring_in(group, page, make, &fill)
    }

    /// Brings a page in by an operation, and again while other readers' pins leave no room.
    #[inline(always)] // As `File::read`.
    fn bring_in(
        &self,
        group: &Group,
        page: u64,
        make: impl Fn(PageKey) -> PageIn,
        fill: &Fill<'_>,
    ) -> Result<Pin<'_>, Error> {
        let open = &*self.open;
        let key = Mappings::key(open.mapping, page).ok_or_else(|| self.past_end(page))?;
        let mut patience = Patience::until(fill.until);
        loop {
            // No pin of this call's: who is above `high` is slowed down here.
            open.shared.pay_debt();
            match self.bring_in_once(make(key), fill) {
                Err(error) if self.may_fit(group, &[page]) && patience.goes_on(group, &error) => {}
                Err(error) => return Err(self.error(group, error, page)),
                Ok(pin) => return Ok(pin),
            }
        }
    }

    /// Brings a page in, by one attempt: reads it, or waits for whoever does. All that those do who
    /// have the lock of the file's length.
    #[inline(always)] // As `File::read`.
    fn bring_in_once(&self, op: PageIn, fill: &Fill<'_>) -> Result<Pin<'_>, PageError> {
        let shared = &self.open.shared;
        let fault = Fault {
            shared,
            op: Some(op),
        };
        let pin = self.run(fault, fill);
        // It reclaims.
        if fill.may_reclaim {
            fill.run(|| shared.settle());
        }
        pin
    }

    /// Runs an operation to its end.
    fn run<'a>(&'a self, mut fault: Fault<'a>, fill: &Fill<'_>) -> Result<Pin<'a>, PageError> {
        let shared = &self.open.shared;
        loop {
            let op = fault.op.as_mut().expect("taken on return only");
            let mut effects = Effects::new();
            let here = shared.here_reclaiming(fill.may_reclaim);
            let step = op.step(&shared.core, here, &mut effects);
            // Where foreign code unwinds, it is looked at anew.
            let mut has_read = true;
            fill.run(|| has_read = self.carry_out(&mut effects, fill));
            match step? {
                Step::Done(frame) => {
                    fault.op = None;
                    return Ok(Pin::new(shared, frame, self.open.order));
                }
                Step::Wait { frame, version } if !has_read => {
                    let _stall = self.stall_on(frame);
                    self.wait_for(frame, version, fill.until)?;
                }
                Step::Wait { .. } => {}
            }
            // Without a step, where a read has ended well.
            if let Some(frame) = fault.take_live() {
                return Ok(Pin::new(shared, frame, self.open.order));
            }
        }
    }

    /// What a step asks for, also where a waker panics, as `Shared::carry_out` does. Returns
    /// whether that was a read, which is done here and in no function given to others.
    #[inline(always)] // As `File::read`.
    fn carry_out(&self, effects: &mut Effects, fill: &Fill<'_>) -> bool {
        let io = effects.pop_io();
        let is_read = io.is_some();
        let mut panics = Panics::default();
        panics.catch(|| self.open.shared.wake_all(effects));
        if let Some(io) = io {
            self.read(io, fill);
        }
        panics.go_on();
        is_read
    }

    /// Waits until a frame's version is no longer `version`: for a read, which ends, or for as long
    /// as whoever changes the page may take.
    fn wait_for(
        &self,
        frame: Frame,
        version: u32,
        until: Option<Instant>,
    ) -> Result<(), PageError> {
        let shared = &self.open.shared;
        let word = shared.core.frames().word(frame);
        if !word.has_any(flag::LATCH | flag::INTENT) {
            shared.wait(frame, version);
            return Ok(());
        }
        let deadline = until.unwrap_or_else(|| Instant::now() + LATCH_PATIENCE);
        let is_over = shared.wait_until(frame, version, deadline);
        is_over.then_some(()).ok_or(PageError::Io(BUSY))
    }

    /// Reads or copies a page as core asked for, and completes it.
    #[inline(always)] // After a system call the CPU foretells none of the returns to its callers.
    fn read(&self, io: Io, fill: &Fill<'_>) {
        let is_read = io.source().is_none();
        let _stall = is_read.then(|| self.stall_on(io.frame()));
        let mut reading = Reading {
            open: &self.open,
            io: Some(io),
            result: Err(NO_NUMBER),
        };
        let io = reading.io.as_mut().expect("set above");
        let shared = &self.open.shared;
        reading.result = match fill.part {
            Some(part) => {
                let room = fill.room.take().expect("a page is changed once");
                let changed = self.fill_changed(io, part, room);
                fill.is_done.set(changed.is_ok());
                changed
            }
            None if fill.is_zeros => {
                page::target(&shared.arena, io).fill(0);
                fill.is_done.set(true);
                Ok(())
            }
            None => {
                let filled = self.open.backing.fill(shared, io);
                filled.map(|nr_bytes| shared.count_read(nr_bytes as u64))
            }
        };
    }

    /// [`Stall::on`] a page.
    fn stall_on(&self, frame: Frame) -> Option<Stall<'_>> {
        Stall::on([frame], &self.open.shared, self.group.id())
    }

    fn error(&self, group: &Group, error: PageError, page: u64) -> Error {
        let open = &*self.open;
        let file = open.backing.name.to_string();
        let source = match error {
            PageError::Alloc(error) => {
                let asked_pages = open.order.nr_pages().into();
                return open.shared.alloc_error(error, group.id(), asked_pages);
            }
            PageError::TooManyPins => return Error::TooManyPins { file, page },
            PageError::Io(BUSY) => return Error::PageBusy { file, page },
            PageError::Io(SHORT) => open.backing.ended_early(),
            PageError::Io(code) => open.backing.told.error_of(code),
        };
        let error = Error::Io { file, page, source };
        trace::read_failed(&error);
        error
    }
}

#[cfg(test)]
mod tests;
