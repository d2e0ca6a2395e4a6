//! The length of a file, and pages that are dropped instead of written.

use super::File;
use crate::backing::Backing;
use crate::shared::Shared;
use crate::writeback::{LATCH_PATIENCE, Which};
use crate::{Error, cpu};
use pagetide_core::memory::{Discard, Effects};
use pagetide_core::units::Frame;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLockWriteGuard};
use std::time::Instant;

impl File {
    /// Makes the file `len` bytes long: what is beyond is dropped, dirty or not, what is new reads
    /// as zeros. Pinned pages keep their bytes, and their memory until they are let go.
    ///
    /// Not durable before [`File::sync`]. O(resident pages of the file) where it gets shorter.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::WritebackFailed`] where the store cannot be made so long, or
    /// the page in which the file is to end cannot be written: the file stays as it was, except
    /// that a shorter one is short for all handles, and the next write or `sync` of it tries to
    /// cut the store again; [`Error::PastEnd`] beyond the last page that can be numbered;
    /// [`Error::PageBusy`] where somebody changes a page behind the new end for more than a second.
    pub fn set_len(&self, len: u64) -> Result<(), Error> {
        self.check_may_write()?;
        let backing = &*self.open.backing;
        let last = len.saturating_sub(1) / self.open.order.bytes() as u64;
        if len > i64::MAX as u64 || backing.key(last).is_none() {
            return Err(self.past_end(last));
        }
        let first = len / self.open.order.bytes() as u64;
        let _alone = self.alone(first)?;
        self.check_writable()?;
        if len < backing.len() {
            return self.cut(len);
        }
        if let Err(error) = backing.source.written().set_len(len) {
            return Err(backing.failed_with(&error));
        }
        backing.grow(len);
        backing.has_stored(len);
        Ok(())
    }

    /// The file for this call alone, as soon as nobody changes a page from `first` on.
    fn alone(&self, first: u64) -> Result<RwLockWriteGuard<'_, ()>, Error> {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        let deadline = Instant::now() + LATCH_PATIENCE;
        loop {
            let alone = backing.resize.write();
            let alone = alone.unwrap_or_else(PoisonError::into_inner);
            let Some((page, frame, version)) = latched_from(shared, backing, first) else {
                return Ok(alone);
            };
            // Whoever changes it may need the lock to go on.
            drop(alone);
            if !shared.wait_until(frame, version, deadline) {
                let file = backing.name.to_string();
                return Err(Error::PageBusy { file, page });
            }
        }
    }

    fn cut(&self, len: u64) -> Result<(), Error> {
        let (shared, backing) = (&**self.open.shared, &*self.open.backing);
        let page_bytes = self.open.order.bytes() as u64;
        let first = len / page_bytes;
        if !len.is_multiple_of(page_bytes) {
            // What is left of it is read again, with zeros behind.
            shared.write_dirty(backing, first..=first, Which::ALL)?;
        }
        backing.cut(len);
        loop {
            let mut nr_dropped = 0_u64;
            let drop_page = &mut |page| {
                if page >= first {
                    discard(shared, backing, page);
                    nr_dropped += 1;
                }
            };
            shared.core.resident_pages(self.open.mapping, drop_page);
            // A page that moved meanwhile may have been missed.
            if nr_dropped == 0 {
                break;
            }
        }
        backing.settle_from(shared, first);
        // A write of one of these pages that was under way has noted an end beyond, which the store
        // is about to lose.
        backing.cut(len);
        backing.cut_store()
    }

    /// Drops the dirty pages of the file instead of writing them, and returns how many: what was
    /// written to them is lost, and the file has again what the store has. The way out where the
    /// store fails for good and nobody needs the bytes.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::PageBusy`] where somebody changes a page for more than a
    /// second: nothing is dropped then.
    pub fn discard_dirty(&self) -> Result<u64, Error> {
        let (shared, backing) = (&**self.open.shared, &*self.open.backing);
        self.check_handle()?;
        let _alone = self.alone(0)?;
        let (mut next, mut nr_dropped) = (0, 0);
        while let Some(page) = backing.next_dirty(next..=u64::MAX, u32::MAX) {
            let is_dirty = backing
                .key(page)
                .is_some_and(|key| !shared.core.is_clean(key));
            nr_dropped += u64::from(is_dirty);
            discard(shared, backing, page);
            backing.settle(shared, page);
            next = page + 1;
        }
        backing.cut_to_stored();
        backing.is_failing.store(false, Ordering::Relaxed);
        // Whoever gives up knows of the errors.
        let errors = shared.core.write_errors(self.open.mapping);
        self.seen_errors.store(errors.nr_errors, Ordering::Relaxed);
        Ok(nr_dropped)
    }
}

/// A page from `first` on that somebody changes, its frame, and the version to wait for. Each is
/// noted as one that gets dirty.
fn latched_from(shared: &Shared, backing: &Backing, first: u64) -> Option<(u64, Frame, u32)> {
    let mut next = first;
    while let Some(page) = backing.next_dirty(next..=u64::MAX, u32::MAX) {
        let key = backing.key(page);
        if let Some((frame, version)) = key.and_then(|key| shared.core.await_unlatched(key)) {
            return Some((page, frame, version));
        }
        next = page + 1;
    }
    None
}

/// Drops a page, when nobody reads, writes or changes it any more.
fn discard(shared: &Shared, backing: &Backing, page: u64) {
    let Some(key) = backing.key(page) else { return };
    loop {
        let mut effects = Effects::new();
        let discarded = shared.core.discard_page(cpu::current(), key, &mut effects);
        shared.wake_all(&mut effects);
        match discarded {
            Discard::Gone => return shared.settle(),
            Discard::Wait { frame, version } => shared.wait(frame, version),
        }
    }
}
