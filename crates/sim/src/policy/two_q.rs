//! 2Q: what is used once passes through a queue of its own.
//!
//! Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
//! Algorithm" (VLDB 1994), the full version. A1in is first in, first out and holds a quarter of the
//! size; A1out remembers half a size of pages that left it; a page that is there when it is asked
//! for again enters Am, which is LRU.

use super::PagePolicy;
use super::queues::Queues;

const IN: u8 = 0;
const OUT: u8 = 1;
const MAIN: u8 = 2;

/// The three queues of the paper: A1in, A1out (remembered only), Am.
#[derive(Debug)]
pub(super) struct TwoQ {
    queues: Queues<3>,
    in_max: u32,
    out_max: u32,
    capacity: u32,
}

impl TwoQ {
    /// An empty cache for `capacity` of the pages `0..nr_unique`.
    pub(super) fn new(nr_unique: u32, capacity: u32) -> TwoQ {
        TwoQ {
            queues: Queues::new(nr_unique),
            in_max: capacity / 4,
            out_max: capacity / 2,
            capacity,
        }
    }

    fn make_room(&mut self) {
        if self.queues.len(IN) + self.queues.len(MAIN) < self.capacity {
            return;
        }
        if self.queues.len(IN) <= self.in_max && self.queues.pop(MAIN).is_some() {
            return;
        }
        let victim = self.queues.pop(IN).expect("what is resident is in a queue");
        self.queues.push(OUT, victim);
        if self.queues.len(OUT) > self.out_max {
            self.queues.pop(OUT);
        }
    }
}

impl PagePolicy for TwoQ {
    fn access(&mut self, page: u32) -> bool {
        match self.queues.queue_of(page) {
            Some(MAIN) => {
                self.queues.push(MAIN, page);
                true
            }
            Some(OUT) => {
                self.queues.remove(page);
                self.make_room();
                self.queues.push(MAIN, page);
                false
            }
            Some(_) => true,
            None => {
                self.make_room();
                self.queues.push(IN, page);
                false
            }
        }
    }
}
