//! The clock of a lruvec that counts page-ins: coarse stamps, and the distances between them.

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
pub(super) struct PageIns {
    seq: u64,
    /// Frames that came in, by generation: the present one and those before it.
    nr_frames: [u32; NR_KEPT],
}

const NR_KEPT: usize = 32;
const _: () = assert!(NR_KEPT as u64 == REACH + 1);

impl PageIns {
    /// A clock at rest. The first generation's number lets ages be subtracted from it.
    pub(super) const fn new() -> PageIns {
        PageIns {
            seq: NR_STAMPS as u64,
            nr_frames: [0; NR_KEPT],
        }
    }

    /// The generation now.
    pub(super) const fn seq(&self) -> u64 {
        self.seq
    }

    /// Counts frames that came in; opens a generation where one of `nr_resident` is due and
    /// `may_open`.
    pub(super) fn count(&mut self, nr_frames: u32, nr_resident: u32, may_open: bool) {
        let present = &mut self.nr_frames[slot(self.seq)];
        *present = present.saturating_add(nr_frames);
        if may_open && *present >= (nr_resident / PER_SIZE).max(1) {
            self.seq += 1;
            self.nr_frames[slot(self.seq)] = 0;
        }
    }

    /// Frames that came in since the generation `age` before this one began, without those of this
    /// one; of older ones than [`REACH`], since that one.
    pub(super) fn since(&self, age: u64) -> u64 {
        let past = self.seq - age.min(REACH)..self.seq;
        past.map(|seq| u64::from(self.nr_frames[slot(seq)])).sum()
    }

    /// The stamp of what is queued now: below [`NR_STAMPS`].
    pub(super) fn stamp(&self) -> u8 {
        u8::try_from(self.seq % u64::from(NR_STAMPS)).expect("below NR_STAMPS")
    }

    /// Generations since `stamp` was the present one, as long as they are below [`NR_STAMPS`].
    pub(super) fn age(&self, stamp: u8) -> u64 {
        let stamps = u64::from(NR_STAMPS);
        (self.seq % stamps + stamps - u64::from(stamp)) % stamps
    }
}

fn slot(seq: u64) -> usize {
    usize::try_from(seq % (REACH + 1)).expect("below NR_KEPT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_a_sixth_of_the_size() {
        let mut clock = PageIns::new();
        let first = clock.seq();
        for _ in 0..600 {
            clock.count(1, 600, true);
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
        (0..600).for_each(|_| clock.count(1, 600, true));
        (0..600).for_each(|_| clock.count(1, 60, true));
        assert_eq!((clock.since(1), clock.since(31)), (10, 310));
        assert_eq!(clock.since(32), clock.since(31));
    }

    #[test]
    fn stamps_come_round_and_ages_do_not() {
        let mut clock = PageIns::new();
        for _ in 0..1000 {
            let stamp = clock.stamp();
            assert!(stamp < NR_STAMPS && clock.age(stamp) == 0);
            for age in 1..u64::from(NR_STAMPS) {
                clock.count(1, 1, true);
                assert_eq!(clock.age(stamp), age);
            }
        }
    }

    #[test]
    fn a_generation_waits_for_what_is_too_old() {
        let mut clock = PageIns::new();
        (0..100).for_each(|_| clock.count(1, 6, false));
        assert_eq!(clock.since(31), 0);
        clock.count(4, 6, true);
        assert_eq!((clock.since(0), clock.since(1)), (0, 104));
    }
}
