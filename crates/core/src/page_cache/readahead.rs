//! How far to read ahead: pure rules on counters of pages.
//!
//! Source: the kernel's `mm/readahead.c`, on-demand readahead (Wu 2007), as of Linux 6.12: the
//! sizes of the first window and of those that follow, the marker, the pages before a miss as a
//! reader's history. That a miss where a window ends goes on with the next one is its form up to
//! 6.11, for readers whose marker somebody else's took the place of.

use core::ops::Range;

/// Pages that were or will be read at once for one sequential reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first page.
    pub start: u64,
    /// Its pages: 1 to the maximum.
    pub size: u32,
    /// Of these, the last ones that nobody asked for: whoever comes to the first of them reads the
    /// next window. 1 to `size`.
    pub async_size: u32,
}

impl Window {
    /// Its pages.
    #[must_use]
    pub const fn pages(self) -> Range<u64> {
        self.start..self.end()
    }

    /// The page after its last one.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start.saturating_add(self.size as u64)
    }

    /// The page whose reader reads the next window.
    #[must_use]
    pub const fn marker(self) -> u64 {
        self.end() - self.async_size as u64
    }

    /// The window after it: `max` pages at most.
    ///
    /// # Panics
    /// Where `max` is 0.
    #[must_use]
    pub fn next(self, max: u32) -> Window {
        let size = next_size(self.size, max);
        Window {
            start: self.end(),
            size,
            async_size: size,
        }
    }
}

/// What a reader does of whom nothing is known but a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It reads on where it read before, begins at the file's start, or asks for more than the
    /// maximum.
    Sequential,
    /// So many pages directly before the miss are cached: somebody came that way.
    After(u32),
}

/// The window for a miss at page `at`, by a request of `nr_pages` from there on, where at most
/// `max` pages are read at once; `None` where only what was asked for is to be read.
///
/// The window begins at `at`, and has the request's pages or `max`.
///
/// # Panics
/// Where `max` or `nr_pages` is 0.
#[must_use]
pub fn first(at: u64, nr_pages: u32, start: Start, max: u32) -> Option<Window> {
    assert!(max > 0 && nr_pages > 0, "no page to read");
    match start {
        Start::Sequential => {
            let size = first_size(nr_pages, max);
            let async_size = match size > nr_pages {
                true => size - nr_pages,
                false => (size / 2).max(1),
            };
            Some(Window {
                start: at,
                size,
                async_size,
            })
        }
        Start::After(history) => {
            let history = history.min(max);
            if history <= nr_pages {
                return None;
            }
            // All of the file up to here: it was read from its start.
            let whole = u64::from(history) >= at;
            let history = if whole {
                history.saturating_mul(2)
            } else {
                history
            };
            Some(Window {
                start: at,
                size: history.saturating_add(nr_pages).min(max),
                async_size: 1,
            })
        }
    }
}

/// Pages of a first window.
fn first_size(nr_pages: u32, max: u32) -> u32 {
    let size = nr_pages.checked_next_power_of_two().unwrap_or(u32::MAX);
    let size = match size {
        size if size <= max / 32 => size * 4,
        size if size <= max / 4 => size * 2,
        _ => max,
    };
    size.min(max)
}

/// Pages of a window after one of `size`.
fn next_size(size: u32, max: u32) -> u32 {
    match size {
        size if size < max / 16 => size * 4,
        size if size <= max / 2 => size * 2,
        _ => max,
    }
}

/// What the owner of a file said of its reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hint {
    /// Nothing: what is read one after the other is read ahead.
    #[default]
    Normal,
    /// One after the other: twice as much at once.
    Sequential,
    /// Here and there: only what is asked for.
    Random,
}

impl Hint {
    /// Bytes that are read at once at most, where that are `max_bytes` without a hint.
    #[must_use]
    pub const fn bytes(self, max_bytes: u64) -> u64 {
        match self {
            Hint::Normal => max_bytes,
            Hint::Sequential => max_bytes.saturating_mul(2),
            Hint::Random => 0,
        }
    }
}

/// Pages that are read at once at most, where that are `max_bytes` without a hint, in pages of
/// `page_bytes`; of `capacity` pages, those that the reader may have, no more than a sixteenth: 0
/// for none. Two windows are under way at most, which must not push each other out.
///
/// # Panics
/// Where `page_bytes` is 0.
#[must_use]
pub fn max_pages(hint: Hint, max_bytes: u64, page_bytes: u64, capacity: u64) -> u32 {
    let max_bytes = hint.bytes(max_bytes);
    let pages = (max_bytes / page_bytes).min(capacity / 16);
    u32::try_from(pages).unwrap_or(u32::MAX).min(MAX_PAGES)
}

/// Pages of any window at most, far above what helps a device.
pub const MAX_PAGES: u32 = 1 << 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn window(start: u64, size: u32, async_size: u32) -> Window {
        Window {
            start,
            size,
            async_size,
        }
    }

    #[test]
    fn the_first_window_is_larger_than_a_small_request_by_the_kernels_steps() {
        let sizes = |max: u32| [1, 2, 3, 8, 9, 16, 17, 32, 33].map(|nr| first_size(nr, max));
        // 32 pages are 128 KiB: 1 is up to max / 32, 8 up to max / 4.
        assert_eq!(sizes(32), [4, 4, 8, 16, 32, 32, 32, 32, 32]);
        assert_eq!(sizes(64), [4, 8, 8, 16, 32, 32, 64, 64, 64]);
        assert_eq!(first_size(u32::MAX, 32), 32);
        assert_eq!(first_size(1, 1), 1);
        assert_eq!((first_size(1, 2), first_size(1, 4)), (2, 2));
    }

    #[test]
    fn windows_grow_by_four_then_by_two_up_to_the_maximum() {
        let sizes = |max| [1, 2, 4, 16, 17, 32].map(|size| next_size(size, max));
        assert_eq!(sizes(32), [4, 4, 8, 32, 32, 32]);
        assert_eq!(sizes(64), [4, 8, 8, 32, 34, 64]);
        assert_eq!(next_size(4, 2), 2);
        assert_eq!(next_size(1, 1), 1);
    }

    #[test]
    fn at_the_files_start_a_page_brings_four_and_three_of_them_are_ahead() {
        let first = first(0, 1, Start::Sequential, 32).unwrap();
        assert_eq!(first, window(0, 4, 3));
        assert_eq!(first.marker(), 1);
        let next = first.next(32);
        assert_eq!(next, window(4, 8, 8));
        assert_eq!(next.marker(), 4);
        assert_eq!(next.next(32), window(12, 16, 16));
        assert_eq!(next.next(32).next(32).next(32), window(60, 32, 32));
    }

    #[test]
    fn a_request_above_the_maximum_has_its_marker_in_the_middle() {
        assert_eq!(
            first(7, 100, Start::Sequential, 32),
            Some(window(7, 32, 16))
        );
        assert_eq!(first(7, 100, Start::Sequential, 1), Some(window(7, 1, 1)));
    }

    #[test]
    fn pages_before_a_miss_are_a_history_where_they_are_more_than_was_asked_for() {
        assert_eq!(first(50, 4, Start::After(0), 32), None);
        assert_eq!(first(50, 4, Start::After(4), 32), None);
        assert_eq!(first(50, 4, Start::After(5), 32), Some(window(50, 9, 1)));
        assert_eq!(first(50, 4, Start::After(49), 32), Some(window(50, 32, 1)));
        // Cached from the file's start on: twice.
        assert_eq!(first(6, 1, Start::After(6), 32), Some(window(6, 13, 1)));
        assert_eq!(first(7, 1, Start::After(6), 32), Some(window(7, 7, 1)));
    }

    #[test]
    fn hints_and_page_sizes_say_what_the_maximum_is() {
        let max = |hint, page_bytes| max_pages(hint, 128 << 10, page_bytes, 1 << 20);
        assert_eq!(max(Hint::Normal, 4096), 32);
        assert_eq!(max(Hint::Sequential, 4096), 64);
        assert_eq!(max(Hint::Random, 4096), 0);
        assert_eq!(max(Hint::Normal, 64 << 10), 2);
        // A page above the maximum is read as it is asked for.
        assert_eq!(max(Hint::Normal, 256 << 10), 0);
        assert_eq!(max_pages(Hint::Normal, 128 << 10, 4096, 64), 4);
        assert_eq!(max_pages(Hint::Normal, 128 << 10, 4096, 15), 0);
        assert_eq!(max_pages(Hint::Normal, 0, 4096, 1 << 20), 0);
        assert_eq!(max_pages(Hint::Normal, u64::MAX, 4096, u64::MAX), MAX_PAGES);
    }

    #[test]
    fn at_the_end_of_numbers_nothing_overflows() {
        let last = first(u64::MAX - 1, 1, Start::Sequential, 32).unwrap();
        assert_eq!(last.end(), u64::MAX);
        assert_eq!(last.next(32).end(), u64::MAX);
    }
}
