//! Magazines: blocks of working memory close to one CPU, charged to their group already.
//!
//! Taking or freeing one is a restartable sequence of the CPU then, or an exchange: the CPU's lock.
//! Beside it stands a count of what is out or waits, so that working memory is in no other count.
//!
//! Whoever is preempted with the lock of a CPU's magazines would send all others past them for as
//! long: each CPU has some racks of them, and they find the next one.
//!
//! Source: Bonwick and Adams 2001, "Magazines and Vmem". Changed: a magazine is of one group, whose
//! charge comes with its blocks; a rack has one of each kind, and half of it is exchanged at once
//! in the place of a second one: with the depot, or else with stock and per-CPU page cache.

use super::depot::Depot;
use super::label::Label;
use super::rack::{Open, Rack, is_large};
use crate::frame::Form;
use crate::group::CpuMask;
use crate::sync::{AtomicU32, NoMetadata, OnCpu, Ordering, PerCpu, Sections};
use crate::units::{Cpu, Frame, index};

/// Racks of a CPU: the others are for who finds one in the hands of a thread that does not run.
pub(super) const NR_RACKS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 4 };

/// The racks of one CPU.
#[derive(Debug)]
struct Racks {
    /// Which of them all use, until one finds it in somebody's hands: modulo their number.
    turn: AtomicU32,
    racks: [Rack; NR_RACKS],
}

impl Racks {
    fn new(cpu: Cpu, sections: Option<Sections>) -> Racks {
        Racks {
            turn: AtomicU32::new(0),
            racks: core::array::from_fn(|_| Rack::new(cpu, sections.clone())),
        }
    }

    /// Which is in use. A look without a lock.
    #[inline(always)]
    fn at(&self) -> usize {
        // Relaxed: a stale one is another rack.
        index(self.turn.load(Ordering::Relaxed)) % NR_RACKS
    }

    /// The one that is in use.
    #[inline(always)]
    fn in_use(&self) -> &Rack {
        &self.racks[self.at()]
    }

    /// All of them, from the one that is in use on: the next free one is where that is held.
    fn in_turn(&self) -> impl Iterator<Item = &Rack> + Clone {
        let from = |at: usize| (0..NR_RACKS).map(move |nr| (at + nr) % NR_RACKS);
        let before = self.at();
        let is_free = |at: &usize| !self.racks[*at].is_held();
        let at = from(before).find(is_free).unwrap_or(before);
        if at != before {
            self.turn.store(crate::units::count(at), Ordering::Relaxed);
        }
        from(at).map(|at| &self.racks[at])
    }
}

/// The magazines of all CPUs.
#[derive(Debug)]
pub struct Magazines {
    cpus: PerCpu<Racks>,
    depots: PerCpu<Depot>,
    /// 1 once there was a block in any.
    is_used: AtomicU32,
    /// 1 once there was a large one.
    has_large: AtomicU32,
    /// 1 since there was a chunk in the depot; 0 again at a tick that finds none. A hint: who takes
    /// need not look at all parts.
    has_stored: AtomicU32,
}

/// No read-modify-write: it becomes 1 seldom.
fn raise(flag: &AtomicU32) {
    if flag.load(Ordering::Relaxed) == 0 {
        flag.store(1, Ordering::Relaxed);
    }
}

impl Magazines {
    /// Bytes that [`Magazines::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_cpus: u32, nr_frames: u32) -> usize {
        PerCpu::<Racks>::bytes(nr_cpus)
            + PerCpu::<Depot>::bytes(nr_cpus)
            + index(nr_cpus) * Depot::bytes(nr_frames, nr_cpus)
    }

    /// Empty ones, with restartable sequences on all CPUs but those that are named.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(
        nr_cpus: u32,
        nr_frames: u32,
        sections: Option<&(Sections, CpuMask)>,
    ) -> Result<Magazines, NoMetadata> {
        let mut cpus = (0..nr_cpus.max(1)).map(Cpu::new);
        let racks = || {
            let cpu = cpus.next().expect("one for each slot");
            let sections = sections.filter(|(_, isolated)| !isolated.has(cpu));
            Racks::new(cpu, sections.map(|(sections, _)| sections.clone()))
        };
        Ok(Magazines {
            cpus: PerCpu::try_new(nr_cpus, racks)?,
            depots: PerCpu::try_with(nr_cpus, || Depot::try_new(nr_frames, nr_cpus))?,
            is_used: AtomicU32::new(0),
            has_large: AtomicU32::new(0),
            has_stored: AtomicU32::new(0),
        })
    }

    /// A CPU's part of the depot.
    pub(super) fn depot(&self, cpu: Cpu) -> &Depot {
        self.depots.of(cpu)
    }

    /// All parts with their CPUs.
    pub(super) fn depots(&self) -> impl Iterator<Item = (Cpu, &Depot)> {
        self.depots.iter_by_cpu()
    }

    /// Some magazine is somebody's.
    pub(super) fn note_used(&self, is_large: bool) {
        raise(&self.is_used);
        if is_large {
            raise(&self.has_large);
        }
    }

    /// There is a chunk in the depot.
    pub(super) fn note_stored(&self) {
        raise(&self.has_stored);
    }

    /// Takes the block of a form that was given back last on a CPU, the group's own; it is out now.
    /// `None` where the rack in use has none, not at the magazine's own place, or is in somebody's
    /// hands just now; and where the CPU has no restartable sequences.
    ///
    /// No read-modify-write, and no call, for which callers would save registers each time.
    #[inline(always)]
    #[must_use]
    pub fn take(&self, on: &OnCpu, form: Form) -> Option<Frame> {
        self.cpus.get(on.cpu())?.in_use().take(on, form)
    }

    /// Gives a block back to a magazine of its form; false where the rack in use has no room for it
    /// at the magazine's own place, or is in somebody's hands just now; and where the CPU has no
    /// restartable sequences. Otherwise it is out no more: whoever has the lock next may take all
    /// away.
    ///
    /// As [`Magazines::take`]: no read-modify-write, and no call.
    #[inline(always)]
    #[must_use]
    pub fn give(&self, on: &OnCpu, form: Form, frame: Frame) -> bool {
        match self.cpus.get(on.cpu()) {
            Some(racks) => racks.in_use().give(on, form, frame),
            None => false,
        }
    }

    /// [`Magazines::give`], with one read-modify-write where the CPU has no restartable sequences.
    #[must_use]
    pub fn give_briefly(&self, cpu: Cpu, form: Form, frame: Frame) -> bool {
        match self.cpus.get(cpu) {
            Some(racks) => racks.in_use().give_briefly(form, frame),
            None => false,
        }
    }

    /// [`Magazines::take`] out of any rack of the CPU, wherever the magazine is, and of what is
    /// nobody's, too: also says whether it is the group's own. One read-modify-write at the
    /// magazine's own place where the CPU has no restartable sequences, two elsewhere.
    #[must_use]
    pub fn take_any(&self, cpu: Cpu, form: Form) -> Option<(Frame, bool)> {
        let racks = self.cpus.of(cpu);
        if let Some(frame) = racks.in_use().take_briefly(form) {
            return Some((frame, true));
        }
        let mut racks = racks.in_turn();
        racks.find_map(|rack| {
            let (_, label) = rack.find(form)?;
            match label.count() {
                0 => None,
                _ => Open::try_new(self, cpu, rack)?.pop(form),
            }
        })
    }

    /// Takes a block that was in the depot, the CPU's own part of it or that of one near, and more
    /// of them for the CPU's magazine, which an empty one becomes with `room`.
    ///
    /// Cost: a look at a line for each CPU, where there is none.
    #[must_use]
    pub fn take_stored(
        &self,
        cpu: Cpu,
        form: Form,
        is_near: impl Fn(Cpu) -> bool,
        room: impl FnOnce() -> u32,
    ) -> Option<(Frame, bool)> {
        if self.has_stored.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.open(cpu)?.pop_stored(form, is_near, room)
    }

    /// Whether a CPU has a magazine for a form, or an empty one. A look without a lock.
    #[must_use]
    pub fn takes(&self, cpu: Cpu, form: Form) -> bool {
        let mut racks = self.cpus.of(cpu).in_turn();
        racks.any(|rack| rack.find(form).is_some() || rack.find_empty(form).is_some())
    }

    /// The first rack of a CPU that nobody has; `None` where all are in somebody's hands just now,
    /// or closed.
    #[must_use]
    pub fn open(&self, cpu: Cpu) -> Option<Open<'_>> {
        let mut racks = self.cpus.of(cpu).in_turn();
        racks.find_map(|rack| Open::try_new(self, cpu, rack))
    }

    fn racks(&self) -> impl Iterator<Item = (Cpu, &Rack)> {
        let cpus = self.cpus.iter_by_cpu();
        cpus.flat_map(|(cpu, racks)| racks.racks.iter().map(move |rack| (cpu, rack)))
    }

    /// Empties magazines of the groups that `wanted` names; `out` gets what was in each, with no
    /// lock held.
    ///
    /// Cost: one lock for each rack that has such a block, and a look at a line for the others; the
    /// depot's for each chunk there.
    pub fn drain(&self, wanted: impl Fn(u32) -> bool, mut out: impl FnMut(Cpu, Form, &[Frame])) {
        if self.is_used.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.drain_racks(&wanted, |_| true, &mut out);
        self.drain_stored(wanted, out);
    }

    /// [`Magazines::drain`] of what is much only: of the depot, and of magazines of large blocks.
    pub fn drain_much(
        &self,
        wanted: impl Fn(u32) -> bool,
        mut out: impl FnMut(Cpu, Form, &[Frame]),
    ) {
        if self.has_large.load(Ordering::Relaxed) != 0 {
            self.drain_racks(&wanted, is_large, &mut out);
        }
        self.drain_stored(wanted, out);
    }

    fn drain_racks(
        &self,
        wanted: impl Fn(u32) -> bool,
        is_it: impl Fn(Form) -> bool,
        mut out: impl FnMut(Cpu, Form, &[Frame]),
    ) {
        let of = |form: Form| is_it(form) && wanted(form.group());
        let holds = |label: Label| label.count() > 0 && label.form().is_some_and(of);
        for (cpu, rack) in self.racks() {
            if rack.labels().any(holds) {
                let keep = |label| (!holds(label)).then_some(label);
                rack.empty(keep, |form, blocks| out(cpu, form, blocks));
            }
        }
    }

    fn drain_stored(&self, wanted: impl Fn(u32) -> bool, mut out: impl FnMut(Cpu, Form, &[Frame])) {
        for (cpu, depot) in self.depots() {
            depot.drain(&wanted, |form, blocks| out(cpu, form, blocks));
        }
    }

    /// As [`Magazines::drain`], and none of these groups has a magazine before its limits were
    /// looked at anew: whoever takes one over afterwards sees what the caller wrote before.
    ///
    /// Cost: at least one lock a rack.
    pub fn forget(&self, wanted: impl Fn(u32) -> bool, mut out: impl FnMut(Cpu, Form, &[Frame])) {
        let is_kept = |form: Form| !wanted(form.group());
        let keep = |label: Label| label.form().is_some_and(is_kept).then_some(label);
        for (cpu, rack) in self.racks() {
            rack.empty(keep, |form, blocks| out(cpu, form, blocks));
        }
        // What was on its way there is there by now: that is under a rack's lock.
        self.drain_stored(wanted, out);
    }

    /// Empties what was not used since the last call, of the depot as many chunks as were too many.
    pub fn tick(&self, mut out: impl FnMut(Cpu, Form, &[Frame])) {
        if self.is_used.load(Ordering::Relaxed) == 0 {
            return;
        }
        for (cpu, rack) in self.racks() {
            let keep = |label: Label| label.is_used().then_some(label.unused());
            rack.empty(keep, |form, blocks| out(cpu, form, blocks));
        }
        for (cpu, depot) in self.depots() {
            depot.tick(|form, blocks| out(cpu, form, blocks));
        }
        if self.depots.iter().all(Depot::is_empty) {
            // Where one comes just now, the next one says so.
            self.has_stored.store(0, Ordering::Relaxed);
        }
    }

    /// Nothing comes into any from now on, and what is out is counted elsewhere. Returns what is:
    /// a block that is given back meanwhile is in that number, or finds its magazine closed.
    pub fn close(&self) -> i64 {
        self.racks().map(|(_, rack)| rack.close()).sum()
    }

    /// Blocks that are out by the counts of all CPUs, and those that wait.
    pub(super) fn nr_kept(&self) -> i64 {
        let in_depots = self.depots.iter().map(Depot::nr_blocks).sum::<u64>();
        let in_racks = self.racks().map(|(_, rack)| rack.nr_kept());
        in_racks.sum::<i64>() + i64::try_from(in_depots).unwrap_or(i64::MAX)
    }

    /// Blocks that wait. A look without a lock but for those of the depot.
    pub(super) fn nr_blocks(&self) -> u64 {
        let labels = self.racks().flat_map(|(_, rack)| rack.labels());
        let in_racks: usize = labels.map(Label::count).sum();
        let in_depots = self.depots.iter().map(Depot::nr_blocks);
        in_racks as u64 + in_depots.sum::<u64>()
    }

    /// Pages of the groups that `wanted` names. A look without a lock but for those of the depot.
    #[must_use]
    pub fn nr_pages(&self, wanted: impl Fn(u32) -> bool) -> u32 {
        if self.is_used.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let labels = self.racks().flat_map(|(_, rack)| rack.labels());
        let of = |label: Label| {
            let form = label.form().filter(|form| wanted(form.group()));
            form.map_or(0, |form| {
                crate::units::count(label.count()) << form.order().get()
            })
        };
        let depots = self.depots.iter().map(|depot| depot.nr_pages(&wanted));
        labels.map(of).sum::<u32>() + depots.sum::<u32>()
    }
}
