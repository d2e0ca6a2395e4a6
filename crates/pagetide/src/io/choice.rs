//! What carries out reads and writes of a memory, and why.

use super::Registered;
use std::fmt;

/// Why a forked child has no ring.
const FORKED: &str = "the process was forked";

/// What carries out reads of many pages of a file, and writes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoEngine {
    /// Linux's io_uring: reads and writes of many pages by few system calls.
    IoUring,
    /// A few threads, each of which reads; who writes back does so one write after the other.
    Threads,
}

/// The [`IoEngine`] that a memory uses, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoChoice {
    /// What it uses.
    pub engine: IoEngine,
    /// Why it does not use io_uring, where it does not.
    pub reason: Option<String>,
    /// Whether files have numbers in rings: open files that are read in batches, 256 at a time.
    pub registered_files: Registered,
    /// Whether rings have the memory of pages registered ([`Builder::registered_buffers`]).
    ///
    /// [`Builder::registered_buffers`]: crate::Builder::registered_buffers
    pub registered_buffers: Registered,
    /// Whether rings that do not register the memory of pages have a few pages of their own
    /// registered: of a batch, reads of single pages past the kernel's page cache go there while
    /// one is free, and are copied. That takes less time than the kernel needs to look memory up.
    pub bounce_buffers: Registered,
}

impl IoChoice {
    /// Another thread may have been about to choose as the process forked.
    pub(super) fn forked() -> IoChoice {
        IoChoice {
            engine: IoEngine::Threads,
            reason: Some(FORKED.to_owned()),
            registered_files: Registered::Off,
            registered_buffers: Registered::Off,
            bounce_buffers: Registered::Off,
        }
    }
}

impl fmt::Display for IoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.engine, &self.reason) {
            (IoEngine::IoUring, _) => f.write_str("io_uring")?,
            (IoEngine::Threads, None) => f.write_str("threads")?,
            (IoEngine::Threads, Some(reason)) => write!(f, "threads ({reason})")?,
        }
        let registrations = [
            ("files", &self.registered_files),
            ("buffers", &self.registered_buffers),
            ("bounce buffers", &self.bounce_buffers),
        ];
        for (what, registration) in registrations {
            match registration {
                Registered::Off => {}
                Registered::On => write!(f, ", registered {what}")?,
                Registered::Refused(reason) => write!(f, ", no more {what} ({reason})")?,
            }
        }
        Ok(())
    }
}
