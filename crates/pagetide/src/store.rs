//! Where pages come from and go to: a file, or anything that reads and writes at an offset.

mod behind;
mod found;

pub(crate) use behind::Behind;

use crate::Error;
use crate::io::FileSlot;
use found::Found;
use rustix::fs::{Advice, FallocateFlags, OFlags};
use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes that can be read at an offset, and written where the store says so.
///
/// Called from any thread, several at once. Of calls at the same time no two write, cut or punch
/// the same bytes, but they may be neighbours: a store that writes by units larger than a page has
/// to keep them apart itself. A read may meet any other call; of bytes that are cut or punched
/// meanwhile it may give the old ones or the new ones.
///
/// A read is of one page at most, and goes on behind the store's end where the page does; a write
/// is of up to 64 pages that follow each other. A store that takes long to answer is asked less
/// often for larger pages ([`OpenOptions::order`](crate::OpenOptions::order)).
///
/// A call must not wait for a lock that somebody holds while calling the same `Memory`: what it is
/// called for may hold what that one waits for. Nor may it use the same `Memory`, except that
/// writes may ask it for working memory: a few pages are kept for that. A call that ends with
/// [`io::ErrorKind::Interrupted`] is made again.
///
/// A call that panics has failed, for its pages and for all who wait for them. Who asked for it
/// unwinds, a task too; whose page another thread read has an error.
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

    /// Whether it can be written. Default: no.
    fn is_writable(&self) -> bool {
        false
    }

    /// Writes from `buf` at `offset`; returns the bytes written. What lies between its old end and
    /// `offset` reads as zeros then. It may lose what it wrote until [`Store::sync`].
    ///
    /// # Errors
    /// What the store says: the page stays dirty, and is written again later. Default: refuses.
    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Writes from several buffers, one after the other, at `offset`; returns the bytes written.
    /// Default: writes from the first one that is not empty.
    ///
    /// # Errors
    /// As [`Store::write_at`].
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let first = bufs.iter().find(|buf| !buf.is_empty());
        first.map_or(Ok(0), |buf| self.write_at(buf, offset))
    }

    /// Makes durable what was written before, its length included.
    ///
    /// # Errors
    /// What the store says: it may have lost any of it, so that the file takes no more writes and
    /// no `sync` of it succeeds before it is opened anew. Default: [`io::ErrorKind::Unsupported`],
    /// after which nothing is durable, but the file takes writes as before.
    fn sync(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes it this long: what is beyond is lost, what is new reads as zeros. Before a file is cut
    /// for the first time its store is asked for the length that the file has, to see if it can.
    ///
    /// # Errors
    /// What the store says. Default: [`io::ErrorKind::Unsupported`], after which the file is as
    /// long as before, and takes writes.
    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes `len` bytes from `offset` on read as zeros, and gives up their space if it can; its
    /// length stays. Only bytes that it has are asked for. Default: writes zeros.
    ///
    /// # Errors
    /// What the store says: it is asked again later.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        write_zeros(self, offset, len)
    }

    /// Whether a write that failed may have lost bytes of earlier ones, because somebody below
    /// keeps them: then the file takes no more writes, as after a failed [`Store::sync`]. Default:
    /// no.
    fn has_lost_writes(&self) -> bool {
        false
    }

    /// Whether there is no byte.
    ///
    /// # Errors
    /// As [`Store::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Makes a call again as long as a signal ends it.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn write_zeros<S: Store + ?Sized>(store: &S, offset: u64, len: u64) -> io::Result<()> {
    let mut at = offset;
    let end = offset.saturating_add(len);
    while at < end {
        let part = usize::try_from(end - at).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        match uninterrupted(|| store.write_at(&ZEROS[..part], at))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => at += written.min(part) as u64,
        }
    }
    Ok(())
}

/// A file of the system: read and written with `O_DIRECT` where the file system takes it, else
/// through the kernel's page cache, whose copy of what was read is dropped at once.
///
/// The last bytes of a file whose end is no multiple of the device's unit are written through the
/// kernel, too, from the beginning of its page on: a whole unit would make the file longer. Offsets
/// and lengths are those behind its base.
#[derive(Debug)]
pub(crate) struct DirectFile {
    /// Of `direct`; goes before it is closed.
    slot: FileSlot,
    direct: Option<Direct>,
    /// Through the kernel's page cache: opened with it where it may be written, or where the other
    /// is not there, else when it is needed first.
    buffered: OnceLock<fs::File>,
    /// Bytes of the file that are left alone: offset 0 is behind them.
    base: u64,
    found: Found,
    nr_buffered_reads: AtomicU64,
    nr_buffered_writes: AtomicU64,
    is_writable: bool,
    /// A write through the kernel's page cache failed.
    has_lost_writes: AtomicBool,
}

#[derive(Debug)]
struct Direct {
    file: fs::File,
    /// What address, offset and length must be multiples of: a power of two.
    align: usize,
}

impl Direct {
    /// Whether it takes what is at these, put together by "or": each is aligned where all together
    /// are. No division.
    fn takes(&self, all: u64) -> bool {
        all & (self.align as u64 - 1) == 0
    }
}

/// Opens a file by these options and `flags`. A pipe without a writer, which is refused, does not
/// keep its opener waiting; a regular file on which somebody has a lease, a file server perhaps,
/// does until that is broken.
pub(crate) fn open_file(
    options: &fs::OpenOptions,
    flags: i32,
    path: &Path,
) -> io::Result<fs::File> {
    let open = |flags| options.clone().custom_flags(flags).open(path);
    match open(libc::O_NONBLOCK | flags) {
        Err(leased)
            if leased.kind() == io::ErrorKind::WouldBlock
                && fs::metadata(path).is_ok_and(|found| found.is_file()) =>
        {
            open(flags)
        }
        opened => opened,
    }
}

impl DirectFile {
    /// Opens a file for reading, by one descriptor where the file system takes `O_DIRECT`.
    ///
    /// # Errors
    /// [`Error::Open`], also for what is no regular file.
    pub(crate) fn open(path: &Path) -> Result<DirectFile, Error> {
        let open = |flags| open_file(fs::OpenOptions::new().read(true), flags, path);
        let file = match direct(open) {
            Err(refused) if refused.kind() == io::ErrorKind::InvalidInput => {
                open(0).and_then(|file| DirectFile::new(file, false))
            }
            file => file.and_then(DirectFile::of_direct),
        };
        file.map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })
    }

    /// Reads, and writes if that is so, through a file that is open already for it, perhaps
    /// without a name any more.
    pub(crate) fn new(file: fs::File, is_writable: bool) -> io::Result<DirectFile> {
        let found = Found::of(&file)?;
        let direct = found.align.and_then(|align| {
            let file = direct(|flags| reopen(&file, is_writable, flags)).ok()?;
            Some(Direct { file, align })
        });
        Ok(DirectFile::of(direct, Some(file), found, is_writable))
    }

    /// Reads through a file that was opened with `O_DIRECT`.
    fn of_direct(file: fs::File) -> io::Result<DirectFile> {
        let found = Found::of(&file)?;
        let (direct, buffered) = match found.align {
            Some(align) => (Some(Direct { file, align }), None),
            // It may be opened so, but not read so.
            None => {
                turn_buffered(&file)?;
                (None, Some(file))
            }
        };
        Ok(DirectFile::of(direct, buffered, found, false))
    }

    fn of(
        direct: Option<Direct>,
        buffered: Option<fs::File>,
        found: Found,
        is_writable: bool,
    ) -> DirectFile {
        DirectFile {
            slot: FileSlot::default(),
            direct,
            buffered: buffered.map_or_else(OnceLock::new, OnceLock::from),
            base: 0,
            found,
            nr_buffered_reads: AtomicU64::new(0),
            nr_buffered_writes: AtomicU64::new(0),
            is_writable,
            has_lost_writes: AtomicBool::new(false),
        }
    }

    /// Device and inode.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.found.identity
    }

    /// Its length when it was opened, as [`Store::len`].
    pub(crate) fn len_found(&self) -> u64 {
        self.found.len.saturating_sub(self.base)
    }

    /// What is open of it, for what is the same either way.
    fn any(&self) -> &fs::File {
        let direct = || self.direct.as_ref().map(|direct| &direct.file);
        let any = self.buffered.get().or_else(direct);
        any.expect("one of them is open")
    }

    /// The same file without its first `base` bytes.
    pub(crate) fn behind(mut self, base: u64) -> DirectFile {
        self.base = base;
        self
    }

    /// Bytes of the file that are left alone.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The file past the kernel's page cache, where it takes a read: `all` is its offset in the
    /// file, with the address and the length of each buffer, put together by "or".
    pub(crate) fn direct_for(&self, all: u64) -> Option<&fs::File> {
        let direct = self.direct.as_ref()?;
        direct.takes(all).then_some(&direct.file)
    }

    /// How many bytes to ask for from `offset` of the file on, of which `wanted` are there: up to
    /// the end of their last unit. XFS refuses direct reads that go on into room which it keeps
    /// behind a file's end for those who append (`EIO`).
    pub(crate) fn asked(&self, offset: u64, wanted: usize) -> usize {
        let align = self.direct.as_ref().map_or(1, |direct| direct.align);
        let end = offset + wanted as u64;
        // A power of two: no division.
        let behind = end.wrapping_neg() & (align as u64 - 1);
        wanted + usize::try_from(behind).expect("below the unit")
    }

    /// Whether it is read and written past the kernel's page cache, where buffers allow it.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The file past the kernel's page cache, where it takes a write of these buffers, and where
    /// in it they go.
    pub(crate) fn direct_write(
        &self,
        bufs: &[IoSlice<'_>],
        offset: u64,
    ) -> Option<(&fs::File, u64)> {
        let direct = self.for_writes()?;
        let offset = self.base + offset;
        let all = bufs.iter().fold(offset, |all, buf| {
            all | (buf.as_ptr().addr() | buf.len()) as u64
        });
        let is_empty = bufs.iter().all(|buf| buf.is_empty());
        (direct.takes(all) && !is_empty).then_some((&direct.file, offset))
    }

    /// Whether io_uring reads it in the call that hands the read over, however long that takes: a
    /// file of FUSE can be polled and is always ready, so that none would have to wait for it.
    pub(crate) fn is_read_at_once(&self) -> bool {
        self.found.is_fuse
    }

    /// The place of the file past the kernel's page cache in the tables of rings.
    pub(crate) fn slot(&self) -> &FileSlot {
        &self.slot
    }

    /// The file through the kernel's page cache: tell [`DirectFile::note_buffered`] of each read.
    pub(crate) fn buffered(&self) -> &fs::File {
        let buffered = self.buffered.get();
        buffered.unwrap_or_else(|| self.open_buffered())
    }

    #[cold]
    fn open_buffered(&self) -> &fs::File {
        match reopen(self.any(), self.is_writable, 0) {
            Ok(file) => self.buffered.get_or_init(|| file),
            Err(_) => {
                // It may not be opened any more: the one that is open is used for all then.
                let _turned = turn_buffered(self.any());
                self.any()
            }
        }
    }

    /// Counts a read through the kernel's page cache, and drops the kernel's copy; `offset` is the
    /// file's own.
    pub(crate) fn note_buffered(&self, offset: u64, nr_bytes: usize) {
        self.nr_buffered_reads.fetch_add(1, Ordering::Relaxed);
        let len = std::num::NonZeroU64::new(nr_bytes as u64);
        // Best effort: the copy in the kernel is clean and goes under pressure anyway.
        let _advised = rustix::fs::fadvise(self.buffered(), offset, len, Advice::DontNeed);
    }

    fn read_direct(&self, buf: &mut [u8], offset: u64) -> Option<io::Result<usize>> {
        let direct = self.direct.as_ref()?;
        if !direct.takes(offset | (buf.as_ptr().addr() | buf.len()) as u64) {
            return None;
        }
        // Not by the C library, whose calls are points where a thread may be cancelled: two
        // read-modify-writes each.
        match rustix::io::pread(&direct.file, buf, offset) {
            Err(rustix::io::Errno::INVAL) => None,
            done => Some(done.map_err(io::Error::from)),
        }
    }

    /// The way of writes past the kernel's page cache, where no page of the kernel has bytes of two
    /// of ours, or of the header and ours: a direct write that is under way has no lock of the
    /// file's, and ends with `EIO` where the kernel's copy of what it touches is written then.
    fn for_writes(&self) -> Option<&Direct> {
        let is_apart = self.base.is_multiple_of(crate::PAGE_BYTES as u64);
        self.direct.as_ref().filter(|_| is_apart)
    }

    /// Writes as many bytes as go to the device directly, if any do.
    fn write_direct(&self, bufs: &[IoSlice<'_>], offset: u64) -> Option<io::Result<usize>> {
        let direct = self.for_writes()?;
        if !direct.takes(offset) {
            return None;
        }
        let is_whole = |buf: &&IoSlice<'_>| direct.takes((buf.as_ptr().addr() | buf.len()) as u64);
        let nr_whole = bufs.iter().take_while(is_whole).count();
        let done = match (nr_whole, bufs.first()?) {
            (0, first) => {
                // What lies before the kernel's page that the file ends in. Units of that one, too,
                // would have its copy dropped: the kernel would read it anew for what is left.
                let align = direct.align.max(crate::PAGE_BYTES);
                let units = &first[..first.len() / align * align];
                let is_aligned = direct.takes(units.as_ptr().addr() as u64);
                if units.is_empty() || !is_aligned {
                    return None;
                }
                direct.file.write_at(units, offset)
            }
            _ => rustix::io::pwritev(&direct.file, &bufs[..nr_whole], offset).map_err(Into::into),
        };
        match done {
            Err(refused) if refused.kind() == io::ErrorKind::InvalidInput => None,
            done => Some(done),
        }
    }

    /// Makes a hole: its space on the disk is free, its bytes read as zeros.
    pub(crate) fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let offset = self.base + offset;
        Ok(rustix::fs::fallocate(self.any(), flags, offset, len)?)
    }

    /// Reads that went through the kernel's page cache.
    pub(crate) fn nr_buffered_reads(&self) -> u64 {
        self.nr_buffered_reads.load(Ordering::Relaxed)
    }

    /// Writes that went through the kernel's page cache: those of the calling thread are counted.
    pub(crate) fn nr_buffered_writes(&self) -> u64 {
        self.nr_buffered_writes.load(Ordering::Relaxed)
    }
}

/// Opens past the kernel's page cache, to reads that leave the time of the last access alone, where
/// the process may ask for that because the file is its own. Hits leave it alone anyway, so that it
/// would say when a page was missing and not when the file was used; and the kernel would look at
/// each read whether to change it.
fn direct(open: impl Fn(i32) -> io::Result<fs::File>) -> io::Result<fs::File> {
    match open(libc::O_DIRECT | libc::O_NOATIME) {
        Err(refused) if refused.kind() == io::ErrorKind::PermissionDenied => open(libc::O_DIRECT),
        opened => opened,
    }
}

/// Opens the same file once more, by way of its descriptor.
pub(crate) fn reopen(file: &fs::File, is_writable: bool, flags: i32) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(is_writable).custom_flags(flags);
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// From here on it goes through the kernel's page cache.
fn turn_buffered(file: &fs::File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)?)
}

impl Store for DirectFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let offset = self.base + offset;
        if let Some(done) = self.read_direct(buf, offset) {
            return done;
        }
        let read = self.buffered().read_at(buf, offset)?;
        self.note_buffered(offset, read);
        Ok(read)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.any().metadata()?.len().saturating_sub(self.base))
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_vectored_at(&[IoSlice::new(buf)], offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let offset = self.base + offset;
        if let Some(done) = self.write_direct(bufs, offset) {
            return done;
        }
        self.nr_buffered_writes.fetch_add(1, Ordering::Relaxed);
        let written = rustix::io::pwritev(self.buffered(), bufs, offset);
        written.map_err(|error| {
            let error = io::Error::from(error);
            // No room: these bytes were not taken, and no others are lost. Of other errors nobody
            // knows that.
            let is_full = matches!(
                error.kind(),
                io::ErrorKind::StorageFull
                    | io::ErrorKind::QuotaExceeded
                    | io::ErrorKind::FileTooLarge
                    | io::ErrorKind::Interrupted
            );
            if !is_full {
                self.has_lost_writes.store(true, Ordering::Relaxed);
            }
            error
        })
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(self.any())?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.any().set_len(self.base + len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.punch_hole(offset, len) {
            // A file system without holes.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                write_zeros(self, offset, len)
            }
            done => done,
        }
    }

    fn has_lost_writes(&self) -> bool {
        self.has_lost_writes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
pub(crate) mod tests;
