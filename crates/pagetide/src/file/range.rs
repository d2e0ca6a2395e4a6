//! Ranges of bytes, seen without a copy.

use super::File;
use super::write::bytes_of;
use crate::Error;
use crate::page::Page;
use pagetide_core::memory::AllocError;
use smallvec::SmallVec;
use std::fmt;
use std::ops::RangeBounds;

/// Bytes of a file that follow each other, pinned: a view of them without a copy, a slice for each
/// page that they lie in. See [`File::pin_range`].
///
/// As for [`Page`]: the bytes do not change while it lives, and its pages cannot be evicted.
pub struct PinnedRange {
    pages: Vec<Page>,
    /// Where it begins in the file.
    offset: u64,
    /// Where it begins in its first page.
    skip: usize,
    len: usize,
}

impl fmt::Debug for PinnedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedRange")
            .field("pages", &self.pages)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl PinnedRange {
    /// The first `most` bytes from `skip` on of pages that follow each other, but for those behind
    /// a page that the file ended in when it was pinned.
    fn of(pages: Vec<Page>, skip: usize, most: u64, page_bytes: usize) -> PinnedRange {
        let whole = pages.iter().take_while(|page| page.len() == page_bytes);
        let nr_whole = whole.count();
        let tail = pages.get(nr_whole).map_or(0, |page| page.len());
        let len = (nr_whole * page_bytes + tail).saturating_sub(skip);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let first = pages.first().map_or(0, Page::page);
        PinnedRange {
            offset: first * page_bytes as u64 + skip as u64,
            pages,
            skip,
            len: len.min(most),
        }
    }

    /// Where its first byte is in the file; 0 of an empty range.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes that it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none: only of an empty range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in order, those of each page in one piece; no piece is empty.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.len;
        let mut skip = self.skip;
        self.pages.iter().map_while(move |page| {
            let bytes = &page[skip.min(page.len())..];
            let bytes = &bytes[..bytes.len().min(left)];
            left -= bytes.len();
            skip = 0;
            (!bytes.is_empty()).then_some(bytes)
        })
    }

    /// All of it in one piece, where it lies in one page.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        let mut slices = self.slices();
        let first = slices.next().unwrap_or(&[]);
        (first.len() == self.len).then_some(first)
    }
}

/// Bytes of a range that a file has, the first and the last.
struct There {
    start: u64,
    last: u64,
    /// Where they are.
    pages: SmallVec<[u64; 1]>,
}

impl File {
    /// A view of a range of bytes without a copy; it ends at the file's end.
    ///
    /// Bytes of one page are in one piece: who wants to see so many at once opens the file with
    /// pages of that size ([`OpenOptions::order`](crate::OpenOptions::order)), up to 4 MiB. A range
    /// in several pages is as many pieces, pinned together as [`File::pin_many`] does, which reads
    /// what is missing together, and ahead of who goes on so. An empty range pins nothing.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("table");
    /// # std::fs::write(&path, vec![7; 100_000])?;
    /// use pagetide::{ByteSize, Memory, OpenOptions, Order};
    ///
    /// let memory = Memory::builder().budget(ByteSize::mib(16)).build()?;
    /// let table = OpenOptions::new().order(Order::new(4)).open(&memory, &path, &memory.root())?;
    /// let row = table.pin_range(5000..25_000)?; // of the first page, which has 64 KiB
    /// assert_eq!(row.as_slice(), Some(&[7; 20_000][..]));
    /// let rows = table.pin_range(60_000..)?;
    /// let pieces: Vec<usize> = rows.slices().map(<[u8]>::len).collect();
    /// assert_eq!(pieces, [65_536 - 60_000, 100_000 - 65_536]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::PastEnd`] where it begins at the file's end or beyond; as [`File::pin_many`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_range(&self, range: impl RangeBounds<u64>) -> Result<PinnedRange, Error> {
        self.check_process()?;
        let Some(wanted) = bytes_of(range) else {
            return Ok(self.range_of(Vec::new(), 0, 0));
        };
        loop {
            let there = self.part_there(wanted)?;
            let pinned = match &*there.pages {
                &[page] => self.pin(page).map(|page| vec![page]),
                pages => self.pin_many(pages),
            };
            if let Some(range) = self.shown(&there, pinned)? {
                return Ok(range);
            }
        }
    }

    /// [`File::pin_range`] as a future, as [`File::pin_many_async`].
    ///
    /// # Errors
    /// As [`File::pin_range`], but those of the pages as [`File::pin_many_async`].
    pub async fn pin_range_async(
        &self,
        range: impl RangeBounds<u64>,
    ) -> Result<PinnedRange, Error> {
        self.check_process()?;
        let Some(wanted) = bytes_of(range) else {
            return Ok(self.range_of(Vec::new(), 0, 0));
        };
        loop {
            let there = self.part_there(wanted)?;
            let pinned = match &*there.pages {
                &[page] => self.pin_async(page).await.map(|page| vec![page]),
                pages => self.pin_many_async(pages).await,
            };
            if let Some(range) = self.shown(&there, pinned)? {
                return Ok(range);
            }
        }
    }

    /// The part of a range, not empty, that the file has now.
    fn part_there(&self, (start, last): (u64, u64)) -> Result<There, Error> {
        let shift = self.open.order.shift();
        let (len, first_page) = (self.len(), start >> shift);
        if start >= len {
            return Err(self.past_end(first_page));
        }
        let last = last.min(len - 1);
        let last_page = last >> shift;
        if self.open.backing.key(last_page).is_none() {
            // Of a file longer than there are page numbers.
            return Err(self.past_end(last_page));
        }
        if last_page > first_page {
            self.check_room(last_page - first_page + 1)?;
        }
        let pages = SmallVec::from_iter(first_page..=last_page);
        Ok(There { start, last, pages })
    }

    /// What its pages show of it, unless somebody has made the file shorter meanwhile, and longer
    /// again perhaps.
    fn shown(
        &self,
        there: &There,
        pinned: Result<Vec<Page>, Error>,
    ) -> Result<Option<PinnedRange>, Error> {
        let pages = match pinned {
            Err(Error::PastEnd { .. }) if there.start < self.len() => return Ok(None),
            pinned => pinned?,
        };
        let (_, skip) = self.place(there.start);
        let range = self.range_of(pages, skip, there.last - there.start + 1);
        Ok((!range.is_empty()).then_some(range))
    }

    fn range_of(&self, pages: Vec<Page>, skip: usize, most: u64) -> PinnedRange {
        PinnedRange::of(pages, skip, most, self.open.order.bytes())
    }

    /// Whether the group may have so many of the file's pages at all: before they are listed.
    fn check_room(&self, nr_pages: u64) -> Result<(), Error> {
        let (shared, own) = (&self.open.shared, self.group.id());
        let nr_frames = nr_pages.saturating_mul(self.open.order.nr_pages().into());
        let mut levels = shared.core.groups().path(own).map(|(level, _)| level);
        match levels.find(|&level| nr_frames > shared.core.room_under(level)) {
            None => Ok(()),
            Some(group) => Err(shared.alloc_error(AllocError::OverLimit { group }, own, nr_frames)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory};

    #[test]
    fn nothing_follows_a_page_that_the_file_ended_in() {
        let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
        let memory = builder.build().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 4096 + 100]).unwrap();
        let file = memory.open(file.path(), &memory.root()).unwrap();
        // As if it had got longer while they were pinned.
        for (pages, skip, len) in [
            (&[1, 0][..], 10, 90),
            (&[0, 1, 0], 5, 4091 + 100),
            (&[1], 100, 0),
            (&[1, 0], 200, 0),
        ] {
            let range = PinnedRange::of(file.pin_many(pages).unwrap(), skip, u64::MAX, 4096);
            assert_eq!(range.len(), len);
            assert_eq!(range.slices().flatten().count(), len);
        }
    }
}
