//! A growing table of records that is looked up without a lock.

use super::std::boxed::Box;
use super::std::sync::OnceLock;
use super::{AtomicU32, NoMetadata, Ordering, SpinLock, rank, room_for};
use crate::units::PAGE_BYTES;

/// Append-only chunks of records with reused ids; looked up without a lock.
///
/// An id is a slot's number (20 bits, from 1) and a stamp of 12 bits that changes with each reuse,
/// so that a stale id finds nothing. Records are made by `Default` once and never go away: who
/// takes a slot sets it up before it gives the id to others.
#[derive(Debug)]
pub struct Table<T> {
    chunks: [OnceLock<Box<[Slot<T>]>>; NR_CHUNKS],
    free: SpinLock<FreeSlots, { rank::TABLE }>,
}

#[derive(Debug, Default)]
#[repr(C, align(64))] // A record begins a line: what of it lies on one is its own matter.
struct Slot<T> {
    value: T,
    /// The id that lives here, 0 where none does.
    id: AtomicU32,
    /// While free: the next free slot's number. Guarded by `Table::free`.
    next: AtomicU32,
    /// The stamp of the last id. Guarded by `Table::free`.
    stamp: AtomicU32,
}

#[derive(Debug, Default)]
struct FreeSlots {
    first: u32,
    nr_made: u32,
}

/// Chunk `k` has `FIRST_CHUNK << k` slots.
const NR_CHUNKS: usize = 15;
pub(super) const FIRST_CHUNK: u32 = 32;
const SLOT_BITS: u32 = 20;
const NR_STAMPS: u32 = 1 << (32 - SLOT_BITS);

/// The chunk and the place in it of slot `number` (from 0).
#[inline]
pub(super) fn chunk_of(number: u32) -> (usize, usize) {
    // With as many before the first as that one has, chunk `k` begins at `FIRST_CHUNK << k`.
    let number = number + FIRST_CHUNK;
    let (first, chunk) = (FIRST_CHUNK.ilog2(), number.ilog2());
    (
        crate::units::index(chunk - first),
        crate::units::index(number - (1 << chunk)),
    )
}

impl<T: Default> Table<T> {
    /// An empty table; it takes no memory until its first insertion.
    #[must_use]
    pub fn new() -> Table<T> {
        Table {
            chunks: [const { OnceLock::new() }; NR_CHUNKS],
            free: SpinLock::default(),
        }
    }

    /// Slots are numbered 1 to this.
    pub const MAX_SLOTS: u32 = FIRST_CHUNK * ((1 << NR_CHUNKS) - 1);

    /// The bits of an id that are its slot's number.
    pub(crate) const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

    /// Slots that were made so far.
    pub(crate) fn nr_slots(&self) -> u32 {
        self.free.lock().nr_made
    }

    /// Pages of its chunks from this one on, each chunk in whole pages, as they are charged.
    ///
    /// Takes the lock of growth: what was charged for is there.
    pub(crate) fn nr_pages_from(&self, chunk: usize) -> usize {
        let _grown = self.free.lock();
        let chunks = self.chunks[chunk..].iter().map_while(OnceLock::get);
        let pages = chunks.map(|slots| size_of_val::<[Slot<T>]>(slots).div_ceil(PAGE_BYTES));
        pages.sum()
    }

    /// Takes a slot and sets its record up by `init`; the id is visible to others afterwards.
    ///
    /// Where a new chunk is needed, `charge` is asked with its bytes once the allocator has them.
    ///
    /// # Errors
    /// [`NoMetadata`] where `charge` or the allocator refuses, or all slots are taken.
    pub fn insert(
        &self,
        charge: impl FnOnce(usize) -> bool,
        init: impl FnOnce(u32, &T),
    ) -> Result<u32, NoMetadata> {
        let mut free = self.free.lock();
        if free.first == 0 {
            self.grow(&mut free, charge)?;
        }
        let number = free.first;
        let slot = self.slot(number).expect("free slots are in made chunks");
        free.first = slot.next.load(Ordering::Relaxed);
        let stamp = (slot.stamp.load(Ordering::Relaxed) + 1) % NR_STAMPS;
        slot.stamp.store(stamp, Ordering::Relaxed);
        drop(free);
        let id = stamp << SLOT_BITS | number;
        init(id, &slot.value);
        // Release pairs with the Acquire in `get`: who finds the id sees the record set up.
        slot.id.store(id, Ordering::Release);
        Ok(id)
    }

    fn grow(
        &self,
        free: &mut FreeSlots,
        charge: impl FnOnce(usize) -> bool,
    ) -> Result<(), NoMetadata> {
        let (chunk, _) = chunk_of(free.nr_made);
        let nr_slots = crate::units::index(FIRST_CHUNK << chunk);
        let refused = NoMetadata {
            bytes: nr_slots * size_of::<Slot<T>>(),
        };
        if chunk >= NR_CHUNKS {
            return Err(refused);
        }
        // Before the charge, which nobody would take back.
        let mut slots = room_for(nr_slots)?;
        if !charge(refused.bytes) {
            return Err(refused);
        }
        slots.extend((0..nr_slots).map(|_| Slot::<T>::default()));
        // Slots are handed out in rising order: each points at its successor.
        let start = free.nr_made + 1;
        for (slot, number) in slots.iter().zip(start..) {
            let last = crate::units::index(number - start) + 1 == nr_slots;
            slot.next
                .store(if last { 0 } else { number + 1 }, Ordering::Relaxed);
        }
        let made = self.chunks[chunk].set(slots.into_boxed_slice());
        assert!(made.is_ok(), "chunks are made under the lock, once each");
        free.nr_made += FIRST_CHUNK << chunk;
        free.first = start;
        Ok(())
    }

    /// Gives a slot back. Its record stays as it is until the slot is taken again.
    ///
    /// # Panics
    /// Where the id is stale.
    pub fn remove(&self, id: u32) {
        let number = id & ((1 << SLOT_BITS) - 1);
        let slot = self.slot(number).expect("an id of a made slot");
        let live = slot.id.swap(0, Ordering::AcqRel);
        assert!(live == id, "a stale id is removed");
        let mut free = self.free.lock();
        slot.next.store(free.first, Ordering::Relaxed);
        free.first = number;
    }

    /// Whether this id's slot has used up its stamps: its next id was in use before.
    #[must_use]
    pub fn is_last_stamp(id: u32) -> bool {
        id >> SLOT_BITS == NR_STAMPS - 1
    }

    #[inline]
    fn slot(&self, number: u32) -> Option<&Slot<T>> {
        let (chunk, place) = chunk_of(number.checked_sub(1)?);
        self.chunks.get(chunk)?.get()?.get(place)
    }

    /// The record of `id`, or `None` where it is stale. Takes no lock.
    #[must_use]
    #[inline]
    pub fn get(&self, id: u32) -> Option<&T> {
        let slot = self.slot(id & ((1 << SLOT_BITS) - 1))?;
        // Acquire pairs with the Release in `insert`.
        (id != 0 && slot.id.load(Ordering::Acquire) == id).then_some(&slot.value)
    }

    /// The live record whose id agrees with `low` in the bits of `mask`, which cover the slot.
    #[must_use]
    pub fn get_by_low(&self, low: u32, mask: u32) -> Option<&T> {
        let slot = self.slot(low & ((1 << SLOT_BITS) - 1))?;
        let id = slot.id.load(Ordering::Acquire);
        (id != 0 && id & mask == low).then_some(&slot.value)
    }

    /// All live records with their ids, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks
            .iter()
            .map_while(OnceLock::get)
            .flat_map(|chunk| chunk.iter())
            .filter_map(|slot| {
                let id = slot.id.load(Ordering::Acquire);
                (id != 0).then_some((id, &slot.value))
            })
    }
}

impl<T: Default> Default for Table<T> {
    fn default() -> Self {
        Table::new()
    }
}
