//! pagetide's core without I/O, recorded traces, and policies over page numbers to compare with.
//!
//! - [`stack_distance`] has LRU at all sizes in one pass.
//! - [`trace`] reads recorded traces.
//! - [`core_run`] replays one through the real core: miss ratios of the policies that the runtime
//!   has.
//! - [`disk`] is a disk for core's reads and writes, which end in any order, or fail.
//! - [`hog`] is the memory hog of the zonelist cache on such a machine.
//! - [`key_value`] is a store in memory that does not fit: what is swapped in and out.
//! - [`machine`] runs core's zones on many virtual CPUs, with a queue before each zone's lock.
//! - [`pcp`] has loads for such machines, to compare tuners with.
//! - [`policy`] has policies over page numbers, for comparison only.
//! - [`requests`] makes requests by a distribution.
//! - [`shards`] samples traces, and says what the samples tell of the whole.
//! - [`sizes`] turns fractions of a trace's pages into numbers of frames.
//! - [`whole`] is all of core under one seed, with faults, beside a model of what has to hold.

mod ahead_run;
mod core_run;
pub mod disk;
pub mod hog;
pub mod key_value;
pub mod machine;
pub mod pcp;
pub mod policy;
mod random;
pub mod requests;
pub mod shards;
pub mod sizes;
pub mod stack_distance;
pub mod trace;
pub mod whole;

pub use ahead_run::{AheadCache, AheadCounts};
pub use core_run::{CoreCache, Costs, RunError, core_run};
pub use pagetide_core::alloc::Tuner as CoreTuner;
pub use pagetide_core::reclaim::Policy as CorePolicy;
pub use policy::{Counts, replay};
