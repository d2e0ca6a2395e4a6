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
use pagetide_core::units::{Frame, Order, PAGE_BYTES, index};
use std::io;

/// Of each ring: with as many as it has reads, the copies came from a cache less near.
const BUFFERS: u32 = 16;

/// The number of their memory in their ring, which has no other.
pub(super) const BOUNCE_NUMBER: u16 = 0;

/// One of the buffers, which a read has: a frame of their arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounce(Frame);

/// The buffers of one ring, which waits for its reads before they go.
pub(super) struct BounceBuffers {
    /// An arena of their own: no huge page, and not inherited by a forked child.
    memory: Option<Arena>,
    free: Vec<Bounce>,
    /// Given out since the ring handed reads over.
    nr_queued: u32,
    /// Bytes were copied to frames that other CPUs may not see yet.
    is_settling: bool,
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
            is_settling: false,
        })
    }

    /// None at all.
    pub(super) const fn none() -> BounceBuffers {
        BounceBuffers {
            memory: None,
            free: Vec::new(),
            nr_queued: 0,
            is_settling: false,
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

    /// Copies the first bytes that a read has left there, past the caches.
    ///
    /// # Safety
    /// The kernel has said that the read is over. Nobody looks at `to` before
    /// [`BounceBuffers::settle`].
    pub(super) unsafe fn copy_out(&mut self, bounce: Bounce, to: &mut [u8]) {
        let memory = self.memory.as_ref().expect("what was taken from");
        let start = memory.block(bounce.0, Order::ZERO);
        // SAFETY: a whole buffer, zeroed when it was mapped. The kernel has let go of it (the
        // caller's word), and gets it again only by way of `take`, which needs `&mut self`.
        let from: &[u8; PAGE_BYTES] = unsafe { start.cast().as_ref() };
        // SAFETY: the caller's word.
        unsafe { copy_past_caches(&from[..to.len()], to) };
        self.is_settling = true;
    }

    /// Whoever sees what this thread does from now on sees the bytes that it copied.
    pub(super) fn settle(&mut self) {
        if std::mem::take(&mut self.is_settling) {
            settle();
        }
    }

    /// Takes one back whose read is over, or was never handed over.
    pub(super) fn give_back(&mut self, bounce: Bounce) {
        self.free.push(bounce);
    }
}

/// Copies bytes to memory that is in no cache, as most frames are: each store would wait until its
/// line was there. Where the program reads all of each page of a batch, too, what it waits for then
/// is less: on Zen 3 a batch of 128 takes 0.96 of the time, 0.93 where it reads 8 lines of each or
/// none. Not so with a [`settle`] for each page, which waits until its lines are in memory.
///
/// # Safety
/// Nobody looks at `to` before [`settle`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past_caches(from: &[u8], to: &mut [u8]) {
    use crate::arena::LINE_BYTES;
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const PART: usize = size_of::<__m128i>();
    if !to.as_ptr().addr().is_multiple_of(LINE_BYTES) {
        return to.copy_from_slice(from);
    }
    let (lines, rest) = from.as_chunks::<LINE_BYTES>();
    let (to_lines, to_rest) = to.as_chunks_mut::<LINE_BYTES>();
    for (line, to_line) in lines.iter().zip(to_lines) {
        let (parts, _) = line.as_chunks::<PART>();
        let (to_parts, _) = to_line.as_chunks_mut::<PART>();
        for (part, to_part) in parts.iter().zip(to_parts) {
            // SAFETY: so many bytes.
            let part = unsafe { _mm_loadu_si128(part.as_ptr().cast()) };
            // SAFETY: so many bytes, at a multiple of their number; the caller sees to the fence.
            unsafe { _mm_stream_si128(to_part.as_mut_ptr().cast(), part) };
        }
    }
    to_rest.copy_from_slice(rest);
}

/// # Safety
/// None is asked for.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_past_caches(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

/// Orders stores past the caches before the others that follow.
fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction changes nothing.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::LINE_BYTES;

    #[test]
    fn what_is_copied_past_the_caches_is_there_and_no_more() {
        let bytes: Vec<u8> = (1..=250).cycle().take(PAGE_BYTES).collect();
        for at in [0, 1, 16, LINE_BYTES, LINE_BYTES + 8] {
            for nr_bytes in [0, 1, 63, 64, 65, 512, 1000, PAGE_BYTES] {
                // Where the vector begins lies by chance.
                let mut to = vec![0; 2 * PAGE_BYTES + LINE_BYTES];
                let at = to.as_ptr().align_offset(LINE_BYTES) + at;
                let from = &bytes[PAGE_BYTES - nr_bytes..];
                // SAFETY: `settle` comes first.
                unsafe { copy_past_caches(from, &mut to[at..at + nr_bytes]) };
                settle();
                assert_eq!(
                    &to[at..at + nr_bytes],
                    from,
                    "{nr_bytes} bytes from {at} on"
                );
                let is_zero = |byte: &u8| *byte == 0;
                assert!(to[..at].iter().all(is_zero) && to[at + nr_bytes..].iter().all(is_zero));
            }
        }
    }
}
