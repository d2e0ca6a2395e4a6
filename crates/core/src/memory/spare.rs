//! What reclaim may take from a group: what is beyond its protection.

use super::Memory;
use crate::group::{Group, Limit, MAX_DEPTH, Protection};
use crate::reclaim::{Lruvec, LruvecRecord, Sizes};
use crate::units::index;

/// Levels from the one below the root to a group.
const MAX_LEVELS: usize = index(MAX_DEPTH) + 1;

/// What one reclaimer takes of a group that is protected, or below one that is: others count it as
/// gone, so that all of them together leave what is protected. Given up when dropped, after what
/// went was uncharged.
pub(super) struct Taken<'a> {
    memory: &'a Memory,
    /// The group, for whom it is reclaimed, and whether `low` is kept.
    from: (u32, u32, bool),
    levels: Levels<'a>,
    sizes: Sizes,
    /// Frames that may be taken.
    pub(super) most: u32,
}

/// The levels of a path that have some protection.
struct Levels<'a> {
    levels: [Option<Level<'a>>; MAX_LEVELS],
    len: usize,
}

#[derive(Clone, Copy)]
struct Level<'a> {
    group: &'a Group,
    /// Pages that stay there and below: what is protected, and what is charged for nobody.
    kept: u64,
}

impl<'a> Levels<'a> {
    fn of(memory: &'a Memory, (id, subtree, is_low_kept): (u32, u32, bool)) -> Levels<'a> {
        let mut all = Levels {
            levels: [None; MAX_LEVELS],
            len: 0,
        };
        let groups = &memory.groups;
        if !groups.is_protected() {
            return all;
        }
        groups.protections(id, subtree, |id, group, protection| {
            // One without a limit of its own may have a share of what those above it have.
            let mut kept = protection.kept(is_low_kept);
            let has_limit = [Limit::Min, Limit::Low].map(|limit| group.limit(limit) > 0);
            if kept > 0 || has_limit != [false; 2] {
                kept += memory.charged_for_nobody(id);
                all.levels[all.len] = Some(Level { group, kept });
                all.len += 1;
            }
        });
        all
    }

    fn iter(&self) -> impl Iterator<Item = Level<'a>> {
        self.levels[..self.len].iter().copied().flatten()
    }

    /// Takes up to `nr_pages` at all levels; returns how many.
    fn take(&self, nr_pages: u32) -> u32 {
        let mut most = nr_pages;
        for (at, level) in self.iter().enumerate() {
            let here = level.group.take_spare(level.kept, most);
            self.iter()
                .take(at)
                .for_each(|above| above.group.give_spare(most - here));
            most = here;
        }
        most
    }

    fn give(&self, nr_pages: u32) {
        self.iter()
            .for_each(|level| level.group.give_spare(nr_pages));
    }

    /// Pages that were taken beyond what may be.
    fn excess(&self) -> u64 {
        let excess = self.iter().map(|level| level.group.overtaken(level.kept));
        excess.max().unwrap_or(0)
    }
}

impl<'a> Taken<'a> {
    /// Nothing yet of a group's pages on a lruvec, for reclaim in `subtree`.
    pub(super) fn of(
        memory: &'a Memory,
        (id, subtree): (u32, u32),
        is_low_kept: bool,
        lruvec: &LruvecRecord,
    ) -> Taken<'a> {
        let from = (id, subtree, is_low_kept);
        let levels = Levels::of(memory, from);
        let (sizes, most) = match levels.len {
            0 => (Sizes::default(), u32::MAX),
            _ => (lruvec.look(Lruvec::sizes), 0),
        };
        Taken {
            memory,
            from,
            levels,
            sizes,
            most,
        }
    }

    /// Takes up to `nr_frames` in all, and what the last page may have more; whether a page may be
    /// taken.
    pub(super) fn take(&mut self, nr_frames: u32) -> bool {
        if self.levels.len > 0 {
            let Sizes { smallest, largest } = self.sizes;
            let want = nr_frames.max(smallest) + largest.saturating_sub(1);
            self.most += self.levels.take(want.saturating_sub(self.most));
            // What others took and uncharged between the look and that may be in a stock by now,
            // and what came in may be protected.
            let excess = Levels::of(self.memory, self.from).excess();
            self.keep(u32::try_from(excess).map_or(0, |excess| self.most.saturating_sub(excess)));
        }
        self.most >= self.sizes.smallest.max(1)
    }

    /// Keeps no more than so many.
    pub(super) fn keep(&mut self, nr_frames: u32) {
        if self.levels.len > 0 {
            self.levels.give(self.most - nr_frames);
            self.most = nr_frames;
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.keep(0);
    }
}

impl Protection {
    /// Pages that are left, with what `low` protects or without.
    pub(super) fn kept(self, is_low_kept: bool) -> u64 {
        match is_low_kept {
            true => self.min.max(self.low),
            false => self.min,
        }
    }
}

impl Memory {
    /// Pages that reclaim for `subtree` may take from a group: those beyond its protection, and
    /// beyond what others are taking just now. What is charged for nobody is among them.
    pub(super) fn spare(&self, id: u32, subtree: u32, is_low_kept: bool) -> u64 {
        if !self.groups.is_protected() {
            return u64::MAX;
        }
        let kept = self.groups.protection(id, subtree).kept(is_low_kept);
        self.groups.get(id).map_or(0, |group| group.spare(kept))
    }

    /// Before many are asked what they can [spare](Memory::spare): no stock is among that then.
    pub(super) fn drain_if_protected(&self, subtree: u32) {
        if self.groups.is_protected() {
            self.groups.drain(subtree);
        }
    }

    /// Pages in the stocks and magazines of a subtree.
    fn charged_for_nobody(&self, subtree: u32) -> u64 {
        let in_magazines = self
            .magazines
            .nr_pages(|group| self.groups.is_in(group, subtree));
        u64::from(self.groups.stocked(subtree)) + u64::from(in_magazines)
    }
}
