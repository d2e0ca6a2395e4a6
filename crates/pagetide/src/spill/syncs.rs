//! Syncs of a spill file whose bytes go through the kernel's page cache.
//!
//! The kernel tells of bytes that it could not write once for each open file: to whoever syncs
//! first, whosever bytes they were. So a failure is one of all writes that had begun by then.

use crate::shared::locked;
use crate::told::code_of;
use std::io;
use std::sync::Mutex;
#[cfg(test)]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Default)]
pub(super) struct Syncs {
    /// Why the last one failed. Held by who syncs.
    last_error: Mutex<u32>,
    nr_failed: AtomicU32,
    /// What the system calls come to instead.
    #[cfg(test)]
    faked: OnceLock<Faked>,
}

#[cfg(test)]
type Faked = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

impl Syncs {
    /// How many have failed: to be asked before a write begins, and told when that is synced.
    pub(super) fn nr_failed(&self) -> u32 {
        // Pairs with the Release in `sync`, and keeps the write behind it.
        self.nr_failed.load(Ordering::Acquire)
    }

    /// Syncs what was written; fails where another one has failed since `nr_failed` was asked for.
    pub(super) fn sync(
        &self,
        nr_failed: u32,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), u32> {
        let mut last_error = locked(&self.last_error);
        if let Err(error) = self.call(sync) {
            *last_error = code_of(&error);
            self.nr_failed.fetch_add(1, Ordering::Release);
        }
        match self.nr_failed.load(Ordering::Relaxed) == nr_failed {
            true => Ok(()),
            false => Err(*last_error),
        }
    }

    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "tests have it"))]
    fn call(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        #[cfg(test)]
        if let Some(faked) = self.faked.get() {
            return faked();
        }
        sync()
    }

    /// Has syncs come to what `faked` says.
    #[cfg(test)]
    pub(super) fn fake(&self, faked: impl Fn() -> io::Result<()> + Send + Sync + 'static) {
        assert!(self.faked.set(Box::new(faked)).is_ok(), "once");
    }
}
