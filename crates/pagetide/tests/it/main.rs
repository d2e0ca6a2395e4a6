//! The runtime on real files: bytes, sharing, limits, errors, resident memory.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

mod anon;
mod anon_calls;
mod anon_model;
mod anon_spill;
mod anon_waits;
mod audit;
mod bad_input;
mod beside_cuts;
mod blocks;
mod bounced;
mod budget;
mod bystanders;
mod callers;
mod child;
mod claims;
mod counters;
mod crash;
mod cuts;
mod data;
mod dirty_books;
mod dirty_levels;
mod disk;
mod durability;
mod files;
mod global;
mod high;
mod hit_cost;
mod holes;
mod hook_waits;
mod hooks;
mod huge_pages;
mod in_flight;
mod in_hand;
mod longterm;
mod lru_gen;
mod machine;
mod many;
mod many_reclaim;
mod many_writes;
mod memcg;
#[cfg(feature = "metrics")]
mod metrics;
mod neighbours;
mod nodes;
mod page_sizes;
mod pins;
mod pressure;
mod promise;
mod protection;
mod ranges;
mod read_options;
mod readahead;
mod reclaim;
mod registered;
mod reserve;
mod reserve_waits;
mod rseq;
mod sizing;
mod slow;
mod slow_stores;
mod sparse;
mod swift;
mod syncs;
mod system_calls;
mod tasks;
mod torture;
#[cfg(feature = "tracing")]
mod tracing;
mod unwritten;
mod views;
mod waits;
#[cfg(feature = "watch")]
mod watch;
mod writes;
