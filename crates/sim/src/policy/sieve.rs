//! SIEVE: a queue that never reorders, and a hand that sifts it.
//!
//! Zhang et al., "SIEVE is Simpler than LRU" (NSDI 2024). The hand walks from the oldest page to
//! the newest and starts again; it spares a page that was used since it passed. New pages come in
//! at the new end, wherever the hand is. No parameters.

use super::PagePolicy;
use super::queues::Queues;

const RESIDENT: u8 = 0;

/// Pages in the order of their arrival. A page's mark is 1 where it was used.
#[derive(Debug)]
pub(super) struct Sieve {
    queues: Queues<1>,
    /// The page that the hand looks at next; `None` for the oldest.
    hand: Option<u32>,
    capacity: u32,
}

impl Sieve {
    /// An empty cache for `capacity` of the pages `0..nr_unique`.
    pub(super) fn new(nr_unique: u32, capacity: u32) -> Sieve {
        Sieve {
            queues: Queues::new(nr_unique),
            hand: None,
            capacity,
        }
    }

    fn evict(&mut self) {
        while let Some(page) = self.hand.or(self.queues.oldest(RESIDENT)) {
            self.hand = self.queues.newer_than(page);
            if self.queues.mark(page) == 0 {
                self.queues.remove(page);
                return;
            }
            self.queues.set_mark(page, 0);
        }
    }
}

impl PagePolicy for Sieve {
    fn access(&mut self, page: u32) -> bool {
        if self.queues.queue_of(page).is_some() {
            self.queues.set_mark(page, 1);
            return true;
        }
        if self.queues.len(RESIDENT) == self.capacity {
            self.evict();
        }
        self.queues.push(RESIDENT, page);
        false
    }
}
