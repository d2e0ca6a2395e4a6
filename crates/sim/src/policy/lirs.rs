//! LIRS: pages by the distance between their last two uses.
//!
//! Jiang and Zhang, "LIRS: An Efficient Low Inter-reference Recency Set Replacement Policy"
//! (SIGMETRICS 2002). Pages of long distance have 1 % of the size, as there. The paper remembers
//! evicted pages as long as they are on its stack; here as many as the size has pages, those that
//! were evicted first forgotten first, as libCacheSim does it.

use super::PagePolicy;
use super::queues::Queues;

/// The stack S of the paper, the most recent use last.
const STACK: u8 = 0;

/// The queue Q of the paper.
const QUEUE: u8 = 0;
/// Evicted pages that are still on the stack, in the order of their eviction.
const HISTORY: u8 = 1;

/// Not resident.
const GONE: u8 = 0;
/// Resident and on the queue: used once, or again after a long distance.
const LONG: u8 = 1;
/// Resident: used again after a short distance; always on the stack.
const SHORT: u8 = 2;

/// The stack, whose oldest page is of short distance, and the queues beside it. A page's mark on
/// the stack is its state.
#[derive(Debug)]
pub(super) struct Lirs {
    stack: Queues<1>,
    queues: Queues<2>,
    nr_short: u32,
    short_max: u32,
    capacity: u32,
}

impl Lirs {
    /// An empty cache for `capacity` of the pages `0..nr_unique`.
    pub(super) fn new(nr_unique: u32, capacity: u32) -> Lirs {
        Lirs {
            stack: Queues::new(nr_unique),
            queues: Queues::new(nr_unique),
            nr_short: 0,
            short_max: capacity - (capacity / 100).max(1),
            capacity,
        }
    }

    /// Takes what is not of short distance off the old end of the stack: O(1) in the mean.
    fn prune(&mut self) {
        while let Some(page) = self.stack.oldest(STACK)
            && self.stack.mark(page) != SHORT
        {
            self.stack.remove(page);
            if self.stack.mark(page) == GONE {
                self.queues.remove(page);
            }
        }
    }

    fn evict(&mut self) {
        let victim = self.queues.pop(QUEUE);
        let victim = victim.expect("short distances leave room for one page");
        self.stack.set_mark(victim, GONE);
        if self.stack.queue_of(victim).is_none() {
            return;
        }
        self.queues.push(HISTORY, victim);
        if self.queues.len(HISTORY) > self.capacity
            && let Some(forgotten) = self.queues.pop(HISTORY)
        {
            self.stack.remove(forgotten);
        }
    }

    /// Makes a page one of short distance; where there are too many, the one that was used longest
    /// ago becomes one of long.
    fn promote(&mut self, page: u32) {
        self.queues.remove(page);
        self.stack.set_mark(page, SHORT);
        self.stack.push(STACK, page);
        self.nr_short += 1;
        if self.nr_short > self.short_max {
            let oldest = self.stack.pop(STACK).expect("this page is there");
            self.stack.set_mark(oldest, LONG);
            self.queues.push(QUEUE, oldest);
            self.nr_short -= 1;
        }
        self.prune();
    }

    /// Uses a page that is on the queue or not resident.
    fn use_long(&mut self, page: u32) {
        if self.stack.queue_of(page).is_some() {
            self.promote(page);
            return;
        }
        self.stack.set_mark(page, LONG);
        self.queues.push(QUEUE, page);
        if self.nr_short > 0 {
            self.stack.push(STACK, page);
        }
    }
}

impl PagePolicy for Lirs {
    fn access(&mut self, page: u32) -> bool {
        match self.stack.mark(page) {
            SHORT => {
                self.stack.push(STACK, page);
                self.prune();
                return true;
            }
            LONG => {
                self.use_long(page);
                return true;
            }
            _ => (),
        }
        if self.nr_short < self.short_max {
            self.promote(page);
            return false;
        }
        // First, so that the victim's place in the history is not taken from this page.
        self.queues.remove(page);
        if self.nr_short + self.queues.len(QUEUE) == self.capacity {
            self.evict();
        }
        self.use_long(page);
        false
    }
}
