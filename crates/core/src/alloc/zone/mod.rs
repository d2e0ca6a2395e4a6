//! A zone: a range of frames of one node under one lock, and the per-CPU page caches before it.

mod cached;
mod caches;
mod flush;
mod stats;

pub use {flush::Drained, stats::ZoneStats};

use crate::alloc::buddy::{Buddy, Found};
use crate::alloc::pageblock::{self, Mobility, PAGEBLOCK_PAGES};
use crate::alloc::pcp::{Pcp, list_of};
use crate::alloc::pcp_tune::{Shared, Tune, Tuner, View};
use crate::alloc::watermark::{Mark, PcpSizes, Watermarks};
use crate::alloc::zonelist_cache;
use crate::frame::FrameTable;
use crate::sync::{AtomicU32, AtomicU64, Guard, NoMetadata, Ordering, PerCpu, SpinLock, rank};
use crate::units::{Cpu, Frame, Node, Order};
use stats::Counters;

/// What a zone is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Blocks of every mobility.
    Normal = 0,
    /// Movable blocks only, so that large blocks can always be had from it again.
    Movable = 1,
}

/// How a batch is given back to its zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BulkFree {
    /// Blocks are picked and merged in one pass, under the zone's lock. Source: Gorman 2022.
    #[default]
    SinglePass,
    /// Blocks are picked first and merged then: for comparison. Source: kernel 4.17.
    TwoPass,
}

/// What a zone is built from.
#[derive(Clone, Copy, Debug)]
pub struct ZoneConfig {
    /// Whose frames.
    pub node: Node,
    /// Normal or movable.
    pub kind: Kind,
    /// Free pages that requests of other kinds leave, and when reclaim is woken.
    pub watermarks: Watermarks,
    /// Pages kept from requests that may also use a [`Kind::Movable`] zone.
    pub lowmem_reserve: u32,
    /// CPUs of the zone's node, or all where it has none: who shares its pages.
    pub nr_local_cpus: u32,
    /// Sizes of the per-CPU page caches.
    pub sizes: PcpSizes,
    /// What sets their `high`.
    pub tuner: Tuner,
    /// How they give back.
    pub bulk_free: BulkFree,
    /// A bit for each order that they keep.
    pub cached_orders: u32,
    /// Whether a batch of freed high-order pages is kept because it is still in the CPU's cache.
    pub keeps_batch: bool,
}

/// Who calls: the CPU, and the clock of the last tick in ns. Both may be stale.
#[derive(Clone, Copy, Debug)]
pub struct Here {
    /// The CPU.
    pub cpu: Cpu,
    /// The time.
    pub now: u64,
}

/// What is asked of a zone.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Size of the block.
    pub order: Order,
    /// What it is used for.
    pub mobility: Mobility,
    /// Free pages that stay.
    pub mark: Mark,
    /// Another node was wanted.
    pub is_miss: bool,
    /// The caller's CPU is on another node.
    pub is_other: bool,
}

impl Ask {
    /// A block of `order` from the wanted node, down to the last frame.
    #[must_use]
    pub const fn new(order: Order, mobility: Mobility) -> Ask {
        Ask {
            order,
            mobility,
            mark: Mark::None,
            is_miss: false,
            is_other: false,
        }
    }

    const fn class(self) -> usize {
        self.is_miss as usize * 2 + self.is_other as usize
    }
}

/// Caches of each CPU: threads that outnumber CPUs are preempted while they hold one, which is
/// rarer where there are more CPUs. A checker explores every one there is.
const fn caches_per_cpu(nr_cpus: u32) -> u32 {
    match nr_cpus {
        _ if cfg!(any(loom, shuttle)) => 1,
        0..=16 => 8,
        17..=32 => 4,
        _ => 2,
    }
}

/// A range of frames with its own lock, and the per-CPU page caches before it.
#[derive(Debug)]
pub struct Zone {
    config: ZoneConfig,
    start: u32,
    managed: u32,
    has_mobility: bool,
    cached_orders: AtomicU32,
    /// Free pages outside the caches, written under the lock.
    nr_free: AtomicU32,
    boost: AtomicU32,
    /// Fewer than the high watermark are free. Written under the lock.
    below_high: AtomicU32,
    reclaim_active: AtomicU32,
    /// Times that frees ended `below_high`. Written under the lock.
    recoveries: AtomicU32,
    /// Classes of requests that the zonelist cache was told to pass this zone over for, and those
    /// that can be served again.
    short: AtomicU32,
    crossed: AtomicU32,
    /// The CPU whose cache is drained next.
    drain_hand: AtomicU32,
    /// The pageblock from which the next idle one is looked for.
    idle_hand: AtomicU32,
    shared: Shared,
    counters: Counters,
    buddy: SpinLock<Buddy, { rank::ZONE }>,
    /// Each CPU's own cache, then its spare ones: cache `n` is one of CPU `n % nr_cpus`.
    pcps: PerCpu<SpinLock<Pcp, { rank::PCP }>>,
    /// Which of its caches a CPU uses, by its distance from the own one.
    in_use: PerCpu<AtomicU32>,
    /// 1 once a spare one was used.
    has_spares: AtomicU32,
    nr_cpus: u32,
}

type PcpGuard<'a> = Guard<'a, Pcp, { rank::PCP }>;

impl Zone {
    /// Bytes that [`Zone::try_new`] takes beside the zone itself.
    #[must_use]
    pub const fn bytes(nr_cpus: u32) -> usize {
        PerCpu::<SpinLock<Pcp, { rank::PCP }>>::bytes(nr_cpus * caches_per_cpu(nr_cpus))
            + PerCpu::<AtomicU32>::bytes(nr_cpus)
    }

    /// A zone of frames `start..end`, all free, used by CPUs `0..nr_cpus`.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(
        frames: &FrameTable,
        start: u32,
        end: u32,
        nr_cpus: u32,
        config: ZoneConfig,
    ) -> Result<Zone, NoMetadata> {
        let buddy = Buddy::new(frames, start, end);
        let pcp = || SpinLock::new(Pcp::new(Tune::new(config.tuner, &config.sizes)));
        Ok(Zone {
            config,
            start,
            managed: end - start,
            has_mobility: buddy.has_mobility(),
            cached_orders: AtomicU32::new(config.cached_orders),
            nr_free: AtomicU32::new(end - start),
            boost: AtomicU32::new(0),
            below_high: AtomicU32::new(0),
            reclaim_active: AtomicU32::new(0),
            recoveries: AtomicU32::new(0),
            short: AtomicU32::new(0),
            crossed: AtomicU32::new(0),
            drain_hand: AtomicU32::new(0),
            idle_hand: AtomicU32::new(0),
            shared: Shared::new(end - start, config.nr_local_cpus, &config.sizes),
            counters: Counters::default(),
            buddy: SpinLock::new(buddy),
            pcps: PerCpu::try_new(nr_cpus * caches_per_cpu(nr_cpus), pcp)?,
            in_use: PerCpu::try_new(nr_cpus, || AtomicU32::new(0))?,
            has_spares: AtomicU32::new(0),
            nr_cpus,
        })
    }

    /// What it was built from.
    #[must_use]
    #[inline]
    pub fn config(&self) -> &ZoneConfig {
        &self.config
    }

    /// Frames that the zone began with.
    #[must_use]
    pub fn managed(&self) -> u32 {
        self.managed
    }

    /// Whether a frame is one of this zone's.
    #[must_use]
    pub fn holds(&self, frame: Frame) -> bool {
        frame.number().wrapping_sub(self.start) < self.managed
    }

    /// The numbers of its frames.
    pub(in crate::alloc) fn frames(&self) -> core::ops::Range<u32> {
        self.start..self.start + self.managed
    }

    /// Whether blocks of different mobility are kept apart.
    pub(in crate::alloc) fn has_mobility(&self) -> bool {
        self.has_mobility
    }

    /// Free pages outside the per-CPU page caches. A racy look without a lock.
    #[must_use]
    pub fn nr_free_racy(&self) -> u32 {
        self.nr_free.load(Ordering::Relaxed)
    }

    /// The per-CPU page caches keep blocks of `order` from now on.
    pub fn cache_order(&self, order: Order) {
        self.cached_orders
            .fetch_or(1 << order.get(), Ordering::Relaxed);
    }

    /// Says whether reclaim works on the zone's node: caches then keep four batches at most.
    pub fn set_reclaim_active(&self, is_active: bool) {
        self.reclaim_active
            .store(u32::from(is_active), Ordering::Relaxed);
    }

    /// Times that frees took the zone above its high watermark. Wraps.
    pub(in crate::alloc) fn nr_recoveries(&self) -> u32 {
        self.recoveries.load(Ordering::Relaxed)
    }

    /// Ends the boost of the watermarks.
    pub(in crate::alloc) fn end_boost(&self) {
        if self.boost.load(Ordering::Relaxed) != 0 {
            self.boost.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn caches(&self, order: Order) -> bool {
        let orders = self.cached_orders.load(Ordering::Relaxed);
        orders >> order.get() & 1 != 0 && self.config.sizes.high_min > 0
    }

    #[inline]
    fn view(&self, now: u64) -> View<'_> {
        View {
            sizes: &self.config.sizes,
            shared: &self.shared,
            is_below_high: self.below_high.load(Ordering::Relaxed) != 0,
            is_reclaim_active: self.reclaim_active.load(Ordering::Relaxed) != 0,
            keeps_batch: self.config.keeps_batch,
            now,
        }
    }

    /// The CPU of a cache's number.
    fn cpu_of(&self, number: Cpu) -> Cpu {
        Cpu::new(number.number() % self.nr_cpus)
    }

    /// Runs `work` under the zone's lock; `work` returns the pages that it moved.
    pub(super) fn hold(&self, work: impl FnOnce(&mut Buddy, bool) -> u32) {
        let taken = self.buddy.try_lock();
        let is_contended = taken.is_none();
        let mut buddy = taken.unwrap_or_else(|| self.buddy.lock());
        let moved = u64::from(work(&mut buddy, is_contended));
        self.nr_free.store(buddy.nr_free(), Ordering::Relaxed);
        // Loads and stores: all of these are written under the zone's lock only.
        let counters = &self.counters;
        let add = |counter: &AtomicU64, more: u64| {
            counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        add(&counters.lock_takes, 1);
        add(&counters.lock_contended, u64::from(is_contended));
        add(&counters.hold_pages, moved);
    }

    /// Pages that a request could take and leave its mark; `None` where it may take nothing.
    ///
    /// Source: kernel `__zone_watermark_ok()`; what was charged (`Mark::None`) may take everything.
    fn room(&self, nr_free: u32, ask: Ask) -> Option<u32> {
        let keeps = match (ask.mark, ask.mobility) {
            (Mark::None, _) => 0,
            (mark, mobility) => {
                let boost = self.boost.load(Ordering::Relaxed);
                let reserve = match mobility {
                    Mobility::Movable => self.config.lowmem_reserve,
                    _ => 0,
                };
                self.config.watermarks.of(mark) + boost + reserve
            }
        };
        let room = nr_free.checked_sub(keeps)?;
        (room >= ask.order.nr_pages()).then_some(room)
    }

    /// Whether a request would pass its watermark, by a look without the lock.
    #[must_use]
    pub fn may_have(&self, ask: Ask) -> bool {
        let nr_free = self.nr_free_racy();
        nr_free >= ask.order.nr_pages() && self.room(nr_free, ask).is_some()
    }

    /// Takes a block, or `None` where the CPU's cache has none and the zone has none above the
    /// request's mark.
    ///
    /// One try-lock where the cache has a block; else one hold of the zone's lock as well, which
    /// refills as many as the tuner wants. A CPU whose cache is locked goes to the zone directly.
    #[inline]
    pub fn alloc(&self, frames: &FrameTable, here: Here, ask: Ask) -> Option<Frame> {
        let kind = self.kind_of(ask);
        if self.caches(ask.order)
            && let Some((number, mut pcp)) = self.lock_cache(here.cpu)
        {
            let mut taken = pcp.pop(frames, ask.order, kind);
            if taken.is_none() {
                match self.lock_with(number, pcp, |other| other.has(ask.order, kind)) {
                    Some(other) => pcp = other,
                    None => return self.alloc_direct(frames, ask, kind),
                }
                taken = pcp.pop(frames, ask.order, kind);
            }
            if taken.is_none() {
                taken = self.alloc_and_refill(frames, here, ask, kind, &mut pcp);
            }
            if taken.is_some() {
                let count = pcp.count();
                pcp.tune.allocated(ask.order, count);
                pcp.counts.served[ask.class()] += 1;
                pcp.counts.pgalloc += u64::from(ask.order.nr_pages());
            }
            return taken;
        }
        self.alloc_direct(frames, ask, kind)
    }

    /// Takes a block past a cache that has none of its order, which is filled up on the way.
    #[cold]
    #[inline(never)]
    fn alloc_and_refill(
        &self,
        frames: &FrameTable,
        here: Here,
        ask: Ask,
        kind: Mobility,
        pcp: &mut Pcp,
    ) -> Option<Frame> {
        if !self.may_have(ask) {
            return None;
        }
        let mut taken = None;
        self.hold(|buddy, is_contended| {
            let (first, moved) = self.refill(frames, here, ask, kind, buddy, pcp, is_contended);
            taken = first;
            moved
        });
        taken
    }

    /// Takes a block from the zone itself.
    #[cold]
    #[inline(never)]
    fn alloc_direct(&self, frames: &FrameTable, ask: Ask, kind: Mobility) -> Option<Frame> {
        if !self.may_have(ask) {
            return None;
        }
        let order = ask.order;
        let mut taken = None;
        self.hold(|buddy, _| {
            if self.room(buddy.nr_free(), ask).is_some() {
                taken = buddy.alloc(frames, order, kind, &mut Found::default());
            }
            self.after_alloc(buddy);
            taken.map_or(0, |_| order.nr_pages())
        });
        if taken.is_some() {
            let pages = u64::from(order.nr_pages());
            self.counters.served[ask.class()].fetch_add(1, Ordering::Relaxed);
            self.counters.pgalloc.fetch_add(pages, Ordering::Relaxed);
        }
        taken
    }

    /// Moves blocks into an empty list, as many as the tuner wants; the first is handed out.
    #[expect(clippy::too_many_arguments)] // The two guards, and who asks for what.
    fn refill(
        &self,
        frames: &FrameTable,
        here: Here,
        ask: Ask,
        kind: Mobility,
        buddy: &mut Buddy,
        pcp: &mut Pcp,
        is_contended: bool,
    ) -> (Option<Frame>, u32) {
        let order = ask.order;
        let nr_free = buddy.nr_free();
        if self.room(nr_free, ask).is_none() {
            return (None, 0);
        }
        // What is taken along may go below the request's own mark, but not below `min`.
        let least = Ask {
            mark: ask.mark.min(Mark::Min),
            ..ask
        };
        let room = self.room(nr_free, least).unwrap_or(0);
        self.after_alloc(buddy);
        let count = pcp.count();
        let wanted = pcp
            .tune
            .refill(order, count, is_contended, &self.view(here.now));
        let nr_blocks = wanted.min(room >> order.get()).max(1);
        let mut found = Found::default();
        let first = buddy.alloc(frames, order, kind, &mut found);
        let mut moved = first.map_or(0, |_| order.nr_pages());
        for _ in 1..nr_blocks {
            let Some(frame) = buddy.alloc(frames, order, kind, &mut found) else {
                break;
            };
            pcp.push_cold(frames, frame, order, kind);
            moved += order.nr_pages();
        }
        (first, moved)
    }

    /// Under the lock, when blocks are taken: the high watermark, and the boost for a lost
    /// pageblock.
    fn after_alloc(&self, buddy: &mut Buddy) {
        let boost = self.boost.load(Ordering::Relaxed);
        if buddy.take_was_claimed() {
            let marks = &self.config.watermarks;
            let boosted = marks.boosted(boost, self.managed, PAGEBLOCK_PAGES);
            self.boost.store(boosted, Ordering::Relaxed);
        }
        if buddy.nr_free() <= self.config.watermarks.high + boost {
            self.below_high.store(1, Ordering::Relaxed);
        }
    }

    /// Under the lock, when `nr_pages` pages were given back.
    fn after_free(&self, buddy: &Buddy, nr_pages: u32) {
        let max = &self.counters.hold_free_pages_max;
        if u64::from(nr_pages) > max.load(Ordering::Relaxed) {
            max.store(u64::from(nr_pages), Ordering::Relaxed);
        }
        let high = self.config.watermarks.high + self.boost.load(Ordering::Relaxed);
        if buddy.nr_free() >= high && self.below_high.load(Ordering::Relaxed) != 0 {
            self.below_high.store(0, Ordering::Relaxed);
            self.recoveries.fetch_add(1, Ordering::Relaxed);
        }
        let short = self.short.load(Ordering::Relaxed);
        if short != 0 {
            let crossed = self.servable(buddy, short);
            self.short.fetch_and(!crossed, Ordering::Relaxed);
            self.crossed.fetch_or(crossed, Ordering::Relaxed);
        }
    }

    /// Those of `classes` that the zone can serve, with a batch to spare.
    fn servable(&self, buddy: &Buddy, classes: u32) -> u32 {
        let spare = buddy.nr_free().saturating_sub(self.config.sizes.batch);
        let can_serve = |class: &usize| {
            let (order, mark, mobility) = zonelist_cache::largest_of(*class);
            let ask = Ask {
                mark,
                ..Ask::new(order, mobility)
            };
            classes >> class & 1 != 0 && buddy.has_block(order) && self.room(spare, ask).is_some()
        };
        let classes = (0..zonelist_cache::NR_CLASSES).filter(can_serve);
        classes.fold(0, |bits, class| bits | 1 << class)
    }

    /// Says that the zonelist cache passes the zone over for a class of requests.
    pub(super) fn set_short(&self, class: usize) {
        self.short.fetch_or(1 << class, Ordering::Relaxed);
    }

    /// Classes that can be served again since this was last asked.
    pub(super) fn take_crossed(&self) -> u32 {
        match self.crossed.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.crossed.swap(0, Ordering::Relaxed),
        }
    }

    /// Gives a block back to the CPU's cache, which passes some on where it holds too many, a batch
    /// for each hold of the zone's lock.
    ///
    /// # Panics
    /// Where the block is free already.
    #[inline]
    pub fn free(&self, frames: &FrameTable, here: Here, frame: Frame, order: Order) {
        if self.caches(order)
            && let Some((number, pcp)) = self.lock_cache(here.cpu)
        {
            self.keep(frames, (here, number), pcp, (frame, order));
            return;
        }
        self.free_direct(frames, here, frame, order);
    }

    /// Gives blocks back as [`Zone::free`] does, under one hold of the cache's lock until the cache
    /// passes some on. Returns how many of them it took, at least 1.
    ///
    /// # Panics
    /// Where there is none, or one is free already.
    pub(super) fn free_some(&self, frames: &FrameTable, here: Here, blocks: &[Frame]) -> usize {
        let order = |frame: Frame| frames.block(frame).0;
        let cached = blocks
            .iter()
            .take_while(|&&frame| self.caches(order(frame)));
        let mut guard = self.lock_cache(here.cpu);
        let mut nr_freed = 0;
        for &frame in cached {
            let Some((number, pcp)) = guard.take() else {
                break;
            };
            let kept = self.keep(frames, (here, number), pcp, (frame, order(frame)));
            guard = kept.map(|pcp| (number, pcp));
            nr_freed += 1;
        }
        drop(guard);
        if nr_freed == 0 {
            self.free_direct(frames, here, blocks[0], order(blocks[0]));
            nr_freed = 1;
        }
        nr_freed
    }

    /// Keeps a block in a cache, which passes some on where it holds too many; returns the hold of
    /// its lock where it does not.
    #[inline]
    fn keep<'a>(
        &'a self,
        frames: &FrameTable,
        (here, number): (Here, Cpu),
        mut pcp: PcpGuard<'a>,
        (frame, order): (Frame, Order),
    ) -> Option<PcpGuard<'a>> {
        let kind = pageblock::mobility(frames, frame);
        pcp.push(frames, frame, order, kind);
        pcp.counts.pgfree += u64::from(order.nr_pages());
        let count = pcp.count();
        let Some(nr_pages) = pcp.tune.freed(order, count, &self.view(here.now)) else {
            return Some(pcp);
        };
        let here = Here {
            cpu: number,
            ..here
        };
        self.pass_on(frames, here, pcp, list_of(order, kind), nr_pages);
        None
    }

    /// Gives a block back to the zone itself.
    #[cold]
    #[inline(never)]
    fn free_direct(&self, frames: &FrameTable, here: Here, frame: Frame, order: Order) {
        self.hold(|buddy, _| {
            buddy.free(frames, frame, order, here.now);
            self.after_free(buddy, order.nr_pages());
            order.nr_pages()
        });
        let pages = u64::from(order.nr_pages());
        self.counters.pgfree.fetch_add(pages, Ordering::Relaxed);
    }
}
