//! LRU at all sizes in one pass: how many other pages came between two requests of a page.
//!
//! Mattson et al., "Evaluation Techniques for Storage Hierarchies" (IBM Systems Journal 1970): LRU
//! of any size holds a page where fewer pages than that were requested since, itself included. The
//! last request of each page is a bit; the later bits are counted by a Fenwick tree over words.

use crate::policy::{Counts, PROGRESS_STEP};
use crate::trace::Trace;

/// The place of a page that was not requested yet.
const NONE: u32 = u32::MAX;

/// Requests of a trace by their stack distance.
#[derive(Clone, Debug)]
pub struct StackDistances {
    /// At `d`: requests whose page was among the `d` requested last.
    nr_hits: Vec<u64>,
    nr_requests: u64,
}

impl StackDistances {
    /// Of all requests of a trace; `progress` gets the requests done so far, now and then.
    ///
    /// O(log of the distinct pages) a request; 13 bytes a distinct page for a while, and 8 to stay.
    #[must_use]
    pub fn new(trace: &Trace, mut progress: impl FnMut(u64)) -> StackDistances {
        let nr_unique = trace.nr_unique as usize;
        let mut stack = Stack::new(nr_unique);
        let mut nr_requests_at = vec![0; nr_unique + 1];
        let mut nr_requests = 0;
        for chunk in trace.pages.chunks(PROGRESS_STEP) {
            for &page in chunk {
                if let Some(distance) = stack.request(page) {
                    nr_requests_at[distance as usize] += 1;
                }
            }
            nr_requests += chunk.len() as u64;
            progress(nr_requests);
        }
        let mut nr_hits = nr_requests_at;
        let mut sum = 0;
        for nr_at in &mut nr_hits {
            sum += *nr_at;
            *nr_at = sum;
        }
        StackDistances {
            nr_hits,
            nr_requests,
        }
    }

    /// What LRU of so many pages counts.
    #[must_use]
    pub fn counts(&self, capacity: u32) -> Counts {
        let within = (self.nr_hits.len() - 1).min(capacity as usize);
        Counts {
            requests: self.nr_requests,
            misses: self.nr_requests - self.nr_hits[within],
        }
    }

    /// The least pages with which at least this part of LRU's requests are hits; `None` where no
    /// size is enough, because each page misses once. O(log of the distinct pages).
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn frames_for(&self, hit_ratio: f64) -> Option<u32> {
        let ratio = |hits: u64| hits as f64 / self.nr_requests as f64;
        let frames = self
            .nr_hits
            .partition_point(|&hits| ratio(hits) < hit_ratio);
        let is_there = frames < self.nr_hits.len();
        is_there.then(|| u32::try_from(frames).expect("no more than there are pages"))
    }
}

/// Pages in the order of their last request, at places that only grow: twice as many places as
/// pages, and when they are used up, the pages move together.
struct Stack {
    /// The place of each page's last request.
    place_of: Vec<u32>,
    page_at: Vec<u32>,
    /// Bits of the places that are a page's last.
    last: Vec<u64>,
    /// Fenwick tree over the bits of each word.
    tree: Vec<u32>,
    next_place: u32,
    nr_pages: u32,
}

impl Stack {
    fn new(nr_unique: usize) -> Stack {
        let nr_words = (2 * nr_unique).div_ceil(64);
        Stack {
            place_of: vec![NONE; nr_unique],
            page_at: vec![NONE; nr_words * 64],
            last: vec![0; nr_words],
            tree: vec![0; nr_words + 1],
            next_place: 0,
            nr_pages: 0,
        }
    }

    /// The place of the page from the top, from 1, and brings it there; `None` for a new page.
    fn request(&mut self, page: u32) -> Option<u32> {
        let place = self.place_of[page as usize];
        let distance = if place == NONE {
            None
        } else {
            let distance = self.nr_pages - self.nr_below(place);
            self.clear(place);
            Some(distance)
        };
        if self.next_place as usize == self.page_at.len() {
            self.move_together();
        }
        self.set(page);
        distance
    }

    /// Pages at lower places.
    fn nr_below(&self, place: u32) -> u32 {
        let (word, bit) = (place as usize / 64, place % 64);
        let mut nr_pages = (self.last[word] & ((1 << bit) - 1)).count_ones();
        let mut at = word;
        while at > 0 {
            nr_pages += self.tree[at];
            at &= at - 1;
        }
        nr_pages
    }

    fn clear(&mut self, place: u32) {
        self.last[place as usize / 64] &= !(1 << (place % 64));
        self.add(place, u32::MAX);
        self.nr_pages -= 1;
    }

    /// Puts a page at the next place.
    fn set(&mut self, page: u32) {
        let place = self.next_place;
        self.next_place += 1;
        self.place_of[page as usize] = place;
        self.page_at[place as usize] = page;
        self.last[place as usize / 64] |= 1 << (place % 64);
        self.add(place, 1);
        self.nr_pages += 1;
    }

    /// Adds to the word of a place, modulo 2^32.
    fn add(&mut self, place: u32, count: u32) {
        let mut at = place as usize / 64 + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(count);
            at += at & at.wrapping_neg();
        }
    }

    /// Gives the pages the lowest places, in their order. At most half of the places are in use, so
    /// that it is O(1) a request in the mean.
    fn move_together(&mut self) {
        let last = std::mem::replace(&mut self.last, vec![0; self.tree.len() - 1]);
        self.tree.fill(0);
        (self.next_place, self.nr_pages) = (0, 0);
        for place in 0..self.page_at.len() {
            if last[place / 64] >> (place % 64) & 1 == 1 {
                self.set(self.page_at[place]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{policy, replay};
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1),
            ..ProptestConfig::default()
        })]

        #[test]
        fn each_size_counts_what_lru_counts(
            ids in prop::collection::vec(0_i64..150, 1..2000),
        ) {
            let skewed: Vec<i64> = ids.iter().map(|id| id * id / 150).collect();
            let trace = Trace::from_ids("made", &skewed).expect("a small trace");
            let distances = StackDistances::new(&trace, |_| ());
            for capacity in (1..170).chain([u32::MAX]) {
                let lru = policy::by_name("lru", &trace, capacity);
                let mut lru = lru.expect("lru is there");
                let expected = replay(lru.as_mut(), &trace, |_| ());
                prop_assert_eq!(distances.counts(capacity), expected, "{} pages", capacity);
            }
            for hit_ratio in [0.001, 0.3, 0.5, 0.7, 0.9, 1.0] {
                let is_enough = |frames| {
                    let Counts { requests, misses } = distances.counts(frames);
                    (requests - misses) as f64 / requests as f64 >= hit_ratio
                };
                let least = (1..150).find(|&frames| is_enough(frames));
                prop_assert_eq!(distances.frames_for(hit_ratio), least, "{}", hit_ratio);
            }
        }
    }
}
