#![doc = include_str!("README.md")]

mod form;
mod inbox;
mod list;
mod record;
mod word;

pub use form::Form;
pub(crate) use inbox::{Given, Inbox};
pub use list::{FileList, List};
pub use record::{BOUNCE, MAX_SAVING, Record};
pub use word::{MAX_GENERATION, MAX_PINS, MAX_REFS, State, Word, flag};

use crate::sync::{NoMetadata, Ordering, Words, prefetch, prefetch_to_write};
use crate::units::{Frame, Order, PageKey, PageType, index};

/// Bytes of one frame record.
pub const RECORD_BYTES: usize = WORDS_PER_RECORD * size_of::<u64>();
const _: () = assert!(RECORD_BYTES <= 32);

const WORDS_PER_RECORD: usize = 4;
const STATE: usize = 0;
const KEY: usize = 1;
const LINKS: usize = 2;
const OWNER: usize = 3;

/// Bits of a record's last word, from its upper half on: the block's order, where it is, the type
/// of the page in it; behind them what `record.rs` has there.
const PLACE_SHIFT: u32 = 4;
const TYPE_SHIFT: u32 = 6;

/// Which pair of links a list uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// Free lists, per-CPU page caches, generations: a frame is on one of them at most.
    Main,
    /// The frames of one mapping.
    File,
}

/// Where an allocator's block is. Kept in the record of its head frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In use, or no head of a block.
    Out,
    /// On a free list of its zone.
    Zone,
    /// In a per-CPU page cache.
    Pcp,
}

impl Place {
    /// From the upper half of a record's last word.
    const fn of(block: u32) -> Place {
        match block >> PLACE_SHIFT & 0b11 {
            0 => Place::Out,
            1 => Place::Zone,
            _ => Place::Pcp,
        }
    }
}

/// Frames of a pageblock, as an order: what mobility types and release to the OS are kept for.
pub const PAGEBLOCK_ORDER: u8 = if cfg!(any(loom, shuttle)) { 6 } else { 9 };

/// Frames of a region: what one mark of a pin stands for.
pub const FRAMES_PER_REGION: u32 = 64;

/// One record of 32 bytes a frame, one pair of links beside it for the file's list, and one word a
/// pageblock for the allocator.
///
/// Records never go away: any number below [`FrameTable::len`] may be looked at any time.
#[derive(Debug)]
pub struct FrameTable {
    records: Words,
    file_links: Words,
    pageblocks: Words,
    /// A bit for each region.
    touched: Words,
    nr_frames: u32,
}

impl FrameTable {
    /// Bytes that [`FrameTable::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_frames: u32) -> usize {
        Words::bytes(index(nr_frames) * WORDS_PER_RECORD)
            + Words::bytes(index(nr_frames))
            + Words::bytes(index(nr_pageblocks(nr_frames)))
            + Words::bytes(nr_region_words(nr_frames))
    }

    /// Records for `nr_frames` frames, all free.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_frames: u32) -> Result<FrameTable, NoMetadata> {
        Ok(FrameTable {
            records: Words::try_new(index(nr_frames) * WORDS_PER_RECORD)?,
            file_links: Words::try_new(index(nr_frames))?,
            pageblocks: Words::try_new(index(nr_pageblocks(nr_frames)))?,
            touched: Words::try_new(nr_region_words(nr_frames))?,
            nr_frames,
        })
    }

    /// Frames there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.nr_frames
    }

    /// Whether there is no frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nr_frames == 0
    }

    #[inline]
    fn field(&self, frame: Frame, field: usize) -> &crate::sync::AtomicU64 {
        self.record(frame).field(field)
    }

    /// The record of a frame, for more than one look at it.
    #[must_use]
    #[inline]
    pub fn record(&self, frame: Frame) -> Record<'_> {
        Record::new(self.records.chunk(frame.index()))
    }

    /// Has a frame's record fetched, for a caller that comes to it soon.
    #[inline]
    pub(crate) fn touch(&self, frame: Frame) {
        prefetch(self.records.chunk::<WORDS_PER_RECORD>(frame.index()));
    }

    /// The state word.
    #[must_use]
    #[inline]
    pub fn word(&self, frame: Frame) -> Word {
        self.record(frame).word()
    }

    /// Replaces the state word if it is still exactly `old`. One read-modify-write.
    ///
    /// # Errors
    /// The word that was found instead.
    #[inline]
    pub fn replace(&self, frame: Frame, old: Word, new: Word) -> Result<(), Word> {
        self.record(frame).replace(old, new)
    }

    /// Replaces the state word by what `change` makes of it, until nobody interferes.
    ///
    /// `change` returns `None` to leave it. Returns the word that was replaced.
    ///
    /// # Errors
    /// The word that `change` left.
    #[inline(always)] // For what `change` is: an exchange or two.
    pub fn update(
        &self,
        frame: Frame,
        mut change: impl FnMut(Word) -> Option<Word>,
    ) -> Result<Word, Word> {
        let field = self.field(frame, STATE);
        // The orderings of `Record::word` and `Record::replace`.
        let mut word = Word::from_bits(field.load(Ordering::Acquire));
        loop {
            let new = change(word).ok_or(word)?.bits();
            let done =
                field.compare_exchange(word.bits(), new, Ordering::AcqRel, Ordering::Acquire);
            match done {
                Ok(_) => return Ok(word),
                Err(found) => word = Word::from_bits(found),
            }
        }
    }

    /// Changes the state word of a frame that the caller owns; returns the word that was replaced.
    /// No read-modify-write.
    ///
    /// An owner took the frame from the allocator and has not published it, or won the exchange
    /// that ended its page (to `Evicting`), or has it as working memory. Nobody else writes the
    /// word then: pins are taken by exchange from words seen `Live` or `Reading`, and such a word
    /// is not there again, because the version has moved on since.
    #[inline]
    pub fn change_owned(&self, frame: Frame, change: impl FnOnce(Word) -> Word) -> Word {
        let word = self.field(frame, STATE);
        // Relaxed: the owner's own store, or one that led to its ownership, was the last.
        let old = Word::from_bits(word.load(Ordering::Relaxed));
        // Release pairs with the Acquire in `word`, as that of `replace` does.
        word.store(change(old).bits(), Ordering::Release);
        old
    }

    /// Drops one pin; returns the word with the pin still in it. One read-modify-write.
    ///
    /// # Panics
    /// Where no pin was held.
    #[inline]
    pub fn unpin(&self, frame: Frame) -> Word {
        // Release: the reads under the pin are over before an evictor's Acquire sees it gone.
        let old = Word::from_bits(self.field(frame, STATE).fetch_sub(1, Ordering::AcqRel));
        assert!(old.pins() > 0, "unpin of {frame:?} without pins");
        old
    }

    /// The word of a frame on which the caller holds a pin, to drop that pin by it alone.
    #[must_use]
    #[inline]
    pub fn pinned(&self, frame: Frame) -> PinnedWord<'_> {
        PinnedWord(self.field(frame, STATE))
    }

    /// The page in the frame; meaningful while a pin, a bucket lock or exclusive use keeps it.
    #[must_use]
    #[inline]
    pub fn key(&self, frame: Frame) -> Option<PageKey> {
        PageKey::from_bits(self.field(frame, KEY).load(Ordering::Relaxed))
    }

    /// Whether the frame holds this page, as [`FrameTable::key`] says.
    #[must_use]
    #[inline]
    pub fn holds(&self, frame: Frame, key: PageKey) -> bool {
        self.record(frame).holds(key)
    }

    /// Names the page in the frame. Published by the state word's next change.
    #[inline]
    pub fn set_key(&self, frame: Frame, key: Option<PageKey>) {
        self.field(frame, KEY)
            .store(key.map_or(0, PageKey::bits), Ordering::Relaxed);
    }

    /// The group that the frame's block is charged to; of a block that was just allocated, the one
    /// that it was charged to before, or 0 where that is not known of all its frames, as also while
    /// it waits in a magazine.
    #[must_use]
    #[inline]
    pub fn group(&self, frame: Frame) -> u32 {
        low(self.field(frame, OWNER).load(Ordering::Relaxed))
    }

    /// Names the group that the frame's block is charged to. The caller owns the frame.
    #[inline]
    pub fn set_group(&self, frame: Frame, group: u32) {
        let owner = self.field(frame, OWNER);
        owner.store(
            pack(high(owner.load(Ordering::Relaxed)), group),
            Ordering::Relaxed,
        );
    }

    /// The type of the page in the frame; meaningful while one is.
    #[must_use]
    #[inline]
    pub fn page_type(&self, frame: Frame) -> PageType {
        let block = high(self.field(frame, OWNER).load(Ordering::Relaxed));
        match block >> TYPE_SHIFT & 1 {
            0 => PageType::File,
            _ => PageType::Anon,
        }
    }

    /// Says the type of the page that comes into the frame. The caller owns the frame.
    #[inline]
    pub fn set_page_type(&self, frame: Frame, page_type: PageType) {
        let owner = self.field(frame, OWNER);
        let before = owner.load(Ordering::Relaxed);
        let block = high(before) & !(1 << TYPE_SHIFT) | (page_type as u32) << TYPE_SHIFT;
        owner.store(pack(block, low(before)), Ordering::Relaxed);
    }

    /// The order of the block that this frame heads, and where the block is.
    #[must_use]
    #[inline]
    pub fn block(&self, frame: Frame) -> (Order, Place) {
        let block = high(self.field(frame, OWNER).load(Ordering::Relaxed));
        let order = Order::new((block & 0xF) as u8).expect("only orders are stored");
        (order, Place::of(block))
    }

    /// Says what block this frame heads and where it is. Under the lock of the old and new place.
    ///
    /// A block on a free list of its zone forgets its group: it may be cut or joined there, so that
    /// whoever gets it next does not know whose bytes are in it. Its pageblocks may remember:
    /// [`FrameTable::last_group`].
    ///
    /// Returns where the block that it headed before was.
    #[inline]
    pub fn set_block(&self, frame: Frame, order: Order, place: Place) -> Place {
        let owner = self.field(frame, OWNER);
        let before = owner.load(Ordering::Relaxed);
        let block = u32::from(order.get()) | (place as u32) << PLACE_SHIFT;
        let group = match place {
            Place::Zone => 0,
            Place::Out | Place::Pcp => low(before),
        };
        owner.store(pack(block, group), Ordering::Relaxed);
        Place::of(high(before))
    }

    /// The group that a free pageblock was last charged to as a whole, 0 where that is not known.
    /// `first` is its first frame. Under its zone's lock, while it is on a free list as a whole.
    ///
    /// Kept in the record of its second frame, which then heads no block and is on the same line.
    pub(crate) fn last_group(&self, first: Frame) -> u32 {
        self.group(Frame::new(first.number() + 1))
    }

    /// Names the group of [`FrameTable::last_group`].
    pub(crate) fn set_last_group(&self, first: Frame, group: u32) {
        self.set_group(Frame::new(first.number() + 1), group);
    }

    /// The allocator's word of the pageblock that the frame lies in.
    #[inline]
    pub(crate) fn pageblock(&self, frame: Frame) -> &crate::sync::AtomicU64 {
        &self.pageblocks[frame.index() >> PAGEBLOCK_ORDER]
    }

    /// Says that a page in the frame's region became young. One load, and a read-modify-write where
    /// nobody said so since the region was looked at.
    #[inline(never)]
    pub fn mark_touched(&self, frame: Frame) {
        let region = frame.number() / FRAMES_PER_REGION;
        let (word, bit) = self.region_bit(region);
        // A hint: a page whose mark is lost is found young when eviction meets it.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Takes a region's mark away, before its frames are looked at.
    pub fn clear_touched(&self, region: u32) {
        let (word, bit) = self.region_bit(region);
        word.fetch_and(!bit, Ordering::AcqRel);
    }

    /// Regions that are marked. A look at one word for each 64 regions.
    pub fn touched(&self) -> impl Iterator<Item = u32> {
        let words = 0..u32::try_from(nr_region_words(self.nr_frames)).expect("words of regions");
        words.flat_map(|word| {
            let bits = self.touched[index(word)].load(Ordering::Relaxed);
            let set = (0..64).filter(move |bit| bits >> bit & 1 != 0);
            set.map(move |bit| word * 64 + bit)
        })
    }

    /// The frames of a region.
    pub fn region(&self, region: u32) -> impl Iterator<Item = Frame> {
        let first = region * FRAMES_PER_REGION;
        let end = first.saturating_add(FRAMES_PER_REGION).min(self.nr_frames);
        (first..end).map(Frame::new)
    }

    fn region_bit(&self, region: u32) -> (&crate::sync::AtomicU64, u64) {
        (&self.touched[index(region / 64)], 1 << (region % 64))
    }

    /// A note in the links of a frame that is on no main list: a shadow while `Reading`, an error
    /// code while `Failed`. The caller owns the frame or holds its page.
    pub fn set_note(&self, frame: Frame, note: u64) {
        self.field(frame, LINKS).store(note, Ordering::Relaxed);
    }

    /// Reads the note of [`FrameTable::set_note`].
    #[must_use]
    pub fn note(&self, frame: Frame) -> u64 {
        self.field(frame, LINKS).load(Ordering::Relaxed)
    }

    /// Has a frame of no main list keep a note of 32 bits while it is chained. The caller holds its
    /// page.
    pub(crate) fn set_given(&self, frame: Frame, note: u32) {
        self.set_note(frame, pack(note, 0));
    }

    /// Chains a frame of no such list before another one.
    pub(crate) fn chain_given(&self, chain: Chain, frame: Frame, next: Option<Frame>) {
        self.set_next(chain, frame, next);
    }

    /// The note of [`FrameTable::set_given`], and the next one of [`FrameTable::chain_given`].
    pub(crate) fn given(&self, chain: Chain, frame: Frame) -> (u32, Option<Frame>) {
        let links = self.chain(chain, frame).load(Ordering::Relaxed);
        (high(links), Frame::unpack(low(links)))
    }

    #[inline]
    fn chain(&self, chain: Chain, frame: Frame) -> &crate::sync::AtomicU64 {
        match chain {
            Chain::Main => self.field(frame, LINKS),
            Chain::File => &self.file_links[frame.index()],
        }
    }

    /// The neighbours (towards head, towards tail) of a listed frame.
    #[must_use]
    #[inline]
    pub fn links(&self, chain: Chain, frame: Frame) -> (Option<Frame>, Option<Frame>) {
        let links = self.chain(chain, frame).load(Ordering::Relaxed);
        (Frame::unpack(high(links)), Frame::unpack(low(links)))
    }

    /// Has the record of the neighbour towards the head on its main list fetched, for a caller that
    /// changes it soon; returns the neighbour. A hint, without a lock: it may be any frame.
    #[inline]
    pub(crate) fn touch_before(&self, frame: Frame) -> Option<Frame> {
        let (prev, _) = self.links(Chain::Main, frame);
        let prev = prev.filter(|prev| prev.number() < self.nr_frames);
        if let Some(prev) = prev {
            prefetch_to_write(self.field(prev, LINKS));
        }
        prev
    }

    /// Has the links of a frame on its file's list fetched.
    #[inline]
    pub(crate) fn touch_file_links(&self, frame: Frame) {
        prefetch_to_write(self.chain(Chain::File, frame));
    }

    /// Has the links fetched of a frame's neighbours on its file's list, for a caller that takes it
    /// off soon. No lock: a stale neighbour is a frame, too.
    #[inline]
    pub(crate) fn touch_neighbours(&self, frame: Frame) {
        let (prev, next) = self.links(Chain::File, frame);
        for neighbour in [prev, next].into_iter().flatten() {
            prefetch_to_write(self.chain(Chain::File, neighbour));
        }
    }

    #[inline]
    fn set_links(&self, chain: Chain, frame: Frame, prev: Option<Frame>, next: Option<Frame>) {
        let links = pack(Frame::pack(prev), Frame::pack(next));
        self.chain(chain, frame).store(links, Ordering::Relaxed);
    }

    #[inline]
    fn set_prev(&self, chain: Chain, frame: Frame, prev: Option<Frame>) {
        prefetch_to_write(self.chain(chain, frame));
        let (_, next) = self.links(chain, frame);
        self.set_links(chain, frame, prev, next);
    }

    #[inline]
    fn set_next(&self, chain: Chain, frame: Frame, next: Option<Frame>) {
        prefetch_to_write(self.chain(chain, frame));
        let (prev, _) = self.links(chain, frame);
        self.set_links(chain, frame, prev, next);
    }
}

/// The state word of a frame on which somebody holds a pin.
///
/// Apart from its table, because that pin may be what keeps the table: when it is dropped, all of
/// it may be gone at once.
#[derive(Clone, Copy, Debug)]
pub struct PinnedWord<'a>(&'a crate::sync::AtomicU64);

impl PinnedWord<'_> {
    /// Drops the pin if nothing is to be done afterwards ([`Word::is_quiet`]); false leaves it. One
    /// read-modify-write where nobody interferes, and nothing is touched after it.
    ///
    /// # Panics
    /// Where no pin was held.
    #[must_use]
    #[inline]
    pub fn try_unpin(self) -> bool {
        let mut seen = self.0.load(Ordering::Relaxed);
        while Word::from_bits(seen).is_quiet() {
            let without = Word::from_bits(seen).unpinned().bits();
            // By exchange: what has to be done afterwards is not to be learnt afterwards.
            // Release: the reads under the pin are over before an Acquire sees it gone.
            let done = self
                .0
                .compare_exchange(seen, without, Ordering::Release, Ordering::Relaxed);
            match done {
                Ok(_) => return true,
                Err(found) => seen = found,
            }
        }
        false
    }
}

const fn nr_pageblocks(nr_frames: u32) -> u32 {
    nr_frames.div_ceil(1 << PAGEBLOCK_ORDER)
}

const fn nr_region_words(nr_frames: u32) -> usize {
    index(nr_frames.div_ceil(FRAMES_PER_REGION).div_ceil(64))
}

const fn pack(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn low(word: u64) -> u32 {
    (word & 0xFFFF_FFFF) as u32
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
