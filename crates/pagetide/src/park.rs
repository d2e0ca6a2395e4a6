//! Threads that wait as futures do: a waker that unparks.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::{Thread, panicking};
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

/// Does something foreign to each, also after one of them panicked; the first panic goes on then,
/// but not where the thread unwinds from another one already: a second one would end the process.
pub(crate) fn to_each<T>(items: impl IntoIterator<Item = T>, mut act: impl FnMut(T)) {
    let mut panics = Panics::default();
    items
        .into_iter()
        .for_each(|item| panics.catch(|| act(item)));
    panics.go_on();
}

/// The first panic of what is foreign, kept until all is done that others wait for.
#[derive(Default)]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Does something foreign.
    pub(crate) fn catch(&mut self, act: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(act)) {
            self.0.get_or_insert(payload);
        }
    }

    /// Whether there was one.
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// The first panic goes on, as of [`to_each`].
    pub(crate) fn go_on(self) {
        if let Some(payload) = self.0
            && !panicking()
        {
            resume_unwind(payload);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A waker that counts, and perhaps unwinds then.
    #[derive(Debug, Default)]
    pub(crate) struct Counted {
        nr_wakes: AtomicU32,
        unwinds: bool,
    }

    impl Counted {
        pub(crate) fn unwinding() -> Counted {
            Counted {
                unwinds: true,
                ..Counted::default()
            }
        }

        pub(crate) fn nr_wakes(&self) -> u32 {
            self.nr_wakes.load(Ordering::SeqCst)
        }
    }

    impl Wake for Counted {
        fn wake(self: Arc<Counted>) {
            self.nr_wakes.fetch_add(1, Ordering::SeqCst);
            if self.unwinds {
                // Without a word to the panic hook.
                resume_unwind(Box::new("a waker that unwinds"));
            }
        }
    }

    /// Wakes when it is dropped.
    struct Wakes(Vec<Waker>);

    impl Drop for Wakes {
        fn drop(&mut self) {
            to_each(self.0.drain(..), Waker::wake);
        }
    }

    #[test]
    fn wakers_that_unwind_while_the_thread_does_end_no_process() {
        let counted = Arc::new(Counted::unwinding());
        let wakers = [(); 3].map(|()| Waker::from(Arc::clone(&counted)));
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _wakes = Wakes(wakers.into());
            resume_unwind(Box::new("the first"));
        }));
        let payload = unwound.unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"the first"));
        assert_eq!(counted.nr_wakes(), 3);
    }
}
