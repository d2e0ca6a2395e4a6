//! How many reads get under way together: by io_uring, or by threads. How many writes do: by
//! io_uring only.
//!
//! Whoever reads a batch borrows a ring for himself alone: few system calls hand all reads over and
//! wait for some of them, and nobody else is asked meanwhile. Reads in the background share one
//! ring, which a thread of its own fills and reaps; without threads, whoever waits for a page reaps
//! it, and `Memory::tick`. What rings keep registered is in `registered.rs`.

mod background;
mod choice;
mod pool;
mod registered;
mod run;
mod uring;

pub use choice::{IoChoice, IoEngine};
pub(crate) use pool::Job;
pub use registered::Registered;
pub(crate) use registered::{FileSlot, Registry};
#[cfg(test)]
pub(crate) use run::end;
pub(crate) use run::{Flight, Next, Reader, Run, add_read};
pub(crate) use uring::{Piece, UnderWay};

use crate::backing::Backing;
use crate::file::SyncJob;
use crate::park::Panics;
use crate::shared::locked;
use crate::trace;
use background::Background;
use pagetide_core::units::Frame;
use pool::Pool;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use uring::{DEPTH, Ring};

/// Why there is no ring any more.
const LOST: &str = "io_uring_enter was refused";

fn refusal(error: &io::Error) -> String {
    format!("io_uring_setup: {error}")
}

/// Whether a ring may be made the next time: too many files are open, or its thread was refused.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::EAGAIN)
    )
}

/// Counts of what the engine did.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// System calls for rings.
    nr_enters: AtomicU64,
    /// Reads of one or more pages that were handed over.
    nr_reads: AtomicU64,
    /// Their pages.
    nr_pages: AtomicU64,
    /// Reads into registered frames.
    nr_fixed: AtomicU64,
    /// Reads by way of bounce buffers.
    nr_bounced: AtomicU64,
}

impl Counts {
    fn add(&self, runs: &[Run]) {
        let nr_pages: usize = runs.iter().map(Run::nr_pages).sum();
        self.nr_reads
            .fetch_add(runs.len() as u64, Ordering::Relaxed);
        self.nr_pages.fetch_add(nr_pages as u64, Ordering::Relaxed);
    }

    fn add_enters(&self, ring: &mut Ring) {
        let counts = ring.take_counts();
        self.nr_enters
            .fetch_add(counts.nr_enters, Ordering::Relaxed);
        for (count, nr_more) in [
            (&self.nr_fixed, counts.nr_fixed),
            (&self.nr_bounced, counts.nr_bounced),
        ] {
            if nr_more > 0 {
                count.fetch_add(nr_more, Ordering::Relaxed);
            }
        }
    }

    /// System calls, reads, pages, reads into registered frames, and reads that were bounced.
    pub(crate) fn get(&self) -> [u64; 5] {
        let counts = [
            &self.nr_enters,
            &self.nr_reads,
            &self.nr_pages,
            &self.nr_fixed,
            &self.nr_bounced,
        ];
        counts.map(|count| count.load(Ordering::Relaxed))
    }
}

/// Rings that are borrowed.
#[derive(Default)]
struct Rings {
    idle: Vec<Ring>,
    /// As many are made.
    nr_rings: usize,
}

/// All of it for one memory.
pub(crate) struct Engine {
    is_asked: Option<IoEngine>,
    pub(crate) registry: Arc<Registry>,
    has_threads: bool,
    isolated: Vec<u32>,
    /// Rings are made up to this number.
    max_rings: usize,
    rings: Mutex<Rings>,
    /// Why io_uring is not used, once somebody asked.
    refused: OnceLock<Option<String>>,
    /// The kernel allows no ring any more.
    is_lost: Arc<AtomicBool>,
    /// Made at the first read in the background; `None` where there is no ring for it.
    background: OnceLock<Option<Background>>,
    pool: Pool<Run>,
    /// What tasks wait for and no ring does.
    pub(crate) syncs: Pool<SyncJob>,
    pub(crate) counts: Arc<Counts>,
    /// Reads in the background that are under way, and operations that may begin some.
    nr_flights: AtomicU32,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.registry.alive.is_forked() {
            // The threads are the parent's.
            if let Some(Some(background)) = self.background.get_mut() {
                background.disown();
            }
            self.pool.disown();
            self.syncs.disown();
            return;
        }
        if let Some(Some(background)) = self.background.get() {
            background.end();
        }
        self.pool.end();
        self.syncs.end();
    }
}

impl Engine {
    pub(crate) fn new(
        is_asked: Option<IoEngine>,
        registry: Registry,
        has_threads: bool,
        isolated: Vec<u32>,
        max_rings: usize,
    ) -> Engine {
        Engine {
            is_asked,
            registry: Arc::new(registry),
            has_threads,
            pool: Pool::new("pagetide-io", has_threads, isolated.clone()),
            syncs: Pool::new("pagetide-sync", has_threads, isolated.clone()),
            isolated,
            max_rings: max_rings.max(1),
            rings: Mutex::default(),
            refused: OnceLock::new(),
            is_lost: Arc::default(),
            background: OnceLock::new(),
            counts: Arc::default(),
            nr_flights: AtomicU32::new(0),
        }
    }

    /// What is used, and why. The first call tries to make a ring.
    pub(crate) fn choice(&self) -> IoChoice {
        if self.registry.alive.is_forked() {
            return IoChoice::forked();
        }
        let refused = match self.refused.get() {
            Some(refused) => refused.clone(),
            None => self.make_first(),
        };
        let is_lost = self.is_lost.load(Ordering::Relaxed);
        let lost = is_lost.then(|| LOST.to_owned());
        let reason = refused.or(lost);
        let engine = match reason {
            None => IoEngine::IoUring,
            Some(_) => IoEngine::Threads,
        };
        let has_rings = engine == IoEngine::IoUring;
        let shown = self.registry.shown(has_rings);
        let [registered_files, registered_buffers, bounce_buffers] = shown;
        IoChoice {
            engine,
            reason,
            registered_files,
            registered_buffers,
            bounce_buffers,
        }
    }

    /// Tries to make a ring; why there is none. What passes is not noted.
    fn make_first(&self) -> Option<String> {
        // One at a time.
        let mut rings = locked(&self.rings);
        if let Some(refused) = self.refused.get() {
            return refused.clone();
        }
        let made = match self.is_asked {
            Some(IoEngine::Threads) => Err("as asked".to_owned()),
            _ => match Ring::new(&self.registry) {
                Err(error) if is_passing(&error) => return Some(refusal(&error)),
                made => made.map_err(|error| {
                    let reason = refusal(&error);
                    trace::no_ring(&reason);
                    reason
                }),
            },
        };
        let refused = match made {
            Ok(ring) => {
                rings.nr_rings += 1;
                rings.idle.push(ring);
                None
            }
            Err(reason) => Some(reason),
        };
        self.refused.get_or_init(|| refused).clone()
    }

    fn has_rings(&self) -> bool {
        let is_refused = match self.refused.get() {
            Some(refused) => refused.is_some(),
            None => self.choice().engine != IoEngine::IoUring,
        };
        !is_refused && !self.is_lost.load(Ordering::Relaxed)
    }

    /// A ring of the caller's own, if one is left.
    fn lease(&self) -> Option<Lease<'_>> {
        if !self.has_rings() {
            return None;
        }
        let mut rings = locked(&self.rings);
        let ring = rings.idle.pop();
        let is_new = ring.is_none();
        if is_new && rings.nr_rings == self.max_rings {
            return None;
        }
        rings.nr_rings += usize::from(is_new);
        drop(rings);
        let mut lease = Lease { engine: self, ring };
        if is_new {
            // Where none can be made now, the lease gives its number back.
            lease.ring = Some(Ring::new(&self.registry).ok()?);
        }
        Some(lease)
    }

    /// Reads runs of one file. When it returns they are over, or other threads have them in hand:
    /// the caller waits for the pages that it wants.
    pub(crate) fn read(&self, mut runs: Vec<Run>) {
        self.counts.add(&runs);
        if runs.len() <= 1 {
            // One system call by itself.
            return run::read_each(runs);
        }
        let apart: Vec<Run> = runs.extract_if(.., |run| run.file().is_none()).collect();
        // A waker that panics is no reason for the other reads to fail.
        let mut panics = Panics::default();
        panics.catch(|| self.share(apart));
        let lease = (!runs.is_empty()).then(|| self.lease()).flatten();
        panics.catch(|| match lease {
            Some(mut lease) => lease.read(runs),
            None => self.share(runs),
        });
        panics.go_on();
    }

    /// Reads runs by threads, or by the shared ring, if there are some.
    fn share(&self, runs: Vec<Run>) {
        if runs.is_empty() {
            return;
        }
        if !self.has_threads {
            return run::read_each(runs);
        }
        // The caller may give up while others have some in hand.
        let runs: Vec<Run> = runs.into_iter().map(Run::detached).collect();
        match self.background_for(&runs) {
            Some(background) => background.submit(runs),
            None => self.pool.work_on(runs),
        }
    }

    /// Begins reads of one file and does not wait for them, where a ring or a thread can finish
    /// them; else they are over when it returns.
    pub(crate) fn begin(&self, runs: Vec<Run>) {
        self.counts.add(&runs);
        if let Some(background) = self.background_for(&runs) {
            background.submit(runs);
        } else if self.pool.has_threads() {
            self.pool.queue(runs);
        } else {
            run::read_each(runs);
        }
    }

    /// The shared ring, where it may read these runs. Where threads do it as well, they run hooks
    /// and decrypt, which may be slow: others would wait for whoever reaps the ring.
    fn background_for(&self, runs: &[Run]) -> Option<&Background> {
        let is_file = runs.iter().all(|run| run.file().is_some());
        let is_slow = || runs.iter().any(Run::is_worked_on) && self.pool.has_threads();
        match is_file && !is_slow() {
            true => self.background(),
            false => None,
        }
    }

    /// Whether there are threads that read what nobody waits for.
    pub(crate) fn has_threads(&self) -> bool {
        self.pool.has_threads()
    }

    fn background(&self) -> Option<&Background> {
        if !self.has_rings() {
            return None;
        }
        if self.background.get().is_none() {
            self.start_background();
        }
        self.background.get()?.as_ref()
    }

    /// Makes the shared ring, unless what keeps it from being made passes.
    #[cold]
    fn start_background(&self) {
        // One at a time.
        let _alone = locked(&self.rings);
        if self.background.get().is_some() {
            return;
        }
        let told = (Arc::clone(&self.counts), Arc::clone(&self.is_lost));
        let thread = self.has_threads.then_some(self.isolated.as_slice());
        let ring = Ring::new(&self.registry);
        match ring.and_then(|ring| Background::start(ring, told, thread)) {
            Err(error) if is_passing(&error) => {}
            made => _ = self.background.get_or_init(|| made.ok()),
        }
    }

    /// Becomes readable when a read in the background has landed; `None` where a thread sees to
    /// that, where there is no ring, and in a forked child.
    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        let is_reaped_here = !self.has_threads && !self.registry.alive.is_forked();
        let background = is_reaped_here.then(|| self.background())?;
        background.map(Background::event_fd)
    }

    /// Ends reads in the background that have landed, where no thread does; whether one had.
    #[inline]
    pub(crate) fn reap(&self) -> bool {
        match self.has_threads {
            true => false,
            false => self.reap_here(),
        }
    }

    fn reap_here(&self) -> bool {
        let Some(Some(background)) = self.background.get() else {
            return false;
        };
        background.clear_event();
        background.reap()
    }

    /// Whether the caller, who waits for a page, may have to reap its read: there is no thread that
    /// does, or it is that thread, in a waker.
    #[inline]
    pub(crate) fn is_reaped_by_waiters(&self) -> bool {
        match self.has_threads {
            true => self.is_reaper(),
            false => self.nr_flights.load(Ordering::Acquire) > 0,
        }
    }

    fn is_reaper(&self) -> bool {
        let background = self.background.get();
        background.is_some_and(|made| made.as_ref().is_some_and(Background::is_reaper))
    }

    /// Reaps what has landed, or sleeps until something has or `longest` is over; false where
    /// there is no ring to be reaped.
    pub(crate) fn reap_or_wait(&self, longest: Duration) -> bool {
        let Some(Some(background)) = self.background.get() else {
            return false;
        };
        if !self.reap_here() {
            background.wait(longest);
        }
        true
    }

    /// Does whatever is to be done for a file's reads in the background that are under way: for
    /// those who wait for them on a thread that may be the one which does it.
    pub(crate) fn help(&self, backing: &Backing) -> bool {
        let has_reaped = match self.background.get() {
            Some(Some(background)) => background.reap(),
            _ => false,
        };
        self.pool.help(run::file_of(backing)) || has_reaped
    }

    /// Does the read of a page that is queued for the threads; whether it was.
    pub(crate) fn read_queued(&self, frame: Frame) -> bool {
        let has_page = |run: &Run| run.frames().any(|other| other == frame);
        self.pool.help_with_one(has_page)
    }

    /// A read in the background begins, or something that may begin one.
    pub(crate) fn begin_flight(&self) {
        self.nr_flights.fetch_add(1, Ordering::Relaxed);
    }

    /// The end of [`Engine::begin_flight`].
    pub(crate) fn end_flight(&self) {
        self.nr_flights.fetch_sub(1, Ordering::Release);
    }
}

/// A ring of one caller. Dropped, by unwinding too, it waits for all reads that are under way.
struct Lease<'a> {
    engine: &'a Engine,
    ring: Option<Ring>,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(ring) = &self.ring {
            note_lost(&self.engine.is_lost, ring);
        }
        // One with reads under way goes here: it waits for them.
        let is_whole = |ring: &Ring| ring.nr_in_flight() == 0 && !ring.is_broken();
        let ring = self.ring.take().filter(is_whole);
        let mut rings = locked(&self.engine.rings);
        match ring {
            Some(ring) => rings.idle.push(ring),
            None => rings.nr_rings -= 1,
        }
    }
}

impl Lease<'_> {
    /// Reads runs, as many at a time as the ring has room for, until all are over.
    fn read(&mut self, runs: Vec<Run>) {
        let ring = self.ring.as_mut().expect("taken by `drop` only");
        // Side by side: each run would wait for where its own pages lie. On Zen 3 a batch of 128
        // took 2 % less time.
        runs.iter().for_each(Run::touch);
        let mut left = VecDeque::from(runs);
        let mut over = Vec::with_capacity(left.len().min(DEPTH));
        // A waker that panics is no reason for the other reads to fail.
        let mut panics = Panics::default();
        loop {
            while ring.has_room()
                && !ring.has_set()
                && let Some(run) = left.pop_front()
            {
                push(ring, run);
            }
            if ring.nr_in_flight() == 0 {
                break;
            }
            // A set of bounce buffers goes by itself: more follow, which have it again if it lands.
            let has_more = ring.has_set() && ring.has_room() && !left.is_empty();
            // Half of them: so that those who wait for the first do not wait for the last, and a
            // batch takes few calls.
            let want = match has_more {
                true => 0,
                false => ring.nr_in_flight().div_ceil(2),
            };
            ring.enter(want);
            self.engine.counts.add_enters(ring);
            ring.reap(|mut run, result| match run.landed(result) {
                Next::Again => left.push_back(run),
                Next::Over => over.push(run),
            });
            left.extend(ring.take_back());
            // Where all lands at once nobody waits long: those of a few sets end together.
            let may_wait = has_more && ring.nr_in_flight() == 0 && over.len() < DEPTH / 2;
            if !may_wait {
                panics.catch(|| run::end(&mut over));
                over.clear();
            }
        }
        panics.catch(|| run::end(&mut over));
        // Of a broken ring.
        panics.catch(|| run::read_each(left));
        panics.go_on();
    }
}

/// Notes where the kernel does not allow a ring any more: it will allow no other.
fn note_lost(is_lost: &AtomicBool, ring: &Ring) {
    if ring.is_refused() && !is_lost.swap(true, Ordering::Relaxed) {
        trace::no_ring(LOST);
    }
}

/// Queues a run; one of which nothing is left to read is over.
fn push(ring: &mut Ring, run: Run) {
    if let Err(mut run) = ring.push(run) {
        run.fill_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteSize, Memory};

    /// As a kernel before 5.6 needs it.
    #[test]
    fn single_pages_are_read_and_written_by_lists_of_one_buffer() {
        let memory = Memory::builder().budget(ByteSize::mib(8));
        let memory = memory.without_thread().build().unwrap();
        let choice = memory.io_engine();
        if choice.engine != IoEngine::IoUring {
            return println!("skipped: io_uring: {choice}");
        }
        let engine = &memory.home().io;
        let rings = || locked(&engine.rings);
        rings().idle.iter_mut().for_each(|ring| {
            assert!(ring.has_plain, "a kernel of today");
            ring.has_plain = false;
        });
        let data = tempfile::NamedTempFile::new().unwrap();
        let pages: Vec<u64> = (0..200).step_by(2).collect();
        for round in 1..=2 {
            let file = memory.open_rw(data.path(), &memory.root()).unwrap();
            for &page in &pages {
                let byte = u8::try_from(page).unwrap() ^ round;
                file.write_at(&[byte; 4096], page * 4096).unwrap();
            }
            file.sync().unwrap();
            drop(file);
            let file = memory.open(data.path(), &memory.root()).unwrap();
            for (page, at) in file.pin_many(&pages).unwrap().iter().zip(&pages) {
                let byte = u8::try_from(*at).unwrap() ^ round;
                assert!(page.iter().all(|&found| found == byte), "page {at}");
            }
        }
        assert!(memory.stats().ring_enters > 0 && rings().idle.len() == 1);
    }
}
