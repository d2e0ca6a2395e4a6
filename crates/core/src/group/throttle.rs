//! How long a charger above `high` is slowed down: a pure function.

/// The curve counts the excess in units of 2^-20 of `high`.
const PRECISION_SHIFT: u32 = 20;
/// Brings the square of the excess down to seconds for one batch.
const SCALING_SHIFT: u32 = 14;
const NS_PER_SECOND: u128 = 1_000_000_000;
/// Pages that the curve is made for.
const BATCH: u128 = super::BATCH as u128;

/// The longest delay that the curve gives, in ns. Source: `MEMCG_MAX_HIGH_DELAY_JIFFIES`, 2 s.
pub const MAX_DELAY_NS: u64 = 2_000_000_000;

/// ns that a charge of `nr_pages` is delayed by while `usage` pages are charged under `high`.
///
/// It grows with the square of the excess in proportion to `high`, and with the pages charged.
/// Source: the kernel's delay above `memory.high`, in ns instead of clock ticks.
#[must_use]
pub fn delay_ns(usage: u64, high: u64, nr_pages: u32) -> u64 {
    let Some(excess) = usage.checked_sub(high).filter(|&excess| excess > 0) else {
        return 0;
    };
    let overage = (u128::from(excess) << PRECISION_SHIFT) / u128::from(high.max(1));
    // Squares beyond this are far above the longest delay.
    let overage = overage.min(1 << 32);
    let shift = PRECISION_SHIFT + SCALING_SHIFT;
    let delay = ((overage * overage * NS_PER_SECOND) >> shift) * u128::from(nr_pages) / BATCH;
    u64::try_from(delay).map_or(MAX_DELAY_NS, |delay| delay.min(MAX_DELAY_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own table: `high` of 100 MiB, one batch charged.
    #[test]
    fn the_published_points_of_the_curve() {
        let high = 25_600;
        let ms = |percent: u64| delay_ns(high + high * percent / 100, high, 64) / 1_000_000;
        assert_eq!([0, 1, 5, 10].map(ms), [0, 6, 159, 639]);
        assert_eq!(ms(18), 2000);
        assert_eq!(delay_ns(u64::MAX, 0, u32::MAX), MAX_DELAY_NS);
    }

    #[test]
    fn the_delay_is_in_proportion_to_the_pages() {
        let (one, many) = (delay_ns(1100, 1000, 1), delay_ns(1100, 1000, 64));
        assert_eq!(many / 64, one);
        assert_eq!(delay_ns(1000, 1000, 64), 0);
    }
}
