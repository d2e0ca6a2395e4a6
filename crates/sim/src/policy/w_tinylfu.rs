//! W-TinyLFU: a page is admitted where it was asked for more often than the one it replaces.
//!
//! Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy" (ACM
//! Transactions on Storage 2017). A window of 1 % is LRU; what leaves it competes with the oldest
//! page of the main part's probation, by the counts of a sketch. The main part is LRU in two
//! segments, of which 80 % are protected. The window is fixed, there is no doorkeeper, and ties go
//! to the page that is there.

use super::queues::Queues;
use super::sketch::Sketch;
use super::{PagePolicy, share};

const WINDOW: u8 = 0;
const PROBATION: u8 = 1;
const PROTECTED: u8 = 2;

/// Window, probation and protection, each the least recent use first.
#[derive(Debug)]
pub(super) struct WTinyLfu {
    queues: Queues<3>,
    sketch: Sketch,
    window_max: u32,
    protected_max: u32,
    capacity: u32,
}

impl WTinyLfu {
    /// An empty cache for `capacity` of the pages `0..nr_unique`.
    pub(super) fn new(nr_unique: u32, capacity: u32) -> WTinyLfu {
        let window_max = capacity.div_ceil(100);
        WTinyLfu {
            queues: Queues::new(nr_unique),
            sketch: Sketch::new(capacity.min(nr_unique)),
            window_max,
            protected_max: share(capacity - window_max, 4, 5),
            capacity,
        }
    }

    fn hit(&mut self, page: u32, queue: u8) {
        if queue == WINDOW {
            self.queues.push(WINDOW, page);
            return;
        }
        self.queues.push(PROTECTED, page);
        if self.queues.len(PROTECTED) > self.protected_max
            && let Some(demoted) = self.queues.pop(PROTECTED)
        {
            self.queues.push(PROBATION, demoted);
        }
    }

    fn bring_in(&mut self, page: u32) {
        self.queues.push(WINDOW, page);
        if self.queues.len(WINDOW) <= self.window_max {
            return;
        }
        let candidate = self.queues.pop(WINDOW).expect("this page is there");
        let nr_main = self.queues.len(PROBATION) + self.queues.len(PROTECTED);
        if nr_main == self.capacity - self.window_max {
            let Some(victim) = self.queues.oldest(PROBATION) else {
                return; // The window is all there is.
            };
            if self.sketch.estimate(candidate) <= self.sketch.estimate(victim) {
                return;
            }
            self.queues.remove(victim);
        }
        self.queues.push(PROBATION, candidate);
    }
}

impl PagePolicy for WTinyLfu {
    fn access(&mut self, page: u32) -> bool {
        self.sketch.count(page);
        match self.queues.queue_of(page) {
            Some(queue) => {
                self.hit(page, queue);
                true
            }
            None => {
                self.bring_in(page);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    /// The same with lists that are searched and shifted.
    struct Naive {
        window: Vec<u32>,
        probation: Vec<u32>,
        protected: Vec<u32>,
        sketch: Sketch,
        capacity: usize,
    }

    fn take(list: &mut Vec<u32>, page: u32) -> bool {
        let at = list.iter().position(|&other| other == page);
        at.map(|at| list.remove(at)).is_some()
    }

    impl PagePolicy for Naive {
        fn access(&mut self, page: u32) -> bool {
            self.sketch.count(page);
            let main_max = self.capacity * 99 / 100;
            if take(&mut self.window, page) {
                self.window.push(page);
                return true;
            }
            if take(&mut self.probation, page) || take(&mut self.protected, page) {
                self.protected.push(page);
                if self.protected.len() > main_max * 4 / 5 {
                    self.probation.push(self.protected.remove(0));
                }
                return true;
            }
            self.window.push(page);
            if self.window.len() > self.capacity - main_max {
                self.probation.push(self.window.remove(0));
            }
            if self.probation.len() + self.protected.len() > main_max {
                let candidate = self.probation[self.probation.len() - 1];
                let count = |page| self.sketch.estimate(page);
                if count(candidate) > count(self.probation[0]) {
                    self.probation.remove(0);
                } else {
                    self.probation.pop();
                }
            }
            false
        }
    }

    fn check(pages: &[u32], nr_unique: u32, capacity: u32) -> Result<(), TestCaseError> {
        let mut naive = Naive {
            window: Vec::new(),
            probation: Vec::new(),
            protected: Vec::new(),
            sketch: Sketch::new(capacity.min(nr_unique)),
            capacity: capacity as usize,
        };
        let mut policy = WTinyLfu::new(nr_unique, capacity);
        for (request, &page) in pages.iter().enumerate() {
            let expected = naive.access(page);
            prop_assert_eq!(policy.access(page), expected, "at {}", request);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1),
            ..ProptestConfig::default()
        })]

        #[test]
        fn it_is_its_naive_twin(
            pages in prop::collection::vec(0_u32..24, 1..400),
            capacity in 1_u32..30,
        ) {
            check(&pages, 24, capacity)?;
        }

        #[test]
        fn also_with_a_window_of_several_pages(
            pages in prop::collection::vec(0_u32..700, 800..1600),
            capacity in 101_u32..350,
        ) {
            let often: Vec<u32> = pages.iter().map(|page| page * page / 700).collect();
            check(&often, 700, capacity)?;
        }
    }

    #[test]
    fn a_scan_does_not_replace_what_is_used_often() {
        let mut policy = WTinyLfu::new(10_000, 100);
        for page in (0..90).cycle().take(900) {
            policy.access(page);
        }
        for page in 1000..1400 {
            policy.access(page);
        }
        let nr_left = (0..90).filter(|&page| policy.access(page)).count();
        assert!(nr_left >= 85, "{nr_left} of 90 pages left");
    }
}
