//! What a group's memory is, for people and programs.

use crate::builder::bytes_of;
use crate::{ByteSize, Group};
use pagetide_core::memory;
use std::fmt;

/// What is charged to a group and those below it, in bytes, and what they counted so far. Displayed
/// as `memory.stat` has it.
///
/// Taken at a moment: exact while nobody charges. What it counts of a group that is gone, its
/// parent has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStat {
    /// Working memory, and pages that left their file while pinned.
    pub anon: u64,
    /// Pages of files, those being read too.
    pub file: u64,
    /// pagetide's own records. They are the root's.
    pub kernel: u64,
    /// Bytes charged for objects that a shrinker can free.
    pub slab_reclaimable: u64,
    /// Bytes of the program's own heap: reservations. Off by what CPUs hold back, at most three
    /// pages each.
    pub slab_unreclaimable: u64,
    /// Charged ahead, in the stocks of CPUs, and what is left of reservations' last pages. The
    /// kernel has no such number.
    pub stock: u64,
    /// Pages that were not resident when asked for.
    pub pgmajfault: u64,
    /// Pages that reclaim looked at.
    pub pgscan: u64,
    /// Pages that reclaim evicted.
    pub pgsteal: u64,
    /// Evicted pages that were asked for again while they were remembered.
    pub workingset_refault_file: u64,
    /// Pages charged past a limit, because the charge could not fail. Not a name of the kernel's.
    pub pgforced: u64,
    text: memory::Stat,
}

impl fmt::Display for GroupStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Group {
    /// What the group's memory is. Cost: a look at every group of the memory.
    #[must_use]
    pub fn stat(&self) -> GroupStat {
        let text = self.shared().core.stat(self.id());
        let memory::Stat {
            anon,
            file,
            kernel,
            slab_reclaimable,
            slab_unreclaimable,
            stock,
            pgmajfault,
            pgscan,
            pgsteal,
            workingset_refault_file,
            pgforced,
        } = text;
        GroupStat {
            anon,
            file,
            kernel,
            slab_reclaimable,
            slab_unreclaimable,
            stock,
            pgmajfault,
            pgscan,
            pgsteal,
            workingset_refault_file,
            pgforced,
            text,
        }
    }

    /// The largest [`Group::usage`] so far.
    #[must_use]
    pub fn peak(&self) -> ByteSize {
        ByteSize(bytes_of(self.record().peak()))
    }
}
