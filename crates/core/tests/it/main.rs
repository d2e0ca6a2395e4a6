//! Models of the rooms: each room beside a naive twin, over random operations.
#![cfg(not(any(loom, shuttle)))]

mod alloc;
mod balance;
mod evacuate;
mod group;
mod lru_gen;
mod many_groups;
mod memory;
mod mglru;
mod pressure;
mod progress;
mod readahead;
mod reclaim;
mod reserve;
mod stocks;
mod zones;

use proptest::test_runner::{Config, RngSeed};

/// `cases` sequences, the same ones in every run.
fn config(cases: u32) -> Config {
    Config {
        cases,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Config::default()
    }
}
