//! The one memory that all of a process may share.

use crate::shared::locked;
use crate::{Builder, Error, Memory};
use std::sync::{Mutex, OnceLock};

static GLOBAL: OnceLock<Memory> = OnceLock::new();

/// Held while the memory is built, so that it is built once.
static BUILDING: Mutex<()> = Mutex::new(());

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
    // Nothing is guarded but the building, so that a thread which panicked leaves nothing half.
    let alone = locked(&BUILDING);
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
