#![doc = include_str!("README.md")]

mod bytes;
mod charge;
mod large;
mod limits;
mod magazines;
mod placement;
mod pressure;
pub mod protect;
mod reclaim_counts;
mod record;
mod stock;
pub mod throttle;
mod walk;

pub use charge::Charged;
pub use limits::{MinOverMax, Protection};
pub use placement::{CpuMask, Place};
pub use pressure::{PressureLine, PressureStats, Stalled, Window};
pub use reclaim_counts::ReclaimCount;
pub use record::{Count, Event, Events, Gauge, Group, Limit, NO_LIMIT};
pub use stock::{
    ByteLine, InHand, Item, Line, NR_BYTE_WORDS, NR_ITEMS, NR_SLOTS, Out, OwnerStock, Sink,
    SpinStock, StockKind, StockLine, StockStats, Surplus,
};

use crate::sync::{AtomicU32, AtomicU64, NoMetadata, Ordering, PerCpu, SpinLock, Table};
use crate::sync::{full_fence, rank};
use crate::units::{Cpu, index};
use reclaim_counts::ReclaimCounts;
use stock::{Counts, Shares, Stocks};

/// Pages that a stock slot is filled with, where the root's `max` allows.
///
/// Source: the kernel's `MEMCG_CHARGE_BATCH`.
pub const BATCH: u32 = 64;
/// Levels below the root that a tree may have.
pub const MAX_DEPTH: u32 = 16;
/// Looks at all groups, without a lock, of one who would see them at one moment.
const MAX_LOOKS: u32 = 4;
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

/// The tree of groups, and the stocks of all CPUs.
#[derive(Debug)]
pub struct Tree {
    groups: Table<Group>,
    reclaim_counts: Table<ReclaimCounts>,
    /// Serialises changes of the tree's shape and limits.
    shape: SpinLock<(), { rank::GROUP_TREE }>,
    stocks: Stocks,
    kind: StockKind,
    counts: PerCpu<Counts>,
    /// Stocks of a group that drains emptied.
    nr_drained: AtomicU64,
    /// Who took statistics out of stocks, or keeps records for another count: none goes meanwhile.
    in_hand: InHand,
    /// Groups whose records went, twice; odd while one's counts pass to its parent.
    burials: AtomicU64,
    root: u32,
    nr_cpus: u32,
    walks: walk::Walks,
    /// Not 0 while a group may be over its limit: since a lowered `max` or a forced charge, which
    /// adds one, until a limit is set and none is.
    has_over: AtomicU32,
    /// 1 once any group has said on which nodes or CPUs it is.
    is_placed: AtomicU32,
    /// 1 once any group had a `min` or a `low`.
    is_protected: AtomicU32,
    /// 1 once any group had a `high`.
    has_high: AtomicU32,
    /// Pages charged for core's own records since.
    nr_record_pages: AtomicU32,
}

impl Tree {
    /// Bytes that [`Tree::try_new`] takes.
    #[must_use]
    pub const fn bytes(nr_cpus: u32, stocks: StockKind) -> usize {
        Stocks::bytes(stocks, nr_cpus) + PerCpu::<Counts>::bytes(nr_cpus)
    }

    /// A tree of a root alone, limited to `max` pages, with stocks of a `kind`.
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(nr_cpus: u32, max: u64, kind: StockKind) -> Result<Tree, NoMetadata> {
        let groups: Table<Group> = Table::new();
        let stocks = Stocks::try_new(kind, nr_cpus, max)?;
        let counts = PerCpu::try_new(nr_cpus, Counts::default)?;
        let set_up = |_, group: &Group| {
            group.reset(0);
            group.store_limit(Limit::Max, max);
        };
        let root = groups.insert(|_| true, set_up)?;
        let shape = SpinLock::new(());
        let tree = Tree {
            groups,
            reclaim_counts: Table::new(),
            shape,
            stocks,
            kind,
            counts,
            nr_drained: AtomicU64::new(0),
            in_hand: InHand::default(),
            burials: AtomicU64::new(0),
            root,
            walks: walk::Walks::default(),
            nr_cpus: nr_cpus.max(1),
            has_over: AtomicU32::new(0),
            is_placed: AtomicU32::new(0),
            is_protected: AtomicU32::new(0),
            has_high: AtomicU32::new(0),
            nr_record_pages: AtomicU32::new(0),
        };
        tree.set_batches(root);
        Ok(tree)
    }

    /// Which stocks it has.
    #[must_use]
    pub fn stock_kind(&self) -> StockKind {
        self.kind
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

    /// Pages of the tables of groups and of their counts, but for the root's chunk, which is
    /// charged to nobody.
    pub(crate) fn nr_table_pages(&self) -> usize {
        self.groups.nr_pages_from(1) + self.reclaim_counts.nr_pages_from(0)
    }

    /// Slots of the table of groups that were made so far.
    pub(crate) fn nr_slots(&self) -> u32 {
        self.groups.nr_slots()
    }

    /// The slot of a group: 1 to [`Tree::nr_slots`].
    pub(crate) fn slot_of(&self, id: u32) -> usize {
        index(id & Table::<Group>::SLOT_MASK)
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

    /// The groups of a subtree. O(groups), but for one without children.
    pub fn subtree(&self, top: u32) -> impl Iterator<Item = (u32, &Group)> {
        let leaf = self.leaf(top);
        let all = leaf.is_none().then(|| self.iter());
        let below = all.into_iter().flatten();
        let below = below.filter(move |&(id, _)| self.is_in(id, top));
        leaf.map(|group| (top, group)).into_iter().chain(below)
    }

    /// Records that [`Tree::subtree`] looks at, in all.
    pub(crate) fn subtree_looks(&self, top: u32) -> u32 {
        let all = || self.groups.nr_slots();
        self.leaf(top).map_or_else(all, |_| 1)
    }

    /// A group, where nothing is below it.
    fn leaf(&self, id: u32) -> Option<&Group> {
        let has_none = |group: &&Group| group.nr_children.load(Ordering::Relaxed) == 0;
        self.get(id).filter(has_none)
    }

    /// Makes a child without limits of its own.
    ///
    /// # Errors
    /// [`ChildError`] where the parent is dead or too deep, or the record is refused.
    pub fn child(&self, cpu: Cpu, parent: u32) -> Result<u32, ChildError> {
        let above = self.get(parent).filter(|group| !group.is_dead());
        let above = above.ok_or(ChildError::DeadParent)?;
        // The parent and those above it: as many levels as the child is below the root.
        if self.path(parent).count() > index(MAX_DEPTH) {
            return Err(ChildError::TooDeep);
        }
        let charge = |bytes: usize| self.charge_records(cpu, bytes).is_ok();
        let set_up = |_, group: &Group| group.reset(parent);
        let made = self.groups.insert(charge, set_up);
        let id = made.map_err(ChildError::NoMetadata)?;
        above.nr_children.fetch_add(1, Ordering::Relaxed);
        self.live(id).inherit_policy(above);
        let _shape = self.shape.lock();
        self.set_batch(id);
        Ok(id)
    }

    /// Sets how a group's pages are replaced, for it and for children made from now on; false where
    /// it has a lruvec, which keeps what it was made for.
    pub fn set_replacement(&self, id: u32, policy: u16) -> bool {
        let _shape = self.shape.lock();
        let group = self.get(id).filter(|group| group.lruvec() == 0);
        group.is_some_and(|group| {
            group.set_policy(policy);
            true
        })
    }

    /// Puts a lruvec that was made for a policy before `first`, which was the group's first one;
    /// false where either is another by now.
    pub fn add_lruvec(&self, group: &Group, (id, policy): (u32, u16), first: u32) -> bool {
        let _shape = self.shape.lock();
        let is_as_made = group.lruvec() == first && group.policy() == policy;
        if is_as_made {
            group.set_lruvec(id);
        }
        is_as_made
    }

    /// Says that the last handle of a group is gone. Its record goes once nothing is charged.
    pub fn kill(&self, id: u32) {
        let group = self.live(id);
        // Before it is dead: nobody buries it until its statistics are booked.
        let _taking = self.in_hand.begin();
        let shape = self.shape.lock();
        // Exact from here on: nothing may stay in a stock.
        group.set_shares(Shares::default());
        group.dead.store(1, Ordering::Release);
        // Its pages are the parent's now, which may protect them as its own.
        group.store_limit(Limit::Min, 0);
        group.store_limit(Limit::Low, 0);
        group.publish_limit();
        self.tell_claims(group);
        drop(shape);
        self.stocks.publish();
        self.drain(id);
    }

    /// Whether [`Tree::bury`] would free the record of a group, once no statistic is in hand.
    #[must_use]
    pub fn is_empty(&self, id: u32) -> bool {
        self.get(id).is_some_and(|group| {
            let is_used = group.usage() > 0 || group.nr_children.load(Ordering::Relaxed) > 0;
            group.is_dead() && !is_used && id != self.root
        })
    }

    /// Keeps the records of all groups until it is dropped: for who counts something of a group
    /// that may have no page any more.
    pub(crate) fn keep_records(&self) -> impl Drop + use<'_> {
        self.in_hand.begin()
    }

    /// Frees the record of a dead group to which nothing is charged and which has no children;
    /// later, where somebody has a statistic in hand, which may be its own. Returns the id of its
    /// first lruvec (0 for none) if it did: of several callers, one does.
    pub fn bury(&self, id: u32) -> Option<u32> {
        let _shape = self.shape.lock();
        let group = self.get(id).filter(|_| self.is_empty(id))?;
        if self.in_hand.is_any() {
            return None;
        }
        let lruvec = group.lruvec();
        self.tell_claims(group);
        self.count_burial();
        if let Some(parent) = self.get(group.parent()) {
            self.leave_for_good(group, parent);
            parent.inherit(group);
            // With a page, and so before a fault, it has a record of counts.
            let nr_faults = group.count(Count::Pgmajfault);
            self.add_reclaim_count(id, ReclaimCount::PgmajfaultOfGone, nr_faults);
            self.inherit_reclaim_counts(parent, group);
            parent.nr_children.fetch_sub(1, Ordering::Relaxed);
        }
        self.groups.remove(id);
        self.count_burial();
        Some(lruvec)
    }

    /// Before and after a group's counts pass to its parent: with the fences in `at_one_moment`,
    /// who sees a part of that sees one of the two.
    fn count_burial(&self) {
        full_fence();
        self.burials.fetch_add(1, Ordering::Relaxed);
        full_fence();
    }

    /// Looks at all groups when no group's counts pass to its parent: else one would be missed, or
    /// be met twice. Looks again where one's did, and after a few times with the lock of the tree's
    /// shape, under which none does.
    pub fn at_one_moment(&self, mut look: impl FnMut()) {
        for _ in 0..MAX_LOOKS {
            let before = self.burials.load(Ordering::Relaxed);
            full_fence();
            look();
            full_fence();
            if before.is_multiple_of(2) && self.burials.load(Ordering::Relaxed) == before {
                return;
            }
        }
        let _shape = self.shape.lock();
        look();
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
