//! Anon pages: memory of the program's own that is swapped out when others need it.

use super::write::bytes_of;
use super::{File, Open, PinnedRange, UpgradeError};
use crate::backing::Source;
use crate::group::Group;
use crate::page::{Page, PageMut};
use crate::park::Panics;
use crate::pins::{Paged, Pages};
use crate::policy::Order;
use crate::spill::Region;
use crate::{Error, cpu};
use pagetide_core::memory::{Discard, Effects};
use pagetide_core::units::Frame;
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

/// How long a page that is to be discarded may be in use.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pages that one prefetch passes by at most, beside as many as fit in memory: of a region that is
/// mostly empty it would look at each page.
const PASSED_BY: u64 = 1 << 20;
/// Pages that a key can number.
const MAX_PAGES: u64 = 1 << 40;

/// Pages without a file behind them: zeros until they are written, swapped out to the spill file
/// under pressure, brought back when they are asked for. A cheap handle.
///
/// For state that has to stay but not in memory all of the time, addressed by the number of its
/// pages: hash tables and sort runs of queries, arrays that are
/// larger than the budget. What else there is:
///
/// | what | stays in memory | use it for |
/// |---|---|---|
/// | [`Anon`] | while it is pinned or used | data that may be slow to come back |
/// | [`Buf`](crate::Buf) | always | a block for I/O or a hash table that must not wait |
/// | [`Reservation`](crate::Reservation) | always | bytes that the program's allocator gives it |
///
/// As many pages as are asked for cost nothing before they are written; then each 4 KiB costs a
/// word of the program's heap, which is charged to the group of the region, until it is discarded.
/// All regions together may have as many bytes written as
/// [`Builder::spill_max`](crate::Builder::spill_max) says, those in memory included: by default as
/// many as the budget has.
/// A page is charged to the group whose handle brings it in. Which pages go, of files and anon
/// ones, is the policy's choice by what each costs to bring back
/// ([`Builder::swappiness`](crate::Builder::swappiness)). Whoever needs the memory writes them,
/// up to 64 neighbours in the spill file with one write. Those that are asked for together and lie
/// together there come back with one read.
///
/// Nothing of it outlives the region: its pages and their room in the spill file go with the last
/// handle, unwritten.
///
/// ```
/// # fn main() -> Result<(), pagetide::Error> {
/// use pagetide::{ByteSize, Memory};
///
/// let memory = Memory::builder().budget(ByteSize::mib(16)).spill_max(ByteSize::mib(64)).build()?;
/// let query = memory.root().child("query")?.max(ByteSize::mib(4))?;
/// let rows = query.anon(8192)?; // 32 MiB in 4 MiB of memory
/// for page in 0..8192_u64 {
///     rows.pin_new(page)?[..8].copy_from_slice(&page.to_le_bytes());
/// }
/// let page = rows.pin(17)?; // comes back
/// assert_eq!(page[..8], 17_u64.to_le_bytes());
/// rows.discard(..4096)?; // half of it is not needed any more
/// assert!(memory.stats().pswpout > 4096);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Anon {
    pub(super) file: File,
}

impl fmt::Debug for Anon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anon")
            .field("nr_pages", &self.nr_pages())
            .field("group", &self.file.group)
            .finish_non_exhaustive()
    }
}

/// A page that somebody has in hand, its frame, and the version to wait for.
struct InHand {
    page: u64,
    frame: Frame,
    version: u32,
    /// Somebody changes it, and may take long. Reads and writes end by themselves.
    is_latched: bool,
}

impl Group {
    /// A region of `nr_pages` anon pages of 4 KiB: see [`Anon`].
    ///
    /// With the first region of a memory, the spill file is made.
    ///
    /// # Errors
    /// [`Error::Spill`], [`Error::AnonTooLarge`], [`Error::OverLimit`], [`Error::NoMetadata`].
    /// [`Error::NoBlock`] where the spill file is encrypted or compressed pages are kept, and
    /// [`Error::Random`] where it is encrypted.
    pub fn anon(&self, nr_pages: u64) -> Result<Anon, Error> {
        self.anon_with(Order::new(0), nr_pages)
    }

    /// A region of `nr_pages` anon pages of `order`.
    ///
    /// A page comes and goes as a whole, and needs a whole block of memory; in the spill file it
    /// may lie in parts.
    ///
    /// # Errors
    /// As [`Group::anon`].
    pub fn anon_with(&self, order: Order, nr_pages: u64) -> Result<Anon, Error> {
        let shared = self.shared();
        shared.check_process()?;
        let order = order.to_core();
        let max_pages = MAX_PAGES.min(i64::MAX as u64 / order.bytes() as u64);
        if nr_pages > max_pages {
            return Err(Error::AnonTooLarge {
                nr_pages,
                max_pages,
            });
        }
        let region = Region::new(self, order)?;
        let mapping = shared
            .core
            .open_anon(shared.here().waiting_for_reads(), order);
        let mapping = mapping.map_err(|_| Error::NoMetadata { what: "a region" })?;
        let source = (Source::Region(region), nr_pages * order.bytes() as u64);
        let name = format!("anon pages of {}", self.path());
        let open = Open::of(shared, (mapping, order), source, name, None);
        let file = File::of(Arc::new(open), self, true);
        Ok(Anon { file })
    }
}

impl Anon {
    /// Pages of the region, written or not.
    #[must_use]
    pub fn nr_pages(&self) -> u64 {
        self.file.len() / self.page_bytes() as u64
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.file.page_bytes()
    }

    /// The same region for another group: what this handle brings in is charged to it.
    ///
    /// # Panics
    /// As [`File::for_group`].
    #[must_use]
    pub fn for_group(&self, group: &Group) -> Anon {
        let file = self.file.for_group(group);
        Anon { file }
    }

    /// A view of a page without a copy, to be read. A page that is not in memory is read back; one
    /// that was never written is zeros, without a read.
    ///
    /// # Errors
    /// [`Error::PastEnd`]; [`Error::SwapOut`] where there is no memory because the disk is full or
    /// fails; [`Error::Io`] where it cannot be read back, and stays in the spill file; as
    /// [`File::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin(&self, page: u64) -> Result<Page, Error> {
        self.file.pin(page)
    }

    /// A view of a page for this caller alone, to read it and change it in place. Waits up to a
    /// second for pins on the page to drop.
    ///
    /// # Errors
    /// [`Error::SpillFull`] where a page is to be changed for the first time and no room is left;
    /// [`Error::PageBusy`] where it stays pinned, also by the caller; as [`Anon::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_mut(&self, page: u64) -> Result<PageMut, Error> {
        self.file.pin_mut(page)
    }

    /// [`Anon::pin_mut`] of a page that gets new content: its bytes are zeros, and it is not read
    /// back.
    ///
    /// # Errors
    /// As [`Anon::pin_mut`]; the page is what it was then.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_new(&self, page: u64) -> Result<PageMut, Error> {
        self.check_end(page)?;
        self.file.pin_new(page)
    }

    /// [`File::try_pin`] of a page of the region: `None` where it would have to be read back.
    ///
    /// # Errors
    /// As [`File::try_pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_pin(&self, page: u64) -> Result<Option<Page>, Error> {
        self.file.try_pin(page)
    }

    /// [`File::pin_many`] of pages of the region: what has to be read back is read together.
    ///
    /// # Errors
    /// As [`File::pin_many`] and [`Anon::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_many(&self, pages: &[u64]) -> Result<Vec<Page>, Error> {
        self.file.pin_many(pages)
    }

    /// [`File::pin_range`] of bytes of the region.
    ///
    /// # Errors
    /// As [`File::pin_range`] and [`Anon::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_range(&self, range: impl RangeBounds<u64>) -> Result<PinnedRange, Error> {
        self.file.pin_range(range)
    }

    /// [`File::try_pin_mut`] of a page of the region; `None` also where it was never changed: that
    /// takes room in the spill file first.
    ///
    /// # Errors
    /// [`Error::PastEnd`], [`Error::PinLimit`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_pin_mut(&self, page: u64) -> Result<Option<PageMut>, Error> {
        self.file.try_pin_mut(page)
    }

    /// [`File::upgrade`] of a pinned page of the region.
    ///
    /// # Errors
    /// [`UpgradeError`], with the page: [`Error::PageBusy`], also where it is no page of this
    /// region any more; [`Error::SpillFull`], [`Error::OverLimit`] where it is to be changed for
    /// the first time.
    pub fn upgrade(&self, page: Page) -> Result<PageMut, UpgradeError> {
        self.file.upgrade(page)
    }

    /// Brings pages back that were swapped out, as [`File::prefetch`] does; returns how many. What
    /// is in memory or was never written is nowhere to be read, and is passed by: 2^20 pages and as
    /// many as there is memory for, at most.
    pub fn prefetch(&self, pages: impl IntoIterator<Item = u64>) -> u64 {
        let (region, nr_pages) = (self.region(), self.nr_pages());
        let nr_in_memory = self.file.open.shared.core.config().arena_pages;
        let mut left = PASSED_BY + u64::from(nr_in_memory);
        let ours = pages.into_iter().take_while(|&page| page < nr_pages);
        let looked_at = ours.map_while(|page| {
            let found = Some(page).filter(|&page| region.has_slots(page));
            left = left.checked_sub(found.is_none().into())?;
            Some(found)
        });
        self.file.prefetch(looked_at.flatten())
    }

    /// [`Anon::pin`] as a future, as [`File::pin_async`].
    ///
    /// # Errors
    /// As [`Anon::pin`] and [`File::pin_async`].
    pub async fn pin_async(&self, page: u64) -> Result<Page, Error> {
        self.file.pin_async(page).await
    }

    /// [`Anon::pin_many`] as a future, as [`File::pin_many_async`].
    ///
    /// # Errors
    /// As [`Anon::pin_many`] and [`File::pin_many_async`].
    pub async fn pin_many_async(&self, pages: &[u64]) -> Result<Vec<Page>, Error> {
        self.file.pin_many_async(pages).await
    }

    /// [`Anon::pin_range`] as a future, as [`File::pin_range_async`].
    ///
    /// # Errors
    /// As [`Anon::pin_range`] and [`File::pin_range_async`].
    pub async fn pin_range_async(
        &self,
        range: impl RangeBounds<u64>,
    ) -> Result<PinnedRange, Error> {
        self.file.pin_range_async(range).await
    }

    /// [`Anon::read_at`] as a future, as [`File::read_at_async`].
    ///
    /// # Errors
    /// As [`Anon::read_at`] and [`File::read_at_async`].
    pub async fn read_at_async(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.file.read_at_async(buf, offset).await
    }

    /// [`Anon::write_at`] as a future, as [`File::write_at_async`].
    ///
    /// # Errors
    /// As [`Anon::write_at`] and [`File::write_at_async`].
    pub async fn write_at_async(&self, buf: &[u8], offset: u64) -> Result<usize, Error> {
        self.check_in(buf, offset)?;
        self.file.write_at_async(buf, offset).await
    }

    /// [`Anon::pin_mut`] as a future, as [`File::write_at_async`].
    ///
    /// # Errors
    /// As [`Anon::pin_mut`] and [`File::write_at_async`].
    pub async fn pin_mut_async(&self, page: u64) -> Result<PageMut, Error> {
        self.file.pin_mut_async(page).await
    }

    /// [`Anon::pin_new`] as a future, as [`File::write_at_async`].
    ///
    /// # Errors
    /// As [`Anon::pin_new`] and [`File::write_at_async`].
    pub async fn pin_new_async(&self, page: u64) -> Result<PageMut, Error> {
        self.file.pin_new_async(page).await
    }

    fn region(&self) -> &Region {
        let region = self.file.open.backing.source.region();
        region.expect("anon pages have a region")
    }

    /// Copies bytes from `offset` on into `buf`; returns how many, fewer only at the region's end.
    ///
    /// # Errors
    /// As [`Anon::pin`]; `buf` may hold part of the bytes.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.file.read_at(buf, offset)
    }

    /// Writes `buf` at `offset`; returns its length. A page that was swapped out is read first,
    /// unless all of it is overwritten. Waits up to a second for pins on a page to drop.
    ///
    /// # Errors
    /// [`Error::PastEnd`] where it does not lie in the region: nothing is written;
    /// [`Error::SpillFull`] where a page is written for the first time and no room is left;
    /// [`Error::PageBusy`] where a page stays pinned, also by the caller; as [`Anon::pin`]. Pages
    /// before the one that failed have the new bytes.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize, Error> {
        self.check_in(buf, offset)?;
        self.file.write_at(buf, offset)
    }

    /// # Errors
    /// [`Error::PastEnd`] where bytes do not lie in the region.
    fn check_in(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.file.len()) {
            let first = offset / self.page_bytes() as u64;
            return Err(self.file.past_end(first.max(self.nr_pages())));
        }
        Ok(())
    }

    /// Drops pages, in memory and in the spill file: they are zeros again. Who has one pinned to
    /// read it keeps its bytes.
    ///
    /// O(pages of the range that were written), and their reads and writes under way are waited
    /// for; a page that somebody changes for up to a second.
    ///
    /// # Errors
    /// [`Error::PageBusy`]: pages before it are dropped.
    pub fn discard(&self, pages: impl RangeBounds<u64>) -> Result<(), Error> {
        self.file.check_process()?;
        let Some((start, last)) = bytes_of(pages) else {
            return Ok(());
        };
        let end = last.saturating_add(1).min(self.nr_pages());
        // Who is woken may unwind: first all of them are dropped.
        let mut panics = Panics::default();
        let discarded = self.discard_all(start..end, &mut panics);
        panics.go_on();
        discarded
    }

    fn discard_all(&self, pages: Range<u64>, panics: &mut Panics) -> Result<(), Error> {
        let (shared, backing) = (&self.file.open.shared, &*self.file.open.backing);
        // For who changes a page: how long its reads and writes take in between does not count.
        let (mut next, mut patience) = (pages.start, (pages.start, PATIENCE));
        loop {
            let alone = backing.length.take();
            let alone = alone.ok_or_else(|| self.file.busy(next))?;
            let in_hand = self.discard_from(&mut next, pages.end, panics);
            // Whoever changes it may need the lock to go on, and nobody who changes other pages
            // waits for a slow disk.
            drop(alone);
            shared.fill_put_off();
            let Some(in_hand) = in_hand else {
                return Ok(());
            };
            let InHand {
                page,
                frame,
                version,
                is_latched,
            } = in_hand;
            if !is_latched {
                shared.wait(frame, version);
                continue;
            }
            if patience.0 != page {
                patience = (page, PATIENCE);
            }
            if !shared.wait_within(frame, version, &mut patience.1) {
                return Err(self.file.busy(page));
            }
        }
    }

    /// Drops pages from `next` on, by a caller that keeps everybody from latching one; returns the
    /// first that somebody has in hand, which is the next one then.
    fn discard_from(&self, next: &mut u64, end: u64, panics: &mut Panics) -> Option<InHand> {
        let region = self.region();
        while *next < end
            && let Some(page) = region.next_known(*next..end)
        {
            *next = page;
            if let Some(in_hand) = self.discard_page(page, panics) {
                return Some(in_hand);
            }
            *next = page + 1;
        }
        None
    }

    fn discard_page(&self, page: u64, panics: &mut Panics) -> Option<InHand> {
        let region = self.region();
        // Before its slots go: one that stays, because somebody has it in hand, may need them.
        if let Some(in_hand) = self.drop_resident(page, panics) {
            return Some(in_hand);
        }
        loop {
            // Whoever brings the page in from here on finds zeros.
            region.drop_slots(page);
            while let Some(in_hand) = self.drop_resident(page, panics) {
                // A read that began just before; or by mistake, for a moment: of another page that
                // was in the frame before.
                self.file.open.shared.wait(in_hand.frame, in_hand.version);
            }
            // A write that was under way has put it there once more.
            if !region.has_slots(page) {
                panics.catch(|| region.forget(page));
                return None;
            }
        }
    }

    /// Drops a page from memory, unless somebody has it in hand.
    fn drop_resident(&self, page: u64, panics: &mut Panics) -> Option<InHand> {
        let (shared, backing) = (&self.file.open.shared, &*self.file.open.backing);
        let key = backing.key(page)?;
        let mut effects = Effects::new();
        let discarded = shared.core.discard_page(cpu::current(), key, &mut effects);
        shared.settle_later();
        panics.catch(|| shared.wake_all(&mut effects));
        match discarded {
            Discard::Gone => None,
            Discard::Wait { frame, version } => Some(InHand {
                page,
                frame,
                version,
                is_latched: shared.core.is_latched(frame),
            }),
        }
    }
}

impl Pages for Anon {}

impl Paged for Anon {
    fn file(&self) -> &File {
        &self.file
    }

    fn check_end(&self, page: u64) -> Result<(), Error> {
        match page < self.nr_pages() {
            true => Ok(()),
            false => Err(self.file.past_end(page)),
        }
    }
}
