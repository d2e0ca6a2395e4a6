//! What an eviction costs: counted, alone and beside ten thousand groups.

use pagetide_core::group::Limit;
use pagetide_core::memory::{Config, Effect, Effects, Memory, PageIn, Step};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::sync::{nr_locks, nr_rmws, rank};
use pagetide_core::units::{Cpu, Order};

const CPU: Cpu = Cpu::new(0);
/// Frames of all groups together: as many as it takes for full batches of per-CPU page caches.
const NR_FRAMES: u32 = 280_000;

fn have(memory: &Memory, group: u32, file: u32, page: u64) {
    let key = Mappings::key(file, page).expect("a small page");
    let mut effects = Effects::new();
    let mut op = PageIn::new(key, group, Access::Copy);
    loop {
        let step = op.step(memory, CPU.into(), &mut effects);
        if let Step::Done(frame) = step.expect("room") {
            memory.unpin(CPU, frame, &mut effects);
            return;
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                memory.complete(CPU, io, Ok(()), &mut effects);
            }
        }
    }
}

/// Counts for each page that was evicted, in thousandths.
#[derive(Debug, PartialEq)]
struct Cost {
    rmws: u64,
    /// Of lruvecs, files, per-CPU page caches and zones.
    locks: u64,
    /// Of the index, whose entries are removed without one.
    index_locks: u64,
    scanned: u64,
}

/// Reclaims from the parent of `nr_idle` groups, half of them without a page and half with one that
/// is protected, and of two that fill the rest.
fn cost(policy: Policy, nr_idle: u32) -> Cost {
    let mut config = Config::for_resident(NR_FRAMES, 1, policy);
    // Room for the records of groups and lruvecs.
    config.budget_pages += nr_idle;
    config.arena_pages = config.budget_pages;
    let memory = Memory::try_new(config).expect("memory");
    let top = memory.groups().root();
    let parent = memory.new_group(CPU.into(), top).expect("a group");
    let file = memory
        .open_mapping(CPU.into(), Order::ZERO)
        .expect("a file");
    for idle in 0..nr_idle {
        let group = memory.new_group(CPU.into(), parent).expect("a group");
        if idle % 2 == 0 {
            have(&memory, group, file, 1 << 32 | u64::from(idle));
            memory
                .groups()
                .set_limit(group, Limit::Min, 1)
                .expect("no max");
        }
    }
    let busy = [(); 2].map(|()| memory.new_group(CPU.into(), parent).expect("a group"));
    for page in 0..u64::from(NR_FRAMES - nr_idle) {
        have(&memory, busy[usize::from(page % 2 == 0)], file, page);
    }
    let counted = || {
        let locks = |ranks: &[u8]| -> u64 {
            let taken = ranks.iter().map(|&rank| nr_locks(rank).expect("counted"));
            taken.sum()
        };
        let batched = [rank::LRUVEC, rank::MAPPING, rank::PCP, rank::ZONE];
        let rmws = nr_rmws().expect("counted");
        [rmws, locks(&batched), locks(&[rank::INDEX])]
    };
    // These take locks themselves.
    let pages = || {
        let stats = memory.stats();
        [stats.pgscan, stats.pgsteal]
    };
    let mut sum = [0; 5];
    let mut page = u64::from(NR_FRAMES);
    // Until what is there first has settled, then counted.
    for round in 0..200 {
        let (pages_before, before) = (pages(), counted());
        assert!(memory.reclaim(CPU, parent, 64) > 0);
        let (after, pages_after) = (counted(), pages());
        if round >= 50 {
            (0..3).for_each(|at| sum[at] += after[at] - before[at]);
            (0..2).for_each(|at| sum[3 + at] += pages_after[at] - pages_before[at]);
        }
        for _ in 0..64 {
            have(&memory, busy[usize::from(page % 3 == 0)], file, page);
            page += 1;
        }
    }
    let per_page = |at: usize| sum[at] * 1000 / sum[4];
    Cost {
        rmws: per_page(0),
        locks: per_page(1),
        index_locks: per_page(2),
        scanned: per_page(3),
    }
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not count")]
fn an_eviction_costs_the_same_beside_ten_thousand_groups() {
    let policies = Policy::ALL.iter().filter(|&&policy| policy != Policy::Fifo);
    for &policy in policies {
        let [alone, beside] = [0, 10_000].map(|nr_idle| cost(policy, nr_idle));
        println!("{policy}: {alone:?} alone, {beside:?} beside ten thousand groups");
        assert!(alone.locks <= 1000 / 16, "{policy}: {alone:?}");
        assert_eq!(alone.index_locks, 0, "{policy}");
        let most = |count: u64| count * 11 / 10 + 100;
        assert!(
            beside.rmws <= most(alone.rmws),
            "{policy}: {beside:?} {alone:?}"
        );
        assert!(
            beside.scanned <= most(alone.scanned),
            "{policy}: {beside:?}"
        );
    }
}

/// Evicts pages one by one from the parent of `nr_idle` groups without pages and of two that fill
/// its limit of 60 pages; read-modify-writes and pages looked at for each.
fn cost_of_one(policy: Policy, nr_idle: u32) -> [u64; 2] {
    const MAX: u64 = 60;
    let mut config = Config::for_resident(1000, 1, policy);
    config.budget_pages += nr_idle;
    config.arena_pages = config.budget_pages;
    let memory = Memory::try_new(config).expect("memory");
    let top = memory.groups().root();
    let parent = memory.new_group(CPU.into(), top).expect("a group");
    let file = memory
        .open_mapping(CPU.into(), Order::ZERO)
        .expect("a file");
    let mut of_idle = 1 << 32;
    let mut idle = |nr_groups: u32| {
        for at in 0..nr_groups {
            let group = memory.new_group(CPU.into(), parent).expect("a group");
            // Half of them had a page.
            if at % 2 == 0 {
                have(&memory, group, file, of_idle);
                assert_eq!(memory.reclaim(CPU, group, 1), 1);
                of_idle += 1;
            }
        }
    };
    idle(nr_idle / 2);
    let busy = [(); 2].map(|()| memory.new_group(CPU.into(), parent).expect("a group"));
    idle(nr_idle / 2);
    let mut page = 0;
    let mut read = || {
        have(&memory, busy[usize::from(page % 3 == 0)], file, page);
        page += 1;
    };
    (0..MAX).for_each(|_| read());
    assert_eq!(memory.set_max(CPU.into(), parent, MAX), Ok(0));
    // The walks leave those behind that had a page, sixteen at a time.
    for _ in 0..1000 {
        assert!(memory.reclaim(CPU, parent, 1) > 0);
        read();
    }
    let nr_walked = memory.groups().walk(parent, 100).count();
    assert_eq!(nr_walked, 3, "{policy}: groups that a choice looks at");
    let counted = || [nr_rmws().expect("counted"), memory.stats().pgscan];
    let mut sum = [0; 2];
    for _ in 0..1000 {
        let before = counted();
        assert_eq!(memory.reclaim(CPU, parent, 1), 1);
        let after = counted();
        (0..2).for_each(|at| sum[at] += after[at] - before[at]);
        read();
    }
    sum
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds do not count")]
fn one_page_costs_the_same_beside_ten_thousand_groups_without_pages() {
    for &policy in Policy::ALL {
        let [alone, beside] = [0, 10_000].map(|nr_idle| cost_of_one(policy, nr_idle));
        println!(
            "{policy}: {alone:?} alone, {beside:?} beside ten thousand groups, per 1000 pages"
        );
        for (alone, beside) in alone.into_iter().zip(beside) {
            assert!(beside <= alone * 101 / 100, "{policy}: {beside} {alone}");
        }
    }
}
