//! The simulator of all of core: seeds pass, the same seed is the same run, and what is made wrong
//! on purpose is found and made small.

use pagetide_sim::trace::{Trace, TraceOptions};
use pagetide_sim::whole::{Failure, Op, Plant, Scenario, Size, run, shrink};
use std::path::Path;
use std::sync::Arc;
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

#[test]
fn anon_pages_go_and_come_back_and_readers_have_windows() {
    let (mut nr_out, mut nr_in, mut nr_ahead) = (0, 0, 0);
    for seed in 0..12 {
        let outcome = run(&Scenario::new(seed, &SMALL)).unwrap();
        nr_out += outcome.nr_swapped_out;
        nr_in += outcome.nr_swapped_in;
        nr_ahead += outcome.nr_ahead;
    }
    println!("{nr_out} pages swapped out, {nr_in} in, {nr_ahead} read ahead");
    assert!(nr_out > 20 && nr_in > 5 && nr_ahead > 200);
}

#[test]
fn seeds_that_follow_a_trace_pass() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/rec_pg.d64.zst");
    let trace = Trace::open(&path, &TraceOptions::default()).unwrap();
    let trace = Arc::new(trace);
    each(0..16, |seed| {
        let scenario = Scenario::new(seed, &SMALL).following(&trace);
        if let Err(failure) = run(&scenario) {
            panic!("{}", told(&scenario, &failure));
        }
    });
}

#[test]
fn reads_are_those_of_the_trace() {
    let nr_ahead = |ids: Vec<i64>| {
        let trace = Arc::new(Trace::from_ids("made up", &ids).unwrap());
        let read = |seed| {
            let mut scenario = Scenario::new(seed, &SMALL).following(&trace);
            let is_kept = |op| matches!(op, Op::ReadOn { .. } | Op::Step(_) | Op::EndIo(_));
            scenario.actions.retain(|action| is_kept(action.op));
            scenario.files.truncate(1);
            run(&scenario).unwrap().nr_ahead
        };
        (0..8).map(read).sum::<u64>()
    };
    let (forward, backward) = (
        nr_ahead((0..9000).collect()),
        nr_ahead((0..9000).rev().collect()),
    );
    println!("{forward} pages read ahead of a reader, {backward} the other way");
    assert!(forward > 200 && forward > 10 * backward);
}

/// What the check says that is meant to find a fault.
fn told_of(plant: Plant) -> &'static str {
    match plant {
        Plant::ForgetUncharge => "bytes charged to a group",
        Plant::WrongBytes | Plant::OldBytes => " read, ",
        Plant::DropWake => "nobody woke it",
        Plant::LoseWrite | Plant::GiveSlots | Plant::KeepSlots => " stored: ",
        Plant::HastySync => "was said to be durable",
        Plant::ForgetUnpin | Plant::KeepReadahead => " pins, ",
        Plant::ReleaseInUse => "somebody wrote to the block",
        Plant::HideError => "read failed: true",
        Plant::StrayWrite => "changed under a pin",
        Plant::ForeignBytes => "another group's bytes",
        Plant::RefuseWithoutNeed => " is refused by ",
        Plant::UnseenLimit => " uses ",
        Plant::HastyCut => "changed in its store while it was read",
        Plant::ReadPastEnd => "is read ahead of",
    }
}

/// The first of many seeds that finds a fault by the check that is meant to.
fn found(plant: Plant) -> Option<(Scenario, Failure)> {
    (0..200).find_map(|seed| {
        let scenario = Scenario {
            plant: Some(plant),
            ..Scenario::new(seed, &SMALL)
        };
        let failure = run(&scenario).err()?;
        let is_meant = failure.what.contains(told_of(plant));
        is_meant.then_some((scenario, failure))
    })
}

#[test]
fn each_planted_fault_is_found_and_made_small() {
    each(0..Plant::ALL.len() as u64, |at| {
        let plant = Plant::ALL[usize::try_from(at).unwrap()];
        let Some((scenario, failure)) = found(plant) else {
            panic!("{plant:?} is not found");
        };
        let (small, again) = shrink(&scenario, &failure);
        let nr_left = small.actions.len();
        assert!(nr_left < SMALL.nr_steps / 2, "{plant:?}: {nr_left} actions");
        assert_eq!(run(&small), Err(again.clone()), "{plant:?}");
        println!(
            "{plant:?}: {nr_left} of {} actions, {again}",
            SMALL.nr_steps
        );
    });
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
