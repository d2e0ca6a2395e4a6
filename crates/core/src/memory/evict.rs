//! Eviction: isolate, detach, settle, free, uncharge. The one place where it reads top down.

use super::{AllocError, Memory};
use crate::page_cache;
use crate::reclaim::{Batch, Lruvec, Outcome, Victim};
use crate::sync::{Ordering, SpinLock, rank};
use crate::units::{Cpu, Frame, PageKey};

impl Memory {
    /// Evicts one batch of pages of the groups in `subtree`; returns the pages freed.
    ///
    /// The batch is the policy's, at most a sixteenth of the subtree's limit, at least `nr_pages`.
    /// Groups take turns.
    pub fn reclaim(&self, cpu: Cpu, subtree: u32, nr_pages: u32) -> u32 {
        let limit = self.groups.get(subtree).map_or(0, crate::group::Group::max);
        let sixteenth = u32::try_from(limit / 16).unwrap_or(u32::MAX).max(1);
        let want = self.config.policy.batch().min(sixteenth).max(nr_pages);
        let Some(lruvec) = self.next_lruvec(subtree) else {
            return 0;
        };
        let mut batch = Batch::default();
        let scanned = lruvec.lock().isolate(&self.frames, want, &mut batch);
        self.stats
            .scanned
            .fetch_add(u64::from(scanned), Ordering::Relaxed);
        self.evict(cpu, lruvec, &batch)
    }

    /// The lruvec of the next group in `subtree` that has pages on its lists.
    fn next_lruvec(&self, subtree: u32) -> Option<&SpinLock<Lruvec, { rank::LRUVEC }>> {
        let turn = usize::try_from(self.turn.fetch_add(1, Ordering::Relaxed)).unwrap_or(0);
        let with_pages = || {
            self.groups
                .iter()
                .filter(|&(id, group)| group.lruvec() != 0 && self.groups.is_in(id, subtree))
                .filter_map(|(_, group)| self.lruvecs.get(group.lruvec()))
                .filter(|lruvec| lruvec.lock().nr_pages() > 0)
        };
        let nr_lruvecs = with_pages().count();
        with_pages()
            .nth(turn.checked_rem(nr_lruvecs)?)
            .or_else(|| with_pages().next())
    }

    fn evict(&self, cpu: Cpu, lruvec: &SpinLock<Lruvec, { rank::LRUVEC }>, batch: &Batch) -> u32 {
        let mut refused: u64 = 0;
        for (at, victim) in batch.iter().enumerate() {
            if !self.detach(victim) {
                refused |= 1 << at;
            }
        }
        let mut left_their_file: u64 = 0;
        let mut lists = lruvec.lock();
        for (at, victim) in batch.iter().enumerate() {
            let is_refused = refused >> at & 1 != 0;
            let outcome = if is_refused {
                Outcome::Refused
            } else {
                Outcome::Evicted
            };
            if lists.settle(&self.frames, victim, outcome) {
                left_their_file |= 1 << at;
            }
        }
        drop(lists);
        let mut freed = 0;
        for (at, victim) in batch.iter().enumerate() {
            if refused >> at & 1 == 0 {
                freed += self.frames.block(victim.frame).0.nr_pages();
                self.put_block(cpu, victim.frame);
            } else if left_their_file >> at & 1 != 0 {
                self.reap(cpu, victim.frame);
            }
        }
        self.stats
            .evicted
            .fetch_add(u64::from(freed), Ordering::Relaxed);
        freed
    }

    /// Takes a victim out of the page cache, if nobody used it since it was isolated; its shadow
    /// takes its place.
    fn detach(&self, victim: &Victim) -> bool {
        let frame = victim.frame;
        if !page_cache::detach(&self.frames, frame, victim.word) {
            return false;
        }
        let key = self.frames.key(frame).expect("a live frame holds a page");
        self.forget(key, frame);
        self.shadows
            .put(key, self.frames.group(frame), victim.token);
        true
    }

    /// Removes a page's entry and takes its frame off its file's list. The caller owns the frame.
    pub(super) fn forget(&self, key: PageKey, frame: Frame) {
        let removed = self.index.lock(key).remove(frame);
        assert!(removed, "{frame:?} has no entry");
        self.mapping_of(key).unlist(&self.frames, frame);
    }

    /// Frees a failed or detached frame if this was its last holder.
    pub(super) fn reap(&self, cpu: Cpu, frame: Frame) {
        if page_cache::try_reap(&self.frames, frame) {
            self.put_block(cpu, frame);
        }
    }

    /// The lruvec of a group, made at its first page.
    ///
    /// # Errors
    /// [`AllocError`] where the budget or the allocator refuses the record.
    pub(super) fn lruvec_of(&self, cpu: Cpu, group: u32) -> Result<u32, AllocError> {
        let record = self
            .groups
            .get(group)
            .expect("a group lives while its handle does");
        if record.lruvec() != 0 {
            return Ok(record.lruvec());
        }
        let charge = |bytes: usize| self.groups.charge_bytes(cpu, bytes).is_ok();
        let policy = self.config.policy;
        let made = self
            .lruvecs
            .insert(charge, |_, lruvec| *lruvec.lock() = Lruvec::new(policy));
        let id = made.map_err(|_| AllocError::NoMetadata)?;
        Ok(match record.set_lruvec(id) {
            Ok(()) => id,
            Err(first) => {
                self.lruvecs.remove(id);
                first
            }
        })
    }
}
