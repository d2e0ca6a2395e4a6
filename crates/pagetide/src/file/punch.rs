//! Pages that are dropped instead of written: holes, what others wrote, what nobody needs.

use super::File;
use super::latch_wait::{LatchWait, Obstacle};
use super::write::bytes_of;
use crate::backing::Backing;
use crate::page::PageMut;
use crate::park::{self, Panics};
use crate::shared::Shared;
use crate::store::uninterrupted;
use crate::writeback::LATCH_PATIENCE;
use crate::{Error, cpu};
use pagetide_core::frame::flag;
use pagetide_core::memory::{Discard, Effects};
use pagetide_core::units::{Frame, PageKey};
use std::io;
use std::ops::{Range, RangeBounds, RangeInclusive};
use std::sync::RwLockWriteGuard;
use std::sync::atomic::Ordering;

/// Pages of which a part was zeroed.
type Zeroed = [Option<u64>; 2];

impl File {
    /// Makes a range of bytes a hole: it reads as zeros, and the store gives up its space where it
    /// can ([`Store::punch`](crate::Store::punch)). Whole pages are dropped without being written,
    /// dirty or not; pinned ones keep their bytes, and their memory until they are let go. Of the
    /// others the bytes are zeroed in memory, and so is the file's last page where the store has
    /// yet to become so long: it is written. Where much of the group is dirty then, writes some of
    /// it back, as [`File::write_at`] does. The file stays as long as it is.
    ///
    /// Not durable before [`File::sync`]. O(pages of the range, or resident ones of the file).
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::PageBusy`] where somebody changes a page of the range, or has
    /// one pinned whose bytes are zeroed, for more than a second: the file is as it was; as
    /// [`File::read_at`] for such a page. [`Error::WritebackFailed`] where the store fails to make
    /// this hole: the range reads as zeros all the same, and the next write or `sync` of the file
    /// tries again; but the file is as it was where the store fails again to make an earlier hole
    /// or end, or takes no more writes. Which of them it is, a byte of the range tells. Pages that
    /// cannot be written, or wait for the log, are no error here.
    pub fn punch(&self, range: impl RangeBounds<u64>) -> Result<(), Error> {
        self.check_may_write()?;
        let Some(bytes) = bytes_of(range) else {
            return Ok(());
        };
        let mut wait = LatchWait::new(self, &self.group);
        self.open.shared.pay_debt();
        self.await_writes(self.open.backing.pages_of(bytes));
        let zeroed = loop {
            match self.punch_alone(bytes, &mut wait)? {
                Ok(zeroed) => break zeroed,
                Err(obstacle) => wait.on(obstacle)?,
            }
        };
        self.open.shared.fill_put_off();
        self.open.shared.pay_debt();
        for page in zeroed.into_iter().flatten() {
            self.balance(self.charged_to(page).unwrap_or(self.group.id()));
        }
        Ok(())
    }

    /// [`File::punch`] of the bytes from one to another, unless somebody holds a page of which a
    /// part is to be zeroed, or there is no memory for it. Returns these pages.
    fn punch_alone(
        &self,
        (start, last): (u64, u64),
        wait: &mut LatchWait<'_>,
    ) -> Result<Result<Zeroed, Obstacle>, Error> {
        let backing = &*self.open.backing;
        let page_bytes = self.open.order.bytes() as u64;
        let _alone = self.alone_after(wait, backing.pages_of((start, last)))?;
        self.check_droppable()?;
        let len = backing.len();
        let end = last.saturating_add(1).min(len);
        if start >= end {
            return Ok(Ok([None; 2]));
        }
        let first_whole = start.div_ceil(page_bytes);
        let end_whole = match end == len {
            true if backing.has_all() => end.div_ceil(page_bytes),
            // With this page the store gets as long as the file is.
            true => (end - 1) / page_bytes,
            false => end / page_bytes,
        };
        let mut panics = Panics::default();
        let whole = first_whole..end_whole;
        let zeroed = self.zero_parts((start..end, whole), wait, &mut panics)?;
        if zeroed.is_err() || first_whole >= end_whole {
            panics.go_on();
            return Ok(zeroed);
        }
        let turn = backing.behind.turn();
        backing.begin_hole(first_whole..end_whole);
        panics.catch(|| self.drop_pages(first_whole..=end_whole - 1));
        let made = backing.catch_up_in(&self.open.shared, &turn);
        panics.go_on();
        made.map(|()| zeroed)
    }

    /// Zeroes those bytes of a range that do not lie in its whole pages: all, or none where one of
    /// their pages cannot be had at once.
    fn zero_parts(
        &self,
        (bytes, whole): (Range<u64>, Range<u64>),
        wait: &LatchWait<'_>,
        panics: &mut Panics,
    ) -> Result<Result<Zeroed, Obstacle>, Error> {
        let page_bytes = self.open.order.bytes() as u64;
        let (first, last) = (bytes.start / page_bytes, (bytes.end - 1) / page_bytes);
        let mut views: [Option<PageMut>; 2] = [None, None];
        let pages = [Some(first), Some(last).filter(|_| last != first)];
        for (view, page) in views.iter_mut().zip(pages) {
            if let Some(page) = page.filter(|page| !whole.contains(page)) {
                match self.view_alone(page, wait.tries())? {
                    Ok(latched) => *view = Some(latched),
                    Err(obstacle) => return Ok(Err(obstacle)),
                }
            }
        }
        for view in views.iter_mut().flatten() {
            let start = view.page() * page_bytes;
            let in_page = |at: u64| {
                let at = at.saturating_sub(start).min(view.len() as u64);
                usize::try_from(at).expect("at most a page")
            };
            let part = in_page(bytes.start)..in_page(bytes.end);
            view[part].fill(0);
        }
        let zeroed = views.each_ref().map(|view| Some(view.as_ref()?.page()));
        // Those who are woken may unwind: not before all is zeros.
        panics.catch(|| drop(views));
        Ok(Ok(zeroed))
    }

    /// Drops what is cached of a range of bytes, so that it is read again: for files that others
    /// than this memory's handles write. The length of the file becomes that of the store, too,
    /// whatever the range. Pinned pages keep their bytes until they are let go.
    ///
    /// What others write at the same time may be seen or not; who reads meanwhile, on another
    /// thread, sees what the store has or had. O(pages of the range, or resident ones of the file).
    ///
    /// # Errors
    /// [`Error::PageDirty`] where a page has bytes that are not written, which would be lost, in
    /// the range or where the length has changed; [`Error::PageBusy`] where somebody changes one
    /// for more than a second; [`Error::Open`] where the store does not tell its length;
    /// [`Error::WritebackFailed`] where it has to be cut yet. Nothing is dropped then.
    pub fn invalidate_range(&self, range: impl RangeBounds<u64>) -> Result<(), Error> {
        self.check_process()?;
        let (shared, backing) = (&*self.open.shared, &*self.open.backing);
        let page_bytes = self.open.order.bytes() as u64;
        let alone = self.alone(0..=u64::MAX)?;
        backing.catch_up(shared)?;
        let asked = bytes_of(range).map(|bytes| backing.pages_of(bytes));
        let old_len = backing.len();
        // A page that the file ended in has zeros behind.
        let changed = |len| (old_len != len).then(|| old_len.min(len) / page_bytes..=u64::MAX);
        let mut len = self.stored_len()?;
        // A write of ours that was under way when the store was asked may have made it longer: so
        // it is asked again once none is, until all has been looked at that changes.
        loop {
            let seen = changed(len);
            for pages in asked.clone().into_iter().chain(seen.clone()) {
                if let Some(page) = dirty_in(shared, backing, pages) {
                    let file = backing.name.to_string();
                    return Err(Error::PageDirty { file, page });
                }
            }
            len = self.stored_len()?;
            let is_seen = |page| seen.is_some_and(|seen| seen.contains(&page));
            if changed(len).is_none_or(|pages| is_seen(*pages.start())) {
                break;
            }
        }
        backing.expect_len(len);
        let stale = asked.into_iter().chain(changed(len));
        let mut panics = Panics::default();
        panics.catch(|| park::to_each(stale, |pages| self.drop_pages(pages)));
        backing.set_len_found(len);
        drop(alone);
        panics.go_on();
        shared.fill_put_off();
        Ok(())
    }

    /// Length of the store.
    fn stored_len(&self) -> Result<u64, Error> {
        let backing = &*self.open.backing;
        let len = uninterrupted(|| backing.source.store().len());
        len.map_err(|source| Error::Open {
            path: (*backing.name).into(),
            source,
        })
    }

    /// Drops the dirty pages of the file instead of writing them, and returns how many: what was
    /// written to them is lost, and the file has again what the store has. The way out where the
    /// store fails for good and nobody needs the bytes.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::PageBusy`] where somebody changes a page for more than a
    /// second: nothing is dropped then.
    pub fn discard_dirty(&self) -> Result<u64, Error> {
        let (shared, backing) = (&*self.open.shared, &*self.open.backing);
        self.check_handle()?;
        self.await_writes(0..=u64::MAX);
        let alone = self.alone(0..=u64::MAX)?;
        let (mut next, mut nr_dropped) = (0, 0);
        let mut panics = Panics::default();
        while let Some(page) = dirty_in(shared, backing, next..=u64::MAX) {
            nr_dropped += 1;
            panics.catch(|| discard(shared, backing, page));
            backing.settle(shared, page);
            next = page + 1;
        }
        let has_no_way = |error: io::Error| error.kind() == io::ErrorKind::Unsupported;
        let can_be_cut = || !self.ask_store().is_err_and(has_no_way);
        if let Some(changed) = backing.cut_to_stored(can_be_cut) {
            // Clean ones, too: who has one pinned must not make it one to write, behind the end.
            let first = changed / backing.order.bytes() as u64;
            panics.catch(|| self.drop_pages(first..=u64::MAX));
        }
        backing.forget_failures();
        // Whoever gives up knows of the errors.
        let errors = shared.core.write_errors(self.open.mapping);
        self.seen_errors.store(errors.nr_errors, Ordering::Relaxed);
        drop(alone);
        panics.go_on();
        shared.fill_put_off();
        Ok(nr_dropped)
    }

    /// Waits for the writes of these pages that are under way now, before somebody takes the file
    /// for himself to drop them: with it, he would keep all from it who write to other pages. Only
    /// those that begin meanwhile he waits for with it.
    fn await_writes(&self, pages: RangeInclusive<u64>) {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        let mut under_way = Vec::new();
        let mut next = *pages.start();
        while let Some(page) = backing.next_dirty(next..=*pages.end(), u32::MAX) {
            let key = backing.key(page);
            under_way.extend(key.and_then(|key| write_of(shared, key)));
            next = page + 1;
        }
        for (frame, version) in under_way {
            shared.wait(frame, version);
        }
    }

    /// The file for this call alone, as soon as nobody changes any of these pages.
    pub(super) fn alone(
        &self,
        pages: RangeInclusive<u64>,
    ) -> Result<RwLockWriteGuard<'_, ()>, Error> {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        // For who changes a page: how long it waits for the file in between does not count.
        let mut patience = LATCH_PATIENCE;
        loop {
            let alone = backing.length.take();
            let alone = alone.ok_or_else(|| self.busy(*pages.start()))?;
            let Some((page, frame, version)) = latched_in(shared, backing, pages.clone()) else {
                return Ok(alone);
            };
            // Whoever changes it may need the lock to go on.
            drop(alone);
            if !shared.wait_within(frame, version, &mut patience) {
                return Err(self.busy(page));
            }
        }
    }

    /// [`File::alone`] after a wait, if there was one. Where that is not at once, others pin the
    /// page meanwhile.
    fn alone_after(
        &self,
        wait: &mut LatchWait<'_>,
        pages: RangeInclusive<u64>,
    ) -> Result<RwLockWriteGuard<'_, ()>, Error> {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        let at_once = backing.length.try_take();
        let at_once = at_once.filter(|_| !backing.is_obstructed());
        match at_once.filter(|_| latched_in(shared, backing, pages.clone()).is_none()) {
            Some(alone) => Ok(alone),
            None => wait.apart(|_| self.alone(pages)),
        }
    }

    /// Drops pages, dirty or not, of a file that the caller has for itself: one walk at a time. All
    /// of them, before it unwinds where somebody who is woken does: one that stayed would show its
    /// old bytes again.
    pub(super) fn drop_pages(&self, pages: RangeInclusive<u64>) {
        let (shared, backing) = (&*self.open.shared, &*self.open.backing);
        let nr_pages = pages.end() - pages.start();
        let nr_dirty = backing.nr_dirty();
        let mut panics = Panics::default();
        let mut drop_page = |page| panics.catch(|| discard(shared, backing, page));
        if nr_pages < u64::from(shared.core.nr_resident(self.open.mapping)) {
            pages.clone().for_each(drop_page);
        } else {
            let drop_page = &mut |page| {
                if pages.contains(&page) {
                    drop_page(page);
                }
            };
            shared.core.resident_pages(self.open.mapping, drop_page);
        }
        backing.settle_all(shared, pages);
        if backing.nr_dirty() < nr_dirty {
            // What could not be written may be gone: of what is left, the next write tells.
            backing.forget_failures();
        }
        panics.go_on();
    }
}

/// A page that somebody changes, its frame, and the version to wait for. Each is noted as one that
/// gets dirty.
fn latched_in(
    shared: &Shared,
    backing: &Backing,
    pages: RangeInclusive<u64>,
) -> Option<(u64, Frame, u32)> {
    let mut next = *pages.start();
    while let Some(page) = backing.next_dirty(next..=*pages.end(), u32::MAX) {
        let key = backing.key(page);
        if let Some((frame, version)) = key.and_then(|key| shared.core.await_unlatched(key)) {
            return Some((page, frame, version));
        }
        next = page + 1;
    }
    None
}

/// The frame of a page that is being written, and the version to wait for.
fn write_of(shared: &Shared, key: PageKey) -> Option<(Frame, u32)> {
    let core = &shared.core;
    let frame = core.likely(key)?;
    let seen = core.frames().word(frame);
    let is_its = core.frames().key(frame) == Some(key);
    (is_its && seen.has(flag::WRITEBACK)).then(|| (frame, seen.version()))
}

/// The first page that has to be written.
fn dirty_in(shared: &Shared, backing: &Backing, pages: RangeInclusive<u64>) -> Option<u64> {
    let mut next = *pages.start();
    while let Some(page) = backing.next_dirty(next..=*pages.end(), u32::MAX) {
        let key = backing.key(page);
        if key.is_some_and(|key| !shared.core.is_clean(key)) {
            return Some(page);
        }
        next = page + 1;
    }
    None
}

/// Drops a page, when nobody reads, writes or changes it any more. The caller has a lock of the
/// file.
pub(super) fn discard(shared: &Shared, backing: &Backing, page: u64) {
    let Some(key) = backing.key(page) else { return };
    loop {
        let mut effects = Effects::new();
        let discarded = shared.core.discard_page(cpu::current(), key, &mut effects);
        // Before somebody who is woken unwinds.
        shared.settle_later();
        shared.wake_all(&mut effects);
        match discarded {
            Discard::Gone => return,
            Discard::Wait { frame, version } => shared.wait(frame, version),
        }
    }
}
