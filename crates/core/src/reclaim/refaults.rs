//! What refaults say of other sizes: how many frames more would have kept the pages that came back,
//! and how many of the resident ones fewer frames would lose.
//!
//! A page that comes back would have stayed with as many frames more as pages were evicted after it
//! and did not come back before it: under LRU that is exact. A policy that protects a part of what
//! it cannot hold does better than LRU between two sizes: it has the lower convex hull of LRU's
//! misses. So the estimate is that hull. A page that is read more seldom than once in
//! [`REACH_SIZES`] sizes of page-ins is forgotten before it comes back; those of its kind that are
//! protected say what more frames would give, each as much as one that is there.
//!
//! For fewer frames: a protected page that was read since it was queued is met at the ring's cold
//! end once a turn. A ring that is shorter by a part of the size turns so much earlier, and what it
//! meets then are misses. Each further part costs more, as it was used more.
//!
//! Source: the distance is the kernel's (`workingset.c`), less the pages that came back meanwhile,
//! which makes it Mattson's stack distance (1970); the hull is that of Talus (Beckmann and Sanchez
//! 2015). The far pages and the smaller sizes are our own.

/// Sizes that are remembered of evicted pages, about.
pub const REACH_SIZES: u64 = 4;
/// Parts of the size that distances are counted in.
const PARTS: u64 = 64;
/// Log2 of the buckets of an octave.
const OCTAVE_BITS: u32 = 2;
/// Four buckets of one part, then four to each octave, to [`REACH_SIZES`].
pub const NR_BUCKETS: usize = 28;
const _: () = assert!(first_part(NR_BUCKETS) == REACH_SIZES * PARTS);

/// Sizes of page-ins after which all counts are halved, so that they follow what goes on.
const WINDOW_SIZES: u64 = 8;
/// Frames that a size counts as at least there.
const MIN_SIZE: u64 = 64;

/// The bucket of a number of parts below `REACH_SIZES * PARTS`.
fn bucket(parts: u64) -> usize {
    let octave = parts.max(1).ilog2().saturating_sub(OCTAVE_BITS);
    let at = (u64::from(octave) << OCTAVE_BITS) + (parts >> octave);
    usize::try_from(at).expect("a bucket's number")
}

/// The first number of parts in a bucket, or the one after the last.
const fn first_part(bucket: usize) -> u64 {
    let at = bucket as u64;
    let octave = (at >> OCTAVE_BITS).saturating_sub(1);
    (at - (octave << OCTAVE_BITS)) << octave
}

/// What came in, came back and stayed of the pages of a lruvec or a group lately: counts that are
/// halved when they are of eight sizes of page-ins. In frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)] // What each page-in changes comes first.
pub struct Refaults {
    /// Frames that came in.
    pub nr_page_ins: u64,
    /// Protected frames that were kept because they were read.
    nr_kept: u64,
    /// Of those, the ones that were not met for [`REACH_SIZES`].
    nr_kept_far: u64,
    /// Frames that are resident.
    pub nr_resident: u64,
    /// Frames that came in of all lruvecs meanwhile.
    nr_elapsed: u64,
    /// Of the frames that came in, what as many frames more as [`Refaults::missing`] says would
    /// have kept.
    refaults: [u64; NR_BUCKETS],
}

/// One, in the unit of [`Refaults::misses_at`].
pub const SAME: u64 = 1 << 16;

impl Refaults {
    fn map(&self, number: impl Fn(u64) -> u64) -> Refaults {
        Refaults {
            nr_resident: self.nr_resident,
            nr_page_ins: number(self.nr_page_ins),
            refaults: self.refaults.map(&number),
            nr_kept: number(self.nr_kept),
            nr_kept_far: number(self.nr_kept_far),
            nr_elapsed: number(self.nr_elapsed),
        }
    }

    /// Adds what was seen of other pages, in the time of whoever was watched longer.
    #[must_use]
    pub fn and(&self, other: &Refaults) -> Refaults {
        let elapsed = self.nr_elapsed.max(other.nr_elapsed).max(1);
        let over = |seen: &Refaults| {
            let of = u128::from(seen.nr_elapsed.max(1));
            let scaled = |number: u64| u128::from(number) * u128::from(elapsed) / of;
            seen.map(|number| u64::try_from(scaled(number)).unwrap_or(u64::MAX))
        };
        let (mut sum, other) = (over(self), over(other));
        sum.nr_resident += other.nr_resident;
        sum.nr_page_ins += other.nr_page_ins;
        for (number, more) in sum.refaults.iter_mut().zip(other.refaults) {
            *number += more;
        }
        sum.nr_kept += other.nr_kept;
        sum.nr_kept_far += other.nr_kept_far;
        Refaults {
            nr_elapsed: elapsed,
            ..sum
        }
    }

    /// The histogram of refault distances: a number of frames, and of the frames that came in those
    /// that fewer frames more would have kept, but not the number before it.
    pub fn missing(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let ends = (1..=NR_BUCKETS).map(|next| first_part(next) * self.nr_resident / PARTS);
        ends.zip(self.refaults)
    }

    /// The misses with `nr_frames` instead of [`Refaults::nr_resident`], of [`SAME`] now. `None`
    /// below a quarter of the present size, and above four times.
    #[must_use]
    pub fn misses_at(&self, nr_frames: u64) -> Option<u64> {
        let now = self.nr_resident;
        if nr_frames < now / 4 || nr_frames > now.saturating_mul(4) || now == 0 {
            return None;
        }
        let of = |number: u64, all: u64| {
            let share = u128::from(number) * u128::from(SAME) / u128::from(all.max(1));
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        let share = |number| of(number, self.nr_page_ins);
        let part = |nr_frames| of(nr_frames, now);
        Some(match nr_frames.checked_sub(now).map(part) {
            Some(more) => {
                let far = share(self.nr_kept_far).saturating_mul(more) / SAME;
                share(self.hull(more)).saturating_sub(far)
            }
            None => {
                let less = part(now - nr_frames);
                let turned = less + less * less / SAME / 2;
                SAME + share(self.nr_kept).saturating_mul(turned) / SAME
            }
        })
    }

    /// The fewest frames, up to four times as many as now, at which there are at most `misses` of
    /// [`SAME`]; `None` where there are none.
    #[must_use]
    pub fn size_for(&self, misses: u64) -> Option<u64> {
        let (mut low, mut high) = (self.nr_resident / 4, self.nr_resident * 4);
        let is_enough = |nr_frames| self.misses_at(nr_frames).is_some_and(|at| at <= misses);
        if !is_enough(high) {
            return None;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match is_enough(middle) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        Some(high)
    }

    /// Frames that would have come in with `more` of the size, of [`SAME`]: the lower convex hull
    /// of what LRU would bring in.
    fn hull(&self, more: u64) -> u64 {
        let unit = SAME / PARTS;
        let mut points = [(0, self.nr_page_ins); NR_BUCKETS + 1];
        for bucket in 0..NR_BUCKETS {
            let (_, before) = points[bucket];
            let left = before.saturating_sub(self.refaults[bucket]);
            points[bucket + 1] = (first_part(bucket + 1) * unit, left);
        }
        let (left, right): (&[_], &[_]) = (&points, &points);
        let left = left.iter().take_while(|&&(at, _)| at <= more);
        let lines = left.flat_map(|from| {
            let ends = right.iter().filter(|&&(at, _)| at > more);
            ends.map(move |to| between(*from, *to, more))
        });
        lines.min().unwrap_or(self.nr_page_ins)
    }
}

/// The height at `at` of the line that falls from a point to a later one.
fn between((x, y): (u64, u64), (to_x, to_y): (u64, u64), at: u64) -> u64 {
    let fallen = u128::from(y - to_y) * u128::from(at - x) / u128::from(to_x - x);
    y - u64::try_from(fallen).expect("at most what it falls in all")
}

/// What one list of pages sees of [`Refaults`].
#[derive(Debug, Default)]
#[repr(C)] // As [`Refaults`].
pub(super) struct RefaultLog {
    seen: Refaults,
    /// When it began, in frames that had come in of all lruvecs.
    began: u64,
}

impl RefaultLog {
    /// Counts frames that came in to `nr_resident`, when `page_ins` had, of all lruvecs.
    pub(super) fn page_in(&mut self, nr_frames: u32, nr_resident: u32, page_ins: u64) {
        if self.seen.nr_page_ins == 0 {
            self.began = page_ins;
        }
        self.seen.nr_page_ins += u64::from(nr_frames);
        if self.seen.nr_page_ins >= WINDOW_SIZES * u64::from(nr_resident).max(MIN_SIZE) {
            self.seen = self.seen.map(|number| number / 2);
            self.began += page_ins.saturating_sub(self.began) / 2;
        }
    }

    /// Counts frames of a page that came back to `nr_resident`, and would have been kept by
    /// `missing` more.
    pub(super) fn refault(&mut self, nr_frames: u32, missing: u64, nr_resident: u32) {
        let parts = missing.saturating_mul(PARTS) / u64::from(nr_resident).max(1);
        if parts < REACH_SIZES * PARTS {
            self.seen.refaults[bucket(parts)] += u64::from(nr_frames);
        }
    }

    /// Counts frames of a page that was kept because it was read; `is_far` where it was queued
    /// [`REACH_SIZES`] ago or longer.
    pub(super) fn kept(&mut self, nr_frames: u32, is_far: bool) {
        self.seen.nr_kept += u64::from(nr_frames);
        self.seen.nr_kept_far += u64::from(nr_frames) * u64::from(is_far);
    }

    /// What it saw until `page_ins` had come in of all lruvecs: nothing before a size came in.
    pub(super) fn seen(&self, nr_resident: u32, page_ins: u64) -> Refaults {
        let nr_resident = u64::from(nr_resident);
        let is_enough = self.seen.nr_page_ins >= nr_resident.max(1);
        let (seen, nr_elapsed) = match is_enough {
            true => (self.seen, page_ins.saturating_sub(self.began)),
            false => (Refaults::default(), 0),
        };
        Refaults {
            nr_resident,
            nr_elapsed,
            ..seen
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of `nr_page_ins` to 1000 frames, some of which came back.
    fn log(nr_page_ins: u32, refaults: &[(u32, u64)]) -> RefaultLog {
        let mut log = RefaultLog::default();
        (0..nr_page_ins).for_each(|at| log.page_in(1, 1000, at.into()));
        for &(nr_frames, missing) in refaults {
            log.refault(nr_frames, missing, 1000);
        }
        log
    }

    fn at(seen: &Refaults, nr_frames: u64) -> f64 {
        seen.misses_at(nr_frames).unwrap() as f64 / SAME as f64
    }

    fn is_near(a: f64, b: f64) -> bool {
        (a - b).abs() < 0.001
    }

    #[test]
    fn buckets_follow_each_other() {
        let mut expected = 0;
        for bucket_at in 0..NR_BUCKETS {
            assert_eq!(first_part(bucket_at), expected);
            let end = first_part(bucket_at + 1);
            assert!((expected..end).all(|parts| bucket(parts) == bucket_at));
            expected = end;
        }
        assert_eq!([0, 3, 4, 7, 8, 10, 255].map(bucket), [0, 3, 4, 7, 8, 9, 27]);
    }

    #[test]
    fn a_refault_is_spared_by_what_was_missing() {
        // 400 of 2000 came back, half a size too late, and 200 just below two sizes.
        let log = log(2000, &[(400, 490), (200, 1990), (50, 4000)]);
        let seen = log.seen(1000, 2000);
        assert_eq!(at(&seen, 1000), 1.0);
        assert!(is_near(at(&seen, 1500), 0.8) && is_near(at(&seen, 3000), 0.7));
        // Between: on a line, for part of what is too much to hold can be protected.
        assert!(is_near(at(&seen, 1250), 0.9) && is_near(at(&seen, 2250), 0.75));
        assert_eq!(seen.missing().map(|(_, number)| number).sum::<u64>(), 600);
        assert!(seen.missing().any(|bucket| bucket == (500, 400)));
    }

    #[test]
    fn far_pages_count_as_much_as_those_that_are_there() {
        let mut log = log(2000, &[]);
        log.kept(100, false);
        assert_eq!(at(&log.seen(1000, 2000), 2000), 1.0);
        log.kept(200, true);
        let seen = log.seen(1000, 2000);
        assert!(is_near(at(&seen, 2000), 0.9) && is_near(at(&seen, 4000), 0.7));
        // Below, all that are kept: 0.15 for the part, and for its square's half.
        assert!(is_near(at(&seen, 500), 1.0 + 0.15 * 0.625));
    }

    #[test]
    fn more_memory_never_misses_more() {
        let mut log = log(3000, &[(300, 0), (200, 700), (500, 900), (900, 3990)]);
        log.kept(100, true);
        let seen = log.seen(1000, 3000);
        let at = |size| seen.misses_at(size).unwrap();
        assert!((250..=4000).is_sorted_by(|&a, &b| at(a) >= at(b)));
        assert_eq!((seen.misses_at(249), seen.misses_at(4001)), (None, None));
        for misses in [at(250), SAME * 9 / 10, SAME / 2] {
            let size = seen.size_for(misses).unwrap();
            assert!(seen.misses_at(size).unwrap() <= misses);
            assert!(seen.misses_at(size - 1).is_none_or(|at| at > misses));
        }
        assert_eq!(seen.size_for(SAME / 10), None);
    }

    #[test]
    fn the_past_fades() {
        let mut log = log(7999, &[(4000, 490)]);
        log.page_in(1, 1000, 8000);
        let seen = log.seen(1000, 8000);
        assert_eq!((seen.nr_page_ins, seen.nr_elapsed), (4000, 4000));
        assert!(is_near(at(&seen, 1500), 0.5));
        (0..4000).for_each(|at| log.page_in(1, 1000, 8001 + at));
        assert!(is_near(at(&log.seen(1000, 12_000), 1500), 0.75));
    }

    #[test]
    fn a_sum_weighs_by_what_comes_in_at_once() {
        let too_few = log(999, &[(999, 0)]).seen(1000, 999);
        assert_eq!((too_few.nr_resident, too_few.nr_page_ins), (1000, 0));
        // All of the one's come back, none of the other's, which brings in a third of it meanwhile.
        let busy = log(3000, &[(3000, 490)]).seen(1000, 3000);
        let idle = log(3000, &[]).seen(1000, 9000);
        for both in [busy.and(&idle), idle.and(&busy)] {
            assert_eq!((both.nr_resident, both.nr_page_ins), (2000, 12_000));
            assert!(is_near(at(&both, 3000), 0.25), "{}", at(&both, 3000));
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let most = u64::from(u32::MAX);
        let mut log = RefaultLog::default();
        log.page_in(u32::MAX, u32::MAX, 0);
        log.refault(u32::MAX, u64::MAX, u32::MAX);
        log.refault(u32::MAX, most * 2, u32::MAX);
        (0..8).for_each(|_| log.kept(u32::MAX, true));
        let seen = log.seen(u32::MAX, u64::MAX);
        assert_eq!(seen.misses_at(most * 4), Some(0));
        assert!(seen.misses_at(most / 4 + 1).unwrap() > SAME * 8);
        let _ = seen.and(&seen);
    }
}
