//! The command line of `bench`.

use super::ByteSize;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) name: BenchName,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchName {
    /// Workers allocate 128 MiB page by page, touch each, free all, repeat: tuners side by side.
    PageFault(PageFaultArgs),
    /// Tasks grow and exit on simulated CPUs, many at first, then few: what is held falls again.
    Build(JsonArgs),
    /// One thread allocates, another frees: delays of both, tuners side by side (a minute).
    Stream(JsonArgs),
    /// Drop the last handle of a fully cached file: single pass against two passes.
    Truncate(TruncateArgs),
    /// Reserve bytes of the program's heap out of a page cache that fills the budget.
    Reserve(ReserveArgs),
    /// Take blocks of 2 MiB out of a page cache of 1 GiB with pinned pages in it.
    Evacuate(JsonArgs),
    /// Threads touch a part of a simulated machine's memory: zonelist caches side by side.
    MemoryHog(MemoryHogArgs),
    /// Tuners of the per-CPU page caches on simulated machines, under many loads (minutes).
    Tuners(TunersArgs),
    /// Charge and give back pages and bytes: variants of the charge stock side by side (a minute).
    Charge(StockArgs),
    /// Empty the charge stocks of 1, 8 and 128 CPUs, and drain while all CPUs charge.
    Drain(DrainArgs),
    /// Where a charge stock could have a cliff, against the straight path.
    PingPong(StockArgs),
    /// Read data of four times the limit at random: policies side by side, or with `--device` the
    /// page cache beside the kernel's.
    RandomRead(RandomReadArgs),
    /// One run of `random-read --device`.
    #[command(hide = true)]
    DeviceChild {
        /// What to measure, as JSON.
        spec: String,
    },
    /// Holds what `random-read --device` borrows from the machine, until its input ends.
    #[command(hide = true)]
    DeviceHolder(HolderArgs),
    /// Holds a folder of data files, until its input ends.
    #[command(hide = true)]
    FolderHolder(FolderArgs),
    /// Read pages that are there, by copies and by views: beside `memcpy`, `pread` and a mapping.
    Hit(HitArgs),
    /// Read a file in order, copied, seen or changed, a page or some at a time: beside `pread`.
    Scan(ScanArgs),
    /// Write pages at random and in order, synced now and then: beside `pwrite` and `fdatasync`.
    Write(WriteArgs),
    /// Open many files, read a page of each, close them: beside `open`, `pread` and `close`.
    OpenClose(OpenCloseArgs),
    /// Point reads, scans and writes of three tenants under one budget, alone and together.
    Mixed(MixedArgs),
    /// Gets and sets of a store of which half fits in memory: policies side by side, swaps counted.
    KeyValue(KeyValueArgs),
    /// Where the instructions of an eviction go, alone and beside many groups, by callgrind.
    ReclaimCost(ReclaimCostArgs),
    /// Costs that simulated machines charge, measured here: JSON for `costs.json` (seconds).
    Costs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct PageFaultArgs {
    /// Numbers of threads on this machine.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,8",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: Vec<u32>,
    /// Numbers of CPUs of simulated machines, a worker each: half a minute for 56.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "56",
          value_parser = clap::value_parser!(u32).range(1..=320))]
    pub(crate) simulate: Vec<u32>,
    /// Nodes of simulated machines.
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) nodes: u32,
    /// Simulate again with each cost halved and doubled.
    #[arg(long)]
    pub(crate) sensitivity: bool,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct JsonArgs {
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TruncateArgs {
    /// Pages of the file.
    #[arg(long, value_name = "N", default_value = "262144",
          value_parser = clap::value_parser!(u32).range(1024..=16_777_216))]
    pub(crate) pages: u32,
    /// Run one variant once, for a tool that counts.
    #[arg(long, hide = true)]
    pub(crate) count: Option<usize>,
    /// With `--count`: fill the cache, drop nothing.
    #[arg(long, hide = true)]
    pub(crate) fill_only: bool,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReserveArgs {
    /// Budget, which a clean page cache fills.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = super::bytes)]
    pub(crate) budget: ByteSize,
    /// Bytes to reserve.
    #[arg(long, value_name = "SIZE", default_value = "300MiB", value_parser = super::bytes)]
    pub(crate) size: ByteSize,
    /// Times to measure it.
    #[arg(long, value_name = "N", default_value = "5",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Reserve once, for a tool that counts.
    #[arg(long, hide = true)]
    pub(crate) once: bool,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct MemoryHogArgs {
    /// Nodes and CPUs of each.
    #[arg(long, value_name = "NxM", default_value = "28x2")]
    pub(crate) topology: Grid,
    /// Numbers of threads.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,19,37,55",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Vec<u32>,
    /// Run allocations of one variant that the first zone serves, for a tool that counts.
    #[arg(long, hide = true)]
    pub(crate) count: Option<usize>,
    /// With `--count`: how many.
    #[arg(long, hide = true, default_value = "0")]
    pub(crate) pairs: u32,
    /// Pages of each node.
    #[arg(long, value_name = "N", default_value = "8192",
          value_parser = clap::value_parser!(u32).range(1024..=1_048_576))]
    pub(crate) node_pages: u32,
    /// Simulate again with each cost halved and doubled.
    #[arg(long)]
    pub(crate) sensitivity: bool,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RandomReadArgs {
    /// Pages that may be resident.
    #[arg(long, value_name = "N", default_value = "16384",
          value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    pub(crate) frames: u32,
    /// Reads that are counted, after two for each page of the file.
    #[arg(long, value_name = "N", default_value = "500000",
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) requests: u32,
    /// Times that each policy is timed, in turn and in both orders; 0 for none, where there is no
    /// `--device`.
    #[arg(long, value_name = "N", default_value = "5",
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) runs: u32,
    /// Folder for the data file (unlinked at once) [default: the temporary folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Beside the kernel's page cache instead, on this device: a folder for the data file, a file
    /// to read, or `zram` for a block device in memory (takes root).
    #[arg(long, value_name = "zram|DIR|FILE", conflicts_with = "dir")]
    pub(crate) device: Option<String>,
    /// With `--device`: threads that read.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2",
          value_parser = clap::value_parser!(u32).range(1..=256), requires = "device")]
    pub(crate) threads: Vec<u32>,
    /// With `--device`: reads that each thread has in flight.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,32,128",
          value_parser = clap::value_parser!(u32).range(1..=4096), requires = "device")]
    pub(crate) depths: Vec<u32>,
    /// With `--device`, of a data file that is made: what is in it.
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        default_value = "random",
        requires = "device"
    )]
    pub(crate) data: DataKind,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a data file has in it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DataKind {
    /// Nothing that a device could compress: it copies.
    Random,
    /// Words that a device that compresses keeps in less than half: it takes longer to read.
    Text,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct HolderArgs {
    /// Room for files on a block device in memory.
    #[arg(long)]
    pub(crate) zram_bytes: Option<u64>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct FolderArgs {
    /// Where the folder is made [default: the temporary folder].
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct HitArgs {
    /// Pages of the hot set.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,128,4096,131072",
          value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub(crate) pages: Vec<u32>,
    /// Numbers of threads.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,8",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Vec<u32>,
    /// Reads of each run, of all threads together.
    #[arg(long, value_name = "N", default_value = "400000",
          value_parser = clap::value_parser!(u64).range(256..=1_000_000_000))]
    pub(crate) reads: u64,
    /// Times that each variant is timed, in turn and in both orders.
    #[arg(long, value_name = "N", default_value = "5",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Ask for no huge pages behind pagetide's memory and the bare copy's.
    #[arg(long)]
    pub(crate) small_pages: bool,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TimedArgs {
    /// Times that each row is timed, in turn and in both orders.
    #[arg(long, value_name = "N", default_value = "5",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Folder for the data file (unlinked at once) [default: the temporary folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ScanArgs {
    /// Pages of the file, of which a quarter may be resident.
    #[arg(long, value_name = "N", default_value = "65536",
          value_parser = clap::value_parser!(u32).range(8192..=16_777_216))]
    pub(crate) pages: u32,
    /// Bytes that are read ahead at most; by default as many as the device is set to, up to 2 MiB.
    #[arg(long, value_name = "SIZE", value_parser = super::bytes)]
    pub(crate) readahead: Option<ByteSize>,
    #[command(flatten)]
    pub(crate) timed: TimedArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WriteArgs {
    /// Pages of the file, of which a quarter may be resident.
    #[arg(long, value_name = "N", default_value = "65536",
          value_parser = clap::value_parser!(u32).range(256..=16_777_216))]
    pub(crate) pages: u32,
    /// Writes of a page in each run.
    #[arg(long, value_name = "N", default_value = "50000",
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) writes: u32,
    /// Writes between two syncs.
    #[arg(long, value_name = "N", default_value = "1000",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sync_every: u32,
    #[command(flatten)]
    pub(crate) timed: TimedArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct OpenCloseArgs {
    /// Files, of four pages each.
    #[arg(long, value_name = "N", default_value = "2000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) files: u32,
    /// Times that each engine is timed, in turn and in both orders.
    #[arg(long, value_name = "N", default_value = "5",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Folder for the data files [default: the temporary folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Run one engine once, for a tool that counts.
    #[arg(long, hide = true)]
    pub(crate) count: Option<usize>,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct MixedArgs {
    /// Pages of the budget; the three files have four times as many.
    #[arg(long, value_name = "N", default_value = "16384",
          value_parser = clap::value_parser!(u32).range(384..=4_194_304))]
    pub(crate) frames: u32,
    /// Milliseconds of each phase, after as many to warm up.
    #[arg(long, value_name = "MS", default_value = "3000",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub(crate) millis: u64,
    /// Folder for the data files (unlinked at once) [default: the temporary folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct KeyValueArgs {
    /// Pages of all values, of which half may be resident.
    #[arg(long, value_name = "N", default_value = "65536",
          value_parser = clap::value_parser!(u32).range(256..=16_777_216))]
    pub(crate) pages: u32,
    /// Requests that are counted, after half as many.
    #[arg(long, value_name = "N", default_value = "2000000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub(crate) requests: u32,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReclaimCostArgs {
    /// Groups that are idle, beside two that are not, in the runs with many.
    #[arg(long, value_name = "N", default_value = "10000",
          value_parser = clap::value_parser!(u32).range(0..=30_000))]
    pub(crate) groups: u32,
    /// Pages of all groups together: with too few the batches of the allocator are smaller.
    #[arg(long, value_name = "N", default_value = "280000",
          value_parser = clap::value_parser!(u32).range(1024..=1_048_576))]
    pub(crate) pages: u32,
    /// Policy: default, fifo, gated-2q, mglru, mglru-next, mglru-seed, two-list.
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) policy: String,
    /// Evict so many pages at a time, for a tool that counts.
    #[arg(long, hide = true)]
    pub(crate) count: Option<u32>,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct StockArgs {
    /// Charges of each run, each given back.
    #[arg(long, value_name = "N", default_value = "200000",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) pairs: u64,
    /// Run one variant once, for a tool that counts.
    #[arg(long, hide = true)]
    pub(crate) count: Option<usize>,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct DrainArgs {
    /// Times that the stocks are filled and drained in each run.
    #[arg(long, value_name = "N", default_value = "50",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
    /// Seconds that all CPUs charge, with a drain in each, for each variant.
    #[arg(long, value_name = "N", default_value = "10",
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) seconds: u32,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `28x2`: nodes times CPUs of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) nodes: u32,
    pub(crate) cpus: u32,
}

impl std::str::FromStr for Grid {
    type Err = pagetide::BadTopology;

    fn from_str(text: &str) -> Result<Grid, pagetide::BadTopology> {
        let topology: pagetide::Topology = text.parse()?;
        let nodes = topology.nr_nodes();
        let cpus = topology.nr_cpus() / nodes;
        Ok(Grid { nodes, cpus })
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TunersArgs {
    /// Loads, as in w1/56,w3 [default: all].
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) workload: Vec<String>,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
