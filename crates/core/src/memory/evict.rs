//! Eviction of what was isolated: detach, settle, free, uncharge.

use super::Memory;
use crate::alloc::Pieces;
use crate::group::Count;
use crate::page_cache;
use crate::reclaim::{Batch, LruvecRecord, Outcome, Victim};
use crate::sync::Ordering;
use crate::units::{Cpu, Frame, PageKey};

impl Memory {
    /// Evicts isolated pages; returns those that went. Their frames are freed, or taken `in_hand`.
    pub(super) fn evict(
        &self,
        cpu: Cpu,
        lruvec: &LruvecRecord,
        batch: &Batch,
        mut in_hand: Option<&mut Pieces>,
    ) -> u32 {
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
        let freed = self.count_evicted(batch, refused);
        for (at, victim) in batch.iter().enumerate() {
            if refused >> at & 1 == 0 {
                let order = self.frames.block(victim.frame).0;
                match &mut in_hand {
                    // A page that came there since somebody looked may be larger.
                    Some(pieces) if order <= pieces.order() => {
                        pieces.add(victim.frame, self.end_use(cpu, victim.frame));
                    }
                    _ => self.put_block(cpu, victim.frame),
                }
            } else if left_their_file >> at & 1 != 0 {
                self.reap(cpu, victim.frame);
            }
        }
        freed
    }

    /// Counts a batch of one group's pages but those that were refused; returns the pages. Before
    /// they are uncharged: the group may go with them.
    fn count_evicted(&self, batch: &Batch, refused: u64) -> u32 {
        let victims = (0..).zip(batch.iter());
        let evicted = victims.filter(|(at, _)| refused >> at & 1 == 0);
        let freed = evicted
            .map(|(_, victim)| self.frames.block(victim.frame).0.nr_pages())
            .sum();
        let first = batch.iter().next();
        let group = first.and_then(|victim| self.groups.get(self.frames.group(victim.frame)));
        if let Some(group) = group {
            group.add_count(Count::Pgsteal, u64::from(freed));
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
        let removed = self.index.remove(key, frame);
        assert!(removed, "{frame:?} has no entry");
        self.mapping_of(key).unlist(&self.frames, frame);
    }

    /// Frees a failed or detached frame if this was its last holder.
    #[cold]
    #[inline(never)] // Off the path of every unpin.
    pub(super) fn reap(&self, cpu: Cpu, frame: Frame) {
        if page_cache::try_reap(&self.frames, frame) {
            self.put_block(cpu, frame);
        }
    }
}
