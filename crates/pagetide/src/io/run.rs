//! Reads of pages that follow each other in one file: one read of the file into all their frames.

use crate::backing::{Backing, NO_NUMBER, SHORT, code_of};
use crate::page;
use crate::park;
use crate::shared::Shared;
use crate::{cpu, store::DirectFile};
use pagetide_core::memory::{Effect, Effects, Io};
use pagetide_core::units::Frame;
use smallvec::{SmallVec, smallvec};
use std::fs;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

/// Pages of one read at most.
pub(crate) const MAX_RUN: usize = 64;
/// Bytes of one read at most, of pages above 4 KiB: a longer one is split by devices anyway.
const MAX_RUN_BYTES: usize = 1 << 20;

/// A list of pages, of one most often: then it lies where it is named.
pub(crate) type Few<T> = SmallVec<[T; 1]>;

/// Reads that nobody waits for on a stack: counted, so that a file is not closed before they end,
/// and so that those who wait know that there is something to reap.
pub(crate) struct Flight {
    shared: Arc<Shared>,
    backing: Arc<Backing>,
}

impl Flight {
    /// Counted from here on: before the page of the read can be seen.
    pub(crate) fn new(shared: &Arc<Shared>, backing: &Arc<Backing>) -> Flight {
        shared.io.begin_flight();
        backing.begin_flight();
        Flight {
            shared: Arc::clone(shared),
            backing: Arc::clone(backing),
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.shared.io.end_flight();
        if self.backing.end_flight() {
            self.shared.landings.count();
        }
    }
}

/// Reads of pages that follow each other, begun and not ended yet. Dropped before its end, it fails
/// them, so that nobody waits for ever.
///
/// When it is dropped, those who wait for its pages are woken: foreign code, which may close the
/// file. So whoever has several runs in hand that end together ends all before he drops one.
pub(crate) struct Run {
    shared: Arc<Shared>,
    backing: Arc<Backing>,
    ios: Few<Io>,
    /// Bytes that came so far.
    nr_bytes: usize,
    /// `O_DIRECT` was refused.
    is_refused: bool,
    /// What was asked for last goes past the kernel's page cache.
    is_direct: bool,
    flight: Option<Flight>,
    /// Frames that somebody may wait for, whose reads have ended.
    woken: Few<Frame>,
}

/// What is left to read of a run: into `bufs`, from `offset` on.
pub(crate) struct Rest<'a> {
    pub(crate) file: &'a fs::File,
    pub(crate) bufs: Few<IoSliceMut<'a>>,
    pub(crate) offset: u64,
}

/// What becomes of a run after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// What is left has to be read.
    Again,
    /// It is over.
    Over,
}

impl Run {
    /// A run of one page, in the background where nobody's stack waits for it.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        backing: &Arc<Backing>,
        io: Io,
        is_background: bool,
    ) -> Run {
        let flight = is_background.then(|| Flight::new(shared, backing));
        Run {
            shared: Arc::clone(shared),
            backing: Arc::clone(backing),
            ios: smallvec![io],
            nr_bytes: 0,
            is_refused: false,
            is_direct: false,
            flight,
            woken: Few::new(),
        }
    }

    /// The same in the background.
    pub(crate) fn detached(mut self) -> Run {
        let flight = self.flight.take();
        let new = || Flight::new(&self.shared, &self.backing);
        self.flight = Some(flight.unwrap_or_else(new));
        self
    }

    /// Adds the page after its last one, where there is room.
    ///
    /// # Errors
    /// A page that does not follow comes back.
    pub(crate) fn push(&mut self, io: Io) -> Result<(), Io> {
        let next = self.ios.last().map(|last| last.key().page() + 1);
        let nr_pages = self.ios.len() + 1;
        let has_room = nr_pages <= MAX_RUN && nr_pages * io.order().bytes() <= MAX_RUN_BYTES;
        // Reads of other stores are apart, so that several are under way.
        let is_file = self.file().is_some();
        if !has_room || !is_file || next != Some(io.key().page()) {
            return Err(io);
        }
        self.ios.push(io);
        Ok(())
    }

    /// The file behind it, where it is one of the system.
    pub(crate) fn file(&self) -> Option<&DirectFile> {
        self.backing.source.file()
    }

    /// Its pages.
    pub(crate) fn nr_pages(&self) -> usize {
        self.ios.len()
    }

    /// Bytes of it up to the last one that the store has now.
    fn wanted(&self) -> usize {
        let page_bytes = self.backing.order.bytes();
        let stored = self.ios.iter().enumerate().map(|(at, io)| {
            let stored = self.backing.stored_of(io.key().page());
            if stored == 0 {
                0
            } else {
                at * page_bytes + stored
            }
        });
        stored.max().unwrap_or(0)
    }

    /// Where in the file the next byte is.
    fn offset(&self) -> u64 {
        let base = self.file().map_or(0, DirectFile::base);
        let first = self.ios.first().map_or(0, |io| io.key().page());
        base + first * self.backing.order.bytes() as u64 + self.nr_bytes as u64
    }

    /// What to read next; `None` where nothing is left, or the store is no file.
    pub(crate) fn rest(&mut self) -> Option<Rest<'_>> {
        let (offset, skip) = (self.offset(), self.nr_bytes);
        if self.wanted() <= skip {
            return None;
        }
        let order_bytes = self.backing.order.bytes();
        let arena = &self.shared.arena;
        let ios = self.ios.iter_mut().skip(skip / order_bytes);
        let mut bufs: Few<_> = ios
            .map(|io| IoSliceMut::new(page::target(arena, io)))
            .collect();
        bufs.first_mut()?.advance(skip % order_bytes);
        let file = self.backing.source.file()?;
        let direct = file.direct_for(&bufs, offset);
        let direct = direct.filter(|_| !self.is_refused);
        self.is_direct = direct.is_some();
        Some(Rest {
            file: direct.unwrap_or(file.buffered()),
            bufs,
            offset,
        })
    }

    /// As if a read past the kernel's page cache had been refused.
    #[cfg(test)]
    pub(crate) fn refuse_direct(&mut self) {
        self.is_refused = true;
    }

    /// Takes what a read of [`Run::rest`] said. Where it is over, the pages are live or failed, and
    /// who waits for them is woken when it is dropped.
    pub(crate) fn landed(&mut self, result: io::Result<usize>) -> Next {
        let next = match result {
            Ok(0) if self.wanted() <= self.nr_bytes => Next::Over,
            Ok(0) => return self.fail(SHORT),
            Ok(nr_bytes) => {
                if let Some(file) = self.file().filter(|_| !self.is_direct) {
                    file.note_buffered(self.offset(), nr_bytes);
                }
                self.nr_bytes += nr_bytes;
                match self.nr_bytes >= self.wanted() {
                    true => Next::Over,
                    false => Next::Again,
                }
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => Next::Again,
                // Tails of a file may not be read so.
                Some(libc::EINVAL) if !self.is_refused => {
                    self.is_refused = true;
                    Next::Again
                }
                // No memory in the kernel, or the thread that submitted it has ended.
                Some(libc::EAGAIN | libc::ENOMEM | libc::ECANCELED) => {
                    self.read_each();
                    return Next::Over;
                }
                _ => return self.fail(code_of(&error)),
            },
        };
        if next == Next::Over {
            self.fill_up();
        }
        next
    }

    /// Ends it where nothing is left to read: [`Run::rest`] has none.
    pub(crate) fn fill_up(&mut self) {
        let (arena, mut left) = (&self.shared.arena, self.nr_bytes);
        let mut nr_filled = 0;
        let mut results = Few::with_capacity(self.ios.len());
        for io in &mut self.ios {
            let page = io.key().page();
            let stored = self.backing.stored_of(page);
            let bytes = page::target(arena, io);
            let filled = left.min(stored);
            bytes[filled..].fill(0);
            left = left.saturating_sub(bytes.len());
            nr_filled += filled as u64;
            results.push(self.backing.after_read(page, &mut bytes[..filled]));
        }
        self.shared.count_read(nr_filled);
        let ended = self.ios.drain(..).zip(results).collect();
        self.end(ended);
    }

    /// A read of one page failed: it fails. Of several, each is asked for by itself.
    fn fail(&mut self, code: u32) -> Next {
        if self.ios.len() > 1 {
            self.read_each();
        } else {
            let ended = self.ios.drain(..).map(|io| (io, Err(code))).collect();
            self.end(ended);
        }
        Next::Over
    }

    /// Reads each page by itself, on this thread.
    fn read_each(&mut self) {
        let mut results = Few::with_capacity(self.ios.len());
        for io in &mut self.ios {
            let filled = self.backing.fill(&self.shared, io);
            results.push(filled.map(|nr_bytes| self.shared.count_read(nr_bytes as u64)));
        }
        let ended = self.ios.drain(..).zip(results).collect();
        self.end(ended);
    }

    /// Reads all of it on this thread.
    pub(crate) fn read_now(&mut self) {
        if self.file().is_none() {
            return self.read_each();
        }
        loop {
            let read = self
                .rest()
                .map(|mut rest| rustix::io::preadv(rest.file, &mut rest.bufs, rest.offset));
            match read {
                None => return self.fill_up(),
                Some(result) => {
                    if self.landed(result.map_err(Into::into)) == Next::Over {
                        return;
                    }
                }
            }
        }
    }

    /// Completes pages.
    fn end(&mut self, ended: Few<(Io, Result<(), u32>)>) {
        let shared = &self.shared;
        for (io, result) in ended {
            let mut effects = Effects::new();
            shared
                .core
                .complete(cpu::current(), io, result, &mut effects);
            while let Some(Effect::Wake(frame)) = effects.pop() {
                self.woken.push(frame);
            }
        }
        if self.ios.is_empty() {
            self.flight = None;
        }
    }
}

/// Reads runs one after the other on this thread, for a caller that keeps their file open.
pub(crate) fn read_each(runs: impl IntoIterator<Item = Run>) {
    runs.into_iter().for_each(|mut run| run.read_now());
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.ios.is_empty() {
            let failed = self.ios.drain(..).map(|io| (io, Err(NO_NUMBER))).collect();
            self.end(failed);
        }
        let woken = std::mem::take(&mut self.woken);
        park::to_each(woken, |frame| self.shared.waiters.wake(frame));
    }
}
