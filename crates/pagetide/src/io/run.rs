//! Reads of pages that follow each other in one file: one read of the file into all their frames.

mod asked;

use super::registered::FileSlot;
use crate::backing::{Backing, SHORT};
use crate::page;
use crate::park;
use crate::shared::Shared;
use crate::spill::Region;
use crate::told;
use crate::{cpu, store::DirectFile};
use asked::Asked;
use pagetide_core::memory::Io;
use pagetide_core::units::Frame;
use smallvec::SmallVec;
use std::fs;
use std::io::{self, IoSliceMut};
use std::slice;
use std::sync::Arc;

/// Pages of one read at most.
pub(crate) const MAX_RUN: usize = 64;
/// Bytes of one read at most, of pages above 4 KiB: a longer one is split by devices anyway.
const MAX_RUN_BYTES: usize = 1 << 20;

/// A list of pages, of one most often: then it lies where it is named.
pub(crate) type Few<T> = SmallVec<[T; 1]>;
/// Pages that a run has room for once it has two: a window's.
const MANY: usize = 32;

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

/// Whose runs they are. The runs of a batch share one: to count each of them on what all threads
/// use would fetch those lines from another CPU each time.
pub(crate) struct Reader {
    shared: Arc<Shared>,
    backing: Arc<Backing>,
}

impl Reader {
    pub(crate) fn new(shared: &Arc<Shared>, backing: &Arc<Backing>) -> Arc<Reader> {
        Arc::new(Reader {
            shared: Arc::clone(shared),
            backing: Arc::clone(backing),
        })
    }
}

/// Reads of pages that follow each other, begun and not ended yet. Dropped before it is over, it
/// fails them, so that nobody waits for ever.
///
/// When it is dropped, its pages are live or failed, and those who wait for them are woken: foreign
/// code, which may close the file. So whoever has several runs in hand ends them together: [`end`].
pub(crate) struct Run {
    reader: Arc<Reader>,
    pages: Few<Asked>,
    /// Bytes that came so far.
    nr_bytes: usize,
    /// Bytes that pages were filled with.
    nr_filled: u64,
    /// `O_DIRECT` was refused.
    is_refused: bool,
    /// What was asked for last goes past the kernel's page cache.
    is_direct: bool,
    flight: Option<Flight>,
    /// Its memory is not to be asked for by a number.
    is_fixed_refused: bool,
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

/// The same number for all runs of a file, while it is open.
pub(super) fn file_of(backing: &Backing) -> usize {
    std::ptr::from_ref(backing).addr()
}

impl Run {
    /// A run of one page, in the background where nobody's stack waits for it.
    fn new(reader: Arc<Reader>, first: Asked, is_background: bool) -> Run {
        let flight = is_background.then(|| Flight::new(&reader.shared, &reader.backing));
        Run {
            reader,
            pages: Few::from_buf([first]),
            nr_bytes: 0,
            nr_filled: 0,
            is_refused: false,
            is_direct: false,
            flight,
            is_fixed_refused: false,
        }
    }

    /// Has the first line of each of its pages' bytes fetched, and where they lie looked up.
    pub(crate) fn touch(&self) {
        let arena = &self.reader.shared.arena;
        self.frames().for_each(|frame| arena.touch(frame));
    }

    /// Where its pages lie.
    pub(crate) fn frames(&self) -> impl Iterator<Item = Frame> {
        self.pages.iter().map(Asked::frame)
    }

    /// The same in the background.
    pub(crate) fn detached(mut self) -> Run {
        let flight = self.flight.take();
        let new = || Flight::new(&self.reader.shared, &self.reader.backing);
        self.flight = Some(flight.unwrap_or_else(new));
        self
    }

    /// Whether a page's bytes follow those of its last one, and there is room for it.
    fn is_continued_by(&self, next: &Asked) -> bool {
        let backing = &self.reader.backing;
        let nr_pages = self.pages.len() + 1;
        let last = self.pages.last();
        last.is_some_and(|last| last.is_continued_by(next, backing))
            && nr_pages <= MAX_RUN
            && nr_pages * backing.order.bytes() <= MAX_RUN_BYTES
    }

    /// The file that it is read from, where it is one of the system and not read page by page.
    pub(crate) fn file(&self) -> Option<&DirectFile> {
        // Reads of other stores are apart, so that several are under way.
        let is_together = self.pages.first().is_some_and(Asked::is_together);
        is_together.then(|| self.reader.backing.source.file())?
    }

    /// Whether what was read is looked at by code of the program, or decrypted.
    pub(crate) fn is_worked_on(&self) -> bool {
        let backing = &self.reader.backing;
        let region = backing.source.region();
        backing.hooked.get().is_some() || region.is_some_and(Region::is_encrypted)
    }

    /// Its pages.
    pub(crate) fn nr_pages(&self) -> usize {
        self.pages.len()
    }

    /// Bytes of it up to the last one that the store has now.
    fn wanted(&self) -> usize {
        let backing = &self.reader.backing;
        // Behind the last page of which it has some are none that count.
        let mut pages = self.pages.iter().enumerate().rev();
        let last = pages.find_map(|(at, page)| match page.stored(backing) {
            0 => None,
            stored => Some(at * backing.order.bytes() + stored),
        });
        last.unwrap_or(0)
    }

    /// Whether all bytes of its pages came.
    fn is_full(&self) -> bool {
        self.nr_bytes == self.pages.len() * self.reader.backing.order.bytes()
    }

    /// Where in the file the next byte is.
    fn offset(&self) -> u64 {
        let first = self.pages.first();
        let first = first.and_then(|page| page.offset(&self.reader.backing));
        first.unwrap_or(0) + self.nr_bytes as u64
    }

    /// What to read next; `None` where nothing is left, or the store is no file.
    pub(crate) fn rest(&mut self) -> Option<Rest<'_>> {
        let mut bufs = Few::with_capacity(self.pages.len());
        let (file, offset) = self.rest_into(|bytes| bufs.push(IoSliceMut::new(bytes)))?;
        Some(Rest { file, bufs, offset })
    }

    /// [`Run::rest`] by a caller that keeps buffers in its own form: `each` gets them in order.
    /// Returns the file, and where in it they are read from.
    pub(crate) fn rest_into<'a>(
        &'a mut self,
        mut each: impl FnMut(&'a mut [u8]),
    ) -> Option<(&'a fs::File, u64)> {
        let (offset, mut skip) = (self.offset(), self.nr_bytes);
        let wanted = self.wanted();
        if wanted <= skip {
            return None;
        }
        let Reader { shared, backing } = &*self.reader;
        let file = backing.source.file()?;
        let mut left = file.asked(offset, wanted - skip);
        let mut all = offset;
        for page in &mut self.pages {
            let bytes = page::target(&shared.arena, &mut page.ended.0);
            let skipped = skip.min(bytes.len());
            skip -= skipped;
            let end = (skipped + left).min(bytes.len());
            left -= end - skipped;
            let bytes = &mut bytes[..end];
            if skipped < bytes.len() {
                let bytes = &mut bytes[skipped..];
                all |= (bytes.as_ptr().addr() | bytes.len()) as u64;
                each(bytes);
            }
        }
        let direct = file.direct_for(all).filter(|_| !self.is_refused);
        self.is_direct = direct.is_some();
        Some((direct.unwrap_or_else(|| file.buffered()), offset))
    }

    /// [`file_of`] its file.
    pub(super) fn of_file(&self) -> usize {
        file_of(&self.reader.backing)
    }

    /// The place of its file in the tables of rings, where what was asked for last goes past the
    /// kernel's page cache.
    pub(crate) fn file_slot(&self) -> Option<&FileSlot> {
        let file = self.file().filter(|_| self.is_direct)?;
        Some(file.slot())
    }

    /// [`DirectFile::is_read_at_once`].
    pub(crate) fn is_read_at_once(&self) -> bool {
        self.file().is_some_and(DirectFile::is_read_at_once)
    }

    /// Its memory was registered, and is no longer.
    pub(crate) fn refuse_fixed(&mut self) {
        self.is_fixed_refused = true;
    }

    /// Whether its memory is not to be asked for by a number.
    pub(crate) fn is_fixed_refused(&self) -> bool {
        self.is_fixed_refused
    }

    /// As if a read past the kernel's page cache had been refused.
    #[cfg(test)]
    pub(crate) fn refuse_direct(&mut self) {
        self.is_refused = true;
    }

    /// Takes what a read of [`Run::rest`] said. Where it is over, [`end`] or its drop ends it.
    pub(crate) fn landed(&mut self, result: io::Result<usize>) -> Next {
        let next = match result {
            Ok(0) if self.wanted() <= self.nr_bytes => Next::Over,
            Ok(0) => return self.fail(SHORT),
            Ok(nr_bytes) => {
                if let Some(file) = self.file().filter(|_| !self.is_direct) {
                    file.note_buffered(self.offset(), nr_bytes);
                }
                self.nr_bytes += nr_bytes;
                match self.is_full() || self.nr_bytes >= self.wanted() {
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
                // No memory in the kernel, the thread that submitted it has ended, which it tells
                // by two numbers, or a ring does not know such a read.
                Some(
                    libc::EAGAIN | libc::ENOMEM | libc::ECANCELED | libc::EFAULT | libc::EINVAL,
                ) => {
                    self.read_each();
                    return Next::Over;
                }
                _ => return self.fail(told::code_of(&error)),
            },
        };
        if next == Next::Over {
            self.fill_up();
        }
        next
    }

    /// It is over where nothing is left to read: [`Run::rest`] has none.
    pub(crate) fn fill_up(&mut self) {
        let Reader { shared, backing } = &*self.reader;
        let mut left = self.nr_bytes;
        for page in &mut self.pages {
            let filled = left.min(page.stored(backing));
            page.came(shared, backing, filled);
            left = left.saturating_sub(backing.order.bytes());
            self.nr_filled += filled as u64;
        }
    }

    /// A read of one page failed: it fails. Of several, each is asked for by itself.
    fn fail(&mut self, code: u32) -> Next {
        match &mut self.pages[..] {
            [page] => page.ended.1 = Err(code),
            _ => self.read_each(),
        }
        Next::Over
    }

    /// Reads each page by itself, on this thread.
    fn read_each(&mut self) {
        let Reader { shared, backing } = &*self.reader;
        for page in &mut self.pages {
            self.nr_filled += page.read_apart(shared, backing);
        }
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
}

/// Ends runs of one memory: their pages are live, or failed where a run is not over. Then wakes
/// those who wait for them.
pub(crate) fn end(runs: &mut [Run]) {
    let Some(first) = runs.first() else { return };
    let reader = Arc::clone(&first.reader);
    let nr_filled = runs.iter().map(|run| run.nr_filled).sum();
    reader.shared.count_read(nr_filled);
    for run in &mut *runs {
        // Each of its own file: they may be of several.
        let let_go = |page: &mut Asked| page.let_go(&run.reader.backing);
        run.pages.iter_mut().for_each(let_go);
        if run.pages.len() > 1 {
            // The first page is taken first.
            run.pages.reverse();
        }
    }
    let mut woken = SmallVec::<[Frame; 32]>::new();
    let mut at = 0;
    let ended = std::iter::from_fn(|| {
        loop {
            match runs.get_mut(at)?.pages.pop() {
                None => at += 1,
                Some(page) => return Some(page.ended),
            }
        }
    });
    let core = &reader.shared.core;
    core.complete_many(cpu::current(), ended, &mut |frame| woken.push(frame));
    runs.iter_mut().for_each(|run| run.flight = None);
    park::to_each(woken, |frame| {
        reader.shared.waiters.wake(frame);
        // Where nobody wants the page any more, it can go.
        reader.shared.came_back(frame);
    });
}

/// Adds the read of a page to runs of one file, which `reader` names: to the last one, where it
/// continues that.
pub(crate) fn add_read(
    runs: &mut Vec<Run>,
    reader: impl FnOnce() -> Arc<Reader>,
    io: Io,
    is_background: bool,
) {
    let reader = runs
        .last()
        .map_or_else(reader, |run| Arc::clone(&run.reader));
    let next = Asked::new(io, &reader.backing);
    match runs.last_mut() {
        Some(last) if last.is_continued_by(&next) => {
            if !last.pages.spilled() {
                last.pages.reserve(MANY);
            }
            last.pages.push(next);
        }
        _ => runs.push(Run::new(reader, next, is_background)),
    }
}

/// Reads runs one after the other on this thread, for a caller that keeps their file open.
pub(crate) fn read_each(runs: impl IntoIterator<Item = Run>) {
    park::to_each(runs, |mut run| run.read_now());
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.pages.is_empty() {
            end(slice::from_mut(self));
        }
    }
}
