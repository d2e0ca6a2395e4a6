//! What those who change pages do for it: where much is dirty, they write some back.

use super::File;
use crate::Error;
use crate::backing::Backing;
use crate::flusher::Dirtiness;
use crate::group::Group;
use crate::hooks::Hooked;
use crate::shared::Shared;
use crate::writeback::Which;
use std::sync::atomic::Ordering;

/// Pages that a writer writes back at a time.
const BATCH: u64 = 64;

/// Each of them once.
pub(super) fn distinct(groups: &[u32; 2]) -> &[u32] {
    match groups[0] == groups[1] {
        true => &groups[..1],
        false => groups,
    }
}

/// Who changes pages of a file.
#[derive(Clone, Copy)]
pub(super) struct Writer<'a> {
    pub(super) shared: &'a Shared,
    pub(super) backing: &'a Backing,
    /// Keeps the file open by a handle of it. Else it may be closed meanwhile, and there is nothing
    /// to write then.
    pub(super) has_handle: bool,
}

impl Writer<'_> {
    /// Does what the store has to do before the file takes more changes of pages that are charged
    /// to these groups. With the lock of the file's length: what is found holds until the change is
    /// made.
    pub(super) fn prepare(&self, groups: &[u32]) -> Result<(), Error> {
        let backing = self.backing;
        backing.check_poison()?;
        // Behind a shorter end and in a hole would be old bytes.
        backing.catch_up(self.shared)?;
        if backing.is_failing.load(Ordering::Relaxed) {
            // Whoever writes on gives the store another chance; the others' files are not asked.
            // Who has a page latched may need the lock of the length to go on, or be this thread.
            let some = Which {
                nr_pages: BATCH,
                waits: false,
                ..Which::ALL
            };
            match self.has_handle {
                true => self.shared.try_failing(backing, some, None)?,
                false => self.shared.try_failing_held(backing, some)?,
            }
            self.write(some)?;
        }
        groups.iter().try_for_each(|&group| self.check_log(group))
    }

    /// Whether pages of the file wait for the log.
    pub(super) fn is_gated(&self) -> bool {
        let hooked = self.backing.hooked.get();
        hooked.is_some_and(Hooked::is_gated)
    }

    /// Where pages wait for the log, the level that pages of a group are charged to of which too
    /// much is dirty.
    pub(super) fn full_level(&self, group: u32) -> Option<u32> {
        let is_gated = self.is_gated();
        is_gated.then(|| self.shared.hard_level(group)).flatten()
    }

    /// Where pages wait for the log and too many are dirty, in the group or at a level above it,
    /// somebody has to write some first: this file or, where it cannot, others at that level.
    pub(super) fn check_log(&self, group: u32) -> Result<(), Error> {
        let Some(level) = self.full_level(group) else {
            return Ok(());
        };
        let any = Which {
            waits: false,
            ..Which::ALL
        };
        if self.write(any)? > 0 {
            return Ok(());
        }
        self.shared.write_some_below(level, self.backing);
        match self.full_level(group) {
            Some(level) => Err(Error::DirtyLimit {
                group: self.shared.path_of(level),
                file: self.backing.name.to_string(),
                source: self.backing.log_error(),
            }),
            None => Ok(()),
        }
    }

    /// Writes some of this file back where much of one of these groups is dirty, and of whatever
    /// file at the levels above them if `is_above`, so that writers are as fast as the store and no
    /// faster.
    pub(super) fn balance(&self, groups: [u32; 2], is_above: bool) {
        for &group in distinct(&groups) {
            if is_above {
                self.shared.balance_levels(group, self.backing);
            }
            self.balance_group(group);
        }
    }

    fn balance_group(&self, group: u32) {
        match self.shared.dirtiness(group) {
            Dirtiness::Fine => return,
            Dirtiness::Background => return self.shared.tell_flusher(),
            Dirtiness::Hard => {}
        }
        let some = Which {
            nr_pages: BATCH,
            waits: false,
            ..Which::ALL
        };
        // Where it fails, the next write of this file says so; where this file has no dirty pages,
        // others do, whose writers are slowed down instead.
        let _failed = self.write(some);
    }

    /// Writes dirty pages of the file; returns how many.
    fn write(&self, which: Which<'_>) -> Result<u64, Error> {
        let (shared, backing) = (self.shared, self.backing);
        match self.has_handle {
            true => shared.write_dirty(backing, 0..=u64::MAX, which),
            false => shared.write_some_held(backing, which),
        }
    }
}

impl File {
    /// Who changes pages by this handle.
    pub(super) fn writer(&self) -> Writer<'_> {
        Writer {
            shared: &self.open.shared,
            backing: &self.open.backing,
            has_handle: true,
        }
    }

    /// The groups that a change of a page by `group` is looked at in.
    pub(super) fn groups_at(&self, group: &Group, page: u64) -> [u32; 2] {
        let charged = self.charged_to(page);
        [self.group.id(), charged.unwrap_or(group.id())]
    }

    /// Whether who changes a page is to write some of its file first, as much of one of these
    /// groups is dirty, and some of whatever file, as much is at a level above. Says so where that
    /// is done in the background. Of anon pages never: they are no dirty pages of files.
    pub(super) fn is_much_dirty(&self, groups: [u32; 2]) -> [bool; 2] {
        let (shared, backing) = (&self.open.shared, &*self.open.backing);
        if backing.source.region().is_some() {
            return [false; 2];
        }
        let alone = distinct(&groups)
            .iter()
            .map(|&group| shared.dirtiness(group));
        let alone = alone.max().unwrap_or(Dirtiness::Fine);
        let above = shared.dirtiness_above(groups[1], backing);
        if alone.max(above) > Dirtiness::Fine {
            shared.tell_flusher();
        }
        [alone, above].map(|dirtiness| dirtiness == Dirtiness::Hard)
    }

    /// Has a thread that changed a page of this group do what [`File::is_much_dirty`] says.
    pub(super) fn balance(&self, charged: u32) {
        let groups = [self.group.id(), charged];
        let [alone, above] = self.is_much_dirty(groups);
        if alone || above {
            self.writer().balance(groups, above);
        }
    }
}
