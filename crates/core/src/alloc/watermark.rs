//! Watermarks of a zone, and the sizes of its per-CPU page caches: arithmetic only.
//!
//! Source: kernel `init_per_zone_wmark_min()`, `zone_batchsize()`, `zone_highsize()`.

use crate::units::PAGE_BYTES;

/// Free-page marks of a zone, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below it only requests that may use everything are served.
    pub min: u32,
    /// Below it reclaim is woken.
    pub low: u32,
    /// At it reclaim may stop; below it per-CPU page caches shrink.
    pub high: u32,
}

/// Which mark a request keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mark {
    /// May take the last frame: what was charged has a right to one.
    None,
    /// Leaves `min` free.
    Min,
    /// Leaves `low` free.
    Low,
}

impl Watermarks {
    /// The marks of a zone of `managed` pages, one of several with `all_managed` in all.
    ///
    /// `scale` is the distance between marks in 1/10,000 of the zone: the kernel's
    /// `watermark_scale_factor`, 10 by default.
    #[must_use]
    pub fn new(managed: u32, all_managed: u32, scale: u32) -> Watermarks {
        let (share, gap) = Self::share(managed, all_managed, scale);
        Self::above(share, gap)
    }

    /// The marks of a zone of movable blocks: the same gaps above a `min` of 32 to 128 pages.
    #[must_use]
    pub fn movable(managed: u32, all_managed: u32, scale: u32) -> Watermarks {
        let (_, gap) = Self::share(managed, all_managed, scale);
        Self::above(u64::from(managed / 1024).clamp(32, 128), gap)
    }

    fn share(managed: u32, all_managed: u32, scale: u32) -> (u64, u64) {
        let kib_per_page = PAGE_BYTES as u64 / 1024;
        let kib = u64::from(all_managed) * kib_per_page;
        let min_kib = (kib * 16).isqrt().clamp(128, 262_144);
        let share = min_kib / kib_per_page * u64::from(managed) / u64::from(all_managed.max(1));
        let gap = (share / 4).max(u64::from(managed) * u64::from(scale) / 10_000);
        (share, gap)
    }

    fn above(min: u64, gap: u64) -> Watermarks {
        let pages = |pages: u64| u32::try_from(pages).unwrap_or(u32::MAX);
        Watermarks {
            min: pages(min),
            low: pages(min + gap),
            high: pages(min + 2 * gap),
        }
    }

    /// Pages that a mark keeps free.
    #[must_use]
    pub const fn of(&self, mark: Mark) -> u32 {
        match mark {
            Mark::None => 0,
            Mark::Min => self.min,
            Mark::Low => self.low,
        }
    }

    /// How far a zone that lost a pageblock to another mobility is boosted: one pageblock a time,
    /// at most 1.5 times `high`; not at all below four pageblocks.
    ///
    /// Source: kernel `boost_watermark()` with `watermark_boost_factor` 15,000.
    #[must_use]
    pub fn boosted(&self, boost: u32, managed: u32, pageblock_pages: u32) -> u32 {
        if managed < 4 * pageblock_pages {
            return 0;
        }
        let max = (self.high + self.high / 2).max(pageblock_pages);
        (boost + pageblock_pages).min(max)
    }
}

/// Sizes of the per-CPU page caches of one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcpSizes {
    /// Pages that move between a cache and its zone in one hold of the zone's lock.
    pub batch: u32,
    /// Least `high`; 0 turns the caches off.
    pub high_min: u32,
    /// Most `high`; equal to `high_min`: nothing is tuned.
    pub high_max: u32,
}

impl PcpSizes {
    /// No per-CPU page caches.
    pub const OFF: PcpSizes = PcpSizes {
        batch: 1,
        high_min: 0,
        high_max: 0,
    };

    /// The kernel's sizes for a zone of `managed` pages used by `nr_cpus` local CPUs.
    ///
    /// `batch` is 63 from 1 GiB on, less below. `high_min` is the CPU's share of the low
    /// watermark, `high_max` that of an eighth of the zone; both at least four batches.
    #[must_use]
    pub fn new(managed: u32, low: u32, nr_cpus: u32) -> PcpSizes {
        let quarter = ((managed / 1024).min(256) / 4).max(1);
        let rounded = quarter + quarter / 2;
        let batch = ((1 << rounded.ilog2()) - 1).max(1);
        let nr_cpus = nr_cpus.max(1);
        PcpSizes {
            batch,
            high_min: (low / nr_cpus).max(4 * batch),
            high_max: (managed / 8 / nr_cpus).max(4 * batch).max(low / nr_cpus),
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    const GIB: u32 = (1 << 30) / 4096;

    #[test]
    fn batches_of_the_kernel() {
        let batch = |pages| PcpSizes::new(pages, 0, 1).batch;
        let sizes = [GIB, GIB / 4, GIB / 16, GIB / 64];
        assert_eq!(sizes.map(batch), [63, 15, 3, 1]);
    }

    #[test]
    fn marks_of_a_zone_of_4_gib() {
        // min_free_kbytes = isqrt(4 GiB in KiB * 16) = 8192 KiB; 0.1 % of the zone is less than a
        // quarter of min, and more than it from 16 GiB on.
        let marks = Watermarks::new(4 * GIB, 4 * GIB, 10);
        assert_eq!(
            marks,
            Watermarks {
                min: 2048,
                low: 2048 + 1048,
                high: 2048 + 2 * 1048
            }
        );
        let half = Watermarks::new(2 * GIB, 4 * GIB, 10);
        assert_eq!(half.min, 1024);
    }

    #[test]
    fn a_boost_grows_by_pageblocks_to_its_bound() {
        let marks = Watermarks::new(GIB, GIB, 10);
        assert_eq!(marks.boosted(0, 2047, 512), 0);
        let mut boost = 0;
        for _ in 0..50 {
            boost = marks.boosted(boost, GIB, 512);
        }
        assert_eq!(boost, marks.high + marks.high / 2);
    }

    #[test]
    fn sizes_are_ordered() {
        for managed in [1, 100, 2600, GIB / 16, GIB, 100 * GIB] {
            for nr_cpus in [1, 2, 56, 224] {
                let marks = Watermarks::new(managed, managed, 10);
                let sizes = PcpSizes::new(managed, marks.low, nr_cpus);
                assert!(4 * sizes.batch <= sizes.high_min && sizes.high_min <= sizes.high_max);
                assert!(marks.min < marks.low && marks.low < marks.high);
            }
        }
    }
}
