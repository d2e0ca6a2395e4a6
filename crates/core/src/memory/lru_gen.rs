//! Generations: looked at, opened and evicted from outside, and aging's look at what was pinned.

use super::Memory;
use super::reach::Reclaimer;
use crate::frame::{FRAMES_PER_REGION, flag};
use crate::reclaim::{
    BadSeq, Batch, Generation, LruvecRecord, MAX_BATCH, MAX_NR_GENS, ScanControl, TypeTiers,
};
use crate::sync::Ordering;
use crate::units::{Cpu, Frame, Node, index};

/// Frames of a lruvec at most that looks at its own pages for those that were pinned: all are
/// looked at in one hold of its lock.
const MAX_LOOKED_THROUGH: u32 = 1024;

/// Generations of a group's pages on one node, the oldest first.
#[derive(Clone, Copy, Debug)]
pub struct LruGen {
    /// The node.
    pub node: Node,
    /// The coarse clock, in ns: a generation is as old as it is beyond its birth.
    pub now_ns: u64,
    /// The generations there are.
    pub generations: [Option<Generation>; MAX_NR_GENS],
    /// What the refault controller counted, by type, where the policy has one.
    pub tiers: Option<[TypeTiers; 2]>,
}

impl Memory {
    /// The generations of a group's own pages, by node. Takes the lock of each lruvec.
    pub fn lru_gen(&self, group: u32) -> impl Iterator<Item = LruGen> {
        let group = self.groups.get(group);
        let lruvecs = group.into_iter().flat_map(|group| self.lruvecs_of(group));
        lruvecs.map(|(_, lruvec)| {
            let lists = lruvec.lock();
            LruGen {
                node: lruvec.node(),
                now_ns: self.zones.now(),
                generations: lists.generations(&self.frames),
                tiers: lists.tiers(),
            }
        })
    }

    /// A group's lruvec on a node.
    fn lruvec_on(&self, group: u32, node: Node) -> Result<&LruvecRecord, BadSeq> {
        let group = self.groups.get(group).ok_or(BadSeq::NoGenerations)?;
        let mut lruvecs = self.lruvecs_of(group);
        let found = lruvecs.find(|(_, lruvec)| lruvec.node() == node);
        found.map(|(_, lruvec)| lruvec).ok_or(BadSeq::NoGenerations)
    }

    fn control_of(&self, swappiness: Option<u8>, group: u32) -> ScanControl {
        let of_group = || {
            self.groups
                .get(group)
                .map_or(0, crate::group::Group::swappiness)
        };
        ScanControl {
            swappiness: swappiness.unwrap_or_else(of_group),
            page_ins: self.page_ins.load(Ordering::Relaxed),
            ns: self.zones.now(),
            ..ScanControl::of(MAX_BATCH)
        }
    }

    /// Opens a generation after `seq`, the youngest of a group's own pages on a node; nothing
    /// happens where somebody else did meanwhile. What was pinned since the last one is promoted.
    ///
    /// Where four are open, the oldest joins the next one if `is_forced`.
    ///
    /// # Errors
    /// [`BadSeq`].
    pub fn age(&self, (group, node): (u32, Node), seq: u64, is_forced: bool) -> Result<(), BadSeq> {
        let lruvec = self.lruvec_on(group, node)?;
        let control = self.control_of(None, group);
        while !lruvec
            .lock()
            .age(&self.frames, &control, (seq, is_forced))?
        {}
        self.visit_touched(lruvec);
        Ok(())
    }

    /// Evicts a group's own pages on a node of all generations up to `seq`, `nr_pages` or up to a
    /// batch more; returns those evicted. What is in use stays. `min` and `low` do not protect.
    ///
    /// # Errors
    /// [`BadSeq`].
    pub fn evict_generations(
        &self,
        cpu: Cpu,
        (group, node): (u32, Node),
        (seq, swappiness): (u64, Option<u8>),
        nr_pages: u64,
    ) -> Result<u64, BadSeq> {
        let lruvec = self.lruvec_on(group, node)?;
        let control = self.control_of(swappiness, group);
        let mut freed = 0;
        loop {
            let mut batch = Batch::default();
            let bounds = (seq, &mut batch);
            let looked = lruvec
                .lock()
                .isolate_up_to(&self.frames, &control, bounds)?;
            let by = Reclaimer::Proactive;
            self.count_looked(by, group, batch.looked());
            freed += u64::from(self.evict((cpu, by), lruvec, &batch, None));
            if looked == 0 || freed >= nr_pages {
                return Ok(freed);
            }
        }
    }

    /// Promotes the pages of a lruvec that were pinned since they were queued or looked at last, in
    /// the regions that pins marked: at most 64 frames for each region that a pin marked since the
    /// last look. One hold of the lock for each region that has such a page.
    ///
    /// A young page of another lruvec keeps its region's mark. So where the marked regions have
    /// more frames than a small lruvec has, that one looks at its own pages, in one hold of the
    /// lock: what a small group costs does not depend on what the others have pinned.
    #[cold]
    pub(super) fn visit_touched(&self, lruvec: &LruvecRecord) {
        self.stats.agings.fetch_add(1, Ordering::Relaxed);
        let nr_own = lruvec.nr_frames();
        let nr_regions = index(nr_own / FRAMES_PER_REGION);
        if nr_own <= MAX_LOOKED_THROUGH && self.frames.touched().nth(nr_regions).is_some() {
            let nr_promoted = lruvec.lock().promote_all(&self.frames);
            self.count_visited(nr_own.into(), nr_promoted.into());
            return;
        }
        for region in self.frames.touched() {
            self.frames.clear_touched(region);
            let mut lists = None;
            let mut has_others = false;
            let (mut nr_looked, mut nr_promoted) = (0, 0);
            for frame in self.frames.region(region) {
                nr_looked += 1;
                let word = self.frames.word(frame);
                if !word.has(flag::YOUNG) || word.generation() == 0 {
                    continue;
                }
                if !self.lists(lruvec, frame) {
                    has_others = true;
                    continue;
                }
                let lists = lists.get_or_insert_with(|| lruvec.lock());
                // Looked at again under the lock: it may have gone, and another came. The word
                // before the group, and promoted from that very word: so it is this lruvec's.
                let word = self.frames.word(frame);
                let is_ours = self.lists(lruvec, frame);
                nr_promoted += u64::from(is_ours && lists.promote(&self.frames, (frame, word)));
            }
            drop(lists);
            if has_others {
                self.frames
                    .mark_touched(Frame::new(region * FRAMES_PER_REGION));
            }
            self.count_visited(nr_looked, nr_promoted);
        }
    }

    fn count_visited(&self, nr_looked: u64, nr_promoted: u64) {
        let (counts, relaxed) = (&self.stats, Ordering::Relaxed);
        counts.aging_scanned.fetch_add(nr_looked, relaxed);
        counts.promoted.fetch_add(nr_promoted, relaxed);
    }

    /// Whether a listed page is this lruvec's.
    fn lists(&self, lruvec: &LruvecRecord, frame: Frame) -> bool {
        self.frames.group(frame) == lruvec.group()
            && self.zones.node_of(&self.frames, frame) == lruvec.node()
    }
}
