//! One measurement, in a process of its own: its CPU time and memory are nobody else's.

use super::cgroup;
use super::readers::{self, Source};
use super::spec::{MEASURED, Outcome, Reads, Spec, WARM_UP};
use crate::failure::Failure;
use crate::{load, output, threads};
use hdrhistogram::Histogram;
use pagetide::resident_bytes;
use rustix::process::Signal;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of a thread's stack and histograms at most.
const OF_THREAD: u64 = 512 << 10;
/// Requests of pages that are there, of each thread.
const NR_HITS: usize = 100_000;

pub(in crate::bench) fn run(spec: &str) -> Result<(), Failure> {
    // Whoever started it may be killed: then nobody reads what it measures.
    let died = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    died.map_err(|error| Failure::of("cannot be ended with its parent", &error))?;
    let spec: Spec = serde_json::from_str(spec)
        .map_err(|error| Failure::Usage(format!("no measurement: {error}")))?;
    if let Some(folder) = &spec.cgroup {
        cgroup::enter(folder)?;
    }
    let reads = spec.reads();
    let reads = reads.map_err(|error| Failure::of("cannot tell what a cache misses", &error))?;
    let baseline = resident()?;
    if let Some(folder) = &spec.cgroup {
        // What the last run cached there is charged there still.
        readers::forget(&spec.file)
            .map_err(|error| Failure::of("cannot empty the kernel's page cache", &error))?;
        // The requests are no pages of the file, and neither is what threads have of their own.
        let pages = u64::from(spec.frames) * pagetide::PAGE_BYTES as u64;
        cgroup::leave_room(folder, pages + u64::from(spec.threads) * OF_THREAD)?;
    }
    let source = Source::open(&spec)?;
    let mut outcome = measure(&source, &reads)?;
    outcome.resident_bytes = match &spec.cgroup {
        Some(folder) => cgroup::usage(folder)?,
        None => resident()?.saturating_sub(baseline),
    };
    output::json(&outcome)
}

fn resident() -> Result<u64, Failure> {
    resident_bytes().map_err(|error| Failure::of("cannot read its resident memory", &error))
}

/// What is counted for the whole process.
struct Counts {
    at: Instant,
    cpu: Duration,
    misses: u64,
}

impl Counts {
    fn now(source: &Source) -> Result<Counts, Failure> {
        // Ours are exact; of the kernel's page cache the device tells, a page at a time.
        let misses = match source.misses() {
            Some(misses) => misses,
            None => load::io_bytes("read_bytes")? / pagetide::PAGE_BYTES as u64,
        };
        Ok(Counts {
            at: Instant::now(),
            cpu: load::cpu_time(),
            misses,
        })
    }
}

fn measure(source: &Source, reads: &[Reads]) -> Result<Outcome, Failure> {
    let barrier = &Barrier::new(reads.len() + 1);
    let (counts, done) = std::thread::scope(|scope| {
        let threads: Vec<_> = reads
            .iter()
            .enumerate()
            .map(|(nth, reads)| {
                threads::start_or_end(scope, move || thread(source, nth, reads, barrier))
            })
            .collect();
        // All are warm; all have measured.
        barrier.wait();
        let before = Counts::now(source);
        barrier.wait();
        barrier.wait();
        let after = Counts::now(source);
        barrier.wait();
        let done: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().expect("a reader does not panic"))
            .collect();
        ((before, after), done)
    });
    let (before, after) = (counts.0?, counts.1?);
    let (mut latencies, mut hits) = (load::histogram(), Vec::new());
    for thread in done {
        let thread = thread?;
        latencies.add(thread.latencies).expect("of the same bounds");
        hits.extend(thread.hits);
    }
    let requests = reads
        .iter()
        .map(|reads| reads[MEASURED].len())
        .sum::<usize>() as f64;
    // Of few requests none may have been a miss.
    let each = requests.max(1.0);
    let elapsed = after.at - before.at;
    let misses = (after.misses - before.misses) as f64;
    let mean = |of: fn(&Hits) -> f64| {
        let sum: f64 = hits.iter().map(of).sum();
        (!hits.is_empty()).then(|| sum / hits.len() as f64)
    };
    Ok(Outcome {
        hit_ratio: output::rounded((1.0 - misses / each).max(0.0)),
        iops: requests / elapsed.as_secs_f64(),
        ns_p50: latencies.value_at_quantile(0.5),
        ns_p99: latencies.value_at_quantile(0.99),
        cpu_ns: (after.cpu - before.cpu).as_nanos() as f64 / each,
        resident_bytes: 0,
        hit_ns: mean(|hits| hits.ns),
        hit_cpu_ns: mean(|hits| hits.cpu_ns),
    })
}

struct Measured {
    latencies: Histogram<u64>,
    hits: Option<Hits>,
}

/// Nanoseconds of a read of what is there.
struct Hits {
    ns: f64,
    cpu_ns: f64,
}

/// A reader: warms up, measures, and where that tells something reads what is there again.
fn thread(
    source: &Source,
    nth: usize,
    reads: &Reads,
    barrier: &Barrier,
) -> Result<Measured, Failure> {
    // Whoever fails comes to all barriers all the same.
    let reader = source.reader(nth);
    let (mut reader, mut latencies) = (reader, load::histogram());
    let mut run = |pages: &[u32], latencies: &mut Histogram<u64>| match &mut reader {
        Ok(reader) => reader.run(pages, latencies),
        Err(_) => Ok(()),
    };
    let warmed = run(&reads[WARM_UP], &mut load::histogram());
    barrier.wait();
    barrier.wait();
    let read = run(&reads[MEASURED], &mut latencies);
    barrier.wait();
    barrier.wait();
    let there: Vec<u32> = reads[MEASURED]
        .iter()
        .copied()
        .filter(|&page| source.has(page))
        .collect();
    let hits = match there.is_empty() {
        false => Some(hits(&mut run, &there)?),
        true => None,
    };
    reader.and(warmed.and(read))?;
    Ok(Measured { latencies, hits })
}

/// Reads what is there, in one thread: as often as it was asked for, so that what a hit waits for
/// is where it was among the others.
fn hits(
    run: &mut impl FnMut(&[u32], &mut Histogram<u64>) -> Result<(), Failure>,
    there: &[u32],
) -> Result<Hits, Failure> {
    let again: Vec<u32> = there.iter().copied().cycle().take(NR_HITS).collect();
    let (start, cpu) = (Instant::now(), load::thread_time());
    run(&again, &mut load::histogram())?;
    let of_one = |time: Duration| time.as_nanos() as f64 / again.len() as f64;
    Ok(Hits {
        ns: of_one(start.elapsed()),
        cpu_ns: of_one(load::thread_time() - cpu),
    })
}
