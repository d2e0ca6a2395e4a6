//! Background reclaim: bringing a node's free pages back above the high watermark.
//!
//! Source: kernel `balance_pgdat()`, `wakeup_kswapd()`. Changed: what per-CPU page caches hold is
//! fetched back before a page is evicted, and a boost is not evicted for: blocks are emptied when
//! somebody asks for one.

use super::reach::Reclaimer;
use super::{Here, MAX_RETRIES, Memory};
use crate::alloc::Request;
use crate::group::ReclaimCount;
use crate::reclaim::{Looked, MAX_BATCH};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{MAX_NODES, Node, NodeMask, PageType};

/// Pages that one step evicts at most, but for the rest of its last batch.
const MAX_STEP: u32 = 1024;

/// What a step of background reclaim found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a node that is short wants more steps"]
pub enum Balance {
    /// A zone of the node has its high watermark free, and the budget has room: rest until woken.
    Done,
    /// Not yet.
    More,
    /// 16 steps in a row freed nothing: rest. Nobody is woken for the node before a request
    /// reclaims a page there, or frees take it above the high watermark.
    Hopeless,
}

/// What is remembered of a node between two steps.
#[derive(Debug)]
struct NodeState {
    /// Steps in a row that freed nothing.
    nr_failures: AtomicU32,
    /// Times that frees took its zones above the high watermark, when the last of these failed.
    recoveries: AtomicU32,
    /// 1 between the first step of a run and its last one.
    active: AtomicU32,
}

/// What background reclaim remembers, and what every reclaimer but requests did.
#[derive(Debug)]
pub(super) struct Background {
    nodes: [NodeState; MAX_NODES],
    runs: AtomicU64,
}

impl Default for Background {
    fn default() -> Background {
        let node = |_| NodeState {
            nr_failures: AtomicU32::new(0),
            recoveries: AtomicU32::new(0),
            active: AtomicU32::new(0),
        };
        Background {
            nodes: core::array::from_fn(node),
            runs: AtomicU64::new(0),
        }
    }
}

impl Background {
    fn node(&self, node: Node) -> &NodeState {
        &self.nodes[node.index()]
    }

    /// Somebody evicted pages on a node: it is not hopeless.
    pub(super) fn made_progress(&self, node: Node) {
        let failures = &self.node(node).nr_failures;
        if failures.load(Ordering::Relaxed) != 0 {
            failures.store(0, Ordering::Relaxed);
        }
    }

    /// A run begins.
    pub(super) fn count_run(&self) {
        self.runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs so far.
    pub(super) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }
}

impl Reclaimer {
    /// What a group counts as its pages looked at.
    const fn scans(self) -> ReclaimCount {
        match self {
            Reclaimer::Direct => ReclaimCount::PgscanDirect,
            Reclaimer::Background => ReclaimCount::PgscanKswapd,
            Reclaimer::Proactive => ReclaimCount::PgscanProactive,
        }
    }

    /// What a group counts as its pages evicted.
    pub(super) const fn steals(self) -> ReclaimCount {
        match self {
            Reclaimer::Direct => ReclaimCount::PgstealDirect,
            Reclaimer::Background => ReclaimCount::PgstealKswapd,
            Reclaimer::Proactive => ReclaimCount::PgstealProactive,
        }
    }
}

impl Memory {
    /// One step of background reclaim: below the budget first, where it is 256 MiB or more, then
    /// on a node. Evicts 1024 pages at most for each; only a program that calls it has any, and
    /// none is needed for progress.
    ///
    /// Of the budget 1/256 is kept free, 16 MiB at most, so that those who read need not evict.
    ///
    /// On the node, how many pages are missing is counted first. What lies in the depot and in
    /// per-CPU page caches goes back to the zones and is not missing: only where a node is really
    /// short, because its pages are used or kept for others, pages of it are evicted, of all groups
    /// beyond what protects them.
    pub fn balance(&self, here: Here<'_>, node: Node) -> Balance {
        let goes_on = self.make_room(here);
        match self.balance_node(here, node) {
            Balance::Done | Balance::Hopeless if goes_on => Balance::More,
            balance => balance,
        }
    }

    fn balance_node(&self, here: Here<'_>, node: Node) -> Balance {
        if self.zones.is_balanced(node) {
            return self.end_run(node, Balance::Done);
        }
        let state = self.background.node(node);
        if state.active.swap(1, Ordering::Relaxed) == 0 {
            self.background.count_run();
            if !self.is_hopeless(node) && state.nr_failures.load(Ordering::Relaxed) >= MAX_RETRIES {
                state.nr_failures.store(0, Ordering::Relaxed);
            }
            self.zones.set_reclaim_active(node, true);
        }
        // Nobody's, as what lies in per-CPU page caches.
        self.drain_much_of(self.groups.root());
        let nr_missing = self.zones.nr_missing(node);
        let nr_freed = self.evict_on(here, node, nr_missing.min(MAX_STEP));
        self.zones.fetch_back(&self.frames, node);
        if nr_missing == 0 || self.zones.is_balanced(node) {
            return self.end_run(node, Balance::Done);
        }
        if nr_freed > 0 {
            return Balance::More;
        }
        let recoveries = self.zones.nr_recoveries(node);
        state.recoveries.store(recoveries, Ordering::Relaxed);
        let nr_failures = state.nr_failures.load(Ordering::Relaxed) + 1;
        state.nr_failures.store(nr_failures, Ordering::Relaxed);
        match nr_failures {
            0..MAX_RETRIES => Balance::More,
            _ => self.end_run(node, Balance::Hopeless),
        }
    }

    /// Evicts batches of pages on a node until `nr_pages` went, or none can go.
    fn evict_on(&self, here: Here<'_>, node: Node, nr_pages: u32) -> u32 {
        let root = self.budget_reach().by(Reclaimer::Background);
        let reach = root.on(NodeMask::of(node));
        let mut nr_freed = 0;
        while nr_freed < nr_pages {
            match self.reclaim_writing(here, reach, MAX_BATCH).nr_freed {
                0 => break,
                freed => nr_freed += freed,
            }
        }
        nr_freed
    }

    fn end_run(&self, node: Node, how: Balance) -> Balance {
        let state = self.background.node(node);
        if how == Balance::Done {
            state.nr_failures.store(0, Ordering::Relaxed);
            self.zones.end_boost(node);
        }
        if state.active.swap(0, Ordering::Relaxed) != 0 {
            self.zones.set_reclaim_active(node, false);
        }
        how
    }

    /// Whether background reclaim has given a node up for now.
    #[must_use]
    pub fn is_hopeless(&self, node: Node) -> bool {
        let state = self.background.node(node);
        state.nr_failures.load(Ordering::Relaxed) >= MAX_RETRIES
            && state.recoveries.load(Ordering::Relaxed) == self.zones.nr_recoveries(node)
    }

    /// No zone that a request may use has a block above its low watermark: wakes who reclaims there
    /// in the background. A few loads for each node.
    pub(super) fn wake_reclaim(&self, here: Here<'_>, request: &Request) {
        let allowed = request.mems.and(request.policy.allowed());
        let nodes = self.config.alloc.topology.nodes();
        nodes
            .filter(|&node| allowed.has(node))
            .filter(|&node| !self.zones.is_balanced(node) && !self.is_hopeless(node))
            .for_each(|node| here.platform.wake_reclaim(node));
    }

    /// Counts pages that were looked at in a group, and what became of them.
    pub(super) fn count_looked(&self, by: Reclaimer, group: u32, looked: Looked) {
        let nr_pages = looked.nr_scanned.map(u64::from).iter().sum();
        self.stats.scanned[by as usize].fetch_add(nr_pages, Ordering::Relaxed);
        let [nr_anon, nr_file] =
            [PageType::Anon, PageType::File].map(|of| looked.nr_scanned[of.index()]);
        for (count, more) in [
            (by.scans(), nr_pages),
            (ReclaimCount::PgscanAnon, nr_anon.into()),
            (ReclaimCount::PgscanFile, nr_file.into()),
            (ReclaimCount::Pgrefill, looked.nr_refilled.into()),
            (ReclaimCount::Pgactivate, looked.nr_activated.into()),
            (ReclaimCount::Pgdeactivate, looked.nr_deactivated.into()),
        ] {
            self.groups.add_reclaim_count(group, count, more);
        }
    }
}
