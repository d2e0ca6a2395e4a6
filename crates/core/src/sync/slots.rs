//! Fixed arrays: of records close together, or alone on their cache lines, one for each CPU, and
//! of locks that buckets share.

use super::std::boxed::Box;
use super::std::vec::Vec;
use super::{Guard, NoMetadata, SpinLock, room_for};
use core::ops::{Deref, DerefMut, Index};

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

/// Room for a fixed number of records, close together. Each is made when it is first needed: until
/// then the OS has no memory to hold for it.
#[derive(Debug)]
pub struct Fixed<T> {
    records: Vec<T>,
    most: u32,
}

impl<T> Fixed<T> {
    /// Bytes that [`Fixed::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_records: u32) -> usize {
        size_of::<T>() * crate::units::index(nr_records)
    }

    /// Room for `nr_records` records.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_records: u32) -> Result<Self, NoMetadata> {
        Ok(Fixed {
            records: room_for(crate::units::index(nr_records))?,
            most: nr_records,
        })
    }

    /// Records that were made.
    #[must_use]
    pub fn nr_made(&self) -> u32 {
        crate::units::count(self.records.len())
    }

    /// Whether there is room for no more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.nr_made() == self.most
    }

    /// Makes one more.
    ///
    /// # Panics
    /// Where there is no room.
    pub fn push(&mut self, record: T) {
        assert!(!self.is_full(), "room for {} records", self.most);
        self.records.push(record);
    }
}

impl<T> Deref for Fixed<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.records
    }
}

impl<T> DerefMut for Fixed<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.records
    }
}

/// A fixed array of records, each alone on its cache lines.
#[derive(Debug)]
pub struct Slots<T>(Box<[Padded<T>]>);

impl<T> Slots<T> {
    /// Bytes that [`Slots::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_slots: u32) -> usize {
        size_of::<Padded<T>>() * crate::units::index(nr_slots)
    }

    /// `nr_slots` records, made in turn from their numbers.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator or `slot` refuses.
    pub fn try_new(
        nr_slots: u32,
        mut slot: impl FnMut(u32) -> Result<T, NoMetadata>,
    ) -> Result<Self, NoMetadata> {
        let mut slots = room_for(crate::units::index(nr_slots))?;
        for number in 0..nr_slots {
            slots.push(Padded(slot(number)?));
        }
        Ok(Slots(slots.into_boxed_slice()))
    }

    /// Records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The record of a number, `None` beyond them.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index).map(|slot| &slot.0)
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All records, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.0.iter().map(|slot| &slot.0)
    }
}

impl<T> Index<usize> for Slots<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: usize) -> &T {
        &self.0[index].0
    }
}

/// One padded slot for each possible CPU.
#[derive(Debug)]
pub struct PerCpu<T>(Slots<T>);

impl<T> PerCpu<T> {
    /// Bytes that [`PerCpu::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_cpus: u32) -> usize {
        Slots::<T>::bytes(nr_cpus)
    }

    /// One slot for each of `nr_cpus` CPUs, at least one.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_cpus: u32, mut slot: impl FnMut() -> T) -> Result<Self, NoMetadata> {
        PerCpu::try_with(nr_cpus, || Ok(slot()))
    }

    /// [`PerCpu::try_new`] of what allocates itself.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator or `slot` refuses.
    pub fn try_with(
        nr_cpus: u32,
        mut slot: impl FnMut() -> Result<T, NoMetadata>,
    ) -> Result<Self, NoMetadata> {
        Slots::try_new(nr_cpus.max(1), |_| slot()).map(PerCpu)
    }

    /// The slot of `cpu`; a number beyond the possible CPUs is folded into them.
    #[must_use]
    #[inline]
    pub fn of(&self, cpu: crate::units::Cpu) -> &T {
        let number = crate::units::index(cpu.number());
        match self.0.get(number) {
            Some(slot) => slot,
            // A division costs as much as a lock: only those that are beyond pay for one.
            None => &self.0[number % self.0.len()],
        }
    }

    /// The slot of `cpu`, if it is one of the possible CPUs.
    #[must_use]
    #[inline]
    pub fn get(&self, cpu: crate::units::Cpu) -> Option<&T> {
        self.0.get(crate::units::index(cpu.number()))
    }

    /// All slots, in the order of their CPUs.
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.0.iter()
    }

    /// All slots with their CPUs.
    pub fn iter_by_cpu(&self) -> impl Iterator<Item = (crate::units::Cpu, &T)> + Clone {
        (0..).map(crate::units::Cpu::new).zip(self.iter())
    }
}

/// Locks that many buckets share: bucket `n` uses lock `n` modulo their number.
#[derive(Debug)]
pub struct Stripes<const RANK: u8>(Slots<SpinLock<(), RANK>>);

impl<const RANK: u8> Stripes<RANK> {
    /// Loom explores every lock there is: it gets few.
    const NR: u32 = if cfg!(loom) { 2 } else { 128 };

    /// Bytes that [`Stripes::try_new`] takes.
    #[must_use]
    pub const fn bytes() -> usize {
        Slots::<SpinLock<(), RANK>>::bytes(Self::NR)
    }

    /// Open locks.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new() -> Result<Self, NoMetadata> {
        Slots::try_new(Self::NR, |_| Ok(SpinLock::default())).map(Stripes)
    }

    /// Takes the lock of a bucket.
    #[inline]
    pub fn lock(&self, bucket: usize) -> Guard<'_, (), RANK> {
        self.0[bucket % crate::units::index(Self::NR)].lock()
    }
}
