//! Which of its caches a CPU uses.
//!
//! A thread that is preempted with a cache in its hands keeps it for a whole time slice: whoever
//! finds it held uses the next one, and so do all on that CPU from then on. Where the one in use is
//! empty, another that has blocks takes its place, and where it is full, one that has room, before
//! the zone is asked.

use super::{Here, PcpGuard, Zone, caches_per_cpu};
use crate::alloc::pcp::Pcp;
use crate::alloc::pcp_tune::Tuner;
use crate::frame::FrameTable;
use crate::sync::Ordering;
use crate::units::Cpu;

impl Zone {
    /// Holds the cache that a CPU uses until what it gives is dropped.
    #[cfg(test)]
    pub(crate) fn hold_cache(&self, cpu: Cpu) -> impl Drop + '_ {
        self.lock_cache(cpu).expect("one of them is free").1
    }

    /// Locks the cache that a CPU uses, else the next one that nobody holds.
    #[inline]
    pub(super) fn lock_cache(&self, cpu: Cpu) -> Option<(Cpu, PcpGuard<'_>)> {
        // A division costs as much as a lock: only CPUs that were not there pay for one.
        let own = match cpu.number() {
            own if own < self.nr_cpus => cpu,
            _ => self.cpu_of(cpu),
        };
        let distance = self.in_use.of(own).load(Ordering::Relaxed);
        let number = Cpu::new(own.number() + distance);
        match self.pcps.of(number).try_lock() {
            Some(pcp) => Some((number, pcp)),
            None => self.lock_beside(number, |_| true),
        }
    }

    /// Another cache of the same CPU that nobody holds and that is `wanted`: the one in use from
    /// then on.
    #[cold]
    #[inline(never)]
    fn lock_beside(
        &self,
        number: Cpu,
        wanted: impl Fn(&Pcp) -> bool,
    ) -> Option<(Cpu, PcpGuard<'_>)> {
        let own = self.cpu_of(number);
        let nr_caches = caches_per_cpu(self.nr_cpus);
        let at = (number.number() - own.number()) / self.nr_cpus;
        let (other, pcp) = (1..nr_caches).find_map(|next| {
            let distance = (at + next) % nr_caches * self.nr_cpus;
            let pcp = self.pcps.of(Cpu::new(own.number() + distance)).try_lock()?;
            wanted(&pcp).then_some((distance, pcp))
        })?;
        self.in_use.of(own).store(other, Ordering::Relaxed);
        if self.has_spares.load(Ordering::Relaxed) == 0 {
            self.has_spares.store(1, Ordering::Relaxed);
        }
        Some((Cpu::new(own.number() + other), pcp))
    }

    /// Whether a CPU's caches stand in for each other. Under [`Tuner::Fixed`] they do not: others
    /// are compared with what one cache may hold.
    fn is_pooled(&self) -> bool {
        self.has_spares.load(Ordering::Relaxed) != 0 && self.config.tuner != Tuner::Fixed
    }

    /// In the place of a cache that is not, one of the same CPU that is `wanted`; the same one
    /// where there is none. `None` where another thread took that meanwhile.
    #[cold]
    #[inline(never)]
    pub(super) fn lock_with<'a>(
        &'a self,
        number: Cpu,
        pcp: PcpGuard<'a>,
        wanted: impl Fn(&Pcp) -> bool,
    ) -> Option<PcpGuard<'a>> {
        if !self.is_pooled() {
            return Some(pcp);
        }
        // Two of a rank are never held together.
        drop(pcp);
        match self.lock_beside(number, wanted) {
            Some((_, other)) => Some(other),
            None => self.pcps.of(number).try_lock(),
        }
    }

    /// Gives pages of a cache back, as [`Zone::flush`], unless it is full and another of the CPU
    /// has room: then that one is used from now on.
    #[cold]
    #[inline(never)]
    pub(super) fn pass_on<'a>(
        &'a self,
        frames: &FrameTable,
        here: Here,
        mut pcp: PcpGuard<'a>,
        first: usize,
        nr_pages: u32,
    ) {
        let has_room = |pcp: &Pcp| pcp.count() < pcp.tune.high();
        let is_full = !has_room(&pcp) && !self.view(here.now).is_below_high;
        if is_full {
            match self.lock_with(here.cpu, pcp, has_room) {
                Some(full) if !has_room(&full) => pcp = full,
                // There is room, or whoever has it now finds it full.
                _ => return,
            }
        }
        self.flush(frames, here, pcp, first, nr_pages);
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::super::Ask;
    use super::*;
    use crate::alloc::pageblock::Mobility;
    use crate::alloc::tests::zone_with;
    use crate::sync::tests::beside_holders;
    use crate::units::{Frame, Order};
    use std::vec::Vec;

    const HERE: Here = Here {
        cpu: Cpu::new(1),
        now: 0,
    };

    fn zone(frames: &FrameTable, tuner: Tuner) -> Zone {
        zone_with(frames, 64, |config| {
            config.tuner = tuner;
            config.sizes.batch = 8;
        })
    }

    fn take(zone: &Zone, frames: &FrameTable, nr_pages: usize) -> Vec<Frame> {
        let ask = Ask::new(Order::ZERO, Mobility::Movable);
        let take = |_| zone.alloc(frames, HERE, ask).unwrap();
        (0..nr_pages).map(take).collect()
    }

    fn free(zone: &Zone, frames: &FrameTable, taken: Vec<Frame>) {
        for frame in taken {
            zone.free(frames, HERE, frame, Order::ZERO);
        }
    }

    fn beside_a_holder<T>(zone: &Zone, work: impl FnOnce() -> T) -> T {
        beside_holders(1, || zone.lock_cache(HERE.cpu), work)
    }

    fn cached(zone: &Zone, number: u32) -> u32 {
        zone.pcps.of(Cpu::new(number)).lock().count()
    }

    #[test]
    fn who_finds_a_cache_held_has_all_use_the_next_one() {
        let frames = FrameTable::try_new(1024).unwrap();
        let zone = zone(&frames, Tuner::Adaptive);
        let taken = beside_a_holder(&zone, || take(&zone, &frames, 10));
        free(&zone, &frames, taken);
        let number = zone.lock_cache(HERE.cpu).map(|(number, _)| number);
        assert_eq!((cached(&zone, 1), number), (0, Some(Cpu::new(3))));
        assert!(cached(&zone, 3) >= 10);
        // The last one is followed by the first.
        for _ in 0..7 {
            beside_a_holder(&zone, || drop(zone.lock_cache(HERE.cpu)));
        }
        let number = zone.lock_cache(HERE.cpu).map(|(number, _)| number);
        assert_eq!(number, Some(HERE.cpu));
        zone.audit(&frames).unwrap();
    }

    #[test]
    fn the_zone_is_asked_when_all_caches_of_the_cpu_are_empty_or_full() {
        for (_, tuner) in Tuner::ALL {
            let frames = FrameTable::try_new(1024).unwrap();
            let zone = zone(&frames, tuner);
            // As much in two caches as each may have.
            let taken = take(&zone, &frames, 120);
            let (first, second) = taken.split_at(60);
            free(&zone, &frames, first.to_vec());
            beside_a_holder(&zone, || free(&zone, &frames, second.to_vec()));
            let (count, high) = zone.pageset(HERE.cpu);
            assert!(count == 120 && high >= 120, "{count} of {high}");
            let before = zone.stats().lock_takes;
            let taken = take(&zone, &frames, 120);
            free(&zone, &frames, taken);
            let is_asked = zone.stats().lock_takes > before;
            assert_eq!(is_asked, tuner == Tuner::Fixed, "{tuner:?}");
            zone.audit(&frames).unwrap();
        }
    }
}
