//! `pagetide mrc`: miss ratios of policies at several sizes.

use crate::args::MrcArgs;
use crate::failure::{Failure, chain};
use crate::{load, output};
use pagetide_sim::policy::{self, Counts};
use pagetide_sim::stack_distance::StackDistances;
use pagetide_sim::trace::Trace;
use pagetide_sim::{core_run, replay, sizes};
use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fractions where none are named; sizes under [`LEAST_FRAMES`] are left out of these.
const FRACTIONS: [f64; 5] = [0.001, 0.01, 0.05, 0.1, 0.2];
const LEAST_FRAMES: u32 = 16;

/// One point: a stable interface.
#[derive(Clone, Debug, Serialize)]
struct Point {
    trace: String,
    policy: String,
    frames: u32,
    requests: u64,
    misses: u64,
    miss_ratio: f64,
}

/// What computes a point.
#[derive(Clone, Debug)]
enum Runner {
    Core(pagetide_sim::CorePolicy),
    Pages(String),
    /// All sizes in one pass.
    Lru,
}

/// Points of one policy that one thread computes.
type Job<'a> = (&'a Runner, &'a [u32]);
type Done = Result<Vec<Point>, Failure>;

pub(crate) fn run(args: &MrcArgs) -> Result<(), Failure> {
    let runners: Vec<Runner> = args
        .policy
        .iter()
        .map(|name| runner(name))
        .collect::<Result<_, _>>()?;
    let trace = load::trace(&args.trace)?;
    let frames = frames(args, trace.nr_unique)?;
    let jobs: Vec<Job<'_>> = runners
        .iter()
        .flat_map(|runner| {
            let nr_sizes = if matches!(runner, Runner::Lru) {
                frames.len()
            } else {
                1
            };
            frames.chunks(nr_sizes).map(move |frames| (runner, frames))
        })
        .collect();
    let points = compute(&trace, &jobs)?;
    if args.json {
        return points.iter().try_for_each(output::json);
    }
    let rows = points.into_iter().map(|point| {
        vec![
            point.trace,
            point.policy,
            output::count(u64::from(point.frames)),
            output::count(point.requests),
            output::count(point.misses),
            format!("{:.6}", point.miss_ratio),
        ]
    });
    let header = [
        "trace",
        "policy",
        "frames",
        "requests",
        "misses",
        "miss ratio",
    ];
    output::text(&output::table(&header, 2, rows.collect()))
}

fn runner(name: &str) -> Result<Runner, Failure> {
    if name == "lru" {
        return Ok(Runner::Lru);
    }
    if policy::NAMES.contains(&name) {
        return Ok(Runner::Pages(name.to_owned()));
    }
    name.parse().map(Runner::Core).map_err(|_| {
        let names = [pagetide::Policy::NAMES, policy::NAMES].concat().join(", ");
        Failure::Usage(format!("unknown policy '{name}': one of {names}"))
    })
}

fn frames(args: &MrcArgs, nr_unique: u32) -> Result<Vec<u32>, Failure> {
    if !args.frames.is_empty() {
        return Ok(args.frames.clone());
    }
    let given = !args.fractions.is_empty();
    let fractions = if given {
        &args.fractions[..]
    } else {
        &FRACTIONS
    };
    let sizes = fractions
        .iter()
        .map(|&fraction| sizes::frames_of(fraction, nr_unique));
    let mut sizes = sizes
        .collect::<Result<Vec<u32>, _>>()
        .map_err(|error| Failure::Usage(error.to_string()))?;
    if !given {
        sizes.retain(|&frames| frames >= LEAST_FRAMES);
        if sizes.is_empty() {
            return Err(Failure::Usage(format!(
                "the trace has {nr_unique} distinct pages, too few for the default sizes: \
                 name some by --frames"
            )));
        }
    }
    Ok(sizes)
}

/// Runs the jobs on all CPUs; the points come in the order of the jobs.
fn compute(trace: &Trace, jobs: &[Job<'_>]) -> Result<Vec<Point>, Failure> {
    let bar = load::progress("miss ratios", jobs.len() as u64 * trace.pages.len() as u64);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Done)>> = Mutex::default();
    let nr_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..nr_threads.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(runner, frames)) = jobs.get(at) else {
                        break;
                    };
                    let mut last = 0;
                    let progress = |requests| {
                        bar.inc(requests - last);
                        last = requests;
                    };
                    let points = points(trace, runner, frames, progress);
                    done.lock()
                        .expect("no thread panics with it")
                        .push((at, points));
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut done = done.into_inner().expect("no thread panics with it");
    done.sort_by_key(|&(at, _)| at);
    let points: Result<Vec<Vec<Point>>, _> = done.into_iter().map(|(_, points)| points).collect();
    Ok(points?.concat())
}

/// The points of a policy at these sizes: one of them, but for LRU.
fn points(trace: &Trace, runner: &Runner, frames: &[u32], mut progress: impl FnMut(u64)) -> Done {
    let mut points = Vec::new();
    match runner {
        Runner::Core(policy) => {
            for &frames in frames {
                let counts = core_run(*policy, trace, frames, &mut progress);
                let counts = counts.map_err(|error| Failure::Run(chain(&error)))?;
                points.push(point(trace, &policy.to_string(), frames, counts));
            }
        }
        Runner::Pages(name) => {
            for &frames in frames {
                let policy = policy::by_name(name, trace, frames);
                let mut policy = policy.expect("the name was checked");
                let counts = replay(policy.as_mut(), trace, &mut progress);
                points.push(point(trace, name, frames, counts));
            }
        }
        Runner::Lru => {
            let distances = StackDistances::new(trace, progress);
            for &frames in frames {
                points.push(point(trace, "lru", frames, distances.counts(frames)));
            }
        }
    }
    Ok(points)
}

fn point(trace: &Trace, policy: &str, frames: u32, counts: Counts) -> Point {
    Point {
        trace: trace.name.clone(),
        policy: policy.to_owned(),
        frames,
        requests: counts.requests,
        misses: counts.misses,
        miss_ratio: output::rounded(counts.miss_ratio()),
    }
}
