//! Where pages come from: a file, or anything that reads at an offset.

use crate::Error;
use rustix::fs::{Advice, AtFlags, OFlags, StatxFlags};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that can be read at an offset.
///
/// Called from any thread, several at once, with no lock of pagetide held. A call must not use the
/// same `Memory`.
pub trait Store: Send + Sync {
    /// Reads into `buf` from `offset`; returns the bytes read, 0 at the end only.
    ///
    /// # Errors
    /// What the store says; the page is not cached then, and the next reader tries again.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Length in bytes.
    ///
    /// # Errors
    /// What the store says.
    fn len(&self) -> io::Result<u64>;

    /// Whether there is no byte.
    ///
    /// # Errors
    /// As [`Store::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A file of the system: read with `O_DIRECT` where the file system takes it, else through the
/// kernel's page cache, whose copy is dropped at once.
#[derive(Debug)]
pub(crate) struct DirectFile {
    buffered: fs::File,
    direct: Option<Direct>,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    nr_buffered_reads: AtomicU64,
}

#[derive(Debug)]
struct Direct {
    file: fs::File,
    /// What address, offset and length must be multiples of.
    align: usize,
}

impl DirectFile {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`Error::Open`], also for what is no regular file.
    pub(crate) fn open(path: &Path) -> Result<DirectFile, Error> {
        let failed = |source| Error::Open {
            path: path.to_owned(),
            source,
        };
        DirectFile::new(fs::File::open(path).map_err(failed)?).map_err(failed)
    }

    /// Reads through a file that is open already, perhaps without a name any more.
    pub(crate) fn new(file: fs::File) -> io::Result<DirectFile> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let direct = Direct::of(&file);
        let identity = (metadata.dev(), metadata.ino());
        Ok(DirectFile {
            buffered: file,
            direct,
            identity,
            nr_buffered_reads: AtomicU64::new(0),
        })
    }

    fn read_direct(&self, buf: &mut [u8], offset: u64) -> Option<io::Result<usize>> {
        let direct = self.direct.as_ref()?;
        let align = direct.align as u64;
        let whole = (buf.as_ptr().addr() | buf.len()).is_multiple_of(direct.align);
        if !whole || !offset.is_multiple_of(align) {
            return None;
        }
        match direct.file.read_at(buf, offset) {
            Err(refused) if refused.kind() == io::ErrorKind::InvalidInput => None,
            done => Some(done),
        }
    }

    /// Reads that went through the kernel's page cache.
    pub(crate) fn nr_buffered_reads(&self) -> u64 {
        self.nr_buffered_reads.load(Ordering::Relaxed)
    }
}

impl Direct {
    /// Opens the same file once more with `O_DIRECT`, by way of its descriptor.
    fn of(file: &fs::File) -> Option<Direct> {
        use std::os::fd::AsRawFd;
        let flags = StatxFlags::DIOALIGN;
        let statx = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, flags).ok()?;
        let align = if statx.stx_mask & flags.bits() == 0 {
            // A kernel before 6.1 does not say: a page satisfies every device there is.
            crate::PAGE_BYTES
        } else {
            let align = statx.stx_dio_mem_align.max(statx.stx_dio_offset_align);
            usize::try_from(align).ok().filter(|&align| align > 0)?
        };
        let custom = i32::try_from(OFlags::DIRECT.bits()).ok()?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(custom)
            .open(path)
            .ok()?;
        Some(Direct { file, align })
    }
}

impl Store for DirectFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some(done) = self.read_direct(buf, offset) {
            return done;
        }
        let read = self.buffered.read_at(buf, offset)?;
        self.nr_buffered_reads.fetch_add(1, Ordering::Relaxed);
        let len = std::num::NonZeroU64::new(read as u64);
        // Best effort: the copy in the kernel is clean and goes under pressure anyway.
        let _advised = rustix::fs::fadvise(&self.buffered, offset, len, Advice::DontNeed);
        Ok(read)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.buffered.metadata()?.len())
    }
}
