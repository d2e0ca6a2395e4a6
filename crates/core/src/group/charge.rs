//! Charging: every level or none, by way of the CPU's stock.

use super::record::{Count, Event, Group, Limit};
use super::stock::{AllLines, Counts, Stocks};
use super::{MAX_DEPTH, Out, OverLimit, Surplus, Tree};
use crate::sync::{Ordering, full_fence};
use crate::units::{Cpu, PAGE_BYTES};

/// What a charge found on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charged {
    /// Room.
    Within,
    /// Room, but a level is now above its `high`: the charger reclaims there and is slowed down,
    /// for so many pages that were charged at every level, those ahead included.
    OverHigh(u32),
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
    #[inline(always)]
    pub fn charge(&self, cpu: Cpu, id: u32, nr_pages: u32) -> Result<Charged, OverLimit> {
        match self.miss(cpu, id, nr_pages) {
            None => Ok(Charged::Within),
            Some(batch) => self.charge_past_stock(cpu, id, (nr_pages, true), batch),
        }
    }

    /// [`Tree::charge`] for what many blocks have together: none is charged ahead for large ones.
    ///
    /// # Errors
    /// As [`Tree::charge`].
    pub fn charge_many(&self, cpu: Cpu, id: u32, nr_pages: u32) -> Result<Charged, OverLimit> {
        match self.miss(cpu, id, nr_pages) {
            None => Ok(Charged::Within),
            Some(batch) => self.charge_past_stock(cpu, id, (nr_pages, false), batch),
        }
    }

    /// Takes pages out of the CPU's stock; the group's batch where it has too few.
    #[inline]
    fn miss(&self, cpu: Cpu, id: u32, nr_pages: u32) -> Option<u32> {
        let batch = self.live(id).batch.load(Ordering::Relaxed);
        let is_hit = nr_pages < batch && self.stocks.consume(cpu, id, nr_pages);
        (!is_hit).then_some(batch)
    }

    #[cold]
    #[inline(never)]
    fn charge_past_stock(
        &self,
        cpu: Cpu,
        id: u32,
        of: (u32, bool),
        batch: u32,
    ) -> Result<Charged, OverLimit> {
        let charged = self.charge_draining(cpu, id, of, batch);
        charged.inspect_err(|over| self.count_event(over.group, Event::Max))
    }

    /// [`Tree::charge`] without counting a refusal.
    pub(crate) fn try_charge(
        &self,
        cpu: Cpu,
        id: u32,
        nr_pages: u32,
    ) -> Result<Charged, OverLimit> {
        match self.miss(cpu, id, nr_pages) {
            None => Ok(Charged::Within),
            Some(batch) => self.charge_draining(cpu, id, (nr_pages, false), batch),
        }
    }

    /// `is_block`: it is for one block.
    fn charge_draining(
        &self,
        cpu: Cpu,
        id: u32,
        (nr_pages, is_block): (u32, bool),
        batch: u32,
    ) -> Result<Charged, OverLimit> {
        self.run_scheduled(cpu);
        if nr_pages < batch {
            let ahead = self.ahead(id, batch);
            // At a limit, pages that wait on another CPU are there for one move.
            if ahead < nr_pages && self.stocks.consume_anywhere(id, nr_pages) {
                return Ok(Charged::Within);
            }
            if ahead > nr_pages
                && self.stocks.takes(cpu, id)
                && let Ok(charged) = self.charge_counters(id, ahead)
            {
                Counts::count(&self.counts.of(cpu).refills);
                self.refill(cpu, id, ahead - nr_pages, batch);
                self.drain_if_exact(cpu, self.live(id), id);
                return Ok(charged);
            }
        } else if let Some(charged) = self.charge_large(cpu, id, nr_pages, is_block) {
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
            self.drain_from(cpu, over.group);
            drained = Some(over.group);
        }
        self.charge_counters(id, nr_pages)
    }

    /// Pages to charge for a stock: a batch, or half of what is left below the nearest limit. Near
    /// a limit each charge would else try a batch in vain first.
    pub(super) fn ahead(&self, id: u32, batch: u32) -> u32 {
        let room = |(_, group): (u32, &Group)| group.max().saturating_sub(group.usage());
        let margin = self.path(id).map(room).min().unwrap_or(0);
        match u32::try_from(margin) {
            Ok(margin) if margin < batch => margin.div_ceil(2),
            _ => batch,
        }
    }

    /// Puts charged pages into the CPU's stock; what does not stay there is uncharged.
    fn refill(&self, cpu: Cpu, id: u32, nr_pages: u32, batch: u32) {
        let out = &mut |out| self.trim(cpu, out);
        self.stocks.refill(cpu, id, nr_pages, batch, out);
    }

    pub(super) fn trim(&self, cpu: Cpu, out: Out) {
        Counts::count(&self.counts.of(cpu).trims);
        self.book(out);
    }

    /// Charges `nr_pages` at every level whatever the limits say, for what cannot fail. Counted in
    /// [`Count::Pgforced`] where a limit was in the way.
    pub fn charge_forced(&self, cpu: Cpu, id: u32, nr_pages: u32) {
        if self.charge_many(cpu, id, nr_pages).is_ok() {
            return;
        }
        for (_, group) in self.path(id) {
            if group.add_forced(u64::from(nr_pages)) > group.max() {
                // Release pairs with the Acquire in `set_batches`, which then sees the usage.
                self.has_over.fetch_add(1, Ordering::Release);
            }
            self.tell_claims(group);
        }
        self.live(id)
            .add_count(Count::Pgforced, u64::from(nr_pages));
    }

    /// Gives back what [`Tree::charge`] took: under `StockKind::Atomic` into the CPU's stock as far
    /// as that keeps it, else to the counters.
    #[inline]
    pub fn uncharge(&self, cpu: Cpu, id: u32, nr_pages: u32) {
        match &self.stocks {
            Stocks::Atomic(lines) => self.put_back(lines, cpu, id, nr_pages),
            _ => self.uncharge_past_stock(cpu, id, nr_pages),
        }
    }

    /// [`Tree::uncharge`] of what many blocks had. None of it is kept for large ones: those who
    /// charge small ones next would not find it.
    pub fn uncharge_many(&self, cpu: Cpu, id: u32, nr_pages: u32) {
        let group = self.live(id);
        let batch = group.batch.load(Ordering::Relaxed);
        match &self.stocks {
            Stocks::Atomic(lines) if nr_pages <= batch => {
                self.put_small(lines, cpu, (id, group), (nr_pages, batch));
            }
            _ => self.uncharge_past_stock(cpu, id, nr_pages),
        }
    }

    #[inline(never)]
    fn uncharge_past_stock(&self, cpu: Cpu, id: u32, nr_pages: u32) {
        self.run_scheduled(cpu);
        self.uncharge_counters(id, nr_pages);
    }

    /// Gives charged pages back into the CPU's stock as far as that keeps them.
    #[inline]
    pub(super) fn give_back(&self, cpu: Cpu, id: u32, nr_pages: u32) {
        match &self.stocks {
            Stocks::Atomic(lines) => self.put_back(lines, cpu, id, nr_pages),
            _ => self.put_single(cpu, id, nr_pages),
        }
    }

    /// Puts charged pages into the CPU's lines as far as those keep them.
    #[inline(always)] // One of it is on the path of every block that is freed.
    fn put_back(&self, lines: &AllLines, cpu: Cpu, id: u32, nr_pages: u32) {
        let group = self.live(id);
        let batch = group.batch.load(Ordering::Relaxed);
        match nr_pages < batch {
            true => self.put_small(lines, cpu, (id, group), (nr_pages, batch)),
            false => self.give_back_large(lines, cpu, id, nr_pages),
        }
    }

    /// Puts charged pages into a slot of the CPU's lines, which keeps `batch` at most.
    #[inline(always)]
    pub(super) fn put_small(
        &self,
        lines: &AllLines,
        cpu: Cpu,
        (id, group): (u32, &Group),
        (nr_pages, batch): (u32, u32),
    ) {
        // What a group over its limit gives back must not serve a new charge from the stock.
        if self.is_over(group) {
            return self.uncharge_counters(id, nr_pages);
        }
        if let Some(surplus) = lines.pages(cpu, id).refill(id, nr_pages, batch) {
            self.put_surplus(cpu, (id, nr_pages), surplus);
        }
        self.drain_if_exact(cpu, group, id);
    }

    /// Uncharges what a line did not keep of pages of group `id`, or had to give up for them.
    #[cold]
    #[inline(never)]
    pub(super) fn put_surplus(&self, cpu: Cpu, (id, nr_pages): (u32, u32), surplus: Surplus) {
        match surplus
            == (Surplus {
                group: id,
                nr_pages,
            }) {
            // The line is full of others'.
            true => self.uncharge_counters(id, nr_pages),
            false => self.trim(cpu, Out::Pages(surplus)),
        }
    }

    /// [`Tree::give_back`] in the variants of one group a CPU.
    #[inline(never)]
    fn put_single(&self, cpu: Cpu, id: u32, nr_pages: u32) {
        let group = self.live(id);
        let batch = group.batch.load(Ordering::Relaxed);
        if nr_pages > batch || self.is_over(group) {
            return self.uncharge_counters(id, nr_pages);
        }
        self.refill(cpu, id, nr_pages, batch);
        self.drain_if_exact(cpu, group, id);
    }

    /// Whether the group or one of its ancestors is over its limit.
    #[inline]
    pub(super) fn is_over(&self, group: &Group) -> bool {
        self.has_over.load(Ordering::Relaxed) != 0 && self.is_path_over(group)
    }

    #[cold]
    fn is_path_over(&self, group: &Group) -> bool {
        let mut level = group;
        while level.usage() <= level.max() {
            match self.get(level.parent()) {
                Some(above) => level = above,
                None => return false,
            }
        }
        true
    }

    /// After a refill: a limit that shrank meanwhile, or below the usage, or a dead group, keeps
    /// nothing in a stock.
    ///
    /// The record is the group's as long as the stock has what was refilled; afterwards there is
    /// nothing to drain, whatever the record says.
    #[inline]
    pub(super) fn drain_if_exact(&self, cpu: Cpu, group: &Group, id: u32) {
        // Ordered by `Stocks::publish`: this sees the batch of 0, or that the group is over its
        // limit, or the drain the refill.
        if group.batch.load(Ordering::Relaxed) == 0 || self.is_over(group) {
            self.drain_from(cpu, id);
        }
    }

    /// Charges core's own records to the root, in whole pages.
    ///
    /// # Errors
    /// [`OverLimit`] where the budget has no room.
    pub fn charge_records(&self, cpu: Cpu, bytes: usize) -> Result<(), OverLimit> {
        let pages = bytes.div_ceil(PAGE_BYTES);
        let nr_pages = u32::try_from(pages).map_err(|_| OverLimit { group: self.root })?;
        self.charge_many(cpu, self.root, nr_pages)?;
        self.nr_record_pages.fetch_add(nr_pages, Ordering::Relaxed);
        Ok(())
    }

    /// Pages that [`Tree::charge_records`] charged so far.
    #[must_use]
    pub fn nr_record_pages(&self) -> u32 {
        self.nr_record_pages.load(Ordering::Relaxed)
    }

    pub(super) fn charge_counters(&self, id: u32, nr_pages: u32) -> Result<Charged, OverLimit> {
        let mut charged = Charged::Within;
        for (level, group) in self.path(id) {
            let Some(usage) = group.try_add(u64::from(nr_pages)) else {
                let visited = self.path(id).take_while(|&(below, _)| below != level);
                visited.for_each(|(_, group)| self.sub(group, nr_pages));
                return Err(OverLimit { group: level });
            };
            if usage > group.limit(Limit::High) {
                charged = Charged::OverHigh(nr_pages);
            }
            self.tell_claims(group);
        }
        Ok(charged)
    }

    pub(super) fn uncharge_counters(&self, id: u32, nr_pages: u32) {
        self.path(id)
            .for_each(|(_, group)| self.sub(group, nr_pages));
    }

    fn sub(&self, group: &Group, nr_pages: u32) {
        group.sub(u64::from(nr_pages));
        self.tell_claims(group);
    }

    /// Returns the stocks of a subtree to the counters, from any thread, before it returns; under
    /// `StockKind::Scheduled` it asks their owners to, and does not wait.
    ///
    /// One exchange for each slot that holds something of the subtree, none for the others, and
    /// one walk up for the pages of a group that lie in one slot after the other.
    pub fn drain(&self, subtree: u32) {
        let mut nr_slots = 0;
        let mut same = Surplus {
            group: 0,
            nr_pages: 0,
        };
        let out = &mut |out| {
            nr_slots += 1;
            match out {
                Out::Pages(surplus) if surplus.group == same.group => {
                    same.nr_pages += surplus.nr_pages;
                }
                Out::Pages(surplus) => {
                    self.uncharge_surplus(core::mem::replace(&mut same, surplus));
                }
                other => self.book(other),
            }
        };
        let is_root = subtree == self.root;
        let wanted = |group| is_root || self.is_in(group, subtree);
        self.stocks.drain(wanted, &self.in_hand, out);
        // What was not there may be in somebody's hands: see `InHand`. Before the caller uncharges
        // the last page of the group.
        full_fence();
        self.uncharge_surplus(same);
        if nr_slots > 0 {
            // No read-modify-write: of two drains at once, one's count may be lost.
            let nr_drained = self.nr_drained.load(Ordering::Relaxed) + nr_slots;
            self.nr_drained.store(nr_drained, Ordering::Relaxed);
        }
    }

    fn uncharge_surplus(&self, surplus: Surplus) {
        if surplus.nr_pages > 0 {
            self.uncharge_counters(surplus.group, surplus.nr_pages);
        }
    }

    /// [`Tree::drain`] on a CPU, which runs what is asked of itself.
    pub(super) fn drain_from(&self, cpu: Cpu, subtree: u32) {
        self.drain(subtree);
        self.run_scheduled(cpu);
    }

    /// Empties the stock of a CPU if a drain asked its owner to: what the owner does when it next
    /// charges or uncharges. Returns whether there was something to do.
    ///
    /// Only under `StockKind::Scheduled`, and only on that CPU.
    #[inline]
    pub fn run_scheduled(&self, cpu: Cpu) -> bool {
        self.stocks.is_scheduled(cpu) && self.run_asked(cpu)
    }

    #[cold]
    fn run_asked(&self, cpu: Cpu) -> bool {
        self.stocks.run_scheduled(cpu, &mut |out| self.book(out))
    }

    /// Pages in the stocks of a subtree.
    #[must_use]
    pub fn stocked(&self, subtree: u32) -> u32 {
        self.held_on_cpus(subtree).0
    }
}
