//! Charging: every level or none, by way of the CPU's stock.

use super::record::{Count, Event, Group, Limit};
use super::{MAX_DEPTH, OverLimit, StockLine, Tree};
use crate::sync::Ordering;
use crate::units::{Cpu, PAGE_BYTES};

/// What a charge found on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charged {
    /// Room.
    Within,
    /// Room, but a level is now above its `high`: the charger reclaims there and is slowed down.
    OverHigh,
}

impl Tree {
    /// Charges `nr_pages` to a group and all its ancestors, or to none of them.
    ///
    /// Cost: one read-modify-write where the CPU's stock has the pages; else one for each level,
    /// for a batch. At the limit the subtree's stocks are drained before the charge is refused, so
    /// single-threaded it is refused only where the live charges leave no room.
    ///
    /// # Errors
    /// [`OverLimit`] with the level that refused; every counter is as it was.
    #[inline]
    pub fn charge(&self, cpu: Cpu, id: u32, nr_pages: u32) -> Result<Charged, OverLimit> {
        let batch = self.live(id).batch.load(Ordering::Relaxed);
        if nr_pages < batch && self.stocks.of(cpu).consume(id, nr_pages) {
            return Ok(Charged::Within);
        }
        self.charge_past_stock(cpu, id, nr_pages, batch)
    }

    #[cold]
    #[inline(never)]
    fn charge_past_stock(
        &self,
        cpu: Cpu,
        id: u32,
        nr_pages: u32,
        batch: u32,
    ) -> Result<Charged, OverLimit> {
        if nr_pages < batch
            && let Ok(charged) = self.charge_counters(id, batch)
        {
            if let Some(surplus) = self.stocks.of(cpu).refill(id, batch - nr_pages, batch) {
                self.uncharge_counters(surplus.group, surplus.nr_pages);
            }
            self.drain_if_exact(self.live(id), id);
            return Ok(charged);
        }
        // Each level that refuses is drained once: an outer one may refuse for its own stocks.
        let mut drained = None;
        for _ in 0..=MAX_DEPTH {
            let over = match self.charge_counters(id, nr_pages) {
                Ok(charged) => return Ok(charged),
                Err(over) => over,
            };
            if drained == Some(over.group) {
                break;
            }
            self.drain(over.group);
            drained = Some(over.group);
        }
        let charged = self.charge_counters(id, nr_pages);
        charged.inspect_err(|over| self.count_event(over.group, Event::Max))
    }

    /// Charges `nr_pages` at every level whatever the limits say, for what cannot fail. Counted in
    /// [`Count::Pgforced`] where a limit was in the way.
    pub fn charge_forced(&self, cpu: Cpu, id: u32, nr_pages: u32) {
        if self.charge(cpu, id, nr_pages).is_ok() {
            return;
        }
        for (_, group) in self.path(id) {
            group.add_forced(u64::from(nr_pages));
            self.tell_claims(group);
        }
        self.live(id)
            .add_count(Count::Pgforced, u64::from(nr_pages));
    }

    /// Gives back what [`Tree::charge`] took, into the CPU's stock as far as that keeps it.
    #[inline]
    pub fn uncharge(&self, cpu: Cpu, id: u32, nr_pages: u32) {
        let group = self.live(id);
        let batch = group.batch.load(Ordering::Relaxed);
        // What a group over its limit gives back must not serve a new charge from the stock.
        let is_over = || self.is_over(group);
        if nr_pages > batch || is_over() {
            return self.uncharge_counters(id, nr_pages);
        }
        if let Some(surplus) = self.stocks.of(cpu).refill(id, nr_pages, batch) {
            self.uncharge_counters(surplus.group, surplus.nr_pages);
        }
        self.drain_if_exact(group, id);
    }

    /// Whether the group or one of its ancestors is over its limit.
    #[inline]
    fn is_over(&self, group: &Group) -> bool {
        let mut level = group;
        while level.usage() <= level.max() {
            match self.get(level.parent()) {
                Some(above) => level = above,
                None => return false,
            }
        }
        true
    }

    /// After a refill: a limit that shrank meanwhile, or a dead group, keeps nothing in a stock.
    ///
    /// The record is the group's as long as the stock has what was refilled; afterwards there is
    /// nothing to drain, whatever the record says.
    #[inline]
    fn drain_if_exact(&self, group: &Group, id: u32) {
        // Ordered by `StockLine::publish`: this sees the batch of 0, or the drain the refill.
        if group.batch.load(Ordering::Relaxed) == 0 {
            self.drain(id);
        }
    }

    /// Charges core's own records to the root, in whole pages.
    ///
    /// # Errors
    /// [`OverLimit`] where the budget has no room.
    pub fn charge_bytes(&self, cpu: Cpu, bytes: usize) -> Result<(), OverLimit> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let nr_pages = u32::try_from(pages).map_err(|_| OverLimit { group: self.root })?;
        self.charge(cpu, self.root, nr_pages)?;
        self.nr_record_pages.fetch_add(nr_pages, Ordering::Relaxed);
        Ok(())
    }

    /// Pages that [`Tree::charge_bytes`] charged so far.
    #[must_use]
    pub fn nr_record_pages(&self) -> u32 {
        self.nr_record_pages.load(Ordering::Relaxed)
    }

    fn charge_counters(&self, id: u32, nr_pages: u32) -> Result<Charged, OverLimit> {
        let mut charged = Charged::Within;
        for (level, group) in self.path(id) {
            let Some(usage) = group.try_add(u64::from(nr_pages)) else {
                let visited = self.path(id).take_while(|&(below, _)| below != level);
                visited.for_each(|(_, group)| self.sub(group, nr_pages));
                return Err(OverLimit { group: level });
            };
            if usage > group.limit(Limit::High) {
                charged = Charged::OverHigh;
            }
            self.tell_claims(group);
        }
        Ok(charged)
    }

    fn uncharge_counters(&self, id: u32, nr_pages: u32) {
        self.path(id)
            .for_each(|(_, group)| self.sub(group, nr_pages));
    }

    fn sub(&self, group: &Group, nr_pages: u32) {
        group.sub(u64::from(nr_pages));
        self.tell_claims(group);
    }

    /// Returns the stocks of a subtree to the counters, from any thread, before it returns.
    ///
    /// One exchange for each slot that holds pages of the subtree, none for the others.
    pub fn drain(&self, subtree: u32) {
        for line in self.stocks.iter() {
            line.drain(
                |group| self.is_in(group, subtree),
                |surplus| self.uncharge_counters(surplus.group, surplus.nr_pages),
            );
        }
    }

    /// Pages in the stocks of a subtree.
    #[must_use]
    pub fn stocked(&self, subtree: u32) -> u32 {
        self.stocks
            .iter()
            .map(|line: &StockLine| line.held(|group| self.is_in(group, subtree)))
            .sum()
    }
}
