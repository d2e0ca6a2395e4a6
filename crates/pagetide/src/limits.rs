//! Limits and protections of groups.

use crate::builder::bytes_of;
use crate::shared::Shared;
use crate::stats::by_name;
use crate::trace;
use crate::{ByteSize, Error, Group, Memory, PAGE_BYTES};
use pagetide_core::frame::{State, flag};
use pagetide_core::group::{self, Limit, MinOverMax, NO_LIMIT};
use pagetide_core::memory::BadBudget;
use pagetide_core::units::{Frame, PageType};

impl Shared {
    /// Anon pages of a group and those below it that have to be swapped out before they can go: how
    /// many each is of 4 KiB. No counter has them: O(frames) for all.
    pub(crate) fn dirty_anon_pages(&self, group: u32) -> impl Iterator<Item = u64> {
        let (frames, groups) = (self.core.frames(), self.core.groups());
        let is_dirty = move |frame: &Frame| {
            let word = frames.word(*frame);
            word.state() == State::Live
                && word.has(flag::DIRTY)
                && frames.page_type(*frame) == PageType::Anon
                && groups.is_in(frames.group(*frame), group)
        };
        let dirty = (0..frames.len()).map(Frame::new).filter(is_dirty);
        dirty.map(|frame| u64::from(frames.block(frame).0.nr_pages()))
    }
}

impl Group {
    /// [`Group::set_min`] in a chain of calls.
    ///
    /// # Errors
    /// [`Error::MinOverMax`].
    pub fn min(self, min: ByteSize) -> Result<Group, Error> {
        self.set_min(min)?;
        Ok(self)
    }

    /// [`Group::set_low`] in a chain of calls.
    #[must_use]
    pub fn low(self, low: ByteSize) -> Group {
        self.set_low(low);
        self
    }

    /// [`Group::set_high`] in a chain of calls.
    #[must_use]
    pub fn high(self, high: ByteSize) -> Group {
        self.set_high(high);
        self
    }

    /// [`Group::set_max`] in a chain of calls.
    ///
    /// # Errors
    /// As [`Group::set_max`].
    pub fn max(self, max: ByteSize) -> Result<Group, Error> {
        self.set_max(max)?;
        Ok(self)
    }

    /// Protects the group: while its usage is at most this, no other group's need takes pages from
    /// it. Rounded down to whole pages; 0: no protection.
    ///
    /// A group protects what its ancestors protect at most: siblings that ask for more than their
    /// parent has share it in proportion. What a parent has and no child asks for protects its
    /// children in proportion to what they use. Source: `memory.min`, with `memory_recursiveprot`.
    ///
    /// # Errors
    /// [`Error::MinOverMax`]; nothing is changed.
    pub fn set_min(&self, min: ByteSize) -> Result<(), Error> {
        self.shared().check_process()?;
        self.set_limit(Limit::Min, pages_of(min))
    }

    /// Protects the group as [`Group::set_min`] does, as long as others have pages to give. Where
    /// they have none, it is reclaimed from too, and its `low` event counted.
    pub fn set_low(&self, low: ByteSize) {
        let set = self.set_limit(Limit::Low, pages_of(low));
        set.expect("`low` has no bound");
    }

    /// Above this, whoever charges the group reclaims in it, as long as that frees pages, and is
    /// slowed down by sleeping where it frees fewer than were charged: for longer the more the
    /// group is over, at most [`Builder::throttle_max`](crate::Builder::throttle_max) at a time.
    /// Nobody sleeps in a hook, nor while the thread holds a page that it pinned since any group
    /// has a `high`; one that another thread drops counts as held by whoever pinned it. How much
    /// may be dirty is a part of `high`, too, where that is below `max`. Rounded down to whole
    /// pages.
    pub fn set_high(&self, high: ByteSize) {
        let set = self.set_limit(Limit::High, pages_of(high));
        set.expect("`high` has no bound");
    }

    /// Lifts `high`.
    pub fn clear_high(&self) {
        let set = self.set_limit(Limit::High, NO_LIMIT);
        set.expect("`high` has no bound");
    }

    /// Nothing in a forked child: see [`Error::Forked`].
    fn set_limit(&self, limit: Limit, pages: u64) -> Result<(), Error> {
        if self.shared().is_forked() {
            return Ok(());
        }
        let set = self.shared().core.set_limit(self.id(), limit, pages);
        set.map_err(|refused| self.min_over_max(refused))
    }

    fn min_over_max(&self, refused: MinOverMax) -> Error {
        Error::MinOverMax {
            group: self.path(),
            min_pages: refused.min,
            max_pages: refused.max,
        }
    }

    /// Sets the hard limit, in whole pages rounded down, at once for new charges; reclaims what is
    /// over it, and waits for pages that are being read as [`Group::alloc`] does. `u64::MAX` bytes
    /// are no limit, as at first. The root's limit is the budget: see [`Memory::set_budget`].
    ///
    /// # Errors
    /// [`Error::StillOver`] where pages in use keep the group over it, or ones that the `min` of a
    /// group below it protects; the limit stays set.
    /// [`Error::MinOverMax`]; nothing is changed.
    pub fn set_max(&self, max: ByteSize) -> Result<(), Error> {
        self.shared().check_process()?;
        let shared = self.shared();
        let core = &shared.core;
        let pages = pages_of(max);
        if self.id() == core.groups().root() {
            return self.set_budget(pages);
        }
        let over = core.set_max(shared.here().waiting_for_reads(), self.id(), pages);
        shared.group_came_back(self.id());
        shared.settle();
        match over.map_err(|refused| self.min_over_max(refused))? {
            0 => Ok(()),
            over_pages => Err(self.still_over(over_pages)),
        }
    }

    /// Sets the root's limit.
    fn set_budget(&self, pages: u64) -> Result<(), Error> {
        let shared = self.shared();
        let over = shared
            .core
            .set_budget(shared.here().waiting_for_reads(), pages);
        shared.fill_balloon();
        shared.group_came_back(self.id());
        match over {
            Ok(0) => Ok(()),
            Ok(over_pages) => Err(self.still_over(over_pages)),
            Err(BadBudget { least, .. }) if pages < least => Err(Error::BudgetTooSmall {
                budget_bytes: bytes_of(pages),
                needed_bytes: bytes_of(least),
                arena_bytes: bytes_of(shared.core.config().arena_pages.into()),
            }),
            Err(BadBudget { most, .. }) => Err(Error::BudgetTooLarge {
                budget_bytes: bytes_of(pages),
                max_bytes: bytes_of(most),
            }),
        }
    }

    #[cold]
    fn still_over(&self, over_pages: u64) -> Error {
        let pinned = self.shared().core.pinned(self.id());
        let dirty_anon = self.shared().dirty_anon_pages(self.id());
        let (stat, page_bytes) = (self.stat(), PAGE_BYTES as u64);
        Error::StillOver {
            group: self.path(),
            over_pages,
            usage_pages: self.record().usage(),
            pinned_pages: pinned.map(|page| u64::from(page.nr_pages)).sum(),
            dirty_pages: stat.file_dirty / page_bytes + dirty_anon.sum::<u64>(),
            anon_pages: stat.anon / page_bytes,
            reserved_pages: stat.slab_unreclaimable.div_ceil(page_bytes),
            kernel_pages: stat.kernel / page_bytes,
        }
    }

    /// The hard limit; `None` where only ancestors limit the group.
    #[must_use]
    pub fn limit(&self) -> Option<ByteSize> {
        self.bytes_of(Limit::Max)
    }

    /// What [`Group::set_high`] set; `None` where nothing is.
    #[must_use]
    pub fn high_limit(&self) -> Option<ByteSize> {
        self.bytes_of(Limit::High)
    }

    /// What [`Group::set_min`] and [`Group::set_low`] set.
    #[must_use]
    pub fn protections(&self) -> (ByteSize, ByteSize) {
        let of = |limit| ByteSize(bytes_of(self.record().limit(limit)));
        (of(Limit::Min), of(Limit::Low))
    }

    fn bytes_of(&self, limit: Limit) -> Option<ByteSize> {
        let pages = self.record().limit(limit);
        (pages != NO_LIMIT).then(|| ByteSize(bytes_of(pages)))
    }

    /// How often limits were met in the group and those below it.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::of(self.record().events())
    }

    /// How often limits of this very group were met.
    #[must_use]
    pub fn events_local(&self) -> Events {
        Events::of(self.record().events_local())
    }
}

impl Memory {
    /// Changes the budget, within what the arena was made for
    /// ([`Builder::arena_max`](crate::Builder::arena_max)). A smaller one reclaims, and gives the
    /// memory of what it has less back to the OS before it returns.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`], [`Error::BudgetTooLarge`]: nothing is changed.
    /// [`Error::StillOver`] where memory in use keeps it over the new budget, or what the `min` of
    /// a group protects; the new one stays set.
    pub fn set_budget(&self, budget: ByteSize) -> Result<(), Error> {
        let set = self.root().set_max(budget);
        trace::budget_set(budget.as_u64(), &set);
        set
    }
}

fn pages_of(bytes: ByteSize) -> u64 {
    bytes.as_u64() / PAGE_BYTES as u64
}

/// How often limits were met. Displayed as `memory.events` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// Reclaimed from though usage was within `low`.
    pub low: u64,
    /// A charge took usage above `high`.
    pub high: u64,
    /// A charge met `max`, and reclaimed or was refused. Each try counts: a request that waits for
    /// memory may charge many times.
    pub max: u64,
    /// A request was refused because of `max`.
    pub oom: u64,
}

impl Events {
    fn of(core: group::Events) -> Events {
        Events {
            low: core.low,
            high: core.high,
            max: core.max,
            oom: core.oom,
        }
    }

    /// The numbers by the kernel's names.
    pub(crate) fn lines(&self) -> [(&'static str, u64); 4] {
        by_name!(*self => Events { low, high, max, oom })
    }
}

impl std::fmt::Display for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = self.lines().map(|(name, count)| format!("{name} {count}"));
        f.write_str(&lines.join("\n"))
    }
}
