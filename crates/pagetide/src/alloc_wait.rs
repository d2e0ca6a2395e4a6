//! Working memory that is waited for.

use crate::memory_wait::MemoryWait;
use crate::page::Buf;
use crate::{Error, Group, Order};
use pagetide_core::memory::AllocError;
use pagetide_core::units;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// Something that needs memory, under way: asked for until there is some.
pub(crate) struct Asking<F> {
    pub(crate) wait: MemoryWait,
    pub(crate) attempt: F,
}

// Neither is pinned.
impl<F> Unpin for Asking<F> {}

impl<T, F: FnMut() -> Result<T, AllocError>> Future for Asking<F> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Asking { wait, attempt } = &mut *self;
        wait.poll(context.waker(), attempt)
    }
}

impl Group {
    /// [`Group::alloc`], with a wait until `deadline` where a limit is met and nothing can be
    /// reclaimed: until working memory, pins or limits of the group that is full let it go on.
    ///
    /// Of those who wait under one limit, the first to come asks first, however much it asks for,
    /// but for a future that was woken a second ago and has not been polled; who does not wait may
    /// still be faster. The first asks again every 10 ms if nobody wakes it, and each time counts
    /// in [`Group::events`]. What it reclaims may have to be written: it may be later by as long as
    /// a store takes for that. Inside a [`Shrinker`](crate::Shrinker) nobody waits. A thread should
    /// hold no working memory of the group meanwhile: two that wait for what the other holds are
    /// not told so, but wait until their deadlines.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or [`Error::SwapOut`] where the spill file is full or fails;
    /// [`Error::OverLimit`] at once where a limit is below what is asked for; [`Error::NoBlock`] as
    /// [`Group::alloc`].
    pub fn alloc_by(&self, order: Order, deadline: Instant) -> Result<Buf, Error> {
        let order = order.to_core();
        let wait = MemoryWait::new(self, order.bytes() as u64, None, deadline);
        let buf = wait.block(|| self.take_zeroed(order))?;
        self.shared().pay_debt();
        Ok(buf)
    }

    /// [`Group::alloc_by`] as a future, for any executor: it is woken as memory comes back, and by
    /// its deadline by the housekeeping thread, or by [`Memory::tick`](crate::Memory::tick) under
    /// [`Builder::without_thread`](crate::Builder::without_thread), which has to be called every
    /// 10 ms then. Dropped, it waits no more.
    ///
    /// Polling reclaims on the calling thread, which waits for writes where all that can go is
    /// dirty; but what is charged above `high` is paid by a later call.
    ///
    /// # Errors
    /// As [`Group::alloc_by`].
    pub fn alloc_async(
        &self,
        order: Order,
        deadline: Instant,
    ) -> impl Future<Output = Result<Buf, Error>> + Send + use<> {
        let order = order.to_core();
        let wait = MemoryWait::new(self, order.bytes() as u64, None, deadline).driven();
        let group = self.clone();
        let attempt = move || group.take_zeroed(order);
        Asking { wait, attempt }
    }

    /// A zeroed block, without a sleep for what is above `high`.
    fn take_zeroed(&self, order: units::Order) -> Result<Buf, AllocError> {
        let shared = self.shared();
        let taken = shared.core.alloc_buf(shared.here(), self.id(), order);
        shared.settle();
        let (frame, _) = taken?;
        let mut buf = Buf::new(shared, frame, order);
        buf.fill(0);
        Ok(buf)
    }
}
