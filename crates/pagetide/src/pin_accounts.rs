//! The accounts of pinned pages: pure state, whose owner keeps the lock and wakes.
//!
//! ```text
//!   Page -> Account { levels, slots }      one for each permit, one for each group's plain pins
//!                        |
//!   Accounts:          levels   web (max 8, used 6) -> root (max 64, used 20)
//!                      waiters  in order of arrival, each with what it holds and needs
//! ```
//!
//! Who gets what comes back: those who hold a permit and want more, before those who hold nothing,
//! because others may wait for them; each of the two in order of arrival. A large request keeps
//! what comes back to its group from going to later ones. Only who needs what others who wait hold
//! is passed over; [`claims::is_stuck`] has seen to it that they can go.

use crate::claims::{self, Claim};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

/// One setting of a group's pin budget, from its first `max` until that is lifted.
pub(crate) type LevelId = u64;

/// Who pinned: says where to give the pages back.
#[derive(Debug)]
pub(crate) struct Account {
    levels: Arc<[LevelId]>,
    /// Pages that the permit has left, and [`CLOSED`].
    slots: AtomicU64,
}

/// The permit is gone, or never was: pages go back to the levels.
const CLOSED: u64 = 1 << 63;

impl Account {
    fn new(levels: Arc<[LevelId]>, slots: u64) -> Account {
        Account {
            levels,
            slots: AtomicU64::new(slots),
        }
    }

    /// A permit's account, with `nr_pages` taken from its levels.
    pub(crate) fn of_permit(levels: Arc<[LevelId]>, nr_pages: u64) -> Account {
        assert!(nr_pages < CLOSED, "no limit is that large");
        Account::new(levels, nr_pages)
    }

    pub(crate) fn levels(&self) -> &Arc<[LevelId]> {
        &self.levels
    }

    /// Takes slots of the permit. One compare-and-swap.
    ///
    /// # Errors
    /// The number of slots that are left, if too few.
    pub(crate) fn take(&self, nr_pages: u64) -> Result<(), u64> {
        // Pairs with the Release in `put`: the pin that came back is gone.
        let taken = self
            .slots
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |slots| {
                slots.checked_sub(nr_pages)
            });
        taken.map(drop)
    }

    /// Gives slots back; `false` where the permit is gone and the levels have to get them.
    pub(crate) fn put(&self, nr_pages: u64) -> bool {
        // Pairs with the Acquire in `take`.
        let put = self
            .slots
            .fetch_update(Ordering::Release, Ordering::Relaxed, |slots| {
                (slots < CLOSED).then_some(slots + nr_pages)
            });
        put.is_ok()
    }

    /// Ends the permit; returns the slots that were left, which the levels have to get.
    pub(crate) fn close(&self) -> u64 {
        let left = self.slots.swap(CLOSED, Ordering::Acquire);
        assert!(left < CLOSED, "a permit ends once");
        left
    }
}

#[derive(Debug)]
struct Level {
    group: u32,
    max: u64,
    used: u64,
}

/// Why pages were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The group whose budget it is.
    pub(crate) group: u32,
    /// Pages asked for.
    pub(crate) asked: u64,
    /// Pages that count there, and its limit.
    pub(crate) used: u64,
    pub(crate) max: u64,
    /// Pages that others wait for.
    pub(crate) awaited: u64,
    /// Pages held by those who wait for the budget, if only they could end the wait.
    pub(crate) held_by_waiters: Option<u64>,
}

/// What became of a ticket by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expired {
    /// It was answered in time.
    Answered(Result<(), Refused>),
    /// It was not, for want of room at this level.
    TooLate(Refused),
}

struct Waiter {
    levels: Arc<[LevelId]>,
    held: u64,
    need: u64,
    waker: Option<Waker>,
    outcome: Option<Result<(), Refused>>,
}

impl Waiter {
    fn claim(&self) -> Claim<'_, LevelId> {
        Claim {
            levels: &self.levels,
            held: self.held,
            need: self.need,
        }
    }
}

/// Who might be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidate {
    /// By ticket.
    Waiter(u64),
    /// Whoever asks just now.
    Newest,
}

/// All pin budgets of a memory.
#[derive(Default)]
pub(crate) struct Accounts {
    levels: FxHashMap<LevelId, Level>,
    of_group: FxHashMap<u32, LevelId>,
    /// Accounts of plain pins by group, made as needed; forgotten when a level comes or goes.
    plain: FxHashMap<u32, Arc<Account>>,
    /// By ticket, which is the order of arrival.
    waiters: BTreeMap<u64, Waiter>,
    last_id: u64,
}

/// Whom to wake, once the lock is let go.
pub(crate) type Wakers = Vec<Waker>;

impl Accounts {
    /// Sets the budget of a group in pages, or lifts it. Who waits and can no longer be served is
    /// refused.
    pub(crate) fn set_max(&mut self, group: u32, max: Option<u64>) -> Wakers {
        match (self.of_group.get(&group).copied(), max) {
            (Some(id), Some(max)) => {
                self.levels.get_mut(&id).expect("named by its group").max = max;
            }
            (Some(id), None) => {
                self.levels.remove(&id);
                self.of_group.remove(&group);
                self.plain.clear();
            }
            (None, Some(max)) => {
                let id = self.next_id();
                let used = 0;
                self.levels.insert(id, Level { group, max, used });
                self.of_group.insert(group, id);
                self.plain.clear();
            }
            (None, None) => {}
        }
        let mut wakers = self.refuse_stuck();
        wakers.extend(self.dispatch());
        wakers
    }

    /// Forgets a group that is gone. What its pages hold of budgets above stays there.
    pub(crate) fn forget(&mut self, group: u32) {
        self.plain.remove(&group);
        if let Some(id) = self.of_group.remove(&group) {
            self.levels.remove(&id);
        }
    }

    /// Pages that count, and the limit of a group that has a budget.
    pub(crate) fn usage(&self, group: u32) -> Option<(u64, u64)> {
        let level = self.levels.get(self.of_group.get(&group)?)?;
        Some((level.used, level.max))
    }

    /// The budgets of these groups, as far as they have one.
    pub(crate) fn levels_of(&self, path: impl Iterator<Item = u32>) -> Arc<[LevelId]> {
        path.filter_map(|group| self.of_group.get(&group).copied())
            .collect()
    }

    /// The account of a group's plain pins.
    pub(crate) fn plain(&mut self, group: u32, path: impl Iterator<Item = u32>) -> Arc<Account> {
        if let Some(account) = self.plain.get(&group) {
            return Arc::clone(account);
        }
        let account = Arc::new(Account::new(self.levels_of(path), CLOSED));
        self.plain.insert(group, Arc::clone(&account));
        account
    }

    /// Takes pages at all levels or at none, without waiting: not past those who wait. Returns whom
    /// to wake: what somebody keeps for a waiter whom these pages pass over may be for another one.
    ///
    /// # Errors
    /// [`Refused`].
    pub(crate) fn try_take(
        &mut self,
        levels: &[LevelId],
        held: u64,
        need: u64,
    ) -> Result<Wakers, Refused> {
        let is_limited = levels.iter().any(|level| self.levels.contains_key(level));
        if need == 0 || !is_limited {
            // Nothing is taken, or the budgets that counted it were lifted.
            return Ok(Wakers::new());
        }
        let candidate = Claim { levels, held, need };
        let has_room = match self.waiters.is_empty() {
            true => self.fits(levels, need),
            false => self.next_served(Some(candidate)) == Some(Candidate::Newest),
        };
        if !has_room {
            return Err(self.refused(levels, need, None));
        }
        self.add(levels, need);
        match self.waiters.is_empty() {
            true => Ok(Wakers::new()),
            false => Ok(self.dispatch()),
        }
    }

    /// Takes pages or queues for them: then there is a ticket, to be polled until it is answered,
    /// or expires.
    ///
    /// # Errors
    /// [`Refused`] where nobody, or only those who wait, could end the wait.
    pub(crate) fn enter(
        &mut self,
        levels: &Arc<[LevelId]>,
        held: u64,
        need: u64,
    ) -> Result<(Option<u64>, Wakers), Refused> {
        let claim = Claim { levels, held, need };
        if claim.is_hopeless(|level| self.max_of(level)) {
            return Err(self.refused(levels, need, None));
        }
        if let Ok(wakers) = self.try_take(levels, held, need) {
            return Ok((None, wakers));
        }
        let mut claims = self.claims();
        claims.push(claim);
        if claims::is_stuck(&claims, |level| self.max_of(level)) {
            return Err(self.refused(levels, need, Some(&claims)));
        }
        let ticket = self.next_id();
        let waiter = Waiter {
            levels: Arc::clone(levels),
            held,
            need,
            waker: None,
            outcome: None,
        };
        self.waiters.insert(ticket, waiter);
        // Somebody may be passed over from now on, because what he needs is held by this one.
        Ok((Some(ticket), self.dispatch()))
    }

    /// What became of a ticket, which is used up by an answer. Returns a waker to drop without the
    /// lock, too.
    pub(crate) fn poll(
        &mut self,
        ticket: u64,
        waker: Waker,
    ) -> (Poll<Result<(), Refused>>, Option<Waker>) {
        let waiter = self.waiters.get_mut(&ticket).expect("not answered yet");
        let old = waiter.waker.replace(waker);
        match waiter.outcome {
            None => (Poll::Pending, old),
            Some(outcome) => {
                self.waiters.remove(&ticket);
                (Poll::Ready(outcome), old)
            }
        }
    }

    /// Gives up a ticket whose deadline has come, unless it was answered just now.
    pub(crate) fn expire(&mut self, ticket: u64) -> (Expired, Wakers) {
        let waiter = self.waiters.remove(&ticket).expect("not answered yet");
        if let Some(answer) = waiter.outcome {
            return (Expired::Answered(answer), Wakers::new());
        }
        let refused = self.refused(&waiter.levels, waiter.need, None);
        (Expired::TooLate(refused), self.dispatch())
    }

    /// Gives pages back at all levels.
    pub(crate) fn give_back(&mut self, levels: &[LevelId], nr_pages: u64) -> Wakers {
        self.sub(levels, nr_pages);
        if self.waiters.is_empty() {
            return Wakers::new();
        }
        self.dispatch()
    }

    /// The first of these levels that has no room for pages, said as a refusal.
    fn refused(
        &self,
        levels: &[LevelId],
        asked: u64,
        claims: Option<&[Claim<'_, LevelId>]>,
    ) -> Refused {
        let known = || {
            levels
                .iter()
                .filter_map(|id| Some((*id, self.levels.get(id)?)))
        };
        let held = |id| claims.map_or(0, |claims| claims::held_at(claims, id));
        let is_full = |(id, level): &(LevelId, &Level)| match claims {
            Some(_) => held(*id).saturating_add(asked) > level.max,
            None => level.used.saturating_add(asked) > level.max,
        };
        let found = known().find(is_full).or_else(|| known().next());
        let (id, level) = found.expect("without a budget nothing is refused");
        Refused {
            group: level.group,
            asked,
            used: level.used,
            max: level.max,
            awaited: self.awaited(id),
            held_by_waiters: claims.map(|_| held(id)),
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn max_of(&self, level: LevelId) -> u64 {
        self.levels.get(&level).map_or(u64::MAX, |level| level.max)
    }

    fn fits(&self, levels: &[LevelId], need: u64) -> bool {
        let mut known = levels.iter().filter_map(|id| self.levels.get(id));
        known.all(|level| level.used.saturating_add(need) <= level.max)
    }

    fn add(&mut self, levels: &[LevelId], nr_pages: u64) {
        for id in levels {
            if let Some(level) = self.levels.get_mut(id) {
                level.used += nr_pages;
            }
        }
    }

    fn sub(&mut self, levels: &[LevelId], nr_pages: u64) {
        for id in levels {
            if let Some(level) = self.levels.get_mut(id) {
                let left = level.used.checked_sub(nr_pages);
                level.used = left.expect("what is given back was taken at this level");
            }
        }
    }

    fn waiting(&self) -> impl Iterator<Item = (u64, &Waiter)> {
        let waiters = self
            .waiters
            .iter()
            .map(|(ticket, waiter)| (*ticket, waiter));
        waiters.filter(|(_, waiter)| waiter.outcome.is_none())
    }

    fn awaited(&self, level: LevelId) -> u64 {
        let there = self
            .waiting()
            .filter(|(_, waiter)| waiter.levels.contains(&level));
        there.map(|(_, waiter)| waiter.need).sum()
    }

    /// The claims of those who wait and hold something: nobody waits for the others.
    fn claims(&self) -> Vec<Claim<'_, LevelId>> {
        let holders = self.waiting().filter(|(_, waiter)| waiter.held > 0);
        holders.map(|(_, waiter)| waiter.claim()).collect()
    }

    /// Whether others who wait would have to give something back before this one can go.
    fn waits_for_waiters(&self, claims: &[Claim<'_, LevelId>], claim: &Claim<'_, LevelId>) -> bool {
        let mut levels = claim.levels.iter();
        levels.any(|&level| {
            claims::held_at(claims, level).saturating_add(claim.need) > self.max_of(level)
        })
    }

    /// Who is served next, if anybody can be; `newest` has come last and does not wait.
    /// O(waiters * holders among them).
    ///
    /// The first who finds a level full keeps all who come later from that level, and at his other
    /// levels keeps what he needs: a group that is full keeps other groups from no more than that.
    fn next_served(&self, newest: Option<Claim<'_, LevelId>>) -> Option<Candidate> {
        let claims = self.claims();
        let waiting = self
            .waiting()
            .map(|(ticket, waiter)| (Candidate::Waiter(ticket), waiter.claim()));
        let all: Vec<_> = waiting
            .chain(newest.map(|claim| (Candidate::Newest, claim)))
            .collect();
        let (holders, newcomers): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, claim)| claim.held > 0);
        let mut full: Vec<LevelId> = Vec::new();
        let mut kept: FxHashMap<LevelId, u64> = FxHashMap::default();
        for (candidate, claim) in holders.into_iter().chain(newcomers) {
            if claim.levels.iter().any(|level| full.contains(level)) {
                continue;
            }
            let is_full = |&id: &LevelId| {
                let kept = kept.get(&id).copied().unwrap_or(0);
                let used = self.levels.get(&id).map_or(0, |level| level.used);
                used.saturating_add(kept).saturating_add(claim.need) > self.max_of(id)
            };
            let (without_room, with_room): (Vec<LevelId>, Vec<LevelId>) =
                claim.levels.iter().partition(|id| is_full(id));
            if without_room.is_empty() {
                return Some(candidate);
            }
            if self.waits_for_waiters(&claims, &claim) {
                continue;
            }
            full.extend(without_room);
            for id in with_room {
                *kept.entry(id).or_default() += claim.need;
            }
        }
        None
    }

    fn dispatch(&mut self) -> Wakers {
        let mut wakers = Wakers::new();
        while let Some(Candidate::Waiter(ticket)) = self.next_served(None) {
            let waiter = &self.waiters[&ticket];
            let (levels, need) = (Arc::clone(&waiter.levels), waiter.need);
            self.add(&levels, need);
            wakers.extend(self.answer(ticket, Ok(())));
        }
        wakers
    }

    /// Refuses those whom a lowered limit leaves without hope: of several, the later ones.
    fn refuse_stuck(&mut self) -> Wakers {
        let mut wakers = Wakers::new();
        let tickets: Vec<u64> = self.waiting().map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            let earlier = self.waiting().take_while(|&(other, _)| other <= ticket);
            let claims: Vec<Claim<'_, LevelId>> = earlier.map(|(_, w)| w.claim()).collect();
            if !claims::is_stuck(&claims, |level| self.max_of(level)) {
                continue;
            }
            let Some(claim) = claims.last() else { continue };
            let is_hopeless = claim.is_hopeless(|level| self.max_of(level));
            let others = (!is_hopeless).then_some(&claims[..]);
            let refused = self.refused(claim.levels, claim.need, others);
            wakers.extend(self.answer(ticket, Err(refused)));
        }
        wakers
    }

    fn answer(&mut self, ticket: u64, outcome: Result<(), Refused>) -> Option<Waker> {
        let waiter = self.waiters.get_mut(&ticket).expect("it waits");
        waiter.outcome = Some(outcome);
        waiter.waker.take()
    }
}

#[cfg(test)]
mod tests;
