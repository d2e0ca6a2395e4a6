//! The lock of a file's length.

use crate::shared::unpoisoned;
use crate::shrinker::is_shrinking;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held shared by those who change bytes, alone by those who change the length or drop pages.
///
/// It guards no value: who unwound with it left nothing half. Inside a shrinker nobody waits for
/// it, because the call that asked the shrinker may have it: there it is `None` where it is taken.
#[derive(Debug, Default)]
pub(crate) struct LengthLock(RwLock<()>);

impl LengthLock {
    /// Shared.
    pub(crate) fn share(&self) -> Option<RwLockReadGuard<'_, ()>> {
        match is_shrinking() {
            true => self.try_share(),
            false => Some(self.0.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Shared, where nobody has it alone or waits for that.
    pub(crate) fn try_share(&self) -> Option<RwLockReadGuard<'_, ()>> {
        unpoisoned(self.0.try_read())
    }

    /// Alone.
    pub(crate) fn take(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match is_shrinking() {
            true => self.try_take(),
            false => Some(self.0.write().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Alone, where nobody has it.
    pub(crate) fn try_take(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        unpoisoned(self.0.try_write())
    }
}
