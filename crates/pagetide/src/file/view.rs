//! Views that write: pages for their holder alone.

use super::latch_wait::{LatchWait, Obstacle, Tries};
use super::punch::discard;
use super::{File, Fill};
use crate::backing::Room;
use crate::page::{Page, PageMut, Pin};
use crate::pins::Counted;
use crate::{Error, Group};
use pagetide_core::memory::{PageError, PageIn};
use pagetide_core::page_cache::{Access, Found, Latched as Latch};
use pagetide_core::units::{Frame, PageKey};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A pinned page that did not become a view that writes, and why.
///
/// By `?` it becomes the [`Error`] that says why, and the page is dropped: its pin goes.
#[derive(Debug)]
pub struct UpgradeError {
    page: Page,
    source: Box<Error>,
}

impl UpgradeError {
    /// The page, pinned as before.
    #[must_use]
    pub fn into_page(self) -> Page {
        self.page
    }

    /// Why.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.source
    }
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pinned page cannot be changed")
    }
}

impl std::error::Error for UpgradeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<UpgradeError> for Error {
    /// Why; drops the page, which may be evicted from then on.
    /// [`UpgradeError::into_page`] keeps it.
    fn from(error: UpgradeError) -> Error {
        *error.source
    }
}

/// A frame whose latch is the caller's, and the place that its page takes among the dirty ones.
type Latched<'a> = (Frame, Room<'a>);

/// What a page is to be when it is latched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// What the file has there.
    Stored,
    /// Zeros, whatever the file has there.
    New,
}

impl File {
    /// A view of page number `page` for this caller alone, to read it and change it in place:
    /// shorter than a page only at the file's end, which it does not move. Counts as a
    /// mapped access, as [`File::pin`].
    ///
    /// Waits up to a second for pins on the page to drop, for whoever else changes it, and for a
    /// write of it to end. A page that is not cached is read first, and who changes one page
    /// after the other is read ahead of. Where much of the group is dirty, or of the one that the
    /// page is charged to, writes some of it back, as [`File::write_at`] does. What the caller has
    /// pinned itself it has to drop first, or hand to [`File::upgrade`].
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::PastEnd`]; [`Error::PageBusy`] where the page stays pinned,
    /// also by the caller; [`Error::WritebackFailed`] and [`Error::DirtyLimit`] as
    /// [`File::write_at`]; as [`File::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_mut(&self, page: u64) -> Result<PageMut, Error> {
        self.check_process()?;
        let counted = self.count_view()?;
        self.pin_changed(&self.group, page, counted, Content::Stored)
    }

    /// [`File::pin_mut`] of a page that gets new content: its bytes are zeros, and nothing is read
    /// from the store, but where others ask for the page just then. They may find zeros, which are
    /// not written before the caller has the page. At the end of the file or beyond, the file ends
    /// with the page as soon as it is dropped; what lies between reads as zeros.
    ///
    /// # Errors
    /// As [`File::pin_mut`], but [`Error::PastEnd`] beyond the last page that can be numbered only.
    /// The page is what it was then.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_new(&self, page: u64) -> Result<PageMut, Error> {
        self.check_process()?;
        let counted = self.count_view()?;
        self.pin_changed(&self.group, page, counted, Content::New)
    }

    /// A view of a page that is to have this content, for `group`, as which it is counted already
    /// where it is. Waits for whoever holds it, and for memory.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn pin_changed(
        &self,
        group: &Group,
        page: u64,
        mut counted: Option<Counted<'_>>,
        content: Content,
    ) -> Result<PageMut, Error> {
        if content == Content::Stored {
            self.look_ahead(group, page);
        }
        let mut wait = LatchWait::new(self, group);
        let mut length = self.begin_change(page)?;
        let groups = self.groups_at(group, page);
        let [alone, above] = self.is_much_dirty(groups);
        if alone || above {
            // Whoever wants the file for himself does not wait for these writes.
            drop(length);
            self.writer().balance(groups, above);
            length = self.resume_change(page)?;
        }
        loop {
            self.check_log_of(page)?;
            let wanted = (page, content);
            match self.view_of(group, wanted, wait.tries(), &mut counted)? {
                Ok(view) => return Ok(view),
                Err(obstacle) => length = self.go_on(length, &mut wait, obstacle)?,
            }
        }
    }

    /// A view of a page that is to have this content, unless somebody holds it or there is no
    /// memory for it; then it is `counted`. With the lock of the file's length.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn view_of(
        &self,
        group: &Group,
        (page, content): (u64, Content),
        tries: Tries,
        counted: &mut Option<Counted<'_>>,
    ) -> Result<Result<PageMut, Obstacle>, Error> {
        let len = self.len_of(page);
        if len == 0 && content == Content::Stored {
            return Err(self.past_end(page));
        }
        let latched = match self.latched(group, (page, content), tries)? {
            Ok(latched) => latched,
            Err(obstacle) => return Ok(Err(obstacle)),
        };
        let mut view = self.view(page, latched, len, counted.take());
        if content == Content::New {
            view.make_new();
        }
        Ok(Ok(view))
    }

    /// [`File::pin_mut`] of a page that is cached and that nobody else holds; `None` where it
    /// would have to wait, read, write or reclaim.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::PastEnd`], [`Error::PinLimit`]; [`Error::WritebackFailed`]
    /// where the file takes no more writes.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_pin_mut(&self, page: u64) -> Result<Option<PageMut>, Error> {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        self.check_may_write()?;
        if self.len_of(page) == 0 {
            return Err(self.past_end(page));
        }
        let counted = self.count_view()?;
        let key = self.key_to_write(page)?;
        let Some(_length) = backing.length.try_share() else {
            return Ok(None);
        };
        // Once more: with the lock it stays so.
        let len = self.len_of(page);
        if len == 0 || backing.is_obstructed() {
            return Ok(None);
        }
        if self.has_to_write(page) {
            shared.look_again(backing);
            return Ok(None);
        }
        let Some(room) = backing.try_expect_dirty(shared, page) else {
            return Ok(None);
        };
        let frame = match shared.pin(key, Access::Pin) {
            Found::Pinned(frame) => frame,
            Found::Reading(frame) => {
                shared.unpin(frame);
                return Ok(None);
            }
            Found::Latched(_) | Found::Miss | Found::TooManyPins => return Ok(None),
        };
        let pin = Pin::new(shared, frame, self.open.order);
        let Some(frame) = pin.into_latch() else {
            return Ok(None);
        };
        Ok(Some(self.view(page, (frame, room), len, counted)))
    }

    /// Whether who changes a page is to write some others first, as much is dirty.
    fn has_to_write(&self, page: u64) -> bool {
        self.is_much_dirty(self.groups_at(&self.group, page)) != [false; 2]
    }

    /// Makes a pinned page of this file a view that writes, if nobody else has it pinned and it is
    /// not being written: at once, nobody changes it in between.
    ///
    /// # Errors
    /// [`UpgradeError`], with the page: [`Error::ReadOnly`], [`Error::PageBusy`], also where the
    /// page is not one of this file any more; [`Error::WritebackFailed`] where the file takes no
    /// more writes; [`Error::OverLimit`] where the root has no room for a note that it is dirty.
    pub fn upgrade(&self, mut page: Page) -> Result<PageMut, UpgradeError> {
        let backing = &*self.open.backing;
        let refused = |page, source| UpgradeError {
            page,
            source: Box::new(source),
        };
        if let Err(source) = self.check_may_write() {
            return Err(refused(page, source));
        }
        let core = &self.open.shared.core;
        let frame = page.frame_in(&self.open.shared);
        let key = frame.and_then(|frame| core.frames().key(frame));
        let key = key.filter(|key| key.mapping() == backing.number());
        let busy = || Error::PageBusy {
            file: backing.name.to_string(),
            page: key.map_or(0, PageKey::page),
        };
        let (Some(frame), Some(key)) = (frame, key) else {
            return Err(refused(page, busy()));
        };
        let shared = &self.open.shared;
        let root = shared.core.groups().root();
        let over = |error| shared.alloc_error(error, root, 1);
        let room = backing.expect_dirty(shared, key.page(), true);
        let room = match room.and_then(|room| room.map_err(over)) {
            Ok(room) => room,
            Err(source) => return Err(refused(page, source)),
        };
        let Some(_length) = backing.length.try_share() else {
            return Err(refused(page, busy()));
        };
        if backing.is_obstructed() || !page.keep_by_pin() || !core.upgrade(frame) {
            return Err(refused(page, busy()));
        }
        let is_expected = backing.note_view(shared, (key.page(), frame), room);
        // At once: nobody is waited for, but what writes in the background is told.
        let _more = self.has_to_write(key.page());
        Ok(page.into_mut(Arc::clone(&self.open), (key.page(), is_expected)))
    }

    /// A view of a page for a caller that has the file for itself, and counts in no pin budget;
    /// where somebody holds the page, or there is no memory for it, there is none yet.
    pub(super) fn view_alone(
        &self,
        page: u64,
        tries: Tries,
    ) -> Result<Result<PageMut, Obstacle>, Error> {
        let latched = self.latched(&self.group, (page, Content::Stored), tries)?;
        Ok(latched.map(|latched| self.view(page, latched, self.len_of(page), None)))
    }

    /// Counts a view against the pin budget, where one is.
    pub(super) fn count_view(&self) -> Result<Option<Counted<'_>>, Error> {
        self.group
            .count_if_limited(self.open.order.nr_pages().into())
    }

    /// Notes a page that the caller has latched, and makes it a view.
    #[cfg_attr(debug_assertions, track_caller)]
    fn view(
        &self,
        page: u64,
        (frame, room): Latched<'_>,
        len: usize,
        counted: Option<Counted<'_>>,
    ) -> PageMut {
        // Before anybody can see its bytes, and so that it is found by who waits for it.
        let open = &self.open;
        let is_expected = open.backing.note_view(&open.shared, (page, frame), room);
        let account = counted.map(Counted::into_account);
        let page = (page, is_expected);
        PageMut::new(Arc::clone(&self.open), frame, page, len, account)
    }

    /// Takes the latch of a page, which comes in if it has to, unless somebody holds it or there is
    /// no memory for it.
    fn latched(
        &self,
        group: &Group,
        (page, content): (u64, Content),
        tries: Tries,
    ) -> Result<Result<Latched<'_>, Obstacle>, Error> {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        let may_reclaim = tries.may_reclaim();
        let key = self.key_to_write(page)?;
        let room = match backing.expect_dirty(shared, page, may_reclaim)? {
            Ok(room) => room,
            Err(error) => return Ok(Err(Obstacle::Unlisted { page, error })),
        };
        let mut is_new = content == Content::New;
        let is_read_for_others = || tries.is_task && shared.core.is_resident(key);
        loop {
            match shared.latch(key, tries.access(Access::Pin)) {
                Latch::Held(frame) => return Ok(Ok((frame, room))),
                Latch::Busy { frame, version } => {
                    let at = (frame, version);
                    return Ok(Err(Obstacle::Held { page, at }));
                }
                Latch::Miss if is_read_for_others() => {
                    return Ok(Err(Obstacle::Missing {
                        page,
                        access: Access::Pin,
                        is_needed: !is_new,
                    }));
                }
                Latch::Miss if is_new => match self.latched_new(group, key, may_reclaim) {
                    Ok(Some(frame)) => return Ok(Ok((frame, room))),
                    // Whoever asks for it from here on finds what it was.
                    Ok(None) => is_new = false,
                    // Others read it, of which nothing is needed.
                    Err(PageError::Io(_)) => {}
                    Err(error) => return Ok(Err(Obstacle::Refused { page, error })),
                },
                Latch::Miss if !tries.may_read() && backing.stored_of(page) > 0 => {
                    return Ok(Err(Obstacle::Missing {
                        page,
                        access: Access::Pin,
                        is_needed: true,
                    }));
                }
                Latch::Miss => {
                    let op = PageIn::new(key, group.id(), Access::Pin);
                    match self.bring_in_once(op, &Fill::from_store().reclaiming(may_reclaim)) {
                        Ok(pin) => {
                            if let Some(frame) = pin.into_latch() {
                                return Ok(Ok((frame, room)));
                            }
                        }
                        Err(error) => return Ok(Err(Obstacle::Refused { page, error })),
                    }
                }
            }
        }
    }

    /// The latch of a page that comes in as zeros, unless others have it by then. Until its caller
    /// has the page it is clean: nobody writes zeros that are no content yet.
    fn latched_new(
        &self,
        group: &Group,
        key: PageKey,
        may_reclaim: bool,
    ) -> Result<Option<Frame>, PageError> {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        let fill = Fill::zeros().reclaiming(may_reclaim);
        let op = PageIn::new(key, group.id(), Access::Pin);
        let pin = self.bring_in_once(op, &fill);
        let has_unwound = fill.panics.borrow().is_any();
        if let Ok(pin) = pin {
            if !has_unwound && shared.core.upgrade(pin.frame()) {
                return Ok(Some(ManuallyDrop::new(pin).frame()));
            }
            if fill.is_done() {
                // By the pin it is that page still.
                discard(shared, backing, key.page());
            }
        } else if !has_unwound {
            return pin.map(|_| None);
        }
        fill.panics.into_inner().go_on();
        Ok(None)
    }
}
