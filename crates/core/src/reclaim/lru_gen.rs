//! The generations of a lruvec from outside: looked at, opened and evicted by their numbers.
//!
//! Source: the kernel's debugfs file `lru_gen` and its commands.

use super::controller::Tiers;
use super::generations::MIN_NR_GENS;
use super::mglru::Mglru;
use super::{Batch, Lruvec, Queues, ScanControl};
use crate::frame::{FrameTable, Word};
use crate::units::{Frame, PageType};

/// Generations that there are at most.
pub const MAX_NR_GENS: usize = 4;

/// One generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation {
    /// Its number: the larger, the younger.
    pub seq: u64,
    /// When it was opened, by the coarse clock, in ns; 0 where its policy does not know.
    pub birth_ns: u64,
    /// Frames of its pages, by type.
    pub nr_frames: [u32; 2],
}

/// What the refault controller of one type counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeTiers {
    /// The oldest generation, since which it counted.
    pub min_seq: u64,
    /// What it counted and carried over.
    pub tiers: Tiers,
}

/// Why generations were not opened or evicted by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSeq {
    /// The policy has no generations, or the group no page on that node.
    NoGenerations,
    /// To open one: only the youngest can be named. To evict: it is one of the two youngest.
    OutOfRange {
        /// The youngest generation.
        max_seq: u64,
    },
    /// Four are open, and that the oldest joins the next one was not asked for.
    TooMany,
}

impl Lruvec {
    fn mglru(&mut self) -> Option<&mut Mglru> {
        match &mut self.queues {
            Queues::Mglru(rules) => Some(rules),
            _ => None,
        }
    }

    /// Its generations, the oldest first. A policy that has none shows its classes: those on trial
    /// as generation 0, protected ones as generation 1.
    #[must_use]
    pub fn generations(&self, frames: &FrameTable) -> [Option<Generation>; MAX_NR_GENS] {
        match &self.queues {
            Queues::Mglru(rules) => rules.view(),
            _ => {
                let classes = PageType::ALL.map(|page_type| self.coldness(page_type));
                let began = self.shared().began_ns(frames);
                let of = |seq: usize, nr_frames: [u32; 2]| Generation {
                    seq: seq as u64,
                    birth_ns: began[seq].unwrap_or(0),
                    nr_frames,
                };
                let probation = of(0, classes.map(|class| class.nr_probation));
                let protected = of(1, classes.map(|class| class.nr_protected));
                [Some(probation), Some(protected), None, None]
            }
        }
    }

    /// What the refault controller counted, by type, where its policy has one.
    #[must_use]
    pub fn tiers(&self) -> Option<[TypeTiers; 2]> {
        match &self.queues {
            Queues::Mglru(rules) => Some(rules.tiers()),
            _ => None,
        }
    }

    /// The youngest generation, where its policy has any.
    #[must_use]
    pub fn max_seq(&self) -> Option<u64> {
        match &self.queues {
            Queues::Mglru(rules) => Some(rules.max_seq()),
            _ => None,
        }
    }

    /// The generation that a listed page belongs to, where its policy has any.
    #[must_use]
    pub fn generation_of(&self, frames: &FrameTable, frame: Frame) -> Option<u64> {
        match &self.queues {
            Queues::Mglru(rules) if frames.word(frame).generation() != 0 => {
                Some(rules.generation_of(frames, frame))
            }
            _ => None,
        }
    }

    /// Opens a generation after `seq`, the youngest; nothing happens where it is not that any more.
    /// Where four are open, the oldest joins the next one if `is_forced`, 1024 pages at most in one
    /// call: false where it is to be called again.
    ///
    /// # Errors
    /// [`BadSeq`].
    pub fn age(
        &mut self,
        frames: &FrameTable,
        control: &ScanControl,
        (seq, is_forced): (u64, bool),
    ) -> Result<bool, BadSeq> {
        let rules = self.mglru().ok_or(BadSeq::NoGenerations)?;
        let max_seq = rules.max_seq();
        if seq > max_seq {
            return Err(BadSeq::OutOfRange { max_seq });
        }
        if seq < max_seq {
            return Ok(true);
        }
        if !is_forced && rules.has_most_gens(control.swappiness) {
            return Err(BadSeq::TooMany);
        }
        Ok(rules.open(frames, control))
    }

    /// Takes a batch off the oldest generation of the type that is to give, while that is at most
    /// `seq`. Returns what was looked at: 0 where nothing is left to do.
    ///
    /// # Errors
    /// [`BadSeq`].
    pub fn isolate_up_to(
        &mut self,
        frames: &FrameTable,
        control: &ScanControl,
        (seq, batch): (u64, &mut Batch),
    ) -> Result<u32, BadSeq> {
        let rules = self.mglru().ok_or(BadSeq::NoGenerations)?;
        let max_seq = rules.max_seq();
        if seq.saturating_add(MIN_NR_GENS) > max_seq {
            return Err(BadSeq::OutOfRange { max_seq });
        }
        Ok(rules.isolate_up_to(frames, control, (seq, batch)))
    }

    /// Lets a listed page that is young belong to the youngest generation, where its policy has
    /// generations; returns whether it did: not where its word is another one by now than the
    /// caller saw before it found that this lruvec lists the page.
    pub fn promote(&mut self, frames: &FrameTable, page: (Frame, Word)) -> bool {
        self.mglru()
            .is_some_and(|rules| rules.promote(frames, page))
    }

    /// [`Lruvec::promote`] of all listed pages; how many it promoted. O(pages).
    pub fn promote_all(&mut self, frames: &FrameTable) -> u32 {
        self.mglru().map_or(0, |rules| rules.promote_all(frames))
    }

    /// When the oldest of its pages that may be evicted were queued, by the coarse clock in ns,
    /// where its policy knows.
    #[must_use]
    pub fn oldest_ns(&self, frames: &FrameTable, swappiness: u8) -> Option<u64> {
        match &self.queues {
            Queues::Mglru(rules) => Some(rules.oldest_ns(swappiness)),
            _ => self.shared().began_ns(frames).into_iter().flatten().min(),
        }
    }
}
