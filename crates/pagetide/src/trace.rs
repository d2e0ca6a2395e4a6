//! What is told to `tracing` where the feature of that name is on, and nobody where it is off.
//!
//! Rare things, and at the lowest level each call that reclaims: a hit and a miss count and say
//! nothing. A subscriber is foreign code in the middle of the library: what unwinds out of it stays
//! here.

#![cfg_attr(not(feature = "tracing"), expect(unused_variables))] // Nobody is told.

use crate::Error;
use crate::backing::Backing;
use crate::shared::Shared;
use std::any::Any;
use std::time::Duration;

/// A memory was built.
#[inline]
pub(crate) fn built(budget_bytes: u64) {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::info!(budget_bytes, "memory built"));
}

/// The budget was changed, or could not be.
#[inline]
pub(crate) fn budget_set(budget_bytes: u64, result: &Result<(), Error>) {
    #[cfg(feature = "tracing")]
    guarded(|| match result {
        Ok(()) => tracing::info!(budget_bytes, "budget set"),
        Err(error) => tracing::warn!(budget_bytes, %error, "budget not met"),
    });
}

/// A request for memory was refused.
#[inline]
pub(crate) fn refused(error: &Error) {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::debug!(%error, "memory refused"));
}

/// A store failed to give a page.
#[inline]
pub(crate) fn read_failed(error: &Error) {
    #[cfg(feature = "tracing")]
    guarded(|| {
        let source = std::error::Error::source(error).map(ToString::to_string);
        tracing::warn!(%error, source, "read failed");
    });
}

/// Pages of a file could not be written: they are dirty still.
#[inline]
pub(crate) fn write_failed(backing: &Backing, code: u32) {
    #[cfg(feature = "tracing")]
    guarded(|| {
        let (file, error) = (&*backing.name, backing.told.error_of(code));
        tracing::warn!(file, %error, "write failed");
    });
}

/// Dirty pages were dropped with the last handle of their file.
#[inline]
pub(crate) fn pages_lost(file: &str, pages: u64) {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::error!(file, pages, "dirty pages lost"));
}

/// Pages were written in the background.
#[inline]
pub(crate) fn written_back(pages: u64) {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::debug!(pages, "written back"));
}

/// The kernel allows no ring, or no longer.
#[inline]
pub(crate) fn no_ring(reason: &str) {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::warn!(reason, "io_uring is not used"));
}

/// Code of the program panicked on a thread of the library, which goes on.
#[inline]
pub(crate) fn panicked(payload: &(dyn Any + Send)) {
    #[cfg(feature = "tracing")]
    guarded(|| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let thread = std::thread::current();
        tracing::error!(thread = thread.name(), panic = text, "a callback panicked");
    });
}

/// A block of memory went back to the OS.
#[inline]
pub(crate) fn released(bytes: u64) {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::debug!(bytes, "released to the OS"));
}

/// A block did not, because that would interrupt an isolated CPU.
#[inline]
pub(crate) fn release_deferred() {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::debug!("release deferred: a thread may run on an isolated CPU"));
}

/// A call has to reclaim for a group before it goes on.
#[inline]
pub(crate) fn stalled(shared: &Shared, group: u32) {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::trace!(group = shared.path_of(group), "reclaims"));
}

/// A thread sleeps because it charged a group above its `high`.
#[inline]
pub(crate) fn throttled(shared: &Shared, group: u32, delay: Duration) {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::debug!(group = shared.path_of(group), ?delay, "throttled"));
}

/// Background reclaim on a node has what it needs, or finds no more.
#[inline]
pub(crate) fn balanced(node: usize) {
    #[cfg(feature = "tracing")]
    guarded(|| tracing::debug!(node, "background reclaim rests"));
}

#[cfg(feature = "tracing")]
fn guarded(tell: impl FnOnce()) {
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(tell));
    // The panic said so itself.
    drop(told);
}
