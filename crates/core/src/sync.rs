#![doc = include_str!("sync/README.md")]
#![allow(unsafe_code)]

extern crate std;

use core::ops::Index;
use core::ptr::NonNull;
use std::boxed::Box;
use std::vec::Vec;

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::atomic::Ordering;
#[cfg(all(not(debug_assertions), not(any(loom, shuttle))))]
pub use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
pub use counted::{AtomicU32, AtomicU64};

/// Spin locks of a rank that this thread took so far. `None` in release builds, which do not count.
#[must_use]
pub fn nr_locks(rank: u8) -> Option<u64> {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    return Some(spin::held::nr_taken(rank));
    #[cfg(not(all(debug_assertions, not(any(loom, shuttle)))))]
    {
        let _ = rank;
        None
    }
}

#[cfg(any(loom, shuttle))]
pub use checked::{Brief, Guard, SpinLock};
#[cfg(not(any(loom, shuttle)))]
pub use spin::{Brief, Guard, SpinLock};

#[cfg(any(loom, shuttle))]
mod checked;
#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
mod counted;
#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod refusals;
mod sections;
mod slots;
mod table;
mod waiting;

pub use sections::{Gate, OnCpu, Sections};
pub use slots::{Fixed, Padded, PerCpu, Slots, Stripes};
pub use table::Table;
pub use waiting::Waiting;

/// Has the cache line of a place fetched, for a caller that comes to it soon: a hint, no access. A
/// load would not do: a read-modify-write behind it waits until it has its value. Only on x86-64.
#[inline]
pub fn prefetch<T: ?Sized>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction takes any address, and changes nothing but what is in caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// As [`prefetch`], for a caller that writes there: a line that another CPU has is taken from it at
/// once, and not asked for again at the write.
#[inline]
pub fn prefetch_to_write<T: ?Sized>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch`. Where a CPU does not know the instruction it does nothing.
    unsafe {
        core::arch::asm!(
            "prefetchw byte ptr [{}]",
            in(reg) place.cast::<u8>(),
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Read-modify-writes that this thread made so far through core's atomics and spin locks, each try
/// of a compare-and-swap counted. `None` in release builds, which do not count.
#[must_use]
pub fn nr_rmws() -> Option<u64> {
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    return Some(counted::nr_rmws());
    #[cfg(not(all(debug_assertions, not(any(loom, shuttle)))))]
    None
}

/// Ranks of the locks, outer to inner. A thread takes them in rising order only, at most two.
pub mod rank {
    /// The group tree's shape.
    pub const GROUP_TREE: u8 = 1;
    /// A stripe of the page index.
    pub const INDEX: u8 = 2;
    /// A mapping's list of resident frames.
    pub const MAPPING: u8 = 3;
    /// A CPU's magazines of working memory.
    pub const MAGAZINE: u8 = 4;
    /// What magazines have too many of.
    pub const DEPOT: u8 = 5;
    /// One lruvec.
    pub const LRUVEC: u8 = 6;
    /// A per-CPU page cache.
    pub const PCP: u8 = 7;
    /// A zone's free area.
    pub const ZONE: u8 = 8;
    /// Growth of a table.
    pub const TABLE: u8 = 9;
    /// The charge stock of one CPU, in the variant that locks it.
    pub const STOCK: u8 = 10;
    /// What is out of use.
    pub const BALLOON: u8 = 11;
    /// One group's pressure.
    pub const PRESSURE: u8 = 12;
}

/// Memory for core's own records was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMetadata {
    /// Bytes that were asked for.
    pub bytes: usize,
}

/// Whether the allocator refuses now, because a test wants that.
fn is_refused() -> bool {
    #[cfg(all(test, not(any(loom, shuttle))))]
    return refusals::is_next();
    #[cfg(not(all(test, not(any(loom, shuttle)))))]
    false
}

/// Room for `nr_records` records.
fn room_for<T>(nr_records: usize) -> Result<Vec<T>, NoMetadata> {
    let refused = NoMetadata {
        bytes: nr_records.saturating_mul(size_of::<T>()),
    };
    if is_refused() {
        return Err(refused);
    }
    let mut room = Vec::new();
    room.try_reserve_exact(nr_records).map_err(|_| refused)?;
    Ok(room)
}

/// What a read-modify-write and a load after it, both sequentially consistent, order among
/// themselves. Loom takes them for weaker than they are, so that there it is a fence.
#[inline]
pub(crate) fn order_after_rmw() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// A sequentially consistent fence.
pub(crate) fn full_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(shuttle)]
    shuttle::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(not(any(loom, shuttle)))]
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// Whether this thread unwinds. Not known under a checker.
pub(crate) fn is_unwinding() -> bool {
    !cfg!(any(loom, shuttle)) && std::thread::panicking()
}

/// Lets other threads run: whoever is waited for may be preempted.
pub fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    std::thread::yield_now();
}

#[cfg(not(any(loom, shuttle)))]
mod spin {
    use super::std;
    use super::{AtomicU32, Ordering};
    use core::cell::UnsafeCell;
    use core::ops::{Deref, DerefMut};

    const HELD: u32 = 1;
    const POISONED: u32 = 2;
    /// Spins before the waiter yields its CPU: the holder may be preempted.
    const SPINS: u32 = 64;

    /// A spin lock of rank `RANK`, poisoned when its guard is dropped by unwinding.
    ///
    /// One word before the data, on its first line. One read-modify-write to take, a store to
    /// release.
    #[derive(Debug)]
    #[repr(C)]
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
            loop {
                // The first try asks for the line once, to write it. Who waits only looks.
                let taken = self.try_lock().or_else(|| self.lock_unless(|| false));
                if let Some(guard) = taken {
                    return guard;
                }
            }
        }

        /// As [`SpinLock::lock`], until `gives_up`, which is asked between tries. Looks first: who
        /// gives up takes the line from nobody.
        ///
        /// # Panics
        /// As [`SpinLock::lock`].
        pub fn lock_unless(
            &self,
            mut gives_up: impl FnMut() -> bool,
        ) -> Option<Guard<'_, T, RANK>> {
            let mut spins = 0;
            loop {
                let guard = match self.is_held() {
                    true => None,
                    false => self.try_lock(),
                };
                if guard.is_some() || gives_up() {
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
        #[inline]
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

        /// Whether somebody holds the lock. A look of a moment.
        pub fn is_held(&self) -> bool {
            self.state.load(Ordering::Relaxed) == HELD
        }

        /// Takes the lock if it is free now; `None` where it is not, or an earlier holder unwound.
        /// Cheaper than [`SpinLock::try_lock`], whose guard asks twice whether the thread unwinds.
        ///
        /// # Panics
        /// In debug builds where a lock of this or a higher rank is held already.
        #[inline(always)]
        pub fn try_brief(&self) -> Option<Brief<'_, T, RANK>> {
            // Acquire pairs with the Release in `Guard::drop` and `Brief::open`.
            let taken = self
                .state
                .compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed);
            taken.ok()?;
            held::push(RANK);
            Some(Brief(self))
        }
    }

    /// Exclusive access to a lock's data until [`Brief::open`]; poisons the lock where it is
    /// dropped without, as by unwinding.
    #[derive(Debug)]
    #[must_use]
    pub struct Brief<'a, T, const RANK: u8>(&'a SpinLock<T, RANK>);

    impl<T, const RANK: u8> Brief<'_, T, RANK> {
        /// Opens the lock.
        #[inline(always)]
        pub fn open(self) {
            held::pop(RANK);
            // Release pairs with the Acquire in `try_lock` and `try_brief`.
            self.0.state.store(0, Ordering::Release);
            core::mem::forget(self);
        }
    }

    impl<T, const RANK: u8> Drop for Brief<'_, T, RANK> {
        fn drop(&mut self) {
            held::pop(RANK);
            // Release pairs with the Acquire in `try_lock`.
            self.0.state.store(HELD | POISONED, Ordering::Release);
        }
    }

    impl<T, const RANK: u8> Deref for Brief<'_, T, RANK> {
        type Target = T;
        #[inline]
        fn deref(&self) -> &T {
            // SAFETY: this value holds the lock, so no `&mut` of the data lives elsewhere.
            unsafe { &*self.0.data.get() }
        }
    }

    impl<T, const RANK: u8> DerefMut for Brief<'_, T, RANK> {
        #[inline]
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: this value holds the lock and is borrowed mutably: the only reference.
            unsafe { &mut *self.0.data.get() }
        }
    }

    impl<T, const RANK: u8> Deref for Guard<'_, T, RANK> {
        type Target = T;
        #[inline]
        fn deref(&self) -> &T {
            // SAFETY: this guard holds the lock, so no `&mut` of the data lives elsewhere.
            unsafe { &*self.lock.data.get() }
        }
    }

    impl<T, const RANK: u8> DerefMut for Guard<'_, T, RANK> {
        #[inline]
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: this guard holds the lock and is borrowed mutably: the only reference.
            unsafe { &mut *self.lock.data.get() }
        }
    }

    impl<T, const RANK: u8> Drop for Guard<'_, T, RANK> {
        #[inline]
        fn drop(&mut self) {
            held::pop(RANK);
            let is_torn = std::thread::panicking() && !self.was_panicking;
            let state = if is_torn { HELD | POISONED } else { 0 };
            // Release pairs with the Acquire in `try_lock`.
            self.lock.state.store(state, Ordering::Release);
        }
    }

    /// The ranks that this thread holds, checked in debug builds.
    pub(super) mod held {
        #[cfg(debug_assertions)]
        use core::cell::Cell;

        #[cfg(debug_assertions)]
        super::std::thread_local! {
            /// A bit for each held rank.
            static HELD: Cell<u16> = const { Cell::new(0) };
            /// Locks taken, by rank.
            static TAKEN: Cell<[u64; 16]> = const { Cell::new([0; 16]) };
        }

        #[cfg(debug_assertions)]
        pub(crate) fn nr_taken(rank: u8) -> u64 {
            TAKEN.get()[usize::from(rank)]
        }

        #[cfg(debug_assertions)]
        pub(super) fn push(rank: u8) {
            let mut taken = TAKEN.get();
            taken[usize::from(rank)] += 1;
            TAKEN.set(taken);
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

/// A fixed array of zeroed words that starts on a cache line.
///
/// Memory that is never written costs nothing: a large array comes as untouched zero pages.
pub struct Words {
    /// Those that were asked for.
    words: NonNull<[AtomicU64]>,
    /// What they are in: up to a line more before the first cache line.
    all: NonNull<[AtomicU64]>,
}

// SAFETY: it owns its words as a `Box<[AtomicU64]>` would, which any thread may have.
unsafe impl Send for Words where Box<[AtomicU64]>: Send {}
// SAFETY: as for `Send`.
unsafe impl Sync for Words where Box<[AtomicU64]>: Sync {}

impl core::fmt::Debug for Words {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} words", self.words().len())
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
        let all = NonNull::from(Box::leak(zeroed(nr_words + Self::LINE)?));
        // SAFETY: just leaked.
        let words = unsafe { all.as_ref() };
        let skew = words.as_ptr().addr().wrapping_neg() % 64 / size_of::<u64>();
        let words = NonNull::from(&words[skew..skew + nr_words]);
        Ok(Words { words, all })
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: a part of `all`, which lives until `self` is dropped.
        unsafe { self.words.as_ref() }
    }

    /// The `N` words from `number * N` on: one comparison.
    ///
    /// # Panics
    /// Where there are fewer.
    #[inline]
    pub(crate) fn chunk<const N: usize>(&self, number: usize) -> &[AtomicU64; N] {
        &self.words().as_chunks().0[number]
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: `try_new` leaked it, and whoever had a part of it borrowed `self`.
        drop(unsafe { Box::from_raw(self.all.as_ptr()) });
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
    if is_refused() {
        return Err(refused);
    }
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
    #[inline]
    fn index(&self, index: usize) -> &AtomicU64 {
        &self.words()[index]
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
pub(crate) mod tests;
