//! Charge, then allocate, reclaiming in between: the only retry loop of core.

use super::evacuate::Evacuated;
use super::gather::Gathered;
use super::held::{Held, What};
use super::reach::Reach;
use super::rounds::Rounds;
use super::{AllocError, Here, MAX_RETRIES, Memory};
use crate::alloc::{DRAIN_PAGES, Drained, Mark, Mobility, PAGEBLOCK_PAGES, Request, Scan, Step};
use crate::frame::State;
use crate::group::{Charged, OverLimit};
use crate::sync::yield_now;
use crate::units::{Cpu, Frame, NodeMask, Order, PAGE_BYTES};

/// Rounds that come to nothing before a block of more than one frame is given up: where none can be
/// emptied, that was found out by looking at all of them.
const MAX_BLOCK_RETRIES: u32 = 1;
/// Rounds of a charge in which writes were tried and none went well: each may take as long as the
/// store does to say so, and nothing looks at a deadline meanwhile.
const MAX_FAILED_ROUNDS: u32 = 2;
/// Blocks that are emptied for one request at most: others may use their pages again meanwhile.
const MAX_BLOCK_ROUNDS: u32 = 16;
/// Times that a request lets others run who have frames in hand, before that counts as a round that
/// came to nothing.
const MAX_YIELDS: u32 = 1 << 12;
/// The same, where nobody empties a block.
pub(super) const MAX_YIELDS_FOR_A_FRAME: u32 = MAX_YIELDS >> 4;

/// A free block on its way to the OS. Whoever holds it is the only one who may touch its bytes.
#[derive(Debug)]
#[must_use = "a block that is not given back is lost"]
pub struct Idle {
    frame: Frame,
    order: Order,
    has_memory: bool,
}

impl Idle {
    pub(super) fn new(frame: Frame, order: Order, has_memory: bool) -> Idle {
        Idle {
            frame,
            order,
            has_memory,
        }
    }

    /// Whether the OS may hold memory for it.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.has_memory
    }

    /// Its first frame.
    #[must_use]
    pub fn frame(&self) -> Frame {
        self.frame
    }

    /// Its order, at least that of a pageblock.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }
}

/// What is charged.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    /// Frames of the arena.
    Pages(u32),
    /// As many for requests that come next, of a page each mostly: of larger ones, each asks for
    /// itself where this is refused.
    Ahead(u32),
    /// Bytes of the program's own heap.
    Bytes(u64),
}

impl Amount {
    /// Pages, rounded up.
    pub(super) fn nr_pages(self) -> u32 {
        match self {
            Amount::Pages(nr_pages) | Amount::Ahead(nr_pages) => nr_pages,
            Amount::Bytes(nr_bytes) => {
                let nr_pages = nr_bytes.div_ceil(PAGE_BYTES as u64);
                u32::try_from(nr_pages).unwrap_or(u32::MAX)
            }
        }
    }

    /// Whole pageblocks that are emptied for it, because as many frames go out of use.
    fn nr_regions(self) -> u32 {
        match self {
            Amount::Pages(_) | Amount::Ahead(_) => 0,
            Amount::Bytes(_) => self.nr_pages() / PAGEBLOCK_PAGES,
        }
    }
}

/// A block that was just taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) frame: Frame,
    /// Its bytes are the group's own: nobody else's were in any of its frames since.
    pub(super) was_ours: bool,
}

impl Memory {
    /// A block charged to `group`, reclaimed for where a limit is met.
    ///
    /// Holds no lock and no claim while it reclaims. At most [`MAX_RETRIES`] rounds free nothing;
    /// above order 0 blocks are emptied, at most [`MAX_BLOCK_ROUNDS`].
    ///
    /// # Errors
    /// [`AllocError`]; nothing stays charged.
    #[inline(always)] // Once in each of its callers: its result goes through no memory.
    pub(super) fn take_block(
        &self,
        here: Here<'_>,
        group: u32,
        order: Order,
        mobility: Mobility,
    ) -> Result<Block, AllocError> {
        self.charge_pages(here, group, order.nr_pages())?;
        self.take_placed(here, group, Request::new(order, mobility))
    }

    /// [`Memory::take_block`] of what was charged.
    #[inline(always)]
    pub(super) fn take_placed(
        &self,
        here: Here<'_>,
        group: u32,
        request: Request,
    ) -> Result<Block, AllocError> {
        let frame = match self.groups.place(group) {
            None => self.take_charged(here, group, request, true)?,
            Some(place) => {
                let (request, is_anywhere) = self.placed(here.cpu, request, &place);
                self.take_charged(here, group, request, is_anywhere)?
            }
        };
        Ok(self.block_of(group, frame))
    }

    /// A block that was just taken, as the group's.
    #[inline(always)]
    pub(super) fn block_of(&self, group: u32, frame: Frame) -> Block {
        let was_ours = self.frames.group(frame) == group;
        if !was_ours {
            self.frames.set_group(frame, group);
        }
        Block { frame, was_ours }
    }

    /// Charges pages to `group`, reclaiming where a limit is met, or takes those that were charged
    /// ahead.
    ///
    /// # Errors
    /// [`AllocError`]; nothing stays charged.
    #[inline(always)]
    pub(super) fn charge_pages(
        &self,
        here: Here<'_>,
        group: u32,
        nr_pages: u32,
    ) -> Result<(), AllocError> {
        if here.ahead.is_some_and(|ahead| ahead.take(group, nr_pages)) {
            return Ok(());
        }
        match self.groups.charge(here.cpu, group, nr_pages) {
            Ok(Charged::Within) => Ok(()),
            charged => self.charge(here, group, Amount::Pages(nr_pages), charged),
        }
    }

    /// A block for what was charged; whether the request may go anywhere.
    #[inline(always)] // Twice, so that a request from anywhere is made in place.
    pub(super) fn take_charged(
        &self,
        here: Here<'_>,
        group: u32,
        request: Request,
        is_anywhere: bool,
    ) -> Result<Frame, AllocError> {
        let low = Request {
            mark: Mark::Low,
            ..request
        };
        if !self.config.alloc.node_reclaim
            && let Ok(frame) = self.zones.alloc(&self.frames, here.cpu, &low)
        {
            return Ok(frame);
        }
        self.take_short(here, group, &request, is_anywhere)
    }

    /// A block for what was charged, where no zone has one above its low watermark.
    #[cold]
    #[inline(never)]
    fn take_short(
        &self,
        here: Here<'_>,
        group: u32,
        request: &Request,
        is_anywhere: bool,
    ) -> Result<Frame, AllocError> {
        let order = request.order;
        while self.give_back_slack() {
            let low = Request {
                mark: Mark::Low,
                ..*request
            };
            if let Ok(frame) = self.zones.alloc(&self.frames, here.cpu, &low) {
                return Ok(frame);
            }
        }
        // Charged, so frames are there, but they may be split, or on nodes that it may not use.
        // Blocks are emptied of pages of those who may be there.
        let from = match is_anywhere {
            true => self.groups.root(),
            false => group,
        };
        // Anybody's page is as good, but where some lie in zones that the request may not use.
        let is_page = order == Order::ZERO && !self.is_shut_out(request);
        let (mut retries, mut rounds, mut yields) = (0, 0, 0);
        let mut over = None;
        let amount = Amount::Pages(order.nr_pages());
        let charge = Held::new(self, here.cpu, What::Charge { group, amount });
        loop {
            let (taken, drained) = self.take_frames(here, group, request, rounds == 0);
            if let Some(frame) = taken {
                charge.keep();
                return Ok(frame);
            }
            rounds += 1;
            let freed = match (here.may_reclaim, is_page) {
                (false, _) => 0,
                (true, true) => {
                    // Anybody's pages, but where the frame has to be.
                    let allowed = request.mems.and(request.policy.allowed());
                    let reach = self.budget_reach().on(allowed);
                    self.reclaim_round(here, group, reach, 1).nr_freed
                }
                (true, false) => match self.evacuate_for(here, group, request, from) {
                    Evacuated::Block(frame) => {
                        charge.keep();
                        return Ok(frame);
                    }
                    Evacuated::Pages(nr_pages) => nr_pages,
                },
            };
            if drained.nr_pages == 0 && freed == 0 && !self.give_back_slack() {
                over = self.over_limit(group).or(over);
                // Where no limit was lowered, what is charged has a frame: if none is free, others
                // have it in hand. What they have is a block for them, or comes back; and what lies
                // in a cache that one of them holds is free.
                let is_in_hand = is_page && is_anywhere && over.is_none();
                let is_held = drained.not_reached > 0;
                let most = match self.evacuation.is_under_way() {
                    true => MAX_YIELDS,
                    false if is_in_hand || is_held => MAX_YIELDS_FOR_A_FRAME,
                    false => 0,
                };
                if yields < most {
                    yields += 1;
                    here.platform.stall(group, &mut yield_now);
                    continue;
                }
                retries += 1;
            }
            let most = match order {
                Order::ZERO => MAX_RETRIES,
                _ => MAX_BLOCK_RETRIES,
            };
            let is_hopeless = retries > most || !is_page && rounds > MAX_BLOCK_ROUNDS + yields;
            if is_hopeless {
                return Err(self.why_refused(order, over));
            }
        }
    }

    /// Whether there are zones that are for pages only, and the request is not for one.
    fn is_shut_out(&self, request: &Request) -> bool {
        request.mobility != Mobility::Movable && self.config.alloc.movable_percent > 0
    }

    /// Empties a block for a request that not anybody's page serves, as a stall of a caller that
    /// charges `group`. Where none can be emptied, shrinkers are asked: what they free may make
    /// one.
    fn evacuate_for(&self, here: Here<'_>, group: u32, request: &Request, from: u32) -> Evacuated {
        let mut nr_freed = 0;
        let mut held = Held::new(self, here.cpu, What::Nothing);
        here.platform
            .stall(group, &mut || match self.evacuate(here, request, from) {
                Evacuated::Block(frame) => held.what = What::Frame(frame, request.order),
                Evacuated::Pages(0) => {
                    let nr_pages = request.order.nr_pages();
                    nr_freed = here.platform.shrink(from, nr_pages, 0);
                }
                Evacuated::Pages(nr_pages) => nr_freed = nr_pages,
            });
        match held.keep() {
            What::Frame(frame, _) => Evacuated::Block(frame),
            _ => Evacuated::Pages(nr_freed),
        }
    }

    /// The group from `group` upwards that has more than its limit, because that was lowered.
    fn over_limit(&self, group: u32) -> Option<u32> {
        let is_over = |level: &crate::group::Group| level.usage() > level.max();
        let mut path = self.groups.path(group);
        path.find(|(_, level)| is_over(level)).map(|(id, _)| id)
    }

    /// Why what is charged got no block. Where a group was over its limit while it was looked for,
    /// that is why: as much goes out of use, though it may have come back by now.
    fn why_refused(&self, order: Order, over: Option<u32>) -> AllocError {
        match over {
            Some(group) => AllocError::OverLimit { group },
            None if order == Order::ZERO && self.is_thrashing() => AllocError::Thrashing {
                group: self.groups.root(),
            },
            None => AllocError::NoBlock { order },
        }
    }

    /// What is charged has a right to a frame: above the low watermark, else above `min`, else the
    /// last one of any zone, else one of any CPU's cache. Returns the pages drained for it, too.
    /// `is_low_tried`: nothing was found above the low watermark just now.
    ///
    /// Source: the order of the kernel's slow path. Changed: `min` is kept from requests that can
    /// be refused only, so that caches are not drained for each page while free memory is below it.
    pub(super) fn take_frames(
        &self,
        here: Here<'_>,
        group: u32,
        request: &Request,
        is_low_tried: bool,
    ) -> (Option<Frame>, Drained) {
        let node_reclaim = self.config.alloc.node_reclaim;
        let marks = [Mark::Low, Mark::Min, Mark::None];
        for mark in marks
            .into_iter()
            .skip(usize::from(is_low_tried && !node_reclaim))
        {
            if mark == Mark::Min {
                // None was there above the low watermark.
                self.wake_reclaim(here, request);
            }
            let request = Request { mark, ..*request };
            let taken = match node_reclaim {
                false => self.zones.alloc(&self.frames, here.cpu, &request).ok(),
                true => self.take_near(here, group, request),
            };
            if taken.is_some() {
                return (taken, Drained::default());
            }
        }
        // A single page is there as soon as some come back; a block, perhaps with the last of them.
        let enough = match request.order {
            Order::ZERO => DRAIN_PAGES,
            _ => u32::MAX,
        };
        let nr_charged = self.drain_magazines(|_| true);
        let mut drained = self.zones.drain_some(&self.frames, enough);
        drained.nr_pages += nr_charged;
        let taken = self.zones.alloc(&self.frames, here.cpu, request);
        (taken.ok(), drained)
    }

    /// Takes a block where near nodes that are short are reclaimed on before far ones are used.
    ///
    /// What is evicted are the coldest pages there of the group that asks, and no young ones: far
    /// nodes may have room.
    fn take_near(&self, here: Here<'_>, group: u32, request: Request) -> Option<Frame> {
        let mut scan = Scan::new(request);
        loop {
            match self.zones.step(&self.frames, here.cpu, &mut scan) {
                Step::Done(frame) => return Some(frame),
                Step::Short(_) => return None,
                Step::ReclaimNode(node) => {
                    let reclaiming = Held::new(self, here.cpu, What::Node(node));
                    let freed = match here.may_reclaim {
                        true => {
                            let reach = Reach::of(group).on(NodeMask::of(node)).keeping_young();
                            let nr_pages = request.order.nr_pages();
                            self.reclaim_round(here, group, reach, nr_pages).nr_freed
                        }
                        false => 0,
                    };
                    drop(reclaiming);
                    scan.reclaimed(freed > 0);
                }
            }
        }
    }

    /// Goes on after a charge that was refused, or that went above a `high`: reclaims at the level
    /// that it is about, and charges again where it was refused. For bytes whole pageblocks are
    /// emptied first, which then go out of use.
    #[cold]
    #[inline(never)]
    pub(super) fn charge(
        &self,
        here: Here<'_>,
        group: u32,
        amount: Amount,
        mut charged: Result<Charged, OverLimit>,
    ) -> Result<(), AllocError> {
        let nr_pages = amount.nr_pages();
        let is_page = matches!(amount, Amount::Pages(1) | Amount::Ahead(_));
        let (mut retries, mut nr_drains, mut nr_regions) = (0, 0, amount.nr_regions());
        let (mut is_unwritten, mut nr_failed, mut rounds) = (false, 0, Rounds::default());
        let mut gathered = Gathered::new(self, (here.cpu, group), amount);
        // The limit under which as much may go as the request lacks.
        let mut fits_under = None;
        loop {
            let over = match charged {
                Ok(charged) => {
                    gathered.finish(here, charged);
                    return Ok(());
                }
                Err(over) => over.group,
            };
            let nr_lacking = nr_pages - gathered.nr_pages();
            // What waits in magazines is nobody's: before anything is evicted, or refused.
            if nr_drains < MAX_RETRIES && self.drain_magazines_of(over) > 0 {
                nr_drains += 1;
                charged = gathered.charge_rest(here.cpu, false);
                continue;
            }
            let is_hopeless = u64::from(nr_pages) > self.room_under(over)
                || retries > MAX_RETRIES
                || nr_failed >= MAX_FAILED_ROUNDS;
            if is_hopeless || !here.may_reclaim {
                let is_young = is_page && over == self.groups.root() && retries > MAX_RETRIES;
                return Err(match is_unwritten {
                    true => AllocError::Unwritten { group: over },
                    false if is_young && self.is_thrashing() => {
                        AllocError::Thrashing { group: over }
                    }
                    false => AllocError::OverLimit { group: over },
                });
            }
            if fits_under != Some(over) && !self.may_make_room(here, over, nr_lacking) {
                // Evicts nothing in vain: others may free what they have in hand.
                retries += 1;
                here.platform.stall(group, &mut yield_now);
                charged = gathered.charge_rest(here.cpu, false);
                continue;
            }
            fits_under = Some(over);
            // Others may charge what is emptied: no more than would do without them.
            let is_emptied = nr_regions > 0 && self.take_pending(here, group, over);
            nr_regions = nr_regions.saturating_sub(1);
            if !is_emptied {
                let round = self.reclaim_over(here, (group, over), nr_lacking, is_page);
                is_unwritten = round.is_unwritten;
                nr_failed += u32::from(round.nr_freed == 0 && round.has_failed);
                let are_in_vain = rounds.are_in_vain(&self.groups, over, gathered.nr_pages());
                let has_freed = round.nr_freed > 0 && !are_in_vain;
                if !has_freed && !self.wait_for_read(here, (group, over), nr_lacking, &mut rounds) {
                    retries += match round.is_unwritten {
                        true => 1,
                        false => self.rounds_worth(over),
                    };
                    // Others may have in hand what is charged ahead, and give it back.
                    here.platform.stall(group, &mut yield_now);
                }
            }
            charged = gathered.charge_rest(here.cpu, rounds.do_others_take());
        }
    }

    /// Gives back a frame that the caller owns: not indexed, not listed, not pinned.
    #[inline(always)]
    pub(super) fn put_block(&self, cpu: Cpu, frame: Frame) {
        let (order, _) = self.frames.block(frame);
        let group = self.frames.group(frame);
        self.make_bare(frame);
        self.zones.free(&self.frames, cpu, frame, order);
        self.groups.uncharge(cpu, group, order.nr_pages());
    }

    /// As [`Memory::put_block`], of a block whose bytes may be another group's, because nobody has
    /// written to all of it since it was taken: whoever has it next is told so.
    #[cold]
    pub(super) fn put_foreign(&self, cpu: Cpu, frame: Frame) {
        let (order, _) = self.frames.block(frame);
        let group = self.frames.group(frame);
        self.make_bare(frame);
        self.frames.set_group(frame, 0);
        self.zones.free(&self.frames, cpu, frame, order);
        self.groups.uncharge(cpu, group, order.nr_pages());
    }

    /// As [`Memory::put_block`], of many blocks that are charged to one group.
    pub(super) fn put_blocks(&self, cpu: Cpu, group: u32, blocks: &[Frame]) {
        let nr_pages = |&frame: &Frame| self.frames.block(frame).0.nr_pages();
        let nr_pages = blocks.iter().map(nr_pages).sum();
        blocks.iter().for_each(|&frame| self.make_bare(frame));
        self.put_bare_blocks(cpu, group, nr_pages, blocks);
    }

    /// [`Memory::put_blocks`] of blocks of `nr_pages` pages together that are bare already.
    pub(super) fn put_bare_blocks(&self, cpu: Cpu, group: u32, nr_pages: u32, blocks: &[Frame]) {
        self.zones.free_many(&self.frames, cpu, blocks);
        if nr_pages > 0 {
            self.groups.uncharge_many(cpu, group, nr_pages);
        }
    }

    /// As [`Memory::put_block`], but the frame stays in the caller's hands. Returns its order.
    pub(super) fn end_use(&self, cpu: Cpu, frame: Frame) -> Order {
        let (order, _) = self.frames.block(frame);
        self.make_bare(frame);
        self.groups
            .uncharge(cpu, self.frames.group(frame), order.nr_pages());
        order
    }

    #[inline]
    pub(super) fn make_bare(&self, frame: Frame) {
        self.frames.set_key(frame, None);
        let before = self.frames.change_owned(frame, |word| {
            word.bare().with_state(State::Free).next_version()
        });
        assert!(before.pins() == 0, "{frame:?} is freed while pinned");
    }

    /// Takes a free block that the OS holds memory for and that was not used since `before` (ns).
    /// The caller lets the OS have the memory and gives the block back by [`Memory::put_idle`].
    pub fn take_idle(&self, before: u64) -> Option<Idle> {
        // In hand it is neither free nor in use, as what is evicted for a block.
        let under_way = self.evacuation.begin();
        let (frame, order) = self.zones.take_idle(&self.frames, before)?;
        core::mem::forget(under_way);
        Some(Idle::new(frame, order, true))
    }

    /// Gives back a block of [`Memory::take_idle`]; whether the OS has its memory.
    pub fn put_idle(&self, idle: Idle, is_released: bool) {
        let Idle { frame, order, .. } = idle;
        self.zones
            .put_idle(&self.frames, (frame, order), is_released);
        self.evacuation.end();
    }

    /// Empties magazines and per-CPU page caches, so that what they hold can merge and be released.
    pub fn drain(&self) -> crate::alloc::Drained {
        self.drain_magazines(|_| true);
        self.zones.drain(&self.frames)
    }
}
