//! Pins, claims and latches of resident pages: taken from core and given back, whoever waits woken.

use crate::cpu;
use crate::shared::Shared;
use pagetide_core::frame::Word;
use pagetide_core::memory::Effects;
use pagetide_core::page_cache::{Access, Claim, Found, Latched};
use pagetide_core::units::{Frame, PageKey};

impl Shared {
    /// Pins a page that is resident.
    #[inline(always)]
    pub(crate) fn pin(&self, key: PageKey, access: Access) -> Found {
        self.core.pin(key, access, |frame| self.unpin_other(frame))
    }

    /// [`Shared::pin`] of a page that is in `likely`, perhaps, as core's `likely` told.
    #[inline]
    pub(crate) fn pin_in(&self, likely: Option<Frame>, key: PageKey, access: Access) -> Found {
        let unpin = |frame| self.unpin_other(frame);
        self.core.pin_in(likely, key, access, unpin)
    }

    /// Has the record of a frame, and the first of its bytes, fetched from memory.
    #[inline]
    pub(crate) fn touch(&self, frame: Frame) {
        self.core.touch_record(frame);
        self.arena.touch(frame);
    }

    /// Asks for the latch of a page, as core's `latch` does.
    pub(crate) fn latch(&self, key: PageKey, access: Access) -> Latched {
        let run = |effects: &mut Effects| self.wake_all(effects);
        self.core.latch(cpu::current(), (key, access), run)
    }

    /// Pins a page that is resident, or claims it where it is used often. For a copy its bytes from
    /// `first` on, to which that comes first, are fetched from memory while its record is. Nobody
    /// knows which bytes of a view are looked at, and when.
    #[inline(always)]
    pub(crate) fn hold(
        &self,
        key: PageKey,
        access: Access,
        first: usize,
    ) -> (Found, Option<Claim>) {
        if cfg!(contended) {
            self.core.contend(key);
        }
        let likely = |frame| match access {
            Access::Copy => self.arena.touch_for_copy(frame, first),
            Access::Pin | Access::Prefetch => {}
        };
        let unpin = |frame| self.unpin_other(frame);
        self.core.hold(cpu::current(), (key, access), likely, unpin)
    }

    #[cold]
    #[inline(never)] // In place, it would take the registers of the hit path.
    fn unpin_other(&self, frame: Frame) {
        self.unpin(frame);
    }

    /// Drops a pin that core gave, or the claim that it gave in its place.
    #[inline]
    pub(crate) fn release(&self, frame: Frame, claim: Option<Claim>) {
        // Nobody waits for claims: where somebody needs the page, they are pins.
        match claim {
            Some(claim) if !self.core.claims().give_up(frame, claim) => self.came_back(frame),
            _ => self.unpin(frame),
        }
    }

    /// Drops a pin that core gave, and wakes whom core names.
    #[inline]
    pub(crate) fn unpin(&self, frame: Frame) {
        let before = self.core.frames().unpin(frame);
        if !before.is_quiet() {
            self.unpinned(frame, before);
        }
        self.came_back(frame);
    }

    #[cold]
    #[inline(never)]
    fn unpinned(&self, frame: Frame, before: Word) {
        let mut effects = Effects::new();
        // That of a page that was cut off is this caller's until it goes to its zone, where it
        // forgets whose it was.
        let group = self.core.frames().group(frame);
        self.core
            .unpinned(cpu::current(), frame, before, &mut effects);
        match before.pins() {
            1 => self.wake_all_of(group, &mut effects),
            _ => self.wake_all(&mut effects),
        }
    }
}
