//! Loading a trace, and progress bars.

use crate::args::TraceArgs;
use crate::failure::{Failure, chain};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pagetide_sim::trace::{Trace, TraceOptions};

/// Reads the trace that the command line names.
pub(crate) fn trace(args: &TraceArgs) -> Result<Trace, Failure> {
    let options = TraceOptions {
        column: args.column.clone(),
    };
    Trace::open(&args.trace, &options).map_err(|error| Failure::Run(chain(&error)))
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
