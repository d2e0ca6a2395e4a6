//! ARC: recency and frequency share the size by which of the two was cut too short.
//!
//! Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache" (FAST 2003), figure 4.
//! The target of T1 is a real number, as there. No parameters.

use super::PagePolicy;
use super::queues::Queues;

const T1: u8 = 0;
const T2: u8 = 1;
const B1: u8 = 2;
const B2: u8 = 3;

/// The four lists of the paper: T1 and T2 hold pages seen once and more often, B1 and B2 remember
/// what left them.
#[derive(Debug)]
pub(super) struct Arc {
    queues: Queues<4>,
    /// What T1 should hold: the paper's `p`.
    target: f64,
    capacity: u32,
}

impl Arc {
    /// An empty cache for `capacity` of the pages `0..nr_unique`.
    pub(super) fn new(nr_unique: u32, capacity: u32) -> Arc {
        Arc {
            queues: Queues::new(nr_unique),
            target: 0.0,
            capacity,
        }
    }

    /// Evicts from T1 or T2; the page asked for was, or was not, in B2.
    fn replace(&mut self, was_in_b2: bool) {
        let nr_once = f64::from(self.queues.len(T1));
        let over = nr_once > self.target || (was_in_b2 && nr_once == self.target);
        let (from, to) = if nr_once > 0.0 && over {
            (T1, B1)
        } else {
            (T2, B2)
        };
        if let Some(victim) = self.queues.pop(from) {
            self.queues.push(to, victim);
        }
    }

    /// A page that was evicted from T1, or else from T2, is asked for again.
    fn refault(&mut self, page: u32, from: u8) {
        let (nr_b1, nr_b2) = (self.len(B1), self.len(B2));
        self.target = if from == B1 {
            (self.target + (nr_b2 / nr_b1).max(1.0)).min(f64::from(self.capacity))
        } else {
            (self.target - (nr_b1 / nr_b2).max(1.0)).max(0.0)
        };
        self.replace(from == B2);
        self.queues.push(T2, page);
    }

    /// A page that nothing is remembered of.
    fn bring_in(&mut self, page: u32) {
        let nr_l1 = self.queues.len(T1) + self.queues.len(B1);
        let nr_all = nr_l1 + self.queues.len(T2) + self.queues.len(B2);
        if nr_l1 == self.capacity {
            if self.queues.len(T1) < self.capacity {
                self.queues.pop(B1);
                self.replace(false);
            } else {
                self.queues.pop(T1);
            }
        } else if nr_all >= self.capacity {
            if nr_all == self.capacity.saturating_mul(2) {
                self.queues.pop(B2);
            }
            self.replace(false);
        }
        self.queues.push(T1, page);
    }

    fn len(&self, queue: u8) -> f64 {
        f64::from(self.queues.len(queue))
    }
}

impl PagePolicy for Arc {
    fn access(&mut self, page: u32) -> bool {
        match self.queues.queue_of(page) {
            Some(T1 | T2) => {
                self.queues.push(T2, page);
                true
            }
            Some(from) => {
                self.refault(page, from);
                false
            }
            None => {
                self.bring_in(page);
                false
            }
        }
    }
}
