//! The multi-gen LRU, in all its forms, beside what must hold of it whatever happens.

use pagetide_core::frame::{FrameTable, State, Word, flag};
use pagetide_core::reclaim::controller::{NR_TIERS, Position, cut_off, is_fine};
use pagetide_core::reclaim::{
    Batch, Lruvec, Moment, Outcome, Policy, Refault, ScanControl, Token, Unwritten, Victim,
};
use pagetide_core::units::{Frame, PageType};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

const FORMS: [Policy; 3] = [Policy::Mglru, Policy::MglruNext, Policy::MglruSeed];

/// A lruvec alone. A page has a frame of its own, resident or not.
struct World {
    frames: FrameTable,
    lists: Lruvec,
    /// What the evicted pages' shadow entries say.
    shadows: BTreeMap<u32, Token>,
    swappiness: u8,
}

impl World {
    fn new(policy: Policy, nr_pages: u32) -> World {
        World {
            frames: FrameTable::try_new(nr_pages).expect("a few frames"),
            lists: Lruvec::new(policy),
            shadows: BTreeMap::new(),
            swappiness: 60,
        }
    }

    fn change(&self, page: u32, change: impl Fn(Word) -> Word) {
        let changed = self
            .frames
            .update(Frame::new(page), |word| Some(change(word)));
        assert!(changed.is_ok());
    }

    fn is_resident(&self, page: u32) -> bool {
        self.frames.word(Frame::new(page)).state() == State::Live
    }

    fn resident(&self) -> Vec<u32> {
        (0..self.frames.len())
            .filter(|&page| self.is_resident(page))
            .collect()
    }

    fn page_type(page: u32) -> PageType {
        PageType::ALL[usize::from(page.is_multiple_of(5))]
    }

    /// Uses a page: whether it was read for that, and what its refault was.
    fn touch(&mut self, page: u32, is_pin: bool) -> Option<Refault> {
        let used = move |word: Word| match is_pin {
            true => word.with(flag::YOUNG),
            false => word.with_refs(word.refs().saturating_add(1)),
        };
        if self.is_resident(page) {
            self.change(page, used);
            return None;
        }
        let frame = Frame::new(page);
        self.frames.set_page_type(frame, World::page_type(page));
        let read = |word: Word| word.bare().with_state(State::Reading).pinned();
        self.change(page, |word| used(read(word).expect("no pin")));
        let shadow = self.shadows.remove(&page);
        Some(
            self.lists
                .insert(&self.frames, frame, shadow, Moment::default()),
        )
    }

    fn control(&self, nr_pages: u32) -> ScanControl {
        ScanControl {
            swappiness: self.swappiness,
            ..ScanControl::of(nr_pages)
        }
    }

    /// Evicts what was isolated but each `refused`-th.
    fn settle(&mut self, batch: &Batch, refused: usize) -> u32 {
        let max_seq = self.lists.max_seq().expect("generations");
        let mut nr_evicted = 0;
        for (at, victim) in batch.iter().enumerate() {
            let seq = self.lists.generation_of(&self.frames, victim.frame);
            assert_eq!(seq, None, "an isolated page is of no generation");
            let is_refused = refused > 0 && (at + 1) % refused == 0;
            if is_refused {
                self.lists.settle(&self.frames, victim, Outcome::Refused);
                let seq = self.lists.generation_of(&self.frames, victim.frame);
                assert_eq!(seq, Some(max_seq), "a page that was refused");
                continue;
            }
            self.change(victim.frame.number(), |word| {
                word.bare().with_state(State::Free).next_version()
            });
            self.lists.settle(&self.frames, victim, Outcome::Evicted);
            self.shadows.insert(victim.frame.number(), victim.token);
            nr_evicted += 1;
        }
        nr_evicted
    }

    /// The generation of each page that has one.
    fn generations(&self) -> BTreeMap<Frame, u64> {
        let resident = self.resident().into_iter().map(Frame::new);
        resident
            .filter_map(|frame| Some((frame, self.lists.generation_of(&self.frames, frame)?)))
            .collect()
    }

    /// Takes a batch of pages that are neither young nor, by what is told apart, in use; none of
    /// the two youngest generations.
    fn isolate(&mut self, nr_pages: u32) -> (u32, Batch) {
        let seqs = self.generations();
        let mut batch = Batch::default();
        let control = self.control(nr_pages);
        let looked = self.lists.isolate(&self.frames, &control, &mut batch);
        let max_seq = self.lists.max_seq().expect("generations");
        for victim in batch.iter() {
            let seq = seqs[&victim.frame];
            assert!(
                seq + 2 <= max_seq,
                "a page of {seq} of {max_seq} generations"
            );
            assert!(!victim.word.has(flag::YOUNG), "a young page");
        }
        (looked, batch)
    }

    /// Reclaims until a page went or nothing can.
    fn reclaim(&mut self, nr_pages: u32, refused: usize) -> u32 {
        for _ in 0..100 {
            let (looked, batch) = self.isolate(nr_pages);
            let nr_evicted = self.settle(&batch, refused);
            if nr_evicted > 0 || looked == 0 {
                return nr_evicted;
            }
        }
        0
    }

    fn age(&mut self) {
        let seq = self.lists.max_seq().expect("generations");
        let control = self.control(1);
        while self.lists.age(&self.frames, &control, (seq, true)) == Ok(false) {}
        assert_eq!(self.lists.max_seq(), Some(seq + 1));
    }

    /// The numbers of the oldest and youngest generation.
    fn seqs(&self) -> (u64, u64) {
        let generations = self.lists.generations(&self.frames);
        let oldest = generations[0].expect("two generations at least");
        (oldest.seq, self.lists.max_seq().expect("generations"))
    }

    /// What must hold at rest.
    fn check(&self) {
        self.lists.audit(&self.frames).expect("agreement");
        let resident = self.resident();
        let generations = self.lists.generations(&self.frames);
        let mut counted = [0; 2];
        let mut nr_gens = 0;
        for generation in generations.into_iter().flatten() {
            let [file, anon] = generation.nr_frames;
            counted = [counted[0] + file, counted[1] + anon];
            nr_gens += 1;
        }
        assert!((2..=4).contains(&nr_gens));
        for page_type in PageType::ALL {
            let of_type = resident
                .iter()
                .filter(|&&page| World::page_type(page) == page_type);
            assert_eq!(
                u32::try_from(of_type.count()).expect("few pages"),
                counted[page_type.index()],
                "{page_type:?}"
            );
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Touch(u32, bool),
    Reclaim(u32, usize),
    Age,
    Promote,
    Evict(u64),
    Leave(Index),
    Swappiness(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let refused = prop_oneof![4 => Just(0), 1 => 1..4usize];
    prop_oneof![
        40 => (0..90u32, prop::bool::weighted(0.2)).prop_map(|(page, pin)| Op::Touch(page, pin)),
        6 => (1..40u32, refused).prop_map(|(pages, refused)| Op::Reclaim(pages, refused)),
        1 => Just(Op::Age),
        1 => Just(Op::Promote),
        1 => (0..3u64).prop_map(Op::Evict),
        1 => any::<Index>().prop_map(Op::Leave),
        1 => prop_oneof![Just(0), Just(1), Just(60), Just(200), 0..=200u8].prop_map(Op::Swappiness),
    ]
}

proptest! {
    #![proptest_config(crate::config(300))]

    /// Numbers never fall, counts are those of the pages, only what is old and not in use goes.
    #[test]
    fn generations_hold(
        policy in prop::sample::select(&FORMS[..]),
        ops in prop::collection::vec(op(), 1..250),
    ) {
        let mut world = World::new(policy, 90);
        let mut before = world.seqs();
        for op in ops {
            match op {
                Op::Touch(page, is_pin) => _ = world.touch(page, is_pin),
                Op::Reclaim(nr_pages, refused) => {
                    let nr_before = world.resident().len();
                    let nr_evicted = world.reclaim(nr_pages, refused);
                    assert!(nr_evicted > 0 || nr_before == 0 || refused == 1, "none evicted");
                }
                Op::Age => world.age(),
                Op::Promote => {
                    let max_seq = world.lists.max_seq();
                    for frame in world.resident().into_iter().map(Frame::new) {
                        let word = world.frames.word(frame);
                        let is_young = word.has(flag::YOUNG);
                        let page = (frame, word);
                        assert_eq!(world.lists.promote(&world.frames, page), is_young);
                        if is_young {
                            assert_eq!(world.lists.generation_of(&world.frames, frame), max_seq);
                        }
                    }
                }
                Op::Evict(seq) => {
                    let (min_seq, max_seq) = world.seqs();
                    let up_to = (min_seq + seq).min(max_seq.saturating_sub(2));
                    let mut batch = Batch::default();
                    let control = world.control(16);
                    let seqs = world.generations();
                    let bounds = (up_to, &mut batch);
                    let looked = world.lists.isolate_up_to(&world.frames, &control, bounds);
                    assert!(looked.is_ok() || up_to + 2 > max_seq);
                    let is_meant = |victim: &Victim| seqs[&victim.frame] <= up_to;
                    assert!(batch.iter().all(is_meant), "up to {up_to}");
                    _ = world.settle(&batch, 0);
                }
                Op::Leave(which) => {
                    let resident = world.resident();
                    if !resident.is_empty() {
                        let page = resident[which.index(resident.len())];
                        world.lists.remove(&world.frames, Frame::new(page));
                        world.change(page, |word| word.bare().with_state(State::Free));
                    }
                }
                Op::Swappiness(swappiness) => world.swappiness = swappiness,
            }
            world.check();
            let after = world.seqs();
            assert!(after.0 >= before.0 && after.1 >= before.1, "{before:?} {after:?}");
            before = after;
        }
    }

    /// More refaults of a tier never protect it less.
    #[test]
    fn the_cut_off_is_monotone(
        counts in prop::array::uniform4((0..5000u64, 0..5000u64)),
        tier in 1..NR_TIERS,
        more in 1..5000u64,
    ) {
        let mut tiers = counts.map(|(refaulted, total)| Position { refaulted, total });
        for gains in [(1, 2), (2, 3)] {
            let before = cut_off(tiers[0], &tiers, gains);
            tiers[tier].refaulted += more;
            let after = cut_off(tiers[0], &tiers, gains);
            assert!(tier <= before || tier > after, "tier {tier}: {before} then {after}");
            tiers[tier].refaulted -= more;
        }
    }

    /// A larger swappiness never makes the pages of files likelier to go.
    #[test]
    fn swappiness_is_monotone(
        file in (0..5000u64, 0..5000u64),
        anon in (0..5000u64, 0..5000u64),
        swappiness in 0..200u64,
    ) {
        let [file, anon] = [file, anon].map(|(refaulted, total)| Position { refaulted, total });
        let is_file = |swappiness| is_fine(anon, swappiness, file, 200 - swappiness);
        assert!(is_file(swappiness) || !is_file(swappiness + 1));
    }
}

/// Pages that are read once and never again: nothing is protected, each is looked at once.
#[test]
fn a_scan_protects_nothing() {
    for policy in FORMS {
        let mut world = World::new(policy, 3000);
        let (mut looked, mut evicted) = (0, 0);
        for page in (0..3000_u32).filter(|page| !page.is_multiple_of(5)) {
            if world.lists.nr_pages() == 600 {
                let (seen, batch) = world.isolate(32);
                looked += seen;
                evicted += world.settle(&batch, 0);
            }
            _ = world.touch(page, false);
        }
        assert!(looked <= evicted + 4, "{policy}: {looked} for {evicted}");
    }
}

/// A page that comes back counts as in use while the generation is there that was the oldest when
/// it went; since 6.14, until four have been opened after that one.
#[test]
fn a_refault_counts_until_its_generation_is_gone() {
    for policy in FORMS {
        let (mut nr_recent, mut nr_restored) = (0, 0);
        for (nr_reads, nr_agings) in (1..=5).flat_map(|reads| (0..6).map(move |at| (reads, at))) {
            let mut world = World::new(policy, 200);
            for page in (1..100_u32).filter(|page| !page.is_multiple_of(5)) {
                (0..nr_reads).for_each(|_| _ = world.touch(page, false));
            }
            let victim = loop {
                let (_, batch) = world.isolate(1);
                assert!(world.settle(&batch, 0) == batch.len());
                if let Some(victim) = batch.iter().next() {
                    break *victim;
                }
            };
            let (min_seq, _) = world.seqs();
            (0..nr_agings).for_each(|_| world.age());
            let (min_seq_now, max_seq_now) = world.seqs();
            let is_next = policy == Policy::MglruNext;
            let refault = world.touch(victim.frame.number(), is_next);
            let refault = refault.expect("it was evicted");
            let is_recent = match is_next {
                true => max_seq_now - min_seq < 4,
                false => min_seq_now == min_seq,
            };
            let is_restored = match policy {
                Policy::MglruNext => victim.word.has(flag::WORKINGSET),
                Policy::Mglru => victim.word.refs() >= 4,
                _ => victim.word.refs() >= 5,
            };
            assert_eq!(
                refault.is_activated, is_recent,
                "{policy}, {nr_agings} agings"
            );
            assert_eq!(
                refault.is_restored,
                is_recent && is_restored,
                "{policy}, {nr_reads} reads"
            );
            nr_recent += usize::from(is_recent);
            nr_restored += usize::from(refault.is_restored);
        }
        assert!((5..=25).contains(&nr_recent), "{policy}: {nr_recent} of 30");
        assert!(nr_restored > 0, "{policy}: none restored");
    }
}

#[test]
fn dirty_pages_go_when_they_are_written_where_no_clean_ones_are_looked_for() {
    for policy in FORMS {
        for page_type in PageType::ALL {
            let mut world = World::new(policy, 5000);
            let of_type = |&page: &u32| World::page_type(page) == page_type;
            for page in (0..5000).filter(of_type) {
                world.touch(page, false);
                world.change(page, |word| word.with(flag::DIRTY));
            }
            (0..2).for_each(|_| world.age());
            let mut batch = Batch::noting(Some(Unwritten::default()));
            let control = world.control(32);
            let looked = world.lists.isolate(&world.frames, &control, &mut batch);
            assert!(batch.is_empty(), "{policy}");
            let nr_dirty = batch.into_unwritten().expect("it notes").nr_dirty();
            // Of files the kernel looks on, up to 2026.
            match page_type == PageType::Anon || policy == Policy::MglruNext {
                true => assert_eq!((looked, nr_dirty), (32, 32), "{policy} {page_type:?}"),
                false => assert!(looked > 1000 && nr_dirty == 64, "{policy} {looked}"),
            }
        }
    }
}

/// A page stays on its list when aging promotes it: it is not thrown back when that list's
/// generation is closed to open another one.
#[test]
fn what_aging_promoted_stays_promoted() {
    for policy in FORMS {
        let mut world = World::new(policy, 90);
        let of = |world: &World, page| {
            let seq = world.lists.generation_of(&world.frames, Frame::new(page));
            seq.expect("a listed page")
        };
        for page in [0, 5] {
            world.touch(page, false);
        }
        // Until both are of the oldest generation of four.
        while of(&world, 5) + 3 > world.seqs().1 {
            world.age();
        }
        world.touch(0, true);
        let old = (Frame::new(0), world.frames.word(Frame::new(0)));
        assert!(world.lists.promote(&world.frames, old));
        assert!(!world.lists.promote(&world.frames, old), "seen too early");
        let (oldest, youngest) = (of(&world, 5), world.seqs().1);
        world.age();
        assert_eq!(
            (of(&world, 0), of(&world, 5)),
            (youngest, oldest + 1),
            "{policy:?}"
        );
        world.check();
    }
}
