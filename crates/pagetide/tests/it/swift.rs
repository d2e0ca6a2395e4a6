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

/// How long `call` takes.
pub(crate) fn timed(call: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    call();
    begin.elapsed()
}

/// How often this thread has given its CPU away because it had to wait.
pub(crate) fn nr_sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}
