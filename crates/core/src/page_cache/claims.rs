//! Claims: how readers hold a page without a change of its state word.
//!
//! A pin and its drop are two read-modify-writes of the page's word, and fetch its line from the
//! CPU that pinned it before. So a page that is pinned often is `CONTENDED` from some time on, and
//! claimed. For how long that pays nobody knows: it ends when somebody needs the page for himself,
//! who fetches all lines of claims. So a page is contended once claims would have saved as much as
//! their end costs: the worst that comes of it is twice the cost of pins alone.
//!
//! Each CPU has a line of words, and a claim is the number of a frame in one of them. Whoever puts
//! it there looks at the frame's word afterwards: where that says `CONTENDED`, and nothing that
//! keeps claims out, the page is held. Whoever needs a page for itself first sees to it that no new
//! claim holds it, and then looks at all lines. Of these two, each a write and then a look at what
//! the other one wrote, one sees the other. Where the CPU has restartable sequences, a claim is put
//! and given up in one, by a plain store, and the other side has the kernel fence the CPU between
//! its two steps. Where it has none, all four are sequentially consistent.
//!
//! An eviction keeps claims out by `ISOLATED`, and leaves a page that is claimed; where nothing
//! else was found, all claims become pins, which policies see. All others have a pin on the page
//! and take `CONTENDED` away; then they make pins of the claims and go on as if those had been pins
//! all along. So nobody but these few knows of claims, nothing is undone, and who gives a claim
//! back has nobody to wake.
//!
//! Source: the biased reader-writer locks of Dice and Kogan (BRAVO, 2019); that readers need no
//! fence where the other side has one for all: Dice and others, asymmetric Dekker synchronization
//! (2001). Changed: slots are the CPU's and not hashed, and claims become pins, so that nobody has
//! to wait for them; when to begin is the rule of Karlin and others for rent or buy (1988), where
//! BRAVO waits by the clock.

use super::Access;
use crate::frame::{BOUNCE, FrameTable, MAX_SAVING, Record, State, Word, flag};
use crate::group::CpuMask;
use crate::sync::{AtomicU32, Gate, NoMetadata, Ordering, PerCpu, Sections};
use crate::sync::{full_fence, order_after_rmw};
use crate::units::{Cpu, Frame, PageKey, count, index};
use core::array;
use core::num::NonZeroU32;

/// Claims on one CPU's line, which has its gate, too.
const PER_LINE: usize = if cfg!(loom) { 2 } else { (1 << SLOT_BITS) - 1 };
const SLOT_BITS: u32 = 4;
/// Of those, the ones that views without a copy leave to reads that copy, which are short.
const KEPT_FOR_COPIES: usize = PER_LINE / 2;
/// CPUs with a line of their own: others share theirs, so that all claims fit among the pins.
const MAX_LINES: u32 = 8192;
/// Moves of a page's line, at least, before it is claimed: by pins on one CPU, what a fence costs.
const MIN_BOUNCES: u32 = if cfg!(loom) { 1 } else { 8 };
const NONE: u32 = 0;
/// In the place of a claim that became a pin. No frame: a memory has fewer.
const PINNED: u32 = u32::MAX;

/// One CPU's claims: frames, packed, or [`PINNED`].
#[derive(Debug)]
struct Line {
    /// Shut for good where claims are put by read-modify-writes, of several CPUs perhaps. Else they
    /// are put in sections only.
    gate: Gate,
    words: [AtomicU32; PER_LINE],
}

/// Which word holds a claim. Given back by [`ClaimWord::give_up`], by any thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a claim that is not given up holds its page for ever"]
pub struct Claim(NonZeroU32);

impl Claim {
    /// Bits that [`Claim::pack`] uses.
    pub const NR_BITS: u32 = 16 + SLOT_BITS + 1;

    /// In a word of a CPU's, whose number has 16 bits.
    #[inline]
    fn new(cpu: Cpu, slot: usize) -> Claim {
        let place = cpu.number() << SLOT_BITS | count(slot);
        Claim(NonZeroU32::MIN.saturating_add(place))
    }

    #[inline]
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
#[derive(Debug)]
pub struct ClaimWord<'a> {
    cpu: Cpu,
    line: &'a Line,
    slot: usize,
    sections: Option<&'a Sections>,
}

impl ClaimWord<'_> {
    /// Gives the claim, which is on this frame, back; whether it became a pin meanwhile, which the
    /// caller then drops. One read-modify-write, but in a section none; nothing is touched after
    /// it.
    #[must_use]
    #[inline]
    pub fn give_up(self, frame: Frame) -> bool {
        let word = &self.line.words[self.slot];
        let given = (word, Frame::pack(Some(frame)), NONE);
        let gate = &self.line.gate;
        let is_given = |sections: &Sections| sections.on(self.cpu).replace(gate, given);
        if self.sections.is_some_and(is_given) {
            return false;
        }
        // Release: the reads under the claim are over before somebody's Acquire sees it gone.
        word.swap(NONE, Ordering::AcqRel) == PINNED
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
pub struct Claims {
    lines: PerCpu<Line>,
    sections: Option<Sections>,
    /// Whether all CPUs have sections, so that they are fenced at once.
    is_fenced_at_once: bool,
    /// What claims are to save before a page is claimed: no more than is counted.
    limit: u32,
}

impl Claims {
    fn nr_lines(nr_cpus: u32) -> u32 {
        nr_cpus.min(MAX_LINES)
    }

    /// Bytes that [`Claims::try_new`] takes: a line of 64 for each CPU.
    #[must_use]
    pub fn bytes(nr_cpus: u32) -> usize {
        PerCpu::<Line>::bytes(Claims::nr_lines(nr_cpus))
    }

    /// None yet; put in sections but on these CPUs, where there are sections.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(
        nr_cpus: u32,
        sections: Option<&(Sections, CpuMask)>,
    ) -> Result<Claims, NoMetadata> {
        let sections = sections.filter(|_| nr_cpus <= MAX_LINES);
        let has_none = |cpu| sections.is_none_or(|(_, without)| without.has(cpu));
        let mut cpus = (0..).map(Cpu::new);
        let line = || Line {
            gate: Gate::new(!cpus.next().is_none_or(has_none)),
            words: array::from_fn(|_| AtomicU32::new(NONE)),
        };
        let nr_lines = Claims::nr_lines(nr_cpus);
        Ok(Claims {
            lines: PerCpu::try_new(nr_lines, line)?,
            sections: sections.map(|(sections, _)| sections.clone()),
            is_fenced_at_once: !(0..nr_lines).map(Cpu::new).any(has_none),
            limit: MAX_SAVING.min(BOUNCE * nr_lines.max(MIN_BOUNCES)),
        })
    }

    /// Notes that a page was pinned on a CPU; where that was so often, or on one CPU after the
    /// other, that claims would have saved what their end costs, readers claim it from then on. The
    /// caller has a pin on it; `word` is the one before.
    #[inline(always)]
    pub(super) fn note_pinned(
        &self,
        frames: &FrameTable,
        (frame, record, word): (Frame, Record<'_>, Word),
        cpu: Cpu,
    ) {
        let is_elsewhere = record.was_pinned_elsewhere(cpu);
        // Without sections claims save nothing where the line is here.
        if is_elsewhere || self.sections.is_some() && record.note_pinned_again(self.limit) {
            self.note_pinned_on(frames, (frame, record, word), cpu);
        }
    }

    #[cold]
    #[inline(never)] // Off the path of pages that one CPU uses.
    fn note_pinned_on(
        &self,
        frames: &FrameTable,
        (frame, record, word): (Frame, Record<'_>, Word),
        cpu: Cpu,
    ) {
        if !word.has(flag::CONTENDED) && record.note_pinned_on(cpu, self.limit) {
            super::contend(frames, frame);
        }
    }

    /// Claims the page in a frame for a reader on `cpu`, if it is the page of `key`. One
    /// read-modify-write, of the CPU's own line, but in a section none; and one of the word where a
    /// mark is to be set.
    #[inline(always)] // Most hits of pages that are used often.
    pub(super) fn claim(
        &self,
        frames: &FrameTable,
        cpu: Cpu,
        (frame, record): (Frame, Record<'_>),
        wish: (PageKey, Access),
    ) -> Claimed {
        match self.put_first(cpu, frame, wish.1) {
            Some(claim) => self.look(frames, claim, (frame, record), wish),
            None => self.claim_elsewhere(frames, cpu, (frame, record), wish),
        }
    }

    /// [`Claims::claim`] by another word than the first one, or without sections.
    #[inline(never)]
    fn claim_elsewhere(
        &self,
        frames: &FrameTable,
        cpu: Cpu,
        (frame, record): (Frame, Record<'_>),
        wish: (PageKey, Access),
    ) -> Claimed {
        match self.put(cpu, frame, wish.1) {
            Some(claim) => self.look(frames, claim, (frame, record), wish),
            None => Claimed::No,
        }
    }

    /// Looks whether a claim that was put holds its page.
    #[inline(always)]
    fn look(
        &self,
        frames: &FrameTable,
        claim: Claim,
        (frame, record): (Frame, Record<'_>),
        (key, access): (PageKey, Access),
    ) -> Claimed {
        // Comes after the claim: in one order with it, or by the fence in `frames` and `make_pins`.
        let word = record.word_in_order();
        // The frame may hold another page by now. One that is held keeps its key.
        if !word.may_be_claimed() || !record.holds(key) {
            return self.take_back(claim, frame);
        }
        let marked = access.mark(word);
        // Of those who meet here one is counted.
        if marked != word && record.replace(word, marked).is_ok() && access == Access::Pin {
            frames.mark_touched(frame);
        }
        Claimed::Held(claim)
    }

    /// Gives a claim back that does not hold its page.
    #[cold]
    #[inline(never)]
    fn take_back(&self, claim: Claim, frame: Frame) -> Claimed {
        match self.give_up(frame, claim) {
            true => Claimed::Pin,
            false => Claimed::No,
        }
    }

    /// The first of a CPU's words that such a claim may be put into.
    #[inline]
    const fn first(access: Access) -> usize {
        match access {
            Access::Copy => 0,
            Access::Pin | Access::Prefetch => KEPT_FOR_COPIES,
        }
    }

    /// Puts a frame into the first word of the CPU's in a section, if it is free.
    #[inline(always)]
    fn put_first(&self, cpu: Cpu, frame: Frame, access: Access) -> Option<Claim> {
        let line = self.lines.get(cpu)?;
        let slot = Claims::first(access);
        let put = (&line.words[slot], NONE, Frame::pack(Some(frame)));
        let is_put = self.sections.as_ref()?.on(cpu).replace(&line.gate, put);
        is_put.then(|| Claim::new(cpu, slot))
    }

    /// Puts a frame into a word of the CPU's that is free.
    fn put(&self, cpu: Cpu, frame: Frame, access: Access) -> Option<Claim> {
        // Beyond are numbers that no kernel gives.
        u16::try_from(cpu.number()).ok()?;
        let packed = Frame::pack(Some(frame));
        let line = self.lines.of(cpu);
        let words = line.words.iter().enumerate().skip(Claims::first(access));
        let mut free = words.filter(|(_, word)| word.load(Ordering::Relaxed) == NONE);
        if line.gate.is_shut_for_good() {
            let (put, failed) = (Ordering::SeqCst, Ordering::Relaxed);
            let is_put =
                |word: &AtomicU32| word.compare_exchange(NONE, packed, put, failed).is_ok();
            let (slot, _) = free.find(|(_, word)| is_put(word))?;
            order_after_rmw();
            return Some(Claim::new(cpu, slot));
        }
        // Another CPU's line, where there is none of its own, is not written in its sections.
        self.lines.get(cpu)?;
        let (sections, (slot, word)) = (self.sections.as_ref()?, free.next()?);
        let is_put = sections.on(cpu).replace(&line.gate, (word, NONE, packed));
        is_put.then(|| Claim::new(cpu, slot))
    }

    /// Gives a claim on a frame back; whether it became a pin meanwhile, which the caller then
    /// drops.
    #[inline]
    pub fn give_up(&self, frame: Frame, claim: Claim) -> bool {
        self.word(claim).give_up(frame)
    }

    /// The word that holds a claim of the caller's, to give the claim back by it alone.
    #[must_use]
    #[inline]
    pub fn word(&self, claim: Claim) -> ClaimWord<'_> {
        let (cpu, slot) = claim.place();
        ClaimWord {
            cpu,
            line: self.lines.of(cpu),
            slot,
            sections: self.sections.as_ref(),
        }
    }

    /// What the caller did to a word comes before its looks at the lines; and of what readers did
    /// to their lines and then saw of that word, it sees the first or they see what it did.
    fn fence(&self) {
        full_fence();
        let Some(sections) = &self.sections else {
            return;
        };
        let few = (!self.is_fenced_at_once).then(|| self.with_sections().map(|(cpu, _)| cpu));
        sections.fence_many(few);
    }

    /// The lines on which claims are put in sections.
    fn with_sections(&self) -> impl Iterator<Item = (Cpu, &Line)> {
        let lines = self.lines.iter_by_cpu();
        lines.filter(|(_, line)| !line.gate.is_shut_for_good())
    }

    /// The frames that are claimed at a moment. Looks at the line of each CPU, and fences those
    /// that have sections.
    ///
    /// Of a page that no new claim holds since before this call, none that holds it is missed.
    pub fn frames(&self) -> impl Iterator<Item = Frame> {
        self.fence();
        self.frames_about_now()
    }

    /// [`Claims::frames`] of which some may be missed: for looking at.
    pub fn frames_about_now(&self) -> impl Iterator<Item = Frame> {
        let frame = |(_, packed)| Frame::unpack(packed).filter(|_| packed != PINNED);
        self.words().filter_map(frame)
    }

    /// All words with what is in them.
    fn words(&self) -> impl Iterator<Item = (&AtomicU32, u32)> {
        let words = self.lines.iter().flat_map(|line| &line.words);
        words.map(|word| (word, word.load(Ordering::Acquire)))
    }

    /// Claims on a frame at a moment, for looking at. Looks at the line of each CPU.
    #[must_use]
    pub fn nr_on(&self, frame: Frame) -> u32 {
        self.frames_about_now()
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
            self.make_pins(frames, &[frame], count);
        }
    }

    /// Makes pins of all claims on pages that were contended. The caller took `CONTENDED` away, and
    /// its pins keep others from taking the pages for themselves meanwhile. Looks at the line of
    /// each CPU, and fences those that have sections, once for all pages; two read-modify-writes
    /// for each claim.
    ///
    /// Of pins on a page that has left its file, `count` is told: of one more before its holder can
    /// know that it is one, of one less where there is no holder any more.
    #[cold]
    pub fn make_pins(&self, frames: &FrameTable, of: &[Frame], mut count: impl FnMut(bool)) {
        // Who gives up a claim in a section writes over what he saw there.
        let _shut = Shut::new(self);
        self.fence();
        for (word, claimed) in self.words() {
            let frame = Frame::unpack(claimed).filter(|_| claimed != PINNED);
            let Some(frame) = frame.filter(|frame| of.contains(frame)) else {
                continue;
            };
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

/// While it is there, claims are given up by read-modify-writes, once all CPUs were fenced.
struct Shut<'a>(&'a Claims);

impl Shut<'_> {
    fn new(claims: &Claims) -> Shut<'_> {
        for (_, line) in claims.with_sections() {
            line.gate.keep_shut();
        }
        Shut(claims)
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        for (_, line) in self.0.with_sections() {
            line.gate.let_go();
        }
    }
}
