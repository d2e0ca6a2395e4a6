//! The operations of the model, and how likely each is.

use super::{NR_LEAVES, PAGE, REGION};
use pagetide_core::group::Limit;
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// Has pages of a file of its own, and keeps a pin on some of them.
    Fill {
        leaf: usize,
        start: u64,
        nr_pages: u64,
        pins: bool,
    },
    Unpin(Index),
    AllocBuf {
        leaf: usize,
        order: u8,
    },
    FreeBuf(Index),
    Reserve {
        leaf: usize,
        nr_bytes: u64,
        forced: bool,
    },
    Grow {
        which: Index,
        nr_bytes: u64,
    },
    Shrink {
        which: Index,
        part: u64,
    },
    End(Index),
    /// Takes blocks out of use, at most so many; keeps the last one on its way.
    Offline {
        most: u32,
        released: bool,
        keeps: bool,
    },
    PutOffline,
    SetBudget {
        below: u64,
    },
    SetLimit {
        group: usize,
        limit: Limit,
        pages: u64,
    },
    Drop {
        leaf: usize,
    },
    Drain,
}

/// From a byte to several MiB.
fn nr_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        1..3 * PAGE,
        1..600 * PAGE,
        Just(REGION * PAGE),
        1..3 * REGION * PAGE,
    ]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let leaf = || 0..NR_LEAVES;
    let index = any::<Index>;
    let some_pages = || prop_oneof![Just(0), 1..40u64, 100..2500u64];
    let limit = prop_oneof![
        2 => Just(Limit::Min), 2 => Just(Limit::Low), 1 => Just(Limit::High), 2 => Just(Limit::Max)
    ];
    prop_oneof![
        8 => (leaf(), 0..900u64, 1..700u64, prop::bool::weighted(0.2))
            .prop_map(|(leaf, start, nr_pages, pins)| Op::Fill { leaf, start, nr_pages, pins }),
        2 => index().prop_map(Op::Unpin),
        2 => (leaf(), prop_oneof![0..4u8, 0..10u8])
            .prop_map(|(leaf, order)| Op::AllocBuf { leaf, order }),
        2 => index().prop_map(Op::FreeBuf),
        5 => (leaf(), nr_bytes(), prop::bool::weighted(0.15))
            .prop_map(|(leaf, nr_bytes, forced)| Op::Reserve { leaf, nr_bytes, forced }),
        2 => (index(), nr_bytes()).prop_map(|(which, nr_bytes)| Op::Grow { which, nr_bytes }),
        2 => (index(), 1..5u64).prop_map(|(which, part)| Op::Shrink { which, part }),
        2 => index().prop_map(Op::End),
        6 => (prop_oneof![Just(3), Just(u32::MAX)], any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(most, released, keeps)| Op::Offline { most, released, keeps }),
        1 => Just(Op::PutOffline),
        2 => (0..3 * REGION).prop_map(|below| Op::SetBudget { below }),
        4 => (0..=NR_LEAVES, limit, some_pages())
            .prop_map(|(group, limit, pages)| Op::SetLimit { group, limit, pages }),
        1 => leaf().prop_map(|leaf| Op::Drop { leaf }),
        1 => Just(Op::Drain),
    ]
}
