//! A ring of io_uring, and the reads that the kernel has in its hands.
#![allow(unsafe_code)]

mod bounce;
mod slot;
mod writes;

pub(crate) use writes::{Piece, UnderWay};

use super::registered::{Registry, RingTables};
use super::run::{self, Next, Run};
use bounce::BounceBuffers;
use io_uring::{EnterFlags, IoUring, Probe, opcode};
use slot::{Slot, Way};
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Reads that one ring has under way at most.
pub(crate) const DEPTH: usize = 128;
/// Calls in a row for which the kernel has no memory, while nothing is under way that could give it
/// some back, before a ring is given up: the kernel has looked for memory itself each time.
const MAX_REFUSALS: u32 = 16;

/// One ring. Whoever drops it waits until the kernel has let go of all pages.
pub(crate) struct Ring {
    /// Left alone in a forked child, which has no mapping of it.
    ring: ManuallyDrop<IoUring>,
    slots: Vec<Option<Slot>>,
    /// Numbers of slots that are free.
    free: Vec<usize>,
    /// Slots that the kernel has not taken yet, oldest first.
    queued: Vec<usize>,
    /// Slots whose reads have ended, and how: empty but while they are reaped, and where that
    /// unwound.
    reaped: VecDeque<(usize, io::Result<usize>)>,
    /// No more system calls are made: what it has not seen of what is queued it never will.
    is_broken: bool,
    /// Because the kernel does not allow them any more.
    is_refused: bool,
    /// Calls in a row for which the kernel had no memory.
    nr_refusals: u32,
    /// What the next system calls come to, the last one first.
    #[cfg(test)]
    pub(super) faked: Vec<Faked>,
    counts: RingCounts,
    /// The kernel reads and writes one buffer without a list of buffers: from 5.6 on.
    pub(super) has_plain: bool,
    registered: RingTables,
    bounce: BounceBuffers,
}

/// What a ring did since it was asked last.
#[derive(Debug, Default)]
pub(crate) struct RingCounts {
    /// System calls.
    pub(crate) nr_enters: u64,
    /// Reads into registered frames.
    pub(crate) nr_fixed: u64,
    /// Reads by way of bounce buffers.
    pub(crate) nr_bounced: u64,
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.registered.registry.alive.is_forked() {
            // The parent's: neither its reads nor its mapping are this process's.
            self.slots.drain(..).for_each(std::mem::forget);
            return;
        }
        let mut over = Vec::new();
        loop {
            // What the kernel has not seen of a broken one fails.
            over.extend(self.take_back());
            self.reap(|mut run, result| {
                // Whatever is left of it is read here.
                if run.landed(result) == Next::Again {
                    run.read_now();
                }
                over.push(run);
            });
            if self.nr_in_flight() == 0 {
                break;
            }
            self.enter(1);
        }
        self.registered.delist(&self.ring);
        // SAFETY: it is not used again; no read is under way (the loop above).
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        // Who is woken is foreign code, which may unwind: the kernel has nothing by now.
        run::end(&mut over);
    }
}

impl Ring {
    /// Makes a ring for [`DEPTH`] reads.
    ///
    /// # Errors
    /// What the kernel says: containers often forbid it.
    pub(crate) fn new(registry: &Arc<Registry>) -> io::Result<Ring> {
        let depth = u32::try_from(DEPTH).expect("a small number");
        let ring = IoUring::builder().dontfork().build(depth)?;
        let registered = registry.list(&ring);
        let has_plain = has_plain(&ring);
        // Reads with a list of buffers go to frames, and a ring has one table of memory.
        let bounce = match has_plain && !registered.has_blocks() {
            true => BounceBuffers::new(&ring, registry),
            false => BounceBuffers::none(),
        };
        Ok(Ring {
            ring: ManuallyDrop::new(ring),
            slots: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            queued: Vec::with_capacity(DEPTH),
            reaped: VecDeque::with_capacity(DEPTH),
            is_broken: false,
            is_refused: false,
            nr_refusals: 0,
            #[cfg(test)]
            faked: Vec::new(),
            counts: RingCounts::default(),
            has_plain,
            registered,
            bounce,
        })
    }

    /// Makes another one of the same memory.
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub(crate) fn another(&self) -> io::Result<Ring> {
        Ring::new(&self.registered.registry)
    }

    /// Makes a descriptor readable whenever a read lands.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn signal(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_eventfd(event.as_raw_fd())
    }

    /// Whether one more read has room.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() && !self.is_broken
    }

    /// Whether what is queued is to be handed over before more is: all bounce buffers are in it.
    pub(crate) fn has_set(&self) -> bool {
        self.bounce.are_queued()
    }

    /// Whether it is not to be used any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Whether the kernel does not allow it any more, nor any other.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Reads that have not landed.
    pub(crate) fn nr_in_flight(&self) -> usize {
        DEPTH - self.free.len()
    }

    /// What it did since it was asked last.
    pub(crate) fn take_counts(&mut self) -> RingCounts {
        std::mem::take(&mut self.counts)
    }

    /// Queues a read of what is left of a run. The caller looked whether there is room.
    ///
    /// # Errors
    /// A run of which nothing is left to read comes back.
    pub(crate) fn push(&mut self, run: Run) -> Result<(), Run> {
        let &at = self.free.last().expect("the caller looked for room");
        let slot = self.slots[at].insert(Slot::new(run));
        let Some(read) = slot.read(&self.registered, &mut self.bounce, self.has_plain) else {
            let slot = self.slots[at].take().expect("filled above");
            return Err(slot.run);
        };
        self.free.pop();
        match slot.way {
            Way::LookedUp => {}
            Way::Fixed => self.counts.nr_fixed += 1,
            Way::Bounced(_) => self.counts.nr_bounced += 1,
        }
        let read = read.user_data(at as u64);
        // SAFETY:
        // 1. The slot keeps the list of buffers, and the run, until the read has landed, and stays
        //    where it is: `slots` neither grows nor shrinks. `reap` alone empties a slot, by what
        //    the kernel says of that read, and `take_back` those that the kernel has not seen and
        //    never will.
        // 2. The run keeps the arena, whose mapping the buffers lie in, and the open file. Core
        //    lets nobody at the bytes of its frames before the run completes them, and the run is
        //    not touched while it is in its slot.
        // 3. A number names what it did when it was asked for, or nothing: a file keeps its own
        //    while a run keeps the file, and of memory the kernel compares the addresses. A read
        //    into memory that was unregistered meanwhile fails.
        // 4. A bounce buffer has no other read until this one has landed: `take` gives it back.
        // 5. `Drop` waits for what is under way; a ring that is leaked leaks its slots, too.
        let pushed = unsafe { self.ring.submission().push(&read) };
        pushed.expect("as many entries as slots");
        self.queued.push(at);
        Ok(())
    }

    /// Hands over what was queued, and waits until `want` reads have landed: one system call, more
    /// where the kernel does not take all. Some may stay queued as long as others are under way:
    /// until they land. Where the kernel refuses for good, or has no memory for the only ones, the
    /// ring is broken.
    pub(crate) fn enter(&mut self, want: usize) {
        let want = want.min(self.nr_in_flight());
        if want == 0 && self.queued.is_empty() {
            return;
        }
        self.bounce.hand_over();
        while !self.is_broken {
            let nr_taken = self.nr_in_flight() - self.queued.len();
            match self.call(want) {
                Ok(nr_more) => {
                    let nr_more = nr_more.min(self.queued.len());
                    self.queued.drain(..nr_more);
                    if self.queued.is_empty() {
                        return;
                    }
                }
                Err(NoMemory) if nr_taken == 0 => self.count_refusal(),
                Err(NoMemory) => {
                    if want > 0 {
                        self.await_landed(1);
                    }
                    return;
                }
            }
        }
        // What is under way lands without us.
        std::thread::yield_now();
    }

    /// Hands over what was queued, and waits until `want` have landed. Returns how many it took: 0,
    /// too, where a signal came first, or the ring is broken from now on.
    ///
    /// # Errors
    /// The kernel has no memory for any, or too many have landed: once more of those have that it
    /// took before, it is to be asked again.
    fn call(&mut self, want: usize) -> Result<usize, NoMemory> {
        self.counts.nr_enters += 1;
        match self.submit_and_wait(want) {
            Ok(nr_taken) => {
                self.nr_refusals = 0;
                Ok(nr_taken)
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => Ok(0),
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => Err(NoMemory),
                _ => {
                    (self.is_broken, self.is_refused) = (true, true);
                    Ok(0)
                }
            },
        }
    }

    fn submit_and_wait(&mut self, want: usize) -> io::Result<usize> {
        #[cfg(test)]
        if let Some(faked) = self.faked.pop() {
            return faked.call(&self.ring);
        }
        self.ring.submit_and_wait(want)
    }

    /// The kernel had no memory though nothing is under way: some times in a row it may have some
    /// the next time.
    fn count_refusal(&mut self) {
        self.nr_refusals += 1;
        self.is_broken |= self.nr_refusals >= MAX_REFUSALS;
        std::thread::yield_now();
    }

    /// Waits until so many have landed that were not reaped, of those that the kernel took: one
    /// system call, which a signal may end.
    fn await_landed(&mut self, nr_landed: usize) {
        let nr_landed = u32::try_from(nr_landed).expect("a ring is small");
        self.counts.nr_enters += 1;
        let flags = EnterFlags::GETEVENTS.bits();
        let submitter = self.ring.submitter();
        // SAFETY: it hands nothing over, so that the kernel looks at no entry.
        let waited = unsafe { submitter.enter::<libc::sigset_t>(0, nr_landed, flags, None) };
        if waited.is_err() {
            // They land without us.
            std::thread::yield_now();
        }
    }

    /// Runs that the kernel has not seen, of a broken ring: it never will.
    pub(crate) fn take_back(&mut self) -> Vec<Run> {
        if !self.is_broken {
            return Vec::new();
        }
        let queued = std::mem::take(&mut self.queued);
        queued.into_iter().filter_map(|at| self.take(at)).collect()
    }

    #[inline]
    fn take(&mut self, at: usize) -> Option<Run> {
        let Slot { run, way, .. } = self.slots.get_mut(at)?.take()?;
        self.free.push(at);
        if let Way::Bounced(bounce) = way {
            self.bounce.give_back(bounce);
        }
        Some(run)
    }

    /// Gives `landed` each run whose read has ended, and what the kernel said.
    pub(crate) fn reap(&mut self, mut landed: impl FnMut(Run, io::Result<usize>)) {
        for entry in self.ring.completion() {
            let at = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            let result = usize::try_from(entry.result())
                .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            let slot = self.slots.get_mut(at).and_then(Option::as_mut);
            let slot = slot.expect("each read lands once");
            // SAFETY: the kernel says it of the read of this slot, whose number it has back. Its
            // run is in the slot until all have settled.
            let result = unsafe { slot.landed(result, &mut self.bounce) };
            self.reaped.push_back((at, result));
        }
        // Once for all, before anybody has one of them.
        self.bounce.settle();
        while let Some((at, result)) = self.reaped.pop_front() {
            let run = self.take(at).expect("noted above, once");
            landed(run, result);
        }
    }
}

/// The kernel has no memory for requests.
struct NoMemory;

/// What a system call comes to instead.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(super) enum Faked {
    /// It fails with this number.
    Error(i32),
    /// So many are taken, and none is waited for.
    Takes(u32),
    /// So many are taken, and have landed when it returns.
    Lands(u32),
}

#[cfg(test)]
impl Faked {
    fn call(self, ring: &IoUring) -> io::Result<usize> {
        let (nr, nr_landed, flags) = match self {
            Faked::Error(number) => return Err(io::Error::from_raw_os_error(number)),
            Faked::Takes(nr) => (nr, 0, 0),
            Faked::Lands(nr) => (nr, nr, EnterFlags::GETEVENTS.bits()),
        };
        let submitter = ring.submitter();
        // SAFETY: as `submit_and_wait`, which hands over these and more.
        unsafe { submitter.enter::<libc::sigset_t>(nr, nr_landed, flags, None) }
    }
}

/// Whether a ring's kernel knows the reads and writes that take no list of buffers.
fn has_plain(ring: &IoUring) -> bool {
    let mut probe = Probe::new();
    // Before 5.6 it cannot be asked either.
    let is_known = ring.submitter().register_probe(&mut probe).is_ok();
    let has = |code| probe.is_supported(code);
    is_known && has(opcode::Read::CODE) && has(opcode::Write::CODE)
}

/// What stands at a number of a ring's tables.
pub(super) enum Entry {
    /// A descriptor; -1: none.
    File(RawFd),
    /// Memory that is mapped; of length 0: none.
    Memory(libc::iovec),
}

/// Changes what stands at a number of a ring's tables: one system call. Memory becomes resident,
/// and stays with the kernel until it is replaced and reads into it are over.
///
/// # Errors
/// What the kernel says: of memory, that there is none, or more than `RLIMIT_MEMLOCK`.
pub(super) fn update(ring: RawFd, number: u32, entry: Entry) -> io::Result<()> {
    /// `struct io_uring_rsrc_update2` of `linux/io_uring.h`.
    #[repr(C)]
    struct Update {
        offset: u32,
        reserved: u32,
        data: *const libc::c_void,
        tags: u64,
        nr_entries: u32,
        more_reserved: u32,
    }
    const FILES_UPDATE: libc::c_uint = 14;
    const BUFFERS_UPDATE: libc::c_uint = 16;
    let (what, data) = match &entry {
        Entry::File(file) => (FILES_UPDATE, std::ptr::from_ref(file).cast()),
        Entry::Memory(memory) => (BUFFERS_UPDATE, std::ptr::from_ref(memory).cast()),
    };
    let update = Update {
        offset: number,
        reserved: 0,
        data,
        tags: 0,
        nr_entries: 1,
        more_reserved: 0,
    };
    // SAFETY:
    // 1. `update` and the one entry that it names are what this call reads, and live across it.
    // 2. It writes no byte of the memory: a read that names it does, as `Ring::push` says.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring,
            what,
            &raw const update,
            size_of::<Update>(),
        )
    };
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests;
