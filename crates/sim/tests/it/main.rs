//! Tests of the simulator: traces, and miss ratios against recorded ones.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

mod expected;
mod field;
mod key_value;
mod mixes;
mod policies;
mod readahead;
mod scans;
mod shards;
mod sizing;
mod traces;
mod twins;
mod whole;
mod writeback;
