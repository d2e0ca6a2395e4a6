//! What keeps a memory alive: handles together, pages by their pins, working memory by core's count
//! of it.
//!
//! A count that all threads change is fetched from another CPU each time, which takes longer than
//! everything else that a block costs. So a page is in no count but that of its frame's pins, and
//! working memory is counted by the CPU's magazines, as what they had less what they have. When the
//! last handle goes, all files are closed, and core has counted the pins on pages that left their
//! files; it closes the magazines and adds up what is out. While there is anything, the memory has
//! a share of itself, which the drop of the last pin or block gives up.
#![allow(unsafe_code)]

use crate::cpu;
use crate::shared::{Shared, locked};
use pagetide_core::frame::State;
use pagetide_core::units::Frame;
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// What memories, groups and files have of a memory.
#[derive(Clone)]
pub(crate) struct Home {
    handles: Arc<Handles>,
    /// What `handles` keep, a load nearer.
    shared: ByFrame,
}

/// All handles of a memory together.
struct Handles {
    shared: Arc<Shared>,
}

impl Home {
    /// The first one.
    pub(crate) fn new(shared: Arc<Shared>) -> Home {
        // Not by way of a reference, which would not reach the counts beside the value.
        let value = Arc::as_ptr(&shared).cast_mut();
        // SAFETY: an `Arc`'s value is somewhere.
        let value = unsafe { NonNull::new_unchecked(value) };
        Home {
            handles: Arc::new(Handles { shared }),
            shared: ByFrame(value),
        }
    }

    /// What all handles keep.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handles.shared
    }

    /// Whether both are of one memory.
    pub(crate) fn is(&self, other: &Home) -> bool {
        Arc::ptr_eq(&self.handles, &other.handles)
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Home").field(&self.handles.shared).finish()
    }
}

impl Drop for Handles {
    /// The last handle goes.
    fn drop(&mut self) {
        self.shared.begin_stay();
    }
}

impl Deref for Home {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// The share that a memory has of itself while nobody has a handle and pages are pinned, or working
/// memory is in use.
#[derive(Default)]
pub(crate) struct Stay(Mutex<Option<Arc<Shared>>>);

impl fmt::Debug for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what is in it, which has this in it.
        f.debug_struct("Stay").finish_non_exhaustive()
    }
}

impl Shared {
    /// Nobody has a handle any more: stays as long as pages are pinned or working memory is in use.
    fn begin_stay(self: &Arc<Shared>) {
        if self.is_forked() {
            // Pages and buffers that a child inherited are never given back there: where there may
            // be one, the memory stays as long as the process.
            let frames = self.core.frames();
            let is_held = |frame| {
                let word = frames.word(frame);
                word.pins() > 0 || word.state() == State::Buf
            };
            // The child's only thread looks.
            let is_claimed = self.core.claims().frames_about_now().next().is_some();
            if is_claimed || (0..frames.len()).map(Frame::new).any(is_held) {
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

    /// The last pin or block was dropped: nobody but the caller needs the memory, which may be gone
    /// when this returns.
    #[cold]
    pub(crate) fn end_stay(&self) {
        let share = locked(&self.stay.0).take();
        drop(share);
    }
}

/// What a page keeps its memory by, the pin that it holds on a frame; or a block of working memory,
/// by being one. Neither has a part in any count of shares.
#[derive(Clone, Copy)]
pub(crate) struct ByFrame(NonNull<Shared>);

// SAFETY: as a `&Shared` or an `Arc<Shared>`, which any thread may have, because `Shared` is made
// for many threads.
unsafe impl Send for ByFrame where Arc<Shared>: Send {}
// SAFETY: as for `Send`.
unsafe impl Sync for ByFrame where Arc<Shared>: Sync {}

impl ByFrame {
    /// # Safety
    /// While the value is looked at, its owner has a pin on a frame of this memory that core gave
    /// for a page of a file, or a block of working memory of it, or knows of a handle or a share.
    #[inline]
    pub(crate) unsafe fn new(home: &Home) -> ByFrame {
        home.shared
    }

    /// A share of its own, for what is to be done after the pin or the block was given back.
    pub(crate) fn share(self) -> Arc<Shared> {
        let shared = self.0.as_ptr().cast_const();
        // SAFETY:
        // 1. The pointer is the `Arc`'s own, as `from_raw` below asks for.
        // 2. Somebody has a share of it, as in `deref`.
        unsafe { Arc::increment_strong_count(shared) };
        // SAFETY: the share that was just counted.
        unsafe { Arc::from_raw(shared) }
    }

    /// Gives back the block of working memory by which its owner kept the memory.
    #[inline] // What is behind it has the pointer in a register.
    pub(crate) fn drop_block(self, frame: Frame) {
        self.drop_block_here(frame);
    }

    /// Makes no call on the way of most, for which registers would be saved each time.
    #[inline(never)]
    fn drop_block_here(self, frame: Frame) {
        let shared: &Shared = &self;
        if let Some(on) = cpu::known()
            // One comparison for both: hardly ever is one of them so.
            && !(shared.memory_waits.is_any() | shared.core.is_balloon_short())
            && !shared.is_forked()
            && shared.core.drop_at_hand(&on, frame)
        {
            // With the block the memory may be gone.
            return;
        }
        self.drop_block_slowly(frame);
    }

    /// The same, by calls where they are needed.
    #[inline(never)]
    fn drop_block_slowly(self, frame: Frame) {
        let shared: &Shared = &self;
        if shared.is_forked() {
            return;
        }
        if shared.memory_waits.is_any() || shared.core.is_balloon_short() {
            return self.drop_block_sharing(frame);
        }
        // With the block the memory may be gone, unless it was the last one.
        if shared.core.drop_buf(cpu::current(), frame) {
            shared.end_stay();
        }
    }

    /// The same where somebody is to be told: with a share of the memory meanwhile.
    #[cold]
    #[inline(never)]
    fn drop_block_sharing(self, frame: Frame) {
        let shared = self.share();
        // A frame that goes to its zone forgets whose it was.
        let group = shared.core.frames().group(frame);
        let is_last = shared.core.drop_buf_at_once(cpu::current(), frame);
        shared.settle();
        shared.group_came_back(group);
        if is_last {
            shared.end_stay();
        }
    }
}

impl Deref for ByFrame {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        // SAFETY: the memory is there, because whoever looks has a pin, a block or a handle (`new`,
        // and `Home`, which is one):
        // 1. While somebody has a handle, that one's `Handles` keep it.
        // 2. The last handle goes when all files are closed, which takes every page out of its
        //    file, and its pins are in core's count from before that can be seen until they are
        //    dropped: then `begin_stay` finds them, and the share stays until the last one went.
        //    Where a file was not closed, it stays for ever.
        //    A claim in the place of a pin was made one by then, or given back.
        // 3. A block is counted, by a CPU or beside those pins, from when core gave it until core
        //    takes it back; `begin_stay` has the CPUs' counts added to those pins.
        // 4. In a child, where neither is ever given back, it stays for ever where there is one.
        unsafe { self.0.as_ref() }
    }
}

#[cfg(test)]
mod tests;
