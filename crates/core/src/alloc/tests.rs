//! Named cases of the buddy allocator, the per-CPU page caches, zones and zonelists.

extern crate std;

use super::*;
use crate::frame::FrameTable;
use crate::units::{Cpu, Frame, Node, NodeMask, Order, SECOND};
use std::string::ToString;
use std::vec::Vec;

const CPU: Cpu = Cpu::new(0);
const HERE: Here = Here { cpu: CPU, now: 0 };

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn node(number: u32) -> Node {
    Node::new(number).unwrap()
}

fn zone(frames: &FrameTable, high: u32) -> Zone {
    zone_with(frames, high, |_| ())
}

pub(super) fn zone_with(
    frames: &FrameTable,
    high: u32,
    change: impl FnOnce(&mut ZoneConfig),
) -> Zone {
    let mut config = ZoneConfig {
        node: Node::ZERO,
        kind: Kind::Normal,
        watermarks: Watermarks::default(),
        lowmem_reserve: 0,
        nr_local_cpus: 2,
        sizes: PcpSizes {
            batch: 7,
            high_min: high,
            high_max: high,
        },
        tuner: Tuner::Fixed,
        bulk_free: BulkFree::SinglePass,
        cached_orders: Config::KERNEL_ORDERS,
        keeps_batch: false,
    };
    change(&mut config);
    Zone::try_new(frames, 0, frames.len(), 2, config).unwrap()
}

fn take(zone: &Zone, frames: &FrameTable, of: u8, mobility: Mobility) -> Option<Frame> {
    zone.alloc(frames, HERE, Ask::new(order(of), mobility))
}

fn page(zone: &Zone, frames: &FrameTable) -> Option<Frame> {
    take(zone, frames, 0, Mobility::Movable)
}

#[test]
fn a_range_that_is_no_power_of_two_is_all_there() {
    let frames = FrameTable::try_new(3000).unwrap();
    let buddy = Buddy::new(&frames, 5, 3000);
    assert_eq!(buddy.nr_free(), 2995);
    buddy.audit(&frames).unwrap();
}

#[test]
fn allocate_all_then_free_all_gives_back_the_first_buddyinfo() {
    let frames = FrameTable::try_new(2500).unwrap();
    let zone = zone(&frames, 28);
    let first = zone.buddyinfo();
    let mut taken = Vec::new();
    let orders = [0, 3, 9, 1, 2, 0, 4].into_iter().cycle();
    for (wanted, mobility) in orders.zip(Mobility::ALL.into_iter().cycle()) {
        match take(&zone, &frames, wanted, mobility) {
            Some(frame) => taken.push((frame, order(wanted))),
            None if wanted == 0 => break,
            None => {}
        }
        zone.audit(&frames).unwrap();
    }
    for (frame, order) in taken {
        zone.free(&frames, HERE, frame, order);
    }
    zone.audit(&frames).unwrap();
    assert_eq!(zone.nr_free(), 2500);
    zone.drain(&frames, 0);
    assert_eq!(zone.buddyinfo(), first);
}

#[test]
fn a_cpu_reuses_what_it_freed_last() {
    let frames = FrameTable::try_new(256).unwrap();
    let zone = zone(&frames, 28);
    let frame = page(&zone, &frames).unwrap();
    zone.free(&frames, HERE, frame, Order::ZERO);
    let takes = zone.stats().lock_takes;
    assert_eq!(page(&zone, &frames), Some(frame));
    assert_eq!(zone.stats().lock_takes, takes);
}

#[test]
fn low_frames_come_first() {
    let frames = FrameTable::try_new(4096).unwrap();
    let zone = zone(&frames, 28);
    let taken: Vec<u32> = (0..20)
        .map(|_| page(&zone, &frames).unwrap().number())
        .collect();
    assert_eq!(taken, (0..20).collect::<Vec<_>>());
}

#[test]
fn no_hold_moves_more_than_a_batch_and_a_block() {
    for bulk_free in [BulkFree::SinglePass, BulkFree::TwoPass] {
        let frames = FrameTable::try_new(4096).unwrap();
        let zone = zone_with(&frames, 600, |config| config.bulk_free = bulk_free);
        let first = zone.buddyinfo();
        let blocks: Vec<Frame> = (0..2)
            .map(|_| take(&zone, &frames, 9, Mobility::Unmovable).unwrap())
            .collect();
        let pages: Vec<Frame> = (0..100).map(|_| page(&zone, &frames).unwrap()).collect();
        blocks
            .into_iter()
            .for_each(|frame| zone.free(&frames, HERE, frame, order(9)));
        pages
            .into_iter()
            .for_each(|frame| zone.free(&frames, HERE, frame, Order::ZERO));
        let drained = zone.drain(&frames, 0);
        assert_eq!(drained.not_reached, 0);
        assert!(zone.stats().hold_free_pages_max < 7 + 512);
        assert_eq!((zone.nr_free(), zone.buddyinfo()), (4096, first));
    }
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_panics() {
    let frames = FrameTable::try_new(64).unwrap();
    let zone = zone(&frames, 0);
    let frame = take(&zone, &frames, 2, Mobility::Movable).unwrap();
    zone.free(&frames, HERE, frame, order(2));
    zone.free(&frames, HERE, frame, order(2));
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_into_the_cache_panics() {
    let frames = FrameTable::try_new(64).unwrap();
    let zone = zone(&frames, 28);
    let frame = take(&zone, &frames, 2, Mobility::Movable).unwrap();
    zone.free(&frames, HERE, frame, order(2));
    zone.free(&frames, HERE, frame, order(2));
}

#[test]
fn mobilities_are_kept_in_pageblocks_of_their_own() {
    let frames = FrameTable::try_new(8 * 512).unwrap();
    let zone = zone(&frames, 0);
    let of = |mobility| -> Vec<u32> {
        let frame = |_| take(&zone, &frames, 0, mobility).unwrap().number() / 512;
        let mut blocks: Vec<u32> = (0..600).map(frame).collect();
        blocks.dedup();
        blocks
    };
    let blocks = Mobility::ALL.map(of);
    let all: Vec<u32> = blocks.iter().flatten().copied().collect();
    let mut distinct = all.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(all.len(), distinct.len(), "{blocks:?}");
    zone.audit(&frames).unwrap();
}

#[test]
fn the_last_frame_is_stolen_whatever_it_is_for() {
    let frames = FrameTable::try_new(4 * 512).unwrap();
    let zone = zone(&frames, 28);
    let mut taken = Vec::new();
    for mobility in Mobility::ALL.into_iter().cycle() {
        match take(&zone, &frames, 0, mobility) {
            Some(frame) => taken.push(frame),
            // What is left lies on this CPU's lists of other mobilities.
            None if zone.drain(&frames, 0).nr_pages > 0 => {}
            None => break,
        }
    }
    assert_eq!(taken.len(), 2048);
    let stats = zone.stats();
    assert!(stats.claims > 0, "{stats:?}");
}

#[test]
fn a_watermark_keeps_its_pages_from_those_who_keep_it() {
    let frames = FrameTable::try_new(1000).unwrap();
    let watermarks = Watermarks {
        min: 100,
        low: 200,
        high: 300,
    };
    let zone = zone_with(&frames, 28, |config| {
        config.watermarks = watermarks;
        config.lowmem_reserve = 50;
    });
    let most = |mark, mobility| {
        let ask = Ask {
            mark,
            ..Ask::new(Order::ZERO, mobility)
        };
        let taken: Vec<Frame> = core::iter::from_fn(|| zone.alloc(&frames, HERE, ask)).collect();
        let nr = taken.len();
        for frame in taken {
            zone.free(&frames, HERE, frame, Order::ZERO);
        }
        zone.drain(&frames, 0);
        nr
    };
    // The last batch may go below the mark of who asked, not below `min`.
    assert!((800..807).contains(&most(Mark::Low, Mobility::Unmovable)));
    assert!((750..757).contains(&most(Mark::Low, Mobility::Movable)));
    assert_eq!(most(Mark::Min, Mobility::Unmovable), 900);
    assert_eq!(most(Mark::None, Mobility::Movable), 1000);
}

#[test]
fn caches_of_other_nodes_expire() {
    let frames = FrameTable::try_new(4096).unwrap();
    let zone = zone(&frames, 28);
    let frame = page(&zone, &frames).unwrap();
    zone.free(&frames, HERE, frame, Order::ZERO);
    assert_eq!(zone.pageset(CPU).0, 7);
    for _ in 0..10 {
        zone.tick(&frames, 0, |_| true);
    }
    assert_eq!(zone.pageset(CPU).0, 7);
    // The first tick sees that it was used, three more that it was not.
    for tick in 0..5 {
        assert_eq!(zone.pageset(CPU).0, if tick < 4 { 7 } else { 0 });
        zone.tick(&frames, 0, |_| false);
    }
}

#[test]
fn idle_blocks_are_released_once() {
    let frames = FrameTable::try_new(8 * 512).unwrap();
    let zone = zone(&frames, 0);
    // Never used: the OS holds nothing for them.
    assert_eq!(zone.take_idle(&frames, u64::MAX), None);
    let block = take(&zone, &frames, 9, Mobility::Unmovable).unwrap();
    let here = Here {
        now: SECOND,
        ..HERE
    };
    zone.free(&frames, here, block, order(9));
    assert_eq!(zone.take_idle(&frames, SECOND / 2), None);
    let taken = zone.take_idle(&frames, SECOND).unwrap();
    zone.put_released(&frames, SECOND, taken, true);
    assert_eq!(zone.take_idle(&frames, u64::MAX), None);
    zone.audit(&frames).unwrap();
    assert_eq!(zone.nr_free(), 4096);
}

#[test]
fn idle_blocks_are_found_among_many_without_memory() {
    let frames = FrameTable::try_new(100 * 1024).unwrap();
    let zone = zone(&frames, 0);
    for nr_used in [1, 100] {
        let taken = (0..nr_used).map(|_| take(&zone, &frames, 10, Mobility::Movable).unwrap());
        let taken: Vec<Frame> = taken.collect();
        for &block in &taken {
            zone.free(&frames, HERE, block, order(10));
        }
        for _ in 0..nr_used {
            let idle = zone.take_idle(&frames, SECOND).unwrap();
            zone.put_released(&frames, SECOND, idle, true);
        }
        assert_eq!(zone.take_idle(&frames, u64::MAX), None);
    }
    zone.audit(&frames).unwrap();
}

fn zones(nr_nodes: u32, change: impl FnOnce(&mut Config)) -> (FrameTable, Zones) {
    let frames = FrameTable::try_new(nr_nodes * 2048).unwrap();
    let mut config = Config::new(Topology::grid(nr_nodes, 2).unwrap());
    change(&mut config);
    config.check().unwrap();
    let zones = Zones::try_new(config, &frames).unwrap();
    zones.audit(&frames).unwrap();
    (frames, zones)
}

fn node_of(zones: &Zones, frame: Frame) -> u32 {
    let zone = zones.iter().find(|zone| zone.holds(frame)).unwrap();
    u32::from(zone.config().node.number())
}

#[test]
fn requests_go_to_the_nearest_node_that_has_pages() {
    let (frames, zones) = zones(4, |_| ());
    let request = Request {
        mark: Mark::Low,
        ..Request::new(Order::ZERO, Mobility::Movable)
    };
    let mut last = 1;
    let mut nodes = Vec::from([last]);
    while let Ok(frame) = zones.alloc(&frames, Cpu::new(2), &request) {
        let at = node_of(&zones, frame);
        if at != last {
            nodes.push(at);
            last = at;
        }
    }
    assert_eq!(nodes, [1, 2, 3, 0]);
    let hits = zones.node_stats(node(1));
    assert_eq!((hits.numa_miss, hits.other_node), (0, 0));
    assert!(
        hits.numa_hit > 1900 && hits.numa_foreign > 3 * 1900,
        "{hits:?}"
    );
    let far = zones.node_stats(node(0));
    assert_eq!((far.numa_hit, far.numa_miss), (0, far.other_node));
}

#[test]
fn policies_choose_nodes() {
    let (frames, zones) = zones(4, |_| ());
    let first = |policy, mems, turn| {
        let request = Request {
            policy,
            mems,
            turn,
            ..Request::new(Order::ZERO, Mobility::Unmovable)
        };
        zones
            .alloc(&frames, CPU, &request)
            .map(|frame| node_of(&zones, frame))
    };
    let some = NodeMask::from_bits(0b1010);
    assert_eq!(
        first(Mempolicy::Preferred(node(2)), NodeMask::ALL, 0),
        Ok(2)
    );
    assert_eq!(first(Mempolicy::Bind(some), NodeMask::ALL, 0), Ok(1));
    assert_eq!(first(Mempolicy::Local, NodeMask::of(node(3)), 0), Ok(3));
    let turns = [0, 1, 2].map(|turn| first(Mempolicy::Interleave(some), NodeMask::ALL, turn));
    assert_eq!(turns, [Ok(1), Ok(3), Ok(1)]);
    let forbidden = first(Mempolicy::Bind(some), NodeMask::of(node(0)), 0);
    assert!(forbidden.is_err());
    // A node that is not there: the policy is folded into those that are.
    assert!(first(Mempolicy::Preferred(node(63)), NodeMask::ALL, 0).is_ok());
}

#[test]
fn movable_zones_keep_working_memory_out() {
    let (frames, zones) = zones(2, |config| config.movable_percent = 50);
    let nr = |mobility| {
        let request = Request::new(Order::ZERO, mobility);
        core::iter::from_fn(|| zones.alloc(&frames, CPU, &request).ok()).count()
    };
    assert_eq!(nr(Mobility::Unmovable), 2048);
    assert_eq!(nr(Mobility::Movable), 2048);
}

#[test]
fn node_reclaim_is_asked_for_near_nodes_once_each() {
    let (frames, zones) = zones(3, |config| {
        config.node_reclaim = true;
        let far = config.topology.clone().with_distance(0, 2, 40).unwrap();
        config.topology = far;
    });
    let request = Request {
        mark: Mark::Low,
        ..Request::new(Order::ZERO, Mobility::Movable)
    };
    while zones.alloc(&frames, CPU, &request).is_ok() {}
    let mut scan = Scan::new(request);
    let mut asked = Vec::new();
    loop {
        match zones.step(&frames, CPU, &mut scan) {
            Step::ReclaimNode(node) => {
                // Another request does not ask for the same node meanwhile.
                let mut other = Scan::new(request);
                let step = zones.step(&frames, CPU, &mut other);
                assert_ne!(step, Step::ReclaimNode(node));
                if let Step::ReclaimNode(other) = step {
                    zones.end_reclaim(other);
                }
                asked.push(node.number());
                zones.end_reclaim(node);
                scan.reclaimed(true);
            }
            Step::Short(shortage) => {
                assert_eq!(shortage.mark, Mark::Low);
                break;
            }
            Step::Done(frame) => panic!("{frame:?}"),
        }
    }
    assert_eq!(asked, [0, 1]);
}

/// A machine whose node 0 is full above `low`, and the request that found that out.
fn full_node(cache: ZonelistCache) -> (FrameTable, Zones, Request, Vec<Frame>) {
    let (frames, zones) = zones(3, |config| config.zonelist_cache = cache);
    let request = Request {
        mark: Mark::Low,
        ..Request::new(Order::ZERO, Mobility::Movable)
    };
    let mut taken = Vec::new();
    loop {
        let frame = zones.alloc(&frames, CPU, &request).unwrap();
        if node_of(&zones, frame) != 0 {
            break;
        }
        taken.push(frame);
    }
    (frames, zones, request, taken)
}

#[test]
fn the_default_hint_is_cleared_by_the_event() {
    let (frames, zones, request, taken) = full_node(ZonelistCache::Classed);
    let before = zones.look_stats();
    zones.alloc(&frames, CPU, &request).unwrap();
    let after = zones.look_stats();
    assert_eq!(after.zlc_skip, before.zlc_skip + 1);
    assert_eq!(
        after.zones,
        before.zones + 1,
        "only the second zone was touched"
    );
    taken
        .into_iter()
        .for_each(|frame| zones.free(&frames, CPU, frame, Order::ZERO));
    let frame = zones.alloc(&frames, CPU, &request).unwrap();
    assert_eq!(node_of(&zones, frame), 0);
}

#[test]
fn a_hint_of_one_class_leaves_the_others_alone() {
    let (frames, zones) = zones(2, |_| ());
    let request = |order| Request {
        mark: Mark::Low,
        ..Request::new(order, Mobility::Movable)
    };
    // No block of order 10 stays whole.
    let large: Vec<Frame> = core::iter::from_fn(|| {
        let frame = zones.alloc(&frames, CPU, &request(order(10))).ok()?;
        Some(frame)
    })
    .collect();
    assert!(zones.look_stats().zlc_mark > 0);
    let frame = zones.alloc(&frames, CPU, &request(Order::ZERO)).unwrap();
    assert_eq!(node_of(&zones, frame), 0);
    drop(large);
}

#[test]
fn the_default_hint_is_forgotten_in_time() {
    let (frames, zones, request, _) = full_node(ZonelistCache::Classed);
    let due = zones.tick(&frames, 0);
    assert!((SECOND / 8..=SECOND / 4).contains(&due), "{due}");
    let skips = || {
        let before = zones.look_stats().zlc_skip;
        zones.alloc(&frames, CPU, &request).unwrap();
        zones.look_stats().zlc_skip - before
    };
    assert_eq!(skips(), 1);
    zones.tick(&frames, due);
    assert_eq!(skips(), 0, "it is tried again");
    assert_eq!(skips(), 1, "and found short again");
    // Tried again in any case, now and then.
    assert!((0..200).map(|_| skips()).sum::<u64>() < 200);
}

#[test]
fn the_seed_zaps_its_hints_every_second() {
    let (frames, zones, request, _) = full_node(ZonelistCache::Seed);
    let looks = || {
        let before = zones.look_stats();
        zones.alloc(&frames, CPU, &request).unwrap();
        let after = zones.look_stats();
        (
            after.positions - before.positions,
            after.zones - before.zones,
        )
    };
    // The first zone is tried by every request; bits are looked at behind it.
    assert_eq!(looks(), (2, 2));
    let zaps = zones.look_stats().zlc_zap;
    zones.tick(&frames, 3 * SECOND / 2);
    looks();
    assert_eq!(zones.look_stats().zlc_zap, zaps + 1);
}

#[test]
fn views_have_the_words_of_the_kernel() {
    let (frames, zones) = zones(2, |config| config.movable_percent = 25);
    zones
        .alloc(&frames, CPU, &Request::new(Order::ZERO, Mobility::Movable))
        .unwrap();
    let buddyinfo = zones.buddyinfo().to_string();
    assert_eq!(buddyinfo.lines().count(), 4);
    assert!(
        buddyinfo.starts_with("Node 0, zone   Normal      0      0 "),
        "{buddyinfo}"
    );
    let zoneinfo = zones.zoneinfo().to_string();
    for words in [
        "pages free     ",
        "        min      ",
        "pagesets",
        "high_max:",
        "Movable",
    ] {
        assert!(zoneinfo.contains(words), "{words} in {zoneinfo}");
    }
}

#[test]
fn topologies_that_do_not_add_up_are_refused() {
    assert_eq!(
        Topology::grid(0, 2).unwrap_err(),
        TopologyError::Nodes { nr_nodes: 0 }
    );
    assert_eq!(
        Topology::grid(65, 2).unwrap_err(),
        TopologyError::Nodes { nr_nodes: 65 }
    );
    assert_eq!(Topology::grid(2, 0).unwrap_err(), TopologyError::NoCpus);
    let two = || Topology::grid(2, 2).unwrap();
    let distance = two().with_distance(0, 1, 9).unwrap_err();
    assert_eq!(
        distance,
        TopologyError::Distance {
            from: 0,
            to: 1,
            distance: 9
        }
    );
    assert!(two().with_distance(1, 1, 20).is_err());
    assert!(two().with_distance(0, 2, 20).is_err());
    assert_eq!(
        two().with_cpu(CPU, 2).unwrap_err(),
        TopologyError::NodeOfCpu { cpu: 0, node: 2 }
    );
    let mut config = Config::new(Topology::grid(40, 1).unwrap());
    config.movable_percent = 10;
    assert_eq!(config.check(), Err(ConfigError::TooManyZones(80)));
    config.movable_percent = 101;
    assert_eq!(config.check(), Err(ConfigError::MovablePercent(101)));
    config.movable_percent = 0;
    config.cached_orders = 1 << 11;
    assert_eq!(config.check(), Err(ConfigError::CachedOrders(1 << 11)));
    config.cached_orders = 1;
    for (batch, high_min, high_max) in [(0, 4, 8), (3, 9, 8)] {
        let sizes = PcpSizes {
            batch,
            high_min,
            high_max,
        };
        config.pcp_sizes = Some(sizes);
        assert_eq!(config.check(), Err(ConfigError::PcpSizes(sizes)));
    }
}

#[test]
fn every_cache_of_every_zone_is_in_the_books() {
    let mut config = Config::new(Topology::grid(3, 2).unwrap());
    config.movable_percent = 50;
    assert!(Zones::bytes(&config, 3 * 2048) > 6 * Zone::bytes(6));
}

#[test]
fn nodes_share_the_frames_in_whole_pageblocks() {
    let config = Config::new(Topology::grid(3, 1).unwrap());
    let ranges: Vec<_> = config
        .topology
        .nodes()
        .map(|node| config.node_range(node, 5000))
        .collect();
    assert_eq!(ranges, [0..1536, 1536..3072, 3072..5000]);
    // Too few for three: the last node has no memory.
    let ranges: Vec<_> = config
        .topology
        .nodes()
        .map(|node| config.node_range(node, 1100))
        .collect();
    assert_eq!(ranges, [0..512, 512..1100, 1100..1100]);
}
