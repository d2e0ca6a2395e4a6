//! Models: naive twins of the rooms, driven by random operations beside the real ones.

#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

mod alloc;
mod group;
mod memory;
