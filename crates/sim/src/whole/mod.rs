//! The whole of core under one seed: many virtual CPUs that may be changed between any two calls
//! and inside every callback, a disk that fails, tears and crashes, a spill file, and a model of
//! what every page, pin and group has to be.
//!
//! A [`Scenario`] is a machine and a list of [`Action`]s, all made from a seed before it runs. The
//! list is data: the same list gives the same run, and parts of it can be left out ([`shrink()`]).
//! Between actions no call of core is under way; inside a callback of core (a stall, a shrinker, a
//! write that reclaim wants) other CPUs go on with the actions that follow.

mod act;
mod action;
mod ahead;
mod check;
mod device;
mod files;
mod io;
mod platform;
mod scenario;
mod shrink;
mod spill;
mod task;
mod world;

pub use action::{Action, Op, Place};
pub use scenario::{Followed, MAX_CPUS, MAX_NODES, Plant, Scenario, Shape, Size};
pub use shrink::shrink;

use device::{Disk, Stamps};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{HASH_BASIS, Survives, World};

/// What a run without a failure was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A hash of all that happened: the same list gives the same one.
    pub hash: u64,
    /// Actions.
    pub nr_steps: usize,
    /// Times that core called back.
    pub nr_callbacks: u64,
    /// Reads of the disks.
    pub nr_reads: u64,
    /// Times that somebody was told of a read that failed.
    pub nr_read_errors: u64,
    /// Reads ahead of somebody that were begun.
    pub nr_ahead: u64,
    /// Anon pages that were written to the spill file.
    pub nr_swapped_out: u64,
    /// Anon pages that came back.
    pub nr_swapped_in: u64,
    /// Pages that reclaim evicted.
    pub pgsteal: u64,
    /// A callback panicked, on purpose.
    pub has_panicked: bool,
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Actions that were begun.
    pub step: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { seed, step, what } = self;
        write!(f, "seed {seed}, step {step}: {what}")
    }
}

impl std::error::Error for Failure {}

/// Runs a scenario.
///
/// A panic of core is a failure; whoever wants to see less of it sets a panic hook.
///
/// # Errors
/// [`Failure`].
pub fn run(scenario: &Scenario) -> Result<Outcome, Failure> {
    let mut step = 0;
    let mut ran = Ran::default();
    let result = catch_unwind(AssertUnwindSafe(|| run_all(scenario, &mut step, &mut ran)));
    let what = match result {
        Ok(Ok(outcome)) => return Ok(outcome),
        Ok(Err(what)) => what,
        Err(panic) => text_of(&*panic).to_owned(),
    };
    Err(Failure {
        seed: scenario.seed,
        step,
        what,
    })
}

#[derive(Default)]
struct Ran {
    pgsteal: u64,
    has_panicked: bool,
}

fn run_all(scenario: &Scenario, step: &mut usize, ran: &mut Ran) -> Result<Outcome, String> {
    let mut survives = Survives {
        disk: Disk::new(scenario.seed, scenario.files.len()),
        stamps: Stamps::new(scenario.plant),
        cursor: 0,
        hash: HASH_BASIS,
        nr_callbacks: 0,
    };
    // A memory for each crash, and the last one.
    loop {
        let world = World::new(scenario, survives)?;
        let has_crashed = run_until_crash(&world, step, ran)?;
        ran.pgsteal += world.memory.stats().pgsteal;
        if !has_crashed {
            world.end().map_err(|what| format!("at the end: {what}"))?;
            let disk = &world.state.borrow().disk;
            return Ok(Outcome {
                hash: world.hash(),
                nr_steps: world.cursor.get(),
                nr_callbacks: world.nr_callbacks.get(),
                nr_reads: disk.nr_reads,
                nr_read_errors: disk.nr_read_errors,
                nr_ahead: disk.nr_ahead,
                nr_swapped_out: disk.nr_swapped_out,
                nr_swapped_in: disk.nr_swapped_in,
                pgsteal: ran.pgsteal,
                has_panicked: ran.has_panicked,
            });
        }
        survives = world.survive()?;
    }
}

/// Runs actions up to a crash or the end; whether it was a crash.
fn run_until_crash(world: &World<'_>, step: &mut usize, ran: &mut Ran) -> Result<bool, String> {
    let scenario = world.scenario;
    let mut next_check = 0;
    while let Some(&action) = scenario.actions.get(world.cursor.get()) {
        world.cursor.set(world.cursor.get() + 1);
        *step = world.cursor.get();
        match action.op {
            Op::Crash => return Ok(true),
            Op::Quiesce => world.quiesce()?,
            _ => ran.has_panicked |= apply(world, action),
        }
        *step = world.cursor.get();
        if let Some(what) = world.failure() {
            return Err(what);
        }
        if *step >= next_check || ran.has_panicked {
            next_check = *step + scenario.check_every;
            world.check()?;
        }
    }
    Ok(false)
}

/// Runs an action; whether a callback panicked on purpose.
fn apply(world: &World<'_>, action: Action) -> bool {
    if world.scenario.panic_at.is_none() {
        world.apply(action);
        return false;
    }
    let applied = catch_unwind(AssertUnwindSafe(|| world.apply(action)));
    match applied {
        Ok(()) => false,
        Err(panic) if text_of(&*panic) == platform::PANIC => {
            world.depth.set(0);
            true
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn text_of(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words")
}
