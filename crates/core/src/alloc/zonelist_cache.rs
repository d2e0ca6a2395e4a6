//! Zones found short lately are passed over: hints that may be wrong and never decide a failure.

use super::pageblock::Mobility;
use super::watermark::Mark;
use super::zonelist::{self, MAX_ZONES, Zonelist};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{MAX_ORDER, NodeMask, Order, SECOND};

/// Which hints are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZonelistCache {
    /// None: every zone on the way is tried.
    None,
    /// A bit a zone and list, all forgotten every second. Source: "memory page alloc zonelist
    /// caching speedup", Jackson 2006.
    Seed,
    /// Bits by order class and watermark, shared by all lists; a zone's are forgotten when it has
    /// pages again, or at a time of its own that moves away while it stays short.
    #[default]
    Classed,
}

impl ZonelistCache {
    /// All of them with their names.
    pub const ALL: [(&'static str, ZonelistCache); 3] = [
        ("none", ZonelistCache::None),
        ("seed", ZonelistCache::Seed),
        ("classed", ZonelistCache::Classed),
    ];
}

/// The seed's hints of one zonelist.
#[derive(Debug, Default)]
pub(super) struct SeedCache {
    /// A bit for each position.
    fullzones: AtomicU64,
    last_full_zap: AtomicU64,
}

const ZAP_INTERVAL: u64 = SECOND;

impl SeedCache {
    /// Done after the first zone of a scan failed: zaps what is old; returns whether it did.
    pub(super) fn set_up(&self, now: u64) -> bool {
        let last = self.last_full_zap.load(Ordering::Relaxed);
        let is_due = now.saturating_sub(last) > ZAP_INTERVAL;
        if is_due {
            self.fullzones.store(0, Ordering::Relaxed);
            self.last_full_zap.store(now, Ordering::Relaxed);
        }
        is_due
    }

    pub(super) fn is_full(&self, position: usize) -> bool {
        self.fullzones.load(Ordering::Relaxed) >> position & 1 != 0
    }

    pub(super) fn mark(&self, position: usize) {
        let bit = 1 << position;
        // A racing zap may be lost: it is a hint.
        let bits = self.fullzones.load(Ordering::Relaxed);
        if bits & bit == 0 {
            self.fullzones.store(bits | bit, Ordering::Relaxed);
        }
    }

    pub(super) fn set_bits(&self, bits: u64, list: &Zonelist) {
        let inside = (0..list.len()).fold(0, |inside, position| inside | 1 << position);
        self.fullzones.store(bits & inside, Ordering::Relaxed);
    }
}

/// Order classes times watermarks times kinds of requests.
pub(super) const NR_CLASSES: usize = 12;
/// Requests in a row that may pass over the zone that they would have tried first.
const MAX_PREFERRED_SKIPS: u32 = 64;
const BACKOFF_MIN: u64 = SECOND / 8;
const BACKOFF_MAX: u64 = SECOND;

/// The class of a request, `None` where nothing is remembered: what may take the last frame fails
/// only after it has tried everything.
pub(super) const fn class_of(order: Order, mark: Mark, mobility: Mobility) -> Option<usize> {
    let order_class = match order.get() {
        0 => 0,
        1..=3 => 1,
        _ => 2,
    };
    let mark = match mark {
        Mark::None => return None,
        Mark::Min => 0,
        Mark::Low => 1,
    };
    Some((order_class * 2 + mark) * 2 + zonelist::class_of(mobility))
}

/// The largest request of a class: a zone that has this has what the class asks for.
pub(super) fn largest_of(class: usize) -> (Order, Mark, Mobility) {
    let order = match class / 4 {
        0 => Order::ZERO,
        1 => Order::new(3).expect("an order"),
        _ => Order::new(MAX_ORDER).expect("an order"),
    };
    let mark = if (class / 2).is_multiple_of(2) {
        Mark::Min
    } else {
        Mark::Low
    };
    let mobility = if class.is_multiple_of(2) {
        Mobility::Unmovable
    } else {
        Mobility::Movable
    };
    (order, mark, mobility)
}

/// The default hints of all zones.
#[derive(Debug)]
pub(super) struct Classed {
    /// By class: a bit for each zone.
    full: [AtomicU64; NR_CLASSES],
    zones: [ZoneHint; MAX_ZONES],
}

#[derive(Debug, Default)]
struct ZoneHint {
    /// When its bits are forgotten, in ns.
    until: AtomicU64,
    /// How long they are kept, in ns; doubled each time that they were right.
    backoff: AtomicU64,
    /// Requests in a row that passed over it though they would have tried it first.
    nr_skips: AtomicU32,
}

impl Classed {
    pub(super) fn new() -> Classed {
        Classed {
            full: core::array::from_fn(|_| AtomicU64::new(0)),
            zones: core::array::from_fn(|_| ZoneHint::default()),
        }
    }

    /// The zones that a class passes over.
    pub(super) fn full(&self, class: usize) -> u64 {
        self.full[class].load(Ordering::Relaxed)
    }

    /// Whether the zone that a request would try first is to be tried all the same.
    pub(super) fn is_probed(&self, zone: usize) -> bool {
        let nr_skips = &self.zones[zone].nr_skips;
        let skips = nr_skips.load(Ordering::Relaxed);
        let is_probed = skips >= MAX_PREFERRED_SKIPS;
        nr_skips.store(if is_probed { 0 } else { skips + 1 }, Ordering::Relaxed);
        is_probed
    }

    /// Remembers that a zone was short, after it was tried at `now`. Returns whether that is new.
    pub(super) fn mark(&self, zone: usize, class: usize, now: u64) -> bool {
        let bit = 1_u64 << zone;
        if self.full(class) & bit != 0 {
            return false;
        }
        let hint = &self.zones[zone];
        let backoff = hint
            .backoff
            .load(Ordering::Relaxed)
            .clamp(BACKOFF_MIN, BACKOFF_MAX);
        // Zones that were marked together do not come back together: up to an eighth later.
        let jitter = backoff / 8 * (zone as u64 * 5 % 8) / 8;
        hint.until.store(now + backoff + jitter, Ordering::Relaxed);
        let longer = (backoff * 2).min(BACKOFF_MAX);
        hint.backoff.store(longer, Ordering::Relaxed);
        self.full[class].fetch_or(bit, Ordering::Relaxed);
        true
    }

    /// Forgets classes of a zone that has pages again. A bit of `classes` for each.
    pub(super) fn clear(&self, zone: usize, classes: u32) {
        for (class, full) in self.full.iter().enumerate() {
            if classes >> class & 1 != 0 {
                full.fetch_and(!(1 << zone), Ordering::Relaxed);
            }
        }
        self.zones[zone].backoff.store(0, Ordering::Relaxed);
    }

    /// Forgets the zones whose time has come; returns how many, and the next such time.
    pub(super) fn expire(&self, now: u64) -> (u32, Option<u64>) {
        let marked = (0..NR_CLASSES).fold(0, |zones, class| zones | self.full(class));
        let (mut expired, mut next) = (0_u64, None);
        for zone in NodeMask::from_bits(marked).iter() {
            let until = self.zones[zone.index()].until.load(Ordering::Relaxed);
            if until <= now {
                expired |= 1 << zone.index();
            } else {
                next = Some(next.map_or(until, |next: u64| next.min(until)));
            }
        }
        if expired != 0 {
            for full in &self.full {
                full.fetch_and(!expired, Ordering::Relaxed);
            }
        }
        (expired.count_ones(), next)
    }

    pub(super) fn set_bits(&self, bits: u64, nr_zones: usize) {
        let inside = (0..nr_zones).fold(0_u64, |inside, zone| inside | 1 << zone);
        for (full, shift) in self.full.iter().zip(0..) {
            full.store(bits.rotate_left(shift * 7) & inside, Ordering::Relaxed);
        }
    }
}
