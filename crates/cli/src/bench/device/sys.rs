//! What the peers of the page cache need and no safe library has: a mapping to copy out of, and
//! reads that are many in flight.
#![allow(unsafe_code)]

use io_uring::{IoUring, opcode, types};
use pagetide::PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Instant;

/// The bytes of a page where a device can put them.
#[repr(C, align(4096))]
pub(in crate::bench) struct Aligned(pub(in crate::bench) [u8; PAGE_BYTES]);

impl Aligned {
    pub(in crate::bench) fn zeroed() -> Box<Aligned> {
        Box::new(Aligned([0; PAGE_BYTES]))
    }

    /// The same in an order in which none is beside the one before.
    pub(super) fn scattered<T>(in_order: Vec<T>) -> Vec<T> {
        const STRIDE: usize = 61;
        let mut rows: Vec<Vec<T>> = (0..STRIDE).map(|_| Vec::new()).collect();
        for (at, one) in in_order.into_iter().enumerate() {
            rows[at % STRIDE].push(one);
        }
        rows.into_iter().flatten().collect()
    }
}

/// A file mapped for reading by all threads, without readahead.
pub(in crate::bench) struct Mapping {
    start: *const u8,
    len: usize,
}

// SAFETY: the mapping is only read, from memory that lives as long as this value.
unsafe impl Send for Mapping {}

// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(in crate::bench) fn of(file: &File, len: usize) -> io::Result<Mapping> {
        let (prot, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: the kernel chooses a place where nothing is.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), len, prot, flags, file, 0) }?;
        let mapping = Mapping {
            start: start.cast_const().cast(),
            len,
        };
        // SAFETY: the whole mapping and nothing else; the advice changes no byte.
        unsafe { rustix::mm::madvise(start, len, Advice::Random) }?;
        Ok(mapping)
    }

    /// Copies a page out. Of a file that others cut meanwhile it would end the process: the data
    /// files of the benchmark have no name, or are only read.
    pub(in crate::bench) fn copy(&self, page: u32, buf: &mut [u8; PAGE_BYTES]) {
        let at = page as usize * PAGE_BYTES;
        assert!(at + PAGE_BYTES <= self.len, "a page of the mapping");
        let from = self.start.wrapping_add(at);
        // SAFETY:
        // 1. The page lies inside the mapping (asserted), which lives as long as `self`.
        // 2. `buf` is memory of ours, which no mapping of the file overlaps.
        unsafe { ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), PAGE_BYTES) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start = self.start.cast_mut().cast::<c_void>();
        // SAFETY: made by `mmap` with this length, and nothing refers to it any more.
        let gone = unsafe { rustix::mm::munmap(start, self.len) };
        debug_assert!(gone.is_ok(), "a mapping of ours");
    }
}

/// Asks for huge pages behind memory that was not touched so far: a wish.
pub(in crate::bench) fn want_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    const HUGE_BYTES: usize = 2 << 20;
    let start = memory.as_mut_ptr().cast::<u8>();
    let before = start.align_offset(HUGE_BYTES);
    let len = std::mem::size_of_val(memory).saturating_sub(before) / HUGE_BYTES * HUGE_BYTES;
    let start = start.wrapping_add(before).cast::<c_void>();
    if len > 0 {
        // SAFETY: whole pages of memory of the caller's alone (`before` and `len` are within it);
        // the advice changes no byte.
        let advised = unsafe { rustix::mm::madvise(start, len, Advice::LinuxHugepage) };
        // A kernel without huge pages has none to give.
        let _ = advised;
    }
}

/// Pages to read to, one after the other in memory, with huge pages behind them where that is
/// wished for.
pub(super) fn buffers(nr_pages: usize, has_huge_pages: bool) -> Vec<UnsafeCell<Aligned>> {
    let mut buffers = Vec::with_capacity(nr_pages);
    if has_huge_pages {
        want_huge_pages(buffers.spare_capacity_mut());
    }
    buffers.resize_with(nr_pages, || UnsafeCell::new(Aligned([0; PAGE_BYTES])));
    buffers
}

/// Reads of one thread, up to a depth in flight.
pub(super) struct Ring {
    ring: IoUring,
    file: File,
    /// A buffer a read; the kernel writes to those in flight.
    buffers: Vec<UnsafeCell<Aligned>>,
    /// Which of them those are.
    is_asked: Vec<bool>,
    depth: usize,
    nr_in_flight: usize,
    /// The kernel holds file and buffers for the ring, by number.
    is_registered: bool,
}

/// Reads that are submitted, and waited for, at a time at most.
pub(super) const BATCH: usize = 32;

impl Ring {
    /// For reads of `file`, which is open for direct reads, into these buffers, at least as many as
    /// the depth.
    pub(super) fn new(
        file: File,
        depth: u32,
        buffers: Vec<UnsafeCell<Aligned>>,
        is_registered: bool,
    ) -> io::Result<Ring> {
        let ring = Ring {
            ring: IoUring::new(depth.next_power_of_two())?,
            file,
            is_asked: vec![false; buffers.len()],
            buffers,
            depth: usize::try_from(depth).expect("a depth is short"),
            nr_in_flight: 0,
            is_registered,
        };
        if is_registered {
            let all = libc::iovec {
                iov_base: ring.buffers.as_ptr().cast_mut().cast(),
                iov_len: std::mem::size_of_val(&*ring.buffers),
            };
            let submitter = ring.ring.submitter();
            submitter.register_files(&[ring.file.as_raw_fd()])?;
            // SAFETY: the buffers live until nothing is in flight, and longer than the ring where
            // `drop` cannot wait for that; the kernel lets go of them with the ring.
            unsafe { submitter.register_buffers(&[all]) }?;
        }
        Ok(ring)
    }

    /// Reads pages in order; tells each that has come, its bytes, and the nanoseconds since it was
    /// submitted.
    pub(super) fn read(
        &mut self,
        pages: &[u32],
        mut done: impl FnMut(u32, &[u8; PAGE_BYTES], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let batch = BATCH.min(self.depth);
        let mut free: VecDeque<usize> =
            Aligned::scattered((0..self.buffers.len()).collect()).into();
        let mut asked: Vec<(u32, Instant)> = vec![(0, Instant::now()); self.buffers.len()];
        let mut left = pages.iter();
        loop {
            loop {
                let nr_next = batch.min(left.len());
                if nr_next == 0 || self.depth - self.nr_in_flight < nr_next {
                    break;
                }
                for (slot, &page) in free.drain(..nr_next).zip(left.by_ref()) {
                    asked[slot] = (page, Instant::now());
                    self.push(page, slot)?;
                }
            }
            if self.nr_in_flight == 0 {
                return Ok(());
            }
            self.wait(batch.min(self.nr_in_flight))?;
            while let Some(slot) = self.reap()? {
                let (page, since) = asked[slot];
                let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                done(page, self.bytes(slot), ns)?;
                free.push_back(slot);
            }
        }
    }

    /// Hands over what was pushed, and waits until so many have landed.
    pub(super) fn wait(&mut self, nr_landed: usize) -> io::Result<()> {
        self.ring.submit_and_wait(nr_landed)?;
        Ok(())
    }

    /// A buffer whose read has landed since it was asked for.
    pub(super) fn reap(&mut self) -> io::Result<Option<usize>> {
        let Some(entry) = self.ring.completion().next() else {
            return Ok(None);
        };
        let slot = usize::try_from(entry.user_data()).expect("a slot");
        self.nr_in_flight -= 1;
        self.is_asked[slot] = false;
        let read = usize::try_from(entry.result())
            .map_err(|_| io::Error::from_raw_os_error(-entry.result()))?;
        match read == PAGE_BYTES {
            true => Ok(Some(slot)),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The bytes of a buffer.
    ///
    /// # Panics
    /// Where a read into it is in flight.
    pub(super) fn bytes(&self, slot: usize) -> &[u8; PAGE_BYTES] {
        assert!(!self.is_asked[slot], "a read is in flight");
        // SAFETY: the kernel has let go of it (asserted), and gets it again by `push` only, which
        // needs `&mut self`.
        let buffer = unsafe { &*self.buffers[slot].get() };
        &buffer.0
    }

    /// Whether a read into a buffer is in flight.
    pub(super) fn is_asked(&self, slot: usize) -> bool {
        self.is_asked[slot]
    }

    /// Reads that are in flight, or were not handed over.
    pub(super) fn nr_in_flight(&self) -> usize {
        self.nr_in_flight
    }

    /// Asks for a page to be read into a buffer.
    ///
    /// # Panics
    /// Where a read into it is in flight.
    pub(super) fn push(&mut self, page: u32, slot: usize) -> io::Result<()> {
        assert!(!self.is_asked[slot], "a read is in flight");
        let fd = types::Fd(self.file.as_raw_fd());
        let to = self.buffers[slot].get().cast::<u8>();
        let len = u32::try_from(PAGE_BYTES).expect("a page is short");
        let offset = u64::from(page) * u64::from(len);
        let entry = match self.is_registered {
            true => opcode::ReadFixed::new(types::Fixed(0), to, len, 0)
                .offset(offset)
                .build(),
            false => opcode::Read::new(fd, to, len).offset(offset).build(),
        };
        let entry = entry.user_data(slot as u64);
        let mut queue = self.ring.submission();
        // SAFETY:
        // 1. The buffer is a page long, and lives until the read has completed: `drop` waits.
        // 2. Nobody refers to it: that takes `&self`, and no other read is into it (asserted).
        // 3. The file is open as long as `self`.
        let pushed = unsafe { queue.push(&entry) };
        pushed.map_err(io::Error::other)?;
        drop(queue);
        self.is_asked[slot] = true;
        self.nr_in_flight += 1;
        Ok(())
    }
}

impl Drop for Ring {
    /// Waits for what is in flight: its buffers are about to go.
    fn drop(&mut self) {
        while self.nr_in_flight > 0 {
            if self.ring.submit_and_wait(1).is_err() {
                // The kernel may write to them still: they stay.
                std::mem::forget(std::mem::take(&mut self.buffers));
                return;
            }
            self.nr_in_flight -= self.ring.completion().count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write;

    fn numbered(nr_pages: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        for page in 0..nr_pages {
            let bytes = page.to_le_bytes().repeat(PAGE_BYTES / 4);
            file.write_all(&bytes).expect("room for the file");
        }
        file
    }

    #[test]
    fn a_ring_reads_each_page_once() {
        let data = numbered(100);
        let file = OpenOptions::new().read(true).open(data.path());
        let pages: Vec<u32> = (0..997).map(|at| at * 37 % 100).collect();
        let rooms = [(1, 1), (7, 7), (7, 100), (128, 128), (128, 300)];
        for (room, is_registered) in rooms.into_iter().zip([false, true].into_iter().cycle()) {
            let file = file.as_ref().expect("the file").try_clone();
            let file = file.expect("a descriptor");
            let (depth, nr_buffers) = room;
            let buffers = buffers(nr_buffers, !is_registered);
            let Ok(mut ring) = Ring::new(file, depth, buffers, is_registered) else {
                return println!("skipped: io_uring: the kernel has none for us");
            };
            let mut seen = vec![0; 100];
            ring.read(&pages, |page, bytes, _| {
                assert!(bytes.chunks(4).all(|word| word == page.to_le_bytes()));
                seen[page as usize] += 1;
                Ok(())
            })
            .expect("reads");
            let wanted = |page| pages.iter().filter(|&&wanted| wanted == page).count();
            assert!((0..100).zip(seen).all(|(page, seen)| seen == wanted(page)));
        }
    }

    #[test]
    fn a_ring_whose_reader_fails_waits_for_the_rest() {
        let data = numbered(64);
        let file = File::open(data.path()).expect("the file");
        let Ok(mut ring) = Ring::new(file, 32, buffers(32, false), false) else {
            return println!("skipped: io_uring: the kernel has none for us");
        };
        let pages: Vec<u32> = (0..64).collect();
        let failed = ring.read(&pages, |_, _, _| Err(io::ErrorKind::Other.into()));
        assert!(failed.is_err() && ring.nr_in_flight > 0);
    }

    #[test]
    fn a_mapping_is_copied_out_of() {
        let data = numbered(9);
        let file = File::open(data.path()).expect("the file");
        let mapping = Mapping::of(&file, 9 * PAGE_BYTES).expect("a mapping");
        let mut bytes = Aligned::zeroed();
        for page in [8, 0, 5] {
            mapping.copy(page, &mut bytes.0);
            assert!(bytes.0.chunks(4).all(|word| word == page.to_le_bytes()));
        }
    }
}
