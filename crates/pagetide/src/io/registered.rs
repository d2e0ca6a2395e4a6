//! What rings keep registered, so that the kernel does not look it up for each read: files, by a
//! number that each has while it is open, and memory of the arena, by pageblocks.
//!
//! A ring registers by itself what it meets. What goes, a file that is closed or memory for the OS,
//! is unregistered from all rings first: the kernel keeps both as long as a ring has them, and a
//! read into memory that was taken from the process would land in the old pages, which nobody sees.

use super::uring::{Entry, update};
use crate::arena::{Alive, PAGEBLOCK_BYTES};
use crate::shared::{locked, unpoisoned};
use io_uring::IoUring;
use pagetide_core::memory::Idle;
use pagetide_core::units::{PAGE_BYTES, index};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Files that have numbers at a time: fewer than a process may have open, which is what the kernel
/// checks.
const FILES: u32 = 256;
/// Reads of a file by rings before it gets one: the two system calls have to pay.
const WORTH_IT: u32 = 64;
/// Pageblocks that a ring has registered at most: 32 GiB. Source: `IORING_MAX_REG_BUFFERS`.
const MAX_BLOCKS: usize = 1 << 14;

/// Whether rings of io_uring keep something registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Registered {
    /// Not asked for, or there are no rings.
    Off,
    /// What rings meet is registered.
    On,
    /// The kernel refused it, and says why. What was registered before stays so; all else is read
    /// without.
    Refused(String),
}

/// A bit for each number; those beyond it are never set.
#[derive(Debug, Default)]
struct Bits(Box<[AtomicU64]>);

impl Bits {
    fn new(len: usize) -> Bits {
        Bits((0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Its word, and its bit in there.
    fn at(&self, number: usize) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get(number / 64)?, 1 << (number % 64)))
    }

    fn has(&self, number: usize) -> bool {
        let at = self.at(number);
        at.is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn set(&self, number: usize, is_set: bool) {
        match self.at(number) {
            Some((word, bit)) if is_set => word.fetch_or(bit, Ordering::Relaxed),
            Some((word, bit)) => word.fetch_and(!bit, Ordering::Relaxed),
            None => 0,
        };
    }

    fn nr_set(&self) -> u64 {
        let words = self.0.iter().map(|word| word.load(Ordering::Relaxed));
        words.map(|word| u64::from(word.count_ones())).sum()
    }
}

/// What one ring has registered. Bits of files are set by who reads, and cleared when nobody reads
/// the file any more. Bits of blocks change under the lock of all rings.
struct Table {
    /// The ring's, which is open as long as this is listed.
    fd: RawFd,
    files: Bits,
    blocks: Bits,
}

/// The arena, where its memory is registered.
struct Blocks {
    start: usize,
    nr_bytes: usize,
    /// Pageblocks of which a part went to the OS: to register one would bring that back.
    broken: Bits,
}

impl Blocks {
    fn len(&self) -> usize {
        self.nr_bytes.div_ceil(PAGEBLOCK_BYTES).min(MAX_BLOCKS)
    }

    /// Address and length of a pageblock.
    fn memory(&self, block: usize) -> libc::iovec {
        let first = block * PAGEBLOCK_BYTES;
        libc::iovec {
            iov_base: std::ptr::without_provenance_mut(self.start + first),
            iov_len: PAGEBLOCK_BYTES.min(self.nr_bytes - first),
        }
    }
}

/// What the rings of one memory have registered.
pub(crate) struct Registry {
    pub(super) alive: Alive,
    blocks: Option<Blocks>,
    /// Held alone by who takes memory out of all of them until the OS has it, and to list a ring.
    rings: RwLock<Vec<Arc<Table>>>,
    free_numbers: Mutex<Vec<u32>>,
    files_refused: OnceLock<String>,
    blocks_refused: OnceLock<String>,
    bounce_refused: OnceLock<String>,
    /// A ring was to have some.
    is_bounce_tried: AtomicBool,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl Registry {
    /// `arena`: where its memory is to be registered, too, its address and its bytes.
    pub(crate) fn new(alive: Alive, arena: Option<(usize, usize)>) -> Registry {
        let blocks = arena.map(|(start, nr_bytes)| Blocks {
            start,
            nr_bytes,
            broken: Bits::new(nr_bytes.div_ceil(PAGEBLOCK_BYTES)),
        });
        Registry {
            alive,
            blocks,
            rings: RwLock::default(),
            free_numbers: Mutex::new((0..FILES).rev().collect()),
            files_refused: OnceLock::new(),
            blocks_refused: OnceLock::new(),
            bounce_refused: OnceLock::new(),
            is_bounce_tried: AtomicBool::new(false),
        }
    }

    /// Gives a new ring its tables, where the kernel allows it.
    pub(super) fn list(self: &Arc<Registry>, ring: &IoUring) -> RingTables {
        let submitter = ring.submitter();
        let (mut files, mut blocks) = (Bits::default(), Bits::default());
        if self.files_refused.get().is_none() {
            match submitter.register_files_sparse(FILES) {
                Ok(()) => files = Bits::new(index(FILES)),
                Err(error) => refuse(&self.files_refused, &error),
            }
        }
        if let Some(of) = &self.blocks
            && self.blocks_refused.get().is_none()
        {
            let len = u32::try_from(of.len()).expect("few pageblocks");
            match submitter.register_buffers_sparse(len) {
                Ok(()) => blocks = Bits::new(of.len()),
                Err(error) => refuse(&self.blocks_refused, &error),
            }
        }
        let table = Arc::new(Table {
            fd: ring.as_raw_fd(),
            files,
            blocks,
        });
        let mut rings = self.rings.write().unwrap_or_else(PoisonError::into_inner);
        rings.push(Arc::clone(&table));
        RingTables {
            registry: Arc::clone(self),
            table,
        }
    }

    /// Unregisters the pageblocks of a free block, and calls `release` while nobody registers them.
    /// Reads under way go to other frames than these, to the pages that these have.
    ///
    /// # Errors
    /// What the kernel or `release` says; where the kernel will not let go, `release` is not
    /// called.
    pub(crate) fn release(
        &self,
        idle: &Idle,
        release: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(blocks) = &self.blocks else {
            return release();
        };
        let first = idle.frame().index() * PAGE_BYTES;
        let end = first + idle.order().bytes();
        let rings = self.rings.write().unwrap_or_else(PoisonError::into_inner);
        for block in first / PAGEBLOCK_BYTES..end.div_ceil(PAGEBLOCK_BYTES) {
            let is_whole = idle.order().bytes() >= PAGEBLOCK_BYTES;
            blocks.broken.set(block, !is_whole);
            for table in rings.iter().filter(|table| table.blocks.has(block)) {
                table.update(block, Entry::Memory(NO_MEMORY))?;
                table.blocks.set(block, false);
            }
        }
        release()
    }

    /// Notes whether a ring has bounce buffers.
    pub(super) fn note_bounce(&self, registered: Result<(), &io::Error>) {
        self.is_bounce_tried.store(true, Ordering::Relaxed);
        if let Err(error) = registered {
            refuse(&self.bounce_refused, error);
        }
    }

    /// Whether files are registered, whether frames are, and whether bounce buffers are.
    pub(super) fn shown(&self, has_rings: bool) -> [Registered; 3] {
        let of = |is_on: bool, refused: &OnceLock<String>| match refused.get() {
            _ if !is_on || !has_rings => Registered::Off,
            None => Registered::On,
            Some(reason) => Registered::Refused(reason.clone()),
        };
        let is_bounce_tried = self.is_bounce_tried.load(Ordering::Relaxed);
        [
            of(true, &self.files_refused),
            of(self.blocks.is_some(), &self.blocks_refused),
            of(is_bounce_tried, &self.bounce_refused),
        ]
    }

    /// Bytes of memory that rings have registered, counted for each of them. Looks at all.
    pub(crate) fn nr_bytes(&self) -> u64 {
        let rings = self.rings.read().unwrap_or_else(PoisonError::into_inner);
        let nr_blocks: u64 = rings.iter().map(|table| table.blocks.nr_set()).sum();
        nr_blocks * PAGEBLOCK_BYTES as u64
    }
}

const NO_MEMORY: libc::iovec = libc::iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

/// One refusal ends it: rings have what they have.
fn refuse(refused: &OnceLock<String>, error: &io::Error) {
    refused.get_or_init(|| error.to_string());
}

impl Table {
    fn update(&self, number: usize, entry: Entry) -> io::Result<()> {
        update(self.fd, u32::try_from(number).unwrap_or(u32::MAX), entry)
    }
}

/// What a ring has registered.
pub(super) struct RingTables {
    pub(super) registry: Arc<Registry>,
    table: Arc<Table>,
}

impl RingTables {
    /// Whether it has a table for frames.
    pub(super) fn has_blocks(&self) -> bool {
        !self.table.blocks.0.is_empty()
    }

    /// Before the ring is closed: its descriptor may be another file's afterwards. A forked child
    /// may have it open still, so the kernel is asked to let go of everything.
    pub(super) fn delist(&self, ring: &IoUring) {
        let rings = &self.registry.rings;
        let mut rings = rings.write().unwrap_or_else(PoisonError::into_inner);
        rings.retain(|table| !Arc::ptr_eq(table, &self.table));
        drop(rings);
        // Where there are none, it refuses.
        let _files = ring.submitter().unregister_files();
        let _memory = ring.submitter().unregister_buffers();
    }

    /// The number of a file that is read, whose descriptor is `fd`, in this ring.
    pub(super) fn file(&self, slot: &FileSlot, fd: RawFd) -> Option<u32> {
        if self.table.files.0.is_empty() {
            return None;
        }
        let number = slot.number(&self.registry)?;
        let at = index(number);
        if !self.table.files.has(at) {
            if self.registry.files_refused.get().is_some() {
                return None;
            }
            if let Err(error) = self.table.update(at, Entry::File(fd)) {
                refuse(&self.registry.files_refused, &error);
                return None;
            }
            self.table.files.set(at, true);
        }
        Some(number)
    }

    /// The number of the pageblock, in this ring, that all of a buffer lies in.
    pub(super) fn block(&self, buf: &libc::iovec) -> Option<u16> {
        let blocks = self.registry.blocks.as_ref()?;
        let first = buf.iov_base.addr().checked_sub(blocks.start)?;
        let block = first / PAGEBLOCK_BYTES;
        let is_inside = buf.iov_len <= PAGEBLOCK_BYTES - first % PAGEBLOCK_BYTES;
        let has_block = is_inside && (self.table.blocks.has(block) || self.add(blocks, block));
        u16::try_from(block).ok().filter(|_| has_block)
    }

    /// Registers a pageblock, unless some memory goes to the OS just now.
    #[cold]
    fn add(&self, blocks: &Blocks, block: usize) -> bool {
        let registry = &self.registry;
        let Some(_rings) = unpoisoned(registry.rings.try_read()) else {
            return false;
        };
        let is_known = self.table.blocks.at(block).is_some() && block < blocks.len();
        if !is_known || blocks.broken.has(block) || registry.blocks_refused.get().is_some() {
            return false;
        }
        let added = self
            .table
            .update(block, Entry::Memory(blocks.memory(block)));
        match &added {
            Ok(()) => self.table.blocks.set(block, true),
            Err(error) => refuse(&registry.blocks_refused, error),
        }
        added.is_ok()
    }
}

/// A file's place in the tables of rings: part of an open file, dropped before it is closed.
#[derive(Debug, Default)]
pub(crate) struct FileSlot {
    /// Reads by rings so far, about, up to [`WORTH_IT`].
    nr_reads: AtomicU32,
    /// `None` where none was left.
    number: OnceLock<Option<FileNumber>>,
}

impl FileSlot {
    fn number(&self, registry: &Arc<Registry>) -> Option<u32> {
        let number = self.number.get().or_else(|| {
            let nr_reads = self.nr_reads.load(Ordering::Relaxed);
            if nr_reads < WORTH_IT {
                self.nr_reads.store(nr_reads + 1, Ordering::Relaxed);
                return None;
            }
            Some(self.number.get_or_init(|| FileNumber::new(registry)))
        });
        Some(number?.as_ref()?.number)
    }
}

/// A number that no other open file has.
#[derive(Debug)]
struct FileNumber {
    registry: Arc<Registry>,
    number: u32,
}

impl FileNumber {
    fn new(registry: &Arc<Registry>) -> Option<FileNumber> {
        let number = locked(&registry.free_numbers).pop()?;
        Some(FileNumber {
            registry: Arc::clone(registry),
            number,
        })
    }
}

impl Drop for FileNumber {
    fn drop(&mut self) {
        let registry = &self.registry;
        if registry.alive.is_forked() {
            // The rings are the parent's, and so is whoever holds a lock.
            return;
        }
        // Whoever reads the file keeps it: nobody does, and all reads by its number are over.
        let rings = registry.rings.read();
        let rings = rings.unwrap_or_else(PoisonError::into_inner);
        let at = index(self.number);
        for table in rings.iter().filter(|table| table.files.has(at)) {
            if table.update(at, Entry::File(-1)).is_err() {
                // No other file ever gets its number.
                return;
            }
            table.files.set(at, false);
        }
        drop(rings);
        locked(&registry.free_numbers).push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, IoEngine, Memory};
    use std::io::Write;

    impl Registry {
        /// The kernel lets go of all memory, and no ring knows.
        fn lose_memory(&self) {
            let rings = self.rings.read().unwrap();
            let blocks = || 0..self.blocks.as_ref().unwrap().len();
            for table in rings.iter() {
                let has = blocks().filter(|&block| table.blocks.has(block));
                has.for_each(|block| table.update(block, Entry::Memory(NO_MEMORY)).unwrap());
            }
        }
    }

    #[test]
    fn a_read_whose_memory_is_no_longer_registered_goes_without() {
        let builder = Memory::builder().budget(ByteSize::mib(8));
        let memory = builder.registered_buffers(true).build().unwrap();
        let choice = memory.io_engine();
        if choice.engine != IoEngine::IoUring || choice.registered_buffers != Registered::On {
            return println!("skipped: registered reads: {choice}");
        }
        let mut data = tempfile::NamedTempFile::new().unwrap();
        for page in 0..200_u8 {
            data.write_all(&[page; PAGE_BYTES]).unwrap();
        }
        let group = memory.root();
        let file = memory.open(data.path(), &group).unwrap();
        for first in 0..4 {
            let pages: Vec<u64> = (first..200).step_by(4).collect();
            let before = memory.stats().ring_enters;
            for (page, at) in file.pin_many(&pages).unwrap().iter().zip(pages) {
                assert!(page.iter().all(|&byte| u64::from(byte) == at));
            }
            // All of them are refused at once, and then read by the ring, not each by itself.
            let nr_enters = memory.stats().ring_enters - before;
            assert!(nr_enters > u64::from(first > 0), "{nr_enters}");
            group.shared().io.registry.lose_memory();
        }
        assert_eq!(memory.stats().fixed_reads, 200);
    }
}
