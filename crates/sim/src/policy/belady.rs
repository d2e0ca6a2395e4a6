//! Belady's MIN: evicts what is used again last. No policy without the future has fewer misses.
//!
//! Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer" (1966), with demand
//! fill: a page is brought in even where it is never used again.

use super::PagePolicy;
use crate::trace::Trace;

/// No further use.
const NEVER: u32 = u32::MAX;

/// A cache that knows its trace, request by request.
///
/// A resident page is known by the request that uses it next, so that the pages are a set of
/// requests and the victim is its maximum.
#[derive(Debug)]
pub(super) struct Belady {
    /// The next request of the same page, by request.
    next_uses: Vec<u32>,
    /// Requests whose page is resident, and stays so if not evicted.
    awaited: MaxSet,
    /// Resident pages that are used again.
    nr_awaited: u32,
    /// Resident pages that are never used again.
    nr_spent: u32,
    nr_requests: u32,
    capacity: u32,
}

impl Belady {
    /// An empty cache for `capacity` pages, which will see the requests of this trace in order.
    ///
    /// Takes a bit more than 4 bytes a request, and O(requests) time.
    pub(super) fn new(trace: &Trace, capacity: u32) -> Belady {
        let mut next_uses = vec![NEVER; trace.pages.len()];
        let mut last_seen = vec![NEVER; trace.nr_unique as usize];
        for (request, &page) in trace.pages.iter().enumerate().rev() {
            let request_number = u32::try_from(request).expect("requests are numbered by 32 bits");
            let last_seen = &mut last_seen[page as usize];
            next_uses[request] = std::mem::replace(last_seen, request_number);
        }
        Belady {
            awaited: MaxSet::new(next_uses.len()),
            next_uses,
            nr_awaited: 0,
            nr_spent: 0,
            nr_requests: 0,
            capacity,
        }
    }

    fn evict(&mut self) {
        if self.nr_spent > 0 {
            self.nr_spent -= 1;
        } else {
            self.awaited.remove_max();
            self.nr_awaited -= 1;
        }
    }
}

impl PagePolicy for Belady {
    /// # Panics
    /// After the trace's last request.
    fn access(&mut self, _page: u32) -> bool {
        let request = self.nr_requests;
        self.nr_requests += 1;
        let is_hit = self.awaited.remove(request);
        if is_hit {
            self.nr_awaited -= 1;
        } else if self.nr_awaited + self.nr_spent == self.capacity {
            self.evict();
        }
        match self.next_uses[request as usize] {
            NEVER => self.nr_spent += 1,
            next => {
                self.awaited.insert(next);
                self.nr_awaited += 1;
            }
        }
        is_hit
    }
}

/// A set of numbers: bits, and above each 64 of them one that says whether any is set.
///
/// Every call is O(log of the largest number), base 64.
#[derive(Debug)]
struct MaxSet {
    /// The lowest level first; the last has one word.
    levels: Vec<Vec<u64>>,
}

impl MaxSet {
    fn new(nr_numbers: usize) -> MaxSet {
        let mut levels = Vec::new();
        let mut nr_bits = nr_numbers.max(1);
        while nr_bits > 1 || levels.is_empty() {
            nr_bits = nr_bits.div_ceil(64);
            levels.push(vec![0; nr_bits]);
        }
        MaxSet { levels }
    }

    fn insert(&mut self, number: u32) {
        let mut at = number as usize;
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
    }

    /// Whether it was there.
    fn remove(&mut self, number: u32) -> bool {
        let mut at = number as usize;
        let was_there = self.levels[0][at / 64] >> (at % 64) & 1 == 1;
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                break;
            }
            at /= 64;
        }
        was_there
    }

    /// # Panics
    /// Where the set is empty.
    fn remove_max(&mut self) {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            at = at * 64 + level[at as usize].ilog2();
        }
        self.remove(at);
    }
}
