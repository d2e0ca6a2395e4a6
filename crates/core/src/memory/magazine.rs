//! Magazines: blocks of working memory close to one CPU, charged to their group already.
//!
//! A pair of taking and freeing is an exchange for each side then: the CPU's lock. Beside it stands
//! a count of what is out, so that working memory is in no other count.
//!
//! Source: Bonwick and Adams 2001, "Magazines and Vmem". Changed: a magazine is of one group, whose
//! charge comes with its blocks; a CPU has one of each kind, and half of it is exchanged at once in
//! the place of a second one; there is no depot, because stocks and per-CPU page caches are one.

use crate::frame::{Form, Record};
use crate::sync::{AtomicU32, AtomicU64, Guard, NoMetadata, Ordering, PerCpu, SpinLock, rank};
use crate::units::{Cpu, Frame, index};

/// Magazines of a CPU: one for blocks of a batch of pages or more, the others for smaller ones.
/// Their labels are one cache line.
const NR_MAGAZINES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };
/// Blocks that a magazine has room for.
pub const MAX_BLOCKS: usize = index(ROOM);
/// The same, as blocks are counted.
pub const ROOM: u32 = 32;
/// Blocks of at least so many pages share one magazine.
const LARGE: u32 = crate::group::BATCH;

/// Where the magazine of a form is looked for first.
#[inline]
fn place(form: Form) -> usize {
    let order = (form.bits() >> 32) as u32;
    if order >= LARGE.ilog2() {
        return 0;
    }
    // Numbers in a row are spread evenly. Source: Fibonacci hashing.
    let mixed = form.group().wrapping_add(order << 24);
    let hash = u64::from(mixed.wrapping_mul(0x9E37_79B9));
    1 + index(((hash * (NR_MAGAZINES as u64 - 1)) >> 32) as u32)
}

/// What a magazine is for, how many blocks it may have and has, and whether it was used since the
/// last tick: form 40, room 8, count 8, used 8 bits. 0: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Label(u64);

const FORM_SHIFT: u32 = 24;
const _: () = assert!(FORM_SHIFT + Form::NR_BITS == u64::BITS);
const ROOM_SHIFT: u32 = 16;
const COUNT_SHIFT: u32 = 8;
const ONE: u64 = 1 << COUNT_SHIFT;
const USED: u64 = 1;

impl Label {
    fn new(form: Form, room: u32) -> Label {
        Label(form.bits() << FORM_SHIFT | u64::from(room) << ROOM_SHIFT | USED)
    }

    #[inline]
    fn is_of(self, form: Form) -> bool {
        self.0 >> FORM_SHIFT == form.bits()
    }

    fn form(self) -> Option<Form> {
        let form = Form::from_bits(self.0 >> FORM_SHIFT);
        (form.group() != 0).then_some(form)
    }

    #[inline]
    fn count(self) -> usize {
        index((self.0 >> COUNT_SHIFT & 0xFF) as u32)
    }

    #[inline]
    fn room(self) -> usize {
        index((self.0 >> ROOM_SHIFT & 0xFF) as u32)
    }

    #[inline]
    fn has_room(self) -> bool {
        self.count() < self.room()
    }

    /// With a block more; there is room.
    #[inline]
    fn with_more(self) -> Label {
        Label((self.0 + ONE) | USED)
    }

    /// With a block less; there is one.
    #[inline]
    fn with_less(self) -> Label {
        Label((self.0 - ONE) | USED)
    }
}

/// What a CPU's lock guards, beside the labels.
#[derive(Debug)]
struct Blocks {
    /// Blocks taken less blocks given back on this CPU.
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
}

/// The magazines of one CPU.
#[derive(Debug)]
struct Rack {
    lock: SpinLock<Blocks, { rank::MAGAZINE }>,
    /// Written under the lock, and looked at without.
    labels: [AtomicU64; NR_MAGAZINES],
}

impl Rack {
    fn new() -> Rack {
        Rack {
            lock: SpinLock::new(Blocks {
                nr_out: 0,
                is_closed: false,
                blocks: [[Frame::FIRST; MAX_BLOCKS]; NR_MAGAZINES],
            }),
            labels: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[inline]
    fn label(&self, at: usize) -> Label {
        Label(self.labels[at].load(Ordering::Relaxed))
    }

    /// Where the magazine of a form is, and what its label says: at its own place, or wherever
    /// there was one.
    fn find(&self, form: Form) -> Option<(usize, Label)> {
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
        let end = if first == 0 { 1 } else { NR_MAGAZINES };
        (1..end).filter(move |&at| at != first)
    }

    /// A magazine that is empty, for a form that has none.
    fn find_empty(&self, form: Form) -> Option<usize> {
        let first = place(form);
        let mut places = core::iter::once(first).chain(Rack::beside(first));
        places.find(|&at| self.label(at).count() == 0)
    }

    #[inline]
    fn set_label(&self, at: usize, label: Label) {
        // Relaxed: the lock orders it, and a look without is of a moment.
        self.labels[at].store(label.0, Ordering::Relaxed);
    }
}

/// The magazines of all CPUs.
#[derive(Debug)]
pub struct Magazines {
    cpus: PerCpu<Rack>,
    /// 1 once there was a block in any.
    is_used: AtomicU32,
}

/// A CPU's magazines, locked.
#[derive(Debug)]
pub struct Open<'a> {
    magazines: &'a Magazines,
    rack: &'a Rack,
    blocks: Guard<'a, Blocks, { rank::MAGAZINE }>,
}

impl Open<'_> {
    /// Takes the block that was given back last; it is out now.
    pub fn pop(&mut self, form: Form) -> Option<Frame> {
        let (at, label) = self.rack.find(form)?;
        if label.count() == 0 {
            return None;
        }
        let left = label.with_less();
        self.rack.set_label(at, left);
        self.blocks.nr_out += 1;
        Some(*self.blocks.place(at, left.count()))
    }

    /// Keeps a block; false where its form has no magazine, or a full one.
    #[must_use]
    pub fn push(&mut self, form: Form, frame: Frame) -> bool {
        let Some((at, label)) = self.rack.find(form) else {
            return false;
        };
        if label.has_room() {
            *self.blocks.place(at, label.count()) = frame;
            self.rack.set_label(at, label.with_more());
        }
        label.has_room()
    }

    /// Keeps as many blocks of a form as there is room for, the first ones; returns how many.
    #[must_use]
    pub fn push_many(&mut self, form: Form, frames: &[Frame]) -> usize {
        let Some((at, label)) = self.rack.find(form) else {
            return 0;
        };
        let from = label.count();
        let nr_kept = frames.len().min(label.room().saturating_sub(from));
        let places = &mut self.blocks.blocks[at][from..from + nr_kept];
        places.copy_from_slice(&frames[..nr_kept]);
        self.rack
            .set_label(at, Label((label.0 + nr_kept as u64 * ONE) | USED));
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
    pub fn make_own(&mut self, form: Form, room: u32) -> Option<usize> {
        let own = self.rack.find(form).map(|(at, _)| at);
        if own.is_some() || room == 0 {
            return own;
        }
        let at = self.rack.find_empty(form)?;
        self.rack.set_label(at, Label::new(form, room));
        // No read-modify-write: it becomes 1 once.
        if self.magazines.is_used.load(Ordering::Relaxed) == 0 {
            self.magazines.is_used.store(1, Ordering::Relaxed);
        }
        Some(at)
    }

    /// Sees to it that there is room: an empty magazine becomes one of this form with `room`, of a
    /// full one the half that was given back first goes to `cold`. Returns how many did, `None`
    /// where there is no room.
    pub fn make_room(
        &mut self,
        form: Form,
        room: u32,
        cold: &mut [Frame; MAX_BLOCKS],
    ) -> Option<usize> {
        let at = self.make_own(form, room)?;
        let label = self.rack.label(at);
        if label.has_room() {
            return Some(0);
        }
        let nr_cold = label.count() / 2;
        if nr_cold == 0 {
            return None;
        }
        let blocks = &mut self.blocks.blocks[at];
        cold[..nr_cold].copy_from_slice(&blocks[..nr_cold]);
        blocks.copy_within(nr_cold..label.count(), 0);
        self.rack
            .set_label(at, Label(label.0 - nr_cold as u64 * ONE));
        Some(nr_cold)
    }
}

impl Magazines {
    /// Bytes that [`Magazines::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_cpus: u32) -> usize {
        PerCpu::<Rack>::bytes(nr_cpus)
    }

    /// Empty ones.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_cpus: u32) -> Result<Magazines, NoMetadata> {
        Ok(Magazines {
            cpus: PerCpu::try_new(nr_cpus, Rack::new)?,
            is_used: AtomicU32::new(0),
        })
    }

    /// Takes the block of a form that was given back last on a CPU; it is out now. `None` where its
    /// magazine has none, is not at its own place, or in somebody's hands just now.
    ///
    /// One read-modify-write, and no call, for which callers would save registers each time.
    #[inline(always)]
    #[must_use]
    pub fn take(&self, cpu: Cpu, form: Form) -> Option<Frame> {
        let rack = self.cpus.get(cpu)?;
        let (at, seen) = rack.find_own(form)?;
        if seen.count() == 0 {
            return None;
        }
        let mut blocks = rack.lock.try_brief()?;
        let mut taken = None;
        if !blocks.is_closed && rack.label(at) == seen {
            let left = seen.with_less();
            rack.set_label(at, left);
            blocks.nr_out += 1;
            taken = Some(*blocks.place(at, left.count()));
        }
        blocks.open();
        taken
    }

    /// Gives a block back to the magazine of its form; false where that has no room, is not at its
    /// own place, or in somebody's hands just now. Otherwise its record says so, and then it is out
    /// no more: whoever has the lock next may take all away.
    ///
    /// As [`Magazines::take`]: one read-modify-write, and no call.
    #[inline(always)]
    #[must_use]
    pub fn give(&self, cpu: Cpu, form: Form, frame: Frame, record: Record<'_>) -> bool {
        let Some(rack) = self.cpus.get(cpu) else {
            return false;
        };
        let Some((at, seen)) = rack.find_own(form) else {
            return false;
        };
        if !seen.has_room() {
            return false;
        }
        let Some(mut blocks) = rack.lock.try_brief() else {
            return false;
        };
        let is_kept = !blocks.is_closed && rack.label(at) == seen;
        if is_kept {
            *blocks.place(at, seen.count()) = frame;
            rack.set_label(at, seen.with_more());
            record.enter_magazine(form);
            blocks.nr_out -= 1;
        }
        blocks.open();
        is_kept
    }

    /// Whether a CPU has a block of a form. A look without a lock.
    #[must_use]
    pub fn has(&self, cpu: Cpu, form: Form) -> bool {
        let found = self.cpus.of(cpu).find(form);
        found.is_some_and(|(_, label)| label.count() > 0)
    }

    /// Whether a CPU has room for a block of a form. A look without a lock.
    #[must_use]
    pub fn has_room(&self, cpu: Cpu, form: Form) -> bool {
        let found = self.cpus.of(cpu).find(form);
        found.is_some_and(|(_, label)| label.has_room())
    }

    /// Whether a CPU has a magazine for a form, or an empty one. A look without a lock.
    #[must_use]
    pub fn takes(&self, cpu: Cpu, form: Form) -> bool {
        let rack = self.cpus.of(cpu);
        rack.find(form).is_some() || rack.find_empty(form).is_some()
    }

    /// A CPU's magazines; `None` where somebody has them just now, or they are closed.
    #[must_use]
    pub fn open(&self, cpu: Cpu) -> Option<Open<'_>> {
        let rack = self.cpus.of(cpu);
        let blocks = rack.lock.try_lock()?;
        (!blocks.is_closed).then_some(Open {
            magazines: self,
            rack,
            blocks,
        })
    }

    /// Empties magazines of the groups that `wanted` names; `out` gets what was in each, with no
    /// lock held.
    ///
    /// Cost: one lock for each CPU that has such a block, and a look at a line for the others.
    pub fn drain(&self, wanted: impl Fn(u32) -> bool, mut out: impl FnMut(Cpu, Form, &[Frame])) {
        if self.is_used.load(Ordering::Relaxed) == 0 {
            return;
        }
        let holds = |label: Label| {
            label.count() > 0 && label.form().is_some_and(|form| wanted(form.group()))
        };
        for (cpu, rack) in self.cpus.iter_by_cpu() {
            if (0..NR_MAGAZINES).any(|at| holds(rack.label(at))) {
                let keep = |label| (!holds(label)).then_some(label);
                Magazines::empty(rack, keep, |form, blocks| out(cpu, form, blocks));
            }
        }
    }

    /// As [`Magazines::drain`], and none of these groups has a magazine before its limits were
    /// looked at anew: whoever takes one over afterwards sees what the caller wrote before.
    ///
    /// Cost: at least one lock a CPU.
    pub fn forget(&self, wanted: impl Fn(u32) -> bool, mut out: impl FnMut(Cpu, Form, &[Frame])) {
        for (cpu, rack) in self.cpus.iter_by_cpu() {
            let keep = |label: Label| {
                let is_kept = label.form().is_some_and(|form| !wanted(form.group()));
                is_kept.then_some(label)
            };
            Magazines::empty(rack, keep, |form, blocks| out(cpu, form, blocks));
        }
    }

    /// Empties what was not used since the last call.
    pub fn tick(&self, mut out: impl FnMut(Cpu, Form, &[Frame])) {
        if self.is_used.load(Ordering::Relaxed) == 0 {
            return;
        }
        for (cpu, rack) in self.cpus.iter_by_cpu() {
            let keep = |label: Label| (label.0 & USED != 0).then_some(Label(label.0 & !USED));
            Magazines::empty(rack, keep, |form, blocks| out(cpu, form, blocks));
        }
    }

    /// Leaves magazines as `keep` says, empties those of which it says nothing. Waits for the lock.
    fn empty(
        rack: &Rack,
        keep: impl Fn(Label) -> Option<Label>,
        mut out: impl FnMut(Form, &[Frame]),
    ) {
        let mut at = 0;
        while at < NR_MAGAZINES {
            let mut taken = None;
            let blocks = rack.lock.lock();
            while at < NR_MAGAZINES && taken.is_none() {
                let label = rack.label(at);
                let kept = keep(label);
                rack.set_label(at, kept.unwrap_or_default());
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

    /// Nothing comes into any from now on, and what is out is counted elsewhere. Returns what is:
    /// a block that is given back meanwhile is in that number, or finds its magazine closed.
    pub fn close(&self) -> i64 {
        let close = |rack: &Rack| {
            let mut blocks = rack.lock.lock();
            blocks.is_closed = true;
            core::mem::take(&mut blocks.nr_out)
        };
        self.cpus.iter().map(close).sum()
    }

    /// Blocks that are out by the counts of all CPUs.
    #[must_use]
    pub fn nr_out(&self) -> i64 {
        let of = |rack: &Rack| rack.lock.lock().nr_out;
        self.cpus.iter().map(of).sum()
    }

    /// Pages of the groups that `wanted` names. A look without a lock.
    #[must_use]
    pub fn nr_pages(&self, wanted: impl Fn(u32) -> bool) -> u32 {
        if self.is_used.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let labels = self.cpus.iter().flat_map(|rack| &rack.labels);
        let of = |label: &AtomicU64| {
            let label = Label(label.load(Ordering::Relaxed));
            let form = label.form().filter(|form| wanted(form.group()));
            form.map_or(0, |form| {
                crate::units::count(label.count()) << form.order().get()
            })
        };
        labels.map(of).sum()
    }
}
