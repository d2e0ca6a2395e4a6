//! A store of keys and values in memory that does not fit: what is swapped in and out.
//!
//! Values lie in anon pages, in the order in which they were stored first. All keys are set once in
//! order, then they are got and set at random. A page that is not resident is swapped in; one that
//! was changed since is swapped out before it goes, any other is dropped.

use crate::core_run::{CoreCache, RunError};
use crate::policy::Lru;
use crate::random::Random;
use crate::requests::{Distribution, Requests};
use pagetide_core::reclaim::Policy;

/// Requests of which one is a set.
const SETS: usize = 10;

/// The store, and what is asked of it.
#[derive(Clone, Copy, Debug)]
pub struct KeyValue {
    /// Pages of all values.
    pub nr_pages: u32,
    /// Values of a page.
    pub keys_per_page: u32,
    /// Pages that may be resident.
    pub frames: u32,
    /// How often each key is asked for.
    pub keys: Distribution,
    /// Requests that are not counted, after all keys were set.
    pub nr_warm_up: u32,
    /// Requests that are counted.
    pub nr_requests: u32,
    /// What the requests follow from.
    pub seed: usize,
}

/// What was swapped while requests were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swaps {
    /// Pages read.
    pub swap_ins: u64,
    /// Pages written.
    pub swap_outs: u64,
}

/// Pages of a store under some policy.
trait Pages {
    /// Gets a value in a page, or sets it.
    fn request(&mut self, page: u32, is_set: bool) -> Result<(), RunError>;
    /// What was swapped so far.
    fn swaps(&self) -> Swaps;
}

impl Pages for CoreCache {
    fn request(&mut self, page: u32, is_set: bool) -> Result<(), RunError> {
        let missed = match is_set {
            true => self.change(page),
            false => self.read(page),
        };
        missed.map(|_| ())
    }

    fn swaps(&self) -> Swaps {
        Swaps {
            swap_ins: self.counts().misses,
            swap_outs: self.costs().nr_writes,
        }
    }
}

/// Least recently used, over page numbers.
struct LruPages {
    lru: Lru,
    is_dirty: Vec<bool>,
    swaps: Swaps,
}

impl Pages for LruPages {
    fn request(&mut self, page: u32, is_set: bool) -> Result<(), RunError> {
        let (is_hit, evicted) = self.lru.request(page);
        self.swaps.swap_ins += u64::from(!is_hit);
        if let Some(evicted) = evicted {
            let is_dirty = std::mem::take(&mut self.is_dirty[evicted as usize]);
            self.swaps.swap_outs += u64::from(is_dirty);
        }
        self.is_dirty[page as usize] |= is_set;
        Ok(())
    }

    fn swaps(&self) -> Swaps {
        self.swaps
    }
}

impl KeyValue {
    /// Runs it through the real core.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run(&self, policy: Policy) -> Result<Swaps, RunError> {
        self.run_on(CoreCache::of_anon(policy, self.frames)?)
    }

    /// Runs it with the page that was not used for longest going first, exactly.
    ///
    /// # Errors
    /// None; [`RunError`] is what [`KeyValue::run`] has.
    pub fn run_lru(&self) -> Result<Swaps, RunError> {
        self.run_on(LruPages {
            lru: Lru::new(self.nr_pages, self.frames),
            is_dirty: vec![false; self.nr_pages as usize],
            swaps: Swaps::default(),
        })
    }

    fn run_on(&self, mut pages: impl Pages) -> Result<Swaps, RunError> {
        let nr_keys = self.nr_pages * self.keys_per_page;
        for key in 0..nr_keys {
            pages.request(key / self.keys_per_page, true)?;
        }
        let mut keys = Requests::new(self.keys, nr_keys, self.seed);
        let mut random = Random::new(self.seed + 1);
        let mut run = |nr_requests: u32| -> Result<Swaps, RunError> {
            for key in keys.by_ref().take(nr_requests as usize) {
                pages.request(key / self.keys_per_page, random.below(SETS) == 0)?;
            }
            Ok(pages.swaps())
        };
        let (before, after) = (run(self.nr_warm_up)?, run(self.nr_requests)?);
        Ok(Swaps {
            swap_ins: after.swap_ins - before.swap_ins,
            swap_outs: after.swap_outs - before.swap_outs,
        })
    }
}
