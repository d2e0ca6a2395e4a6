//! The record of one frame, found once and looked at more often: what a hit does.

use super::{Form, KEY, OWNER, STATE, TYPE_SHIFT, WORDS_PER_RECORD, Word};
use super::{high, low, pack};
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Cpu, PageKey};

/// Bits of a record's last word, from its upper half on: the CPU that pinned the page last, as
/// [`last_cpu`] says, and how much claims would have saved since.
const LAST_CPU_SHIFT: u32 = TYPE_SHIFT + 1;
const LAST_CPU_MASK: u32 = 0x1FFF;
const IS_KNOWN: u32 = 0x1000;
const SAVING_SHIFT: u32 = LAST_CPU_SHIFT + LAST_CPU_MASK.count_ones();

/// What a claim saves where the page's line is on another CPU, in what it saves elsewhere.
pub const BOUNCE: u32 = 16;
/// As much as a frame counts of what claims would have saved.
pub const MAX_SAVING: u32 = u32::MAX >> SAVING_SHIFT;

/// What a record says of a CPU: its number, of which those 4096 apart are one.
#[inline]
fn last_cpu(cpu: Cpu) -> u32 {
    cpu.number() & (IS_KNOWN - 1) | IS_KNOWN
}

/// The record of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a>(&'a [AtomicU64; WORDS_PER_RECORD]);

impl<'a> Record<'a> {
    #[inline]
    pub(super) fn new(words: &'a [AtomicU64; WORDS_PER_RECORD]) -> Record<'a> {
        Record(words)
    }

    #[inline]
    pub(super) fn field(self, field: usize) -> &'a AtomicU64 {
        &self.0[field]
    }

    /// The state word.
    #[must_use]
    #[inline]
    pub fn word(self) -> Word {
        // Acquire pairs with the Release half of `replace`: who sees a state sees what led to it.
        Word::from_bits(self.0[STATE].load(Ordering::Acquire))
    }

    /// The state word, in one order with all other sequentially consistent accesses.
    #[inline]
    pub(crate) fn word_in_order(self) -> Word {
        Word::from_bits(self.0[STATE].load(Ordering::SeqCst))
    }

    /// Replaces the state word if it is still exactly `old`. One read-modify-write.
    ///
    /// # Errors
    /// The word that was found instead.
    #[inline]
    pub fn replace(self, old: Word, new: Word) -> Result<(), Word> {
        // AcqRel pairs with itself and with the load in `word`.
        self.0[STATE]
            .compare_exchange(old.bits(), new.bits(), Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
            .map_err(Word::from_bits)
    }

    /// Whether the frame holds this page: see [`super::FrameTable::key`].
    #[must_use]
    #[inline]
    pub fn holds(self, key: PageKey) -> bool {
        self.0[KEY].load(Ordering::Relaxed) == key.bits()
    }

    /// Whether the CPU that pinned the page last was another one, or is not known. A load of the
    /// line that the state word is on.
    #[must_use]
    #[inline]
    pub fn was_pinned_elsewhere(self, cpu: Cpu) -> bool {
        let block = high(self.0[OWNER].load(Ordering::Relaxed));
        (block >> LAST_CPU_SHIFT ^ last_cpu(cpu)) & LAST_CPU_MASK != 0
    }

    /// The form of working memory, but of the reserve of writes; while it waits in a magazine, the
    /// same, or nobody's. `None` of any other frame.
    #[inline]
    pub(crate) fn buf_form(self) -> Option<Form> {
        let form = Form::from_bits(self.0[OWNER].load(Ordering::Relaxed));
        self.word().is_own_buf().then_some(form)
    }

    /// Says of what form working memory is. The caller owns it.
    pub(crate) fn set_form(self, form: Form) {
        self.0[OWNER].store(form.bits(), Ordering::Relaxed);
    }

    /// Notes that the page was pinned on the CPU that pinned it last; true where claims would have
    /// saved `limit` by now, see [`Record::note_pinned_on`].
    #[inline]
    pub(crate) fn note_pinned_again(self, limit: u32) -> bool {
        let before = self.0[OWNER].load(Ordering::Relaxed);
        // Beyond the highest nothing is that the carry could change.
        let after = before.wrapping_add(1 << (u32::BITS + SAVING_SHIFT));
        self.0[OWNER].store(after, Ordering::Relaxed);
        high(after) >> SAVING_SHIFT >= limit
    }

    /// Notes that the page was pinned on `cpu`, and what a claim would have saved where that is not
    /// the CPU of the time before: [`BOUNCE`]. True where that has come to `limit`, at most
    /// [`MAX_SAVING`], since the frame came from the allocator or since the last `true`. A load and
    /// a store.
    ///
    /// The caller has a pin on the page, so that nobody owns the frame and all that others write
    /// here are notes: one of two may be lost.
    ///
    /// Source: the kernel's `folio_xchg_last_cpupid()`, which finds pages that tasks share.
    pub fn note_pinned_on(self, cpu: Cpu, limit: u32) -> bool {
        let before = self.0[OWNER].load(Ordering::Relaxed);
        let block = high(before);
        let is_known = block >> LAST_CPU_SHIFT & IS_KNOWN != 0;
        let is_bounce = is_known && self.was_pinned_elsewhere(cpu);
        let more = if is_bounce { BOUNCE } else { 0 };
        let saving = MAX_SAVING.min((block >> SAVING_SHIFT) + more);
        let is_enough = saving >= limit.min(MAX_SAVING);
        let saving = if is_enough { 0 } else { saving };
        let block = block & ((1 << LAST_CPU_SHIFT) - 1)
            | last_cpu(cpu) << LAST_CPU_SHIFT
            | saving << SAVING_SHIFT;
        self.0[OWNER].store(pack(block, low(before)), Ordering::Relaxed);
        is_enough
    }
}
