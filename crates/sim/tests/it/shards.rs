//! What samples of a trace say, beside what the whole trace counts.

use crate::expected::shared_traces;
use crate::field::open;
use pagetide_core::reclaim::Policy;
use pagetide_sim::shards::{Estimate, Samples};
use pagetide_sim::stack_distance::StackDistances;
use pagetide_sim::trace::{Trace, TraceOptions};
use pagetide_sim::{Counts, core_run, policy, replay};

/// How far a run's estimates are off, in points of the miss ratio.
struct Off {
    /// The mean over sizes, signs left out.
    mean: f64,
    /// The mean of the errors that were told.
    told: f64,
    /// Sizes at which the truth is within three of the errors told.
    within: usize,
    nr_sizes: usize,
}

/// Twelve sizes by ratio, from the smallest that can be told to all pages.
fn sizes(samples: &Samples, trace: &Trace) -> Vec<u32> {
    let least = f64::from(samples.least_frames());
    let ratio = f64::from(trace.nr_unique) / least;
    // Between the least and the number of pages: the cast is exact.
    #[allow(clippy::cast_possible_truncation)]
    let size = |at| (least * ratio.powf(f64::from(at) / 11.0)).round() as u32;
    (0..12).map(size).collect()
}

fn off(
    trace: &Trace,
    rate: f64,
    run: impl Fn(&Trace, Option<&Samples>, &[u32]) -> Vec<Counts>,
) -> Off {
    let samples = Samples::new(trace, rate).unwrap();
    let sizes = sizes(&samples, trace);
    let exact = run(trace, None, &sizes);
    let of_sample = samples.traces.iter();
    let sampled: Vec<Vec<Counts>> = of_sample
        .map(|sample| run(sample, Some(&samples), &sizes))
        .collect();
    let mut off = Off {
        mean: 0.0,
        told: 0.0,
        within: 0,
        nr_sizes: sizes.len(),
    };
    for (at, exact) in exact.iter().enumerate() {
        let counts: Vec<Counts> = sampled.iter().map(|sizes| sizes[at]).collect();
        let Estimate { miss_ratio, error } = samples.estimate(&counts);
        let is_off = (miss_ratio - exact.miss_ratio()).abs();
        off.mean += is_off / sizes.len() as f64 * 100.0;
        off.told += error / sizes.len() as f64 * 100.0;
        off.within += usize::from(is_off <= 3.0 * error + 0.001);
    }
    off
}

fn lru(trace: &Trace, samples: Option<&Samples>, sizes: &[u32]) -> Vec<Counts> {
    let distances = StackDistances::new(trace, |_| ());
    let scaled = |&frames: &u32| samples.map_or(frames, |of| of.scaled(frames).unwrap());
    let counts = sizes.iter().map(|frames| distances.counts(scaled(frames)));
    counts.collect()
}

fn by_name(name: &str) -> impl Fn(&Trace, Option<&Samples>, &[u32]) -> Vec<Counts> + use<'_> {
    move |trace, samples, sizes| {
        let scaled = |frames: u32| samples.map_or(frames, |of| of.scaled(frames).unwrap());
        let run = |&frames: &u32| {
            let frames = scaled(frames);
            match name.parse::<Policy>() {
                Ok(policy) => core_run(policy, trace, frames, |_| ()).unwrap(),
                Err(_) => {
                    let mut policy = policy::by_name(name, trace, frames).unwrap();
                    replay(policy.as_mut(), trace, |_| ())
                }
            }
        };
        sizes.iter().map(run).collect()
    }
}

fn print(name: &str, policy: &str, rate: f64, off: &Off) {
    println!(
        "{name:<12} {policy:<9} {:>4} %: off by {:.2} points, told {:.2}; {} of {} within three",
        rate * 100.0,
        off.mean,
        off.told,
        off.within,
        off.nr_sizes
    );
}

#[test]
fn a_sample_of_the_recorded_trace_tells_its_curve() {
    let path = "../../traces/rec_pg.d64.zst";
    let trace = Trace::open(path.as_ref(), &TraceOptions::default()).unwrap();
    let off = off(&trace, 0.1, lru);
    print("rec_pg", "lru", 0.1, &off);
    assert!(
        off.mean < 1.5 && off.told < 2.0,
        "{}, {}",
        off.mean,
        off.told
    );
    assert!(off.within >= off.nr_sizes - 1, "{} within", off.within);
}

#[test]
#[ignore = "minutes: part of `cargo xtask traces`"]
fn samples_of_large_traces_tell_their_curves() {
    let Some(folder) = shared_traces() else {
        println!("skipped: shared traces: no folder ../shared/traces beside the repository");
        return;
    };
    for (name, rate) in [
        ("arc_OLTP", 0.05),
        ("arc_P3", 0.01),
        ("arc_P6", 0.01),
        ("scarab", 0.05),
        ("c2k_ormbusy", 0.1),
    ] {
        let trace = open(&folder, name);
        let of_lru = off(&trace, rate, lru);
        print(name, "lru", rate, &of_lru);
        assert!(of_lru.mean < 2.0, "{name}: {}", of_lru.mean);
        if name != "arc_OLTP" && name != "scarab" {
            continue;
        }
        for policy in ["fifo", "arc", "s3-fifo", "gated-2q", "mglru"] {
            let off = off(&trace, rate, by_name(policy));
            print(name, policy, rate, &off);
        }
    }
}
