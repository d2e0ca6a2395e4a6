//! The length of a file.

use super::File;
use crate::Error;
use crate::backing::Source;
use crate::park::Panics;
use crate::store::uninterrupted;
use crate::writeback::{Which, in_write};
use std::io;
use std::sync::atomic::Ordering;

impl File {
    /// Makes the file `len` bytes long: what is beyond is dropped, dirty or not, what is new reads
    /// as zeros. Pinned pages keep their bytes, and their memory until they are let go.
    ///
    /// Not durable before [`File::sync`]. O(resident pages of the file) where it gets shorter.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::PastEnd`] beyond the last page that can be numbered;
    /// [`Error::PageBusy`] where somebody changes a page behind the new end for more than a second.
    ///
    /// Of a file that is to be longer, as [`File::write_at`]; [`Error::WritebackFailed`] where the
    /// store cannot be made so long: it stays as it was, and a store that got longer all the same
    /// is cut before the next change or `sync` ends. Of one that is to be shorter,
    /// [`Error::WritebackFailed`] where the store cannot be cut: it is short for all handles, and
    /// the next write or `sync` of it tries again; but it stays as it was where the store has no
    /// way to be cut ([`ErrorKind::Unsupported`](std::io::ErrorKind::Unsupported)), the page in
    /// which it is to end cannot be written ([`Error::LogBehind`] where that waits for the log), or
    /// the store fails again to make an earlier end or hole, or takes no more writes. Pages behind
    /// the new end need not be written: a full store keeps no file long.
    pub fn set_len(&self, len: u64) -> Result<(), Error> {
        self.check_may_write()?;
        let backing = &*self.open.backing;
        let last = len.saturating_sub(1) / self.open.order.bytes() as u64;
        if len > i64::MAX as u64 || backing.key(last).is_none() {
            return Err(self.past_end(last));
        }
        let first = len / self.open.order.bytes() as u64;
        let alone = self.alone(first..=u64::MAX)?;
        if len < backing.len() {
            // An older end that is left to make goes with this one: the store may never have it.
            match backing.behind.hole() {
                Some(_) => self.check_droppable()?,
                None => self.check_may_write()?,
            }
            self.cut(len)?;
            drop(alone);
            self.open.shared.fill_put_off();
            return Ok(());
        }
        self.check_writable()?;
        let in_write = in_write(&self.open.shared);
        let store = backing.source.written();
        if let Err(error) = uninterrupted(|| store.set_len(len)) {
            let may_be_done = error.kind() != io::ErrorKind::Unsupported;
            let is_longer = |found| found > backing.len();
            if may_be_done && uninterrupted(|| store.len()).map_or(true, is_longer) {
                // It has done it all the same, or may have: it gets its old end again.
                backing.behind.set_too_long();
            }
            return Err(backing.failed_with(&error));
        }
        drop(in_write);
        backing.grow(len);
        backing.has_stored(len);
        Ok(())
    }

    fn cut(&self, len: u64) -> Result<(), Error> {
        let (shared, backing) = (&*self.open.shared, &*self.open.backing);
        let page_bytes = self.open.order.bytes() as u64;
        let first = len / page_bytes;
        if !len.is_multiple_of(page_bytes) {
            // What is left of it is read again, with zeros behind.
            shared.write_dirty(backing, first..=first, Which::ALL)?;
        }
        let asked = self.ask_store();
        if let Err(error) = &asked
            && error.kind() == io::ErrorKind::Unsupported
        {
            return Err(backing.failed_with(error));
        }
        let turn = backing.behind.turn();
        backing.cut(len);
        let mut panics = Panics::default();
        panics.catch(|| self.drop_pages(first..=u64::MAX));
        // A write of one of these pages that was under way has noted an end beyond, which the store
        // is about to lose.
        backing.cut(len);
        let cut = match asked {
            Ok(()) => backing.catch_up_in(shared, &turn),
            Err(error) => Err(backing.failed_with(&error)),
        };
        panics.go_on();
        cut
    }

    /// Asks a store whether its length can be set, before anything is dropped for it: made as long
    /// as the file is, which it mostly is, it loses nothing. A file of the system can.
    ///
    /// # Errors
    /// What the store says. Of one that is to be longer for it only that it has no way: to be
    /// shorter it may have room.
    pub(super) fn ask_store(&self) -> io::Result<()> {
        let backing = &*self.open.backing;
        let Source::Store(store) = &backing.source else {
            return Ok(());
        };
        if backing.can_be_cut.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _in_write = in_write(&self.open.shared);
        let (len, has_all) = (backing.len(), backing.has_all());
        match uninterrupted(|| store.set_len(len)) {
            Ok(()) => {
                backing.has_stored(len);
                backing.can_be_cut.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if has_all || error.kind() == io::ErrorKind::Unsupported => Err(error),
            Err(_) => Ok(()),
        }
    }
}
