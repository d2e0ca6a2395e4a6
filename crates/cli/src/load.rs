//! Loading a trace, progress bars, and what is measured everywhere.

use crate::args::TraceArgs;
use crate::failure::{Failure, chain};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagetide_sim::trace::{Trace, TraceError, TraceOptions};
use rustix::time::ClockId;
use std::path::Path;
use std::time::{Duration, Instant};

/// Reads the trace that the command line names.
pub(crate) fn trace(args: &TraceArgs) -> Result<Trace, Failure> {
    trace_at(&args.trace, args.column.as_deref())
}

/// Reads a trace; of a CSV file, the column of that name.
pub(crate) fn trace_at(path: &Path, column: Option<&str>) -> Result<Trace, Failure> {
    let options = TraceOptions {
        column: column.map(ToOwned::to_owned),
    };
    Trace::open(path, &options).map_err(|error| match error {
        TraceError::NoCsv { .. } => Failure::Usage(chain(&error)),
        _ => Failure::Run(chain(&error)),
    })
}

/// A progress bar on standard error, silent where that is no terminal.
pub(crate) fn progress(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {percent} %, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
    bar
}

/// Latencies of 1 ns to a minute, to three digits; longer ones count as a minute.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds and digits are allowed")
}

/// Does something, and records how long it took.
pub(crate) fn timed<T>(latencies: &mut Histogram<u64>, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    latencies.saturating_record(ns);
    done
}

/// CPU time of all threads of this process.
pub(crate) fn cpu_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// CPU time of this thread.
pub(crate) fn thread_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Bytes that this process had moved to or from devices: a line of `/proc/self/io`.
pub(crate) fn io_bytes(name: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/io");
    let text = text.map_err(|error| Failure::of("cannot count this process's I/O", &error))?;
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    count
        .and_then(|count| count.parse().ok())
        .ok_or_else(|| Failure::Run(format!("/proc/self/io has no {name}")))
}
