//! The one memory that all of a process may share.

use crate::{Builder, Error, Memory};
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

static GLOBAL: OnceLock<Memory> = OnceLock::new();

/// The process one of whose threads builds the memory, so that it is built once; 0 for none.
///
/// No lock: in a child that was forked meanwhile nobody would ever open it.
static BUILDER: AtomicU32 = AtomicU32::new(0);

/// How long who waits for the builder sleeps at a time.
const NAP: Duration = Duration::from_millis(1);

/// Says that nobody builds any more, also after a panic.
struct Building;

impl Building {
    /// Waits for whoever builds.
    ///
    /// # Errors
    /// [`Error::Forked`] where that is a thread of the process that this one was forked from.
    fn begin() -> Result<Building, Error> {
        let own = process::id();
        let begin = || BUILDER.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed);
        while let Err(builder) = begin() {
            if builder != own {
                return Err(Error::Forked);
            }
            thread::sleep(NAP);
        }
        Ok(Building)
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        BUILDER.store(0, Ordering::Release);
    }
}

impl Memory {
    /// The memory of the whole process, for libraries that are to share one budget: built with
    /// defaults at the first call, unless [`Builder::install_global`] came before. It lives until
    /// the process ends.
    ///
    /// All crates share it that use the same version of pagetide. A library asks for it where it
    /// first needs it, not when it is loaded, so that the program can install its own before.
    /// Threads that call while it is built wait; later calls take no lock.
    ///
    /// ```
    /// use pagetide::{ByteSize, Error, Memory};
    ///
    /// // The program says how much, if half of what there is does not suit it.
    /// Memory::builder().budget(ByteSize::mib(64)).install_global()?;
    ///
    /// // A library charges what it uses to a group of its own.
    /// let index = Memory::global()?.root().child("index")?;
    /// assert_eq!(Memory::global()?.budget(), ByteSize::mib(64));
    /// # drop(index);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::build`]. A failure is not remembered: the next call tries again.
    /// [`Error::Forked`] in a process that was forked while a thread of its parent built it.
    pub fn global() -> Result<&'static Memory, Error> {
        match GLOBAL.get() {
            Some(memory) => Ok(memory),
            None => build_once(Memory::builder()).map(|(memory, _)| memory),
        }
    }
}

impl Builder {
    /// Builds the memory that [`Memory::global`] gives from now on: for the program itself, before
    /// anything uses that one.
    ///
    /// # Errors
    /// [`Error::GlobalExists`] where it was built or installed before; else as [`Builder::build`],
    /// and none is installed then.
    pub fn install_global(self) -> Result<&'static Memory, Error> {
        match build_once(self)? {
            (memory, true) => Ok(memory),
            (_, false) => Err(Error::GlobalExists),
        }
    }
}

/// The global memory, and whether it was built now.
fn build_once(builder: Builder) -> Result<(&'static Memory, bool), Error> {
    let alone = Building::begin()?;
    if let Some(memory) = GLOBAL.get() {
        return Ok((memory, false));
    }
    let built = builder.build_silently()?;
    let memory = GLOBAL.get_or_init(|| built);
    drop(alone);
    // A subscriber may ask for the global memory.
    memory.tell_built();
    Ok((memory, true))
}
