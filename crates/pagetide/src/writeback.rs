//! Writes of dirty pages: neighbours together, for those who ask and for reclaim.

use crate::backing::{Backing, NO_NUMBER, SHORT, code_of};
use crate::hooks::{Content, GATED, Hooked};
use crate::shared::{Shared, locked};
use crate::sleepers::Sleepers;
use crate::spill::{Region, Written};
use crate::store::Store;
use crate::trace;
use crate::{Error, cpu, page};
use pagetide_core::memory::{Effects, PageWrite, Write, Writes};
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Pages of one write at most. They are listed on the stack: writing needs no memory.
const MAX_RUN: usize = 64;
/// Writes that may fail before the rest is left dirty.
const MAX_FAILURES: u32 = 16;
/// How long reclaim waits for a write of somebody else's before it looks again.
const LANDING: Duration = Duration::from_secs(1);
/// How long somebody who reads or writes pages waits for whoever is changing one.
pub(crate) const LATCH_PATIENCE: Duration = Duration::from_secs(1);

thread_local! {
    static IS_WRITING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a store's write: then it must not reclaim, and may use the
/// reserve.
#[inline]
pub(crate) fn is_writing() -> bool {
    IS_WRITING.with(Cell::get)
}

/// Marks the thread as writing until dropped, by unwinding too.
struct InWrite {
    before: bool,
}

impl InWrite {
    fn begin() -> InWrite {
        let before = IS_WRITING.with(|flag| flag.replace(true));
        InWrite { before }
    }
}

impl Drop for InWrite {
    fn drop(&mut self) {
        IS_WRITING.with(|flag| flag.set(self.before));
    }
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
        let landed = locked(&self.nr_landed);
        let before = *landed;
        let is_before = |now: &mut u64| *now == before;
        let landed = |lands: &Condvar| lands.wait_timeout_while(landed, patience, is_before);
        drop(self.lands.sleep(landed));
    }
}

/// Which dirty pages to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Which {
    /// Pages charged to this group or below it.
    pub(crate) subtree: Option<u32>,
    /// Pages that are dirty since this second or an earlier one.
    pub(crate) before: u32,
    /// As many at most.
    pub(crate) nr_pages: u64,
    /// Also those that are being written or changed just now: waits for them.
    pub(crate) waits: bool,
    /// Asks for the log where pages wait for it.
    pub(crate) asks_log: bool,
}

impl Which {
    /// All of them.
    pub(crate) const ALL: Which = Which {
        subtree: None,
        before: u32::MAX,
        nr_pages: u64::MAX,
        waits: true,
        asks_log: true,
    };
}

/// Writes of pages that follow each other in one file, begun and not run yet.
struct Run<'a> {
    shared: &'a Shared,
    backing: &'a Backing,
    writes: [Option<Write>; MAX_RUN],
    len: usize,
    /// How many of them were written, the first ones, and why not the others.
    nr_written: usize,
    result: Result<(), u32>,
    /// Of a file with hooks, what became of each.
    outcomes: Option<[Result<(), u32>; MAX_RUN]>,
    asks_log: bool,
}

impl<'a> Run<'a> {
    fn new(shared: &'a Shared, backing: &'a Backing, asks_log: bool) -> Run<'a> {
        Run {
            shared,
            backing,
            writes: [const { None }; MAX_RUN],
            len: 0,
            nr_written: 0,
            result: Err(NO_NUMBER),
            outcomes: None,
            asks_log,
        }
    }

    /// Whether `page` can be written with those that it has: anon pages go where there is room.
    fn has_room_for(&self, page: u64) -> bool {
        if self.backing.source.region().is_some() {
            return self.len < MAX_RUN;
        }
        let Some(last) = self.len.checked_sub(1) else {
            return true;
        };
        let last = self.writes[last].as_ref().map(|write| write.key().page());
        let spare = self.backing.hooked.get().map(Hooked::spare_bytes);
        let max = spare.map_or(MAX_RUN, |bytes| bytes / self.backing.order.bytes());
        self.len < max.min(MAX_RUN) && last.is_some_and(|last| last + 1 == page)
    }

    fn push(&mut self, write: Write) {
        self.writes[self.len] = Some(write);
        self.len += 1;
    }

    /// Writes what it has; returns the pages written, and those that wait for the log.
    fn run(mut self) -> Result<(u32, u32), u32> {
        if self.len == 0 {
            return Ok((0, 0));
        }
        if let Some(hooked) = self.backing.hooked.get() {
            return self.run_hooked(hooked);
        }
        let in_write = InWrite::begin();
        let written = match self.backing.source.region() {
            Some(region) => self.swap_out(region),
            None => self.write_in_place(),
        };
        drop(in_write);
        self.shared.count_written(written.nr_bytes);
        self.nr_written = written.nr_pages;
        self.result = written.result;
        let nr_pages = u32::try_from(self.len).expect("a run is short");
        self.result.map(|()| (nr_pages, 0))
    }

    /// [`Run::run`] of a file with hooks: each page by itself may wait for the log or fail.
    fn run_hooked(mut self, hooked: &Hooked) -> Result<(u32, u32), u32> {
        let in_write = InWrite::begin();
        let outcomes = self.write_hooked(hooked);
        drop(in_write);
        let of_run = &outcomes[..self.len];
        let count = |wanted: Result<(), u32>| of_run.iter().filter(|&&it| it == wanted).count();
        let [nr_written, nr_gated] =
            [Ok(()), Err(GATED)].map(|it| u32::try_from(count(it)).expect("a run is short"));
        hooked.set_gated(nr_gated > 0);
        let failed = of_run.iter().filter_map(|it| it.err());
        self.result = failed
            .filter(|&code| code != GATED)
            .map(Err)
            .next()
            .unwrap_or(Ok(()));
        self.outcomes = Some(outcomes);
        self.result.map(|()| (nr_written, nr_gated))
    }

    /// Asks the hooks for each page, and writes neighbours of those that may go together.
    fn write_hooked(&self, hooked: &Hooked) -> [Result<(), u32>; MAX_RUN] {
        let (backing, len) = (self.backing, self.backing.len());
        let mut outcomes = [Ok(()); MAX_RUN];
        let pages = || {
            self.writes.iter().flatten().map(|write| {
                let page = write.key().page();
                let bytes = page::written(&self.shared.arena, write);
                (page, &bytes[..backing.bytes_of(page, len)])
            })
        };
        let mut positions = [0; MAX_RUN];
        for (at, (page, bytes)) in pages().enumerate() {
            match hooked.log_position(page, bytes) {
                Ok(position) => positions[at] = position,
                Err(code) => outcomes[at] = Err(code),
            }
        }
        let furthest = positions.iter().max().copied().unwrap_or(0);
        if furthest > hooked.durable() && self.asks_log {
            hooked.flush_log(furthest);
        }
        let durable = hooked.durable();
        let mut spare = hooked.spare();
        let mut spares = spare.chunks_mut(backing.order.bytes());
        let mut slices = [(); MAX_RUN].map(|()| IoSlice::new(&[]));
        for (at, (page, bytes)) in pages().enumerate() {
            let spare = spares.next().expect("a run is no longer than it");
            let instead = &mut spare[..bytes.len()];
            if positions[at] > durable {
                outcomes[at] = Err(GATED);
            }
            let content = outcomes[at].and_then(|()| hooked.before_write(page, bytes, instead));
            match content {
                Ok(Content::AsIs) => slices[at] = IoSlice::new(bytes),
                Ok(Content::Instead) => slices[at] = IoSlice::new(instead),
                Err(code) => outcomes[at] = Err(code),
            }
        }
        let first = pages().next().map_or(0, |(page, _)| page);
        let mut at = 0;
        while at < self.len {
            let together = outcomes[at..self.len].iter().take_while(|it| it.is_ok());
            let end = at + together.count();
            if at < end {
                let written = self.write_slices(first + at as u64, &mut slices[at..end]);
                outcomes[at..end].fill(written);
            }
            at = end.max(at + 1);
        }
        outcomes
    }

    /// Writes bytes from a page on, all or none.
    fn write_slices(&self, first: u64, slices: &mut [IoSlice<'_>]) -> Result<(), u32> {
        let backing = self.backing;
        let start = first * backing.order.bytes() as u64;
        let nr_bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        backing.check_poison().map_err(|_| NO_NUMBER)?;
        write_all(backing.source.written(), slices, start)?;
        backing.has_taken(start, nr_bytes as u64);
        self.shared.count_written(nr_bytes as u64);
        Ok(())
    }

    fn swap_out(&self, region: &Region) -> Written {
        let begun = self.writes.iter().flatten();
        let pages = begun.map(|write| {
            let bytes = page::written(&self.shared.arena, write);
            (write.key().page(), bytes)
        });
        region.write_out(self.shared, pages)
    }

    /// Writes pages of a file where they belong: all of them or none.
    fn write_in_place(&self) -> Written {
        let first = self.writes[0]
            .as_ref()
            .map_or(0, |write| write.key().page());
        let start = first * self.backing.order.bytes() as u64;
        let len = self.backing.len();
        let mut slices = [(); MAX_RUN].map(|()| IoSlice::new(&[]));
        let begun = self.writes.iter().flatten();
        let mut nr_bytes = 0;
        for (slice, write) in slices.iter_mut().zip(begun) {
            let bytes = page::written(&self.shared.arena, write);
            let in_file = self.backing.bytes_of(write.key().page(), len);
            *slice = IoSlice::new(&bytes[..in_file]);
            nr_bytes += in_file as u64;
        }
        let slices = &mut slices[..self.len];
        let result = match self.backing.check_poison() {
            Ok(()) => write_all(self.backing.source.written(), slices, start),
            Err(_) => Err(NO_NUMBER),
        };
        if result.is_err() {
            return Written {
                nr_pages: 0,
                nr_bytes: 0,
                result,
            };
        }
        self.backing.has_taken(start, nr_bytes);
        Written {
            nr_pages: self.len,
            nr_bytes,
            result,
        }
    }
}

impl Drop for Run<'_> {
    /// Ends its writes, as failed ones where the store panicked.
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        if let Err(code) = self.result
            && self.backing.source.region().is_none()
            && self.backing.source.written().has_lost_writes()
        {
            self.backing.poison(code);
        }
        let is_failing = self.result.is_err();
        self.backing.is_failing.store(is_failing, Ordering::Relaxed);
        let writes = self.writes.iter_mut().filter_map(Option::take);
        for (at, write) in writes.enumerate() {
            let page = write.key().page();
            let mut effects = Effects::new();
            let core = &self.shared.core;
            let is_written = at < self.nr_written;
            let result = if is_written { Ok(()) } else { self.result };
            match self.outcomes.map_or(result, |outcomes| outcomes[at]) {
                Err(GATED) => core.put_back_write(cpu::current(), write, &mut effects),
                result => core.complete_write(cpu::current(), write, result, &mut effects),
            }
            self.shared.wake_all(&mut effects);
            self.backing.settle(self.shared, page);
        }
        self.shared.landings.count();
    }
}

/// Writes all bytes of `slices`.
pub(crate) fn write_all(
    store: &dyn Store,
    mut slices: &mut [IoSlice<'_>],
    mut offset: u64,
) -> Result<(), u32> {
    // Leading empty ones go: an empty write says nothing.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match store.write_vectored_at(slices, offset) {
            Ok(0) => return Err(SHORT),
            Ok(written) => {
                let left: usize = slices.iter().map(|slice| slice.len()).sum();
                // A store that says more than it was given is a bug of its own.
                let written = written.min(left);
                IoSlice::advance_slices(&mut slices, written);
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(code_of(&error)),
        }
    }
    Ok(())
}

/// What came of writing dirty pages of a file.
struct Pass<'a> {
    shared: &'a Shared,
    backing: &'a Backing,
    run: Run<'a>,
    nr_written: u64,
    nr_failed: u32,
    last_error: Option<u32>,
    /// Pages that wait for the log.
    nr_gated: u32,
    asks_log: bool,
}

impl<'a> Pass<'a> {
    fn new(shared: &'a Shared, backing: &'a Backing, asks_log: bool) -> Pass<'a> {
        Pass {
            shared,
            backing,
            run: Run::new(shared, backing, asks_log),
            nr_gated: 0,
            asks_log,
            nr_written: 0,
            nr_failed: 0,
            last_error: None,
        }
    }

    /// Writes what has begun, and begins anew.
    fn end_run(&mut self) {
        let next = Run::new(self.shared, self.backing, self.asks_log);
        let run = std::mem::replace(&mut self.run, next);
        match run.run() {
            Ok((nr_pages, nr_gated)) => {
                self.nr_written += u64::from(nr_pages);
                self.nr_gated += nr_gated;
            }
            Err(code) => {
                self.nr_failed += 1;
                self.last_error = Some(code);
            }
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
        which: Which,
    ) -> Result<u64, Error> {
        let Some(last) = backing.last_dirty() else {
            return Ok(0);
        };
        let (mut next, last) = (*pages.start(), last.min(*pages.end()));
        let mut pass = Pass::new(self, backing, which.asks_log);
        let mut nr_begun = 0;
        while next <= last && nr_begun < which.nr_pages && pass.nr_failed < MAX_FAILURES {
            let Some(page) = backing.next_dirty(next..=last, which.before) else {
                break;
            };
            next = page + 1;
            if !pass.run.has_room_for(page) {
                pass.end_run();
            }
            if let Some(write) = self.begin_page(&mut pass, page, which)? {
                nr_begun += 1;
                pass.run.push(write);
            }
        }
        pass.end_run();
        match pass.last_error {
            None if pass.nr_gated > 0 && which.waits => Err(backing.log_behind()),
            None => Ok(pass.nr_written),
            Some(code) => {
                trace::write_failed(backing, code);
                Err(backing.failed(code))
            }
        }
    }

    /// Begins the write of a page, if there is something to write.
    fn begin_page(
        &self,
        pass: &mut Pass<'_>,
        page: u64,
        which: Which,
    ) -> Result<Option<Write>, Error> {
        let backing = pass.backing;
        let Some(key) = backing.key(page) else {
            return Ok(None);
        };
        let mut deadline = None;
        loop {
            match self.core.begin_page_write(key, which.subtree) {
                PageWrite::Begun(write) => return Ok(Some(write)),
                PageWrite::Wait { frame, version } if which.waits => {
                    // Nobody waits here with writes begun that are not run: whom it waits for may
                    // wait for them.
                    pass.end_run();
                    let is_latched = self.core.is_latched(frame);
                    let until = *deadline.get_or_insert_with(|| Instant::now() + LATCH_PATIENCE);
                    if !is_latched {
                        // A write or a read under way: it ends.
                        self.wait(frame, version);
                    } else if !self.wait_until(frame, version, until) {
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
        let mut begun = [const { None::<Write> }; MAX_RUN];
        let mut len = 0;
        for write in writes.by_ref().take(MAX_RUN) {
            begun[len] = Some(write);
            len += 1;
        }
        let begun = &mut begun[..len];
        if begun.is_empty() {
            if may_wait && writes.has_writeback() {
                self.landings.wait(LANDING);
            }
            return;
        }
        begun.sort_unstable_by_key(|write| write.as_ref().map(|write| write.key().bits()));
        let mut begun = begun.iter_mut().filter_map(Option::take).peekable();
        while let Some(write) = begun.next() {
            let number = write.key().mapping();
            let Some(backing) = self.backing_of(number) else {
                // A file is there as long as a write of its pages is.
                let lost = Err(NO_NUMBER);
                let mut effects = Effects::new();
                self.core
                    .complete_write(cpu::current(), write, lost, &mut effects);
                self.wake_all(&mut effects);
                continue;
            };
            let mut run = Run::new(self, &backing, true);
            run.push(write);
            while let Some(next) = begun.next_if(|next| {
                next.key().mapping() == number && run.has_room_for(next.key().page())
            }) {
                run.push(next);
            }
            // A failure is counted at its file, whose next `sync` says so.
            if let Err(code) = run.run() {
                trace::write_failed(&backing, code);
            }
        }
    }

    fn backing_of(&self, number: u32) -> Option<Arc<Backing>> {
        self.backings().get(&number).map(Arc::clone)
    }
}
