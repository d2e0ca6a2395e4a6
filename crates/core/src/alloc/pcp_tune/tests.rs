//! Named cases of the tuners, and the depth tuner beside the definition of its depths.

extern crate std;

use super::*;
use crate::units::SECOND;
use std::vec::Vec;

const SIZES: PcpSizes = PcpSizes {
    batch: 63,
    high_min: 252,
    high_max: 32_768,
};

/// A cache that counts pages only, over a zone that always has some.
struct Toy {
    tune: Tune,
    count: u32,
    shared: Shared,
    now: u64,
    is_below_high: bool,
    is_reclaim_active: bool,
    lock_takes: u32,
    largest: u32,
}

impl Toy {
    fn new(tuner: Tuner) -> Toy {
        Toy {
            tune: Tune::new(tuner, &SIZES),
            count: 0,
            shared: Shared::new(1 << 20, 2, &SIZES),
            now: 0,
            is_below_high: false,
            is_reclaim_active: false,
            lock_takes: 0,
            largest: 0,
        }
    }

    fn with<T>(&mut self, work: impl FnOnce(&mut Tune, u32, &View<'_>) -> T) -> T {
        let view = View {
            sizes: &SIZES,
            shared: &self.shared,
            is_below_high: self.is_below_high,
            is_reclaim_active: self.is_reclaim_active,
            keeps_batch: false,
            now: self.now,
        };
        let result = work(&mut self.tune, self.count, &view);
        let high = self.tune.high();
        assert!(high >= SIZES.high_min, "high is {high}");
        self.largest = self.largest.max(high);
        result
    }

    fn alloc(&mut self) {
        if self.count == 0 {
            let refill = |tune: &mut Tune, count, view: &View<'_>| {
                tune.refill(Order::ZERO, count, false, view)
            };
            self.count = self.with(refill);
            self.lock_takes += 1;
        }
        self.count -= 1;
        self.with(|tune, count, _| tune.allocated(Order::ZERO, count));
    }

    fn free(&mut self) {
        self.count += 1;
        let flush = self.with(|tune, count, view| tune.freed(Order::ZERO, count, view));
        let Some(nr_pages) = flush else { return };
        assert!(nr_pages <= self.count && nr_pages <= SIZES.batch << SCALE_MAX);
        for chunk in (0..nr_pages).step_by(63) {
            let chunk = SIZES.batch.min(nr_pages - chunk);
            self.count -= chunk;
            self.lock_takes += 1;
            self.with(|tune, count, view| tune.gave_back(chunk, count, view));
        }
    }

    fn tick(&mut self) {
        let keeps = self.with(|tune, count, view| tune.tick(count, view));
        self.count = self.count.min(keeps);
    }

    /// `nr_pages` allocated, then freed, `times` times, each pair in `period` ns, with a tick after
    /// each second.
    fn cycles(&mut self, nr_pages: u32, times: u32, period: u64) {
        for _ in 0..times {
            (0..nr_pages).for_each(|_| self.alloc());
            (0..nr_pages).for_each(|_| self.free());
            let second = self.now / SECOND;
            self.now += period;
            (second..self.now / SECOND).for_each(|_| self.tick());
        }
    }
}

#[test]
fn depths_are_the_largest_rise_and_fall() {
    let shared = Shared::new(1 << 20, 2, &SIZES);
    let view = View {
        sizes: &SIZES,
        shared: &shared,
        is_below_high: false,
        is_reclaim_active: false,
        keeps_batch: false,
        now: 0,
    };
    let mut random = 7_u64;
    for _ in 0..50 {
        let (mut depth, mut high) = (Depth::default(), 0);
        let mut sums = Vec::from([0_i64]);
        for _ in 0..200 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let nr_pages = 1 << (random >> 40 & 3);
            let last = *sums.last().unwrap();
            if random >> 60 & 1 == 0 {
                depth.allocated(nr_pages);
                sums.push(last + i64::from(nr_pages));
            } else {
                depth.freed(&mut high, nr_pages, &view);
                sums.push(last - i64::from(nr_pages));
            }
            let pairs = || (0..sums.len()).flat_map(|i| (0..=i).map(move |j| (j, i)));
            let rise = pairs().map(|(j, i)| sums[i] - sums[j]).max().unwrap();
            let fall = pairs().map(|(j, i)| sums[j] - sums[i]).max().unwrap();
            assert_eq!(depth.depths(), (rise, fall));
        }
    }
}

#[test]
fn an_average_below_a_constant_depth_ends_one_short_of_it() {
    let mut toy = Toy::new(Tuner::Depth);
    let mut highs = Vec::new();
    for _ in 0..12 {
        toy.now += SECOND + 1;
        toy.free();
        toy.count += 1000;
        for _ in 0..1000 {
            toy.tune.allocated(Order::ZERO, 0);
            toy.count -= 1;
        }
        (0..1000).for_each(|_| toy.free());
        highs.push(toy.tune.high());
    }
    assert_eq!(highs[1..6], [500, 750, 875, 937, 968]);
    assert_eq!(*highs.last().unwrap(), 999);
}

#[test]
fn two_idle_periods_reset_the_depth() {
    let mut toy = Toy::new(Tuner::Depth);
    toy.cycles(4000, 80, SECOND / 8);
    assert!(toy.tune.high() > 3900);
    toy.now += 3 * SECOND;
    toy.free();
    assert_eq!(toy.tune.high(), SIZES.high_min);
}

#[test]
fn pure_allocation_and_pure_freeing_raise_nothing() {
    for tuner in [Tuner::Fixed, Tuner::Depth, Tuner::Adaptive] {
        for is_alloc in [true, false] {
            let mut toy = Toy::new(tuner);
            for round in 1..200_000 {
                if is_alloc {
                    toy.alloc();
                } else {
                    toy.free();
                }
                if round % 10_000 == 0 {
                    toy.now += SECOND;
                    toy.tick();
                }
            }
            assert_eq!(
                toy.largest, SIZES.high_min,
                "{tuner:?}, allocation: {is_alloc}"
            );
        }
    }
}

#[test]
fn a_cycle_that_repeats_stops_taking_the_lock() {
    // The average of `depth` ends one page short of the cycle.
    for (tuner, most) in [(Tuner::Depth, 2), (Tuner::Adaptive, 0), (Tuner::Batch, 8)] {
        let mut toy = Toy::new(tuner);
        toy.cycles(5000, 160, SECOND / 8);
        toy.lock_takes = 0;
        toy.cycles(5000, 8, SECOND / 8);
        assert!(toy.lock_takes <= most * 8, "{tuner:?}: {}", toy.lock_takes);
    }
}

#[test]
fn what_is_idle_goes_back() {
    for (tuner, ticks) in [(Tuner::Adaptive, 3), (Tuner::Batch, 60)] {
        let mut toy = Toy::new(tuner);
        toy.cycles(20_000, 80, SECOND / 8);
        assert!(toy.tune.high() > 10_000, "{tuner:?}: {}", toy.tune.high());
        (0..ticks).for_each(|_| toy.tick());
        assert_eq!(toy.tune.high(), SIZES.high_min, "{tuner:?}");
        assert!(toy.count <= SIZES.high_min);
    }
}

#[test]
fn the_cap_is_shared() {
    let shared = Shared::new(32_768, 2, &SIZES);
    assert_eq!(shared.sum_high(), 504);
    assert_eq!(shared.grow(3000), 3000);
    assert_eq!(shared.grow(3000), 4096 - 3504);
    assert_eq!(shared.grow(1), 0);
    shared.shrink(100);
    assert_eq!(shared.grow(500), 100);
}

#[test]
fn no_high_rises_while_its_zone_is_short() {
    for tuner in [Tuner::Adaptive, Tuner::Batch] {
        for is_reclaim_active in [true, false] {
            let mut toy = Toy::new(tuner);
            toy.cycles(2000, 80, SECOND / 8);
            toy.is_below_high = !is_reclaim_active;
            toy.is_reclaim_active = is_reclaim_active;
            let mut last = toy.tune.high();
            for _ in 0..20 {
                (0..1500).for_each(|_| toy.alloc());
                (0..1500).for_each(|_| toy.free());
                assert!(toy.tune.high() <= last, "{tuner:?}");
                last = toy.tune.high();
            }
            if tuner == Tuner::Adaptive && !is_reclaim_active {
                assert_eq!(last, SIZES.high_min);
            }
        }
    }
}

#[test]
fn a_run_of_high_orders_is_not_hoarded() {
    let order = Order::new(3).unwrap();
    for (_, tuner) in Tuner::ALL {
        let mut toy = Toy::new(tuner);
        // A large `high`, so that it is not the reason.
        toy.tune.high = 20_000;
        toy.shared.grow(20_000 - SIZES.high_min);
        let mut most = 0;
        for _ in 0..1000 {
            toy.count += 8;
            if let Some(nr) = toy.with(|tune, count, view| tune.freed(order, count, view)) {
                toy.count -= nr;
            }
            most = most.max(toy.count);
        }
        assert!(most < 252 / 2 + 63 + 16, "{tuner:?}: {most}");
    }
}
