//! `alloc`: nanoseconds for a block taken and freed, by pagetide and by memory allocators.
//!
//! Every allocator has a process of its own for every column, so that what it keeps resident is
//! its own and a crash ends one cell. Within a column the processes run in turn, and in reversed
//! order every second round.

mod blocks;
mod child;
mod ours;
mod pattern;
mod peers;
mod report;
mod sys;

pub use child::{ChildOptions, serve};

use child::Child;
use clap::{Args, ValueEnum};
use pattern::{Cost, Pattern};
use std::error::Error;
use std::thread;
use std::time::Duration;

/// Sizes of blocks: 4 KiB, 64 KiB, 2 MiB.
const ORDERS: [u8; 3] = [0, 4, 9];
const THREADS: [usize; 3] = [1, 2, 8];
/// Bytes that an allocator with a fixed size may hand out; also pagetide's budget.
const TOTAL_BYTES: usize = 1 << 30;
/// What residents are read after.
const REST: Duration = Duration::from_secs(1);
/// Runs of a cell before those that count.
const WARM_UPS: u8 = 2;

/// What `alloc` is run with.
#[derive(Args)]
pub struct Options {
    /// Print a JSON line for each cell; the tables go to standard error
    #[arg(long)]
    json: bool,
    /// Milliseconds of one timed run
    #[arg(long, default_value_t = 50)]
    millis: u64,
    /// Timed runs of a cell: an odd number, so that there is a median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Only this order: 0, 4 or 9
    #[arg(long)]
    order: Option<u8>,
    /// Only this pattern
    #[arg(long)]
    pattern: Option<Pattern>,
    /// Only these allocators
    #[arg(long, value_delimiter = ',')]
    allocators: Vec<Allocator>,
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Allocator {
    Pagetide,
    PagetideCore,
    Glibc,
    GlibcUnaligned,
    Mimalloc,
    Jemalloc,
    Tcmalloc,
    Rpmalloc,
    BuddyHeap,
    BuddyFrame,
    Mmap,
}

impl Allocator {
    fn is_ours(self) -> bool {
        matches!(self, Allocator::Pagetide | Allocator::PagetideCore)
    }

    /// Whether it hands out numbers only, with no memory behind them.
    fn has_frames_only(self) -> bool {
        matches!(self, Allocator::PagetideCore | Allocator::BuddyFrame)
    }
}

/// The name of a value on the command line and in records.
fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.expect("no value is skipped").get_name().to_owned()
}

/// What one column of a table measures.
#[derive(Clone, Copy, Debug, Args)]
struct Load {
    /// Log2 of the block's pages
    #[arg(long)]
    order: u8,
    #[arg(long)]
    pattern: Pattern,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    millis: u64,
}

impl Load {
    fn bytes(self) -> usize {
        pagetide::PAGE_BYTES << self.order
    }
}

/// One allocator under one load.
struct Cell {
    allocator: Allocator,
    load: Load,
    result: Result<Measured, String>,
}

/// The runs of a cell, in nanoseconds for each pair of an allocation and its free.
struct Measured {
    /// CPU time.
    median: f64,
    min: f64,
    max: f64,
    elapsed_median: f64,
    rss_after_bytes: u64,
}

/// Runs all cells and prints them.
pub fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    for order in ORDERS {
        if options.order.is_some_and(|only| only != order) {
            continue;
        }
        let mut cells = Vec::new();
        for load in loads(options, order) {
            let column = measure(options, load)?;
            if options.json {
                column.iter().for_each(report::print_json);
            }
            cells.extend(column);
        }
        let tables = report::tables(&cells);
        if options.json {
            eprint!("{tables}");
        } else {
            print!("{tables}");
        }
    }
    Ok(())
}

fn loads(options: &Options, order: u8) -> impl Iterator<Item = Load> + '_ {
    let patterns = Pattern::value_variants().iter().copied();
    patterns
        .filter(|pattern| options.pattern.is_none_or(|only| only == *pattern))
        .flat_map(move |pattern| {
            let threads = THREADS.into_iter();
            threads
                .filter(move |threads| *threads >= pattern.least_threads())
                .map(move |threads| Load {
                    order,
                    pattern,
                    threads,
                    millis: options.millis,
                })
        })
}

/// One column: all allocators in turn, then what each of them keeps resident.
fn measure(options: &Options, load: Load) -> Result<Vec<Cell>, Box<dyn Error>> {
    let wanted = Allocator::value_variants().iter().copied();
    let mut children = Vec::new();
    for allocator in wanted {
        let is_wanted = options.allocators.is_empty() || options.allocators.contains(&allocator);
        let is_able = load.pattern != Pattern::PageFault || !allocator.has_frames_only();
        if is_wanted && is_able {
            children.push((allocator, Child::spawn(allocator, load)?, Vec::new()));
        }
    }
    for round in 0..WARM_UPS + options.rounds {
        let mut turn: Vec<_> = children.iter_mut().collect();
        if round % 2 == 1 {
            turn.reverse();
        }
        for (_, child, costs) in turn {
            let cost = child.run();
            // Warm up: memory is mapped and zeroed, the caches of threads and CPUs are filled.
            if round >= WARM_UPS {
                costs.push(cost);
            }
        }
    }
    thread::sleep(REST);
    let cells = children.into_iter().map(|(allocator, mut child, costs)| {
        let costs: Result<Vec<Cost>, String> = costs.into_iter().collect();
        let resident = child.resident_bytes();
        let result = costs.and_then(|costs| Ok(Measured::new(costs, resident?)));
        Cell {
            allocator,
            load,
            result,
        }
    });
    Ok(cells.collect())
}

impl Measured {
    fn new(costs: Vec<Cost>, rss_after_bytes: u64) -> Measured {
        let sorted = |of: fn(&Cost) -> f64| {
            let mut times: Vec<f64> = costs.iter().map(of).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let cpu = sorted(|cost| cost.cpu_ns);
        let elapsed = sorted(|cost| cost.elapsed_ns);
        Measured {
            median: cpu[cpu.len() / 2],
            min: cpu[0],
            max: cpu[cpu.len() - 1],
            elapsed_median: elapsed[elapsed.len() / 2],
            rss_after_bytes,
        }
    }
}
