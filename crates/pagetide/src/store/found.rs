//! What a file is found to be when it is opened.

use rustix::fs::{AtFlags, FileType, FsWord, Statx, StatxFlags};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// What a file was when it was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Device and inode.
    pub(super) identity: (u64, u64),
    pub(super) len: u64,
    /// As of [`Direct`](super::Direct), where it may be read past the kernel's page cache.
    pub(super) align: Option<usize>,
    /// Of FUSE: see [`DirectFile::is_read_at_once`](super::DirectFile::is_read_at_once).
    pub(super) is_fuse: bool,
}

impl Found {
    /// By one system call, mostly.
    pub(super) fn of(file: &fs::File) -> io::Result<Found> {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        let (is_file, found) = match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, flags) {
            Ok(statx) => {
                let device = rustix::fs::makedev(statx.stx_dev_major, statx.stx_dev_minor);
                let found = Found {
                    identity: (device, statx.stx_ino),
                    len: statx.stx_size,
                    align: align_of(&statx),
                    is_fuse: !says_align(&statx) && is_fuse(file),
                };
                let file_type = FileType::from_raw_mode(statx.stx_mode.into());
                (file_type == FileType::RegularFile, found)
            }
            // Where it is forbidden.
            Err(_) => {
                let metadata = file.metadata()?;
                let found = Found {
                    identity: (metadata.dev(), metadata.ino()),
                    len: metadata.len(),
                    align: None,
                    is_fuse: is_fuse(file),
                };
                (metadata.is_file(), found)
            }
        };
        match is_file {
            true if found.len == 0 && has_bytes(file)? => {
                Err(io::Error::other("it has bytes, but no length"))
            }
            true => Ok(found),
            false => Err(io::Error::other("not a regular file")),
        }
    }
}

/// Whether a file that said that it is empty has bytes all the same, as those of `/proc` do.
fn has_bytes(file: &fs::File) -> io::Result<bool> {
    let is_read = rustix::io::pread(file, &mut [0], 0) == Ok(1);
    // Somebody may have written some since.
    Ok(is_read && file.metadata()?.len() == 0)
}

fn says_align(statx: &Statx) -> bool {
    statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0
}

/// Whether it is a file of FUSE. These can be polled, and are always ready.
fn is_fuse(file: &fs::File) -> bool {
    const FUSE: FsWord = 0x6573_5546;
    rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type == FUSE)
}

fn align_of(statx: &Statx) -> Option<usize> {
    if !says_align(statx) {
        // A kernel before 6.1 does not, nor do all file systems: a page satisfies every device.
        return Some(crate::PAGE_BYTES);
    }
    let align = statx.stx_dio_mem_align.max(statx.stx_dio_offset_align);
    usize::try_from(align)
        .ok()
        .filter(|align| align.is_power_of_two())
}
