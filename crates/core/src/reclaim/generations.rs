//! Generations of like recency, of both types: lists, numbers and counts.
//!
//! A page is on the list of one generation and belongs to that one or a younger one: aging changes
//! what a frame's word says and the counts, and eviction puts the page on its list when it meets
//! it.

use super::lru_gen::Generation;
use crate::frame::{FrameTable, List, Word, flag};
use crate::units::{Discrepancy, Frame, PageType};

pub(super) const MIN_NR_GENS: u64 = 2;
pub(super) const MAX_NR_GENS: u64 = NR_GENS as u64;
const NR_GENS: usize = 4;

/// What a frame's word says of a listed page, in its generation field: from 1, so that 0 stays "on
/// no list".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// The list that it is on.
    list: usize,
    /// The slot of the generation that it belongs to.
    slot: usize,
}

impl Place {
    fn of(word: Word) -> Place {
        let number = usize::from(word.generation()) - 1;
        Place {
            list: number / NR_GENS,
            slot: number % NR_GENS,
        }
    }

    fn number(self) -> u8 {
        u8::try_from(self.list * NR_GENS + self.slot + 1).expect("at most 16")
    }
}

/// The generations of a lruvec: `max_seq` is the youngest of both types, `min_seq` the oldest of
/// each.
#[derive(Debug)]
pub(super) struct Generations {
    lists: [[List; 2]; NR_GENS],
    /// Frames of the pages that belong to it.
    nr_frames: [[u32; 2]; NR_GENS],
    births: [u64; NR_GENS],
    max_seq: u64,
    min_seq: [u64; 2],
}

impl Generations {
    pub(super) const fn new() -> Generations {
        Generations {
            lists: [const { [const { List::new() }; 2] }; NR_GENS],
            nr_frames: [[0; 2]; NR_GENS],
            births: [0; NR_GENS],
            max_seq: MIN_NR_GENS + 1,
            min_seq: [0; 2],
        }
    }

    pub(super) const fn max_seq(&self) -> u64 {
        self.max_seq
    }

    pub(super) const fn min_seq(&self, page_type: PageType) -> u64 {
        self.min_seq[page_type.index()]
    }

    pub(super) const fn nr_gens(&self, page_type: PageType) -> u64 {
        self.max_seq - self.min_seq(page_type) + 1
    }

    /// Frames of the pages of a type in one generation.
    pub(super) const fn nr_frames(&self, page_type: PageType, seq: u64) -> u32 {
        self.nr_frames[slot(seq)][page_type.index()]
    }

    /// Frames of all pages of a type.
    pub(super) fn nr_frames_of(&self, page_type: PageType) -> u32 {
        let frames = self.nr_frames.iter();
        frames.map(|types| types[page_type.index()]).sum()
    }

    /// Pages on all lists.
    pub(super) fn nr_pages(&self) -> u32 {
        self.lists.iter().flatten().map(List::len).sum()
    }

    fn list(&mut self, list: usize, page_type: PageType) -> &mut List {
        &mut self.lists[list][page_type.index()]
    }

    /// The list of a type's oldest generation.
    pub(super) fn oldest(&self, page_type: PageType) -> &List {
        &self.lists[slot(self.min_seq(page_type))][page_type.index()]
    }

    /// The coldest page of a type.
    pub(super) fn coldest(&self, page_type: PageType) -> Option<Frame> {
        let mut seqs = self.min_seq(page_type)..=self.max_seq;
        seqs.find_map(|seq| self.lists[slot(seq)][page_type.index()].tail())
    }

    /// The generation that a listed page belongs to.
    pub(super) fn seq_of(&self, page_type: PageType, word: Word) -> u64 {
        let slot_of_oldest = slot(self.min_seq(page_type));
        let behind = (Place::of(word).slot + NR_GENS - slot_of_oldest) % NR_GENS;
        self.min_seq(page_type) + behind as u64
    }

    /// Puts a page that is on no list first in a generation; returns what its word is to say.
    pub(super) fn insert(&mut self, frames: &FrameTable, frame: Frame, seq: u64) -> u8 {
        let page_type = frames.page_type(frame);
        let slot = slot(seq);
        self.list(slot, page_type).push_head(frames, frame);
        self.nr_frames[slot][page_type.index()] += frames.block(frame).0.nr_pages();
        Place { list: slot, slot }.number()
    }

    /// Takes a listed page off; `word` is its own.
    pub(super) fn remove(&mut self, frames: &FrameTable, frame: Frame, word: Word) {
        let page_type = frames.page_type(frame);
        let place = Place::of(word);
        self.list(place.list, page_type).remove(frames, frame);
        self.nr_frames[place.slot][page_type.index()] -= frames.block(frame).0.nr_pages();
    }

    /// Puts a page that is on no list where another one is; `word` is that one's.
    pub(super) fn replace(&mut self, frames: &FrameTable, pages: (Frame, Frame), word: Word) {
        let page_type = frames.page_type(pages.0);
        self.list(Place::of(word).list, page_type)
            .replace(frames, pages);
    }

    /// Puts a listed page on the list of another generation: first, or last where it `goes_last`.
    pub(super) fn put(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        (seq, goes_last): (u64, bool),
        change: impl Fn(Word) -> Word,
    ) {
        let page_type = frames.page_type(frame);
        self.remove(frames, frame, frames.word(frame));
        let number = self.insert(frames, frame, seq);
        if goes_last {
            let list = self.list(slot(seq), page_type);
            list.remove(frames, frame);
            list.push_tail(frames, frame);
        }
        let changed = frames.update(frame, |word| Some(change(word).with_generation(number)));
        assert!(changed.is_ok(), "an update without a condition");
    }

    /// Lets a young page belong to the youngest generation, on the list where it is; false where it
    /// is not young, or its word is not `seen` any more. No list is touched.
    pub(super) fn promote(
        &mut self,
        frames: &FrameTable,
        (frame, seen): (Frame, Word),
        change: impl Fn(Word) -> Word,
    ) -> bool {
        let to = slot(self.max_seq);
        promote(frames, (frame, seen), (&mut self.nr_frames, to), change)
    }

    /// [`Generations::promote`] of all pages, by what their words say; how many it promoted.
    pub(super) fn promote_all(
        &mut self,
        frames: &FrameTable,
        change: impl Fn(Word) -> Word,
    ) -> u32 {
        let (to, mut nr_promoted) = (slot(self.max_seq), 0);
        for list in self.lists.iter().flatten() {
            for frame in list.iter(frames) {
                let page = (frame, frames.word(frame));
                let promoted = promote(frames, page, (&mut self.nr_frames, to), &change);
                nr_promoted += u32::from(promoted);
            }
        }
        nr_promoted
    }

    /// Says when the first page came in: no generation is older.
    pub(super) fn begin(&mut self, ns: u64) {
        self.births = [ns; NR_GENS];
    }

    /// Opens a generation. There are less than [`MAX_NR_GENS`] of each type.
    pub(super) fn open(&mut self, ns: u64) {
        self.max_seq += 1;
        self.births[slot(self.max_seq)] = ns;
    }

    /// Passes the oldest generation of a type, whose list is empty, up to `seq`.
    pub(super) fn pass(&mut self, page_type: PageType, seq: u64) {
        self.min_seq[page_type.index()] = seq;
    }

    /// The first generation of a type from its oldest on that has a page on its list, the second
    /// youngest at most.
    pub(super) fn first_with_pages(&self, page_type: PageType) -> u64 {
        let old = self.min_seq(page_type)..=self.max_seq - MIN_NR_GENS;
        old.clone()
            .find(|&seq| !self.lists[slot(seq)][page_type.index()].is_empty())
            .unwrap_or(self.min_seq(page_type).max(self.max_seq - MIN_NR_GENS + 1))
    }

    /// When a generation was opened.
    pub(super) const fn birth_ns(&self, seq: u64) -> u64 {
        self.births[slot(seq)]
    }

    /// The generations there are, the oldest first.
    pub(super) fn view(&self) -> [Option<Generation>; NR_GENS] {
        let oldest = self.min_seq[0].min(self.min_seq[1]);
        core::array::from_fn(|at| {
            let seq = oldest + at as u64;
            let of = |page_type: PageType| match seq >= self.min_seq(page_type) {
                true => self.nr_frames(page_type, seq),
                false => 0,
            };
            (seq <= self.max_seq).then(|| Generation {
                seq,
                birth_ns: self.birth_ns(seq),
                nr_frames: PageType::ALL.map(of),
            })
        })
    }

    /// Counts anew what numbers, lists and counts say; returns the frames of all pages. O(pages).
    pub(super) fn audit(&self, frames: &FrameTable) -> Result<u32, Discrepancy> {
        let mut counted = [[0; 2]; NR_GENS];
        for page_type in PageType::ALL {
            let nr_gens = self.nr_gens(page_type);
            let is_within = (MIN_NR_GENS..=MAX_NR_GENS).contains(&nr_gens);
            Discrepancy::require("the number of generations", page_type as u32, is_within)?;
            for list in 0..NR_GENS {
                for frame in self.lists[list][page_type.index()].iter(frames) {
                    let (word, place) = (frames.word(frame), Place::of(frames.word(frame)));
                    let is_here = (place.list, frames.page_type(frame)) == (list, page_type)
                        && self.seq_of(page_type, word) <= self.max_seq;
                    Discrepancy::require("a frame of a generation", frame.number(), is_here)?;
                    counted[place.slot][page_type.index()] += frames.block(frame).0.nr_pages();
                }
            }
        }
        let booked = self.nr_frames.iter().flatten();
        for ((at, &booked), &counted) in (0..).zip(booked).zip(counted.iter().flatten()) {
            Discrepancy::compare("frames of a generation", at, booked.into(), counted.into())?;
        }
        Ok(counted.iter().flatten().sum())
    }
}

/// Lets a young page belong to the generation in the slot `to`, and counts it there.
fn promote(
    frames: &FrameTable,
    (frame, seen): (Frame, Word),
    (nr_frames, to): (&mut [[u32; 2]; NR_GENS], usize),
    change: impl Fn(Word) -> Word,
) -> bool {
    if seen.generation() == 0 || !seen.has(flag::YOUNG) {
        return false;
    }
    let Place { list, slot } = Place::of(seen);
    let promoted = change(seen).with_generation(Place { list, slot: to }.number());
    if frames.replace(frame, seen, promoted).is_err() {
        return false;
    }
    let of_type = frames.page_type(frame).index();
    let nr_moved = frames.block(frame).0.nr_pages();
    nr_frames[slot][of_type] -= nr_moved;
    nr_frames[to][of_type] += nr_moved;
    true
}

const fn slot(seq: u64) -> usize {
    (seq % MAX_NR_GENS) as usize
}
