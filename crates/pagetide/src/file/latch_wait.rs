//! The wait of those who change a page for whoever has it in hand.

use super::File;
use crate::Error;
use crate::shrinker::is_shrinking;
use pagetide_core::memory::Effects;
use pagetide_core::units::Frame;
use std::time::{Duration, Instant};

/// How long a writer waits for the pins on a page to drop.
const PATIENCE: Duration = Duration::from_secs(1);

/// A page that its caller could not latch: the frame that it is in, and the version of that to wait
/// for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) page: u64,
    pub(super) at: (Frame, u32),
}

/// How long one call has waited for that. Its wish that no new pins come in ends with it.
#[must_use]
pub(super) struct LatchWait<'a> {
    file: &'a File,
    deadline: Option<Instant>,
    asked: Option<Frame>,
}

impl<'a> LatchWait<'a> {
    /// It has not waited yet.
    pub(super) fn new(file: &'a File) -> LatchWait<'a> {
        LatchWait {
            file,
            deadline: None,
            asked: None,
        }
    }

    /// Waits until nobody else holds the page, or as long as a writer may.
    ///
    /// The caller has no lock of the file: whoever holds the page may need it to go on.
    ///
    /// # Errors
    /// [`Error::PageBusy`].
    #[cold]
    pub(super) fn on(&mut self, held: Held) -> Result<(), Error> {
        let (frame, version) = held.at;
        if self.asked != Some(frame) {
            self.withdraw();
            self.asked = Some(frame);
        }
        let shared = self.file.home();
        let core = &shared.core;
        if core.is_in_writeback(frame) {
            // It ends by itself.
            let is_held = || core.is_held(frame, version) && core.is_in_writeback(frame);
            shared.waiters.wait_while(frame, is_held);
            return Ok(());
        }
        if is_shrinking() {
            // The pin may be of the very call that asked for memory.
            return Err(self.file.busy(held.page));
        }
        let patience = || Instant::now() + PATIENCE;
        let deadline = *self.deadline.get_or_insert_with(patience);
        let is_held = || core.is_held(frame, version);
        match shared.waiters.wait_until(frame, deadline, is_held) {
            true => Ok(()),
            false => Err(self.file.busy(held.page)),
        }
    }

    /// Lets pins in again, if it is this wait that keeps them out. Where the page was latched since
    /// nothing keeps them out; others who want it ask anew.
    pub(super) fn withdraw(&mut self) {
        let Some(frame) = self.asked.take() else {
            return;
        };
        let shared = self.file.home();
        let mut effects = Effects::new();
        shared.core.withdraw(frame, &mut effects);
        shared.wake_all(&mut effects);
    }
}

impl Drop for LatchWait<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}
