//! Real threads over real zones and memory.

use crate::failure::Failure;
use pagetide_core::alloc::{Config, DRAIN_PAGES, Mark, Mobility, Request, Topology, Zones};
use pagetide_core::frame::FrameTable;
use pagetide_core::units::{Cpu, Frame, Order, PAGE_BYTES, SECOND, index};
use pagetide_sim::CoreTuner;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a second of the tuners takes: a faster clock would make caches idle that are used in
/// turns by threads that share a CPU.
pub(super) const SECOND_OF_TUNERS: Duration = Duration::from_secs(1);
/// Steps of the clock in such a second.
const STEPS: u32 = 8;

/// Zones, and memory behind their frames.
pub(super) struct Bed {
    zones: Zones,
    frames: FrameTable,
    /// All words of the arena; the OS gives them when they are first written.
    arena: Box<[AtomicU64]>,
}

const WORDS_PER_PAGE: usize = PAGE_BYTES / size_of::<u64>();

impl Bed {
    pub(super) fn new(tuner: CoreTuner, nr_frames: u32) -> Result<Bed, Failure> {
        let nr_cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut config = Config::new(Topology::uniform(u32::try_from(nr_cpus).unwrap_or(1)));
        config.tuner = tuner;
        let no_memory = || Failure::Run(format!("no memory for an arena of {nr_frames} pages"));
        let frames = FrameTable::try_new(nr_frames).map_err(|_| no_memory())?;
        let zones = Zones::try_new(config, &frames).map_err(|_| no_memory())?;
        let words = index(nr_frames) * WORDS_PER_PAGE;
        let arena = bytemuck::allocation::try_zeroed_slice_box(words).map_err(|()| no_memory())?;
        Ok(Bed {
            zones,
            frames,
            arena,
        })
    }

    pub(super) fn zones(&self) -> &Zones {
        &self.zones
    }

    /// A page, as a charged request gets it.
    pub(super) fn alloc(&self) -> Option<Frame> {
        let request = Request::new(Order::ZERO, Mobility::Movable);
        for mark in [Mark::Low, Mark::Min, Mark::None] {
            let request = Request { mark, ..request };
            if let Ok(frame) = self.zones.alloc(&self.frames, cpu(), &request) {
                return Some(frame);
            }
        }
        self.zones.drain_some(&self.frames, DRAIN_PAGES);
        self.zones.alloc(&self.frames, cpu(), &request).ok()
    }

    pub(super) fn free(&self, frame: Frame) {
        self.zones.free(&self.frames, cpu(), frame, Order::ZERO);
    }

    /// Writes a word of a page.
    pub(super) fn touch(&self, frame: Frame) {
        let word = &self.arena[frame.index() * WORDS_PER_PAGE];
        word.store(u64::from(frame.number()), Ordering::Relaxed);
    }

    /// Runs the clock until told to stop.
    pub(super) fn keep_time(&self, stop: &AtomicBool) {
        let mut step = 0;
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(SECOND_OF_TUNERS / STEPS);
            step += 1;
            self.zones
                .tick(&self.frames, step * SECOND / u64::from(STEPS));
        }
    }

    /// Pages in per-CPU page caches.
    pub(super) fn held(&self) -> u64 {
        let nr_cpus = self.zones.config().topology.nr_cpus();
        let of_zone = |zone: &pagetide_core::alloc::Zone| {
            (0..nr_cpus)
                .map(|cpu| u64::from(zone.pageset(Cpu::new(cpu)).0))
                .sum::<u64>()
        };
        self.zones.iter().map(of_zone).sum()
    }

    /// Asserts that no frame was lost, with all of them free.
    pub(super) fn check(&self) {
        let found = self.zones.audit(&self.frames);
        assert!(found.is_ok(), "{found:?}");
        assert_eq!(
            self.zones.nr_free(),
            self.frames.len(),
            "every frame came back"
        );
    }
}

/// Binds this thread to one CPU, where there is more than one.
pub(super) fn bind(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // Best effort: on one CPU, or where it is forbidden, it runs all the same.
    let _bound = rustix::thread::sched_setaffinity(None, &set);
}

fn cpu() -> Cpu {
    let number = rustix::thread::sched_getcpu();
    Cpu::new(u32::try_from(number).unwrap_or(0))
}
