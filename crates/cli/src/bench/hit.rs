//! `bench hit`: a page that is there, read by a copy and by a view, on hot sets of several sizes.
//!
//! Beside the copy alone, out of memory of the process; beside `pread` of a page that the kernel
//! has cached, and a copy out of a mapping of it. `crates/bench` has object caches beside it.

use super::device::sys::{Aligned, Mapping, want_huge_pages};
use super::turns;
use crate::args::HitArgs;
use crate::failure::Failure;
use crate::{load, output, scratch, threads};
use pagetide::{ByteSize, Memory, PAGE_BYTES};
use serde::Serialize;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Medians of one variant at one number of threads: a stable interface.
#[derive(Debug, Serialize)]
struct Row {
    pages: u32,
    threads: u32,
    variant: &'static str,
    reads: u64,
    /// By all threads together.
    reads_per_s: u64,
    reads_per_s_min: u64,
    reads_per_s_max: u64,
    /// CPU time of a read, of all threads.
    cpu_ns: f64,
    to_memcpy: f64,
}

/// How a page is read.
#[derive(Clone, Copy)]
enum Variant {
    Memcpy,
    ReadAt,
    Pin,
    Pread,
    Mmap,
}

const VARIANTS: [(&str, Variant); 5] = [
    ("memcpy", Variant::Memcpy),
    ("read_at", Variant::ReadAt),
    ("pin", Variant::Pin),
    ("pread", Variant::Pread),
    ("mmap", Variant::Mmap),
];

/// What is read: `nr_pages` pages, each in five places.
struct Bed {
    nr_pages: u32,
    file: pagetide::File,
    plain: File,
    mapping: Mapping,
    heap: Vec<u8>,
    /// Keeps the cached pages.
    _memory: Memory,
}

pub(super) fn run(args: &HitArgs) -> Result<(), Failure> {
    let nr_runs = args.pages.len() * args.threads.len() * VARIANTS.len() * args.runs as usize;
    let bar = load::progress("reading", nr_runs as u64);
    let mut rows = Vec::new();
    for &nr_pages in &args.pages {
        let bed = Bed::new(nr_pages, !args.small_pages)?;
        for &threads in &args.threads {
            let runs = turns::run(args.runs, VARIANTS.len(), |at| {
                bar.inc(1);
                bed.time(VARIANTS[at].1, threads, args.reads)
            })?;
            let of = |runs: &[Run]| turns::median(runs, |run| run.cpu_ns);
            let memcpy = of(&runs[0]);
            let named = VARIANTS.iter().zip(&runs);
            rows.extend(named.map(|((variant, _), runs)| {
                let (least, most) = turns::range(runs, |run| run.reads_per_s);
                Row {
                    pages: nr_pages,
                    threads,
                    variant,
                    reads: args.reads,
                    reads_per_s: output::whole(turns::median(runs, |run| run.reads_per_s)),
                    reads_per_s_min: output::whole(least),
                    reads_per_s_max: output::whole(most),
                    cpu_ns: output::rounded(of(runs)),
                    to_memcpy: output::rounded(of(runs) / memcpy),
                }
            }));
        }
    }
    bar.finish_and_clear();
    output::rows(args.json, &rows, table)
}

struct Run {
    reads_per_s: f64,
    cpu_ns: f64,
}

impl Bed {
    fn new(nr_pages: u32, has_huge_pages: bool) -> Result<Bed, Failure> {
        let failed = |error: std::io::Error| Failure::of("cannot map the data file", &error);
        let plain = scratch::stamped(None, nr_pages.into(), |_| ())?;
        let len = nr_pages as usize * PAGE_BYTES;
        let memory = Memory::builder()
            .for_resident_pages(nr_pages + 64)
            .huge_pages(has_huge_pages)
            .build()?;
        let group = memory.root().child("hit")?;
        let group = group.max(ByteSize((u64::from(nr_pages) + 64) * PAGE_BYTES as u64))?;
        let file = memory.open_file(plain.try_clone().map_err(failed)?, &group)?;
        let mut bed = Bed {
            nr_pages,
            file,
            mapping: Mapping::of(&plain, len).map_err(failed)?,
            plain,
            heap: Vec::with_capacity(len),
            _memory: memory,
        };
        if has_huge_pages {
            want_huge_pages(bed.heap.spare_capacity_mut());
        }
        bed.heap.resize(len, 0);
        // All of it is there, for all variants.
        bed.plain.read_exact_at(&mut bed.heap, 0).map_err(failed)?;
        for page in 0..nr_pages {
            for (_, variant) in VARIANTS {
                bed.read(variant, page, &mut Aligned::zeroed().0)?;
            }
        }
        if bed.file_misses(&group) > 0 {
            return Err(Failure::Run("the hot pages do not stay".to_owned()));
        }
        Ok(bed)
    }

    /// Reads all again; how many of them were not there.
    fn file_misses(&self, group: &pagetide::Group) -> u64 {
        let before = group.misses();
        for page in 0..self.nr_pages {
            let _pinned = self.file.pin(page.into());
        }
        group.misses() - before
    }

    /// Reads a page. A pinned one is looked at, the others are copied to `buf`.
    #[inline]
    fn read(&self, variant: Variant, page: u32, buf: &mut [u8; PAGE_BYTES]) -> Result<(), Failure> {
        let offset = u64::from(page) * PAGE_BYTES as u64;
        match variant {
            Variant::ReadAt => {
                self.file.read_at(buf, offset)?;
            }
            Variant::Pin => {
                black_box(self.file.pin(page.into())?[0]);
                return Ok(());
            }
            Variant::Pread => {
                let read = self.plain.read_exact_at(buf, offset);
                read.map_err(|error| Failure::of("cannot read", &error))?;
            }
            Variant::Mmap => self.mapping.copy(page, buf),
            Variant::Memcpy => {
                let at = page as usize * PAGE_BYTES;
                buf.copy_from_slice(&self.heap[at..at + PAGE_BYTES]);
            }
        }
        black_box(&*buf);
        Ok(())
    }

    fn time(&self, variant: Variant, threads: u32, reads: u64) -> Result<Run, Failure> {
        let barrier = &Barrier::new(threads as usize + 1);
        let (elapsed, cpu) = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..threads)
                .map(|thread| {
                    threads::start_or_end(scope, move || {
                        barrier.wait();
                        barrier.wait();
                        let cpu = load::thread_time();
                        let done = self.read_many(variant, thread, share(reads, thread, threads));
                        let cpu = load::thread_time() - cpu;
                        barrier.wait();
                        done.map(|()| cpu)
                    })
                })
                .collect();
            // All are there; before the first one reads; the last one has read.
            barrier.wait();
            let start = Instant::now();
            barrier.wait();
            barrier.wait();
            let elapsed = start.elapsed();
            let cpu: Result<Duration, Failure> = readers
                .into_iter()
                .map(|reader| reader.join().expect("a reader does not panic"))
                .sum();
            (elapsed, cpu)
        });
        Ok(Run {
            reads_per_s: reads as f64 / elapsed.as_secs_f64(),
            cpu_ns: cpu?.as_nanos() as f64 / reads as f64,
        })
    }

    /// Pages in a scattered order, another one for each thread.
    fn read_many(&self, variant: Variant, thread: u32, reads: u64) -> Result<(), Failure> {
        let mut buf = Aligned::zeroed();
        let mut number = u64::from(thread) + 1;
        for _ in 0..reads {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let page = (number >> 33) % u64::from(self.nr_pages);
            let page = u32::try_from(page).expect("below a number of 32 bits");
            self.read(variant, page, &mut buf.0)?;
        }
        Ok(())
    }
}

/// What one of the threads reads of all.
fn share(reads: u64, thread: u32, threads: u32) -> u64 {
    let up_to = |thread: u32| reads * u64::from(thread) / u64::from(threads);
    up_to(thread + 1) - up_to(thread)
}

fn table(rows: &[Row]) -> String {
    let header = [
        "pages",
        "threads",
        "variant",
        "reads/s",
        "least",
        "most",
        "CPU/read",
        "to memcpy",
    ];
    let row = |row: &Row| {
        vec![
            output::count(row.pages.into()),
            row.threads.to_string(),
            row.variant.to_owned(),
            output::count(row.reads_per_s),
            output::count(row.reads_per_s_min),
            output::count(row.reads_per_s_max),
            format!("{:.1} ns", row.cpu_ns),
            format!("x{:.2}", row.to_memcpy),
        ]
    };
    output::table(&header, 3, rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_told_than_the_cpus_can_do() {
        let nr_cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let bed = Bed::new(1, false).unwrap();
        for _ in 0..20 {
            let run = bed.time(Variant::Pin, 8, 40_000).unwrap();
            let nr_busy = run.reads_per_s * run.cpu_ns / 1e9;
            assert!(
                nr_busy < 1.1 * nr_cpus as f64,
                "{nr_busy} CPUs of {nr_cpus}"
            );
        }
    }

    #[test]
    fn threads_read_all_of_it_together() {
        for (reads, threads) in [(511, 256), (256, 256), (400_000, 3), (1_000_000_000, 7)] {
            let shares = (0..threads).map(|thread| share(reads, thread, threads));
            assert_eq!(shares.sum::<u64>(), reads, "{threads} threads");
        }
    }
}
