//! Where a call comes from, and what core asks of the program around it.

use super::{Ahead, Effect, Effects, Io, Memory, Writes};
use crate::units::{Cpu, Frame, Node};
use core::fmt::Debug;

/// What core asks of the program around it, on the slow path only and with no lock of core held.
pub trait Platform: Debug {
    /// Asks the shrinkers of the groups in `subtree` for other memory that is charged there, in
    /// the proportion of `nr_pages` pages to `of`; all of `nr_pages` where `of` is 0, because
    /// pages gave nothing. Returns the pages that they gave back.
    ///
    /// What it calls must not make core reclaim: those calls come with [`Here::without_reclaim`].
    fn shrink(&self, subtree: u32, nr_pages: u32, of: u64) -> u32;

    /// Whether [`Platform::shrink`] may give anything at all. By default it may.
    fn may_shrink(&self) -> bool {
        true
    }

    /// Runs writes that reclaim needs or would like: it takes from `writes` as many as it has room
    /// for, and gives each to [`super::Memory::complete_write`] when it has ended.
    ///
    /// `nr_pages` are needed: it comes back when as many were written, or no more can be, by these
    /// writes or others that are under way. Where that is 0, it waits for nothing. What it leaves
    /// is offered again; where all that it tried failed, it says so ([`Writes::note_failed`]). The
    /// default is a program that writes nothing here.
    ///
    /// Calls of core on the way come with [`Here::for_writes`].
    fn write_back(&self, _writes: &mut Writes<'_>, _nr_pages: u32) {}

    /// Waits for a request that finds nothing else, where pages are being read which could go then:
    /// until `has_ended` says that a read has, or for as long as it has patience. `until` is its
    /// own, `None` when the request waits for the first time. By default it has no patience.
    fn wait_for_read(&self, _until: &mut Option<u64>, _has_ended: &mut dyn FnMut() -> bool) {}

    /// Copies the bytes of a page that moves from [`Io::source`] into its frame. Must not unwind.
    /// By default there are no bytes.
    fn copy(&self, _io: &mut Io) {}

    /// Wakes all who wait for a frame, which may unwind, but not while the thread unwinds already.
    /// By default nobody waits.
    fn wake(&self, _frame: Frame) {}

    /// What [`Effect::LastPin`] says. By default no memory is abandoned.
    fn last_pin(&self) {}

    /// Runs `work`, which takes memory from others or waits for it, as a stall of the calling
    /// thread on memory of `group`.
    fn stall(&self, group: u32, work: &mut dyn FnMut());

    /// The calling thread charged `group` while a level was above its `high`, and is to be slowed
    /// down by `delay_ns` when it next holds no page.
    fn throttle(&self, group: u32, delay_ns: u64);

    /// The calling thread charged `group` so many pages while a level was above its `high`, and is
    /// to call [`Memory::reclaim_high`](super::Memory::reclaim_high) when nobody waits for what it
    /// has: [`Here::deferring_high`]. By default it is not.
    fn defer_high(&self, _group: u32, _nr_charged: u32) {}

    /// A request found no page of a node above its low watermark, or the budget is nearly used up
    /// by a request from there: who reclaims in the background should call
    /// [`Memory::balance`](super::Memory::balance) soon. Said by every such request, so cheap where
    /// it was said already. By default nobody does: requests reclaim.
    fn wake_reclaim(&self, _node: Node) {}
}

/// Nothing to shrink, nobody who watches: for tests and simulations.
impl Platform for () {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn may_shrink(&self) -> bool {
        false
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

/// Where a call that may need memory comes from.
#[derive(Clone, Copy, Debug)]
pub struct Here<'a> {
    /// The CPU that the caller runs on. A stale one is slow, never wrong.
    pub cpu: Cpu,
    /// The program around core.
    pub platform: &'a dyn Platform,
    /// Whether it may reclaim: not inside a shrinker.
    pub may_reclaim: bool,
    /// Whether it may use the reserve of writes.
    pub may_use_reserve: bool,
    /// Whether it waits for pages that are being read: [`Platform::wait_for_read`].
    pub waits_for_reads: bool,
    /// Whether it reclaims for `high` later: [`Platform::defer_high`].
    pub defers_high: bool,
    /// Pages that were charged for it ahead.
    pub ahead: Option<&'a Ahead<'a>>,
}

impl<'a> Here<'a> {
    /// A caller on `cpu` that may reclaim.
    pub fn new(cpu: Cpu, platform: &'a dyn Platform) -> Here<'a> {
        Here {
            cpu,
            platform,
            may_reclaim: true,
            may_use_reserve: false,
            waits_for_reads: false,
            defers_high: false,
            ahead: None,
        }
    }

    /// The same, with pages that were charged ahead: requests of their group take them first.
    #[must_use]
    pub fn with_ahead(self, ahead: &'a Ahead<'a>) -> Here<'a> {
        Here {
            ahead: Some(ahead),
            ..self
        }
    }

    /// The same, of a caller that waits for pages that are being read where nothing else can go.
    #[must_use]
    pub fn waiting_for_reads(self) -> Here<'a> {
        Here {
            waits_for_reads: true,
            ..self
        }
    }

    /// The same without reclaim, if it may reclaim, for a caller with a lock that others wait for:
    /// it gets what is there, and tells of a `high` that it goes above.
    #[must_use]
    pub fn deferring_high(self) -> Here<'a> {
        Here {
            may_reclaim: false,
            defers_high: self.may_reclaim,
            ..self
        }
    }

    /// The same, for foreign code that reclaim called: it gets what is there or nothing.
    #[must_use]
    pub fn without_reclaim(self) -> Here<'a> {
        Here {
            may_reclaim: false,
            ..self
        }
    }

    /// The same, for foreign code that writes a page: it gets what is there, else working memory
    /// from a reserve of fixed size, else nothing.
    #[must_use]
    pub fn for_writes(self) -> Here<'a> {
        Here {
            may_reclaim: false,
            may_use_reserve: true,
            ..self
        }
    }
}

impl Here<'_> {
    /// Drops a pin, and has those woken who waited for that.
    #[cold]
    pub(super) fn unpin(self, memory: &Memory, frame: Frame) {
        let mut effects = Effects::new();
        memory.unpin(self.cpu, frame, &mut effects);
        self.wake_all(&mut effects);
    }

    /// Has all woken who are named, also where waking one of them unwinds: effects of a call that
    /// asks for nothing else.
    pub(super) fn wake_all(self, effects: &mut Effects) {
        let Some(effect) = effects.pop() else { return };
        let _others = Others {
            here: self,
            effects,
        };
        match effect {
            Effect::Wake(frame) => self.platform.wake(frame),
            Effect::LastPin => self.platform.last_pin(),
            Effect::Read(_) | Effect::Copy(_) => {
                unreachable!("only an operation's step asks for these")
            }
        }
    }
}

/// Those who are woken next, when this is dropped.
struct Others<'a> {
    here: Here<'a>,
    effects: &'a mut Effects,
}

impl Drop for Others<'_> {
    fn drop(&mut self) {
        self.here.wake_all(self.effects);
    }
}

impl From<Cpu> for Here<'static> {
    /// A caller with nobody around it.
    fn from(cpu: Cpu) -> Here<'static> {
        Here::new(cpu, &())
    }
}
