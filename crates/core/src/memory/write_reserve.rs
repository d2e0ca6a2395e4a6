//! Working memory that is kept for writes, so that a store that allocates can write when nothing
//! else is left.
//!
//! Its pages are charged to the root when the memory is built, and stay charged: what is taken from
//! it is charged to nobody else, and comes back to it. As for every charge, a frame is there.

use super::alloc::MAX_YIELDS_FOR_A_FRAME;
use super::{AllocError, Here, Memory};
use crate::alloc::{Mobility, Request};
use crate::frame::{State, flag};
use crate::sync::{AtomicU32, Ordering, yield_now};
use crate::units::{Cpu, Frame, Order};

/// What is left of the reserve.
#[derive(Debug)]
pub(super) struct WriteReserve {
    nr_left: AtomicU32,
}

impl WriteReserve {
    pub(super) fn new(nr_pages: u32) -> WriteReserve {
        WriteReserve {
            nr_left: AtomicU32::new(nr_pages),
        }
    }

    /// Pages that nobody has.
    pub(super) fn left(&self) -> u32 {
        self.nr_left.load(Ordering::Relaxed)
    }

    fn take(&self, nr_pages: u32) -> bool {
        let take = |left: u32| left.checked_sub(nr_pages);
        self.nr_left
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, take)
            .is_ok()
    }

    fn put(&self, nr_pages: u32) {
        // Release pairs with the Acquire in `take`: the frame that was freed before is there.
        self.nr_left.fetch_add(nr_pages, Ordering::Release);
    }
}

impl Memory {
    /// A block of the reserve, as [`Memory::alloc_buf`] gives one: not of the group's own bytes.
    #[cold]
    pub(super) fn take_reserved(
        &self,
        here: Here<'_>,
        order: Order,
    ) -> Result<(Frame, bool), AllocError> {
        let root = self.groups.root();
        if !self.write_reserve.take(order.nr_pages()) {
            return Err(AllocError::OverLimit { group: root });
        }
        let kinds = [Mobility::Unmovable, Mobility::Movable].into_iter().cycle();
        for (turn, mobility) in (0..=MAX_YIELDS_FOR_A_FRAME).zip(kinds) {
            // For as long as a write lasts it may be where only pages are else.
            let request = Request::new(order, mobility);
            let (taken, drained) = self.take_frames(here, root, &request, false);
            if let Some(frame) = taken {
                // Of no group: whoever has the frame next finds bytes that are not its own.
                self.frames.set_group(frame, 0);
                self.frames.change_owned(frame, |word| {
                    let word = word.with_state(State::Buf).with(flag::RESERVE);
                    word.next_version()
                });
                return Ok((frame, false));
            }
            // What other CPUs free meanwhile is drained the next time. A single page is there: if
            // none is free, others have it in hand.
            match drained.nr_pages {
                0 if order == Order::ZERO || drained.not_reached > 0 => yield_now(),
                0 if turn > 0 => break,
                _ => {}
            }
        }
        self.write_reserve.put(order.nr_pages());
        Err(AllocError::NoBlock { order })
    }

    /// Gives a block of the reserve back to it.
    #[cold]
    pub(super) fn put_reserved(&self, cpu: Cpu, frame: Frame) {
        let (order, _) = self.frames.block(frame);
        self.make_bare(frame);
        self.zones.free(&self.frames, cpu, frame, order);
        self.write_reserve.put(order.nr_pages());
    }
}
