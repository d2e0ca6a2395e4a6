//! The faults, by room.

mod alloc;
mod callers;
mod files;
mod group;
mod io;
mod magazines;
mod memory;
mod page_cache;
mod reclaim;
mod runtime;

use super::Mutant;

/// All faults.
pub(super) fn all() -> impl Iterator<Item = &'static Mutant> {
    let rooms = [
        alloc::MUTANTS,
        group::MUTANTS,
        page_cache::MUTANTS,
        reclaim::MUTANTS,
        magazines::MUTANTS,
        memory::MUTANTS,
        runtime::MUTANTS,
        files::MUTANTS,
        io::MUTANTS,
        callers::MUTANTS,
    ];
    rooms.into_iter().flatten()
}
