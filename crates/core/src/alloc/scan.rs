//! One request on its way along a zonelist.

use super::pageblock::Mobility;
use super::watermark::Mark;
use super::zone::{Ask, Here};
use super::zonelist::{self, Mempolicy, Zonelist};
use super::zonelist_cache::{self, ZonelistCache};
use super::zones::Zones;
use crate::frame::FrameTable;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Cpu, Frame, Node, NodeMask, Order};

/// What is asked of the zones.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Size of the block.
    pub order: Order,
    /// What it is used for.
    pub mobility: Mobility,
    /// Free pages that stay in each zone.
    pub mark: Mark,
    /// Nodes that the group may use.
    pub mems: NodeMask,
    /// In which order.
    pub policy: Mempolicy,
    /// Which one of an interleaving policy's requests this is.
    pub turn: u32,
}

impl Request {
    /// A block from anywhere, nearest first, down to the last frame.
    #[must_use]
    pub const fn new(order: Order, mobility: Mobility) -> Request {
        Request {
            order,
            mobility,
            mark: Mark::None,
            mems: NodeMask::ALL,
            policy: Mempolicy::Local,
            turn: 0,
        }
    }

    /// What the default hints tell apart.
    const fn class(&self) -> Option<usize> {
        zonelist_cache::class_of(self.order, self.mark, self.mobility)
    }
}

/// No zone that the request may use has a block above its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The order asked for.
    pub order: Order,
    /// The mark that was kept.
    pub mark: Mark,
}

/// What a step of a [`Scan`] ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The block.
    Done(Frame),
    /// A near node is short: reclaim there, and say by [`Scan::reclaimed`] whether it helped.
    ReclaimNode(Node),
    /// Every zone was tried.
    Short(Shortage),
}

/// A request that goes from zone to zone. A value: step it until it ends.
#[derive(Debug)]
#[must_use = "a scan does nothing until it is stepped"]
pub struct Scan {
    request: Request,
    position: usize,
    /// The zone at `position` was tried already and failed.
    has_failed: bool,
    /// A position was passed over because of a hint.
    has_skipped: bool,
    /// Hints are not asked any more.
    is_second_pass: bool,
    /// The seed's cache was set up: from then on it is asked.
    is_set_up: bool,
    /// Nodes that were reclaimed on for this request.
    reclaimed: NodeMask,
    looks: Looks,
}

#[derive(Debug, Default)]
struct Looks {
    served: u64,
    positions: u64,
    zones: u64,
    skips: u64,
    zaps: u64,
    marks: u64,
    second_passes: u64,
}

/// What scans beyond the first zone looked at, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookStats {
    /// Scans that were served; all other requests were by the first zone, at one look.
    pub served: u64,
    /// List positions looked at.
    pub positions: u64,
    /// Zone records touched.
    pub zones: u64,
    /// Positions passed over because of a hint.
    pub zlc_skip: u64,
    /// Times that hints were forgotten because of their age.
    pub zlc_zap: u64,
    /// Hints set.
    pub zlc_mark: u64,
    /// Scans that went through the list again without hints.
    pub zlc_second_pass: u64,
}

/// The counters behind [`LookStats`], one set a CPU.
#[derive(Debug, Default)]
pub(super) struct LookCounters([AtomicU64; 7]);

impl LookCounters {
    fn add(&self, looks: &Looks) {
        let more = [
            looks.served,
            looks.positions,
            looks.zones,
            looks.skips,
            looks.zaps,
            looks.marks,
            looks.second_passes,
        ];
        for (counter, more) in self.0.iter().zip(more) {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn add_to(&self, stats: &mut LookStats) {
        let [served, positions, zones, skips, zaps, marks, second_passes] = self
            .0
            .each_ref()
            .map(|counter| counter.load(Ordering::Relaxed));
        stats.served += served;
        stats.positions += positions;
        stats.zones += zones;
        stats.zlc_skip += skips;
        stats.zlc_zap += zaps;
        stats.zlc_mark += marks;
        stats.zlc_second_pass += second_passes;
    }
}

impl Scan {
    /// At the head of the request's zonelist.
    pub fn new(request: Request) -> Scan {
        Scan {
            request,
            position: 0,
            has_failed: false,
            has_skipped: false,
            is_second_pass: false,
            is_set_up: false,
            reclaimed: NodeMask::NONE,
            looks: Looks::default(),
        }
    }

    /// Answers [`Step::ReclaimNode`]: whether pages were freed there, so that it is tried again.
    pub fn reclaimed(&mut self, has_freed: bool) {
        self.has_failed = !has_freed;
    }
}

/// Nodes farther away are not reclaimed on. Source: kernel `node_reclaim_distance`.
const RECLAIM_DISTANCE: u8 = 30;

impl Zones {
    /// A block, from the first zone of the request's zonelist that has one above the mark.
    ///
    /// Where the first zone has one, the rest of the list and all hints stay untouched.
    ///
    /// # Errors
    /// [`Shortage`], after every zone was tried, whatever the hints say.
    #[inline]
    pub fn alloc(
        &self,
        frames: &FrameTable,
        cpu: Cpu,
        request: &Request,
    ) -> Result<Frame, Shortage> {
        let is_plain = request.policy == Mempolicy::Local && request.mems == NodeMask::ALL;
        let Request {
            order,
            mobility,
            mark,
            ..
        } = *request;
        let taken = match is_plain {
            true => self.alloc_near(frames, cpu, order, mobility, mark),
            false => Err(false),
        };
        taken.or_else(|has_failed| self.finish(frames, cpu, request, has_failed))
    }

    /// A block from the first zone of the list that a plain request goes along, else whether that
    /// was tried. Takes no [`Request`]: one that was just written would have to be read back.
    fn alloc_near(
        &self,
        frames: &FrameTable,
        cpu: Cpu,
        order: Order,
        mobility: Mobility,
        mark: Mark,
    ) -> Result<Frame, bool> {
        if self.config().node_reclaim {
            return Err(false);
        }
        let local = self.config().topology.node_of(cpu);
        let list = self.list(local, mobility);
        let zone = self.zone(list.head()).ok_or(false)?;
        let is_other = zone.config().node != local;
        let ask = Ask {
            order,
            mobility,
            mark,
            is_miss: is_other,
            is_other,
        };
        let here = Here {
            cpu,
            now: self.now(),
        };
        let frame = zone.alloc(frames, here, ask).ok_or(true)?;
        if is_other {
            self.count_foreign(local);
        }
        Ok(frame)
    }

    /// Takes blocks that the CPU's cache has of the zone where a plain request looks first, if that
    /// is on the CPU's node; returns how many, at most as many as `taken` has room for. One
    /// try-lock.
    pub fn take_cached(
        &self,
        frames: &FrameTable,
        cpu: Cpu,
        (order, mobility): (Order, Mobility),
        taken: &mut [Frame],
    ) -> usize {
        let local = self.config().topology.node_of(cpu);
        let first = self.zone(self.list(local, mobility).head());
        let near = first.filter(|zone| zone.config().node == local && !self.config().node_reclaim);
        let ask = Ask::new(order, mobility);
        near.map_or(0, |zone| zone.take_cached(frames, cpu, ask, taken))
    }

    /// The way through the whole list; whether its first zone has failed already.
    #[cold]
    #[inline(never)]
    fn finish(
        &self,
        frames: &FrameTable,
        cpu: Cpu,
        request: &Request,
        has_failed: bool,
    ) -> Result<Frame, Shortage> {
        let mut scan = Scan::new(*request);
        scan.has_failed = has_failed;
        scan.looks.zones += u64::from(has_failed);
        loop {
            match self.step(frames, cpu, &mut scan) {
                Step::Done(frame) => return Ok(frame),
                Step::ReclaimNode(node) => {
                    self.end_reclaim(node);
                    scan.reclaimed(false);
                }
                Step::Short(shortage) => return Err(shortage),
            }
        }
    }

    /// Goes on until a block is found, every zone was tried, or a near node should be reclaimed on
    /// (which only [`Config::node_reclaim`](super::Config) allows); then end it by
    /// [`Zones::end_reclaim`] and step again.
    ///
    /// Source: `get_page_from_freelist()` of kernel 2.6.20, with the mends of 2011.
    pub fn step(&self, frames: &FrameTable, cpu: Cpu, scan: &mut Scan) -> Step {
        let here = Here {
            cpu,
            now: self.now(),
        };
        let step = self.walk(frames, here, scan);
        self.looks(cpu).add(&core::mem::take(&mut scan.looks));
        step
    }

    fn walk(&self, frames: &FrameTable, here: Here, scan: &mut Scan) -> Step {
        let request = scan.request;
        let local = self.config().topology.node_of(here.cpu);
        let weights = &self.config().weights;
        let wanted = request
            .policy
            .first(local, request.turn, request.mems, weights);
        let wanted = self.folded(wanted);
        let list = self.list(wanted, request.mobility);
        let allowed = request.mems.and(request.policy.allowed());
        let first = list.first_of(allowed);
        loop {
            while scan.position < list.len() {
                let position = scan.position;
                let (number, node) = list.at(position);
                scan.looks.positions += 1;
                if !scan.has_failed && self.is_skipped(scan, list, first) {
                    scan.looks.skips += 1;
                    scan.has_skipped = true;
                    scan.position += 1;
                    continue;
                }
                if allowed.has(node) {
                    if !scan.has_failed {
                        scan.looks.zones += 1;
                        let zone = self.zone(number).expect("lists have zones that are there");
                        let ask = ask(&request, wanted, local, node);
                        if let Some(frame) = zone.alloc(frames, here, ask) {
                            scan.looks.served += 1;
                            if wanted != node {
                                self.count_foreign(wanted);
                            }
                            return Step::Done(frame);
                        }
                        if self.may_reclaim(scan, local, node) {
                            return Step::ReclaimNode(node);
                        }
                    }
                    scan.has_failed = false;
                    self.mark(scan, list, here.now);
                }
                self.set_up(scan, list, here.now);
                scan.position += 1;
            }
            if scan.is_second_pass || !scan.has_skipped {
                let Request { order, mark, .. } = request;
                return Step::Short(Shortage { order, mark });
            }
            scan.is_second_pass = true;
            scan.looks.second_passes += 1;
            scan.position = 0;
        }
    }

    /// Whether a hint says that the zone at the scan's position is short.
    fn is_skipped(&self, scan: &Scan, list: &Zonelist, first: Option<usize>) -> bool {
        if scan.is_second_pass {
            return false;
        }
        let (number, node) = list.at(scan.position);
        match self.config().zonelist_cache {
            ZonelistCache::None => false,
            ZonelistCache::Seed => {
                // The second word of the test: nodes that the request may not use at all.
                let is_allowed = scan.request.mems.has(node);
                scan.is_set_up && (!is_allowed || list.seed.is_full(scan.position))
            }
            ZonelistCache::Classed => {
                let class = scan.request.class();
                let full = class.map_or(0, |class| self.classed().full(class));
                let is_full = full >> number & 1 != 0;
                is_full && !(first == Some(scan.position) && self.classed().is_probed(number))
            }
        }
    }

    /// Remembers that the zone at the scan's position is short.
    fn mark(&self, scan: &mut Scan, list: &Zonelist, now: u64) {
        let (number, _) = list.at(scan.position);
        match self.config().zonelist_cache {
            ZonelistCache::None => {}
            ZonelistCache::Seed => {
                if !scan.request.policy.is_hand_built() {
                    list.seed.mark(scan.position);
                    scan.looks.marks += 1;
                }
            }
            ZonelistCache::Classed => {
                if let Some(class) = scan.request.class()
                    && self.classed().mark(number, class, now)
                {
                    self.zone(number)
                        .expect("lists have zones that are there")
                        .set_short(class);
                    self.pass_head(number, class);
                    scan.looks.marks += 1;
                }
            }
        }
    }

    /// After the first zone failed: the seed's cache is set up, and asked from here on.
    fn set_up(&self, scan: &mut Scan, list: &Zonelist, now: u64) {
        let is_seed = self.config().zonelist_cache == ZonelistCache::Seed;
        if is_seed && !scan.is_set_up && !scan.request.policy.is_hand_built() {
            scan.looks.zaps += u64::from(list.seed.set_up(now));
            scan.is_set_up = true;
        }
    }

    /// Whether this request should reclaim on a node: near, not tried before by it, and nobody
    /// else at it.
    fn may_reclaim(&self, scan: &mut Scan, local: Node, node: Node) -> bool {
        let config = self.config();
        let may = config.node_reclaim
            && scan.request.mark != Mark::None
            && !scan.reclaimed.has(node)
            && config.topology.distance(local, node) <= RECLAIM_DISTANCE
            && self.begin_reclaim(node);
        if may {
            scan.reclaimed = scan.reclaimed.or(NodeMask::of(node));
        }
        may
    }

    pub(super) fn list(&self, node: Node, mobility: Mobility) -> &Zonelist {
        self.list_of(node, zonelist::class_of(mobility))
    }
}

/// The request as a zone of `node` sees it: `wanted` first, from a CPU of `local`.
fn ask(request: &Request, wanted: Node, local: Node, node: Node) -> Ask {
    Ask {
        order: request.order,
        mobility: request.mobility,
        mark: request.mark,
        is_miss: node != wanted,
        is_other: node != local,
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::*;
    use crate::alloc::{Config, PAGEBLOCK_PAGES, Topology};
    use crate::units::SECOND;
    use std::vec::Vec;

    const CPU: Cpu = Cpu::new(0);

    fn node(number: u32) -> Node {
        Node::new(number).unwrap()
    }

    fn zones(nr_frames: u32, config: Config) -> (FrameTable, Zones) {
        let frames = FrameTable::try_new(nr_frames).unwrap();
        let zones = Zones::try_new(config, &frames).unwrap();
        (frames, zones)
    }

    /// Misses of all nodes, and requests that all nodes lost to others.
    fn misses(zones: &Zones) -> (u64, u64) {
        let nodes = zones.config().topology.nodes();
        nodes.fold((0, 0), |(misses, foreign), node| {
            let stats = zones.node_stats(node);
            (misses + stats.numa_miss, foreign + stats.numa_foreign)
        })
    }

    #[test]
    fn what_one_node_serves_for_another_both_count() {
        // Node 1 has a CPU and no memory; node 2 has none either and is not wanted.
        let topology = Topology::grid(3, 1).unwrap();
        let (frames, zones) = zones(PAGEBLOCK_PAGES, Config::new(topology));
        let request = Request::new(Order::ZERO, Mobility::Movable);
        zones.alloc(&frames, Cpu::new(1), &request).unwrap();
        assert_eq!(misses(&zones), (1, 1));
        assert_eq!(zones.node_stats(node(1)).numa_foreign, 1);
        let wanted = [
            Mempolicy::Preferred(node(63)),
            Mempolicy::Preferred(node(1)),
        ];
        for policy in wanted {
            let request = Request { policy, ..request };
            zones.alloc(&frames, CPU, &request).unwrap();
        }
        // Node 63 stands for node 0, which has the frame.
        assert_eq!(misses(&zones), (2, 2));
    }

    #[test]
    fn a_zone_skipped_before_a_reclaim_is_tried_in_the_end() {
        for zonelist_cache in [ZonelistCache::Classed, ZonelistCache::Seed] {
            let mut config = Config::new(Topology::grid(3, 1).unwrap());
            config.zonelist_cache = zonelist_cache;
            config.node_reclaim = true;
            let (frames, zones) = zones(3 * 2048, config);
            let request = Request {
                mark: Mark::Min,
                ..Request::new(Order::ZERO, Mobility::Movable)
            };
            let taken: Vec<Frame> =
                core::iter::from_fn(|| zones.alloc(&frames, CPU, &request).ok()).collect();
            zones.tick(&frames, 10 * SECOND);
            let of_node_1 = |frame: &&Frame| (2048..4096).contains(&frame.number());
            for &frame in taken.iter().filter(of_node_1) {
                zones.free(&frames, CPU, frame, Order::ZERO);
            }
            zones.drain(&frames);
            // Node 1 has pages, and is passed over on the way to node 2, which is short.
            if zonelist_cache == ZonelistCache::Seed {
                zones.alloc(&frames, CPU, &request).unwrap();
            }
            // For the seed's list, and for the second class.
            zones.corrupt_hints(0b010 | 0b010_u64.rotate_right(7));
            assert!(
                zones.alloc(&frames, CPU, &request).is_ok(),
                "{zonelist_cache:?}"
            );
        }
    }

    #[test]
    fn a_large_block_that_is_not_there_hides_no_single_page() {
        let (frames, zones) = zones(
            2 * PAGEBLOCK_PAGES,
            Config::new(Topology::grid(1, 1).unwrap()),
        );
        let single = Request::new(Order::ZERO, Mobility::Movable);
        let frame = zones.alloc(&frames, CPU, &single).unwrap();
        zones.free(&frames, CPU, frame, Order::ZERO);
        let large = Request {
            mark: Mark::Low,
            ..Request::new(Order::new(10).unwrap(), Mobility::Movable)
        };
        while zones.alloc(&frames, CPU, &large).is_ok() {}
        let form = (Order::ZERO, Mobility::Movable);
        let mut taken = [Frame::FIRST; 1];
        assert_eq!(zones.take_cached(&frames, CPU, form, &mut taken), 1);
        let looked = zones.look_stats().positions;
        zones.alloc(&frames, CPU, &single).unwrap();
        assert_eq!(
            zones.look_stats().positions,
            looked,
            "the first zone at one look"
        );
    }
}
