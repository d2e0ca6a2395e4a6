//! The allocators that pagetide is measured beside.
#![allow(unsafe_code)]

use super::TOTAL_BYTES;
use super::blocks::Blocks;
use buddy_system_allocator::{LockedFrameAllocator, LockedHeap};
use pagetide::PAGE_BYTES;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{self, NonNull};

/// Orders of the buddy allocators: `1 << (ORDERS - 1)` bytes or frames is their largest block.
const ORDERS: usize = 33;

/// A block of memory that its holder owns.
pub struct Memory(NonNull<u8>);

// SAFETY: the block belongs to this value alone, and all allocators here take a block back from
// another thread than the one that it was given to.
unsafe impl Send for Memory {}

/// Any allocator for Rust programs, called directly.
pub struct Heap<A> {
    allocator: A,
    layout: Layout,
}

impl<A: GlobalAlloc + Sync> Heap<A> {
    /// Blocks of `bytes` with the alignment of a page.
    pub fn new(allocator: A, bytes: usize) -> Heap<A> {
        Heap::with_align(allocator, bytes, PAGE_BYTES)
    }

    pub fn with_align(allocator: A, bytes: usize, align: usize) -> Heap<A> {
        let layout = Layout::from_size_align(bytes, align).expect("a power of two");
        Heap { allocator, layout }
    }
}

impl<A: GlobalAlloc + Sync> Blocks for Heap<A> {
    type Block = Memory;

    fn take(&self) -> Memory {
        // SAFETY: the layout's size is not zero.
        let block = unsafe { self.allocator.alloc(self.layout) };
        Memory(NonNull::new(block).expect("the allocator is out of memory"))
    }

    fn give(&self, block: Memory) {
        // SAFETY: the block came from `take`, so from this allocator with this layout, and its
        // owner goes here.
        unsafe { self.allocator.dealloc(block.0.as_ptr(), self.layout) }
    }

    fn touch(&self, block: &mut Memory) {
        // SAFETY: `take` gave the block with this many bytes, and nobody else uses them.
        unsafe { touch(block.0, self.layout.size()) }
    }
}

/// A buddy heap behind a spin lock, on memory that nobody has touched.
pub fn buddy_heap(bytes: usize) -> Heap<LockedHeap<ORDERS>> {
    let heap = LockedHeap::empty();
    let start = map(TOTAL_BYTES).as_ptr() as usize;
    // SAFETY: the mapping is this heap's alone and is never unmapped.
    unsafe { heap.lock().init(start, TOTAL_BYTES) };
    Heap::new(heap, bytes)
}

/// Frame numbers from trees of free ranges behind a spin lock.
pub struct BuddyFrames {
    frames: LockedFrameAllocator<ORDERS>,
    nr_frames: usize,
}

impl BuddyFrames {
    pub fn new(bytes: usize) -> BuddyFrames {
        let frames = LockedFrameAllocator::new();
        frames.lock().add_frame(0, TOTAL_BYTES / PAGE_BYTES);
        BuddyFrames {
            frames,
            nr_frames: bytes / PAGE_BYTES,
        }
    }
}

impl Blocks for BuddyFrames {
    type Block = usize;

    fn take(&self) -> usize {
        let taken = self.frames.lock().alloc(self.nr_frames);
        taken.expect("the allocator is out of frames")
    }

    fn give(&self, block: usize) {
        self.frames.lock().dealloc(block, self.nr_frames);
    }

    fn touch(&self, _: &mut usize) {
        panic!("a frame has no bytes here");
    }
}

/// A mapping of its own for every block.
pub struct Mmap {
    pub bytes: usize,
}

impl Blocks for Mmap {
    type Block = Memory;

    fn take(&self) -> Memory {
        Memory(map(self.bytes))
    }

    fn give(&self, block: Memory) {
        // SAFETY: the block is a mapping of this length whose only owner goes here.
        let result = unsafe { libc::munmap(block.0.as_ptr().cast(), self.bytes) };
        assert_eq!(result, 0, "munmap of a whole mapping");
    }

    fn touch(&self, block: &mut Memory) {
        // SAFETY: `take` gave the block with this many bytes, and nobody else uses them.
        unsafe { touch(block.0, self.bytes) }
    }
}

/// Writes a byte to each page.
///
/// # Safety
/// The `bytes` bytes from `start` on are a block that the caller owns.
unsafe fn touch(start: NonNull<u8>, bytes: usize) {
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: the offset lies in the block (bounded here, owned by the contract).
        let page = unsafe { start.add(offset) };
        // SAFETY: as before; a byte has no alignment.
        unsafe { page.write_volatile(1) };
    }
}

fn map(bytes: usize) -> NonNull<u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without an address, the kernel picks one that nothing else uses.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "mmap of {bytes} bytes");
    NonNull::new(start.cast()).expect("no mapping at zero")
}
