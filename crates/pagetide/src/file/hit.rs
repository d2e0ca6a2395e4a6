//! Reads and pins of a page that is there whole: little else is done, as most are.

use super::File;
use crate::page::{Page, Pin};
use crate::pin_accounts::Account;
use crate::pins::Counted;
use crate::{Error, Group};
use pagetide_core::page_cache::{Access, Found, Mappings};
use std::cell::Cell;
use std::sync::Arc;

/// Why a page is not at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAtHand {
    /// It was looked for, and is not there.
    Missing,
    /// Perhaps it is there, but there is more to do.
    There,
}

impl File {
    /// Copies bytes from `offset` on into `buf`; returns how many, fewer only at the file's end.
    ///
    /// A cached page costs two read-modify-writes and the copy; one that is used often, where the
    /// machine has restartable sequences, the copy. A missing one is read by this thread, or
    /// awaited where another reads it.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NoMetadata`], [`Error::TooManyPins`]; [`Error::OverLimit`] where
    /// the group is full of what others have pinned for 200 ms, or of working memory;
    /// [`Error::PageBusy`] where somebody changes a page, or waits for its pins to go, for more
    /// than a second; `buf` may hold part of the bytes.
    /// [`ReadOptions::deadline`](crate::ReadOptions::deadline) sets other times.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        match self.read_at_hand(buf, offset) {
            Ok(()) => Ok(buf.len()),
            Err(not_at_hand) => self.read_slowly(buf, offset, not_at_hand == NotAtHand::Missing),
        }
    }

    /// [`File::read_at`] of a part of one page that is there.
    #[inline(always)] // Most hits.
    pub(super) fn read_at_hand(&self, buf: &mut [u8], offset: u64) -> Result<(), NotAtHand> {
        let (page, skip) = self.place(offset);
        if buf.len() <= self.page_bytes() - skip && self.is_whole(page) {
            let pin = self.at_hand(page, Access::Copy, skip)?;
            if self.is_whole(page) {
                buf.copy_from_slice(&pin.bytes()[skip..skip + buf.len()]);
                return Ok(());
            }
        }
        Err(NotAtHand::There)
    }

    /// [`File::read_at`] of more than a part of one page that is at hand; of one, perhaps, that was
    /// looked for in vain.
    #[inline(never)] // In place, it would take the registers of the hit path.
    fn read_slowly(&self, buf: &mut [u8], offset: u64, is_missing: bool) -> Result<usize, Error> {
        let is_missing = Cell::new(is_missing);
        self.copy_out(buf, offset, |pages| match is_missing.take() {
            true => self.pinned_late(Found::Miss, &self.group, pages, Access::Copy, None),
            false => self.pinned(&self.group, pages, Access::Copy, None),
        })
    }

    /// A view of page number `page` without a copy, shorter than a page only at the file's end.
    ///
    /// # Errors
    /// [`Error::PastEnd`]; at once [`Error::PinLimit`] where [`Group::set_pin_max`] leaves no room;
    /// as [`File::read_at`].
    #[cfg_attr(debug_assertions, track_caller)]
    #[inline(always)] // The page comes in registers: two of its fields are not read as one at once.
    pub fn pin(&self, page: u64) -> Result<Page, Error> {
        if let Some(pin) = self.pin_whole(page) {
            return Ok(pin.into_page(self.page_bytes(), None));
        }
        // In parts: a page that a call had written would be in memory on a hit, too.
        let (pin, len, account) = self.pin_slowly(page)?;
        Ok(pin.into_page(len, account))
    }

    /// The pin for a view of a page that is there, whole, where nothing else is to be done.
    #[inline(always)] // Most hits.
    pub(super) fn pin_whole(&self, page: u64) -> Option<Pin<'_>> {
        let pin = self.is_whole(page).then(|| self.pin_at_hand(page))??;
        self.is_whole(page).then_some(pin)
    }

    /// [`File::at_hand`] for a view.
    #[inline(never)] // One for all who pin, and no smaller for being in place.
    fn pin_at_hand(&self, page: u64) -> Option<Pin<'_>> {
        if self.open.shared.pins.had_budgets() && self.group.has_pin_budget() {
            return None;
        }
        self.at_hand(page, Access::Pin, 0).ok()
    }

    /// The pin of a page that is there, where nothing else is to be done. `first` is the byte of it
    /// that is looked at first.
    #[inline(always)]
    fn at_hand(&self, page: u64, access: Access, first: usize) -> Result<Pin<'_>, NotAtHand> {
        let shared = &self.open.shared;
        if shared.is_forked() {
            return Err(NotAtHand::There);
        }
        let key = Mappings::key(self.open.mapping, page).ok_or(NotAtHand::There)?;
        let (found, claim) = shared.hold(key, access, first);
        match found {
            Found::Pinned(frame) => {
                let pin = Pin::held(shared, frame, self.open.order, claim);
                self.look_ahead(&self.group, page);
                Ok(pin)
            }
            Found::Reading(frame) => {
                shared.unpin(frame);
                Err(NotAtHand::There)
            }
            Found::Miss => {
                // What is remembered of it comes from memory while the read is begun.
                shared.core.touch_shadow(key);
                Err(NotAtHand::Missing)
            }
            Found::Latched(_) | Found::TooManyPins => Err(NotAtHand::There),
        }
    }

    /// What a page is made of that was not at hand.
    #[cold]
    #[inline(never)]
    fn pin_slowly(&self, page: u64) -> Result<(Pin<'_>, usize, Option<Arc<Account>>), Error> {
        self.check_process()?;
        let nr_pages = self.open.order.nr_pages();
        let counted = self.group.count_if_limited(nr_pages.into())?;
        let (pin, len) = self.pinned_with_len(&self.group, page)?;
        Ok((pin, len, counted.map(Counted::into_account)))
    }

    /// Pins a page for `group`; how much of it lies in the file.
    pub(super) fn pinned_with_len(
        &self,
        group: &Group,
        page: u64,
    ) -> Result<(Pin<'_>, usize), Error> {
        let len = self.len_of(page);
        if len == 0 {
            return Err(self.past_end(page));
        }
        let pin = self.pinned_until(group, page..page + 1, Access::Pin, None)?;
        Ok((pin, self.still_of(page, len)?))
    }

    /// Whether all bytes of a page lie in the file. Asked before and after it is pinned: a page
    /// that came in after somebody made the file shorter has zeros behind its end.
    #[inline]
    fn is_whole(&self, page: u64) -> bool {
        page < self.open.backing.len() >> self.open.order.shift()
    }
}
