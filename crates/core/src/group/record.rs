//! One node of the tree: its counters, limits, protections and events.

#[cfg(doc)]
use super::Item;
use super::placement::Placement;
use super::pressure::Pressure;
use super::stock::{NR_ITEMS, Shares};
use super::walk::Links;
use crate::sync::{AtomicU32, AtomicU64, Ordering, prefetch_to_write};
use crate::units::PageType;

/// No limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// The four settings of a group, in pages. Source: `memory.min`, `.low`, `.high`, `.max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Never reclaimed from outside while usage is at most this.
    Min,
    /// Reclaimed from outside only where nothing else is left.
    Low,
    /// Above it the charger reclaims and is slowed down.
    High,
    /// Above it a charge is refused.
    Max,
}

const NR_LIMITS: usize = 4;

/// What a group counts, in the words of `memory.events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Reclaimed from though usage was within `low`.
    Low,
    /// A charge took usage above `high`.
    High,
    /// A charge met `max`.
    Max,
    /// A request was refused for good because of a limit. Counted by the runtime, which may wait
    /// and ask again before.
    Oom,
}

pub(super) const NR_EVENTS: usize = 4;

/// How often each [`Event`] happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// See [`Event::Low`].
    pub low: u64,
    /// See [`Event::High`].
    pub high: u64,
    /// See [`Event::Max`].
    pub max: u64,
    /// See [`Event::Oom`].
    pub oom: u64,
}

/// What a group counts beside its events, by the names of `memory.stat` where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Pages charged past a limit because the charge could not fail. Not a name of the kernel's.
    Pgforced,
    /// Evicted anon pages that were asked for again and that the policy took for pages in use.
    WorkingsetActivateAnon,
    /// Evicted anon pages that were asked for again and should not have gone.
    WorkingsetRestoreAnon,
    /// Evicted anon pages that were asked for again while their shadow was there.
    WorkingsetRefaultAnon,
    /// Pages that were not resident when asked for. `pgmajfault`.
    Pgmajfault,
    /// [`Count::WorkingsetRefaultAnon`] of pages of files.
    WorkingsetRefaultFile,
    /// [`Count::WorkingsetActivateAnon`] of pages of files.
    WorkingsetActivateFile,
    /// [`Count::WorkingsetRestoreAnon`] of pages of files.
    WorkingsetRestoreFile,
}

const NR_COUNTS: usize = 8;

/// How many pages of a group are in some state now, by the names of `memory.stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// Pages of files whose content is being read. Not a name of the kernel's.
    FileReading,
    /// Anon pages that are being brought back.
    AnonReading,
    /// Pages that must be written before they can go.
    FileDirty,
    /// Pages that are being written.
    FileWriteback,
}

const NR_GAUGES: usize = 4;

impl Gauge {
    fn reading(page_type: PageType) -> Gauge {
        match page_type {
            PageType::File => Gauge::FileReading,
            PageType::Anon => Gauge::AnonReading,
        }
    }
}

#[derive(Debug, Default)]
struct EventCounts([AtomicU64; NR_EVENTS]);

impl EventCounts {
    fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> Events {
        let of = |event: Event| self.0[event as usize].load(Ordering::Relaxed);
        Events {
            low: of(Event::Low),
            high: of(Event::High),
            max: of(Event::Max),
            oom: of(Event::Oom),
        }
    }
}

/// What a group claims of its parent's protection, by `min` and by `low`.
#[derive(Debug, Default)]
struct Claims {
    /// The smaller of usage and setting, as last told to the parent.
    own: [AtomicU32; 2],
    /// Sum of the children's.
    children: [AtomicU64; 2],
}

/// One node of the tree. All counts are pages.
///
/// By lines: what charges change, what reads of missing pages change, what seldom changes; in the
/// last one what each charge looks at.
#[derive(Debug, Default)]
#[repr(C)] // Begins a line in its table.
pub struct Group {
    /// Live charges and stocks of the subtree.
    usage: AtomicU64,
    peak: AtomicU32,
    /// Frames that reclaimers are taking of it, where it is protected. Never reset: a group may go
    /// with the last of them.
    taken: AtomicU32,
    pub(super) nr_children: AtomicU32,
    /// Bytes of charged pages that no CPU and no object has, below a page.
    pub(super) parked: AtomicU32,
    /// Bytes of the subtree by [`Item`], signed.
    pub(super) state: [AtomicU64; NR_ITEMS],
    counts: [AtomicU64; NR_COUNTS],
    gauges: [AtomicU32; NR_GAUGES],
    pub(super) pressure: Pressure,
    /// Claims by `min` and by `low`.
    claims: Claims,
    /// Of the subtree, and of this very group.
    events: [EventCounts; 2],
    pub(super) links: Links,
    pub(super) placement: Placement,
    /// `u32::MAX` is none: an arena has fewer pages.
    limits: [AtomicU32; NR_LIMITS],
    /// Id of the parent, 0 for the root.
    pub(super) parent: AtomicU32,
    /// 1 once the last handle is gone: freed as soon as nothing is charged.
    pub(super) dead: AtomicU32,
    /// Pages a stock slot keeps for this group; 0: charges are exact.
    pub(super) batch: AtomicU32,
    /// Pages that a CPU keeps for this group's large blocks; 0: none.
    large: AtomicU32,
    /// Pages that a CPU's part of the depot keeps for this group.
    depot: AtomicU32,
    /// Id of the group's first lruvec, 0 before its first page.
    lruvec: AtomicU32,
    /// Id of its record of what reclaim counted, 0 before its first page.
    pub(super) reclaim_counts: AtomicU32,
    /// How its pages are replaced, in a number of those who do that, and its swappiness: half each.
    policy: AtomicU32,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use core::mem::offset_of;
    const LINE: usize = 64;
    let hot_counts = offset_of!(Group, counts) + Count::WorkingsetRefaultAnon as usize * 8;
    let end_of_lock = offset_of!(Group, pressure) + 8;
    assert!(hot_counts == LINE && end_of_lock == 2 * LINE);
    assert!(offset_of!(Group, limits) == 7 * LINE);
};

/// Pages in 32 bits: an arena has fewer, whatever was forced or set.
fn pages(nr_pages: u64) -> u32 {
    u32::try_from(nr_pages).unwrap_or(u32::MAX)
}

/// A setting as it is read again: [`NO_LIMIT`] for more pages than there can be.
pub(super) fn as_stored(nr_pages: u64) -> u64 {
    match pages(nr_pages) {
        u32::MAX => NO_LIMIT,
        stored => stored.into(),
    }
}

impl Group {
    /// Sets the record up for a new child; a record is used again after its group has gone.
    pub(super) fn reset(&self, parent: u32) {
        self.parent.store(parent, Ordering::Relaxed);
        let counts = [&self.dead, &self.lruvec, &self.nr_children, &self.batch];
        let more = [
            &self.large,
            &self.depot,
            &self.parked,
            &self.peak,
            &self.reclaim_counts,
        ];
        let more = more.into_iter().chain(&self.gauges);
        for count in counts.into_iter().chain(more) {
            count.store(0, Ordering::Relaxed);
        }
        let counts = self.counts.iter().chain(&self.state);
        for count in counts.chain([&self.usage]) {
            count.store(0, Ordering::Relaxed);
        }
        for (own, children) in self.claims.own.iter().zip(&self.claims.children) {
            own.store(0, Ordering::Relaxed);
            children.store(0, Ordering::Relaxed);
        }
        for count in self.events.iter().flat_map(|counts| &counts.0) {
            count.store(0, Ordering::Relaxed);
        }
        for (limit, pages) in [
            (Limit::Min, 0),
            (Limit::Low, 0),
            (Limit::High, NO_LIMIT),
            (Limit::Max, NO_LIMIT),
        ] {
            self.store_limit(limit, pages);
        }
        self.placement.reset();
        self.pressure.reset();
        self.links.reset();
    }

    /// Takes over from a new child's parent what is set for its pages.
    pub(super) fn inherit_policy(&self, parent: &Group) {
        let policy = parent.policy.load(Ordering::Relaxed);
        self.policy.store(policy, Ordering::Relaxed);
    }

    /// How the group's pages are replaced: a number that whoever does that gives a meaning.
    #[must_use]
    pub fn policy(&self) -> u16 {
        (self.policy.load(Ordering::Relaxed) & 0xFFFF) as u16
    }

    /// Sets [`Group::policy`].
    pub(super) fn set_policy(&self, policy: u16) {
        self.change_policy(|both| both & !0xFFFF | u32::from(policy));
    }

    /// What bringing back a page of a file costs, 0 to 200; an anon page costs 200 less it.
    #[must_use]
    pub fn swappiness(&self) -> u8 {
        (self.policy.load(Ordering::Relaxed) >> 16 & 0xFF) as u8
    }

    /// Sets [`Group::swappiness`].
    pub fn set_swappiness(&self, swappiness: u8) {
        self.change_policy(|both| both & 0xFFFF | u32::from(swappiness) << 16);
    }

    fn change_policy(&self, change: impl Fn(u32) -> u32) {
        let changed = self
            .policy
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |both| {
                Some(change(both))
            });
        assert!(changed.is_ok(), "an update without a condition");
    }

    /// Live charges and stocks of the subtree, in pages.
    #[must_use]
    #[inline]
    pub fn usage(&self) -> u64 {
        self.usage.load(Ordering::Relaxed)
    }

    /// The largest [`Group::usage`] so far.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed).into()
    }

    /// A setting in pages: [`NO_LIMIT`] for no `high` or `max`, 0 for no `min` or `low`.
    #[must_use]
    #[inline]
    pub fn limit(&self, limit: Limit) -> u64 {
        as_stored(self.limits[limit as usize].load(Ordering::Relaxed).into())
    }

    /// The hard limit in pages, [`NO_LIMIT`] where there is none.
    #[must_use]
    #[inline]
    pub fn max(&self) -> u64 {
        self.limit(Limit::Max)
    }

    /// `max`, or `high` where that is less: what batches of charges and of reclaim are a part of.
    #[must_use]
    pub fn max_or_high(&self) -> u64 {
        self.max().min(self.limit(Limit::High))
    }

    /// Pages that a CPU keeps of charges of a batch or more.
    #[must_use]
    pub fn large(&self) -> u32 {
        self.large.load(Ordering::Relaxed)
    }

    /// Pages that a CPU's part of the depot keeps for this group.
    pub(super) fn depot(&self) -> u32 {
        self.depot.load(Ordering::Relaxed)
    }

    /// Says what stocks, magazines and the depot may hold of the group.
    pub(super) fn set_shares(&self, shares: Shares) {
        self.batch.store(shares.batch, Ordering::Relaxed);
        self.large.store(shares.large, Ordering::Relaxed);
        self.depot.store(shares.depot, Ordering::Relaxed);
    }

    pub(super) fn store_limit(&self, limit: Limit, pages: u64) {
        self.limits[limit as usize].store(self::pages(pages), Ordering::Relaxed);
    }

    /// The parent's id, 0 for the root.
    #[must_use]
    #[inline]
    pub fn parent(&self) -> u32 {
        self.parent.load(Ordering::Relaxed)
    }

    /// Events of the subtree.
    #[must_use]
    pub fn events(&self) -> Events {
        self.events[0].read()
    }

    /// Events of this very group. Source: `memory.events.local`.
    #[must_use]
    pub fn events_local(&self) -> Events {
        self.events[1].read()
    }

    pub(super) fn count_event(&self, event: Event, is_local: bool) {
        self.events[0].count(event);
        if is_local {
            self.events[1].count(event);
        }
    }

    /// What this very group counted so far, and, but for [`Count::Pgmajfault`], the groups below it
    /// that are gone.
    #[must_use]
    pub fn count(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Ordering::Relaxed)
    }

    /// Has fetched what is counted of pages that are read, for a caller that counts soon.
    #[inline]
    pub fn touch_counts(&self) {
        prefetch_to_write(&raw const self.gauges);
    }

    /// Counts more of something. One read-modify-write.
    pub fn add_count(&self, count: Count, more: u64) {
        self.counts[count as usize].fetch_add(more, Ordering::Relaxed);
    }

    /// Pages of this very group in a state; exact at rest.
    #[must_use]
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        let nr_pages = self.gauges[gauge as usize].load(Ordering::Relaxed);
        // Below zero for a moment: a page is counted after its word has changed.
        if nr_pages > u32::MAX / 2 {
            0
        } else {
            nr_pages.into()
        }
    }

    /// Pages of the group have come into a state. One read-modify-write.
    pub fn add_gauge(&self, gauge: Gauge, nr_pages: u32) {
        self.gauges[gauge as usize].fetch_add(nr_pages, Ordering::Relaxed);
    }

    /// The end of [`Group::add_gauge`].
    pub fn sub_gauge(&self, gauge: Gauge, nr_pages: u32) {
        self.gauges[gauge as usize].fetch_sub(nr_pages, Ordering::Relaxed);
    }

    /// Takes over what a child that goes has counted, but its faults.
    pub(super) fn inherit(&self, child: &Group) {
        let counts = self.counts.iter().zip(&child.counts).enumerate();
        for (_, (own, of_child)) in counts.filter(|&(at, _)| at != Count::Pgmajfault as usize) {
            own.fetch_add(of_child.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Pages of this very group whose content is being read.
    #[must_use]
    pub fn nr_reading(&self) -> u64 {
        PageType::ALL
            .map(|page_type| self.gauge(Gauge::reading(page_type)))
            .iter()
            .sum()
    }

    /// Reads of pages of the group begin, `nr_faults` of them because somebody asked for the page.
    pub fn begin_read(&self, page_type: PageType, nr_pages: u32, nr_faults: u32) {
        self.begin_copy(page_type, nr_pages);
        if nr_faults > 0 {
            self.add_count(Count::Pgmajfault, nr_faults.into());
        }
    }

    /// A copy of a page of the group begins.
    pub fn begin_copy(&self, page_type: PageType, nr_pages: u32) {
        self.add_gauge(Gauge::reading(page_type), nr_pages);
    }

    /// The end of [`Group::begin_read`] or [`Group::begin_copy`].
    pub fn end_read(&self, page_type: PageType, nr_pages: u32) {
        self.sub_gauge(Gauge::reading(page_type), nr_pages);
    }

    /// Id of the group's first lruvec, 0 before its first page.
    #[must_use]
    pub fn lruvec(&self) -> u32 {
        // Acquire pairs with the Release in `set_lruvec`.
        self.lruvec.load(Ordering::Acquire)
    }

    /// Names the group's first lruvec.
    pub(super) fn set_lruvec(&self, id: u32) {
        // Release pairs with the Acquire in `lruvec`.
        self.lruvec.store(id, Ordering::Release);
    }

    /// Whether the last handle is gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire) != 0
    }

    /// Makes a limit that was set seen by every later charge, and sees every earlier one.
    pub(super) fn publish_limit(&self) {
        // A read-modify-write that changes nothing. Release pairs with the Acquire in `try_add` and
        // `add_forced`.
        self.usage.fetch_add(0, Ordering::Release);
    }

    /// Adds to the usage unless that exceeds `max`; returns the new usage if it did.
    pub(super) fn try_add(&self, nr_pages: u64) -> Option<u64> {
        let max = self.max();
        // Acquire pairs with the Release in `publish_limit`.
        let added = self
            .usage
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |usage| {
                usage.checked_add(nr_pages).filter(|&usage| usage <= max)
            });
        let usage = added.ok()? + nr_pages;
        if usage > self.max() {
            // It fell meanwhile, and who lowered it may not have seen this.
            self.sub(nr_pages);
            return None;
        }
        self.raise_peak(usage);
        Some(usage)
    }

    /// Adds to the usage whatever `max` says.
    pub(super) fn add_forced(&self, nr_pages: u64) -> u64 {
        // Acquire pairs with the Release in `publish_limit`.
        let usage = self.usage.fetch_add(nr_pages, Ordering::Acquire) + nr_pages;
        self.raise_peak(usage);
        usage
    }

    fn raise_peak(&self, usage: u64) {
        let usage = pages(usage);
        if usage > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(usage, Ordering::Relaxed);
        }
    }

    pub(super) fn sub(&self, nr_pages: u64) {
        // Acquire pairs with the Release in `publish_limit`.
        let before = self.usage.fetch_sub(nr_pages, Ordering::Acquire);
        assert!(
            before >= nr_pages,
            "uncharge of {nr_pages} pages from {before}"
        );
    }

    /// Charged pages beyond `kept` that no reclaimer is taking.
    pub(crate) fn spare(&self, kept: u64) -> u64 {
        // Acquire pairs with the Release in `give_spare`: what went is not in the usage any more.
        let taken = self.taken.load(Ordering::Acquire);
        self.usage().saturating_sub(kept + u64::from(taken))
    }

    /// Pages that reclaimers are taking though they are not beyond `kept`.
    pub(crate) fn overtaken(&self, kept: u64) -> u64 {
        // Acquire as in `spare`.
        let taken = u64::from(self.taken.load(Ordering::Acquire));
        (kept + taken).saturating_sub(self.usage()).min(taken)
    }

    /// Takes up to `nr_pages` pages beyond `kept`, which count as gone for others until they are
    /// given up; returns how many.
    pub(crate) fn take_spare(&self, kept: u64, nr_pages: u32) -> u32 {
        let mut more = 0;
        let take = |taken: u32| {
            let spare = self.usage().saturating_sub(kept + u64::from(taken));
            more = nr_pages.min(pages(spare));
            (more > 0).then(|| taken.saturating_add(more))
        };
        // Acquire as in `spare`.
        let (order, failed) = (Ordering::Acquire, Ordering::Acquire);
        let _none_is_left = self.taken.fetch_update(order, failed, take);
        more
    }

    /// Gives up pages of [`Group::take_spare`]: ones that stay, or that were uncharged before.
    pub(crate) fn give_spare(&self, nr_pages: u32) {
        self.taken.fetch_sub(nr_pages, Ordering::Release);
    }

    /// Whether it has a `min` or a `low`, or still claims some.
    #[inline]
    pub(super) fn has_claim(&self) -> bool {
        let is_set = |limit| self.limit(limit) != 0;
        let claims = |own: &AtomicU32| own.load(Ordering::Relaxed) != 0;
        is_set(Limit::Min) || is_set(Limit::Low) || self.claims.own.iter().any(claims)
    }

    /// The change of what it claims by `min` and by `low` since it was last told to the parent.
    ///
    /// Where others charge or uncharge meanwhile, it may be of before that: who told it looks
    /// whether it [stays so](Group::claims_as_told).
    pub(super) fn take_claims(&self) -> [(u64, u64); 2] {
        let claims = self.claims_now();
        core::array::from_fn(|which| {
            let now = claims[which];
            // Acquire and Release: whoever changes it last sees what all before it have charged.
            let before = self.claims.own[which].swap(now, Ordering::AcqRel);
            (before.into(), now.into())
        })
    }

    fn claims_now(&self) -> [u32; 2] {
        let usage = self.usage();
        [Limit::Min, Limit::Low].map(|limit| pages(usage.min(self.limit(limit))))
    }

    /// Whether it claims what the parent was told.
    pub(super) fn claims_as_told(&self) -> bool {
        let told = self
            .claims
            .own
            .iter()
            .map(|own| own.load(Ordering::Relaxed));
        told.eq(self.claims_now())
    }

    /// Takes over what [`Group::take_claims`] of a child returned.
    pub(super) fn add_claims(&self, changes: [(u64, u64); 2]) {
        for (claimed, (before, now)) in self.claims.children.iter().zip(changes) {
            // Wraps below zero for a moment where two changes cross; their sum does not.
            let change = now.wrapping_sub(before);
            if change != 0 {
                claimed.fetch_add(change, Ordering::Relaxed);
            }
        }
    }

    /// What the children claim together of `limit`, which is `Min` or `Low`.
    pub(super) fn children_claim(&self, limit: Limit) -> u64 {
        let claimed = &self.claims.children[usize::from(limit == Limit::Low)];
        let sum = claimed.load(Ordering::Relaxed);
        // Below zero for a moment: see `add_claims`. Read as a huge sum, it would protect nobody.
        if sum > u64::MAX / 2 { 0 } else { sum }
    }
}
