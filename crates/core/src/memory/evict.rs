//! Eviction of what was isolated: detach, settle, free, uncharge.

use super::Memory;
use super::reach::Reclaimer;
use crate::alloc::Pieces;
use crate::frame::{State, Word, flag};
use crate::group::ReclaimCount;
use crate::page_cache;
use crate::reclaim::{Batch, LruvecRecord, MAX_BATCH, Outcome, Victim};
use crate::sync::Ordering;
use crate::units::{Cpu, Frame, PageKey, PageType};

impl Memory {
    /// Evicts isolated pages on somebody's behalf; returns those that went. Their frames are freed,
    /// or taken `in_hand`.
    pub(super) fn evict(
        &self,
        (cpu, by): (Cpu, Reclaimer),
        lruvec: &LruvecRecord,
        batch: &Batch,
        mut in_hand: Option<&mut Pieces>,
    ) -> u32 {
        // Their lines come from memory side by side: each exchange below would wait for its own.
        for one in batch.iter() {
            self.touch_entries_of(one.frame);
        }
        for one in batch.iter() {
            self.frames.touch_neighbours(one.frame);
        }
        let mut refused = self.claimed(batch);
        for (at, victim) in batch.iter().enumerate() {
            if refused >> at & 1 != 0 || !self.detach(victim) {
                refused |= 1 << at;
            }
        }
        self.unlist(batch, refused);
        let mut left_their_file: u64 = 0;
        let mut of_type = [0; 2];
        let mut lists = lruvec.lock();
        lists.open();
        for (at, victim) in batch.iter().enumerate() {
            let outcome = match refused >> at & 1 {
                0 => {
                    let nr_pages = self.frames.block(victim.frame).0.nr_pages();
                    of_type[self.frames.page_type(victim.frame).index()] += nr_pages;
                    Outcome::Evicted
                }
                _ => Outcome::Refused,
            };
            if lists.settle(&self.frames, victim, outcome) {
                left_their_file |= 1 << at;
            }
        }
        self.close_lists(cpu, lists);
        let freed = self.count_evicted(by, lruvec.group(), of_type);
        let (mut to_free, mut nr_to_free) = ([Frame::FIRST; MAX_BATCH as usize], 0);
        for (at, victim) in batch.iter().enumerate() {
            let frame = victim.frame;
            if refused >> at & 1 == 0 {
                let order = self.frames.block(frame).0;
                match &mut in_hand {
                    // A page that came there since somebody looked may be larger.
                    Some(pieces) if order <= pieces.order() => {
                        pieces.add(frame, self.end_use(cpu, frame));
                    }
                    _ => {
                        to_free[nr_to_free] = frame;
                        nr_to_free += 1;
                    }
                }
            } else if left_their_file >> at & 1 != 0 {
                self.reap(cpu, frame);
            }
        }
        self.put_blocks(cpu, lruvec.group(), &to_free[..nr_to_free]);
        freed
    }

    /// Has fetched the entries that the eviction of a frame's page changes, whatever page that is.
    pub(super) fn touch_entries_of(&self, frame: Frame) {
        if let Some(key) = self.frames.key(frame) {
            self.index.touch_to_write(key);
            self.shadows.touch(key);
        }
    }

    /// Counts a group's pages that went, by type; returns all. Before they are uncharged: the group
    /// may go with them.
    fn count_evicted(&self, by: Reclaimer, group: u32, of_type: [u32; 2]) -> u32 {
        let freed = of_type.iter().sum();
        let [nr_anon, nr_file] =
            [PageType::Anon, PageType::File].map(|of| u64::from(of_type[of.index()]));
        for (count, more) in [
            (by.steals(), u64::from(freed)),
            (ReclaimCount::PgstealAnon, nr_anon),
            (ReclaimCount::PgstealFile, nr_file),
        ] {
            self.groups.add_reclaim_count(group, count, more);
        }
        self.stats.evicted[by as usize].fetch_add(u64::from(freed), Ordering::Relaxed);
        freed
    }

    /// The victims that readers claim, a bit for each. They were isolated before, so that no new
    /// claim holds them. Looks at the claims where a victim is contended.
    fn claimed(&self, batch: &Batch) -> u64 {
        let contended = batch.iter().enumerate();
        let contended = contended.filter(|(_, victim)| victim.word.has(flag::CONTENDED));
        if contended.clone().next().is_none() {
            return 0;
        }
        self.claims.frames().fold(0, |claimed, frame| {
            let on_frame = contended
                .clone()
                .filter(|(_, victim)| victim.frame == frame);
            on_frame.fold(claimed, |claimed, (at, _)| claimed | 1 << at)
        })
    }

    /// Takes a victim out of the page cache, if nobody used it since it was isolated; its shadow
    /// takes its place. Its frame is on its file's list still.
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

    /// Takes the frames of a batch but those that were refused off their files' lists, with one
    /// lock for neighbours of one file.
    fn unlist(&self, batch: &Batch, refused: u64) {
        let evicted = (0..)
            .zip(batch.iter())
            .filter(|(at, _)| refused >> at & 1 == 0);
        let keys = evicted.map(|(_, victim)| {
            let key = self.frames.key(victim.frame);
            (victim.frame, key.expect("a detached frame has its key"))
        });
        let mut left = keys.peekable();
        while let Some(&(_, key)) = left.peek() {
            let is_same = |(_, other): &(Frame, PageKey)| other.mapping() == key.mapping();
            let same = core::iter::from_fn(|| left.next_if(is_same));
            self.mapping_of(key)
                .unlist(&self.frames, same.map(|(frame, _)| frame));
        }
    }

    /// Removes a page's entry. The caller owns the frame.
    pub(super) fn forget(&self, key: PageKey, frame: Frame) {
        let removed = self.index.remove(key, frame);
        assert!(removed, "{frame:?} has no entry");
    }

    /// Frees a failed or detached frame if this was its last holder.
    #[cold]
    #[inline(never)] // Off the path of every unpin.
    pub(super) fn reap(&self, cpu: Cpu, frame: Frame) {
        match page_cache::try_reap(&self.frames, frame).map(Word::state) {
            // Nobody knows how far its read got.
            Some(State::Failed) => self.put_foreign(cpu, frame),
            Some(_) => self.put_block(cpu, frame),
            None => {}
        }
    }
}
