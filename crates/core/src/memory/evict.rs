//! Eviction: isolate, detach, settle, free, uncharge. The one place where it reads top down.

use super::{AllocError, Here, Memory};
use crate::alloc::{PAGEBLOCK_ORDER, Pieces};
use crate::group::{Count, Event, Protection};
use crate::page_cache;
use crate::reclaim::{Batch, Lruvec, Outcome, Victim};
use crate::sync::{Ordering, SpinLock, rank};
use crate::units::{Cpu, Frame, PageKey};

/// Times that as many pages as there are may be looked at before a lruvec is given up: more than it
/// takes any policy to find the one page that nobody uses.
const MAX_ROUNDS: u32 = 16;

/// A group that pages are taken from.
pub(super) struct Giver<'a> {
    pub(super) id: u32,
    pub(super) lruvec: &'a SpinLock<Lruvec, { rank::LRUVEC }>,
    /// Whether it keeps what its `low` protects.
    pub(super) is_low_kept: bool,
}

impl Memory {
    /// Evicts one batch of pages of the groups in `subtree`; returns the pages freed.
    ///
    /// The batch is the policy's for the subtree's limit, at least `nr_pages`.
    /// Groups take turns. What a group's `min` and `low` protect is left to it, `low` only as long
    /// as another group has pages to give.
    pub fn reclaim(&self, cpu: Cpu, subtree: u32, nr_pages: u32) -> u32 {
        let limit = self.groups.get(subtree).map_or(0, |group| group.max());
        let want = self.config.policy.batch(limit).max(nr_pages);
        let take = |is_low_kept| {
            let givers = self.givers(subtree, is_low_kept);
            let mut freed = givers.map(|giver| self.reclaim_from(cpu, subtree, &giver, want));
            freed.find(|&freed| freed > 0).unwrap_or(0)
        };
        match take(true) {
            0 if self.groups.is_protected() => take(false),
            freed => freed,
        }
    }

    /// Evicts up to `want` pages of one group's, beyond what is left to it.
    fn reclaim_from(&self, cpu: Cpu, subtree: u32, giver: &Giver<'_>, want: u32) -> u32 {
        let spare = self.spare(giver.id, subtree, giver.is_low_kept);
        let spare = u32::try_from(spare).unwrap_or(u32::MAX);
        let mut batch = Batch::default();
        let scanned = self.isolate(giver.lruvec, want.min(spare), &mut batch);
        self.stats
            .scanned
            .fetch_add(u64::from(scanned), Ordering::Relaxed);
        if let Some(group) = self.groups.get(giver.id) {
            group.add_count(Count::Pgscan, u64::from(scanned));
        }
        let freed = self.evict(cpu, giver.lruvec, &batch, None);
        if freed > 0 && !giver.is_low_kept {
            self.groups.count_event(giver.id, Event::Low);
        }
        freed
    }

    /// Isolates a batch, in as many lock holds as it takes to find a page, if there is one. Returns
    /// the pages scanned.
    fn isolate(
        &self,
        lruvec: &SpinLock<Lruvec, { rank::LRUVEC }>,
        want: u32,
        batch: &mut Batch,
    ) -> u32 {
        let mut scanned: u32 = 0;
        loop {
            let mut lists = lruvec.lock();
            let seen = lists.isolate(&self.frames, want, batch);
            scanned = scanned.saturating_add(seen);
            let most = lists.nr_pages().saturating_mul(MAX_ROUNDS);
            if !batch.is_empty() || seen == 0 || scanned > most {
                return scanned;
            }
        }
    }

    /// Pages that reclaim for `subtree` may take from a group: those beyond its protection.
    pub(super) fn spare(&self, id: u32, subtree: u32, is_low_kept: bool) -> u64 {
        if !self.groups.is_protected() {
            return u64::MAX;
        }
        let Protection { min, low } = self.groups.protection(id, subtree);
        let kept = if is_low_kept { min.max(low) } else { min };
        let usage = self.groups.get(id).map_or(0, |group| group.usage());
        usage.saturating_sub(kept)
    }

    /// The group in `subtree` whose turn it is to give pages: one with some beyond its `low`, or,
    /// where no group has any, beyond its `min`.
    pub(super) fn next_giver(&self, subtree: u32) -> Option<Giver<'_>> {
        let next = |is_low_kept| self.givers(subtree, is_low_kept).next();
        next(true).or_else(|| self.groups.is_protected().then(|| next(false))?)
    }

    /// The groups in `subtree` with pages on their lists and more than is left to them, beginning
    /// with the one whose turn it is.
    fn givers(&self, subtree: u32, is_low_kept: bool) -> impl Iterator<Item = Giver<'_>> {
        let turn = usize::try_from(self.turn.fetch_add(1, Ordering::Relaxed)).unwrap_or(0);
        let all = move || {
            self.groups
                .iter()
                .filter(move |&(id, group)| {
                    group.lruvec() != 0
                        && self.groups.is_in(id, subtree)
                        && self.spare(id, subtree, is_low_kept) > 0
                })
                .filter_map(move |(id, group)| {
                    let lruvec = self.lruvecs.get(group.lruvec())?;
                    Some(Giver {
                        id,
                        lruvec,
                        is_low_kept,
                    })
                })
                .filter(|giver| giver.lruvec.lock().nr_pages() > 0)
        };
        let before = turn.checked_rem(all().count()).unwrap_or(0);
        all().skip(before).chain(all().take(before))
    }

    /// Evicts isolated pages; returns those that went. Their frames are freed, or taken `in_hand`.
    pub(super) fn evict(
        &self,
        cpu: Cpu,
        lruvec: &SpinLock<Lruvec, { rank::LRUVEC }>,
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
                    Some(pieces) if order.get() <= PAGEBLOCK_ORDER => {
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
        let removed = self.index.lock(key).remove(frame);
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

    /// The lruvec of a group, made at its first page.
    ///
    /// # Errors
    /// [`AllocError`] where the budget or the allocator refuses the record.
    pub(super) fn lruvec_of(&self, here: Here<'_>, group: u32) -> Result<u32, AllocError> {
        let record = self
            .groups
            .get(group)
            .expect("a group lives while its handle does");
        if record.lruvec() != 0 {
            return Ok(record.lruvec());
        }
        let policy = self.config.policy;
        let make = || {
            let charge = |bytes: usize| self.groups.charge_records(here.cpu, bytes).is_ok();
            let set_up = |_, lruvec: &SpinLock<Lruvec, _>| *lruvec.lock() = Lruvec::new(policy);
            self.lruvecs.insert(charge, set_up)
        };
        let made = self.make_record(here, make, |_| true);
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
