//! How what a store has is made durable: one call of it at a time, for all who ask meanwhile.

use crate::Error;
use crate::backing::{Backing, NO_NUMBER};
use crate::shared::{Shared, locked};
use crate::store::uninterrupted;
use crate::writeback::in_write;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Of one file.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    /// Times that the store was asked.
    nr_syncs: AtomicU64,
    /// The last of these that ended well. Locked while the store is asked, so that one failure is
    /// seen by all who wait.
    last_good: Mutex<u64>,
    /// The folder of a file that was created, until its entry is durable.
    new_in: Mutex<Option<fs::File>>,
}

impl Backing {
    /// Makes durable what the store has. Nothing is left to do where another one's call began after
    /// this one: of many who wait for one, the first asks the store for all.
    ///
    /// # Errors
    /// [`Error::WritebackFailed`]: the file is poisoned then, and where the store unwinds.
    pub(crate) fn make_durable(&self, shared: &Shared) -> Result<(), Error> {
        // Pairs with the fence below: a call that is not seen here to have begun finds all that was
        // written before.
        fence(Ordering::SeqCst);
        let nr_begun = self.durability.nr_syncs.load(Ordering::Relaxed);
        let mut last_good = locked(&self.durability.last_good);
        self.check_poison()?;
        if *last_good > nr_begun && !self.behind.is_any() {
            return Ok(());
        }
        self.catch_up(shared)?;
        let number = self.durability.nr_syncs.fetch_add(1, Ordering::Relaxed) + 1;
        fence(Ordering::SeqCst);
        self.sync_store(shared)?;
        self.sync_folder()?;
        *last_good = number;
        Ok(())
    }

    fn sync_store(&self, shared: &Shared) -> Result<(), Error> {
        // It may ask for memory: a shrinker that syncs the file would wait for this very call.
        let _in_write = in_write(shared);
        // What a store has lost that unwinds, nobody knows.
        let synced = catch_unwind(AssertUnwindSafe(|| {
            uninterrupted(|| self.source.written().sync())
        }));
        let synced = synced.unwrap_or_else(|panic| {
            self.poison(NO_NUMBER);
            resume_unwind(panic)
        });
        match synced {
            // It has lost nothing: it never promised more.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                return Err(self.failed_with(&error));
            }
            Err(error) => self.poison(self.told.code_of(&error)),
            Ok(()) => {}
        }
        self.check_poison()
    }

    /// The entry of a file that was created.
    fn sync_folder(&self) -> Result<(), Error> {
        let mut new_in = locked(&self.durability.new_in);
        if let Some(folder) = new_in.as_ref() {
            // The kernel tells of it once, as of the file's own writes.
            let synced = rustix::io::retry_on_intr(|| rustix::fs::fsync(folder));
            synced.unwrap_or_else(|error| self.poison(self.told.code_of(&error.into())));
            self.check_poison()?;
            *new_in = None;
        }
        Ok(())
    }

    /// The file was created in `folder`: its entry has to be made durable, too.
    pub(crate) fn is_new_in(&self, folder: fs::File) {
        *locked(&self.durability.new_in) = Some(folder);
    }
}
