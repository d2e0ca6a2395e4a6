//! A trace through the real core: the code that the runtime runs, on one virtual CPU, without I/O.

use crate::policy::{Counts, PROGRESS_STEP};
use crate::trace::Trace;
use pagetide_core::memory::{BuildError, Config, Effect, Effects, Memory, PageError, PageIn, Step};
use pagetide_core::page_cache::{Access, Found, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Order, PageKey};

/// The one virtual CPU.
const CPU: Cpu = Cpu::new(0);

/// Why core did not replay a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The memory was not built.
    #[error("no memory of {frames} frames: {error:?}")]
    Build {
        /// Frames asked for.
        frames: u32,
        /// Why.
        error: BuildError,
    },
    /// Core's records do not fit.
    #[error("no memory for the records of a group or a file")]
    NoMetadata,
    /// A page did not come in.
    #[error("request {request}: {error:?}")]
    Page {
        /// The request's number, from 0.
        request: u64,
        /// Why.
        error: PageError,
    },
}

/// Replays a trace by copying reads through a group of at most `frames` pages, reads taking no
/// time; `progress` gets the requests done so far.
///
/// The runtime replays with the same sizes, so that both count the same misses.
///
/// # Errors
/// [`RunError`].
pub fn core_run(
    policy: Policy,
    trace: &Trace,
    frames: u32,
    mut progress: impl FnMut(u64),
) -> Result<Counts, RunError> {
    let memory = Memory::try_new(Config::for_resident(frames, 1, policy));
    let memory = memory.map_err(|error| RunError::Build { frames, error })?;
    let group = memory
        .new_group(CPU.into(), memory.groups().root())
        .map_err(|_| RunError::NoMetadata)?;
    let over = memory.set_max(CPU.into(), group, u64::from(frames));
    assert!(over == Ok(0), "a new group is not over its limit");
    let file = memory
        .open_mapping(CPU.into(), Order::ZERO)
        .map_err(|_| RunError::NoMetadata)?;
    let mut counts = Counts::default();
    for chunk in trace.pages.chunks(PROGRESS_STEP) {
        for &page in chunk {
            let key = Mappings::key(file, u64::from(page)).expect("32 bits fit a key");
            let missed = have(&memory, group, key);
            let missed = missed.map_err(|error| RunError::Page {
                request: counts.requests,
                error,
            })?;
            counts.misses += u64::from(missed);
            counts.requests += 1;
        }
        progress(counts.requests);
    }
    Ok(counts)
}

/// Reads a page and lets it go; whether it was a miss.
fn have(memory: &Memory, group: u32, key: PageKey) -> Result<bool, PageError> {
    let mut effects = Effects::new();
    if let Found::Pinned(frame) = memory.pin(CPU, key, Access::Copy, &mut effects) {
        memory.unpin(CPU, frame, &mut effects);
        return Ok(false);
    }
    let mut op = PageIn::new(key, group, Access::Copy);
    loop {
        if let Step::Done(frame) = op.step(memory, CPU.into(), &mut effects)? {
            memory.unpin(CPU, frame, &mut effects);
            return Ok(true);
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                memory.complete(CPU, io, Ok(()), &mut effects);
            }
        }
    }
}
