//! Which pages of a file are dirty: they are listed, those of a region are not.

use super::Backing;
use crate::Error;
use crate::dirty_list::{self, Pages};
use crate::shared::Shared;
use crate::spill::Expected;
use pagetide_core::frame::flag;
use pagetide_core::memory::AllocError;
use pagetide_core::units::Frame;
use std::iter;
use std::ops::RangeInclusive;

/// Room for what is to be known of a page that becomes dirty. Goes back when dropped.
#[derive(Debug)]
pub(crate) enum Room<'a> {
    /// Of a file: in its list of dirty pages.
    Listed(dirty_list::Room<'a>),
    /// Of a region: in its map.
    Expected(Expected<'a>),
}

impl Backing {
    /// Makes a place for a page that is about to change among the dirty ones, or in the map of its
    /// region: without reclaim, unless it `may_reclaim`. The refusal is inside then.
    ///
    /// # Errors
    /// [`Error::SpillFull`], for anon pages only.
    pub(crate) fn expect_dirty(
        &self,
        shared: &Shared,
        page: u64,
        may_reclaim: bool,
    ) -> Result<Result<Room<'_>, AllocError>, Error> {
        if let Some(region) = self.source.region() {
            let expected = region.expect(page, may_reclaim)?;
            return Ok(expected.map(Room::Expected));
        }
        let here = shared.here_reclaiming(may_reclaim);
        Ok(self.dirty.make_room(shared, here).map(Room::Listed))
    }

    /// [`Backing::expect_dirty`] without reclaim, of anon pages that were changed before only.
    pub(crate) fn try_expect_dirty(&self, shared: &Shared, page: u64) -> Option<Room<'_>> {
        match self.source.region() {
            Some(region) => region.expect_known(page).map(Room::Expected),
            None => self.expect_dirty(shared, page, false).ok()?.ok(),
        }
    }

    /// Notes a page that its caller is making dirty: before anybody else can see its bytes.
    ///
    /// Anon pages are not listed: only reclaim writes them.
    pub(crate) fn note_dirty(&self, shared: &Shared, page: u64, room: Room<'_>) {
        match room {
            Room::Listed(room) => self.list_dirty(shared, page, room),
            Room::Expected(expected) => expected.changed(),
        }
    }

    fn list_dirty(&self, shared: &Shared, page: u64, room: dirty_list::Room<'_>) {
        if self.dirty.insert(page, || shared.second(), room) {
            shared.dirty_files.add(self.number());
        }
    }

    /// [`Backing::note_dirty`] of a page that its caller has latched and may change. Whether the
    /// region asks if he did ([`Region::end_expected`]).
    pub(crate) fn note_view(
        &self,
        shared: &Shared,
        (page, frame): (u64, Frame),
        room: Room<'_>,
    ) -> bool {
        match room {
            Room::Listed(room) => {
                // One that is dirty is listed, and nobody writes it while the caller has it.
                if !shared.core.frames().word(frame).has(flag::DIRTY) {
                    self.list_dirty(shared, page, room);
                }
                false
            }
            Room::Expected(expected) => expected.keep(),
        }
    }

    /// Gives up what the spill file has of a page whose bytes have changed: by whoever has it for
    /// itself and is about to make it dirty.
    pub(crate) fn note_changed(&self, page: u64) {
        if let Some(region) = self.source.region() {
            region.drop_slots(page);
        }
    }

    /// Forgets a page that was written, if nobody made it dirty again.
    pub(crate) fn settle(&self, shared: &Shared, page: u64) {
        self.settle_each(shared, iter::once(page));
    }

    /// [`Backing::settle`] for several pages, under one hold of the list's lock.
    pub(crate) fn settle_each(&self, shared: &Shared, pages: impl Iterator<Item = u64>) {
        if self.source.region().is_some() {
            return;
        }
        // Under the lock: whoever makes one dirty notes it while core says that it is not clean.
        let is_clean = |page| self.key(page).is_none_or(|key| shared.core.is_clean(key));
        self.dirty.remove_if(shared, pages, is_clean);
    }

    /// Forgets pages that were dropped.
    pub(crate) fn settle_all(&self, shared: &Shared, pages: RangeInclusive<u64>) {
        let mut next = *pages.start();
        while let Some(page) = self.next_dirty(next..=*pages.end(), u32::MAX) {
            self.settle(shared, page);
            next = page + 1;
        }
    }

    /// The first page in `pages` that may be dirty, since `before` at the latest.
    pub(crate) fn next_dirty(&self, pages: RangeInclusive<u64>, before: u32) -> Option<u64> {
        self.dirty.next(pages, before)
    }

    /// All of them, in order, as [`DirtyList::pages`].
    pub(crate) fn dirty_pages(&self, pages: RangeInclusive<u64>, before: u32) -> Pages<'_> {
        self.dirty.pages(pages, before)
    }

    /// The last page that may be dirty.
    pub(crate) fn last_dirty(&self) -> Option<u64> {
        self.dirty.last()
    }

    /// Pages that may be dirty.
    pub(crate) fn nr_dirty(&self) -> u64 {
        self.dirty.len()
    }

    /// Forgets what was dirty: the file is closed.
    pub(crate) fn forget_dirty(&self, shared: &Shared) {
        self.dirty.give_up(shared);
    }
}
