//! S3-FIFO: three queues, first in, first out.
//!
//! Yang et al., "FIFO Queues are All You Need for Cache Eviction" (SOSP 2023). The small queue has
//! a tenth of the size. What leaves it goes to the main queue where it was used at least twice,
//! else it is remembered by a ghost queue of nine tenths; a page that is there when it is asked for
//! again enters the main queue, which is a clock of two bits. As in libCacheSim, what the small
//! queue has no room for enters the main queue until the first eviction.

use super::queues::Queues;
use super::{PagePolicy, share};

const SMALL: u8 = 0;
const MAIN: u8 = 1;
const GHOST: u8 = 2;

/// Uses in the small queue that take a page to the main one.
const PROMOTED_FROM: u8 = 2;
/// Uses of a page that count, at most.
const NR_USES_MAX: u8 = 3;

/// The queues. A page's mark counts its uses since it was queued.
#[derive(Debug)]
pub(super) struct S3Fifo {
    queues: Queues<3>,
    small_max: u32,
    ghost_max: u32,
    has_evicted: bool,
    capacity: u32,
}

impl S3Fifo {
    /// An empty cache for `capacity` of the pages `0..nr_unique`.
    pub(super) fn new(nr_unique: u32, capacity: u32) -> S3Fifo {
        S3Fifo {
            queues: Queues::new(nr_unique),
            small_max: (capacity / 10).max(1),
            ghost_max: share(capacity, 9, 10),
            has_evicted: false,
            capacity,
        }
    }

    fn evict(&mut self) {
        self.has_evicted = true;
        while self.nr_resident() == self.capacity {
            let main_max = self.capacity - self.small_max;
            if self.queues.len(MAIN) > main_max || self.queues.len(SMALL) == 0 {
                self.evict_from_main();
            } else {
                self.evict_from_small();
            }
        }
    }

    /// Promotes pages until one goes, even where the main queue gets more than its part by that.
    fn evict_from_small(&mut self) {
        while let Some(page) = self.queues.pop(SMALL) {
            if self.queues.mark(page) < PROMOTED_FROM {
                self.remember(page);
                return;
            }
            self.queues.set_mark(page, 0);
            self.queues.push(MAIN, page);
        }
    }

    fn evict_from_main(&mut self) {
        while let Some(page) = self.queues.pop(MAIN) {
            let nr_uses = self.queues.mark(page);
            if nr_uses == 0 {
                return;
            }
            self.queues.set_mark(page, nr_uses - 1);
            self.queues.push(MAIN, page);
        }
    }

    fn remember(&mut self, page: u32) {
        self.queues.push(GHOST, page);
        if self.queues.len(GHOST) > self.ghost_max {
            self.queues.pop(GHOST);
        }
    }

    fn nr_resident(&self) -> u32 {
        self.queues.len(SMALL) + self.queues.len(MAIN)
    }
}

impl PagePolicy for S3Fifo {
    fn access(&mut self, page: u32) -> bool {
        let found = self.queues.queue_of(page);
        if matches!(found, Some(SMALL | MAIN)) {
            let nr_uses = self.queues.mark(page) + 1;
            self.queues.set_mark(page, nr_uses.min(NR_USES_MAX));
            return true;
        }
        self.queues.remove(page);
        if self.nr_resident() == self.capacity {
            self.evict();
        }
        let is_small_full = !self.has_evicted && self.queues.len(SMALL) >= self.small_max;
        let queue = if found == Some(GHOST) || is_small_full {
            MAIN
        } else {
            SMALL
        };
        self.queues.set_mark(page, 0);
        self.queues.push(queue, page);
        false
    }
}
