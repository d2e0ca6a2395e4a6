//! What a memory is built from, and what that takes.

use super::evacuate::Evacuation;
use super::magazine::Magazines;
use crate::alloc::{Config as AllocConfig, Topology, Zones};
use crate::frame::FrameTable;
use crate::group::{CpuMask, StockKind, Tree};
use crate::page_cache::{Claims, Index};
use crate::reclaim::{Policy, Shadows};
use crate::sync::Sections;
use crate::units::PAGE_BYTES;

/// Pages that a budget must leave for content and for what is recorded of the first groups and
/// files.
pub const MIN_PAGES: u32 = 32;
/// Frames beyond the budget, besides 1/64 of it: 12 MiB of the 16 that the budget's promise allows.
const MAX_SLACK: u32 = 3072;
/// Source: the kernel's default of `vm.swappiness`.
const SWAPPINESS: u8 = 60;
/// Pages of the default reserve of writes: a few blocks for each of a few writes at a time.
pub const WRITE_RESERVE_PAGES: u32 = 16;
/// Pages for the first chunks of core's tables and the slack of the root's stocks.
pub(super) const TABLE_PAGES: u32 = 64;

/// What a memory is built from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The budget in pages: content, working memory and core's own records together.
    pub budget_pages: u32,
    /// What the budget may be raised to later, in pages: frames are made for it. At least the
    /// budget itself.
    pub arena_pages: u32,
    /// Frames whose evicted pages are remembered, four times over.
    pub shadow_frames: u32,
    /// Which page goes. Groups may have their own:
    /// [`Memory::set_policy`](super::Memory::set_policy).
    pub policy: Policy,
    /// What bringing back a page of a file costs, 0 to 200; an anon page costs 200 less it.
    /// Default: 60, as the kernel's `vm.swappiness`.
    pub swappiness: u8,
    /// Pages that were queued less than so long ago stay where the budget is met, rather than
    /// that all of them come and go: in ns, by the coarse clock. Default: 0, none stay.
    ///
    /// The oldest generation of a lruvec stands for its pages; a policy without generations shows
    /// its coldest page, one that knows neither (`fifo`, `two-list`) keeps none.
    pub min_ttl_ns: u64,
    /// The allocator room, with the topology.
    pub alloc: AllocConfig,
    /// How charges are held ahead on a CPU. Default: [`StockKind::Atomic`].
    pub stocks: StockKind,
    /// Pages of the budget that are kept for working memory of stores that write. Default:
    /// [`WRITE_RESERVE_PAGES`].
    pub write_reserve_pages: u32,
    /// Restartable sequences, but on CPUs that nobody may interrupt. Default: none, but locks.
    pub sections: Option<(Sections, CpuMask)>,
}

impl Config {
    /// A memory under `budget_pages`, on one node with `nr_cpus` possible CPUs.
    #[must_use]
    pub fn new(budget_pages: u32, nr_cpus: u32, policy: Policy) -> Config {
        Config::on(Topology::uniform(nr_cpus), budget_pages, policy)
    }

    /// A memory under `budget_pages` on these nodes and CPUs.
    #[must_use]
    pub fn on(topology: Topology, budget_pages: u32, policy: Policy) -> Config {
        Config {
            budget_pages,
            arena_pages: budget_pages,
            shadow_frames: budget_pages,
            policy,
            swappiness: SWAPPINESS,
            min_ttl_ns: 0,
            alloc: AllocConfig::new(topology),
            stocks: StockKind::default(),
            write_reserve_pages: WRITE_RESERVE_PAGES,
            sections: None,
        }
    }

    /// The smallest budget under which a group of at most `nr_pages` pages is never evicted from
    /// because of the budget: only its own `max` evicts.
    ///
    /// The runtime and the simulator replay traces with this, so that both give the same misses.
    #[must_use]
    pub fn for_resident(nr_pages: u32, nr_cpus: u32, policy: Policy) -> Config {
        let mut config = Config::new(nr_pages, nr_cpus, policy);
        config.fit(nr_pages);
        config
    }

    /// Sets the budget so that `nr_pages` pages fit, as [`Config::for_resident`] does.
    pub fn fit(&mut self, nr_pages: u32) {
        self.shadow_frames = nr_pages;
        self.budget_pages = nr_pages;
        // Each round adds the records of the pages that the last one added: 2 % of them.
        for _ in 0..8 {
            self.budget_pages = nr_pages
                .saturating_add(self.own_pages())
                .saturating_add(TABLE_PAGES)
                .saturating_add(nr_pages / 64);
            self.arena_pages = self.budget_pages;
        }
    }

    /// Frames of the arena: the largest budget, and what per-CPU page caches may hold beyond it, at
    /// most 1/64 of it and 12 MiB: frames that were touched are resident, whoever has them. Where
    /// that is less, with many CPUs under a small budget, caches are drained for the last pages.
    ///
    /// `u32::MAX` stands for more than there are numbers for, which
    /// [`Memory::try_new`](super::Memory::try_new) refuses.
    #[must_use]
    pub fn nr_frames(&self) -> u32 {
        let nr_pages = self.arena_pages.max(self.budget_pages);
        let slack = self.alloc.slack(nr_pages);
        nr_pages.saturating_add(slack.min(nr_pages / 64 + MAX_SLACK))
    }

    /// Bytes of core's own tables, charged to the root when the memory is built.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        let nr_cpus = self.alloc.topology.nr_cpus();
        FrameTable::bytes(self.nr_frames())
            + Index::bytes(self.nr_frames())
            + Claims::bytes(nr_cpus)
            + Shadows::bytes(self.shadow_frames)
            + Evacuation::bytes(self.nr_frames())
            + Zones::bytes(&self.alloc, self.nr_frames())
            + Tree::bytes(nr_cpus, self.stocks)
            + Magazines::bytes(nr_cpus, self.nr_frames())
    }

    /// [`Config::metadata_bytes`] in whole pages.
    #[must_use]
    pub fn metadata_pages(&self) -> u32 {
        u32::try_from(self.metadata_bytes().div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX)
    }

    /// Pages that are charged to the root when the memory is built: its tables, and the reserve of
    /// writes.
    #[must_use]
    pub fn own_pages(&self) -> u32 {
        self.metadata_pages()
            .saturating_add(self.write_reserve_pages)
    }

    /// The least budget, from this one on, under which a memory is built: it leaves [`MIN_PAGES`]
    /// beside the tables, which grow with it.
    #[must_use]
    pub fn least_budget_pages(&self) -> u32 {
        let mut config = self.clone();
        let remembers_all = config.shadow_frames == config.budget_pages;
        loop {
            let needed = config.own_pages().saturating_add(MIN_PAGES);
            if config.budget_pages >= needed {
                return config.budget_pages;
            }
            config.budget_pages = needed;
            if remembers_all {
                config.shadow_frames = needed;
            }
        }
    }
}
