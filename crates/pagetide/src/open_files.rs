//! Files of the system that are open, found by what they are, however many others are open.

use crate::file::Open;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Weak;

/// The order of a file's pages and where they begin.
type Paging = (u8, u64);

/// Device and inode of an open file, and its pages.
pub(crate) type FileKey = (u64, u64, Paging);

/// What is open of one file.
type OfOne = SmallVec<[(Paging, Weak<Open>); 1]>;

/// One file is mostly open in one paging: those of each are a list. A look at all that are open for
/// each new one would be tens of microseconds beside ten thousand, under the lock of all who open.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    by_identity: HashMap<(u64, u64), OfOne>,
}

impl OpenFiles {
    /// All that are open of a device's inode.
    pub(crate) fn of(&self, identity: (u64, u64)) -> &[(Paging, Weak<Open>)] {
        let open = self.by_identity.get(&identity);
        open.map_or(&[], SmallVec::as_slice)
    }

    pub(crate) fn get(&self, (device, inode, paging): FileKey) -> Option<&Weak<Open>> {
        let mut all = self.of((device, inode)).iter();
        all.find_map(|(other, open)| (*other == paging).then_some(open))
    }

    /// Adds one that is not there.
    pub(crate) fn insert(&mut self, (device, inode, paging): FileKey, open: Weak<Open>) {
        let all = self.by_identity.entry((device, inode)).or_default();
        all.push((paging, open));
    }

    /// Forgets one that is no longer open.
    pub(crate) fn remove(&mut self, (device, inode, paging): FileKey) {
        let identity = (device, inode);
        if let Some(all) = self.by_identity.get_mut(&identity) {
            all.retain(|(other, _)| *other != paging);
            if all.is_empty() {
                self.by_identity.remove(&identity);
            }
        }
    }
}
