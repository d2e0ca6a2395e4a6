//! Pageblocks of 512 frames: which mobility their free blocks have, and whether the OS holds
//! memory for them.

use crate::frame::FrameTable;
pub use crate::frame::PAGEBLOCK_ORDER;
use crate::sync::Ordering;
use crate::units::{Frame, SECOND};

/// Frames of a pageblock.
pub const PAGEBLOCK_PAGES: u32 = 1 << PAGEBLOCK_ORDER;

/// Whether what is in a block can go somewhere else: blocks of one kind are kept together, so that
/// a large block can be had again by emptying the movable ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mobility {
    /// Stays where it is until its owner frees it: working memory, long-lived pins.
    Unmovable = 0,
    /// Can be evicted or copied elsewhere: pages of files.
    Movable = 1,
    /// Goes when reclaim asks for it, but cannot be copied.
    Reclaimable = 2,
}

/// Mobility types there are.
pub const NR_MOBILITIES: usize = 3;

impl Mobility {
    /// All of them, in the order of their numbers.
    pub const ALL: [Mobility; NR_MOBILITIES] = [
        Mobility::Unmovable,
        Mobility::Movable,
        Mobility::Reclaimable,
    ];

    /// The type as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whose pageblocks are taken from when this type has no free block, in turn.
    ///
    /// Source: kernel `fallbacks[]`.
    #[must_use]
    pub const fn fallbacks(self) -> [Mobility; 2] {
        use Mobility::{Movable, Reclaimable, Unmovable};
        match self {
            Unmovable => [Reclaimable, Movable],
            Movable => [Reclaimable, Unmovable],
            Reclaimable => [Unmovable, Movable],
        }
    }

    const fn of_bits(bits: u64) -> Mobility {
        match bits & MOBILITY {
            0 => Mobility::Movable,
            1 => Mobility::Unmovable,
            _ => Mobility::Reclaimable,
        }
    }

    /// Zero is `Movable`: what every pageblock is at first.
    const fn bits(self) -> u64 {
        match self {
            Mobility::Movable => 0,
            Mobility::Unmovable => 1,
            Mobility::Reclaimable => 2,
        }
    }
}

const MOBILITY: u64 = 0b11;
/// Frames of it were handed out since it was last given back to the OS.
const TOUCHED: u64 = 1 << 2;
/// Six bits: the zone that the pageblock lies in.
const ZONE_SHIFT: u32 = 4;
const ZONE: u64 = 0b11_1111 << ZONE_SHIFT;
/// From here up: when it last became free as a whole, in ms.
const STAMP_SHIFT: u32 = 16;
const MILLISECOND: u64 = SECOND / 1000;

/// The mobility of the free blocks in a frame's pageblock. May change while nobody holds the
/// zone's lock.
#[must_use]
pub(super) fn mobility(frames: &FrameTable, frame: Frame) -> Mobility {
    Mobility::of_bits(frames.pageblock(frame).load(Ordering::Relaxed))
}

/// Changes a pageblock's word: plain load and store, under its zone's lock.
fn change(frames: &FrameTable, frame: Frame, change: impl FnOnce(u64) -> u64) {
    let word = frames.pageblock(frame);
    word.store(change(word.load(Ordering::Relaxed)), Ordering::Relaxed);
}

/// Names the mobility of a pageblock, under its zone's lock. Its free blocks are moved by the
/// caller.
pub(super) fn set_mobility(frames: &FrameTable, frame: Frame, mobility: Mobility) {
    change(frames, frame, |word| word & !MOBILITY | mobility.bits());
}

/// Says that frames of the pageblock are handed out.
pub(super) fn touch(frames: &FrameTable, frame: Frame) {
    change(frames, frame, |word| word | TOUCHED);
}

/// The number of the zone that a frame lies in.
#[inline]
pub(super) fn zone(frames: &FrameTable, frame: Frame) -> usize {
    let word = frames.pageblock(frame).load(Ordering::Relaxed);
    ((word & ZONE) >> ZONE_SHIFT) as usize
}

/// Names the zone that a pageblock lies in, before anybody uses it.
pub(super) fn set_zone(frames: &FrameTable, frame: Frame, zone: u8) {
    change(frames, frame, |word| {
        word & !ZONE | u64::from(zone) << ZONE_SHIFT
    });
}

/// Says that the pageblock is free as a whole since `now`, in ns.
pub(super) fn stamp(frames: &FrameTable, frame: Frame, now: u64) {
    let low = (1 << STAMP_SHIFT) - 1;
    change(frames, frame, |word| {
        word & low | (now / MILLISECOND) << STAMP_SHIFT
    });
}

/// Says that the OS holds no memory for the pageblock any more.
pub(super) fn released(frames: &FrameTable, frame: Frame) {
    change(frames, frame, |word| word & !TOUCHED);
}

/// When a pageblock that holds memory of the OS became free as a whole, in ns.
pub(super) fn idle_since(frames: &FrameTable, frame: Frame) -> Option<u64> {
    let word = frames.pageblock(frame).load(Ordering::Relaxed);
    (word & TOUCHED != 0).then_some((word >> STAMP_SHIFT) * MILLISECOND)
}
