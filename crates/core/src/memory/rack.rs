//! A rack: magazines of one CPU, behind one lock.

use super::depot::{MAX_CHUNK, Share};
use super::magazine::Magazines;
use crate::frame::Form;
use crate::sync::{AtomicU64, Guard, Ordering, SpinLock, rank};
use crate::units::{Cpu, Frame, count, index};
use core::iter::once;

/// Magazines of a rack: one for blocks of a batch of pages or more, the others for smaller ones.
/// Their labels are one cache line.
const NR_MAGAZINES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };
/// Blocks that a magazine has room for.
pub(super) const MAX_BLOCKS: usize = index(ROOM);
/// The same, as blocks are counted.
pub(super) const ROOM: u32 = 64;
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

/// What a magazine is for, how many blocks it may have and has, how many of these are nobody's, and
/// whether it was used since the last tick: form 40, room 8, count 8, nobody's 7, used 1 bits. 0:
/// nothing.
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
const NOBODYS_SHIFT: u32 = 1;
const NOBODY: u64 = 1 << NOBODYS_SHIFT;
const _: () = assert!((ROOM as u64) < 1 << (COUNT_SHIFT - NOBODYS_SHIFT));
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
        index((self.0 >> NOBODYS_SHIFT & 0x7F) as u32)
    }

    /// Whether the block that comes next is the group's own.
    #[inline]
    fn has_own(self) -> bool {
        self.count() > self.nr_nobodys()
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

    /// With a block more; there is room.
    #[inline]
    fn with_more(self) -> Label {
        self.with(1)
    }

    /// With so many blocks more; there is room.
    #[inline]
    fn with(self, nr_blocks: usize) -> Label {
        Label((self.0 + nr_blocks as u64 * ONE) | USED)
    }

    /// With so many of its blocks nobody's.
    fn with_nobodys(self, nr_blocks: usize) -> Label {
        Label(self.0 & !(0x7F << NOBODYS_SHIFT) | (nr_blocks as u64 * NOBODY))
    }

    /// With a block less, of the group's own; there is one.
    #[inline]
    fn with_less(self) -> Label {
        Label((self.0 - ONE) | USED)
    }
}

/// What a rack's lock guards, beside the labels.
#[derive(Debug)]
struct Blocks {
    /// Blocks taken less blocks given back by way of this rack.
    nr_out: i64,
    /// Nobody has a handle of the memory any more.
    is_closed: bool,
    /// The one given back last is the last one.
    blocks: [[Frame; MAX_BLOCKS]; NR_MAGAZINES],
}

impl Blocks {
    /// A place in a magazine. Both numbers are in bounds: by the masks the compiler knows it, too.
    #[inline]
    fn place(&mut self, at: usize, number: usize) -> &mut Frame {
        &mut self.blocks[at % NR_MAGAZINES][number % MAX_BLOCKS]
    }

    /// A block that is given back is not in its magazine already. Its record does not tell.
    #[inline]
    fn expect_out(&self, at: usize, label: Label, frame: Frame) {
        debug_assert!(
            !self.blocks[at][..label.count()].contains(&frame),
            "{frame:?} waits already"
        );
    }
}

/// Magazines of one CPU.
#[derive(Debug)]
#[repr(C, align(64))] // The labels are what is looked at first: one line, not two.
pub(super) struct Rack {
    /// Written under the lock, and looked at without.
    labels: [AtomicU64; NR_MAGAZINES],
    lock: SpinLock<Blocks, { rank::MAGAZINE }>,
}

impl Rack {
    pub(super) fn new() -> Rack {
        Rack {
            lock: SpinLock::new(Blocks {
                nr_out: 0,
                is_closed: false,
                blocks: [[Frame::FIRST; MAX_BLOCKS]; NR_MAGAZINES],
            }),
            labels: core::array::from_fn(|_| AtomicU64::new(0)),
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

    /// Takes a block of the group's own out of the magazine of a form at its own place, without a
    /// call.
    #[inline(always)]
    pub(super) fn take(&self, form: Form) -> Option<Frame> {
        let (at, seen) = self.find_own(form)?;
        if !seen.has_own() {
            return None;
        }
        let mut blocks = self.lock.try_brief()?;
        let mut taken = None;
        if !blocks.is_closed && self.label(at) == seen {
            let left = seen.with_less();
            self.set_label(at, left);
            blocks.nr_out += 1;
            taken = Some(*blocks.place(at, left.count()));
        }
        blocks.open();
        taken
    }

    /// Gives a block to the magazine of its form at its own place, without a call.
    #[inline(always)]
    pub(super) fn give(&self, form: Form, frame: Frame) -> bool {
        let Some((at, seen)) = self.find_own(form) else {
            return false;
        };
        if !seen.has_room() {
            return false;
        }
        let Some(mut blocks) = self.lock.try_brief() else {
            return false;
        };
        let is_kept = !blocks.is_closed && self.label(at) == seen;
        if is_kept {
            blocks.expect_out(at, seen, frame);
            *blocks.place(at, seen.count()) = frame;
            self.set_label(at, seen.with_more());
            blocks.nr_out -= 1;
        }
        blocks.open();
        is_kept
    }

    /// Leaves magazines as `keep` says, empties those of which it says nothing; `out` gets what was
    /// in each, with no lock held. Waits for the lock.
    pub(super) fn empty(
        &self,
        keep: impl Fn(Label) -> Option<Label>,
        mut out: impl FnMut(Form, &[Frame]),
    ) {
        let mut at = 0;
        while at < NR_MAGAZINES {
            let mut taken = None;
            let blocks = self.lock.lock();
            while at < NR_MAGAZINES && taken.is_none() {
                let label = self.label(at);
                let kept = keep(label);
                self.set_label(at, kept.unwrap_or_default());
                if kept.is_none() && label.count() > 0 {
                    taken = Some((label, blocks.blocks[at]));
                }
                at += 1;
            }
            drop(blocks);
            if let Some((label, blocks)) = taken
                && let Some(form) = label.form()
            {
                out(form, &blocks[..label.count()]);
            }
        }
    }

    /// Nothing comes into it from now on, and what is out is counted elsewhere. Returns what is by
    /// this count.
    pub(super) fn close(&self) -> i64 {
        let mut blocks = self.lock.lock();
        blocks.is_closed = true;
        core::mem::take(&mut blocks.nr_out)
    }

    /// Blocks that are out by this count, and those that wait: what goes from one to the other
    /// meanwhile is in it once.
    pub(super) fn nr_kept(&self) -> i64 {
        let blocks = self.lock.lock();
        let waiting: usize = self.labels().map(Label::count).sum();
        blocks.nr_out + i64::from(count(waiting))
    }
}

/// One rack of a CPU, locked.
#[derive(Debug)]
pub struct Open<'a> {
    magazines: &'a Magazines,
    cpu: Cpu,
    rack: &'a Rack,
    blocks: Guard<'a, Blocks, { rank::MAGAZINE }>,
}

impl<'a> Open<'a> {
    /// A rack of a CPU; `None` where somebody has it just now, or it is closed.
    pub(super) fn try_new(magazines: &'a Magazines, cpu: Cpu, rack: &'a Rack) -> Option<Open<'a>> {
        let blocks = rack.lock.try_lock()?;
        (!blocks.is_closed).then_some(Open {
            magazines,
            cpu,
            rack,
            blocks,
        })
    }

    /// Takes the block that was given back last; it is out now. Also says whether it is the group's
    /// own.
    pub fn pop(&mut self, form: Form) -> Option<(Frame, bool)> {
        let (at, label) = self.rack.find(form)?;
        if label.count() == 0 {
            return None;
        }
        let mut left = label.with_less();
        if !label.has_own() {
            left = left.with_nobodys(left.count());
        }
        self.rack.set_label(at, left);
        self.blocks.nr_out += 1;
        Some((*self.blocks.place(at, left.count()), label.has_own()))
    }

    /// Keeps a block; false where its form has no magazine, or a full one.
    #[must_use]
    pub fn push(&mut self, form: Form, frame: Frame) -> bool {
        let Some((at, label)) = self.rack.find(form) else {
            return false;
        };
        if label.has_room() {
            self.blocks.expect_out(at, label, frame);
            *self.blocks.place(at, label.count()) = frame;
            self.rack.set_label(at, label.with_more());
        }
        label.has_room()
    }

    /// Keeps as many blocks of a form as there is room for, the first ones, of which `nr_nobodys`
    /// are nobody's; returns how many.
    #[must_use]
    pub fn push_many(&mut self, form: Form, frames: &[Frame], nr_nobodys: usize) -> usize {
        let Some((at, label)) = self.rack.find(form) else {
            return 0;
        };
        let from = label.count();
        let nr_kept = frames.len().min(label.room().saturating_sub(from));
        let places = &mut self.blocks.blocks[at][from..from + nr_kept];
        places.copy_from_slice(&frames[..nr_kept]);
        let mut label = label.with(nr_kept);
        if nr_nobodys > 0 {
            // Whatever lies below is taken for that, too.
            label = label.with_nobodys(from + nr_nobodys.min(nr_kept));
        }
        self.rack.set_label(at, label);
        nr_kept
    }

    /// One block more is out.
    pub fn count_out(&mut self) {
        self.blocks.nr_out += 1;
    }

    /// One block less is out.
    pub fn count_in(&mut self) {
        self.blocks.nr_out -= 1;
    }

    /// Where the magazine of this form is, which an empty one becomes with `room`.
    pub fn make_own(&mut self, form: Form, room: impl FnOnce() -> u32) -> Option<usize> {
        if let Some((at, _)) = self.rack.find(form) {
            return Some(at);
        }
        let room = room();
        if room == 0 {
            return None;
        }
        let at = self.rack.find_empty(form)?;
        self.rack.set_label(at, Label::new(form, room));
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
        let label = self.rack.label(at);
        if label.count() == 0 {
            let places = &mut self.blocks.blocks[at][..label.room()];
            let own = (self.cpu, self.magazines.depot(self.cpu));
            let near = self.magazines.depots().filter(|&(cpu, _)| is_near(cpu));
            let mut takes = once(own)
                .chain(near)
                .map(|(_, depot)| depot.take(form, places));
            let nr_taken = takes.find(|&nr_taken| nr_taken > 0).unwrap_or(0);
            self.rack.set_label(at, label.with(nr_taken));
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
        let label = self.rack.label(at);
        if label.has_room() {
            return Some(0);
        }
        // One of one, too.
        let nr_cold = label.count().div_ceil(2);
        let blocks = &mut self.blocks.blocks[at];
        cold[..nr_cold].copy_from_slice(&blocks[..nr_cold]);
        blocks.copy_within(nr_cold..label.count(), 0);
        let left = Label(label.0 - nr_cold as u64 * ONE);
        let nr_nobodys = label.nr_nobodys();
        let left = left.with_nobodys(nr_nobodys.saturating_sub(nr_cold));
        self.rack.set_label(at, left);
        // Under this lock: whoever drains goes to the depot when all racks are done.
        let depot = self.magazines.depot(self.cpu);
        let is_kept = nr_nobodys == 0 && depot.put(form, &cold[..nr_cold], share());
        if is_kept {
            self.magazines.note_stored();
        }
        Some(if is_kept { 0 } else { nr_cold })
    }
}
