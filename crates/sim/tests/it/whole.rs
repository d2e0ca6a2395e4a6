//! The simulator of all of core: seeds pass, the same seed is the same run, and what is made wrong
//! on purpose is found and made small.

use pagetide_sim::whole::{Failure, Op, Plant, Scenario, Size, run, shrink};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Small enough for builds with assertions.
const SMALL: Size = Size {
    nr_cpus: None,
    nr_nodes: None,
    nr_steps: 800,
    check_every: 40,
};

/// What a failing seed leaves to be looked at.
fn told(scenario: &Scenario, failure: &Failure) -> String {
    let (small, failure) = shrink(scenario, failure);
    let actions: Vec<String> = small.actions.iter().map(ToString::to_string).collect();
    format!("{failure}\n{}", actions.join("\n"))
}

/// Runs a test of each seed, several at a time.
fn each(seeds: std::ops::Range<u64>, test: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            test(seed);
        }
    };
    let nr_threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8);
    thread::scope(|scope| (0..nr_threads).for_each(|_| _ = scope.spawn(work)));
}

fn pass(seeds: std::ops::Range<u64>, size: &Size) {
    each(seeds, |seed| {
        let scenario = Scenario::new(seed, size);
        if let Err(failure) = run(&scenario) {
            panic!("{}", told(&scenario, &failure));
        }
    });
}

#[test]
fn seeds_pass() {
    pass(0..24, &SMALL);
}

/// `cargo xtask test` runs it: a minute or so.
#[test]
#[ignore = "a thousand seeds, for release builds"]
fn a_thousand_seeds_pass() {
    pass(1000..2000, &Size::default());
}

#[test]
fn many_cpus_and_nodes_pass() {
    let size = Size {
        nr_cpus: Some(256),
        nr_nodes: Some(64),
        nr_steps: 300,
        check_every: 100,
    };
    pass(0..1, &size);
}

#[test]
fn a_seed_is_one_run_and_another_seed_is_another() {
    let run = |seed| run(&Scenario::new(seed, &SMALL)).unwrap();
    let hashes: Vec<u64> = (0..8).map(|seed| run(seed).hash).collect();
    let again: Vec<u64> = (0..8).map(|seed| run(seed).hash).collect();
    assert_eq!(hashes, again);
    let mut all = hashes;
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 8);
}

/// The first of many seeds that finds a fault.
fn found(plant: Plant) -> Option<(Scenario, Failure)> {
    (0..60).find_map(|seed| {
        let plant = Some(plant);
        let scenario = Scenario {
            plant,
            ..Scenario::new(seed, &SMALL)
        };
        let failure = run(&scenario).err()?;
        Some((scenario, failure))
    })
}

#[test]
fn each_planted_fault_is_found_and_made_small() {
    for plant in Plant::ALL {
        let Some((scenario, failure)) = found(plant) else {
            panic!("{plant:?} is not found");
        };
        let (small, again) = shrink(&scenario, &failure);
        let nr_left = small.actions.len();
        assert!(nr_left < SMALL.nr_steps / 2, "{plant:?}: {nr_left} actions");
        assert_eq!(run(&small), Err(again.clone()), "{plant:?}");
        println!(
            "{plant:?}: {} of {} actions, {again}",
            small.actions.len(),
            SMALL.nr_steps
        );
    }
}

#[test]
fn a_panic_in_any_callback_leaves_a_memory_that_adds_up() {
    let size = Size {
        nr_steps: 400,
        ..SMALL
    };
    let nr_calling = AtomicU64::new(0);
    each(0..30, |seed| {
        let mut scenario = Scenario::new(seed, &size);
        // A machine with memory for all of its load may be called back never.
        let nr_callbacks = run(&scenario).unwrap().nr_callbacks;
        nr_calling.fetch_add(u64::from(nr_callbacks > 0), Ordering::Relaxed);
        let step = (nr_callbacks / 60).max(1);
        for panic_at in (1..=nr_callbacks).step_by(usize::try_from(step).unwrap()) {
            scenario.panic_at = Some(panic_at);
            match run(&scenario) {
                Ok(outcome) => assert!(outcome.has_panicked, "seed {seed}, callback {panic_at}"),
                Err(failure) => panic!("callback {panic_at}: {}", told(&scenario, &failure)),
            }
        }
    });
    let nr_calling = nr_calling.into_inner();
    assert!(nr_calling > 20, "{nr_calling} of 30 machines called back");
}

#[test]
fn any_read_that_fails_is_told_to_who_waits_and_loses_nothing() {
    let size = Size {
        nr_steps: 400,
        ..SMALL
    };
    let (nr_reads, nr_told) = (AtomicU64::new(0), AtomicU64::new(0));
    each(0..40, |seed| {
        let mut scenario = Scenario::new(seed, &size);
        let is_fault = |op| matches!(op, Op::Faults(_));
        scenario.actions.retain(|action| !is_fault(action.op));
        let without = run(&scenario).unwrap();
        assert_eq!(without.nr_read_errors, 0);
        nr_reads.fetch_add(without.nr_reads, Ordering::Relaxed);
        for at in 1..=without.nr_reads {
            scenario.fail_read_at = Some(at);
            match run(&scenario) {
                Ok(outcome) => {
                    assert_ne!(outcome.hash, without.hash, "seed {seed}, read {at}");
                    let is_told = u64::from(outcome.nr_read_errors > 0);
                    nr_told.fetch_add(is_told, Ordering::Relaxed);
                }
                Err(failure) => panic!("read {at}: {}", told(&scenario, &failure)),
            }
        }
    });
    let (nr_reads, nr_told) = (nr_reads.into_inner(), nr_told.into_inner());
    println!("{nr_told} of {nr_reads} failures had somebody waiting");
    // Others had given up, or were lost in a crash.
    assert!(nr_told > nr_reads / 2, "{nr_told} of {nr_reads}");
}
