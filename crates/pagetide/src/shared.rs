//! What all handles of one memory share: core, arena, waiters, names, open files.

use crate::alarms::Alarms;
use crate::arena::Arena;
use crate::backing::Backing;
use crate::cpu;
use crate::file::AheadCounts;
use crate::flusher::{DirtyFiles, Flusher};
use crate::home::Stay;
use crate::io::Engine;
use crate::memory_wait::MemoryWaits;
use crate::names::{Looks, Names};
use crate::open_files::{FileKey, OpenFiles};
use crate::park::{self, Panics};
use crate::pin_sites::Sites;
use crate::pins::Pins;
use crate::reclaim::Wanted;
use crate::release::Release;
use crate::shrinker::{Shrinkers, is_shrinking};
use crate::sleepers::Sleepers;
use crate::spill::{self, Swap};
use crate::stall;
use crate::topology::Topology;
use crate::trace;
use crate::wait::Waiters;
use crate::worker::Worker;
use crate::writeback::Landings;
use crate::{Error, PAGE_BYTES};
use pagetide_core::group::Event;
use pagetide_core::memory::{AllocError, Effect, Effects, Io, Memory as Core};
use pagetide_core::sync::PerCpu;
use pagetide_core::units::{Frame, Node};
use std::collections::HashMap;
use std::iter;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long somebody who waits without threads sleeps before he looks again whether somebody else
/// has reaped what he waits for.
const REAP: Duration = Duration::from_millis(1);

/// One memory. Dropped with its last handle.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) core: Core,
    pub(crate) arena: Arena,
    pub(crate) waiters: Waiters,
    /// How many reads get under way together.
    pub(crate) io: Engine,
    pub(crate) readahead: AheadCounts,
    names: Mutex<Names>,
    pub(crate) looks: Looks,
    files: Mutex<OpenFiles>,
    /// A file is no longer open.
    closed: Sleepers,
    /// Files that are no longer open.
    nr_closed: AtomicU64,
    /// What stands behind open files, by the number of their mapping in page keys.
    backings: Mutex<HashMap<u32, Arc<Backing>>>,
    /// Of which files pages may be dirty.
    pub(crate) dirty_files: DirtyFiles,
    pub(crate) landings: Landings,
    pub(crate) swap: Swap,
    pub(crate) pins: Pins,
    pub(crate) sites: Sites,
    pub(crate) memory_waits: MemoryWaits,
    pub(crate) alarms: Alarms,
    /// Each miss counts.
    nr_bytes_read: PerCpu<AtomicU64>,
    /// Pages that became dirty, for who looks at some of them.
    pub(crate) nr_dirtied: AtomicU32,
    nr_buffered_reads: AtomicU64,
    nr_bytes_written: AtomicU64,
    /// Dirty pages of files that were dropped and could not be written.
    nr_pages_lost: AtomicU64,
    /// When the memory was built: core counts time from there.
    start: Instant,
    /// How long a block is free before its memory goes back to the OS.
    release_after: Option<Duration>,
    pub(crate) release: Release,
    pub(crate) shrinkers: Shrinkers,
    /// The longest that a charge above `high` is slowed down.
    pub(crate) throttle_max: Duration,
    pub(crate) reclaim: Wanted,
    worker: OnceLock<Worker>,
    /// Started with the first file that is written.
    pub(crate) flusher: OnceLock<Flusher>,
    /// It was not, because no thread could be.
    pub(crate) lacks_flusher: AtomicBool,
    topology: Topology,
    /// Why the nodes' memory is not bound to them.
    unbound: Option<std::io::Error>,
    pub(crate) stay: Stay,
}

/// How long things take at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// How long a block is free before its memory goes back to the OS.
    pub(crate) release_after: Option<Duration>,
    /// The longest that a charge above `high` is slowed down.
    pub(crate) throttle_max: Duration,
}

/// Takes a lock whose data is whole between any two steps, so that a panic under it broke nothing.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a lock that was only tried gave, as [`locked`]; `None` where somebody has it.
pub(crate) fn unpoisoned<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Shared {
    /// # Errors
    /// [`Error::NoMetadata`] where the allocator refuses.
    pub(crate) fn new(
        core: Core,
        arena: Arena,
        (io, readahead): (Engine, AheadCounts),
        (timing, swap): (Timing, spill::Config),
        isolated: Vec<u32>,
        topology: Topology,
        unbound: Option<std::io::Error>,
    ) -> Result<Shared, Error> {
        let counts = PerCpu::try_new(topology.nr_cpus(), AtomicU64::default);
        let what = "a CPU's counts";
        let nr_bytes_read = counts.map_err(|_| Error::NoMetadata { what })?;
        Ok(Shared {
            core,
            arena,
            waiters: Waiters::new(),
            io,
            readahead,
            names: Mutex::default(),
            looks: Looks::default(),
            files: Mutex::default(),
            closed: Sleepers::default(),
            backings: Mutex::default(),
            dirty_files: DirtyFiles::default(),
            landings: Landings::default(),
            swap: Swap::new(swap),
            pins: Pins::default(),
            sites: Sites::default(),
            memory_waits: MemoryWaits::default(),
            alarms: Alarms::default(),
            nr_bytes_read,
            nr_closed: AtomicU64::new(0),
            nr_dirtied: AtomicU32::new(0),
            nr_buffered_reads: AtomicU64::new(0),
            nr_bytes_written: AtomicU64::new(0),
            nr_pages_lost: AtomicU64::new(0),
            start: Instant::now(),
            release_after: timing.release_after,
            release: Release::new(isolated),
            shrinkers: Shrinkers::default(),
            throttle_max: timing.throttle_max,
            reclaim: Wanted::default(),
            worker: OnceLock::new(),
            flusher: OnceLock::new(),
            lacks_flusher: AtomicBool::new(false),
            topology,
            unbound,
            stay: Stay::default(),
        })
    }

    /// Whether this process was forked from the one that built the memory. Two loads.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.arena.alive().is_forked()
    }

    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        match self.is_forked() {
            false => Ok(()),
            true => Err(Error::Forked),
        }
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn unbound(&self) -> Option<&std::io::Error> {
        self.unbound.as_ref()
    }

    /// Starts the threads that tick and reclaim.
    pub(crate) fn start_worker(self: &Arc<Shared>) -> std::io::Result<()> {
        let worker = Worker::start(self)?;
        let first = self.worker.set(worker);
        assert!(first.is_ok(), "one worker is started");
        Ok(())
    }

    /// Whether there is a thread that ticks.
    pub(crate) fn has_worker(&self) -> bool {
        self.worker.get().is_some()
    }

    /// Makes the thread that ticks look again at when it is due.
    pub(crate) fn nudge_worker(&self) {
        if let Some(worker) = self.worker.get() {
            worker.nudge();
        }
    }

    /// Makes the worker of a node look whether it is wanted.
    pub(crate) fn nudge_node(&self, node: Node) {
        if let Some(worker) = self.worker.get() {
            worker.nudge_node(node.index());
        }
    }

    /// Nanoseconds since the memory was built.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A tick of core's clock; returns how long until the next one is due.
    pub(crate) fn tick(&self) -> Duration {
        let now = self.now();
        let next = self.core.tick(cpu::current(), now);
        let before = self.release_after.and_then(|after| {
            let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
            now.checked_sub(after)
        });
        self.release_some(before);
        self.swap.tick();
        Duration::from_nanos(next.saturating_sub(now))
    }

    /// Names of live groups by their id. Group handles must not be dropped under this lock.
    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        locked(&self.names)
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, OpenFiles> {
        locked(&self.files)
    }

    /// Waits until a file is no longer open.
    pub(crate) fn wait_closed<'a>(
        &self,
        files: MutexGuard<'a, OpenFiles>,
    ) -> MutexGuard<'a, OpenFiles> {
        self.closed.sleep(|closed| closed.wait(files))
    }

    /// Files that were closed. What was found of a file holds for who has its turn to open it while
    /// this stays as it was before.
    pub(crate) fn nr_closed(&self) -> u64 {
        self.nr_closed.load(Ordering::Acquire)
    }

    /// Forgets a file that is no longer open.
    pub(crate) fn forget_file(&self, key: FileKey) {
        let mut files = self.files();
        files.remove(key);
        // Release pairs with the Acquire in `nr_closed`: who sees it finds what was written back.
        self.nr_closed.fetch_add(1, Ordering::Release);
        self.closed.wake_all(&files);
    }

    pub(crate) fn backings(&self) -> MutexGuard<'_, HashMap<u32, Arc<Backing>>> {
        locked(&self.backings)
    }

    /// Pages charged to a group and those below it that are pinned, a page as often as it is, by
    /// file, most first. A page that is being read, ahead too, is pinned by its read. O(frames).
    pub(crate) fn pinned_by_file(&self, group: u32) -> Vec<(String, u64)> {
        let mut by_mapping: HashMap<Option<u32>, u64> = HashMap::new();
        for page in self.core.pinned(group) {
            let mapping = page.key.map(|key| key.mapping());
            *by_mapping.entry(mapping).or_default() +=
                u64::from(page.pins) * u64::from(page.nr_pages);
        }
        let named = by_mapping
            .into_iter()
            .map(|(mapping, pages)| (self.name_of_mapping(mapping), pages));
        let mut by_file: Vec<(String, u64)> = named.collect();
        by_file.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        by_file
    }

    /// The name of an open file by the number in its pages' keys.
    pub(crate) fn name_of_mapping(&self, mapping: Option<u32>) -> String {
        let backings = self.backings();
        let backing = mapping.and_then(|mapping| backings.get(&mapping));
        backing.map_or_else(|| "(closed)".to_owned(), |open| open.name.to_string())
    }

    /// The path of a group; in a forked child, and of a group that is gone, its number.
    pub(crate) fn path_of(&self, group: u32) -> String {
        if group == self.core.groups().root() {
            return "/".to_owned();
        }
        let path = match self.is_forked() {
            true => None,
            false => self.names().path_of(group),
        };
        path.unwrap_or_else(|| format!("#{group}"))
    }

    /// Wakes whom core names; the effects of calls that cannot ask for a read. The caller has a
    /// share of the memory, which its last pin may give up here.
    pub(crate) fn wake_all(&self, effects: &mut Effects) {
        while let Some(first) = effects.pop() {
            if let Effect::Wake(frame) = first
                && !self.waiters.are_any(frame)
            {
                continue;
            }
            let others = iter::from_fn(|| effects.pop());
            self.carry_out(iter::once(first).chain(others), |_| {
                unreachable!("only an operation's step asks for reads")
            });
        }
    }

    /// [`Shared::wake_all`] after memory of a group came back, and tells who waits for that, also
    /// where somebody unwinds who is woken before.
    pub(crate) fn wake_all_of(&self, group: u32, effects: &mut Effects) {
        let mut panics = Panics::default();
        panics.catch(|| self.wake_all(effects));
        panics.catch(|| self.group_came_back(group));
        panics.go_on();
    }

    /// What calls of core left, all of it, also where a waker panics: reads that operations' steps
    /// ask for are given to `read`.
    pub(crate) fn carry_out(
        &self,
        effects: impl IntoIterator<Item = Effect>,
        mut read: impl FnMut(Io),
    ) {
        park::to_each(effects, |effect| match effect {
            Effect::Wake(frame) => self.waiters.wake(frame),
            Effect::LastPin => self.end_stay(),
            Effect::Read(io) | Effect::Copy(io) => read(io),
        });
    }

    /// Parks until the frame's version is no longer `version`.
    pub(crate) fn wait(&self, frame: Frame, version: u32) {
        let is_same = || self.core.frames().word(frame).version() == version;
        while self.may_have_to_read() && is_same() {
            self.reap_or_wait(frame, is_same);
        }
        // Whoever reads the page now is a thread: reads in the background count before their page
        // can be seen.
        self.waiters.wait_while(frame, is_same);
    }

    /// Whether the caller, who waits for a page, may have to end its read, or to do it: inside a
    /// store all threads that read may be, and wait for pages that none of them has begun.
    fn may_have_to_read(&self) -> bool {
        self.io.is_reaped_by_waiters() || stall::is_reading(self)
    }

    /// Reads the page where that is queued, reaps what has landed, or sleeps until something has,
    /// the frame has changed, or others may have reaped it.
    fn reap_or_wait(&self, frame: Frame, is_same: impl Fn() -> bool) {
        // No other page: that may need one which this thread has in hand.
        if stall::is_reading(self) && self.io.read_queued(frame) {
            return;
        }
        if !self.io.is_reaped_by_waiters() || !self.io.reap_or_wait(REAP) {
            // Another thread reads.
            let _changed = self
                .waiters
                .wait_until(frame, Instant::now() + REAP, is_same);
        }
    }

    /// [`Shared::wait`] for who changes a page, until `deadline`; whether the version has changed.
    /// Not in a shrinker: it may be the call that asked for memory.
    pub(crate) fn wait_until(&self, frame: Frame, version: u32, deadline: Instant) -> bool {
        if is_shrinking() {
            return false;
        }
        let is_same = || self.core.frames().word(frame).version() == version;
        while self.may_have_to_read() && is_same() && Instant::now() < deadline {
            self.reap_or_wait(frame, is_same);
        }
        self.waiters.wait_until(frame, deadline, is_same)
    }

    /// [`Shared::wait_until`] as long as `patience` lasts, which has less left then: for who waits
    /// for other things in between that do not count.
    pub(crate) fn wait_within(&self, frame: Frame, version: u32, patience: &mut Duration) -> bool {
        let begin = Instant::now();
        let has_changed = self.wait_until(frame, version, begin + *patience);
        *patience = patience.saturating_sub(begin.elapsed());
        has_changed
    }

    /// Waits until `has_ended` says that a read of some page has, or until a time of
    /// [`Shared::now`].
    pub(crate) fn wait_for_landing(&self, until: u64, has_ended: &mut dyn FnMut() -> bool) {
        while !has_ended() && self.now() < until {
            if !self.io.is_reaped_by_waiters() || !self.io.reap_or_wait(REAP) {
                // Of one that nobody waits for, this is told.
                self.landings.wait(REAP);
            }
        }
    }

    /// Waits until no read of a file is under way in the background.
    pub(crate) fn wait_for_flights(&self, backing: &Backing) {
        while backing.is_in_flight() {
            // This thread may be the one that ends them.
            if !self.io.help(backing) {
                self.landings.wait(REAP);
            }
        }
    }

    /// The budget as it is now.
    pub(crate) fn budget_pages(&self) -> u64 {
        let groups = self.core.groups();
        groups.get(groups.root()).expect("the root stays").max()
    }

    /// The error of who asked for so many pages for a group.
    pub(crate) fn alloc_error(&self, error: AllocError, group: u32, asked_pages: u64) -> Error {
        let error = self.error_of_alloc(error, group, asked_pages);
        trace::refused(&error);
        error
    }

    fn error_of_alloc(&self, error: AllocError, group: u32, asked_pages: u64) -> Error {
        match error {
            AllocError::OverLimit { group } | AllocError::Unwritten { group } => {
                self.core.groups().count_event(group, Event::Oom);
                let is_unwritten = matches!(error, AllocError::Unwritten { .. });
                self.over_limit(group, asked_pages, is_unwritten)
            }
            AllocError::Thrashing { group: level } => {
                self.core.groups().count_event(level, Event::Oom);
                Error::Thrashing {
                    group: self.path_of(group),
                    min_ttl: Duration::from_nanos(self.core.config().min_ttl_ns),
                }
            }
            AllocError::NoBlock { order } => Error::NoBlock {
                order: order.get(),
                group: self.path_of(group),
            },
            AllocError::NoMetadata => Error::NoMetadata {
                what: "a group's pages",
            },
        }
    }

    /// A limit that is met, with what the group has then: a look at every group.
    #[cold]
    fn over_limit(&self, id: u32, asked_pages: u64, is_unwritten: bool) -> Error {
        if is_unwritten && let Some(error) = self.not_swapped_out(id, asked_pages) {
            return error;
        }
        let (usage_pages, max_pages) = self.usage_and_max(id);
        let stat = self.core.stat(id);
        let pages = |bytes: u64| bytes / PAGE_BYTES as u64;
        Error::OverLimit {
            group: self.path_of(id),
            asked_pages,
            usage_pages,
            max_pages,
            anon_pages: pages(stat.anon),
            reserved_pages: stat.slab_unreclaimable.div_ceil(PAGE_BYTES as u64),
            file_pages: pages(stat.file),
            dirty_pages: pages(stat.file_dirty),
            kernel_pages: pages(stat.kernel),
        }
    }

    /// Pages charged to a group, and how many may be: 0 of one that is gone.
    pub(crate) fn usage_and_max(&self, id: u32) -> (u64, u64) {
        let record = self.core.groups().get(id);
        record.map_or((0, 0), |group| (group.usage(), group.max()))
    }

    /// A limit that is met by anon pages that were refused by the spill file, where there are some.
    #[cold]
    pub(crate) fn not_swapped_out(&self, id: u32, asked_pages: u64) -> Option<Error> {
        let source = self.swap.last_error()?;
        self.dirty_anon_pages(id).next()?;
        let (usage_pages, max_pages) = self.usage_and_max(id);
        let (used_bytes, max_bytes) = self.swap.used_bytes();
        Some(Error::SwapOut {
            group: self.path_of(id),
            asked_pages,
            usage_pages,
            max_pages,
            used_bytes,
            max_bytes,
            source,
        })
    }

    pub(crate) fn count_read(&self, bytes: u64) {
        let count = self.nr_bytes_read.of(cpu::current());
        count.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_buffered(&self, reads: u64) {
        self.nr_buffered_reads.fetch_add(reads, Ordering::Relaxed);
    }

    pub(crate) fn count_written(&self, bytes: u64) {
        self.nr_bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes_written(&self) -> u64 {
        self.nr_bytes_written.load(Ordering::Relaxed)
    }

    pub(crate) fn count_lost(&self, nr_pages: u64) {
        self.nr_pages_lost.fetch_add(nr_pages, Ordering::Relaxed);
    }

    pub(crate) fn pages_lost(&self) -> u64 {
        self.nr_pages_lost.load(Ordering::Relaxed)
    }

    /// Seconds since the memory was built.
    pub(crate) fn second(&self) -> u32 {
        u32::try_from(self.start.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        let counts = self.nr_bytes_read.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn buffered_reads(&self) -> u64 {
        self.nr_buffered_reads.load(Ordering::Relaxed)
    }

    /// Drops a mapping with its pages, and waits for writes of them that are under way: whoever
    /// opens the file anew reads what they wrote.
    pub(crate) fn close_mapping(&self, mapping: u32) {
        // Those who are woken are foreign, and may unwind.
        let mut panics = Panics::default();
        self.core
            .close_mapping(cpu::current(), mapping, &mut |effects| {
                panics.catch(|| self.wake_all(effects));
            });
        while self.core.has_mapping(mapping) {
            self.landings.wait(Duration::from_millis(10));
        }
        panics.catch(|| self.settle());
        panics.go_on();
    }
}
