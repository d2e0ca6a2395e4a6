//! The per-CPU page cache of one zone and CPU: lists by order and mobility, newest first.

use super::pageblock::{Mobility, NR_MOBILITIES};
use super::pcp_tune::Tune;
use crate::frame::{FrameTable, List, Place};
use crate::units::{Discrepancy, Frame, NR_ORDERS, Order};

/// Lists of a cache: order by order, the mobilities of each side by side.
pub(super) const NR_LISTS: usize = NR_ORDERS * NR_MOBILITIES;

/// Free blocks close to one CPU. Guarded by a lock that is only ever tried.
#[derive(Debug)]
pub struct Pcp {
    lists: [List; NR_LISTS],
    /// Pages held.
    count: u32,
    /// What decides how many it may hold.
    pub(super) tune: Tune,
    pub(super) counts: PcpCounts,
}

/// Counts of one cache, kept under its lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PcpCounts {
    /// Blocks served, by `Ask::class`.
    pub(super) served: [u64; 4],
    pub(super) pgalloc: u64,
    pub(super) pgfree: u64,
    /// `pgalloc + pgfree` at the last tick, and the ticks since that changed.
    last: u64,
    quiet: u8,
}

/// The list of `order` and `mobility`.
#[must_use]
pub(super) const fn list_of(order: Order, mobility: Mobility) -> usize {
    order.index() * NR_MOBILITIES + mobility.index()
}

impl Pcp {
    /// An empty cache.
    #[must_use]
    pub fn new(tune: Tune) -> Pcp {
        Pcp {
            lists: [const { List::new() }; NR_LISTS],
            count: 0,
            tune,
            counts: PcpCounts::default(),
        }
    }

    /// Pages held.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether a list has a block.
    pub(super) fn has(&self, order: Order, kind: Mobility) -> bool {
        !self.lists[list_of(order, kind)].is_empty()
    }

    /// Takes the block of a list that was freed last.
    #[inline]
    pub fn pop(&mut self, frames: &FrameTable, order: Order, kind: Mobility) -> Option<Frame> {
        let frame = self.lists[list_of(order, kind)].pop_head(frames)?;
        frames.set_block(frame, order, Place::Out);
        self.count -= order.nr_pages();
        Some(frame)
    }

    /// Keeps a block that was just freed: it is handed out next.
    #[inline]
    pub fn push(&mut self, frames: &FrameTable, frame: Frame, order: Order, kind: Mobility) {
        self.keep(frames, frame, order);
        self.lists[list_of(order, kind)].push_head(frames, frame);
    }

    /// Keeps a block of a refill: handed out after what is there, so in the order of arrival.
    pub fn push_cold(&mut self, frames: &FrameTable, frame: Frame, order: Order, kind: Mobility) {
        self.keep(frames, frame, order);
        self.lists[list_of(order, kind)].push_tail(frames, frame);
    }

    #[inline]
    fn keep(&mut self, frames: &FrameTable, frame: Frame, order: Order) {
        let before = frames.set_block(frame, order, Place::Pcp);
        assert!(before == Place::Out, "{frame:?} is freed twice");
        self.count += order.nr_pages();
    }

    /// Takes the coldest block of list `at`, or of the next one in turn that has any; `at` is then
    /// that list.
    ///
    /// Source: single-pass bulk free, Gorman 2022: a list is emptied before the next is begun.
    pub fn pop_coldest(&mut self, frames: &FrameTable, at: &mut usize) -> Option<(Frame, Order)> {
        if self.count == 0 {
            return None;
        }
        while self.lists[*at].is_empty() {
            *at = (*at + 1) % NR_LISTS;
        }
        let frame = self.lists[*at].pop_tail(frames)?;
        let (order, place) = frames.block(frame);
        assert!(place == Place::Pcp, "{frame:?} left its per-CPU page cache");
        frames.set_block(frame, order, Place::Out);
        self.count -= order.nr_pages();
        Some((frame, order))
    }

    /// At a tick: whether the cache was not used for some ticks.
    pub(super) fn is_expired(&mut self, ticks: u8) -> bool {
        let counts = &mut self.counts;
        let used = counts.pgalloc + counts.pgfree;
        counts.quiet = if used == counts.last {
            counts.quiet.saturating_add(1)
        } else {
            0
        };
        counts.last = used;
        counts.quiet >= ticks
    }

    /// Counts anew what invariant 3 says. O(pages held).
    ///
    /// # Errors
    /// [`Discrepancy`] where it does not hold.
    pub fn audit(&self, frames: &FrameTable) -> Result<(), Discrepancy> {
        let mut count = 0;
        for (at, list) in self.lists.iter().enumerate() {
            for frame in list.iter(frames) {
                let (order, place) = frames.block(frame);
                let is_here = (order.index(), place) == (at / NR_MOBILITIES, Place::Pcp);
                Discrepancy::require("a frame of a per-CPU page cache", frame.number(), is_here)?;
                count += order.nr_pages();
            }
        }
        let booked = u64::from(self.count);
        Discrepancy::compare("pages of a per-CPU page cache", 0, booked, count.into())
    }
}
