//! What core asks of the runtime.

use crate::cpu;
use crate::file::patience::PATIENCE;
use crate::shared::Shared;
use crate::stall::{self, Stall};
use crate::trace;
use crate::{page, shrinker, throttle, writeback};
use pagetide_core::group::Protection;
use pagetide_core::memory::{Here, Io, Platform, Writes};
use pagetide_core::units::{Frame, Node, PageType};

impl Platform for Shared {
    fn shrink(&self, subtree: u32, nr_pages: u32, of: u64) -> u32 {
        let groups = self.core.groups();
        let usage = || groups.get(subtree).map_or(0, |group| group.usage());
        let before = usage();
        // What `min` protects is left, as pages are, and what `low` does while pages gave some.
        let may_give = |id| {
            let used = groups.get(id).map_or(0, |group| group.usage());
            let Protection { min, low } = groups.protection(id, subtree);
            let kept = if of > 0 { min.max(low) } else { min };
            groups.is_in(id, subtree) && used > kept
        };
        self.shrinkers.shrink(may_give, nr_pages, of);
        u32::try_from(before.saturating_sub(usage())).unwrap_or(u32::MAX)
    }

    fn may_shrink(&self) -> bool {
        self.shrinkers.is_any()
    }

    fn write_back(&self, writes: &mut Writes<'_>, nr_pages: u32) {
        if nr_pages == 0 {
            // Files have a thread that writes them. Nobody but reclaim writes anon pages.
            self.tell_flusher();
            writes.keep_cold(PageType::Anon);
        }
        self.write_offered(writes, nr_pages > 0);
    }

    fn copy(&self, io: &mut Io) {
        page::copy(&self.arena, io);
    }

    fn wake(&self, frame: Frame) {
        self.waiters.wake(frame);
    }

    fn last_pin(&self) {
        self.end_stay();
    }

    fn stall(&self, group: u32, work: &mut dyn FnMut()) {
        trace::stalled(self, group);
        let _stall = Stall::begin(self, group);
        // Pages whose reads have ended, but for somebody who says so, can go.
        if self.io.is_reaped_by_waiters() {
            self.io.reap();
        }
        work();
    }

    fn wait_for_read(&self, until: &mut Option<u64>, has_ended: &mut dyn FnMut() -> bool) {
        // It may be one that this thread has in hand.
        if !stall::is_reading(self) {
            let patience = u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
            let until = *until.get_or_insert_with(|| self.now().saturating_add(patience));
            self.wait_for_landing(until, has_ended);
        }
    }

    fn throttle(&self, group: u32, delay_ns: u64) {
        throttle::owe((stall::key(self), group), delay_ns, self.throttle_max);
    }

    fn defer_high(&self, group: u32, nr_charged: u32) {
        throttle::defer((stall::key(self), group), nr_charged);
    }

    fn wake_reclaim(&self, node: Node) {
        if self.reclaim.want(node) {
            self.nudge_node(node);
        }
    }
}

impl Shared {
    /// The calling thread, to core.
    #[inline]
    pub(crate) fn here(&self) -> Here<'_> {
        let here = Here::new(cpu::current(), self);
        if shrinker::is_shrinking() {
            return here.without_reclaim();
        }
        if writeback::is_writing(self) {
            return here.for_writes();
        }
        here
    }

    /// The same; unless it `may_reclaim`, it has a lock of a file, for which others wait.
    pub(crate) fn here_reclaiming(&self, may_reclaim: bool) -> Here<'_> {
        match may_reclaim {
            true => self.here(),
            false => self.here().deferring_high(),
        }
    }

    /// Whether [`Shared::pay_debt`] does something now.
    pub(crate) fn has_debt(&self) -> bool {
        let has_any = throttle::is_deferred_in(stall::key(self)) || throttle::owes();
        has_any && !self.is_called()
    }

    /// Reclaims for what the thread charged above a `high` with a lock, and sleeps for what is over
    /// it still, if it holds no page.
    #[inline]
    pub(crate) fn pay_debt(&self) {
        if throttle::is_deferred() {
            self.reclaim_deferred();
        }
        if throttle::owes() {
            self.sleep_for_debt();
        }
    }

    /// Whether others wait for what the thread returns from: then a later call pays.
    pub(crate) fn is_called(&self) -> bool {
        writeback::is_writing(self) || stall::is_reading(self) || shrinker::is_shrinking()
    }

    #[cold]
    fn reclaim_deferred(&self) {
        if self.is_called() {
            return;
        }
        while let Some((group, nr_charged)) = throttle::take_deferred(stall::key(self)) {
            // An earlier call may have charged it, and the group be gone: else this keeps it.
            let _look = self.looks.begin(Some(group));
            let node = self.names().node_of(group);
            if node.is_some() || group == self.core.groups().root() {
                self.core.reclaim_high(self.here(), group, nr_charged);
                self.settle();
            }
        }
    }

    #[cold]
    fn sleep_for_debt(&self) {
        if self.is_called() {
            return;
        }
        let Some(((memory, group), delay)) = throttle::take_debt() else {
            return;
        };
        // An earlier call may owe it: nobody else keeps the group, and it may be another memory's.
        let is_ours = memory == stall::key(self);
        let _look = self.looks.begin(Some(group));
        let node = self.names().node_of(group);
        let is_there = node.is_some() || group == self.core.groups().root();
        if is_ours {
            trace::throttled(self, group, delay);
        }
        // Ends before the handle goes.
        let _stall = (is_ours && is_there).then(|| Stall::begin(self, group));
        std::thread::sleep(delay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory};

    #[test]
    fn who_would_not_pay_now_has_no_debt() {
        let build = || Memory::builder().budget(ByteSize::mib(8)).without_thread();
        let [memory, other] = [(); 2].map(|()| build().build().unwrap());
        let (shared, others) = (memory.home(), other.home());
        throttle::defer((stall::key(shared), memory.root().id()), 5);
        others.pay_debt();
        assert_eq!([shared, others].map(|home| home.has_debt()), [true, false]);
        let writing = writeback::in_write(shared);
        shared.pay_debt();
        assert!(!shared.has_debt());
        drop(writing);
        assert!(shared.has_debt());
        shared.pay_debt();
        assert!(!shared.has_debt());
    }
}
