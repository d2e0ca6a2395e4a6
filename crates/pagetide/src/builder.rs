//! `Memory` and how it is built.

use crate::arena::{self, Arena};
use crate::file::{AheadCounts, File};
use crate::group::Group;
use crate::home::Home;
use crate::io::{Engine, IoChoice, IoEngine, Registry};
use crate::machine::{BudgetSource, memory_limit};
use crate::reclaim::MAX_SWAPPINESS;
use crate::rseq;
use crate::shared::{Shared, Timing};
use crate::spill;
use crate::store::Store;
use crate::topology::{Topology, cache_share, config_error};
use crate::trace;
use crate::worker;
use crate::{ByteSize, Error, OpenOptions, PAGE_BYTES, Policy, Tuner};
use pagetide_core::alloc::Weights;
use pagetide_core::group::CpuMask;
use pagetide_core::memory::{BuildError, Config, Memory as Core};
use pagetide_core::units::{self, Frame, Node, index};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Frame numbers end below 2^32; a little room is left for per-CPU page caches.
const MAX_BUDGET_PAGES: u64 = (u32::MAX - (1 << 24)) as u64;

/// The budget's share of what the process may have, where none is named.
const DEFAULT_FRACTION: f64 = 0.5;

/// One budget, one arena, one tree of groups. A cheap handle.
#[derive(Clone)]
pub struct Memory {
    shared: Home,
    budget_source: Arc<BudgetSource>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (budget, stats) = (self.budget(), self.stats());
        f.debug_struct("Memory")
            .field("budget", &budget)
            .field("stats", &stats)
            .finish()
    }
}

/// What a memory is built from.
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until `build`"]
pub struct Builder {
    size: Size,
    policy: Policy,
    swappiness: Option<u8>,
    min_ttl: Duration,
    topology: Option<Topology>,
    tuner: Tuner,
    movable_percent: u8,
    node_reclaim: bool,
    weights: Weights,
    timing: Timing,
    isolated: Option<Vec<u32>>,
    arena_max: Option<u64>,
    has_thread: bool,
    has_huge_pages: Option<bool>,
    io_engine: Option<IoEngine>,
    registered_buffers: bool,
    pub(crate) has_rseq: bool,
    pub(crate) spill: spill::Config,
    readahead: Option<ByteSize>,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    /// A share of what the process may have.
    Default(f64),
    Budget(u64),
    Resident(u32),
}

impl Size {
    /// The budget in pages, and where it comes from.
    fn resolve(self) -> Result<(u64, BudgetSource), Error> {
        match self {
            Size::Default(fraction) if fraction > 0.0 && fraction <= 1.0 => {
                let of = memory_limit()?;
                let pages = of.share_pages(fraction, MAX_BUDGET_PAGES);
                Ok((pages, BudgetSource::Share { fraction, of }))
            }
            Size::Default(fraction) => Err(Error::BudgetFraction { fraction }),
            Size::Budget(bytes) => Ok((bytes / PAGE_BYTES as u64, BudgetSource::Named)),
            Size::Resident(nr_pages) => Ok((u64::from(nr_pages), BudgetSource::Named)),
        }
    }
}

impl Builder {
    /// The budget: file cache, working memory and pagetide's own records, of which about 64 KiB a
    /// GiB and 16 KiB a CPU are resident at first. Rounded down to whole pages. By default a share
    /// of what the process may have, see [`Builder::budget_fraction`].
    pub fn budget(mut self, budget: ByteSize) -> Builder {
        self.size = Size::Budget(budget.as_u64());
        self
    }

    /// The budget as a share of what the process may have: the smaller of the machine's memory and
    /// the limit of the cgroup that it lives in ([`memory_limit`]), looked up when the memory is
    /// built. Above 0 and at most 1; 0.5 by default, which leaves the other half to the program's
    /// own heap, stacks and code, and to others. Rounded down to whole pages, and at most what
    /// frame numbers can count: just below 16 TiB.
    ///
    /// It replaces what [`Builder::budget`] said before.
    pub fn budget_fraction(mut self, fraction: f64) -> Builder {
        self.size = Size::Default(fraction);
        self
    }

    /// A budget under which a group of at most `nr_pages` pages is evicted from by its own `max`
    /// only: for replaying traces at an exact number of pages.
    pub fn for_resident_pages(mut self, nr_pages: u32) -> Builder {
        self.size = Size::Resident(nr_pages);
        self
    }

    /// Which page goes when a limit is met. Groups may have their own: [`Group::set_policy`].
    pub fn policy(mut self, policy: Policy) -> Builder {
        self.policy = policy;
        self
    }

    /// What bringing back a page of a file costs, 0 to 200; an anon page that was swapped
    /// out costs 200 less it. 60 by default, as the kernel's `vm.swappiness`; more than 200 is 200.
    /// Groups may have their own: [`Group::set_swappiness`].
    ///
    /// As long as nothing is swapped out, it changes nothing.
    pub fn swappiness(mut self, swappiness: u8) -> Builder {
        self.swappiness = Some(swappiness.min(MAX_SWAPPINESS));
        self
    }

    /// How long pages stay once they came in, where the budget is met: a request that would have to
    /// evict younger ones is refused with [`Error::Thrashing`], so that what others use does not
    /// come and go, and what would be read ahead or prefetched is left out. Zero by default: nobody
    /// is refused for that. A second is a good start.
    ///
    /// A group's pages are as old as its coldest ones: a scan beside pages that stay is not
    /// refused. The clock is set by [`Memory::tick`], about once a second where a thread does it,
    /// so nothing is old enough in the first such time. Limits of groups evict whatever is there,
    /// as do blocks above 4 KiB, reservations and what is asked for ([`Memory::reclaim`], a lowered
    /// budget). [`Policy::Fifo`] and [`Policy::TwoList`] do not know how old pages are.
    ///
    /// Source: the kernel's `lru_gen/min_ttl_ms`, which has a process killed then.
    pub fn min_ttl(mut self, min_ttl: Duration) -> Builder {
        self.min_ttl = min_ttl;
        self
    }

    /// Nodes and CPUs; this machine's by default.
    pub fn topology(mut self, topology: Topology) -> Builder {
        self.topology = Some(topology);
        self
    }

    /// What sets how many free pages each CPU keeps close.
    pub fn tuner(mut self, tuner: Tuner) -> Builder {
        self.tuner = tuner;
        self
    }

    /// Share of each node that only pages of files may use, in percent: working memory cannot
    /// break up its large blocks. 0 by default: working memory may have the whole budget.
    pub fn movable_percent(mut self, percent: u8) -> Builder {
        self.movable_percent = percent;
        self
    }

    /// Evict the asking group's coldest pages while its node is short, before a far node is used.
    /// Off by default, as in the kernel.
    pub fn node_reclaim(mut self, is_on: bool) -> Builder {
        self.node_reclaim = is_on;
        self
    }

    /// Requests in a row that a node serves under [`Mempolicy::WeightedInterleave`]: 1 to 255, 1 by
    /// default, which 0 is, too. A node that is not there is left out.
    ///
    /// [`Mempolicy::WeightedInterleave`]: crate::Mempolicy::WeightedInterleave
    pub fn node_weight(mut self, node: u32, weight: u8) -> Builder {
        if let Some(node) = Node::new(node) {
            self.weights = self.weights.with(node, weight);
        }
        self
    }

    /// How long a large block is free before its memory goes back to the OS: 10 s by default,
    /// `None`: only at [`Memory::release`]. At most 64 MiB a second go, and none while a thread may
    /// run on an isolated CPU, which that would interrupt ([`Builder::isolated_cpus`]).
    pub fn release_after(mut self, idle: Option<Duration>) -> Builder {
        self.timing.release_after = idle;
        self
    }

    /// The longest that one call is slowed down at a time because its group is above `high`: 10 ms
    /// by default. One that reads or writes many pages may be before each of them. Zero: `high`
    /// only reclaims.
    pub fn throttle_max(mut self, longest: Duration) -> Builder {
        self.timing.throttle_max = longest;
        self
    }

    /// What [`Memory::set_budget`] may raise the budget to later: the budget itself by default, and
    /// where this is less. Each page of it costs about 100 bytes of records, which the budget pays:
    /// [`Error::BudgetTooSmall`] where it cannot. [`Error::BudgetTooLarge`] beyond what frame
    /// numbers can count.
    pub fn arena_max(mut self, most: ByteSize) -> Builder {
        self.arena_max = Some(most.as_u64());
        self
    }

    /// CPUs that memory must not interrupt: while a thread of this process may run on one of them
    /// (its affinity is asked, which nothing but the thread's own pinning changes), none is taken
    /// away from the process, because that makes the kernel interrupt them. The housekeeping
    /// thread keeps off them. By default those that the machine keeps free (`isolcpus`,
    /// `nohz_full`).
    ///
    /// What is kept back so counts in [`Stats::releases_deferred`]. Its frames stay out of use, but
    /// the process keeps their memory: meanwhile the promise of the budget holds for what is in
    /// use, not for what is resident. It goes at the first [`Memory::tick`] at which no thread may
    /// run there any more.
    ///
    /// [`Stats::releases_deferred`]: crate::Stats::releases_deferred
    pub fn isolated_cpus(mut self, cpus: &[u32]) -> Builder {
        self.isolated = Some(cpus.to_vec());
        self
    }

    /// Starts no thread: the program calls [`Memory::tick`] from its own loop, about once a second,
    /// which also does what there is to do in the background. A page that is read ahead comes when
    /// the thread that began it runs on, or waits: not while it is in an `fdatasync` or a `vfork`.
    pub fn without_thread(mut self) -> Builder {
        self.has_thread = false;
        self
    }

    /// Whether the arena asks for transparent huge pages, as by default where no CPU is isolated,
    /// which the kernel may interrupt to make some: random reads of what is in no cache of the CPU
    /// miss the TLB less often, and memory comes 2 MiB at a time.
    ///
    /// `None` is that default: a setting that nobody made.
    ///
    /// A wish: where the kernel gives no huge page, small ones serve. Resident memory follows use
    /// all the same: frames come from pageblocks that are in use, and whole ones go back. But what
    /// is used first in one waits for a huge page, some 100 us, and more where the kernel compacts
    /// its memory for it (`/sys/kernel/mm/transparent_hugepage/defrag`).
    pub fn huge_pages(mut self, has_huge_pages: impl Into<Option<bool>>) -> Builder {
        self.has_huge_pages = has_huge_pages.into();
        self
    }

    /// What carries out reads of many pages: io_uring where the kernel allows it, else threads, by
    /// default. Pages of a file are written back many at a time by io_uring, else one write after
    /// the other. `None` is that default: a setting that nobody made. [`Memory::io_engine`] says
    /// what came of it.
    pub fn io_engine(mut self, engine: impl Into<Option<IoEngine>>) -> Builder {
        self.io_engine = engine.into();
        self
    }

    /// Whether rings of io_uring have the memory of pages registered, so that the kernel does not
    /// look it up for each read of a batch that is one page: off by default. Without it rings have
    /// 16 pages of their own for that, from which what came is copied
    /// ([`IoChoice::bounce_buffers`](crate::IoChoice::bounce_buffers)).
    ///
    /// A ring registers each 2 MiB of the memory when it first reads into it, up to 32 GiB: all of
    /// these become resident, within the budget, and the kernel keeps them in place. Before memory
    /// goes back to the OS, idle, reserved, or above a lowered budget, it is unregistered. There is
    /// a ring for each CPU and two more at most; of what each has registered the kernel keeps 0.4 %
    /// of its own, and counts it as locked: where `RLIMIT_MEMLOCK` is less and the process may not
    /// go beyond it (`CAP_IPC_LOCK`), the other reads go without. [`Memory::io_engine`] tells that,
    /// [`Stats::fixed_reads`](crate::Stats::fixed_reads) what comes of it.
    pub fn registered_buffers(mut self, is_on: bool) -> Builder {
        self.registered_buffers = is_on;
        self
    }

    /// Bytes that are read ahead of each sequential reader of a file at most; 0 for none. By
    /// default as many as the kernel reads ahead on the file's device (its `read_ahead_kb`, as it
    /// was when the memory opened a file there first), but no more than 2 MiB; 128 KiB where that
    /// cannot be told, and of anon regions and stores. See `docs/readahead.md`.
    ///
    /// All readers of a file together have a sixteenth of what their group may have at most.
    pub fn readahead(mut self, most: ByteSize) -> Builder {
        self.readahead = Some(most);
        self
    }

    /// Reserves the arena, builds the memory, and starts its housekeeping thread.
    ///
    /// What is reserved becomes resident where it is used. Until then it is one page of records for
    /// each free block of 4 MiB, 0.1 % of the budget, and more where huge pages back all mappings.
    ///
    /// Memory is bound to nodes where the machine has several. Where the kernel forbids that, as
    /// in many containers, the memory is built all the same: [`Memory::unbound`] says why.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`], [`Error::BudgetTooLarge`], [`Error::Config`], [`Error::Arena`],
    /// [`Error::NoMetadata`], [`Error::Thread`], [`Error::PageSize`]; [`Error::BudgetFraction`] and
    /// [`Error::CgroupLayout`] where no budget is named.
    pub fn build(self) -> Result<Memory, Error> {
        let memory = self.build_silently()?;
        memory.tell_built();
        Ok(memory)
    }

    /// [`Builder::build`], of which nobody is told: [`Memory::tell_built`] does.
    pub(crate) fn build_silently(self) -> Result<Memory, Error> {
        arena::check_page_size(rustix::param::page_size())?;
        let (pages, budget_source) = self.size.resolve()?;
        let topology = self.topology.unwrap_or_else(Topology::of_machine);
        let most = self.arena_max.map(|most| most / PAGE_BYTES as u64);
        let most = most.map_or(pages, |most| pages.max(most));
        let [pages, arena_pages] = [pages, most].map(countable);
        let (pages, arena_pages) = (pages?, arena_pages?);
        let mut config = Config::on(topology.core().clone(), pages, self.policy.to_core());
        config.swappiness = self.swappiness.unwrap_or(config.swappiness);
        config.min_ttl_ns = u64::try_from(self.min_ttl.as_nanos()).unwrap_or(u64::MAX);
        config.alloc.tuner = self.tuner.to_core();
        config.alloc.movable_percent = self.movable_percent;
        config.alloc.node_reclaim = self.node_reclaim;
        config.alloc.weights = self.weights;
        // Three of the largest batches. Source: kernel 6.7, keeping a batch of high-order pages.
        config.alloc.keeps_batch = cache_share() > 3 * 63 * PAGE_BYTES as u64;
        config.arena_pages = arena_pages;
        let isolated = self.isolated.unwrap_or_else(worker::isolated_cpus);
        let sections = self.has_rseq.then(|| rseq::sections(&topology));
        let sections = sections.and_then(Result::ok);
        let locked = CpuMask::of(isolated.iter().copied().map(units::Cpu::new));
        config.sections = sections.map(|sections| (sections, locked));
        if let Size::Resident(_) = self.size {
            config.fit(pages);
            countable(config.budget_pages.into())?;
        }
        let arena_bytes = bytes_of(config.arena_pages.max(config.budget_pages).into());
        let core = Core::try_new(config).map_err(|error| match error {
            BuildError::BudgetTooSmall {
                budget_pages,
                needed_pages,
            } => Error::BudgetTooSmall {
                budget_bytes: bytes_of(u64::from(budget_pages)),
                needed_bytes: bytes_of(u64::from(needed_pages)),
                arena_bytes,
            },
            BuildError::Config(error) => config_error(error),
            BuildError::NoMetadata(_) => Error::NoMetadata { what: "frames" },
        })?;
        let nr_frames = core.frames().len();
        let bytes = bytes_of(u64::from(nr_frames));
        let has_huge_pages = self.has_huge_pages.unwrap_or(isolated.is_empty());
        let arena = Arena::reserve(nr_frames, has_huge_pages);
        let arena = arena.map_err(|source| Error::Arena { bytes, source })?;
        let unbound = topology.bind(&arena, &core);
        let io = Engine::new(
            self.io_engine,
            registry(&arena, nr_frames, self.registered_buffers),
            self.has_thread,
            isolated.clone(),
            // Who writes back has two, and leaves one to those who read meanwhile.
            index(topology.nr_cpus()) + 1,
        );
        let options = (self.timing, self.spill);
        let io = (
            io,
            AheadCounts::new(self.readahead.map(|most| most.as_u64())),
        );
        let shared = Shared::new(core, arena, io, options, isolated, topology, unbound);
        let shared = Arc::new(shared?);
        if self.has_thread {
            let started = shared.start_worker();
            started.map_err(|source| Error::Thread { source })?;
        }
        Ok(Memory {
            shared: Home::new(shared),
            budget_source: Arc::new(budget_source),
        })
    }
}

fn registry(arena: &Arena, nr_frames: u32, has_buffers: bool) -> Registry {
    let start = || arena.block(Frame::FIRST, units::Order::ZERO).addr().get();
    let memory = has_buffers.then(|| (start(), index(nr_frames) * PAGE_BYTES));
    Registry::new(arena.alive().clone(), memory)
}

/// A number of pages for which there are frame numbers.
fn countable(pages: u64) -> Result<u32, Error> {
    let counted = u32::try_from(pages).ok();
    let counted = counted.filter(|&pages| u64::from(pages) <= MAX_BUDGET_PAGES);
    counted.ok_or(Error::BudgetTooLarge {
        budget_bytes: bytes_of(pages),
        max_bytes: bytes_of(MAX_BUDGET_PAGES),
    })
}

pub(crate) fn bytes_of(nr_pages: u64) -> u64 {
    nr_pages.saturating_mul(PAGE_BYTES as u64)
}

/// What [`Memory::drain`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Pages that went back to their zones.
    pub pages: u64,
    /// Caches that another thread was using.
    pub caches_not_reached: u32,
}

impl Memory {
    /// Begins to build a memory.
    pub fn builder() -> Builder {
        Builder {
            size: Size::Default(DEFAULT_FRACTION),
            policy: Policy::default(),
            swappiness: None,
            min_ttl: Duration::ZERO,
            topology: None,
            tuner: Tuner::default(),
            movable_percent: 0,
            node_reclaim: false,
            weights: Weights::EQUAL,
            timing: Timing {
                release_after: Some(Duration::from_secs(10)),
                throttle_max: Duration::from_millis(10),
            },
            isolated: None,
            arena_max: None,
            has_thread: true,
            has_huge_pages: None,
            io_engine: None,
            registered_buffers: false,
            has_rseq: true,
            spill: spill::Config::default(),
            readahead: None,
        }
    }

    /// The budget in bytes.
    #[must_use]
    pub fn budget(&self) -> ByteSize {
        ByteSize(bytes_of(self.shared.budget_pages()))
    }

    /// Where the budget came from when the memory was built: to be shown to users.
    #[must_use]
    pub fn budget_source(&self) -> &BudgetSource {
        &self.budget_source
    }

    /// Under [`Builder::without_thread`] a descriptor for the program's own event loop: while it is
    /// readable, [`Memory::tick`] ends reads that have landed in the background. Whoever waits for
    /// a page ends them, too. `None` where threads do, without io_uring, and in a forked child.
    #[must_use]
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.io.event_fd()
    }

    /// What carries out reads of many pages, and why: for users to see. Threads in a forked child.
    #[must_use]
    pub fn io_engine(&self) -> IoChoice {
        self.shared.io.choice()
    }

    /// Pages that the budget leaves for content and working memory.
    #[must_use]
    pub fn content_pages(&self) -> u32 {
        self.shared.core.content_pages()
    }

    /// The root group: the budget itself.
    #[must_use]
    pub fn root(&self) -> Group {
        Group::root(&self.shared)
    }

    /// Opens a regular file with pages of 4 KiB; what it brings in is charged to `group`. With
    /// pages of another size and all else that can be said: [`OpenOptions`].
    ///
    /// A file that is open already shares its pages, and its length, with the new handle; else the
    /// length is read now. What others than this memory's handles write later is not seen before
    /// its last handle is gone and it is opened anew, or [`File::invalidate_range`] is called. The
    /// time of its last access stays what it was where the file is this process's own and is read
    /// past the kernel's page cache: hits leave it alone anyway.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NoMetadata`].
    ///
    /// # Panics
    /// As all that open: where the group is of another memory.
    pub fn open(&self, path: impl AsRef<Path>, group: &Group) -> Result<File, Error> {
        OpenOptions::new().open(self, path, group)
    }

    /// Opens an existing regular file for reading and writing, with pages of 4 KiB, as
    /// [`Memory::open`] does; [`OpenOptions`](crate::OpenOptions) creates one.
    ///
    /// It is written past the kernel's page cache. Where others write the same pages through that,
    /// or by `mmap`, at the same time, the kernel may tell the next `fdatasync` of an I/O error:
    /// [`File::sync`] fails then, and the file takes no more writes until it is opened anew. Who
    /// writes a file by turns with others syncs before each turn ends.
    ///
    /// # Errors
    /// As [`Memory::open`].
    pub fn open_rw(&self, path: impl AsRef<Path>, group: &Group) -> Result<File, Error> {
        OpenOptions::new().write(true).open(self, path, group)
    }

    pub(crate) fn home(&self) -> &Home {
        &self.shared
    }

    /// Tells that it was built.
    pub(crate) fn tell_built(&self) {
        trace::built(self.budget().as_u64());
    }

    /// Reads through a file that is open already, perhaps without a name any more; to write it and
    /// all else: [`OpenOptions::open_file`].
    ///
    /// # Errors
    /// As [`OpenOptions::open_file`].
    pub fn open_file(&self, file: std::fs::File, group: &Group) -> Result<File, Error> {
        OpenOptions::new().open_file(self, file, group)
    }

    /// Caches the pages of any store, of 4 KiB; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Open`] where its length is not known, [`Error::NoMetadata`].
    pub fn open_store(
        &self,
        store: Box<dyn Store>,
        name: &str,
        group: &Group,
    ) -> Result<File, Error> {
        OpenOptions::new().open_store(self, store, name, group)
    }

    /// Housekeeping, for programs that call it from their own loop: nodes that are short are
    /// reclaimed on, CPUs give back what they do not use, idle memory goes back to the OS, dropped
    /// groups give up their records, who waits in [`Group::alloc_async`] asks again, reads in the
    /// background end; without a thread dirty pages are written back, for which it waits. Returns
    /// how long until the next call is of use, but for those reads, of which [`Memory::event_fd`]
    /// tells. Needed for no progress but of those who wait. In a forked child it does nothing.
    pub fn tick(&self) -> Duration {
        if self.shared.is_forked() {
            return Duration::MAX;
        }
        self.shared.io.reap();
        self.shared.flush_without_thread();
        self.shared.balance_wanted();
        let due = self.shared.tick();
        self.shared.wake_due().map_or(due, |next| next.min(due))
    }

    /// Gives the memory of all large free blocks back to the OS now; returns the bytes.
    ///
    /// A system call for each block of 2 or 4 MiB; none goes while a thread may run on an isolated
    /// CPU ([`Builder::isolated_cpus`]).
    pub fn release(&self) -> ByteSize {
        if self.shared.is_forked() {
            return ByteSize(0);
        }
        ByteSize(self.shared.release_all())
    }

    /// Empties the free pages that CPUs keep close, those of all CPUs, into their zones: from any
    /// thread. A CPU that has buffers close is fenced, see [`Builder::restartable_sequences`].
    ///
    /// Never needed: it happens by itself before memory is refused. Does nothing in a forked child.
    pub fn drain(&self) -> Drained {
        if self.shared.is_forked() {
            return Drained::default();
        }
        let drained = self.shared.core.drain();
        Drained {
            pages: u64::from(drained.nr_pages),
            caches_not_reached: drained.not_reached,
        }
    }
}
