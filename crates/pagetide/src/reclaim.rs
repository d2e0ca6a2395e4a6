//! Reclaim that is asked for, reclaim in the background, and how a group's pages are replaced.

use crate::builder::bytes_of;
use crate::shared::Shared;
use crate::trace;
use crate::{ByteSize, Error, Group, Memory, PAGE_BYTES, Policy};
use pagetide_core::memory::Balance;
use pagetide_core::units::{Node, NodeMask};
use std::sync::atomic::{AtomicU64, Ordering};

/// Source: the kernel's largest `swappiness`.
pub(crate) const MAX_SWAPPINESS: u8 = 200;

/// Steps of background reclaim on a node that one tick does at most.
const MAX_STEPS: u32 = 64;

/// Nodes that background reclaim is wanted on, and how soon it was wanted again.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    nodes: AtomicU64,
    pub(crate) low_wmark_hit_quickly: AtomicU64,
    pub(crate) high_wmark_hit_quickly: AtomicU64,
}

impl Wanted {
    /// Says that it is wanted on a node; whether that is news.
    ///
    /// Whoever takes it up looks at the node after that. What is said while somebody just takes it
    /// up may be lost: the next request says it again.
    pub(crate) fn want(&self, node: Node) -> bool {
        let bit = NodeMask::of(node).bits();
        // A load first, as many say so at once. Release pairs with the Acquire in `take`.
        self.nodes.load(Ordering::Relaxed) & bit == 0
            && self.nodes.fetch_or(bit, Ordering::Release) & bit == 0
    }

    /// Whether it was wanted on a node since this was last asked.
    pub(crate) fn take(&self, node: Node) -> bool {
        let bit = NodeMask::of(node).bits();
        // Acquire pairs with the Release in `want`.
        self.nodes.fetch_and(!bit, Ordering::Acquire) & bit != 0
    }

    pub(crate) fn nr_low_hits(&self) -> u64 {
        self.low_wmark_hit_quickly.load(Ordering::Relaxed)
    }

    pub(crate) fn nr_high_hits(&self) -> u64 {
        self.high_wmark_hit_quickly.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// One step of background reclaim on a node. Whether more are wanted, which it sees to.
    pub(crate) fn balance(&self, node: Node) -> bool {
        let balance = self.core.balance(self.here(), node);
        self.settle();
        let goes_on = balance == Balance::More;
        if goes_on && self.reclaim.want(node) {
            self.nudge_node(node);
        }
        if !goes_on {
            trace::balanced(node.index());
        }
        goes_on
    }

    /// Steps that are wanted, for programs without threads: some of them where others use up what
    /// they bring.
    pub(crate) fn balance_wanted(&self) {
        for node in self.topology().core().nodes() {
            let mut steps = 0..MAX_STEPS;
            while steps.next().is_some() && self.reclaim.take(node) && self.balance(node) {}
        }
    }
}

impl Group {
    /// Evicts pages of the group and those below it, `bytes` of them, and asks their shrinkers,
    /// before somebody needs the memory; returns what came back, which may be more by the rest of
    /// a batch of 64 pages. Rounded up to whole pages.
    ///
    /// As for a limit of the group, what [`Group::set_min`] protects below it stays, and what
    /// [`Group::set_low`] protects as long as others have pages. What protects the group itself
    /// does not count. Source: `memory.reclaim`.
    ///
    /// ```
    /// use pagetide::{ByteSize, Error, Memory};
    ///
    /// let memory = Memory::builder().budget(ByteSize::mib(16)).build()?;
    /// let batch = memory.root().child("batch")?;
    /// let work = batch.reserve(ByteSize::mib(1))?;
    /// // Nothing is cached, and what is in use stays.
    /// match batch.reclaim(ByteSize::mib(4)) {
    ///     Err(Error::ReclaimedLess { reclaimed_bytes, .. }) => assert_eq!(reclaimed_bytes, 0),
    ///     other => panic!("{other:?}"),
    /// }
    /// # drop(work);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ReclaimedLess`] where less came back. What did is free all the same.
    pub fn reclaim(&self, bytes: ByteSize) -> Result<ByteSize, Error> {
        self.reclaim_by(bytes, None)
    }

    /// [`Group::reclaim`] at a `swappiness` of its own, 0 to 200, in the place of the group's: at 0
    /// no anon pages go while there are pages of files, at 200 those go first; more is 200.
    /// Source: `swappiness=` of `memory.reclaim`.
    ///
    /// # Errors
    /// [`Error::ReclaimedLess`], as [`Group::reclaim`].
    pub fn reclaim_with_swappiness(
        &self,
        bytes: ByteSize,
        swappiness: u8,
    ) -> Result<ByteSize, Error> {
        self.reclaim_by(bytes, Some(swappiness.min(MAX_SWAPPINESS)))
    }

    fn reclaim_by(&self, bytes: ByteSize, swappiness: Option<u8>) -> Result<ByteSize, Error> {
        self.shared().check_process()?;
        let shared = self.shared();
        let asked = bytes.as_u64().div_ceil(PAGE_BYTES as u64);
        let subtree = (self.id(), swappiness);
        let freed = shared
            .core
            .reclaim_proactively(shared.here(), subtree, asked);
        shared.settle();
        shared.group_came_back(self.id());
        if freed < asked {
            return Err(Error::ReclaimedLess {
                group: self.path(),
                reclaimed_bytes: bytes_of(freed),
                asked_bytes: bytes.as_u64(),
            });
        }
        Ok(ByteSize(bytes_of(freed)))
    }

    /// How the group's pages are replaced.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy::from_core(self.shared().core.policy(self.id()))
    }

    /// Sets how the pages of the group, and of children made from now on, are replaced, in the
    /// place of its parent's way.
    ///
    /// ```
    /// use pagetide::{ByteSize, Error, Memory, Policy};
    ///
    /// let memory = Memory::builder().budget(ByteSize::mib(16)).build()?;
    /// let log = memory.root().child("log")?;
    /// log.set_policy(Policy::Fifo)?; // read once, front to back
    /// assert_eq!(log.policy(), Policy::Fifo);
    /// assert_eq!(log.child("old")?.policy(), Policy::Fifo);
    /// assert_eq!(memory.root().policy(), Policy::default());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::PolicyInUse`] once the group had a page of a file or an anon page.
    pub fn set_policy(&self, policy: Policy) -> Result<(), Error> {
        self.shared().check_process()?;
        match self.shared().core.set_policy(self.id(), policy.to_core()) {
            true => Ok(()),
            false => Err(Error::PolicyInUse {
                group: self.path(),
                policy: self.policy(),
            }),
        }
    }

    /// What bringing back a page of a file costs where this group's limit is met, 0 to 200.
    #[must_use]
    pub fn swappiness(&self) -> u8 {
        self.record().swappiness()
    }

    /// Sets [`Group::swappiness`], for the group and children made from now on; more than 200 is
    /// 200. See [`Builder::swappiness`](crate::Builder::swappiness).
    pub fn set_swappiness(&self, swappiness: u8) {
        self.record().set_swappiness(swappiness.min(MAX_SWAPPINESS));
    }
}

impl Memory {
    /// [`Group::reclaim`] of the root: of whatever group, beyond what protects it.
    ///
    /// # Errors
    /// [`Error::ReclaimedLess`].
    pub fn reclaim(&self, bytes: ByteSize) -> Result<ByteSize, Error> {
        self.root().reclaim(bytes)
    }
}
