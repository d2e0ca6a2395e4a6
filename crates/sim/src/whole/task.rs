//! What takes several steps: bringing a page in, changing it, dropping it, writing a file back.
//! A task that waits is asleep until core says that it is to be woken.

use super::Plant;
use super::device::{FAILED, TORN};
use super::world::{Held, World, pick};
use pagetide_core::frame::State as FrameState;
use pagetide_core::memory::{
    AllocError, Discard, Effect, Effects, Memory, PageError, PageIn, PageWrite, Step,
};
use pagetide_core::page_cache::{Access, Latched};
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use std::collections::BTreeMap;

/// What a sleeper waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The frame's version is another one.
    Version,
    /// Nobody holds the page.
    Free,
    /// Its write ended.
    Written,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sleep {
    pub(super) frame: Frame,
    version: u32,
    until: Until,
}

impl Sleep {
    /// Whether what it waits for has not come.
    pub(super) fn has_to_wait(&self, memory: &Memory) -> bool {
        let (frame, version) = (self.frame, self.version);
        match self.until {
            Until::Version => memory.frames().word(frame).version() == version,
            Until::Free => memory.is_held(frame, version),
            Until::Written => memory.is_held(frame, version) && memory.is_in_writeback(frame),
        }
    }
}

/// What a page is brought in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    Read,
    Hold,
    Change,
}

#[derive(Debug)]
pub(super) enum Work {
    Fetch {
        op: Option<PageIn>,
        goal: Goal,
        /// The frame that the operation has a pin on.
        pin: Option<Frame>,
        /// The read that it waits for failed.
        has_failed: bool,
        /// The page was changed on its way in.
        is_changed: bool,
    },
    /// Wants the latch; the frame in which it said so.
    Change {
        intent: Option<Frame>,
    },
    Discard,
    Sync {
        /// Pages to write, and where it is.
        pages: Vec<PageKey>,
        at: usize,
        /// Failures before.
        nr_errors: u32,
        /// What is to be durable.
        promise: BTreeMap<u64, u64>,
    },
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) group: u32,
    pub(super) file: usize,
    pub(super) key: PageKey,
    pub(super) work: Work,
    pub(super) sleep: Option<Sleep>,
}

impl Task {
    pub(super) fn fetch(
        goal: Goal,
        is_longterm: bool,
        (group, file, key): (u32, usize, PageKey),
    ) -> Task {
        let access = match goal {
            Goal::Hold => Access::Pin,
            Goal::Read | Goal::Change => Access::Copy,
        };
        let op = match is_longterm {
            true => PageIn::longterm(key, group),
            false => PageIn::new(key, group, access),
        };
        let work = Work::Fetch {
            op: Some(op),
            goal,
            pin: None,
            has_failed: false,
            is_changed: false,
        };
        Task {
            group,
            file,
            key,
            work,
            sleep: None,
        }
    }

    pub(super) fn new(work: Work, (group, file, key): (u32, usize, PageKey)) -> Task {
        Task {
            group,
            file,
            key,
            work,
            sleep: None,
        }
    }

    /// A pin of its own.
    pub(super) fn pin(&self) -> Option<Frame> {
        match &self.work {
            Work::Fetch { pin, .. } => *pin,
            _ => None,
        }
    }

    /// A read failed: whoever waits for it has to be told.
    pub(super) fn read_failed(&mut self, frame: Frame) {
        if let Work::Fetch {
            pin, has_failed, ..
        } = &mut self.work
        {
            *has_failed |= *pin == Some(frame);
        }
    }
}

/// What became of a step.
enum Stepped {
    Over,
    Again,
    Sleep(Sleep),
}

/// A task that is being stepped: given up where a callback unwinds, as the runtime does.
struct Running<'w, 'a> {
    world: &'w World<'a>,
    cpu: Cpu,
    task: Option<Task>,
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.world.give_up(self.cpu, task);
        }
    }
}

impl World<'_> {
    /// Takes a new task one step.
    pub(super) fn begin(&self, cpu: Cpu, task: Task) {
        let mut running = Running {
            world: self,
            cpu,
            task: Some(task),
        };
        let Some(task) = &mut running.task else {
            return;
        };
        let stepped = match &task.work {
            Work::Fetch { .. } => self.step_fetch(cpu, task),
            Work::Change { .. } => self.step_change(cpu, task),
            Work::Discard => self.step_discard(cpu, task),
            Work::Sync { .. } => self.step_sync(cpu, task),
        };
        let task = running.task.take();
        drop(running);
        let Some(mut task) = task else { return };
        match stepped {
            Stepped::Over => return,
            Stepped::Again => task.sleep = None,
            Stepped::Sleep(sleep) => task.sleep = self.has_to_wait(&sleep).then_some(sleep),
        }
        self.state.borrow_mut().tasks.push(task);
    }

    /// Steps a task that is awake; false where all are asleep.
    pub(super) fn step_one(&self, cpu: Cpu, number: u32) -> bool {
        let task = {
            let mut state = self.state.borrow_mut();
            let awake = (0..state.tasks.len()).filter(|&at| state.tasks[at].sleep.is_none());
            let awake: Vec<usize> = awake.collect();
            pick(number, awake.len()).map(|at| state.tasks.remove(awake[at]))
        };
        let Some(task) = task else { return false };
        self.begin(cpu, task);
        true
    }

    pub(super) fn give_up(&self, cpu: Cpu, task: Task) {
        let mut effects = Effects::new();
        match task.work {
            Work::Fetch { op, .. } => {
                if let Some(op) = op {
                    op.abandon(&self.memory, cpu, &mut effects);
                }
            }
            Work::Change {
                intent: Some(frame),
            } => self.memory.withdraw(frame, &mut effects),
            Work::Change { .. } | Work::Discard | Work::Sync { .. } => {}
        }
        self.run(&mut effects);
    }

    fn sleep(frame: Frame, version: u32, until: Until) -> Stepped {
        Stepped::Sleep(Sleep {
            frame,
            version,
            until,
        })
    }

    fn step_fetch(&self, cpu: Cpu, task: &mut Task) -> Stepped {
        let Work::Fetch {
            op,
            goal,
            pin,
            has_failed,
            is_changed,
        } = &mut task.work
        else {
            return Stepped::Over;
        };
        let Some(running) = op else {
            return Stepped::Over;
        };
        let goal = *goal;
        let has_failed = *has_failed;
        let mut effects = Effects::new();
        let step = running.step(&self.memory, self.here(cpu), &mut effects);
        self.check_told(task.key, has_failed, &step);
        *pin = None;
        if let Ok(Step::Wait { frame, .. }) = step
            && self.memory.frames().word(frame).state() == FrameState::Reading
        {
            *pin = Some(frame);
        }
        if goal == Goal::Change {
            *is_changed |= self.fill_changed(cpu, (task.file, task.key), &mut effects);
        }
        let is_changed = *is_changed;
        self.run(&mut effects);
        match step {
            Ok(Step::Wait { frame, version }) => World::sleep(frame, version, Until::Version),
            Ok(Step::Done(frame)) => {
                *op = None;
                self.note(u64::from(frame.number()) | 2 << 40);
                self.check_bytes(frame, task.file, task.key);
                if goal == Goal::Hold {
                    let (file, key, stamp) = (task.file, task.key, self.stamp(frame));
                    let held = Held {
                        frame,
                        file,
                        key,
                        stamp,
                    };
                    self.state.borrow_mut().held.push(held);
                    return Stepped::Over;
                }
                self.unpin(cpu, frame);
                if goal == Goal::Change && !is_changed {
                    task.work = Work::Change { intent: None };
                    return Stepped::Again;
                }
                Stepped::Over
            }
            Err(error) => {
                *op = None;
                let order = self.state.borrow().files[task.file].order;
                self.refused_page((task.group, order), error);
                Stepped::Over
            }
        }
    }

    /// Who waited for a read is told that it failed where it did, and only there.
    fn check_told(&self, key: PageKey, has_failed: bool, step: &Result<Step, PageError>) {
        let is_told = matches!(step, Err(PageError::Io(FAILED)));
        if is_told != has_failed {
            self.fail(format!("{key:?}: read failed: {has_failed}, and {step:?}"));
        }
        self.state.borrow_mut().disk.nr_read_errors += u64::from(is_told);
    }

    /// A page was not brought in.
    fn refused_page(&self, request: (u32, Order), error: PageError) {
        match error {
            PageError::Alloc(error) => self.refused(request, error),
            PageError::Io(code) => self.note(u64::from(code) | 3 << 40),
            PageError::TooManyPins => self.fail("too many pins".to_owned()),
        }
    }

    /// Runs the read of a page by changing all of it, so that it is dirty when it is seen; whether
    /// there was one.
    fn fill_changed(&self, cpu: Cpu, (file, key): (usize, PageKey), effects: &mut Effects) -> bool {
        let mut is_changed = false;
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Read(io) if io.key() == key => {
                    let stamp = self.next_stamp();
                    self.check_owner(io.frame(), io.was_ours());
                    self.fill(io.frame(), stamp);
                    self.memory.set_dirty_early(&io);
                    self.set_truth(file, key.page(), stamp);
                    let mut more = Effects::new();
                    self.memory.complete(cpu, io, Ok(()), &mut more);
                    self.run(&mut more);
                    is_changed = true;
                }
                Effect::Read(io) => self.begin_read(io),
                Effect::Copy(io) => self.begin_copy(io),
                Effect::Wake(frame) => self.wake(frame),
            }
        }
        is_changed
    }

    fn step_change(&self, cpu: Cpu, task: &mut Task) -> Stepped {
        let mut effects = Effects::new();
        let latched = self.memory.latch(cpu, task.key, &mut effects);
        self.run(&mut effects);
        match latched {
            Latched::Held(frame) => {
                self.check_bytes(frame, task.file, task.key);
                self.latched(frame, task.file, task.key);
                Stepped::Over
            }
            Latched::Miss => {
                *task = Task::fetch(Goal::Change, false, (task.group, task.file, task.key));
                Stepped::Again
            }
            Latched::Busy { frame, version } => {
                task.work = Work::Change {
                    intent: Some(frame),
                };
                let until = match self.memory.is_in_writeback(frame) {
                    true => Until::Written,
                    false => Until::Free,
                };
                World::sleep(frame, version, until)
            }
        }
    }

    /// Somebody has the latch of a page, whose bytes are nobody's until it is given back.
    pub(super) fn latched(&self, frame: Frame, file: usize, key: PageKey) {
        let held = Held {
            frame,
            file,
            key,
            stamp: self.stamp(frame),
        };
        self.fill(frame, TORN);
        self.state.borrow_mut().latched.push(held);
    }

    fn step_discard(&self, cpu: Cpu, task: &mut Task) -> Stepped {
        let mut effects = Effects::new();
        let discarded = self.memory.discard_page(cpu, task.key, &mut effects);
        self.run(&mut effects);
        match discarded {
            Discard::Wait { frame, version } => World::sleep(frame, version, Until::Version),
            Discard::Gone => {
                // As if the file had been cut there and written anew.
                let stamp = self.next_stamp();
                let page = task.key.page();
                self.state.borrow_mut().disk.write(task.file, page, stamp);
                self.set_truth(task.file, page, stamp);
                Stepped::Over
            }
        }
    }

    /// A sync of a file: what is not on its disk, and what is to be durable.
    pub(super) fn new_sync(&self, file: usize) -> Option<Task> {
        let state = self.state.borrow();
        let one = &state.files[file];
        let mapping = one.mapping?;
        let key = |page| pagetide_core::page_cache::Mappings::key(mapping, page);
        let is_unwritten = |&(&page, &stamp): &(&u64, &u64)| state.disk.stamp(file, page) != stamp;
        let pages = one.truth.iter().filter(is_unwritten);
        let pages = pages.filter_map(|(&page, _)| key(page)).collect();
        let work = Work::Sync {
            pages,
            at: 0,
            nr_errors: self.memory.write_errors(mapping).nr_errors,
            promise: one.truth.clone(),
        };
        let group = state.groups[0].id;
        Some(Task::new(work, (group, file, key(0)?)))
    }

    fn step_sync(&self, cpu: Cpu, task: &mut Task) -> Stepped {
        let file = task.file;
        let Work::Sync {
            pages,
            at,
            nr_errors,
            promise,
        } = &mut task.work
        else {
            return Stepped::Over;
        };
        let mapping = self.state.borrow().files[file].mapping;
        let errors = mapping.map(|mapping| self.memory.write_errors(mapping).nr_errors);
        if errors != Some(*nr_errors) {
            self.note(4 << 40);
            return Stepped::Over;
        }
        let is_hasty = self.is_planted(Plant::HastySync);
        if let Some(&key) = pages.get(*at).filter(|_| !is_hasty) {
            return match self.memory.begin_page_write(key, None) {
                PageWrite::Begun(write) => {
                    self.begin_write(cpu, file, write);
                    Stepped::Again
                }
                PageWrite::Wait { frame, version } => World::sleep(frame, version, Until::Version),
                PageWrite::Changing | PageWrite::Clean => {
                    *at += 1;
                    Stepped::Again
                }
            };
        }
        self.note(5 << 40);
        let mut state = self.state.borrow_mut();
        state.disk.sync(file);
        state.disk.promise(file, promise);
        Stepped::Over
    }

    /// A request was refused: fair where nothing can go.
    pub(super) fn refused(&self, (group, order): (u32, Order), error: AllocError) {
        self.note(u64::from(group) | 6 << 40);
        let groups = self.memory.groups();
        let AllocError::OverLimit { group: over } = error else {
            return;
        };
        let limit = groups.get(over).map_or(0, |group| group.max());
        let is_fair = u64::from(order.nr_pages()) > limit || groups.is_protected();
        if is_fair || !self.is_alone() || self.state.borrow().is_placed {
            return;
        }
        let table = self.memory.frames();
        let mut all = (0..table.len()).map(Frame::new);
        let can_go = all.find(|&frame| {
            table.word(frame).is_evictable() && groups.is_in(table.group(frame), over)
        });
        if let Some(frame) = can_go {
            self.fail(format!(
                "group {group} is refused by {over}, where {frame:?} can go"
            ));
        }
    }
}
