//! Least recently used.

use super::PagePolicy;
use super::queues::Queues;

const RESIDENT: u8 = 0;

/// Pages in the order of their last use.
#[derive(Debug)]
pub(super) struct Lru {
    queues: Queues<1>,
    capacity: u32,
}

impl Lru {
    /// An empty cache for `capacity` of the pages `0..nr_unique`.
    pub(super) fn new(nr_unique: u32, capacity: u32) -> Lru {
        Lru {
            queues: Queues::new(nr_unique),
            capacity,
        }
    }
}

impl PagePolicy for Lru {
    fn access(&mut self, page: u32) -> bool {
        let is_hit = self.queues.queue_of(page).is_some();
        if !is_hit && self.queues.len(RESIDENT) == self.capacity {
            self.queues.pop(RESIDENT);
        }
        self.queues.push(RESIDENT, page);
        is_hit
    }
}
