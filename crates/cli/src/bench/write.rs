//! `bench write`: pages written at random and in order, synced now and then, beside `pwrite` and
//! `fdatasync` through the kernel's page cache.
//!
//! pagetide's group has room for a quarter of the file; the kernel's page cache is not limited.

use super::turns;
use crate::args::WriteArgs;
use crate::failure::Failure;
use crate::{load, output, scratch};
use hdrhistogram::Histogram;
use pagetide::{Memory, PAGE_BYTES};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Medians of one engine and order: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    order: &'static str,
    engine: &'static str,
    writes: u32,
    sync_every: u32,
    /// Syncs included.
    writes_per_s: u64,
    writes_per_s_min: u64,
    writes_per_s_max: u64,
    to_kernel: f64,
    write_ns_p50: u64,
    write_ns_p99: u64,
    sync_ns_p50: u64,
    sync_ns_p99: u64,
    cpu_ns: u64,
    /// Bytes that went to the device, to those that were written.
    amplification: f64,
}

const ORDERS: [&str; 2] = ["random", "sequential"];
const ENGINES: [&str; 2] = ["kernel", "pagetide"];

pub(super) fn run(args: &WriteArgs) -> Result<(), Failure> {
    let nr_runs = ORDERS.len() * ENGINES.len() * args.timed.runs as usize;
    let bar = load::progress("writing", nr_runs as u64);
    let data = scratch::stamped(args.timed.dir.as_deref(), args.pages.into(), |_| ())?;
    let mut rows = Vec::new();
    for order in ORDERS {
        let runs = turns::run(args.timed.runs, ENGINES.len(), |at| {
            bar.inc(1);
            let file = data.try_clone();
            let file = file.map_err(|error| Failure::of("cannot open the data file", &error))?;
            Target::new(ENGINES[at], file, args)?.run(order, args)
        })?;
        let kernel = turns::median(&runs[0], |run| run.writes_per_s);
        let named = ENGINES.iter().zip(&runs);
        rows.extend(named.map(|(engine, runs)| row(args, (order, engine), runs, kernel)));
    }
    bar.finish_and_clear();
    output::rows(args.timed.json, &rows, table)
}

fn row(
    args: &WriteArgs,
    (order, engine): (&'static str, &'static str),
    runs: &[Run],
    kernel: f64,
) -> Row {
    let median = |of: fn(&Run) -> f64| turns::median(runs, of);
    let whole = |of: fn(&Run) -> f64| output::whole(median(of));
    let (least, most) = turns::range(runs, |run| run.writes_per_s);
    let per_s = median(|run| run.writes_per_s);
    Row {
        order,
        engine,
        writes: args.writes,
        sync_every: args.sync_every,
        writes_per_s: output::whole(per_s),
        writes_per_s_min: output::whole(least),
        writes_per_s_max: output::whole(most),
        to_kernel: output::rounded(per_s / kernel),
        write_ns_p50: whole(|run| run.writes.value_at_quantile(0.5) as f64),
        write_ns_p99: whole(|run| run.writes.value_at_quantile(0.99) as f64),
        sync_ns_p50: whole(|run| run.syncs.value_at_quantile(0.5) as f64),
        sync_ns_p99: whole(|run| run.syncs.value_at_quantile(0.99) as f64),
        cpu_ns: whole(|run| run.cpu_ns),
        amplification: output::rounded(median(|run| run.amplification)),
    }
}

/// Where pages are written to.
enum Target {
    Kernel(File),
    Ours {
        file: pagetide::File,
        _memory: Memory,
    },
}

struct Run {
    writes_per_s: f64,
    writes: Histogram<u64>,
    syncs: Histogram<u64>,
    cpu_ns: f64,
    amplification: f64,
}

impl Target {
    fn new(engine: &str, file: File, args: &WriteArgs) -> Result<Target, Failure> {
        // What the kernel has cached in its turn would have to go, page by page, in the other's.
        scratch::drop_cached(&file)?;
        if engine == ENGINES[0] {
            return Ok(Target::Kernel(file));
        }
        let (memory, group) = super::quarter_of(args.pages, Memory::builder())?;
        Ok(Target::Ours {
            file: memory.open_rw(scratch::path_of(&file), &group)?,
            _memory: memory,
        })
    }

    fn write(&self, page: u32, bytes: &[u8]) -> Result<(), Failure> {
        let offset = u64::from(page) * PAGE_BYTES as u64;
        match self {
            Target::Kernel(file) => file
                .write_all_at(bytes, offset)
                .map_err(|error| Failure::of("cannot write", &error)),
            Target::Ours { file, .. } => Ok(file.write_at(bytes, offset).map(drop)?),
        }
    }

    fn sync(&self) -> Result<(), Failure> {
        match self {
            Target::Kernel(file) => file
                .sync_data()
                .map_err(|error| Failure::of("cannot sync", &error)),
            Target::Ours { file, .. } => Ok(file.sync()?),
        }
    }

    fn run(&self, order: &str, args: &WriteArgs) -> Result<Run, Failure> {
        let mut run = Run {
            writes_per_s: 0.0,
            writes: load::histogram(),
            syncs: load::histogram(),
            cpu_ns: 0.0,
            amplification: 0.0,
        };
        let (start, cpu) = (Instant::now(), load::cpu_time());
        let to_device = load::io_bytes("write_bytes")?;
        let (mut bytes, mut number) = (vec![0; PAGE_BYTES], 1_u64);
        for nr in 0..args.writes {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let page = match order == ORDERS[0] {
                true => (number >> 33) % u64::from(args.pages),
                false => u64::from(nr % args.pages),
            };
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            let page = u32::try_from(page).expect("below a number of 32 bits");
            let written = load::timed(&mut run.writes, || self.write(page, &bytes));
            written?;
            if (nr + 1) % args.sync_every == 0 || nr + 1 == args.writes {
                load::timed(&mut run.syncs, || self.sync())?;
            }
        }
        let nr_writes = f64::from(args.writes);
        run.writes_per_s = nr_writes / start.elapsed().as_secs_f64();
        run.cpu_ns = (load::cpu_time() - cpu).as_nanos() as f64 / nr_writes;
        let to_device = (load::io_bytes("write_bytes")? - to_device) as f64;
        run.amplification = to_device / (nr_writes * PAGE_BYTES as f64);
        Ok(run)
    }
}

fn table(rows: &[Row]) -> String {
    let header = [
        "order",
        "engine",
        "writes/s",
        "least",
        "most",
        "to kernel",
        "write p50",
        "p99",
        "sync p50",
        "p99",
        "CPU/write",
        "to device",
    ];
    let row = |row: &Row| {
        vec![
            row.order.to_owned(),
            row.engine.to_owned(),
            output::count(row.writes_per_s),
            output::count(row.writes_per_s_min),
            output::count(row.writes_per_s_max),
            format!("x{:.2}", row.to_kernel),
            output::time(row.write_ns_p50),
            output::time(row.write_ns_p99),
            output::time(row.sync_ns_p50),
            output::time(row.sync_ns_p99),
            output::time(row.cpu_ns),
            format!("x{:.2}", row.amplification),
        ]
    };
    output::table(&header, 2, rows.iter().map(row).collect())
}
