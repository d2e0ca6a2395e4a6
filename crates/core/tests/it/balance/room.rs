//! Room below the budget.

use super::{CPU, World, node};
use pagetide_core::alloc::Topology;
use pagetide_core::group::Limit;
use pagetide_core::memory::{Balance, Config, Effects};
use pagetide_core::reclaim::{MAX_BATCH, Policy};

/// 300 MiB on one node: a budget that is worth room below it.
fn large(policy: Policy) -> World {
    World::on(Config::on(Topology::uniform(2), 76_800, policy))
}

impl World {
    fn left(&self) -> u64 {
        let root = self.memory.groups().root();
        let root = self.memory.groups().get(root).expect("the root");
        root.max() - root.usage()
    }
}

#[test]
fn the_budget_is_kept_ahead_of_those_who_read() {
    const ROOM: u64 = 300;
    for &policy in Policy::ALL {
        let world = large(policy);
        let group = world.child();
        let mut nr_wakes = 0;
        for page in 0..100_000 {
            assert!(world.touch(group, page));
            let is_low = world.left() < ROOM / 2;
            assert_eq!(!world.take_woken().is_empty(), is_low, "{policy}");
            if is_low {
                nr_wakes += 1;
                let before = world.memory.stats().pgsteal_kswapd;
                while world.memory.balance(world.here(), node(0)) == Balance::More {}
                assert!(world.left() >= ROOM, "{policy}");
                // No more than is missing, and the rest of a batch; nothing for free frames.
                let evicted = world.memory.stats().pgsteal_kswapd - before;
                assert!(evicted < ROOM + u64::from(MAX_BATCH), "{policy}: {evicted}");
            }
        }
        let stats = world.memory.stats();
        assert!(nr_wakes > 50, "{policy}");
        assert_eq!(stats.pageoutrun, nr_wakes, "{policy}");
        assert_eq!((stats.allocstall, stats.pgsteal_direct), (0, 0), "{policy}");
        world.memory.check();
    }
}

#[test]
fn nobody_is_woken_for_a_small_budget_or_another_limit() {
    let fitted = Config::for_resident(70_000, 2, Policy::default());
    for config in [
        Config::on(Topology::uniform(2), 60_000, Policy::default()),
        fitted,
    ] {
        let is_fitted = config.budget_pages > 70_000;
        let world = World::on(config);
        let group = world.child();
        let max = if is_fitted { 70_000 } else { 57_000 };
        assert_eq!(world.memory.set_max(world.here(), group, max), Ok(0));
        for page in 0..90_000 {
            assert!(world.touch(group, page));
        }
        assert!(world.take_woken().is_empty());
        let _ = world.memory.balance(world.here(), node(0));
        assert_eq!(world.memory.stats().pgsteal_kswapd, 0);
        assert!(world.memory.groups().get(group).expect("a group").usage() >= max - 128);
    }
}

#[test]
fn a_budget_that_cannot_be_kept_ahead_is_left_alone() {
    let world = large(Policy::default());
    let group = world.child();
    let mut held = Vec::new();
    while world.woken.0.get() == 0 {
        held.extend(world.have(group, held.len() as u64));
    }
    let balance = || world.memory.balance(world.here(), node(0));
    let mut steps = std::iter::repeat_with(balance);
    let nr_steps = steps.position(|balance| balance != Balance::More);
    assert_eq!(nr_steps, Some(15), "the 16th gives up");
    world.take_woken();
    held.extend(world.have(group, held.len() as u64));
    assert!(world.take_woken().is_empty(), "nobody is woken in vain");
    for frame in held.split_off(held.len() - 1000) {
        world.memory.unpin(CPU, frame, &mut Effects::new());
    }
    // Somebody who reclaims himself finds out.
    let freed = world.memory.reclaim(CPU, group, 1);
    held.extend((0..=freed).filter_map(|more| world.have(group, (1 << 20) + u64::from(more))));
    assert!(!world.take_woken().is_empty());
    while world.memory.balance(world.here(), node(0)) == Balance::More {}
    assert!(world.left() >= 300);
}

#[test]
fn what_is_protected_is_not_evicted_for_room() {
    let world = large(Policy::default());
    let groups = world.memory.groups();
    let [safe, other] = [world.child(), world.child()];
    groups
        .set_limit(safe, Limit::Low, 40_000)
        .expect("no limit below");
    (0..40_000).for_each(|page| assert!(world.touch(safe, page)));
    for page in 0..80_000 {
        assert!(world.touch(other, (1 << 20) + page));
        if !world.take_woken().is_empty() {
            while world.memory.balance(world.here(), node(0)) == Balance::More {}
        }
    }
    assert!(world.memory.stats().pgsteal_kswapd > 10_000);
    assert_eq!(world.file_pages(safe), 40_000);
}
