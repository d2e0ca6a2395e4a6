//! Reservations: bytes of the program's own heap, under the same budget.

use crate::alloc_wait::Asking;
use crate::memory_wait::MemoryWait;
use crate::park::Panics;
use crate::{ByteSize, Error, Group, PAGE_BYTES, cpu};
use pagetide_core::memory::{AllocError, Here};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes of the program's own heap that are charged to a group until they are given back or this
/// is dropped.
///
/// Growing makes the page cache give way, and gives the memory of as many of its frames back to
/// the OS before it returns: first reserve, then allocate, and the process stays inside the
/// budget. Shared by reference between threads.
///
/// ```
/// use pagetide::{ByteSize, Memory};
///
/// # fn main() -> Result<(), pagetide::Error> {
/// let memory = Memory::builder().budget(ByteSize::mib(64)).build()?;
/// let batch = memory.root().child("batch")?;
/// let reservation = batch.reserve(ByteSize::mib(10))?;
/// let mut rows: Vec<u64> = Vec::with_capacity((10 << 20) / 8);
/// # rows.push(1);
/// drop(rows);
/// reservation.shrink(ByteSize::mib(4));
/// reservation.try_grow(ByteSize::mib(2))?;
/// assert_eq!(reservation.size(), ByteSize::mib(8));
/// # Ok(())
/// # }
/// ```
#[must_use = "the bytes are reserved as long as this lives"]
pub struct Reservation {
    group: Group,
    /// Shared with those who wait for more of it, so that others see what they hold.
    nr_bytes: Arc<AtomicU64>,
}

/// Bytes that are charged for a reservation. Its size has them when this is dropped: of who waited
/// for them, not before it waits no more, or they would count as held by somebody who waits for as
/// many again.
struct Charged<'a> {
    reservation: &'a Reservation,
    nr_bytes: u64,
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        let size = &self.reservation.nr_bytes;
        size.fetch_add(self.nr_bytes, Ordering::Relaxed);
    }
}

impl Group {
    /// Reserves bytes of the program's own heap. Zero bytes are a reservation to grow later.
    ///
    /// Cost: for less than 2 MiB mostly a charge; for each 2 MiB at most one pageblock that is
    /// emptied and one system call, where no pinned page or working memory is in the way. Waits for
    /// pages that are being read as [`Group::alloc`] does.
    ///
    /// # Errors
    /// [`Error::OverLimit`]; nothing stays charged. Where what is reserved and working memory leave
    /// no room for it and no [`Shrinker`](crate::Shrinker) is registered, nothing is evicted for
    /// it, but for up to 64 pages or fewer than there are groups.
    pub fn reserve(&self, size: ByteSize) -> Result<Reservation, Error> {
        let reservation = self.reserve_none()?;
        reservation.try_grow(size)?;
        Ok(reservation)
    }

    /// [`Group::reserve`], with a wait until `deadline` where a limit is met and nothing can be
    /// reclaimed, as [`Group::alloc_by`].
    ///
    /// # Errors
    /// As [`Reservation::grow_by`].
    pub fn reserve_by(&self, size: ByteSize, deadline: Instant) -> Result<Reservation, Error> {
        let reservation = self.reserve_none()?;
        let more = reservation.check_more(size)?;
        reservation.grow_in(self.wait_for_new(more, deadline), more)?;
        Ok(reservation)
    }

    /// [`Group::reserve_by`] as a future, for any executor, as [`Group::alloc_async`]. Dropped, it
    /// waits no more, and nothing stays charged.
    ///
    /// # Errors
    /// As [`Reservation::grow_by`].
    pub fn reserve_async(
        &self,
        size: ByteSize,
        deadline: Instant,
    ) -> impl Future<Output = Result<Reservation, Error>> + Send + use<> {
        let group = self.clone();
        async move {
            let reservation = group.reserve_none()?;
            let more = reservation.check_more(size)?;
            let wait = group.wait_for_new(more, deadline);
            reservation.grow_in_async(wait, more).await?;
            Ok(reservation)
        }
    }

    /// The wait of who wants so many bytes for a reservation that nobody else knows of: as long as
    /// it waits it holds nothing that others may wait for.
    fn wait_for_new(&self, more: u64, deadline: Instant) -> MemoryWait {
        MemoryWait::new(self, more, None, deadline)
    }

    /// A reservation of nothing.
    fn reserve_none(&self) -> Result<Reservation, Error> {
        self.shared().check_process()?;
        self.shared().core.begin_reservation();
        Ok(Reservation {
            group: self.clone(),
            nr_bytes: Arc::default(),
        })
    }
}

impl Reservation {
    /// Bytes reserved.
    #[must_use]
    pub fn size(&self) -> ByteSize {
        ByteSize(self.nr_bytes.load(Ordering::Relaxed))
    }

    /// The group that is charged.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Reserves more. When it returns, the OS has the memory of as many frames, to a pageblock of
    /// 2 MiB.
    ///
    /// # Errors
    /// [`Error::OverLimit`]; the reservation is as it was.
    pub fn try_grow(&self, more: ByteSize) -> Result<(), Error> {
        let shared = self.group.shared();
        let more = self.check_more(more)?;
        let charged = self.reserve_more(shared.here().waiting_for_reads(), more);
        let refused = |error| shared.alloc_error(error, self.group.id(), self.pages_of(more));
        drop(charged.map_err(refused)?);
        shared.pay_debt();
        Ok(())
    }

    /// Reserves more for a record of the memory's own; unless it `may_reclaim`, for a caller with a
    /// lock of a file: of what is there, and what goes out of use for it does so later.
    pub(crate) fn grow_reclaiming(
        &self,
        more: ByteSize,
        may_reclaim: bool,
    ) -> Result<(), AllocError> {
        let (shared, more) = (self.group.shared(), more.as_u64());
        let here = shared.here_reclaiming(may_reclaim).waiting_for_reads();
        shared.core.reserve(here, self.group.id(), more)?;
        drop(self.charged(more));
        match may_reclaim {
            true => shared.fill_balloon(),
            false => shared.release.put_off(),
        }
        Ok(())
    }

    /// [`Reservation::try_grow`], with a wait until `deadline` where a limit is met and nothing can
    /// be reclaimed, as [`Group::alloc_by`]: for others' working memory, reservations and pins.
    ///
    /// What is reserved already is kept meanwhile. So where all who wait under a limit could be
    /// served only by what they keep themselves, the last to come is refused.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or [`Error::SwapOut`] where the spill file is full or fails;
    /// [`Error::WouldDeadlock`]; [`Error::OverLimit`] at once where a limit is below the new size.
    /// The reservation is as it was.
    pub fn grow_by(&self, more: ByteSize, deadline: Instant) -> Result<(), Error> {
        let more = self.check_more(more)?;
        self.grow_in(self.wait_for(more, deadline), more)
    }

    fn grow_in(&self, wait: MemoryWait, more: u64) -> Result<(), Error> {
        drop(wait.block(|| self.reserve_more(self.group.shared().here(), more))?);
        self.group.shared().pay_debt();
        Ok(())
    }

    /// [`Reservation::grow_by`] as a future, for any executor, as [`Group::alloc_async`]. Dropped,
    /// it waits no more.
    ///
    /// # Errors
    /// As [`Reservation::grow_by`].
    pub async fn grow_async(&self, more: ByteSize, deadline: Instant) -> Result<(), Error> {
        let more = self.check_more(more)?;
        self.grow_in_async(self.wait_for(more, deadline), more)
            .await
    }

    async fn grow_in_async(&self, wait: MemoryWait, more: u64) -> Result<(), Error> {
        let wait = wait.driven();
        let attempt = || self.reserve_more(self.group.shared().here(), more);
        drop(Asking { wait, attempt }.await?);
        Ok(())
    }

    /// The wait of who wants so many bytes beside those that it has.
    fn wait_for(&self, more: u64, deadline: Instant) -> MemoryWait {
        let holds = Some(Arc::clone(&self.nr_bytes));
        MemoryWait::new(&self.group, more, holds, deadline)
    }

    /// Pages that it would have more of with so many bytes more: one at least, as others may have
    /// the rest of its last one.
    fn pages_of(&self, more: u64) -> u64 {
        let size = self.size().as_u64();
        let [held, total] = [size, size.saturating_add(more)];
        let nr_pages = total.div_ceil(PAGE_BYTES as u64) - held.div_ceil(PAGE_BYTES as u64);
        nr_pages.max(1)
    }

    /// Bytes to reserve.
    ///
    /// # Errors
    /// [`Error::Forked`], and [`Error::OverLimit`] where their pages cannot be counted.
    fn check_more(&self, more: ByteSize) -> Result<u64, Error> {
        self.group.shared().check_process()?;
        let more = more.as_u64();
        match self.has_room(more) {
            true => Ok(more),
            false => Err(self.too_large(more)),
        }
    }

    fn reserve_more(&self, here: Here<'_>, more: u64) -> Result<Charged<'_>, AllocError> {
        let shared = self.group.shared();
        shared.core.reserve(here, self.group.id(), more)?;
        let charged = self.charged(more);
        shared.fill_balloon();
        Ok(charged)
    }

    /// Reserves more even where a limit says no: for bytes that are there already. What goes past
    /// a limit is counted: `pgforced` of [`Group::stat`].
    ///
    /// # Panics
    /// Where it would have 16 TiB or more.
    pub fn grow(&self, more: ByteSize) {
        let shared = self.group.shared();
        if shared.is_forked() {
            return;
        }
        let more = more.as_u64();
        assert!(self.has_room(more), "at most 16 TiB are reserved");
        let group = self.group.id();
        shared.core.reserve_forced(shared.here(), group, more);
        drop(self.charged(more));
        shared.fill_balloon();
    }

    /// Gives bytes back: to be called after the program has freed them.
    ///
    /// # Panics
    /// Where fewer bytes are reserved.
    pub fn shrink(&self, less: ByteSize) {
        self.shrink_reclaiming(less, true);
    }

    /// [`Reservation::shrink`]; unless it `may_reclaim`, for a caller with a lock of a file: what
    /// comes back goes out of use later, where it should.
    pub(crate) fn shrink_reclaiming(&self, less: ByteSize, may_reclaim: bool) {
        if self.group.shared().is_forked() {
            return;
        }
        let less = less.as_u64();
        let take = |size: u64| size.checked_sub(less);
        let before = self
            .nr_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if let Err(size) = before {
            panic!("{less} bytes given back of a reservation of {size}");
        }
        self.give_back(less, may_reclaim);
    }

    /// Grows or shrinks to a size. Not together with other changes of the same reservation.
    ///
    /// # Errors
    /// As [`Reservation::try_grow`].
    pub fn resize(&self, size: ByteSize) -> Result<(), Error> {
        self.group.shared().check_process()?;
        let now = self.size().as_u64();
        match size.as_u64().checked_sub(now) {
            Some(more) => self.try_grow(ByteSize(more)),
            None => {
                self.shrink(ByteSize(now - size.as_u64()));
                Ok(())
            }
        }
    }

    /// Gives everything back; returns how much it was.
    pub fn free(&self) -> ByteSize {
        if self.group.shared().is_forked() {
            return self.size();
        }
        let size = self.nr_bytes.swap(0, Ordering::Relaxed);
        self.give_back(size, true);
        ByteSize(size)
    }

    /// Gives back what was taken off the size.
    fn give_back(&self, less: u64, may_reclaim: bool) {
        let (shared, group) = (self.group.shared(), self.group.id());
        shared.core.unreserve(cpu::current(), group, less);
        if may_reclaim {
            shared.settle();
        }
        shared.group_came_back(group);
    }

    /// Whether the pages of so many bytes more can be counted.
    fn has_room(&self, more: u64) -> bool {
        let most = u64::from(u32::MAX) * PAGE_BYTES as u64;
        let sum = self.size().as_u64().checked_add(more);
        sum.is_some_and(|sum| sum <= most)
    }

    /// Bytes for the size. They are charged: before that others, shrinkers too, would give back
    /// what is not there, and a shrinker may unwind.
    fn charged(&self, nr_bytes: u64) -> Charged<'_> {
        Charged {
            reservation: self,
            nr_bytes,
        }
    }

    #[cold]
    fn too_large(&self, more: u64) -> Error {
        let root = self.group.shared().core.groups().root();
        let error = AllocError::OverLimit { group: root };
        let shared = self.group.shared();
        shared.alloc_error(error, self.group.id(), self.pages_of(more))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.group.shared().is_forked() {
            return;
        }
        // Those who are woken are foreign, and may unwind.
        let mut panics = Panics::default();
        panics.catch(|| _ = self.free());
        self.group.shared().core.end_reservation();
        panics.go_on();
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("group", &self.group)
            .field("size", &self.size())
            .finish()
    }
}
