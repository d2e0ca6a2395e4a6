//! All zones of an arena, and what they share: zonelists, hints, the clock of the last tick.

use super::config::{Config, Plan};
use super::pageblock;
use super::pcp_tune::Tuner;
use super::scan::{LookCounters, LookStats};
use super::zone::{Drained, Here, Kind, Zone, ZoneStats};
use super::zonelist::{self, NR_CLASSES, Zonelist};
use super::zonelist_cache::{self, Classed, ZonelistCache};
use crate::frame::FrameTable;
use crate::sync::{AtomicU32, AtomicU64, NoMetadata, Ordering, PerCpu, Slots, full_fence};
use crate::units::{Cpu, Discrepancy, Frame, MAX_NODES, Node, NodeMask, Order, SECOND, index};

/// The zones of an arena.
#[derive(Debug)]
pub struct Zones {
    config: Config,
    zones: Slots<Zone>,
    /// By node and class of request.
    lists: Slots<Zonelist>,
    classed: Classed,
    /// The time of the last tick, in ns.
    clock: AtomicU64,
    /// When the per-CPU page caches were last ticked.
    last_tick: AtomicU64,
    /// A bit for each node that somebody reclaims on.
    reclaiming: AtomicU64,
    /// A bit for each order that all zones were told to cache.
    cached_orders: AtomicU32,
    /// By node: requests that wanted it and were served elsewhere.
    foreign: [AtomicU64; MAX_NODES],
    looks: PerCpu<LookCounters>,
}

/// Counts of one node, as `numastat` names them. Blocks, not pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Served from this node, which was wanted.
    pub numa_hit: u64,
    /// Served from this node though another was wanted.
    pub numa_miss: u64,
    /// Served elsewhere though this node was wanted.
    pub numa_foreign: u64,
    /// Served from this node to one of its CPUs.
    pub local_node: u64,
    /// Served from this node to another node's CPU.
    pub other_node: u64,
}

/// Pages that a request for one takes out of other CPUs' caches: what those move at once at most.
pub const DRAIN_PAGES: u32 = 2016;
/// Time between two ticks of the per-CPU page caches. Source: kernel `vm.stat_interval`.
const TICK: u64 = SECOND;
/// Time between two steps of the clock for the tuner that tells one second from two.
const FINE_TICK: u64 = SECOND / 8;

impl Zones {
    /// Bytes that [`Zones::try_new`] takes beside itself, for `nr_frames` frames.
    #[must_use]
    pub fn bytes(config: &Config, nr_frames: u32) -> usize {
        let nr_zones = config.plans(nr_frames).count();
        let nr_cpus = config.topology.nr_cpus();
        Slots::<Zone>::bytes(crate::units::count(nr_zones))
            + nr_zones * Zone::bytes(nr_cpus)
            + Slots::<Zonelist>::bytes(nr_lists(config))
            + PerCpu::<LookCounters>::bytes(nr_cpus)
    }

    /// All frames, free, dealt out to zones. The configuration has passed [`Config::check`].
    ///
    /// # Errors
    /// [`NoMetadata`] where the allocator refuses.
    pub fn try_new(config: Config, frames: &FrameTable) -> Result<Zones, NoMetadata> {
        let nr_cpus = config.topology.nr_cpus();
        let nr_zones = crate::units::count(config.plans(frames.len()).count());
        let mut plans = config.plans(frames.len());
        let zones = Slots::try_new(nr_zones, |number| {
            let Plan { start, end, config } = plans.next().expect("as many as were counted");
            let number = u8::try_from(number).expect("at most 64 zones");
            let mut at = start;
            while at < end {
                pageblock::set_zone(frames, Frame::new(at), number);
                at = (at / pageblock::PAGEBLOCK_PAGES + 1) * pageblock::PAGEBLOCK_PAGES;
            }
            Zone::try_new(frames, start, end, nr_cpus, config)
        })?;
        drop(plans);
        let mut orders = zonelist::orders(&config.topology);
        let mut order = None;
        let lists = Slots::try_new(nr_lists(&config), |number| {
            let class = index(number) % NR_CLASSES;
            if class == 0 {
                order = orders.next();
            }
            let (_, nodes) = order.expect("an order for each node");
            let nodes = nodes.into_iter().take(index(config.topology.nr_nodes()));
            Ok(Zonelist::new(nodes, |node| zones_of(&zones, node, class)))
        })?;
        drop(orders);
        let looks = PerCpu::try_new(nr_cpus, LookCounters::default)?;
        Ok(Zones {
            zones,
            lists,
            classed: Classed::new(),
            clock: AtomicU64::new(0),
            last_tick: AtomicU64::new(0),
            reclaiming: AtomicU64::new(0),
            cached_orders: AtomicU32::new(0),
            foreign: core::array::from_fn(|_| AtomicU64::new(0)),
            looks,
            config,
        })
    }

    /// What they were built from.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All zones.
    pub fn iter(&self) -> impl Iterator<Item = &Zone> {
        self.zones.iter()
    }

    /// The zone of a number, `None` beyond them.
    #[must_use]
    pub fn zone(&self, number: usize) -> Option<&Zone> {
        self.zones.get(number)
    }

    /// The time of the last tick, in ns.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// The node that one stands for which a policy names though it may not be there.
    pub(super) fn folded(&self, node: Node) -> Node {
        let number = u32::from(node.number()) % self.config.topology.nr_nodes();
        Node::new(number).expect("a node that is there")
    }

    pub(super) fn list_of(&self, node: Node, class: usize) -> &Zonelist {
        &self.lists[node.index() * NR_CLASSES + class]
    }

    pub(super) fn classed(&self) -> &Classed {
        &self.classed
    }

    pub(super) fn looks(&self, cpu: Cpu) -> &LookCounters {
        self.looks.of(cpu)
    }

    pub(super) fn count_foreign(&self, wanted: Node) {
        self.foreign[wanted.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Says in all lists that begin with a zone whether it is tried without a look at the hints.
    pub(super) fn set_heads(&self, zone: usize, is_tried: bool) {
        for list in self.lists.iter() {
            if !list.is_empty() && list.at(0).0 == zone {
                list.set_head(is_tried);
            }
        }
    }

    /// A zone was marked as short for a class. Where it lacks single pages, it is not asked for one
    /// first without a look at the hints; whoever wants more asks it all the same.
    pub(super) fn pass_head(&self, zone: usize, class: usize) {
        let (order, ..) = zonelist_cache::largest_of(class);
        if order != Order::ZERO {
            return;
        }
        self.set_heads(zone, false);
        // With those behind `clear` and `expire`: who forgets the hint meanwhile is seen, or sets
        // them last.
        full_fence();
        if self.classed.full(class) >> zone & 1 == 0 {
            self.set_heads(zone, true);
        }
    }

    /// One thread at a time reclaims on a node for a request.
    pub(super) fn begin_reclaim(&self, node: Node) -> bool {
        let bit = NodeMask::of(node).bits();
        self.reclaiming.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Ends what [`Step::ReclaimNode`](super::Step) began.
    pub fn end_reclaim(&self, node: Node) {
        let bit = NodeMask::of(node).bits();
        self.reclaiming.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Gives a block back to the CPU's cache of its zone. See [`Zone::free`].
    ///
    /// # Panics
    /// Where the block is free already.
    pub fn free(&self, frames: &FrameTable, cpu: Cpu, frame: Frame, order: Order) {
        let number = pageblock::zone(frames, frame);
        let zone = &self.zones[number];
        let now = self.now();
        zone.free(frames, Here { cpu, now }, frame, order);
        self.after_free(number, zone);
    }

    /// Gives blocks back as [`Zones::free`] does, with one lock for many of one zone.
    ///
    /// # Panics
    /// Where one is free already.
    pub fn free_many(&self, frames: &FrameTable, cpu: Cpu, mut blocks: &[Frame]) {
        let now = self.now();
        while let Some(&first) = blocks.first() {
            let number = pageblock::zone(frames, first);
            let zone = &self.zones[number];
            let is_here = |frame: &&Frame| pageblock::zone(frames, **frame) == number;
            let nr_here = match self.zones.len() {
                1 => blocks.len(),
                _ => blocks.iter().take_while(is_here).count(),
            };
            let nr_freed = zone.free_some(frames, Here { cpu, now }, &blocks[..nr_here]);
            self.after_free(number, zone);
            blocks = &blocks[nr_freed..];
        }
    }

    /// Forgets hints about a zone that has pages again.
    pub(super) fn after_free(&self, number: usize, zone: &Zone) {
        let crossed = zone.take_crossed();
        if crossed != 0 {
            self.classed.clear(number, crossed);
            full_fence();
            self.set_heads(number, true);
        }
    }

    /// The per-CPU page caches of all zones keep blocks of `order` from now on.
    #[inline]
    pub fn cache_order(&self, order: Order) {
        let bit = 1 << order.get();
        if self.cached_orders.load(Ordering::Relaxed) & bit == 0 {
            self.cache_new_order(order);
        }
    }

    #[cold]
    fn cache_new_order(&self, order: Order) {
        self.iter().for_each(|zone| zone.cache_order(order));
        self.cached_orders
            .fetch_or(1 << order.get(), Ordering::Relaxed);
    }

    /// Empties all per-CPU page caches. See [`Zone::drain`].
    pub fn drain(&self, frames: &FrameTable) -> Drained {
        self.drain_some(frames, u32::MAX)
    }

    /// Empties per-CPU page caches until at least `nr_pages` pages have come back: fewer only where
    /// no cache was left, or none that could be reached.
    pub fn drain_some(&self, frames: &FrameTable, nr_pages: u32) -> Drained {
        let mut drained = Drained::default();
        for (number, zone) in self.iter().enumerate() {
            let left = nr_pages.saturating_sub(drained.nr_pages);
            if left == 0 {
                break;
            }
            drained += zone.drain_some(frames, self.now(), left);
            self.after_free(number, zone);
        }
        drained
    }

    /// No free block is remembered as a group's afterwards, of those that were free before. Returns
    /// whether all caches were reached: if not, it has to be asked again.
    ///
    /// What is in the zones cannot pass into a cache that is emptied already, nor what is in a
    /// cache into a zone, and keep a name.
    #[must_use]
    pub fn forget_groups(&self, frames: &FrameTable) -> bool {
        self.iter().for_each(Zone::begin_forgetting);
        let drained = self.drain(frames);
        self.iter().for_each(|zone| zone.end_forgetting(frames));
        drained.not_reached == 0
    }

    /// The clock goes on to `now` (ns; it never goes back): caches are ticked once a second, hints
    /// whose time has come are forgotten. Returns when the next tick is due.
    pub fn tick(&self, frames: &FrameTable, now: u64) -> u64 {
        self.clock.fetch_max(now, Ordering::Relaxed);
        let last = self.last_tick.load(Ordering::Relaxed);
        let mut next = last + TICK;
        if now >= next {
            next = now + TICK;
            self.last_tick.store(now, Ordering::Relaxed);
            let topology = &self.config.topology;
            for (number, zone) in self.iter().enumerate() {
                let node = zone.config().node;
                zone.tick(frames, now, |cpu| topology.node_of(cpu) == node);
                self.after_free(number, zone);
            }
        }
        if self.config.tuner == Tuner::Depth {
            next = next.min(now + FINE_TICK);
        }
        if self.config.zonelist_cache == ZonelistCache::Classed {
            let (nr_expired, due) = self.classed.expire(now);
            if nr_expired > 0 {
                full_fence();
                self.lists
                    .iter()
                    .for_each(|list| list.set_head(!list.is_empty()));
            }
            next = due.map_or(next, |due| due.min(next));
        }
        next
    }

    /// Takes a free block that the OS holds memory for, free since `before` (ns) or longer. See
    /// [`Zone::take_idle`].
    pub fn take_idle(&self, frames: &FrameTable, before: u64) -> Option<(Frame, Order)> {
        self.iter().find_map(|zone| zone.take_idle(frames, before))
    }

    /// Gives back a block of [`Zones::take_idle`]; whether the OS has its memory.
    pub fn put_idle(&self, frames: &FrameTable, block: (Frame, Order), is_released: bool) {
        let number = pageblock::zone(frames, block.0);
        let zone = &self.zones[number];
        zone.put_released(frames, self.now(), block, is_released);
        self.after_free(number, zone);
    }

    /// The node that a frame is on.
    #[must_use]
    #[inline]
    pub fn node_of(&self, frames: &FrameTable, frame: Frame) -> Node {
        self.zone_of(frames, frame).config().node
    }

    #[inline]
    pub(super) fn zone_of(&self, frames: &FrameTable, frame: Frame) -> &Zone {
        &self.zones[pageblock::zone(frames, frame)]
    }

    /// Frames of all zones.
    #[must_use]
    pub fn managed(&self) -> u32 {
        self.iter().map(Zone::managed).sum()
    }

    /// Frames that are free, in zones or per-CPU page caches.
    #[must_use]
    pub fn nr_free(&self) -> u32 {
        self.iter().map(Zone::nr_free).sum()
    }

    /// Counts of all zones together.
    #[must_use]
    pub fn stats(&self) -> ZoneStats {
        let [normal, movable] = self.stats_by_kind();
        normal + movable
    }

    /// Counts of all zones for blocks of every mobility, and of all for movable ones only.
    #[must_use]
    pub fn stats_by_kind(&self) -> [ZoneStats; 2] {
        let mut sums = [ZoneStats::default(); 2];
        for zone in self.iter() {
            let sum = &mut sums[zone.config().kind as usize];
            *sum = *sum + zone.stats();
        }
        sums
    }

    /// Counts of a node.
    #[must_use]
    pub fn node_stats(&self, node: Node) -> NodeStats {
        let mut stats = NodeStats {
            numa_foreign: self.foreign[node.index()].load(Ordering::Relaxed),
            ..NodeStats::default()
        };
        for zone in self.iter().filter(|zone| zone.config().node == node) {
            let zone = zone.stats();
            stats.numa_hit += zone.numa_hit;
            stats.numa_miss += zone.numa_miss;
            stats.local_node += zone.numa_local;
            stats.other_node += zone.numa_other;
        }
        stats
    }

    /// What scans beyond the first zone looked at.
    #[must_use]
    pub fn look_stats(&self) -> LookStats {
        let mut stats = LookStats::default();
        self.looks.iter().for_each(|looks| looks.add_to(&mut stats));
        stats
    }

    /// Sets the hints to any bits: for tests of the promise that they never decide a failure.
    pub fn corrupt_hints(&self, bits: u64) {
        self.classed.set_bits(bits, self.zones.len());
        for list in self.lists.iter() {
            list.seed.set_bits(bits, list);
            list.set_head(bits & 1 == 0 && !list.is_empty());
        }
    }

    /// Counts anew what the room's invariants say, at rest. O(frames).
    ///
    /// # Errors
    /// [`Discrepancy`] where one does not hold.
    pub fn audit(&self, frames: &FrameTable) -> Result<(), Discrepancy> {
        self.iter().try_for_each(|zone| zone.audit(frames))?;
        let (booked, counted) = (self.managed().into(), frames.len().into());
        Discrepancy::compare("frames of all zones", 0, booked, counted)
    }
}

fn nr_lists(config: &Config) -> u32 {
    config.topology.nr_nodes() * crate::units::count(NR_CLASSES)
}

/// The numbers of a node's zones that requests of a class may use, movable ones first.
fn zones_of(zones: &Slots<Zone>, node: Node, class: usize) -> impl Iterator<Item = u8> {
    let of = move |kind: Kind| {
        (0..).zip(zones.iter()).filter_map(move |(number, zone)| {
            let config = zone.config();
            (config.node == node && config.kind == kind).then_some(number)
        })
    };
    let movable =
        of(Kind::Movable).filter(move |_| class == zonelist::class_of(super::Mobility::Movable));
    movable.chain(of(Kind::Normal))
}
