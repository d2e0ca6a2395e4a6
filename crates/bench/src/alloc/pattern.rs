//! What the threads do with an allocator, and the clock around it.

use super::blocks::Blocks;
use super::{Load, sys};
use clap::ValueEnum;
use std::hint::black_box;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Barrier, OnceLock};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Bytes that the blocks of all threads together have, where there are not too many blocks.
const BULK_BYTES: usize = 64 << 20;
/// Blocks of one thread at most.
const MAX_BULK: usize = 4096;
/// Bytes of a batch that goes through a channel, within these numbers of blocks.
const BATCH_BYTES: usize = 1 << 20;
const BATCH: (usize, usize) = (4, 256);
/// Batches between a producer and its consumer.
const NR_BATCHES: usize = 4;
/// Time between two looks at the clock.
const LOOK: Duration = Duration::from_micros(50);

/// The order in which blocks are taken and freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Take many, free them in the same order
    Bulk,
    /// Of many blocks, free any one and take another
    Random,
    /// Take one and free it
    Repeat,
    /// Take many, write a byte to each page, free them
    PageFault,
    /// One thread takes and sends, another frees
    Handover,
}

impl Pattern {
    /// Threads without which it cannot be.
    pub fn least_threads(self) -> usize {
        match self {
            Pattern::Handover => 2,
            _ => 1,
        }
    }

    /// The name above a column.
    pub fn short(self) -> &'static str {
        match self {
            Pattern::Bulk => "bulk",
            Pattern::Random => "random",
            Pattern::Repeat => "repeat",
            Pattern::PageFault => "fault",
            Pattern::Handover => "handover",
        }
    }
}

/// What one pair of an allocation and its free costs.
#[derive(Clone, Copy)]
pub struct Cost {
    /// CPU time of all threads by the pairs of all threads, in ns.
    pub cpu_ns: f64,
    /// The time that passed, times the CPUs that the threads can have at once, by the pairs, in
    /// ns: larger than `cpu_ns` where threads sleep, or other programs run.
    pub elapsed_ns: f64,
}

/// One timed run.
pub fn run(blocks: &impl Blocks, load: Load) -> Cost {
    let clock = Clock {
        gate: Barrier::new(load.threads),
        start: OnceLock::new(),
        limit: Duration::from_millis(load.millis),
    };
    let done: Vec<Done> = match load.pattern {
        _ if load.threads == 1 => vec![alone(blocks, load, &clock, 0)],
        Pattern::Handover => hand_over(blocks, load, &clock),
        _ => thread::scope(|scope| {
            let clock = &clock;
            let thread = |number| scope.spawn(move || alone(blocks, load, clock, number));
            let threads: Vec<_> = (0..load.threads).map(thread).collect();
            join_all(threads)
        }),
    };
    let nr_pairs: u64 = done.iter().map(|done| done.nr_pairs).sum();
    let cpu: Duration = done.iter().map(|done| done.cpu).sum();
    let rate = |done: &Done| done.nr_pairs as f64 / done.elapsed.as_secs_f64();
    let pairs_per_second: f64 = done.iter().map(rate).sum();
    let nr_cpus = thread::available_parallelism().map_or(1, usize::from);
    Cost {
        cpu_ns: cpu.as_secs_f64() * 1e9 / nr_pairs as f64,
        elapsed_ns: load.threads.min(nr_cpus) as f64 * 1e9 / pairs_per_second,
    }
}

fn join_all(threads: Vec<ScopedJoinHandle<'_, Done>>) -> Vec<Done> {
    let ends = threads.into_iter().map(ScopedJoinHandle::join);
    ends.map(|end| end.expect("panics end the process"))
        .collect()
}

/// What one thread did.
struct Done {
    nr_pairs: u64,
    cpu: Duration,
    elapsed: Duration,
}

/// One start for all threads.
struct Clock {
    gate: Barrier,
    start: OnceLock<Instant>,
    limit: Duration,
}

impl Clock {
    /// Waits for all threads.
    fn start(&self) -> Instant {
        self.gate.wait();
        *self.start.get_or_init(Instant::now)
    }

    /// Repeats `body`, which does `nr_pairs` pairs, until the time is over.
    ///
    /// All threads count from the same start, so that one that waited for a CPU counts as slow.
    fn repeat(&self, nr_pairs: usize, mut body: impl FnMut()) -> Done {
        let start = self.start();
        let cpu_before = sys::cpu_time();
        let (mut done, mut chunk) = (0, 1_u64);
        let mut before = start;
        loop {
            (0..chunk).for_each(|_| body());
            done += chunk;
            let now = Instant::now();
            if now - start >= self.limit {
                return Done {
                    nr_pairs: done * nr_pairs as u64,
                    cpu: sys::cpu_time() - cpu_before,
                    elapsed: now - start,
                };
            }
            if now - before < LOOK {
                chunk *= 2;
            }
            before = now;
        }
    }
}

/// One thread of a pattern in which threads do not meet.
fn alone<B: Blocks>(blocks: &B, load: Load, clock: &Clock, number: usize) -> Done {
    let nr_blocks = (BULK_BYTES / load.bytes() / load.threads).clamp(1, MAX_BULK);
    let mut held: Vec<B::Block> = Vec::with_capacity(nr_blocks);
    match load.pattern {
        Pattern::Repeat => clock.repeat(1, || {
            // Else the compiler drops a `malloc` whose only use is a `free`.
            blocks.give(black_box(blocks.take()));
        }),
        Pattern::Random => {
            held.extend((0..nr_blocks).map(|_| blocks.take()));
            let mut random = Random::new(number);
            let done = clock.repeat(1, || {
                blocks.give(held.swap_remove(random.below(nr_blocks)));
                held.push(blocks.take());
            });
            // Nobody's last frees are in another thread's time.
            clock.gate.wait();
            held.drain(..).for_each(|block| blocks.give(block));
            done
        }
        Pattern::Bulk | Pattern::PageFault | Pattern::Handover => clock.repeat(nr_blocks, || {
            held.extend((0..nr_blocks).map(|_| blocks.take()));
            if load.pattern == Pattern::PageFault {
                held.iter_mut().for_each(|block| blocks.touch(block));
            }
            held.drain(..).for_each(|block| blocks.give(block));
        }),
    }
}

/// Half of the threads take and send, each to a thread of its own that frees.
fn hand_over<B: Blocks>(blocks: &B, load: Load, clock: &Clock) -> Vec<Done> {
    let nr_blocks = (BATCH_BYTES / load.bytes()).clamp(BATCH.0, BATCH.1);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..load.threads / 2 {
            let (full, to_free) = sync_channel(NR_BATCHES);
            let (freed, empty) = sync_channel(NR_BATCHES);
            for _ in 0..NR_BATCHES {
                let batch = Vec::with_capacity(nr_blocks);
                freed.send(batch).expect("room for all batches");
            }
            threads.push(scope.spawn(move || produce(blocks, nr_blocks, clock, &empty, full)));
            threads.push(scope.spawn(move || consume(blocks, clock, &to_free, &freed)));
        }
        join_all(threads)
    })
}

fn produce<B: Blocks>(
    blocks: &B,
    nr_blocks: usize,
    clock: &Clock,
    empty: &Receiver<Vec<B::Block>>,
    full: SyncSender<Vec<B::Block>>,
) -> Done {
    // Never more than `NR_BATCHES` ahead, so its rate is theirs.
    clock.repeat(nr_blocks, || {
        let mut batch = empty.recv().expect("the consumer ends last");
        batch.extend((0..nr_blocks).map(|_| blocks.take()));
        full.send(batch).expect("the consumer ends last");
    })
}

fn consume<B: Blocks>(
    blocks: &B,
    clock: &Clock,
    to_free: &Receiver<Vec<B::Block>>,
    freed: &SyncSender<Vec<B::Block>>,
) -> Done {
    let start = clock.start();
    let cpu_before = sys::cpu_time();
    for mut batch in to_free {
        batch.drain(..).for_each(|block| blocks.give(block));
        // The producer may have ended.
        let _ = freed.send(batch);
    }
    // The producer counts the pairs.
    Done {
        nr_pairs: 0,
        cpu: sys::cpu_time() - cpu_before,
        elapsed: start.elapsed(),
    }
}

/// xorshift64*: small and the same everywhere. Source: Vigna 2016.
struct Random(u64);

impl Random {
    fn new(thread: usize) -> Random {
        Random((thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        // The product of two 32-bit numbers, so its upper half is below the bound.
        ((high * bound as u64) >> 32) as usize
    }
}
