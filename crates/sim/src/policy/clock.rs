//! CLOCK: first in, first out, with another round for what was used.
//!
//! Corbato, "A Paging Experiment with the Multics System" (1968). A page comes in with 0 uses. A
//! hit counts one, up to the maximum; the hand takes one back for each round that it grants.

use super::PagePolicy;
use super::queues::Queues;

const RING: u8 = 0;

/// A ring of pages, as a queue: the hand stands at its old end. A page's mark counts its uses.
#[derive(Debug)]
pub(super) struct Clock {
    queues: Queues<1>,
    nr_uses_max: u8,
    capacity: u32,
}

impl Clock {
    /// An empty cache for `capacity` of the pages `0..nr_unique`, which counts `nr_uses_max` uses
    /// of a page at most: 1 is the clock of one bit, 3 the one of two.
    pub(super) fn new(nr_unique: u32, capacity: u32, nr_uses_max: u8) -> Clock {
        Clock {
            queues: Queues::new(nr_unique),
            nr_uses_max,
            capacity,
        }
    }

    fn evict(&mut self) {
        while let Some(page) = self.queues.pop(RING) {
            let nr_uses = self.queues.mark(page);
            if nr_uses == 0 {
                return;
            }
            self.queues.set_mark(page, nr_uses - 1);
            self.queues.push(RING, page);
        }
    }
}

impl PagePolicy for Clock {
    fn access(&mut self, page: u32) -> bool {
        if self.queues.queue_of(page).is_some() {
            let nr_uses = self.queues.mark(page) + 1;
            self.queues.set_mark(page, nr_uses.min(self.nr_uses_max));
            return true;
        }
        if self.queues.len(RING) == self.capacity {
            self.evict();
        }
        self.queues.push(RING, page);
        false
    }
}
