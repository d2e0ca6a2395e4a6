#![doc = include_str!("README.md")]

mod claims;
mod index;
mod latch;
pub mod readahead;
pub mod streams;
mod write;

pub use claims::{Claim, ClaimWord, Claims};
pub use index::{Index, Locked};
pub use latch::{Latched, Unwanted, await_latch, await_open};
pub use latch::{downgrade, latch, unlatch, upgrade, withdraw};
pub use write::{begin_write, end_write, set_dirty};

use crate::frame::{FileList, FrameTable, Inbox, Record, State, Word, flag};
use crate::sync::{
    AtomicU32, AtomicU64, Guard, NoMetadata, Ordering, SpinLock, Table, prefetch_to_write, rank,
};
use crate::units::{Cpu, Frame, Order, PageKey, PageType};
use claims::Claimed;

/// How a page is used by whoever asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Bytes are copied out: counted, up to a saturated count.
    Copy,
    /// Bytes are looked at in place: sets the young bit.
    Pin,
    /// Nobody looks at them yet: neither counted nor young, as a page of the kernel's readahead.
    Prefetch,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The page, pinned.
    Pinned(Frame),
    /// The page while its read is under way, pinned: wait until the frame leaves `Reading`.
    Reading(Frame),
    /// Resident, but somebody changes its bytes, or waits for its pins to drop: wait, then again.
    Latched(Frame),
    /// Not resident.
    Miss,
    /// Resident, but [`crate::frame::MAX_PINS`] pins are held.
    TooManyPins,
}

/// Writes of a file's pages that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteErrors {
    /// How many, wrapping at 2^32: who remembers an earlier number sees that there are more.
    pub nr_errors: u32,
    /// The code of the last one.
    pub code: u32,
}

/// The pages of a file, or of a region without one: their order and type, the list of their
/// resident frames, and what became of their writes.
#[derive(Debug)]
pub struct Mapping {
    id: AtomicU32,
    order: AtomicU32,
    page_type: AtomicU32,
    /// Writes under way, and [`CLOSED`].
    writes: AtomicU32,
    /// [`WriteErrors`]: the number in the upper half.
    errors: AtomicU64,
    resident: SpinLock<FileList, { rank::MAPPING }>,
    inbox: Inbox<true>,
}

/// The mapping goes with the last write.
const CLOSED: u32 = 1 << 31;

impl Default for Mapping {
    fn default() -> Self {
        let resident = SpinLock::new(FileList::new());
        Mapping {
            id: AtomicU32::new(0),
            order: AtomicU32::new(0),
            page_type: AtomicU32::new(PageType::File as u32),
            writes: AtomicU32::new(0),
            errors: AtomicU64::new(0),
            resident,
            inbox: Inbox::default(),
        }
    }
}

impl Mapping {
    fn reset(&self, id: u32, order: Order, page_type: PageType) {
        self.id.store(id, Ordering::Relaxed);
        self.order.store(u32::from(order.get()), Ordering::Relaxed);
        self.page_type.store(page_type as u32, Ordering::Relaxed);
        self.errors.store(0, Ordering::Relaxed);
        // Release pairs with the AcqRel in `begin_write`: who holds it sees which mapping it is.
        self.writes.store(0, Ordering::Release);
    }

    /// Has fetched what is changed by whoever lists a page, for a caller that does soon.
    #[inline]
    pub fn touch(&self) {
        prefetch_to_write(&raw const self.resident);
    }

    /// The order of all its pages.
    #[must_use]
    pub fn order(&self) -> Order {
        let order = self.order.load(Ordering::Relaxed);
        u8::try_from(order)
            .ok()
            .and_then(Order::new)
            .expect("only orders are stored")
    }

    /// The type of all its pages.
    #[must_use]
    pub fn page_type(&self) -> PageType {
        let is_anon = self.page_type.load(Ordering::Relaxed) == PageType::Anon as u32;
        if is_anon {
            PageType::Anon
        } else {
            PageType::File
        }
    }

    /// Resident pages.
    #[must_use]
    pub fn nr_pages(&self) -> u32 {
        self.resident.lock().len()
    }

    /// Any resident frame.
    #[must_use]
    pub fn any(&self) -> Option<Frame> {
        self.resident.lock().head()
    }

    /// Moves up to `nr_frames` resident frames from the end of the list to its head, as many as
    /// `found` has room for pages; returns how many. Whoever alone does so for as many as there are
    /// meets all pages that were listed before and are still, also one that moves to another frame.
    pub fn rotate(
        &self,
        frames: &FrameTable,
        found: &mut [Option<PageKey>],
        nr_frames: u32,
    ) -> u32 {
        self.change(frames, |resident| {
            let mut nr_found = 0;
            for place in found.iter_mut().take(nr_frames as usize) {
                let Some(frame) = resident.pop_tail(frames) else {
                    break;
                };
                resident.push_head(frames, frame);
                // Under the lock: a listed frame has the page for which it is listed.
                *place = frames.key(frame);
                nr_found += 1;
            }
            nr_found
        })
    }

    /// Changes the list, and has it what others leave here meanwhile.
    fn change<T>(&self, frames: &FrameTable, change: impl FnOnce(&mut FileList) -> T) -> T {
        self.change_held(frames, self.resident.lock(), change)
    }

    fn change_held<T>(
        &self,
        frames: &FrameTable,
        mut resident: Guard<'_, FileList, { rank::MAPPING }>,
        change: impl FnOnce(&mut FileList) -> T,
    ) -> T {
        self.inbox.open();
        let changed = change(&mut resident);
        self.inbox.close(frames, |given| {
            let came = given.iter();
            came.for_each(|&frame| resident.push_head(frames, frame));
        });
        changed
    }

    /// Lists frames that came in, under one hold of the lock, or leaves them with whoever has it.
    /// At least one.
    pub fn list(&self, frames: &FrameTable, came: &[Frame]) {
        let resident = self.resident.lock_unless(|| self.inbox.give(frames, came));
        if let Some(resident) = resident {
            self.change_held(frames, resident, |resident| {
                came.iter()
                    .for_each(|&frame| resident.push_head(frames, frame));
            });
        }
    }

    /// Lists the frame that a page moves to in the place of the one that it moves from.
    pub fn replace(&self, frames: &FrameTable, (old, new): (Frame, Frame)) {
        self.change(frames, |resident| resident.replace(frames, (old, new)));
    }

    /// Takes listed frames off, under one hold of the lock.
    pub fn unlist(&self, frames: &FrameTable, listed: impl Iterator<Item = Frame>) {
        self.change(frames, |resident| {
            listed.for_each(|frame| resident.remove(frames, frame));
        });
    }

    /// Holds the mapping for a write, until [`Mappings::end_write`]; false where it was closed.
    #[must_use]
    pub fn begin_write(&self) -> bool {
        let begin = |writes: u32| (writes & CLOSED == 0).then_some(writes + 1);
        self.writes
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, begin)
            .is_ok()
    }

    /// Counts a write that failed with a code of the runtime's.
    pub fn count_error(&self, code: u32) {
        let count = |errors: u64| {
            let nr_errors = (errors >> 32).wrapping_add(1);
            Some(nr_errors << 32 | u64::from(code))
        };
        let counted = self
            .errors
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        assert!(counted.is_ok(), "an update without a condition");
    }

    /// Writes that failed since it was opened.
    #[must_use]
    pub fn errors(&self) -> WriteErrors {
        let errors = self.errors.load(Ordering::Relaxed);
        WriteErrors {
            nr_errors: (errors >> 32) as u32,
            code: (errors & 0xFFFF_FFFF) as u32,
        }
    }
}

/// All mappings. The id in a [`PageKey`] is the low 24 bits of a mapping's id.
#[derive(Debug, Default)]
pub struct Mappings {
    table: Table<Mapping>,
}

impl Mappings {
    /// Makes a mapping of pages of `order` and of a type.
    ///
    /// # Errors
    /// [`NoMetadata`] where `charge` or the allocator refuses.
    pub fn open(
        &self,
        charge: impl FnOnce(usize) -> bool,
        order: Order,
        page_type: PageType,
    ) -> Result<u32, NoMetadata> {
        self.table
            .insert(charge, |id, mapping| mapping.reset(id, order, page_type))
    }

    /// The mapping of `id`, or `None` where it was closed.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Mapping> {
        self.table.get(id)
    }

    /// All mappings with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Mapping)> {
        self.table.iter()
    }

    /// Pages of the table of mappings.
    pub(crate) fn nr_table_pages(&self) -> usize {
        self.table.nr_pages_from(0)
    }

    /// Slots of the table of mappings that were made so far.
    pub(crate) fn nr_slots(&self) -> u32 {
        self.table.nr_slots()
    }

    /// The slot of a mapping, out of its id or the number in a key: 1 to [`Mappings::nr_slots`].
    pub(crate) fn slot_of(number: u32) -> u32 {
        number & Table::<Mapping>::SLOT_MASK
    }

    /// The mapping that a key names: ids differ from it in the upper bits of their stamp only.
    #[must_use]
    pub fn by_key(&self, key: PageKey) -> Option<&Mapping> {
        self.table.get_by_low(key.mapping(), PageKey::MAX_MAPPING)
    }

    /// Gives the id of an empty mapping back, with the last write that is under way.
    ///
    /// # Panics
    /// Where the id is stale.
    pub fn close(&self, id: u32) {
        let mapping = self.get(id).expect("an open mapping");
        // AcqRel pairs with that of `end_write`: of the two, the later one gives the id back.
        if mapping.writes.fetch_or(CLOSED, Ordering::AcqRel) == 0 {
            self.table.remove(id);
        }
    }

    /// Holds the mapping of `id` as a write of its pages does, until [`Mappings::end_write`]: its
    /// number names no other meanwhile. `None` where it was closed.
    #[must_use]
    pub fn hold(&self, id: u32) -> Option<&Mapping> {
        let mapping = self.get(id).filter(|mapping| mapping.begin_write())?;
        // The record may be another mapping's since it was looked up.
        if mapping.id.load(Ordering::Relaxed) != id {
            self.end_write(mapping);
            return None;
        }
        Some(mapping)
    }

    /// Ends what [`Mapping::begin_write`] began.
    pub fn end_write(&self, mapping: &Mapping) {
        let id = mapping.id.load(Ordering::Relaxed);
        if mapping.writes.fetch_sub(1, Ordering::AcqRel) == CLOSED + 1 {
            self.table.remove(id);
        }
    }

    /// The key of a page, or `None` beyond 2^40 pages.
    #[must_use]
    pub fn key(id: u32, page: u64) -> Option<PageKey> {
        PageKey::new(id & PageKey::MAX_MAPPING, page)
    }
}

impl Access {
    /// A word that tells of this access, if the page is there: of one that is being read reads are
    /// not counted, as who finds such a page looks for it again.
    #[inline]
    fn seen(self, word: Word) -> Word {
        match self {
            Access::Copy if word.state() == State::Reading => word,
            _ => self.mark(word),
        }
    }

    /// A word that tells of this access.
    #[inline]
    fn mark(self, word: Word) -> Word {
        match self {
            Access::Copy => word.referenced(),
            Access::Pin => word.with(flag::YOUNG),
            Access::Prefetch => word,
        }
    }
}

/// Looks a page up and pins it. One read-modify-write on a hit, none on a miss; waits for nobody.
///
/// `unpin` gets a frame that turned out to hold another page: its pin may be the last one.
#[must_use]
#[inline]
pub fn pin(
    index: &Index,
    frames: &FrameTable,
    key: PageKey,
    access: Access,
    unpin: impl FnMut(Frame),
) -> Found {
    hold(index, frames, None, (key, access), |_| (), unpin).0
}

/// [`pin`] of a page that is in `likely`, perhaps, which [`Index::likely`] told: without a look-up
/// where it is.
#[must_use]
#[inline]
pub fn pin_in(
    (index, likely): (&Index, Option<Frame>),
    frames: &FrameTable,
    key: PageKey,
    access: Access,
    mut unpin: impl FnMut(Frame),
) -> Found {
    let record = likely.map(|frame| (frame, frames.record(frame)));
    let there = record.filter(|(_, record)| record.holds(key));
    let held = there.and_then(|there| hold_record(frames, None, there, (key, access), &mut unpin));
    match held {
        Some((found, _)) => found,
        None => pin(index, frames, key, access, unpin),
    }
}

/// [`pin`] on a CPU, but a contended page is claimed, if it can be: where there is a claim, that is
/// what holds the page that was found, and no pin. Where the page's word goes from CPU to CPU, it
/// is contended from then on.
///
/// `likely` is told of the frame that most often holds the page, before its record is looked at:
/// what it fetches comes from memory side by side with that.
#[must_use]
#[inline(always)] // Large, and a hit is little else.
pub fn hold(
    index: &Index,
    frames: &FrameTable,
    claims: Option<(&Claims, Cpu)>,
    wish: (PageKey, Access),
    likely: impl FnOnce(Frame),
    mut unpin: impl FnMut(Frame),
) -> (Found, Option<Claim>) {
    let held = match index.find_record(frames, wish.0, likely) {
        Some(there) => hold_record(frames, claims, there, wish, &mut unpin),
        None => return (Found::Miss, None),
    };
    match held {
        Some(found) => found,
        None => {
            let (claim, found) = hold_again(index, frames, claims, wish, unpin);
            (found, claim)
        }
    }
}

/// [`hold`] after a frame had changed its page in between, or was on its way out. In another order,
/// as what both returned alike would be written to memory by each.
#[cold]
#[inline(never)]
fn hold_again(
    index: &Index,
    frames: &FrameTable,
    claims: Option<(&Claims, Cpu)>,
    wish: (PageKey, Access),
    mut unpin: impl FnMut(Frame),
) -> (Option<Claim>, Found) {
    while let Some(frame) = index.find(frames, wish.0) {
        let there = (frame, frames.record(frame));
        if let Some((found, claim)) = hold_record(frames, claims, there, wish, &mut unpin) {
            return (claim, found);
        }
    }
    (None, Found::Miss)
}

/// [`hold`] of the frame that the index had; `None` where it holds another page by now, or is on
/// its way out.
#[inline(always)]
fn hold_record(
    frames: &FrameTable,
    claims: Option<(&Claims, Cpu)>,
    (frame, record): (Frame, Record<'_>),
    (key, access): (PageKey, Access),
    unpin: &mut impl FnMut(Frame),
) -> Option<(Found, Option<Claim>)> {
    let word = record.word();
    if word.has(flag::CONTENDED)
        && let Some((claims, cpu)) = claims
    {
        match claims.claim(frames, cpu, (frame, record), (key, access)) {
            Claimed::Held(claim) => return Some((Found::Pinned(frame), Some(claim))),
            Claimed::Pin => unpin(frame),
            Claimed::No => {}
        }
    }
    let word = match pin_record(record, word, access) {
        Ok(word) => word,
        Err(word) => return refused(word, (frame, record), key).map(|found| (found, None)),
    };
    if access == Access::Pin && !word.has(flag::YOUNG) {
        frames.mark_touched(frame);
    }
    // The frame may hold another page by now: the record decides, not the index.
    if !record.holds(key) {
        unpin(frame);
        return None;
    }
    if let Some((claims, cpu)) = claims {
        claims.note_pinned(frames, (frame, record, word), cpu);
    }
    let is_reading = word.state() == State::Reading;
    let found = if is_reading {
        Found::Reading(frame)
    } else {
        Found::Pinned(frame)
    };
    Some((found, None))
}

/// Pins a frame whose word was `seen`; the word before, or the one for which it may not be.
#[inline]
fn pin_record(record: Record<'_>, seen: Word, access: Access) -> Result<Word, Word> {
    let mut word = seen;
    loop {
        let pinned = word.may_be_pinned().then(|| word.pinned()).flatten();
        let pinned = access.seen(pinned.ok_or(word)?);
        match record.replace(word, pinned) {
            Ok(()) => return Ok(word),
            Err(found) => word = found,
        }
    }
}

/// Counts an access to a page that is being read. By a holder of a pin that waits, once: a pin does
/// not count reads of such a page. One read-modify-write.
#[cold]
pub fn count_access(frames: &FrameTable, frame: Frame, access: Access) {
    if access == Access::Prefetch {
        return;
    }
    let is_there = |word: Word| matches!(word.state(), State::Reading | State::Live);
    let mark = |word: Word| is_there(word).then(|| access.mark(word));
    // No region is marked, as none is for who begins a read: it is looked at when it is listed.
    let _may_be_gone = frames.update(frame, mark);
}

/// Has readers claim a page from here on, as if its word went from CPU to CPU.
pub fn contend(frames: &FrameTable, frame: Frame) {
    let contended = |word: Word| {
        let is_live = word.may_be_pinned() && word.state() == State::Live;
        (is_live && !word.has(flag::CONTENDED)).then(|| word.with(flag::CONTENDED))
    };
    let _may_be_none = frames.update(frame, contended);
}

/// Why a frame with this word was not pinned; `None` where it holds another page by now, or is on
/// its way out.
#[cold]
fn refused(word: Word, (frame, record): (Frame, Record<'_>), key: PageKey) -> Option<Found> {
    let found = match word.state() {
        _ if word.may_be_pinned() => Found::TooManyPins,
        State::Live => Found::Latched(frame),
        _ => return None,
    };
    record.holds(key).then_some(found)
}

/// Evicts a victim if its word is still exactly what it was at isolation. One read-modify-write.
///
/// Of a contended page the caller has seen since then that nobody claims it: while it is isolated,
/// nobody does anew. The caller then removes its entry and owns the frame.
pub fn detach(frames: &FrameTable, frame: Frame, seen: Word) -> bool {
    let evicting = seen.bare().with_state(State::Evicting).next_version();
    let is_closed = !seen.has(flag::CONTENDED) || seen.has(flag::ISOLATED);
    is_closed && seen.is_evictable() && frames.replace(frame, seen, evicting).is_ok()
}

/// Detaches a page that is to be moved, if the caller's pin is the only one and nothing else keeps
/// it busy. The pin stays, so that its bytes can be copied. Returns the word that it had. After
/// [`Claims::end`].
///
/// Under the lock of the page's bucket, so that the entry goes with the page.
pub fn detach_pinned(frames: &FrameTable, frame: Frame) -> Option<Word> {
    let detached = frames.update(frame, |word| {
        let is_mine_alone = word.pins() == 1 && word.unpinned().is_evictable();
        let is_mine_alone = is_mine_alone && !word.has(flag::CONTENDED);
        is_mine_alone.then(|| word.with_state(State::Detached).next_version())
    });
    detached.ok()
}

/// Frees a frame whose page failed or left its file, if nobody holds it any more. At most one of
/// all callers gets its word, and owns the frame.
#[must_use]
pub fn try_reap(frames: &FrameTable, frame: Frame) -> Option<Word> {
    let reaped = frames.update(frame, |word| {
        let is_gone = matches!(word.state(), State::Failed | State::Detached);
        let is_held = word.pins() > 0 || word.has(flag::ISOLATED) || word.generation() != 0;
        let is_held = is_held || word.has(flag::WRITEBACK);
        (is_gone && !is_held).then(|| word.bare().with_state(State::Evicting).next_version())
    });
    reaped.ok()
}
