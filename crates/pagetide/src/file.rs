//! Files read through cached pages.

use crate::group::Group;
use crate::home::Home;
use crate::page::{self, Page, Pin};
use crate::pins::Counted;
use crate::stall::Stall;
use crate::store::{DirectFile, Store};
use crate::{Error, Order, cpu};
use pagetide_core::frame::flag;
use pagetide_core::memory::{AllocError, Effect, Effects, Io, PageError, PageIn, Step};
use pagetide_core::page_cache::{Access, Found, Mappings};
use pagetide_core::units::{Frame, PageKey};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a reader waits for other readers' pins before a full group refuses it.
const PATIENCE: Duration = Duration::from_millis(200);
/// The code of a read that ended before the page did. Others are error numbers of the system.
const SHORT_READ: u32 = u32::MAX;
/// The code of a read whose store panicked or told no error number.
const NO_NUMBER: u32 = u32::MAX - 1;

/// A file whose pages are cached, seen by one group. A cheap handle.
///
/// All handles of one file (same device, inode and page size) share its pages; a page is charged
/// to the group whose handle brings it in. When the last handle is dropped the pages go.
#[derive(Clone)]
pub struct File {
    open: Arc<Open>,
    group: Group,
}

/// An open file: one mapping of core.
pub(crate) struct Open {
    shared: Arc<Home>,
    mapping: u32,
    order: pagetide_core::units::Order,
    source: Source,
    name: Arc<str>,
    len: u64,
}

enum Source {
    File(DirectFile),
    Store(Box<dyn Store>),
}

impl Source {
    fn store(&self) -> &dyn Store {
        match self {
            Source::File(file) => file,
            Source::Store(store) => store.as_ref(),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Source::File(file) = &self.source {
            self.shared.count_buffered(file.nr_buffered_reads());
        }
        self.shared.file_names().remove(&number_of(self.mapping));
        self.shared.close_mapping(self.mapping);
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("name", &self.name)
            .field("len", &self.len)
            .finish()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("open", &self.open)
            .field("group", &self.group)
            .finish()
    }
}

/// The number of a mapping in the keys of its pages.
fn number_of(mapping: u32) -> u32 {
    mapping & PageKey::MAX_MAPPING
}

impl Open {
    fn new(shared: &Arc<Home>, source: Source, name: String, order: Order) -> Result<Open, Error> {
        let failed = |source| Error::Open {
            path: name.clone().into(),
            source,
        };
        let len = source.store().len().map_err(failed)?;
        let order = order.to_core();
        let mapping = shared.core.open_mapping(shared.here(), order);
        let mapping = mapping.map_err(|_| Error::NoMetadata { what: "a file" })?;
        let name: Arc<str> = name.into();
        let mut names = shared.file_names();
        names.insert(number_of(mapping), Arc::clone(&name));
        drop(names);
        Ok(Open {
            shared: Arc::clone(shared),
            mapping,
            order,
            source,
            name,
            len,
        })
    }

    /// Bytes of a page that lie in the file.
    fn bytes_of(&self, page: u64) -> usize {
        let bytes = self.order.bytes();
        let start = page.saturating_mul(bytes as u64);
        usize::try_from(self.len.saturating_sub(start)).map_or(bytes, |left| left.min(bytes))
    }

    /// Fills a page from the store, or from where it was before; what lies beyond the file's end is
    /// zeroed.
    fn fill(&self, io: &mut Io) -> Result<(), u32> {
        if io.source().is_some() {
            page::copy(&self.shared.arena, io);
            return Ok(());
        }
        let page = io.key().page();
        let start = page * self.order.bytes() as u64;
        let wanted = self.bytes_of(page);
        let may_show_old_bytes = !io.was_ours() && matches!(self.source, Source::Store(_));
        let buf = page::target(&self.shared.arena, io);
        if may_show_old_bytes {
            // A store is foreign code: it gets no bytes of another group, and cannot pass them on
            // by saying that it read more than it did. The kernel does neither.
            buf.fill(0);
        }
        let mut filled = 0;
        while filled < wanted {
            match self
                .source
                .store()
                .read_at(&mut buf[filled..], start + filled as u64)
            {
                Ok(0) => return Err(SHORT_READ),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let number = error.raw_os_error().and_then(|n| u32::try_from(n).ok());
                    return Err(number.unwrap_or(NO_NUMBER));
                }
            }
        }
        self.shared.count_read(wanted as u64);
        buf[wanted..].fill(0);
        Ok(())
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

impl Drop for Fault<'_> {
    fn drop(&mut self) {
        if let Some(op) = self.op.take() {
            let mut effects = Effects::new();
            op.abandon(&self.shared.core, cpu::current(), &mut effects);
            self.shared.wake_all(&mut effects);
        }
    }
}

impl File {
    pub(crate) fn open_direct(
        shared: &Arc<Home>,
        file: DirectFile,
        name: String,
        order: Order,
        group: &Group,
    ) -> Result<File, Error> {
        let key = (file.identity.0, file.identity.1, order.to_core().get());
        let mut files = shared.files();
        if let Some(open) = files.get(&key).and_then(std::sync::Weak::upgrade) {
            return Ok(File {
                open,
                group: group.clone(),
            });
        }
        files.retain(|_, open| open.strong_count() > 0);
        let open = Arc::new(Open::new(shared, Source::File(file), name, order)?);
        files.insert(key, Arc::downgrade(&open));
        Ok(File {
            open,
            group: group.clone(),
        })
    }

    pub(crate) fn open_store(
        shared: &Arc<Home>,
        store: Box<dyn Store>,
        name: String,
        order: Order,
        group: &Group,
    ) -> Result<File, Error> {
        let open = Arc::new(Open::new(shared, Source::Store(store), name, order)?);
        Ok(File {
            open,
            group: group.clone(),
        })
    }

    /// The same file for another group: what this handle brings in is charged to it.
    #[must_use]
    pub fn for_group(&self, group: &Group) -> File {
        File {
            open: Arc::clone(&self.open),
            group: group.clone(),
        }
    }

    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.open.shared
    }

    /// Length in bytes when the file was opened.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.open.len
    }

    /// Whether the file had no byte when it was opened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.len == 0
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.open.order.bytes()
    }

    /// Copies bytes from `offset` on into `buf`; returns how many, fewer only at the file's end.
    ///
    /// A cached page costs two read-modify-writes and the copy. A missing one is read by this
    /// thread, or awaited where another reads it.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::OverLimit`], [`Error::NoMetadata`], [`Error::TooManyPins`]; `buf`
    /// may hold part of the bytes.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        let page_bytes = self.open.order.bytes() as u64;
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            if at >= self.open.len {
                break;
            }
            let page = at / page_bytes;
            let skip = usize::try_from(at % page_bytes).expect("below the page size");
            let pin = self.pinned(&self.group, page, Access::Copy)?;
            let bytes = &pin.bytes()[skip..self.open.bytes_of(page)];
            let part = bytes.len().min(buf.len() - done);
            buf[done..done + part].copy_from_slice(&bytes[..part]);
            done += part;
        }
        Ok(done)
    }

    /// A view of page number `page` without a copy, shorter than a page only at the file's end.
    ///
    /// # Errors
    /// [`Error::PastEnd`]; at once [`Error::PinLimit`] where [`Group::set_pin_max`] leaves no room;
    /// as [`File::read_at`].
    pub fn pin(&self, page: u64) -> Result<Page, Error> {
        if self.group.has_pin_budget() {
            let counted = self.group.count_pin(self.open.order.nr_pages())?;
            return self.pin_counted(&self.group, page, counted);
        }
        let len = self.open.bytes_of(page);
        if len == 0 {
            return Err(self.past_end(page));
        }
        let pin = self.pinned(&self.group, page, Access::Pin)?;
        Ok(pin.into_page(len, None))
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
    pub fn pin_longterm(&self, page: u64) -> Result<Page, Error> {
        let budget = self.group.has_pin_budget();
        let nr_pages = self.open.order.nr_pages();
        let counted = budget.then(|| self.group.count_pin(nr_pages)).transpose()?;
        self.pin_longterm_counted(&self.group, page, counted)
    }

    /// [`File::pin_longterm`] for `group`, as which it is counted already where it is.
    pub(crate) fn pin_longterm_counted(
        &self,
        group: &Group,
        page: u64,
        counted: Option<Counted<'_>>,
    ) -> Result<Page, Error> {
        let len = self.open.bytes_of(page);
        if len == 0 {
            return Err(self.past_end(page));
        }
        let make = |key| PageIn::longterm(key, group.id());
        let pin = self.bring_in(group, page, make)?;
        Ok(pin.into_page(len, counted.map(Counted::into_account)))
    }

    /// Pins a page for `group`, as which it is counted already.
    #[inline(never)] // Where no budget is, nothing of it is in the way.
    pub(crate) fn pin_counted(
        &self,
        group: &Group,
        page: u64,
        counted: Counted<'_>,
    ) -> Result<Page, Error> {
        let len = self.open.bytes_of(page);
        if len == 0 {
            return Err(self.past_end(page));
        }
        let pin = self.pinned(group, page, Access::Pin)?;
        Ok(pin.into_page(len, Some(counted.into_account())))
    }

    #[cold]
    fn past_end(&self, page: u64) -> Error {
        Error::PastEnd {
            file: self.open.name.to_string(),
            page,
            len: self.open.len,
        }
    }

    fn pinned(&self, group: &Group, page: u64, access: Access) -> Result<Pin<'_>, Error> {
        let open = &*self.open;
        let key = Mappings::key(open.mapping, page).ok_or_else(|| self.past_end(page))?;
        let mut effects = Effects::new();
        let found = open
            .shared
            .core
            .pin(cpu::current(), key, access, &mut effects);
        open.shared.wake_all(&mut effects);
        if let Found::Pinned(frame) = found {
            return Ok(Pin::new(&open.shared, frame, open.order));
        }
        if let Found::Reading(frame) = found {
            // The operation below takes its own pin on it.
            open.shared.unpin(frame);
        }
        self.bring_in(group, page, |key| PageIn::new(key, group.id(), access))
    }

    /// Brings a page in by an operation, and again while other readers fill the group.
    fn bring_in(
        &self,
        group: &Group,
        page: u64,
        make: impl Fn(PageKey) -> PageIn,
    ) -> Result<Pin<'_>, Error> {
        let open = &*self.open;
        let key = Mappings::key(open.mapping, page).ok_or_else(|| self.past_end(page))?;
        let mut deadline = None;
        loop {
            let fault = self.fault(make(key));
            open.shared.settle();
            match fault {
                Err(PageError::Alloc(AllocError::OverLimit { .. }))
                    if Instant::now()
                        < *deadline.get_or_insert_with(|| Instant::now() + PATIENCE) =>
                {
                    // Other readers' pins fill the group: theirs are short.
                    std::thread::yield_now();
                }
                Err(error) => return Err(self.error(group, error, page)),
                Ok(pin) => return Ok(pin),
            }
        }
    }

    /// Brings a page in: reads it, or waits for whoever does.
    #[cold]
    #[inline(never)] // In place, it would take the registers of the hit path.
    fn fault(&self, op: PageIn) -> Result<Pin<'_>, PageError> {
        let shared = &self.open.shared;
        // No pin of this call's: who is above `high` is slowed down here.
        shared.pay_debt();
        let mut fault = Fault {
            shared,
            op: Some(op),
        };
        loop {
            let op = fault.op.as_mut().expect("taken on return only");
            let mut effects = Effects::new();
            let step = op.step(&shared.core, shared.here(), &mut effects);
            let mut reads = 0;
            while let Some(effect) = effects.pop() {
                match effect {
                    Effect::Wake(frame) => shared.waiters.wake(frame),
                    Effect::Read(io) | Effect::Copy(io) => {
                        reads += 1;
                        self.read(io);
                    }
                }
            }
            match step? {
                Step::Done(frame) => {
                    fault.op = None;
                    return Ok(Pin::new(shared, frame, self.open.order));
                }
                Step::Wait { frame, version } if reads == 0 => {
                    let _stall = self.stall_on(frame);
                    shared.wait(frame, version);
                }
                Step::Wait { .. } => {}
            }
        }
    }

    /// Reads or copies a page as core asked for, and completes it.
    fn read(&self, io: Io) {
        let is_read = io.source().is_none();
        let _stall = is_read.then(|| self.stall_on(io.frame()));
        let mut reading = Reading {
            open: &self.open,
            io: Some(io),
            result: Err(NO_NUMBER),
        };
        let io = reading.io.as_mut().expect("set above");
        reading.result = self.open.fill(io);
    }

    /// A page of the working set that is read again was lost for want of memory: whoever reads it
    /// or waits for it stalls on memory.
    ///
    /// Source: the kernel, whose `filemap_read_folio()` and `folio_wait_bit_common()` stall so.
    fn stall_on(&self, frame: Frame) -> Option<Stall<'_>> {
        let shared = &self.open.shared;
        let is_workingset = shared.core.frames().word(frame).has(flag::WORKINGSET);
        is_workingset.then(|| Stall::begin(shared, self.group.id()))
    }

    fn error(&self, group: &Group, error: PageError, page: u64) -> Error {
        let open = &*self.open;
        let file = open.name.to_string();
        match error {
            PageError::Alloc(error) => open.shared.alloc_error(error, group.id(), open.order),
            PageError::TooManyPins => Error::TooManyPins { file, page },
            PageError::Io(SHORT_READ) => {
                let source = io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("the file ended before its {} bytes", open.len),
                );
                Error::Io { file, page, source }
            }
            PageError::Io(NO_NUMBER) => Error::Io {
                file,
                page,
                source: io::Error::other("the store failed"),
            },
            PageError::Io(number) => {
                let number = i32::try_from(number).unwrap_or(0);
                Error::Io {
                    file,
                    page,
                    source: io::Error::from_raw_os_error(number),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
