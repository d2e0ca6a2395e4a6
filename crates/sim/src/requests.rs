//! Requests made by a distribution, from a seed.

use crate::random::Random;
use std::fmt;

/// How often each of the items is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All as often.
    Uniform,
    /// The item of rank `r`, from 1, in proportion to `1 / r^theta`.
    Zipf(f64),
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::Zipf(theta) => write!(f, "zipf {theta}"),
        }
    }
}

/// Independent requests of the items `0..nr_items`, without end. The ranks are dealt out to the
/// items at random. The same seed gives the same requests.
///
/// Takes 12 bytes an item, a request a search among them.
#[derive(Clone, Debug)]
pub struct Requests {
    random: Random,
    /// The item of each rank.
    items: Vec<u32>,
    /// The part of the requests that the ranks up to each one get; empty where all get as many.
    up_to: Vec<f64>,
}

impl Requests {
    /// Requests of `nr_items` items.
    ///
    /// # Panics
    /// Where there is no item.
    #[must_use]
    pub fn new(distribution: Distribution, nr_items: u32, seed: usize) -> Requests {
        assert!(nr_items > 0, "requests of no item");
        let mut random = Random::new(seed);
        let mut items: Vec<u32> = (0..nr_items).collect();
        // Fisher and Yates.
        for at in (1..items.len()).rev() {
            items.swap(at, random.below(at + 1));
        }
        let mut up_to = Vec::new();
        if let Distribution::Zipf(theta) = distribution {
            let mut sum = 0.0;
            let parts = (1..=nr_items).map(|rank| f64::from(rank).powf(-theta));
            up_to.extend(parts.map(|part| {
                sum += part;
                sum
            }));
            up_to.iter_mut().for_each(|part| *part /= sum);
        }
        Requests {
            random,
            items,
            up_to,
        }
    }
}

impl Iterator for Requests {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let rank = match self.up_to.is_empty() {
            true => self.random.below(self.items.len()),
            false => {
                let part = self.random.unit();
                self.up_to.partition_point(|&up_to| up_to <= part)
            }
        };
        Some(self.items[rank])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: usize = 200_000;

    /// Requests of each item, the most often requested first.
    fn counts(distribution: Distribution) -> Vec<f64> {
        let mut counts = [0_u32; 100];
        let requests = Requests::new(distribution, 100, 7);
        requests
            .take(REQUESTS)
            .for_each(|item| counts[item as usize] += 1);
        let mut counts = counts.map(f64::from);
        counts.sort_by(|a, b| b.total_cmp(a));
        counts.to_vec()
    }

    #[test]
    fn requests_are_as_often_as_the_distribution_says() {
        let uniform = counts(Distribution::Uniform);
        assert!(uniform[0] < 1.2 * uniform[99], "{uniform:?}");
        for theta in [0.5, 1.0, 1.1] {
            let counts = counts(Distribution::Zipf(theta));
            let all: f64 = (1..=100).map(|rank| f64::from(rank).powf(-theta)).sum();
            for rank in [1, 2, 5, 10, 20] {
                let expected = f64::from(rank).powf(-theta) / all * REQUESTS as f64;
                let found = counts[rank as usize - 1];
                assert!(
                    (found / expected - 1.0).abs() < 0.05,
                    "{theta} {rank}: {found} of {expected}"
                );
            }
        }
    }

    #[test]
    fn one_seed_gives_the_same_requests_and_another_one_others() {
        let requests = |seed| -> Vec<u32> {
            let requests = Requests::new(Distribution::Zipf(0.9), 1000, seed);
            requests.take(50).collect()
        };
        assert_eq!(requests(1), requests(1));
        assert_ne!(requests(1), requests(2));
    }
}
