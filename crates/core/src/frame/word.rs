//! The state word of a frame: pins, state, bits, generation, version.

use core::fmt;

/// What a frame is used for. Legal moves: `Free` to `Reading` to `Live` to `Evicting` to `Free`;
/// `Reading` to `Failed` to `Free`; `Live` to `Detached` to `Free`; `Free` to `Buf` to `Free`;
/// `Free` to `Offline` to `Free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Free, or in the hands of whoever took it from the allocator and has not published it.
    Free = 0,
    /// A page whose content is being read.
    Reading = 1,
    /// A page in the page cache.
    Live = 2,
    /// A page on its way out: nobody can pin it any more.
    Evicting = 3,
    /// A page whose read failed; freed with its last pin.
    Failed = 4,
    /// A page that left its file while pinned; freed with its last pin.
    Detached = 5,
    /// Working memory, not reclaimable.
    Buf = 6,
    /// Taken out of use, so that the OS can have its memory.
    Offline = 7,
}

/// One 64-bit state word, by value.
///
/// ```text
/// bits  0..19 pins   19 CONTENDED  20..23 state   23 LATCH  24 INTENT  25 WAIT  26 DIRTY
///       27 WRITEBACK  28 YOUNG  29 ISOLATED  30 WORKINGSET  31 PROTECTED  32..35 refs
///       35..41 generation  41..64 version
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

const PIN_BITS: u32 = 19;
const STATE_SHIFT: u32 = 20;
const REFS_SHIFT: u32 = 32;
const GENERATION_SHIFT: u32 = 35;
const VERSION_SHIFT: u32 = 41;
const PIN_MASK: u64 = (1 << PIN_BITS) - 1;
const STATE_MASK: u64 = 0b111 << STATE_SHIFT;
const REFS_MASK: u64 = 0b111 << REFS_SHIFT;
const GENERATION_MASK: u64 = 0b11_1111 << GENERATION_SHIFT;

/// Accesses by copy that a frame counts at most.
pub const MAX_REFS: u8 = 7;
/// Pins that are given of one frame at most. The field has room above, for claims that become pins.
pub const MAX_PINS: u32 = 1 << (PIN_BITS - 1);
/// Generation numbers in a word are 1 to this; 0 means on no list.
pub const MAX_GENERATION: u8 = 63;

/// Flag bits of a [`Word`].
pub mod flag {
    /// The word went from CPU to CPU: readers may hold the live page by claims. Goes before whoever
    /// needs the page for itself looks at the claims.
    pub const CONTENDED: u64 = 1 << 19;
    /// Exclusive access to the bytes.
    pub const LATCH: u64 = 1 << 23;
    /// A writer waits for the pins to drop.
    pub const INTENT: u64 = 1 << 24;
    /// Somebody waits: the last unpin wakes.
    pub const WAIT: u64 = 1 << 25;
    /// Bytes must be written before the page can go.
    pub const DIRTY: u64 = 1 << 26;
    /// Bytes are being written.
    pub const WRITEBACK: u64 = 1 << 27;
    /// Pinned since aging last looked.
    pub const YOUNG: u64 = 1 << 28;
    /// Off its list, in the hands of reclaim, which alone may free it.
    pub const ISOLATED: u64 = 1 << 29;
    /// The page was part of the working set when it was last evicted.
    pub const WORKINGSET: u64 = 1 << 30;
    /// In the protected class of a policy with two classes.
    pub const PROTECTED: u64 = 1 << 31;
    /// Of working memory: it is from the reserve of writes. The bit of [`PROTECTED`].
    pub const RESERVE: u64 = PROTECTED;
}

/// Bits of a page that must be, or is being, written.
const UNWRITTEN: u64 = flag::DIRTY | flag::WRITEBACK;
/// Bits that keep an evictable page from being evicted just now.
const BUSY: u64 = PIN_MASK | flag::LATCH | flag::INTENT | UNWRITTEN;

impl Word {
    /// The word of a frame that nobody uses.
    pub const FREE: Word = Word(0);

    /// A word from its bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Word {
        Word(bits)
    }

    /// The word's bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Pins held.
    #[must_use]
    #[inline]
    pub const fn pins(self) -> u32 {
        (self.0 & PIN_MASK) as u32
    }

    /// The frame's state.
    #[must_use]
    pub fn state(self) -> State {
        match (self.0 & STATE_MASK) >> STATE_SHIFT {
            0 => State::Free,
            1 => State::Reading,
            2 => State::Live,
            3 => State::Evicting,
            4 => State::Failed,
            5 => State::Detached,
            6 => State::Buf,
            _ => State::Offline,
        }
    }

    /// Whether all of `flags` (from [`flag`]) are set.
    #[must_use]
    pub const fn has(self, flags: u64) -> bool {
        self.0 & flags == flags
    }

    /// Whether any of `flags` is set.
    #[must_use]
    pub const fn has_any(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    /// Accesses by copy counted since the page was last queued, 0 to [`MAX_REFS`].
    #[must_use]
    pub const fn refs(self) -> u8 {
        ((self.0 & REFS_MASK) >> REFS_SHIFT) as u8
    }

    /// The generation that lists this frame, plus one; 0 where none does.
    #[must_use]
    pub const fn generation(self) -> u8 {
        ((self.0 & GENERATION_MASK) >> GENERATION_SHIFT) as u8
    }

    /// Changes with every change of identity or bytes; wraps at 2^23.
    #[must_use]
    pub const fn version(self) -> u32 {
        (self.0 >> VERSION_SHIFT) as u32
    }

    /// Whether the page may be pinned: it is live or being read, nobody changes its bytes, and
    /// nobody waits to. One comparison: the two flags lie right above the state.
    #[must_use]
    #[inline]
    pub const fn may_be_pinned(self) -> bool {
        const READING: u64 = (State::Reading as u64) << STATE_SHIFT;
        const LIVE: u64 = (State::Live as u64) << STATE_SHIFT;
        let closed = self.0 & (STATE_MASK | flag::LATCH | flag::INTENT);
        closed == LIVE || closed == READING
    }

    /// Whether nothing has to be done after a pin is dropped: the page is in its file, and nobody
    /// waits for the frame. One comparison.
    #[must_use]
    #[inline]
    pub const fn is_quiet(self) -> bool {
        const LIVE: u64 = (State::Live as u64) << STATE_SHIFT;
        self.0 & (STATE_MASK | flag::WAIT) == LIVE
    }

    /// Whether it is of working memory, but of the reserve of writes.
    #[must_use]
    #[inline]
    pub const fn is_own_buf(self) -> bool {
        const BUF: u64 = (State::Buf as u64) << STATE_SHIFT;
        self.0 & (STATE_MASK | flag::RESERVE) == BUF
    }

    /// Whether a claim on the page holds it: it is live, readers use claims, nobody changes its
    /// bytes or waits to, and reclaim does not have it in hand.
    #[must_use]
    #[inline]
    pub const fn may_be_claimed(self) -> bool {
        const LIVE: u64 = (State::Live as u64) << STATE_SHIFT;
        let closed = STATE_MASK | flag::LATCH | flag::INTENT | flag::ISOLATED;
        self.0 & (closed | flag::CONTENDED) == LIVE | flag::CONTENDED
    }

    /// Whether the latch of the page may be taken by somebody who holds `nr_own` of its pins: it is
    /// live, nobody else holds it, by a claim neither, and it is not being written.
    #[must_use]
    pub fn may_be_latched(self, nr_own: u32) -> bool {
        let is_busy = self.has_any(flag::LATCH | flag::WRITEBACK | flag::CONTENDED);
        self.state() == State::Live && self.pins() == nr_own && !is_busy
    }

    /// Whether somebody has it pinned, changes it, or waits to: it goes when they let it.
    #[must_use]
    pub fn is_held(self) -> bool {
        self.pins() > 0 || self.has_any(flag::LATCH | flag::INTENT)
    }

    /// Live, unpinned, clean, and nobody waits for it. Whoever takes a contended page looks at the
    /// claims as well.
    #[must_use]
    pub fn is_evictable(self) -> bool {
        self.state() == State::Live && self.0 & BUSY == 0
    }

    /// Whether a write of the page may begin: it is live and dirty, nobody changes its bytes, and
    /// no other write of it is under way.
    #[must_use]
    pub fn may_be_written(self) -> bool {
        let is_busy = self.has_any(flag::LATCH | flag::WRITEBACK);
        self.state() == State::Live && self.has(flag::DIRTY) && !is_busy
    }

    /// Whether the page must be, or is being, written.
    #[must_use]
    pub const fn is_unwritten(self) -> bool {
        self.has_any(UNWRITTEN)
    }

    /// The word as it would be, were the page written.
    #[must_use]
    pub const fn as_written(self) -> Word {
        self.without(UNWRITTEN)
    }

    /// With one pin more, or `None` where [`MAX_PINS`] are held.
    #[must_use]
    #[inline]
    pub fn pinned(self) -> Option<Word> {
        (self.pins() < MAX_PINS).then_some(Word(self.0 + 1))
    }

    /// With one pin more for a claim, or for whoever takes the page out of its file: of these there
    /// are fewer than the field has room above [`MAX_PINS`].
    #[must_use]
    pub(crate) const fn with_own_pin(self) -> Word {
        Word(self.0 + 1)
    }

    /// Of a live page that readers may claim: with a pin of whoever makes pins of the claims, and
    /// not contended any more. `None` of any other.
    #[must_use]
    pub(crate) fn ending_claims(self) -> Option<Word> {
        let is_meant = self.state() == State::Live && self.has(flag::CONTENDED);
        is_meant.then(|| self.without(flag::CONTENDED).with_own_pin())
    }

    /// With one pin less.
    ///
    /// # Panics
    /// Where no pin is held.
    #[must_use]
    #[inline]
    pub fn unpinned(self) -> Word {
        assert!(self.pins() > 0, "unpin of a frame without pins");
        Word(self.0 - 1)
    }

    /// In `state`.
    #[must_use]
    pub const fn with_state(self, state: State) -> Word {
        Word(self.0 & !STATE_MASK | (state as u64) << STATE_SHIFT)
    }

    /// With `flags` set.
    #[must_use]
    pub const fn with(self, flags: u64) -> Word {
        Word(self.0 | flags)
    }

    /// With `flags` clear.
    #[must_use]
    pub const fn without(self, flags: u64) -> Word {
        Word(self.0 & !flags)
    }

    /// With this many accesses counted, at most [`MAX_REFS`].
    #[must_use]
    pub fn with_refs(self, refs: u8) -> Word {
        let refs = u64::from(refs.min(MAX_REFS));
        Word(self.0 & !REFS_MASK | refs << REFS_SHIFT)
    }

    /// With one access by copy more counted, at most [`MAX_REFS`].
    #[must_use]
    #[inline]
    pub const fn referenced(self) -> Word {
        match self.0 & REFS_MASK {
            REFS_MASK => self,
            _ => Word(self.0 + (1 << REFS_SHIFT)),
        }
    }

    /// Listed by a generation (its number plus one), or by none (0).
    ///
    /// # Panics
    /// Above [`MAX_GENERATION`].
    #[must_use]
    pub fn with_generation(self, generation: u8) -> Word {
        assert!(
            generation <= MAX_GENERATION,
            "generation {generation} does not fit the word"
        );
        Word(self.0 & !GENERATION_MASK | u64::from(generation) << GENERATION_SHIFT)
    }

    /// With the next version.
    #[must_use]
    pub const fn next_version(self) -> Word {
        Word(self.0.wrapping_add(1 << VERSION_SHIFT))
    }

    /// With no pin, flag, count or generation: version and state only.
    #[must_use]
    pub const fn bare(self) -> Word {
        Word(self.0 & (STATE_MASK | !0 << VERSION_SHIFT))
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Word")
            .field("state", &self.state())
            .field("pins", &self.pins())
            .field("refs", &self.refs())
            .field("generation", &self.generation())
            .field("version", &self.version())
            .field("isolated", &self.has(flag::ISOLATED))
            .field("dirty", &self.has(flag::DIRTY))
            .field("writeback", &self.has(flag::WRITEBACK))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let flags = flag::LATCH | flag::YOUNG | flag::ISOLATED | flag::PROTECTED;
        let word = Word::FREE.with_state(State::Buf).with(flags).with_refs(5);
        let word = word.with_generation(63).next_version().pinned().unwrap();
        assert_eq!((word.pins(), word.state(), word.refs()), (1, State::Buf, 5));
        assert_eq!((word.generation(), word.version()), (63, 1));
        assert!(word.has(flags) && !word.has_any(flag::INTENT | flag::WAIT | flag::DIRTY));
        assert_eq!(
            word.bare(),
            Word::FREE.with_state(State::Buf).next_version()
        );
    }

    #[test]
    fn accesses_are_counted_up_to_the_most() {
        let mut word = Word::FREE.with_state(State::Live).with_generation(63);
        for refs in 0..MAX_REFS {
            assert_eq!(word, word.with_refs(refs));
            word = word.referenced();
        }
        assert_eq!(word.referenced(), word.with_refs(MAX_REFS));
    }

    #[test]
    fn the_version_wraps_into_nothing_else() {
        let mut word = Word::FREE.with_state(State::Live);
        for _ in 0..1 << 23 {
            word = word.next_version();
        }
        assert_eq!(word, Word::FREE.with_state(State::Live));
    }

    #[test]
    fn pins_are_bounded() {
        let full = Word::from_bits(u64::from(MAX_PINS)).with_state(State::Live);
        assert!(full.pinned().is_none() && full.unpinned().pinned().is_some());
    }

    #[test]
    fn each_busy_bit_keeps_a_page() {
        let live = Word::FREE.with_state(State::Live);
        assert!(live.is_evictable());
        assert!(!live.pinned().unwrap().is_evictable());
        for flag in [flag::LATCH, flag::INTENT, flag::DIRTY, flag::WRITEBACK] {
            assert!(!live.with(flag).is_evictable());
        }
    }

    #[test]
    fn a_page_is_pinned_while_nobody_changes_it_or_waits_to() {
        let live = Word::FREE.with_state(State::Live);
        for flags in [flag::WAIT | flag::DIRTY, flag::WRITEBACK | flag::YOUNG] {
            assert!(live.with(flags).may_be_pinned());
            assert!(live.with_state(State::Reading).with(flags).may_be_pinned());
        }
        assert!(!live.with(flag::LATCH).may_be_pinned());
        assert!(!live.with(flag::INTENT).may_be_pinned());
        for state in [State::Free, State::Evicting, State::Failed, State::Detached] {
            assert!(!live.with_state(state).may_be_pinned());
        }
    }

    #[test]
    fn after_an_unpin_of_a_page_in_its_file_nothing_is_to_be_done_but_to_wake() {
        let live = Word::FREE.with_state(State::Live).pinned().unwrap();
        let others = flag::LATCH | flag::INTENT | flag::DIRTY | flag::YOUNG | flag::ISOLATED;
        assert!(live.is_quiet() && live.pinned().unwrap().with(others).is_quiet());
        assert!(!live.with(flag::WAIT).is_quiet());
        for state in [State::Reading, State::Failed, State::Detached, State::Buf] {
            assert!(!live.with_state(state).is_quiet());
        }
    }

    #[test]
    fn a_claim_holds_a_contended_page_that_nobody_wants_for_himself() {
        let live = Word::FREE.with_state(State::Live).with(flag::CONTENDED);
        let marks = flag::DIRTY | flag::WRITEBACK | flag::YOUNG | flag::WAIT;
        assert!(live.may_be_claimed() && live.with(marks).may_be_claimed());
        assert!(live.pinned().unwrap().may_be_claimed());
        assert!(!live.without(flag::CONTENDED).may_be_claimed());
        for flag in [flag::LATCH, flag::INTENT, flag::ISOLATED] {
            assert!(!live.with(flag).may_be_claimed());
        }
        for state in [State::Reading, State::Evicting, State::Detached] {
            assert!(!live.with_state(state).may_be_claimed());
        }
        assert!(!live.may_be_latched(0) && live.is_evictable());
        assert!(!live.bare().has(flag::CONTENDED));
    }

    #[test]
    fn a_write_begins_from_a_dirty_page_that_nobody_changes_or_writes() {
        let dirty = Word::FREE.with_state(State::Live).with(flag::DIRTY);
        assert!(dirty.may_be_written() && dirty.pinned().unwrap().may_be_written());
        assert!(!dirty.without(flag::DIRTY).may_be_written());
        assert!(!dirty.with_state(State::Detached).may_be_written());
        for flag in [flag::LATCH, flag::WRITEBACK] {
            assert!(!dirty.with(flag).may_be_written());
        }
        assert!(dirty.with(flag::WRITEBACK).as_written().is_evictable());
    }
}
