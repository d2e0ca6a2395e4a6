//! One CPU's stock of one group's pages and one group's bytes, with cached statistics: seed 002's.
//!
//! Without any protection of its own: the variants say who may call, and when.

use super::{Item, NR_ITEMS, Out, PAGE, Sink, Surplus, carry};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The record. Loads and stores only: its user holds a lock, or is the only one on the CPU.
#[derive(Debug, Default)]
pub(super) struct Single {
    group: AtomicU32,
    nr_pages: AtomicU32,
    byte_group: AtomicU32,
    nr_bytes: AtomicU32,
    /// Bytes, signed, by [`Item`].
    state: [AtomicU32; NR_ITEMS],
    pub(super) hits: AtomicU64,
    pub(super) byte_hits: AtomicU64,
}

fn get(field: &AtomicU32) -> u32 {
    field.load(Ordering::Relaxed)
}

fn set(field: &AtomicU32, value: u32) {
    field.store(value, Ordering::Relaxed);
}

/// Counts without a read-modify-write.
pub(super) fn bump(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl Single {
    #[inline]
    pub(super) fn consume(&self, group: u32, nr_pages: u32) -> bool {
        let held = get(&self.nr_pages);
        if get(&self.group) != group || held < nr_pages {
            return false;
        }
        set(&self.nr_pages, held - nr_pages);
        bump(&self.hits);
        true
    }

    /// Puts pages in; a slot that gets more than a batch is emptied whole.
    #[inline]
    pub(super) fn refill(&self, group: u32, nr_pages: u32, batch: u32, out: Sink<'_>) {
        if get(&self.group) != group {
            self.drain_pages(out);
            set(&self.group, group);
        }
        set(&self.nr_pages, get(&self.nr_pages) + nr_pages);
        if get(&self.nr_pages) > batch {
            self.drain_pages(out);
        }
    }

    #[inline]
    pub(super) fn consume_bytes(&self, group: u32, nr_bytes: u32) -> bool {
        let held = get(&self.nr_bytes);
        if get(&self.byte_group) != group || held < nr_bytes {
            return false;
        }
        set(&self.nr_bytes, held - nr_bytes);
        bump(&self.byte_hits);
        true
    }

    /// Puts bytes in; returns whole pages of the group that are to be given back.
    #[inline]
    pub(super) fn refill_bytes(
        &self,
        group: u32,
        nr_bytes: u32,
        parked: impl FnOnce() -> u32,
        out: Sink<'_>,
    ) -> u32 {
        self.take_byte_place(group, parked, out);
        let (kept, nr_pages) = carry(get(&self.nr_bytes) + nr_bytes);
        set(&self.nr_bytes, kept);
        nr_pages
    }

    /// Adds to a cached statistic; more than a page of change goes out.
    #[inline]
    pub(super) fn mod_state(
        &self,
        (group, item, delta): (u32, Item, i32),
        parked: impl FnOnce() -> u32,
        out: Sink<'_>,
    ) {
        self.take_byte_place(group, parked, out);
        let cached = &self.state[item as usize];
        let delta = get(cached).cast_signed() + delta;
        if delta.unsigned_abs() > PAGE {
            set(cached, 0);
            out(Out::State { group, item, delta });
        } else {
            set(cached, delta.cast_unsigned());
        }
    }

    /// Gives the byte stock to a group, with the bytes that are parked in its record.
    #[inline]
    fn take_byte_place(&self, group: u32, parked: impl FnOnce() -> u32, out: Sink<'_>) {
        if get(&self.byte_group) != group {
            self.drain_bytes(out);
            set(&self.byte_group, group);
            set(&self.nr_bytes, parked());
        }
    }

    fn drain_pages(&self, out: Sink<'_>) {
        let (group, nr_pages) = (get(&self.group), get(&self.nr_pages));
        set(&self.nr_pages, 0);
        if nr_pages > 0 {
            out(Out::Pages(Surplus { group, nr_pages }));
        }
    }

    fn drain_bytes(&self, out: Sink<'_>) {
        let (group, nr_bytes) = (get(&self.byte_group), get(&self.nr_bytes));
        // Statistics first: the bytes keep the group's record.
        for (item, cached) in Item::ALL.into_iter().zip(&self.state) {
            let delta = get(cached).cast_signed();
            if delta != 0 {
                out(Out::State { group, item, delta });
            }
            // After it was booked, which no charge keeps its group for. Release pairs with the
            // Acquire in `holds`: who does not take the lock because nothing is there sees that.
            cached.store(0, Ordering::Release);
        }
        set(&self.nr_bytes, 0);
        if nr_bytes > 0 {
            out(Out::Bytes { group, nr_bytes });
        }
    }

    /// Empties it, whosever its content is; it names no group afterwards.
    pub(super) fn drain(&self, out: Sink<'_>) {
        self.drain_pages(out);
        self.drain_bytes(out);
        set(&self.group, 0);
        set(&self.byte_group, 0);
    }

    /// Whether it holds something of a group that `wanted` names; a look without protection.
    pub(super) fn holds(&self, wanted: impl Fn(u32) -> bool) -> bool {
        // Acquire pairs with the Release in `drain_bytes`.
        let has_state = |cached: &AtomicU32| cached.load(Ordering::Acquire) != 0;
        let has_bytes = get(&self.nr_bytes) > 0 || self.state.iter().any(has_state);
        get(&self.nr_pages) > 0 && wanted(get(&self.group))
            || has_bytes && wanted(get(&self.byte_group))
    }

    /// Pages and bytes that it holds for the groups that `wanted` names.
    pub(super) fn held(&self, wanted: impl Fn(u32) -> bool) -> (u32, u32) {
        let of = |group: &AtomicU32, count: &AtomicU32| {
            if wanted(get(group)) { get(count) } else { 0 }
        };
        let pages = of(&self.group, &self.nr_pages);
        (pages, of(&self.byte_group, &self.nr_bytes))
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    fn outs(work: impl FnOnce(Sink<'_>)) -> Vec<Out> {
        let mut outs = Vec::new();
        work(&mut |out| outs.push(out));
        outs
    }

    fn pages(group: u32, nr_pages: u32) -> Out {
        Out::Pages(Surplus { group, nr_pages })
    }

    #[test]
    fn a_page_above_the_batch_empties_the_slot() {
        let stock = Single::default();
        assert_eq!(outs(|out| stock.refill(7, 64, 64, out)), []);
        assert_eq!(outs(|out| stock.refill(7, 1, 64, out)), [pages(7, 65)]);
        assert!(!stock.consume(7, 1));
    }

    #[test]
    fn a_second_group_drives_the_first_out() {
        let stock = Single::default();
        assert_eq!(outs(|out| stock.refill(7, 9, 64, out)), []);
        assert_eq!(outs(|out| stock.refill(8, 3, 64, out)), [pages(7, 9)]);
        assert!(stock.consume(8, 3) && !stock.consume(7, 1));
        assert_eq!(stock.held(|_| true), (0, 0));
    }

    #[test]
    fn a_new_group_of_bytes_brings_what_is_parked_and_drives_out_the_others() {
        let stock = Single::default();
        let none = || 0;
        assert_eq!(stock.refill_bytes(7, 4000, none, &mut |_| ()), 0);
        stock.mod_state((7, Item::SlabReclaimable, 100), none, &mut |_| ());
        let drained = outs(|out| assert_eq!(stock.refill_bytes(8, 4090, || 20, out), 1));
        let state = Out::State {
            group: 7,
            item: Item::SlabReclaimable,
            delta: 100,
        };
        let bytes = Out::Bytes {
            group: 7,
            nr_bytes: 4000,
        };
        assert_eq!(drained, [state, bytes]);
        assert_eq!(stock.held(|group| group == 8), (0, 14));
    }

    #[test]
    fn a_statistic_goes_out_beyond_a_page() {
        let stock = Single::default();
        let change = |delta| {
            let change = (7, Item::SlabUnreclaimable, delta);
            outs(|out| stock.mod_state(change, || 0, out)).len()
        };
        assert_eq!([change(-4000), change(-96), change(-1)], [0, 0, 1]);
        assert!(!stock.holds(|_| true));
    }

    #[test]
    fn a_statistic_is_there_until_it_is_booked() {
        let stock = Single::default();
        let (item, delta) = (Item::SlabReclaimable, 100);
        stock.mod_state((7, item, delta), || 0, &mut |_| ());
        let mut booked = Vec::new();
        let holds = || stock.holds(|group| group == 7);
        stock.drain(&mut |out| booked.push((out, holds())));
        let group = 7;
        assert_eq!(booked, [(Out::State { group, item, delta }, true)]);
        assert!(!holds());
    }
}
