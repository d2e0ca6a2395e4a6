//! The arena: one reservation of address space for all frames.
#![allow(unsafe_code)]

mod small;

use crate::Error;
use pagetide_core::alloc::{PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use pagetide_core::memory::Idle;
use pagetide_core::sync::prefetch;
use pagetide_core::units::{Frame, Order, PAGE_BYTES, index};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MlockFlags, MprotectFlags, ProtFlags};
use small::{Change, Small};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a pageblock, which are those of a huge page.
pub(crate) const PAGEBLOCK_BYTES: usize = PAGE_BYTES << PAGEBLOCK_ORDER;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// Lines that are asked for before a copy begins: with one a copy of 4 KiB out of memory took 8 %
/// longer on Zen 5, with twelve or all of them no less, and of hot pages longer.
const LINES_BEFORE_COPY: usize = 4;

/// Whether memory of the system goes by frames.
///
/// # Errors
/// [`Error::PageSize`]: `madvise` rounds a range up to pages of the system, and would take frames
/// that lie behind a block, with the bytes that are in them.
pub(crate) fn check_page_size(page_bytes: usize) -> Result<(), Error> {
    match page_bytes {
        PAGE_BYTES => Ok(()),
        _ => Err(Error::PageSize { page_bytes }),
    }
}

/// Address space for a fixed number of frames. Frames that were never written take no memory.
///
/// Not inherited by a forked child.
#[derive(Debug)]
pub(crate) struct Arena {
    /// A multiple of [`PAGEBLOCK_BYTES`]: a pageblock is a huge page, or none.
    start: NonNull<u8>,
    nr_frames: u32,
    /// Which pageblocks are made of small pages; `None` where all of them are.
    small: Option<Mutex<Small>>,
    /// A forked child has no mapping.
    alive: Alive,
}

// SAFETY: the arena owns its mapping and hands out addresses only; who may use the bytes behind
// them is decided by core's frame states, which are made for many threads.
unsafe impl Send for Arena {}
// SAFETY: as for `Send`: all methods take `&self` and touch no byte of the mapping.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `nr_frames` frames, and asks for huge pages behind them or for none.
    ///
    /// # Errors
    /// What `mmap`, `mprotect` or `madvise` says.
    pub(crate) fn reserve(nr_frames: u32, has_huge_pages: bool) -> io::Result<Arena> {
        let alive = Alive::new()?;
        let arena = Arena {
            start: map_aligned(index(nr_frames) * PAGE_BYTES)?,
            nr_frames,
            small: has_huge_pages.then(Mutex::default),
            alive,
        };
        arena.open()?;
        arena.advise(0..nr_frames, Advice::LinuxDontFork)?;
        let advice = match has_huge_pages {
            true => Advice::LinuxHugepage,
            false => Advice::LinuxNoHugepage,
        };
        // A kernel built without huge pages refuses both, and has none.
        let _ = arena.advise(0..nr_frames, advice);
        Ok(arena)
    }

    /// Lets the memory be read and written, which it may not be before: a process that locks all
    /// that it maps (`mlockall`) would have all of it resident at once. There each page is locked
    /// as it is touched.
    fn open(&self) -> io::Result<()> {
        let start = self.start.as_ptr().cast();
        let bytes = index(self.nr_frames) * PAGE_BYTES;
        // SAFETY: all of the mapping, which was just made: nothing is in it yet.
        let advised = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontNeed) };
        // What is locked is refused so.
        if advised == Err(Errno::INVAL) {
            // SAFETY: as above. It changes no byte.
            let locked = unsafe { rustix::mm::mlock_with(start, bytes, MlockFlags::ONFAULT) };
            // Where that is refused, all of it is resident.
            let _ = locked;
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: all of the mapping, which nobody knows of yet, and private memory.
        Ok(unsafe { rustix::mm::mprotect(start, bytes, access) }?)
    }

    /// What `madvise` says of `advice` for these frames, which changes none of their bytes.
    fn advise(&self, frames: Range<u32>, advice: Advice) -> io::Result<()> {
        let is_harmless = matches!(
            advice,
            Advice::LinuxDontFork
                | Advice::LinuxHugepage
                | Advice::LinuxNoHugepage
                | Advice::LinuxCold
        );
        let in_order = frames.start <= frames.end && frames.end <= self.nr_frames;
        assert!(is_harmless && in_order, "{advice:?} for frames {frames:?}");
        let bytes = index(frames.end - frames.start) * PAGE_BYTES;
        // SAFETY: the offset is at most the mapping's length (asserted above).
        let start = unsafe { self.start.add(index(frames.start) * PAGE_BYTES) };
        // SAFETY: the range is part of the mapping, and the advice changes no byte (asserted
        // above).
        let advised = unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, advice) };
        Ok(advised?)
    }

    /// Whether this process is the one that made it.
    #[inline]
    pub(crate) fn alive(&self) -> &Alive {
        &self.alive
    }

    /// The first byte of a block.
    ///
    /// # Panics
    /// Where the block does not lie in the arena.
    #[inline]
    pub(crate) fn block(&self, frame: Frame, order: Order) -> NonNull<u8> {
        let inside =
            frame.number() < self.nr_frames && order.nr_pages() <= self.nr_frames - frame.number();
        assert!(
            inside,
            "{frame:?} of order {} lies outside the arena",
            order.get()
        );
        // SAFETY: the offset is below the mapping's length (asserted above), which fits an `isize`.
        unsafe { self.start.add(frame.index() * PAGE_BYTES) }
    }
}

impl Arena {
    /// Lets the OS have the memory of a free block; it reads as zeros when it is touched again.
    ///
    /// # Errors
    /// What `madvise` says; in a forked child, which has no arena.
    pub(crate) fn release(&self, idle: &Idle) -> io::Result<()> {
        if self.alive.is_forked() {
            // Something else may be mapped there by now.
            return Err(io::Error::other("the process was forked"));
        }
        let start = self.block(idle.frame(), idle.order());
        let bytes = idle.order().bytes();
        if let Some(small) = &self.small {
            let mut small = small.lock().unwrap_or_else(PoisonError::into_inner);
            self.resize_pages(&mut small, idle);
        }
        let start = start.as_ptr().cast();
        // SAFETY:
        // 1. The block lies in the arena's mapping (`block` checks it), which this process has
        //    (checked above).
        // 2. Core took it from its free lists for this value alone, so nobody has a view of it.
        match unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontNeed) } {
            Err(Errno::INVAL) => {}
            released => return Ok(released?),
        }
        // It is locked. Kernels before 5.18 refuse this, too.
        // SAFETY: as above.
        match unsafe { libc::madvise(start, bytes, libc::MADV_DONTNEED_LOCKED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has the first line of a frame's bytes fetched, for a caller who lets somebody look at them
    /// soon: see [`prefetch`].
    ///
    /// # Panics
    /// As [`Arena::block`].
    #[inline]
    pub(crate) fn touch(&self, frame: Frame) {
        prefetch(self.block(frame, Order::ZERO).as_ptr());
    }

    /// As [`Arena::touch`], the lines from byte `from` on of a block that a copy comes to first: so
    /// many that the CPU goes on by itself where the page is in no cache. The bytes may lie behind
    /// the block's end.
    ///
    /// # Panics
    /// As [`Arena::block`].
    #[inline]
    pub(crate) fn touch_for_copy(&self, frame: Frame, from: usize) {
        let first = self.block(frame, Order::ZERO).as_ptr().wrapping_add(from);
        for line in 0..LINES_BEFORE_COPY {
            prefetch(first.wrapping_add(line * LINE_BYTES));
        }
    }

    /// Has the pageblock of which a part goes made of small pages from now on: else the kernel
    /// would make a huge page of what is left of it, and all of that would be resident again. One
    /// that goes as a whole may be a huge page the next time.
    fn resize_pages(&self, small: &mut Small, idle: &Idle) {
        let frame = idle.frame().number();
        let first = frame / PAGEBLOCK_PAGES;
        let end = first + idle.order().nr_pages().div_ceil(PAGEBLOCK_PAGES);
        let all = self.nr_frames.div_ceil(PAGEBLOCK_PAGES);
        let is_whole = idle.order().get() >= PAGEBLOCK_ORDER;
        for pageblock in first..end {
            let (pageblocks, advice) = match small.gone(pageblock, is_whole) {
                Change::None => continue,
                Change::ToHuge => (pageblock..pageblock + 1, Advice::LinuxHugepage),
                Change::ToSmall => (pageblock..pageblock + 1, Advice::LinuxNoHugepage),
                Change::AllToSmall => (0..all, Advice::LinuxNoHugepage),
            };
            let end = self.nr_frames.min(pageblocks.end * PAGEBLOCK_PAGES);
            // Where the kernel has no more mappings, or no huge pages, only that goes on which it
            // did before.
            let _ = self.advise(pageblocks.start * PAGEBLOCK_PAGES..end, advice);
        }
        if !is_whole {
            // Of a huge page that is mapped in part the kernel keeps all, and counts it to the
            // cgroup, until memory is short. It splits one of which a part is to be evicted first,
            // where no read into it is under way.
            let _ = self.advise(frame..frame + idle.order().nr_pages(), Advice::LinuxCold);
        }
    }

    /// Asks the kernel to take the memory of a range of frames from one of its nodes, or from
    /// others where that one has none.
    ///
    /// # Errors
    /// What `mbind` says: containers often forbid it.
    pub(crate) fn prefer_node(&self, frames: Range<u32>, os_node: u32) -> io::Result<()> {
        /// `MPOL_PREFERRED` of `linux/mempolicy.h`.
        const PREFERRED: libc::c_int = 1;
        let in_order = frames.start <= frames.end && frames.end <= self.nr_frames;
        assert!(in_order, "frames {frames:?} lie outside the arena");
        let bytes = index(frames.end - frames.start) * PAGE_BYTES;
        // SAFETY: the offset is at most the mapping's length (asserted above).
        let start = unsafe { self.start.add(index(frames.start) * PAGE_BYTES) };
        let mut nodes = [0_u64; 16];
        let word = nodes.get_mut(index(os_node / 64));
        *word.ok_or_else(|| io::Error::other("a node number above 1023"))? = 1 << (os_node % 64);
        // SAFETY:
        // 1. The range is part of the mapping; a policy changes no byte of it.
        // 2. `nodes` has room for the 1024 bits named, and lives across the call.
        let failed = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                start.as_ptr(),
                bytes,
                PREFERRED,
                nodes.as_ptr(),
                1024_usize,
                0_u32,
            )
        };
        if failed == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// Maps anonymous memory that begins where a huge page can, and may not be touched yet.
fn map_aligned(bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::empty();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let all = bytes + PAGEBLOCK_BYTES;
    // SAFETY: no address is asked for, so no existing mapping can be replaced.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), all, protection, flags) }?;
    let mapped = NonNull::<u8>::new(mapped.cast()).expect("mmap never maps address 0 unasked");
    let before = mapped.as_ptr().align_offset(PAGEBLOCK_BYTES);
    // SAFETY: `align_offset` of bytes is below `PAGEBLOCK_BYTES`; as many more than asked were
    // mapped.
    let start = unsafe { mapped.add(before) };
    // SAFETY: as for `start`.
    let end = unsafe { start.add(bytes) };
    for (rest, len) in [(mapped, before), (end, PAGEBLOCK_BYTES - before)] {
        if len > 0 {
            // SAFETY: what lies before `start` and from `end` on was just mapped, is whole pages,
            // and nobody else knows of it.
            unsafe { rustix::mm::munmap(rest.as_ptr().cast(), len) }?;
        }
    }
    Ok(start)
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.alive.is_forked() {
            // Something else may be mapped there by now.
            return;
        }
        let bytes = index(self.nr_frames) * PAGE_BYTES;
        // SAFETY:
        // 1. `start` and `bytes` are those of the mapping made in `reserve`, unmapped only here.
        // 2. Reads have a share of the owner of this arena, and pages and buffers keep it
        //    (`home.rs`), so none is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of the arena: {unmapped:?}");
    }
}

/// Says whether this process is the one that made it: a word that the kernel wipes in a child when
/// the process forks. Clones are of one word.
#[derive(Clone, Debug)]
pub(crate) struct Alive {
    /// What `wiped` has mapped: a load less than by way of that.
    word: NonNull<AtomicU32>,
    _wiped: Arc<Wiped>,
}

// SAFETY: the word is atomic, and its mapping lives as long as this value.
unsafe impl Send for Alive {}
// SAFETY: as for `Send`.
unsafe impl Sync for Alive {}

/// A page that a child has wiped; unmapped with the last share of it.
#[derive(Debug)]
struct Wiped(NonNull<libc::c_void>);

// SAFETY: it names a mapping that it owns, of which it reads and writes nothing.
unsafe impl Send for Wiped {}
// SAFETY: as for `Send`.
unsafe impl Sync for Wiped {}

impl Alive {
    /// Maps the word.
    ///
    /// # Errors
    /// What `mmap` or `madvise` says: kernels before 4.14 do not wipe.
    pub(crate) fn new() -> io::Result<Alive> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let nowhere = std::ptr::null_mut();
        let flags = MapFlags::PRIVATE;
        // SAFETY: no address is asked for, so no existing mapping can be replaced.
        let start = unsafe { rustix::mm::mmap_anonymous(nowhere, PAGE_BYTES, protection, flags) }?;
        let start = NonNull::new(start).expect("mmap never maps address 0 unasked");
        let alive = Alive {
            word: start.cast(),
            _wiped: Arc::new(Wiped(start)),
        };
        // SAFETY: the range is exactly the mapping that was just made; nothing is in it yet.
        let advised =
            unsafe { rustix::mm::madvise(start.as_ptr(), PAGE_BYTES, Advice::LinuxWipeOnFork) };
        advised?;
        alive.word().store(1, Ordering::Relaxed);
        Ok(alive)
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping lives as long as this value's share of it, is aligned to a page, and
        // only ever used as this word. A child has it, too, wiped.
        unsafe { self.word.as_ref() }
    }

    /// Whether this is a child of the process that made it. One load.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `Alive::new` made, which nothing borrows any more.
        let unmapped = unsafe { rustix::mm::munmap(self.0.as_ptr(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "the word was mapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_with_larger_pages_is_refused() {
        assert!(check_page_size(rustix::param::page_size()).is_ok());
        for page_bytes in [16 << 10, 64 << 10] {
            let refused = check_page_size(page_bytes).unwrap_err();
            assert!(matches!(refused, Error::PageSize { page_bytes: told } if told == page_bytes));
            assert!(refused.to_string().ends_with(&page_bytes.to_string()));
        }
    }
}
