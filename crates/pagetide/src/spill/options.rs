//! How a memory swaps out.

use crate::store::Store;
use crate::{Builder, ByteSize};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where anon pages go.
#[derive(Clone)]
pub(crate) enum Target {
    /// A file without a name in a folder.
    Folder(PathBuf),
    /// A store of the program's own.
    Store(Arc<dyn Store>),
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Folder(folder) => folder.fmt(f),
            Target::Store(_) => f.write_str("a store"),
        }
    }
}

impl Default for Target {
    /// `TMPDIR`, or `/var/tmp`, which is not in memory on most systems.
    fn default() -> Target {
        let folder = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty());
        Target::Folder(folder.map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from))
    }
}

/// How a memory swaps out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) target: Target,
    /// As many bytes at most; as many as the budget may have by default.
    pub(crate) max_bytes: Option<u64>,
    pub(crate) is_encrypted: bool,
    /// Of 100 bytes of the budget, how many are for compressed pages.
    pub(crate) zswap_percent: u8,
}

impl Target {
    /// The same wherever the process goes from here on.
    pub(super) fn settled(self) -> Target {
        match self {
            // What cannot be told is an error for who looks there.
            Target::Folder(folder) => {
                Target::Folder(std::path::absolute(&folder).unwrap_or(folder))
            }
            store @ Target::Store(_) => store,
        }
    }
}

impl Builder {
    /// The folder that anon pages ([`Group::anon`]) are swapped out to, in a file without a name
    /// that is made with the first region and gone with the last one, or with the process. It
    /// should lie on a disk: what a file system in memory takes is outside the budget. By default
    /// `TMPDIR`, or `/var/tmp` where that is not set. A relative one begins where the process is
    /// when it builds the memory.
    ///
    /// It replaces what [`Builder::spill_store`] said before.
    ///
    /// [`Group::anon`]: crate::Group::anon
    pub fn spill(mut self, folder: impl Into<PathBuf>) -> Builder {
        self.spill.target = Target::Folder(folder.into());
        self
    }

    /// As many bytes of anon pages there may be, rounded down to whole pages, at most 1 TiB; by
    /// default as many as the budget may have. Each page that is written has its room in the spill
    /// file from then on, whether it is ever swapped out or not (as the kernel's
    /// `vm.overcommit_memory` of 2 has it): the write that finds none gets [`Error::SpillFull`],
    /// and no page that there is can be stuck in memory. The disk's space is taken when a page is
    /// swapped out.
    ///
    /// What says which parts of the file are free costs the budget 1/28000 of it.
    ///
    /// [`Error::SpillFull`]: crate::Error::SpillFull
    pub fn spill_max(mut self, most: ByteSize) -> Builder {
        self.spill.max_bytes = Some(most.as_u64());
        self
    }

    /// A store of the program's own to swap out to, instead of a file: one that nobody else uses.
    /// It is read and written in units of 4 KiB, up to [`Builder::spill_max`]; nothing of it is
    /// synced, and nothing is read that was not written before.
    pub fn spill_store(mut self, store: Arc<dyn Store>) -> Builder {
        self.spill.target = Target::Store(store);
        self
    }

    /// Encrypts what is swapped out with AES-256 in XTS mode, by a key that is made with the spill
    /// file and never leaves the process: who reads the disk later learns nothing of the pages. It
    /// is no protection from somebody who changes the file. Off by default.
    ///
    /// Costs 256 KiB of the budget while there is a spill file; writes to it are one at a time.
    pub fn spill_encrypted(mut self) -> Builder {
        self.spill.is_encrypted = true;
        self
    }

    /// Keeps pages that are swapped out compressed in memory (LZ4) before they go to the spill
    /// file, the oldest first, as the kernel's zswap does: in `percent` of the budget (more than 50
    /// is 50), and in 16 GiB at most, which are taken from it while there is a spill file, by what
    /// the budget is as that is made. 0, the default: none.
    ///
    /// A page that does not shrink by a quarter goes to the file at once. All of the memory is made
    /// resident with the first region, and pages of files go for it: who has regions now and then
    /// keeps a small one, and the spill file with it.
    pub fn zswap(mut self, percent: u8) -> Builder {
        self.spill.zswap_percent = percent.min(50);
        self
    }
}
