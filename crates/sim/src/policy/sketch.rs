//! A count-min sketch of four bits with aging: about how often each page was asked for lately.

/// Counters of a page: one in each of as many words.
const NR_ROWS: u32 = 4;
/// The largest count.
const COUNT_MAX: u64 = 15;
/// All bits of each counter but its highest.
const HALF: u64 = 0x7777_7777_7777_7777;
/// The lowest bit of each counter.
const ONES: u64 = 0x1111_1111_1111_1111;
/// Requests counted between two agings, per page of the size.
const SAMPLE: u32 = 10;
/// Odd constants for the words of a page, one a row.
const SEEDS: [u64; NR_ROWS as usize] = [
    0xC3A5_C85C_97CB_3127,
    0xB492_B66F_BE98_F273,
    0x9AE1_6A3B_2F90_404F,
    0xCBF2_9CE4_8422_2325,
];

/// 16 counters in a word, a word for each page of the size (rounded up to a power of two).
#[derive(Debug)]
pub(super) struct Sketch {
    words: Vec<u64>,
    nr_counted: u32,
    sample: u32,
}

impl Sketch {
    pub(super) fn new(capacity: u32) -> Sketch {
        Sketch {
            words: vec![0; (capacity as usize).next_power_of_two()],
            nr_counted: 0,
            sample: capacity.saturating_mul(SAMPLE),
        }
    }

    /// Counts a request. O(1), but for one in [`SAMPLE`] times the size, which halves all counts.
    pub(super) fn count(&mut self, page: u32) {
        let mut has_grown = false;
        for (word, shift) in self.counters(page) {
            let word = &mut self.words[word];
            if *word >> shift & COUNT_MAX < COUNT_MAX {
                *word += 1 << shift;
                has_grown = true;
            }
        }
        self.nr_counted += u32::from(has_grown);
        if self.nr_counted == self.sample {
            self.age();
        }
    }

    /// How often the page was counted, at least, and at most 15.
    pub(super) fn estimate(&self, page: u32) -> u64 {
        let counts = self.counters(page);
        let counts = counts.map(|(word, shift)| self.words[word] >> shift & COUNT_MAX);
        counts.into_iter().fold(COUNT_MAX, u64::min)
    }

    /// Halves all counts, rounded down, and what was counted as much.
    fn age(&mut self) {
        let mut nr_odd = 0;
        for word in &mut self.words {
            nr_odd += (*word & ONES).count_ones();
            *word = *word >> 1 & HALF;
        }
        self.nr_counted = (self.nr_counted - nr_odd / NR_ROWS) / 2;
    }

    /// Where the page's counters are: word and shift of each row.
    fn counters(&self, page: u32) -> [(usize, u32); NR_ROWS as usize] {
        let hash = mixed(u64::from(page));
        // The words are a power of two, and fewer than 2^32.
        let mask = self.words.len() - 1;
        let group = (hash & 3) as u32 * NR_ROWS;
        let mut row = 0;
        SEEDS.map(|seed| {
            let word = (hash.wrapping_mul(seed) >> 32) as usize & mask;
            let shift = 4 * (group + row);
            row += 1;
            (word, shift)
        })
    }
}

/// Spreads the bits of a number over all of a word: one to one.
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 16).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (number ^ number >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ number >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_for_few_pages_and_end_at_15() {
        let mut sketch = Sketch::new(1024);
        for page in 0..20 {
            for _ in 0..page {
                sketch.count(page);
            }
        }
        for page in 0..20 {
            assert_eq!(sketch.estimate(page), u64::from(page.min(15)));
        }
    }

    #[test]
    fn no_count_is_too_low_and_few_are_too_high() {
        let mut sketch = Sketch::new(1000);
        for page in (0..1000).chain(0..500) {
            sketch.count(page);
        }
        let nr_times = |page| if page < 500 { 2 } else { 1 };
        assert!((0..1000).all(|page| sketch.estimate(page) >= nr_times(page)));
        let is_too_high = |&page: &u32| sketch.estimate(page) > nr_times(page);
        let nr_too_high = (0..1000).filter(is_too_high).count();
        assert!(nr_too_high <= 20, "{nr_too_high} of 1000");
    }

    #[test]
    fn after_ten_sizes_of_requests_all_counts_are_halved() {
        let mut sketch = Sketch::new(64);
        for _ in 0..13 {
            sketch.count(7);
        }
        let mut page = 1000;
        while sketch.nr_counted + 1 < 640 {
            sketch.count(page);
            page += 1;
        }
        assert!(sketch.estimate(7) >= 13);
        while sketch.nr_counted + 1 >= 640 {
            sketch.count(page);
            page += 1;
        }
        assert!((6..=7).contains(&sketch.estimate(7)));
        assert!(sketch.nr_counted <= 320);
    }
}
