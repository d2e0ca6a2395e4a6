//! Calls that wait for nobody take no time, however busy the machine is.

use std::time::{Duration, Instant};

/// Runs that may be held up by what else the machine does.
const NR_RUNS: usize = 10;

/// Some run takes less than `bound`: what waits does so in each, what is held up does not.
#[track_caller]
pub(crate) fn assert_within(bound: Duration, run: impl FnMut() -> Duration) {
    let mut took = Vec::new();
    let mut run = run;
    while took.len() < NR_RUNS {
        let time = run();
        if time < bound {
            return;
        }
        took.push(time);
    }
    panic!("not within {bound:?}: {took:?}");
}

/// How long this thread has been without a CPU that it could have used; zero where the kernel does
/// not tell. Who lets others run before he looks again gets it back late on a busy machine.
fn without_cpu() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = told.split_whitespace().nth(1).map(str::parse);
    Duration::from_nanos(nanos.and_then(Result::ok).unwrap_or(0))
}

/// Sleeps of a thread that waits again and again.
const MANY_SLEEPS: u64 = 8;

/// Time of the calling thread, but for that in which others had its CPU where it hardly slept: who
/// sleeps again and again until some time is over has less of it on a busy machine.
pub(crate) struct Watch {
    begin: Instant,
    without_cpu: Duration,
    nr_sleeps: u64,
}

impl Watch {
    pub(crate) fn start() -> Watch {
        Watch {
            nr_sleeps: nr_sleeps(),
            without_cpu: without_cpu(),
            begin: Instant::now(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        let elapsed = self.begin.elapsed();
        let others = without_cpu().saturating_sub(self.without_cpu);
        match nr_sleeps() - self.nr_sleeps {
            ..MANY_SLEEPS => elapsed.saturating_sub(others),
            _ => elapsed,
        }
    }
}

/// How long `call` takes.
pub(crate) fn timed(call: impl FnOnce()) -> Duration {
    let watch = Watch::start();
    call();
    watch.elapsed()
}

/// What a call returns, and how often it gives its CPU away because it has to wait.
pub(crate) fn sleeps_of<R>(call: impl FnOnce() -> R) -> (R, u64) {
    let before = nr_sleeps();
    let done = call();
    (done, nr_sleeps() - before)
}

/// Some run does not sleep: what waits does so in each, what the kernel holds up does not.
#[track_caller]
pub(crate) fn assert_sleepless(mut run: impl FnMut()) {
    let mut runs = (0..NR_RUNS).map(|_| sleeps_of(&mut run).1);
    assert!(runs.any(|nr_sleeps| nr_sleeps == 0), "it waits each time");
}

/// How often this thread has given its CPU away because it had to wait.
pub(crate) fn nr_sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}
