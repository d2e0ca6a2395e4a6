#![doc = include_str!("sync/README.md")]
#![allow(unsafe_code)]

extern crate std;

use core::ops::{Deref, Index};
use std::boxed::Box;
use std::sync::OnceLock;
use std::vec::Vec;

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(any(loom, shuttle))]
pub use checked::{Guard, SpinLock};
#[cfg(not(any(loom, shuttle)))]
pub use spin::{Guard, SpinLock};

/// Ranks of the locks, outer to inner. A thread takes them in rising order only, at most two.
pub mod rank {
    /// The group tree's shape.
    pub const GROUP_TREE: u8 = 1;
    /// A stripe of the page index.
    pub const INDEX: u8 = 2;
    /// A mapping's list of resident frames.
    pub const MAPPING: u8 = 3;
    /// A stripe of the shadow table.
    pub const SHADOW: u8 = 4;
    /// One lruvec.
    pub const LRUVEC: u8 = 5;
    /// A per-CPU page cache.
    pub const PCP: u8 = 6;
    /// A zone's free area.
    pub const ZONE: u8 = 7;
    /// Growth of a table.
    pub const TABLE: u8 = 8;
}

/// Memory for core's own records was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMetadata {
    /// Bytes that were asked for.
    pub bytes: usize,
}

#[cfg(not(any(loom, shuttle)))]
mod spin {
    use super::std;
    use core::cell::UnsafeCell;
    use core::ops::{Deref, DerefMut};
    use core::sync::atomic::{AtomicU32, Ordering};

    const HELD: u32 = 1;
    const POISONED: u32 = 2;
    /// Spins before the waiter yields its CPU: the holder may be preempted.
    const SPINS: u32 = 64;

    /// A spin lock of rank `RANK`, poisoned when its guard is dropped by unwinding.
    ///
    /// One word beside the data. One read-modify-write to take, a store to release.
    #[derive(Debug)]
    pub struct SpinLock<T, const RANK: u8> {
        state: AtomicU32,
        data: UnsafeCell<T>,
    }

    // SAFETY: the data is reached through `Guard` only, and `state` lets one guard live at a time,
    // so sharing the lock moves `T` between threads and never shares it.
    unsafe impl<T: Send, const RANK: u8> Sync for SpinLock<T, RANK> {}

    impl<T: Default, const RANK: u8> Default for SpinLock<T, RANK> {
        fn default() -> Self {
            SpinLock::new(T::default())
        }
    }

    /// Exclusive access to a lock's data until dropped.
    #[derive(Debug)]
    pub struct Guard<'a, T, const RANK: u8> {
        lock: &'a SpinLock<T, RANK>,
        /// Taken by a destructor during unwinding: that panic did not happen under this lock.
        was_panicking: bool,
    }

    impl<T, const RANK: u8> SpinLock<T, RANK> {
        /// An open lock.
        pub const fn new(data: T) -> Self {
            SpinLock {
                state: AtomicU32::new(0),
                data: UnsafeCell::new(data),
            }
        }

        /// Takes the lock; spins [`SPINS`] times, then yields between tries.
        ///
        /// # Panics
        /// Where an earlier holder unwound (the data may be torn), and in debug builds where a
        /// lock of this or a higher rank is held already.
        pub fn lock(&self) -> Guard<'_, T, RANK> {
            let mut spins = 0;
            loop {
                if let Some(guard) = self.try_lock() {
                    return guard;
                }
                spins += 1;
                if spins < SPINS {
                    core::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
        }

        /// Takes the lock if it is free now.
        ///
        /// # Panics
        /// As [`SpinLock::lock`].
        pub fn try_lock(&self) -> Option<Guard<'_, T, RANK>> {
            // Acquire pairs with the Release in `Guard::drop`.
            match self
                .state
                .compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => {
                    held::push(RANK);
                    let was_panicking = std::thread::panicking();
                    Some(Guard {
                        lock: self,
                        was_panicking,
                    })
                }
                Err(state) => {
                    assert!(state & POISONED == 0, "a lock of rank {RANK} is poisoned");
                    None
                }
            }
        }
    }

    impl<T, const RANK: u8> Deref for Guard<'_, T, RANK> {
        type Target = T;
        fn deref(&self) -> &T {
            // SAFETY: this guard holds the lock, so no `&mut` of the data lives elsewhere.
            unsafe { &*self.lock.data.get() }
        }
    }

    impl<T, const RANK: u8> DerefMut for Guard<'_, T, RANK> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: this guard holds the lock and is borrowed mutably: the only reference.
            unsafe { &mut *self.lock.data.get() }
        }
    }

    impl<T, const RANK: u8> Drop for Guard<'_, T, RANK> {
        fn drop(&mut self) {
            held::pop(RANK);
            let is_torn = std::thread::panicking() && !self.was_panicking;
            let state = if is_torn { HELD | POISONED } else { 0 };
            // Release pairs with the Acquire in `try_lock`.
            self.lock.state.store(state, Ordering::Release);
        }
    }

    /// The ranks that this thread holds, checked in debug builds.
    mod held {
        #[cfg(debug_assertions)]
        use core::cell::Cell;

        #[cfg(debug_assertions)]
        super::std::thread_local! {
            /// A bit for each held rank.
            static HELD: Cell<u16> = const { Cell::new(0) };
        }

        #[cfg(debug_assertions)]
        pub(super) fn push(rank: u8) {
            HELD.with(|held| {
                let before = held.get();
                assert!(
                    before >> rank == 0,
                    "lock of rank {rank} taken under {before:#b}"
                );
                assert!(before.count_ones() < 2, "a third lock, of rank {rank}");
                held.set(before | 1 << rank);
            });
        }

        #[cfg(debug_assertions)]
        pub(super) fn pop(rank: u8) {
            HELD.with(|held| held.set(held.get() & !(1 << rank)));
        }

        #[cfg(not(debug_assertions))]
        pub(super) fn push(_rank: u8) {}

        #[cfg(not(debug_assertions))]
        pub(super) fn pop(_rank: u8) {}
    }
}

#[cfg(any(loom, shuttle))]
mod checked {
    //! The checker's mutex in the place of the spin loop, which would exceed its branch limit.
    #[cfg(loom)]
    use loom::sync::{Mutex, MutexGuard};
    #[cfg(shuttle)]
    use shuttle::sync::{Mutex, MutexGuard};

    /// A lock of rank `RANK` under a checker.
    #[derive(Debug)]
    pub struct SpinLock<T, const RANK: u8>(Mutex<T>);

    /// Exclusive access to a lock's data until dropped.
    pub type Guard<'a, T, const RANK: u8> = MutexGuard<'a, T>;

    impl<T: Default, const RANK: u8> Default for SpinLock<T, RANK> {
        fn default() -> Self {
            SpinLock::new(T::default())
        }
    }

    impl<T, const RANK: u8> SpinLock<T, RANK> {
        /// An open lock.
        pub fn new(data: T) -> Self {
            SpinLock(Mutex::new(data))
        }

        /// Takes the lock.
        ///
        /// # Panics
        /// Where an earlier holder unwound.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a lock is poisoned")
        }

        /// Takes the lock if it is free now.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

/// A value alone on its cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Padded<T>(T);

impl<T> Deref for Padded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// One padded slot for each possible CPU.
#[derive(Debug)]
pub struct PerCpu<T> {
    slots: Box<[Padded<T>]>,
}

impl<T> PerCpu<T> {
    /// Bytes that [`PerCpu::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_cpus: u32) -> usize {
        size_of::<Padded<T>>() * crate::units::index(nr_cpus)
    }

    /// One slot for each of `nr_cpus` CPUs.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_cpus: u32, mut slot: impl FnMut() -> T) -> Result<Self, NoMetadata> {
        let mut slots = Vec::new();
        let nr_slots = crate::units::index(nr_cpus.max(1));
        let refused = NoMetadata {
            bytes: Self::bytes(nr_cpus),
        };
        slots.try_reserve_exact(nr_slots).map_err(|_| refused)?;
        slots.extend((0..nr_slots).map(|_| Padded(slot())));
        Ok(PerCpu {
            slots: slots.into_boxed_slice(),
        })
    }

    /// The slot of `cpu`; a number beyond the possible CPUs is folded into them.
    #[must_use]
    pub fn of(&self, cpu: crate::units::Cpu) -> &T {
        &self.slots[crate::units::index(cpu.number()) % self.slots.len()]
    }

    /// All slots, in the order of their CPUs.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map(|slot| &slot.0)
    }
}

/// Locks that many buckets share: bucket `n` uses lock `n` modulo their number.
#[derive(Debug)]
pub struct Stripes<const RANK: u8>(PerCpu<SpinLock<(), RANK>>);

impl<const RANK: u8> Stripes<RANK> {
    /// Loom explores every lock there is: it gets few.
    const NR: u32 = if cfg!(loom) { 2 } else { 128 };

    /// Bytes that [`Stripes::try_new`] takes.
    #[must_use]
    pub const fn bytes() -> usize {
        PerCpu::<SpinLock<(), RANK>>::bytes(Self::NR)
    }

    /// Open locks.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new() -> Result<Self, NoMetadata> {
        PerCpu::try_new(Self::NR, SpinLock::default).map(Stripes)
    }

    /// Takes the lock of a bucket.
    pub fn lock(&self, bucket: usize) -> Guard<'_, (), RANK> {
        self.0.slots[bucket % self.0.slots.len()].lock()
    }
}

/// A fixed array of zeroed words that starts on a cache line.
///
/// Memory that is never written costs nothing: a large array comes as untouched zero pages.
pub struct Words {
    words: Box<[AtomicU64]>,
    /// Words before the first cache line.
    skew: usize,
}

impl core::fmt::Debug for Words {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} words", self.words.len() - Self::LINE)
    }
}

impl Words {
    const LINE: usize = 8;

    /// Bytes that [`Words::try_new`] takes for `nr_words`.
    #[must_use]
    pub const fn bytes(nr_words: usize) -> usize {
        (nr_words + Self::LINE) * size_of::<u64>()
    }

    /// `nr_words` words of zero.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_words: usize) -> Result<Words, NoMetadata> {
        let words = zeroed(nr_words + Self::LINE)?;
        let skew = words.as_ptr().addr().wrapping_neg() % 64 / size_of::<u64>();
        Ok(Words { words, skew })
    }
}

#[cfg(not(any(loom, shuttle)))]
fn zeroed(nr_words: usize) -> Result<Box<[AtomicU64]>, NoMetadata> {
    use std::alloc::{Layout, alloc_zeroed};
    let refused = NoMetadata {
        bytes: nr_words.saturating_mul(size_of::<u64>()),
    };
    let layout = Layout::array::<AtomicU64>(nr_words).map_err(|_| refused)?;
    assert!(nr_words > 0, "an array of no words");
    // SAFETY: the layout is not empty (asserted above).
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(refused);
    }
    let words = core::ptr::slice_from_raw_parts_mut(start.cast::<AtomicU64>(), nr_words);
    // SAFETY:
    // 1. `start` was just allocated by the global allocator with the layout of this slice.
    // 2. All-zero bytes are valid `AtomicU64`s of value 0.
    Ok(unsafe { Box::from_raw(words) })
}

#[cfg(any(loom, shuttle))]
fn zeroed(nr_words: usize) -> Result<Box<[AtomicU64]>, NoMetadata> {
    Ok((0..nr_words).map(|_| AtomicU64::new(0)).collect())
}

impl Index<usize> for Words {
    type Output = AtomicU64;
    fn index(&self, index: usize) -> &AtomicU64 {
        &self.words[index + self.skew]
    }
}

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
struct Slot<T> {
    /// The id that lives here, 0 where none does.
    id: AtomicU32,
    /// While free: the next free slot's number. Guarded by `Table::free`.
    next: AtomicU32,
    /// The stamp of the last id. Guarded by `Table::free`.
    stamp: AtomicU32,
    value: T,
}

#[derive(Debug, Default)]
struct FreeSlots {
    first: u32,
    nr_made: u32,
}

/// Chunk `k` has `FIRST_CHUNK << k` slots.
const NR_CHUNKS: usize = 15;
const FIRST_CHUNK: u32 = 32;
const SLOT_BITS: u32 = 20;
const NR_STAMPS: u32 = 1 << (32 - SLOT_BITS);

/// The chunk and the place in it of slot `number` (from 0).
fn chunk_of(number: u32) -> (usize, usize) {
    let chunk = (number / FIRST_CHUNK + 1).ilog2();
    let start = FIRST_CHUNK * ((1 << chunk) - 1);
    (
        crate::units::index(chunk),
        crate::units::index(number - start),
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

    /// Takes a slot and sets its record up by `init`; the id is visible to others afterwards.
    ///
    /// Where a new chunk is needed, `charge` is asked with its bytes first.
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
        if chunk >= NR_CHUNKS || !charge(refused.bytes) {
            return Err(refused);
        }
        let mut slots = Vec::new();
        slots.try_reserve_exact(nr_slots).map_err(|_| refused)?;
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

    fn slot(&self, number: u32) -> Option<&Slot<T>> {
        let (chunk, place) = chunk_of(number.checked_sub(1)?);
        self.chunks.get(chunk)?.get()?.get(place)
    }

    /// The record of `id`, or `None` where it is stale. Takes no lock.
    #[must_use]
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

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
