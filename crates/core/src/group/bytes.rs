//! Objects that are no whole pages: their bytes are charged by pages, what is left of the last one
//! stays on the CPU or is parked in the group's record, and statistics of them are kept.

use super::record::{Event, Group};
use super::stock::{Counts, PAGE};
use super::{Charged, Item, Out, OverLimit, StockStats, Surplus, Tree};
use crate::sync::Ordering;
use crate::units::Cpu;

impl Tree {
    /// Charges bytes to a group and all its ancestors, or to none of them.
    ///
    /// Whole pages by way of the CPU's stock of pages; the rest out of the CPU's bytes of the group
    /// or of another page, whose other bytes stay there. With nothing in stocks, a group's usage is
    /// that of its bytes, rounded up to pages once.
    ///
    /// Cost: one read-modify-write where the CPU has the bytes. At the limit the subtree's stocks
    /// are drained before the charge is refused: as [`Tree::charge`].
    ///
    /// # Errors
    /// [`OverLimit`] with the level that refused; every counter is as it was.
    #[inline]
    pub fn charge_bytes(&self, cpu: Cpu, id: u32, nr_bytes: u64) -> Result<Charged, OverLimit> {
        let is_exact = self.live(id).batch.load(Ordering::Relaxed) == 0;
        let (nr_pages, rest) = split(nr_bytes);
        let has_rest = rest == 0 || !is_exact && self.stocks.consume_bytes(cpu, id, rest);
        if has_rest && nr_pages == 0 {
            return Ok(Charged::Within);
        }
        self.charge_bytes_past_stock(cpu, id, (nr_pages, rest), has_rest)
    }

    /// `has_rest`: the rest was taken from bytes that are charged.
    #[cold]
    #[inline(never)]
    fn charge_bytes_past_stock(
        &self,
        cpu: Cpu,
        id: u32,
        (nr_pages, rest): (u64, u32),
        has_rest: bool,
    ) -> Result<Charged, OverLimit> {
        self.run_scheduled(cpu);
        let group = self.live(id);
        let has_rest = has_rest || group.take_parked(rest);
        let charge = |nr_pages: u64| match u32::try_from(nr_pages) {
            Ok(0) => Ok(Charged::Within),
            Ok(nr_pages) => self.try_charge(cpu, id, nr_pages),
            Err(_) => Err(OverLimit { group: self.root }),
        };
        if has_rest {
            return charge(nr_pages).inspect_err(|over| {
                self.park(id, rest);
                self.count_event(over.group, Event::Max);
            });
        }
        match charge(nr_pages + 1) {
            Ok(charged) => {
                self.put_bytes(cpu, id, PAGE - rest);
                Ok(charged)
            }
            // What the stocks had is parked now.
            Err(_) if group.take_parked(rest) => charge(nr_pages).inspect_err(|over| {
                self.park(id, rest);
                self.count_event(over.group, Event::Max);
            }),
            Err(over) => {
                self.count_event(over.group, Event::Max);
                Err(over)
            }
        }
    }

    /// Gives back what [`Tree::charge_bytes`] took, the same number of bytes or parts of it.
    ///
    /// Cost: one read-modify-write, and one more for whole pages.
    #[inline]
    pub fn uncharge_bytes(&self, cpu: Cpu, id: u32, nr_bytes: u64) {
        let (nr_pages, rest) = split(nr_bytes);
        // The rest first: the pages keep the record of a group that was dropped.
        if rest > 0 {
            self.put_bytes(cpu, id, rest);
        }
        if nr_pages > 0 {
            let nr_pages = u32::try_from(nr_pages).expect("they were charged, so they are few");
            self.give_back(cpu, id, nr_pages);
        }
    }

    /// Puts bytes of a charged page, less than a page, on the CPU or beside the group's counters.
    #[inline]
    fn put_bytes(&self, cpu: Cpu, id: u32, nr_bytes: u32) {
        self.run_scheduled(cpu);
        let group = self.live(id);
        if group.batch.load(Ordering::Relaxed) == 0 || self.is_over(group) {
            return self.park(id, nr_bytes);
        }
        let parked = || group.take_all_parked();
        let out = &mut |out| self.book(out);
        let nr_pages = self.stocks.refill_bytes(cpu, (id, nr_bytes), parked, out);
        if nr_pages > 0 {
            self.give_back(cpu, id, nr_pages);
        }
        self.drain_if_exact(cpu, group, id);
    }

    /// Keeps charged bytes in the group's record; a page of them goes to the counters.
    fn park(&self, id: u32, nr_bytes: u32) {
        let nr_pages = self.live(id).park(nr_bytes);
        if nr_pages > 0 {
            self.uncharge_counters(id, nr_pages);
        }
    }

    /// Changes a statistic of a group and of its ancestors by `delta` bytes. For objects of a group
    /// that has something charged, or whose handle lives: theirs.
    ///
    /// Cost: one read-modify-write on the CPU's line, up to a page of change; else one a level.
    #[inline]
    pub fn mod_state(&self, cpu: Cpu, id: u32, item: Item, delta: i64) {
        let group = self.live(id);
        let is_small = delta.unsigned_abs() <= u64::from(PAGE);
        match i32::try_from(delta) {
            Ok(delta) if is_small && group.batch.load(Ordering::Relaxed) > 0 => {
                let parked = || group.take_all_parked();
                let out = &mut |out| self.book(out);
                let change = (id, item, delta);
                self.stocks
                    .mod_state(cpu, change, parked, &self.in_hand, out);
                self.drain_if_exact(cpu, group, id);
            }
            _ => self.add_state(id, item, delta),
        }
    }

    fn add_state(&self, id: u32, item: Item, delta: i64) {
        self.path(id)
            .for_each(|(_, group)| group.add_state(item, delta));
    }

    /// A statistic of a subtree in bytes: exact after a drain of it, else off by at most what the
    /// CPUs hold back, three times a page each.
    #[must_use]
    pub fn state(&self, id: u32, item: Item) -> u64 {
        self.get(id).map_or(0, |group| group.state(item))
    }

    /// Books what left a stock.
    pub(super) fn book(&self, out: Out) {
        match out {
            Out::Pages(Surplus { group, nr_pages }) => self.uncharge_counters(group, nr_pages),
            Out::Bytes { group, nr_bytes } => self.park(group, nr_bytes),
            Out::State { group, item, delta } => self.add_state(group, item, i64::from(delta)),
        }
    }

    /// Pages in the stocks of a subtree, and bytes of charged pages there that no object has.
    pub(crate) fn held_on_cpus(&self, subtree: u32) -> (u32, u64) {
        self.stocks.held(|group| self.is_in(group, subtree))
    }

    /// Bytes of charged pages that no object of the subtree has: on CPUs, and parked in records.
    #[must_use]
    pub fn held_bytes(&self, subtree: u32) -> u64 {
        let (_, on_cpus) = self.held_on_cpus(subtree);
        let groups = self.subtree(subtree);
        on_cpus
            + groups
                .map(|(_, group)| u64::from(group.parked()))
                .sum::<u64>()
    }

    /// What the stocks counted since the tree was made, and what they hold now.
    ///
    /// Cost: a walk over all CPUs and all groups.
    #[must_use]
    pub fn stock_stats(&self) -> StockStats {
        let sum = |of: fn(&Counts) -> u64| self.counts.iter().map(of).sum();
        let mut stats = StockStats {
            refills: sum(|counts| counts.refills.load(Ordering::Relaxed)),
            trims: sum(|counts| counts.trims.load(Ordering::Relaxed)),
            remote_drains: self.nr_drained.load(Ordering::Relaxed),
            nr_pages: self.stocked(self.root),
            nr_bytes: self.held_bytes(self.root),
            ..StockStats::default()
        };
        self.stocks.add_stats(&mut stats);
        stats
    }
}

/// Whole pages, and the bytes of the last one.
fn split(nr_bytes: u64) -> (u64, u32) {
    let page = u64::from(PAGE);
    let rest = u32::try_from(nr_bytes % page).expect("less than a page");
    (nr_bytes / page, rest)
}

impl Group {
    /// Takes bytes of charged pages out of the record, if it has as many.
    fn take_parked(&self, nr_bytes: u32) -> bool {
        let take = |parked: u32| parked.checked_sub(nr_bytes);
        self.parked
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    fn take_all_parked(&self) -> u32 {
        match self.parked() {
            0 => 0,
            _ => self.parked.swap(0, Ordering::Relaxed),
        }
    }

    /// Adds to the parked bytes, which stay below a page; returns the pages beyond.
    fn park(&self, nr_bytes: u32) -> u32 {
        let add = |parked: u32| Some((parked + nr_bytes) % PAGE);
        let before = self
            .parked
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .expect("it always adds");
        (before + nr_bytes) / PAGE
    }

    pub(crate) fn parked(&self) -> u32 {
        self.parked.load(Ordering::Relaxed)
    }

    fn add_state(&self, item: Item, delta: i64) {
        // Two's complement: adding a negative delta wraps down.
        let state = &self.state[item as usize];
        state.fetch_add(delta.cast_unsigned(), Ordering::Relaxed);
    }

    /// Zero while what was taken away is booked before what was added.
    fn state(&self, item: Item) -> u64 {
        let bytes = self.state[item as usize].load(Ordering::Relaxed);
        u64::try_from(bytes.cast_signed()).unwrap_or(0)
    }
}
