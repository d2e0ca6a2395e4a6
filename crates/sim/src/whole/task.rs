//! What takes several steps: bringing a page in or a window of them, changing it, dropping pages,
//! writing a file back.
//! A task that waits is asleep until core says that it is to be woken.

use super::device::{FAILED, TORN};
use super::world::{Held, World, pick};
use pagetide_core::frame::State as FrameState;
use pagetide_core::memory::{AllocError, Effect, Effects, Memory, PageError, PageIn, Step};
use pagetide_core::page_cache::{Access, Latched};
use pagetide_core::units::{Cpu, Frame, Order, PageKey, PageType};
use std::collections::BTreeMap;
use std::ops::Range;

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
    Change { intent: Option<Frame> },
    /// Brings a window in, for nobody yet.
    Ahead {
        /// Pages that are left.
        pages: Range<u64>,
        op: Option<PageIn>,
        /// The frame that the operation has a pin on.
        pin: Option<Frame>,
    },
    Drop {
        /// Pages that are left, the next one last.
        pages: Vec<PageKey>,
    },
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
    pub(super) fn fetch(goal: Goal, is_longterm: bool, at: (u32, usize, PageKey)) -> Task {
        let (group, _, key) = at;
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
        Task::new(work, at)
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
            Work::Fetch { pin, .. } | Work::Ahead { pin, .. } => *pin,
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
pub(super) enum Stepped {
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
            Work::Ahead { .. } => self.step_ahead(cpu, task),
            Work::Drop { .. } => self.step_drop(cpu, task),
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
            Work::Fetch { op, .. } | Work::Ahead { op, .. } => {
                if let Some(op) = op {
                    op.abandon(&self.memory, cpu, &mut effects);
                }
            }
            Work::Change {
                intent: Some(frame),
            } => self.memory.withdraw(frame, &mut effects),
            Work::Change { .. } | Work::Drop { .. } | Work::Sync { .. } => {}
        }
        self.run(&mut effects);
    }

    pub(super) fn sleep(frame: Frame, version: u32, until: Until) -> Stepped {
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
        *pin = self.reading(&step);
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
                    self.held((task.file, task.key), (frame, None));
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

    /// The frame that an operation has a pin on after a step.
    pub(super) fn reading(&self, step: &Result<Step, PageError>) -> Option<Frame> {
        let Ok(Step::Wait { frame, .. }) = *step else {
            return None;
        };
        let is_reading = self.memory.frames().word(frame).state() == FrameState::Reading;
        is_reading.then_some(frame)
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
    pub(super) fn refused_page(&self, request: (u32, Order), error: PageError) {
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
                Effect::LastPin => unreachable!("the memory is never abandoned"),
            }
        }
        is_changed
    }

    fn step_change(&self, cpu: Cpu, task: &mut Task) -> Stepped {
        let run = |effects: &mut Effects| self.run(effects);
        match self.memory.latch(cpu, (task.key, Access::Copy), run) {
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
            claim: None,
        };
        self.fill(frame, TORN);
        self.state.borrow_mut().latched.push(held);
    }

    /// A request was refused: fair where nothing can go, or it would not fit if all did.
    pub(super) fn refused(&self, (group, order): (u32, Order), error: AllocError) {
        self.note(u64::from(group) | 6 << 40);
        let groups = self.memory.groups();
        let AllocError::OverLimit { group: over } = error else {
            return;
        };
        let nr_pages = order.nr_pages();
        let is_fair = u64::from(nr_pages) > self.memory.room_under(over)
            || self.lacks_more_than_may_go(over, nr_pages)
            || groups.is_protected();
        if is_fair || !self.is_alone() || self.state.borrow().is_placed {
            return;
        }
        let table = self.memory.frames();
        // At a swappiness of 0 anon pages may stay while there are others.
        let swappiness = groups.get(over).map_or(0, |group| group.swappiness());
        let may_go = |page_type| swappiness > 0 || page_type == PageType::File;
        let mut all = (0..table.len()).map(Frame::new);
        let can_go = all.find(|&frame| {
            table.word(frame).is_evictable()
                && self.memory.claims().nr_on(frame) == 0
                && groups.is_in(table.group(frame), over)
                && may_go(table.page_type(frame))
        });
        if let Some(frame) = can_go {
            self.fail(format!(
                "group {group} is refused by {over}, where {frame:?} can go"
            ));
        }
    }
}
