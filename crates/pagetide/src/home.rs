//! What keeps a memory alive: handles together, pages by their pins, working memory by the CPU that
//! it was made on.
//!
//! A count that all threads change is fetched from another CPU each time, which takes longer than
//! everything else that a block costs. So working memory counts on a line of the CPU that it was
//! made on, and a page is in no count but that of its frame's pins. When the last handle goes, all
//! files are closed, and core has counted the pins on pages that left their files: while there are
//! any, the memory has a share of itself, which the drop of the last pin gives up.
#![allow(unsafe_code)]

use crate::cpu;
use crate::shared::{Shared, locked};
use pagetide_core::sync::{NoMetadata, PerCpu};
use pagetide_core::units::Frame;
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// Held by memories, groups and files.
#[derive(Debug)]
pub(crate) struct Home {
    shared: Arc<Shared>,
    shards: PerCpu<Arc<Shard>>,
}

/// CPUs whose counts lie on lines of their own; others share them.
const MAX_SHARDS: u32 = 64;

/// Held by working memory. Alone on its cache lines, its count included.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Shard {
    shared: Arc<Shared>,
}

impl Home {
    /// # Errors
    /// Where the allocator refuses.
    pub(crate) fn try_new(shared: Arc<Shared>) -> Result<Home, NoMetadata> {
        let nr_shards = shared.topology().nr_cpus().min(MAX_SHARDS);
        let shard = || {
            let shared = Arc::clone(&shared);
            Arc::new(Shard { shared })
        };
        Ok(Home {
            shards: PerCpu::try_new(nr_shards, shard)?,
            shared,
        })
    }

    /// What it keeps.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A share of the memory for working memory that is made on this CPU.
    pub(crate) fn shard(&self) -> Arc<Shard> {
        Arc::clone(self.shards.of(cpu::current()))
    }
}

impl Drop for Home {
    /// The last handle goes.
    fn drop(&mut self) {
        self.shared.begin_stay();
    }
}

impl Deref for Home {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Deref for Shard {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// The share that a memory has of itself while nobody has a handle and pages are pinned.
#[derive(Default)]
pub(crate) struct Stay(Mutex<Option<Arc<Shared>>>);

impl fmt::Debug for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what is in it, which has this in it.
        f.debug_struct("Stay").finish_non_exhaustive()
    }
}

impl Shared {
    /// Nobody has a handle any more: stays as long as pages are pinned.
    fn begin_stay(self: &Arc<Shared>) {
        if self.is_forked() {
            // Pages that a child inherited are never given back there: where there is one, the
            // memory stays as long as the process.
            let frames = self.core.frames();
            let is_pinned = |frame| frames.word(Frame::new(frame)).pins() > 0;
            let is_claimed = self.core.claims().frames().next().is_some();
            if is_claimed || (0..frames.len()).any(is_pinned) {
                mem::forget(Arc::clone(self));
            }
            return;
        }
        if self.core.has_mappings() {
            // Closing a file unwound: nobody has counted the pins on its pages.
            mem::forget(Arc::clone(self));
            return;
        }
        *locked(&self.stay.0) = Some(Arc::clone(self));
        if !self.core.abandon() {
            self.end_stay();
        }
    }

    /// The last pin was dropped. The caller has a share of the memory.
    #[cold]
    pub(crate) fn end_stay(&self) {
        let share = locked(&self.stay.0).take();
        drop(share);
    }
}

/// What a page keeps its memory by: the pin that it holds on a frame, which has no part in any
/// count of shares.
pub(crate) struct ByPin(NonNull<Shared>);

// SAFETY: as a `&Shared` or an `Arc<Shared>`, which any thread may have, because `Shared` is made
// for many threads.
unsafe impl Send for ByPin where Arc<Shared>: Send {}
// SAFETY: as for `Send`.
unsafe impl Sync for ByPin where Arc<Shared>: Sync {}

impl ByPin {
    /// # Safety
    /// While the value is looked at, its owner has a pin on a frame of this memory that core gave
    /// for a page of a file, or knows of a handle or a share of it.
    pub(crate) unsafe fn new(home: &Home) -> ByPin {
        // Not by way of a reference, which would not reach the counts beside the value.
        let shared = Arc::as_ptr(home.shared()).cast_mut();
        // SAFETY: an `Arc`'s value is somewhere.
        ByPin(unsafe { NonNull::new_unchecked(shared) })
    }

    /// A share of its own, for what is to be done after the pin was dropped.
    pub(crate) fn share(&self) -> Arc<Shared> {
        let shared = self.0.as_ptr().cast_const();
        // SAFETY:
        // 1. The pointer is the `Arc`'s own, as `from_raw` below asks for.
        // 2. Somebody has a share of it, as in `deref`.
        unsafe { Arc::increment_strong_count(shared) };
        // SAFETY: the share that was just counted.
        unsafe { Arc::from_raw(shared) }
    }
}

impl Deref for ByPin {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        // SAFETY: the memory is there, because whoever looks has a pin (`new`):
        // 1. While somebody has a handle, that one's `Home` keeps it.
        // 2. The last handle goes when all files are closed, which takes every page out of its
        //    file, and its pins are in core's count from before that can be seen until they are
        //    dropped: then `begin_stay` finds them, and the share stays until the last one went.
        //    Where a file was not closed, it stays for ever.
        //    A claim in the place of a pin was made one by then, or given back.
        // 3. In a child, where pins are never dropped, it stays for ever where there is one.
        unsafe { self.0.as_ref() }
    }
}

#[cfg(test)]
mod tests;
