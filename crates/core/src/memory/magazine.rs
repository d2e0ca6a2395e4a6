//! Magazines: blocks of working memory close to one CPU, charged to their group already.
//!
//! A pair of taking and freeing is an exchange for each side then: the CPU's lock. Beside it stands
//! a count of what is out, so that working memory is in no other count.
//!
//! Source: Bonwick and Adams 2001, "Magazines and Vmem". Changed: a magazine is of one group, whose
//! charge comes with its blocks; a CPU has one of each kind, and half of it is exchanged at once in
//! the place of a second one; there is no depot, because stocks and per-CPU page caches are one.

use crate::sync::{AtomicU32, AtomicU64, Guard, NoMetadata, Ordering, PerCpu, SpinLock, rank};
use crate::units::{Cpu, Frame, Order, index};

/// Magazines of a CPU: one for blocks of a batch of pages or more, the others for smaller ones.
/// Their labels are one cache line.
const NR_MAGAZINES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };
/// Blocks that a magazine has room for.
pub const MAX_BLOCKS: usize = index(ROOM);
/// The same, as blocks are counted.
pub const ROOM: u32 = 32;
/// Blocks of at least so many pages share one magazine.
const LARGE: u32 = crate::group::BATCH;

/// What one kind of block is: its group and order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The group that it is charged to.
    pub group: u32,
    /// Its order.
    pub order: Order,
}

impl Form {
    /// Where its magazine is looked for first.
    #[inline]
    fn place(self) -> usize {
        if self.order.nr_pages() >= LARGE {
            return 0;
        }
        // Numbers in a row are spread evenly. Source: Fibonacci hashing.
        let mixed = self.group.wrapping_add(u32::from(self.order.get()) << 24);
        let hash = u64::from(mixed.wrapping_mul(0x9E37_79B9));
        1 + index(((hash * (NR_MAGAZINES as u64 - 1)) >> 32) as u32)
    }

    #[inline]
    fn key(self) -> u64 {
        u64::from(self.group) << 8 | u64::from(self.order.get())
    }
}

/// What a magazine is for, how many blocks it may have and has, and whether it was used since the
/// last tick: group 32, order 8, room 8, count 8, used 8 bits. 0: nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Label(u64);

const KEY_SHIFT: u32 = 24;
const ROOM_SHIFT: u32 = 16;
const COUNT_SHIFT: u32 = 8;
const ONE: u64 = 1 << COUNT_SHIFT;
const USED: u64 = 1;

impl Label {
    fn new(form: Form, room: u32) -> Label {
        Label(form.key() << KEY_SHIFT | u64::from(room) << ROOM_SHIFT | USED)
    }

    #[inline]
    fn is_of(self, form: Form) -> bool {
        self.0 >> KEY_SHIFT == form.key()
    }

    fn form(self) -> Option<Form> {
        let group = u32::try_from(self.0 >> 32).expect("the upper half");
        let order = Order::new((self.0 >> KEY_SHIFT & 0xFF) as u8);
        order
            .filter(|_| group != 0)
            .map(|order| Form { group, order })
    }

    #[inline]
    fn count(self) -> usize {
        index((self.0 >> COUNT_SHIFT & 0xFF) as u32)
    }

    #[inline]
    fn room(self) -> usize {
        index((self.0 >> ROOM_SHIFT & 0xFF) as u32)
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

    /// Where the magazine of a form is: at its own place, or wherever there was one.
    #[inline]
    fn find(&self, form: Form) -> Option<usize> {
        let first = form.place();
        match self.label(first).is_of(form) {
            true => Some(first),
            false => self.find_beside(first, form),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_beside(&self, first: usize, form: Form) -> Option<usize> {
        Rack::beside(first).find(|&at| self.label(at).is_of(form))
    }

    /// The places beside one: large blocks have none.
    fn beside(first: usize) -> impl Iterator<Item = usize> {
        let end = if first == 0 { 1 } else { NR_MAGAZINES };
        (1..end).filter(move |&at| at != first)
    }

    /// A magazine that is empty, for a form that has none.
    fn find_empty(&self, form: Form) -> Option<usize> {
        let first = form.place();
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
    #[inline]
    pub fn pop(&mut self, form: Form) -> Option<Frame> {
        let at = self.rack.find(form)?;
        let label = self.rack.label(at);
        if label.count() == 0 {
            return None;
        }
        self.blocks.nr_out += 1;
        self.rack.set_label(at, Label((label.0 - ONE) | USED));
        Some(self.blocks.blocks[at][(label.count() - 1) % MAX_BLOCKS])
    }

    /// Keeps a block; false where its form has no magazine, or a full one.
    #[inline]
    #[must_use]
    pub fn push(&mut self, form: Form, frame: Frame) -> bool {
        let Some(at) = self.rack.find(form) else {
            return false;
        };
        let label = self.rack.label(at);
        let has_room = label.count() < label.room();
        if has_room {
            self.blocks.blocks[at][label.count() % MAX_BLOCKS] = frame;
            self.rack.set_label(at, Label((label.0 + ONE) | USED));
        }
        has_room
    }

    /// One block more is out.
    pub fn count_out(&mut self) {
        self.blocks.nr_out += 1;
    }

    /// One block less is out.
    #[inline]
    pub fn count_in(&mut self) {
        self.blocks.nr_out -= 1;
    }

    /// Where the magazine of this form is, which an empty one becomes with `room`.
    pub fn make_own(&mut self, form: Form, room: u32) -> Option<usize> {
        let own = self.rack.find(form);
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
        if label.count() < label.room() {
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

    /// Whether a CPU has a block of a form. A look without a lock.
    #[inline]
    #[must_use]
    pub fn has(&self, cpu: Cpu, form: Form) -> bool {
        let rack = self.cpus.of(cpu);
        let at = rack.find(form);
        at.is_some_and(|at| rack.label(at).count() > 0)
    }

    /// Whether a CPU has a magazine for a form, or an empty one. A look without a lock.
    #[must_use]
    pub fn takes(&self, cpu: Cpu, form: Form) -> bool {
        let rack = self.cpus.of(cpu);
        rack.find(form).or_else(|| rack.find_empty(form)).is_some()
    }

    /// A CPU's magazines; `None` where somebody has them just now, or they are closed.
    #[inline]
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
        let holds =
            |label: Label| label.count() > 0 && label.form().is_some_and(|form| wanted(form.group));
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
                let is_kept = label.form().is_some_and(|form| !wanted(form.group));
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
            let form = label.form().filter(|form| wanted(form.group));
            form.map_or(0, |form| {
                crate::units::count(label.count()) << form.order.get()
            })
        };
        labels.map(of).sum()
    }
}
