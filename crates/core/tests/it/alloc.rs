//! The allocator room beside a naive twin: a bit for each frame.

use pagetide_core::alloc::{
    Ask, BulkFree, Config, Here, Kind, Mobility, PcpSizes, Tuner, Watermarks, Zone, ZoneConfig,
};
use pagetide_core::frame::FrameTable;
use pagetide_core::units::{Cpu, Frame, NR_ORDERS, Node, Order, SECOND};
use proptest::prelude::*;

const NR_CPUS: u32 = 2;

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc {
        cpu: u32,
        order: u8,
        mobility: Mobility,
    },
    Free {
        cpu: u32,
        which: prop::sample::Index,
    },
    Drain,
    Tick,
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    let order = prop_oneof![6 => 0u8..4, 1 => 0u8..11, 1 => Just(9)];
    prop_oneof![
        6 => (0..NR_CPUS, order, 0..3_usize).prop_map(|(cpu, order, kind)| Op::Alloc {
            cpu,
            order,
            mobility: Mobility::ALL[kind],
        }),
        5 => (0..NR_CPUS, any::<prop::sample::Index>())
            .prop_map(|(cpu, which)| Op::Free { cpu, which }),
        1 => Just(Op::Drain),
        1 => Just(Op::Tick),
        1 => Just(Op::Release),
    ]
}

fn order_of(order: u8) -> Order {
    Order::new(order).expect("an order")
}

/// Frames `start..` in use, and the blocks that are handed out.
struct Twin {
    start: u32,
    is_used: Vec<bool>,
    blocks: Vec<(Frame, Order)>,
}

impl Twin {
    fn new(start: u32, end: u32) -> Twin {
        Twin {
            start,
            is_used: vec![false; (end - start) as usize],
            blocks: Vec::new(),
        }
    }

    fn end(&self) -> u32 {
        self.start + u32::try_from(self.is_used.len()).expect("a small zone")
    }

    fn nr_free(&self) -> u32 {
        let free = self.is_used.iter().filter(|used| !**used).count();
        u32::try_from(free).expect("a small zone")
    }

    /// The frames of a block, as places in `is_used`; `None` where it sticks out of the zone.
    fn range(&self, first: u32, order: Order) -> Option<std::ops::Range<usize>> {
        let is_inside = first >= self.start && first + order.nr_pages() <= self.end();
        let at = || (first - self.start) as usize;
        is_inside.then(|| at()..at() + order.nr_pages() as usize)
    }

    fn set(&mut self, frame: Frame, order: Order, used: bool) {
        assert_eq!(
            frame.number() % order.nr_pages(),
            0,
            "{frame:?} is not aligned"
        );
        let range = self
            .range(frame.number(), order)
            .expect("a block of this zone");
        for place in &mut self.is_used[range] {
            assert_ne!(*place, used, "{frame:?} overlaps");
            *place = used;
        }
    }

    /// The free frames in the largest aligned blocks, counted by order.
    fn largest_blocks(&self) -> [u32; NR_ORDERS] {
        let mut blocks = [0; NR_ORDERS];
        let mut at = self.start;
        while at < self.end() {
            let is_free = |order: &u8| {
                let order = order_of(*order);
                at.is_multiple_of(order.nr_pages())
                    && self
                        .range(at, order)
                        .is_some_and(|range| self.is_used[range].iter().all(|used| !used))
            };
            match (0..=10).rev().find(is_free) {
                Some(order) => {
                    blocks[usize::from(order)] += 1;
                    at += order_of(order).nr_pages();
                }
                None => at += 1,
            }
        }
        blocks
    }
}

struct Pair {
    frames: FrameTable,
    zone: Zone,
    twin: Twin,
    now: u64,
}

impl Pair {
    fn here(&self, cpu: u32) -> Here {
        let cpu = Cpu::new(cpu);
        Here { cpu, now: self.now }
    }

    fn alloc(&mut self, cpu: u32, order: Order, mobility: Mobility) -> bool {
        let ask = Ask::new(order, mobility);
        let taken = self.zone.alloc(&self.frames, self.here(cpu), ask);
        if let Some(frame) = taken {
            self.twin.set(frame, order, true);
            self.twin.blocks.push((frame, order));
        }
        taken.is_some()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc {
                cpu,
                order,
                mobility,
            } => {
                let order = order_of(order);
                if !self.alloc(cpu, order, mobility) {
                    // Frames may be in another CPU's cache; with all caches empty, none is missed.
                    self.zone.drain(&self.frames, self.now);
                    let blocks = self.twin.largest_blocks();
                    let is_there = blocks[order.index()..].iter().any(|&blocks| blocks > 0);
                    let is_taken = self.alloc(cpu, order, mobility);
                    assert_eq!(is_taken, is_there, "{order:?} of {blocks:?}");
                }
            }
            Op::Free { .. } if self.twin.blocks.is_empty() => {}
            Op::Free { cpu, which } => {
                let which = which.index(self.twin.blocks.len());
                let (frame, order) = self.twin.blocks.swap_remove(which);
                self.twin.set(frame, order, false);
                self.zone.free(&self.frames, self.here(cpu), frame, order);
            }
            Op::Drain => {
                assert_eq!(self.zone.drain(&self.frames, self.now).not_reached, 0);
                assert_eq!(self.zone.buddyinfo(), self.twin.largest_blocks());
            }
            Op::Tick => {
                self.now += SECOND + 1;
                self.zone
                    .tick(&self.frames, self.now, |cpu| cpu.number() == 0);
            }
            Op::Release => {
                if let Some(block) = self.zone.take_idle(&self.frames, self.now) {
                    // Nobody uses what is given to the OS.
                    self.twin.set(block.0, block.1, true);
                    self.twin.set(block.0, block.1, false);
                    self.zone.put_released(&self.frames, self.now, block, true);
                }
            }
        }
        self.zone.audit(&self.frames).expect("agreement");
        assert_eq!(self.zone.nr_free(), self.twin.nr_free());
    }
}

proptest! {
    #![proptest_config(crate::config(400))]

    /// Blocks are aligned and disjoint, none is lost, and all merge again.
    #[test]
    fn blocks_are_disjoint_conserved_and_merge_again(
        start in 0u32..70,
        nr_frames in 1u32..2600,
        batch in 1u32..20,
        nr_batches in 0u32..5,
        tuner in 0..4_usize,
        is_single_pass: bool,
        is_kernel_orders: bool,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let end = start + nr_frames;
        let frames = FrameTable::try_new(end).expect("memory");
        let high_min = nr_batches * batch;
        let config = ZoneConfig {
            node: Node::ZERO,
            kind: Kind::Normal,
            watermarks: Watermarks { min: 5, low: 10, high: 20 },
            lowmem_reserve: 0,
            nr_local_cpus: 2,
            sizes: PcpSizes { batch, high_min, high_max: 8 * high_min },
            tuner: Tuner::ALL[tuner].1,
            bulk_free: if is_single_pass { BulkFree::SinglePass } else { BulkFree::TwoPass },
            cached_orders: if is_kernel_orders { Config::KERNEL_ORDERS } else { 0x7FF },
            keeps_batch: false,
        };
        let zone = Zone::try_new(&frames, start, end, NR_CPUS, config).expect("memory");
        let first = zone.buddyinfo();
        let mut pair = Pair { frames, zone, twin: Twin::new(start, end), now: 0 };
        assert_eq!(first, pair.twin.largest_blocks());
        ops.into_iter().for_each(|op| pair.apply(op));
        // All of it, then all of it back.
        while pair.alloc(0, Order::ZERO, Mobility::Movable) {}
        pair.zone.drain(&pair.frames, pair.now);
        while pair.alloc(0, Order::ZERO, Mobility::Movable) {}
        assert_eq!(pair.twin.nr_free(), 0);
        while let Some((frame, order)) = pair.twin.blocks.pop() {
            pair.zone.free(&pair.frames, pair.here(1), frame, order);
        }
        pair.zone.drain(&pair.frames, pair.now);
        pair.zone.audit(&pair.frames).expect("agreement");
        assert_eq!(pair.zone.buddyinfo(), first);
    }
}
