//! Writes to files that their caller has no handle of.

use super::held_pages;
use crate::Error;
use crate::backing::Backing;
use crate::shared::Shared;
use crate::worker::piece;
use crate::writeback::{MAX_FAILURES, Which, Woken, Written};
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Keeps a file's mapping, so that no other file gets its number meanwhile.
pub(super) struct Held<'a> {
    shared: &'a Shared,
    backing: &'a Backing,
}

impl<'a> Held<'a> {
    pub(super) fn new(shared: &'a Shared, backing: &'a Backing) -> Option<Held<'a>> {
        let is_open = shared.core.hold_mapping(backing.mapping);
        // Not made where it is closed: what is dropped lets go.
        is_open.then(|| Held { shared, backing })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared.core.release_mapping(self.backing.mapping);
        self.shared.landings.count();
    }
}

impl Shared {
    /// [`Shared::write_dirty`] by a caller that has no handle of the file: some pages at a time,
    /// and in between it may be closed. Whoever closes it writes the rest.
    ///
    /// # Errors
    /// As [`Shared::write_dirty`].
    pub(crate) fn write_dirty_held(
        &self,
        backing: &Backing,
        pages: RangeInclusive<u64>,
    ) -> Result<(), Error> {
        let nr_pages = held_pages(backing);
        let some = Which {
            nr_pages,
            ..Which::ALL
        };
        // What becomes dirty behind it meanwhile is for the next time.
        let last = backing.last_dirty().map(|last| last.min(*pages.end()));
        let (mut result, mut nr_failed) = (Ok(()), 0);
        let mut next = last.map(|_| *pages.start());
        while let (Some(from), Some(last)) = (next, last)
            && nr_failed < MAX_FAILURES
        {
            let written = self.held_told(backing, |woken| {
                self.write_pass(backing, from..=last, some, Some(woken))
            });
            let Some(written) = written? else { break };
            (next, nr_failed) = (written.next, nr_failed + written.nr_failed);
            result = result.and(written.result);
        }
        result
    }

    /// What was written; `None` where the store unwound or the file was closed.
    pub(super) fn flush_some_held(
        &self,
        backing: &Backing,
        pages: RangeInclusive<u64>,
        which: Which<'_>,
    ) -> Option<Written> {
        let write = |woken: &Woken<'_>| self.write_pass(backing, pages, which, Some(woken));
        self.held(backing, write)?.ok()
    }

    /// [`Shared::write_dirty`] by a caller that has no handle of the file, and that is told where
    /// the store unwinds; none where it was closed.
    pub(crate) fn write_some_held(
        &self,
        backing: &Backing,
        which: Which<'_>,
    ) -> Result<u64, Error> {
        let written = self.held_told(backing, |woken| {
            self.write_pass(backing, 0..=u64::MAX, which, Some(woken))
        });
        match written? {
            Some(written) => written.result.map(|()| written.nr_pages),
            None => Ok(0),
        }
    }

    /// [`Shared::try_failing`] by such a caller.
    pub(crate) fn try_failing_held(
        &self,
        backing: &Backing,
        which: Which<'_>,
    ) -> Result<(), Error> {
        let tried = self.held_told(backing, |woken| {
            self.try_failing(backing, which, Some(woken))
        });
        tried.map(|_| ())
    }

    /// [`Shared::held`] of what its caller is to know of, also where it unwinds.
    fn held_told<T>(
        &self,
        backing: &Backing,
        write: impl FnOnce(&Woken<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let told = self.held(backing, |woken| {
            catch_unwind(AssertUnwindSafe(|| write(woken)))
        });
        let told = told.map(|told| told.unwrap_or_else(|panic| resume_unwind(panic)));
        told.transpose()
    }

    /// Writes to a file that is kept open meanwhile; `None` where the store unwound or the file was
    /// closed.
    pub(super) fn held<T>(
        &self,
        backing: &Backing,
        write: impl FnOnce(&Woken<'_>) -> T,
    ) -> Option<T> {
        let woken = Woken::new(self);
        // What failed is kept for the file's next `sync`. A store that panics failed, too, and a
        // waker has others than these for its own: the other files are written all the same.
        let held = Held::new(self, backing)?;
        let written = piece(|| write(&woken));
        // Who is woken may close this very file, which waits for those who hold it.
        drop(held);
        piece(|| drop(woken));
        written
    }
}
