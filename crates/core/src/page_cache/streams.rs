//! Sequential readers of one file, a bounded number of them, each with its window.
//!
//! Whoever owns a [`Streams`] tells it of misses and of reads of marked pages, and of nothing else:
//! [`Streams::markers`] says which pages to tell of, and [`Streams::marks`] leaves out nearly all
//! others, so that a hit costs a load and a compare.
//!
//! Source: windows as in [`super::readahead`]. The table in place of a state in each open file is
//! ours, and so is the doubt about histories.

use super::readahead::{self, Start, Window};
use core::mem;
use core::ops::Range;

/// Readers that are told apart, and as many who may become some.
pub const NR_STREAMS: usize = 16;
/// A reader that was not heard of while so many pages were read is forgotten.
const MAX_REST: u64 = 4096;
/// The same of one for whom only a history spoke, or twice its window where that is more. Measured:
/// `docs/readahead.md`.
const MAX_REST_OF_GUESS: u64 = 64;

/// Windows in a row, begun for a history alone, whose readers never came: from then on a history
/// is looked for at few misses only.
const MAX_VAIN: u8 = 4;
/// Of that many misses it is looked for at one then.
const PROBED: u64 = 16;

/// What is there to read, and what may be had.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Pages of the file.
    pub nr_pages: u64,
    /// Pages that are read at once at most: not 0.
    pub max: u32,
    /// Pages in the windows of all readers together at most: each has its part of them.
    pub all: u32,
}

/// What a reader's coming to a page calls for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Pages to bring in; after a miss the page itself is the first.
    pub read: Range<u64>,
    /// Pages that the reader has left behind since it was last heard of.
    pub passed: Range<u64>,
    /// The page had been read ahead, and was gone before it was read.
    pub was_lost: bool,
}

/// A sequential reader.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// What was read for it last.
    window: Window,
    /// Only a history spoke for it: it was not heard of since.
    is_guess: bool,
    /// The page where it was last heard of, and when that was.
    at: u64,
    seen: u64,
}

impl Stream {
    fn is_old(&self, now: u64) -> bool {
        let most = match self.is_guess {
            true => MAX_REST_OF_GUESS.max(2 * u64::from(self.window.size)),
            false => MAX_REST,
        };
        now - self.seen > most
    }
}

/// A request of nobody: no file has such a page.
const NOBODY: Range<u64> = u64::MAX..u64::MAX;

/// The readers of a file.
#[derive(Debug)]
pub struct Streams {
    streams: [Option<Stream>; NR_STREAMS],
    /// The last requests that nothing spoke for, by turns: who asks for the page behind one of them
    /// is a sequential reader.
    alone: [Range<u64>; NR_STREAMS],
    /// Whose turn it is.
    turn: usize,
    /// Pages read, as far as told.
    clock: u64,
    /// Guesses in a row whose readers never came.
    nr_vain: u8,
    /// The markers may be others than [`Streams::take_news`] said.
    has_news: bool,
}

impl Default for Streams {
    fn default() -> Self {
        Streams::new()
    }
}

impl Streams {
    /// Of a file that nobody has read.
    #[must_use]
    pub const fn new() -> Streams {
        Streams {
            streams: [None; NR_STREAMS],
            alone: [const { NOBODY }; NR_STREAMS],
            turn: 0,
            clock: 0,
            nr_vain: 0,
            has_news: false,
        }
    }

    /// Whether [`Streams::markers`] may be others than when this was last asked.
    pub fn take_news(&mut self) -> bool {
        mem::take(&mut self.has_news)
    }

    /// The pages to tell of when they are read: of each reader one at most. O([`NR_STREAMS`]).
    #[must_use]
    pub fn markers(&self) -> [Option<u64>; NR_STREAMS] {
        self.streams.map(|one| one.map(|one| one.window.marker()))
    }

    /// The same for a hit to look at: no others are told of than those whose number, modulo 64, is
    /// a set bit. O([`NR_STREAMS`]).
    #[must_use]
    pub fn marks(&self) -> u64 {
        let markers = self.markers().into_iter().flatten();
        markers.fold(0, |marks, page| marks | 1 << (page % 64))
    }

    /// Page `request.start` was missed by a request of these pages. `cached` tells how many pages
    /// directly before it are cached, looking at no more than it is given. `bounds` is asked where
    /// anything depends on it, which is not so of most who read a page here and there; `None` where
    /// it has none.
    ///
    /// What is to be read has the page, is no longer than the reader's part and ends with the file.
    /// Of a reader who is not sequential it is what was asked for.
    /// O([`NR_STREAMS`]), and two calls of `cached` at most.
    ///
    /// # Panics
    /// Where `max` of the bounds is 0.
    pub fn missed(
        &mut self,
        request: Range<u64>,
        bounds: impl FnOnce() -> Option<Bounds>,
        cached: impl Fn(u32) -> u32,
    ) -> Option<Ahead> {
        self.clock += 1;
        let page = request.start;
        if let Some(index) = self.reader_at(page) {
            return self.reads_on(index, request, bounds);
        }
        if let Some(place) = self.alone.iter().position(|one| one.end == page) {
            let bounds = bounds()?;
            let window = sequential(&request, self.share(bounds));
            let passed = mem::replace(&mut self.alone[place], NOBODY);
            self.clock += passed.end - passed.start;
            return Some(self.begin(window, passed, false, bounds));
        }
        let nr_asked = nr_asked(&request);
        let has_history = !self.has_doubts() && cached(1) > 0;
        if nr_asked == 1 && page > 0 && !has_history {
            return Some(self.stays_alone(page..page + 1));
        }
        let bounds = bounds()?;
        let max = self.share(bounds);
        let start = match page == 0 || nr_asked > max {
            true => Start::Sequential,
            false if has_history => Start::After(cached(max)),
            false => Start::After(0),
        };
        match readahead::first(page, nr_asked, start, max) {
            Some(window) => {
                let is_guess = start != Start::Sequential;
                Some(self.begin(window, page..page, is_guess, bounds))
            }
            None => Some(self.stays_alone(up_to(request, bounds))),
        }
    }

    /// A page was read that may be one of [`Streams::markers`]; `None` where it is not.
    /// O([`NR_STREAMS`]).
    ///
    /// # Panics
    /// Where `bounds.max` is 0.
    pub fn marked(&mut self, page: u64, bounds: Bounds) -> Option<Ahead> {
        let is_there = |one: &Option<Stream>| one.is_some_and(|one| one.window.marker() == page);
        let index = self.streams.iter().position(is_there)?;
        let max = self.share(bounds);
        Some(self.go_on(index, page, |window| window.next(max), bounds))
    }

    /// The reader whose next page a missed one is, at its window's end, or not read any more within
    /// it: of several, who is nearest.
    fn reader_at(&self, page: u64) -> Option<usize> {
        let there = self.streams.iter().zip(0..);
        let there = there.filter_map(|(one, index)| one.as_ref().map(|one| (one, index)));
        let readers = there.filter(|(one, _)| (one.at + 1..=one.window.end()).contains(&page));
        let nearest = readers.max_by_key(|(one, _)| one.at);
        nearest.map(|(_, index)| index)
    }

    /// A reader missed its next page.
    fn reads_on(
        &mut self,
        index: usize,
        request: Range<u64>,
        bounds: impl FnOnce() -> Option<Bounds>,
    ) -> Option<Ahead> {
        let bounds = bounds()?;
        let (page, max) = (request.start, self.share(bounds));
        let was_lost = self.streams[index].is_some_and(|one| one.window.end() != page);
        let next = |window: Window| match was_lost {
            false => window.next(max),
            true => sequential(&request, max),
        };
        Some(Ahead {
            was_lost,
            ..self.go_on(index, page, next, bounds)
        })
    }

    /// Nothing speaks for what was asked for: nothing else is read. Whether a reader is old is
    /// asked here, of one after the other.
    fn stays_alone(&mut self, asked: Range<u64>) -> Ahead {
        let place = self.turn;
        self.turn = (place + 1) % NR_STREAMS;
        if self.streams[place].is_some_and(|one| one.is_old(self.clock)) {
            self.forget(place);
        }
        self.alone[place] = asked.clone();
        Ahead {
            passed: asked.start..asked.start,
            read: asked,
            was_lost: false,
        }
    }

    /// A reader of whom nothing was known, in the place of who was not heard of for longest.
    fn begin(
        &mut self,
        window: Window,
        passed: Range<u64>,
        is_guess: bool,
        bounds: Bounds,
    ) -> Ahead {
        let when = |one: &Option<Stream>| one.map_or(0, |one| one.seen);
        let least = (0..NR_STREAMS).min_by_key(|&index| when(&self.streams[index]));
        let index = least.expect("there are some");
        self.forget(index);
        self.streams[index] = Some(Stream {
            window,
            is_guess,
            at: passed.end,
            seen: self.clock,
        });
        self.has_news = true;
        Ahead {
            read: up_to(window.pages(), bounds),
            passed,
            was_lost: false,
        }
    }

    fn forget(&mut self, index: usize) {
        let Some(gone) = self.streams[index].take() else {
            return;
        };
        self.has_news = true;
        if gone.is_guess {
            self.nr_vain = (self.nr_vain + 1).min(MAX_VAIN);
        }
    }

    /// Pages that are read at once at most for one of the readers, or for a further one.
    fn share(&self, bounds: Bounds) -> u32 {
        let readers = self.streams.iter().flatten();
        let there = readers.filter(|one| !one.is_old(self.clock));
        let nr_there = there.fold(0, |nr_there, _| nr_there + 1);
        bounds.max.min(bounds.all / nr_there.max(1)).max(1)
    }

    /// Whether no history is looked for at this miss: pages are read here and there.
    fn has_doubts(&self) -> bool {
        self.nr_vain == MAX_VAIN && !self.clock.is_multiple_of(PROBED)
    }

    /// A reader came to a page: its next window is brought in.
    fn go_on(
        &mut self,
        index: usize,
        page: u64,
        next: impl FnOnce(Window) -> Window,
        bounds: Bounds,
    ) -> Ahead {
        let stream = self.streams[index].as_mut().expect("the caller found it");
        if mem::take(&mut stream.is_guess) {
            self.nr_vain = 0;
        }
        let passed = mem::replace(&mut stream.at, page)..page;
        stream.window = next(stream.window);
        self.clock += page.saturating_sub(passed.start);
        stream.seen = self.clock;
        self.has_news = true;
        Ahead {
            read: up_to(stream.window.pages(), bounds),
            passed,
            was_lost: false,
        }
    }
}

/// Pages of a request: one at least.
fn nr_asked(request: &Range<u64>) -> u32 {
    let nr_asked = request.end.saturating_sub(request.start).max(1);
    u32::try_from(nr_asked).unwrap_or(u32::MAX)
}

/// The first window of a sequential reader.
fn sequential(request: &Range<u64>, max: u32) -> Window {
    readahead::first(request.start, nr_asked(request), Start::Sequential, max)
        .expect("there is a window for who is sequential")
}

/// Whether [`Streams::marks`] has a page's bit.
#[must_use]
#[inline]
pub const fn is_marked(marks: u64, page: u64) -> bool {
    marks >> (page % 64) & 1 != 0
}

/// Whether it has the bit of one of these pages.
#[must_use]
pub const fn is_any_marked(marks: u64, pages: &Range<u64>) -> bool {
    let nr_pages = pages.end.saturating_sub(pages.start);
    let bits = match nr_pages < 64 {
        true => (1 << nr_pages) - 1,
        false => u64::MAX,
    };
    marks.rotate_right((pages.start % 64) as u32) & bits != 0
}

fn up_to(pages: Range<u64>, bounds: Bounds) -> Range<u64> {
    pages.start.min(bounds.nr_pages)..pages.end.min(bounds.nr_pages)
}

#[cfg(test)]
mod tests;
