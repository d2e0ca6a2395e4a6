//! Reading ahead of those who read one page after the other.
//!
//! Each file has a table of its sequential readers, behind a lock that is only tried: who finds it
//! taken reads on without. A hit looks at one word, whose bits leave out nearly all pages that the
//! table is not to be asked for, and of the others at a list.

mod devices;

use super::File;
use super::begun::Begun;
use crate::ByteSize;
use crate::backing::Source;
use crate::group::Group;
use crate::shared::{Shared, unpoisoned};
use devices::Devices;
use pagetide_core::group::{Count, Limit};
use pagetide_core::page_cache::streams::{
    Ahead, Bounds, NR_STREAMS, Streams, is_any_marked, is_marked,
};
use pagetide_core::page_cache::{Access, readahead};
use pagetide_core::sync::Padded;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Of what a group may have, the part that the windows of all readers of a file have together.
const SHARE: u64 = 16;

/// Bytes of one request that are read together where nothing is read ahead. Source: the kernel's
/// `force_page_cache_ra`, which takes as much as the device does at once.
const TOGETHER: u64 = 1 << 20;

/// How a file will be read, in the words of `posix_fadvise`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// `POSIX_FADV_NORMAL`: what is read one page after the other is read ahead.
    #[default]
    Normal,
    /// `POSIX_FADV_SEQUENTIAL`: twice as far.
    Sequential,
    /// `POSIX_FADV_RANDOM`: not at all. What one call asks for is read together.
    Random,
}

impl Hint {
    const ALL: [Hint; 3] = [Hint::Normal, Hint::Sequential, Hint::Random];

    const fn number(self) -> u8 {
        match self {
            Hint::Normal => 0,
            Hint::Sequential => 1,
            Hint::Random => 2,
        }
    }

    const fn to_core(self) -> readahead::Hint {
        match self {
            Hint::Normal => readahead::Hint::Normal,
            Hint::Sequential => readahead::Hint::Sequential,
            Hint::Random => readahead::Hint::Random,
        }
    }
}

/// What one handle says of its reads.
#[derive(Debug)]
pub(super) struct Wish {
    hint: AtomicU8,
    /// Bytes that are read ahead for one reader at most.
    max_bytes: AtomicU64,
}

impl Wish {
    pub(super) const fn new(max_bytes: u64) -> Wish {
        Wish {
            hint: AtomicU8::new(Hint::Normal.number()),
            max_bytes: AtomicU64::new(max_bytes),
        }
    }

    fn hint(&self) -> Hint {
        Hint::ALL[usize::from(self.hint.load(Ordering::Relaxed))]
    }

    /// Whether anything is to be read ahead.
    fn is_any(&self) -> bool {
        self.hint() != Hint::Random && self.max_bytes.load(Ordering::Relaxed) > 0
    }
}

impl Clone for Wish {
    fn clone(&self) -> Wish {
        let wish = Wish::new(self.max_bytes.load(Ordering::Relaxed));
        wish.hint.store(self.hint().number(), Ordering::Relaxed);
        wish
    }
}

/// Who reads a window that begins with a page which was missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Whoever missed the page, where it is a file of the system: he waits for it anyway, and to
    /// hand it to another thread and to be woken by that one takes longer than to read a few pages.
    Caller,
    /// Nobody who would wait.
    Background,
}

/// In the place of a marker that there is not: no file has such a page.
const NO_PAGE: u64 = u64::MAX;

/// The sequential readers of an open file, whatever their handles.
#[derive(Debug)]
pub(super) struct Readers {
    /// Bytes that are read ahead of each of them at most, where his handle says nothing else.
    pub(super) max_bytes: u64,
    /// [`Streams::marks`] and [`Streams::markers`], as of the last time that any changed. Stale
    /// ones cost a look at the table, or a window that begins later.
    marks: AtomicU64,
    markers: [AtomicU64; NR_STREAMS],
    /// Each miss writes to it: not on the line that hits look at.
    streams: Padded<Mutex<Streams>>,
}

impl Readers {
    pub(super) fn new(max_bytes: u64) -> Readers {
        Readers {
            max_bytes,
            marks: AtomicU64::new(0),
            markers: [const { AtomicU64::new(NO_PAGE) }; NR_STREAMS],
            streams: Padded::default(),
        }
    }

    /// Whether a page is one that the table is to be told of. For few of those that are not,
    /// `is_marked` says so.
    fn is_marker(&self, page: u64) -> bool {
        let mut markers = self.markers.iter();
        markers.any(|marker| marker.load(Ordering::Relaxed) == page)
    }

    /// Says of the table what hits look at.
    fn tell(&self, streams: &Streams) {
        let store = |word: &AtomicU64, value| {
            // Who reads here and there changes none: the lines stay with all CPUs.
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Relaxed);
            }
        };
        store(&self.marks, streams.marks());
        for (word, marker) in self.markers.iter().zip(streams.markers()) {
            store(word, marker.unwrap_or(NO_PAGE));
        }
    }

    /// Asks the table, unless somebody else does just now.
    fn ask(&self, ask: impl FnOnce(&mut Streams) -> Option<Ahead>) -> Option<Ahead> {
        // A table of hints is whole between any two steps.
        let mut streams = unpoisoned(self.streams.try_lock())?;
        let ahead = ask(&mut streams);
        if streams.take_news() {
            self.tell(&streams);
        }
        ahead
    }
}

/// How much is read ahead in a memory, and was.
#[derive(Debug)]
pub(crate) struct Counts {
    devices: Devices,
    nr_pages: AtomicU64,
    nr_passed: AtomicU64,
    nr_lost: AtomicU64,
}

impl Counts {
    /// Of a memory whose owner named so many bytes for one reader at most, or none.
    pub(crate) const fn new(max_bytes: Option<u64>) -> Counts {
        Counts {
            devices: Devices::new(max_bytes),
            nr_pages: AtomicU64::new(0),
            nr_passed: AtomicU64::new(0),
            nr_lost: AtomicU64::new(0),
        }
    }

    /// Bytes for one reader at most of what a file's pages come from, where its handle says nothing
    /// else.
    pub(super) fn max_bytes(&self, source: &Source) -> u64 {
        let device = source.file().map(|file| file.identity().0);
        self.devices.max_bytes(device)
    }

    fn count(&self, ahead: &Ahead, nr_begun: u64) {
        let nr_passed = ahead.passed.end.saturating_sub(ahead.passed.start);
        let nr_lost = u64::from(ahead.was_lost);
        let counts = [&self.nr_pages, &self.nr_passed, &self.nr_lost];
        // Of who reads here and there nothing: the line stays with all CPUs.
        for (count, more) in counts.into_iter().zip([nr_begun, nr_passed, nr_lost]) {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// Pages that were read, that readers came past, and that were gone before.
    pub(crate) fn get(&self) -> [u64; 3] {
        let counts = [&self.nr_pages, &self.nr_passed, &self.nr_lost];
        counts.map(|count| count.load(Ordering::Relaxed))
    }
}

impl File {
    /// Says how this handle will be used: how far what it reads is read ahead.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("index");
    /// # std::fs::write(&path, [0; 8192])?;
    /// use pagetide::{ByteSize, Hint, Memory};
    ///
    /// let memory = Memory::builder().budget(ByteSize::mib(16)).build()?;
    /// let index = memory.open(&path, &memory.root())?;
    /// index.advise(Hint::Random);
    /// # Ok(())
    /// # }
    /// ```
    pub fn advise(&self, hint: Hint) {
        self.wish.hint.store(hint.number(), Ordering::Relaxed);
    }

    /// Bytes that are read ahead of each reader by this handle at most: what
    /// [`OpenOptions::readahead`](crate::OpenOptions::readahead) or
    /// [`Builder::readahead`](crate::Builder::readahead) named, or as many as that says of the
    /// file's device; by [`File::advise`] twice as many, or none.
    ///
    /// In a group that may have little it is less: a sixteenth of that.
    #[must_use]
    pub fn readahead(&self) -> ByteSize {
        let max_bytes = self.wish.max_bytes.load(Ordering::Relaxed);
        ByteSize(self.wish.hint().to_core().bytes(max_bytes))
    }

    pub(crate) fn set_readahead(&self, max_bytes: u64) {
        self.wish.max_bytes.store(max_bytes, Ordering::Relaxed);
    }

    /// A page was found. A load and a compare, but for one page in 64 for each sequential reader.
    #[inline]
    pub(super) fn look_ahead(&self, group: &Group, page: u64) {
        if is_marked(self.open.readers.marks.load(Ordering::Relaxed), page) {
            self.read_on(group, page);
        }
    }

    /// [`File::look_ahead`] of pages that are asked for together, one after the other.
    pub(super) fn look_ahead_in(&self, group: &Group, pages: &Range<u64>) {
        let readers = &self.open.readers;
        if !is_any_marked(readers.marks.load(Ordering::Relaxed), pages) {
            return;
        }
        for marker in &readers.markers {
            let page = marker.load(Ordering::Relaxed);
            if pages.contains(&page) {
                self.read_on(group, page);
            }
        }
    }

    /// Reads the next window where a reader has come to the marker of the last one.
    #[cold]
    #[inline(never)] // In place, it would take the registers of the hit path.
    fn read_on(&self, group: &Group, page: u64) {
        if !self.open.readers.is_marker(page) {
            return;
        }
        let Some(bounds) = self.bounds(group) else {
            return;
        };
        let ask = |streams: &mut Streams| streams.marked(page, bounds);
        if let Some(ahead) = self.open.readers.ask(ask) {
            self.read_ahead(group, ahead, By::Background);
        }
    }

    /// The first of these pages, which somebody asks for, is missing: reads a window from there on,
    /// unless nothing speaks for it. Whether that was tried: the page may be there.
    pub(super) fn missed(&self, group: &Group, asked: Range<u64>, access: Access, by: By) -> bool {
        if !self.wish.is_any() {
            return by == By::Caller && self.read_asked(group, asked, access);
        }
        let page = asked.start;
        let Some(ahead) = self.ask_about(asked, || self.bounds(group)) else {
            return false;
        };
        if !self.read_ahead(group, ahead, by) {
            return false;
        }
        // It comes in with the others, which are nobody's fault; it is the caller's.
        if self.is_cached(page) {
            self.count_misses(group, access, 1);
        }
        true
    }

    /// [`File::missed`] of who reads all that he asks for himself: reads what is behind that, in
    /// the background. More than a window at once is read fast enough by those reads alone.
    pub(super) fn missed_some(&self, group: &Group, asked: Range<u64>) {
        let is_small = |bounds: &Bounds| asked.end - asked.start <= bounds.max.into();
        let bounds = || self.bounds(group).filter(is_small);
        if self.wish.is_any()
            && let Some(mut ahead) = self.ask_about(asked.clone(), bounds)
        {
            ahead.read.start = asked.end.min(ahead.read.end);
            self.read_ahead(group, ahead, By::Background);
        }
    }

    /// What the table says of a miss of the first of these pages.
    fn ask_about(
        &self,
        asked: Range<u64>,
        bounds: impl FnOnce() -> Option<Bounds>,
    ) -> Option<Ahead> {
        let page = asked.start;
        let cached = |most: u32| {
            let before = (0..page).rev().take(pagetide_core::units::index(most));
            let cached = before.take_while(|&page| self.is_cached(page));
            cached.map(|_| 1).sum()
        };
        let ask = |streams: &mut Streams| streams.missed(asked, bounds, cached);
        self.open.readers.ask(ask)
    }

    fn is_cached(&self, page: u64) -> bool {
        let key = self.open.backing.key(page);
        key.is_some_and(|key| self.open.shared.core.is_resident(key))
    }

    /// Counts pages that came in for their caller, and not by his own operation.
    fn count_misses(&self, group: &Group, access: Access, nr_pages: u64) {
        let groups = self.open.shared.core.groups();
        if access != Access::Prefetch
            && let Some(record) = groups.get(group.id())
        {
            record.add_count(Count::Pgmajfault, nr_pages);
        }
    }

    /// Pages that somebody asks for and that nothing is read ahead of: reads them together, as many
    /// as [`TOGETHER`]. Whether that was tried.
    fn read_asked(&self, group: &Group, asked: Range<u64>, access: Access) -> bool {
        let open = &*self.open;
        // Most ask for one page, and go on with their misses.
        let is_more = |end: u64| end > asked.start + 1;
        if !is_more(asked.end) || open.backing.source.file().is_none() {
            return false;
        }
        let Some(room) = self.room(group) else {
            return false;
        };
        let most = (room / SHARE).min(TOGETHER / open.order.bytes() as u64);
        let end = asked.end.min(asked.start.saturating_add(most));
        if !is_more(end) {
            return false;
        }
        let nr_begun = self.prefetch_by(Begun::new(open, group), group, asked.start..end);
        self.count_misses(group, access, nr_begun);
        true
    }

    /// Brings a window in, if it is more than a page.
    fn read_ahead(&self, group: &Group, ahead: Ahead, by: By) -> bool {
        let shared = self.open.shared.shared();
        let is_file = self.open.backing.source.file().is_some();
        // One page is read by whoever asked for it.
        let is_more = ahead.read.end > ahead.read.start + 1;
        let read = || match by {
            By::Caller if is_file => Begun::new(&self.open, group),
            _ => Begun::by_hint(&self.open),
        };
        let nr_begun = match is_more {
            true => self.prefetch_by(read(), group, ahead.read.clone()),
            false => 0,
        };
        shared.readahead.count(&ahead, nr_begun);
        is_more
    }

    /// Pages of this file that a group may have; `None` above a `high`: what nobody asked for would
    /// slow its callers down.
    fn room(&self, group: &Group) -> Option<u64> {
        let (shared, order) = (&self.open.shared, self.open.order);
        let high = shared.high_room(group.id())?;
        Some(shared.room(group.id()).min(high) / u64::from(order.nr_pages()))
    }

    /// How far to read ahead for a group; `None` for not at all.
    fn bounds(&self, group: &Group) -> Option<Bounds> {
        let (open, wish) = (&*self.open, &self.wish);
        if !wish.is_any() {
            return None;
        }
        let shared = open.shared.shared();
        let (hint, max_bytes) = (wish.hint(), wish.max_bytes.load(Ordering::Relaxed));
        let page_bytes = open.order.bytes() as u64;
        let room = self.room(group)?;
        let max = readahead::max_pages(hint.to_core(), max_bytes, page_bytes, room);
        // Without threads, the caller itself would read what nobody asked for yet, from who knows
        // where.
        let is_background = open.backing.source.file().is_some() || shared.io.has_threads();
        let may_read = max > 1 && is_background;
        may_read.then(|| Bounds {
            nr_pages: open.backing.len().div_ceil(page_bytes),
            max,
            all: u32::try_from(room / SHARE).unwrap_or(u32::MAX),
        })
    }
}

impl Shared {
    /// Pages up to the lowest `high` of a group and of those above it; `None` where one of them is
    /// above its own.
    fn high_room(&self, group: u32) -> Option<u64> {
        let mut path = self.core.groups().path(group);
        path.try_fold(u64::MAX, |room, (_, level)| {
            let high = level.limit(Limit::High);
            (level.usage() <= high).then(|| room.min(high))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory};

    #[test]
    fn a_hit_asks_the_table_for_pages_alone_that_it_was_told_of() {
        const NR_PAGES: u64 = 256;
        let data = tempfile::NamedTempFile::new().unwrap();
        data.as_file().set_len(NR_PAGES * 4096).unwrap();
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let file = memory.open(data.path(), &memory.root()).unwrap();
        let read = |page| drop(file.pin(page).unwrap());
        (0..NR_PAGES).for_each(read);
        let readers = &file.open.readers;
        let bounds = file.bounds(&file.group).unwrap();
        let marker_of = |streams: &Streams| streams.markers().into_iter().flatten().next();
        let told = marker_of(&readers.streams.lock().unwrap()).unwrap();
        // A reader whose marker is not on the list, and shares its bit with one that is.
        let begun_at = |page: u64| {
            let mut streams = Streams::new();
            streams.missed(page..page + 1, || Some(bounds), |most| most);
            let marker = marker_of(&streams)?;
            (marker != told && marker % 64 == told % 64).then_some((streams, marker))
        };
        let (streams, other) = (0..NR_PAGES).find_map(begun_at).unwrap();
        *readers.streams.lock().unwrap() = streams;
        let nr_passed = || memory.stats().readahead_passed;
        let before = nr_passed();
        assert!(is_marked(readers.marks.load(Ordering::Relaxed), other));
        read(other);
        assert_eq!(nr_passed(), before);
        readers.tell(&readers.streams.lock().unwrap());
        read(other);
        assert!(nr_passed() > before);
    }
}
