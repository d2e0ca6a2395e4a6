//! What core asks of the program around it.

use super::world::World;
use pagetide_core::frame::State;
use pagetide_core::group::BATCH;
use pagetide_core::memory::{Io, Platform, Writes};
use pagetide_core::units::{Cpu, Frame, Node, PageType};
use std::panic::resume_unwind;

/// Writes that run for reclaim at a time.
const MAX_WRITES: usize = 4;

/// What a callback that is to panic says.
pub(super) const PANIC: &str = "a panic on purpose";

impl World<'_> {
    fn called_back(&self, which: u64) {
        self.note(8 << 40 | which);
        if self.depth.get() > 0 {
            self.nr_callbacks.set(self.nr_callbacks.get() + 1);
            if self.scenario.panic_at == Some(self.nr_callbacks.get()) {
                // Unwinds without a word to the panic hook.
                resume_unwind(Box::new(PANIC));
            }
        }
        self.interleave();
    }

    fn usage(&self, group: u32) -> u64 {
        self.memory
            .groups()
            .get(group)
            .map_or(0, |group| group.usage())
    }

    fn nr_writing(&self) -> usize {
        let state = self.state.borrow();
        state.pending.iter().filter(|op| op.is_write()).count()
    }

    /// Whether a request for many pages is refused though pages can go, because all of them would
    /// be too few: the rest is the program's, and no shrinker gives it back.
    pub(super) fn lacks_more_than_may_go(&self, over: u32, nr_pages: u32) -> bool {
        if nr_pages <= BATCH || self.may_shrink() {
            return false;
        }
        let (table, groups) = (self.memory.frames(), self.memory.groups());
        let max = groups.get(over).map_or(u64::MAX, |group| group.max());
        let may_go = (0..table.len())
            .map(Frame::new)
            .filter(|&frame| {
                let state = table.word(frame).state();
                matches!(state, State::Reading | State::Live)
                    && groups.is_in(table.group(frame), over)
            })
            .map(|frame| u64::from(table.block(frame).0.nr_pages()))
            .sum();
        let wanted = self.usage(over) + u64::from(nr_pages);
        wanted.saturating_sub(may_go) > max
    }
}

impl Platform for World<'_> {
    fn may_shrink(&self) -> bool {
        self.state
            .borrow()
            .reserved
            .iter()
            .any(|it| it.is_shrinkable)
    }

    fn shrink(&self, subtree: u32, nr_pages: u32, _of: u64) -> u32 {
        self.called_back(0);
        let before = self.usage(subtree);
        let mut nr_left = u64::from(nr_pages) * 4096;
        while nr_left > 0 {
            let given = {
                let mut state = self.state.borrow_mut();
                let groups = self.memory.groups();
                let may_give = |it: &super::world::Reserved| {
                    it.is_shrinkable && groups.is_in(it.group, subtree)
                };
                let at = state.reserved.iter().position(may_give);
                at.map(|at| state.reserved.remove(at))
            };
            let Some(given) = given else { break };
            nr_left = nr_left.saturating_sub(given.nr_bytes);
            self.memory
                .unreserve(Cpu::new(0), given.group, given.nr_bytes);
            self.memory.end_reservation();
        }
        u32::try_from(before.saturating_sub(self.usage(subtree))).unwrap_or(u32::MAX)
    }

    fn write_back(&self, writes: &mut Writes<'_>, nr_pages: u32) {
        self.called_back(1);
        // What nobody waits for: files may have somebody else who writes them.
        if nr_pages == 0 && self.state.borrow_mut().disk.below(2) == 0 {
            writes.keep_cold(PageType::Anon);
        }
        let mut nr_left = nr_pages;
        loop {
            while self.nr_writing() < MAX_WRITES {
                let Some(write) = writes.next() else { break };
                self.begin_offered(writes.cpu(), write);
            }
            if nr_left == 0 || self.has_failed() {
                return;
            }
            let which = self.state.borrow_mut().disk.below(1 << 16);
            let which = u32::try_from(which).expect("16 bits");
            match self.end_one(writes.cpu(), which, |op| op.is_write()) {
                None => return,
                Some(is_ok) => nr_left -= u32::from(is_ok),
            }
        }
    }

    fn copy(&self, io: &mut Io) {
        let source = io.source().expect("a page that moves has a source");
        self.check_owner(io.frame(), io.was_ours());
        self.fill(io.frame(), self.stamp(source));
    }

    fn wake(&self, frame: Frame) {
        World::wake(self, frame);
    }

    fn stall(&self, group: u32, work: &mut dyn FnMut()) {
        let now = self.state.borrow().now;
        let stalled = Stalled {
            world: self,
            group,
            of_core: self.memory.groups().begin_stall(group, now, None),
        };
        self.called_back(2);
        work();
        self.called_back(3);
        drop(stalled);
    }

    fn throttle(&self, group: u32, delay_ns: u64) {
        self.note(u64::from(group) ^ delay_ns);
        self.called_back(4);
    }

    fn wake_reclaim(&self, node: Node) {
        self.state.borrow_mut().wanted_nodes |= 1 << node.number();
        self.called_back(5);
    }
}

/// A stall that ends when it is dropped, by unwinding too.
struct Stalled<'w, 'a> {
    world: &'w World<'a>,
    group: u32,
    of_core: pagetide_core::group::Stalled,
}

impl Drop for Stalled<'_, '_> {
    fn drop(&mut self) {
        let now = self.world.state.borrow().now;
        let groups = self.world.memory.groups();
        groups.end_stall(self.group, now, self.of_core);
    }
}
