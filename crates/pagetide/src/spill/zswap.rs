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
use crate::shared::{Shared, locked};
use crate::{Error, Group, Order, PAGE_BYTES};
use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Weak};

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
/// The length in front of a page.
const HEAD: usize = 2;

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
    /// Where pages are decompressed to be written.
    staging: Buf,
}

/// The pool of one spill file.
pub(super) struct Pool {
    log: Mutex<Log>,
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
            staging: root.alloc(Order::new(ORDER))?,
        };
        Ok(Pool {
            log: Mutex::new(log),
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
        nr_segments * of_segment as u64 + 4 * PAGE_BYTES as u64
    }

    /// Keeps a page compressed; false where it has to go to the spill file, because it does not
    /// shrink or older ones cannot be written.
    pub(super) fn store(
        &self,
        (shared, spill): (&Shared, &Spill),
        (map, unit): (Weak<SlotMap>, u64),
        bytes: &[u8],
    ) -> bool {
        let mut log = locked(&self.log);
        let log = &mut *log;
        let compressed = compress_into_with_table(bytes, &mut log.compressed, &mut log.table);
        let Some(len) = compressed.ok().filter(|&len| len <= MOST) else {
            return false;
        };
        if !log.segments[log.current].has_room_for(len) && !log.go_on((shared, spill)) {
            return false;
        }
        let (current, compressed) = (log.current, &log.compressed[..len]);
        let segment = &mut log.segments[current];
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
        shared.swap.zswpout.fetch_add(1, Ordering::Relaxed);
        true
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
    /// Begins the next segment, once what it has is in the spill file; false where that fails.
    fn go_on(&mut self, (shared, spill): (&Shared, &Spill)) -> bool {
        let next = (self.current + 1) % self.segments.len();
        let segment = &mut self.segments[next];
        let mut wanted = segment.objects.iter().filter(|object| object.is_wanted());
        loop {
            let mut units = [(0, &[][..]); MAX_RUN];
            let mut from = [None; MAX_RUN];
            let mut len = 0;
            let staging = self.staging.chunks_exact_mut(PAGE_BYTES);
            for (page, object) in staging.zip(&mut wanted) {
                decompress(&segment.bytes[within(object.at).1..], page);
                units[len] = (object.unit, &*page);
                from[len] = Some(object);
                len += 1;
            }
            if len == 0 {
                break;
            }
            if !spill.write_back(shared, &units[..len], &from[..len]) {
                return false;
            }
        }
        segment.used = 0;
        segment.objects.clear();
        self.current = next;
        true
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
