//! What refault distances decide: which refaults are protected, and how much probation there is.
//! Pure functions.
//!
//! Distances and ages are frames that came in. Source: the comparison of a page's reuse distance
//! with the oldest protected page is that of LIRS (Jiang and Zhang 2002) and CLOCK-Pro (2005); the
//! distance by a counter at eviction is the kernel's (`workingset.c`). The target is our own.

/// Windows of refaults that are told apart: the whole size, its half, and so on.
pub(super) const NR_WINDOWS: usize = 8;
/// Sizes that a refault may be away.
const REACH_SIZES: u64 = 4;
/// Sizes that the coldest protected page counts as old at most.
const AGE_SIZES: u64 = 5;
/// Parts of the size of which one is half a generation: distances are told to a generation, so that
/// refaults come in bunches. A bunch just behind probation would be in the smallest windows as a
/// whole, as if a few frames more had kept all of it, and the target would grow without end.
const SPREAD: u32 = 12;
/// How many times what one of its frames gives in the mean a ring is worth where all its pages were
/// read once since they were met last. Tuned: loops over 1.05 to 1.4 sizes keep 0.9 of what can be
/// kept, and the misses of the recorded traces are the same in the mean.
const LOOP_WEIGHT: u128 = 8;
/// Parts of a frame that refaults are counted in.
const PARTS: u64 = 256;

/// The part of a lruvec that probation should have, in 2^-24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target(u64);

impl Target {
    const BITS: u32 = 24;
    const ONE: u64 = 1 << Self::BITS;
    /// A tenth, as S3-FIFO has it.
    pub(super) const START: Target = Target(Self::ONE / 10);

    /// Frames of probation where `nr_resident` are resident, rounded down, at least 1.
    pub(super) fn of(self, nr_resident: u32) -> u32 {
        let nr_frames = (self.0 * u64::from(nr_resident)) >> Self::BITS;
        u32::try_from(nr_frames).map_or(u32::MAX, |nr_frames| nr_frames.max(1))
    }

    /// The gate that a page which comes back has to pass: as if the coldest protected page were
    /// half as old again where probation has a tenth of the size more than its target, for the ring
    /// lacks pages then. Without that a loop of which nothing passes stays as it is, for its pages
    /// come back as late as the ring's: each that comes in to probation takes another's place.
    pub(super) fn gate(self, (nr_resident, nr_probation): Sizes, ring: Gate) -> Gate {
        let above = nr_probation.saturating_sub(self.of(nr_resident));
        match ring {
            Gate::Age(age) if above > nr_resident / 10 => Gate::Age(age + age / 2),
            _ => ring,
        }
    }
}

/// How old the coldest protected page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Nothing is protected: every refault is.
    Open,
    /// It was queued this long ago.
    Age(u64),
}

impl Gate {
    /// The gate for a coldest page that was queued `age` ago, in a lruvec of `nr_resident`.
    pub(super) fn at(age: u64, nr_resident: u32) -> Gate {
        Gate::Age(age.min(AGE_SIZES * u64::from(nr_resident)))
    }

    /// Whether a refault at this distance is worth more than the coldest protected page: at most
    /// 4/5 of its age, and not beyond what shadow entries remember.
    pub(super) fn lets_in(self, distance: u64, nr_resident: u32) -> bool {
        let is_near = match self {
            Gate::Open => true,
            Gate::Age(age) => distance * 5 <= age * 4,
        };
        is_near && is_within_reach(distance, nr_resident)
    }
}

fn is_within_reach(distance: u64, nr_resident: u32) -> bool {
    distance <= REACH_SIZES * u64::from(nr_resident)
}

/// What was seen since the target was set last.
#[derive(Debug)]
#[repr(C)] // What each page-in changes comes last, beside what it changes of the refaults.
pub(super) struct Sample {
    /// Of the frames that came in, what a longer probation would have kept, in [`PARTS`] of a
    /// frame: by the frames that it would have needed, at most the size, at most its half, and so
    /// on.
    saved: [u64; NR_WINDOWS],
    /// Protected frames that were met and kept because they were read: once since they were met
    /// last, and more often.
    nr_read_once: u64,
    nr_read_more: u64,
    /// Frames that came in.
    nr_page_ins: u64,
}

impl Sample {
    /// Nothing seen.
    pub(super) const NONE: Sample = Sample {
        saved: [0; NR_WINDOWS],
        nr_read_once: 0,
        nr_read_more: 0,
        nr_page_ins: 0,
    };

    /// Counts frames that came in.
    pub(super) fn count(&mut self, nr_frames: u32) {
        self.nr_page_ins += u64::from(nr_frames);
    }

    /// Counts a refault of `nr_frames` that were evicted from probation, as evenly spread over half
    /// a generation from `distance` on.
    pub(super) fn refault(
        &mut self,
        nr_frames: u32,
        distance: u64,
        (nr_resident, nr_probation): Sizes,
    ) {
        if !is_within_reach(distance, nr_resident) {
            return;
        }
        let missing = |distance: u64| distance.saturating_sub(u64::from(nr_probation));
        let least = missing(distance);
        let most = missing(distance + u64::from(nr_resident / SPREAD)).max(least + 1);
        for (window, saved) in (0..).zip(&mut self.saved) {
            let kept = (u64::from(nr_resident) >> window).min(most);
            if kept <= least {
                // Nor would any smaller window have kept it.
                break;
            }
            let part = PARTS * (kept - least) / (most - least);
            *saved += u64::from(nr_frames) * part;
        }
    }

    /// Counts protected frames that are kept because they were read.
    pub(super) fn kept(&mut self, nr_frames: u32, is_read_once: bool) {
        let kept = match is_read_once {
            true => &mut self.nr_read_once,
            false => &mut self.nr_read_more,
        };
        *kept += u64::from(nr_frames);
    }

    /// Protected frames that were read as those of a loop are, once a turn each: what was read
    /// once, by its share of what was read.
    fn nr_looping(&self) -> u128 {
        let (once, more) = (u128::from(self.nr_read_once), u128::from(self.nr_read_more));
        once * once / (once + more).max(1)
    }

    /// Whether there is enough to judge: a quarter of the size.
    pub(super) fn is_full(&self, nr_resident: u32) -> bool {
        self.nr_page_ins >= u64::from(nr_resident / 4).max(8)
    }
}

/// Frames that are resident, and those of them in probation.
pub(super) type Sizes = (u32, u32);

/// Where a window of refaults stands against the coldest protected pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// Under 7/30 of what they give.
    Less,
    Even,
    /// Over 7/15.
    More,
    /// Over 28/15.
    FarMore,
}

/// The next target. A frame more of probation gives `saved / window` hits in `nr_page_ins`; the
/// coldest protected frame gives one in the gate's age. The best window decides: the target shrinks
/// by a tenth, stays, grows by a tenth, or by the window too.
///
/// Around a loop over a bit more than fits, no page comes back in time before probation holds all
/// of the loop, though a window says how near that is. There the ring is worth more than its
/// coldest page says: all of its pages were read once in each turn.
pub(super) fn next_target(target: Target, sample: &Sample, sizes: Sizes, gate: Gate) -> Target {
    let (nr_resident, nr_probation) = sizes;
    let Some(size) = Some(u64::from(nr_resident)).filter(|&size| size > 0) else {
        return target;
    };
    let room = u64::from(nr_resident.saturating_sub(nr_probation)).max(size / 20);
    // saved / (size / 2^window): the largest one decides.
    let density = |window: usize| u128::from(sample.saved[window]) << window;
    let (mut best, mut best_window) = (0, 0);
    for window in (0..NR_WINDOWS).filter(|window| size >> window <= room) {
        if density(window) > best {
            (best, best_window) = (density(window), window);
        }
    }
    let verdict = judge(best, gate, sample, size);
    let now = target.0 * size;
    let one = Target::ONE;
    let next = match verdict {
        Verdict::FarMore => now + now / 10 + one + ((size << Target::BITS) >> best_window),
        Verdict::More => now + now / 10 + one,
        Verdict::Even => now,
        Verdict::Less => now - now / 11,
    };
    let percent = (size << Target::BITS) / 100;
    Target(next.clamp(percent.max(one), (percent * 99).max(one)) / size)
}

fn judge(density: u128, gate: Gate, sample: &Sample, size: u64) -> Verdict {
    let page_ins = u128::from(sample.nr_page_ins) * u128::from(size);
    let looping = (LOOP_WEIGHT * sample.nr_looping()).max(1);
    let age = match gate {
        Gate::Open if density == 0 => return Verdict::Less,
        Gate::Open => return Verdict::FarMore,
        Gate::Age(age) => u128::from(age).min(page_ins / looping),
    };
    let gain = density * age;
    let unit = page_ins * u128::from(PARTS);
    if gain * 15 > unit * 28 {
        Verdict::FarMore
    } else if gain * 15 > unit * 7 {
        Verdict::More
    } else if gain * 30 >= unit * 7 {
        Verdict::Even
    } else {
        Verdict::Less
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = (1000, 100);

    /// A sample of 250 page-ins with `nr_refaults` at one distance.
    fn sample(nr_refaults: u32, distance: u64) -> Sample {
        let mut sample = Sample::NONE;
        sample.count(250);
        (0..nr_refaults).for_each(|_| sample.refault(1, distance, SIZES));
        sample
    }

    fn next(sample: &Sample, gate: Gate) -> u32 {
        next_target(Target::START, sample, SIZES, gate).of(1000)
    }

    #[test]
    fn the_first_target_is_a_tenth_and_never_nothing() {
        assert_eq!(
            [0, 1, 9, 1000].map(|size| Target::START.of(size)),
            [1, 1, 1, 99]
        );
    }

    #[test]
    fn refaults_pass_at_four_fifths_of_the_age() {
        let gate = Gate::at(1000, 1000);
        assert!(gate.lets_in(800, 1000) && !gate.lets_in(801, 1000));
        // The age counts for five sizes at most, the distance for four.
        assert_eq!(Gate::at(9000, 1000), Gate::Age(5000));
        assert!(Gate::at(9000, 1000).lets_in(4000, 1000));
        assert!(Gate::Open.lets_in(4000, 1000) && !Gate::Open.lets_in(4001, 1000));
    }

    #[test]
    fn a_refault_counts_in_the_windows_that_would_have_kept_it() {
        let mut sample = Sample::NONE;
        // 200 to 283 missing: in a window of 1000, of 500, and of 250 to 50 parts of 83.
        sample.refault(1, 300, SIZES);
        assert_eq!(sample.saved, [256, 256, 154, 0, 0, 0, 0, 0]);
        // Nearer than probation is long: few frames more would have kept it. Blocks count frames.
        sample = Sample::NONE;
        sample.refault(4, 50, SIZES);
        assert_eq!(sample.saved, [1024, 1024, 1024, 1024, 1024, 960, 464, 216]);
        let before = sample.saved;
        sample.refault(1, 1101, SIZES);
        sample.refault(1, 4001, SIZES);
        assert_eq!(sample.saved, before);
        // So small that a generation is a page.
        sample.refault(1, 3, (11, 2));
        assert_eq!(sample.saved[..3], [1280, 1280, 1280]);
    }

    #[test]
    fn an_epoch_is_a_quarter_of_the_size() {
        let mut sample = Sample::NONE;
        sample.count(7);
        assert!(!sample.is_full(8));
        sample.count(1);
        assert!(sample.is_full(8) && sample.is_full(35) && !sample.is_full(36));
    }

    #[test]
    fn the_target_follows_the_gain() {
        // 250 page-ins, a window of 500, the coldest page 1000 old: r refaults give
        // r / 250 / 500 * 1000 = r / 125 times what the coldest page gives.
        let gate = Gate::Age(1000);
        // r = 29 is 6.96/30, 30 is 7.2/30, 58 is 6.96/15, 59 is 7.08/15, 233 is 27.96/15.
        let targets = [0, 29, 30, 58, 59, 233, 234].map(|r| next(&sample(r, 517), gate));
        assert_eq!(targets, [90, 90, 99, 99, 110, 110, 610]);
    }

    #[test]
    fn around_a_loop_the_ring_is_worth_more() {
        // What makes the target grow, as above: of 1000 frames, 63 read once in 250 page-ins are
        // taken for a coldest page that is 496 old, 126 for one that is 248 old.
        let with = |once: u32, more: u32| {
            let mut sample = sample(59, 517);
            sample.kept(once, true);
            sample.kept(more, false);
            next(&sample, Gate::Age(1000))
        };
        assert_eq!([with(0, 0), with(31, 0)], [110, 110]);
        assert_eq!([with(63, 0), with(126, 0)], [99, 90]);
        // Of what is read often too, a shorter ring keeps more: 126 of 504 count as 31.
        assert_eq!([with(126, 378), with(0, 500)], [110, 110]);
    }

    #[test]
    fn a_ring_that_lacks_pages_lets_in_what_comes_back_as_late_as_its_own() {
        let ring = Gate::Age(1000);
        let gates = [0, 99, 199, 200].map(|probation| Target::START.gate((1000, probation), ring));
        assert_eq!(gates, [ring, ring, ring, Gate::Age(1500)]);
        assert_eq!(Target::START.gate((1000, 1000), Gate::Open), Gate::Open);
    }

    #[test]
    fn the_densest_window_decides() {
        // In half a generation, 83 frames, 40 are as dense as 480 in the whole: in the largest
        // window that lies within it, 62 frames, and those below.
        let near = sample(40, 100);
        assert_eq!(next(&near, Gate::Age(1000)), 173);
    }

    #[test]
    fn an_empty_ring_is_worth_less_than_any_refault() {
        assert_eq!(next(&sample(0, 600), Gate::Open), 90);
        assert_eq!(next(&sample(1, 517), Gate::Open), 610);
    }

    #[test]
    fn the_target_stays_between_one_and_ninety_nine_percent() {
        let step = |sample: &Sample, gate, size| {
            let mut target = Target::START;
            (0..200).for_each(|_| target = next_target(target, sample, (size, size / 2), gate));
            target
        };
        let many = sample(1000, 600);
        for size in [1, 2, 100, 1000, 1 << 20, u32::MAX] {
            let (low, high) = (
                step(&sample(0, 600), Gate::Age(1), size).of(size),
                step(&many, Gate::Open, size).of(size),
            );
            let percent = u64::from(size) / 100;
            assert!(
                u64::from(low) <= percent.max(1) && low >= 1,
                "{low} of {size}"
            );
            assert!(high <= size && u64::from(high) <= (percent * 99 + 99).max(1));
        }
        assert_eq!(
            next_target(Target::START, &many, (0, 0), Gate::Open),
            Target::START
        );
    }

    #[test]
    fn the_largest_size_does_not_overflow() {
        let most = u64::from(u32::MAX);
        let sample = Sample {
            nr_read_once: most * 64,
            nr_read_more: 0,
            nr_page_ins: most * 64,
            saved: [most * 64 * PARTS; NR_WINDOWS],
        };
        let gate = Gate::at(u64::MAX, u32::MAX);
        let target = next_target(Target::START, &sample, (u32::MAX, 0), gate);
        // 0.1 * 1.1 + 1/128 of it, to the precision of a target.
        assert_eq!(target.of(u32::MAX) >> 8, 1_976_564);
    }
}
