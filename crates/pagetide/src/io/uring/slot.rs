//! One read that the kernel has in its hands, and the way of its bytes.
#![allow(unsafe_code)]

use super::bounce::{BOUNCE_NUMBER, Bounce, BounceBuffers};
use crate::io::registered::RingTables;
use crate::io::run::{Few, Run};
use io_uring::{opcode, squeue, types};
use pagetide_core::units::PAGE_BYTES;
use std::io;
use std::os::fd::AsRawFd;
use std::slice;

/// A run that the kernel reads, and the list of its buffers.
pub(super) struct Slot {
    pub(super) run: Run,
    /// Read by the kernel until the run has landed.
    bufs: Few<libc::iovec>,
    pub(super) way: Way,
}

/// How the bytes of a read come to the run's buffers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// The kernel looks up their memory.
    LookedUp,
    /// Their memory is registered.
    Fixed,
    /// They are copied from a bounce buffer.
    Bounced(Bounce),
}

// SAFETY: what is not `Send` by itself are the pointers in buffer lists: they lie on the heap with
// their slot, and point into the arena, which is `Sync`. (`Run` is checked below.)
unsafe impl Send for Slot {}
const _: () = is_send::<Run>();

const fn is_send<T: Send>() {}

impl Slot {
    pub(super) fn new(run: Run) -> Slot {
        Slot {
            run,
            bufs: Few::new(),
            way: Way::LookedUp,
        }
    }

    /// The read of what is left of the run, by numbers where the ring has them; `None` where
    /// nothing is left. `has_plain`: the kernel reads one buffer without a list.
    pub(super) fn read(
        &mut self,
        registered: &RingTables,
        bounce: &mut BounceBuffers,
        has_plain: bool,
    ) -> Option<squeue::Entry> {
        let bufs = &mut self.bufs;
        bufs.reserve(self.run.nr_pages());
        let (file, offset) = self.run.rest_into(|bytes| {
            bufs.push(libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            });
        })?;
        let fd = file.as_raw_fd();
        let file = self.run.file_slot();
        let number = file.and_then(|file| registered.file(file, fd));
        let number = number.and_then(|number| i32::try_from(number).ok());
        let at = types::Fd(number.unwrap_or(fd));
        let read = match self.bufs[..] {
            [buf] if has_plain => {
                let may_be_fixed = !self.run.is_fixed_refused();
                let block = may_be_fixed.then(|| registered.block(&buf)).flatten();
                // Through the kernel's page cache no memory is looked up.
                let is_direct_page = file.is_some() && buf.iov_len <= PAGE_BYTES;
                let may_bounce = may_be_fixed && block.is_none() && is_direct_page;
                let bounce = may_bounce.then(|| bounce.take()).flatten();
                let to = buf.iov_base.cast::<u8>();
                let bounce = bounce.map(|(bounce, to)| (Way::Bounced(bounce), to, BOUNCE_NUMBER));
                let fixed = block.map(|block| (Way::Fixed, to, block)).or(bounce);
                let len = u32::try_from(buf.iov_len).expect("a page is short");
                match fixed {
                    Some((way, to, number)) => {
                        self.way = way;
                        let read = opcode::ReadFixed::new(at, to, len, number);
                        read.offset(offset).build()
                    }
                    None => opcode::Read::new(at, to, len).offset(offset).build(),
                }
            }
            _ => {
                let nr_bufs = u32::try_from(self.bufs.len()).expect("a run is short");
                let read = opcode::Readv::new(at, self.bufs.as_ptr(), nr_bufs);
                read.offset(offset).build()
            }
        };
        let mut flags = squeue::Flags::empty();
        flags.set(squeue::Flags::FIXED_FILE, number.is_some());
        // By a thread of the kernel's: others may wait for the ring.
        flags.set(squeue::Flags::ASYNC, self.run.is_read_at_once());
        Some(read.flags(flags))
    }

    /// Takes what the kernel said of its read. Memory that is no longer registered is no error,
    /// nor a file system that reads to no registered memory: what is left is asked for without.
    ///
    /// # Safety
    /// The kernel has said it, of the read that [`Slot::read`] made. Nobody looks at the bytes
    /// before [`BounceBuffers::settle`].
    pub(super) unsafe fn landed(
        &mut self,
        result: io::Result<usize>,
        bounce: &mut BounceBuffers,
    ) -> io::Result<usize> {
        let is_refused = |error: &io::Error| {
            let number = error.raw_os_error();
            matches!(number, Some(libc::EFAULT | libc::EINVAL | libc::EOPNOTSUPP))
        };
        match self.way {
            Way::Fixed | Way::Bounced(_) if result.as_ref().is_err_and(is_refused) => {
                self.run.refuse_fixed();
                Err(io::Error::from_raw_os_error(libc::EINTR))
            }
            Way::Bounced(from) => {
                let nr_bytes = result?;
                let [buf] = self.bufs[..] else {
                    unreachable!("one page is bounced");
                };
                assert!(nr_bytes <= buf.iov_len, "as many as were asked for at most");
                // SAFETY: the run lent these bytes of a frame when the read was made, keeps the
                // arena, and was not touched since; core lets nobody else at them before the run
                // completes them.
                let to = unsafe { slice::from_raw_parts_mut(buf.iov_base.cast(), nr_bytes) };
                // SAFETY: the caller's word.
                unsafe { bounce.copy_out(from, to) };
                Ok(nr_bytes)
            }
            _ => result,
        }
    }
}
