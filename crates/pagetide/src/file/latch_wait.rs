//! The wait of those who change a page for whoever has it in hand, and for memory.

use super::ahead::By;
use super::patience::Patience;
use super::{File, Fill};
use crate::backing::Room;
use crate::shared::Shared;
use crate::shrinker::is_shrinking;
use crate::{Error, Group};
use pagetide_core::memory::{AllocError, Effects, PageError, PageIn};
use pagetide_core::page_cache::Access;
use pagetide_core::units::Frame;
use std::thread;
use std::time::{Duration, Instant};

/// How long a writer waits for the pins on a page to drop.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Times that room is made for one page before it may be made with a lock of the file: others may
/// take it each time, or the page may be meant for another node.
const MAX_MADE: u32 = 16;

/// Times that one page is read before it may be read with a lock of the file: it may be evicted
/// each time.
const MAX_READ: u32 = 4;

/// How long others may pin a page for which somebody has waited in vain, before a writer keeps them
/// from it again, and how long writers sleep meanwhile between two tries.
pub(super) const TURN: Duration = Duration::from_millis(50);
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Why its caller could not latch a page.
#[derive(Clone, Copy, Debug)]
pub(super) enum Obstacle {
    /// Somebody has it: the frame that it is in, and the version of that to wait for.
    Held { page: u64, at: (Frame, u32) },
    /// It did not come in.
    Refused { page: u64, error: PageError },
    /// There is no place for it among the dirty ones, or in the map of its region.
    Unlisted { page: u64, error: AllocError },
    /// It has to be read, which counts as this use of it; where nothing of it `is_needed`, because
    /// others are reading it.
    Missing {
        page: u64,
        access: Access,
        is_needed: bool,
    },
}

impl Obstacle {
    pub(super) fn page(self) -> u64 {
        match self {
            Obstacle::Held { page, .. }
            | Obstacle::Refused { page, .. }
            | Obstacle::Unlisted { page, .. }
            | Obstacle::Missing { page, .. } => page,
        }
    }
}

/// What was done so far for one page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tries {
    /// Times that room was made.
    pub(super) nr_made: u32,
    /// Times that the page was read.
    pub(super) nr_read: u32,
    /// Its caller waits for no read, however often it is made.
    pub(super) is_task: bool,
}

impl Tries {
    /// Whether the caller may reclaim with a lock of the file: shrinkers run then, and stores
    /// write, while others wait for it.
    pub(super) const fn may_reclaim(self) -> bool {
        self.nr_made >= MAX_MADE
    }

    /// Whether the caller may read the page with a lock of the file, for which others wait then.
    pub(super) const fn may_read(self) -> bool {
        !self.is_task && self.nr_read >= MAX_READ
    }

    /// How the caller uses the page: where it was read for that, this has been counted.
    pub(super) const fn access(self, access: Access) -> Access {
        match self.nr_read {
            0 => access,
            _ => Access::Prefetch,
        }
    }
}

/// The wish that no new pins of a page come in: somebody waits for those that there are. Ends when
/// dropped.
pub(super) struct Intent<'a> {
    shared: &'a Shared,
    frame: Option<Frame>,
}

impl<'a> Intent<'a> {
    pub(super) fn none(shared: &'a Shared) -> Intent<'a> {
        let frame = None;
        Intent { shared, frame }
    }

    /// Whoever found the page held has said so.
    pub(super) fn is_on(&mut self, frame: Frame) {
        if self.frame != Some(frame) {
            self.withdraw();
            self.frame = Some(frame);
        }
    }

    /// It is another process's.
    pub(super) fn forget(&mut self) {
        self.frame = None;
    }

    /// Lets pins in again, if it is this wait that keeps them out. Where the page was latched since
    /// nothing keeps them out; others who want it ask anew.
    pub(super) fn withdraw(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.shared.withdraw(frame);
        }
    }
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// How long one call has waited for that. Its wish that no new pins come in ends with it.
#[must_use]
pub(super) struct LatchWait<'a> {
    file: &'a File,
    /// Whose memory a page that comes in takes.
    group: &'a Group,
    /// How much longer it waits for pins: what else it waits for in between does not count.
    left: Duration,
    patience: Patience,
    tries: Tries,
    /// A place in the map of a region: it is there for one page only, and stays until that has it.
    room: Option<Room<'a>>,
    intent: Intent<'a>,
}

impl<'a> LatchWait<'a> {
    /// It has not waited yet.
    pub(super) fn new(file: &'a File, group: &'a Group) -> LatchWait<'a> {
        LatchWait {
            file,
            group,
            left: PATIENCE,
            patience: Patience::until(None),
            tries: Tries::default(),
            room: None,
            intent: Intent::none(file.home()),
        }
    }

    pub(super) const fn tries(&self) -> Tries {
        self.tries
    }

    /// Waits until nobody else holds the page, or as long as a writer may; where there was no
    /// memory for it, makes room, or waits until others have run, as long as a reader may. Where it
    /// was missing, reads it.
    ///
    /// The caller has no lock of the file: whoever holds the page may need it to go on, and who
    /// waits for memory under a limit keeps nobody from the file who is under another. Nor has who
    /// reads: behind one who wants the file for himself, all who write would wait for the store.
    ///
    /// # Errors
    /// [`Error::PageBusy`]; why the page did not come in.
    #[cold]
    pub(super) fn on(&mut self, obstacle: Obstacle) -> Result<(), Error> {
        match obstacle {
            Obstacle::Held { page, at } => self.on_holder(page, at),
            Obstacle::Refused { page, error } => self.on_refusal(page, error, true),
            Obstacle::Unlisted { page, error } => {
                self.on_refusal(page, PageError::Alloc(error), false)
            }
            Obstacle::Missing { page, access, .. } => self.on_missing(page, access),
        }
    }

    fn on_missing(&mut self, page: u64, access: Access) -> Result<(), Error> {
        let key = self.file.key_to_write(page)?;
        let access = self.tries.access(access);
        let came = self.apart(|wait| {
            let (file, group) = (wait.file, wait.group);
            // Else it is being read, as one of a window perhaps.
            if !file.home().core.is_resident(key) {
                file.missed(group, page..page + 1, access, By::Caller);
            }
            let op = PageIn::new(key, group.id(), access);
            file.bring_in_once(op, &Fill::from_store()).map(drop)
        });
        match came {
            Ok(()) => {
                self.tries.nr_read += 1;
                Ok(())
            }
            Err(error) => self.on_refusal(page, error, true),
        }
    }

    fn on_refusal(
        &mut self,
        page: u64,
        mut error: PageError,
        needs_frame: bool,
    ) -> Result<(), Error> {
        if matches!(error, PageError::Alloc(_)) && !self.tries.may_reclaim() {
            match self.apart(|wait| wait.file.make_room(wait.group, page, needs_frame))? {
                Ok(room) => {
                    self.room = room;
                    self.tries.nr_made += 1;
                    return Ok(());
                }
                Err(refused) => error = PageError::Alloc(refused),
            }
        }
        let may_fit = self.file.may_fit(self.group, &[page]);
        match may_fit && self.patience.goes_on(self.group, &error) {
            true => Ok(()),
            false => Err(self.file.error(self.group, error, page)),
        }
    }

    fn on_holder(&mut self, page: u64, (frame, version): (Frame, u32)) -> Result<(), Error> {
        self.intent.is_on(frame);
        let shared = self.file.home();
        let core = &shared.core;
        if core.is_in_writeback(frame) {
            // It ends by itself, and readers go on meanwhile.
            let is_held = || core.is_held(frame, version) && core.is_in_writeback(frame);
            self.apart(|_| shared.waiters.wait_while(frame, is_held));
            return Ok(());
        }
        if is_shrinking() {
            // The pin may be of the very call that asked for memory.
            return Err(self.file.busy(page));
        }
        let begin = Instant::now();
        let goes_on = if shared.waiters.is_turn_of_readers(frame) && !self.left.is_zero() {
            self.intent.withdraw();
            thread::sleep(PAUSE);
            true
        } else {
            let is_held = || core.is_held(frame, version) && !core.is_in_writeback(frame);
            let deadline = begin + self.left;
            shared.waiters.wait_until(frame, deadline, is_held)
        };
        self.left = self.left.saturating_sub(begin.elapsed());
        if goes_on {
            return Ok(());
        }
        // Before this one's wish ends: other writers wake with them.
        shared.waiters.give_readers(frame, Instant::now() + TURN);
        Err(self.file.busy(page))
    }

    /// Lets pins in again and does something else, which may take long.
    pub(super) fn apart<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> R {
        self.intent.withdraw();
        act(self)
    }
}

impl File {
    /// Reclaims what was refused without: a place for a page, and perhaps a frame. A place that is
    /// there for this page only is to be kept until it has it.
    pub(super) fn make_room(
        &self,
        group: &Group,
        page: u64,
        needs_frame: bool,
    ) -> Result<Result<Option<Room<'_>>, AllocError>, Error> {
        let (shared, open) = (self.home(), &self.open);
        let room = open.backing.expect_dirty(shared, page, true)?;
        let made = room.and_then(|room| {
            if needs_frame {
                let here = shared.here();
                shared.core.make_room_for(here, group.id(), open.order)?;
            }
            Ok(Some(room).filter(|room| matches!(room, Room::Expected(_))))
        });
        shared.settle();
        Ok(made)
    }
}

impl Shared {
    /// Lets pins of a page in again.
    pub(crate) fn withdraw(&self, frame: Frame) {
        let mut effects = Effects::new();
        self.core.withdraw(frame, &mut effects);
        self.wake_all(&mut effects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::Paged;
    use crate::{ByteSize, Memory};
    use pagetide_core::page_cache::{Access, Latched};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn what_a_writer_does_between_two_waits_for_pins_counts_for_neither() {
        let memory = Memory::builder().budget(ByteSize::mib(8)).without_thread();
        let group = memory.build().unwrap().root();
        let region = group.anon(16).unwrap();
        region.write_at(&[1], 0).unwrap();
        let file = region.file();
        let (shared, key) = (file.home(), file.open.backing.key(0).unwrap());
        let mut wait = LatchWait::new(file, &group);
        for took in [Duration::ZERO, PATIENCE] {
            // As a read of the page may take.
            thread::sleep(took);
            let held = region.pin(0).unwrap();
            let Latched::Busy { frame, version } = shared.latch(key, Access::Copy) else {
                panic!("it is pinned");
            };
            let has_ended = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let has_ended = || has_ended.load(Ordering::Relaxed);
                    while !shared.waiters.are_any(frame) && !has_ended() {
                        thread::yield_now();
                    }
                    drop(held);
                });
                let at = (frame, version);
                let waited = wait.on(Obstacle::Held { page: 0, at });
                has_ended.store(true, Ordering::Relaxed);
                waited.unwrap();
            });
            wait.intent.withdraw();
        }
    }

    #[test]
    fn a_place_in_a_map_stays_until_its_page_has_it() {
        let memory = Memory::builder().budget(ByteSize::mib(8)).without_thread();
        let group = memory.build().unwrap().root();
        let region = group.anon(1024).unwrap();
        let file = region.file();
        let backing = &*file.open.backing;
        let is_there = || backing.try_expect_dirty(file.home(), 5).is_some();
        let error = AllocError::OverLimit { group: group.id() };
        let mut wait = LatchWait::new(file, &group);
        wait.on(Obstacle::Unlisted { page: 5, error }).unwrap();
        assert!(is_there());
        drop(wait);
        assert!(!is_there());
    }
}
