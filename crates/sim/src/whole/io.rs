//! Reads, copies and writes: begun, under way, ended.

use super::Plant;
use super::device::{FAILED, Pending, TORN};
use super::world::{State, World, pick};
use pagetide_core::memory::{Effects, Io, Write};
use pagetide_core::units::{Cpu, Frame, Order};

/// The code of a write whose store got no memory.
const NO_MEMORY: u32 = 12;

impl World<'_> {
    /// The file of a key's mapping, also one that was closed while writes are under way.
    fn file_of(&self, mapping: u32) -> usize {
        let state = self.state.borrow();
        let number = |id: u32| id & pagetide_core::units::PageKey::MAX_MAPPING;
        let is_it = |id: Option<u32>| id.is_some_and(|id| number(id) == mapping);
        let open = state.files.iter().position(|file| is_it(file.mapping));
        open.expect("reads and new writes are of open files")
    }

    pub(super) fn begin_read(&self, io: Io) {
        let file = self.file_of(io.key().mapping());
        let mut state = self.state.borrow_mut();
        let is_written =
            |op: &Pending| matches!(op, Pending::Write(_, write, ..) if write.key() == io.key());
        if state.pending.iter().any(is_written) {
            self.fail(format!("{:?} is read while it is written", io.key()));
        }
        let stamp = state.stored(file, io.key().page());
        state.pending.push(Pending::Read(file, io, stamp));
    }

    pub(super) fn begin_copy(&self, io: Io) {
        let file = self.file_of(io.key().mapping());
        let source = io.source().expect("a copy has a source");
        let stamp = self.stamp(source);
        self.state
            .borrow_mut()
            .pending
            .push(Pending::Copy(file, io, stamp));
    }

    /// Begins a write; its store takes some working memory, or fails.
    pub(super) fn begin_write(&self, cpu: Cpu, file: usize, write: Write) {
        let here = self.here(cpu).for_writes();
        let group = self.memory.frames().group(write.frame());
        let wanted = usize::try_from(self.scenario.nr_blocks).expect("a few");
        let mut writing = Writing {
            world: self,
            cpu,
            write: Some(write),
            blocks: Vec::new(),
        };
        while writing.blocks.len() < wanted {
            let Ok((frame, _)) = self.memory.alloc_buf(here, group, Order::ZERO) else {
                // It ends as one that failed.
                return;
            };
            self.fill(frame, TORN);
            writing.blocks.push(frame);
        }
        let Some(write) = writing.write.take() else {
            return;
        };
        let stamp = self.stamp(write.frame());
        let blocks = std::mem::take(&mut writing.blocks);
        let mut state = self.state.borrow_mut();
        state
            .pending
            .push(Pending::Write(file, write, stamp, blocks));
    }

    /// Begins to write what reclaim offers.
    pub(super) fn begin_offered(&self, cpu: Cpu, write: Write) {
        let file = self.file_of(write.key().mapping());
        self.begin_write(cpu, file, write);
    }

    fn free_blocks(&self, cpu: Cpu, blocks: Vec<Frame>) {
        for frame in blocks {
            self.memory.free_buf(cpu, frame);
        }
    }

    fn end_write(&self, cpu: Cpu, write: Write, result: Result<(), u32>) {
        let mut effects = Effects::new();
        self.memory.complete_write(cpu, write, result, &mut effects);
        self.run(&mut effects);
    }

    /// Ends an operation that is `meant`; whether it went well, `None` where there is none.
    pub(super) fn end_one(
        &self,
        cpu: Cpu,
        number: u32,
        meant: impl Fn(&Pending) -> bool,
    ) -> Option<bool> {
        let (op, mut fails) = {
            let mut state = self.state.borrow_mut();
            let meant = (0..state.pending.len()).filter(|&at| meant(&state.pending[at]));
            let meant: Vec<usize> = meant.collect();
            let at = pick(number, meant.len())?;
            let op = state.pending.remove(meant[at]);
            let fails = state.disk.fails();
            let fails = match op {
                Pending::Read(..) => state.disk.read_fails(self.scenario.fail_read_at) || fails,
                Pending::Write(..) => fails,
                Pending::Copy(..) => false,
            };
            (op, fails)
        };
        self.note(7 << 40 | u64::from(fails));
        match op {
            Pending::Read(file, io, stamp) => self.end_read(cpu, file, (io, stamp), fails),
            Pending::Copy(_, io, stamp) => {
                let source = io.source().expect("a copy has a source");
                if self.stamp(source) != stamp {
                    self.fail(format!("{:?} changed while it was copied", io.key()));
                }
                self.check_owner(io.frame(), io.was_ours());
                self.fill(io.frame(), stamp);
                self.complete(cpu, io, Ok(()));
            }
            Pending::Write(file, write, stamp, blocks) => {
                if self.stamp(write.frame()) != stamp {
                    self.fail(format!("{:?} changed while it was written", write.key()));
                }
                let stored = self.state.borrow_mut().store(file, &write, stamp, fails);
                fails = stored.is_err();
                self.end_write(cpu, write, stored);
                self.free_blocks(cpu, blocks);
            }
        }
        Some(!fails)
    }

    fn end_read(&self, cpu: Cpu, file: usize, (io, began_with): (Io, u64), fails: bool) {
        self.check_owner(io.frame(), io.was_ours());
        let page = io.key().page();
        if fails {
            let mut state = self.state.borrow_mut();
            let tasks = state.tasks.iter_mut();
            tasks.for_each(|task| task.read_failed(io.frame()));
            drop(state);
            self.fill(io.frame(), TORN);
            let is_hidden = self.is_planted(Plant::HideError);
            let result = if is_hidden { Ok(()) } else { Err(FAILED) };
            return self.complete(cpu, io, result);
        }
        let stamp = self.state.borrow().stored(file, page);
        if stamp != began_with {
            self.fail(format!(
                "{:?} changed in its store while it was read",
                io.key()
            ));
        }
        self.fill_stored(file, &io);
        self.complete(cpu, io, Ok(()));
    }

    /// Fills a frame with what is stored of its page.
    fn fill_stored(&self, file: usize, io: &Io) {
        let (frame, page) = (io.frame(), io.key().page());
        let group = self.memory.frames().group(frame);
        let mut state = self.state.borrow_mut();
        let wrong = u64::from(state.stamps.is_planted(Plant::WrongBytes));
        if !state.files[file].is_anon {
            let stamp = state.disk.stamp(file, page).wrapping_add(wrong);
            return state.frames.fill(frame, io.order(), (stamp, group));
        }
        let units = state.units(file, page);
        let is_stored = state.spill.has(file, units.clone());
        if !is_stored && state.stamps.is_planted(Plant::OldBytes) {
            return;
        }
        let State {
            spill,
            frames,
            stamps,
            disk,
            ..
        } = &mut *state;
        for (frame, stamp) in (frame.number()..).zip(spill.read(file, units.clone())) {
            let bytes = (stamp.wrapping_add(wrong), group);
            frames.fill(Frame::new(frame), Order::ZERO, bytes);
        }
        disk.nr_swapped_in += u64::from(is_stored);
        if is_stored && stamps.is_planted(Plant::GiveSlots) {
            spill.give(file, units);
        }
    }

    fn complete(&self, cpu: Cpu, io: Io, result: Result<(), u32>) {
        let mut effects = Effects::new();
        self.memory.complete(cpu, io, result, &mut effects);
        self.run(&mut effects);
    }

    /// A block that is said to have the group's own bytes has nobody else's.
    pub(super) fn check_owner(&self, frame: Frame, was_ours: bool) {
        let (order, _) = self.memory.frames().block(frame);
        let group = self.memory.frames().group(frame);
        let is_clean = self.state.borrow().frames.is_of(frame, order, group);
        if was_ours && !is_clean {
            self.fail(format!("{frame:?} has another group's bytes"));
        }
    }
}

/// A write whose store takes what it needs: it fails where it does not get that, or unwinds.
struct Writing<'w, 'a> {
    world: &'w World<'a>,
    cpu: Cpu,
    write: Option<Write>,
    blocks: Vec<Frame>,
}

impl Drop for Writing<'_, '_> {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            let blocks = std::mem::take(&mut self.blocks);
            self.world.free_blocks(self.cpu, blocks);
            self.world.end_write(self.cpu, write, Err(NO_MEMORY));
        }
    }
}
