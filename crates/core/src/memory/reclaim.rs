//! Whose pages go: the choice among groups, what is left to each, and one batch of reclaim.

use super::reach::Reach;
use super::spare::Taken;
use super::{AllocError, Here, Memory};
use crate::group::{Event, Group};
use crate::reclaim::{
    Batch, Class, LruvecRecord, MAX_BATCH, MAX_ROUNDS, Moment, Part, Policy, ScanControl,
    Unwritten, choose,
};
use crate::sync::Ordering;
use crate::units::{Cpu, Frame, Node};

/// Groups of a subtree that one choice looks at; where there are no more, it is exact.
const NR_WALKED: usize = 16;
/// Frames at random whose lruvecs it looks at, too, where there are more groups.
const NR_SAMPLED: u64 = 4;
/// Lruvecs that it looks at.
const MAX_CANDIDATES: usize = 32;
/// Choices before reclaim asks every group.
const MAX_CHOICES: usize = 3;
/// Batches to a limit, at most, where another lruvec becomes the better one meanwhile: exact under
/// small limits, and under large ones not a lock for each page.
const PER_LIMIT: u64 = 512;

/// Lruvecs that gave nothing just now.
type Failed<'a> = [Option<&'a LruvecRecord>; MAX_CHOICES];

/// A lruvec that pages are taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Giver<'a> {
    pub(super) group: u32,
    pub(super) lruvec: &'a LruvecRecord,
    /// What of it; `None` leaves that to it.
    part: Option<Part>,
    /// Whether its group keeps what its `low` protects.
    pub(super) is_low_kept: bool,
}

impl<'a> Giver<'a> {
    fn new(lruvec: &'a LruvecRecord, part: Option<Part>, reach: Reach) -> Giver<'a> {
        Giver {
            group: lruvec.group(),
            lruvec,
            part,
            is_low_kept: reach.is_low_kept,
        }
    }
}

/// Who may give, as far as one choice looks.
#[derive(Debug, Default)]
struct Candidates<'a> {
    ids: [Option<(u32, &'a LruvecRecord)>; MAX_CANDIDATES],
    len: usize,
    /// Those of the walk: what lies behind may be there twice.
    nr_walked: usize,
}

impl<'a> Candidates<'a> {
    fn push(&mut self, lruvec: (u32, &'a LruvecRecord)) {
        if let Some(place) = self.ids.get_mut(self.len) {
            *place = Some(lruvec);
            self.len += 1;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &'a LruvecRecord)> + Clone {
        self.ids.iter().flatten().copied()
    }

    /// Frames that probation has beyond its targets, of all that were met on the walk.
    fn surplus(&self) -> i64 {
        let walked = self.iter().take(self.nr_walked);
        let members = walked.flat_map(|(id, lruvec)| lruvec.members(id));
        members.map(|member| member.coldness.surplus()).sum()
    }

    /// A lruvec in proportion to its size, of those that `is_meant`; `turn` is a random number.
    fn by_size(
        &self,
        is_meant: impl Fn(&LruvecRecord) -> bool,
        turn: u64,
    ) -> Option<&'a LruvecRecord> {
        let meant = self.iter().map(|(_, lruvec)| lruvec);
        let meant = meant.take(self.nr_walked).filter(|lruvec| is_meant(lruvec));
        let size = |lruvec: &LruvecRecord| u64::from(lruvec.nr_frames());
        let total: u64 = meant.clone().map(size).sum();
        let mut at = turn.checked_rem(total)?;
        meant.into_iter().find(|lruvec| {
            let is_here = at < size(lruvec);
            at = at.saturating_sub(size(lruvec));
            is_here
        })
    }
}

/// Mixes the bits of a counter. Source: the finaliser of SplitMix64 (Steele 2014).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

impl Memory {
    /// Evicts one batch of pages of the groups in `subtree`; returns the pages freed.
    ///
    /// The batch is the policy's for the subtree's limit, at least `nr_pages`. Which group gives is
    /// chosen anew each time, at a cost that does not grow with the number of groups. What a
    /// group's `min` and `low` protect is left to it, `low` only as long as another group has pages
    /// to give.
    pub fn reclaim(&self, cpu: Cpu, subtree: u32, nr_pages: u32) -> u32 {
        self.reclaim_in(cpu, Reach::of(subtree), nr_pages)
    }

    /// [`Memory::reclaim`] of what is in reach; what `low` protects as well, where nothing else is.
    pub(super) fn reclaim_in(&self, cpu: Cpu, reach: Reach, nr_pages: u32) -> u32 {
        match self.reclaim_once(cpu, reach, nr_pages, (&mut None, true)) {
            0 if self.groups.is_protected() => {
                let reach = Reach {
                    is_low_kept: false,
                    ..reach
                };
                self.reclaim_once(cpu, reach, nr_pages, (&mut None, true))
            }
            freed => freed,
        }
    }

    /// Evicts one batch of what is in reach. Where `unwritten` is there, it gets the dirty pages
    /// that were met, and no lruvec is looked through once it is full; where anon pages are among
    /// them, those are what the giver gives, and nobody else is asked. Where pages that are in use
    /// are all there is, they go only if it `is_last`: if there is nothing else to try, as to write
    /// dirty ones.
    pub(super) fn reclaim_once(
        &self,
        cpu: Cpu,
        reach: Reach,
        nr_pages: u32,
        (unwritten, is_last): (&mut Option<Unwritten>, bool),
    ) -> u32 {
        let (mut failed, mut exhausted) = (Failed::default(), Failed::default());
        for at in 0..MAX_CHOICES {
            let Some(giver) = self.coldest_giver(reach, &failed) else {
                break;
            };
            let freed = self.reclaim_from(cpu, reach, (&giver, nr_pages), unwritten);
            if freed > 0 || unwritten.as_ref().is_some_and(|noted| noted.nr_anon() > 0) {
                return freed;
            }
            failed[at] = Some(giver.lruvec);
            exhausted[at] = failed[at].filter(|_| giver.part.is_none());
        }
        // None of those who were chosen has a page to give: whoever else has one is asked.
        let others = self.givers(reach, &failed);
        let freed = self.reclaim_from_any((cpu, reach, nr_pages), others, unwritten);
        let is_noted = unwritten.as_ref().is_some_and(|noted| !noted.is_empty());
        if freed > 0 || is_noted || !is_last {
            return freed;
        }
        // Those that were looked at in part, all of each.
        let in_part = failed.into_iter().zip(exhausted);
        let in_part = in_part.filter_map(|(failed, all)| failed.filter(|_| all.is_none()));
        let in_part = in_part.map(|lruvec| Giver::new(lruvec, None, reach));
        self.reclaim_from_any((cpu, reach, nr_pages), in_part, unwritten)
    }

    /// Evicts one batch of any of these lruvecs, looking through each.
    fn reclaim_from_any<'a>(
        &self,
        (cpu, reach, nr_pages): (Cpu, Reach, u32),
        givers: impl Iterator<Item = Giver<'a>>,
        unwritten: &mut Option<Unwritten>,
    ) -> u32 {
        for giver in givers {
            let freed = self.reclaim_from(cpu, reach, (&giver, nr_pages), unwritten);
            if freed > 0 {
                self.remember(reach.subtree, giver.group);
            }
            if freed > 0 || unwritten.as_ref().is_some_and(|noted| noted.nr_anon() > 0) {
                return freed;
            }
        }
        0
    }

    /// Has a later choice look at a group that gave where none of those that it looked at did.
    fn remember(&self, subtree: u32, group: u32) {
        if let Some(group) = self.groups.get(group) {
            let class = Class::Probation as usize;
            self.groups.set_giver(subtree, class, group.lruvec());
        }
    }

    /// Evicts a batch of one group's pages, beyond what is left to it.
    fn reclaim_from(
        &self,
        cpu: Cpu,
        reach: Reach,
        (giver, nr_pages): (&Giver<'_>, u32),
        unwritten: &mut Option<Unwritten>,
    ) -> u32 {
        let subtree = reach.subtree;
        if reach.is_young_kept && self.is_young(giver.lruvec) {
            return 0;
        }
        let limit = self.groups.get(subtree).map_or(0, Group::max_or_high);
        let (batch, at_least) = match reach.is_exact {
            true => (0, 1),
            false => (self.policy(giver.group).batch(limit), limit / PER_LIMIT),
        };
        let want = batch.max(nr_pages).min(MAX_BATCH);
        let mut taken = Taken::of(
            self,
            (giver.group, subtree),
            giver.is_low_kept,
            giver.lruvec,
        );
        if !taken.take(want) {
            return 0;
        }
        let is_of_low = self.is_of_low(giver, subtree);
        let control = ScanControl {
            nr_pages: want.min(taken.most),
            at_least: u32::try_from(at_least).unwrap_or(u32::MAX).max(1),
            part: giver.part,
            swappiness: self.swappiness(reach),
            page_ins: self.page_ins.load(Ordering::Relaxed),
            ns: self.zones.now(),
        };
        let mut batch = Batch::noting(unwritten.take());
        batch.take_at_most(taken.most);
        self.isolate(cpu, giver, &control, &mut batch);
        taken.keep(batch.nr_frames());
        self.count_looked(reach.by, giver.group, batch.looked());
        let freed = self.evict((cpu, reach.by), giver.lruvec, &batch, None);
        *unwritten = batch.into_unwritten();
        if freed > 0 {
            self.background.made_progress(giver.lruvec.node());
            self.room.made_progress();
            if is_of_low {
                self.groups.count_event(giver.group, Event::Low);
            }
        }
        freed
    }

    /// Whether what a group gives for a subtree is what its `low` protects.
    pub(super) fn is_of_low(&self, giver: &Giver<'_>, subtree: u32) -> bool {
        let kept = || self.groups.protection(giver.group, subtree).kept(true);
        let usage = || self.groups.get(giver.group).map_or(0, Group::usage);
        !giver.is_low_kept && usage() <= kept()
    }

    /// What may be taken where the budget is met, before somebody needs it or for a request.
    ///
    /// Source: the kernel's `min_ttl_ms`, which it keeps where all of memory runs out and not at
    /// the limits of groups. Changed: there a process is killed, here the request is refused.
    pub(super) fn budget_reach(&self) -> Reach {
        Reach::of(self.groups.root()).keeping_young()
    }

    /// What bringing back a page of a file costs there.
    fn swappiness(&self, reach: Reach) -> u8 {
        let of_subtree = || self.groups.get(reach.subtree).map_or(0, Group::swappiness);
        reach.swappiness.unwrap_or_else(of_subtree)
    }

    /// Whether a lruvec's oldest pages were queued less than `min_ttl` ago. Takes its lock, where
    /// that is set.
    fn is_young(&self, lruvec: &LruvecRecord) -> bool {
        let min_ttl_ns = self.config.min_ttl_ns;
        if min_ttl_ns == 0 {
            return false;
        }
        let swappiness = self.swappiness(self.budget_reach());
        let oldest_ns = lruvec.lock().oldest_ns(&self.frames, swappiness);
        oldest_ns.is_some_and(|ns| self.zones.now().saturating_sub(ns) < min_ttl_ns)
    }

    /// Whether pages would go for the budget, were they older. O(groups) where `min_ttl` is set.
    pub(super) fn is_thrashing(&self) -> bool {
        let reach = Reach {
            is_low_kept: false,
            ..self.budget_reach()
        };
        self.config.min_ttl_ns > 0
            && self
                .givers(reach, &Failed::default())
                .any(|giver| self.is_young(giver.lruvec))
    }

    /// Isolates a batch, in as many lock holds as it takes to find a page, if there is one, or to
    /// note as many dirty ones as a batch holds; of a part in one: others may be the better ones
    /// by then, and pages that are in use would go for want of time to be used again.
    fn isolate(&self, cpu: Cpu, giver: &Giver<'_>, control: &ScanControl, batch: &mut Batch) {
        let lruvec = giver.lruvec;
        let mut scanned: u32 = 0;
        loop {
            self.stats.batches.fetch_add(1, Ordering::Relaxed);
            let mut lists = lruvec.lock();
            if lruvec.group() != giver.group {
                // That one has gone, and another one's pages are in its record.
                return;
            }
            lists.open();
            let before = lists.max_seq();
            let seen = lists.isolate(&self.frames, control, batch);
            scanned = scanned.saturating_add(seen);
            let nr_pages = lists.nr_pages();
            let is_over = scanned > nr_pages.saturating_mul(MAX_ROUNDS)
                || batch.is_in_vain(scanned, nr_pages);
            let has_aged = lists.max_seq() > before;
            self.close_lists(cpu, lists);
            if has_aged {
                self.visit_touched(lruvec);
            }
            let is_over = is_over || control.part.is_some();
            if batch.nr_going() > 0 || seen == 0 || is_over || batch.is_noted_full() {
                return;
            }
        }
    }

    /// Who is to give pages in a subtree: the one with the coldest beyond its `low`, or, where no
    /// group has any, beyond its `min`.
    pub(super) fn next_giver(&self, subtree: u32) -> Option<Giver<'_>> {
        let next = |is_low_kept| {
            let reach = Reach {
                is_low_kept,
                ..Reach::of(subtree)
            };
            let failed = Failed::default();
            let chosen = self.coldest_giver(reach, &failed);
            chosen.or_else(|| self.givers(reach, &failed).next())
        };
        next(true).or_else(|| self.groups.is_protected().then(|| next(false))?)
    }

    /// Chooses who gives, among 16 groups that come next, those that gave last, and those of some
    /// frames at random; `None` where none of them may, but perhaps others.
    ///
    /// Lruvecs whose policies tell classes apart are compared by them; others give in proportion to
    /// their size.
    fn coldest_giver(&self, reach: Reach, failed: &Failed<'_>) -> Option<Giver<'_>> {
        let turn = mixed(self.turn.fetch_add(1, Ordering::Relaxed));
        let mut candidates = Candidates::default();
        let mut nr_groups = 0;
        for (id, group) in self.groups.walk(reach.subtree, NR_WALKED) {
            nr_groups += 1;
            let mut is_needed = group.has_walked_children();
            for (id, lruvec) in self.lruvecs_of(group) {
                let has_pages = lruvec.nr_frames() > 0;
                is_needed |= has_pages;
                if has_pages && self.may_give(lruvec, reach, failed) {
                    candidates.push((id, lruvec));
                }
            }
            if !is_needed && group.is_walked() {
                self.take_off_walk(id, group);
            }
        }
        candidates.nr_walked = candidates.len;
        if nr_groups == NR_WALKED {
            let gave_last = self.groups.givers(reach.subtree).map(|id| {
                let lruvec = self.lruvecs.get(id)?;
                let is_ours = self.groups.is_in(lruvec.group(), reach.subtree);
                is_ours.then_some((id, lruvec))
            });
            let sampled = (0..NR_SAMPLED).map(|at| self.sample(mixed(turn ^ at), reach.subtree));
            gave_last
                .into_iter()
                .chain(sampled)
                .flatten()
                .filter(|&(_, lruvec)| lruvec.nr_frames() > 0)
                .filter(|&(_, lruvec)| self.may_give(lruvec, reach, failed))
                .for_each(|lruvec| candidates.push(lruvec));
        }
        let any = candidates.by_size(|_| true, turn).or_else(|| {
            // None on the walk: one of the others.
            let others = candidates.iter().map(|(_, lruvec)| lruvec);
            // Those of frames at random come last.
            others.last()
        })?;
        if !any.has_classes() {
            return Some(Giver::new(any, None, reach));
        }
        let compared = candidates.iter().filter(|(_, lruvec)| lruvec.has_classes());
        let members = compared.flat_map(|(id, lruvec)| lruvec.members((id, lruvec)));
        let mut present = members.clone().filter(|one| one.coldness.nr_frames() > 0);
        if let (Some(only), None) = (present.next(), present.next()) {
            return Some(Giver::new(only.key.1, None, reach));
        }
        let now = self.page_ins.load(Ordering::Relaxed);
        let (chosen, part) = choose(members, candidates.surplus(), (now, self.swappiness(reach)))?;
        let (id, lruvec) = chosen.key;
        if nr_groups == NR_WALKED {
            self.groups
                .set_giver(reach.subtree, part.class as usize, id);
        }
        Some(Giver::new(lruvec, Some(part), reach))
    }

    /// Takes a group off the walks, if it has no page and none on them is below it.
    #[cold]
    fn take_off_walk(&self, id: u32, group: &Group) {
        self.groups.leave_walk(id, || {
            let mut lruvecs = self.lruvecs_of(group);
            lruvecs.all(|(_, lruvec)| lruvec.lock().is_empty())
        });
    }

    /// Whether pages of a lruvec that has some may be taken.
    fn may_give(&self, lruvec: &LruvecRecord, reach: Reach, failed: &Failed<'_>) -> bool {
        let mut failed = failed.iter().flatten();
        !failed.any(|failed| core::ptr::eq(*failed, lruvec))
            && reach.nodes.has(lruvec.node())
            && self.spare(lruvec.group(), reach.subtree, reach.is_low_kept) > 0
    }

    /// The lruvec that lists a frame picked at random, where it is one of the subtree's: each one
    /// in proportion to its size.
    fn sample(&self, random: u64, subtree: u32) -> Option<(u32, &LruvecRecord)> {
        let number = random.checked_rem(u64::from(self.frames.len()))?;
        let frame = Frame::new(u32::try_from(number).expect("below the number of frames"));
        if self.frames.word(frame).generation() == 0 {
            return None;
        }
        let id = self.frames.group(frame);
        let group = self.groups.get(id)?;
        let is_ours = subtree == self.groups.root() || self.groups.is_in(id, subtree);
        let node = self.zones.node_of(&self.frames, frame);
        let mut lruvecs = self.lruvecs_of(group);
        lruvecs.find(|(_, lruvec)| is_ours && lruvec.node() == node)
    }

    /// Every other lruvec in reach with pages on its lists and more than is left to its group,
    /// beginning with one at random. O(groups).
    fn givers<'a>(
        &'a self,
        reach: Reach,
        failed: &Failed<'a>,
    ) -> impl Iterator<Item = Giver<'a>> + use<'a> {
        let failed = *failed;
        let turn = usize::try_from(self.turn.fetch_add(1, Ordering::Relaxed)).unwrap_or(0);
        let all = move || {
            self.groups
                .subtree(reach.subtree)
                .filter(|(_, group)| group.lruvec() != 0)
                .flat_map(move |(_, group)| self.lruvecs_of(group))
                .filter(|(_, lruvec)| lruvec.nr_frames() > 0)
                .filter(move |(_, lruvec)| self.may_give(lruvec, reach, &failed))
                .map(move |(_, lruvec)| Giver::new(lruvec, None, reach))
        };
        let before = turn.checked_rem(all().count()).unwrap_or(0);
        all().skip(before).chain(all().take(before))
    }

    /// How a group's pages are replaced.
    #[must_use]
    pub fn policy(&self, group: u32) -> Policy {
        let number = self.groups.get(group).map_or(0, Group::policy);
        let policy = Policy::ALL.get(usize::from(number));
        *policy.expect("only numbers of policies are stored")
    }

    /// Sets how the pages of a group and of its future children are replaced. Returns whether that
    /// was possible: not once it had a page of a file.
    #[must_use]
    pub fn set_policy(&self, group: u32, policy: Policy) -> bool {
        self.groups.set_replacement(group, policy.number())
    }

    /// The lruvecs of a group, one for each node that it had pages on.
    pub(super) fn lruvecs_of(&self, group: &Group) -> impl Iterator<Item = (u32, &LruvecRecord)> {
        let named = |id| Some((id, self.lruvecs.get(id)?));
        core::iter::successors(named(group.lruvec()), move |(_, lruvec)| {
            named(lruvec.next())
        })
    }

    /// The lruvec that lists the page in a frame, once it came in.
    pub(super) fn lruvec_at(&self, frame: Frame) -> Option<&LruvecRecord> {
        let group = self.groups.get(self.frames.group(frame))?;
        let node = self.zones.node_of(&self.frames, frame);
        self.lruvec_from(group.lruvec(), node)
    }

    /// The lruvec on a node, of those of a group whose first one has this id.
    #[inline]
    pub(super) fn lruvec_from(&self, first: u32, node: Node) -> Option<&LruvecRecord> {
        let mut lruvec = self.lruvecs.get(first)?;
        while lruvec.node() != node {
            lruvec = self.lruvecs.get(lruvec.next())?;
        }
        Some(lruvec)
    }

    /// The lruvec of a group on the node of a frame, made at its first page there.
    ///
    /// # Errors
    /// [`AllocError`] where the budget or the allocator refuses the record.
    pub(super) fn have_lruvec(
        &self,
        here: Here<'_>,
        (id, group): (u32, &Group),
        frame: Frame,
    ) -> Result<&LruvecRecord, AllocError> {
        let node = self.zones.node_of(&self.frames, frame);
        loop {
            let first = group.lruvec();
            if let Some(lruvec) = self.lruvec_from(first, node) {
                return Ok(lruvec);
            }
            let policy = self.policy(id);
            let make = || {
                self.groups.have_reclaim_counts(here.cpu, id)?;
                let charge = |bytes: usize| self.groups.charge_records(here.cpu, bytes).is_ok();
                let set_up = |_, lruvec: &LruvecRecord| lruvec.reset(policy, (id, node), first);
                self.lruvecs.insert(charge, set_up)
            };
            let made = self.make_record(here, make, |_| true);
            let made = made.map_err(|_| AllocError::NoMetadata)?;
            let made_for = (made, policy.number());
            match self.groups.add_lruvec(group, made_for, first) {
                // Whoever takes the group off the walks from here on looks at this one, too.
                true => self.groups.join_walk(id),
                false => self.lruvecs.remove(made),
            }
        }
    }

    /// The moment at which frames come in, which it counts.
    pub(super) fn page_in_moment(&self, nr_frames: u32) -> Moment {
        Moment {
            page_ins: self.page_ins.fetch_add(nr_frames.into(), Ordering::Relaxed),
            capacity: self.content_pages(),
            ns: self.zones.now(),
        }
    }
}
