#![doc = include_str!("README.md")]

mod ahead;
mod alloc;
mod audit;
mod balance;
mod balloon;
mod begin;
mod bufs;
mod claims;
mod complete;
mod config;
mod depot;
mod direct;
mod effects;
mod evacuate;
mod evict;
mod fault;
mod file;
mod gather;
mod held;
mod here;
mod label;
mod latch;
mod left_pins;
mod longterm;
mod lru_gen;
pub mod magazine;
mod migrate;
mod pins;
mod place;
mod proactive;
mod rack;
mod reach;
mod reclaim;
mod refaults;
mod region;
mod reserve;
mod room;
mod rounds;
mod spare;
mod stat;
mod write;
mod write_reserve;

pub use ahead::Ahead;
pub use alloc::Idle;
pub use audit::AuditError;
pub use balance::Balance;
pub use begin::MAX_TOGETHER;
pub use complete::Ended;
pub use config::{Config, MIN_PAGES, WRITE_RESERVE_PAGES};
pub use effects::{Effect, Effects, Io};
pub use fault::{PageError, PageIn, Step};
pub use file::Discard;
pub use here::{Here, Platform};
pub use lru_gen::LruGen;
pub use pins::Pinned;
pub use reserve::BadBudget;
pub use stat::Stat;
pub use write::{PageWrite, Write, Writes};

use crate::alloc::{ConfigError, ZoneStats, Zones};
use crate::frame::FrameTable;
use crate::group::{BATCH, ChildError, Group, Tree};

use crate::page_cache::{Claims, Index, Mapping, Mappings};
use crate::reclaim::{LruvecRecord, Shadows};
use crate::sync::{AtomicU32, AtomicU64, NoMetadata, Ordering, Table, yield_now};
use crate::units::{Cpu, Order, PageKey, SECOND};
use balance::Background;
use balloon::Balloon;
use evacuate::Evacuation;
use left_pins::LeftPins;
use magazine::Magazines;
use reach::Reclaimer;
use room::Room;
use rounds::Rounds;
use write_reserve::WriteReserve;

/// Dropped groups that could not be buried, before all such are tried again.
const MAX_UNBURIED: u32 = 32;

/// Rounds without progress before reclaim is given up. Source: `MAX_RECLAIM_RETRIES`.
const MAX_RETRIES: u32 = 16;

/// Why a memory was not built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The budget leaves less than [`MIN_PAGES`].
    BudgetTooSmall {
        /// Pages of the budget.
        budget_pages: u32,
        /// Pages that it must have at least.
        needed_pages: u32,
    },
    /// The allocator's configuration does not add up.
    Config(ConfigError),
    /// The allocator refused core's tables.
    NoMetadata(NoMetadata),
}

/// Why there is no memory for a request. Nothing stays charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocError {
    /// `group` is at its `max` and nothing in it can be evicted.
    OverLimit {
        /// The group whose limit it is.
        group: u32,
    },
    /// `group` is at its `max`, and what could be evicted in it are dirty pages that were not
    /// written: their writes fail, or nobody runs them.
    Unwritten {
        /// The group whose limit it is.
        group: u32,
    },
    /// The budget, which is `group`'s `max`, is met, and all pages that could be evicted are
    /// younger than [`Config::min_ttl_ns`].
    Thrashing {
        /// The root.
        group: u32,
    },
    /// No free block of this order, though enough frames are free: in each aligned one that the
    /// group may have is something that is pinned, not movable or protected.
    NoBlock {
        /// The order.
        order: Order,
    },
    /// The budget or the allocator refused a record of core's.
    NoMetadata,
}

/// Counts since the memory was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages that reclaim looked at.
    pub pgscan: u64,
    /// Pages that reclaim evicted.
    pub pgsteal: u64,
    /// Those of `pgscan` that were looked at in the background, for requests, and because the
    /// program asked for it.
    pub pgscan_kswapd: u64,
    /// See `pgscan_kswapd`.
    pub pgscan_direct: u64,
    /// See `pgscan_kswapd`.
    pub pgscan_proactive: u64,
    /// Those of `pgsteal` that were evicted in the background, for requests, and because the
    /// program asked for it.
    pub pgsteal_kswapd: u64,
    /// See `pgsteal_kswapd`.
    pub pgsteal_direct: u64,
    /// See `pgsteal_kswapd`.
    pub pgsteal_proactive: u64,
    /// Times that a request had to reclaim itself.
    pub allocstall: u64,
    /// Runs of background reclaim on a node.
    pub pageoutrun: u64,
    /// Times that it took pages off a lruvec's lists: each locks the lists once, and once more to
    /// say what became of them.
    pub nr_batches: u64,
    /// Times that a multi-gen LRU opened generations and looked at what was pinned.
    pub nr_agings: u64,
    /// Frame records that those looked at.
    pub aging_scanned: u64,
    /// Pages that they promoted.
    pub aging_promoted: u64,
    /// Frame records looked at for blocks to empty.
    pub evacuate_scanned: u64,
    /// Blocks that were emptied for a request.
    pub evacuate_success: u64,
    /// Looks for one that found none, and blocks that were emptied in vain.
    pub evacuate_fail: u64,
    /// Frames of the pages that were moved out of blocks.
    pub pgmigrate_success: u64,
    /// Frames in use: pages, pages being read, working memory.
    pub nr_used: u32,
    /// The counts of all zones.
    pub zone: ZoneStats,
    /// Pages that zones for movable blocks only served, which are in `zone` as well.
    pub pgalloc_movable: u64,
}

#[derive(Debug, Default)]
struct Counters {
    /// Pages looked at, by the [`Reclaimer`].
    scanned: [AtomicU64; Reclaimer::NR],
    evicted: [AtomicU64; Reclaimer::NR],
    batches: AtomicU64,
    stalls: AtomicU64,
    agings: AtomicU64,
    aging_scanned: AtomicU64,
    promoted: AtomicU64,
}

/// All rooms together: one arena's frames, one budget, one tree of groups.
///
/// Shared by reference between threads; every call says on which CPU it runs.
#[derive(Debug)]
pub struct Memory {
    config: Config,
    frames: FrameTable,
    zones: Zones,
    groups: Tree,
    lruvecs: Table<LruvecRecord>,
    index: Index,
    claims: Claims,
    shadows: Shadows,
    mappings: Mappings,
    /// Choices of who is reclaimed from.
    turn: AtomicU64,
    /// Frames of pages that came in: the clock that lruvecs share.
    page_ins: AtomicU64,
    evacuation: Evacuation,
    background: Background,
    room: Room,
    balloon: Balloon,
    write_reserve: WriteReserve,
    left_pins: LeftPins,
    magazines: Magazines,
    /// When magazines were last ticked, in ns.
    magazine_tick: AtomicU64,
    /// Times that a dropped group could not be buried at once.
    nr_unburied: AtomicU32,
    /// Whether a request gathers what it needs.
    gathering: AtomicU32,
    /// Of core's own tables.
    metadata_pages: u32,
    stats: Counters,
}

impl Memory {
    /// Builds a memory. Its own tables are charged to the root group.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn try_new(mut config: Config) -> Result<Memory, BuildError> {
        config.arena_pages = config.arena_pages.max(config.budget_pages);
        config.alloc.check().map_err(BuildError::Config)?;
        let nr_frames = config.nr_frames();
        if nr_frames == u32::MAX {
            let bytes = config.metadata_bytes();
            return Err(BuildError::NoMetadata(NoMetadata { bytes }));
        }
        let metadata = config.metadata_pages();
        let own_pages = config.own_pages();
        let budget_pages = config.budget_pages;
        let needed_pages = config.least_budget_pages();
        if budget_pages < needed_pages {
            return Err(BuildError::BudgetTooSmall {
                budget_pages,
                needed_pages,
            });
        }
        let build = || -> Result<Memory, NoMetadata> {
            let frames = FrameTable::try_new(nr_frames)?;
            let zones = Zones::try_new(config.alloc.clone(), &frames)?;
            let nr_cpus = config.alloc.topology.nr_cpus();
            Ok(Memory {
                zones,
                frames,
                groups: Tree::try_new(nr_cpus, config.budget_pages.into(), config.stocks)?,
                lruvecs: Table::new(),
                index: Index::try_new(nr_frames)?,
                claims: Claims::try_new(nr_cpus, config.sections.as_ref())?,
                shadows: Shadows::try_new(config.shadow_frames)?,
                mappings: Mappings::default(),
                turn: AtomicU64::new(0),
                page_ins: AtomicU64::new(0),
                evacuation: Evacuation::try_new(nr_frames)?,
                background: Background::default(),
                room: Room::default(),
                balloon: Balloon::default(),
                write_reserve: WriteReserve::new(config.write_reserve_pages),
                left_pins: LeftPins::default(),
                magazines: Magazines::try_new(nr_cpus, nr_frames, config.sections.as_ref())?,
                magazine_tick: AtomicU64::new(0),
                nr_unburied: AtomicU32::new(0),
                gathering: AtomicU32::new(0),
                metadata_pages: metadata,
                stats: Counters::default(),
                config,
            })
        };
        let memory = build().map_err(BuildError::NoMetadata)?;
        let root = memory.groups.root();
        let top = memory.groups.get(root).expect("the root stays");
        let is_set = memory.set_policy(root, memory.config.policy);
        assert!(is_set, "no page is there yet");
        top.set_swappiness(memory.config.swappiness);
        let charged = memory.groups.charge_many(Cpu::new(0), root, own_pages);
        assert!(
            charged.is_ok(),
            "the budget has room for the tables (checked above)"
        );
        let untouched = memory.next_offline(Cpu::new(0).into());
        assert!(untouched.is_none(), "no frame was used yet");
        Ok(memory)
    }

    /// What it was built from.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The frame table, for looking at.
    #[must_use]
    pub fn frames(&self) -> &FrameTable {
        &self.frames
    }

    /// The zones of the arena, for looking at.
    #[must_use]
    pub fn zones(&self) -> &Zones {
        &self.zones
    }

    /// The tree of groups. Limits are set by [`Memory::set_max`], groups dropped by
    /// [`Memory::drop_group`], which reclaim as well.
    #[must_use]
    pub fn groups(&self) -> &Tree {
        &self.groups
    }

    /// Pages that the budget leaves for content and working memory.
    #[must_use]
    pub fn content_pages(&self) -> u32 {
        self.config.budget_pages - self.own_pages()
    }

    /// Pages charged to the root when it was built.
    fn own_pages(&self) -> u32 {
        self.metadata_pages + self.config.write_reserve_pages
    }

    /// Pages that the limit of a group leaves for content and working memory, at most: the memory's
    /// own are under the root's. `u64::MAX` of a group that is gone.
    #[must_use]
    pub fn room_under(&self, group: u32) -> u64 {
        let max = self.groups.get(group).map_or(u64::MAX, Group::max);
        match group == self.groups.root() {
            true => max.saturating_sub(self.own_pages().into()),
            false => max,
        }
    }

    fn mapping_of(&self, key: PageKey) -> &Mapping {
        self.mappings
            .by_key(key)
            .expect("a mapping lives while a handle or a page of it does")
    }

    /// Makes a group without limits below `parent`.
    ///
    /// # Errors
    /// [`ChildError`].
    pub fn new_group(&self, here: Here<'_>, parent: u32) -> Result<u32, ChildError> {
        let make = || self.groups.child(here.cpu, parent);
        let is_short = |error: &ChildError| matches!(error, ChildError::NoMetadata(_));
        self.make_record(here, make, is_short)
    }

    /// Makes a record of core's own; where `is_short` says that there is no room for it, reclaims
    /// as long as that brings something that others do not take, and tries again.
    fn make_record<E>(
        &self,
        here: Here<'_>,
        make: impl Fn() -> Result<u32, E>,
        is_short: impl Fn(&E) -> bool,
    ) -> Result<u32, E> {
        let root = self.groups.root();
        let (mut rounds, mut retries) = (Rounds::default(), 0);
        loop {
            let made = make();
            let is_refused = made.as_ref().is_err_and(&is_short);
            if is_refused && self.drain_magazines_of(root) > 0 {
                continue;
            }
            let may_help = is_refused && here.may_reclaim;
            if !may_help || retries > MAX_RETRIES || rounds.are_in_vain(&self.groups, root, 0) {
                return made;
            }
            let has_freed = self.reclaim_for(here, (root, root), BATCH) > 0;
            if !has_freed && !self.wait_for_read(here, (root, root), 1, &mut rounds) {
                // Others may have in hand what can go.
                retries += 1;
                yield_now();
            }
        }
    }

    /// Says that the last handle of a group is gone: its pages are evicted, and its record goes
    /// with the last of them, at this call or a later [`Memory::tick`].
    pub fn drop_group(&self, cpu: Cpu, group: u32) {
        self.groups.kill(group);
        self.forget_magazines_of(group);
        self.bury(cpu, group);
        if self.groups.get(group).is_some_and(Group::is_dead) {
            // In use for a moment, mostly. Where groups come and go fast, no tick is waited for.
            let nr_left = self.nr_unburied.fetch_add(1, Ordering::Relaxed);
            if nr_left % MAX_UNBURIED == MAX_UNBURIED - 1 {
                self.bury_all(cpu);
            }
        }
    }

    fn bury_all(&self, cpu: Cpu) {
        for (id, group) in self.groups.iter() {
            if group.is_dead() {
                self.bury(cpu, id);
            }
        }
    }

    fn bury(&self, cpu: Cpu, group: u32) {
        while self.groups.get(group).is_some_and(|dead| dead.usage() > 0)
            && self.reclaim(cpu, group, 1) > 0
        {}
        // Before a number comes back, no free block remembers it: its bytes are its own. What is
        // empty stays so, because the group is dead; a cache that is in use waits for a later call.
        if crate::group::is_last_of_its_slot(group)
            && self.groups.is_empty(group)
            && !self.zones.forget_groups(&self.frames)
        {
            return;
        }
        let mut lruvec = self.groups.bury(group).unwrap_or(0);
        while let Some(record) = self.lruvecs.get(lruvec) {
            let next = record.next();
            self.lruvecs.remove(lruvec);
            lruvec = next;
        }
    }

    /// Housekeeping: the clock goes on to `now` (ns), per-CPU page caches give back what they do
    /// not use, once a second magazines do, and dead groups whose last page has gone give up their
    /// records. Returns when the next tick is due; a later one is slow, never wrong.
    pub fn tick(&self, cpu: Cpu, now: u64) -> u64 {
        let next = self.zones.tick(&self.frames, now);
        let last = self.magazine_tick.load(Ordering::Relaxed);
        if now >= last + SECOND {
            self.magazine_tick.store(now, Ordering::Relaxed);
            self.tick_magazines();
        }
        self.bury_all(cpu);
        next
    }

    /// Counts. Takes the locks of the zone and of its per-CPU page caches.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let offline = u32::try_from(self.offline_pages()).expect("at most the arena");
        let [normal, movable] = self.zones.stats_by_kind();
        // Each once: what is told falls at no time.
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let scanned = self.stats.scanned.each_ref().map(load);
        let evicted = self.stats.evicted.each_ref().map(load);
        Stats {
            pgscan: scanned.iter().sum(),
            pgsteal: evicted.iter().sum(),
            pgscan_kswapd: scanned[Reclaimer::Background as usize],
            pgscan_direct: scanned[Reclaimer::Direct as usize],
            pgscan_proactive: scanned[Reclaimer::Proactive as usize],
            pgsteal_kswapd: evicted[Reclaimer::Background as usize],
            pgsteal_direct: evicted[Reclaimer::Direct as usize],
            pgsteal_proactive: evicted[Reclaimer::Proactive as usize],
            allocstall: self.stats.stalls.load(Ordering::Relaxed),
            pageoutrun: self.background.runs(),
            nr_batches: self.stats.batches.load(Ordering::Relaxed),
            nr_agings: self.stats.agings.load(Ordering::Relaxed),
            aging_scanned: self.stats.aging_scanned.load(Ordering::Relaxed),
            aging_promoted: self.stats.promoted.load(Ordering::Relaxed),
            evacuate_scanned: self.evacuation.scanned.load(Ordering::Relaxed),
            evacuate_success: self.evacuation.success.load(Ordering::Relaxed),
            evacuate_fail: self.evacuation.fail.load(Ordering::Relaxed),
            pgmigrate_success: self.evacuation.migrated.load(Ordering::Relaxed),
            // Of moments that differ: pages that are just going are counted twice.
            nr_used: self
                .zones
                .managed()
                .saturating_sub(self.zones.nr_free())
                .saturating_sub(self.magazines.nr_pages(|_| true))
                .saturating_sub(offline),
            zone: normal + movable,
            pgalloc_movable: movable.pgalloc,
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
