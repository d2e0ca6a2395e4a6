//! Writes to cached pages, and their way to the store.

use super::latch_wait::{LatchWait, Obstacle, Tries};
use super::{File, Fill};
use crate::Error;
use crate::backing::{Backing, Room};
use crate::page::{self, Latch};
use pagetide_core::memory::{Io, PageError, PageIn};
use pagetide_core::page_cache::{Access, Latched};
use pagetide_core::units::PageKey;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::RwLockReadGuard;

/// A file that could not be written back when it was closed, and why.
///
/// By `?` it becomes the [`Error`] that says why, and the handle is dropped: where it is the last
/// one, what the store does not take then is lost.
#[derive(Debug)]
pub struct CloseError {
    file: File,
    source: Box<Error>,
}

impl CloseError {
    /// The file, which is open still and has lost nothing.
    #[must_use]
    pub fn into_file(self) -> File {
        self.file
    }

    /// Why it could not be written back.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.source
    }
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot close {}", self.file.open.backing.name)
    }
}

impl std::error::Error for CloseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<CloseError> for Error {
    /// Why; drops the handle. The last one tries to write the file back once more, and what it
    /// cannot write is lost and counted in [`Stats::pages_lost`](crate::Stats::pages_lost).
    /// [`CloseError::into_file`] keeps it, and with it all that is dirty.
    fn from(error: CloseError) -> Error {
        *error.source
    }
}

/// Bytes for one page.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) page: u64,
    /// Where they begin in the page.
    skip: usize,
    pub(super) bytes: &'a [u8],
}

impl Part<'_> {
    /// Whether nothing of the first `nr_bytes` bytes of the page is left by them.
    fn covers(&self, nr_bytes: usize) -> bool {
        nr_bytes == 0 || self.skip == 0 && self.bytes.len() >= nr_bytes
    }

    fn copy_to(&self, page: &mut [u8]) {
        page[self.skip..][..self.bytes.len()].copy_from_slice(self.bytes);
    }

    /// Where they begin in the file.
    fn start(&self, backing: &Backing) -> u64 {
        self.page * backing.order.bytes() as u64 + self.skip as u64
    }

    /// Where they end in the file.
    fn end(&self, backing: &Backing) -> u64 {
        self.start(backing) + self.bytes.len() as u64
    }
}

impl File {
    /// Writes `buf` at `offset` to the cached pages and makes the file longer where it ends beyond;
    /// returns the length of `buf`. What lay between the old end and `offset` reads as zeros.
    ///
    /// All handles of the file read the new bytes from now on. They reach the store in the
    /// background, when memory is needed, and by [`File::flush_range`] and [`File::sync`]; only
    /// these last make them durable. A page counts as read by it, but where bytes go to the file's
    /// end. A page that is not cached is read first, unless all that the file has of it is
    /// overwritten, and who goes on so is read ahead of. Waits up to a second for pins on a page to
    /// drop, and for writes of it to end; where much of the group is dirty, or of the one that a
    /// page is charged to, writes some of it back. Where much is dirty in a group above it and all
    /// below that one together, writes some of theirs back: once for 64 pages that become dirty it
    /// looks at all groups.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::WritebackFailed`] where dirty pages of this file cannot be
    /// written; [`Error::DirtyLimit`] where they wait for the log of a file with hooks;
    /// [`Error::PageBusy`] where a page stays pinned, also by the caller;
    /// [`Error::PastEnd`] where not all of them lie in pages that can be numbered: nothing is
    /// written; as [`File::read_at`]. Pages before the one that failed have the new bytes.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize, Error> {
        let page_bytes = self.open.order.bytes() as u64;
        self.check_handle()?;
        self.check_end(buf, offset)?;
        self.look_ahead_of(self.part_at(offset, buf));
        let mut begun = Some(self.begin_change(offset / page_bytes)?);
        let mut done = 0;
        let mut wait = LatchWait::new(self, &self.group);
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let length = match begun.take() {
                Some(length) => length,
                None => self.resume_change(at / page_bytes)?,
            };
            let part = self.part_at(at, &buf[done..]);
            self.check_log_of(part.page)?;
            match self.write_part(part, wait.tries())? {
                Ok(None) => begun = Some(length),
                Ok(Some(charged)) => {
                    // Whoever wants the file for himself does not wait for these writes.
                    drop(length);
                    self.balance(charged);
                }
                Err(obstacle) => {
                    begun = Some(self.go_on(length, &mut wait, obstacle)?);
                    continue;
                }
            }
            wait = LatchWait::new(self, &self.group);
            done += part.bytes.len();
        }
        drop(begun);
        self.open.shared.pay_debt();
        Ok(done)
    }

    /// Whether all bytes that go to `offset` on have pages.
    pub(super) fn check_end(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let Some(to_last) = (bytes.len() as u64).checked_sub(1) else {
            return Ok(());
        };
        let (last_page, _) = self.place(offset.saturating_add(to_last));
        self.key_to_write(last_page).map(drop)
    }

    /// The part of the bytes that go to `at` on, for the page that they begin in.
    pub(super) fn part_at<'a>(&self, at: u64, bytes: &'a [u8]) -> Part<'a> {
        let (page, skip) = self.place(at);
        let room = self.open.order.bytes() - skip;
        let bytes = &bytes[..room.min(bytes.len())];
        Part { page, skip, bytes }
    }

    /// [`File::look_ahead`] of who changes this part of a page. What is changed as a whole is not
    /// read.
    pub(super) fn look_ahead_of(&self, part: Part<'_>) {
        if !part.covers(self.open.order.bytes()) {
            self.look_ahead(&self.group, part.page);
        }
    }

    /// Keeps the file from getting shorter under somebody who is about to change bytes of a page.
    pub(super) fn begin_change(&self, page: u64) -> Result<RwLockReadGuard<'_, ()>, Error> {
        // In a child the lock is nobody's.
        self.check_process()?;
        self.resume_change(page)
    }

    /// [`File::begin_change`] of a call that was let write already, and has let the file go since:
    /// what it has made dirty since counts.
    pub(super) fn resume_change(&self, page: u64) -> Result<RwLockReadGuard<'_, ()>, Error> {
        let length = self.share_length(page)?;
        self.check_writable()?;
        Ok(length)
    }

    fn share_length(&self, page: u64) -> Result<RwLockReadGuard<'_, ()>, Error> {
        // With the lock nobody sleeps or reclaims: those wait for it who are under no such limit.
        self.open.shared.pay_debt();
        self.open.shared.fill_put_off();
        let length = self.open.backing.length.share();
        length.ok_or_else(|| self.busy(page))
    }

    /// Waits for what keeps the caller from a page, with the file let go, and does what
    /// [`File::begin_change`] does. Where that is not at once, others pin the page meanwhile.
    pub(super) fn go_on(
        &self,
        length: RwLockReadGuard<'_, ()>,
        wait: &mut LatchWait<'_>,
        obstacle: Obstacle,
    ) -> Result<RwLockReadGuard<'_, ()>, Error> {
        drop(length);
        wait.on(obstacle)?;
        if self.open.shared.has_debt() {
            // Readers give up on a page sooner than that may end.
            wait.apart(|_| self.open.shared.pay_debt());
        }
        let backing = &*self.open.backing;
        let at_once = backing.length.try_share();
        if let Some(length) = at_once.filter(|_| !backing.is_obstructed()) {
            self.check_may_write()?;
            return Ok(length);
        }
        wait.apart(|_| self.begin_change(obstacle.page()))
    }

    /// A page is in somebody's hands.
    #[cold]
    pub(super) fn busy(&self, page: u64) -> Error {
        let file = self.open.backing.name.to_string();
        Error::PageBusy { file, page }
    }

    /// Whether the handle may write and the file takes writes, as far as that is known.
    pub(super) fn check_may_write(&self) -> Result<(), Error> {
        self.check_handle()?;
        self.open.backing.check_poison()
    }

    pub(super) fn check_handle(&self) -> Result<(), Error> {
        self.check_process()?;
        if self.may_write {
            return Ok(());
        }
        let file = self.open.backing.name.to_string();
        Err(Error::ReadOnly { file })
    }

    /// [`File::check_may_write`] for those who drop pages: what cannot be written, or waits for the
    /// log, is no matter. With the lock of the file's length.
    pub(super) fn check_droppable(&self) -> Result<(), Error> {
        self.check_may_write()?;
        self.open.backing.catch_up(&self.open.shared)
    }

    /// [`Writer::prepare`](super::balance::Writer::prepare) for pages of the handle's group.
    pub(super) fn check_writable(&self) -> Result<(), Error> {
        self.check_handle()?;
        self.writer().prepare(&[self.group.id()])
    }

    /// Has room made where a page waits for the log that is charged to another group than the
    /// handle's.
    pub(super) fn check_log_of(&self, page: u64) -> Result<(), Error> {
        let writer = self.writer();
        let charged = writer.is_gated().then(|| self.charged_to(page)).flatten();
        match charged.filter(|&group| group != self.group.id()) {
            Some(group) => writer.check_log(group),
            None => Ok(()),
        }
    }

    /// The group that a page is charged to, where it is there. Mostly found if so, which is enough
    /// for limits.
    pub(super) fn charged_to(&self, page: u64) -> Option<u32> {
        let core = &self.open.shared.core;
        let key = self.open.backing.key(page)?;
        let frame = core.likely(key)?;
        let is_its = core.frames().key(frame) == Some(key);
        is_its.then(|| core.frames().group(frame))
    }

    /// Says that the engine's log is durable up to `position`: pages that wait for it may be
    /// written ([`Hooks::log_position`](crate::Hooks::log_position)). One that is less than an
    /// earlier one changes nothing, and without hooks none does.
    pub fn log_durable(&self, position: u64) {
        if let Some(hooked) = self.open.backing.hooked.get() {
            hooked.set_durable(position);
        }
    }

    /// The key of a page that may be written: where its end can be numbered, too.
    pub(super) fn key_to_write(&self, page: u64) -> Result<PageKey, Error> {
        let backing = &*self.open.backing;
        let end = page.checked_add(1);
        let end = end.and_then(|end| end.checked_mul(backing.order.bytes() as u64));
        let key = backing.key(page);
        let key = key.filter(|_| end.is_some_and(|end| end <= i64::MAX as u64));
        key.ok_or_else(|| self.past_end(page))
    }

    /// Writes a part, unless somebody holds its page or there is no memory for it; returns the
    /// group that has a dirty page more, where one has.
    pub(super) fn write_part(
        &self,
        part: Part<'_>,
        tries: Tries,
    ) -> Result<Result<Option<u32>, Obstacle>, Error> {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        let may_reclaim = tries.may_reclaim();
        let key = self.key_to_write(part.page)?;
        let room = match backing.expect_dirty(shared, part.page, may_reclaim)? {
            Ok(room) => room,
            Err(error) => {
                return Ok(Err(Obstacle::Unlisted {
                    page: part.page,
                    error,
                }));
            }
        };
        // A page that is filled piece by piece at the end of a file, as of a log, is used once.
        let access = match part.start(backing) == backing.len() {
            true => Access::Prefetch,
            false => Access::Copy,
        };
        let is_read_for_others = || tries.is_task && shared.core.is_resident(key);
        let is_needed = || !part.covers(backing.stored_of(part.page));
        loop {
            match shared.latch(key, tries.access(access)) {
                Latched::Held(frame) => {
                    let mut latch = Latch::new(shared, frame, self.open.order);
                    let was_dirty = latch.was_dirty();
                    let (bytes, is_dirty) = latch.bytes_mut();
                    part.copy_to(bytes);
                    *is_dirty = true;
                    backing.note_changed(part.page);
                    backing.grow(part.end(backing));
                    if !was_dirty {
                        backing.note_dirty(shared, part.page, room);
                    }
                    return Ok(Ok((!was_dirty).then(|| shared.core.frames().group(frame))));
                }
                Latched::Busy { frame, version } => {
                    let (page, at) = (part.page, (frame, version));
                    return Ok(Err(Obstacle::Held { page, at }));
                }
                Latched::Miss if is_read_for_others() || !tries.may_read() && is_needed() => {
                    return Ok(Err(Obstacle::Missing {
                        page: part.page,
                        access,
                        is_needed: is_needed(),
                    }));
                }
                Latched::Miss => match self.bring_in_changed(key, part, may_reclaim)? {
                    Ok(false) => {}
                    Ok(true) => return Ok(Ok(Some(self.group.id()))),
                    Err(error) => {
                        let page = part.page;
                        return Ok(Err(Obstacle::Refused { page, error }));
                    }
                },
            }
        }
    }

    /// Brings a page in and changes it on the way; false where others brought it in meanwhile.
    #[cold]
    fn bring_in_changed(
        &self,
        key: PageKey,
        part: Part<'_>,
        may_reclaim: bool,
    ) -> Result<Result<bool, PageError>, Error> {
        let (shared, backing) = (&self.open.shared, &self.open.backing);
        let room = match backing.expect_dirty(shared, part.page, may_reclaim)? {
            Ok(room) => room,
            Err(error) => return Ok(Err(PageError::Alloc(error))),
        };
        let fill = Fill::changed(part, room).reclaiming(may_reclaim);
        let op = PageIn::new(key, self.group.id(), Access::Copy);
        let pin = match self.bring_in_once(op, &fill) {
            // Others read it, of which nothing is needed.
            Err(PageError::Io(_)) if part.covers(backing.stored_of(part.page)) => {
                return Ok(Ok(false));
            }
            pin => pin,
        };
        Ok(pin.map(|_| fill.is_done()))
    }

    /// Reads what is left of a page, changes it, and marks it dirty: it is seen only then.
    pub(super) fn fill_changed(
        &self,
        io: &mut Io,
        part: Part<'_>,
        room: Room<'_>,
    ) -> Result<(), u32> {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        if part.covers(backing.stored_of(part.page)) {
            let bytes = page::target(&shared.arena, io);
            bytes[..part.skip].fill(0);
            bytes[part.skip + part.bytes.len()..].fill(0);
        } else {
            let nr_read = backing.fill(shared, io)?;
            shared.count_read(nr_read as u64);
        }
        part.copy_to(page::target(&shared.arena, io));
        backing.grow(part.end(backing));
        backing.note_changed(part.page);
        shared.core.set_dirty_early(io);
        backing.note_dirty(shared, part.page, room);
        Ok(())
    }

    /// Writes the file back, without making it durable, and closes this handle.
    ///
    /// A handle that is dropped does the same where it is the last one; what it cannot write is
    /// lost then, and counted in [`Stats::pages_lost`](crate::Stats::pages_lost).
    ///
    /// # Errors
    /// [`CloseError`], with the file.
    pub fn close(self) -> Result<(), CloseError> {
        let flushed = self.flush_range(..);
        flushed.map_err(|source| CloseError {
            file: self,
            source: Box::new(source),
        })
    }
}

/// The first and the last byte, or page, of a range that is not empty.
pub(super) fn bytes_of(range: impl RangeBounds<u64>) -> Option<(u64, u64)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let last = match range.end_bound() {
        Bound::Included(&last) => last,
        Bound::Excluded(&end) => end.checked_sub(1)?,
        Bound::Unbounded => u64::MAX,
    };
    (start <= last).then_some((start, last))
}
