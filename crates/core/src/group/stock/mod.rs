//! The stocks of all CPUs, in one of four variants: pages and bytes charged ahead.

mod atomic;
mod atomic_bytes;
mod in_hand;
mod scheduled;
mod shares;
mod single;
mod spinlock;
mod stats;

pub use atomic::{Line, NR_SLOTS, StockLine};
pub use atomic_bytes::{ByteLine, NR_BYTE_WORDS};
pub use in_hand::InHand;
pub use scheduled::OwnerStock;
pub(super) use shares::Shares;
pub use spinlock::SpinStock;
pub(super) use stats::Counts;
pub use stats::StockStats;

use super::BATCH;
use crate::sync::{NoMetadata, PerCpu};
use crate::units::{Cpu, PAGE_BYTES, count, index};

/// A page in bytes, as stocks count them.
pub(super) const PAGE: u32 = 4096;
const _: () = assert!(index(PAGE) == PAGE_BYTES);

/// How charges are held ahead on a CPU. Default: [`StockKind::Atomic`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StockKind {
    /// A line of seven groups a CPU (two under a large budget) and one of bytes, each move one
    /// compare-and-swap or exchange.
    #[default]
    Atomic,
    /// One group a CPU under a spin lock, drained by the caller under it. Source: seed 002.
    Spinlock,
    /// One group a CPU, reached by its owner only; a drain asks the owner and does not wait.
    ///
    /// The baseline that seed 002 replaced, with its flaw: a charge near a limit may be refused
    /// for pages in another CPU's stock. For threads that stay on their CPU while they charge, as
    /// in a kernel: of two that use one CPU number at once, one's move may be lost, and a count
    /// with it. A dropped group goes once the owners of its stocks ran.
    Scheduled,
    /// No stock: each charge walks up to the root.
    None,
}

/// Pages of a group that left a stock and are still charged: the caller uncharges them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Surplus {
    /// Whose pages.
    pub group: u32,
    /// How many.
    pub nr_pages: u32,
}

/// Bytes below a page of which statistics are kept. Source: the fields of `memory.stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Objects that a shrinker can free.
    SlabReclaimable,
    /// Objects that stay until their owner frees them.
    SlabUnreclaimable,
}

/// Statistics of bytes that a group has.
pub const NR_ITEMS: usize = 2;

impl Item {
    /// All of them, in the order of their numbers.
    pub const ALL: [Item; NR_ITEMS] = [Item::SlabReclaimable, Item::SlabUnreclaimable];
}

/// What left a stock, for the caller to book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Out {
    /// Whole pages, to be uncharged.
    Pages(Surplus),
    /// Charged bytes, to be kept in the group's record until they make a page.
    Bytes {
        /// Whose.
        group: u32,
        /// How many.
        nr_bytes: u32,
    },
    /// A change of a statistic, for every level.
    State {
        /// Whose.
        group: u32,
        /// Which.
        item: Item,
        /// By how many bytes.
        delta: i32,
    },
}

/// Where an [`Out`] goes.
pub type Sink<'a> = &'a mut dyn FnMut(Out);

/// Splits a sum of bytes into what a CPU keeps, at most a page, and whole pages to give back.
pub(super) fn carry(nr_bytes: u32) -> (u32, u32) {
    if nr_bytes > PAGE {
        (nr_bytes % PAGE, nr_bytes / PAGE)
    } else {
        (nr_bytes, 0)
    }
}

/// Lines of pages that a CPU can have.
const NR_LINES: usize = 2;

/// The lines of one CPU.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Each group has its place in one of them.
    pages: [StockLine; NR_LINES],
    bytes: ByteLine,
    /// Pages of charges too large for the others, of one group: a few blocks of them.
    large: Line<1>,
}

/// The lines of all CPUs.
#[derive(Debug)]
pub(in crate::group) struct AllLines {
    cpus: PerCpu<Lines>,
    /// Ones where both lines of pages are used, zero where the first is.
    mask: u32,
    /// Whether there is room for large blocks, under the first budget.
    has_large: bool,
}

impl AllLines {
    /// The line of a CPU for a group's pages.
    #[inline]
    pub(super) fn pages(&self, cpu: Cpu, group: u32) -> &StockLine {
        &self.cpus.of(cpu).pages[self.place(group)]
    }

    fn nr_lines(&self) -> usize {
        if self.mask == 0 { 1 } else { NR_LINES }
    }

    /// Groups whose pages, and groups whose bytes, one CPU can hold.
    fn nr_slots(&self) -> (u32, u32) {
        (count(self.nr_lines() * NR_SLOTS), count(NR_BYTE_WORDS))
    }

    #[inline]
    fn bytes(&self, cpu: Cpu) -> &ByteLine {
        &self.cpus.of(cpu).bytes
    }

    /// What a CPU has for large blocks.
    pub(super) fn large(&self, cpu: Cpu) -> &Line<1> {
        &self.cpus.of(cpu).large
    }

    /// Takes pages for a large block out of any CPU's stock.
    pub(super) fn consume_large(&self, group: u32, nr_pages: u32) -> bool {
        let mut cpus = self.cpus.iter();
        cpus.any(|cpu| cpu.large.consume(group, nr_pages))
    }

    /// Lines of large blocks, none where there is no room for any.
    fn all_large(&self) -> impl Iterator<Item = &Line<1>> {
        let cpus = self.cpus.iter().take_while(|_| self.has_large);
        cpus.map(|cpu| &cpu.large)
    }

    /// Numbers in a row are spread evenly. Source: Fibonacci hashing, one bit of it.
    #[inline]
    fn place(&self, group: u32) -> usize {
        index(group.wrapping_mul(0x9E37_79B9) >> 31 & self.mask)
    }
}

/// The stocks of all CPUs.
#[derive(Debug)]
pub(super) enum Stocks {
    Atomic(AllLines),
    Spinlock(PerCpu<SpinStock>),
    Scheduled(PerCpu<OwnerStock>),
    None,
}

impl Stocks {
    pub(super) const fn bytes(kind: StockKind, nr_cpus: u32) -> usize {
        match kind {
            StockKind::Atomic => PerCpu::<Lines>::bytes(nr_cpus),
            StockKind::Spinlock => PerCpu::<SpinStock>::bytes(nr_cpus),
            StockKind::Scheduled => PerCpu::<OwnerStock>::bytes(nr_cpus),
            StockKind::None => 0,
        }
    }

    /// For a root of `max` pages: a second line of pages where the first can be filled twice.
    pub(super) fn try_new(kind: StockKind, nr_cpus: u32, max: u64) -> Result<Stocks, NoMetadata> {
        Ok(match kind {
            StockKind::Atomic => {
                let all_slots = u64::from(nr_cpus.max(1)) * u64::from(count(NR_SLOTS));
                let has_second = max / 64 / all_slots >= 2 * u64::from(BATCH + 1);
                let mut lines = AllLines {
                    cpus: PerCpu::try_new(nr_cpus, Lines::default)?,
                    mask: if has_second { u32::MAX } else { 0 },
                    has_large: true,
                };
                lines.has_large = Shares::of(max, lines.nr_slots(), nr_cpus).large > 0;
                Stocks::Atomic(lines)
            }
            StockKind::Spinlock => Stocks::Spinlock(PerCpu::try_new(nr_cpus, SpinStock::default)?),
            StockKind::Scheduled => {
                Stocks::Scheduled(PerCpu::try_new(nr_cpus, OwnerStock::default)?)
            }
            StockKind::None => Stocks::None,
        })
    }

    /// What stocks may hold under a root of `max` pages.
    pub(super) fn shares(&self, max: u64, nr_cpus: u32) -> Shares {
        let mut shares = match self {
            Stocks::Atomic(lines) => Shares::of(max, lines.nr_slots(), nr_cpus),
            Stocks::Spinlock(_) | Stocks::Scheduled(_) => Shares::of(max, (1, 1), nr_cpus),
            Stocks::None => Shares::default(),
        };
        if !matches!(
            self,
            Stocks::Atomic(AllLines {
                has_large: true,
                ..
            })
        ) {
            shares.large = 0;
        }
        shares
    }

    /// Takes pages of a group out of the CPU's stock.
    #[inline]
    pub(super) fn consume(&self, cpu: Cpu, group: u32, nr_pages: u32) -> bool {
        match self {
            Stocks::Atomic(lines) => lines.pages(cpu, group).consume(group, nr_pages),
            _ => self.consume_single(cpu, group, nr_pages),
        }
    }

    /// [`Stocks::consume`] in the variants to compare with, off the default's path.
    #[inline(never)]
    fn consume_single(&self, cpu: Cpu, group: u32, nr_pages: u32) -> bool {
        match self {
            Stocks::Spinlock(stocks) => stocks.of(cpu).consume(group, nr_pages),
            Stocks::Scheduled(stocks) => stocks.of(cpu).consume(group, nr_pages),
            Stocks::Atomic(_) | Stocks::None => false,
        }
    }

    /// Takes pages of a group out of any CPU's stock, where that needs nobody to wait.
    pub(super) fn consume_anywhere(&self, group: u32, nr_pages: u32) -> bool {
        match self {
            Stocks::Atomic(lines) => {
                let place = lines.place(group);
                let mut cpus = lines.cpus.iter();
                cpus.any(|cpu| cpu.pages[place].consume(group, nr_pages))
            }
            _ => false,
        }
    }

    /// Whether a batch for a group would find a place in the CPU's stock.
    pub(super) fn takes(&self, cpu: Cpu, group: u32) -> bool {
        match self {
            Stocks::Atomic(lines) => lines.pages(cpu, group).takes(group),
            Stocks::Spinlock(_) | Stocks::Scheduled(_) => true,
            Stocks::None => false,
        }
    }

    /// Puts charged pages into the CPU's stock; what does not stay there goes to `out`.
    pub(super) fn refill(&self, cpu: Cpu, group: u32, nr_pages: u32, batch: u32, out: Sink<'_>) {
        match self {
            Stocks::Atomic(lines) => {
                let surplus = lines.pages(cpu, group).refill(group, nr_pages, batch);
                surplus.map(Out::Pages).into_iter().for_each(out);
            }
            Stocks::Spinlock(stocks) => stocks.of(cpu).refill(group, nr_pages, batch, out),
            Stocks::Scheduled(stocks) => stocks.of(cpu).refill(group, nr_pages, batch, out),
            Stocks::None => out(Out::Pages(Surplus { group, nr_pages })),
        }
    }

    /// Takes bytes of a group out of the CPU's stock.
    #[inline]
    pub(super) fn consume_bytes(&self, cpu: Cpu, group: u32, nr_bytes: u32) -> bool {
        match self {
            Stocks::Atomic(lines) => lines.bytes(cpu).consume(group, nr_bytes),
            Stocks::Spinlock(stocks) => stocks.of(cpu).consume_bytes(group, nr_bytes),
            Stocks::Scheduled(stocks) => stocks.of(cpu).consume_bytes(group, nr_bytes),
            Stocks::None => false,
        }
    }

    /// Puts charged bytes, less than a page, into the CPU's stock, and with them what `parked`
    /// has where the group had no place there. Returns whole pages of the group to give back;
    /// what another group loses goes to `out`.
    #[inline]
    pub(super) fn refill_bytes(
        &self,
        cpu: Cpu,
        (group, nr_bytes): (u32, u32),
        parked: impl FnOnce() -> u32,
        out: Sink<'_>,
    ) -> u32 {
        match self {
            Stocks::Atomic(lines) => lines.bytes(cpu).refill(group, nr_bytes, parked, out),
            Stocks::Spinlock(stocks) => stocks.of(cpu).refill_bytes(group, nr_bytes, parked, out),
            Stocks::Scheduled(stocks) => stocks.of(cpu).refill_bytes(group, nr_bytes, parked, out),
            Stocks::None => {
                out(Out::Bytes { group, nr_bytes });
                0
            }
        }
    }

    /// Changes a statistic of a group by at most a page; what is due goes to `out`.
    #[inline]
    pub(super) fn mod_state(
        &self,
        cpu: Cpu,
        change: (u32, Item, i32),
        parked: impl FnOnce() -> u32,
        in_hand: &InHand,
        out: Sink<'_>,
    ) {
        match self {
            Stocks::Atomic(lines) => lines.bytes(cpu).mod_state(change, in_hand, out),
            Stocks::Spinlock(stocks) => stocks.of(cpu).mod_state(change, parked, out),
            Stocks::Scheduled(stocks) => stocks.of(cpu).mod_state(change, parked, out),
            Stocks::None => {
                let (group, item, delta) = change;
                out(Out::State { group, item, delta });
            }
        }
    }

    /// Makes what this thread wrote before seen by every later refill, and sees every earlier one.
    /// Where only owners may look, each is asked to empty its stock.
    pub(super) fn publish(&self) {
        match self {
            Stocks::Atomic(all) => {
                all.cpus.iter().for_each(|lines| {
                    let used = lines.pages.iter().take(all.nr_lines());
                    used.for_each(StockLine::publish);
                    lines.bytes.publish();
                });
                all.all_large().for_each(Line::publish);
            }
            Stocks::Spinlock(stocks) => stocks.iter().for_each(SpinStock::publish),
            Stocks::Scheduled(stocks) => stocks.iter().for_each(OwnerStock::schedule),
            Stocks::None => {}
        }
    }

    /// Empties the stocks that hold something of the groups that `wanted` names, or has their
    /// owners asked to.
    pub(super) fn drain(&self, wanted: impl Fn(u32) -> bool, in_hand: &InHand, out: Sink<'_>) {
        match self {
            Stocks::Atomic(lines) => {
                for cpu in lines.cpus.iter() {
                    for line in cpu.pages.iter().take(lines.nr_lines()) {
                        line.drain(&wanted, |surplus| out(Out::Pages(surplus)));
                    }
                    cpu.bytes.drain(&wanted, in_hand, out);
                }
                for line in lines.all_large() {
                    line.drain(&wanted, |surplus| out(Out::Pages(surplus)));
                }
            }
            Stocks::Spinlock(stocks) => stocks.iter().for_each(|stock| stock.drain(&wanted, out)),
            Stocks::Scheduled(stocks) => {
                let holders = stocks.iter().filter(|stock| stock.holds(&wanted));
                holders.for_each(OwnerStock::schedule);
            }
            Stocks::None => {}
        }
    }

    /// Whether the CPU's owner was asked to empty its stock.
    #[inline]
    pub(super) fn is_scheduled(&self, cpu: Cpu) -> bool {
        matches!(self, Stocks::Scheduled(stocks) if stocks.of(cpu).is_scheduled())
    }

    /// The owner's part of a drain, on its CPU.
    pub(super) fn run_scheduled(&self, cpu: Cpu, out: Sink<'_>) -> bool {
        match self {
            Stocks::Scheduled(stocks) => stocks.of(cpu).run(out),
            _ => false,
        }
    }

    /// Pages and bytes in the stocks of the groups that `wanted` names.
    pub(super) fn held(&self, wanted: impl Fn(u32) -> bool) -> (u32, u64) {
        let add = |(pages, bytes): (u32, u64), (more_pages, more_bytes): (u32, u32)| {
            (pages + more_pages, bytes + u64::from(more_bytes))
        };
        match self {
            Stocks::Atomic(lines) => {
                let of = |cpu: &Lines| {
                    let pages: u32 = cpu.pages.iter().map(|line| line.held(&wanted)).sum();
                    (pages + cpu.large.held(&wanted), cpu.bytes.held(&wanted))
                };
                lines.cpus.iter().map(of).fold((0, 0), add)
            }
            Stocks::Spinlock(stocks) => {
                let of = |stock: &SpinStock| stock.held(&wanted);
                stocks.iter().map(of).fold((0, 0), add)
            }
            Stocks::Scheduled(stocks) => {
                let of = |stock: &OwnerStock| stock.held(&wanted);
                stocks.iter().map(of).fold((0, 0), add)
            }
            Stocks::None => (0, 0),
        }
    }

    /// Adds what the stocks themselves count.
    pub(super) fn add_stats(&self, stats: &mut StockStats) {
        match self {
            Stocks::Atomic(lines) => {
                for cpu in lines.cpus.iter() {
                    stats.hits += cpu.pages.iter().map(StockLine::hits).sum::<u64>();
                    stats.hits += cpu.large.hits();
                    stats.byte_hits += cpu.bytes.hits();
                }
            }
            Stocks::Spinlock(stocks) => stocks.iter().for_each(|stock| stock.add_stats(stats)),
            Stocks::Scheduled(stocks) => stocks.iter().for_each(|stock| stock.add_stats(stats)),
            Stocks::None => {}
        }
    }
}
