//! Pages of a file for tasks: futures of any executor.

use super::ahead::By;
use super::begun::{Begun, Stepped};
use super::{File, patience};
use crate::group::Group;
use crate::io::Flight;
use crate::memory_wait::MemoryWait;
use crate::page;
use crate::park::Panics;
use crate::pins::Counted;
use crate::stall;
use crate::wait::Ticket;
use crate::{Error, Page};
use pagetide_core::memory::{PageError, PageIn};
use pagetide_core::page_cache::{Access, Found};
use pagetide_core::units::PageKey;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A page on its way to being pinned.
pub(super) struct BringIn<'a> {
    file: &'a File,
    group: &'a Group,
    key: PageKey,
    access: Access,
    op: Option<PageIn>,
    /// Where its waker is, while it waits for the page.
    ticket: Option<Ticket>,
    /// While it waits for memory.
    wait: Option<MemoryWait>,
}

impl Drop for BringIn<'_> {
    fn drop(&mut self) {
        if self.file.open.shared.is_forked() {
            return;
        }
        // Wakers are foreign, and may unwind: its own one as it goes, and those who are woken.
        let mut panics = Panics::default();
        panics.catch(|| self.forget());
        panics.catch(|| self.abandon());
        panics.go_on();
    }
}

impl<'a> BringIn<'a> {
    pub(super) fn new(file: &'a File, key: PageKey, access: Access) -> BringIn<'a> {
        BringIn {
            file,
            group: &file.group,
            key,
            access,
            op: None,
            ticket: None,
            wait: None,
        }
    }

    /// One of many pages of a call, whose operation has begun: no sequential reader is looked for.
    pub(super) fn begun(file: &'a File, op: PageIn) -> BringIn<'a> {
        let mut bring_in = BringIn::new(file, op.key(), Access::Pin);
        bring_in.op = Some(op);
        bring_in
    }

    fn forget(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.file.open.shared.waiters.forget(ticket);
        }
    }

    /// Gives the operation up; a read that it began goes on.
    fn abandon(&mut self) {
        if let Some(frame) = self.op.take().and_then(PageIn::into_pin) {
            // Also tells who waits for memory.
            self.file.open.shared.unpin(frame);
        }
    }

    /// The page, if it is resident.
    fn look(&self) -> Option<page::Pin<'a>> {
        let open = &self.file.open;
        let (found, claim) = open.shared.hold(self.key, self.access, 0);
        match found {
            Found::Pinned(frame) => {
                let pin = page::Pin::held(&open.shared, frame, open.order, claim);
                self.file.look_ahead(self.group, self.key.page());
                return Some(pin);
            }
            // The operation takes its own pin on it.
            Found::Reading(frame) => {
                open.shared.unpin(frame);
                self.file.look_ahead(self.group, self.key.page());
            }
            Found::Miss => {
                let page = self.key.page();
                let asked = page..page + 1;
                self.file
                    .missed(self.group, asked, self.access, By::Background);
            }
            _ => {}
        }
        None
    }

    /// Steps the operation; the read that it asks for goes on in the background.
    fn step(&mut self) -> Result<Stepped<'a>, PageError> {
        let open = &*self.file.open;
        let _flight = Flight::new(open.shared.shared(), &open.backing);
        let begun = Begun::in_background(open);
        let new = || PageIn::new(self.key, self.group.id(), self.access);
        let op = self.op.get_or_insert_with(new);
        let step = begun.step(op);
        begun.hand_over();
        open.shared.settle();
        if !matches!(step, Ok(Stepped::Wait { .. })) {
            // It is over and holds nothing.
            self.op = None;
        }
        step
    }

    /// [`BringIn::step`], waiting for memory where others' pins leave no room.
    fn try_step(&mut self, waker: &Waker) -> Poll<Result<Stepped<'a>, Error>> {
        let (group, nr_bytes) = (self.group, self.file.page_bytes() as u64);
        let mut wait = self.wait.take();
        let polled = patience::poll(&mut wait, (group, || nr_bytes), waker, || {
            match self.step() {
                Err(PageError::Alloc(error)) => Err(error),
                done => Ok(done),
            }
        });
        self.wait = wait;
        polled.map(|done| done?.map_err(|error| self.error(error)))
    }

    /// Whether it waits for a read inside another one.
    fn is_read_in_store(&self) -> bool {
        let is_reading = self.op.as_ref().is_some_and(PageIn::is_reading);
        is_reading && stall::is_reading(&self.file.open.shared)
    }

    fn error(&self, error: PageError) -> Error {
        self.file.error(self.group, error, self.key.page())
    }
}

impl<'a> Future for BringIn<'a> {
    type Output = Result<page::Pin<'a>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = &self.file.open.shared;
        shared.check_process()?;
        // Without threads, whoever is there reaps.
        shared.io.reap();
        self.forget();
        if self.op.is_none()
            && let Some(pin) = self.look()
        {
            return Poll::Ready(Ok(pin));
        }
        loop {
            let step = match self.try_step(context.waker()) {
                Poll::Ready(step) => step?,
                Poll::Pending => return Poll::Pending,
            };
            match step {
                Stepped::Done(pin) => return Poll::Ready(Ok(pin)),
                // In a store, on whose threads the page may have to be read.
                Stepped::Wait { frame, version } if self.is_read_in_store() => {
                    shared.wait(frame, version);
                }
                Stepped::Wait { frame, version } => {
                    let is_same = || shared.core.frames().word(frame).version() == version;
                    self.ticket = shared.waiters.register(frame, context.waker(), is_same);
                    if self.ticket.is_some() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl File {
    /// [`File::pin`] as a future, for any executor: the page's read goes on in the background, and
    /// its end wakes the task. Dropped, it waits no more; the read goes on for whoever wants the
    /// page next. A page that is there costs what it costs [`File::pin`].
    ///
    /// From its first poll until it is ready or dropped, it counts in the group's pin budget, and
    /// holds the page pinned as soon as that is being read: also after the read has ended, so that
    /// the page stays in memory and nobody changes it. So whoever has polled one polls it again
    /// when it is woken, or drops it, and does not keep it aside.
    ///
    /// Polling may reclaim on the calling thread, which waits for writes where all that can go is
    /// dirty; but what is charged above `high` is paid by a later call. Where neither io_uring nor
    /// a thread can finish the read, the first poll reads. Under
    /// [`Builder::without_thread`](crate::Builder::without_thread) the program ends reads as
    /// [`Memory::event_fd`](crate::Memory::event_fd) says.
    ///
    /// Where somebody changes the page, it waits as long as that takes, and not for a second: a
    /// task that holds a [`PageMut`](crate::PageMut) while it awaits a page waits for ever where
    /// another one does the same the other way round.
    ///
    /// # Errors
    /// As [`File::pin`], but for [`Error::PageBusy`], and [`Error::TimedOut`] where others' pins
    /// fill the group, or lie in every block, for 2 s (the memory's thread, or a
    /// [`tick`](crate::Memory::tick), ends that).
    pub async fn pin_async(&self, page: u64) -> Result<Page, Error> {
        if let Some(pin) = self.pin_whole(page) {
            self.open.shared.io.reap();
            return Ok(pin.into_page(self.page_bytes(), None));
        }
        self.check_process()?;
        let (key, len) = self.key_and_len(page)?;
        let nr_pages = self.open.order.nr_pages();
        let counted = self.group.count_if_limited(nr_pages.into())?;
        let pin = BringIn::new(self, key, Access::Pin).await?;
        let len = self.still_of(page, len)?;
        Ok(pin.into_page(len, counted.map(Counted::into_account)))
    }

    /// [`File::read_at`] as a future, as [`File::pin_async`]. All missing pages of the range are
    /// read together, as many as one [`File::prefetch`] takes. While it waits for a page, that one
    /// is pinned, as there, but counts in no pin budget.
    ///
    /// # Errors
    /// As [`File::read_at`], but for [`Error::TimedOut`] as [`File::pin_async`].
    pub async fn read_at_async(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        if self.read_at_hand(buf, offset).is_ok() {
            self.open.shared.io.reap();
            return Ok(buf.len());
        }
        let page_bytes = self.open.order.bytes() as u64;
        let end = offset.saturating_add(buf.len() as u64);
        let mut is_prefetched = false;
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            // Once for this page: others may make the file longer or shorter.
            let len = self.open.backing.len();
            let page = at / page_bytes;
            let Some(key) = self.open.backing.key(page).filter(|_| at < len) else {
                break;
            };
            if !is_prefetched && !self.open.shared.core.is_resident(key) {
                is_prefetched = true;
                let begun = Begun::in_background(&self.open);
                self.prefetch_by(begun, &self.group, page + 1..end.div_ceil(page_bytes));
            }
            let pin = BringIn::new(self, key, Access::Copy).await?;
            let skip = usize::try_from(at % page_bytes).expect("below the page size");
            let end = self
                .open
                .backing
                .bytes_of(page, len.min(self.open.backing.len()));
            if end <= skip {
                break;
            }
            let bytes = &pin.bytes()[skip..end];
            let part = bytes.len().min(buf.len() - done);
            buf[done..done + part].copy_from_slice(&bytes[..part]);
            done += part;
            if skip + part == end && end < self.page_bytes() {
                // As in `copy_out`.
                break;
            }
        }
        Ok(done)
    }
}
