//! The checker's mutex in the place of the spin loop, which would exceed its branch limit.
use core::ops::{Deref, DerefMut};
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

    /// As [`SpinLock::lock`], until `gives_up`, which is asked between tries.
    pub fn lock_unless(&self, mut gives_up: impl FnMut() -> bool) -> Option<MutexGuard<'_, T>> {
        loop {
            let guard = self.try_lock();
            if guard.is_some() || gives_up() {
                return guard;
            }
            super::yield_now();
        }
    }

    /// Takes the lock if it is free now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    /// Whether somebody holds the lock. A look of a moment.
    pub fn is_held(&self) -> bool {
        self.try_lock().is_none()
    }

    /// Takes the lock if it is free now.
    pub fn try_brief(&self) -> Option<Brief<'_, T, RANK>> {
        self.try_lock().map(Brief)
    }
}

/// Exclusive access under a checker.
#[derive(Debug)]
#[must_use]
pub struct Brief<'a, T, const RANK: u8>(MutexGuard<'a, T>);

impl<T, const RANK: u8> Brief<'_, T, RANK> {
    /// Opens the lock.
    pub fn open(self) {}
}

impl<T, const RANK: u8> Deref for Brief<'_, T, RANK> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T, const RANK: u8> DerefMut for Brief<'_, T, RANK> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
