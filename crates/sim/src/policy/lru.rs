//! Least recently used.

use super::PagePolicy;
use super::queues::Queues;

const RESIDENT: u8 = 0;

/// Pages in the order of their last use.
#[derive(Debug)]
pub(crate) struct Lru {
    queues: Queues<1>,
    capacity: u32,
}

impl Lru {
    /// An empty cache for `capacity` of the pages `0..nr_unique`.
    pub(crate) fn new(nr_unique: u32, capacity: u32) -> Lru {
        Lru {
            queues: Queues::new(nr_unique),
            capacity,
        }
    }

    /// Requests a page; whether it was there, and which page went for it.
    pub(crate) fn request(&mut self, page: u32) -> (bool, Option<u32>) {
        let is_hit = self.queues.queue_of(page).is_some();
        let is_full = self.queues.len(RESIDENT) == self.capacity;
        let evicted = match !is_hit && is_full {
            true => self.queues.pop(RESIDENT),
            false => None,
        };
        self.queues.push(RESIDENT, page);
        (is_hit, evicted)
    }
}

impl PagePolicy for Lru {
    fn access(&mut self, page: u32) -> bool {
        self.request(page).0
    }
}
