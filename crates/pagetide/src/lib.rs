//! A cgroup and a page cache that you link into your process.
//!
//! One enforced byte budget over file cache plus working memory, split by tenant: the cache gives
//! way when working memory grows and comes back when it shrinks.
//!
//! ```
//! use pagetide::{ByteSize, Memory, Order};
//!
//! # fn main() -> Result<(), pagetide::Error> {
//! # let dir = tempfile::tempdir().expect("a temporary folder");
//! # let path = dir.path().join("table.bin");
//! # std::fs::write(&path, vec![7; 1 << 20]).expect("a data file");
//! let memory = Memory::builder().budget(ByteSize::mib(64)).build()?;
//! let web = memory.root().child("web")?.min(ByteSize::mib(8))?;
//! let batch = memory.root().child("batch")?.max(ByteSize::mib(16))?;
//! let table = memory.open(&path, &web)?;
//! let mut bytes = [0; 100];
//! table.read_at(&mut bytes, 8192)?; // through the page cache, counts as a read access
//! let page = table.pin(17)?; // zero-copy view, counts as a mapped access
//! let work = batch.alloc(Order::new(9))?; // 2 MiB of working memory: the page cache yields
//! let query = batch.reserve(ByteSize::mib(10))?; // bytes of my own heap, under the same budget
//! assert_eq!((page[0], work.len()), (7, 2 << 20));
//! assert_eq!(query.size(), ByteSize::mib(10));
//! # Ok(())
//! # }
//! ```
//!
//! Where a limit is met and nothing can be reclaimed, [`Group::alloc`] is refused, at once but
//! where pages are being read that could go then; [`Group::alloc_by`] waits until a deadline, and
//! [`Group::alloc_async`] does so as a future of any executor. So do [`Group::reserve_by`] and
//! [`Group::reserve_async`] for bytes of the heap. An operation that pins several pages takes a
//! [`PinPermit`] first, so that no pin budget ([`Group::set_pin_max`]) stops it half way while it
//! holds some.
//!
//! Features, none of which is on by default: `metrics` for OpenMetrics text (`Memory::metrics`),
//! `watch` for a socket through which `pagetide top` looks at a running process (`Memory::watch`),
//! `tracing` for events of that crate, target `pagetide::trace`: memory refused or released, failed
//! reads and writes, dirty pages lost, a budget that changed, who was slowed down
//! (`book/looking.md` lists them). A subscriber must not use the memory that it is told about; what
//! unwinds out of it is dropped.
//!
//! Linux on 64-bit only, with pages of 4 KiB ([`Error::PageSize`]). One thread does the
//! housekeeping of a memory, and one for each node reclaims in the background (none with
//! [`Builder::without_thread`]); another one writes back once a file is written. A page is read by
//! the thread that needs it, many together ([`File::pin_many`]) by io_uring or a few threads, and
//! what is prefetched by one that reaps io_uring. A few more write and sync what tasks wait for
//! ([`File::write_at_async`], [`File::sync_async`]).

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("pagetide needs Linux on a 64-bit machine");

mod alarms;
mod alloc_wait;
mod arena;
mod audit;
mod backing;
mod behind;
#[cfg(doctest)]
mod book;
mod builder;
mod claims;
mod cpu;
mod dirty_list;
mod durability;
mod error;
mod file;
mod flusher;
mod global;
mod group;
mod home;
mod hooks;
mod io;
mod length_lock;
mod limits;
mod lru_gen;
mod machine;
mod memory_wait;
#[cfg(feature = "metrics")]
mod metrics;
mod names;
mod open_files;
mod options;
mod page;
mod park;
mod pin_accounts;
mod pin_sites;
mod pins;
mod platform;
mod policy;
mod pressure;
mod reclaim;
mod release;
mod reservation;
mod resident;
mod rseq;
mod shared;
mod shrinker;
mod sleepers;
#[cfg(feature = "watch")]
mod snapshot;
mod spill;
mod stall;
mod stat;
mod stats;
mod store;
mod throttle;
mod told;
mod topology;
mod trace;
#[cfg(doctest)]
mod unused;
mod wait;
#[cfg(feature = "watch")]
mod watch;
mod worker;
mod working_set;
mod writeback;

pub use audit::AuditError;
pub use builder::{Builder, Drained, Memory};
pub use bytesize::ByteSize;
pub use error::Error;
pub use file::{Anon, CloseError, File, Hint, PinnedRange, ReadOptions, UpgradeError};
pub use group::Group;
pub use hooks::{Content, Hooks};
pub use io::{IoChoice, IoEngine, Registered};
pub use limits::Events;
pub use lru_gen::{BadGeneration, Generation, LruGen, Tier};
pub use machine::{BudgetSource, CgroupLimit, MachineMemory, memory_limit};
pub use options::OpenOptions;
pub use page::{Buf, Page, PageMut};
pub use pin_sites::{PinSite, PinnedPage};
pub use pins::{Pages, PinPermit};
pub use policy::{BadOrder, Mempolicy, Order, Policy, Tuner, UnknownPolicy};
pub use pressure::{Pressure, PressureKind, PressureLine, Trigger};
pub use reservation::Reservation;
pub use resident::resident_bytes;
pub use shrinker::{Registration, Shrinker};
#[cfg(feature = "watch")]
pub use snapshot::{GenerationSnapshot, GroupSnapshot, PagesetSnapshot, Snapshot, TierSnapshot};
pub use stall::Task;
pub use stat::{GroupStat, StockStats};
pub use stats::{NodeStats, Pageset, Stats};
pub use store::Store;
pub use topology::{BadTopology, Topology};
#[cfg(feature = "watch")]
pub use watch::{Answer, VIEWS, Watch};
pub use working_set::WorkingSet;

/// Bytes of a page of order 0.
pub const PAGE_BYTES: usize = pagetide_core::units::PAGE_BYTES;
