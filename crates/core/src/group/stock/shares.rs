//! How many pages stocks may hold: arithmetic only.

use crate::group::BATCH;

/// Pages that one CPU holds for large blocks at least and at most: room for two blocks of the
/// smallest, and eight of 2 MiB.
const MIN_LARGE: u64 = 2 * BATCH as u64;
const MAX_LARGE: u64 = 1 << 12;

/// What the stocks of a tree may hold, so that all together are at most 1/64 of the root's `max`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::group) struct Shares {
    /// Pages of one slot.
    pub(in crate::group) batch: u32,
    /// Pages for large blocks on one CPU: a power of two, or none.
    pub(in crate::group) large: u32,
    /// Pages of a CPU's part of the depot.
    pub(in crate::group) depot: u32,
}

impl Shares {
    /// Under a root of `max` pages, for so many slots and words of bytes on each CPU: slots first,
    /// large blocks have what is left.
    pub(super) fn of(max: u64, (nr_slots, nr_words): (u32, u32), nr_cpus: u32) -> Shares {
        let all = |nr: u32| u64::from(nr_cpus.max(1)) * u64::from(nr);
        let share = (max / 64).saturating_sub(all(nr_words));
        let batch = (share / all(nr_slots)).min(u64::from(BATCH));
        Shares {
            batch: u32::try_from(batch).expect("at most BATCH"),
            large: large(share - batch * all(nr_slots), nr_cpus),
            depot: depot(max, nr_cpus),
        }
    }

    /// Of a group whose nearest limit or `high` is `least` pages: large blocks of one group hide at
    /// most 1/64 of that, and the depot has an eighth.
    pub(in crate::group) fn under(self, least: u64, nr_cpus: u32) -> Shares {
        let large = large(least / 64, nr_cpus).min(self.large);
        let depot = depot(least, nr_cpus);
        Shares {
            large,
            depot,
            ..self
        }
    }
}

/// A CPU's part of an eighth of `nr_pages`: at most a 16th.
fn depot(nr_pages: u64, nr_cpus: u32) -> u32 {
    u32::try_from(nr_pages / 8 / u64::from(nr_cpus.max(2))).unwrap_or(u32::MAX)
}

/// A CPU's part of `nr_pages` pages. A power of two, so that blocks fit into it and into half of
/// it, which is what stays after an overflow.
fn large(nr_pages: u64, nr_cpus: u32) -> u32 {
    match nr_pages / u64::from(nr_cpus.max(1)) {
        ..MIN_LARGE => 0,
        part => 1 << part.min(MAX_LARGE).ilog2(),
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::units::PAGE_BYTES;

    const GIB: u64 = (1 << 30) / PAGE_BYTES as u64;

    #[test]
    fn slots_come_first_and_large_blocks_have_what_is_left() {
        let of = |max, nr_cpus| {
            let shares = Shares::of(max, (14, 4), nr_cpus);
            (shares.batch, shares.large)
        };
        assert_eq!(of(GIB, 2), (64, 1024));
        assert_eq!(of(8 * GIB, 2), (64, 4096));
        assert_eq!(of(GIB, 64), (4, 0));
        assert_eq!(of(64 * GIB, 64), (64, 2048));
        assert_eq!(of(0, 2), (0, 0));
    }

    #[test]
    fn a_group_hides_no_more_than_a_64th_of_its_nearest_limit() {
        let shares = Shares::of(8 * GIB, (14, 4), 2);
        let under = |least| shares.under(least, 2).large;
        assert_eq!(under(u64::MAX), 4096);
        assert_eq!(under(GIB), 2048);
        assert_eq!(under(GIB / 17), 0);
        let depot = |least, nr_cpus| shares.under(least, nr_cpus).depot;
        assert_eq!(
            [depot(GIB, 1), depot(GIB, 2), depot(GIB, 8)],
            [16384, 16384, 4096]
        );
        assert_eq!(depot(u64::MAX, 2), u32::MAX);
    }
}
