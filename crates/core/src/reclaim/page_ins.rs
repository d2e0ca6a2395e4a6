//! The clock of a lruvec that counts page-ins: coarse stamps, and the distances between them.

use super::Moment;

/// Generations that are told apart: what is older counts as this old.
pub(super) const REACH: u64 = 31;
/// Stamps there are. More than [`REACH`], so that pages too old can be found before theirs returns.
pub(super) const NR_STAMPS: u8 = 62;
/// Generations to a lruvec of the present size: [`REACH`] is a bit over five sizes.
const PER_SIZE: u32 = 6;

/// Page-ins of one lruvec, in generations of a sixth of what is resident when they end.
///
/// A distance is the number of frames that came in between two moments, to a generation: it is read
/// off a table, so it stays true where the size moves.
#[derive(Debug)]
#[repr(C)] // What each page-in changes comes first.
pub(super) struct PageIns {
    seq: u64,
    /// Frames that came in in the present generation.
    nr_frames: u32,
    /// The rest of its division by [`NR_STAMPS`].
    stamp: u8,
    /// Frames that were evicted, by generation, and did not come back.
    gone: [u32; NR_KEPT],
    /// Frames that had come in when they began, by generation: the present one and those before it.
    before: [u64; NR_KEPT],
    /// When they began, by the clocks that all lruvecs share.
    began: [(u64, u64); NR_KEPT],
}

const NR_KEPT: usize = 32;
const _: () = assert!(NR_KEPT as u64 == REACH + 1);

impl PageIns {
    /// A clock at rest. The first generation's number lets ages be subtracted from it.
    pub(super) const fn new() -> PageIns {
        PageIns {
            seq: NR_STAMPS as u64,
            nr_frames: 0,
            stamp: 0,
            gone: [0; NR_KEPT],
            before: [0; NR_KEPT],
            began: [(0, 0); NR_KEPT],
        }
    }

    /// The generation now.
    pub(super) const fn seq(&self) -> u64 {
        self.seq
    }

    /// Counts frames that came in; opens a generation where one of `nr_resident` is due and
    /// `may_open`.
    pub(super) fn count(
        &mut self,
        (nr_frames, nr_resident): (u32, u32),
        may_open: bool,
        moment: Moment,
    ) {
        let (began, _) = self.began[slot(self.seq)];
        self.nr_frames = self.nr_frames.saturating_add(nr_frames);
        let present = self.nr_frames;
        let of_others = moment.page_ins.saturating_sub(began + u64::from(present));
        let is_due = present >= (nr_resident / PER_SIZE).max(1)
            // One of a lruvec that rests is due when all others have brought in what they may have.
            // Not sooner: a busy one beside others that scan would forget its own page-ins.
            || of_others >= u64::from(moment.capacity).max(1);
        if may_open && is_due {
            self.seq += 1;
            self.stamp = match self.stamp + 1 {
                NR_STAMPS => 0,
                next => next,
            };
            self.before[slot(self.seq)] = self.before[slot(self.seq - 1)] + u64::from(present);
            self.nr_frames = 0;
            self.gone[slot(self.seq)] = 0;
            self.began[slot(self.seq)] = (moment.page_ins, moment.ns);
        }
    }

    /// When the generation `age` before this one began, in frames that had come in of all lruvecs;
    /// of older ones than [`REACH`], when that one did.
    pub(super) fn began(&self, age: u64) -> u64 {
        self.began[slot(self.seq - age.min(REACH))].0
    }

    /// The same by the coarse clock, in ns.
    pub(super) fn began_ns(&self, age: u64) -> u64 {
        self.began[slot(self.seq - age.min(REACH))].1
    }

    /// Frames that came in since the generation `age` before this one began, without those of this
    /// one; of older ones than [`REACH`], since that one.
    pub(super) fn since(&self, age: u64) -> u64 {
        self.before[slot(self.seq)] - self.before[slot(self.seq - age.min(REACH))]
    }

    /// Counts frames that were evicted in the generation `age` before this one.
    pub(super) fn evicted(&mut self, nr_frames: u32, age: u64) {
        if age <= REACH {
            let gone = &mut self.gone[slot(self.seq - age)];
            *gone = gone.saturating_add(nr_frames);
        }
    }

    /// Counts frames that were evicted then as back; returns those that were evicted after them and
    /// are not, of the same generation half. `None` where that was before [`REACH`].
    pub(super) fn came_back(&mut self, nr_frames: u32, age: u64) -> Option<u64> {
        if age > REACH {
            return None;
        }
        let then = self.seq - age;
        let since = then + 1..=self.seq;
        let later: u64 = since.map(|seq| u64::from(self.gone[slot(seq)])).sum();
        let gone = &mut self.gone[slot(then)];
        *gone = gone.saturating_sub(nr_frames);
        Some(later + u64::from(*gone / 2))
    }

    /// The stamp of what is queued now: below [`NR_STAMPS`].
    pub(super) fn stamp(&self) -> u8 {
        self.stamp
    }

    /// Generations since `stamp` was the present one, as long as they are below [`NR_STAMPS`].
    pub(super) fn age(&self, stamp: u8) -> u64 {
        let age = match self.stamp.checked_sub(stamp) {
            Some(age) => age,
            None => self.stamp + NR_STAMPS - stamp,
        };
        age.into()
    }
}

fn slot(seq: u64) -> usize {
    usize::try_from(seq % (REACH + 1)).expect("below NR_KEPT")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody else's page-ins.
    fn count(clock: &mut PageIns, nr_frames: u32, nr_resident: u32) {
        let moment = Moment {
            capacity: 600,
            ..Moment::default()
        };
        clock.count((nr_frames, nr_resident), true, moment);
    }

    #[test]
    fn a_lruvec_that_rests_grows_old_by_the_page_ins_of_others() {
        let mut clock = PageIns::new();
        let first = clock.seq();
        for page_ins in [10, 70, 85, 86, 300, 301] {
            let moment = Moment {
                page_ins,
                capacity: 75,
                ns: page_ins,
            };
            clock.count((1, 6000), true, moment);
        }
        assert_eq!(clock.seq() - first, 2);
        assert_eq!([0, 1, 2].map(|age| clock.began(age)), [300, 85, 0]);
        // Its own clock counted its own.
        assert_eq!([0, 1, 2].map(|age| clock.since(age)), [0, 2, 5]);
    }

    #[test]
    fn a_generation_is_a_sixth_of_the_size() {
        let mut clock = PageIns::new();
        let first = clock.seq();
        for _ in 0..600 {
            count(&mut clock, 1, 600);
        }
        assert_eq!(clock.seq() - first, 6);
        assert_eq!(
            (clock.since(0), clock.since(1), clock.since(6)),
            (0, 100, 600)
        );
        // Before the first one nothing came in.
        assert_eq!(clock.since(9), 600);
    }

    #[test]
    fn distances_stay_true_where_the_size_moves() {
        let mut clock = PageIns::new();
        (0..600).for_each(|_| count(&mut clock, 1, 600));
        (0..600).for_each(|_| count(&mut clock, 1, 60));
        assert_eq!((clock.since(1), clock.since(31)), (10, 310));
        assert_eq!(clock.since(32), clock.since(31));
    }

    #[test]
    fn what_came_back_is_no_longer_gone() {
        let mut clock = PageIns::new();
        clock.evicted(10, 0);
        (0..3).for_each(|_| count(&mut clock, 1, 6));
        clock.evicted(20, 1);
        clock.evicted(4, 0);
        // 24 were evicted after the first ones, and half of the nine that are still gone.
        assert_eq!(clock.came_back(1, 3), Some(28));
        assert_eq!(clock.came_back(20, 1), Some(4));
        assert_eq!(clock.came_back(1, 3), Some(8));
        (0..29).for_each(|_| count(&mut clock, 1, 6));
        assert_eq!(clock.came_back(1, 32), None);
        clock.evicted(1, 32);
        // Its place is the present generation's now.
        assert_eq!(clock.came_back(1, 0), Some(0));
    }

    #[test]
    fn stamps_come_round_and_ages_do_not() {
        let mut clock = PageIns::new();
        for _ in 0..1000 {
            let stamp = clock.stamp();
            assert!(stamp < NR_STAMPS && clock.age(stamp) == 0);
            for age in 1..u64::from(NR_STAMPS) {
                count(&mut clock, 1, 1);
                assert_eq!(clock.age(stamp), age);
            }
        }
    }

    #[test]
    fn a_generation_waits_for_what_is_too_old() {
        let mut clock = PageIns::new();
        (0..100).for_each(|_| clock.count((1, 6), false, Moment::default()));
        assert_eq!(clock.since(31), 0);
        count(&mut clock, 4, 6);
        assert_eq!((clock.since(0), clock.since(1)), (0, 104));
    }
}
