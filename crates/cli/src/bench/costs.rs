//! `bench costs`: measures what simulated machines charge for steps, on one worker (two for the
//! transfer of a line).

use crate::failure::Failure;
use crate::{output, threads};
use pagetide_core::alloc::{Config, Mark, Mobility, PcpSizes, Request, Topology, Tuner, Zones};
use pagetide_core::frame::FrameTable;
use pagetide_core::units::{Cpu, Frame, Order, PAGE_BYTES};
use pagetide_sim::machine::Costs;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const RUNS: usize = 9;
const CPU: Cpu = Cpu::new(0);

pub(super) fn run() -> Result<(), Failure> {
    let costs = Costs {
        hit_ns: hit()?,
        touch_ns: touch(),
        line_transfer_ns: line_transfer(),
        wake_up_ns: median(|| per_op(10_000, std::thread::yield_now)),
        zone_ns: short_zone()?,
        ..holds()?
    };
    output::json(&costs)
}

/// The median of several runs, in whole ns, at least 1.
fn median(mut run: impl FnMut() -> f64) -> u64 {
    let mut runs: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    runs.sort_by(f64::total_cmp);
    // A few hundred ns: the cast is exact.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let ns = runs[RUNS / 2].round() as u64;
    ns.max(1)
}

fn per_op(nr_ops: u32, mut op: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..nr_ops).for_each(|_| op());
    start.elapsed().as_nanos() as f64 / f64::from(nr_ops)
}

struct Bed {
    zones: Zones,
    frames: FrameTable,
}

impl Bed {
    fn new(config: Config, nr_frames: u32) -> Result<Bed, Failure> {
        let refused = |_| Failure::Run("no memory for the records of the frames".to_owned());
        let frames = FrameTable::try_new(nr_frames).map_err(refused)?;
        let zones = Zones::try_new(config, &frames).map_err(refused)?;
        Ok(Bed { zones, frames })
    }

    fn alloc(&self) -> Option<Frame> {
        let request = Request {
            mark: Mark::Low,
            ..Request::new(Order::ZERO, Mobility::Movable)
        };
        self.zones.alloc(&self.frames, CPU, &request).ok()
    }

    fn free(&self, frame: Frame) {
        self.zones.free(&self.frames, CPU, frame, Order::ZERO);
    }

    /// ns of an allocation or a free, over `nr_pages` pages in turn.
    fn cycle(&self, held: &mut Vec<Frame>, nr_pages: usize) -> f64 {
        let start = Instant::now();
        held.extend((0..nr_pages).map_while(|_| self.alloc()));
        held.drain(..).for_each(|frame| self.free(frame));
        start.elapsed().as_nanos() as f64 / (2 * nr_pages) as f64
    }
}

fn config(batch: u32, high: u32) -> Config {
    let mut config = Config::new(Topology::uniform(1));
    config.tuner = Tuner::Fixed;
    config.pcp_sizes = Some(PcpSizes {
        batch,
        high_min: high,
        high_max: high,
    });
    config
}

/// What the CPU's cache serves, over 8 MiB of pages at a time.
fn hit() -> Result<u64, Failure> {
    let bed = Bed::new(config(63, 8_192), 1 << 18)?;
    let mut held = Vec::with_capacity(2_048);
    Ok(median(|| bed.cycle(&mut held, 2_048)))
}

/// A hold of the zone's lock: what it costs with two sizes of batch, less the hits.
fn holds() -> Result<Costs, Failure> {
    let hit = hit()? as f64;
    let cost = |batch: u32| -> Result<f64, Failure> {
        // Nothing stays in the cache beyond four batches of 128 MiB: nearly all pages go through
        // the zone, a batch at a time.
        let bed = Bed::new(config(batch, 4 * batch), 1 << 18)?;
        let mut held = Vec::with_capacity(32_768);
        let each = median(|| (bed.cycle(&mut held, 32_768) - hit) * f64::from(batch));
        Ok(each as f64)
    };
    let (small, large) = (cost(7)?, cost(63)?);
    let page = ((large - small) / 56.0).max(1.0);
    let hold = (small - 7.0 * page).max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A few hundred ns.
    let whole = |ns: f64| ns.round() as u64;
    Ok(Costs {
        hold_ns: whole(hold).max(1),
        hold_page_ns: whole(page).max(1),
        ..Costs::measured()
    })
}

/// Zeroing a page, over 128 MiB that the OS has given already.
fn touch() -> u64 {
    let mut arena = vec![1_u8; 128 << 20];
    median(|| {
        let mut pages = arena.chunks_exact_mut(PAGE_BYTES);
        per_op(32_768, || {
            if let Some(page) = pages.next() {
                page.fill(0);
                black_box(page);
            }
        })
    })
}

/// A line that two CPUs write in turns: half of a round trip.
fn line_transfer() -> u64 {
    const ROUNDS: u64 = 20_000;
    let ball = AtomicU64::new(0);
    let play = |side: u64| {
        for round in 0..ROUNDS {
            while ball.load(Ordering::Acquire) != 2 * round + side {
                std::hint::spin_loop();
            }
            ball.store(2 * round + side + 1, Ordering::Release);
        }
    };
    median(|| {
        ball.store(0, Ordering::Relaxed);
        let start = Instant::now();
        std::thread::scope(|scope| {
            threads::start_or_end(scope, || play(1));
            play(0);
        });
        start.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
    })
}

/// A zone that is short: what a scan pays for looking at it.
fn short_zone() -> Result<u64, Failure> {
    let mut config = Config::new(Topology::uniform(1).with_nodes(64).expect("64 nodes"));
    config.zonelist_cache = pagetide_core::alloc::ZonelistCache::None;
    let bed = Bed::new(config, 64 * 1024)?;
    while bed.alloc().is_some() {}
    let scan = median(|| per_op(200, || assert!(bed.alloc().is_none())));
    Ok((scan / 64).max(1))
}
