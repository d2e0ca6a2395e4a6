//! What writes dirty pages and makes them durable: for threads, and for tasks by threads of the
//! memory, which also do what tasks do that change pages of a file.
//!
//! Of a file one thread at a time does what tasks wait for: a pass for all that have asked. Who
//! asks meanwhile is served by the next one, so that a slow file takes one thread and not all.

use super::balance::{Writer, distinct};
use super::write::bytes_of;
use super::{File, Open};
use crate::Error;
use crate::backing::Backing;
use crate::io::Job;
use crate::park;
use crate::shared::{Shared, locked};
use crate::writeback::Which;
use std::future::Future;
use std::mem;
use std::ops::RangeBounds;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;

/// The first and the last byte of what is to be made durable; `None`: nothing.
type Bytes = Option<(u64, u64)>;

/// What a task has a thread do.
#[derive(Clone, Copy)]
pub(super) enum Work {
    /// Makes these durable.
    Sync(Bytes),
    /// Writes these.
    Flush(Bytes),
    /// What the store has to do before pages are changed that are charged to these groups.
    Prepare([u32; 2]),
    /// Writes some of the file back where much is dirty of these, and of whatever file where much
    /// is at a level above them, if that is so.
    Balance([u32; 2], bool),
}

impl Work {
    const fn is_sync(self) -> bool {
        matches!(self, Work::Sync(_))
    }
}

/// What came of a sync, or of its writes so far.
struct Synced {
    result: Result<(), Error>,
    /// Writes of the file's pages that had failed by then, and why the last did: where all that
    /// was dirty has been tried.
    failed: Option<(u32, u32)>,
}

impl Backing {
    /// Writes the dirty pages that these bytes lie in. A caller that has no handle of the file has
    /// nothing to do where it was closed.
    fn flush(&self, shared: &Shared, bytes: Bytes, has_handle: bool) -> Result<(), Error> {
        self.check_poison()?;
        self.catch_up(shared)?;
        if let Some(bytes) = bytes {
            let pages = self.pages_of(bytes);
            match has_handle {
                true => shared.write_dirty(self, pages, Which::ALL).map(drop)?,
                false => shared.write_dirty_held(self, pages)?,
            }
        }
        self.check_poison()
    }

    /// The first half of a sync: has the store take what is dirty.
    fn begin_sync(&self, shared: &Shared, bytes: Bytes, has_handle: bool) -> Synced {
        let flushed = self.flush(shared, bytes, has_handle);
        if !matches!(flushed, Ok(()) | Err(Error::WritebackFailed { .. })) {
            // Of writes that failed this says nothing: a later call does.
            return Synced {
                result: flushed,
                failed: None,
            };
        }
        let errors = shared.core.write_errors(self.mapping);
        Synced {
            result: flushed,
            failed: Some((errors.nr_errors, errors.code)),
        }
    }

    /// Does it, but for syncs.
    fn do_for_writers(&self, shared: &Shared, work: Work, has_handle: bool) -> Result<(), Error> {
        let writer = Writer {
            shared,
            backing: self,
            has_handle,
        };
        match work {
            Work::Sync(_) => {}
            Work::Flush(bytes) => self.flush(shared, bytes, has_handle)?,
            Work::Prepare(groups) => {
                // None where who asked a shrinker may have it: its caller is refused.
                if let Some(_length) = self.length.share() {
                    writer.prepare(distinct(&groups))?;
                }
            }
            Work::Balance(groups, is_above) => writer.balance(groups, is_above),
        }
        Ok(())
    }

    /// The other half: has it make that durable.
    fn end_sync(&self, shared: &Shared) -> Result<(), Error> {
        match self.source.is_writable() {
            true => self.make_durable(shared),
            false => Ok(()),
        }
    }
}

impl Open {
    fn sync(&self, bytes: Bytes) -> Synced {
        let (shared, backing) = (&self.shared, &self.backing);
        let Synced { result, failed } = backing.begin_sync(shared, bytes, true);
        let result = result.and_then(|()| backing.end_sync(shared));
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
        let open = &self.open;
        open.backing.flush(&open.shared, bytes_of(range), true)
    }

    /// [`File::flush_range`] as a future, for any executor: a thread of the memory writes, as for
    /// [`File::sync_async`]; behind a sync that has begun, until that has ended. Dropped, it may
    /// go on, as there.
    ///
    /// # Errors
    /// As [`File::flush_range`].
    ///
    /// # Panics
    /// As [`File::sync_async`].
    pub async fn flush_range_async(&self, range: impl RangeBounds<u64>) -> Result<(), Error> {
        self.check_process()?;
        self.have_done(Work::Flush(bytes_of(range))).await
    }

    /// Has a thread of the memory do it, but for syncs.
    pub(super) async fn have_done(&self, work: Work) -> Result<(), Error> {
        match self.may_wait_for_threads() {
            true => Syncing::begin(self, work).await?.result,
            false => self
                .open
                .backing
                .do_for_writers(&self.open.shared, work, true),
        }
    }

    /// Whether a thread of the memory is to do it. Who is called by a store may be on the very
    /// thread that he would wait for.
    fn may_wait_for_threads(&self) -> bool {
        let shared = &self.open.shared;
        shared.io.syncs.has_threads() && !shared.is_called()
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
    /// the store, one for each file and up to 16 at a time. Under
    /// [`Builder::without_thread`](crate::Builder::without_thread), where none can be started, and
    /// inside a store of the memory, the first poll does. Dropped, it may go on, unless no thread
    /// has begun it; whoever drops the last handle of the file then waits for its writes, and not
    /// for the store to make them durable.
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
        if !self.may_wait_for_threads() {
            return self.sync_range(range);
        }
        let synced = Syncing::begin(self, Work::Sync(bytes_of(range))).await?;
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

/// What a task waits for.
struct Syncing<'a> {
    file: &'a File,
    end: Arc<End>,
}

/// Where its end is told.
#[derive(Default)]
struct End(Mutex<(Option<thread::Result<Synced>>, Option<Waker>)>);

impl End {
    fn tell(&self, synced: thread::Result<Synced>) {
        let mut told = locked(&self.0);
        told.0 = Some(synced);
        let waker = told.1.take();
        drop(told);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What a task has asked for.
struct Request {
    work: Work,
    end: Arc<End>,
}

/// What tasks have asked for of one file and no thread has begun.
#[derive(Default)]
pub(crate) struct Asked(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    waiting: Vec<Request>,
    /// A job is queued or under way, which sees to them.
    has_job: bool,
    /// The last one was for writers: syncs have their turn.
    was_for_writers: bool,
}

impl Asked {
    /// Adds one; whether a job is to be queued.
    fn add(&self, request: Request) -> bool {
        let mut requests = locked(&self.0);
        requests.waiting.push(request);
        !mem::replace(&mut requests.has_job, true)
    }

    /// Takes all that writers ask for, or all syncs, by turns: those for which a task still waits,
    /// and the others.
    fn take(&self) -> (Vec<Request>, Vec<Request>) {
        let mut requests = locked(&self.0);
        let all = mem::take(&mut requests.waiting);
        let (syncs, writers): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|request| request.work.is_sync());
        let is_for_writers = syncs.is_empty() || !writers.is_empty() && !requests.was_for_writers;
        requests.was_for_writers = is_for_writers;
        let (taken, later) = match is_for_writers {
            true => (writers, syncs),
            false => (syncs, writers),
        };
        requests.waiting = later;
        drop(requests);
        let is_wanted = |request: &Request| Arc::strong_count(&request.end) > 1;
        taken.into_iter().partition(is_wanted)
    }

    /// Ends a job; whether another one is to be queued.
    fn end_job(&self) -> bool {
        let mut requests = locked(&self.0);
        requests.has_job = !requests.waiting.is_empty();
        requests.has_job
    }
}

/// A pass over what tasks have asked for, for a thread. It keeps neither the file open nor the
/// memory: whoever drops the last handle writes what is dirty before he goes on.
pub(crate) struct SyncJob {
    shared: Weak<Shared>,
    backing: Weak<Backing>,
}

impl Job for SyncJob {
    fn file(&self) -> usize {
        self.backing.as_ptr().addr()
    }

    fn run(self) {
        let (Some(shared), Some(backing)) = (self.shared.upgrade(), self.backing.upgrade()) else {
            return;
        };
        // Dropped at the end: wakers are foreign code then, too.
        let (wanted, _given_up) = backing.asked.take();
        let ended = do_all(&shared, &backing, wanted);
        if backing.asked.end_job() {
            // At the end of the queue: other files have their turns.
            shared.io.syncs.queue_from_job(self);
        }
        // Whoever is told may have the last handle of the file, and of the memory.
        drop((backing, shared));
        park::to_each(ended, |(end, synced)| end.tell(synced));
    }
}

/// Does what each asks for, and then has the store make durable what syncs have written.
fn do_all(
    shared: &Shared,
    backing: &Backing,
    requests: Vec<Request>,
) -> Vec<(Arc<End>, thread::Result<Synced>)> {
    let mut all = Vec::with_capacity(requests.len());
    let mut last = None;
    let (mut is_durable, mut has_looked) = (true, false);
    for Request { work, end } in requests {
        // Once for all: others' stores may take their time.
        let work = match work {
            Work::Balance(groups, true) => {
                Work::Balance(groups, !mem::replace(&mut has_looked, true))
            }
            work => work,
        };
        let begin = || match (work, last) {
            // They were written just now, and all had asked by then.
            (Work::Sync(bytes), Some((same, failed))) if same == bytes => Synced {
                result: Ok(()),
                failed,
            },
            // Where all tasks give up, the file may be closed meanwhile.
            (Work::Sync(bytes), _) => backing.begin_sync(shared, bytes, false),
            _ => Synced {
                result: backing.do_for_writers(shared, work, false),
                failed: None,
            },
        };
        let synced = catch_unwind(AssertUnwindSafe(begin));
        if let (
            Work::Sync(bytes),
            Ok(Synced {
                result: Ok(()),
                failed,
            }),
        ) = (work, &synced)
        {
            last = Some((bytes, *failed));
        }
        // The first time that the store does so is for all, whose writes have ended.
        is_durable &= !work.is_sync();
        all.push((end, synced));
    }
    for (_, synced) in &mut all {
        if let Ok(Synced { result, .. }) = synced
            && result.is_ok()
            && !is_durable
        {
            match catch_unwind(AssertUnwindSafe(|| backing.end_sync(shared))) {
                Ok(ended) => {
                    is_durable = ended.is_ok();
                    *result = ended;
                }
                Err(panic) => *synced = Err(panic),
            }
        }
    }
    all
}

impl<'a> Syncing<'a> {
    fn begin(file: &'a File, work: Work) -> Syncing<'a> {
        let end = Arc::new(End::default());
        let request = Request {
            work,
            end: Arc::clone(&end),
        };
        let Open {
            shared, backing, ..
        } = &*file.open;
        if backing.asked.add(request) {
            let job = SyncJob {
                shared: Arc::downgrade(shared.shared()),
                backing: Arc::downgrade(backing),
            };
            shared.io.syncs.queue([job]);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::Takes;
    use crate::{ByteSize, Memory};
    use std::sync::atomic::AtomicU64;

    #[test]
    fn of_many_tasks_that_write_one_writes_others_files() {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let nr_calls = Arc::new(AtomicU64::new(0));
        let open = |name: &str| {
            let count = Arc::clone(&nr_calls);
            let store = Takes(move |bytes: &[u8], _| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(bytes.len())
            });
            let group = memory.root().child(name).unwrap();
            memory.open_store(Box::new(store), name, &group).unwrap()
        };
        let [ours, theirs] = ["ours", "theirs"].map(open);
        // At once, of 2,048 pages; no neighbours.
        let views: Vec<_> = (0..600)
            .map(|page| theirs.pin_new(2 * page).unwrap())
            .collect();
        drop(views);
        let shared = memory.home();
        let groups = [ours.group.id(); 2];
        let request = || Request {
            work: Work::Balance(groups, true),
            end: Arc::default(),
        };
        let requests = vec![request(), request(), request()];
        let ended = do_all(shared, &ours.open.backing, requests);
        assert!(
            ended
                .iter()
                .all(|(_, told)| told.as_ref().unwrap().result.is_ok())
        );
        // As many as who writes 64 pages has to write of theirs.
        assert_eq!(nr_calls.load(Ordering::Relaxed), 128);
    }

    #[test]
    fn syncs_and_writers_have_turns() {
        let asked = Asked::default();
        let end = Arc::<End>::default();
        let add = |work| {
            let end = Arc::clone(&end);
            asked.add(Request { work, end })
        };
        let take = || {
            let (wanted, given_up) = asked.take();
            assert!(given_up.is_empty());
            let is_sync = |request: &Request| request.work.is_sync();
            wanted.iter().map(is_sync).collect::<Vec<_>>()
        };
        let (sync, balance) = (Work::Sync(None), Work::Balance([0; 2], false));
        assert!(add(sync));
        for work in [balance, sync, Work::Prepare([0; 2])] {
            assert!(!add(work));
        }
        assert_eq!(take(), [false, false]);
        assert!(asked.end_job());
        add(balance);
        assert_eq!(take(), [true, true]);
        assert!(asked.end_job());
        assert_eq!(take(), [false]);
        assert!(!asked.end_job());
        add(balance);
        assert_eq!(take(), [false]);
    }
}
