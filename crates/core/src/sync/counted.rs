//! Atomics of debug builds: each read-modify-write is counted for the thread that makes it.

use core::cell::Cell;
use core::ops::Deref;
use core::sync::atomic::{self, Ordering};

super::std::thread_local! {
    static NR_RMWS: Cell<u64> = const { Cell::new(0) };
}

/// Read-modify-writes that this thread made so far through core's atomics and spin locks.
#[must_use]
pub(super) fn nr_rmws() -> u64 {
    NR_RMWS.get()
}

fn count() {
    NR_RMWS.set(NR_RMWS.get() + 1);
}

/// Read-modify-writes that are given one value.
macro_rules! of_one_value {
    ($int:ty: $($call:ident),+) => {
        $(
            pub fn $call(&self, value: $int, order: Ordering) -> $int {
                count();
                self.0.$call(value, order)
            }
        )+
    };
}

/// An atomic beside the standard one of the same name; loads and stores are that one's.
macro_rules! counted {
    ($name:ident, $int:ty) => {
        #[doc = concat!("[`atomic::", stringify!($name), "`], its read-modify-writes counted.")]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        #[expect(missing_docs)] // As the standard ones.
        impl $name {
            #[must_use]
            pub const fn new(value: $int) -> Self {
                $name(atomic::$name::new(value))
            }

            of_one_value!($int: swap, fetch_add, fetch_sub, fetch_or, fetch_and, fetch_max);

            pub fn compare_exchange(
                &self,
                seen: $int,
                new: $int,
                done: Ordering,
                failed: Ordering,
            ) -> Result<$int, $int> {
                count();
                self.0.compare_exchange(seen, new, done, failed)
            }

            pub fn fetch_update(
                &self,
                done: Ordering,
                failed: Ordering,
                mut change: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                self.0.fetch_update(done, failed, |value| {
                    let new = change(value);
                    if new.is_some() {
                        count();
                    }
                    new
                })
            }
        }

        impl Deref for $name {
            type Target = atomic::$name;
            fn deref(&self) -> &atomic::$name {
                &self.0
            }
        }
    };
}

counted!(AtomicU32, u32);
counted!(AtomicU64, u64);
