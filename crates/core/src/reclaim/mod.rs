#![doc = include_str!("README.md")]

pub mod controller;
mod fifo;
mod gated_2q;
mod mglru;
mod mglru_seed;
mod page_ins;
mod refault_gate;
mod shadow;
mod two_list;

pub use shadow::{PER_FRAME, Shadows, Token};

use crate::frame::{FrameTable, State, Word, flag};
use crate::units::{Frame, index};
use core::fmt;
use core::str::FromStr;

/// Pages that one isolation takes at most.
pub const MAX_BATCH: u32 = 64;

/// A replacement policy, chosen for a whole memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// First in, first out.
    Fifo,
    /// The default: probation of adaptive size, a protected ring, refaults gated by distance.
    #[default]
    Gated2q,
    /// The multi-gen LRU as Linux 6.12 has it.
    Mglru,
    /// The multi-gen LRU as its first patch says.
    MglruSeed,
    /// The classic active and inactive list, with refault distances.
    TwoList,
}

impl Policy {
    /// Every policy.
    pub const ALL: &[Policy] = &[
        Policy::Fifo,
        Policy::Gated2q,
        Policy::Mglru,
        Policy::MglruSeed,
        Policy::TwoList,
    ];
    /// The names of all policies; `default` names the default one everywhere.
    pub const NAMES: &[&str] = &[
        "default",
        "fifo",
        "gated-2q",
        "mglru",
        "mglru-seed",
        "two-list",
    ];

    /// The policy's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Fifo => "fifo",
            Policy::Gated2q => "gated-2q",
            Policy::Mglru => "mglru",
            Policy::MglruSeed => "mglru-seed",
            Policy::TwoList => "two-list",
        }
    }

    /// Pages that one eviction takes under a limit of `max_pages`.
    #[must_use]
    pub fn batch(self, max_pages: u64) -> u32 {
        let (most, share) = match self {
            Policy::Fifo => (1, 1),
            Policy::Gated2q => (64, 64),
            Policy::Mglru | Policy::MglruSeed | Policy::TwoList => (32, 16),
        };
        u32::try_from(max_pages / share)
            .unwrap_or(u32::MAX)
            .clamp(1, most)
    }
}

/// No policy has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        match name {
            "default" => Ok(Policy::default()),
            "fifo" => Ok(Policy::Fifo),
            "gated-2q" => Ok(Policy::Gated2q),
            "mglru" => Ok(Policy::Mglru),
            "mglru-seed" => Ok(Policy::MglruSeed),
            "two-list" => Ok(Policy::TwoList),
            _ => Err(UnknownPolicy),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A page that reclaim took off its list.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    /// Where it is.
    pub frame: Frame,
    /// Its word at that moment: evicted only if it is still exactly this.
    pub word: Word,
    /// What its shadow entry will say.
    pub token: Token,
}

/// Up to [`MAX_BATCH`] victims.
#[derive(Debug)]
pub struct Batch {
    victims: [Option<Victim>; MAX_BATCH as usize],
    len: u32,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            victims: [None; MAX_BATCH as usize],
            len: 0,
        }
    }
}

impl Batch {
    /// Victims in the batch.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn push(&mut self, victim: Victim) {
        self.victims[index(self.len)] = Some(victim);
        self.len += 1;
    }

    /// The victims in the order in which they were taken.
    pub fn iter(&self) -> impl Iterator<Item = &Victim> {
        self.victims.iter().flatten()
    }
}

/// What became of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It left the page cache.
    Evicted,
    /// Somebody uses it: it goes back.
    Refused,
}

/// What a frame's word says of a page that was queued.
#[derive(Clone, Copy, Debug)]
struct Listing {
    /// From 1.
    generation: u8,
    is_protected: bool,
    /// The count that its accesses start from, with its young bit clear: `None` leaves both.
    refs: Option<u8>,
}

impl Listing {
    /// In a generation of a policy with one class, accesses counted on.
    const fn of(generation: u8) -> Listing {
        Listing {
            generation,
            is_protected: false,
            refs: None,
        }
    }

    /// The word of a page that is listed so.
    fn mark(self, word: Word) -> Word {
        let word = match self.is_protected {
            true => word.with(flag::PROTECTED),
            false => word.without(flag::PROTECTED),
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
    fn insert(&mut self, frames: &FrameTable, frame: Frame, refault: Option<Token>) -> Listing;
    /// Takes victims off their lists until the batch holds `want`, or enough pages were looked at
    /// for one lock hold; returns those.
    fn isolate(&mut self, frames: &FrameTable, want: u32, batch: &mut Batch) -> u32;
    /// The page that it would look at first.
    fn coldest(&self) -> Option<Frame>;
    /// What the shadow entry of a page with this word will say if it goes now.
    fn token(&self, word: Word) -> Token;
    /// Counts a page that was evicted.
    fn evicted(&mut self, token: Token);
    /// Queues a page that could not be evicted.
    fn put_back(&mut self, frames: &FrameTable, frame: Frame) -> Listing;
    /// Takes a page off the list that `word`, its own, names.
    fn remove(&mut self, frames: &FrameTable, frame: Frame, word: Word);
    /// Pages on all lists.
    fn nr_pages(&self) -> u32;
    /// Asserts the policy's invariants. O(pages).
    fn check(&self, frames: &FrameTable);
}

#[derive(Debug)]
enum Queues {
    Fifo(fifo::Fifo),
    Gated2q(gated_2q::Gated2q),
    Mglru(mglru::Mglru),
    TwoList(two_list::TwoList),
}

/// The evictable pages of one group. Guarded by a lock of `rank::LRUVEC`.
#[derive(Debug)]
pub struct Lruvec {
    queues: Queues,
    /// Frames of the pages on the lists, and of those that are isolated.
    nr_frames: u32,
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

/// Marks a frame that was just taken off its list; returns its word.
fn isolated(frames: &FrameTable, frame: Frame) -> Word {
    let before = frames.update(frame, |word| Some(as_isolated(word)));
    as_isolated(before.expect("an update without a condition"))
}

impl Lruvec {
    /// A lruvec without pages.
    #[must_use]
    pub fn new(policy: Policy) -> Lruvec {
        let queues = match policy {
            Policy::Fifo => Queues::Fifo(fifo::Fifo::new()),
            Policy::Gated2q => Queues::Gated2q(gated_2q::Gated2q::new()),
            Policy::Mglru => Queues::Mglru(mglru::Mglru::new(mglru::FORM)),
            Policy::MglruSeed => Queues::Mglru(mglru_seed::new()),
            Policy::TwoList => Queues::TwoList(two_list::TwoList::new()),
        };
        Lruvec {
            queues,
            nr_frames: 0,
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

    /// Frames of all its pages, those that are isolated just now too.
    #[must_use]
    pub fn nr_frames(&self) -> u32 {
        self.nr_frames
    }

    fn forget(&mut self, frames: &FrameTable, frame: Frame) {
        self.nr_frames -= frames.block(frame).0.nr_pages();
    }

    /// Queues a page whose read has ended and makes it `Live`, in one lock hold.
    pub fn insert(&mut self, frames: &FrameTable, frame: Frame, refault: Option<Token>) {
        let listing = self.rules().insert(frames, frame, refault);
        self.nr_frames += frames.block(frame).0.nr_pages();
        let live = |word: Word| {
            let word = listing.mark(word).with_state(State::Live);
            Some(word.next_version())
        };
        assert!(
            frames.update(frame, live).is_ok(),
            "an update without a condition"
        );
    }

    /// Takes up to `want` pages that are worth evicting off their lists. Returns pages scanned.
    pub fn isolate(&mut self, frames: &FrameTable, want: u32, batch: &mut Batch) -> u32 {
        self.rules().isolate(frames, want.min(MAX_BATCH), batch)
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
        if !is_ours || !word.is_evictable() {
            return false;
        }
        // From the very word that was seen before the group was: a page that took the frame
        // between the two looks is another group's, or on no list yet.
        let isolated = as_isolated(word);
        if frames.replace(frame, word, isolated).is_err() {
            return false;
        }
        let token = self.shared().token(word);
        self.rules().remove(frames, frame, word);
        let word = isolated;
        batch.push(Victim { frame, word, token });
        true
    }

    /// Says what became of a victim; a refused one is queued again unless it left its file.
    ///
    /// Returns whether the frame is the caller's to free: its page was truncated meanwhile.
    pub fn settle(&mut self, frames: &FrameTable, victim: &Victim, outcome: Outcome) -> bool {
        if outcome == Outcome::Evicted {
            self.rules().evicted(victim.token);
            self.forget(frames, victim.frame);
            return false;
        }
        // The list first, so that no moment shows a generation without a place on its list.
        let listing = self.rules().put_back(frames, victim.frame);
        let relist = |word: Word| {
            let word = word.without(flag::ISOLATED);
            let live = word.state() == State::Live;
            Some(if live { listing.mark(word) } else { word })
        };
        let before = frames.update(victim.frame, relist).expect("no condition");
        let left_its_file = before.state() != State::Live;
        if left_its_file {
            self.rules()
                .remove(frames, victim.frame, listing.mark(before));
            self.forget(frames, victim.frame);
        }
        left_its_file
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

    /// Asserts the room's invariants. O(pages).
    ///
    /// # Panics
    /// Where one does not hold.
    pub fn check(&self, frames: &FrameTable) {
        self.shared().check(frames);
    }
}
