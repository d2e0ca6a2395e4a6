//! A rack: magazines of one CPU, behind one lock.

use super::depot::{MAX_CHUNK, Share};
use super::magazine::Magazines;
use crate::frame::Form;
use crate::sync::is_unwinding;
use crate::sync::{AtomicU32, AtomicU64, Gate, Guard, Ordering, Sections, SpinLock, rank};
use crate::units::{Cpu, Frame, count, index};
use core::iter::once;

/// Magazines of a rack: one for blocks of a batch of pages or more, the others for smaller ones.
/// Their labels are one cache line.
const NR_MAGAZINES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };
/// Blocks that a magazine has room for.
pub(super) const MAX_BLOCKS: usize = index(ROOM);
/// The same, as blocks are counted.
pub(super) const ROOM: u32 = if cfg!(any(loom, shuttle)) { 8 } else { 64 };
/// Blocks of at least so many pages share one magazine.
const LARGE: u32 = crate::group::BATCH;
/// Where that is.
const LARGE_PLACE: usize = 0;

/// Where the magazine of a form is looked for first.
#[inline]
fn place(form: Form) -> usize {
    let order = (form.bits() >> 32) as u32;
    if order >= LARGE.ilog2() {
        return LARGE_PLACE;
    }
    // Numbers in a row are spread evenly. Source: Fibonacci hashing.
    let mixed = form.group().wrapping_add(order << 24);
    let hash = u64::from(mixed.wrapping_mul(0x9E37_79B9));
    1 + index(((hash * (NR_MAGAZINES as u64 - 1)) >> 32) as u32)
}

/// Whether blocks of a form are in the magazine of large ones.
pub(super) fn is_large(form: Form) -> bool {
    place(form) == LARGE_PLACE
}

/// What a magazine is for, how many blocks it may have and has, how many of these are the group's
/// own, and whether it was used since the last tick: form 40, room 8, count 8, own 7, used 1 bits.
/// 0: nothing.
///
/// Blocks whose bytes may not be the group's own lie below the others, so that who takes one of
/// those need not look at its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Label(u64);

const FORM_SHIFT: u32 = 24;
const _: () = assert!(FORM_SHIFT + Form::NR_BITS == u64::BITS);
const ROOM_SHIFT: u32 = 16;
const COUNT_SHIFT: u32 = 8;
const ONE: u64 = 1 << COUNT_SHIFT;
const OWN_SHIFT: u32 = 1;
const OWN: u64 = 1 << OWN_SHIFT;
const OWNS: u64 = 0x7F << OWN_SHIFT;
const _: () = assert!((ROOM as u64) < 1 << (COUNT_SHIFT - OWN_SHIFT));
const USED: u64 = 1;

impl Label {
    fn new(form: Form, room: u32) -> Label {
        Label(form.bits() << FORM_SHIFT | u64::from(room) << ROOM_SHIFT | USED)
    }

    #[inline]
    fn is_of(self, form: Form) -> bool {
        self.0 >> FORM_SHIFT == form.bits()
    }

    pub(super) fn form(self) -> Option<Form> {
        let form = Form::from_bits(self.0 >> FORM_SHIFT);
        (form.group() != 0).then_some(form)
    }

    #[inline]
    pub(super) fn count(self) -> usize {
        index((self.0 >> COUNT_SHIFT & 0xFF) as u32)
    }

    /// Of these, those that are nobody's.
    #[inline]
    fn nr_nobodys(self) -> usize {
        self.count() - index((self.0 >> OWN_SHIFT & 0x7F) as u32)
    }

    /// Whether the block that comes next is the group's own.
    #[inline]
    fn has_own(self) -> bool {
        self.0 & OWNS != 0
    }

    #[inline]
    fn room(self) -> usize {
        index((self.0 >> ROOM_SHIFT & 0xFF) as u32)
    }

    #[inline]
    pub(super) fn has_room(self) -> bool {
        self.count() < self.room()
    }

    /// Whether it was used since the last tick.
    pub(super) fn is_used(self) -> bool {
        self.0 & USED != 0
    }

    /// As after a tick.
    pub(super) fn unused(self) -> Label {
        Label(self.0 & !USED)
    }

    /// With a block more, of the group's own; there is room.
    #[inline]
    fn with_more(self) -> Label {
        self.with(1)
    }

    /// With so many blocks more, of the group's own; there is room.
    #[inline]
    fn with(self, nr_blocks: usize) -> Label {
        Label((self.0 + nr_blocks as u64 * (ONE + OWN)) | USED)
    }

    /// With so many of its blocks nobody's.
    fn with_nobodys(self, nr_blocks: usize) -> Label {
        let nr_own = (self.count() - nr_blocks) as u64;
        Label(self.0 & !OWNS | (nr_own * OWN))
    }

    /// With a block less, of those that are nobody's; there is one, and none of the group's own.
    #[inline]
    fn with_less_of_nobodys(self) -> Label {
        Label((self.0 - ONE) | USED)
    }

    /// With a block less, of the group's own; there is one.
    #[inline]
    fn with_less(self) -> Label {
        Label((self.0 - ONE - OWN) | USED)
    }
}

/// What a rack's lock guards, beside labels and slots.
#[derive(Debug)]
struct Blocks {
    /// Blocks taken less blocks given back by way of this rack, and those that wait in it: what
    /// goes from one to the other changes nothing.
    nr_kept: i64,
    /// Nobody has a handle of the memory any more.
    is_closed: bool,
}

/// Magazines of one CPU.
///
/// One block is taken or given in a restartable sequence of that CPU, where there are such; what
/// else is done to labels and slots is done with the lock held and the gate shut.
#[derive(Debug)]
#[repr(C, align(64))] // The labels are what is looked at first: one line, not two.
pub(super) struct Rack {
    /// Written as above, and looked at by anybody.
    labels: [AtomicU64; NR_MAGAZINES],
    gate: Gate,
    cpu: Cpu,
    sections: Option<Sections>,
    lock: SpinLock<Blocks, { rank::MAGAZINE }>,
    /// The frame in a magazine's last place was given back last.
    slots: [[AtomicU32; MAX_BLOCKS]; NR_MAGAZINES],
}

impl Rack {
    pub(super) fn new(cpu: Cpu, sections: Option<Sections>) -> Rack {
        Rack {
            labels: core::array::from_fn(|_| AtomicU64::new(0)),
            gate: Gate::default(),
            cpu,
            sections,
            lock: SpinLock::new(Blocks {
                nr_kept: 0,
                is_closed: false,
            }),
            slots: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU32::new(0))),
        }
    }

    /// Whether it is in somebody's hands. A look of a moment.
    pub(super) fn is_held(&self) -> bool {
        self.lock.is_held()
    }

    #[inline]
    fn label(&self, at: usize) -> Label {
        Label(self.labels[at].load(Ordering::Relaxed))
    }

    /// What all labels say. A look without the lock.
    pub(super) fn labels(&self) -> impl Iterator<Item = Label> + Clone {
        (0..NR_MAGAZINES).map(|at| self.label(at))
    }

    /// Where the magazine of a form is, and what its label says: at its own place, or wherever
    /// there was one.
    pub(super) fn find(&self, form: Form) -> Option<(usize, Label)> {
        self.find_own(form).or_else(|| {
            let mut labels = Rack::beside(place(form)).map(|at| (at, self.label(at)));
            labels.find(|(_, label)| label.is_of(form))
        })
    }

    /// The same, at its own place only.
    #[inline]
    fn find_own(&self, form: Form) -> Option<(usize, Label)> {
        let at = place(form);
        let label = self.label(at);
        label.is_of(form).then_some((at, label))
    }

    /// The places beside one: large blocks have none.
    fn beside(first: usize) -> impl Iterator<Item = usize> {
        let is_large = first == LARGE_PLACE;
        let end = if is_large { 1 } else { NR_MAGAZINES };
        (1..end).filter(move |&at| at != first)
    }

    /// A magazine that is empty, for a form that has none.
    pub(super) fn find_empty(&self, form: Form) -> Option<usize> {
        let first = place(form);
        let mut places = once(first).chain(Rack::beside(first));
        places.find(|&at| self.label(at).count() == 0)
    }

    #[inline]
    fn set_label(&self, at: usize, label: Label) {
        // Relaxed: the lock orders it, and a look without is of a moment.
        self.labels[at].store(label.0, Ordering::Relaxed);
    }

    /// A place in a magazine. Both numbers are in bounds: by the masks the compiler knows it, too.
    #[inline]
    fn slot(&self, at: usize, number: usize) -> &AtomicU32 {
        &self.slots[at % NR_MAGAZINES][number % MAX_BLOCKS]
    }

    #[inline]
    fn frame(&self, at: usize, number: usize) -> Frame {
        Frame::unpack(self.slot(at, number).load(Ordering::Relaxed)).unwrap_or(Frame::FIRST)
    }

    #[inline]
    fn set_frame(&self, at: usize, number: usize, frame: Frame) {
        let packed = Frame::pack(Some(frame));
        self.slot(at, number).store(packed, Ordering::Relaxed);
    }

    /// The frames of a magazine from a place on, into `frames`.
    fn copy_to(&self, at: usize, from: usize, frames: &mut [Frame]) {
        for (number, frame) in (from..).zip(frames) {
            *frame = self.frame(at, number);
        }
    }

    /// A block that is given back is not in its magazine already. Its record does not tell.
    #[inline]
    fn expect_out(&self, at: usize, label: Label, frame: Frame) {
        debug_assert!(
            (0..label.count()).all(|number| self.frame(at, number) != frame),
            "{frame:?} waits already"
        );
    }

    /// Takes a block of the group's own out of the magazine of a form at its own place, in a
    /// section, without a call.
    #[inline(always)]
    pub(super) fn take(&self, cpu: Cpu, form: Form) -> Option<Frame> {
        let sections = self.sections.as_ref()?;
        let (at, seen) = self.find_own(form)?;
        if !seen.has_own() {
            return None;
        }
        let left = seen.with_less();
        let label = (&self.labels[at], seen.0, left.0);
        let slot = self.slot(at, left.count());
        Frame::unpack(sections.take(cpu, &self.gate, label, slot))
    }

    /// Gives a block to the magazine of its form at its own place, in a section, without a call.
    #[inline(always)]
    pub(super) fn give(&self, cpu: Cpu, form: Form, frame: Frame) -> bool {
        let (Some(sections), Some((at, seen))) = (&self.sections, self.find_own(form)) else {
            return false;
        };
        if !seen.has_room() {
            return false;
        }
        let label = (&self.labels[at], seen.0, seen.with_more().0);
        let slot = (self.slot(at, seen.count()), Frame::pack(Some(frame)));
        sections.put(cpu, &self.gate, label, slot)
    }

    /// What [`Rack::take`] does, with the lock where there are no sections.
    #[inline]
    pub(super) fn take_briefly(&self, cpu: Cpu, form: Form) -> Option<Frame> {
        if self.sections.is_some() {
            return self.take(cpu, form);
        }
        let (at, seen) = self.find_own(form)?;
        let take = || {
            let left = seen.with_less();
            self.set_label(at, left);
            self.frame(at, left.count())
        };
        seen.has_own().then(|| self.change(at, seen, take))?
    }

    /// What [`Rack::give`] does, with the lock where there are no sections.
    #[inline]
    pub(super) fn give_briefly(&self, cpu: Cpu, form: Form, frame: Frame) -> bool {
        if self.sections.is_some() {
            return self.give(cpu, form, frame);
        }
        let Some((at, seen)) = self.find_own(form) else {
            return false;
        };
        let put = || {
            self.expect_out(at, seen, frame);
            self.set_frame(at, seen.count(), frame);
            self.set_label(at, seen.with_more());
        };
        seen.has_room() && self.change(at, seen, put).is_some()
    }

    /// Where nobody has the lock, and the label is what was seen.
    #[inline(always)]
    fn change<T>(&self, at: usize, seen: Label, change: impl FnOnce() -> T) -> Option<T> {
        let blocks = self.lock.try_brief()?;
        let may_change = !blocks.is_closed && self.label(at) == seen;
        let changed = may_change.then(change);
        blocks.open();
        changed
    }

    /// With the lock, keeps sections out, too.
    fn hold<'a>(&'a self, blocks: BlocksGuard<'a>) -> Held<'a> {
        if let Some(sections) = &self.sections {
            self.gate.shut(self.cpu, sections);
        }
        Held { rack: self, blocks }
    }

    /// No form has a magazine here, so that no section has anything to do.
    fn is_unused(&self) -> bool {
        self.labels().all(|label| label == Label::default())
    }

    /// Leaves magazines as `keep` says, empties those of which it says nothing; `out` gets what was
    /// in each, with no lock held. Waits for the lock.
    pub(super) fn empty(
        &self,
        keep: impl Fn(Label) -> Option<Label>,
        mut out: impl FnMut(Form, &[Frame]),
    ) {
        let mut frames = [Frame::FIRST; MAX_BLOCKS];
        let mut at = 0;
        while at < NR_MAGAZINES {
            let mut taken = Label::default();
            let blocks = self.lock.lock();
            if self.is_unused() {
                return;
            }
            let mut held = self.hold(blocks);
            while at < NR_MAGAZINES && taken.count() == 0 {
                let label = self.label(at);
                let kept = keep(label);
                self.set_label(at, kept.unwrap_or_default());
                if kept.is_none() {
                    taken = label;
                    self.copy_to(at, 0, &mut frames[..label.count()]);
                    held.blocks.nr_kept -= i64::from(count(label.count()));
                }
                at += 1;
            }
            drop(held);
            if let Some(form) = taken.form()
                && taken.count() > 0
            {
                out(form, &frames[..taken.count()]);
            }
        }
    }

    /// Nothing comes into it from now on, and what is out is counted elsewhere. Returns what is by
    /// this count.
    pub(super) fn close(&self) -> i64 {
        let mut blocks = self.lock.lock();
        blocks.is_closed = true;
        let mut held = self.hold(blocks);
        let waiting: usize = self.labels().map(Label::count).sum();
        let waiting = i64::from(count(waiting));
        let nr_kept = core::mem::replace(&mut held.blocks.nr_kept, waiting);
        nr_kept - waiting
    }

    /// Blocks that are out by this count, and those that wait.
    pub(super) fn nr_kept(&self) -> i64 {
        self.lock.lock().nr_kept
    }
}

type BlocksGuard<'a> = Guard<'a, Blocks, { rank::MAGAZINE }>;

/// A rack's lock, and its gate shut.
#[derive(Debug)]
struct Held<'a> {
    rack: &'a Rack,
    blocks: BlocksGuard<'a>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // What may be torn stays shut, as what is closed.
        if !self.blocks.is_closed && !is_unwinding() {
            self.rack.gate.open();
        }
    }
}

/// One rack of a CPU, locked.
#[derive(Debug)]
pub struct Open<'a> {
    magazines: &'a Magazines,
    cpu: Cpu,
    held: Held<'a>,
}

impl<'a> Open<'a> {
    /// A rack of a CPU; `None` where somebody has it just now, or it is closed.
    pub(super) fn try_new(magazines: &'a Magazines, cpu: Cpu, rack: &'a Rack) -> Option<Open<'a>> {
        let blocks = rack.lock.try_lock()?;
        if blocks.is_closed {
            return None;
        }
        let held = rack.hold(blocks);
        Some(Open {
            magazines,
            cpu,
            held,
        })
    }

    #[inline]
    fn rack(&self) -> &'a Rack {
        self.held.rack
    }

    /// Takes the block that was given back last; it is out now. Also says whether it is the group's
    /// own.
    pub fn pop(&mut self, form: Form) -> Option<(Frame, bool)> {
        let (at, label) = self.rack().find(form)?;
        if label.count() == 0 {
            return None;
        }
        let left = if label.has_own() {
            label.with_less()
        } else {
            label.with_less_of_nobodys()
        };
        self.rack().set_label(at, left);
        Some((self.rack().frame(at, left.count()), label.has_own()))
    }

    /// Keeps a block; false where its form has no magazine, or a full one.
    #[must_use]
    pub fn push(&mut self, form: Form, frame: Frame) -> bool {
        let Some((at, label)) = self.rack().find(form) else {
            return false;
        };
        if label.has_room() {
            let rack = self.rack();
            rack.expect_out(at, label, frame);
            rack.set_frame(at, label.count(), frame);
            rack.set_label(at, label.with_more());
            self.held.blocks.nr_kept += 1;
        }
        label.has_room()
    }

    /// Keeps as many blocks of a form as there is room for, the first ones, of which `nr_nobodys`
    /// are nobody's; returns how many.
    #[must_use]
    pub fn push_many(&mut self, form: Form, frames: &[Frame], nr_nobodys: usize) -> usize {
        let Some((at, label)) = self.rack().find(form) else {
            return 0;
        };
        let from = label.count();
        let nr_kept = frames.len().min(label.room().saturating_sub(from));
        for (number, &frame) in (from..).zip(&frames[..nr_kept]) {
            self.rack().set_frame(at, number, frame);
        }
        let mut label = label.with(nr_kept);
        if nr_nobodys > 0 {
            // Whatever lies below is taken for that, too.
            label = label.with_nobodys(from + nr_nobodys.min(nr_kept));
        }
        self.rack().set_label(at, label);
        self.held.blocks.nr_kept += i64::from(count(nr_kept));
        nr_kept
    }

    /// One block more is out.
    pub fn count_out(&mut self) {
        self.held.blocks.nr_kept += 1;
    }

    /// One block less is out.
    pub fn count_in(&mut self) {
        self.held.blocks.nr_kept -= 1;
    }

    /// Where the magazine of this form is, which an empty one becomes with `room`.
    pub fn make_own(&mut self, form: Form, room: impl FnOnce() -> u32) -> Option<usize> {
        if let Some((at, _)) = self.rack().find(form) {
            return Some(at);
        }
        let room = room();
        if room == 0 {
            return None;
        }
        let at = self.rack().find_empty(form)?;
        self.rack().set_label(at, Label::new(form, room));
        self.magazines.note_used(at == LARGE_PLACE);
        Some(at)
    }

    /// Takes a block that was in the depot, the CPU's own part of it or that of one near, and more
    /// of them for the magazine, which an empty one becomes with `room`.
    pub fn pop_stored(
        &mut self,
        form: Form,
        is_near: impl Fn(Cpu) -> bool,
        room: impl FnOnce() -> u32,
    ) -> Option<(Frame, bool)> {
        let at = self.make_own(form, room)?;
        let label = self.rack().label(at);
        if label.count() == 0 {
            let mut frames = [Frame::FIRST; MAX_BLOCKS];
            let places = &mut frames[..label.room()];
            let own = (self.cpu, self.magazines.depot(self.cpu));
            let near = self.magazines.depots().filter(|&(cpu, _)| is_near(cpu));
            let mut takes = once(own)
                .chain(near)
                .map(|(_, depot)| depot.take(form, places));
            let nr_taken = takes.find(|&nr_taken| nr_taken > 0).unwrap_or(0);
            drop(takes);
            let nr_pushed = self.push_many(form, &frames[..nr_taken], 0);
            debug_assert_eq!(nr_pushed, nr_taken);
        }
        self.pop(form)
    }

    /// Sees to it that there is room: an empty magazine becomes one of this form with `room`, of a
    /// full one the half that was given back first goes to the depot, if that is within `share` and
    /// no block of it nobody's, else to `cold`. Returns how many went there, `None` where there is
    /// no room.
    pub fn make_room(
        &mut self,
        form: Form,
        room: impl FnOnce() -> u32,
        share: impl FnOnce() -> Share,
        cold: &mut [Frame; MAX_CHUNK],
    ) -> Option<usize> {
        let at = self.make_own(form, room)?;
        let label = self.rack().label(at);
        if label.has_room() {
            return Some(0);
        }
        // One of one, too.
        let nr_cold = label.count().div_ceil(2);
        let rack = self.rack();
        rack.copy_to(at, 0, &mut cold[..nr_cold]);
        for number in nr_cold..label.count() {
            rack.set_frame(at, number - nr_cold, rack.frame(at, number));
        }
        self.held.blocks.nr_kept -= i64::from(count(nr_cold));
        let left = Label(label.0 - nr_cold as u64 * ONE);
        let nr_nobodys = label.nr_nobodys();
        let left = left.with_nobodys(nr_nobodys.saturating_sub(nr_cold));
        self.rack().set_label(at, left);
        // Under this lock: whoever drains goes to the depot when all racks are done.
        let depot = self.magazines.depot(self.cpu);
        let is_kept = nr_nobodys == 0 && depot.put(form, &cold[..nr_cold], share());
        if is_kept {
            self.magazines.note_stored();
        }
        Some(if is_kept { 0 } else { nr_cold })
    }
}
