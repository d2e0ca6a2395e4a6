//! What makes bytes durable: for threads, and for tasks by threads of the memory.

use super::write::bytes_of;
use super::{File, Open};
use crate::Error;
use crate::io::Job;
use crate::shared::locked;
use crate::writeback::Which;
use std::future::Future;
use std::ops::RangeBounds;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

/// The first and the last byte of what is to be made durable; `None`: nothing.
type Bytes = Option<(u64, u64)>;

/// What came of a sync.
struct Synced {
    result: Result<(), Error>,
    /// Writes of the file's pages that had failed by then, and why the last did: where all that
    /// was dirty has been tried.
    failed: Option<(u32, u32)>,
}

impl Open {
    /// Writes the dirty pages that these bytes lie in.
    fn flush(&self, bytes: Bytes) -> Result<(), Error> {
        let (shared, backing) = (&self.shared, &*self.backing);
        backing.check_poison()?;
        backing.catch_up(shared)?;
        if let Some(bytes) = bytes {
            shared.write_dirty(backing, backing.pages_of(bytes), Which::ALL)?;
        }
        backing.check_poison()
    }

    fn sync(&self, bytes: Bytes) -> Synced {
        let flushed = self.flush(bytes);
        if !matches!(flushed, Ok(()) | Err(Error::WritebackFailed { .. })) {
            // Of writes that failed this says nothing: a later call does.
            return Synced {
                result: flushed,
                failed: None,
            };
        }
        let errors = self.shared.core.write_errors(self.mapping);
        let result = flushed.and_then(|()| match self.backing.source.is_writable() {
            true => self.backing.make_durable(&self.shared),
            false => Ok(()),
        });
        let failed = Some((errors.nr_errors, errors.code));
        Synced { result, failed }
    }
}

impl File {
    /// Writes the dirty pages of a range of bytes to the store, without making them durable.
    ///
    /// # Errors
    /// [`Error::WritebackFailed`], [`Error::LogBehind`]: what was not written is dirty still;
    /// [`Error::PageBusy`] where somebody changes a page for more than a second.
    pub fn flush_range(&self, range: impl RangeBounds<u64>) -> Result<(), Error> {
        self.check_process()?;
        self.open.flush(bytes_of(range))
    }

    /// Makes durable whatever was written to the file before: through any handle of it.
    ///
    /// Of many threads and tasks that wait for that at once, the first has the store make durable
    /// what all of them have written.
    ///
    /// # Errors
    /// [`Error::WritebackFailed`] where a page could not be written: it is dirty still, and the
    /// next call tries again; where one could not be in the background, though it has been since:
    /// once for each handle; where the store failed to make it durable: for ever, until all
    /// handles are closed and the file is opened anew. [`Error::PageBusy`] as
    /// [`File::flush_range`].
    pub fn sync(&self) -> Result<(), Error> {
        self.sync_range(..)
    }

    /// [`File::sync`] for a range of bytes. What else was written may become durable, too.
    ///
    /// # Errors
    /// As [`File::sync`].
    pub fn sync_range(&self, range: impl RangeBounds<u64>) -> Result<(), Error> {
        self.check_process()?;
        self.told(self.open.sync(bytes_of(range)))
    }

    /// [`File::sync`] as a future, for any executor: a thread of the memory writes and waits for
    /// the store, up to 16 at a time. Under
    /// [`Builder::without_thread`](crate::Builder::without_thread), and where none can be started,
    /// the first poll does. Dropped, it may go on, unless no thread has begun it.
    ///
    /// # Errors
    /// As [`File::sync`].
    ///
    /// # Panics
    /// Where a store panics, as [`File::sync`].
    pub async fn sync_async(&self) -> Result<(), Error> {
        self.sync_range_async(..).await
    }

    /// [`File::sync_range`] as a future, as [`File::sync_async`].
    ///
    /// # Errors
    /// As [`File::sync`].
    ///
    /// # Panics
    /// As [`File::sync_async`].
    pub async fn sync_range_async(&self, range: impl RangeBounds<u64>) -> Result<(), Error> {
        self.check_process()?;
        let synced = Syncing::begin(self, bytes_of(range)).await?;
        self.told(synced)
    }

    /// What a sync came to for this handle, which is told of each write that failed once.
    fn told(&self, synced: Synced) -> Result<(), Error> {
        let Some((nr_failed, code)) = synced.failed else {
            return synced.result;
        };
        let seen = self.seen_errors.fetch_max(nr_failed, Ordering::Relaxed);
        synced.result?;
        match seen < nr_failed {
            true => Err(self.open.backing.failed(code)),
            false => Ok(()),
        }
    }
}

/// A sync that a task waits for.
struct Syncing<'a> {
    file: &'a File,
    end: Arc<End>,
}

/// Where its end is told.
#[derive(Default)]
struct End(Mutex<(Option<thread::Result<Synced>>, Option<Waker>)>);

/// The sync, for a thread.
pub(crate) struct SyncJob {
    open: Arc<Open>,
    bytes: Bytes,
    end: Arc<End>,
}

impl Job for SyncJob {
    fn run(self) {
        let SyncJob { open, bytes, end } = self;
        if Arc::strong_count(&end) == 1 {
            // Nobody waits for it any more.
            return;
        }
        let work = AssertUnwindSafe(|| {
            let synced = open.sync(bytes);
            // Whoever is told may have had the last handle but for this one: the file is closed.
            drop(open);
            synced
        });
        let synced = catch_unwind(work);
        let mut told = locked(&end.0);
        told.0 = Some(synced);
        let waker = told.1.take();
        drop(told);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<'a> Syncing<'a> {
    fn begin(file: &'a File, bytes: Bytes) -> Syncing<'a> {
        let end = Arc::new(End::default());
        let job = SyncJob {
            open: Arc::clone(&file.open),
            bytes,
            end: Arc::clone(&end),
        };
        file.open.shared.io.syncs.queue([job]);
        Syncing { file, end }
    }
}

impl Future for Syncing<'_> {
    type Output = Result<Synced, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.file.check_process()?;
        // Foreign code: neither copied nor dropped under the lock.
        let waker = context.waker().clone();
        let mut told = locked(&self.end.0);
        let synced = told.0.take();
        let old = match synced {
            Some(_) => told.1.take(),
            None => told.1.replace(waker),
        };
        drop(told);
        drop(old);
        match synced {
            None => Poll::Pending,
            Some(Ok(synced)) => Poll::Ready(Ok(synced)),
            Some(Err(panic)) => resume_unwind(panic),
        }
    }
}
