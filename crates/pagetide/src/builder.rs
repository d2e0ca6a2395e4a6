//! `Memory` and how it is built.

use crate::arena::Arena;
use crate::file::File;
use crate::group::Group;
use crate::shared::Shared;
use crate::store::{DirectFile, Store};
use crate::{ByteSize, Error, Order, PAGE_BYTES, Policy, cpu};
use pagetide_core::memory::{BuildError, Config, Memory as Core};
use std::path::Path;
use std::sync::Arc;

/// Frame numbers end below 2^32; a little room is left for per-CPU page caches.
const MAX_BUDGET_PAGES: u64 = (u32::MAX - (1 << 24)) as u64;

/// One budget, one arena, one tree of groups. A cheap handle.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
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
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder builds nothing until `build`"]
pub struct Builder {
    size: Size,
    policy: Policy,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    Budget(u64),
    Resident(u32),
}

impl Builder {
    /// The budget: file cache, working memory and pagetide's own records together. Rounded down to
    /// whole pages. 256 MiB by default.
    pub fn budget(mut self, budget: ByteSize) -> Builder {
        self.size = Size::Budget(budget.as_u64());
        self
    }

    /// A budget under which a group of at most `nr_pages` pages is evicted from by its own `max`
    /// only: for replaying traces at an exact number of pages.
    pub fn for_resident_pages(mut self, nr_pages: u32) -> Builder {
        self.size = Size::Resident(nr_pages);
        self
    }

    /// Which page goes when a limit is met.
    pub fn policy(mut self, policy: Policy) -> Builder {
        self.policy = policy;
        self
    }

    /// Reserves the arena and builds the memory. Starts no thread.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`], [`Error::BudgetTooLarge`], [`Error::Arena`],
    /// [`Error::NoMetadata`].
    pub fn build(self) -> Result<Memory, Error> {
        let nr_cpus = cpu::nr_possible();
        let policy = self.policy.to_core();
        let pages = match self.size {
            Size::Budget(bytes) => bytes / PAGE_BYTES as u64,
            Size::Resident(nr_pages) => u64::from(nr_pages),
        };
        let too_large = || Error::BudgetTooLarge {
            budget_bytes: bytes_of(pages),
            max_bytes: bytes_of(MAX_BUDGET_PAGES),
        };
        if pages > MAX_BUDGET_PAGES {
            return Err(too_large());
        }
        let pages = u32::try_from(pages).map_err(|_| too_large())?;
        let config = match self.size {
            Size::Budget(_) => Config::new(pages, nr_cpus, policy),
            Size::Resident(_) => Config::for_resident(pages, nr_cpus, policy),
        };
        let nr_frames = config.nr_frames();
        let core = Core::try_new(config).map_err(|error| match error {
            BuildError::BudgetTooSmall {
                budget_pages,
                needed_pages,
            } => Error::BudgetTooSmall {
                budget_bytes: bytes_of(u64::from(budget_pages)),
                needed_bytes: bytes_of(u64::from(needed_pages)),
            },
            BuildError::Config(error) => Error::Config {
                problem: format!("{error:?}"),
            },
            BuildError::NoMetadata(_) => Error::NoMetadata { what: "frames" },
        })?;
        let bytes = bytes_of(u64::from(nr_frames));
        let arena = Arena::reserve(nr_frames);
        let arena = arena.map_err(|source| Error::Arena { bytes, source })?;
        Ok(Memory {
            shared: Arc::new(Shared::new(core, arena)),
        })
    }
}

pub(crate) fn bytes_of(nr_pages: u64) -> u64 {
    nr_pages.saturating_mul(PAGE_BYTES as u64)
}

/// Counts since the memory was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes that stores gave.
    pub bytes_read: u64,
    /// Reads that went through the kernel's page cache because `O_DIRECT` was refused.
    pub buffered_reads: u64,
    /// Pages that are cached, being read, or working memory.
    pub resident_pages: u64,
    /// Pages that reclaim looked at.
    pub pgscan: u64,
    /// Pages that reclaim evicted.
    pub pgsteal: u64,
    /// Times that the zone's lock was taken.
    pub zone_lock_takes: u64,
}

impl Memory {
    /// Begins to build a memory.
    pub fn builder() -> Builder {
        Builder {
            size: Size::Budget(256 << 20),
            policy: Policy::default(),
        }
    }

    /// The budget in bytes.
    #[must_use]
    pub fn budget(&self) -> ByteSize {
        ByteSize(bytes_of(u64::from(self.shared.core.config().budget_pages)))
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

    /// Opens a regular file with pages of 4 KiB; what it brings in is charged to `group`.
    ///
    /// A file that is open already shares its pages with the new handle. Its length is read now:
    /// bytes added later are not seen before it is opened anew.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NoMetadata`].
    pub fn open(&self, path: impl AsRef<Path>, group: &Group) -> Result<File, Error> {
        self.open_with(path, Order::new(0), group)
    }

    /// Opens a regular file with pages of `order`.
    ///
    /// # Errors
    /// As [`Memory::open`].
    pub fn open_with(
        &self,
        path: impl AsRef<Path>,
        order: Order,
        group: &Group,
    ) -> Result<File, Error> {
        let path = path.as_ref();
        let name = path.display().to_string();
        File::open_direct(&self.shared, DirectFile::open(path)?, name, order, group)
    }

    /// Reads through a file that is open already, perhaps without a name any more.
    ///
    /// # Errors
    /// As [`Memory::open`].
    pub fn open_file(&self, file: std::fs::File, group: &Group) -> Result<File, Error> {
        let name = "an unnamed file".to_owned();
        let direct = DirectFile::new(file);
        let direct = direct.map_err(|source| Error::Open {
            path: name.clone().into(),
            source,
        })?;
        File::open_direct(&self.shared, direct, name, Order::new(0), group)
    }

    /// Caches the pages of any store; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Open`] where its length is not known, [`Error::NoMetadata`].
    pub fn open_store(
        &self,
        store: Box<dyn Store>,
        name: &str,
        order: Order,
        group: &Group,
    ) -> Result<File, Error> {
        File::open_store(&self.shared, store, name.to_owned(), order, group)
    }

    /// Housekeeping, for programs that call it from their own loop: dropped groups whose last
    /// pages have gone give up their records. Never needed for progress.
    pub fn tick(&self) {
        self.shared.tick();
    }

    /// Counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = self.shared.core.stats();
        Stats {
            bytes_read: self.shared.bytes_read(),
            buffered_reads: self.shared.buffered_reads(),
            resident_pages: u64::from(core.nr_used),
            pgscan: core.pgscan,
            pgsteal: core.pgsteal,
            zone_lock_takes: core.zone.lock_takes,
        }
    }
}
