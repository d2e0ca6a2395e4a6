//! The runtime on real files: bytes, sharing, limits, errors, resident memory.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

mod audit;
mod budget;
mod child;
mod data;
mod disk;
mod durability;
mod files;
mod global;
mod isolated;
mod longterm;
mod lru_gen;
mod machine;
mod memcg;
mod nodes;
mod pins;
mod pressure;
mod promise;
mod reclaim;
mod reserve;
mod sizing;
mod views;
mod waits;
mod writes;
