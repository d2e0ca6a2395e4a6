//! Changes of pages for tasks: futures of any executor.

use super::latch_wait::{Intent, Obstacle, PATIENCE, PAUSE, TURN, Tries};
use super::sync::Work;
use super::tasks::BringIn;
use super::view::Content;
use super::{File, patience};
use crate::alarms::Alarm;
use crate::backing::Room;
use crate::memory_wait::MemoryWait;
use crate::shrinker::is_shrinking;
use crate::wait::Ticket;
use crate::{Error, PageMut};
use pagetide_core::memory::PageError;
use pagetide_core::units::Frame;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// What came of one try to change a page.
enum Tried<T> {
    Done(T),
    /// It has to wait for this.
    Behind(Obstacle),
    /// The store has something to do first, or somebody has the file for himself.
    Unprepared,
}

/// What one page of a call waits for. Its wish that no new pins come in ends with it.
struct TaskWait<'a> {
    file: &'a File,
    tries: Tries,
    /// How much longer it waits for pins.
    left: Duration,
    /// Since when it waits for them just now, and until when it leaves the page to readers.
    since: Option<Instant>,
    pause: Option<Instant>,
    /// Where its waker is meanwhile.
    ticket: Option<Ticket>,
    alarm: Option<Alarm<'a>>,
    memory: Option<MemoryWait>,
    /// A place in the map of a region: it is there for one page only, and stays until that has it.
    room: Option<Room<'a>>,
    intent: Intent<'a>,
}

impl<'a> TaskWait<'a> {
    fn new(file: &'a File) -> TaskWait<'a> {
        TaskWait {
            file,
            tries: Tries {
                is_task: true,
                ..Tries::default()
            },
            left: PATIENCE,
            since: None,
            pause: None,
            ticket: None,
            alarm: None,
            memory: None,
            room: None,
            intent: Intent::none(file.home()),
        }
    }

    /// [`LatchWait::on`](super::latch_wait::LatchWait::on) for a task. What has to be reclaimed is
    /// by who polls.
    async fn on(&mut self, obstacle: Obstacle) -> Result<(), Error> {
        match obstacle {
            Obstacle::Held { page, at } => {
                // Once, and whatever becomes of the page meanwhile: it ends with this wait.
                self.intent.is_on(at.0);
                poll_fn(|context| self.poll_holder(page, at, context.waker())).await
            }
            Obstacle::Missing {
                page,
                access,
                is_needed,
            } => {
                self.intent.withdraw();
                let (file, access) = (self.file, self.tries.access(access));
                match BringIn::new(file, file.key_to_write(page)?, access).await {
                    Ok(_pin) => self.tries.nr_read += 1,
                    // For others: it is not there any more.
                    Err(Error::Io { .. }) if !is_needed => {}
                    Err(error) => return Err(error),
                }
                Ok(())
            }
            Obstacle::Refused {
                page,
                error: PageError::Alloc(_),
            } => self.await_room(page, true).await,
            Obstacle::Unlisted { page, .. } => self.await_room(page, false).await,
            Obstacle::Refused { page, error } => {
                Err(self.file.error(&self.file.group, error, page))
            }
        }
    }

    async fn await_room(&mut self, page: u64, needs_frame: bool) -> Result<(), Error> {
        self.intent.withdraw();
        let file = self.file;
        let nr_bytes = || file.page_bytes() as u64;
        let made = poll_fn(|context| {
            file.home().io.reap();
            let asked = (&file.group, nr_bytes);
            patience::poll(&mut self.memory, asked, context.waker(), || {
                file.make_room(&file.group, page, needs_frame)
                    .map_or_else(|error| Ok(Err(error)), |made| made.map(Ok))
            })
        });
        self.room = made.await??;
        self.tries.nr_made += 1;
        Ok(())
    }

    fn poll_holder(
        &mut self,
        page: u64,
        (frame, version): (Frame, u32),
        waker: &Waker,
    ) -> Poll<Result<(), Error>> {
        let shared = self.file.home();
        shared.check_process()?;
        shared.io.reap();
        self.rest();
        let core = &shared.core;
        if core.is_in_writeback(frame) {
            // It ends by itself, and readers go on meanwhile.
            self.intent.withdraw();
            let is_held = || core.is_held(frame, version) && core.is_in_writeback(frame);
            self.ticket = shared.waiters.register(frame, waker, is_held);
            return self.polled();
        }
        if is_shrinking() {
            // The pin may be of the very call that asked for memory.
            return Poll::Ready(Err(self.file.busy(page)));
        }
        let now = Instant::now();
        let has_paused = self.pause.is_some_and(|until| now >= until);
        if has_paused || !core.is_held(frame, version) {
            self.pause = None;
            return Poll::Ready(Ok(()));
        }
        if self.left.is_zero() {
            // Before this one's wish ends: other writers wake with them.
            shared.waiters.give_readers(frame, now + TURN);
            return Poll::Ready(Err(self.file.busy(page)));
        }
        self.since = Some(now);
        if self.pause.is_some() || shared.waiters.is_turn_of_readers(frame) {
            self.intent.withdraw();
            let until = *self.pause.get_or_insert(now + PAUSE);
            self.alarm = Some(Alarm::set(shared, until, waker, None));
            return Poll::Pending;
        }
        let is_held = || core.is_held(frame, version) && !core.is_in_writeback(frame);
        self.ticket = shared.waiters.register(frame, waker, is_held);
        if self.ticket.is_some() {
            self.alarm = Some(Alarm::set(shared, now + self.left, waker, Some(frame)));
        }
        self.polled()
    }

    /// Whether it has to wait: it is woken then.
    fn polled(&self) -> Poll<Result<(), Error>> {
        match self.ticket.is_some() {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }

    /// Waits for nothing any more.
    fn rest(&mut self) {
        self.alarm = None;
        if let Some(ticket) = self.ticket.take() {
            self.file.home().waiters.forget(ticket);
        }
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }
}

impl Drop for TaskWait<'_> {
    fn drop(&mut self) {
        if self.file.home().is_forked() {
            // Its locks are nobody's.
            self.intent.forget();
            std::mem::forget(self.room.take());
            return;
        }
        self.rest();
    }
}

impl File {
    /// Whether something has to be written before a page is changed that waits for the log.
    fn has_full_level(&self, page: u64) -> bool {
        let own = self.group.id();
        let is_full = |group| self.writer().full_level(group).is_some();
        self.writer().is_gated() && (is_full(own) || self.charged_to(page).is_some_and(is_full))
    }

    /// One try to change a page, with the lock of the file's length.
    fn try_change<T>(
        &self,
        page: u64,
        is_prepared: bool,
        change: impl FnOnce() -> Result<Result<T, Obstacle>, Error>,
    ) -> Result<Tried<T>, Error> {
        self.check_may_write()?;
        self.open.shared.fill_put_off();
        let backing = &*self.open.backing;
        let Some(_length) = backing.length.try_share() else {
            return match is_shrinking() {
                // Who asked the shrinker may have it.
                true => Err(self.busy(page)),
                false => Ok(Tried::Unprepared),
            };
        };
        let is_ready = match is_prepared {
            // Its store has had another chance, if not by this call then by others.
            true => !backing.behind.is_any(),
            false => !backing.is_obstructed() && !self.has_full_level(page),
        };
        if !is_ready {
            return Ok(Tried::Unprepared);
        }
        Ok(match change()? {
            Ok(done) => Tried::Done(done),
            Err(obstacle) => Tried::Behind(obstacle),
        })
    }

    /// Changes a page as soon as nothing is in the way.
    async fn change<T>(
        &self,
        page: u64,
        mut change: impl FnMut(Tries) -> Result<Result<T, Obstacle>, Error>,
    ) -> Result<T, Error> {
        let mut wait = TaskWait::new(self);
        let mut is_prepared = false;
        loop {
            let tries = wait.tries;
            match self.try_change(page, is_prepared, || change(tries))? {
                Tried::Done(done) => return Ok(done),
                Tried::Behind(obstacle) => wait.on(obstacle).await?,
                Tried::Unprepared => {
                    wait.intent.withdraw();
                    let groups = self.groups_at(&self.group, page);
                    self.have_done(Work::Prepare(groups)).await?;
                    is_prepared = true;
                }
            }
        }
    }

    /// [`File::write_at`] as a future, for any executor: a missing page is read in the background,
    /// as by [`File::pin_async`], pins and writes of a page are waited for without a thread, and
    /// where much is dirty, or the store failed before, a thread of the memory writes some of it
    /// back meanwhile: one for each file, behind a sync of that which has begun.
    ///
    /// Dropped, it has written the pages before the one that it waited for, and waits no more.
    /// Polling may reclaim, as there; what is charged above `high` is paid by a later call. As long
    /// as it waits for pins on a page, up to a second, no new ones come in. That second is told by
    /// the memory's thread, or under [`Builder::without_thread`](crate::Builder::without_thread) by
    /// [`Memory::tick`](crate::Memory::tick); then the store is waited for by who polls.
    ///
    /// # Errors
    /// As [`File::write_at`], and [`Error::TimedOut`] as [`File::pin_async`].
    pub async fn write_at_async(&self, buf: &[u8], offset: u64) -> Result<usize, Error> {
        self.check_may_write()?;
        self.check_end(buf, offset)?;
        self.look_ahead_of(self.part_at(offset, buf));
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let part = self.part_at(at, &buf[done..]);
            let dirtied = self.change(part.page, |tries| self.write_part(part, tries));
            if dirtied.await?.is_some() {
                self.balance_async(part.page).await;
            }
            done += part.bytes.len();
        }
        Ok(done)
    }

    /// [`File::pin_mut`] as a future, as [`File::write_at_async`]. It counts in the group's pin
    /// budget from its first poll on.
    ///
    /// # Errors
    /// As [`File::pin_mut`], and [`Error::TimedOut`] as [`File::pin_async`].
    pub async fn pin_mut_async(&self, page: u64) -> Result<PageMut, Error> {
        self.view_async(page, Content::Stored).await
    }

    /// [`File::pin_new`] as a future, as [`File::pin_mut_async`].
    ///
    /// # Errors
    /// As [`File::pin_new`], and [`Error::TimedOut`] as [`File::pin_async`].
    pub async fn pin_new_async(&self, page: u64) -> Result<PageMut, Error> {
        self.view_async(page, Content::New).await
    }

    async fn view_async(&self, page: u64, content: Content) -> Result<PageMut, Error> {
        self.check_may_write()?;
        let mut counted = self.count_view()?;
        self.balance_async(page).await;
        if content == Content::Stored {
            self.look_ahead(&self.group, page);
        }
        let view = self.change(page, |tries| {
            self.view_of(&self.group, (page, content), tries, &mut counted)
        });
        view.await
    }

    /// Has some written back where much is dirty. What fails, the next change of the file says.
    async fn balance_async(&self, page: u64) {
        let groups = self.groups_at(&self.group, page);
        let [alone, above] = self.is_much_dirty(groups);
        if alone || above {
            let _balanced = self.have_done(Work::Balance(groups, above)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory};
    use pagetide_core::memory::{Effects, PageWrite};
    use pagetide_core::page_cache::{Access, Latched};
    use std::task::Context;

    #[test]
    fn who_waits_for_a_write_keeps_no_pins_from_the_page() {
        let memory = Memory::builder().budget(ByteSize::mib(8)).without_thread();
        let memory = memory.build().unwrap();
        let data = tempfile::NamedTempFile::new().unwrap();
        let file = memory.open_rw(data.path(), &memory.root()).unwrap();
        file.write_at(&[1; 4096], 0).unwrap();
        let shared = file.home();
        let key = file.open.backing.key(0).unwrap();
        let held = file.pin(0).unwrap();
        let mut wait = TaskWait::new(&file);
        let Latched::Busy { frame, version } = shared.latch(key, Access::Copy) else {
            panic!("it is pinned");
        };
        assert!(file.try_pin(0).unwrap().is_none());
        // Somebody begins to write it just then.
        let PageWrite::Begun(write) = shared.core.begin_page_write(key, None) else {
            panic!("it is dirty");
        };
        let at = (frame, version);
        let mut on = Box::pin(wait.on(Obstacle::Held { page: 0, at }));
        let mut context = Context::from_waker(Waker::noop());
        // As the wish ends the page's version moves, for which it tries anew.
        let _polled = on.as_mut().poll(&mut context);
        let is_open = file.try_pin(0).unwrap().is_some();
        drop((on, held));
        let (cpu, mut effects) = (crate::cpu::current(), Effects::new());
        shared.core.put_back_write(cpu, write, &mut effects);
        drop(wait);
        assert!(is_open);
    }
}
