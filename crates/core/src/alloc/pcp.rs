//! The per-CPU page cache of one zone and CPU.

use crate::frame::{Chain, FrameTable, List, Place};
use crate::units::{Frame, NR_ORDERS, Order};

/// Orders that per-CPU page caches keep: the kernel's 0 to 3 and 9.
#[must_use]
pub const fn caches(order: Order) -> bool {
    order.get() <= 3 || order.get() == 9
}

/// Free blocks close to one CPU, newest first. Guarded by a lock that is only ever tried.
#[derive(Debug)]
pub struct Pcp {
    lists: [List; NR_ORDERS],
    /// Pages held.
    count: u32,
}

impl Default for Pcp {
    fn default() -> Self {
        Pcp {
            lists: [const { List::new(Chain::Main) }; NR_ORDERS],
            count: 0,
        }
    }
}

impl Pcp {
    /// Pages held.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Takes the block of `order` that was freed last.
    pub fn pop(&mut self, frames: &FrameTable, order: Order) -> Option<Frame> {
        let frame = self.lists[order.index()].pop_head(frames)?;
        frames.set_block(frame, order, Place::Out);
        self.count -= order.nr_pages();
        Some(frame)
    }

    /// Keeps a block that was just freed: it is handed out next.
    pub fn push(&mut self, frames: &FrameTable, frame: Frame, order: Order) {
        self.keep(frames, frame, order);
        self.lists[order.index()].push_head(frames, frame);
    }

    /// Keeps a block of a refill: handed out after what is there, so in the order of arrival.
    pub fn push_cold(&mut self, frames: &FrameTable, frame: Frame, order: Order) {
        self.keep(frames, frame, order);
        self.lists[order.index()].push_tail(frames, frame);
    }

    fn keep(&mut self, frames: &FrameTable, frame: Frame, order: Order) {
        assert!(
            frames.block(frame).1 == Place::Out,
            "{frame:?} is freed twice"
        );
        frames.set_block(frame, order, Place::Pcp);
        self.count += order.nr_pages();
    }

    /// Takes the coldest block to give back: from the list of `first`, then the next ones in turn.
    ///
    /// Source: single-pass bulk free, Gorman 2022.
    pub fn pop_coldest(&mut self, frames: &FrameTable, first: Order) -> Option<(Frame, Order)> {
        let from = (0..NR_ORDERS).map(|step| (first.index() + step) % NR_ORDERS);
        let order = from
            .into_iter()
            .find(|&order| !self.lists[order].is_empty())?;
        let frame = self.lists[order].pop_tail(frames)?;
        let (order, place) = frames.block(frame);
        assert!(place == Place::Pcp, "{frame:?} left its per-CPU page cache");
        frames.set_block(frame, order, Place::Out);
        self.count -= order.nr_pages();
        Some((frame, order))
    }

    /// Asserts invariant 3. O(pages held).
    ///
    /// # Panics
    /// Where it does not hold.
    pub fn check(&self, frames: &FrameTable) {
        let mut count = 0;
        for list in &self.lists {
            for frame in list.iter(frames) {
                let (order, place) = frames.block(frame);
                assert_eq!(place, Place::Pcp, "{frame:?}");
                count += order.nr_pages();
            }
        }
        assert_eq!(count, self.count, "the count of a per-CPU page cache");
    }
}
