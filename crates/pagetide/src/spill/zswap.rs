//! Compressed pages in memory, before the spill file.
//!
//! A log of segments of fixed size that are taken from the budget when the spill file is made, so
//! that swapping out needs no memory here either. Pages are appended to one segment; before the
//! next one in turn is filled again, those of its pages that are still wanted go to the spill
//! file. So the oldest go first, and nothing has to be found to be freed.
//!
//! Source: the kernel's zswap. Changed: its pool grows up to a share of memory and takes pages
//! from those that are being reclaimed; a log needs none.

use super::map::{MAX_SLOTS, Place, SlotMap};
use super::{MAX_RUN, Spill};
use crate::page::Buf;
use crate::shared::{Shared, locked, unpoisoned};
use crate::{Error, Group, Order, PAGE_BYTES};
use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use std::fmt;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, Weak};

/// Of a segment: 256 KiB.
const ORDER: u8 = 6;
pub(super) const SEGMENT: usize = PAGE_BYTES << ORDER;
/// Where a page may begin in a segment.
const GRANULE: usize = 64;
const GRANULES: u32 = 4096;
const _: () = assert!(GRANULES as usize * GRANULE == SEGMENT);
/// Pages of a segment at most.
const MAX_OBJECTS: usize = 512;
/// Bytes of a compressed page at most: one that is longer goes to the spill file at once.
const MOST: usize = PAGE_BYTES * 3 / 4;
/// Segments that are found full one after the other before a page goes to the spill file.
const MAX_TRIES: u32 = 3;
/// The length in front of a page.
const HEAD: usize = 2;

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The pool has it.
    Kept,
    /// It does not shrink enough.
    Incompressible,
    /// Older ones cannot be written to the spill file, or are just being.
    Full,
}

/// A compressed page, perhaps not wanted any more.
#[derive(Debug)]
pub(super) struct Object {
    map: Weak<SlotMap>,
    unit: u64,
    /// In granules from the first segment on.
    at: u32,
}

struct Segment {
    bytes: Buf,
    used: usize,
    objects: Vec<Object>,
}

struct Log {
    segments: Vec<Segment>,
    /// The one that is being filled.
    current: usize,
    table: CompressTable,
    compressed: Vec<u8>,
}

/// What the thread has that empties the segment behind the current one.
struct Emptied {
    /// Where pages are decompressed to be written.
    staging: Buf,
    /// The segment's pages meanwhile.
    objects: Vec<Object>,
}

/// The pool of one spill file.
pub(super) struct Pool {
    log: Mutex<Log>,
    /// Locked before `log`, and while pages are written, which may take long: who wants one that is
    /// here waits for neither. Pages that come meanwhile and find no room go to the spill file.
    emptied: Mutex<Emptied>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nr_segments = locked(&self.log).segments.len();
        f.debug_struct("Pool")
            .field("nr_segments", &nr_segments)
            .finish()
    }
}

/// The segment of a place, and where in it.
fn within(at: u32) -> (usize, usize) {
    let index = |number: u32| usize::try_from(number).expect("64 bits");
    (index(at / GRANULES), index(at % GRANULES) * GRANULE)
}

/// A page that was compressed to where these bytes begin.
fn decompress(bytes: &[u8], out: &mut [u8]) {
    let (head, bytes) = bytes.split_at(HEAD);
    let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
    let decompressed = decompress_into(&bytes[..len], out);
    assert_eq!(decompressed.ok(), Some(PAGE_BYTES), "compressed here");
}

impl Object {
    /// Whether the region has its page here still.
    fn is_wanted(&self) -> bool {
        let map = self.map.upgrade();
        map.is_some_and(|map| map.get(self.unit) == Place::Compressed(self.at))
    }

    /// The page is in a slot now; false where nobody wants it there.
    pub(super) fn moved_to(&self, slot: u32) -> bool {
        let map = self.map.upgrade();
        map.is_some_and(|map| map.replace(self.unit, self.at, slot))
    }
}

impl Pool {
    /// A pool of `nr_bytes`, up to 16 GiB, rounded up to whole segments, charged to a group.
    ///
    /// # Errors
    /// [`Error::OverLimit`], [`Error::NoBlock`].
    pub(super) fn new(root: &Group, nr_bytes: u64) -> Result<Pool, Error> {
        let nr_segments = Pool::nr_segments(nr_bytes);
        let segment = |_| {
            Ok(Segment {
                bytes: root.alloc(Order::new(ORDER))?,
                used: 0,
                objects: Vec::with_capacity(MAX_OBJECTS),
            })
        };
        let segments: Result<Vec<Segment>, Error> = (0..nr_segments).map(segment).collect();
        let log = Log {
            segments: segments?,
            current: 0,
            table: CompressTable::small(),
            compressed: vec![0; get_maximum_output_size(PAGE_BYTES)],
        };
        let emptied = Emptied {
            staging: root.alloc(Order::new(ORDER))?,
            objects: Vec::with_capacity(MAX_OBJECTS),
        };
        Ok(Pool {
            log: Mutex::new(log),
            emptied: Mutex::new(emptied),
        })
    }

    /// Segments of a pool of `nr_bytes`: as many as the map can name places of, at most.
    fn nr_segments(nr_bytes: u64) -> u64 {
        let most = u64::from(MAX_SLOTS / GRANULES);
        nr_bytes.div_ceil(SEGMENT as u64).clamp(2, most)
    }

    /// Bytes of the heap that a pool takes.
    pub(super) fn record_bytes(nr_bytes: u64) -> u64 {
        let of_segment = MAX_OBJECTS * size_of::<Object>() + size_of::<Segment>();
        let nr_segments = Pool::nr_segments(nr_bytes);
        (nr_segments + 1) * of_segment as u64 + 4 * PAGE_BYTES as u64
    }

    /// Keeps a page compressed, or says why it has to go to the spill file.
    pub(super) fn store(
        &self,
        to: (&Shared, &Spill),
        (map, unit): (Weak<SlotMap>, u64),
        bytes: &[u8],
    ) -> Stored {
        for _ in 0..MAX_TRIES {
            let mut log = locked(&self.log);
            let Some(len) = log.compress(bytes) else {
                return Stored::Incompressible;
            };
            let full = log.current;
            if log.segments[full].has_room_for(len) {
                log.append(len, (map, unit));
                drop(log);
                to.0.swap.zswpout.fetch_add(1, Ordering::Relaxed);
                return Stored::Kept;
            }
            drop(log);
            if !self.go_on(to, full) {
                break;
            }
        }
        Stored::Full
    }

    /// Waits until no segment is being emptied; none is while `act` runs.
    pub(super) fn at_rest<T>(&self, act: impl FnOnce() -> T) -> T {
        let _emptied = locked(&self.emptied);
        act()
    }

    /// Begins the segment behind a full one, once what it has is in the spill file; false where
    /// that fails, or another thread does it.
    fn go_on(&self, to: (&Shared, &Spill), full: usize) -> bool {
        let Some(mut emptied) = unpoisoned(self.emptied.try_lock()) else {
            return false;
        };
        let mut log = locked(&self.log);
        if log.current != full {
            return true;
        }
        let segment = (full + 1) % log.segments.len();
        mem::swap(&mut emptied.objects, &mut log.segments[segment].objects);
        drop(log);
        let mut emptying = Emptying {
            pool: self,
            emptied,
            segment,
            is_over: false,
        };
        emptying.write_back(to) && emptying.end()
    }

    /// Decompresses a page, if it is still there.
    pub(super) fn load(&self, shared: &Shared, map: &SlotMap, unit: u64, out: &mut [u8]) -> bool {
        let log = locked(&self.log);
        // With the lock: it may have gone to the spill file meanwhile.
        let Place::Compressed(at) = map.read_of(unit) else {
            return false;
        };
        let (segment, offset) = within(at);
        decompress(&log.segments[segment].bytes[offset..], out);
        shared.swap.zswpin.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Segment {
    fn has_room_for(&self, len: usize) -> bool {
        self.objects.len() < MAX_OBJECTS && self.used + HEAD + len <= SEGMENT
    }
}

impl Log {
    /// Compresses a page; `None` where it does not shrink. The bytes it has then.
    fn compress(&mut self, bytes: &[u8]) -> Option<usize> {
        let compressed = compress_into_with_table(bytes, &mut self.compressed, &mut self.table);
        compressed.ok().filter(|&len| len <= MOST)
    }

    /// Appends the page that was compressed last, for which there is room.
    fn append(&mut self, len: usize, (map, unit): (Weak<SlotMap>, u64)) {
        let (current, compressed) = (self.current, &self.compressed[..len]);
        let segment = &mut self.segments[current];
        let head = u16::try_from(len).expect("less than a page");
        let place = &mut segment.bytes[segment.used..][..HEAD + len];
        place[..HEAD].copy_from_slice(&head.to_le_bytes());
        place[HEAD..].copy_from_slice(compressed);
        let granule = current * (SEGMENT / GRANULE) + segment.used / GRANULE;
        let at = u32::try_from(granule).expect("a pool is short");
        segment.used += (HEAD + len).next_multiple_of(GRANULE);
        if let Some(map) = map.upgrade() {
            map.put(unit, Place::Compressed(at));
        }
        segment.objects.push(Object { map, unit, at });
    }
}

/// A segment that its thread empties: its pages are the thread's until this is dropped, by a store
/// that unwinds, too. Their bytes stay: only the current segment is written to.
struct Emptying<'a> {
    pool: &'a Pool,
    emptied: MutexGuard<'a, Emptied>,
    segment: usize,
    is_over: bool,
}

impl Drop for Emptying<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.put_back(&mut locked(&self.pool.log));
        }
    }
}

impl Emptying<'_> {
    /// Writes those of its pages that are still wanted; false where that fails.
    fn write_back(&mut self, (shared, spill): (&Shared, &Spill)) -> bool {
        let Emptied { staging, objects } = &mut *self.emptied;
        let mut wanted = objects.iter().filter(|object| object.is_wanted());
        loop {
            let mut units = [(0, &[][..]); MAX_RUN];
            let mut from = [None; MAX_RUN];
            let mut len = 0;
            let log = locked(&self.pool.log);
            let bytes = &log.segments[self.segment].bytes;
            for (page, object) in staging.chunks_exact_mut(PAGE_BYTES).zip(&mut wanted) {
                decompress(&bytes[within(object.at).1..], page);
                units[len] = (object.unit, &*page);
                from[len] = Some(object);
                len += 1;
            }
            drop(log);
            if len == 0 {
                return true;
            }
            if !spill.write_back(shared, &units[..len], &from[..len]) {
                return false;
            }
        }
    }

    /// Makes it the current one, of which no page is wanted.
    fn end(mut self) -> bool {
        self.emptied.objects.clear();
        let pool = self.pool;
        let mut log = locked(&pool.log);
        self.put_back(&mut log);
        self.is_over = true;
        log.segments[self.segment].used = 0;
        log.current = self.segment;
        true
    }

    fn put_back(&mut self, log: &mut Log) {
        let objects = &mut log.segments[self.segment].objects;
        mem::swap(&mut self.emptied.objects, objects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_the_largest_pool_can_be_named() {
        for nr_bytes in [1, 1 << 30, 1 << 34, 1 << 40, u64::MAX] {
            let nr_places = Pool::nr_segments(nr_bytes) * u64::from(GRANULES);
            assert!(nr_places <= u64::from(MAX_SLOTS), "{nr_bytes} bytes");
        }
        assert_eq!(Pool::nr_segments(1 << 30), 4096);
    }
}
