//! Reservations, protections and a budget that moves, beside a naive twin: what is charged to whom,
//! what may be refused, whose pages may go, and how much is out of use.

mod ops;

use ops::{Op, op};
use pagetide_core::alloc::PAGEBLOCK_PAGES;
use pagetide_core::frame::State;
use pagetide_core::group::{Limit, MinOverMax, Protection};
use pagetide_core::memory::{
    AllocError, Config, Effect, Effects, Idle, Memory, PageError, PageIn, Step,
};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order, PAGE_BYTES};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

/// Groups that are charged: two below one parent, one beside it.
const NR_LEAVES: usize = 3;
const NR_REGIONS: u32 = 4;
const REGION: u64 = PAGEBLOCK_PAGES as u64;
const PAGE: u64 = PAGE_BYTES as u64;

fn pages_of(nr_bytes: u64) -> u64 {
    nr_bytes.div_ceil(PAGE)
}

/// What one group has, by the twin.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    /// Pages that cannot be evicted, without those of reservations.
    in_use: u64,
    reserved_bytes: u64,
}

impl Own {
    /// Pages that cannot be evicted: a group's reservations share the page of their last bytes.
    fn stays(&self) -> u64 {
        self.in_use + pages_of(self.reserved_bytes)
    }
}

struct World {
    memory: Memory,
    parent: u32,
    leaves: [u32; NR_LEAVES],
    /// Groups that were dropped with something charged.
    ghosts: Vec<u32>,
    file: u32,
    budget: u64,
    pinned: Vec<Frame>,
    bufs: Vec<Frame>,
    /// Group and bytes.
    reservations: Vec<(u32, u64)>,
    on_their_way: Vec<Idle>,
}

fn here() -> pagetide_core::memory::Here<'static> {
    Cpu::new(0).into()
}

impl World {
    fn new(policy: Policy, below: u64) -> World {
        let mut config = Config::for_resident(NR_REGIONS * PAGEBLOCK_PAGES, 2, policy);
        let budget = u64::from(config.arena_pages) - below;
        config.budget_pages = u32::try_from(budget).expect("few pages");
        let memory = Memory::try_new(config).expect("memory");
        let root = memory.groups().root();
        let parent = memory.new_group(here(), root).expect("a group");
        let leaves = [parent, parent, root].map(|above| memory.new_group(here(), above));
        World {
            parent,
            leaves: leaves.map(|leaf| leaf.expect("a group")),
            ghosts: Vec::new(),
            file: memory.open_mapping(here(), Order::ZERO).expect("a file"),
            budget,
            pinned: Vec::new(),
            bufs: Vec::new(),
            reservations: Vec::new(),
            on_their_way: Vec::new(),
            memory,
        }
    }

    fn usage(&self, group: u32) -> u64 {
        let record = self.memory.groups().get(group);
        record.map_or(0, |record| record.usage())
    }

    fn max(&self, group: u32) -> u64 {
        self.memory.groups().get(group).expect("a group").max()
    }

    /// The leaf, or the parent where the number is beyond them.
    fn group(&self, which: usize) -> u32 {
        self.leaves.get(which).copied().unwrap_or(self.parent)
    }

    /// Pages in frames of each group, by looking at every frame.
    fn scan(&self) -> BTreeMap<u32, u64> {
        let mut live = BTreeMap::new();
        let table = self.memory.frames();
        for frame in (0..table.len()).map(Frame::new) {
            let nr_pages = u64::from(table.block(frame).0.nr_pages());
            if !matches!(table.word(frame).state(), State::Free | State::Offline) {
                *live.entry(table.group(frame)).or_default() += nr_pages;
            }
        }
        live
    }

    fn own(&self) -> BTreeMap<u32, Own> {
        let mut own: BTreeMap<u32, Own> = BTreeMap::new();
        let table = self.memory.frames();
        let mut frames: Vec<Frame> = self.pinned.iter().chain(&self.bufs).copied().collect();
        frames.sort_unstable();
        frames.dedup();
        for frame in frames {
            let of = own.entry(table.group(frame)).or_default();
            of.in_use += u64::from(table.block(frame).0.nr_pages());
        }
        for &(group, nr_bytes) in &self.reservations {
            let of = own.entry(group).or_default();
            of.reserved_bytes += nr_bytes;
        }
        own
    }

    /// A refusal at a level is due to what is in use or protected there, and to nothing else.
    fn assert_refusal(&self, error: AllocError, nr_pages: u32) {
        let (over, nr_pages) = match error {
            AllocError::OverLimit { group } => (group, nr_pages),
            // A piece of a table: 32 records, none of more than a page.
            AllocError::NoMetadata => (self.memory.groups().root(), 32),
            AllocError::Thrashing { .. } => panic!("pages of any age may go"),
            _ => return assert!(!self.on_their_way.is_empty(), "{error:?}"),
        };
        let (groups, own) = (self.memory.groups(), self.own());
        let charged = self.leaves.iter().chain(&self.ghosts).copied();
        let below: Vec<u32> = charged.filter(|&id| groups.is_in(id, over)).collect();
        let stays = |&id: &u32| {
            let Protection { min, .. } = groups.protection(id, over);
            own.get(&id).map_or(0, Own::stays).max(min)
        };
        let kept: u64 = below.iter().map(stays).sum();
        // Core's own records, at the root.
        let others: u64 = below.iter().map(|&id| self.usage(id)).sum();
        let records = self.usage(over) - others;
        assert!(
            kept + records + u64::from(nr_pages) > self.max(over),
            "{nr_pages} pages refused by {over} with {kept} kept, {records} of records, of {}",
            self.max(over)
        );
    }

    fn touch(&self, group: u32, page: u64) -> Option<Frame> {
        let key = Mappings::key(self.file, page).expect("a small page");
        let mut effects = Effects::new();
        let mut op = PageIn::new(key, group, Access::Copy);
        loop {
            match op.step(&self.memory, here(), &mut effects) {
                Ok(Step::Done(frame)) => return Some(frame),
                Ok(Step::Wait { .. }) => {}
                Err(PageError::Alloc(error)) => {
                    self.assert_refusal(error, 1);
                    return None;
                }
                Err(error) => panic!("{error:?}"),
            }
            while let Some(effect) = effects.pop() {
                if let Effect::Read(io) = effect {
                    self.memory.complete(Cpu::new(1), io, Ok(()), &mut effects);
                }
            }
        }
    }

    fn unpin(&self, frame: Frame) {
        self.memory.unpin(Cpu::new(1), frame, &mut Effects::new());
    }

    /// Grows a reservation; whether it did.
    fn grow(&mut self, which: usize, nr_bytes: u64, forced: bool) {
        let (group, _) = self.reservations[which];
        let own = self.own().get(&group).copied().unwrap_or_default();
        let more = pages_of(own.reserved_bytes + nr_bytes) - pages_of(own.reserved_bytes);
        if forced {
            self.memory.reserve_forced(here(), group, nr_bytes);
        } else if let Err(error) = self.memory.reserve(here(), group, nr_bytes) {
            self.assert_refusal(error, u32::try_from(more).expect("few pages"));
            return;
        }
        self.reservations[which].1 += nr_bytes;
    }

    fn shrink(&mut self, which: usize, nr_bytes: u64) {
        let (group, _) = self.reservations[which];
        self.memory.unreserve(Cpu::new(1), group, nr_bytes);
        self.reservations[which].1 -= nr_bytes;
    }

    fn end(&mut self, which: usize) {
        self.shrink(which, self.reservations[which].1);
        self.reservations.swap_remove(which);
        self.memory.end_reservation();
    }

    /// Pages that should be out of use.
    fn want(&self) -> u64 {
        let reserved: u64 = self.reservations.iter().map(|(_, bytes)| bytes).sum();
        let config = self.memory.config();
        let left = self.budget - u64::from(config.metadata_pages());
        let below = u64::from(config.arena_pages) - left;
        (reserved / PAGE + below) / REGION * REGION
    }

    fn take_offline(&mut self, most: u32, released: bool, keeps: bool) {
        for _ in 0..most {
            let Some(idle) = self.memory.next_offline(here()) else {
                let (offline, want) = (self.memory.offline_pages(), self.want());
                let is_short = self.memory.zones().nr_free() == 0;
                assert!(offline >= want || is_short, "{offline} of {want} pages");
                return;
            };
            if keeps {
                self.on_their_way.push(idle);
                return;
            }
            self.memory.put_offline(idle, released);
        }
    }

    fn set_limit(&mut self, group: u32, limit: Limit, pages: u64) {
        let record = self.memory.groups().get(group).expect("a group");
        let (mut min, mut max) = (record.limit(Limit::Min), record.max());
        match limit {
            Limit::Min => min = pages,
            Limit::Max => max = pages,
            Limit::Low | Limit::High => {}
        }
        let result = match limit {
            Limit::Max => self.memory.set_max(here(), group, pages).map(|_| ()),
            _ => self.memory.groups().set_limit(group, limit, pages),
        };
        let refused = Err(MinOverMax { min, max });
        assert_eq!(result, if min > max { refused } else { Ok(()) });
    }

    fn drop_leaf(&mut self, leaf: usize) {
        let groups = self.memory.groups();
        let parent = groups.get(self.leaves[leaf]).expect("a group").parent();
        let old = std::mem::replace(&mut self.leaves[leaf], 0);
        self.memory.drop_group(Cpu::new(1), old);
        self.ghosts.push(old);
        let new = self.memory.new_group(here(), parent);
        // Where the budget is full of what is in use, there is no room for a record.
        self.leaves[leaf] = new.unwrap_or(self.leaves[(leaf + 1) % NR_LEAVES]);
    }

    fn apply(&mut self, op: Op) {
        let pick = |which: Index, len: usize| (len > 0).then(|| which.index(len));
        match op {
            Op::Fill {
                leaf,
                start,
                nr_pages,
                pins,
            } => {
                for page in start..start + nr_pages {
                    let frame = self.touch(self.leaves[leaf], page);
                    match frame {
                        Some(frame) if pins && page % 61 == 0 => self.pinned.push(frame),
                        Some(frame) => self.unpin(frame),
                        None => break,
                    }
                }
            }
            Op::Unpin(which) => {
                if let Some(which) = pick(which, self.pinned.len()) {
                    let frame = self.pinned.swap_remove(which);
                    self.unpin(frame);
                }
            }
            Op::AllocBuf { leaf, order } => {
                let order = Order::new(order).expect("an order");
                let group = self.leaves[leaf];
                match self.memory.alloc_buf(here(), group, order) {
                    Ok((frame, _)) => self.bufs.push(frame),
                    Err(AllocError::NoBlock { .. }) if order != Order::ZERO => {}
                    Err(error) => self.assert_refusal(error, order.nr_pages()),
                }
            }
            Op::FreeBuf(which) => {
                if let Some(which) = pick(which, self.bufs.len()) {
                    self.memory
                        .free_buf(Cpu::new(1), self.bufs.swap_remove(which));
                }
            }
            Op::Reserve {
                leaf,
                nr_bytes,
                forced,
            } => {
                self.memory.begin_reservation();
                self.reservations.push((self.leaves[leaf], 0));
                self.grow(self.reservations.len() - 1, nr_bytes, forced);
            }
            Op::Grow { which, nr_bytes } => {
                if let Some(which) = pick(which, self.reservations.len())
                    && self.leaves.contains(&self.reservations[which].0)
                {
                    self.grow(which, nr_bytes, false);
                }
            }
            Op::Shrink { which, part } => {
                if let Some(which) = pick(which, self.reservations.len()) {
                    self.shrink(which, self.reservations[which].1 / part);
                }
            }
            Op::End(which) => {
                if let Some(which) = pick(which, self.reservations.len()) {
                    self.end(which);
                }
            }
            op => self.apply_rarer(op),
        }
    }

    fn apply_rarer(&mut self, op: Op) {
        match op {
            Op::Offline {
                most,
                released,
                keeps,
            } => self.take_offline(most, released, keeps),
            Op::PutOffline => {
                for idle in std::mem::take(&mut self.on_their_way) {
                    self.memory.put_offline(idle, true);
                }
            }
            Op::SetBudget { below } => {
                self.budget = u64::from(self.memory.config().arena_pages) - below;
                let root = self.memory.groups().root();
                let over = self.memory.set_budget(here(), self.budget);
                let expected = self.usage(root).saturating_sub(self.budget);
                assert_eq!(over, Ok(expected));
            }
            Op::SetLimit {
                group,
                limit,
                pages,
            } => self.set_limit(self.group(group), limit, pages),
            Op::Drop { leaf } => self.drop_leaf(leaf),
            _ => {
                self.memory.drain_charges(self.memory.groups().root());
                self.memory.tick(Cpu::new(0), 0);
            }
        }
    }

    /// Leaves whose pages nobody else may take, with their pages: all that they use is protected,
    /// from the need of all and from that of their parent's.
    fn protected(&self) -> Vec<(u32, u64)> {
        let (groups, live) = (self.memory.groups(), self.scan());
        let all = self.leaves.iter().filter(|&&id| {
            let usage = self.usage(id);
            let against = |target: &u32| groups.protection(id, *target).min;
            let targets = [
                groups.root(),
                groups.get(id).map_or(0, |group| group.parent()),
            ];
            usage > 0 && targets.iter().map(against).all(|min| usage <= min)
        });
        all.map(|&id| (id, live.get(&id).copied().unwrap_or(0)))
            .collect()
    }

    /// Whose own need or limit an operation is about: it may take that group's pages.
    fn is_about(&self, op: Op, group: u32) -> bool {
        let which = match op {
            Op::Fill { leaf, .. }
            | Op::AllocBuf { leaf, .. }
            | Op::Reserve { leaf, .. }
            | Op::Drop { leaf } => leaf,
            Op::SetLimit { group, .. } => group,
            Op::Grow { .. } | Op::FreeBuf(_) => return true,
            _ => return false,
        };
        self.group(which) == group
    }

    /// All that holds at rest, `before`: the usage of each group before the operation.
    fn check(&mut self, before: &BTreeMap<u32, u64>) {
        self.ghosts
            .retain(|&id| self.memory.groups().get(id).is_some());
        let live = self.scan();
        let offline = self.memory.offline_pages();
        let used: u64 = live.values().sum();
        let free = u64::from(self.memory.zones().nr_free());
        let frames = u64::from(self.memory.frames().len());
        assert_eq!(used + free + offline, frames, "frames");
        let nr_reservations = u64::try_from(self.reservations.len()).expect("a few");
        let slack = nr_reservations.min(frames / 64 / REGION) * REGION;
        if self.on_their_way.is_empty() {
            // Less than a pageblock more, in smaller blocks: no pageblock comes back for them.
            assert!(
                offline < self.want() + slack + REGION,
                "{offline} of {} pages out of use",
                self.want()
            );
            self.memory.check();
        }
        let groups = self.memory.groups();
        let own = self.own();
        let own_of = |id: u32| {
            let bytes = own.get(&id).map_or(0, |own| own.reserved_bytes);
            // With what the stocks of bytes hold of them, they are whole pages.
            let bytes = bytes + groups.held_bytes(id);
            assert_eq!(bytes % PAGE, 0, "{bytes} bytes of {id}");
            live.get(&id).copied().unwrap_or(0) + bytes / PAGE
        };
        let mut all: Vec<u32> = self.leaves.iter().chain(&self.ghosts).copied().collect();
        all.sort_unstable();
        all.dedup();
        for &id in &all {
            let stocked = u64::from(groups.stocked(id));
            assert_eq!(self.usage(id), own_of(id) + stocked, "usage of {id}");
        }
        let below = all.iter().filter(|&&id| groups.is_in(id, self.parent));
        let sum: u64 = below.map(|&id| self.usage(id)).sum();
        assert_eq!(self.usage(self.parent), sum, "usage of the parent");
        for (&id, &before) in before {
            let (usage, max) = (
                self.usage(id),
                groups.get(id).map_or(0, |group| group.max()),
            );
            assert!(usage <= max.max(before), "{usage} of {max} in {id}");
        }
    }

    /// Usage of every group, and what an operation may charge past limits.
    fn usages(&self, op: Op) -> BTreeMap<u32, u64> {
        let forced = match op {
            Op::Reserve {
                nr_bytes,
                forced: true,
                ..
            } => pages_of(nr_bytes),
            _ => 0,
        };
        let root = self.memory.groups().root();
        let all = self.leaves.iter().chain(&self.ghosts);
        let all = all.chain([&self.parent, &root]);
        all.map(|&id| (id, self.usage(id) + forced)).collect()
    }

    fn step(&mut self, op: Op) {
        let (before, protected) = (self.usages(op), self.protected());
        let is_about: Vec<bool> = protected
            .iter()
            .map(|&(id, _)| self.is_about(op, id))
            .collect();
        self.apply(op);
        let live = self.scan();
        for ((id, nr_pages), is_about) in protected.into_iter().zip(is_about) {
            let left = live.get(&id).copied().unwrap_or(0);
            assert!(is_about || left >= nr_pages, "{left} of {nr_pages} in {id}");
        }
        self.check(&before);
    }

    fn give_all_back(mut self) {
        for frame in std::mem::take(&mut self.pinned) {
            self.unpin(frame);
        }
        for frame in std::mem::take(&mut self.bufs) {
            self.memory.free_buf(Cpu::new(0), frame);
        }
        while !self.reservations.is_empty() {
            self.end(0);
        }
        for idle in std::mem::take(&mut self.on_their_way) {
            self.memory.put_offline(idle, false);
        }
        let arena = u64::from(self.memory.config().arena_pages);
        assert_eq!(self.memory.set_budget(here(), arena), Ok(0));
        self.budget = arena;
        self.memory
            .close_mapping(Cpu::new(0), self.file, &mut |_| ());
        self.memory.drain();
        self.memory.check();
        let free = u64::from(self.memory.zones().nr_free());
        assert_eq!(free, u64::from(self.memory.frames().len()));
        assert_eq!(self.memory.reserved_bytes(), 0);
        self.memory.tick(Cpu::new(0), 0);
        for ghost in self.ghosts {
            assert!(self.memory.groups().get(ghost).is_none(), "{ghost} stays");
        }
    }
}

proptest! {
    #![proptest_config(crate::config(500))]

    /// Books are exact, refusals have a reason, what is protected stays, and as much is out of use
    /// as is reserved.
    #[test]
    fn reservations_protections_and_a_budget_that_moves(
        policy in prop_oneof![Just(Policy::Fifo), Just(Policy::Mglru)],
        below in prop_oneof![Just(0), 0..3 * REGION],
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::new(policy, below);
        ops.into_iter().for_each(|op| world.step(op));
        world.give_all_back();
    }
}
