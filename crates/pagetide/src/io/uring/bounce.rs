//! Bounce buffers: a few pages of a ring's own, which it keeps registered. The kernel looks up no
//! memory for a read into one, and what came is copied to its frame, which takes less than that.
//!
//! No frame stays with the kernel, unlike with `Builder::registered_buffers`. Few are enough where
//! they help most, on devices in memory: their reads land while they are handed over, so that a
//! ring hands over a set of them at a time. The others of a batch go to their frames by themselves.
#![allow(unsafe_code)]

use crate::arena::Arena;
use crate::io::registered::Registry;
use io_uring::IoUring;
use pagetide_core::sync::prefetch_l2;
use pagetide_core::units::{Frame, Order, PAGE_BYTES, index};
use std::io;

/// Of each ring: with as many as it has reads, the copies came from a cache less near.
const BUFFERS: u32 = 16;

/// The number of their memory in their ring, which has no other.
pub(super) const BOUNCE_NUMBER: u16 = 0;

/// Bytes of two lines, which CPUs fetch together to their second caches.
const LINE_PAIR_BYTES: usize = 128;

/// One of the buffers, which a read has: a frame of their arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounce(Frame);

/// Has the bytes that a read is copied to fetched while the kernel reads: most frames are in no
/// cache, and each line of the copy would wait. On Zen 4 of 128 pages at a time 4 to 9 % more came;
/// with each line asked for, or to the first cache, no more.
pub(super) fn prefetch_target(start: *const u8, nr_bytes: usize) {
    for at in (0..nr_bytes).step_by(LINE_PAIR_BYTES) {
        prefetch_l2(start.wrapping_add(at));
    }
}

/// The buffers of one ring, which waits for its reads before they go.
pub(super) struct BounceBuffers {
    /// An arena of their own: no huge page, and not inherited by a forked child.
    memory: Option<Arena>,
    free: Vec<Bounce>,
    /// Given out since the ring handed reads over.
    nr_queued: u32,
}

impl BounceBuffers {
    /// Registers them for a ring that has no memory registered; none where the kernel refuses, as
    /// where little memory may be locked.
    pub(super) fn new(ring: &IoUring, registry: &Registry) -> BounceBuffers {
        let registered = BounceBuffers::register(ring);
        registry.note_bounce(registered.as_ref().map(|_| ()));
        registered.unwrap_or_else(|_| BounceBuffers::none())
    }

    fn register(ring: &IoUring) -> io::Result<BounceBuffers> {
        let arena = Arena::reserve(BUFFERS, false)?;
        let memory = libc::iovec {
            iov_base: arena.block(Frame::new(0), Order::ZERO).as_ptr().cast(),
            iov_len: index(BUFFERS) * PAGE_BYTES,
        };
        // SAFETY: the memory stays mapped until no read of the ring is under way (`Ring`'s drop),
        // or for ever where the ring is leaked.
        unsafe { ring.submitter().register_buffers(&[memory]) }?;
        Ok(BounceBuffers {
            memory: Some(arena),
            free: (0..BUFFERS).rev().map(Frame::new).map(Bounce).collect(),
            nr_queued: 0,
        })
    }

    /// None at all.
    pub(super) const fn none() -> BounceBuffers {
        BounceBuffers {
            memory: None,
            free: Vec::new(),
            nr_queued: 0,
        }
    }

    /// One for a read that is queued next, if one is free; and its address.
    pub(super) fn take(&mut self) -> Option<(Bounce, *mut u8)> {
        let memory = self.memory.as_ref()?;
        let bounce = self.free.pop()?;
        self.nr_queued += 1;
        Some((bounce, memory.block(bounce.0, Order::ZERO).as_ptr()))
    }

    /// Whether all of them are queued: where reads land while they are handed over, the next ones
    /// can have the same.
    pub(super) fn are_queued(&self) -> bool {
        self.nr_queued == BUFFERS
    }

    /// The ring hands over what is queued.
    pub(super) fn hand_over(&mut self) {
        self.nr_queued = 0;
    }

    /// The bytes that a read has left there.
    ///
    /// # Safety
    /// The kernel has said that the read is over.
    pub(super) unsafe fn bytes(&mut self, bounce: Bounce) -> &[u8; PAGE_BYTES] {
        let memory = self.memory.as_ref().expect("what was taken from");
        // SAFETY: a whole buffer, zeroed when it was mapped. The kernel has let go of it (the
        // caller's word), and gets it again only by way of `take`, which needs `&mut self`.
        unsafe { memory.block(bounce.0, Order::ZERO).cast().as_ref() }
    }

    /// Takes one back whose read is over, or was never handed over.
    pub(super) fn give_back(&mut self, bounce: Bounce) {
        self.free.push(bounce);
    }
}
