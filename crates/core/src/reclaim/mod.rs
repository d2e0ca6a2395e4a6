#![doc = include_str!("README.md")]

mod batch;
mod by_type;
mod choice;
pub mod controller;
mod fifo;
mod foresight;
mod gated_2q;
mod generations;
mod given;
mod lru_gen;
mod mglru;
mod mglru_forms;
mod page_ins;
mod policy;
mod record;
mod refault_gate;
mod refaults;
mod shadow;
mod stay;
mod two_list;
mod unwritten;

pub use batch::{Batch, Looked, Moment, Outcome, ScanControl, Victim};
pub use choice::{Class, Coldness, MAX_SWAPPINESS, Member, Part, choose};
pub use given::let_go;
pub use lru_gen::{BadSeq, Generation, MAX_NR_GENS, TypeTiers};
pub use policy::{Policy, UnknownPolicy};
pub use record::{Lists, LruvecRecord};
pub use refaults::{NR_BUCKETS, REACH_SIZES, Refaults, SAME};
pub use shadow::{PER_FRAME, Shadows, Token};
pub use stay::Horizon;
pub use unwritten::Unwritten;

use crate::frame::{FrameTable, List, State, Word, flag};
use crate::units::{Discrepancy, Frame, NR_ORDERS, PageType};
use by_type::ByType;
use mglru::Mglru;
use mglru_forms::Form;

/// Pages that cannot go that one isolation meets before it looks at both lists of a policy in turn:
/// the one that should give may have nothing else. As many as there are, where those are fewer.
const MAX_BUSY: u32 = 64;

/// Whether so many looks in a row at pages that somebody holds were at each of `nr_pages`: each of
/// four generations may leave its pages to the next one, and policies with two lists look at both
/// once they met as many.
fn is_each_held(nr_looks: u32, nr_pages: u32) -> bool {
    nr_looks > nr_pages.saturating_mul(4)
}

/// Times that as many pages as there are may be looked at before a lruvec is given up: more than it
/// takes any policy to find the one page that nobody uses.
pub(crate) const MAX_ROUNDS: u32 = 16;
/// Pages that one isolation takes at most.
pub const MAX_BATCH: u32 = 64;

/// What a frame's word says of a page that was queued.
#[derive(Clone, Copy, Debug)]
struct Listing {
    /// From 1.
    generation: u8,
    is_protected: bool,
    /// The count that its accesses start from, with its young bit clear: `None` leaves both.
    refs: Option<u8>,
    /// Whether it gets the mark of the working set.
    is_workingset: bool,
    refault: Refault,
}

/// What the policy made of a refault, in the words of `memory.stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refault {
    /// `workingset_activate`: it took the page for one in use.
    pub is_activated: bool,
    /// `workingset_restore`: it took it for one that should not have gone.
    pub is_restored: bool,
}

impl Listing {
    /// In a generation of a policy with one class, accesses counted on.
    const fn of(generation: u8) -> Listing {
        Listing {
            generation,
            is_protected: false,
            refs: None,
            is_workingset: false,
            refault: Refault {
                is_activated: false,
                is_restored: false,
            },
        }
    }

    /// The word of a page that is listed so.
    fn mark(self, word: Word) -> Word {
        let word = match self.is_protected {
            true => word.with(flag::PROTECTED),
            false => word.without(flag::PROTECTED),
        };
        let word = match self.is_workingset {
            true => word.with(flag::WORKINGSET),
            false => word,
        };
        let word = word.with_generation(self.generation);
        match self.refs {
            Some(refs) => word.with_refs(refs).without(flag::YOUNG),
            None => word,
        }
    }
}

/// What a policy decides. Called with the lruvec's lock held.
trait Rules {
    /// Queues a page that came in.
    fn insert(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        refault: Option<Token>,
        moment: Moment,
    ) -> Listing;
    /// Takes victims off their lists until the batch holds as many as are wanted, or enough pages
    /// were looked at for one lock hold; returns those.
    fn isolate(&mut self, frames: &FrameTable, control: &ScanControl, batch: &mut Batch) -> u32;
    /// A page of a type that it will look at soon, another one each time: a hint, where it has one.
    fn foresee(&mut self, _frames: &FrameTable, _page_type: PageType) -> Option<Frame> {
        None
    }
    /// The page that it would look at first.
    fn coldest(&self) -> Option<Frame>;
    /// What the shadow entry of a page with this word will say if it goes now.
    fn token(&self, frames: &FrameTable, frame: Frame, word: Word) -> Token;
    /// What tells [`Rules::is_workingset`] by itself, until the lock is taken next, where something
    /// does.
    fn horizon(&self, _page_type: PageType) -> Option<Horizon> {
        None
    }
    /// Whether a page that comes back should not have gone: what is waited for then is a stall.
    fn is_workingset(&self, page_type: PageType, refault: Token) -> bool {
        self.horizon(page_type)
            .is_some_and(|horizon| horizon.has(refault))
    }
    /// Counts a page of `nr_frames` that was evicted.
    fn evicted(&mut self, page_type: PageType, token: Token, nr_frames: u32);
    /// Queues a page that could not be evicted.
    fn put_back(&mut self, frames: &FrameTable, frame: Frame) -> Listing;
    /// Puts a page that is on no list where another one of the same size and type is, which leaves
    /// the list that `word`, its own, names.
    fn replace(&mut self, frames: &FrameTable, pages: (Frame, Frame), word: Word);
    /// Takes a page off the list that `word`, its own, names.
    fn remove(&mut self, frames: &FrameTable, frame: Frame, word: Word);
    /// Pages on all lists.
    fn nr_pages(&self) -> u32;
    /// How cold the pages of a type are, where it tells two classes apart.
    fn coldness(&self, _page_type: PageType) -> Option<Coldness> {
        None
    }
    /// What it saw come back until `page_ins` had come in of all lruvecs; `None` where it keeps no
    /// distances.
    fn refaults(&self, _page_ins: u64) -> Option<Refaults> {
        None
    }
    /// When the coldest page was queued that is on trial, and the coldest protected one, by the
    /// coarse clock in ns, where it knows.
    fn began_ns(&self, _frames: &FrameTable) -> [Option<u64>; 2] {
        [None; 2]
    }
    /// Counts anew what the policy's invariants say; returns the frames of the listed pages.
    /// O(pages).
    fn audit(&self, frames: &FrameTable) -> Result<u32, Discrepancy>;
}

/// The frames of the pages on a list, all of one generation.
fn audit_list(frames: &FrameTable, list: &List, generation: u8) -> Result<u32, Discrepancy> {
    let mut nr_frames = 0;
    for frame in list.iter(frames) {
        let is_here = frames.word(frame).generation() == generation;
        Discrepancy::require("a frame of a list of pages", frame.number(), is_here)?;
        nr_frames += frames.block(frame).0.nr_pages();
    }
    Ok(nr_frames)
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "the default one is the largest, and core has no other place for it"
)]
enum Queues {
    Fifo(fifo::Fifo),
    Gated2q(ByType<gated_2q::Gated2q>),
    Mglru(Mglru),
    TwoList(ByType<two_list::TwoList>),
}

/// The evictable pages of one group on one node. Guarded by a lock of `rank::LRUVEC`.
#[derive(Debug)]
#[repr(C)] // What each page changes lies with the lock.
pub struct Lruvec {
    /// Frames of the pages on the lists, and of those that are isolated, by type.
    nr_frames: [u32; 2],
    /// Such pages, by order.
    nr_of_order: [u32; NR_ORDERS],
    queues: Queues,
}

/// Frames of the smallest and of the largest page of a lruvec; 0 where it has none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) smallest: u32,
    pub(crate) largest: u32,
}

impl Default for Lruvec {
    fn default() -> Self {
        Lruvec::new(Policy::default())
    }
}

/// The word of a page that is taken off its list.
fn as_isolated(word: Word) -> Word {
    word.with(flag::ISOLATED).with_generation(0)
}

/// Marks a page that is taken off its list because of the word that it had when it was looked at;
/// returns its word. `None` where it has another one by now: somebody may have it pinned, and be
/// about to move it to another frame and give this one away.
fn isolated(frames: &FrameTable, frame: Frame, seen: Word) -> Option<Word> {
    let isolated = as_isolated(seen);
    frames
        .replace(frame, seen, isolated)
        .is_ok()
        .then_some(isolated)
}

impl Lruvec {
    /// A lruvec without pages.
    #[must_use]
    pub fn new(policy: Policy) -> Lruvec {
        let queues = match policy {
            Policy::Fifo => Queues::Fifo(fifo::Fifo::new()),
            Policy::Gated2q => Queues::Gated2q(ByType::new()),
            Policy::Mglru => Queues::Mglru(Mglru::new(Form::Linux612)),
            Policy::MglruNext => Queues::Mglru(Mglru::new(Form::Next)),
            Policy::MglruSeed => Queues::Mglru(Mglru::new(Form::Seed)),
            Policy::TwoList => Queues::TwoList(ByType::new()),
        };
        Lruvec {
            nr_frames: [0; 2],
            nr_of_order: [0; NR_ORDERS],
            queues,
        }
    }

    fn rules(&mut self) -> &mut dyn Rules {
        match &mut self.queues {
            Queues::Fifo(rules) => rules,
            Queues::Gated2q(rules) => rules,
            Queues::Mglru(rules) => rules,
            Queues::TwoList(rules) => rules,
        }
    }

    fn shared(&self) -> &dyn Rules {
        match &self.queues {
            Queues::Fifo(rules) => rules,
            Queues::Gated2q(rules) => rules,
            Queues::Mglru(rules) => rules,
            Queues::TwoList(rules) => rules,
        }
    }

    /// Pages on the lists.
    #[must_use]
    pub fn nr_pages(&self) -> u32 {
        self.shared().nr_pages()
    }

    /// Frames of all its pages of a type, those that are isolated just now too.
    #[must_use]
    pub fn nr_frames(&self, page_type: PageType) -> u32 {
        self.nr_frames[page_type.index()]
    }

    /// Whether it has no page, neither on its lists nor isolated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nr_frames == [0; 2]
    }

    /// Frames of its pages.
    pub(crate) fn sizes(&self) -> Sizes {
        let is_there = |nr_pages: &u32| *nr_pages > 0;
        let smallest = self.nr_of_order.iter().position(is_there);
        let largest = self.nr_of_order.iter().rposition(is_there);
        let frames = |order: Option<usize>| order.map_or(0, |order| 1 << order);
        Sizes {
            smallest: frames(smallest),
            largest: frames(largest),
        }
    }

    /// How cold its pages of a type are. Where its policy has one class, all are in probation, and
    /// none too many.
    #[must_use]
    pub fn coldness(&self, page_type: PageType) -> Coldness {
        let nr_frames = self.nr_frames(page_type);
        let one_class = Coldness {
            nr_probation: nr_frames,
            target: nr_frames,
            ..Coldness::default()
        };
        self.shared().coldness(page_type).unwrap_or(one_class)
    }

    fn horizon(&self, page_type: PageType) -> Option<Horizon> {
        self.shared().horizon(page_type)
    }

    /// Whether a page that comes back should not have gone.
    #[must_use]
    pub fn is_workingset(&self, page_type: PageType, refault: Token) -> bool {
        self.shared().is_workingset(page_type, refault)
    }

    /// What came in, came back and stayed of its pages until `page_ins` had come in of all lruvecs;
    /// `None` where the policy keeps no distances.
    #[must_use]
    pub fn refaults(&self, page_ins: u64) -> Option<Refaults> {
        self.shared().refaults(page_ins)
    }

    fn forget(&mut self, frames: &FrameTable, frame: Frame) {
        let order = frames.block(frame).0;
        self.nr_frames[frames.page_type(frame).index()] -= order.nr_pages();
        self.nr_of_order[usize::from(order.get())] -= 1;
    }

    /// Queues a page whose read has ended, makes it `Live`, and drops the read's own pin, in one
    /// lock hold: at no moment is the page neither being read nor to be had. Returns what its
    /// refault was.
    ///
    /// # Panics
    /// Where the page has no pin.
    pub fn insert(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        refault: Option<Token>,
        moment: Moment,
    ) -> Refault {
        let listing = self.enter(frames, frame, refault, moment);
        let live = |word: Word| {
            let word = listing.mark(word).with_state(State::Live);
            Some(word.unpinned().next_version())
        };
        assert!(
            frames.update(frame, live).is_ok(),
            "an update without a condition"
        );
        listing.refault
    }

    fn enter(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        refault: Option<Token>,
        moment: Moment,
    ) -> Listing {
        let listing = self.rules().insert(frames, frame, refault, moment);
        let order = frames.block(frame).0;
        self.nr_frames[frames.page_type(frame).index()] += order.nr_pages();
        self.nr_of_order[usize::from(order.get())] += 1;
        listing
    }

    /// [`Lruvec::insert`] of a page that was given, and is `Live` already. Returns what its refault
    /// was, and whether it was truncated meanwhile: then it is on no list, and [`let_go`] follows.
    pub fn accept(
        &mut self,
        frames: &FrameTable,
        frame: Frame,
        refault: Option<Token>,
        moment: Moment,
    ) -> (Refault, bool) {
        let listing = self.enter(frames, frame, refault, moment);
        (listing.refault, self.relist(frames, frame, listing))
    }

    /// Takes pages that are worth evicting off their lists. Returns pages scanned.
    ///
    /// # Panics
    /// Where more than [`MAX_BATCH`] are wanted.
    pub fn isolate(
        &mut self,
        frames: &FrameTable,
        control: &ScanControl,
        batch: &mut Batch,
    ) -> u32 {
        assert!(control.nr_pages <= MAX_BATCH, "more than a batch");
        self.rules().isolate(frames, control, batch)
    }

    /// A page of a type that is looked at soon for eviction, another one each time: a hint, for who
    /// has fetched what that looks at. Its frame may hold anything by now.
    #[must_use]
    pub fn foresee(&mut self, frames: &FrameTable, page_type: PageType) -> Option<Frame> {
        self.rules().foresee(frames, page_type)
    }

    /// The page that is looked at first for eviction.
    #[must_use]
    pub fn coldest(&self) -> Option<Frame> {
        self.shared().coldest()
    }

    /// Takes one page off its list, however young it is, because its frame is wanted; false where
    /// the frame holds no page of `group`, whose lruvec this is, or somebody uses it.
    ///
    /// # Panics
    /// Where the batch is full.
    pub fn isolate_frame(
        &mut self,
        frames: &FrameTable,
        (group, frame): (u32, Frame),
        batch: &mut Batch,
    ) -> bool {
        let word = frames.word(frame);
        let is_ours = word.generation() != 0 && frames.group(frame) == group;
        if !is_ours || !word.is_evictable() || !batch.has_room_for(frames, frame) {
            return false;
        }
        // From the very word that was seen before the group was: a page that took the frame
        // between the two looks is another group's, or on no list yet.
        let Some(isolated) = isolated(frames, frame, word) else {
            return false;
        };
        let token = self.shared().token(frames, frame, word);
        self.rules().remove(frames, frame, word);
        let word = isolated;
        batch.push(frames, Victim { frame, word, token });
        true
    }

    /// Says what became of a victim; a refused one is queued again unless it left its file.
    ///
    /// Returns whether the frame is the caller's to free: its page was truncated meanwhile.
    pub fn settle(&mut self, frames: &FrameTable, victim: &Victim, outcome: Outcome) -> bool {
        if outcome == Outcome::Evicted {
            let page_type = frames.page_type(victim.frame);
            let nr_frames = frames.block(victim.frame).0.nr_pages();
            self.rules().evicted(page_type, victim.token, nr_frames);
            self.forget(frames, victim.frame);
            return false;
        }
        // The list first, so that no moment shows a generation without a place on its list.
        let listing = self.rules().put_back(frames, victim.frame);
        let is_gone = self.relist(frames, victim.frame, listing);
        if is_gone {
            // Last: from here on whoever drops the last pin frees it.
            let_go(frames, victim.frame);
        }
        is_gone
    }

    /// Has the word of a page that was in hand, and is on a list, say on which; where the page left
    /// its file meanwhile, takes it off. Returns whether it did.
    fn relist(&mut self, frames: &FrameTable, frame: Frame, listing: Listing) -> bool {
        let relist = |word: Word| {
            let is_live = word.state() == State::Live;
            is_live.then(|| listing.mark(word.without(flag::ISOLATED)))
        };
        let Err(word) = frames.update(frame, relist) else {
            return false;
        };
        // It left its file, for good.
        self.rules().remove(frames, frame, listing.mark(word));
        self.forget(frames, frame);
        true
    }

    /// Lists the frame that a page moves to in the place of the one that it moves from, which is on
    /// no list then: false where it is on none already, because reclaim has it in hand. The page
    /// keeps its class or generation. [`Lruvec::end_move`] or [`Lruvec::remove`] ends it.
    ///
    /// # Panics
    /// Where the two differ in size or type.
    pub fn replace(&mut self, frames: &FrameTable, (old, new): (Frame, Frame)) -> bool {
        let word = frames.word(old);
        if word.generation() == 0 {
            return false;
        }
        let form = |frame| (frames.block(frame).0, frames.page_type(frame));
        assert_eq!(form(old), form(new), "{old:?} moves to {new:?}");
        self.rules().replace(frames, (old, new), word);
        let listing = Listing {
            is_protected: word.has(flag::PROTECTED),
            ..Listing::of(word.generation())
        };
        for (frame, listing) in [(new, listing), (old, Listing::of(0))] {
            let changed = frames.update(frame, |word| Some(listing.mark(word)));
            assert!(changed.is_ok(), "an update without a condition");
        }
        true
    }

    /// Makes a page `Live` whose frame took the place of another one, and drops the copy's own pin.
    ///
    /// # Panics
    /// Where the page has no pin, or no place.
    pub fn end_move(&mut self, frames: &FrameTable, frame: Frame) {
        let live = |word: Word| Some(word.with_state(State::Live).unpinned().next_version());
        let before = frames.update(frame, live);
        let before = before.expect("an update without a condition");
        assert!(before.generation() != 0, "{frame:?} has no place");
    }

    /// Takes a page that leaves its file off its list, where it is on one.
    pub fn remove(&mut self, frames: &FrameTable, frame: Frame) {
        let word = frames.word(frame);
        if word.generation() != 0 {
            self.rules().remove(frames, frame, word);
            self.forget(frames, frame);
            let unlist = |word: Word| Some(word.with_generation(0));
            assert!(
                frames.update(frame, unlist).is_ok(),
                "an update without a condition"
            );
        }
    }

    /// Counts anew what the room's invariants say, while no page is isolated; returns the frames of
    /// the listed pages. O(pages).
    ///
    /// # Errors
    /// [`Discrepancy`] where one does not hold.
    pub fn audit(&self, frames: &FrameTable) -> Result<u32, Discrepancy> {
        let nr_listed = self.shared().audit(frames)?;
        let booked = self.nr_frames.iter().sum::<u32>();
        Discrepancy::compare("frames of a lruvec", 0, booked.into(), nr_listed.into())?;
        Ok(nr_listed)
    }
}
