#![doc = include_str!("README.md")]

mod placement;
mod stock;

pub use placement::{CpuMask, Place};
pub use stock::{NR_SLOTS, StockLine, Surplus};

use crate::sync::{AtomicU32, AtomicU64, NoMetadata, Ordering, PerCpu, SpinLock, Table, rank};
use crate::units::Cpu;
use placement::Placement;

/// Pages that a stock slot is filled with, where the root's `max` allows.
///
/// Source: the kernel's `MEMCG_CHARGE_BATCH`.
pub const BATCH: u32 = 64;
/// Levels below the root that a tree may have.
pub const MAX_DEPTH: u32 = 16;
/// No limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// Whether the next group in this one's slot of the table begins its numbers anew.
#[must_use]
pub fn is_last_of_its_slot(id: u32) -> bool {
    Table::<Group>::is_last_stamp(id)
}

/// A charge would exceed the `max` of `group`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// The level that refused, the charged group or an ancestor.
    pub group: u32,
}

/// Why a group was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildError {
    /// The parent was dropped.
    DeadParent,
    /// The parent is [`MAX_DEPTH`] levels below the root.
    TooDeep,
    /// The budget or the allocator refused the record.
    NoMetadata(NoMetadata),
}

/// One node of the tree. All counts are pages.
#[derive(Debug, Default)]
pub struct Group {
    /// Id of the parent, 0 for the root.
    parent: AtomicU32,
    depth: AtomicU32,
    /// Live charges and stocks of the subtree.
    usage: AtomicU64,
    peak: AtomicU64,
    max: AtomicU64,
    /// Pages a stock slot keeps for this group; 0: charges are exact.
    batch: AtomicU32,
    /// 1 once the last handle is gone: freed as soon as nothing is charged.
    dead: AtomicU32,
    nr_children: AtomicU32,
    /// Id of the group's lruvec, 0 before its first page.
    lruvec: AtomicU32,
    /// Charges refused or reclaimed for because of `max`.
    events_max: AtomicU64,
    /// Pages of this group that were not resident when asked for.
    misses: AtomicU64,
    placement: Placement,
}

impl Group {
    /// Live charges and stocks of the subtree, in pages.
    #[must_use]
    pub fn usage(&self) -> u64 {
        self.usage.load(Ordering::Relaxed)
    }

    /// The largest [`Group::usage`] so far.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The hard limit in pages, [`NO_LIMIT`] where there is none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// The parent's id, 0 for the root.
    #[must_use]
    pub fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    /// Times that a charge met `max` here.
    #[must_use]
    pub fn events_max(&self) -> u64 {
        self.events_max.load(Ordering::Relaxed)
    }

    /// Pages of this group that were not resident when asked for.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    /// Counts a page that was not resident.
    pub fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Id of the group's lruvec, 0 before its first page.
    #[must_use]
    pub fn lruvec(&self) -> u32 {
        // Acquire pairs with the Release in `set_lruvec`.
        self.lruvec.load(Ordering::Acquire)
    }

    /// Names the group's lruvec, if it has none yet.
    ///
    /// # Errors
    /// The id of the lruvec that another thread named first.
    pub fn set_lruvec(&self, id: u32) -> Result<(), u32> {
        // Release pairs with the Acquire in `lruvec`.
        self.lruvec
            .compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
    }

    /// Whether the last handle is gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) != 0
    }

    fn try_add(&self, nr_pages: u64) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        let added = self
            .usage
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |usage| {
                usage.checked_add(nr_pages).filter(|&usage| usage <= max)
            });
        if let Ok(before) = added {
            let usage = before + nr_pages;
            if usage > self.peak.load(Ordering::Relaxed) {
                self.peak.fetch_max(usage, Ordering::Relaxed);
            }
        }
        added.is_ok()
    }

    fn sub(&self, nr_pages: u64) {
        let before = self.usage.fetch_sub(nr_pages, Ordering::Relaxed);
        assert!(
            before >= nr_pages,
            "uncharge of {nr_pages} pages from {before}"
        );
    }
}

/// The tree of groups, and the stocks of all CPUs.
#[derive(Debug)]
pub struct Tree {
    groups: Table<Group>,
    /// Serialises changes of the tree's shape and limits.
    shape: SpinLock<(), { rank::GROUP_TREE }>,
    stocks: PerCpu<StockLine>,
    root: u32,
    nr_cpus: u32,
    /// 1 once any group has said on which nodes or CPUs it is.
    is_placed: AtomicU32,
}

impl Tree {
    /// Bytes that [`Tree::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_cpus: u32) -> usize {
        PerCpu::<StockLine>::bytes(nr_cpus)
    }

    /// A tree of a root alone, limited to `max` pages.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_cpus: u32, max: u64) -> Result<Tree, NoMetadata> {
        let groups: Table<Group> = Table::new();
        let stocks = PerCpu::try_new(nr_cpus, StockLine::default)?;
        let root = groups.insert(|_| true, |_, group| group.max.store(max, Ordering::Relaxed))?;
        let shape = SpinLock::new(());
        let tree = Tree {
            groups,
            shape,
            stocks,
            root,
            nr_cpus: nr_cpus.max(1),
            is_placed: AtomicU32::new(0),
        };
        tree.set_batches();
        Ok(tree)
    }

    /// The root's id.
    #[must_use]
    pub fn root(&self) -> u32 {
        self.root
    }

    /// The group of `id`, or `None` where it is gone.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Group> {
        self.groups.get(id)
    }

    /// The group of an id that cannot be stale, because something is charged to it.
    #[inline]
    fn live(&self, id: u32) -> &Group {
        self.groups
            .get(id)
            .expect("a group lives while something is charged to it")
    }

    /// All groups with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Group)> {
        self.groups.iter()
    }

    /// The group and its ancestors, from `id` up to the root.
    pub fn path(&self, id: u32) -> impl Iterator<Item = (u32, &Group)> {
        let first = self.get(id).map(|group| (id, group));
        core::iter::successors(first, |(_, group)| {
            let parent = group.parent();
            self.get(parent).map(|group| (parent, group))
        })
    }

    /// Whether `id` is `ancestor` or below it.
    #[must_use]
    pub fn is_in(&self, id: u32, ancestor: u32) -> bool {
        self.path(id).any(|(id, _)| id == ancestor)
    }

    /// Makes a child without limits of its own.
    ///
    /// # Errors
    /// [`ChildError`] where the parent is dead or too deep, or the record is refused.
    pub fn child(&self, cpu: Cpu, parent: u32) -> Result<u32, ChildError> {
        let above = self.get(parent).filter(|group| !group.is_dead());
        let above = above.ok_or(ChildError::DeadParent)?;
        let depth = above.depth.load(Ordering::Relaxed) + 1;
        if depth > MAX_DEPTH {
            return Err(ChildError::TooDeep);
        }
        let charge = |bytes: usize| self.charge_bytes(cpu, bytes).is_ok();
        let made = self.groups.insert(charge, |_, group| {
            group.parent.store(parent, Ordering::Relaxed);
            group.depth.store(depth, Ordering::Relaxed);
            group.max.store(NO_LIMIT, Ordering::Relaxed);
            group.dead.store(0, Ordering::Relaxed);
            group.lruvec.store(0, Ordering::Relaxed);
            group.nr_children.store(0, Ordering::Relaxed);
            group.placement.reset();
            for count in [&group.usage, &group.peak, &group.events_max, &group.misses] {
                count.store(0, Ordering::Relaxed);
            }
        });
        let id = made.map_err(ChildError::NoMetadata)?;
        above.nr_children.fetch_add(1, Ordering::Relaxed);
        let _shape = self.shape.lock();
        self.set_batch(id);
        Ok(id)
    }

    /// Says that the last handle of a group is gone. Its record goes once nothing is charged.
    pub fn kill(&self, id: u32) {
        let group = self.live(id);
        let shape = self.shape.lock();
        // Exact from here on: nothing may stay in a stock.
        group.batch.store(0, Ordering::Relaxed);
        group.dead.store(1, Ordering::Release);
        drop(shape);
        self.stocks.iter().for_each(StockLine::publish);
        self.drain(id);
    }

    /// Whether [`Tree::bury`] would free the record of a group.
    #[must_use]
    pub fn is_empty(&self, id: u32) -> bool {
        self.get(id).is_some_and(|group| {
            let is_used = group.usage() > 0 || group.nr_children.load(Ordering::Relaxed) > 0;
            group.is_dead() && !is_used && id != self.root
        })
    }

    /// Frees the record of a dead group to which nothing is charged and which has no children.
    /// Returns the id of its lruvec (0 for none) if it did: of several callers, one does.
    pub fn bury(&self, id: u32) -> Option<u32> {
        let _shape = self.shape.lock();
        let group = self.get(id).filter(|_| self.is_empty(id))?;
        let lruvec = group.lruvec();
        if let Some(parent) = self.get(group.parent()) {
            parent.nr_children.fetch_sub(1, Ordering::Relaxed);
        }
        self.groups.remove(id);
        Some(lruvec)
    }

    /// Sets the hard limit in pages, at once for new charges. What is over it stays: the caller
    /// reclaims.
    ///
    /// Cost: a walk over all groups, and a drain of the subtree's stocks.
    pub fn set_max(&self, id: u32, max: u64) {
        let shape = self.shape.lock();
        if let Some(group) = self.get(id) {
            group.max.store(max, Ordering::Relaxed);
        }
        self.set_batches();
        drop(shape);
        self.stocks.iter().for_each(StockLine::publish);
        self.drain(id);
    }

    fn set_batches(&self) {
        for (id, _) in self.groups.iter() {
            self.set_batch(id);
        }
    }

    /// A group under a limit of fewer than two batches a CPU is exact, and all stocks together
    /// hold at most 1/64 of the root's `max`.
    fn set_batch(&self, id: u32) {
        let all_slots = u64::from(self.nr_cpus) * NR_SLOTS as u64;
        let root_max = self.live(self.root).max();
        let least = self
            .path(id)
            .map(|(_, group)| group.max())
            .min()
            .unwrap_or(0);
        let exact = least < u64::from(2 * self.nr_cpus * BATCH);
        let batch = (root_max / 64 / all_slots).min(u64::from(BATCH));
        let batch = if exact {
            0
        } else {
            u32::try_from(batch).expect("at most BATCH")
        };
        if let Some(group) = self.get(id)
            && !group.is_dead()
        {
            group.batch.store(batch, Ordering::Relaxed);
        }
    }

    /// Charges `nr_pages` to a group and all its ancestors, or to none of them.
    ///
    /// Cost: one read-modify-write where the CPU's stock has the pages; else one for each level,
    /// for a batch. At the limit the subtree's stocks are drained before the charge is refused, so
    /// single-threaded it is refused only where the live charges leave no room.
    ///
    /// # Errors
    /// [`OverLimit`] with the level that refused; every counter is as it was.
    #[inline]
    pub fn charge(&self, cpu: Cpu, id: u32, nr_pages: u32) -> Result<(), OverLimit> {
        let batch = self.live(id).batch.load(Ordering::Relaxed);
        if nr_pages < batch && self.stocks.of(cpu).consume(id, nr_pages) {
            return Ok(());
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
    ) -> Result<(), OverLimit> {
        if nr_pages < batch && self.charge_counters(id, batch).is_ok() {
            if let Some(surplus) = self.stocks.of(cpu).refill(id, batch - nr_pages, batch) {
                self.uncharge_counters(surplus.group, surplus.nr_pages);
            }
            self.drain_if_exact(self.live(id), id);
            return Ok(());
        }
        // Each level that refuses is drained once: an outer one may refuse for its own stocks.
        let mut drained = None;
        for _ in 0..=MAX_DEPTH {
            let Err(over) = self.charge_counters(id, nr_pages) else {
                return Ok(());
            };
            if drained == Some(over.group) {
                break;
            }
            self.drain(over.group);
            drained = Some(over.group);
        }
        self.charge_counters(id, nr_pages).inspect_err(|over| {
            self.live(over.group)
                .events_max
                .fetch_add(1, Ordering::Relaxed);
        })
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
        let pages = bytes.div_ceil(crate::units::PAGE_BYTES);
        let nr_pages = u32::try_from(pages).map_err(|_| OverLimit { group: self.root })?;
        self.charge(cpu, self.root, nr_pages)
    }

    fn charge_counters(&self, id: u32, nr_pages: u32) -> Result<(), OverLimit> {
        for (level, group) in self.path(id) {
            if !group.try_add(u64::from(nr_pages)) {
                let visited = self.path(id).take_while(|&(below, _)| below != level);
                visited.for_each(|(_, group)| group.sub(u64::from(nr_pages)));
                return Err(OverLimit { group: level });
            }
        }
        Ok(())
    }

    fn uncharge_counters(&self, id: u32, nr_pages: u32) {
        self.path(id)
            .for_each(|(_, group)| group.sub(u64::from(nr_pages)));
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
            .map(|line| line.held(|group| self.is_in(group, subtree)))
            .sum()
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
