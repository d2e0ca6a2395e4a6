//! Who waits for memory: in the order of arrival, and by the limits that refused them.
//!
//! Whoever gives memory back looks for those who may ask now, so that takes no longer where many
//! wait: under each limit only up to the first who is in time, and all who may hold something.

use super::TURN;
use crate::PAGE_BYTES;
use crate::claims::{self, Claim};
use pagetide_core::group::Tree;
use pagetide_core::memory::Memory as Core;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::thread::{self, ThreadId};
use std::time::Instant;

#[derive(Default)]
pub(super) struct Queue {
    last_ticket: u64,
    /// By ticket, which is the order of arrival.
    pub(super) waiters: BTreeMap<u64, Waiter>,
    /// Limits, each with the tickets of those whom it refused: without those who were late when
    /// [`Queue::take_late`] was called.
    under: BTreeSet<(u32, u64)>,
    /// The same of those who may hold something.
    holders: BTreeSet<(u32, u64)>,
    /// By when housekeeping looks again by itself; `None`: for nobody here.
    pub(super) next_tick: Option<Instant>,
}

/// What somebody waits for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The group that asks.
    pub(super) group: u32,
    /// Bytes asked for.
    pub(super) nr_bytes: u64,
    /// Bytes charged to the group that the asker keeps while it waits. Others may give some back
    /// meanwhile, and wait for more of the same.
    pub(super) holds: Option<Arc<AtomicU64>>,
    pub(super) deadline: Instant,
    /// Nothing but a waker runs it: housekeeping wakes it by the deadline.
    pub(super) is_driven: bool,
}

impl Wanted {
    /// Bytes that the asker keeps just now. No pages: many that are smaller share some.
    pub(super) fn held_bytes(&self) -> u64 {
        let held = self.holds.as_ref();
        held.map_or(0, |held| held.load(Ordering::Relaxed))
    }

    /// Pages asked for beyond those that the asker keeps: one at least, as others may have the rest
    /// of his last one.
    pub(super) fn nr_pages(&self) -> u64 {
        let held = self.held_bytes();
        let total = held.saturating_add(self.nr_bytes);
        (pages_of(total) - pages_of(held)).max(1)
    }

    /// Whether its deadline has come: the asker waits for nothing, also where his future is kept.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline <= now
    }
}

pub(super) fn pages_of(nr_bytes: u64) -> u64 {
    nr_bytes.div_ceil(PAGE_BYTES as u64)
}

pub(super) struct Waiter {
    pub(super) wanted: Wanted,
    /// The group whose limit refused it.
    pub(super) level: u32,
    /// `None` once woken, until it is polled again.
    pub(super) waker: Option<Waker>,
    /// When it was woken, until then.
    pub(super) woken: Option<Instant>,
    /// The thread that asks for it just now. What that gives back meanwhile it had taken itself.
    pub(super) asker: Option<ThreadId>,
}

impl Waiter {
    /// Whether those who come later let it ask first.
    pub(super) fn is_ahead(&self, now: Instant) -> bool {
        let has_turn = self.woken.is_none_or(|woken| now < woken + TURN);
        !self.wanted.is_late(now) && has_turn
    }

    /// To wake it, if it was not woken, and asks not on this very thread.
    pub(super) fn take_waker(&mut self, now: Instant) -> Option<Waker> {
        if self
            .asker
            .is_some_and(|asker| asker == thread::current().id())
        {
            return None;
        }
        let waker = self.waker.take()?;
        self.woken = Some(now);
        Some(waker)
    }
}

impl Queue {
    /// Queues somebody whom a limit refused; returns his ticket.
    pub(super) fn enter(&mut self, wanted: Wanted, level: u32) -> u64 {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        self.under.insert((level, ticket));
        if wanted.holds.is_some() {
            self.holders.insert((level, ticket));
        }
        let waiter = Waiter {
            wanted,
            level,
            waker: None,
            woken: None,
            asker: None,
        };
        self.waiters.insert(ticket, waiter);
        ticket
    }

    /// Another limit refused him.
    pub(super) fn go_over(&mut self, ticket: u64, level: u32) {
        let waiter = self.waiters.get_mut(&ticket);
        let waiter = waiter.expect("a ticket is in the queue");
        self.under.remove(&(waiter.level, ticket));
        self.under.insert((level, ticket));
        if self.holders.remove(&(waiter.level, ticket)) {
            self.holders.insert((level, ticket));
        }
        waiter.level = level;
    }

    pub(super) fn leave(&mut self, ticket: u64) -> Option<Waiter> {
        let left = self.waiters.remove(&ticket)?;
        self.under.remove(&(left.level, ticket));
        self.holders.remove(&(left.level, ticket));
        if self.waiters.is_empty() {
            // It does not look while nobody is here.
            self.next_tick = None;
        }
        Some(left)
    }

    /// Whether housekeeping has to be told that somebody wants a look by then. It is told once for
    /// all who come before it looks: each look lets the firsts ask again.
    pub(super) fn wants_tick(&mut self, by: Instant, now: Instant) -> bool {
        let is_asleep = self.next_tick.is_none_or(|next| by < next);
        if is_asleep {
            self.next_tick = Some(now);
        }
        is_asleep
    }

    /// The limits that somebody waits for.
    fn levels(&self) -> impl Iterator<Item = u32> {
        let first_from = |from: (u32, u64)| self.under.range(from..).next();
        let next = move |&(level, _): &(u32, u64)| first_from((level.checked_add(1)?, 0)).copied();
        let all = iter::successors(first_from((0, 0)).copied(), next);
        all.map(|(level, _)| level)
    }

    /// Those under a limit, in the order of arrival.
    fn at(&self, level: u32) -> impl Iterator<Item = (u64, &Waiter)> {
        let there = self.under.range((level, 0)..=(level, u64::MAX));
        there.map(|&(_, ticket)| {
            #[cfg(test)]
            tests::count_look();
            (ticket, &self.waiters[&ticket])
        })
    }

    /// The first under a limit whom others let ask before them.
    fn first_at(&self, level: u32, now: Instant) -> Option<u64> {
        let mut there = self.at(level);
        let first = there.find(|(_, waiter)| waiter.is_ahead(now));
        first.map(|(ticket, _)| ticket)
    }

    /// Takes the wakers of all who may ask now.
    pub(super) fn wake_all(&mut self, groups: &Tree, now: Instant) -> Vec<Waker> {
        let levels = self.levels().collect();
        self.wake_at(groups, now, levels)
    }

    /// The same of those for whom memory of a group came back.
    pub(super) fn wake_above(&mut self, groups: &Tree, now: Instant, freed: u32) -> Vec<Waker> {
        let levels = groups.path(freed).map(|(level, _)| level).collect();
        self.wake_at(groups, now, levels)
    }

    /// The same of those who may have been behind one who left.
    pub(super) fn wake_behind(&mut self, groups: &Tree, now: Instant, left: &Waiter) -> Vec<Waker> {
        let path = groups.path(left.wanted.group).map(|(level, _)| level);
        let mut levels: Vec<u32> = path.collect();
        // None is below a limit of a group without children, though many wait for others.
        if groups.subtree(left.level).nth(1).is_some() {
            let below = |&level: &u32| groups.is_in(level, left.level);
            levels.extend(self.levels().filter(below));
        }
        self.wake_at(groups, now, levels)
    }

    /// Takes the wakers of those under these limits who may ask now: who hold something, because
    /// others may wait for that; and who have nobody ahead that is still in time, has not missed
    /// his turn and waits for a limit that is theirs, too.
    fn wake_at(&mut self, groups: &Tree, now: Instant, mut levels: Vec<u32>) -> Vec<Waker> {
        levels.sort_unstable();
        levels.dedup();
        let mut firsts = BTreeSet::new();
        let mut known = FxHashMap::default();
        let mut first_at = |level| {
            let entry = known.entry(level);
            *entry.or_insert_with(|| self.first_at(level, now))
        };
        for &level in &levels {
            // Who comes behind the first that is in time waits for him.
            let first = first_at(level).unwrap_or(u64::MAX);
            let until_first = self.at(level).take_while(|&(ticket, _)| ticket <= first);
            let may_ask = until_first.filter(|&(ticket, waiter)| {
                let mut path = groups.path(waiter.wanted.group);
                path.all(|(level, _)| first_at(level).is_none_or(|first| first >= ticket))
            });
            firsts.extend(may_ask.map(|(ticket, _)| ticket));
            let holders = self.holders.range((level, 0)..=(level, u64::MAX));
            let holders = holders.map(|&(_, ticket)| ticket);
            let holds = |ticket: &u64| self.waiters[ticket].wanted.held_bytes() > 0;
            firsts.extend(holders.filter(holds));
        }
        let wakers = firsts.iter().filter_map(|ticket| {
            let waiter = self.waiters.get_mut(ticket);
            waiter.and_then(|waiter| waiter.take_waker(now))
        });
        wakers.collect()
    }

    /// Takes the wakers of those whose deadline has come, who stand in nobody's way any more.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<Waker> {
        let Queue { waiters, under, .. } = self;
        let late = waiters
            .iter_mut()
            .filter(|(_, waiter)| waiter.wanted.is_late(now));
        let wakers = late.filter_map(|(&ticket, waiter)| {
            under.remove(&(waiter.level, ticket));
            waiter.take_waker(now)
        });
        wakers.collect()
    }

    /// The limit under which somebody is ahead of who has this ticket, or comes now.
    pub(super) fn behind(
        &self,
        groups: &Tree,
        now: Instant,
        ticket: Option<u64>,
        wanted: &Wanted,
    ) -> Option<u32> {
        if wanted.held_bytes() > 0 || wanted.nr_bytes == 0 {
            return None;
        }
        let ahead = groups.path(wanted.group).filter_map(|(level, _)| {
            let first = self.first_at(level, now)?;
            ticket
                .is_none_or(|ticket| first < ticket)
                .then_some((first, level))
        });
        ahead.min().map(|(_, level)| level)
    }

    /// What those hold who are late may come back.
    ///
    /// # Errors
    /// The pages that waiters hold under a limit, where only they could end this one's wait.
    pub(super) fn check_stuck(
        &self,
        core: &Core,
        (ticket, wanted): (Option<u64>, &Wanted),
        level: u32,
        now: Instant,
    ) -> Result<(), u64> {
        let room = core.room_under(level).saturating_mul(PAGE_BYTES as u64);
        // As `claims::is_stuck` finds, without a look at all others.
        if wanted.held_bytes() == 0 && wanted.nr_bytes <= room {
            return Ok(());
        }
        let others = self.waiters.iter().filter(|&(&other, waiter)| {
            Some(other) != ticket
                && !waiter.wanted.is_late(now)
                && core.groups().is_in(waiter.wanted.group, level)
        });
        let all = others.map(|(_, waiter)| &waiter.wanted).chain([wanted]);
        let claims = claims_of(all, wanted);
        match claims::is_stuck(&claims, |()| room) {
            true => Err(pages_of(claims::held_at(&claims, ()))),
            false => Ok(()),
        }
    }
}

/// What holders among the waiters have and want, that of `last` last. What several hold together
/// counts once, and comes back as soon as the one of them goes on that wants least.
fn claims_of<'a>(all: impl Iterator<Item = &'a Wanted>, last: &Wanted) -> Vec<Claim<'static, ()>> {
    let claim = |wanted: &Wanted| Claim {
        levels: &[()],
        held: wanted.held_bytes(),
        need: wanted.nr_bytes,
    };
    let mut claims = BTreeMap::new();
    for wanted in all {
        if let Some(holds) = &wanted.holds {
            let of_it = claims.entry(Arc::as_ptr(holds));
            let of_it = of_it.or_insert_with(|| claim(wanted));
            of_it.need = of_it.need.min(wanted.nr_bytes);
        }
    }
    let holds = last.holds.as_ref();
    let of_last = holds.and_then(|holds| claims.remove(&Arc::as_ptr(holds)));
    let others = claims.into_values();
    others.chain([of_last.unwrap_or(claim(last))]).collect()
}

#[cfg(test)]
mod tests;
