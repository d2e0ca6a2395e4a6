//! `bench scan`: a file read in order, page by page or some at a time, seen, copied or changed, by
//! one thread, of which nothing is cached at first: beside `pread` through the kernel's page cache.
//!
//! pagetide's group has room for a quarter of the file; the kernel's page cache is not limited.

use super::turns;
use crate::args::ScanArgs;
use crate::failure::Failure;
use crate::{load, output, scratch};
use pagetide::{ByteSize, Memory, OpenOptions, Order, PAGE_BYTES};
use serde::Serialize;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Medians of one way: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    engine: &'static str,
    way: &'static str,
    page_bytes: u64,
    /// Of 4 KiB, as all times.
    ns: u64,
    ns_min: u64,
    ns_max: u64,
    cpu_ns: u64,
    to_kernel: f64,
    /// Bytes that the device gave, to those that were read.
    amplification: f64,
    /// Pages of 1000 that were neither there nor on their way.
    misses_per_1000: Option<f64>,
}

/// How some pages that follow each other are read.
#[derive(Clone, Copy)]
enum How {
    Pread,
    ReadAt,
    Pin,
    PinMany,
    PinRange,
    /// One word of each page is changed.
    PinMut,
    WriteAt,
}

struct Way {
    name: &'static str,
    how: How,
    /// Of pages.
    order: u8,
    /// Bytes at a time.
    step: usize,
}

const fn way(name: &'static str, how: How, order: u8, step: usize) -> Way {
    Way {
        name,
        how,
        order,
        step,
    }
}

const KIB: usize = 1 << 10;
/// The first one is what the others are compared with.
const WAYS: [Way; 12] = [
    way("pread of 64 KiB", How::Pread, 0, 64 * KIB),
    way("pread of 4 KiB", How::Pread, 0, 4 * KIB),
    way("read_at of 64 KiB", How::ReadAt, 0, 64 * KIB),
    way("read_at of 4 KiB", How::ReadAt, 0, 4 * KIB),
    way("pin", How::Pin, 0, 4 * KIB),
    way("pin_many of 4 pages", How::PinMany, 0, 16 * KIB),
    way("pin_range of 16 KiB", How::PinRange, 0, 16 * KIB),
    way("pin_range of 64 KiB", How::PinRange, 0, 64 * KIB),
    way("pin_mut", How::PinMut, 0, 4 * KIB),
    way("write_at of 8 bytes", How::WriteAt, 0, 4 * KIB),
    way("read_at of 64 KiB", How::ReadAt, 4, 64 * KIB),
    way("pin", How::Pin, 9, 2048 * KIB),
];

pub(super) fn run(args: &ScanArgs) -> Result<(), Failure> {
    let bar = load::progress("scanning", WAYS.len() as u64 * u64::from(args.timed.runs));
    let data = scratch::stamped(args.timed.dir.as_deref(), args.pages.into(), |_| ())?;
    let runs = turns::run(args.timed.runs, WAYS.len(), |at| {
        bar.inc(1);
        scan(&data, &WAYS[at], args)
    })?;
    bar.finish_and_clear();
    let kernel = turns::median(&runs[0], |run| run.ns);
    let named = WAYS.iter().zip(&runs);
    let rows: Vec<Row> = named.map(|(way, runs)| row(way, runs, kernel)).collect();
    output::rows(args.timed.json, &rows, table)
}

struct Run {
    ns: f64,
    cpu_ns: f64,
    amplification: f64,
    misses_per_1000: f64,
}

fn row(way: &Way, runs: &[Run], kernel: f64) -> Row {
    let median = |of: fn(&Run) -> f64| turns::median(runs, of);
    let (least, most) = turns::range(runs, |run| run.ns);
    let is_kernel = matches!(way.how, How::Pread);
    let misses = output::rounded(median(|run| run.misses_per_1000));
    Row {
        engine: if is_kernel { "kernel" } else { "pagetide" },
        way: way.name,
        page_bytes: (PAGE_BYTES << way.order) as u64,
        ns: output::whole(median(|run| run.ns)),
        ns_min: output::whole(least),
        ns_max: output::whole(most),
        cpu_ns: output::whole(median(|run| run.cpu_ns)),
        to_kernel: output::rounded(median(|run| run.ns) / kernel),
        amplification: output::rounded(median(|run| run.amplification)),
        misses_per_1000: (!is_kernel).then_some(misses),
    }
}

/// One scan of the file.
fn scan(data: &File, way: &Way, args: &ScanArgs) -> Result<Run, Failure> {
    // Of what an earlier scan changed nothing is left to be written.
    let synced = data.sync_data();
    synced.map_err(|error| Failure::of("cannot sync the data file", &error))?;
    scratch::drop_cached(data)?;
    let builder = Memory::builder();
    let builder = match args.readahead {
        Some(most) => builder.readahead(most),
        None => builder,
    };
    let (memory, group) = super::quarter_of(args.pages, builder)?;
    let options = OpenOptions::new().write(true).order(Order::new(way.order));
    let cloned = data.try_clone();
    let cloned = cloned.map_err(|error| Failure::of("cannot open the data file", &error))?;
    let file = options.open_file(&memory, cloned, &group)?;
    let (start, cpu) = (Instant::now(), load::cpu_time());
    let before = load::io_bytes("read_bytes")?;
    let len = u64::from(args.pages) * PAGE_BYTES as u64;
    let mut buf = vec![0; way.step];
    for offset in (0..len).step_by(way.step) {
        let bytes = usize::try_from(len - offset).map_or(way.step, |left| left.min(way.step));
        read(data, &file, way, (offset, &mut buf[..bytes]))?;
    }
    let (took, cpu) = (start.elapsed(), load::cpu_time() - cpu);
    let nr_pages = f64::from(args.pages);
    let read = (load::io_bytes("read_bytes")? - before) as f64;
    Ok(Run {
        ns: took.as_nanos() as f64 / nr_pages,
        cpu_ns: cpu.as_nanos() as f64 / nr_pages,
        amplification: read / len as f64,
        misses_per_1000: group.misses() as f64 * 1000.0 / nr_pages,
    })
}

/// Reads what `buf` has room for, and looks at some of it.
fn read(
    data: &File,
    file: &pagetide::File,
    way: &Way,
    (offset, buf): (u64, &mut [u8]),
) -> Result<(), Failure> {
    let end = offset + buf.len() as u64;
    let page = offset / file.page_bytes() as u64;
    match way.how {
        How::Pread => {
            let read = data.read_exact_at(buf, offset);
            read.map_err(|error| Failure::of("cannot read the data file", &error))?;
            check(buf, offset)
        }
        How::ReadAt => {
            file.read_at(buf, offset)?;
            check(buf, offset)
        }
        How::Pin => check(&file.pin(page)?, offset),
        How::PinMany => {
            let pages: Vec<u64> = (page..end / file.page_bytes() as u64).collect();
            let pinned = file.pin_many(&pages)?;
            pinned
                .iter()
                .try_for_each(|page| check(page, page.page() * PAGE_BYTES as u64))
        }
        How::PinRange => {
            let range = file.pin_range(offset..end)?;
            let mut at = offset;
            range.slices().try_for_each(|bytes| {
                let from = at;
                at += bytes.len() as u64;
                check(bytes, from)
            })
        }
        How::PinMut => {
            let mut view = file.pin_mut(page)?;
            view[8..16].copy_from_slice(&offset.to_le_bytes());
            check(&view, offset)
        }
        How::WriteAt => {
            file.write_at(&offset.to_le_bytes(), offset + 8)?;
            Ok(())
        }
    }
}

/// Whether these are the bytes of the file from there on, but for the words that are changed.
fn check(bytes: &[u8], offset: u64) -> Result<(), Failure> {
    let first = offset / PAGE_BYTES as u64;
    for (page, bytes) in (first..).zip(black_box(bytes).chunks(PAGE_BYTES)) {
        if !scratch::is_page(bytes, page) {
            return Err(Failure::Run(format!("page {page} has other bytes")));
        }
    }
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let header = [
        "engine",
        "way",
        "pages of",
        "4 KiB",
        "least",
        "most",
        "CPU",
        "to kernel",
        "from device",
        "misses/1000",
    ];
    let row = |row: &Row| {
        vec![
            row.engine.to_owned(),
            row.way.to_owned(),
            ByteSize(row.page_bytes).to_string(),
            output::time(row.ns),
            output::time(row.ns_min),
            output::time(row.ns_max),
            output::time(row.cpu_ns),
            format!("x{:.2}", row.to_kernel),
            format!("x{:.2}", row.amplification),
            row.misses_per_1000
                .map_or_else(|| "-".to_owned(), |misses| format!("{misses:.1}")),
        ]
    };
    output::table(&header, 2, rows.iter().map(row).collect())
}
