//! The rooms of pagetide: frames, allocation, groups, reclaim, page cache.
//!
//! No I/O, no clock, no thread: CPU and time are arguments, frames are numbers, an operation is a
//! value that the caller steps. `ARCHITECTURE.md` has the map; each room has its own page.
//! Stability is promised for the crate `pagetide` only.
#![no_std]

pub mod sync;
pub mod units;

pub mod frame;

pub mod alloc;

pub mod group;

pub mod reclaim;

pub mod page_cache;

pub mod memory;
