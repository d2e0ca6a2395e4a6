//! Whole blocks taken out of the zones: free pageblocks, or any block put together from pieces.

use super::buddy::{Buddy, End, for_pageblocks, order_of};
use super::pageblock::{self, Mobility, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use super::{Request, Zone, Zones};
use crate::frame::{FrameTable, Place};
use crate::units::{Cpu, Frame, MAX_ORDER, NR_ORDERS, Order, count, index};
use core::ops::Range;

const WORDS: usize = 1 << (MAX_ORDER - 6);

/// Which frames of one aligned block somebody has in hand, neither free nor in use.
#[derive(Debug)]
#[must_use = "frames in hand have to be given back"]
pub struct Pieces {
    first: Frame,
    order: Order,
    nr_held: u32,
    held: [u64; WORDS],
}

impl Pieces {
    /// None yet of the block of `order` that `frame` lies in.
    pub fn of(frame: Frame, order: Order) -> Pieces {
        Pieces {
            first: Frame::new(frame.number() & !(order.nr_pages() - 1)),
            order,
            nr_held: 0,
            held: [0; WORDS],
        }
    }

    /// The first frame of the block.
    #[must_use]
    pub fn first(&self) -> Frame {
        self.first
    }

    /// The order of the block.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// All frames of the block.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + use<> {
        (self.first.number()..)
            .take(index(self.order.nr_pages()))
            .map(Frame::new)
    }

    /// Takes a part of the block in hand.
    ///
    /// # Panics
    /// Where a frame of it lies elsewhere or is in hand already.
    pub fn add(&mut self, frame: Frame, order: Order) {
        let start = frame.number().wrapping_sub(self.first.number());
        for at in start..start + order.nr_pages() {
            let (word, bit) = (index(at / 64), 1 << (at % 64));
            assert!(self.held[word] & bit == 0, "{frame:?} is in hand twice");
            self.held[word] |= bit;
        }
        self.nr_held += order.nr_pages();
    }

    /// The first part of `order` goes into other hands.
    ///
    /// # Panics
    /// Where it was not in hand as a whole.
    pub fn take_first(&mut self, order: Order) -> Frame {
        for at in 0..order.nr_pages() {
            let (word, bit) = (index(at / 64), 1 << (at % 64));
            assert!(self.held[word] & bit != 0, "frame {at} is not in hand");
            self.held[word] &= !bit;
        }
        self.nr_held -= order.nr_pages();
        self.first
    }

    /// Whether a frame lies in the block, in hand or not.
    #[must_use]
    pub fn holds(&self, frame: Frame) -> bool {
        frame.number().wrapping_sub(self.first.number()) < self.order.nr_pages()
    }

    /// Whether a frame is in hand.
    #[must_use]
    pub fn has(&self, frame: Frame) -> bool {
        let at = frame.number().wrapping_sub(self.first.number());
        let word = self.held.get(index(at / 64));
        word.is_some_and(|word| word >> (at % 64) & 1 != 0)
    }

    /// Whether the whole block is in hand.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.nr_held == self.order.nr_pages()
    }
}

impl Buddy {
    /// Takes the free parts of a block in hand; returns their pages. A look at each record.
    fn take_pieces(&mut self, frames: &FrameTable, pieces: &mut Pieces) -> u32 {
        let mut nr_pages = 0;
        for frame in pieces.frames() {
            let (order, place) = frames.block(frame);
            if place == Place::Zone && order <= pieces.order() {
                self.unlist(frame, order, pageblock::mobility(frames, frame), frames);
                pieces.add(frame, order);
                nr_pages += order.nr_pages();
            }
        }
        if nr_pages == 0 {
            nr_pages = self.take_within(frames, pieces);
        }
        nr_pages
    }

    /// Takes a block in hand that lies within a larger free one; returns its pages.
    fn take_within(&mut self, frames: &FrameTable, pieces: &mut Pieces) -> u32 {
        let (first, order) = (pieces.first(), pieces.order());
        for have in order.index() + 1..NR_ORDERS {
            let have = order_of(count(have));
            let head = first.number() & !(have.nr_pages() - 1);
            if self.is_free(frames, head, have) {
                let head = Frame::new(head);
                let kind = pageblock::mobility(frames, head);
                self.unlist(head, have, kind, frames);
                self.list_around(frames, (head, have), (first, order), kind);
                pieces.add(first, order);
                return order.nr_pages();
            }
        }
        0
    }

    /// Takes a free pageblock, best one that the OS holds no memory for; says whether it does.
    /// Looks at `max_scan` blocks at most of each list, coldest first.
    fn take_region(&mut self, frames: &FrameTable, max_scan: usize) -> Option<(Frame, bool)> {
        for has_memory in [false, true] {
            for have in usize::from(PAGEBLOCK_ORDER)..NR_ORDERS {
                let order = order_of(count(have));
                for kind in Mobility::ALL {
                    if (order.get(), kind, has_memory) == (MAX_ORDER, Mobility::Movable, false) {
                        self.list_last(frames);
                    }
                    let list = &self.lists[have][kind.index()];
                    let mut blocks = list.iter_back(frames).take(max_scan);
                    let found = blocks.find_map(|block| {
                        pageblock_of(frames, block, order, has_memory).map(|first| (block, first))
                    });
                    if let Some((block, first)) = found {
                        self.unlist(block, order, kind, frames);
                        let pageblock = (first, order_of(u32::from(PAGEBLOCK_ORDER)));
                        self.list_around(frames, (block, order), pageblock, kind);
                        return Some((first, has_memory));
                    }
                }
            }
        }
        None
    }

    /// Lists what a block holds beside a smaller one in it, in halves.
    fn list_around(
        &mut self,
        frames: &FrameTable,
        (mut block, mut order): (Frame, Order),
        (first, least): (Frame, Order),
        kind: Mobility,
    ) {
        while order > least {
            order = order_of(u32::from(order.get()) - 1);
            let upper = Frame::new(block.number() + order.nr_pages());
            let other = if first < upper { upper } else { block };
            self.list(other, order, kind, frames, End::Tail);
            block = if first < upper { block } else { upper };
        }
    }
}

/// A pageblock of a free block for which the OS has memory or not.
fn pageblock_of(
    frames: &FrameTable,
    block: Frame,
    order: Order,
    has_memory: bool,
) -> Option<Frame> {
    let mut found = None;
    for_pageblocks(block, order, |first| {
        let has = pageblock::idle_since(frames, first).is_some();
        if has == has_memory {
            found = Some(first);
        }
    });
    found
}

impl Zone {
    fn take_pieces(&self, frames: &FrameTable, pieces: &mut Pieces) {
        self.hold(|buddy, _| buddy.take_pieces(frames, pieces));
    }

    fn take_region(&self, frames: &FrameTable) -> Option<(Frame, bool)> {
        /// Blocks of each list that one hold looks at.
        const MAX_SCAN: usize = 64;
        let mut taken = None;
        self.hold(|buddy, _| {
            taken = buddy.take_region(frames, MAX_SCAN);
            taken.map_or(0, |_| PAGEBLOCK_PAGES)
        });
        taken
    }
}

impl Zones {
    /// Takes a free pageblock out of the zone that has most to spare, best one that the OS holds no
    /// memory for; says whether it does. Given back by [`Zones::put_idle`].
    pub fn take_region(&self, frames: &FrameTable) -> Option<(Frame, bool)> {
        let richest = self.iter().max_by_key(|zone| zone.nr_free_racy())?;
        let all = core::iter::once(richest).chain(self.iter());
        all.into_iter().find_map(|zone| zone.take_region(frames))
    }

    /// Takes what is free of a block in hand: in the zone, and if `drained` in the caches of
    /// all CPUs, which go back to their zones first.
    pub fn take_pieces(&self, frames: &FrameTable, pieces: &mut Pieces, drained: bool) {
        if drained {
            self.drain(frames);
        }
        self.zone_of(frames, pieces.first())
            .take_pieces(frames, pieces);
    }

    /// Gives the frames in hand back, each by itself: the zone joins them.
    pub fn put_pieces(&self, frames: &FrameTable, pieces: &Pieces) {
        for frame in pieces.frames().filter(|&frame| pieces.has(frame)) {
            self.put_idle(frames, (frame, Order::ZERO), false);
        }
    }

    /// Whether a frame's pageblock lies in one zone as a whole.
    #[must_use]
    pub fn may_take(&self, frames: &FrameTable, first: Frame) -> bool {
        let last = first.number() + (PAGEBLOCK_PAGES - 1);
        let zone = || self.zone_of(frames, first);
        last < frames.len() && zone().holds(first) && zone().holds(Frame::new(last))
    }

    /// Takes a block that is in hand as a whole for whoever asked for one: it is a block of its
    /// order from here on, nobody's name on it. Whole pageblocks become ones of `mobility`.
    pub fn take_whole(&self, frames: &FrameTable, (first, order): (Frame, Order), to: Mobility) {
        frames.set_block(first, order, Place::Out);
        frames.set_group(first, 0);
        self.touch(frames, (first, order));
        if order.get() >= PAGEBLOCK_ORDER {
            self.set_mobility(frames, (first, order), to);
        }
    }

    /// Says that the OS holds memory for a block in hand, which was free as whole pageblocks
    /// perhaps. No lock where that is known.
    fn touch(&self, frames: &FrameTable, (first, order): (Frame, Order)) {
        let mut is_known = true;
        for_pageblocks(first, order, |block| {
            is_known &= pageblock::idle_since(frames, block).is_some();
        });
        if !is_known {
            self.zone_of(frames, first).hold(|_, _| {
                for_pageblocks(first, order, |block| pageblock::touch(frames, block));
                0
            });
        }
    }

    /// Makes the pageblocks of a block ones of another mobility, where a zone keeps them apart. The
    /// caller has all of their frames in hand, so that none is on a list of the old one.
    pub fn set_mobility(&self, frames: &FrameTable, (first, order): (Frame, Order), to: Mobility) {
        self.zone_of(frames, first).hold(|buddy, _| {
            if buddy.has_mobility() {
                for_pageblocks(first, order, |block| {
                    pageblock::set_mobility(frames, block, to);
                });
            }
            0
        });
    }

    /// The mobility of a frame's pageblock, or `None` where its zone does not keep them apart.
    #[must_use]
    pub fn mobility(&self, frames: &FrameTable, frame: Frame) -> Option<Mobility> {
        let has_mobility = self.zone_of(frames, frame).has_mobility();
        has_mobility.then(|| pageblock::mobility(frames, frame))
    }

    /// The frames of each zone that a request may be served from, nearest zone first.
    pub fn reach(&self, cpu: Cpu, request: &Request) -> impl Iterator<Item = Range<u32>> {
        let config = self.config();
        let local = config.topology.node_of(cpu);
        let first = request
            .policy
            .first(local, request.turn, request.mems, &config.weights);
        let list = self.list(self.folded(first), request.mobility);
        let allowed = request.mems.and(request.policy.allowed());
        (0..list.len())
            .map(|position| list.at(position))
            .filter(move |(_, node)| allowed.has(*node))
            .filter_map(|(number, _)| self.zone(number).map(Zone::frames))
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::alloc::{Config, Request, Topology};
    use crate::units::Cpu;

    const CPU: Cpu = Cpu::new(0);

    fn bed(nr_frames: u32) -> (FrameTable, Zones) {
        let frames = FrameTable::try_new(nr_frames).unwrap();
        let config = Config::new(Topology::uniform(1));
        let zones = Zones::try_new(config, &frames).unwrap();
        (frames, zones)
    }

    #[test]
    fn of_untouched_pageblocks_those_go_that_come_last() {
        let (frames, zones) = bed(8 << MAX_ORDER);
        let mut taken =
            [(); 16].map(|()| zones.take_region(&frames).unwrap().0.number() / PAGEBLOCK_PAGES);
        // Two are one block.
        assert!(
            taken
                .chunks(2)
                .rev()
                .zip(0..)
                .all(|(two, nr)| two[0] / 2 == nr)
        );
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..16));
        assert_eq!((zones.take_region(&frames), zones.nr_free()), (None, 0));
    }

    #[test]
    fn untouched_pageblocks_go_first() {
        let (frames, zones) = bed(4 * PAGEBLOCK_PAGES);
        let order = order_of(u32::from(PAGEBLOCK_ORDER));
        let request = Request::new(order, Mobility::Movable);
        let used = zones.alloc(&frames, CPU, &request).unwrap();
        zones.free(&frames, CPU, used, order);
        zones.drain(&frames);
        let taken = [(); 4].map(|()| zones.take_region(&frames).unwrap());
        assert_eq!(taken.map(|(_, has)| has), [false, false, false, true]);
        assert_eq!(taken[3].0, used);
        assert_eq!(zones.take_region(&frames), None);
        assert_eq!(zones.nr_free(), 0);
        for (first, _) in taken {
            zones.put_idle(&frames, (first, order), true);
        }
        zones.audit(&frames).unwrap();
        assert_eq!(zones.nr_free(), 4 * PAGEBLOCK_PAGES);
    }

    #[test]
    fn a_pageblock_is_put_together_from_pieces_of_zone_and_caches() {
        let (frames, zones) = bed(2 * PAGEBLOCK_PAGES);
        let request = Request::new(Order::ZERO, Mobility::Movable);
        let used = zones.alloc(&frames, CPU, &request).unwrap();
        let cached = zones.alloc(&frames, CPU, &request).unwrap();
        zones.free(&frames, CPU, cached, Order::ZERO);
        let order = order_of(u32::from(PAGEBLOCK_ORDER));
        let mut pieces = Pieces::of(used, order);
        assert!(zones.may_take(&frames, pieces.first()));
        zones.take_pieces(&frames, &mut pieces, false);
        assert!(!pieces.has(used) && !pieces.has(cached) && !pieces.is_full());
        zones.take_pieces(&frames, &mut pieces, true);
        assert!(!pieces.has(used) && pieces.has(cached) && !pieces.is_full());
        pieces.add(used, Order::ZERO);
        assert!(pieces.is_full());
        // A part of it is given away, and comes back by itself.
        let part = order_of(3);
        let first = pieces.take_first(part);
        assert!(!pieces.has(first) && !pieces.is_full());
        zones.take_whole(&frames, (first, part), Mobility::Movable);
        zones.free(&frames, CPU, first, part);
        zones.put_pieces(&frames, &pieces);
        zones.audit(&frames).unwrap();
        assert_eq!(zones.nr_free(), 2 * PAGEBLOCK_PAGES);
    }

    #[test]
    fn a_pageblock_of_which_a_part_was_taken_has_memory() {
        let whole = order_of(u32::from(PAGEBLOCK_ORDER));
        for part in [Order::ZERO, whole] {
            let (frames, zones) = bed(2 * PAGEBLOCK_PAGES);
            let mut pieces = Pieces::of(Frame::FIRST, order_of(10));
            zones.take_pieces(&frames, &mut pieces, false);
            let first = pieces.take_first(part);
            zones.take_whole(&frames, (first, part), Mobility::Movable);
            zones.put_pieces(&frames, &pieces);
            zones.free(&frames, CPU, first, part);
            zones.drain(&frames);
            let taken = [(); 2].map(|()| zones.take_region(&frames).unwrap());
            assert_eq!(taken.map(|(_, has)| has), [false, true]);
            assert_eq!(taken[1].0, first);
        }
    }

    #[test]
    fn a_block_is_taken_out_of_a_larger_free_one() {
        for (first, part) in [(Frame::new(24), 3), (Frame::new(513), 0), (Frame::FIRST, 9)] {
            let (frames, zones) = bed(2 * PAGEBLOCK_PAGES);
            let mut pieces = Pieces::of(first, order_of(part));
            zones.take_pieces(&frames, &mut pieces, false);
            assert!(pieces.is_full() && pieces.first() == first);
            zones.audit(&frames).unwrap();
            assert_eq!(zones.nr_free(), 2 * PAGEBLOCK_PAGES - (1 << part));
            zones.put_pieces(&frames, &pieces);
            zones.audit(&frames).unwrap();
            assert_eq!(zones.nr_free(), 2 * PAGEBLOCK_PAGES);
        }
    }
}
