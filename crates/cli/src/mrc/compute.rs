//! Misses of policies at several sizes, on all CPUs.

use super::Point;
use crate::failure::{Failure, chain};
use crate::{load, output, threads};
use pagetide_sim::policy::{self, Counts};
use pagetide_sim::shards::{Estimate, Samples};
use pagetide_sim::stack_distance::StackDistances;
use pagetide_sim::trace::Trace;
use pagetide_sim::{core_run, replay};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What computes a point.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Runner {
    Core(pagetide_sim::CorePolicy),
    Pages(String),
    /// All sizes in one pass.
    Lru,
}

impl Runner {
    pub(super) fn of(name: &str) -> Result<Runner, Failure> {
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

    pub(super) fn name(&self) -> String {
        match self {
            Runner::Core(policy) => policy.to_string(),
            Runner::Pages(name) => name.clone(),
            Runner::Lru => "lru".to_owned(),
        }
    }
}

/// A trace, or samples of it.
pub(super) struct Work<'a> {
    pub(super) trace: &'a Trace,
    pub(super) samples: Option<Samples>,
}

impl Work<'_> {
    fn traces(&self) -> &[Trace] {
        match &self.samples {
            Some(samples) => &samples.traces,
            None => std::slice::from_ref(self.trace),
        }
    }

    fn scaled(&self, frames: u32) -> u32 {
        let scaled = self.samples.as_ref().map(|samples| samples.scaled(frames));
        scaled.map_or(frames, |scaled| scaled.expect("sizes were checked"))
    }

    fn point(&self, policy: &str, frames: u32, counts: &[Counts]) -> Point {
        let requests = self.trace.pages.len() as u64;
        let (misses, ratio, error) = match &self.samples {
            None => (counts[0].misses, counts[0].miss_ratio(), None),
            Some(samples) => {
                let Estimate { miss_ratio, error } = samples.estimate(counts);
                // At most the number of requests, which is below 2^28.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let misses = (miss_ratio * requests as f64).round() as u64;
                (misses, miss_ratio, Some(output::rounded(error)))
            }
        };
        Point {
            trace: self.trace.name.clone(),
            policy: policy.to_owned(),
            frames,
            requests,
            misses,
            miss_ratio: output::rounded(ratio),
            miss_ratio_error: error,
        }
    }
}

/// LRU at all sizes.
pub(super) struct Lru<'a> {
    work: &'a Work<'a>,
    distances: Vec<StackDistances>,
}

impl Lru<'_> {
    pub(super) fn point(&self, frames: u32) -> Point {
        let scaled = self.work.scaled(frames);
        let distances = self.distances.iter();
        let counts: Vec<Counts> = distances
            .map(|of_sample| of_sample.counts(scaled))
            .collect();
        self.work.point("lru", frames, &counts)
    }

    /// The smallest size that can be told.
    pub(super) fn least_frames(&self) -> u32 {
        let samples = self.work.samples.as_ref();
        samples.map_or(1, Samples::least_frames)
    }

    /// The smallest size with this hit ratio; `None` where none has it.
    pub(super) fn frames_for(&self, hit_ratio: f64) -> Option<u32> {
        if self.work.samples.is_none() {
            return self.distances[0].frames_for(hit_ratio);
        }
        let is_enough = |frames| self.point(frames).has(hit_ratio);
        let (mut below, mut enough) = (self.least_frames() - 1, self.work.trace.nr_unique);
        if below >= enough || !is_enough(enough) {
            return None;
        }
        while enough - below > 1 {
            let middle = below + (enough - below) / 2;
            match is_enough(middle) {
                true => enough = middle,
                false => below = middle,
            }
        }
        Some(enough)
    }
}

/// What was computed: points of each runner in turn, by size; and LRU, where it was asked for.
pub(super) struct Computed<'a> {
    pub(super) points: Vec<Point>,
    pub(super) lru: Option<Lru<'a>>,
}

enum Found {
    Counts(Counts),
    All(StackDistances),
}

/// One run: which runner, which sample, which size (none for LRU).
type Job = (usize, usize, Option<usize>);

/// Computes all points.
pub(super) fn compute<'a>(
    work: &'a Work<'a>,
    runners: &[Runner],
    frames: &[u32],
) -> Result<Computed<'a>, Failure> {
    let jobs = jobs(work, runners, frames);
    let found = run_all(work, runners, frames, &jobs)?;
    let mut computed = Computed {
        points: Vec::new(),
        lru: None,
    };
    let mut found = found.into_iter().peekable();
    for runner in runners {
        let nr_samples = work.traces().len();
        if *runner == Runner::Lru {
            let distances = found.by_ref().take(nr_samples).map(|found| match found {
                Found::All(distances) => distances,
                Found::Counts(_) => unreachable!("LRU counts all sizes"),
            });
            let lru = Lru {
                work,
                distances: distances.collect(),
            };
            let points = frames.iter().map(|&frames| lru.point(frames));
            computed.points.extend(points);
            computed.lru = Some(lru);
            continue;
        }
        for &frames in frames {
            let counts = found.by_ref().take(nr_samples).map(|found| match found {
                Found::Counts(counts) => counts,
                Found::All(_) => unreachable!("only LRU counts all sizes"),
            });
            let counts: Vec<Counts> = counts.collect();
            let point = work.point(&runner.name(), frames, &counts);
            computed.points.push(point);
        }
    }
    Ok(computed)
}

/// The runs, in the order in which their results are put together.
fn jobs(work: &Work<'_>, runners: &[Runner], frames: &[u32]) -> Vec<Job> {
    let nr_samples = work.traces().len();
    let of_runner = |(at, runner): (usize, &Runner)| {
        let sizes: Vec<Option<usize>> = match runner {
            Runner::Lru => vec![None],
            _ => (0..frames.len()).map(Some).collect(),
        };
        let each = move |size| (0..nr_samples).map(move |sample| (at, sample, size));
        sizes.into_iter().flat_map(each)
    };
    runners.iter().enumerate().flat_map(of_runner).collect()
}

fn run_all(
    work: &Work<'_>,
    runners: &[Runner],
    frames: &[u32],
    jobs: &[Job],
) -> Result<Vec<Found>, Failure> {
    let traces = work.traces();
    let requests = jobs.iter().map(|job| traces[job.1].pages.len() as u64);
    let bar = load::progress("miss ratios", requests.sum());
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<Found, Failure>)>> = Mutex::default();
    let nr_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let work_on = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(runner, sample, size)) = jobs.get(at) else {
                break;
            };
            let mut last = 0;
            let progress = |requests| {
                bar.inc(requests - last);
                last = requests;
            };
            let frames = size.map_or(0, |size| work.scaled(frames[size]));
            let found = run(&traces[sample], &runners[runner], frames, progress);
            let mut done = done.lock().expect("no thread panics with it");
            done.push((at, found));
        }
    };
    std::thread::scope(|scope| {
        // With fewer threads than that it takes longer, and is the same.
        let mut more = 1..nr_threads.min(jobs.len());
        let _refused = more.try_for_each(|_| threads::start(scope, work_on).map(drop));
        work_on();
    });
    bar.finish_and_clear();
    let mut done = done.into_inner().expect("no thread panics with it");
    done.sort_by_key(|&(at, _)| at);
    done.into_iter().map(|(_, found)| found).collect()
}

fn run(
    trace: &Trace,
    runner: &Runner,
    frames: u32,
    progress: impl FnMut(u64),
) -> Result<Found, Failure> {
    Ok(match runner {
        Runner::Core(policy) => {
            let counts = core_run(*policy, trace, frames, progress);
            Found::Counts(counts.map_err(|error| Failure::Run(chain(&error)))?)
        }
        Runner::Pages(name) => {
            let policy = policy::by_name(name, trace, frames);
            let mut policy = policy.expect("the name was checked");
            Found::Counts(replay(policy.as_mut(), trace, progress))
        }
        Runner::Lru => Found::All(StackDistances::new(trace, progress)),
    })
}
