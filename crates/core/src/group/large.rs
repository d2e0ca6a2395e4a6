//! Charges of large blocks: what is given back of them stays on the CPU, too.
//!
//! A block of more than a batch would else meet the counters of every level twice, and so every
//! other CPU that uses large blocks. What a CPU keeps of them is bounded apart ([`Group::large`]):
//! a few blocks of one group under a large budget, none under a small one.

use super::record::Group;
use super::stock::{AllLines, Counts, Stocks};
use super::{Charged, Tree};
use crate::sync::Ordering;
use crate::units::Cpu;

/// Blocks that are charged together where the stock has none.
const BLOCKS_AHEAD: u32 = 4;

impl Tree {
    /// Charges a large block by way of the CPU's stock, or says that it has to do without. For one
    /// block, `is_block`, more are charged ahead where the stock has too few.
    pub(super) fn charge_large(
        &self,
        cpu: Cpu,
        id: u32,
        nr_pages: u32,
        is_block: bool,
    ) -> Option<Charged> {
        let Stocks::Atomic(lines) = &self.stocks else {
            return None;
        };
        let group = self.live(id);
        let large = group.large();
        if nr_pages > large {
            return None;
        }
        let line = lines.large(cpu);
        if line.consume(id, nr_pages) {
            return Some(Charged::Within);
        }
        let ahead = self.ahead(id, large.min(BLOCKS_AHEAD * nr_pages));
        // At a limit, pages that wait on another CPU are there for one move.
        if ahead < nr_pages && lines.consume_large(id, nr_pages) {
            return Some(Charged::Within);
        }
        if !is_block || ahead <= nr_pages || !line.takes(id) {
            return None;
        }
        let charged = self.charge_counters(id, ahead).ok()?;
        Counts::count(&self.counts.of(cpu).refills);
        self.put_large(lines, cpu, (id, group), (ahead - nr_pages, large));
        Some(charged)
    }

    /// Gives a large block's charge back into the CPU's stock, or to the counters.
    #[cold]
    #[inline(never)]
    pub(super) fn give_back_large(&self, lines: &AllLines, cpu: Cpu, id: u32, nr_pages: u32) {
        let group = self.live(id);
        let batch = group.batch.load(Ordering::Relaxed);
        let large = group.large();
        if nr_pages <= large && !self.is_over(group) {
            self.put_large(lines, cpu, (id, group), (nr_pages, large));
        } else if nr_pages <= batch {
            self.put_small(lines, cpu, (id, group), (nr_pages, batch));
        } else {
            self.uncharge_counters(id, nr_pages);
        }
    }

    /// Puts charged pages into the CPU's stock of large blocks, which keeps `large` at most.
    fn put_large(
        &self,
        lines: &AllLines,
        cpu: Cpu,
        (id, group): (u32, &Group),
        (nr_pages, large): (u32, u32),
    ) {
        if let Some(surplus) = lines.large(cpu).refill(id, nr_pages, large) {
            self.put_surplus(cpu, (id, nr_pages), surplus);
        }
        // Ordered by `Stocks::publish`, as in `drain_if_exact`: this sees the new bound, or the
        // drain the pages.
        if group.large() < large || self.is_over(group) {
            self.drain_from(cpu, id);
        }
    }
}
