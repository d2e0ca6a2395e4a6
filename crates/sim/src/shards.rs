//! Samples of a trace's pages, from which miss ratios of the whole are estimated.
//!
//! Waldspurger et al., "Efficient MRC Construction with SHARDS" (FAST 2015): a page is sampled by a
//! hash of its number, so that all of its requests are or none; a cache of `capacity` pages then
//! behaves as one of `rate * capacity` does on the sample. That this holds for any policy: the
//! same, "Cache Modeling and Optimization using Miniature Simulations" (ATC 2017). Requests that a
//! sample has too many or too few of are taken for hits (SHARDS-adj): they are those of the most
//! requested pages.
//!
//! What we add: several samples of different pages, whose spread says how far off their mean is.

use crate::policy::Counts;
use crate::trace::Trace;

/// Samples from which one estimate is made. With four, which are alike now and then by chance, the
/// error told was a fifth of the true one (`arc_OLTP`).
pub const NR_SAMPLES: u32 = 8;
/// The largest rate: the samples have no page in common.
pub const MAX_RATE: f64 = 0.125;
/// The smallest rate: hashes are compared by 32 bits.
pub const MIN_RATE: f64 = 1e-6;
/// The least that a cache may be scaled down to. Below it, what a policy's parts are rounded to
/// matters more than what is sampled.
pub const MIN_FRAMES: u32 = 16;

/// Samples that cannot be taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BadRate {
    /// The number is no rate.
    #[error("a sample of {rate} of the pages: from {MIN_RATE} to {MAX_RATE} can be taken")]
    OutOfRange {
        /// The number.
        rate: f64,
    },
    /// Of so few pages a sample says nothing, nor its spread how far off it is.
    #[error(
        "a sample of {rate} of {nr_pages} pages: it has to have {MIN_FRAMES} pages to say \
         anything, a rate of {least}"
    )]
    TooFew {
        /// The number.
        rate: f64,
        /// Pages of the trace.
        nr_pages: u32,
        /// The least rate.
        least: f64,
    },
    /// Of no sample of so small a trace there would be more.
    #[error(
        "the trace has {nr_pages} distinct pages, too few for samples, which need \
         {MIN_FRAMES} pages each: leave them out"
    )]
    SmallTrace {
        /// Pages of the trace.
        nr_pages: u32,
    },
}

/// A miss ratio that was estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean of the samples.
    pub miss_ratio: f64,
    /// The standard error of that mean. It cannot show what scaling itself does to a policy:
    /// batches and rounded shares are larger in a small cache.
    pub error: f64,
}

/// Samples of one trace.
#[derive(Clone, Debug)]
pub struct Samples {
    rate: f64,
    nr_requests: u64,
    /// What was sampled, each a trace of its own.
    pub traces: Vec<Trace>,
}

impl Samples {
    /// [`NR_SAMPLES`] samples of different pages, each of `rate` of them. O(requests).
    ///
    /// # Errors
    /// [`BadRate`].
    pub fn new(trace: &Trace, rate: f64) -> Result<Samples, BadRate> {
        if !(MIN_RATE..=MAX_RATE).contains(&rate) {
            return Err(BadRate::OutOfRange { rate });
        }
        let nr_pages = trace.nr_unique;
        let least = f64::from(MIN_FRAMES) / f64::from(nr_pages.max(1));
        if least > MAX_RATE {
            return Err(BadRate::SmallTrace { nr_pages });
        }
        if rate < least {
            return Err(BadRate::TooFew {
                rate,
                nr_pages,
                least,
            });
        }
        let sample_of = |page: u32| {
            let unit = f64::from(hash(page)) / f64::from(u32::MAX);
            // Rounded towards 0, and saturating: pages of no sample have a large number.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let sample = (unit / rate) as u32;
            sample
        };
        let traces =
            (0..NR_SAMPLES).map(|sample| of_pages(trace, |page| sample_of(page) == sample));
        Ok(Samples {
            rate,
            nr_requests: trace.pages.len() as u64,
            traces: traces.collect(),
        })
    }

    /// The size that stands for a cache of `frames` pages; `None` where it would be below
    /// [`MIN_FRAMES`].
    #[must_use]
    pub fn scaled(&self, frames: u32) -> Option<u32> {
        // At most an eighth of `frames`, and a whole number: the cast is exact.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let scaled = (f64::from(frames) * self.rate).round() as u32;
        (scaled >= MIN_FRAMES).then_some(scaled)
    }

    /// The smallest size that can be estimated at this rate.
    #[must_use]
    pub fn least_frames(&self) -> u32 {
        // At most 16 million, and a whole number: the cast is exact.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let least = (f64::from(MIN_FRAMES) / self.rate).ceil() as u32;
        least
    }

    /// What the samples say, by what was counted on each of them.
    ///
    /// # Panics
    /// Where it is not a count a sample.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn estimate(&self, counts: &[Counts]) -> Estimate {
        assert_eq!(counts.len(), self.traces.len(), "a count for each sample");
        let expected = self.nr_requests as f64 * self.rate;
        let of = |counts: &Counts| (counts.misses as f64 / expected).min(1.0);
        let nr = counts.len() as f64;
        let mean = counts.iter().map(of).sum::<f64>() / nr;
        let squares: f64 = counts
            .iter()
            .map(|counts| (of(counts) - mean).powi(2))
            .sum();
        Estimate {
            miss_ratio: mean,
            error: (squares / (nr - 1.0) / nr).sqrt(),
        }
    }
}

/// The requests of these pages, numbered anew in their order.
fn of_pages(trace: &Trace, is_sampled: impl Fn(u32) -> bool) -> Trace {
    let mut nr_unique = 0;
    let mut number_of = vec![u32::MAX; trace.nr_unique as usize];
    for (page, number) in (0..trace.nr_unique).zip(&mut number_of) {
        if is_sampled(page) {
            *number = nr_unique;
            nr_unique += 1;
        }
    }
    let numbers = trace.pages.iter().map(|&page| number_of[page as usize]);
    Trace {
        name: trace.name.clone(),
        pages: numbers.filter(|&number| number != u32::MAX).collect(),
        nr_unique,
    }
}

/// Source: Steele and others 2014, SplitMix64; the upper half.
fn hash(page: u32) -> u32 {
    let mut mixed = u64::from(page).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    u32::try_from((mixed ^ mixed >> 31) >> 32).expect("the upper half has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(pages: u32) -> Trace {
        let ids: Vec<i64> = (0..3).flat_map(|_| 0..i64::from(pages)).collect();
        Trace::from_ids("made", &ids).expect("a small trace")
    }

    #[test]
    fn samples_share_no_page_and_have_all_of_their_requests() {
        let trace = counting(10_000);
        let samples = Samples::new(&trace, 0.125).expect("a rate");
        let all: u32 = samples.traces.iter().map(|sample| sample.nr_unique).sum();
        assert_eq!(all, 10_000);
        for sample in &samples.traces {
            assert_eq!(sample.pages.len(), 3 * sample.nr_unique as usize);
            assert!(
                (1150..1350).contains(&sample.nr_unique),
                "{}",
                sample.nr_unique
            );
        }
    }

    #[test]
    fn sizes_are_scaled_and_too_small_ones_refused() {
        let samples = Samples::new(&counting(1600), 0.01).expect("a rate");
        assert_eq!(samples.least_frames(), 1600);
        assert_eq!(samples.scaled(1600), Some(16));
        assert_eq!(samples.scaled(1500), None);
    }

    #[test]
    fn an_estimate_is_a_mean_with_its_standard_error() {
        let samples = Samples::new(&counting(1000), 0.1).expect("a rate");
        // 300 requests are expected in each.
        let counts = [30, 60, 30, 60, 30, 60, 30, 60].map(|misses| Counts {
            requests: 290,
            misses,
        });
        let Estimate { miss_ratio, error } = samples.estimate(&counts);
        assert!((miss_ratio - 0.15).abs() < 1e-12);
        assert!((error - 0.018_898_224).abs() < 1e-9, "{error}");
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for rate in [0.0, -1.0, 0.3, f64::NAN] {
            let refused = Samples::new(&counting(1000), rate);
            assert!(matches!(refused, Err(BadRate::OutOfRange { .. })), "{rate}");
        }
    }

    #[test]
    fn samples_that_would_have_hardly_a_page_are_refused() {
        let refused = Samples::new(&counting(159), 0.1).expect_err("15.9 pages");
        assert!(
            matches!(refused, BadRate::TooFew { nr_pages: 159, .. }),
            "{refused}"
        );
        assert!(Samples::new(&counting(160), 0.1).is_ok());
        let refused = Samples::new(&counting(127), MAX_RATE);
        let told = refused.expect_err("less than 16 pages of any sample");
        assert_eq!(told, BadRate::SmallTrace { nr_pages: 127 });
        assert!(Samples::new(&counting(128), MAX_RATE).is_ok());
    }
}
