//! Bounce buffers: a few pages of a ring's own, which it keeps registered. The kernel looks up no
//! memory for a read into one, and what came is copied to its frame, which takes less than that.
//!
//! No frame stays with the kernel, unlike with `Builder::registered_buffers`. Few are enough where
//! they help most, on devices in memory: their reads land while they are handed over, so that a
//! ring hands over a set of them at a time. The others of a batch go to their frames by themselves.
#![allow(unsafe_code)]

use crate::io::registered::Registry;
use io_uring::IoUring;
use pagetide_core::units::PAGE_BYTES;
use std::cell::UnsafeCell;

/// Of each ring: with as many as it has reads, the copies came from a cache less near.
const BUFFERS: usize = 16;

/// The number of their memory in their ring, which has no other.
pub(super) const BOUNCE_NUMBER: u16 = 0;

/// The bytes are the kernel's from when a read is queued until it has landed.
#[repr(C, align(4096))]
struct Buffer(UnsafeCell<[u8; PAGE_BYTES]>);

/// One of the buffers, which a read has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounce(usize);

/// The buffers of one ring, which unregisters them before they go.
pub(super) struct BounceBuffers {
    /// Follow each other in memory: they are one for the kernel.
    all: Box<[Buffer]>,
    free: Vec<Bounce>,
    /// Given out since the ring handed reads over.
    nr_queued: usize,
}

// SAFETY: it reads and writes no byte but through `&mut self`.
unsafe impl Send for BounceBuffers {}

impl BounceBuffers {
    /// Registers them: none where frames are registered instead, or where the kernel refuses.
    pub(super) fn new(ring: &IoUring, registry: &Registry) -> BounceBuffers {
        let mut all: Box<[Buffer]> = Box::default();
        if registry.may_bounce() {
            let zeros = || Buffer(UnsafeCell::new([0; PAGE_BYTES]));
            all = (0..BUFFERS).map(|_| zeros()).collect();
            let memory = libc::iovec {
                iov_base: all.as_ptr().cast_mut().cast(),
                iov_len: size_of_val(&all[..]),
            };
            // SAFETY: the memory lives until the ring has unregistered it (`Ring`'s drop), or as
            // long as the process where the ring is leaked.
            if let Err(error) = unsafe { ring.submitter().register_buffers(&[memory]) } {
                registry.refuse_bounce(&error);
                all = Box::default();
            }
        }
        BounceBuffers {
            free: (0..all.len()).rev().map(Bounce).collect(),
            all,
            nr_queued: 0,
        }
    }

    /// One for a read that is queued next, if one is free; and its address.
    pub(super) fn take(&mut self) -> Option<(Bounce, *mut u8)> {
        let bounce = self.free.pop()?;
        self.nr_queued += 1;
        Some((bounce, self.all[bounce.0].0.get().cast()))
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
        // SAFETY: the kernel has let go of it (the caller's word), and gets it again only by way
        // of `take`, which needs `&mut self`.
        unsafe { &*self.all[bounce.0].0.get() }
    }

    /// Takes one back whose read is over, or was never handed over.
    pub(super) fn give_back(&mut self, bounce: Bounce) {
        self.free.push(bounce);
    }
}
