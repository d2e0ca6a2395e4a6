//! Generations of a group's pages: looked at, opened and evicted by their numbers.

use crate::builder::bytes_of;
use crate::{ByteSize, Group, cpu};
use pagetide_core::reclaim::BadSeq;
use pagetide_core::units::{Node, PAGE_BYTES, PageType};
use std::fmt;
use std::time::Duration;

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

/// The generations of a group's own pages, those of each node together, the oldest first.
///
/// Displayed as the kernel's `lru_gen` has them: a line for the group, one for each node, and
/// `seq age_ms anon file` for each generation. A policy without generations shows its classes: 0
/// for pages on trial, 1 for protected ones, with the age of the coldest page where it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LruGen {
    /// The group's name.
    pub group: String,
    /// The generations.
    pub generations: Vec<Generation>,
}

impl fmt::Display for LruGen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "memcg {}", self.group)?;
        let mut node = None;
        for one in &self.generations {
            if node != Some(one.node) {
                writeln!(f, " node {:>5}", one.node)?;
                node = Some(one.node);
            }
            let (seq, age, anon, file) = (one.seq, one.age.as_millis(), one.nr_anon, one.nr_file);
            writeln!(f, " {seq:>10} {age:>10} {anon:>10} {file:>10}")?;
        }
        Ok(())
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

impl Group {
    /// The generations of the group's own pages. Takes a lock for each node.
    #[must_use]
    pub fn lru_gen(&self) -> LruGen {
        let nodes = self.shared().core.lru_gen(self.id());
        let generations = nodes.flat_map(|view| {
            let present = view.generations.into_iter().flatten();
            present.map(move |one| Generation {
                node: view.node.number().into(),
                seq: one.seq,
                age: Duration::from_nanos(view.now_ns.saturating_sub(one.birth_ns)),
                nr_anon: one.nr_frames[PageType::Anon.index()],
                nr_file: one.nr_frames[PageType::File.index()],
            })
        });
        LruGen {
            group: self.name(),
            generations: generations.collect(),
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
        let node = Node::new(node).ok_or(BadGeneration::None)?;
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
        let node = Node::new(node).ok_or(BadGeneration::None)?;
        let key = (self.id(), node);
        let nr_pages = bytes.as_u64().div_ceil(PAGE_BYTES as u64);
        let core = &self.shared().core;
        let freed = core.evict_generations(cpu::current(), key, (seq, swappiness), nr_pages);
        self.shared().group_came_back(self.id());
        let freed = freed.map_err(|error| BadGeneration::of(error, seq))?;
        Ok(ByteSize(bytes_of(freed)))
    }
}
