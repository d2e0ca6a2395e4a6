//! The zone beside a set of live blocks.

use pagetide_core::alloc::{Config, Zone};
use pagetide_core::frame::FrameTable;
use pagetide_core::units::{Cpu, Order};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Op {
    Alloc { cpu: u32, order: u8 },
    Free { cpu: u32, pick: usize },
    Drain,
}

fn op() -> impl Strategy<Value = Op> {
    let order = prop_oneof![4 => 0..4_u8, 1 => 4..=10_u8];
    prop_oneof![
        8 => (0..3_u32, order).prop_map(|(cpu, order)| Op::Alloc { cpu, order }),
        7 => (0..3_u32, any::<usize>()).prop_map(|(cpu, pick)| Op::Free { cpu, pick }),
        1 => Just(Op::Drain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]
    #[test]
    fn blocks_are_disjoint_and_frames_conserved(
        ops in prop::collection::vec(op(), 1..200),
        nr_frames in 1..3000_u32,
        batch in 1..16_u32,
    ) {
        let frames = FrameTable::try_new(nr_frames).unwrap();
        let config = Config { batch, high: 4 * batch };
        let zone = Zone::try_new(&frames, 0, nr_frames, 2, config).unwrap();
        let first = zone.buddyinfo();
        // Live blocks by their first frame.
        let mut live = BTreeMap::new();
        for op in ops {
            match op {
                Op::Alloc { cpu, order } => {
                    let order = Order::new(order).unwrap();
                    if let Some(frame) = zone.alloc(&frames, Cpu::new(cpu), order) {
                        let (start, end) = (frame.number(), frame.number() + order.nr_pages());
                        prop_assert!(end <= nr_frames && start % order.nr_pages() == 0);
                        let before = live.range(..end).next_back();
                        let overlaps = before.is_some_and(|(&at, &other): (&u32, &Order)| {
                            at + other.nr_pages() > start
                        });
                        prop_assert!(!overlaps, "block {start}..{end} was handed out already");
                        live.insert(start, order);
                    }
                }
                Op::Free { cpu, pick } => {
                    let Some((&start, &order)) = live.iter().nth(pick % live.len().max(1)) else {
                        continue;
                    };
                    live.remove(&start);
                    zone.free(&frames, Cpu::new(cpu), pagetide_core::units::Frame::new(start), order);
                }
                Op::Drain => prop_assert_eq!(zone.drain(&frames).not_reached, 0),
            }
            zone.check(&frames);
            let used: u32 = live.values().map(|order| order.nr_pages()).sum();
            prop_assert_eq!(zone.nr_free() + used, nr_frames);
        }
        for (start, order) in live {
            zone.free(&frames, Cpu::new(0), pagetide_core::units::Frame::new(start), order);
        }
        zone.drain(&frames);
        prop_assert_eq!(zone.buddyinfo(), first);
    }
}
