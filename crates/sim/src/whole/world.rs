//! A memory, and what the simulator knows of it: who holds what, and which bytes are the right
//! ones.

use super::action::{Action, Place};
use super::ahead::Readers;
use super::device::{Disk, Frames, Pending, Stamps};
use super::scenario::Scenario;
use super::spill::Spill;
use super::task::{Sleep, Task};
use pagetide_core::frame::State as FrameState;
use pagetide_core::memory::{Effect, Effects, Here, Idle, Memory};
use pagetide_core::page_cache::{Claim, Mappings};
use pagetide_core::units::{Cpu, Frame, Order, PageKey};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Groups beside the root.
pub(super) const MAX_GROUPS: usize = 10;
/// Calls inside calls.
const MAX_DEPTH: u32 = 3;
/// Source: the offset basis and the multiplier of FNV-1a, 64 bits.
pub(super) const HASH_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const HASH_PRIME: u64 = 0x0100_0000_01B3;

#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) id: u32,
    /// Usage that it may have above its limit, because that was lowered.
    pub(super) may_use: u64,
}

#[derive(Debug)]
pub(super) struct FileState {
    /// `None`: closed, while writes are under way still.
    pub(super) mapping: Option<u32>,
    pub(super) order: Order,
    /// A region of anon pages, which has no disk.
    pub(super) is_anon: bool,
    /// Its largest length in pages, and the one now.
    pub(super) nr_pages: u32,
    pub(super) len: u32,
    pub(super) readers: Readers,
    /// What whoever reads a page has to see; 0 for others.
    pub(super) truth: BTreeMap<u64, u64>,
}

/// A pin that is kept, or a latch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) frame: Frame,
    pub(super) file: usize,
    pub(super) key: PageKey,
    pub(super) stamp: u64,
    /// Of a pin: what it is in its place.
    pub(super) claim: Option<Claim>,
}

#[derive(Debug)]
pub(super) struct Buf {
    pub(super) frame: Frame,
    pub(super) order: Order,
    pub(super) stamp: u64,
}

#[derive(Debug)]
pub(super) struct Reserved {
    pub(super) group: u32,
    pub(super) nr_bytes: u64,
    pub(super) is_shrinkable: bool,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) now: u64,
    pub(super) groups: Vec<GroupState>,
    pub(super) files: Vec<FileState>,
    pub(super) tasks: Vec<Task>,
    pub(super) held: Vec<Held>,
    pub(super) latched: Vec<Held>,
    pub(super) bufs: Vec<Buf>,
    pub(super) reserved: Vec<Reserved>,
    /// Blocks on their way to the OS; whether they are idle ones.
    pub(super) taken: Vec<(Idle, bool)>,
    pub(super) pending: Vec<Pending>,
    pub(super) frames: Frames,
    pub(super) disk: Disk,
    pub(super) spill: Spill,
    pub(super) stamps: Stamps,
    /// Requests of the trace that were made.
    pub(super) nr_followed: usize,
    /// Nodes for which background reclaim was woken.
    pub(super) wanted_nodes: u64,
    /// Some group may use some nodes only.
    pub(super) is_placed: bool,
}

/// What survives a crash of the machine.
#[derive(Debug)]
pub(super) struct Survives {
    pub(super) disk: Disk,
    pub(super) stamps: Stamps,
    pub(super) cursor: usize,
    pub(super) hash: u64,
    pub(super) nr_callbacks: u64,
}

/// A memory under simulation. One thread; what runs inside a callback is another CPU's.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) memory: Memory,
    pub(super) state: RefCell<State>,
    /// The next action.
    pub(super) cursor: Cell<usize>,
    pub(super) depth: Cell<u32>,
    /// Actions that may run inside the one that is under way.
    pub(super) nr_inside: Cell<u8>,
    pub(super) nr_callbacks: Cell<u64>,
    /// The action that is under way has nothing inside it and is in nothing.
    is_alone: Cell<bool>,
    hash: Cell<u64>,
    failure: RefCell<Option<String>>,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario, survived: Survives) -> Result<World<'a>, String> {
        let memory = Memory::try_new(scenario.config.clone());
        let memory = memory.map_err(|error| format!("no memory: {error:?}"))?;
        let Survives {
            disk,
            stamps,
            cursor,
            hash,
            nr_callbacks,
        } = survived;
        let root = memory.groups().root();
        let files = scenario.files.iter().map(|shape| FileState {
            mapping: None,
            order: Order::new(shape.order).expect("a small order"),
            is_anon: shape.is_anon,
            nr_pages: shape.nr_pages,
            len: shape.nr_pages,
            readers: Readers::default(),
            truth: BTreeMap::new(),
        });
        let state = State {
            now: 0,
            groups: vec![GroupState {
                id: root,
                may_use: 0,
            }],
            files: files.collect(),
            tasks: Vec::new(),
            held: Vec::new(),
            latched: Vec::new(),
            bufs: Vec::new(),
            reserved: Vec::new(),
            taken: Vec::new(),
            pending: Vec::new(),
            frames: Frames::new(memory.frames()),
            disk,
            spill: Spill::new(scenario.nr_slots),
            stamps,
            nr_followed: 0,
            wanted_nodes: 0,
            is_placed: false,
        };
        let world = World {
            scenario,
            memory,
            state: RefCell::new(state),
            cursor: Cell::new(cursor),
            depth: Cell::new(0),
            nr_inside: Cell::new(0),
            nr_callbacks: Cell::new(nr_callbacks),
            is_alone: Cell::new(false),
            hash: Cell::new(hash),
            failure: RefCell::new(None),
        };
        for _ in 0..3 {
            world.new_group(Cpu::new(0), 0);
        }
        for file in 0..scenario.files.len() {
            world.open(Cpu::new(0), file);
        }
        Ok(world)
    }

    /// What a crash leaves.
    pub(super) fn survive(self) -> Result<Survives, String> {
        let State {
            mut disk,
            stamps,
            pending,
            files,
            ..
        } = self.state.into_inner();
        // Regions are gone, and what was on its way to their slots.
        let under_way: Vec<_> = pending
            .iter()
            .filter_map(|op| match op {
                Pending::Write(file, write, stamp, _) if !files[*file].is_anon => {
                    Some((*file, write.key().page(), *stamp))
                }
                _ => None,
            })
            .collect();
        disk.crash(&under_way)?;
        Ok(Survives {
            disk,
            stamps,
            cursor: self.cursor.get(),
            hash: self.hash.get(),
            nr_callbacks: self.nr_callbacks.get(),
        })
    }

    pub(super) fn here(&self, cpu: Cpu) -> Here<'_> {
        Here::new(cpu, self)
    }

    /// Notes an event.
    pub(super) fn note(&self, event: u64) {
        let hash = (self.hash.get() ^ event).wrapping_mul(HASH_PRIME);
        self.hash.set(hash);
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash.get()
    }

    pub(super) fn fail(&self, what: String) {
        self.failure.borrow_mut().get_or_insert(what);
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Where core calls back: other CPUs go on.
    pub(super) fn interleave(&self) {
        while self.nr_inside.get() > 0 && self.depth.get() < MAX_DEPTH && !self.has_failed() {
            self.nr_inside.set(self.nr_inside.get() - 1);
            let Some(&action) = self.scenario.actions.get(self.cursor.get()) else {
                return;
            };
            if action.op.is_outer() {
                return;
            }
            self.cursor.set(self.cursor.get() + 1);
            let outer = self.nr_inside.get();
            self.apply(action);
            self.nr_inside.set(outer);
        }
    }

    /// Runs one action.
    pub(super) fn apply(&self, action: Action) {
        self.is_alone
            .set(self.depth.get() == 0 && action.nr_inside == 0);
        self.depth.set(self.depth.get() + 1);
        self.nr_inside.set(action.nr_inside);
        self.note(u64::from(action.cpu));
        self.act(Cpu::new(action.cpu), action.op);
        self.depth.set(self.depth.get() - 1);
    }

    pub(super) fn is_alone(&self) -> bool {
        self.is_alone.get()
    }

    /// The group, and the page of an open file, that a place picks.
    pub(super) fn place(&self, place: Place) -> Option<(u32, usize, PageKey)> {
        let state = self.state.borrow();
        let group = pick(place.group, state.groups.len())?;
        let at = pick(place.file, state.files.len())?;
        let file = &state.files[at];
        let page = (u64::from(place.page) * u64::from(file.len)) >> 16;
        let key = Mappings::key(file.mapping?, page)?;
        Some((state.groups[group].id, at, key))
    }

    pub(super) fn group(&self, number: u32) -> u32 {
        let state = self.state.borrow();
        let at = pick(number, state.groups.len()).expect("the root stays");
        state.groups[at].id
    }

    /// Begins what core wants done and wakes whom it names.
    pub(super) fn run(&self, effects: &mut Effects) {
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Wake(frame) => self.wake(frame),
                Effect::Read(io) => self.begin_read(io),
                Effect::Copy(io) => self.begin_copy(io),
                Effect::LastPin => unreachable!("the memory is never abandoned"),
            }
        }
    }

    pub(super) fn wake(&self, frame: Frame) {
        self.note(u64::from(frame.number()) | 1 << 40);
        let mut state = self.state.borrow_mut();
        let State { tasks, stamps, .. } = &mut *state;
        let sleeps = |task: &Task| {
            task.sleep
                .as_ref()
                .is_some_and(|sleep| sleep.frame == frame)
        };
        for task in tasks.iter_mut().filter(|task| sleeps(task)) {
            let has_to_wait = task
                .sleep
                .as_ref()
                .is_some_and(|sleep| self.has_to_wait(sleep));
            if !has_to_wait && !stamps.is_planted(super::Plant::DropWake) {
                task.sleep = None;
            }
        }
    }

    pub(super) fn has_to_wait(&self, sleep: &Sleep) -> bool {
        sleep.has_to_wait(&self.memory)
    }

    pub(super) fn unpin(&self, cpu: Cpu, frame: Frame) {
        let mut effects = Effects::new();
        self.memory.unpin(cpu, frame, &mut effects);
        self.run(&mut effects);
    }

    /// Gives back a pin, or the claim that it is.
    pub(super) fn release(&self, cpu: Cpu, (frame, claim): (Frame, Option<Claim>)) {
        let Some(claim) = claim else {
            return self.unpin(cpu, frame);
        };
        let mut effects = Effects::new();
        self.memory.give_up(cpu, (frame, claim), &mut effects);
        self.run(&mut effects);
    }

    /// What whoever reads a page has to see.
    pub(super) fn truth(&self, file: usize, page: u64) -> u64 {
        let state = self.state.borrow();
        state.files[file].truth.get(&page).copied().unwrap_or(0)
    }

    pub(super) fn set_truth(&self, file: usize, page: u64, stamp: u64) {
        self.state.borrow_mut().files[file]
            .truth
            .insert(page, stamp);
    }

    pub(super) fn next_stamp(&self) -> u64 {
        self.state.borrow_mut().stamps.next()
    }

    pub(super) fn is_planted(&self, plant: super::Plant) -> bool {
        self.state.borrow_mut().stamps.is_planted(plant)
    }

    /// Writes bytes to a block that belongs to its group.
    pub(super) fn fill(&self, frame: Frame, stamp: u64) {
        let (order, _) = self.memory.frames().block(frame);
        let group = self.memory.frames().group(frame);
        let mut state = self.state.borrow_mut();
        state.frames.fill(frame, order, (stamp, group));
    }

    pub(super) fn stamp(&self, frame: Frame) -> u64 {
        let (order, _) = self.memory.frames().block(frame);
        self.state.borrow().frames.stamp(frame, order)
    }

    /// A page that somebody has pinned just now has the bytes that it must have.
    pub(super) fn check_bytes(&self, frame: Frame, file: usize, key: PageKey) {
        let table = self.memory.frames();
        if table.key(frame) != Some(key) {
            self.fail(format!(
                "{frame:?} is pinned as {key:?} and holds {:?}",
                table.key(frame)
            ));
        }
        // A page that left its file meanwhile has the bytes that it had.
        if table.word(frame).state() == FrameState::Live {
            let (stamp, truth) = (self.stamp(frame), self.truth(file, key.page()));
            if stamp != truth {
                self.fail(format!(
                    "{key:?} of file {file}: {stamp} read, {truth} written"
                ));
            }
        }
    }
}

/// A number modulo how many there are.
pub(super) fn pick(number: u32, of: usize) -> Option<usize> {
    usize::try_from(number).ok()?.checked_rem(of)
}
