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

/// Readers that are told apart.
pub const NR_STREAMS: usize = 16;
/// A reader that was not heard of while so many pages were read gives way to any other.
const MAX_REST: u64 = 4096;

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

/// One reader.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// What was read for it last. Until it is known to be sequential, what it asked for.
    window: Window,
    is_sequential: bool,
    /// Only a history spoke for it: it was not heard of since.
    is_guess: bool,
    /// The page where it was last heard of, and when that was.
    at: u64,
    seen: u64,
}

impl Stream {
    fn is_old(&self, now: u64) -> bool {
        !self.is_sequential || now - self.seen > MAX_REST
    }

    /// Whether a miss there goes on with it.
    fn reads(&self, page: u64) -> bool {
        let end = self.window.end();
        page == end || self.is_sequential && (self.at + 1..end).contains(&page)
    }
}

/// The readers of a file.
#[derive(Debug)]
pub struct Streams {
    streams: [Option<Stream>; NR_STREAMS],
    /// Pages read, as far as told.
    clock: u64,
    /// Guesses in a row whose readers never came.
    nr_vain: u8,
    /// The markers may be others than [`Streams::take_news`] said.
    has_news: bool,
}

/// What the table says of a miss.
struct Look {
    /// Whose next page it is: of several, who is nearest.
    going_on: Option<usize>,
    /// Readers that are not old.
    nr_there: u32,
    /// Who gives way to another one: who matters least.
    least: usize,
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
        let sequential = |one: Option<Stream>| one.filter(|one| one.is_sequential);
        self.streams
            .map(|one| sequential(one).map(|one| one.window.marker()))
    }

    /// The same for a hit to look at: no others are told of than those whose number, modulo 64, is
    /// a set bit. O([`NR_STREAMS`]).
    #[must_use]
    pub fn marks(&self) -> u64 {
        let markers = self.markers().into_iter().flatten();
        markers.fold(0, |marks, page| marks | 1 << (page % 64))
    }

    /// Page `request.start` was missed by a request of these pages. `cached` tells how many pages
    /// directly before it are cached, looking at no more than it is given.
    ///
    /// What is to be read has the page, is no longer than the reader's part and ends with the file.
    /// Of a reader who is not sequential it is what was asked for.
    /// O([`NR_STREAMS`]), and one call of `cached` at most.
    ///
    /// # Panics
    /// Where `bounds.max` is 0.
    pub fn missed(
        &mut self,
        request: Range<u64>,
        bounds: Bounds,
        cached: impl FnOnce(u32) -> u32,
    ) -> Ahead {
        self.clock += 1;
        let page = request.start;
        let look = self.look(page);
        let max = share(bounds, look.nr_there);
        let nr_asked = request.end.saturating_sub(page).max(1);
        let nr_asked = u32::try_from(nr_asked).unwrap_or(u32::MAX);
        let Some(index) = look.going_on else {
            let start = match page == 0 || nr_asked > max {
                true => Start::Sequential,
                false if self.has_doubts() => Start::After(0),
                false => Start::After(cached(max)),
            };
            let window = readahead::first(page, nr_asked, start, max);
            let asked = Window {
                start: page,
                size: nr_asked.min(max),
                async_size: 1,
            };
            let reader = Stream {
                window: window.unwrap_or(asked),
                is_sequential: window.is_some(),
                is_guess: window.is_some() && start != Start::Sequential,
                at: page,
                seen: self.clock,
            };
            return self.begin(reader, look.least, bounds);
        };
        self.has_news = true;
        let stream = self.streams[index].as_mut().expect("found just now");
        let goes_on = stream.is_sequential && page == stream.window.end();
        let was_lost = stream.is_sequential && !goes_on;
        stream.window = match goes_on {
            true => stream.window.next(max),
            false => readahead::first(page, nr_asked, Start::Sequential, max)
                .expect("there is a window for who is sequential"),
        };
        stream.is_sequential = true;
        let read = up_to(stream.window.pages(), bounds);
        let passed = self.pass(index, page);
        Ahead {
            read,
            passed,
            was_lost,
        }
    }

    /// A page was read that may be one of [`Streams::markers`]; `None` where it is not.
    /// O([`NR_STREAMS`]).
    ///
    /// # Panics
    /// Where `bounds.max` is 0.
    pub fn marked(&mut self, page: u64, bounds: Bounds) -> Option<Ahead> {
        let is_there = |one: &Option<Stream>| {
            one.is_some_and(|one| one.is_sequential && one.window.marker() == page)
        };
        let index = self.streams.iter().position(is_there)?;
        let max = share(bounds, self.look(page).nr_there);
        self.has_news = true;
        let stream = self.streams[index].as_mut().expect("found just now");
        stream.window = stream.window.next(max);
        let read = up_to(stream.window.pages(), bounds);
        let passed = self.pass(index, page);
        Some(Ahead {
            read,
            passed,
            was_lost: false,
        })
    }

    /// Looks at all readers, once.
    fn look(&self, page: u64) -> Look {
        let (mut nearest, mut going_on, mut nr_there) = (0, None, 0);
        let (mut least_weight, mut least) = (u64::MAX, 0);
        for (index, one) in self.streams.iter().enumerate() {
            // Nobody matters less than who is old, and who is old than who is not.
            let mut weight = 0;
            if let Some(one) = one {
                let is_there = !one.is_old(self.clock);
                nr_there += u32::from(is_there);
                weight = (u64::from(is_there) << 63) + one.seen + 1;
                if one.reads(page) && one.at >= nearest {
                    (nearest, going_on) = (one.at, Some(index));
                }
            }
            if weight < least_weight {
                (least_weight, least) = (weight, index);
            }
        }
        Look {
            going_on,
            nr_there,
            least,
        }
    }

    /// A reader of whom nothing was known, in the place of another one.
    fn begin(&mut self, reader: Stream, place: usize, bounds: Bounds) -> Ahead {
        let before = self.streams[place].replace(reader);
        let was = |is: fn(Stream) -> bool| before.is_some_and(is);
        if was(|before| before.is_guess) {
            self.nr_vain = (self.nr_vain + 1).min(MAX_VAIN);
        }
        self.has_news |= reader.is_sequential || was(|before| before.is_sequential);
        Ahead {
            read: up_to(reader.window.pages(), bounds),
            passed: reader.at..reader.at,
            was_lost: false,
        }
    }

    /// Whether no history is looked for at this miss: pages are read here and there.
    fn has_doubts(&self) -> bool {
        self.nr_vain == MAX_VAIN && !self.clock.is_multiple_of(PROBED)
    }

    /// A reader came to a page: which ones it has left behind.
    fn pass(&mut self, index: usize, page: u64) -> Range<u64> {
        let stream = self.streams[index].as_mut().expect("the caller found it");
        let passed = stream.at..page;
        if mem::take(&mut stream.is_guess) {
            self.nr_vain = 0;
        }
        stream.at = page;
        self.clock += page.saturating_sub(passed.start);
        stream.seen = self.clock;
        passed
    }
}

/// Pages that are read at once at most for one of so many readers.
fn share(bounds: Bounds, nr_there: u32) -> u32 {
    bounds.max.min(bounds.all / nr_there.max(1)).max(1)
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
