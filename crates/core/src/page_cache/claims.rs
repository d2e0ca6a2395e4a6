//! Claims: how readers hold a page without a change of its state word.
//!
//! A pin fetches the line of the page's word from the CPU that pinned it before, which takes longer
//! than the rest of the pin, so that two CPUs get no more of them than one. So a page whose word
//! goes from CPU to CPU is `CONTENDED` from some time on, and claimed. For how long that pays
//! nobody knows: it ends when somebody needs the page for himself, who fetches all lines of claims.
//! So a page is contended after as many moves of its own line as there are of those: the worst that
//! comes of it is twice the moves of pins alone.
//!
//! Each CPU has a line of words, and a claim is the number of a frame in one of them. Whoever puts
//! it there looks at the frame's word afterwards: where that says `CONTENDED`, and nothing that
//! keeps claims out, the page is held. Whoever needs a page for itself first sees to it that no new
//! claim holds it, and then looks at all lines. Of these two, each a write and then a look at what
//! the other one wrote, one sees the other, because all four are sequentially consistent.
//!
//! An eviction keeps claims out by `ISOLATED`, and leaves a page that is claimed; where nothing
//! else was found, all claims become pins, which policies see. All others have a pin on the page
//! and take `CONTENDED` away; then they make pins of the claims and go on as if those had been pins
//! all along. So nobody but these few knows of claims, nothing is undone, and who gives a claim
//! back has nobody to wake.
//!
//! Source: the biased reader-writer locks of Dice and Kogan (BRAVO, 2019). Changed: slots are the
//! CPU's and not hashed, and claims become pins, so that nobody has to wait for them; when to begin
//! is the rule of Karlin and others for rent or buy (1988), where BRAVO waits by the clock.

use super::Access;
use crate::frame::{FrameTable, Record, State, Word, flag};
use crate::sync::{AtomicU32, NoMetadata, Ordering, PerCpu, full_fence, order_after_rmw};
use crate::units::{Cpu, Frame, PageKey, count, index};
use core::array;
use core::num::NonZeroU32;

/// Claims on one CPU's line.
const PER_LINE: usize = if cfg!(loom) { 2 } else { 1 << SLOT_BITS };
const SLOT_BITS: u32 = 4;
/// Of those, the ones that views without a copy leave to reads that copy, which are short.
const KEPT_FOR_COPIES: usize = PER_LINE / 2;
/// CPUs with a line of their own: others share theirs, so that all claims fit among the pins.
const MAX_LINES: u32 = 8192;
/// Moves of a page's line, at least, before it is claimed.
const MIN_BOUNCES: u32 = if cfg!(loom) { 1 } else { 8 };
const NONE: u32 = 0;
/// In the place of a claim that became a pin. No frame: a memory has fewer.
const PINNED: u32 = u32::MAX;

/// One CPU's claims: frames, packed, or [`PINNED`].
#[derive(Debug)]
struct Line([AtomicU32; PER_LINE]);

/// Which word holds a claim. Given back by [`ClaimWord::give_up`], by any thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a claim that is not given up holds its page for ever"]
pub struct Claim(NonZeroU32);

impl Claim {
    /// Bits that [`Claim::pack`] uses.
    pub const NR_BITS: u32 = 16 + SLOT_BITS + 1;

    /// Of a CPU's line.
    #[inline]
    fn new(line: u16, slot: u8) -> Claim {
        let place = u32::from(line) << SLOT_BITS | u32::from(slot);
        Claim(NonZeroU32::MIN.saturating_add(place))
    }

    fn place(self) -> (Cpu, usize) {
        let place = self.0.get() - 1;
        let slot = place & ((1 << SLOT_BITS) - 1);
        (Cpu::new(place >> SLOT_BITS), index(slot))
    }

    /// Packs an optional claim: 0 is none.
    #[must_use]
    #[inline]
    pub fn pack(claim: Option<Claim>) -> u32 {
        claim.map_or(0, |claim| claim.0.get())
    }

    /// Reads what [`Claim::pack`] wrote.
    #[inline]
    pub fn unpack(packed: u32) -> Option<Claim> {
        NonZeroU32::new(packed).map(Claim)
    }
}

/// The word that holds somebody's claim.
///
/// Apart from its table, because that claim may be what keeps the table: when it is given back, all
/// of it may be gone at once.
#[derive(Clone, Copy, Debug)]
pub struct ClaimWord<'a>(&'a AtomicU32);

impl ClaimWord<'_> {
    /// Gives the claim back; whether it became a pin meanwhile, which the caller then drops. One
    /// read-modify-write; nothing is touched after it.
    #[must_use]
    #[inline]
    pub fn give_up(self) -> bool {
        // Release: the reads under the claim are over before somebody's Acquire sees it gone.
        self.0.swap(NONE, Ordering::AcqRel) == PINNED
    }
}

/// What became of an attempt to claim a page.
pub(super) enum Claimed {
    /// The claim holds the page.
    Held(Claim),
    /// It does not: the page has to be pinned, or is not there.
    No,
    /// It does not, and was made a pin on the frame, which the caller drops.
    Pin,
}

/// The claims of all CPUs.
#[derive(Debug)]
pub struct Claims(PerCpu<Line>);

impl Claims {
    fn nr_lines(nr_cpus: u32) -> u32 {
        nr_cpus.min(MAX_LINES)
    }

    /// Bytes that [`Claims::try_new`] takes: a line of 64 for each CPU.
    #[must_use]
    pub fn bytes(nr_cpus: u32) -> usize {
        PerCpu::<Line>::bytes(Claims::nr_lines(nr_cpus))
    }

    /// None yet.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_cpus: u32) -> Result<Claims, NoMetadata> {
        let line = || Line(array::from_fn(|_| AtomicU32::new(NONE)));
        PerCpu::try_new(Claims::nr_lines(nr_cpus), line).map(Claims)
    }

    /// Notes where a page is pinned whose pin before was not known to be of this CPU; as often as
    /// there are lines of claims, readers claim it from then on. The caller has a pin on it; `word`
    /// is the one before.
    #[cold]
    #[inline(never)] // Off the path of pages that one CPU uses.
    pub(super) fn note_pinned_on(
        &self,
        frames: &FrameTable,
        (frame, record, word): (Frame, Record<'_>, Word),
        cpu: Cpu,
    ) {
        let limit = count(self.0.iter().count()).max(MIN_BOUNCES);
        if !word.has(flag::CONTENDED) && record.note_pinned_on(cpu, limit) {
            super::contend(frames, frame);
        }
    }

    /// Claims the page in a frame for a reader on `cpu`, if it is the page of `key`. One
    /// read-modify-write, of the CPU's own line, and one of the word where a mark is to be set.
    #[inline(never)] // Off the path of pages that nobody contends for.
    pub(super) fn claim(
        &self,
        frames: &FrameTable,
        cpu: Cpu,
        (frame, record): (Frame, Record<'_>),
        (key, access): (PageKey, Access),
    ) -> Claimed {
        let Some(claim) = self.put(cpu, frame, access) else {
            return Claimed::No;
        };
        order_after_rmw();
        // Sequentially consistent, as the exchange that put the claim there: pairs with the fences
        // in `frames` and `make_pins`.
        let word = record.word_in_order();
        // The frame may hold another page by now. One that is held keeps its key.
        if !word.may_be_claimed() || !record.holds(key) {
            return match self.give_up(claim) {
                true => Claimed::Pin,
                false => Claimed::No,
            };
        }
        let marked = access.mark(word);
        // Of those who meet here one is counted.
        if marked != word && record.replace(word, marked).is_ok() && access == Access::Pin {
            frames.mark_touched(frame);
        }
        Claimed::Held(claim)
    }

    /// Puts a frame into a word of the CPU's that is free.
    #[inline]
    fn put(&self, cpu: Cpu, frame: Frame, access: Access) -> Option<Claim> {
        let first = match access {
            Access::Copy => 0,
            Access::Pin | Access::Prefetch => KEPT_FOR_COPIES,
        };
        // Beyond are numbers that no kernel gives.
        let line = u16::try_from(cpu.number()).ok()?;
        let packed = Frame::pack(Some(frame));
        let words = self.0.of(cpu).0.iter().zip(0..).skip(first);
        let mut free = words.filter(|(word, _)| word.load(Ordering::Relaxed) == NONE);
        free.find_map(|(word, slot)| {
            let (put, failed) = (Ordering::SeqCst, Ordering::Relaxed);
            let is_put = word.compare_exchange(NONE, packed, put, failed).is_ok();
            is_put.then(|| Claim::new(line, slot))
        })
    }

    /// Gives a claim back; whether it became a pin meanwhile, which the caller then drops.
    #[inline]
    pub fn give_up(&self, claim: Claim) -> bool {
        self.word(claim).give_up()
    }

    /// The word that holds a claim of the caller's, to give the claim back by it alone.
    #[must_use]
    #[inline]
    pub fn word(&self, claim: Claim) -> ClaimWord<'_> {
        let (cpu, slot) = claim.place();
        ClaimWord(&self.0.of(cpu).0[slot])
    }

    /// The frames that are claimed at a moment. Looks at the line of each CPU.
    ///
    /// Of a page that no new claim holds since before this call, none that holds it is missed.
    pub fn frames(&self) -> impl Iterator<Item = Frame> {
        // What the caller did to the word comes before the looks at the lines.
        full_fence();
        let frame = |(_, packed)| Frame::unpack(packed).filter(|_| packed != PINNED);
        self.words().filter_map(frame)
    }

    /// All words with what is in them.
    fn words(&self) -> impl Iterator<Item = (&AtomicU32, u32)> {
        let words = self.0.iter().flat_map(|line| &line.0);
        words.map(|word| (word, word.load(Ordering::Acquire)))
    }

    /// Claims on a frame at a moment. Looks at the line of each CPU.
    #[must_use]
    pub fn nr_on(&self, frame: Frame) -> u32 {
        self.frames()
            .filter(|&claimed| claimed == frame)
            .map(|_| 1)
            .sum()
    }

    /// Makes pins of all claims on a page that the caller has pinned, so that its pins are all that
    /// hold it: see [`Claims::make_pins`]. A load where it is not contended.
    #[inline]
    pub fn end(&self, frames: &FrameTable, frame: Frame, count: impl FnMut(bool)) {
        let end = |word: Word| {
            let is_contended = word.has(flag::CONTENDED);
            is_contended.then(|| word.without(flag::CONTENDED))
        };
        if frames.update(frame, end).is_ok() {
            self.make_pins(frames, frame, count);
        }
    }

    /// Makes pins of all claims on a page that was contended. The caller took `CONTENDED` away, and
    /// its pin keeps others from taking the page for themselves meanwhile. Looks at the line of
    /// each CPU; two read-modify-writes for each claim.
    ///
    /// Of pins on a page that has left its file, `count` is told: of one more before its holder can
    /// know that it is one, of one less where there is no holder any more.
    #[cold]
    pub fn make_pins(&self, frames: &FrameTable, frame: Frame, mut count: impl FnMut(bool)) {
        // What the caller did to the word comes before the looks at the lines.
        full_fence();
        let claimed = Frame::pack(Some(frame));
        for (word, packed) in self.words() {
            if packed != claimed {
                continue;
            }
            // The pin first: the holder may drop it at once.
            let pin = frames.update(frame, |word| Some(word.with_own_pin()));
            let before = pin.expect("an update without a condition");
            if before.state() == State::Detached {
                count(true);
            }
            // Acquire where it fails: the reads under a claim that was given up are over, as in
            // `words`, before the frame or the memory is somebody else's.
            let (done, failed) = (Ordering::AcqRel, Ordering::Acquire);
            if word
                .compare_exchange(claimed, PINNED, done, failed)
                .is_err()
            {
                // Given up meanwhile. Not the last pin: the caller's is there.
                if frames.unpin(frame).state() == State::Detached {
                    count(false);
                }
            }
        }
    }
}
