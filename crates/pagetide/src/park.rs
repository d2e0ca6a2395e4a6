//! Threads that wait as futures do: a waker that unparks.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// Polls until there is a value, parked in between: until woken, for `longest` at most, and not
/// beyond `deadline`. From the deadline on, `poll` has to give one.
pub(crate) fn block<T>(
    deadline: Instant,
    longest: Duration,
    mut poll: impl FnMut(&Waker) -> Poll<T>,
) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = poll(&waker) {
            return value;
        }
        // A wake-up since the poll makes this return at once; one for somebody else polls again.
        let left = deadline.saturating_duration_since(Instant::now());
        std::thread::park_timeout(left.min(longest));
    }
}

/// Does something foreign to each, also after one of them panicked; the first panic goes on then.
pub(crate) fn to_each<T>(items: impl IntoIterator<Item = T>, act: impl Fn(T)) {
    let mut panic = None;
    for item in items {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| act(item))) {
            panic.get_or_insert(payload);
        }
    }
    if let Some(payload) = panic {
        resume_unwind(payload);
    }
}
