//! Bounce buffers: a few pages of a ring's own, which it keeps registered. The kernel looks up no
//! memory for a read into one, and what came is copied to its frame, which takes less than that.
//!
//! No frame stays with the kernel, unlike with `Builder::registered_buffers`. Few are enough where
//! they help most, on devices in memory: their reads land while they are handed over, so that a
//! ring hands over a set of them at a time. The others of a batch go to their frames by themselves.
#![allow(unsafe_code)]

use crate::arena::Alive;
use crate::io::registered::Registry;
use io_uring::IoUring;
use pagetide_core::units::PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;

/// Of each ring: with as many as it has reads, the copies came from a cache less near.
const BUFFERS: usize = 16;
const ALL_BYTES: usize = BUFFERS * PAGE_BYTES;

/// The number of their memory in their ring, which has no other.
pub(super) const BOUNCE_NUMBER: u16 = 0;

/// One of the buffers, which a read has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounce(usize);

/// The buffers of one ring, which waits for its reads before they go.
pub(super) struct BounceBuffers {
    memory: Option<Mapped>,
    free: Vec<Bounce>,
    /// Given out since the ring handed reads over.
    nr_queued: usize,
}

/// Memory of their own, so that no huge page of the heap is kept in place by them. A forked child
/// has no mapping of it.
struct Mapped {
    start: NonNull<u8>,
    alive: Alive,
}

// SAFETY: a value has its mapping for itself.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(alive: Alive) -> io::Result<Mapped> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: no address is asked for, so no existing mapping can be replaced.
        let start = unsafe { mmap_anonymous(nowhere, ALL_BYTES, protection, MapFlags::PRIVATE) }?;
        let start = NonNull::new(start.cast()).expect("mmap never maps address 0 unasked");
        let mapped = Mapped { start, alive };
        mapped.advise(Advice::LinuxDontFork)?;
        // A kernel built without huge pages refuses, and has none.
        let _ = mapped.advise(Advice::LinuxNoHugepage);
        Ok(mapped)
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: all of the mapping that was made in `new`; its callers' advice changes no byte.
        Ok(unsafe { madvise(self.start.as_ptr().cast(), ALL_BYTES, advice) }?)
    }

    /// The first byte of a buffer.
    fn buffer(&self, Bounce(number): Bounce) -> NonNull<u8> {
        assert!(number < BUFFERS);
        // SAFETY: it lies in the mapping (asserted above).
        unsafe { self.start.add(number * PAGE_BYTES) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.alive.is_forked() {
            // Something else may be mapped there by now.
            return;
        }
        // SAFETY: the mapping was made in `new` and is unmapped only here; no address of it is
        // used any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), ALL_BYTES) };
        debug_assert!(unmapped.is_ok(), "munmap of bounce buffers: {unmapped:?}");
    }
}

impl BounceBuffers {
    /// Registers them for a ring that has no memory registered; none where the kernel refuses, as
    /// where little memory may be locked.
    pub(super) fn new(ring: &IoUring, registry: &Registry) -> BounceBuffers {
        let registered = BounceBuffers::register(ring, &registry.alive);
        registry.note_bounce(registered.as_ref().map(|_| ()));
        registered.unwrap_or_else(|_| BounceBuffers::none())
    }

    fn register(ring: &IoUring, alive: &Alive) -> io::Result<BounceBuffers> {
        let mapped = Mapped::new(alive.clone())?;
        let memory = libc::iovec {
            iov_base: mapped.start.as_ptr().cast(),
            iov_len: ALL_BYTES,
        };
        // SAFETY: the memory stays mapped until no read of the ring is under way (`Ring`'s drop),
        // or for ever where the ring is leaked.
        unsafe { ring.submitter().register_buffers(&[memory]) }?;
        Ok(BounceBuffers {
            memory: Some(mapped),
            free: (0..BUFFERS).rev().map(Bounce).collect(),
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
        Some((bounce, memory.buffer(bounce).as_ptr()))
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
        unsafe { memory.buffer(bounce).cast().as_ref() }
    }

    /// Takes one back whose read is over, or was never handed over.
    pub(super) fn give_back(&mut self, bounce: Bounce) {
        self.free.push(bounce);
    }
}
