//! Reads that are begun and not handed over yet, and steps of operations that begin some.

use super::{Fault, Open};
use crate::group::Group;
use crate::io::{Reader, Run, add_read};
use crate::page::Pin;
use crate::park::Panics;
use crate::stall::Stall;
use pagetide_core::memory::{Effects, Here, Io, PageError, PageIn, Platform, Step, Writes};
use pagetide_core::units::{Frame, Node};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::iter;

/// Pages whose reads are begun before they are handed over; those that are begun together with the
/// last of them go with it.
pub(super) const MAX_BEGUN: usize = 256;

/// Reads that core asked for and nobody has been given yet. They are handed over before anything
/// that may take long, because others may wait for their pages.
pub(super) struct Begun<'a> {
    open: &'a Open,
    /// The group, which a handle keeps, as which somebody waits for them here; `None` in the
    /// background.
    waits: Option<u32>,
    /// Whether memory for their pages may have to be written first.
    waits_for_writes: bool,
    pub(super) runs: RefCell<Vec<Run>>,
    /// Pages of these.
    nr_pages: Cell<usize>,
}

/// What a step of an operation ended with.
pub(super) enum Stepped<'a> {
    Done(Pin<'a>),
    /// As [`Step::Wait`].
    Wait {
        frame: Frame,
        version: u32,
    },
}

/// What a first step of an operation came to.
pub(super) enum Begin<'a> {
    Done(Pin<'a>),
    /// The page is being read.
    Reading(Fault<'a>),
    /// Somebody changes it, or waits to.
    Latched {
        frame: Frame,
        version: u32,
    },
}

impl fmt::Debug for Begun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun")
            .field("open", self.open)
            .finish_non_exhaustive()
    }
}

impl Drop for Begun<'_> {
    /// Where something foreign unwinds before they are handed over, others wait for these pages.
    fn drop(&mut self) {
        // Of a store that unwinds as well they have failed.
        Panics::default().catch(|| self.hand_over());
    }
}

impl<'a> Begun<'a> {
    /// Reads that whoever begins them waits for.
    pub(super) fn new(open: &'a Open, waits: &Group) -> Begun<'a> {
        Begun::for_pages(open, waits, 0)
    }

    /// The same with room for the reads of `nr_pages` pages.
    pub(super) fn for_pages(open: &'a Open, waits: &Group, nr_pages: usize) -> Begun<'a> {
        Begun {
            open,
            waits: Some(waits.id()),
            waits_for_writes: true,
            runs: RefCell::new(Vec::with_capacity(nr_pages.min(MAX_BEGUN))),
            nr_pages: Cell::new(0),
        }
    }

    /// Reads that nobody waits for on this thread.
    pub(super) fn in_background(open: &'a Open) -> Begun<'a> {
        Begun {
            open,
            waits: None,
            waits_for_writes: true,
            runs: RefCell::default(),
            nr_pages: Cell::new(0),
        }
    }

    /// The same of pages that nobody has asked for: a slow store that is written to make room for
    /// them would keep their caller. Anon pages come back in exchange for others.
    pub(super) fn by_hint(open: &'a Open) -> Begun<'a> {
        let mut begun = Begun::in_background(open);
        begun.waits_for_writes = open.backing.source.region().is_some();
        begun
    }

    pub(super) fn push(&self, io: Io) {
        let mut runs = self.runs.borrow_mut();
        let reader = || Reader::new(self.open.shared.shared(), &self.open.backing);
        add_read(&mut runs, reader, io, self.waits.is_none());
        drop(runs);
        self.nr_pages.set(self.nr_pages.get() + 1);
    }

    /// Hands them over where they are many. Foreign code: with no read in hand that was not pushed.
    fn hand_over_many(&self) {
        if self.nr_pages.get() >= MAX_BEGUN {
            self.hand_over();
        }
    }

    /// Reads them, or lets them be read where they are in the background.
    pub(super) fn hand_over(&self) {
        let runs = self.runs.take();
        self.nr_pages.set(0);
        let engine = &self.open.shared.io;
        match self.waits {
            _ if runs.is_empty() => {}
            None => engine.begin(runs),
            Some(group) => {
                let frames = runs.iter().flat_map(Run::frames);
                let _stall = Stall::on(frames, &self.open.shared, group);
                engine.read(runs);
            }
        }
    }

    /// The calling thread, to core.
    pub(super) fn here(&self) -> Here<'_> {
        Here {
            platform: self,
            ..self.open.shared.here()
        }
    }

    /// Steps an operation; begins the read that it asks for.
    pub(super) fn step(&self, op: &mut PageIn) -> Result<Stepped<'a>, PageError> {
        self.step_from(self.here(), op)
    }

    fn step_from(&self, here: Here<'_>, op: &mut PageIn) -> Result<Stepped<'a>, PageError> {
        let shared = &self.open.shared;
        let mut effects = Effects::new();
        let step = op.step(&shared.core, here, &mut effects);
        // Before anything foreign runs, which may unwind: then the page is let go.
        let step = step.map(|step| match step {
            Step::Done(frame) => Stepped::Done(Pin::new(shared, frame, self.open.order)),
            Step::Wait { frame, version } => Stepped::Wait { frame, version },
        });
        self.carry_out(&mut effects);
        self.hand_over_many();
        step
    }

    /// What a step asks for.
    pub(super) fn carry_out(&self, effects: &mut Effects) {
        let effects = iter::from_fn(|| effects.pop());
        self.open.shared.carry_out(effects, |io| self.push(io));
    }

    /// Takes the first step of an operation.
    pub(super) fn begin(&self, here: Here<'_>, op: PageIn) -> Result<Begin<'a>, PageError> {
        let shared = &self.open.shared;
        let mut fault = Fault {
            shared,
            op: Some(op),
        };
        let op = fault.op.as_mut().expect("set above");
        let step = self.step_from(here, op);
        let is_reading = op.is_reading();
        Ok(match step? {
            Stepped::Done(pin) => {
                fault.op = None;
                Begin::Done(pin)
            }
            Stepped::Wait { .. } if is_reading => Begin::Reading(fault),
            Stepped::Wait { frame, version } => Begin::Latched { frame, version },
        })
    }
}

/// What core asks for while reads are begun: all that may take long is a stall.
impl Platform for Begun<'_> {
    fn shrink(&self, subtree: u32, nr_pages: u32, of: u64) -> u32 {
        self.open.shared.shrink(subtree, nr_pages, of)
    }

    fn may_shrink(&self) -> bool {
        self.open.shared.may_shrink()
    }

    fn write_back(&self, writes: &mut Writes<'_>, nr_pages: u32) {
        let nr_needed = if self.waits_for_writes { nr_pages } else { 0 };
        self.open.shared.write_back(writes, nr_needed);
    }

    fn copy(&self, io: &mut Io) {
        self.open.shared.copy(io);
    }

    fn wake(&self, frame: Frame) {
        self.open.shared.wake(frame);
    }

    fn stall(&self, group: u32, work: &mut dyn FnMut()) {
        self.hand_over();
        self.open.shared.stall(group, work);
    }

    fn throttle(&self, group: u32, delay_ns: u64) {
        self.open.shared.throttle(group, delay_ns);
    }

    fn wake_reclaim(&self, node: Node) {
        self.open.shared.wake_reclaim(node);
    }
}
