//! Many blocks out of a CPU's cache at once.

use super::{Ask, Zone};
use crate::alloc::Mobility;
use crate::frame::FrameTable;
use crate::units::{Cpu, Frame};

impl Zone {
    /// The mobility that a request has here: where blocks are not kept apart, all have one.
    #[inline]
    pub(super) fn kind_of(&self, ask: Ask) -> Mobility {
        match self.has_mobility {
            true => ask.mobility,
            false => Mobility::Movable,
        }
    }

    /// Takes blocks that the CPU's cache has, at most as many as `taken` has room for; returns how
    /// many. One try-lock; the zone itself is not asked.
    pub(in crate::alloc) fn take_cached(
        &self,
        frames: &FrameTable,
        cpu: Cpu,
        ask: Ask,
        taken: &mut [Frame],
    ) -> usize {
        let kind = self.kind_of(ask);
        let Some((_, mut pcp)) = self.lock_cache(cpu).filter(|_| self.caches(ask.order)) else {
            return 0;
        };
        let mut nr_taken = 0;
        for place in taken {
            let Some(frame) = pcp.pop(frames, ask.order, kind) else {
                break;
            };
            let count = pcp.count();
            pcp.tune.allocated(ask.order, count);
            *place = frame;
            nr_taken += 1;
        }
        pcp.counts.served[ask.class()] += nr_taken as u64;
        pcp.counts.pgalloc += nr_taken as u64 * u64::from(ask.order.nr_pages());
        nr_taken
    }
}
