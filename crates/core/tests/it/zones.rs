//! All zones of an arena beside a naive twin: a bit for each frame, and whose it is.

use pagetide_core::alloc::{
    BulkFree, Config, Mark, Mempolicy, Mobility, NR_MOBILITIES, PAGEBLOCK_PAGES, PcpSizes, Request,
    Topology, Tuner, Weights, ZonelistCache, Zones,
};
use pagetide_core::frame::FrameTable;
use pagetide_core::units::{Cpu, Frame, NR_ORDERS, Node, NodeMask, Order, SECOND};
use proptest::prelude::*;
use proptest::sample::Index;

/// CPUs that operations name; one more than there are on small machines, so that some are folded.
const NR_CPUS: u32 = 5;
const MARKS: [Mark; 3] = [Mark::None, Mark::Min, Mark::Low];

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc {
        cpu: u32,
        request: Request,
    },
    Free {
        cpu: u32,
        which: Index,
    },
    /// Several at once, so that caches fill and overflow.
    FreeSome {
        cpu: u32,
        nr_blocks: usize,
    },
    Drain,
    Tick(u64),
    CorruptHints(u64),
    TakeIdle {
        age: u64,
    },
    PutIdle {
        is_released: bool,
    },
    CacheOrder(Order),
}

fn order() -> impl Strategy<Value = Order> {
    let number = prop_oneof![10 => 0u8..4, 1 => 4u8..11, 1 => Just(9)];
    number.prop_map(|order| Order::new(order).expect("an order"))
}

/// Mostly several of the nodes that there may be, now and then one that is not there.
fn nodes() -> impl Strategy<Value = NodeMask> {
    let bits = prop_oneof![4 => 1u64..16, 1 => Just(u64::MAX), 1 => Just(0), 1 => any::<u64>()];
    bits.prop_map(NodeMask::from_bits)
}

fn policy() -> impl Strategy<Value = Mempolicy> {
    let node = prop_oneof![8 => 0u32..4, 1 => 0..Node::MAX];
    prop_oneof![
        4 => Just(Mempolicy::Local),
        1 => nodes().prop_map(Mempolicy::Bind),
        1 => node.prop_map(|node| Mempolicy::Preferred(Node::new(node).expect("a node"))),
        1 => nodes().prop_map(Mempolicy::Interleave),
        1 => nodes().prop_map(Mempolicy::WeightedInterleave),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let mems = prop_oneof![3 => Just(NodeMask::ALL), 1 => nodes()];
    let (kind, mark) = (0..NR_MOBILITIES, 0..MARKS.len());
    (order(), kind, mark, mems, policy(), any::<u32>()).prop_map(
        |(order, kind, mark, mems, policy, turn)| Request {
            mark: MARKS[mark],
            mems,
            policy,
            turn,
            ..Request::new(order, Mobility::ALL[kind])
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let cpu = || 0..NR_CPUS;
    let time = prop_oneof![0..SECOND / 4, SECOND..4 * SECOND];
    let bits = prop_oneof![any::<u64>(), Just(u64::MAX)];
    prop_oneof![
        12 => (cpu(), request()).prop_map(|(cpu, request)| Op::Alloc { cpu, request }),
        5 => (cpu(), any::<Index>()).prop_map(|(cpu, which)| Op::Free { cpu, which }),
        2 => (cpu(), 2..20_usize).prop_map(|(cpu, nr_blocks)| Op::FreeSome { cpu, nr_blocks }),
        1 => Just(Op::Drain),
        2 => time.prop_map(Op::Tick),
        2 => bits.prop_map(Op::CorruptHints),
        1 => (0..2 * SECOND).prop_map(|age| Op::TakeIdle { age }),
        1 => any::<bool>().prop_map(|is_released| Op::PutIdle { is_released }),
        1 => order().prop_map(Op::CacheOrder),
    ]
}

fn topology() -> impl Strategy<Value = Topology> {
    let cpus = prop::collection::vec(0u32..4, 1..5);
    let distances = prop::collection::vec((0u32..4, 0u32..4, 11u8..60), 0..6);
    (1u32..5, cpus, distances).prop_map(|(nr_nodes, cpus, distances)| {
        let nr_cpus = u32::try_from(cpus.len()).expect("few");
        let mut topology = Topology::uniform(nr_cpus)
            .with_nodes(nr_nodes)
            .expect("few nodes");
        for (cpu, node) in (0..).map(Cpu::new).zip(cpus) {
            topology = topology.with_cpu(cpu, node % nr_nodes).expect("a node");
        }
        for (from, to, distance) in distances {
            let (from, to) = (from % nr_nodes, to % nr_nodes);
            if from != to {
                topology = topology.with_distance(from, to, distance).expect("nodes");
            }
        }
        topology
    })
}

fn config() -> impl Strategy<Value = Config> {
    let sizes = prop_oneof![
        1 => Just(None),
        4 => (1u32..12, 0u32..5, 1u32..9).prop_map(|(batch, nr_batches, most)| {
            let high_min = batch * nr_batches;
            let high_max = high_min * most;
            Some(PcpSizes { batch, high_min, high_max })
        }),
    ];
    let movable_percent = prop_oneof![2 => Just(0u8), 3 => 0u8..=100];
    let cached_orders = prop_oneof![Just(1), Just(Config::KERNEL_ORDERS), Just(0x7FF)];
    let choices = (0..4_usize, 0..3_usize, any::<[bool; 3]>());
    let numbers = (movable_percent, 1u32..2000, any::<[u8; 4]>());
    (topology(), sizes, cached_orders, choices, numbers).prop_map(
        |(topology, pcp_sizes, cached_orders, choices, numbers)| {
            let (tuner, cache, [is_two_pass, keeps_batch, node_reclaim]) = choices;
            let (movable_percent, watermark_scale, weights) = numbers;
            let mut config = Config::new(topology);
            config.tuner = Tuner::ALL[tuner].1;
            config.zonelist_cache = ZonelistCache::ALL[cache].1;
            config.pcp_sizes = pcp_sizes;
            if is_two_pass {
                config.bulk_free = BulkFree::TwoPass;
            }
            config.movable_percent = movable_percent;
            config.watermark_scale = watermark_scale;
            config.cached_orders = cached_orders;
            config.keeps_batch = keeps_batch;
            config.node_reclaim = node_reclaim;
            for (node, weight) in (0..).zip(weights) {
                let node = Node::new(node).expect("a node");
                config.weights = Weights::with(config.weights, node, weight);
            }
            config
        },
    )
}

/// A run of frames of one node and one use.
struct Part {
    node: Node,
    is_movable: bool,
    frames: std::ops::Range<u32>,
}

/// Which frames are used, and the blocks that are handed out.
struct Twin {
    is_used: Vec<bool>,
    parts: Vec<Part>,
    blocks: Vec<(Frame, Order)>,
}

impl Twin {
    fn new(config: &Config, nr_frames: u32) -> Twin {
        let mut parts = Vec::new();
        for node in config.topology.nodes() {
            let frames = config.node_range(node, nr_frames);
            // The pageblocks that lie in the node's last so many percent.
            let share = frames.len() as u64 * u64::from(config.movable_percent) / 100;
            let share = u32::try_from(share).expect("a part of the frames");
            let middle = (frames.end - share).next_multiple_of(PAGEBLOCK_PAGES);
            let middle = middle.min(frames.end);
            let uses = [(false, frames.start..middle), (true, middle..frames.end)];
            parts.extend(uses.map(|(is_movable, frames)| Part {
                node,
                is_movable,
                frames,
            }));
        }
        Twin {
            is_used: vec![false; nr_frames as usize],
            parts,
            blocks: Vec::new(),
        }
    }

    fn nr_free(&self) -> u32 {
        let free = self.is_used.iter().filter(|used| !**used).count();
        u32::try_from(free).expect("few frames")
    }

    fn set(&mut self, frame: Frame, order: Order, used: bool) {
        let (first, nr_pages) = (frame.index(), order.nr_pages() as usize);
        assert_eq!(first % nr_pages, 0, "{frame:?} is not aligned");
        for place in &mut self.is_used[first..first + nr_pages] {
            assert_ne!(*place, used, "{frame:?} overlaps");
            *place = used;
        }
    }

    /// The parts that a request may have blocks of.
    fn allowed(&self, request: &Request) -> impl Iterator<Item = &Part> {
        let mut nodes = request.mems;
        if let Mempolicy::Bind(bound) = request.policy {
            nodes = nodes.and(bound);
        }
        let is_movable = request.mobility == Mobility::Movable;
        let may = move |part: &&Part| nodes.has(part.node) && (is_movable || !part.is_movable);
        self.parts.iter().filter(may)
    }

    /// Whether the block may serve the request: inside one part that it may use.
    fn may_serve(&self, frame: Frame, request: &Request) -> bool {
        let (first, end) = (frame.number(), frame.number() + request.order.nr_pages());
        self.allowed(request)
            .any(|part| part.frames.start <= first && end <= part.frames.end)
    }

    /// Whether there is an aligned run of free frames for the request.
    fn can_serve(&self, request: &Request) -> bool {
        let nr_pages = request.order.nr_pages();
        let is_free = |first: u32, part: &Part| {
            let range = first as usize..(first + nr_pages) as usize;
            first + nr_pages <= part.frames.end && self.is_used[range].iter().all(|used| !used)
        };
        self.allowed(request).any(|part| {
            let mut first = part.frames.start.next_multiple_of(nr_pages);
            while first < part.frames.end && !is_free(first, part) {
                first += nr_pages;
            }
            first < part.frames.end
        })
    }
}

struct Pair {
    frames: FrameTable,
    zones: Zones,
    twin: Twin,
    /// Taken to be given to the OS.
    idle: Vec<(Frame, Order)>,
    nr_served: u64,
}

impl Pair {
    fn new(config: Config, nr_frames: u32) -> Pair {
        config.check().expect("a configuration that adds up");
        let twin = Twin::new(&config, nr_frames);
        let frames = FrameTable::try_new(nr_frames).expect("memory");
        let zones = Zones::try_new(config, &frames).expect("memory");
        Pair {
            frames,
            zones,
            twin,
            idle: Vec::new(),
            nr_served: 0,
        }
    }

    fn buddyinfo(&self) -> Vec<[u32; NR_ORDERS]> {
        self.zones.iter().map(|zone| zone.buddyinfo()).collect()
    }

    /// A block, if one is found: it is one that the request may have.
    fn alloc(&mut self, cpu: u32, request: &Request) -> bool {
        let taken = self.zones.alloc(&self.frames, Cpu::new(cpu), request);
        match taken {
            Ok(frame) => {
                let may = self.twin.may_serve(frame, request);
                assert!(may, "{frame:?} for {request:?}");
                self.twin.set(frame, request.order, true);
                self.twin.blocks.push((frame, request.order));
                self.nr_served += 1;
            }
            Err(shortage) => {
                assert_eq!(
                    (shortage.order, shortage.mark),
                    (request.order, request.mark)
                );
            }
        }
        taken.is_ok()
    }

    fn free(&mut self, cpu: u32, which: usize) {
        let (frame, order) = self.twin.blocks.swap_remove(which);
        self.twin.set(frame, order, false);
        self.zones.free(&self.frames, Cpu::new(cpu), frame, order);
    }

    fn drain(&self) {
        assert_eq!(self.zones.drain(&self.frames).not_reached, 0);
    }

    /// A request that fails has to fail without hints; where it may take the last frame, and no
    /// frame lies in a cache, it fails only if there is none.
    fn alloc_or_judge(&mut self, cpu: u32, request: &Request) {
        if self.alloc(cpu, request) {
            return;
        }
        self.zones.corrupt_hints(0);
        assert!(!self.alloc(cpu, request), "hints decided on {request:?}");
        if request.mark == Mark::None {
            self.drain();
            let can_serve = self.twin.can_serve(request);
            assert_eq!(self.alloc(cpu, request), can_serve, "{request:?}");
        }
    }

    fn put_idle(&mut self, block: (Frame, Order), is_released: bool) {
        self.twin.set(block.0, block.1, false);
        self.zones.put_idle(&self.frames, block, is_released);
    }

    fn apply(&mut self, op: Op) {
        let now = self.zones.now();
        match op {
            Op::Alloc { cpu, request } => self.alloc_or_judge(cpu, &request),
            Op::Free { .. } if self.twin.blocks.is_empty() => {}
            Op::Free { cpu, which } => self.free(cpu, which.index(self.twin.blocks.len())),
            Op::FreeSome { cpu, nr_blocks } => {
                for _ in 0..nr_blocks.min(self.twin.blocks.len()) {
                    self.free(cpu, self.twin.blocks.len() - 1);
                }
            }
            Op::Drain => self.drain(),
            Op::Tick(ns) => {
                let next = self.zones.tick(&self.frames, now + ns);
                assert!(next > now + ns, "the next tick is due at {next}");
            }
            Op::CorruptHints(bits) => self.zones.corrupt_hints(bits),
            Op::TakeIdle { age } => {
                let before = now.saturating_sub(age);
                if let Some((frame, order)) = self.zones.take_idle(&self.frames, before) {
                    self.twin.set(frame, order, true);
                    self.idle.push((frame, order));
                }
            }
            Op::PutIdle { is_released } => {
                if let Some(block) = self.idle.pop() {
                    self.put_idle(block, is_released);
                }
            }
            Op::CacheOrder(order) => self.zones.cache_order(order),
        }
        self.check();
    }

    fn check(&self) {
        self.zones.audit(&self.frames).expect("agreement");
        assert_eq!(self.zones.nr_free(), self.twin.nr_free());
        let stats = self.zones.stats();
        let used: u32 = self
            .twin
            .blocks
            .iter()
            .map(|block| block.1.nr_pages())
            .sum();
        assert_eq!(stats.pgalloc - stats.pgfree, u64::from(used));
        let nodes = self.zones.config().topology.nodes();
        let nodes: Vec<_> = nodes.map(|node| self.zones.node_stats(node)).collect();
        let [mut hit, mut miss, mut foreign, mut local, mut other] = [0; 5];
        for node in nodes {
            hit += node.numa_hit;
            miss += node.numa_miss;
            foreign += node.numa_foreign;
            local += node.local_node;
            other += node.other_node;
        }
        assert_eq!(hit + miss, self.nr_served);
        assert_eq!(local + other, self.nr_served);
        assert_eq!(miss, foreign);
    }

    /// All frames, by any CPU, until the twin has none left.
    fn alloc_all(&mut self) {
        let request = Request::new(Order::ZERO, Mobility::Movable);
        for cpu in 0..NR_CPUS {
            while self.alloc(cpu, &request) {}
        }
        self.drain();
        while self.alloc(0, &request) {}
        assert_eq!(self.twin.nr_free(), 0);
        self.check();
    }

    fn free_all(&mut self) {
        for cpu in (0..NR_CPUS).cycle() {
            if self.twin.blocks.is_empty() {
                break;
            }
            self.free(cpu, self.twin.blocks.len() / 2);
        }
        self.drain();
        self.check();
    }
}

proptest! {
    #![proptest_config(crate::config(1500))]

    /// Blocks are disjoint and lie where the request may have them, none is lost, all merge again;
    /// hints decide no failure; the counts of the nodes add up.
    #[test]
    fn zones_serve_what_is_there_and_lose_nothing(
        config in config(),
        nr_frames in prop_oneof![1u32..600, 600u32..6000],
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut pair = Pair::new(config, nr_frames);
        let first = pair.buddyinfo();
        pair.check();
        ops.into_iter().for_each(|op| pair.apply(op));
        while let Some(block) = pair.idle.pop() {
            pair.put_idle(block, true);
        }
        pair.alloc_all();
        pair.free_all();
        assert_eq!(pair.buddyinfo(), first);
    }
}
