//! Many pages of a file at once: pinned together, or brought in for later.

mod prefetch;
mod tasks;

use super::begun::{Begin, Begun, MAX_BEGUN};
use super::patience::Patience;
use super::{Fault, File, Fill};
use crate::Error;
use crate::backing::BUSY;
use crate::group::Group;
use crate::page::{Page, Pin};
use crate::pins::Counted;
use crate::shared::Shared;
use crate::writeback::LATCH_PATIENCE;
use pagetide_core::memory::{Ahead, MAX_TOGETHER, PageError, PageIn};
use pagetide_core::page_cache::{Access, Found, Mappings};
use pagetide_core::units::{Frame, PageKey};
use smallvec::SmallVec;
use std::io::IoSliceMut;
use std::ops::Range;

/// Pages of which each step fetches from memory what the next one looks at: their entries in the
/// index, then their records and the first of their bytes.
const TOUCHED_TOGETHER: usize = 64;

/// One of many pages that somebody asks for.
struct Slot<'a> {
    pin: Option<Pin<'a>>,
    /// Its bytes that lie in the file.
    len: usize,
}

/// A page that was not there, and which of those asked for it is.
#[derive(Clone, Copy)]
struct Missing {
    key: PageKey,
    at: usize,
    /// Nobody reads it either.
    is_absent: bool,
}

/// Why not all pages were pinned.
enum Stop {
    /// This one is not in the file.
    PastEnd(u64),
    /// This one.
    Page(u64, PageError),
    /// Whoever changes this page, in this frame of this version, may wait for pins that the caller
    /// holds.
    Latched(u64, Frame, u32),
}

impl File {
    /// The page if it is resident, else `None`: never reads, and waits for nothing, not even for a
    /// read of it that is under way. Counts as an access where it finds the page.
    ///
    /// # Errors
    /// [`Error::PastEnd`], [`Error::PinLimit`], [`Error::TooManyPins`], as [`File::pin`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_pin(&self, page: u64) -> Result<Option<Page>, Error> {
        self.check_process()?;
        let open = &*self.open;
        let (key, len) = self.key_and_len(page)?;
        let counted = self.group.count_if_limited(open.order.nr_pages().into())?;
        match open.shared.pin(key, Access::Pin) {
            Found::Pinned(frame) => {
                let pin = Pin::new(&open.shared, frame, open.order);
                let len = self.still_of(page, len)?;
                Ok(Some(pin.into_page(len, counted.map(Counted::into_account))))
            }
            Found::Reading(frame) => {
                open.shared.unpin(frame);
                Ok(None)
            }
            Found::Latched(_) | Found::Miss => Ok(None),
            Found::TooManyPins => Err(self.error(&self.group, PageError::TooManyPins, page)),
        }
    }

    /// Copies bytes from `offset` on into several buffers, one after the other; returns how many,
    /// fewer only at the file's end. As [`File::read_at`] into each.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_vectored_at(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<usize, Error> {
        let mut done = 0;
        for buf in bufs {
            let read = self.read_at(buf, offset.saturating_add(done as u64))?;
            done += read;
            if read < buf.len() {
                break;
            }
        }
        Ok(done)
    }

    /// [`File::pin`] of many pages: all of them, in this order, or none. A page that is named twice
    /// is read once and pinned twice.
    ///
    /// What is missing is read together, pages that follow each other by one read: see
    /// [`Memory::io_engine`](crate::Memory::io_engine). Who asks for pages that all follow each
    /// other, and goes on with the next ones, is read ahead of. All pages have to fit into the
    /// group at once. Each counts as one access.
    ///
    /// # Errors
    /// As [`File::pin`], for the first page that fails: no page stays pinned, and those that were
    /// read stay cached. [`Error::OverLimit`] at once where the pages are more than the group may
    /// have.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn pin_many(&self, pages: &[u64]) -> Result<Vec<Page>, Error> {
        self.check_process()?;
        let nr_pages = pages.len() as u64 * u64::from(self.open.order.nr_pages());
        let counted = self.group.count_if_limited(nr_pages)?;
        self.pin_many_counted(&self.group, pages, counted)
    }

    /// [`File::pin_many`] for `group`, as which they are counted already where they are.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn pin_many_counted(
        &self,
        group: &Group,
        pages: &[u64],
        counted: Option<Counted<'_>>,
    ) -> Result<Vec<Page>, Error> {
        let slots = self.pin_all(group, pages)?;
        Ok(self.pages_of(slots, counted))
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn pages_of(&self, slots: Vec<Slot<'_>>, mut counted: Option<Counted<'_>>) -> Vec<Page> {
        let nr_pages = self.open.order.nr_pages();
        let mut pinned = Vec::with_capacity(slots.len());
        // In no closure: each page knows the line of the caller.
        for Slot { pin, len } in slots {
            let account = counted.as_mut().map(|all| all.split(nr_pages));
            let pin = pin.expect("all of them are pinned");
            pinned.push(pin.into_page(len, account));
        }
        pinned
    }

    /// Pins pages, and again while other readers' pins leave no room.
    fn pin_all(&self, group: &Group, pages: &[u64]) -> Result<Vec<Slot<'_>>, Error> {
        let shared = &self.open.shared;
        let mut patience = Patience::until(None);
        // For who changes a page: how long reads take in between does not count.
        let mut latch_patience = LATCH_PATIENCE;
        loop {
            // No pin of this call's: who is above `high` is slowed down here.
            shared.pay_debt();
            let pinned = self.try_pin_all(group, pages);
            shared.settle();
            match pinned {
                Ok(mut slots) => {
                    for (slot, &page) in slots.iter_mut().zip(pages) {
                        slot.len = self.still_of(page, slot.len)?;
                    }
                    return Ok(slots);
                }
                // Nothing is held here: whoever changes the page may have waited for that.
                Err(Stop::Latched(page, frame, version)) => {
                    if !shared.wait_within(frame, version, &mut latch_patience) {
                        let stop = Stop::Latched(page, frame, version);
                        return Err(self.stopped(group, stop));
                    }
                }
                // None of these pages is held meanwhile.
                Err(Stop::Page(_, error))
                    if self.may_fit(group, pages) && patience.goes_on(group, &error) => {}
                Err(stop) => return Err(self.stopped(group, stop)),
            }
        }
    }

    fn stopped(&self, group: &Group, stop: Stop) -> Error {
        match stop {
            Stop::PastEnd(page) => self.past_end(page),
            Stop::Page(page, error) => self.error(group, error, page),
            Stop::Latched(page, ..) => self.error(group, PageError::Io(BUSY), page),
        }
    }

    /// Whether pages are no more than the group may have.
    #[cold]
    pub(super) fn may_fit(&self, group: &Group, pages: &[u64]) -> bool {
        let nr_pages = nr_distinct(pages) * u64::from(self.open.order.nr_pages());
        nr_pages <= self.open.shared.room(group.id())
    }

    /// Pins what is resident, reads what is missing, waits for what others read.
    fn try_pin_all(&self, group: &Group, pages: &[u64]) -> Result<Vec<Slot<'_>>, Stop> {
        let mut missing = Vec::new();
        let mut slots = self.pin_resident(group, pages, &mut missing)?;
        if missing.is_empty() {
            return Ok(slots);
        }
        // In their order: neighbours are one read.
        missing.sort_unstable_by_key(|missing| missing.key.page());
        let begun = Begun::for_pages(&self.open, group, missing.len());
        let mut begins = self.begin_missing(&begun, group, &missing)?.into_iter();
        self.read_beyond(group, pages, &missing);
        let mut last: Option<(u64, Frame)> = None;
        for Missing { key, at, .. } in missing {
            let page = key.page();
            let pin = match last {
                Some((same, frame)) if same == page => self.pin_again(page, frame)?,
                _ => match begins.next().expect("one for each page") {
                    Begin::Done(pin) => pin,
                    Begin::Reading(mut fault) => match fault.take_live() {
                        Some(frame) => self.pin_of(frame),
                        None => {
                            let pin = self.run(fault, &Fill::from_store());
                            pin.map_err(|error| Stop::Page(page, error))?
                        }
                    },
                    Begin::Latched { .. } => unreachable!("it stops there"),
                },
            };
            self.open.shared.arena.touch(pin.frame());
            last = Some((page, pin.frame()));
            slots[at].pin = Some(pin);
        }
        Ok(slots)
    }

    /// Reads what comes behind pages that are asked for one after the other, of which some are
    /// missing and being read.
    fn read_beyond(&self, group: &Group, pages: &[u64], missing: &[Missing]) {
        let first = missing.iter().find(|missing| missing.is_absent);
        if let (Some(run), Some(first)) = (run_of(pages), first) {
            self.missed_some(group, first.key.page()..run.end);
        }
    }

    /// A page that was named before: that pin holds it, whoever waits for it to go.
    fn pin_again(&self, page: u64, frame: Frame) -> Result<Pin<'_>, Stop> {
        let again = self.open.shared.core.pin_again(frame);
        let again = again.then(|| self.pin_of(frame));
        again.ok_or(Stop::Page(page, PageError::TooManyPins))
    }

    fn pin_of(&self, frame: Frame) -> Pin<'_> {
        Pin::new(&self.open.shared, frame, self.open.order)
    }

    /// Pins what is resident, and reads the next window where that has the marker of the last one.
    /// The others go to `missing`, those too that somebody reads or changes.
    fn pin_resident(
        &self,
        group: &Group,
        pages: &[u64],
        missing: &mut Vec<Missing>,
    ) -> Result<Vec<Slot<'_>>, Stop> {
        if let Some(run) = run_of(pages) {
            self.look_ahead_in(group, &run);
        }
        let open = &*self.open;
        let (shared, end) = (&open.shared, open.backing.len());
        let mut slots = Vec::with_capacity(pages.len());
        let mut likely = SmallVec::<[Option<Frame>; TOUCHED_TOGETHER]>::new();
        for (at, &page) in pages.iter().enumerate() {
            if at % TOUCHED_TOGETHER == 0 {
                // Each pin would wait for its own lines.
                let next = pages[at..].iter().take(TOUCHED_TOGETHER);
                let keys = next.map(|&page| Mappings::key(open.mapping, page));
                shared.core.touch_entries(keys.clone().flatten());
                likely.clear();
                likely.extend(keys.map(|key| shared.core.likely(key?)));
                // With nothing between: where they lie is looked up side by side.
                for &frame in likely.iter().flatten() {
                    shared.touch(frame);
                }
            }
            let len = open.backing.bytes_of(page, end);
            let key = Mappings::key(open.mapping, page).filter(|_| len > 0);
            let key = key.ok_or(Stop::PastEnd(page))?;
            let likely = likely[at % TOUCHED_TOGETHER];
            let found = shared.pin_in(likely, key, Access::Pin);
            let pin = match found {
                Found::Pinned(frame) => Some(self.pin_of(frame)),
                Found::Reading(frame) => {
                    // The operation takes its own pin on it.
                    shared.unpin(frame);
                    None
                }
                _ => None,
            };
            if pin.is_none() {
                if missing.is_empty() {
                    missing.reserve(pages.len() - at);
                }
                let is_absent = found == Found::Miss;
                missing.push(Missing { key, at, is_absent });
            }
            slots.push(Slot { pin, len });
        }
        Ok(slots)
    }

    /// Begins the reads of pages, each once, and hands them over. What they need is charged
    /// together, so that reclaim is not in the midst of them.
    fn begin_missing<'a>(
        &'a self,
        begun: &Begun<'a>,
        group: &Group,
        missing: &[Missing],
    ) -> Result<Vec<Begin<'a>>, Stop> {
        let mut begins = Vec::with_capacity(missing.len());
        let mut distinct = Vec::with_capacity(missing.len());
        distinct.extend_from_slice(missing);
        distinct.dedup_by_key(|missing| missing.key);
        for missing in distinct.chunks(MAX_BEGUN) {
            let ahead = self.charge_ahead(begun, group, missing.len());
            let begin = self.begin_chunk((begun, &ahead), group, missing, &mut begins);
            // What is left goes back before the reads, which may take long.
            drop(ahead);
            begun.hand_over();
            begin?;
        }
        Ok(begins)
    }

    /// Charges what some pages of this file need, whose reads are begun next.
    fn charge_ahead<'a>(&'a self, begun: &Begun<'_>, group: &Group, nr_pages: usize) -> Ahead<'a> {
        let (core, order) = (&self.open.shared.core, self.open.order);
        let nr_pages = u32::try_from(nr_pages).expect("a chunk is short");
        core.charge_ahead(begun.here(), group.id(), nr_pages * order.nr_pages())
    }

    /// Begins the reads of pages that are charged ahead: together as far as that goes, else by
    /// operations of their own.
    fn begin_chunk<'a>(
        &'a self,
        (begun, ahead): (&Begun<'a>, &Ahead<'_>),
        group: &Group,
        mut left: &[Missing],
        begins: &mut Vec<Begin<'a>>,
    ) -> Result<(), Stop> {
        let here = begun.here().with_ahead(ahead);
        let begin_alone = |op: PageIn| {
            let page = op.key().page();
            match begun.begin(here, op) {
                Ok(Begin::Latched { frame, version }) => Err(Stop::Latched(page, frame, version)),
                Ok(begin) => Ok(begin),
                Err(error) => Err(Stop::Page(page, error)),
            }
        };
        while let Some(first) = left.first() {
            let absent = left.iter().take_while(|missing| missing.is_absent);
            let keys = absent.take(MAX_TOGETHER).map(|missing| missing.key);
            let keys: SmallVec<[PageKey; MAX_TOGETHER]> = keys.collect();
            let shared = &self.open.shared;
            let nr_before = begins.len();
            let mut lost = SmallVec::<[usize; 4]>::new();
            let began = &mut |op, io| {
                match io {
                    Some(io) => begun.push(io),
                    None => lost.push(begins.len()),
                }
                let op = Some(op);
                begins.push(Begin::Reading(Fault { shared, op }));
            };
            let for_group = (group.id(), Access::Pin);
            let nr_begun = shared.core.begin_reads(here, for_group, &keys, began);
            // Somebody else was faster, and may change them by now.
            for at in lost {
                let op = PageIn::new(left[at - nr_before].key, group.id(), Access::Pin);
                begins[at] = begin_alone(op)?;
            }
            if nr_begun > 0 {
                left = &left[nr_begun..];
                continue;
            }
            let op = match first.is_absent {
                true => PageIn::missing(first.key, group.id(), Access::Pin),
                false => PageIn::new(first.key, group.id(), Access::Pin),
            };
            begins.push(begin_alone(op)?);
            left = &left[1..];
        }
        Ok(())
    }

    /// The key of a page, and its bytes that lie in the file.
    ///
    /// # Errors
    /// [`Error::PastEnd`].
    pub(super) fn key_and_len(&self, page: u64) -> Result<(PageKey, usize), Error> {
        let len = self.len_of(page);
        let key = self.open.backing.key(page).filter(|_| len > 0);
        key.map(|key| (key, len)).ok_or_else(|| self.past_end(page))
    }
}

/// Several pages that are asked for one after the other.
fn run_of(pages: &[u64]) -> Option<Range<u64>> {
    let (&first, &last) = (pages.first()?, pages.last()?);
    let nr_more = last.checked_sub(first).filter(|&more| more > 0)?;
    let is_run = nr_more + 1 == pages.len() as u64 && pages.is_sorted_by(|a, b| a < b);
    is_run.then_some(first..last.saturating_add(1))
}

/// Pages, of which some may be named twice.
fn nr_distinct(pages: &[u64]) -> u64 {
    let mut asked = pages.to_vec();
    asked.sort_unstable();
    asked.dedup();
    asked.len() as u64
}

impl Shared {
    /// Pages that the limits on a group's path leave for content and working memory.
    pub(crate) fn room(&self, group: u32) -> u64 {
        let path = self.core.groups().path(group);
        let room = path.map(|(level, _)| self.core.room_under(level));
        room.min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
