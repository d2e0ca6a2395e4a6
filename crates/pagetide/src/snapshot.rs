//! The figures of a memory and its groups at a moment, for who looks at a process from outside.

use crate::{Group, GroupStat, Memory, PressureLine};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The figures of a memory, as `snapshot` of [`Memory::watch`]'s socket has them in JSON.
///
/// Names and meanings are those of [`Stats`](crate::Stats), [`GroupStat`](crate::GroupStat) and
/// the other types that they come from. New fields may join.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Snapshot {
    /// The process.
    pub pid: u32,
    /// Since the memory was built.
    pub uptime_ms: u64,
    /// The budget.
    pub budget_bytes: u64,
    /// Anonymous and shared memory of the process that is resident: the cache, and all of its heap.
    pub resident_bytes: Option<u64>,
    /// The numbers of [`Stats`](crate::Stats).
    pub stats: BTreeMap<String, u64>,
    /// The groups, each after its parent.
    pub groups: Vec<GroupSnapshot>,
    /// Groups that were left out: all have less usage than any that is there.
    pub nr_groups_left_out: u64,
    /// Per-CPU page caches.
    pub pagesets: Vec<PagesetSnapshot>,
}

/// A group in a [`Snapshot`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// As [`Group::path`] has it.
    pub path: String,
    /// Its number, which no other group has that lives: a later one of the same path has another,
    /// unless thousands came and went in between.
    pub id: u32,
    /// [`Group::usage`].
    pub usage_bytes: u64,
    /// Protections.
    pub min_bytes: u64,
    /// See `min_bytes`.
    pub low_bytes: u64,
    /// Limits; none where only those of ancestors hold.
    pub high_bytes: Option<u64>,
    /// See `high_bytes`.
    pub max_bytes: Option<u64>,
    /// Pages of this very group that were not resident when asked for.
    pub misses: u64,
    /// What its users asked for, where the program told
    /// ([`Watch::set_requests`](crate::Watch::set_requests)).
    pub requests: Option<u64>,
    /// The numbers of [`GroupStat`](crate::GroupStat).
    pub stat: BTreeMap<String, u64>,
    /// The numbers of [`Events`](crate::Events).
    pub events: BTreeMap<String, u64>,
    /// Percents of the last 10 s in which some task waited for memory, and in which all did.
    pub pressure_some_avg10: f64,
    /// See `pressure_some_avg10`.
    pub pressure_full_avg10: f64,
    /// All of that time.
    pub pressure_some_us: u64,
    /// See `pressure_some_us`.
    pub pressure_full_us: u64,
    /// How the group's pages are replaced, by the name that [`Policy`](crate::Policy) displays.
    pub policy: String,
    /// Generations of the group's own pages, oldest first, node by node.
    pub generations: Vec<GenerationSnapshot>,
    /// Tiers of the group's own pages, node by node; none where the policy is no multi-gen LRU.
    pub tiers: Vec<TierSnapshot>,
}

/// A [`Generation`](crate::Generation) in a [`Snapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct GenerationSnapshot {
    /// The node.
    pub node: u32,
    /// The generation's number.
    pub seq: u64,
    /// How long ago it was opened.
    pub age_ms: u64,
    /// Pages of 4 KiB.
    pub nr_anon: u32,
    /// See `nr_anon`.
    pub nr_file: u32,
}

/// A [`Tier`](crate::Tier) in a [`Snapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TierSnapshot {
    /// The node.
    pub node: u32,
    /// The tier, 0 to 3.
    pub tier: u32,
    /// Whether it is of anon pages; else of pages of files.
    pub is_anon: bool,
    /// Evicted pages that came back since the type's oldest generation was opened.
    pub refaulted: u64,
    /// Pages that were evicted since then.
    pub evicted: u64,
    /// Pages that would have been since then, but for their tier.
    pub protected: u64,
}

/// A [`Pageset`](crate::Pageset) in a [`Snapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PagesetSnapshot {
    /// The zone's node.
    pub node: u32,
    /// The zone.
    pub zone: u32,
    /// The CPU.
    pub cpu: u32,
    /// Pages that it holds.
    pub count: u32,
    /// Pages that it may hold.
    pub high: u32,
}

impl Memory {
    /// The figures now, of at most 1,000 groups. Cost: a look at every group.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let _look = self.home().looks.begin(None);
        self.snapshot_of_groups().0
    }

    /// [`Memory::snapshot`], and handles of the groups in it.
    pub(crate) fn snapshot_of_groups(&self) -> (Snapshot, Vec<(String, Group)>) {
        let (groups, nr_groups_left_out) = self.largest_groups();
        let stats = self.group_stats(&groups);
        let named = |(name, number): (&str, u64)| (name.to_owned(), number);
        let pagesets = self.pagesets().into_iter().map(|one| PagesetSnapshot {
            node: one.node,
            zone: one.zone,
            cpu: one.cpu,
            count: one.count,
            high: one.high,
        });
        let snapshot = Snapshot {
            pid: std::process::id(),
            uptime_ms: self.home().now() / 1_000_000,
            budget_bytes: self.budget().as_u64(),
            resident_bytes: crate::resident_bytes().ok(),
            stats: self.stats().lines().map(named).into(),
            groups: groups.iter().zip(stats).map(of_group).collect(),
            nr_groups_left_out,
            pagesets: pagesets.collect(),
        };
        (snapshot, groups)
    }
}

fn of_group(((path, group), stat): (&(String, Group), GroupStat)) -> GroupSnapshot {
    let (min, low) = group.protections();
    let pressure = group.pressure();
    let micros = |line: PressureLine| u64::try_from(line.total.as_micros()).unwrap_or(u64::MAX);
    let events = group.events();
    let lru_gen = group.lru_gen();
    let tiers = lru_gen.tiers.into_iter().map(|one| TierSnapshot {
        node: one.node,
        tier: one.tier,
        is_anon: one.is_anon,
        refaulted: one.refaulted,
        evicted: one.evicted,
        protected: one.protected,
    });
    let generations = lru_gen.generations.into_iter();
    let generations = generations.map(|one| GenerationSnapshot {
        node: one.node,
        seq: one.seq,
        age_ms: u64::try_from(one.age.as_millis()).unwrap_or(u64::MAX),
        nr_anon: one.nr_anon,
        nr_file: one.nr_file,
    });
    let named = |(name, number): (&str, u64)| (name.to_owned(), number);
    GroupSnapshot {
        path: path.clone(),
        id: group.id(),
        usage_bytes: group.usage().as_u64(),
        min_bytes: min.as_u64(),
        low_bytes: low.as_u64(),
        high_bytes: group.high_limit().map(|bytes| bytes.as_u64()),
        max_bytes: group.limit().map(|bytes| bytes.as_u64()),
        misses: group.misses(),
        requests: None,
        stat: stat.lines().map(named).into(),
        events: events.lines().map(named).into(),
        pressure_some_avg10: pressure.some.avg10,
        pressure_full_avg10: pressure.full.avg10,
        pressure_some_us: micros(pressure.some),
        pressure_full_us: micros(pressure.full),
        policy: group.policy().to_string(),
        generations: generations.collect(),
        tiers: tiers.collect(),
    }
}
