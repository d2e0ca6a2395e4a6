//! The command line.

mod bench;
mod sim;

pub(crate) use bench::*;
pub(crate) use sim::SimArgs;

use clap::{Args as ClapArgs, Parser, Subcommand};
use pagetide::ByteSize;
use std::path::PathBuf;

/// A cgroup and a page cache that you link into your process.
///
/// Sizes are written as people write them: 64MiB and 2GiB (powers of 1024), 500MB and 2G (powers
/// of 1000), 4096 (bytes).
#[derive(Debug, Parser)]
#[command(
    name = "pagetide",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  pagetide demo                                 what it does, in 40 seconds
  pagetide replay trace.csv --memory 64MiB      your own requests through the page cache
  pagetide mrc trace.csv --target 95%           how much memory they need
  pagetide stat /run/app.sock vmstat            a running process, in the kernel's words

Exit codes: 0 done (also where the reader of the output went away), 1 something went wrong or a
claim did not hold, 2 the command line asks for what cannot be.
Colour is left out where NO_COLOR is set or the output is no terminal."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve one file to three tenants under one budget, and check that it holds (40 seconds).
    Demo(DemoArgs),
    /// Replay a recorded page trace through the real page cache, with real reads.
    Replay(ReplayArgs),
    /// Compute miss ratios of policies at several sizes, without I/O.
    Mrc(MrcArgs),
    /// Measure one mechanism, its variants side by side.
    Bench(BenchArgs),
    /// Run all of core under seeds: many CPUs, faults, crashes; make a failing run small.
    Sim(SimArgs),
    /// Show figures of a running process that opened a socket (`Memory::watch`).
    Stat(StatArgs),
    /// Watch such a process in the terminal: groups, generations, per-CPU page caches, I/O.
    Top(TopArgs),
    /// Print completions for a shell, as in: pagetide completions bash > pagetide.bash
    Completions(CompletionsArgs),
    /// Print the manual page, as in: pagetide man > pagetide.1
    Man,
    /// Read a file through the kernel's page cache: the part of `demo --kernel` inside the cgroup.
    #[command(hide = true)]
    KernelCache(KernelCacheArgs),
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  pagetide stat /run/app.sock                        counts of the memory, as /proc/vmstat has them
  pagetide stat /run/app.sock memory.stat /web       what a group's memory is
  pagetide stat /run/app.sock metrics                OpenMetrics text
  pagetide stat /run/app.sock snapshot               all of it as JSON")]
pub(crate) struct StatArgs {
    /// The socket that the process opened.
    #[arg(value_name = "SOCKET")]
    pub(crate) socket: PathBuf,
    /// What to show.
    #[arg(value_name = "VIEW", default_value = "vmstat",
          value_parser = clap::builder::PossibleValuesParser::new(pagetide::VIEWS.iter().copied()))]
    pub(crate) view: String,
    /// The group, for lru_gen, lru_gen_full, memory.stat, memory.pressure and memory.events
    /// [default: the root, for lru_gen and lru_gen_full all groups]
    #[arg(value_name = "GROUP")]
    pub(crate) group: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  pagetide demo --watch /tmp/demo.sock &
  pagetide top /tmp/demo.sock
  pagetide top /tmp/demo.sock --once            one view as text, for a pipe or a log

Columns: what a group and those below it use and may use; of what its users asked for, the part
that was there (hits); pages a second that were not (miss), and that came back after they had been
evicted, asked for or read ahead (refault); the part of the last 10 s in which some task, and in
which every task, waited for memory.
Hits are shown where the program tells its requests (`Watch::set_requests`): the library counts
misses only, which costs a hit nothing.")]
pub(crate) struct TopArgs {
    /// The socket that the process opened.
    #[arg(value_name = "SOCKET")]
    pub(crate) socket: PathBuf,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: f64,
    /// Print one view after an interval and end, as where the output is no terminal.
    #[arg(long)]
    pub(crate) once: bool,
}

/// A size as people write it.
pub(crate) fn bytes(text: &str) -> Result<ByteSize, String> {
    let refused = |_| "as in 64MiB or 2GiB (powers of 1024), 500MB or 2G (powers of 1000), 4096";
    text.parse().map_err(|error| refused(error).to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let refused = || format!("'{text}' is not a number of seconds from 0.05 to 3600");
    let seconds: f64 = text.parse().map_err(|_| refused())?;
    let is_sane = (0.05..=3600.0).contains(&seconds);
    is_sane.then_some(seconds).ok_or_else(refused)
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL")]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct KernelCacheArgs {
    pub(crate) file: PathBuf,
    pub(crate) phase_ms: u64,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  pagetide demo                                 tables, 40 seconds
  pagetide demo --report demo.html              and all that happened as plots in one page
  pagetide demo --watch /tmp/demo.sock          look at it meanwhile: pagetide top /tmp/demo.sock")]
pub(crate) struct DemoArgs {
    /// Write one HTML page with plots of all that happened: no server, no network, no script.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Let the kernel's page cache serve the same reads in a memory cgroup of the budget's size,
    /// below this process's own: for root, mostly. An interrupt may leave the empty cgroup behind.
    #[arg(long)]
    pub(crate) kernel: bool,
    /// Length of a phase, for tests.
    #[arg(long, hide = true)]
    pub(crate) phase_ms: Option<u64>,
    /// Folder for the data file (256 MiB, unlinked at once) [default: the temporary folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Open a socket at this path for `pagetide top` and `pagetide stat` while the four phases of
    /// three tenants run, the first 18 seconds.
    #[arg(long, value_name = "SOCKET")]
    pub(crate) watch: Option<PathBuf>,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TraceArgs {
    /// Trace: `.d64.zst`, `.csv` with named columns, or text with one page number a line; what is
    /// text may be compressed by zstd.
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Column of a CSV trace that holds the page number [default: page]; other traces have none.
    #[arg(long, value_name = "NAME")]
    pub(crate) column: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(
    group = clap::ArgGroup::new("size").required(true),
    after_help = "\
Examples:
  pagetide replay trace.csv --column block --memory 64MiB
  pagetide replay trace.txt --frames 4096 --policy mglru      4,096 pages, exactly
  pagetide replay trace.d64.zst --memory 1GiB --file /data/table.bin --json"
)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// Budget in bytes, pagetide's own records included.
    #[arg(long, value_name = "SIZE", group = "size", value_parser = bytes)]
    pub(crate) memory: Option<ByteSize>,
    /// Pages of 4 KiB that may be resident, exactly.
    #[arg(long, value_name = "N", group = "size",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) frames: Option<u32>,
    /// File to read from, at least as long as the trace has distinct pages: its first pages stand
    /// for them, in the order of their numbers, without gaps [default: a sparse file of its own].
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// Open a socket at this path while it runs, for `pagetide top` and `pagetide stat`.
    #[arg(long, value_name = "SOCKET")]
    pub(crate) watch: Option<PathBuf>,
    /// Policy of the page cache: default, fifo, gated-2q, mglru, mglru-next, mglru-seed, two-list.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) policy: String,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A share as people write it: `95%` or `0.95`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

impl std::str::FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let refused = || format!("'{text}' is no share: as in 95% or 0.95, above 0 and at most 1");
        // 99.9 / 100 is more than 0.999.
        let percents = text.strip_suffix('%');
        let percents = percents.map(|percents| format!("{}e-2", percents.trim_end()));
        let number = percents.as_deref().unwrap_or(text);
        let share = number.parse::<f64>().map_err(|_| refused())?;
        let is_share = share > 0.0 && share <= 1.0;
        is_share.then_some(Share(share)).ok_or_else(refused)
    }
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  pagetide mrc trace.csv --column block         three policies at five sizes
  pagetide mrc trace.txt --target 95%           memory that each needs for 95 % hits
  pagetide mrc trace.txt --policy lru,arc,default --points 20 --plot curves.svg
  pagetide mrc huge.d64.zst --sample 1%         from samples of the pages, with their error")]
pub(crate) struct MrcArgs {
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// Policies: default, fifo, gated-2q, mglru, mglru-next, mglru-seed, two-list (of the page
    /// cache); lru, clock, clock-2bit, 2q, arc, lirs, s3-fifo, sieve, w-tinylfu, belady (over page
    /// numbers).
    #[arg(
        long,
        value_name = "A,B",
        value_delimiter = ',',
        default_value = "default,fifo,lru"
    )]
    pub(crate) policy: Vec<String>,
    /// Sizes in pages.
    #[arg(long, value_name = "N,N", value_delimiter = ',',
          conflicts_with_all = ["fractions", "points"],
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) frames: Vec<u32>,
    /// Sizes as fractions of the trace's distinct pages, rounded half to even.
    /// [default: 0.001,0.01,0.05,0.1,0.2 without sizes under 16 pages]
    #[arg(
        long,
        value_name = "F,F",
        value_delimiter = ',',
        conflicts_with = "points"
    )]
    pub(crate) fractions: Vec<f64>,
    /// So many sizes, from 16 pages to all distinct ones, spread evenly by ratio.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) points: Option<u32>,
    /// Say how much memory this hit ratio takes (95% or 0.95): for lru exactly, for others between
    /// which sizes; looks at 20 sizes where none are named.
    #[arg(long, value_name = "RATIO", conflicts_with = "csv")]
    pub(crate) target: Option<Share>,
    /// Estimate from eight samples of this share of the pages (1% or 0.01, at most 12.5%), and say
    /// how far off that may be (standard error).
    #[arg(long, value_name = "SHARE")]
    pub(crate) sample: Option<Share>,
    /// Draw the curves into an SVG file, lru's at all sizes.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print CSV instead of a table.
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
