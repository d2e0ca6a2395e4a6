//! A trace through the real core with the readahead of the runtime, whose reads take no time.

use crate::core_run::{CoreCache, RunError};
use pagetide_core::page_cache::readahead::{Hint, max_pages};
use pagetide_core::page_cache::streams::{Ahead, Bounds, Streams, is_marked};
use pagetide_core::reclaim::Policy;

/// Bytes that are read ahead for one reader at most, of pages of 4 KiB: the runtime's default.
const MAX_BYTES: u64 = 128 << 10;
const PAGE_BYTES: u64 = 4096;
/// Of the frames, the part that the windows of all readers have together, as in the runtime.
const SHARE: u32 = 16;

/// What a replay with readahead counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AheadCounts {
    /// Requests whose page was not there.
    pub misses: u64,
    /// Pages that were read, asked for or not.
    pub pages_read: u64,
    /// Reads, of a page or of a window.
    pub reads: u64,
    /// Pages that were gone before the reader came for whom they had been read.
    pub lost: u64,
}

/// One file under a limit, read page by page.
#[derive(Debug)]
pub struct AheadCache {
    cache: CoreCache,
    streams: Streams,
    bounds: Bounds,
    counts: AheadCounts,
}

impl AheadCache {
    /// A file of `nr_pages` in at most `frames` frames.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn try_new(policy: Policy, frames: u32, nr_pages: u32) -> Result<AheadCache, RunError> {
        Ok(AheadCache {
            cache: CoreCache::try_new(policy, frames)?,
            streams: Streams::new(),
            bounds: Bounds {
                nr_pages: nr_pages.into(),
                max: max_pages(Hint::Normal, MAX_BYTES, PAGE_BYTES, frames.into()),
                all: frames / SHARE,
            },
            counts: AheadCounts::default(),
        })
    }

    /// Reads a page, and ahead of it.
    ///
    /// # Errors
    /// [`RunError::Page`].
    pub fn read(&mut self, page: u32) -> Result<(), RunError> {
        let is_there = self.cache.is_cached(page);
        if self.bounds.max > 1 {
            let number = u64::from(page);
            let marks = self.streams.marks();
            let ahead = match is_there {
                true if !is_marked(marks, number) => None,
                true => self.streams.marked(number, self.bounds),
                false => {
                    let cache = &self.cache;
                    let cached = |most| {
                        let before = (0..page).rev().take(pagetide_core::units::index(most));
                        before
                            .take_while(|&page| cache.is_cached(page))
                            .map(|_| 1)
                            .sum()
                    };
                    let bounds = || Some(self.bounds);
                    self.streams.missed(number..number + 1, bounds, cached)
                }
            };
            ahead.map_or(Ok(()), |ahead| self.read_ahead(ahead))?;
        }
        self.counts.misses += u64::from(!is_there);
        let missed = self.cache.read(page)?;
        self.counts.pages_read += u64::from(missed);
        self.counts.reads += u64::from(missed);
        Ok(())
    }

    fn read_ahead(&mut self, ahead: Ahead) -> Result<(), RunError> {
        let number = |page: u64| u32::try_from(page).expect("a page of the file");
        if ahead.read.end > ahead.read.start + 1 {
            let mut nr_read = 0;
            for page in ahead.read {
                nr_read += u64::from(self.cache.prefetch(number(page))?);
            }
            self.counts.pages_read += nr_read;
            self.counts.reads += u64::from(nr_read > 0);
        }
        self.counts.lost += u64::from(ahead.was_lost);
        Ok(())
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> AheadCounts {
        self.counts
    }
}
