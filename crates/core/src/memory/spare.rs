//! What reclaim may take from a group: what is beyond its protection.

use super::Memory;
use crate::group::{Group, Protection};
use crate::reclaim::{Lruvec, LruvecRecord};

/// What one reclaimer takes of a group that is protected: others count it as gone, so that all of
/// them together leave what is protected. Given up when dropped, after what went was uncharged.
pub(super) struct Taken<'a> {
    /// `None` where nothing of it is protected: as much as is wanted.
    group: Option<&'a Group>,
    /// Pages that stay: what is protected, and what is charged for nobody, in stocks.
    kept: u64,
    /// Frames of its smallest page, or fewer.
    least: u32,
    /// Frames that may be taken.
    pub(super) most: u32,
}

impl<'a> Taken<'a> {
    /// Nothing yet of a group's pages on a lruvec, for reclaim in `subtree`.
    pub(super) fn of(
        memory: &'a Memory,
        (id, subtree): (u32, u32),
        is_low_kept: bool,
        lruvec: &LruvecRecord,
    ) -> Taken<'a> {
        let groups = &memory.groups;
        let kept = match groups.is_protected() {
            true => memory.kept(id, subtree, is_low_kept),
            false => 0,
        };
        if kept == 0 {
            return Taken {
                group: None,
                kept,
                least: 0,
                most: u32::MAX,
            };
        }
        Taken {
            group: groups.get(id),
            kept: kept + u64::from(groups.stocked(id)),
            least: lruvec.look(Lruvec::smallest),
            most: 0,
        }
    }

    /// Takes up to `nr_frames` in all; whether a page may be taken.
    pub(super) fn take(&mut self, nr_frames: u32) -> bool {
        if let Some(group) = self.group {
            let more = nr_frames.max(self.least).saturating_sub(self.most);
            self.most += group.take_spare(self.kept, more);
        }
        self.most >= self.least.max(1)
    }

    /// Keeps no more than so many.
    pub(super) fn keep(&mut self, nr_frames: u32) {
        if let Some(group) = self.group {
            group.give_spare(self.most - nr_frames);
            self.most = nr_frames;
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.keep(0);
    }
}

impl Memory {
    /// Pages that reclaim for `subtree` may take from a group: those beyond its protection, and
    /// beyond what others are taking just now.
    pub(super) fn spare(&self, id: u32, subtree: u32, is_low_kept: bool) -> u64 {
        if !self.groups.is_protected() {
            return u64::MAX;
        }
        let kept = self.kept(id, subtree, is_low_kept);
        self.groups.get(id).map_or(0, |group| group.spare(kept))
    }

    fn kept(&self, id: u32, subtree: u32, is_low_kept: bool) -> u64 {
        let Protection { min, low } = self.groups.protection(id, subtree);
        if is_low_kept { min.max(low) } else { min }
    }
}
