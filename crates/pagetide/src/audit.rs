//! An audit of a memory: everything is counted anew and compared with the books.

use crate::Memory;
use pagetide_core::memory::AuditError as Found;
use pagetide_core::sync::NoMetadata;
use pagetide_core::units::Discrepancy;
use std::thread;
use std::time::{Duration, Instant};

/// How long nothing may move before a difference is taken for a fault: a thread in the middle of
/// its work has been scheduled by then.
const STILL: Duration = Duration::from_millis(300);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// How long it waits for rest.
const PATIENCE: Duration = Duration::from_secs(3);

/// What [`Memory::audit`] found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The books differ from what is there: a fault of this library, worth a report.
    #[error("{what}, {at}: {booked} booked, {counted} counted")]
    Discrepancy {
        /// What was counted, and what `at` is the number of.
        what: &'static str,
        /// Which one: a frame, a group, a mapping, a CPU; 0 where there is one only.
        at: u32,
        /// What the books say.
        booked: u64,
        /// What was counted.
        counted: u64,
    },
    /// Counts differed whenever they were taken, and something moved each time: somebody uses the
    /// memory. Ask again at rest.
    #[error("the memory is in use: an audit needs rest")]
    NotAtRest,
    /// The allocator refused the memory to count in.
    #[error("no memory to count in: {bytes} bytes")]
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// As [`Error::Forked`](crate::Error::Forked).
    #[error("this process was forked from the one that built the memory")]
    Forked,
}

impl From<Found> for AuditError {
    fn from(found: Found) -> AuditError {
        match found {
            Found::Found(Discrepancy {
                what,
                at,
                booked,
                counted,
            }) => AuditError::Discrepancy {
                what,
                at,
                booked,
                counted,
            },
            Found::NoMetadata(NoMetadata { bytes }) => AuditError::NoMemory { bytes },
        }
    }
}

impl Memory {
    /// Counts everything anew and compares it with the books: free frames, lists of pages, files,
    /// and what each group is charged. For tests of a program, and for one in doubt.
    ///
    /// It needs rest: no other thread inside a call of this library. Pins, buffers, reservations
    /// and dirty pages may be there. Under load counts may differ for a moment: a difference is
    /// told only where it stays the same for 0.3 s in which nothing moved. Where something moves
    /// for 3 s, the answer is [`AuditError::NotAtRest`] and no false alarm; a thread that stands
    /// still in the middle of a call for that long, in a debugger perhaps, gives one.
    ///
    /// Cost: O(frames + groups), about 10 ms a GiB, with each list's lock in turn. Drains the
    /// charge stocks.
    ///
    /// # Errors
    /// [`AuditError`] with the first difference.
    pub fn audit(&self) -> Result<(), AuditError> {
        if self.home().is_forked() {
            return Err(AuditError::Forked);
        }
        let core = &self.home().core;
        let began = Instant::now();
        let mut last: Option<(Found, u64, Instant)> = None;
        loop {
            let before = core.moves();
            let Err(found) = core.audit() else {
                return Ok(());
            };
            if let Found::NoMetadata(_) = found {
                return Err(found.into());
            }
            let (moves, now) = (core.moves(), Instant::now());
            let is_same = |last: &(Found, u64, Instant)| (last.0, last.1) == (found, moves);
            let since = match last.filter(is_same) {
                Some((_, _, since)) if moves == before => since,
                _ => now,
            };
            if now.duration_since(since) >= STILL {
                return Err(found.into());
            }
            if began.elapsed() >= PATIENCE {
                return Err(AuditError::NotAtRest);
            }
            last = Some((found, moves, since));
            thread::sleep(PAUSE);
        }
    }
}
