//! A trace through the real core: the code that the runtime runs, on one virtual CPU, without I/O.

use crate::policy::{Counts, PROGRESS_STEP};
use crate::trace::Trace;
use pagetide_core::group::Limit;
use pagetide_core::memory::{
    BuildError, Config, Effect, Effects, Here, Memory, PageError, PageIn, Platform, Step, Writes,
};
use pagetide_core::page_cache::{Access, Found, Mappings};
use pagetide_core::reclaim::{Policy, Refaults};
use pagetide_core::units::{Cpu, Frame, Order, PageKey, PageType};
use std::cell::Cell;

/// The one virtual CPU.
const CPU: Cpu = Cpu::new(0);

/// Why core did not replay a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The memory was not built.
    #[error("no memory of {frames} frames: {}", problem(*error))]
    Build {
        /// Frames asked for.
        frames: u32,
        /// Why.
        error: BuildError,
    },
    /// Core's records do not fit.
    #[error("no memory for the records of a group or a file")]
    NoMetadata,
    /// A page did not come in.
    #[error("request {request}: {error:?}")]
    Page {
        /// The request's number, from 0.
        request: u64,
        /// Why.
        error: PageError,
    },
}

/// Why a memory was not built, for people.
fn problem(error: BuildError) -> String {
    match error {
        BuildError::BudgetTooSmall {
            budget_pages,
            needed_pages,
        } => {
            format!("{budget_pages} pages with core's records, at least {needed_pages} are needed")
        }
        BuildError::NoMetadata(refused) => {
            format!("{} bytes of core's records were refused", refused.bytes)
        }
        BuildError::Config(error) => format!("the configuration does not add up: {error:?}"),
    }
}

/// What a replay cost beside its misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Hits that changed the frame's count of accesses. (Their pins change its word in any case.)
    pub hit_writes: u64,
    /// Pages that reclaim looked at.
    pub pgscan: u64,
    /// Pages that reclaim evicted.
    pub pgsteal: u64,
    /// Times that it took pages off a list.
    pub nr_batches: u64,
    /// Pages that were written before they went.
    pub nr_writes: u64,
}

/// Where changed pages are written, which takes no time.
#[derive(Debug, Default)]
struct Device {
    nr_writes: Cell<u64>,
}

impl Platform for Device {
    fn shrink(&self, _subtree: u32, _nr_pages: u32, _of: u64) -> u32 {
        0
    }

    fn write_back(&self, writes: &mut Writes<'_>, _nr_pages: u32) {
        while let Some(write) = writes.next() {
            let memory = writes.memory();
            memory.complete_write(CPU, write, Ok(()), &mut Effects::new());
            self.nr_writes.set(self.nr_writes.get() + 1);
        }
    }

    fn stall(&self, _group: u32, work: &mut dyn FnMut()) {
        work();
    }

    fn throttle(&self, _group: u32, _delay_ns: u64) {}
}

/// Files, or anon regions, in groups of the real core under one limit, read and changed page by
/// page, reads and writes taking no time.
#[derive(Debug)]
pub struct CoreCache {
    memory: Memory,
    device: Device,
    /// The group that the limit is on.
    top: u32,
    /// Those who read: a group and a mapping each.
    readers: Vec<(u32, u32)>,
    counts: Counts,
    /// Where each page was when it was read last, while hits are watched.
    frames: Vec<Option<Frame>>,
    hit_writes: u64,
}

impl CoreCache {
    /// A group of at most `frames` pages, in a memory that has room for as many.
    ///
    /// The runtime replays with the same sizes, so that both count the same misses.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn try_new(policy: Policy, frames: u32) -> Result<CoreCache, RunError> {
        let mut cache = CoreCache::empty(Config::for_resident(frames, 1, policy), frames)?;
        cache.add_reader(cache.top, PageType::File)?;
        Ok(cache)
    }

    /// The same in a memory that remembers the evicted pages of `shadow_frames` frames.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn with_shadows(
        policy: Policy,
        frames: u32,
        shadow_frames: u32,
    ) -> Result<CoreCache, RunError> {
        let mut config = Config::for_resident(frames, 1, policy);
        config.shadow_frames = shadow_frames;
        // Room for their entries, less than a 64th of a page for each frame.
        config.budget_pages += shadow_frames / 64 + 1;
        config.arena_pages = config.budget_pages;
        let mut cache = CoreCache::empty(config, frames)?;
        cache.add_reader(cache.top, PageType::File)?;
        Ok(cache)
    }

    /// The same with a group of its own, of one file, for each of `nr_readers`.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn with_groups(
        policy: Policy,
        frames: u32,
        nr_readers: u32,
    ) -> Result<CoreCache, RunError> {
        let mut config = Config::for_resident(frames, 1, policy);
        // Room for the records of groups and lruvecs.
        config.budget_pages += nr_readers + 8;
        config.arena_pages = config.budget_pages;
        let mut cache = CoreCache::empty(config, frames)?;
        for _ in 0..nr_readers {
            let group = cache.memory.new_group(CPU.into(), cache.top);
            cache.add_reader(group.map_err(|_| RunError::NoMetadata)?, PageType::File)?;
        }
        Ok(cache)
    }

    /// One group of a file and of an anon region, whose page costs `200 - swappiness` to bring back
    /// where one of the file costs `swappiness`.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn with_types(policy: Policy, frames: u32, swappiness: u8) -> Result<CoreCache, RunError> {
        let mut config = Config::for_resident(frames, 1, policy);
        config.swappiness = swappiness;
        let mut cache = CoreCache::empty(config, frames)?;
        for page_type in PageType::ALL {
            cache.add_reader(cache.top, page_type)?;
        }
        Ok(cache)
    }

    /// One group of an anon region.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn of_anon(policy: Policy, frames: u32) -> Result<CoreCache, RunError> {
        let mut cache = CoreCache::empty(Config::for_resident(frames, 1, policy), frames)?;
        cache.add_reader(cache.top, PageType::Anon)?;
        Ok(cache)
    }

    fn empty(config: Config, frames: u32) -> Result<CoreCache, RunError> {
        let memory = Memory::try_new(config);
        let memory = memory.map_err(|error| RunError::Build { frames, error })?;
        let top = memory
            .new_group(CPU.into(), memory.groups().root())
            .map_err(|_| RunError::NoMetadata)?;
        let cache = CoreCache {
            memory,
            device: Device::default(),
            top,
            readers: Vec::new(),
            counts: Counts::default(),
            frames: Vec::new(),
            hit_writes: 0,
        };
        cache.set_max(frames);
        Ok(cache)
    }

    fn add_reader(&mut self, group: u32, page_type: PageType) -> Result<(), RunError> {
        let mapping = match page_type {
            PageType::File => self.memory.open_mapping(CPU.into(), Order::ZERO),
            PageType::Anon => self.memory.open_anon(CPU.into(), Order::ZERO),
        };
        let mapping = mapping.map_err(|_| RunError::NoMetadata)?;
        self.readers.push((group, mapping));
        Ok(())
    }

    /// Changes how many pages may be resident, at most as many as at first; evicts down to it.
    ///
    /// # Panics
    /// Where that is not possible: no page is in use.
    pub fn set_max(&self, frames: u32) {
        let over = self.memory.set_max(CPU.into(), self.top, u64::from(frames));
        assert!(over == Ok(0), "{over:?}: nothing is pinned");
    }

    /// Protects a reader's group, [`Limit::Min`] or [`Limit::Low`], and the group above it, with so
    /// many pages.
    ///
    /// # Panics
    /// Where there is no such reader, or a `min` is above the limit.
    pub fn protect(&self, reader: usize, limit: Limit, pages: u32) {
        for group in [self.top, self.readers[reader].0] {
            let set = self.memory.set_limit(group, limit, pages.into());
            assert!(set.is_ok(), "{set:?}");
        }
    }

    /// Counts [`Costs::hit_writes`] from now on, of pages below `nr_pages`.
    pub fn watch_hits(&mut self, nr_pages: u32) {
        let nr_pages = usize::try_from(nr_pages).expect("a count fits memory");
        self.frames.resize(nr_pages, None);
    }

    /// Reads a page by a copy; whether it was a miss.
    ///
    /// # Errors
    /// [`RunError::Page`].
    pub fn read(&mut self, page: u32) -> Result<bool, RunError> {
        self.read_as(0, page)
    }

    /// As [`CoreCache::read`]: the frame that the page is in, too.
    ///
    /// # Errors
    /// [`RunError::Page`].
    pub fn read_to(&mut self, page: u32) -> Result<(Frame, bool), RunError> {
        self.request((0, page), false)
    }

    /// Frames that there are: those of pages are numbered below.
    #[must_use]
    pub fn nr_frames(&self) -> u32 {
        self.memory.frames().len()
    }

    /// Reads a page as one of the readers, numbered from 0; whether it was a miss.
    ///
    /// # Errors
    /// [`RunError::Page`].
    ///
    /// # Panics
    /// Where there is no such reader.
    pub fn read_as(&mut self, reader: usize, page: u32) -> Result<bool, RunError> {
        let (_, missed) = self.request((reader, page), false)?;
        Ok(missed)
    }

    /// Reads a page and changes it, so that it is written before it goes; whether it was a miss.
    ///
    /// # Errors
    /// [`RunError::Page`].
    pub fn change(&mut self, page: u32) -> Result<bool, RunError> {
        let (_, missed) = self.request((0, page), true)?;
        Ok(missed)
    }

    fn request(
        &mut self,
        (reader, page): (usize, u32),
        changes: bool,
    ) -> Result<(Frame, bool), RunError> {
        let (group, mapping) = self.readers[reader];
        let key = Mappings::key(mapping, u64::from(page)).expect("32 bits fit a key");
        let at = usize::try_from(page).expect("a page's number fits memory");
        let table = self.memory.frames();
        let watched = self.frames.get(at).copied().flatten();
        let watched = watched.map(|frame| (frame, table.word(frame).refs()));
        let had = self.have(key, group, changes);
        let (frame, missed) = had.map_err(|error| RunError::Page {
            request: self.counts.requests,
            error,
        })?;
        if let Some(place) = self.frames.get_mut(at) {
            let is_changed = watched != Some((frame, self.memory.frames().word(frame).refs()));
            self.hit_writes += u64::from(!missed && is_changed);
            *place = Some(frame);
        }
        self.counts.misses += u64::from(missed);
        self.counts.requests += 1;
        Ok((frame, missed))
    }

    /// Has a page, changes it or not, and lets it go: its frame, and whether it was read.
    fn have(&self, key: PageKey, group: u32, changes: bool) -> Result<(Frame, bool), PageError> {
        let memory = &self.memory;
        let mut effects = Effects::new();
        let let_go = |frame, effects: &mut Effects| {
            if changes {
                memory.set_dirty(frame);
            }
            memory.unpin(CPU, frame, effects);
        };
        if let Found::Pinned(frame) = memory.pin(key, Access::Copy, |_| unreachable!("one thread"))
        {
            let_go(frame, &mut effects);
            return Ok((frame, false));
        }
        let frame = self.bring_in(PageIn::new(key, group, Access::Copy))?;
        let_go(frame, &mut effects);
        Ok((frame, true))
    }

    /// Has a page, pinned.
    fn bring_in(&self, mut op: PageIn) -> Result<Frame, PageError> {
        let memory = &self.memory;
        let mut effects = Effects::new();
        let here = Here::new(CPU, &self.device);
        loop {
            if let Step::Done(frame) = op.step(memory, here, &mut effects)? {
                return Ok(frame);
            }
            while let Some(effect) = effects.pop() {
                if let Effect::Read(io) = effect {
                    memory.complete(CPU, io, Ok(()), &mut effects);
                }
            }
        }
    }

    fn key(&self, page: u32) -> PageKey {
        let (_, mapping) = self.readers[0];
        Mappings::key(mapping, u64::from(page)).expect("32 bits fit a key")
    }

    /// Whether a page is resident; no access.
    #[must_use]
    pub fn is_cached(&self, page: u32) -> bool {
        self.memory.is_resident(self.key(page))
    }

    /// Brings a page in that nobody asked for yet: no request, no access. Whether it was read.
    ///
    /// # Errors
    /// [`RunError::Page`].
    pub fn prefetch(&self, page: u32) -> Result<bool, RunError> {
        if self.is_cached(page) {
            return Ok(false);
        }
        let (group, _) = self.readers[0];
        let op = PageIn::new(self.key(page), group, Access::Prefetch);
        let frame = self.bring_in(op).map_err(|error| RunError::Page {
            request: self.counts.requests,
            error,
        })?;
        self.memory.unpin(CPU, frame, &mut Effects::new());
        Ok(true)
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What was seen of a reader's refaults lately: see [`Memory::refaults`].
    ///
    /// # Panics
    /// Where there is no such reader.
    #[must_use]
    pub fn refaults(&self, reader: usize) -> Option<Refaults> {
        let (group, _) = self.readers[reader];
        self.memory.refaults(group)
    }

    /// What it cost so far.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let stats = self.memory.stats();
        Costs {
            hit_writes: self.hit_writes,
            pgscan: stats.pgscan,
            pgsteal: stats.pgsteal,
            nr_batches: stats.nr_batches,
            nr_writes: self.device.nr_writes.get(),
        }
    }
}

/// Replays a trace by copying reads through a group of at most `frames` pages; `progress` gets the
/// requests done so far.
///
/// # Errors
/// [`RunError`].
pub fn core_run(
    policy: Policy,
    trace: &Trace,
    frames: u32,
    mut progress: impl FnMut(u64),
) -> Result<Counts, RunError> {
    let mut cache = CoreCache::try_new(policy, frames)?;
    for chunk in trace.pages.chunks(PROGRESS_STEP) {
        for &page in chunk {
            cache.read(page)?;
        }
        progress(cache.counts.requests);
    }
    Ok(cache.counts)
}
