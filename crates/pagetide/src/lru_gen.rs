//! Generations of a group's pages: looked at, opened and evicted by their numbers.

use crate::builder::bytes_of;
use crate::{ByteSize, Group, cpu};
use pagetide_core::reclaim::{BadSeq, TypeTiers, controller};
use pagetide_core::units::{Node, PAGE_BYTES, PageType};
use std::fmt;
use std::time::Duration;

/// Tiers of a type: see [`Tier::tier`].
const NR_TIERS: u32 = 4;
const _: () = assert!(controller::NR_TIERS == NR_TIERS as usize);

/// One generation of a group's pages on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// The node, from 0.
    pub node: u32,
    /// Its number: the larger, the younger.
    pub seq: u64,
    /// How long ago it was opened, by a clock that is set about once a second.
    pub age: Duration,
    /// 4 KiB pages of anon memory.
    pub nr_anon: u32,
    /// 4 KiB pages of files.
    pub nr_file: u32,
}

/// What the refault controller of a multi-gen LRU counted of one tier: pages of one type on one
/// node that were accessed about as often, a power of two more in each tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tier {
    /// The node, from 0.
    pub node: u32,
    /// The tier, 0 to 3.
    pub tier: u32,
    /// Whether it is of anon pages; else of pages of files.
    pub is_anon: bool,
    /// The oldest generation of the type, since which it counted.
    pub min_seq: u64,
    /// Evicted pages that came back.
    pub refaulted: u64,
    /// Pages that were evicted.
    pub evicted: u64,
    /// Pages that would have been, but for the tier that they are in.
    pub protected: u64,
    /// What is carried over of pages that came back in earlier generations.
    pub avg_refaulted: u64,
    /// What is carried over of pages that were evicted or protected.
    pub avg_total: u64,
}

/// The generations of a group's own pages, those of each node together, the oldest first.
///
/// Displayed as the kernel's `lru_gen` has them: a line for the group, one for each node, and
/// `seq age_ms anon file` for each generation. A policy without generations shows its classes: 0
/// for pages on trial, 1 for protected ones, with the age of the coldest page where it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LruGen {
    /// The group's path.
    pub group: String,
    /// The generations.
    pub generations: Vec<Generation>,
    /// What refaults are judged by, those of each node together; none where the policy is no
    /// multi-gen LRU.
    pub tiers: Vec<Tier>,
}

impl LruGen {
    /// As displayed, and below each generation a line for each tier, as the kernel's
    /// `lru_gen_full`: for anon pages and for files what was refaulted, evicted and protected
    /// (`r`, `e`, `p`) in a type's oldest generation, and in the youngest one what is carried over
    /// of refaults and in total (`R`, `T`).
    pub fn full(&self) -> impl fmt::Display + '_ {
        Full(self)
    }

    /// The numbers that a tier has below a generation, for one type, and their marks.
    fn columns(&self, of: &Generation, tier: u32, is_anon: bool) -> [(u64, char); 3] {
        let mut same_node = self.generations.iter().filter(|one| one.node == of.node);
        let is_youngest = same_node.all(|one| one.seq <= of.seq);
        let is_meant = |one: &&Tier| (one.node, one.tier, one.is_anon) == (of.node, tier, is_anon);
        match self.tiers.iter().find(is_meant) {
            Some(one) if is_youngest => [(one.avg_refaulted, 'R'), (one.avg_total, 'T'), (0, 'x')],
            Some(one) if of.seq == one.min_seq => [
                (one.refaulted, 'r'),
                (one.evicted, 'e'),
                (one.protected, 'p'),
            ],
            _ => [(0, 'x'); 3],
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, has_tiers: bool) -> fmt::Result {
        writeln!(f, "memcg {}", self.group)?;
        let mut node = None;
        for one in &self.generations {
            if node != Some(one.node) {
                writeln!(f, " node {:>5}", one.node)?;
                node = Some(one.node);
            }
            let (seq, age, anon, file) = (one.seq, one.age.as_millis(), one.nr_anon, one.nr_file);
            writeln!(f, " {seq:>10} {age:>10} {anon:>10} {file:>10}")?;
            let is_counted = has_tiers && self.tiers.iter().any(|tier| tier.node == one.node);
            for tier in 0..if is_counted { NR_TIERS } else { 0 } {
                write!(f, "{:>22}", tier)?;
                for is_anon in [true, false] {
                    for (number, mark) in self.columns(one, tier, is_anon) {
                        write!(f, " {number:>10}{mark}")?;
                    }
                }
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// [`LruGen::full`].
struct Full<'a>(&'a LruGen);

impl fmt::Display for Full<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, true)
    }
}

impl fmt::Display for LruGen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

/// Why generations were not opened or evicted by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadGeneration {
    /// There are none.
    #[error("no generations: the policy has none, or the group has no page on that node")]
    None,
    /// To open one, only the youngest can be named; the two youngest cannot be evicted.
    #[error("generation {seq} is out of range: the youngest is {max_seq}")]
    OutOfRange {
        /// The generation that was named.
        seq: u64,
        /// The youngest one.
        max_seq: u64,
    },
    /// As many are open as there may be, and that the oldest joins the next one was not asked for.
    #[error("4 generations are open already")]
    TooMany,
    /// As [`Error::Forked`](crate::Error::Forked).
    #[error("this process was forked from the one that built the memory")]
    Forked,
}

impl BadGeneration {
    fn of(error: BadSeq, seq: u64) -> BadGeneration {
        match error {
            BadSeq::NoGenerations => BadGeneration::None,
            BadSeq::OutOfRange { max_seq } => BadGeneration::OutOfRange { seq, max_seq },
            BadSeq::TooMany => BadGeneration::TooMany,
        }
    }
}

/// What was counted of one type on one node, by tier.
fn tiers_of(of: &TypeTiers, node: u32, is_anon: bool) -> impl Iterator<Item = Tier> + use<> {
    let (min_seq, tiers) = (of.min_seq, of.tiers);
    let counts = tiers.counted().into_iter().zip(tiers.averages());
    (0..)
        .zip(counts)
        .map(move |(tier, (counted, average))| Tier {
            node,
            tier,
            is_anon,
            min_seq,
            refaulted: counted.refaulted,
            evicted: counted.evicted,
            protected: counted.protected,
            avg_refaulted: average.refaulted,
            avg_total: average.total,
        })
}

impl Group {
    /// The generations of the group's own pages; none in a forked child. Takes a lock for each
    /// node.
    #[must_use]
    pub fn lru_gen(&self) -> LruGen {
        let (mut generations, mut tiers) = (Vec::new(), Vec::new());
        let group = self.path();
        if self.shared().is_forked() {
            return LruGen {
                group,
                generations,
                tiers,
            };
        }
        for view in self.shared().core.lru_gen(self.id()) {
            let node = view.node.number().into();
            let present = view.generations.into_iter().flatten();
            generations.extend(present.map(|one| Generation {
                node,
                seq: one.seq,
                age: Duration::from_nanos(view.now_ns.saturating_sub(one.birth_ns)),
                nr_anon: one.nr_frames[PageType::Anon.index()],
                nr_file: one.nr_frames[PageType::File.index()],
            }));
            for page_type in PageType::ALL {
                let of_type = view.tiers.map(|types| types[page_type.index()]);
                let is_anon = page_type == PageType::Anon;
                tiers.extend(of_type.iter().flat_map(|of| tiers_of(of, node, is_anon)));
            }
        }
        LruGen {
            group,
            generations,
            tiers,
        }
    }

    /// Opens a generation after `seq`, the youngest of the group's own pages on a node; nothing
    /// happens where a younger one is open. What was pinned since the last one is promoted. Where
    /// four are open, the oldest joins the next one if `is_forced`.
    ///
    /// The kernel's command `+` of `lru_gen`.
    ///
    /// # Errors
    /// [`BadGeneration`].
    pub fn age(&self, node: u32, seq: u64, is_forced: bool) -> Result<(), BadGeneration> {
        let node = self.node_of(node)?;
        let aged = self.shared().core.age((self.id(), node), seq, is_forced);
        aged.map_err(|error| BadGeneration::of(error, seq))
    }

    /// Evicts the group's own pages on a node of all generations up to `seq`, `bytes` of them or a
    /// batch more; what is in use stays. Returns what went. `swappiness`, 0 to 200, is the group's
    /// where none is named: at 0 no anon pages go while there are pages of files, at 200 those go
    /// first.
    ///
    /// The kernel's command `-` of `lru_gen`. What `min` and `low` protect goes, too.
    ///
    /// # Errors
    /// [`BadGeneration`].
    pub fn evict_generations(
        &self,
        node: u32,
        seq: u64,
        swappiness: Option<u8>,
        bytes: ByteSize,
    ) -> Result<ByteSize, BadGeneration> {
        let node = self.node_of(node)?;
        let key = (self.id(), node);
        let nr_pages = bytes.as_u64().div_ceil(PAGE_BYTES as u64);
        let core = &self.shared().core;
        let freed = core.evict_generations(cpu::current(), key, (seq, swappiness), nr_pages);
        self.shared().settle();
        self.shared().group_came_back(self.id());
        let freed = freed.map_err(|error| BadGeneration::of(error, seq))?;
        Ok(ByteSize(bytes_of(freed)))
    }

    fn node_of(&self, node: u32) -> Result<Node, BadGeneration> {
        match self.shared().is_forked() {
            true => Err(BadGeneration::Forked),
            false => Node::new(node).ok_or(BadGeneration::None),
        }
    }
}
