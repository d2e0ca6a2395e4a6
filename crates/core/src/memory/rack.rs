//! A rack: magazines of one CPU, behind one lock.

use super::depot::{MAX_CHUNK, Share};
use super::label::Label;
use super::magazine::Magazines;
use crate::frame::Form;
use crate::sync::is_unwinding;
use crate::sync::{AtomicU32, AtomicU64, Gate, Guard, OnCpu, Ordering, Sections, SpinLock, rank};
use crate::units::{Cpu, Frame, count, index};
use core::hint::select_unpredictable;
use core::iter::once;

/// Magazines of a rack for blocks of less than a batch of pages: their labels are one cache line.
const NR_SMALL: usize = if cfg!(any(loom, shuttle)) { 1 } else { 8 };
/// All of them: one more for larger blocks.
const NR_MAGAZINES: usize = NR_SMALL + 1;
/// Blocks that a magazine has room for.
pub(super) const MAX_BLOCKS: usize = index(ROOM);
/// The same, as blocks are counted.
pub(super) const ROOM: u32 = if cfg!(any(loom, shuttle)) { 8 } else { 64 };
/// Blocks of at least so many pages share one magazine.
const LARGE: u32 = crate::group::BATCH;
/// Where that is.
const LARGE_PLACE: usize = NR_SMALL;

/// Where the magazine of a form is looked for first.
#[inline]
fn place(form: Form) -> usize {
    let order = (form.bits() >> 32) as u32;
    // Groups in a row lie apart, and so do the small orders of one group.
    let small = index(form.group().wrapping_add(3 * order)) % NR_SMALL;
    select_unpredictable(order >= LARGE.ilog2(), LARGE_PLACE, small)
}

/// Whether blocks of a form are in the magazine of large ones.
pub(super) fn is_large(form: Form) -> bool {
    place(form) == LARGE_PLACE
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
    /// Of a CPU without sections shut for good.
    gate: Gate,
    cpu: Cpu,
    sections: Option<Sections>,
    lock: SpinLock<Blocks, { rank::MAGAZINE }>,
    /// Those of a magazine are the last ones, as many as it has room for; filled from the first on.
    slots: [[AtomicU32; MAX_BLOCKS]; NR_MAGAZINES],
}

impl Rack {
    pub(super) fn new(cpu: Cpu, sections: Option<Sections>) -> Rack {
        Rack {
            labels: core::array::from_fn(|_| AtomicU64::new(0)),
            gate: Gate::new(sections.is_some()),
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
        Label::from_bits(self.labels[at].load(Ordering::Relaxed))
    }

    /// What all labels say. A look without the lock.
    pub(super) fn labels(&self) -> impl Iterator<Item = Label> + Clone {
        (0..NR_MAGAZINES).map(|at| self.label(at))
    }

    /// A form's own place, and what the label there says.
    #[inline(always)]
    fn at_hand(&self, form: Form) -> (usize, Label) {
        let at = place(form);
        (at, self.label(at))
    }

    /// Where the magazine of a form is, and what its label says: at its own place, or wherever
    /// there was one.
    pub(super) fn find(&self, form: Form) -> Option<(usize, Label)> {
        let first = place(form);
        let places = once(first).chain(Rack::beside(first));
        let mut labels = places.map(|at| (at, self.label(at)));
        labels.find(|(_, label)| label.is_of(form))
    }

    /// The places beside one: large blocks have none.
    fn beside(first: usize) -> impl Iterator<Item = usize> {
        let is_large = first == LARGE_PLACE;
        let end = if is_large { 0 } else { NR_SMALL };
        (0..end).filter(move |&at| at != first)
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
        self.labels[at].store(label.bits(), Ordering::Relaxed);
    }

    /// A slot of a magazine: the number is in bounds, and by the mask the compiler knows it, too.
    #[inline]
    fn slot(&self, at: usize, number: usize) -> &AtomicU32 {
        &self.slots[at][number % MAX_BLOCKS]
    }

    #[inline]
    fn frame(&self, at: usize, slot: usize) -> Frame {
        Frame::unpack(self.slot(at, slot).load(Ordering::Relaxed)).unwrap_or(Frame::FIRST)
    }

    #[inline]
    fn set_frame(&self, at: usize, slot: usize, frame: Frame) {
        let packed = Frame::pack(Some(frame));
        self.slot(at, slot).store(packed, Ordering::Relaxed);
    }

    /// The frames of a magazine, those first that were given back first, as many as there is place
    /// for in `frames`.
    fn copy_to(&self, at: usize, label: Label, frames: &mut [Frame]) {
        for (number, frame) in (0..label.count()).zip(frames) {
            *frame = self.frame(at, label.slot_of(number));
        }
    }

    /// A block that is given back is not in its magazine already. Its record does not tell.
    #[inline]
    fn expect_out(&self, at: usize, label: Label, frame: Frame) {
        debug_assert!(
            (0..label.count()).all(|number| self.frame(at, label.slot_of(number)) != frame),
            "{frame:?} waits already"
        );
    }

    /// Takes a block of the group's own out of the magazine of a form at its own place, in a
    /// section, without a call.
    #[inline(always)]
    pub(super) fn take(&self, on: &OnCpu, form: Form) -> Option<Frame> {
        let (at, seen) = self.at_hand(form);
        if !seen.has_own_for(form) {
            return None;
        }
        let less = seen.with_less();
        let label = (&self.labels[at], seen.bits(), less.bits());
        let slot = self.slot(at, less.next());
        Frame::unpack(on.take(&self.gate, label, slot))
    }

    /// Gives a block to the magazine of its form at its own place, in a section, without a call.
    #[inline(always)]
    pub(super) fn give(&self, on: &OnCpu, form: Form, frame: Frame) -> bool {
        let (at, seen) = self.at_hand(form);
        if !seen.has_room_for(form) {
            return false;
        }
        let label = (&self.labels[at], seen.bits(), seen.with_more().bits());
        let slot = (self.slot(at, seen.next()), Frame::pack(Some(frame)));
        on.put(&self.gate, label, slot)
    }

    /// What [`Rack::take`] does, with the lock where there are no sections. Sections are the rack's
    /// CPU's: a thread on another one, as which it may be here, runs none.
    #[inline]
    pub(super) fn take_briefly(&self, form: Form) -> Option<Frame> {
        if let Some(sections) = &self.sections {
            return self.take(&sections.on(self.cpu), form);
        }
        let (at, seen) = self.at_hand(form);
        let take = || {
            let less = seen.with_less();
            self.set_label(at, less);
            self.frame(at, less.next())
        };
        seen.has_own_for(form)
            .then(|| self.change(at, seen, take))?
    }

    /// What [`Rack::give`] does, as [`Rack::take_briefly`].
    #[inline]
    pub(super) fn give_briefly(&self, form: Form, frame: Frame) -> bool {
        if let Some(sections) = &self.sections {
            return self.give(&sections.on(self.cpu), form, frame);
        }
        let (at, seen) = self.at_hand(form);
        let put = || {
            self.expect_out(at, seen, frame);
            self.set_frame(at, seen.next(), frame);
            self.set_label(at, seen.with_more());
        };
        seen.has_room_for(form) && self.change(at, seen, put).is_some()
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
                    self.copy_to(at, label, &mut frames);
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
        let may_open = self.rack.sections.is_some() && !self.blocks.is_closed;
        if may_open && !is_unwinding() {
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
        let left = match label.has_own() {
            true => label.with_less(),
            false => label.without(1),
        };
        self.rack().set_label(at, left.used());
        Some((self.rack().frame(at, left.next()), label.has_own()))
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
            rack.set_frame(at, label.next(), frame);
            rack.set_label(at, label.with_more().used());
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
            self.rack().set_frame(at, label.slot_of(number), frame);
        }
        let mut label = label.with(nr_kept).used();
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
        rack.copy_to(at, label, &mut cold[..nr_cold]);
        for number in nr_cold..label.count() {
            let frame = rack.frame(at, label.slot_of(number));
            rack.set_frame(at, label.slot_of(number - nr_cold), frame);
        }
        self.held.blocks.nr_kept -= i64::from(count(nr_cold));
        let left = label.without(nr_cold);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_without_sections_never_opens_the_gate_to_them() {
        let rack = Rack::new(Cpu::new(0), None);
        assert!(rack.gate.is_shut_for_good());
        drop(rack.hold(rack.lock.lock()));
        assert!(rack.gate.is_shut_for_good());
    }
}
