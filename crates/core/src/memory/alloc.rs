//! Charge, then allocate, reclaiming in between: the only retry loop of core.

use super::{AllocError, Memory};
use crate::frame::State;
use crate::units::{Cpu, Frame, Order};

/// Rounds without progress before an allocation is refused. Source: `MAX_RECLAIM_RETRIES`.
const MAX_RETRIES: u32 = 16;
/// Rounds of reclaim for a block that needs contiguous frames: eviction frees single pages, and a
/// block may not come together however many go.
const MAX_BLOCK_ROUNDS: u32 = 128;

impl Memory {
    /// A block of `order` charged to `group`, reclaimed for where a limit is met.
    ///
    /// Holds no lock and no claim while it reclaims. At most [`MAX_RETRIES`] rounds in a row free
    /// nothing; above order 0 there are at most [`MAX_BLOCK_ROUNDS`] in all.
    ///
    /// # Errors
    /// [`AllocError`]; nothing stays charged.
    pub(super) fn take_block(
        &self,
        cpu: Cpu,
        group: u32,
        order: Order,
    ) -> Result<Frame, AllocError> {
        self.charge(cpu, group, order.nr_pages())?;
        let (mut retries, mut rounds) = (0, 0);
        loop {
            if let Some(frame) = self.zone.alloc(&self.frames, cpu, order) {
                self.frames.set_group(frame, group);
                return Ok(frame);
            }
            // Charged, so frames are there: in other CPUs' caches, or split.
            let drained = self.zone.drain(&self.frames).nr_pages;
            let freed = self.reclaim(cpu, self.groups.root(), order.nr_pages());
            if drained == 0 && freed == 0 {
                retries += 1;
            }
            rounds += 1;
            let is_hopeless = order != Order::ZERO && rounds > MAX_BLOCK_ROUNDS;
            if retries > MAX_RETRIES || is_hopeless {
                self.groups.uncharge(cpu, group, order.nr_pages());
                return Err(AllocError::NoBlock { order });
            }
        }
    }

    fn charge(&self, cpu: Cpu, group: u32, nr_pages: u32) -> Result<(), AllocError> {
        let mut retries = 0;
        loop {
            let Err(over) = self.groups.charge(cpu, group, nr_pages) else {
                return Ok(());
            };
            let limit = self
                .groups
                .get(over.group)
                .map_or(0, crate::group::Group::max);
            if u64::from(nr_pages) > limit {
                return Err(AllocError::OverLimit { group: over.group });
            }
            if self.reclaim(cpu, over.group, nr_pages) == 0 {
                retries += 1;
            }
            if retries > MAX_RETRIES {
                return Err(AllocError::OverLimit { group: over.group });
            }
        }
    }

    /// Gives back a frame that the caller owns: not indexed, not listed, not pinned.
    pub(super) fn put_block(&self, cpu: Cpu, frame: Frame) {
        let (order, _) = self.frames.block(frame);
        let group = self.frames.group(frame);
        self.frames.set_key(frame, None);
        let free =
            |word: crate::frame::Word| Some(word.bare().with_state(State::Free).next_version());
        let before = self
            .frames
            .update(frame, free)
            .expect("an update without a condition");
        assert!(before.pins() == 0, "{frame:?} is freed while pinned");
        self.zone.free(&self.frames, cpu, frame, order);
        self.groups.uncharge(cpu, group, order.nr_pages());
    }

    /// Working memory of `order`, charged to `group`: not reclaimable, its bytes as they were.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn alloc_buf(&self, cpu: Cpu, group: u32, order: Order) -> Result<Frame, AllocError> {
        let frame = self.take_block(cpu, group, order)?;
        let buf = |word: crate::frame::Word| Some(word.with_state(State::Buf).next_version());
        self.frames
            .update(frame, buf)
            .expect("an update without a condition");
        Ok(frame)
    }

    /// Gives working memory back.
    ///
    /// # Panics
    /// Where the frame is no working memory.
    pub fn free_buf(&self, cpu: Cpu, frame: Frame) {
        assert!(
            self.frames.word(frame).state() == State::Buf,
            "{frame:?} is no working memory"
        );
        self.put_block(cpu, frame);
    }
}
