//! The allocator room beside a naive twin: a bit for each frame.

use pagetide_core::alloc::{Config, Zone};
use pagetide_core::frame::FrameTable;
use pagetide_core::units::{Cpu, Frame, NR_ORDERS, Order};
use proptest::prelude::*;

const NR_CPUS: u32 = 2;

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc {
        cpu: u32,
        order: u8,
    },
    Free {
        cpu: u32,
        which: prop::sample::Index,
    },
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    let order = prop_oneof![6 => 0u8..4, 1 => 0u8..11, 1 => Just(9)];
    prop_oneof![
        6 => (0..NR_CPUS, order).prop_map(|(cpu, order)| Op::Alloc { cpu, order }),
        5 => (0..NR_CPUS, any::<prop::sample::Index>())
            .prop_map(|(cpu, which)| Op::Free { cpu, which }),
        1 => Just(Op::Drain),
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
}

impl Pair {
    fn alloc(&mut self, cpu: Cpu, order: Order) -> bool {
        let taken = self.zone.alloc(&self.frames, cpu, order);
        if let Some(frame) = taken {
            self.twin.set(frame, order, true);
            self.twin.blocks.push((frame, order));
        }
        taken.is_some()
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Alloc { cpu, order } => {
                let (cpu, order) = (Cpu::new(cpu), order_of(order));
                if !self.alloc(cpu, order) {
                    // Frames may be in another CPU's cache; with all caches empty, none is missed.
                    self.zone.drain(&self.frames);
                    let blocks = self.twin.largest_blocks();
                    let is_there = blocks[order.index()..].iter().any(|&blocks| blocks > 0);
                    assert_eq!(self.alloc(cpu, order), is_there, "{order:?} of {blocks:?}");
                }
            }
            Op::Free { .. } if self.twin.blocks.is_empty() => {}
            Op::Free { cpu, which } => {
                let which = which.index(self.twin.blocks.len());
                let (frame, order) = self.twin.blocks.swap_remove(which);
                self.twin.set(frame, order, false);
                self.zone.free(&self.frames, Cpu::new(cpu), frame, order);
            }
            Op::Drain => {
                assert_eq!(self.zone.drain(&self.frames).not_reached, 0);
                assert_eq!(self.zone.buddyinfo(), self.twin.largest_blocks());
            }
        }
        self.zone.check(&self.frames);
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
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let end = start + nr_frames;
        let frames = FrameTable::try_new(end).expect("memory");
        let config = Config { batch, high: nr_batches * batch };
        let zone = Zone::try_new(&frames, start, end, NR_CPUS, config).expect("memory");
        let first = zone.buddyinfo();
        let mut pair = Pair { frames, zone, twin: Twin::new(start, end) };
        assert_eq!(first, pair.twin.largest_blocks());
        ops.into_iter().for_each(|op| pair.apply(op));
        // All of it, then all of it back.
        while pair.alloc(Cpu::new(0), Order::ZERO) {}
        pair.zone.drain(&pair.frames);
        while pair.alloc(Cpu::new(0), Order::ZERO) {}
        assert_eq!(pair.twin.nr_free(), 0);
        while let Some((frame, order)) = pair.twin.blocks.pop() {
            pair.zone.free(&pair.frames, Cpu::new(1), frame, order);
        }
        pair.zone.drain(&pair.frames);
        pair.zone.check(&pair.frames);
        assert_eq!(pair.zone.buddyinfo(), first);
    }
}
