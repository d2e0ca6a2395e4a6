//! Refusals of the allocator, for core's own tests: by the thread that asked for them.

use core::cell::Cell;

super::std::thread_local! {
    /// Requests until the refusal, and how many are refused then; 0: none.
    static NEXT: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Refuses this thread's `at`-th request from now on, counted from 1, and those after it until
/// `nr_refused` were refused.
pub(crate) fn begin(at: u32, nr_refused: u32) {
    NEXT.set((at, nr_refused));
}

/// Whether a request was refused.
pub(crate) fn has_begun() -> bool {
    NEXT.get().0 == 0
}

/// Refuses none any more.
pub(crate) fn end() {
    NEXT.set((0, 0));
}

/// Counts a request; whether it is refused.
pub(super) fn is_next() -> bool {
    match NEXT.get() {
        (0, 0) => false,
        (0 | 1, nr_left) => {
            NEXT.set((0, nr_left - 1));
            true
        }
        (at, nr_refused) => {
            NEXT.set((at - 1, nr_refused));
            false
        }
    }
}
