//! First in, first out, over page numbers: the naive twin of core's policy, for tests.

use super::PagePolicy;
use std::collections::{HashSet, VecDeque};

/// Pages in the order of their arrival.
#[derive(Debug)]
pub struct Fifo {
    queue: VecDeque<u32>,
    resident: HashSet<u32>,
    capacity: u32,
}

impl Fifo {
    /// An empty cache for `capacity` pages.
    ///
    /// # Panics
    /// Where `capacity` is 0.
    #[must_use]
    pub fn new(capacity: u32) -> Fifo {
        assert!(capacity > 0, "a cache of no page");
        Fifo {
            queue: VecDeque::new(),
            resident: HashSet::new(),
            capacity,
        }
    }
}

impl PagePolicy for Fifo {
    fn access(&mut self, page: u32) -> bool {
        if self.resident.contains(&page) {
            return true;
        }
        if self.queue.len() == self.capacity as usize
            && let Some(victim) = self.queue.pop_front()
        {
            self.resident.remove(&victim);
        }
        self.queue.push_back(page);
        self.resident.insert(page);
        false
    }
}
