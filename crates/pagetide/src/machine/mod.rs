//! How much memory this process may have: the machine's, or less where a cgroup limits it.

mod cgroup;
#[cfg(test)]
mod tests;

use crate::{ByteSize, Error, PAGE_BYTES};
use std::fmt;
use std::path::{Path, PathBuf};

/// The memory that a process may have, and what says so.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineMemory {
    /// What the kernel manages: `MemTotal` of `/proc/meminfo`.
    pub total: ByteSize,
    /// The smallest limit of the process's cgroup and those above it, where that is below `total`.
    pub cgroup: Option<CgroupLimit>,
}

/// A limit that a cgroup sets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CgroupLimit {
    /// The limit.
    pub limit: ByteSize,
    /// The file that says it.
    pub file: PathBuf,
}

/// Where a memory's budget comes from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BudgetSource {
    /// The program named it.
    Named,
    /// It is a share of what the process may have, see [`Builder::budget_fraction`].
    ///
    /// [`Builder::budget_fraction`]: crate::Builder::budget_fraction
    Share {
        /// The share, above 0 and at most 1.
        fraction: f64,
        /// What it is a share of, as found when the memory was built.
        of: MachineMemory,
    },
}

/// The memory that this process may have: the machine's, or the smallest limit of its cgroup and
/// those above it.
///
/// Looked up anew at each call: a few small files of `/proc` and of the cgroup's file system. Both
/// versions of cgroups count, `memory.high` of version 2 as well as `memory.max`: above either of
/// them the kernel slows the process down or kills it. Of groups above the part that a container
/// shows, only version 1 tells (`hierarchical_memory_limit`).
///
/// # Errors
/// [`Error::CgroupLayout`] where a cgroup may limit this process, and its limit is not to be found.
/// Without cgroups, or where none is mounted, the machine's memory counts alone.
pub fn memory_limit() -> Result<MachineMemory, Error> {
    let info = rustix::system::sysinfo();
    // Words of the kernel's own size: 64 bits, as the machine's.
    let total = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    MachineMemory::read(Path::new("/"), total)
}

impl MachineMemory {
    /// What the files under `root` say of a machine with `total` bytes.
    fn read(root: &Path, total: u64) -> Result<MachineMemory, Error> {
        let cgroup = cgroup::smallest_limit(root)?;
        Ok(MachineMemory {
            total: ByteSize(total),
            cgroup: cgroup.filter(|cgroup| cgroup.limit.as_u64() < total),
        })
    }

    /// What counts: the smaller of both.
    #[must_use]
    pub fn limit(&self) -> ByteSize {
        self.cgroup.as_ref().map_or(self.total, |found| found.limit)
    }

    /// A share of it in pages, rounded down, `most` at the most.
    pub(crate) fn share_pages(&self, fraction: f64, most: u64) -> u64 {
        let limit = self.limit().as_u64();
        // Exact below 2^53 bytes, and no machine is near that.
        #[expect(clippy::cast_possible_truncation)]
        let share = (limit as f64 * fraction) as u64;
        (share.min(limit) / PAGE_BYTES as u64).min(most)
    }
}

impl fmt::Display for MachineMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cgroup {
            Some(CgroupLimit { limit, file }) => write!(f, "{limit} ({})", file.display()),
            None => write!(f, "{} (the machine's memory)", self.total),
        }
    }
}

impl fmt::Display for BudgetSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BudgetSource::Named => f.write_str("named by the program"),
            BudgetSource::Share { fraction, of } => write!(f, "{fraction} of {of}"),
        }
    }
}
