//! Writes of dirty pages: many together, for those who ask and for reclaim.

mod calls;
mod pace;
mod run;

pub(crate) use calls::write_all;
pub(crate) use pace::Pace;

use crate::backing::{Backing, NO_NUMBER};
use crate::park::Panics;
use crate::shared::{Shared, locked};
use crate::sleepers::Sleepers;
use crate::stall::{self, Inside};
use crate::trace;
use crate::{Error, cpu};
use pagetide_core::memory::{Effect, Effects, PageWrite, Write, Writes};
use run::{By, Run};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::iter;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Pages that reclaim offers at a time.
const MAX_OFFERED: usize = 64;
/// Writes that may fail before the rest is left dirty.
pub(crate) const MAX_FAILURES: u32 = 16;
/// Pages in a row that a store may refuse before those behind them are given up with their file.
const MAX_REFUSED: usize = 64;
/// How long reclaim waits for a write of somebody else's before it looks again.
const LANDING: Duration = Duration::from_secs(1);
/// How long somebody who reads or writes pages waits for whoever is changing one.
pub(crate) const LATCH_PATIENCE: Duration = Duration::from_secs(1);
/// From when on a round of writes that all failed is one of the few that a request waits for.
const DEAR_ROUND: Duration = Duration::from_millis(5);
/// From when on a write takes long, and from when on one that does is enough: for less, a thread
/// may have waited for a CPU now and then.
const LONG_WRITE: Duration = Duration::from_micros(500);
const DEAR_WRITE: Duration = Duration::from_millis(50);

thread_local! {
    /// The memory of whose pages the thread writes some, by its address; 0 for none.
    static WRITES_OF: Cell<usize> = const { Cell::new(0) };
}

/// Whether the calling thread is inside a write to a store of this memory: then it must not reclaim
/// there, and may use the reserve. Another memory's, in which such a store may keep what it has, is
/// as ever.
#[inline]
pub(crate) fn is_writing(shared: &Shared) -> bool {
    WRITES_OF.with(Cell::get) == stall::key(shared)
}

/// Marks the thread as writing.
pub(crate) fn in_write(shared: &Shared) -> Inside {
    Inside::begin(&WRITES_OF, shared)
}

/// Counts writes that have ended, for those who wait for any.
#[derive(Debug, Default)]
pub(crate) struct Landings {
    nr_landed: Mutex<u64>,
    lands: Sleepers,
}

impl Landings {
    pub(crate) fn count(&self) {
        let mut landed = locked(&self.nr_landed);
        *landed += 1;
        self.lands.wake_all(&landed);
    }

    /// Sleeps until a write ends or `patience` does.
    pub(crate) fn wait(&self, patience: Duration) {
        self.wait_if(patience, || true);
    }

    /// [`Landings::wait`] where there is something to wait for. Whatever is under way when `is_any`
    /// looks is counted afterwards.
    fn wait_if(&self, patience: Duration, is_any: impl FnOnce() -> bool) {
        let landed = locked(&self.nr_landed);
        if !is_any() {
            return;
        }
        let before = *landed;
        let is_before = |now: &mut u64| *now == before;
        let landed = |lands: &Condvar| lands.wait_timeout_while(landed, patience, is_before);
        drop(self.lands.sleep(landed));
    }
}

/// Which dirty pages to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Which<'a> {
    /// Pages charged to one of these groups, which are in order, or below it.
    pub(crate) levels: Option<&'a [u32]>,
    /// Pages that are dirty since this second or an earlier one.
    pub(crate) before: u32,
    /// As many at most.
    pub(crate) nr_pages: u64,
    /// No more calls of the store begin when this is over; one does in any case.
    pub(crate) until: Option<Instant>,
    /// Also those that are being written or changed just now: waits for them.
    pub(crate) waits: bool,
    /// Asks for the log where pages wait for it.
    pub(crate) asks_log: bool,
}

impl<'a> Which<'a> {
    /// All of them.
    pub(crate) const ALL: Which<'a> = Which {
        levels: None,
        before: u32::MAX,
        nr_pages: u64::MAX,
        until: None,
        waits: true,
        asks_log: true,
    };

    /// Whether its time is over.
    pub(crate) fn is_over(&self) -> bool {
        is_over(self.until)
    }
}

fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

/// What was written of a file's dirty pages.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) nr_pages: u64,
    /// The page to go on at, where it wrote as many as it was to or its time was over.
    pub(crate) next: Option<u64>,
    /// Writes that failed; up to [`MAX_FAILURES`] it goes on.
    pub(crate) nr_failed: u32,
    /// Pages that wait for the log.
    pub(crate) nr_gated: u32,
    /// What was not written is dirty still.
    pub(crate) result: Result<(), Error>,
}

/// What came of writing dirty pages of a file.
struct Pass<'a> {
    backing: &'a Backing,
    /// One gathers pages; the other's may be under way meanwhile.
    runs: [Run<'a>; 2],
    gathering: usize,
    nr_written: u64,
    nr_failed: u32,
    last_error: Option<u32>,
    /// Pages that wait for the log.
    nr_gated: u32,
    /// The first page whose turn did not come in time.
    left: Option<u64>,
}

impl<'a> Pass<'a> {
    fn new(
        shared: &'a Shared,
        backing: &'a Backing,
        which: Which<'_>,
        later: Option<&'a Woken<'a>>,
    ) -> Pass<'a> {
        let by = match which.asks_log {
            true => By::Anybody,
            false => By::Background,
        };
        let run = || Run::new(shared, backing, by).until(which.until);
        Pass {
            backing,
            runs: [(); 2].map(|()| run().waking_later(later)),
            gathering: 0,
            nr_gated: 0,
            left: None,
            nr_written: 0,
            nr_failed: 0,
            last_error: None,
        }
    }

    /// The run that gathers pages.
    fn gathering(&mut self) -> &mut Run<'a> {
        &mut self.runs[self.gathering]
    }

    /// Gets what was gathered under way, ends what was before, and gathers anew.
    fn next_run(&mut self) {
        let (last, other) = (self.gathering, 1 - self.gathering);
        let is_under_way = self.runs[last].hand_over();
        self.run(other);
        match is_under_way {
            true => self.gathering = other,
            // Also where the other had the last ring.
            false => self.run(last),
        }
    }

    /// Ends all that has begun.
    fn end_runs(&mut self) {
        if !self.runs[1 - self.gathering].is_empty() {
            self.next_run();
        }
        (0..self.runs.len()).for_each(|at| self.run(at));
    }

    fn run(&mut self, at: usize) {
        let ended = self.runs[at].run();
        self.nr_written += u64::from(ended.nr_written);
        self.nr_gated += ended.nr_gated;
        if ended.nr_gated > 0 {
            // It was asked for just now.
            self.runs.iter_mut().for_each(Run::ask_no_more);
        }
        self.left = self.left.into_iter().chain(ended.left).min();
        self.nr_failed += ended.nr_failed;
        self.last_error = ended.error.or(self.last_error);
    }
}

/// Tasks that the ends of writes wake, by foreign code that may close a file and wait for writes of
/// it: when this is dropped, and all that the thread has begun are over.
pub(crate) struct Woken<'a> {
    shared: &'a Shared,
    /// Kept on the stack, those of reclaim: it writes without memory.
    effects: RefCell<SmallVec<[Effect; MAX_OFFERED]>>,
}

impl<'a> Woken<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Woken<'a> {
        let effects = RefCell::default();
        Woken { shared, effects }
    }

    /// Wakes threads now: they are no foreign code, and would wait for all writes else.
    fn add(&self, effects: impl IntoIterator<Item = Effect>) {
        let is_left = |effect: &Effect| match effect {
            Effect::Wake(frame) => self.shared.waiters.wake_threads(*frame),
            _ => true,
        };
        let left = effects.into_iter().filter(is_left);
        self.effects.borrow_mut().extend(left);
    }
}

impl Drop for Woken<'_> {
    fn drop(&mut self) {
        let effects = self.effects.take();
        self.shared
            .carry_out(effects, |_| unreachable!("a write asks for no read"));
    }
}

/// Writes that reclaim offered and nobody has run yet: as if they had not begun where this is
/// dropped, because a store unwinds.
struct Offered<'a> {
    shared: &'a Shared,
    woken: &'a Woken<'a>,
    begun: [Option<Write>; MAX_OFFERED],
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        for write in self.begun.iter_mut().filter_map(Option::take) {
            let mut effects = Effects::new();
            let core = &self.shared.core;
            core.put_back_write(cpu::current(), write, &mut effects);
            self.woken.add(iter::from_fn(|| effects.pop()));
        }
    }
}

impl Shared {
    /// Writes dirty pages of a file, in order; returns how many.
    ///
    /// Visits each page once, so that it ends however fast others make pages dirty.
    ///
    /// # Errors
    /// [`Error::WritebackFailed`], [`Error::LogBehind`]: what was not written is dirty still.
    pub(crate) fn write_dirty(
        &self,
        backing: &Backing,
        pages: RangeInclusive<u64>,
        which: Which<'_>,
    ) -> Result<u64, Error> {
        let Written {
            nr_pages, result, ..
        } = self.write_pass(backing, pages, which, None)?;
        result.map(|()| nr_pages)
    }

    /// [`Shared::write_dirty`]. A caller that has no handle of the file, and holds what the file's
    /// end waits for, wakes `later`.
    ///
    /// # Errors
    /// [`Error::PageBusy`] of a page that it was to wait for.
    pub(crate) fn write_pass(
        &self,
        backing: &Backing,
        pages: RangeInclusive<u64>,
        which: Which<'_>,
        later: Option<&Woken<'_>>,
    ) -> Result<Written, Error> {
        let mut next = None;
        // None where nothing is dirty.
        let last = backing.last_dirty().map(|last| last.min(*pages.end()));
        let pages = last.map(|last| *pages.start()..=last);
        let dirty = pages.map(|pages| backing.dirty_pages(pages, which.before));
        let mut pass = Pass::new(self, backing, which, later);
        let mut nr_begun = 0;
        for page in dirty.into_iter().flatten() {
            if pass.nr_failed >= MAX_FAILURES {
                break;
            }
            if nr_begun >= which.nr_pages {
                next = Some(page);
                break;
            }
            if !pass.gathering().has_room_for(page) {
                // In any case; a slow store may take all of the time for it.
                pass.next_run();
                if which.is_over() {
                    next = Some(page);
                    break;
                }
            }
            if let Some(write) = self.begin_page(&mut pass, page, which)? {
                nr_begun += 1;
                pass.gathering().push(write);
            }
        }
        pass.end_runs();
        let result = match pass.last_error {
            None if pass.nr_gated > 0 && which.waits => Err(backing.log_behind()),
            None => Ok(()),
            Some(code) => {
                trace::write_failed(backing, code);
                Err(backing.failed(code))
            }
        };
        Ok(Written {
            nr_pages: pass.nr_written,
            next: pass.left.or(next),
            nr_failed: pass.nr_failed,
            nr_gated: pass.nr_gated,
            result,
        })
    }

    /// Gives a store that failed another chance, by one page: the next dirty one behind the page
    /// whose write failed last, so that one which the store never takes keeps no other back.
    /// Nothing where the last write went well.
    ///
    /// # Errors
    /// As [`Shared::write_dirty`].
    pub(crate) fn try_failing(
        &self,
        backing: &Backing,
        which: Which<'_>,
        later: Option<&Woken<'_>>,
    ) -> Result<(), Error> {
        if !backing.is_failing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let one = Which {
            nr_pages: 1,
            ..which
        };
        let failed = backing.failed_page.load(Ordering::Relaxed);
        for pages in [failed.saturating_add(1)..=u64::MAX, 0..=failed] {
            let written = self.write_pass(backing, pages, one, later)?;
            if written.nr_pages > 0 || written.result.is_err() {
                return written.result;
            }
        }
        Ok(())
    }

    /// Writes what the store takes of a file that is closed: also behind pages that it refuses or
    /// unwinds at, as long as those are not too many in a row. The first time that it unwound goes
    /// on at the end.
    pub(crate) fn write_all_it_takes(&self, backing: &Backing) {
        let mut panics = Panics::default();
        let mut write = |pages| {
            let mut written = None;
            panics.catch(|| written = Some(self.write_dirty(backing, pages, Which::ALL).is_ok()));
            written
        };
        let is_all = write(0..=u64::MAX) == Some(true);
        let few = MAX_FAILURES as usize;
        let (mut next, mut nr_refused) = (0, 0);
        while !is_all && nr_refused < MAX_REFUSED {
            let pages = backing.dirty_pages(next..=u64::MAX, u32::MAX);
            let pages: Vec<u64> = pages.take(few).collect();
            let (Some(&first), Some(&last)) = (pages.first(), pages.last()) else {
                break;
            };
            let before = backing.nr_dirty();
            if write(first..=last).is_none() {
                // Nobody knows at which of them.
                pages.iter().for_each(|&page| _ = write(page..=page));
            }
            nr_refused = match backing.nr_dirty() < before {
                true => 0,
                false => nr_refused + pages.len(),
            };
            next = last + 1;
        }
        panics.go_on();
    }

    /// Begins the write of a page, if there is something to write.
    fn begin_page(
        &self,
        pass: &mut Pass<'_>,
        page: u64,
        which: Which<'_>,
    ) -> Result<Option<Write>, Error> {
        let backing = pass.backing;
        let Some(key) = backing.key(page) else {
            return Ok(None);
        };
        // For who changes it: what else it waits for in between does not count.
        let mut patience = LATCH_PATIENCE;
        loop {
            match self.core.begin_page_write(key, which.levels) {
                PageWrite::Begun(write) => return Ok(Some(write)),
                PageWrite::Wait { frame, version } if which.waits => {
                    // Nobody waits here with writes begun that are not run: whom it waits for may
                    // wait for them.
                    pass.end_runs();
                    if !self.core.is_latched(frame) {
                        // A write or a read under way: it ends.
                        self.wait(frame, version);
                        continue;
                    }
                    if !self.wait_within(frame, version, &mut patience) {
                        return Err(Error::PageBusy {
                            file: backing.name.to_string(),
                            page,
                        });
                    }
                }
                PageWrite::Wait { .. } | PageWrite::Changing => return Ok(None),
                PageWrite::Clean => {
                    backing.settle(self, page);
                    return Ok(None);
                }
            }
        }
    }

    /// Writes what reclaim offers, files in turn, until nothing is left of it; where others write
    /// it already and that `may_wait`, waits for one of them.
    pub(crate) fn write_offered(&self, writes: &mut Writes<'_>, may_wait: bool) {
        let woken = Woken::new(self);
        let mut offered = Offered {
            shared: self,
            woken: &woken,
            begun: [const { None }; MAX_OFFERED],
        };
        let mut len = 0;
        for write in writes.by_ref().take(MAX_OFFERED) {
            offered.begun[len] = Some(write);
            len += 1;
        }
        let begun = &mut offered.begun[..len];
        if begun.is_empty() {
            if may_wait && writes.has_writeback() {
                let before = writes.nr_writeback();
                let is_same = || writes.has_writeback() && writes.nr_writeback() == before;
                self.wait_for_write(LANDING, is_same);
            }
            return;
        }
        begun.sort_unstable_by_key(|write| write.as_ref().map(|write| write.key().bits()));
        let (mut next, mut nr_written, mut nr_failed) = (0, 0, 0);
        let mut took = Took::default();
        // The file whose log was asked for in vain.
        let mut gated = None;
        while let Some(write) = begun.get_mut(next).and_then(Option::take) {
            next += 1;
            let number = write.key().mapping();
            let Some(backing) = self.backing_of(number) else {
                // A file is there as long as a write of its pages is.
                let lost = Err(NO_NUMBER);
                let mut effects = Effects::new();
                self.core
                    .complete_write(cpu::current(), write, lost, &mut effects);
                woken.add(iter::from_fn(|| effects.pop()));
                continue;
            };
            let mut run = Run::new(self, &backing, By::Reclaim).waking_later(Some(&woken));
            run.push(write);
            let goes_with = |run: &Run<'_>, next: &Write| {
                next.key().mapping() == number && run.has_room_for(next.key().page())
            };
            while let Some(write) = begun
                .get_mut(next)
                .and_then(|write| write.take_if(|write| goes_with(&run, write)))
            {
                next += 1;
                run.push(write);
            }
            if gated == Some(number) {
                run.ask_no_more();
            }
            let begin = Instant::now();
            let ended = run.run();
            took.add(begin.elapsed());
            if ended.nr_gated > 0 {
                gated = Some(number);
            }
            // A failure is counted at its file, whose next `sync` says so.
            if let Some(code) = ended.error {
                trace::write_failed(&backing, code);
            }
            nr_written += ended.nr_written;
            nr_failed += ended.nr_failed + ended.nr_gated;
        }
        // Where a store fails at once, what is behind its pages is cheap to find.
        let is_dear = gated.is_some() || took.is_dear();
        if nr_failed > 0 && nr_written == 0 && is_dear {
            writes.note_failed();
        }
    }

    /// Waits until a write is no longer under way, or `patience` ends. Others' may end meanwhile.
    fn wait_for_write(&self, patience: Duration, is_under_way: impl Fn() -> bool) {
        let until = Instant::now() + patience;
        while is_under_way() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.landings.wait_if(left, &is_under_way);
        }
    }

    fn backing_of(&self, number: u32) -> Option<Arc<Backing>> {
        self.backings().get(&number).map(Arc::clone)
    }
}

/// How long the writes of a round took.
#[derive(Default)]
struct Took {
    all: Duration,
    longest: Duration,
    nr_writes: usize,
    nr_long: usize,
}

impl Took {
    fn add(&mut self, took: Duration) {
        self.all += took;
        self.longest = self.longest.max(took);
        self.nr_writes += 1;
        self.nr_long += usize::from(took > LONG_WRITE);
    }

    /// Whether that was long, and the store's time: of a machine that is busy a few writes wait.
    fn is_dear(&self) -> bool {
        self.all > DEAR_ROUND && (2 * self.nr_long >= self.nr_writes || self.longest > DEAR_WRITE)
    }
}

#[cfg(test)]
mod tests;
