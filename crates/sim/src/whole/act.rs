//! The actions, each by the calls of core that it stands for.

use super::Plant;
use super::action::{Op, Place};
use super::device::TORN;
use super::task::{Goal, Task, Work};
use super::world::{Buf, GroupState, Held, MAX_GROUPS, Reserved, World, pick};
use pagetide_core::alloc::Mempolicy;
use pagetide_core::frame::State as FrameState;
use pagetide_core::group::Limit;
use pagetide_core::memory::{AllocError, Effects};
use pagetide_core::page_cache::{Access, Claim, Found};
use pagetide_core::units::{Cpu, Frame, Node, NodeMask, Order, PageKey};

/// Tasks at a time.
const MAX_TASKS: usize = 64;
/// Pins that are kept, latches, and blocks at a time.
const MAX_HELD: usize = 48;

impl World<'_> {
    pub(super) fn act(&self, cpu: Cpu, op: Op) {
        match op {
            Op::Read(place) => self.fetch(cpu, place, Goal::Read, false),
            Op::Hold(place) => self.fetch(cpu, place, Goal::Hold, false),
            Op::HoldLong(place) => self.fetch(cpu, place, Goal::Hold, true),
            Op::Change(place) => {
                if let Some(at) = self.place(place) {
                    self.change(cpu, at);
                }
            }
            Op::Discard { at, nr_pages } => {
                if let Some(at) = self.place(at).filter(|_| self.has_room()) {
                    self.discard(cpu, at, nr_pages);
                }
            }
            Op::Cut { file, part } => self.cut(cpu, file, part),
            Op::ReadOn {
                group,
                file,
                reader,
            } => self.read_on(cpu, (group, file), reader),
            Op::Sync(number) => self.sync(cpu, number),
            Op::Step(number) => _ = self.step_one(cpu, number),
            Op::GiveUp(number) => self.give_up_one(cpu, number),
            Op::EndIo(number) => _ = self.end_one(cpu, number, |_| true),
            Op::Unpin(number) => self.unpin_one(cpu, number),
            Op::Upgrade(number) => self.upgrade(cpu, number),
            Op::Unlatch(number) => _ = self.unlatch(cpu, number),
            Op::Write(number) => self.write_one(cpu, number),
            Op::Alloc { group, order } => self.alloc(cpu, group, order),
            Op::Free(number) => self.free(cpu, number),
            Op::Reserve {
                group,
                nr_bytes,
                is_shrinkable,
            } => {
                self.reserve(cpu, (group, nr_bytes.into()), is_shrinkable);
            }
            Op::Unreserve { pick, part } => self.unreserve(cpu, pick, part),
            Op::TakeAway { is_idle } => self.take_away(cpu, is_idle),
            Op::PutBack { pick, is_released } => _ = self.put_back(pick, is_released),
            Op::Reclaim { group, nr_pages } => {
                let group = self.group(group);
                let here = self.here(cpu);
                let nr_freed =
                    self.memory
                        .reclaim_proactively(here, (group, None), nr_pages.into());
                self.note(nr_freed);
            }
            Op::Balance(number) => self.balance(cpu, number),
            Op::Drain => _ = self.memory.drain(),
            Op::DrainStocks(group) => self.memory.drain_charges(self.group(group)),
            Op::Tick(ms) => self.tick(cpu, u64::from(ms) * 1_000_000),
            Op::Hints(bits) => self.memory.zones().corrupt_hints(bits),
            Op::Faults(one_in) => self.state.borrow_mut().disk.fails_one_in = one_in,
            Op::Reopen(number) => self.reopen(cpu, number),
            Op::NewGroup(parent) => self.new_group(cpu, parent),
            Op::DropGroup(number) => self.drop_group(cpu, number),
            Op::SetMax { group, part } => self.set_max(cpu, group, part),
            Op::SetLimit { group, limit, part } => self.set_limit(group, limit, part),
            Op::SetBudget(part) => self.set_budget(cpu, part),
            Op::SetNodes {
                group,
                policy,
                nodes,
            } => self.set_nodes(group, policy, nodes),
            Op::Quiesce | Op::Crash => {}
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.state.borrow().tasks.len() < MAX_TASKS
    }

    fn fetch(&self, cpu: Cpu, place: Place, goal: Goal, is_longterm: bool) {
        if let Some(at) = self.place(place) {
            self.fetch_at(cpu, at, goal, is_longterm);
        }
    }

    pub(super) fn change(&self, cpu: Cpu, at: (u32, usize, PageKey)) {
        if self.has_room() {
            self.begin(cpu, Task::new(Work::Change { intent: None }, at));
        }
    }

    pub(super) fn fetch_at(
        &self,
        cpu: Cpu,
        at: (u32, usize, PageKey),
        goal: Goal,
        is_longterm: bool,
    ) {
        let is_full = self.state.borrow().held.len() >= MAX_HELD && goal == Goal::Hold;
        if self.has_room() && !is_full {
            self.look_ahead(cpu, at);
            if !is_longterm && self.hit(cpu, (at.1, at.2), goal) {
                return;
            }
            self.begin(cpu, Task::fetch(goal, is_longterm, at));
        }
    }

    /// Has a page that is there as the runtime's hits do, every other one as if its word went from
    /// CPU to CPU; false where that is left to an operation.
    fn hit(&self, cpu: Cpu, (file, key): (usize, PageKey), goal: Goal) -> bool {
        let access = match goal {
            Goal::Hold => Access::Pin,
            Goal::Read => Access::Copy,
            Goal::Change => return false,
        };
        if key.page().is_multiple_of(2) {
            self.memory.contend(key);
        }
        let unpin = |frame| self.unpin(cpu, frame);
        let (found, claim) = self.memory.hold(cpu, (key, access), |_| (), unpin);
        match found {
            Found::Pinned(frame) => {
                self.check_bytes(frame, file, key);
                if goal == Goal::Hold {
                    self.held((file, key), (frame, claim));
                } else {
                    self.release(cpu, (frame, claim));
                }
                true
            }
            Found::Reading(frame) => {
                self.unpin(cpu, frame);
                false
            }
            Found::Latched(_) | Found::Miss | Found::TooManyPins => false,
        }
    }

    /// Keeps a pin, or the claim that it is.
    pub(super) fn held(
        &self,
        (file, key): (usize, PageKey),
        (frame, claim): (Frame, Option<Claim>),
    ) {
        let stamp = self.stamp(frame);
        let held = Held {
            frame,
            file,
            key,
            stamp,
            claim,
        };
        self.state.borrow_mut().held.push(held);
        if self.is_planted(Plant::StrayWrite) {
            self.fill(frame, TORN);
        }
    }

    fn sync(&self, cpu: Cpu, number: u32) {
        let nr_files = self.scenario.files.len();
        let file = pick(number, nr_files).filter(|_| self.has_room());
        if let Some(task) = file.and_then(|file| self.new_sync(file)) {
            self.begin(cpu, task);
        }
    }

    fn give_up_one(&self, cpu: Cpu, number: u32) {
        let task = {
            let mut state = self.state.borrow_mut();
            pick(number, state.tasks.len()).map(|at| state.tasks.remove(at))
        };
        if let Some(task) = task {
            self.give_up(cpu, task);
        }
    }

    fn take_held(&self, number: u32) -> Option<Held> {
        let mut state = self.state.borrow_mut();
        let at = pick(number, state.held.len())?;
        Some(state.held.remove(at))
    }

    pub(super) fn unpin_one(&self, cpu: Cpu, number: u32) {
        if let Some(held) = self.take_held(number) {
            if self.stamp(held.frame) != held.stamp {
                self.fail(format!("{:?} changed under a pin", held.key));
            }
            if !self.is_planted(Plant::ForgetUnpin) {
                self.release(cpu, (held.frame, held.claim));
            }
        }
    }

    fn upgrade(&self, cpu: Cpu, number: u32) {
        let Some(mut held) = self.take_held(number) else {
            return;
        };
        if let Some(claim) = held.claim.take() {
            let mut effects = Effects::new();
            let is_kept = self.memory.keep(cpu, (held.frame, claim), &mut effects);
            assert!(is_kept, "a simulation holds few pins");
            self.run(&mut effects);
        }
        if self.memory.upgrade(held.frame) {
            self.latched(held.frame, held.file, held.key);
        } else {
            self.state.borrow_mut().held.push(held);
        }
    }

    /// Gives a latch back, of a page that was changed or not.
    pub(super) fn unlatch(&self, cpu: Cpu, number: u32) -> bool {
        let held = {
            let mut state = self.state.borrow_mut();
            pick(number, state.latched.len()).map(|at| state.latched.remove(at))
        };
        let Some(Held {
            frame,
            file,
            key,
            stamp,
            ..
        }) = held
        else {
            return false;
        };
        if self.stamp(frame) != TORN {
            self.fail(format!("{key:?} changed under a latch"));
        }
        let is_changed = !number.is_multiple_of(3);
        let stamp = if is_changed { self.next_stamp() } else { stamp };
        self.fill(frame, stamp);
        let is_live = self.memory.frames().word(frame).state() == FrameState::Live;
        if is_changed && is_live {
            self.set_truth(file, key.page(), stamp);
        }
        let mut effects = Effects::new();
        self.memory.unlatch(cpu, frame, is_changed, &mut effects);
        self.run(&mut effects);
        true
    }

    fn write_one(&self, cpu: Cpu, number: u32) {
        let table = self.memory.frames();
        let from = number % table.len();
        let mut frames = (from..table.len()).chain(0..from).map(Frame::new);
        let dirty = frames.find(|&frame| table.word(frame).may_be_written());
        if let Some(write) = dirty.and_then(|frame| self.memory.begin_write(frame)) {
            self.begin_offered(cpu, write);
        }
    }

    fn alloc(&self, cpu: Cpu, group: u32, order: u8) {
        let is_full = self.state.borrow().bufs.len() >= MAX_HELD;
        let order = Order::new(order).filter(|_| !is_full);
        let (group, Some(order)) = (self.group(group), order) else {
            return;
        };
        match self.memory.alloc_buf(self.here(cpu), group, order) {
            Ok((frame, was_ours)) => {
                self.note(u64::from(frame.number()) | 9 << 40);
                self.check_owner(frame, was_ours);
                if self.is_planted(Plant::RefuseWithoutNeed) {
                    self.memory.free_buf(cpu, frame);
                    return self.refused((group, order), AllocError::OverLimit { group });
                }
                let stamp = self.next_stamp();
                self.fill(frame, stamp);
                let buf = Buf {
                    frame,
                    order,
                    stamp,
                };
                self.state.borrow_mut().bufs.push(buf);
                if self.is_planted(Plant::ReleaseInUse) {
                    let mut state = self.state.borrow_mut();
                    state.frames.fill(frame, order, (0, 0));
                }
            }
            Err(error) => self.refused((group, order), error),
        }
    }

    pub(super) fn free(&self, cpu: Cpu, number: u32) {
        let buf = {
            let mut state = self.state.borrow_mut();
            pick(number, state.bufs.len()).map(|at| state.bufs.remove(at))
        };
        let Some(Buf { frame, stamp, .. }) = buf else {
            return;
        };
        if self.stamp(frame) != stamp {
            self.fail(format!("somebody wrote to the block of {frame:?}"));
        }
        let (order, group) = (
            self.memory.frames().block(frame).0,
            self.memory.frames().group(frame),
        );
        if self.is_planted(Plant::ForeignBytes) {
            let bytes = (stamp, group + 1);
            self.state.borrow_mut().frames.fill(frame, order, bytes);
        }
        self.memory.free_buf(cpu, frame);
        if self.is_planted(Plant::ForgetUncharge) {
            let groups = self.memory.groups();
            let root = groups.root();
            let group = groups.get(group).map_or(root, |_| group);
            groups.charge_forced(cpu, group, order.nr_pages());
        }
    }

    fn reserve(&self, cpu: Cpu, (group, nr_bytes): (u32, u64), is_shrinkable: bool) {
        let group = self.group(group);
        let mut reserving = Reserving {
            world: self,
            is_held: true,
        };
        self.memory.begin_reservation();
        match self.memory.reserve(self.here(cpu), group, nr_bytes) {
            Ok(()) => {
                reserving.is_held = false;
                let reserved = Reserved {
                    group,
                    nr_bytes,
                    is_shrinkable,
                };
                self.state.borrow_mut().reserved.push(reserved);
            }
            Err(_) => self.note(10 << 40),
        }
    }

    pub(super) fn unreserve(&self, cpu: Cpu, number: u32, part: u8) {
        let mut state = self.state.borrow_mut();
        let Some(at) = pick(number, state.reserved.len()) else {
            return;
        };
        let reserved = &mut state.reserved[at];
        let (group, is_all) = (reserved.group, part == u8::MAX);
        let nr_bytes = match is_all {
            true => reserved.nr_bytes,
            false => reserved.nr_bytes * u64::from(part) / 256,
        };
        reserved.nr_bytes -= nr_bytes;
        if is_all {
            state.reserved.remove(at);
        }
        drop(state);
        self.memory.unreserve(cpu, group, nr_bytes);
        if is_all {
            self.memory.end_reservation();
        }
    }

    fn take_away(&self, cpu: Cpu, is_idle: bool) {
        let before = self.state.borrow().now.saturating_sub(1_000_000_000);
        let taken = match is_idle {
            true => self.memory.take_idle(before),
            false => self.memory.next_offline(self.here(cpu)),
        };
        if let Some(idle) = taken {
            self.note(u64::from(idle.frame().number()) | 11 << 40);
            self.state.borrow_mut().taken.push((idle, is_idle));
        }
    }

    pub(super) fn put_back(&self, number: u32, is_released: bool) -> bool {
        let taken = {
            let mut state = self.state.borrow_mut();
            pick(number, state.taken.len()).map(|at| state.taken.remove(at))
        };
        let Some((idle, is_idle)) = taken else {
            return false;
        };
        if is_released {
            let mut state = self.state.borrow_mut();
            state.frames.fill(idle.frame(), idle.order(), (0, 0));
        }
        match is_idle {
            true => self.memory.put_idle(idle, is_released),
            false => self.memory.put_offline(idle, is_released),
        }
        true
    }

    fn balance(&self, cpu: Cpu, number: u32) {
        let wanted = self.state.borrow().wanted_nodes;
        let nr_nodes = self.scenario.config.alloc.topology.nr_nodes();
        let wanted = NodeMask::from_bits(wanted).iter().next();
        let node = wanted.or_else(|| Node::new(number % nr_nodes));
        let Some(node) = node else { return };
        let balance = self.memory.balance(self.here(cpu), node);
        if balance != pagetide_core::memory::Balance::More {
            self.state.borrow_mut().wanted_nodes &= !(1 << node.number());
        }
    }

    pub(super) fn tick(&self, cpu: Cpu, ns: u64) {
        let now = {
            let mut state = self.state.borrow_mut();
            state.now += ns;
            state.now
        };
        self.memory.tick(cpu, now);
    }

    pub(super) fn new_group(&self, cpu: Cpu, parent: u32) {
        let is_full = self.state.borrow().groups.len() > MAX_GROUPS;
        let parent = self.group(parent);
        if is_full {
            return;
        }
        if let Ok(id) = self.memory.new_group(self.here(cpu), parent) {
            let group = GroupState { id, may_use: 0 };
            self.state.borrow_mut().groups.push(group);
        }
    }

    fn drop_group(&self, cpu: Cpu, number: u32) {
        let id = {
            let mut state = self.state.borrow_mut();
            let at = pick(number, state.groups.len()).filter(|&at| at > 0);
            let Some(at) = at else { return };
            let id = state.groups[at].id;
            if state.tasks.iter().any(|task| task.group == id) || self.depth.get() > 1 {
                return;
            }
            state.groups.remove(at);
            id
        };
        self.memory.drop_group(cpu, id);
    }

    fn set_max(&self, cpu: Cpu, number: u32, part: u8) {
        let group = self.group(number);
        if group == self.memory.groups().root() {
            return;
        }
        let max = u64::from(self.scenario.content_pages) * u64::from(part) / 256;
        if self.is_planted(Plant::UnseenLimit) {
            let is_set = self.memory.groups().set_max(group, 0).is_ok();
            return self.note(12 << 40 | u64::from(is_set));
        }
        // Before, too: a callback may unwind.
        self.limit_moved(group);
        let limited = self.memory.set_max(self.here(cpu), group, max);
        self.note(limited.map_or(12 << 40, |over| over | 13 << 40));
        self.limit_moved(group);
    }

    /// A group may stay above a limit that was lowered, but not grow.
    fn limit_moved(&self, group: u32) {
        let usage = self
            .memory
            .groups()
            .get(group)
            .map_or(0, |group| group.usage());
        let mut state = self.state.borrow_mut();
        let all = state.groups.iter_mut();
        for moved in all.filter(|it| it.id == group) {
            moved.may_use = usage;
        }
    }

    fn set_limit(&self, number: u32, limit: u8, part: u8) {
        let group = self.group(number);
        let limit = [Limit::Min, Limit::Low, Limit::High][usize::from(limit % 3)];
        let pages = u64::from(self.scenario.content_pages) * u64::from(part) / 256;
        let is_set = self.memory.set_limit(group, limit, pages).is_ok();
        self.note(14 << 40 | u64::from(is_set));
    }

    fn set_budget(&self, cpu: Cpu, part: u8) {
        let most = u64::from(self.scenario.config.arena_pages);
        let budget = most * (u64::from(part) + 1) / 256;
        self.limit_moved(self.memory.groups().root());
        let over = self.memory.set_budget(self.here(cpu), budget);
        self.note(over.map_or(15 << 40, |over| over | 16 << 40));
        self.limit_moved(self.memory.groups().root());
    }

    fn set_nodes(&self, number: u32, policy: u8, nodes: u64) {
        let group = self.group(number);
        let topology = &self.scenario.config.alloc.topology;
        let nodes = NodeMask::from_bits(nodes).and(topology.node_mask());
        let Some(first) = nodes.iter().next() else {
            return;
        };
        let policy = match policy % 6 {
            0 | 1 => Mempolicy::Local,
            2 => Mempolicy::Preferred(first),
            3 => Mempolicy::Interleave(nodes),
            4 => Mempolicy::WeightedInterleave(nodes),
            _ => Mempolicy::Bind(nodes),
        };
        self.state.borrow_mut().is_placed = true;
        self.memory.set_mempolicy(group, policy);
    }
}

/// A reservation that is being made; it ends where a callback unwinds.
struct Reserving<'w, 'a> {
    world: &'w World<'a>,
    is_held: bool,
}

impl Drop for Reserving<'_, '_> {
    fn drop(&mut self) {
        if self.is_held {
            self.world.memory.end_reservation();
        }
    }
}
