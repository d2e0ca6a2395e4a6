//! Writes of one file that get under way together, on a ring that their caller has for itself.
#![allow(unsafe_code)]

use super::{DEPTH, NoMemory, Ring};
use crate::io::{Engine, Lease};
use crate::shared::locked;
use crate::store::DirectFile;
use io_uring::{opcode, squeue, types};
use std::fs;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;

/// A write of buffers that follow each other in a file.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Which of the caller's buffers.
    pub(crate) slices: Range<usize>,
    /// Where they go, as the file's pages are numbered.
    pub(crate) offset: u64,
    /// Their bytes.
    pub(crate) nr_bytes: usize,
    /// What the kernel said: the bytes written, perhaps not all. `None` where it was not asked.
    pub(crate) result: Option<io::Result<usize>>,
}

impl Piece {
    pub(crate) fn new(slices: Range<usize>, offset: u64, nr_bytes: usize) -> Piece {
        Piece {
            slices,
            offset,
            nr_bytes,
            result: None,
        }
    }

    /// Where they end.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.nr_bytes as u64
    }

    /// Whether the kernel has written all of it.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.result, Some(Ok(nr_bytes)) if nr_bytes == self.nr_bytes)
    }
}

impl Engine {
    /// Carries out writes of a file, [`DEPTH`] at most; when it returns, none is under way. Those
    /// that do not go past the kernel's page cache are left, and all where there is no ring: where
    /// it needs memory to make one and `may_make` says no, too.
    pub(crate) fn write(
        &self,
        file: &DirectFile,
        slices: &[IoSlice<'_>],
        pieces: &mut [Piece],
        may_make: bool,
    ) {
        let lease = match may_make {
            true => self.lease(),
            false => self.idle_lease(),
        };
        if let Some(lease) = lease {
            UnderWay::queue(lease, (file, slices), pieces).wait(pieces);
        }
    }

    /// Hands writes of a file to a ring, [`DEPTH`] at most, and does not wait for them; as
    /// [`Engine::write`] otherwise. Their bytes and the file stay until [`UnderWay::wait`].
    pub(crate) fn begin_writes(
        &self,
        file: &DirectFile,
        slices: &[IoSlice<'_>],
        pieces: &[Piece],
    ) -> Option<UnderWay<'_>> {
        let lease = self.lease()?;
        let mut under_way = UnderWay::queue(lease, (file, slices), pieces);
        under_way.hand_over();
        Some(under_way)
    }

    /// A ring that somebody made before and nobody uses.
    fn idle_lease(&self) -> Option<Lease<'_>> {
        let ring = locked(&self.rings).idle.pop()?;
        let engine = self;
        Some(Lease {
            engine,
            ring: Some(ring),
        })
    }

    /// Whether writes of a file can get under way together. The first call makes a ring.
    pub(crate) fn has_many_writes(&self, file: &DirectFile) -> bool {
        file.is_direct() && self.has_rings()
    }
}

/// Writes that a ring has for itself. Dropped, by unwinding too, it waits for those that the kernel
/// has taken.
pub(crate) struct UnderWay<'a> {
    lease: Lease<'a>,
    /// Not taken by the kernel yet.
    nr_queued: usize,
    /// Taken, and not over.
    nr_taken: usize,
}

impl<'a> UnderWay<'a> {
    /// Queues writes. Those that the kernel refuses to take are left.
    ///
    /// # Panics
    /// Where reads of the ring are under way.
    fn queue(
        lease: Lease<'a>,
        (file, slices): (&DirectFile, &[IoSlice<'_>]),
        pieces: &[Piece],
    ) -> UnderWay<'a> {
        let mut under_way = UnderWay {
            lease,
            nr_queued: 0,
            nr_taken: 0,
        };
        let ring = under_way.ring();
        assert_eq!(ring.nr_in_flight(), 0, "the caller has it for itself");
        // A kernel before 5.5 reads lists of buffers when it writes.
        if ring.is_broken || !ring.ring.params().is_feature_submit_stable() {
            return under_way;
        }
        let mut nr_queued = 0;
        let has_plain = ring.has_plain;
        let mut submission = ring.ring.submission();
        for (at, piece) in pieces.iter().take(DEPTH).enumerate() {
            let bufs = &slices[piece.slices.clone()];
            let Some((file, offset)) = file.direct_write(bufs, piece.offset) else {
                continue;
            };
            let entry = entry((file, has_plain), bufs, offset).user_data(at as u64);
            // SAFETY:
            // 1. The list `bufs` is read when the kernel takes the write (checked above). Both
            //    callers of this see to that before they return, and so does `drop`.
            // 2. What the kernel did not take it never will: it is in a broken ring then, which is
            //    not entered again.
            // 3. The bytes are read only, and stay until the write is over: `wait` and `drop` do
            //    not end, nor unwind, before that. `writeback/run.rs` alone has values of this
            //    type, beside those of core that keep the pages, and leaks none.
            // 4. No read has a slot (checked above), so that what lands is one of these.
            let pushed = unsafe { submission.push(&entry) };
            pushed.expect("as many entries as pieces");
            nr_queued += 1;
        }
        drop(submission);
        under_way.nr_queued = nr_queued;
        under_way
    }

    fn ring(&mut self) -> &mut Ring {
        self.lease.ring.as_mut().expect("taken by `drop` only")
    }

    /// Makes the kernel take what is queued.
    fn hand_over(&mut self) {
        while self.nr_queued > 0 && !self.ring().is_broken {
            self.enter(0);
        }
    }

    /// Waits until all is over, and notes what the kernel said of `pieces`, which were queued.
    pub(crate) fn wait(mut self, pieces: &mut [Piece]) {
        self.end(pieces);
    }

    fn end(&mut self, pieces: &mut [Piece]) {
        self.reap(pieces);
        while self.nr_queued + self.nr_taken > 0 {
            match self.ring().is_broken {
                false => self.enter(self.nr_queued + self.nr_taken),
                true => {
                    self.nr_queued = 0;
                    // What is under way lands without us.
                    std::thread::yield_now();
                }
            }
            self.reap(pieces);
        }
    }

    /// Hands over what is queued, and waits until `want` writes are over. Where the kernel has no
    /// memory for any, one more of those that are under way.
    fn enter(&mut self, want: usize) {
        let nr_taken = self.nr_taken;
        let ring = self.ring();
        match ring.call(want) {
            Ok(nr_more) => {
                let nr_more = nr_more.min(self.nr_queued);
                self.nr_queued -= nr_more;
                self.nr_taken += nr_more;
            }
            Err(NoMemory) => {
                let nr_landed = ring.ring.completion().len();
                match nr_landed < nr_taken {
                    true => ring.await_landed(nr_landed + 1),
                    false => ring.count_refusal(),
                }
            }
        }
    }

    fn reap(&mut self, pieces: &mut [Piece]) {
        let mut nr_landed = 0;
        for entry in self.ring().ring.completion() {
            let at = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            let result = usize::try_from(entry.result())
                .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            // Nobody asks for them where it is dropped.
            if let Some(piece) = pieces.get_mut(at) {
                piece.result = Some(result);
            }
            nr_landed += 1;
        }
        self.nr_taken -= nr_landed;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.end(&mut []);
        let lease = &mut self.lease;
        let ring = lease.ring.as_mut().expect("taken by `drop` only");
        lease.engine.counts.add_enters(ring);
    }
}

fn entry((file, has_plain): (&fs::File, bool), bufs: &[IoSlice<'_>], offset: u64) -> squeue::Entry {
    let fd = types::Fd(file.as_raw_fd());
    let nr_bytes = bufs.first().map(|first| u32::try_from(first.len()));
    match (bufs, nr_bytes) {
        ([one], Some(Ok(nr_bytes))) if has_plain => {
            let write = opcode::Write::new(fd, one.as_ptr(), nr_bytes);
            write.offset(offset).build()
        }
        _ => {
            let nr_bufs = u32::try_from(bufs.len()).expect("a write is short");
            // An `IoSlice` is an `iovec`, as its documentation says.
            let write = opcode::Writev::new(fd, bufs.as_ptr().cast(), nr_bufs);
            write.offset(offset).build()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory};

    const PAGE: usize = 4096;
    const NR_PAGES: usize = 600;

    #[test]
    fn who_finds_no_ring_or_one_writes_what_others_have_none_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, vec![0; NR_PAGES * PAGE]).unwrap();
        let memory = Memory::builder().budget(ByteSize::mib(16));
        let memory = memory.without_thread().build().unwrap();
        let file = memory.open_rw(&path, &memory.root()).unwrap();
        let engine = &memory.home().io;
        let mut leases: Vec<Lease<'_>> = std::iter::from_fn(|| engine.lease()).collect();
        let most = if engine.has_rings() {
            engine.max_rings
        } else {
            0
        };
        assert_eq!(leases.len(), most);
        for byte in 1..=3 {
            for page in (0..NR_PAGES).step_by(2) {
                file.write_at(&[byte; PAGE], (page * PAGE) as u64).unwrap();
            }
            file.flush_range(..).unwrap();
            for (number, page) in fs::read(&path).unwrap().chunks(PAGE).enumerate() {
                let expected = if number % 2 == 0 { byte } else { 0 };
                assert!(page.iter().all(|&byte| byte == expected), "page {number}");
            }
            // None, then one, then two.
            drop(leases.pop());
        }
        assert_eq!(memory.audit(), Ok(()));
    }
}
