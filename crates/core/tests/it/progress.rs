//! Progress: where a page can go, one call of reclaim frees one, whatever else there is.

use pagetide_core::frame::{State, flag};
use pagetide_core::group::Limit;
use pagetide_core::memory::{Config, Effect, Effects, Memory, PageIn, Step, Write};
use pagetide_core::page_cache::{Access, Mappings};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::{Cpu, Frame, Order};
use proptest::prelude::*;
use std::collections::BTreeSet;

const CPU: Cpu = Cpu::new(0);
/// Of pages.
const MAX_ORDER: u8 = 3;
/// Times that one call looks at each page at most, for what is not protected and for what is.
const MAX_SCANS: u64 = 24;
/// Pages looked at in one lock hold, which may be the last one of a group.
const MAX_HOLD: u64 = 1024 + 2 * 64;

/// Groups that one call chooses.
const MAX_CHOICES: usize = 3;

/// What keeps a page, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    No,
    Dirty,
    Pinned,
    DirtyAndPinned,
    Writing,
    WritingAndDirty,
}

/// A page: its size, what keeps it, whether it came before anybody asked for it, and how often it
/// was read and looked at since.
#[derive(Clone, Copy, Debug)]
struct Page {
    order: u8,
    kept: Kept,
    is_ahead: bool,
    nr_reads: u8,
    is_looked_at: bool,
}

/// A group below the root: its pages, and a protection.
#[derive(Clone, Debug)]
struct Tenant {
    pages: Vec<Page>,
    protects: Option<(Limit, u64)>,
}

fn page() -> impl Strategy<Value = Page> {
    let kept = prop_oneof![
        2 => Just(Kept::No),
        5 => Just(Kept::Dirty),
        2 => Just(Kept::Pinned),
        2 => Just(Kept::DirtyAndPinned),
        2 => Just(Kept::Writing),
        1 => Just(Kept::WritingAndDirty),
    ];
    let reads = prop_oneof![2 => Just(0), 3 => 0..8u8];
    let order = prop_oneof![5 => Just(0), 2 => 1..MAX_ORDER + 1];
    (order, kept, any::<bool>(), reads, any::<bool>()).prop_map(
        |(order, kept, is_ahead, nr_reads, is_looked_at)| Page {
            order,
            kept,
            is_ahead,
            nr_reads,
            is_looked_at,
        },
    )
}

fn tenant() -> impl Strategy<Value = Tenant> {
    let limit = prop_oneof![Just(Limit::Min), Just(Limit::Low)];
    let protects = prop::option::of((limit, 0..120u64));
    // Few pages that can go among many that cannot, too.
    let sizes = prop_oneof![3 => 1..12usize, 2 => 60..90usize, 1 => 130..200usize];
    let pages = sizes.prop_flat_map(|size| prop::collection::vec(page(), size));
    (pages, protects).prop_map(|(pages, protects)| Tenant { pages, protects })
}

struct World {
    memory: Memory,
    groups: Vec<u32>,
    /// Frames of pages that nothing keeps, by group.
    free: Vec<BTreeSet<Frame>>,
    kept: Vec<(Frame, Kept)>,
    /// So that nothing ends before the end.
    writes: Vec<Write>,
    nr_passes: u64,
}

impl World {
    fn new(policy: Policy, tenants: &[Tenant]) -> World {
        let memory = Memory::try_new(Config::for_resident(5000, 1, policy)).expect("memory");
        let mut world = World {
            memory,
            groups: Vec::new(),
            free: Vec::new(),
            kept: Vec::new(),
            writes: Vec::new(),
            nr_passes: 1,
        };
        for tenant in tenants {
            world.add(tenant);
        }
        world
    }

    fn add(&mut self, tenant: &Tenant) {
        let memory = &self.memory;
        let root = memory.groups().root();
        let group = memory.new_group(CPU.into(), root).expect("a group");
        let orders = (0..=MAX_ORDER).map(|order| Order::new(order).expect("small"));
        let files = orders.map(|order| memory.open_mapping(CPU.into(), order).expect("room"));
        let files: Vec<u32> = files.collect();
        let mut free = BTreeSet::new();
        for (number, page) in (0..).zip(&tenant.pages) {
            let file = files[usize::from(page.order)];
            let access = match page.is_ahead {
                true => Access::Prefetch,
                false => Access::Copy,
            };
            let frame = have(memory, group, file, number, access);
            for _ in 0..page.nr_reads {
                let again = have(memory, group, file, number, Access::Copy);
                memory.unpin(CPU, again, &mut Effects::new());
            }
            if page.is_looked_at {
                let again = have(memory, group, file, number, Access::Pin);
                memory.unpin(CPU, again, &mut Effects::new());
            }
            if !matches!(page.kept, Kept::No | Kept::Pinned) {
                memory.set_dirty(frame);
            }
            if matches!(page.kept, Kept::Writing | Kept::WritingAndDirty) {
                let write = memory.begin_write(frame).expect("a dirty page");
                self.writes.push(write);
            }
            if page.kept == Kept::WritingAndDirty {
                memory.set_dirty(frame);
            }
            if !matches!(page.kept, Kept::Pinned | Kept::DirtyAndPinned) {
                memory.unpin(CPU, frame, &mut Effects::new());
            }
            match page.kept {
                Kept::No => assert!(free.insert(frame)),
                kept => self.kept.push((frame, kept)),
            }
        }
        if let Some((limit, nr_pages)) = tenant.protects {
            self.nr_passes = 2;
            let set = memory.groups().set_limit(group, limit, nr_pages);
            set.expect("at most the budget");
        }
        self.groups.push(group);
        self.free.push(free);
    }

    /// Whether some group has a page that can go, and more than its `min`.
    fn may_progress(&self) -> bool {
        let groups = self.memory.groups();
        let spare = |group: u32| {
            let usage = groups.get(group).expect("a group").usage();
            // What is in stocks is nobody's page.
            let kept = groups.protection(group, groups.root()).min;
            usage.saturating_sub(kept + u64::from(groups.stocked(group)))
        };
        let mut tenants = self.groups.iter().zip(&self.free);
        tenants.any(|(&group, free)| {
            let mut fits = free
                .iter()
                .map(|&frame| self.nr_frames(frame) <= spare(group));
            fits.any(|fits| fits)
        })
    }

    fn nr_frames(&self, frame: Frame) -> u64 {
        self.memory.frames().block(frame).0.nr_pages().into()
    }

    /// Frames of pages that each group has.
    fn nr_resident(&self) -> Vec<u64> {
        let kept = |group| {
            let kept = self.kept.iter().map(|&(frame, _)| frame);
            let ours = kept.filter(move |&frame| self.memory.frames().group(frame) == group);
            ours.map(|frame| self.nr_frames(frame)).sum::<u64>()
        };
        let sizes = |free: &BTreeSet<Frame>| -> u64 {
            free.iter().map(|&frame| self.nr_frames(frame)).sum()
        };
        let groups = self.groups.iter().zip(&self.free);
        groups
            .map(|(&group, pages)| kept(group) + sizes(pages))
            .collect()
    }

    /// No group is below its `min` that was not before.
    fn check_protection(&self, before: &[u64]) {
        let groups = self.memory.groups();
        for ((&group, after), &before) in self.groups.iter().zip(self.nr_resident()).zip(before) {
            let min = groups.get(group).expect("a group").limit(Limit::Min);
            assert!(
                after >= before.min(min),
                "{after} of {before} pages left, {min} protected"
            );
        }
    }

    /// One call of reclaim; what is left afterwards is what it should be.
    fn reclaim(&mut self) -> u32 {
        let nr_pages: usize = self.free.iter().map(BTreeSet::len).sum();
        let nr_pages = (nr_pages + self.kept.len()) as u64;
        let resident = self.nr_resident();
        let before = self.memory.stats().pgscan;
        let freed = self.memory.reclaim(CPU, self.memory.groups().root(), 1);
        let nr_scanned = self.memory.stats().pgscan - before;
        // Those that are chosen are looked at in part before all are looked through.
        let nr_holds = self.groups.len() + MAX_CHOICES.min(self.groups.len());
        let most = MAX_SCANS * nr_pages + MAX_HOLD * nr_holds as u64;
        let most = self.nr_passes * most;
        assert!(nr_scanned <= most, "{nr_scanned} scans of {nr_pages} pages");
        let table = self.memory.frames();
        let nr_before: u64 = resident.iter().sum();
        for free in &mut self.free {
            free.retain(|frame| table.word(*frame).state() == State::Live);
        }
        let nr_gone = nr_before - self.nr_resident().iter().sum::<u64>();
        assert_eq!(
            nr_gone,
            u64::from(freed),
            "pages that are freed were free to go"
        );
        self.check_protection(&resident);
        for (frame, kept) in &self.kept {
            let word = table.word(*frame);
            let is_dirty = matches!(
                kept,
                Kept::Dirty | Kept::DirtyAndPinned | Kept::WritingAndDirty
            );
            let is_written = matches!(kept, Kept::Writing | Kept::WritingAndDirty);
            assert_eq!(word.state(), State::Live, "{frame:?} is {kept:?}");
            assert_eq!(word.has(flag::DIRTY), is_dirty, "{frame:?} is {kept:?}");
            assert_eq!(
                word.has(flag::WRITEBACK),
                is_written,
                "{frame:?} is {kept:?}"
            );
        }
        freed
    }
}

fn have(memory: &Memory, group: u32, file: u32, page: u64, access: Access) -> Frame {
    let key = Mappings::key(file, page).expect("a small page");
    let (mut effects, mut op) = (Effects::new(), PageIn::new(key, group, access));
    loop {
        if let Step::Done(frame) = op.step(memory, CPU.into(), &mut effects).expect("room") {
            return frame;
        }
        while let Some(effect) = effects.pop() {
            if let Effect::Read(io) = effect {
                memory.complete(CPU, io, Ok(()), &mut effects);
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::config(400))]

    /// As long as a page can go, each call frees one; when none can, it ends, too.
    #[test]
    fn a_page_that_can_go_is_found(
        policy in prop::sample::select(Policy::ALL),
        tenants in prop::collection::vec(tenant(), 1..4),
    ) {
        let mut world = World::new(policy, &tenants);
        while world.may_progress() {
            prop_assert!(world.reclaim() > 0, "{policy}: nothing freed, {:?} left", world.free);
        }
        world.reclaim();
        world.memory.check();
    }

    /// The one page that can go is found among hundreds that cannot, wherever it is.
    #[test]
    fn the_only_page_that_can_go_is_found(
        policy in prop::sample::select(Policy::ALL),
        mut pages in prop::collection::vec(page(), 2..600),
        which in any::<prop::sample::Index>(),
    ) {
        for page in &mut pages {
            if page.kept == Kept::No {
                page.kept = Kept::Dirty;
            }
        }
        let which = which.index(pages.len());
        pages[which].kept = Kept::No;
        let pages_order = pages[which].order;
        let mut world = World::new(policy, &[Tenant { pages, protects: None }]);
        prop_assert_eq!(world.reclaim(), 1 << pages_order);
        prop_assert_eq!(world.reclaim(), 0);
    }
}

/// Where all of a large group is pinned, a request is refused after few looks at each page, and the
/// one that can go is found all the same.
#[test]
fn a_refusal_beside_many_pinned_pages_looks_at_them_twice_as_often_as_one_round() {
    const NR_PAGES: u64 = 12_000;
    for policy in Policy::ALL {
        let memory = Memory::try_new(Config::for_resident(20_000, 1, *policy)).expect("memory");
        let group = memory.new_group(CPU.into(), memory.groups().root());
        let group = group.expect("a group");
        let file = memory.open_mapping(CPU.into(), Order::ZERO).expect("room");
        let pins: Vec<Frame> = (0..NR_PAGES)
            .map(|page| have(&memory, group, file, page, Access::Pin))
            .collect();
        let usage = memory.groups().get(group).expect("a group").usage();
        let over = memory.set_max(CPU.into(), group, usage);
        assert_eq!(over, Ok(0));
        let before = memory.stats().pgscan;
        // What is charged ahead serves the first ones.
        let kept: Vec<_> =
            std::iter::repeat_with(|| memory.alloc_buf(CPU.into(), group, Order::ZERO))
                .take_while(Result::is_ok)
                .collect();
        let nr_scanned = memory.stats().pgscan - before;
        let most = 2 * MAX_SCANS * NR_PAGES + MAX_HOLD;
        assert!(
            nr_scanned <= most,
            "{policy}: {nr_scanned} looks, at most {most}"
        );
        memory.unpin(CPU, pins[5000], &mut Effects::new());
        let taken = memory.alloc_buf(CPU.into(), group, Order::ZERO);
        assert!(taken.is_ok(), "{policy}: one page could go");
        drop(kept);
    }
}
