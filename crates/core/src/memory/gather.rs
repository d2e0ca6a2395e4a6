//! What a request for many pages keeps of what it reclaims, where others take it.

use super::alloc::Amount;
use super::held::{Held, What};
use super::{Here, Memory};
use crate::group::{Charged, Group, OverLimit};
use crate::sync::Ordering;
use crate::units::{Cpu, PAGE_BYTES};

/// A charge that was refused, and the part of it that is there already. At first that is nothing:
/// it is tried as one, so that of two requests for the last pages one has them. Where others take
/// what each round frees, it would never be there at once, however much can go: from then on the
/// request keeps what it finds. One request of a memory at a time does, or two with a half each
/// would both be refused.
pub(super) struct Gathered<'a> {
    memory: &'a Memory,
    group: u32,
    amount: Amount,
    /// Pages that are charged.
    nr_pages: u32,
    /// Goes back where the request is refused, or a callback unwinds.
    held: Held<'a>,
    /// Of those that are charged, and charged ahead with them, those that went above a `high`.
    nr_over_high: u32,
    has_turn: bool,
}

impl<'a> Gathered<'a> {
    pub(super) fn new(
        memory: &'a Memory,
        (cpu, group): (Cpu, u32),
        amount: Amount,
    ) -> Gathered<'a> {
        Gathered {
            memory,
            group,
            amount,
            nr_pages: 0,
            held: Held::new(memory, cpu, What::Nothing),
            nr_over_high: 0,
            has_turn: false,
        }
    }

    /// Pages that are charged already.
    pub(super) fn nr_pages(&self) -> u32 {
        self.nr_pages
    }

    /// What is left to be charged.
    fn rest(&self) -> Amount {
        match self.amount {
            Amount::Pages(nr_pages) => Amount::Pages(nr_pages - self.nr_pages),
            Amount::Ahead(nr_pages) => Amount::Ahead(nr_pages - self.nr_pages),
            Amount::Bytes(nr_bytes) => {
                Amount::Bytes(nr_bytes - u64::from(self.nr_pages) * PAGE_BYTES as u64)
            }
        }
    }

    /// Tries to charge what is left; where that is refused and `others_take` what it reclaims, a
    /// part of it.
    ///
    /// # Errors
    /// [`OverLimit`]: it is not all there.
    pub(super) fn charge_rest(
        &mut self,
        cpu: Cpu,
        others_take: bool,
    ) -> Result<Charged, OverLimit> {
        let groups = &self.memory.groups;
        let charged = match self.rest() {
            Amount::Pages(nr_pages) | Amount::Ahead(nr_pages) => {
                groups.charge(cpu, self.group, nr_pages)
            }
            Amount::Bytes(nr_bytes) => groups.charge_bytes(cpu, self.group, nr_bytes),
        };
        if charged.is_err() && (self.has_turn || others_take && self.take_turn()) {
            self.charge_part(cpu);
        }
        charged
    }

    fn take_turn(&mut self) -> bool {
        let (none, one, relaxed) = (0, 1, Ordering::Relaxed);
        let taken = self
            .memory
            .gathering
            .compare_exchange(none, one, relaxed, relaxed);
        self.has_turn = taken.is_ok();
        self.has_turn
    }

    /// Charges what every level has room for, but for the last page: that comes with the rest.
    fn charge_part(&mut self, cpu: Cpu) {
        let groups = &self.memory.groups;
        let room = |level: &Group| level.max().saturating_sub(level.usage());
        let room = groups.path(self.group).map(|(_, level)| room(level)).min();
        let room = u32::try_from(room.unwrap_or(0)).unwrap_or(u32::MAX);
        let part = room.min(self.rest().nr_pages().saturating_sub(1));
        if part == 0 {
            return;
        }
        let Ok(charged) = groups.charge_many(cpu, self.group, part) else {
            return;
        };
        if let Charged::OverHigh(nr_charged) = charged {
            self.nr_over_high += nr_charged;
        }
        self.nr_pages += part;
        self.held.what = What::Charge {
            group: self.group,
            amount: Amount::Pages(self.nr_pages),
        };
    }

    /// The rest is `charged`, and all of it the request's: reclaims where that took a level above
    /// its `high`.
    pub(super) fn finish(mut self, here: Here<'_>, charged: Charged) {
        let nr_over_high = match charged {
            Charged::Within => self.nr_over_high,
            Charged::OverHigh(nr_charged) => self.nr_over_high + nr_charged,
        };
        if nr_over_high > 0 {
            let what = What::Charge {
                group: self.group,
                amount: self.rest(),
            };
            let rest = Held::new(self.memory, here.cpu, what);
            self.memory.reclaim_high(here, self.group, nr_over_high);
            rest.keep();
        }
        self.held.what = What::Nothing;
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        if self.has_turn {
            self.memory.gathering.store(0, Ordering::Relaxed);
        }
    }
}
