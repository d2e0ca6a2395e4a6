//! Writes of one file that get under way together, and that their caller waits for.
#![allow(unsafe_code)]

use super::{DEPTH, Ring};
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
    /// What the kernel said: the bytes written, perhaps not all. `None` where it was not asked.
    pub(crate) result: Option<io::Result<usize>>,
}

impl Piece {
    pub(crate) fn new(slices: Range<usize>, offset: u64) -> Piece {
        Piece {
            slices,
            offset,
            result: None,
        }
    }
}

impl Engine {
    /// Carries out writes of a file, as many at a time as a ring has room for; when it returns,
    /// none is under way. Those that do not go past the kernel's page cache are left, and all where
    /// there is no ring: where it needs memory to make one and `may_make` says no, too.
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
        let Some(mut lease) = lease else { return };
        let ring = lease.ring.as_mut().expect("taken by `drop` only");
        for pieces in pieces.chunks_mut(DEPTH) {
            ring.write(file, slices, pieces);
        }
        self.counts.add_enters(ring);
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

impl Ring {
    /// Carries out writes, [`DEPTH`] at most: one system call, more where it is interrupted. Those
    /// that the kernel refused to take are left.
    ///
    /// # Panics
    /// Where reads of the ring are under way.
    fn write(&mut self, file: &DirectFile, slices: &[IoSlice<'_>], pieces: &mut [Piece]) {
        assert_eq!(self.nr_in_flight(), 0, "the caller has it for itself");
        if self.is_broken {
            return;
        }
        let mut under_way = UnderWay {
            ring: self,
            pieces,
            nr_queued: 0,
            nr_taken: 0,
        };
        under_way.queue(file, slices);
        drop(under_way);
    }
}

/// Writes of one call. Dropped, by unwinding too, it waits for those that the kernel has taken.
struct UnderWay<'a> {
    ring: &'a mut Ring,
    pieces: &'a mut [Piece],
    /// Not taken by the kernel yet.
    nr_queued: usize,
    /// Taken, and not over.
    nr_taken: usize,
}

impl UnderWay<'_> {
    fn queue(&mut self, file: &DirectFile, slices: &[IoSlice<'_>]) {
        let has_plain = self.ring.has_plain;
        let mut submission = self.ring.ring.submission();
        for (at, piece) in self.pieces.iter().enumerate() {
            let bufs = &slices[piece.slices.clone()];
            let Some((file, offset)) = file.direct_write(bufs, piece.offset) else {
                continue;
            };
            let entry = entry((file, has_plain), bufs, offset).user_data(at as u64);
            // SAFETY:
            // 1. The caller of `Engine::write` lends the buffers and the file for that call, and
            //    `bufs` lie in its list of them. That call does not end, nor unwind, before what
            //    the kernel has taken is over: `drop` waits for it, and `self` is not leaked.
            // 2. What the kernel did not take it never will: it is in a broken ring then, which is
            //    not entered again.
            // 3. No read has a slot (`Ring::write` checks it), so that what lands is one of these.
            let pushed = unsafe { submission.push(&entry) };
            pushed.expect("as many entries as pieces");
            self.nr_queued += 1;
        }
    }

    /// Hands over what is queued, and waits until all is over.
    fn enter(&mut self) {
        let ring = &mut *self.ring;
        ring.nr_enters += 1;
        match ring.ring.submit_and_wait(self.nr_queued + self.nr_taken) {
            Ok(nr_taken) => {
                let nr_taken = nr_taken.min(self.nr_queued);
                self.nr_queued -= nr_taken;
                self.nr_taken += nr_taken;
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // No memory for requests, or too many that have landed.
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => std::thread::yield_now(),
                _ => ring.is_broken = true,
            },
        }
    }

    fn reap(&mut self) {
        for entry in self.ring.ring.completion() {
            let at = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            let result = usize::try_from(entry.result())
                .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            self.pieces[at].result = Some(result);
            self.nr_taken -= 1;
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        while self.nr_queued + self.nr_taken > 0 {
            match self.ring.is_broken {
                false => self.enter(),
                true => {
                    self.nr_queued = 0;
                    // What is under way lands without us.
                    std::thread::yield_now();
                }
            }
            self.reap();
        }
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
