//! Averages over about 10, 60 and 300 seconds, of one sample every two seconds.

use crate::units::SECOND;

/// Nanoseconds between samples, which are taken at whole multiples of it.
pub(super) const PERIOD_NS: u64 = 2 * SECOND;
/// One percent: averages have 11 bits behind the point.
const PERCENT: u32 = 1 << 11;
/// The share of a period that was stalled from end to end.
const WHOLE: u32 = 100 * PERCENT;
/// What of an average stays at a sample, of 2048: `exp(-2/10)`, `exp(-2/60)`, `exp(-2/300)`.
///
/// Source: the kernel's PSI, 11 bits of fixed point.
const STAYS: [u32; 3] = [1677, 1981, 2034];
/// Samples of one share after which the slowest average is that share, whatever it was: 38 minutes.
const MAX_SAMPLES: u64 = 1140;

/// Three averages of the share of time that was stalled, each in percents of 11 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Averages([u32; 3]);

impl Averages {
    /// Takes in `nr_periods` periods, each with `stalled_ns` of its [`PERIOD_NS`] stalled.
    ///
    /// Cost: at most [`MAX_SAMPLES`] multiplications an average, none where all are there already.
    pub(super) fn fold(&mut self, stalled_ns: u64, nr_periods: u64) {
        let share = share_of(stalled_ns);
        for (average, stays) in self.0.iter_mut().zip(STAYS) {
            for _ in 0..nr_periods.min(MAX_SAMPLES) {
                if *average == share {
                    break;
                }
                *average = step(*average, stays, share);
            }
        }
    }

    /// The averages over 10, 60 and 300 seconds in hundredths of a percent, rounded down.
    pub(super) fn hundredths(&self) -> [u32; 3] {
        self.0.map(|average| average * 100 / PERCENT)
    }
}

fn share_of(stalled_ns: u64) -> u32 {
    let share = stalled_ns.min(PERIOD_NS) * u64::from(WHOLE) / PERIOD_NS;
    u32::try_from(share).expect("at most WHOLE")
}

/// Rounded towards the share, so that an average arrives at a share that stays the same.
fn step(average: u32, stays: u32, share: u32) -> u32 {
    let blend = average * stays + share * (PERCENT - stays);
    if share > average {
        blend.div_ceil(PERCENT)
    } else {
        blend / PERCENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(mut averages: Averages, stalled_ns: u64, nr_periods: u64) -> Averages {
        averages.fold(stalled_ns, nr_periods);
        averages
    }

    #[test]
    fn one_whole_period_and_the_next_idle_one() {
        let one = folded(Averages::default(), PERIOD_NS, 1);
        // 100 * (2048 - 1677), and so on.
        assert_eq!(one, Averages([37_100, 6_700, 1_400]));
        assert_eq!(one.hundredths(), [1811, 327, 68]);
        // 37100 * 1677 / 2048 = 30379.2, 6700 * 1981 / 2048 = 6480.8, 1400 * 2034 / 2048 = 1390.4
        assert_eq!(folded(one, 0, 1), Averages([30_379, 6_480, 1_390]));
    }

    #[test]
    fn an_average_arrives_at_a_share_that_stays() {
        let full = Averages([WHOLE; 3]);
        let idle = Averages::default();
        assert_eq!(folded(idle, PERIOD_NS, MAX_SAMPLES), full);
        assert_eq!(folded(full, 0, MAX_SAMPLES), idle);
        assert_eq!(full.hundredths(), [10_000; 3]);
        // The bound is no larger than it has to be.
        assert_ne!(folded(idle, PERIOD_NS, MAX_SAMPLES - 1), full);
        let half = Averages([WHOLE / 2; 3]);
        for start in [idle, full] {
            assert_eq!(folded(start, PERIOD_NS / 2, MAX_SAMPLES), half);
        }
    }

    #[test]
    fn periods_at_once_are_the_same_as_one_by_one() {
        let start = folded(Averages::default(), PERIOD_NS / 3, 7);
        let mut by_one = start;
        for nr_periods in 1..2000 {
            by_one.fold(PERIOD_NS / 5, 1);
            assert_eq!(folded(start, PERIOD_NS / 5, nr_periods), by_one);
        }
        assert_eq!(folded(start, PERIOD_NS / 5, u64::MAX), by_one);
    }
}
