//! What has to hold between two actions, and at the end.

use super::device::Pending;
use super::task::Task;
use super::world::{MAX_GROUPS, World};
use pagetide_core::frame::{State as FrameState, flag};
use pagetide_core::units::{Cpu, Frame, PageKey, index};
use std::collections::BTreeMap;

/// Rounds in which everything that is under way has to end, beside one for each task.
const MAX_ROUNDS: usize = 2000;

impl World<'_> {
    /// Looks at everything, with no call of core under way.
    pub(super) fn check(&self) -> Result<(), String> {
        // Blocks in hand are on no list.
        if self.state.borrow().taken.is_empty() {
            self.memory.audit().map_err(|error| error.to_string())?;
        }
        self.check_pins()?;
        self.check_content()?;
        self.check_limits()
    }

    /// Each pin is somebody's.
    fn check_pins(&self) -> Result<(), String> {
        let table = self.memory.frames();
        let mut pins = vec![0_u32; index(table.len())];
        let state = self.state.borrow();
        let held = state
            .held
            .iter()
            .chain(&state.latched)
            .map(|held| held.frame);
        let waiting = state.tasks.iter().filter_map(Task::pin);
        for frame in held.chain(waiting) {
            pins[frame.index()] += 1;
        }
        for op in &state.pending {
            if let Pending::Read(_, io, _) | Pending::Copy(_, io, _) = op {
                pins[io.frame().index()] += 1;
                if let Some(source) = io.source() {
                    pins[source.index()] += 1;
                }
            }
        }
        for frame in (0..table.len()).map(Frame::new) {
            let (word, expected) = (table.word(frame), pins[frame.index()]);
            let nr_claims = match word.has(flag::CONTENDED) {
                true => self.memory.claims().nr_on(frame),
                false => 0,
            };
            let found = word.pins() + nr_claims;
            if found != expected {
                return Err(format!("{frame:?} has {found} pins, {expected} known"));
            }
        }
        for held in &state.held {
            let (order, _) = table.block(held.frame);
            if table.key(held.frame) != Some(held.key) {
                return Err(format!("{:?} lost its frame under a pin", held.key));
            }
            if state.frames.stamp(held.frame, order) != held.stamp {
                return Err(format!("{:?} changed under a pin", held.key));
            }
        }
        for buf in &state.bufs {
            let is_there = table.word(buf.frame).state() == FrameState::Buf;
            if !is_there || state.frames.stamp(buf.frame, buf.order) != buf.stamp {
                return Err(format!("somebody wrote to the block of {:?}", buf.frame));
            }
        }
        Ok(())
    }

    /// What is resident has the right bytes; what is not, and what is clean, is stored.
    fn check_content(&self) -> Result<(), String> {
        let table = self.memory.frames();
        let mut resident = BTreeMap::new();
        for frame in (0..table.len()).map(Frame::new) {
            if table.word(frame).state() == FrameState::Live {
                resident.insert(table.key(frame).map(PageKey::bits), frame);
            }
        }
        let state = self.state.borrow();
        for (at, file) in state.files.iter().enumerate() {
            let Some(mapping) = file.mapping else {
                continue;
            };
            for (&page, &truth) in &file.truth {
                let key = pagetide_core::page_cache::Mappings::key(mapping, page);
                let frame = resident.get(&key.map(PageKey::bits));
                let word = frame.map(|&frame| table.word(frame));
                let is_latched = word.is_some_and(|word| word.has(flag::LATCH));
                if let Some(&frame) = frame
                    && !is_latched
                {
                    let stamp = state.frames.stamp(frame, file.order);
                    if stamp != truth {
                        return Err(format!(
                            "page {page} of file {at} in {frame:?}: {stamp}, written {truth}"
                        ));
                    }
                }
                let is_unwritten = word.is_some_and(|word| word.is_unwritten());
                let stamp = state.stored(at, page);
                if !is_unwritten && stamp != truth {
                    return Err(format!(
                        "page {page} of file {at} stored: {stamp}, written {truth}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// No group is above its limit, but for what was there when it was lowered.
    fn check_limits(&self) -> Result<(), String> {
        let mut state = self.state.borrow_mut();
        for group in &mut state.groups {
            let Some(record) = self.memory.groups().get(group.id) else {
                return Err(format!("group {} has gone with its handle there", group.id));
            };
            let (usage, max) = (record.usage(), record.max());
            if usage > max.max(group.may_use) {
                return Err(format!("group {} uses {usage} pages of {max}", group.id));
            }
            group.may_use = usage;
        }
        Ok(())
    }

    /// Everything under way ends: nobody sleeps for ever.
    pub(super) fn quiesce(&self) -> Result<(), String> {
        let cpu = Cpu::new(0);
        self.nr_inside.set(0);
        self.state.borrow_mut().disk.fails_one_in = 0;
        let mut nr_rounds = 0;
        let most = MAX_ROUNDS + 64 * self.scenario.actions.len();
        loop {
            let is_ended = self.end_one(cpu, 0, |_| true).is_some();
            let is_unlatched = self.unlatch(cpu, 0);
            let is_stepped = self.step_one(cpu, 0);
            nr_rounds += 1;
            if let Some(what) = self.failure() {
                return Err(what);
            }
            if nr_rounds > most {
                return Err(format!("no end after {nr_rounds} rounds"));
            }
            if is_ended || is_unlatched || is_stepped {
                continue;
            }
            let (has_tasks, has_pins) = {
                let state = self.state.borrow();
                (!state.tasks.is_empty(), !state.held.is_empty())
            };
            match (has_tasks, has_pins) {
                (false, _) => return Ok(()),
                (true, true) => self.unpin_one(cpu, 0),
                (true, false) => return Err(self.asleep()),
            }
        }
    }

    fn asleep(&self) -> String {
        let state = self.state.borrow();
        let task = state.tasks.first().expect("there is one");
        let has_to_wait = task
            .sleep
            .as_ref()
            .is_some_and(|sleep| self.has_to_wait(sleep));
        let why = match has_to_wait {
            true => "for what does not come",
            false => "and nobody woke it",
        };
        let word = task
            .sleep
            .map(|sleep| self.memory.frames().word(sleep.frame));
        format!("a task sleeps {why}: {task:?}, {word:?}")
    }

    /// Gives everything back: nothing stays.
    pub(super) fn end(&self) -> Result<(), String> {
        let cpu = Cpu::new(0);
        self.quiesce()?;
        while !self.state.borrow().held.is_empty() {
            self.unpin_one(cpu, 0);
        }
        while !self.state.borrow().bufs.is_empty() {
            self.free(cpu, 0);
        }
        while !self.state.borrow().reserved.is_empty() {
            self.unreserve(cpu, 0, u8::MAX);
        }
        while self.put_back(0, true) {}
        self.check()?;
        for file in 0..self.scenario.files.len() {
            let mapping = self.state.borrow().files[file].mapping;
            if let Some(id) = mapping {
                self.close(cpu, file, id);
            }
        }
        let groups: Vec<u32> = self
            .state
            .borrow()
            .groups
            .iter()
            .skip(1)
            .map(|group| group.id)
            .collect();
        self.state.borrow_mut().groups.truncate(1);
        groups
            .into_iter()
            .for_each(|id| self.memory.drop_group(cpu, id));
        self.memory.drain();
        // A level of dead groups goes with each.
        (0..=MAX_GROUPS).for_each(|_| self.tick(cpu, 2_000_000_000));
        self.check()?;
        let (nr_used, nr_groups) = (
            self.memory.stats().nr_used,
            self.memory.groups().iter().count(),
        );
        let nr_slots = self.state.borrow().spill.nr_used();
        match (nr_used, nr_groups, nr_slots) {
            (0, 1, 0) => Ok(()),
            (0, 1, _) => Err(format!("{nr_slots} slots of the spill file stay")),
            _ => Err(format!("{nr_used} pages and {} groups stay", nr_groups - 1)),
        }
    }
}
