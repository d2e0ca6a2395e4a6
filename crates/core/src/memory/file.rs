//! Mappings: opened, and closed with all their pages.

use super::{Effect, Effects, Here, Memory};
use crate::frame::{State, Word, flag};
use crate::group::{Gauge, Group};
use crate::page_cache;
use crate::sync::{NoMetadata, yield_now};
use crate::units::{Cpu, Frame, Order, PageKey, PageType};

/// Pages of a file that is closed for whose claims all CPUs are fenced once.
const ENDED_TOGETHER: usize = 64;

/// What became of a page that is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// It is not in its file any more.
    Gone,
    /// It is being read, written or changed: wait until the frame's version is no longer this,
    /// then ask again.
    Wait {
        /// The frame that holds it.
        frame: Frame,
        /// Its version.
        version: u32,
    },
}

impl Memory {
    /// Makes a mapping of a file with pages of `order`; its id names it until
    /// [`Memory::close_mapping`].
    ///
    /// # Errors
    /// [`NoMetadata`] where the budget or the allocator refuses the record.
    pub fn open_mapping(&self, here: Here<'_>, order: Order) -> Result<u32, NoMetadata> {
        self.make_mapping(here, order, PageType::File)
    }

    /// Makes a mapping of anon pages, as [`Memory::open_mapping`] does. Whoever runs their reads
    /// knows which of them were written, and fills the others with zeros.
    ///
    /// # Errors
    /// As [`Memory::open_mapping`].
    pub fn open_anon(&self, here: Here<'_>, order: Order) -> Result<u32, NoMetadata> {
        self.make_mapping(here, order, PageType::Anon)
    }

    fn make_mapping(
        &self,
        here: Here<'_>,
        order: Order,
        page_type: PageType,
    ) -> Result<u32, NoMetadata> {
        self.zones.cache_order(order);
        let charge = |bytes: usize| self.groups.charge_records(here.cpu, bytes).is_ok();
        let make = || self.mappings.open(charge, order, page_type);
        self.make_record(here, make, |_| true)
    }

    /// Drops a mapping and its pages. Pinned pages stay readable and go with their last pin; dirty
    /// ones are not written. A write under way goes on: its page and the mapping's id go with it.
    ///
    /// `run` gets the effects of each page. The caller has no operation on this mapping under way
    /// and starts none.
    pub fn close_mapping(&self, cpu: Cpu, id: u32, run: &mut dyn FnMut(&mut Effects)) {
        let Some(mapping) = self.mappings.get(id) else {
            return;
        };
        let number = id & PageKey::MAX_MAPPING;
        let (mut contended, mut nr_contended) = ([Frame::FIRST; ENDED_TOGETHER], 0);
        loop {
            let next = mapping.any();
            if nr_contended == contended.len() || next.is_none() {
                self.end_out(cpu, &contended[..nr_contended], run);
                nr_contended = 0;
            }
            let Some(frame) = next else {
                break;
            };
            let seen = self.frames.word(frame);
            let key = self.frames.key(frame);
            // It may have been evicted meanwhile, and hold another file's page.
            let key = key.filter(|key| key.mapping() == number);
            match key.and_then(|key| self.take_out((frame, key, seen))) {
                Some(true) => {
                    contended[nr_contended] = frame;
                    nr_contended += 1;
                }
                Some(false) => self.drop_out(cpu, frame, run),
                // Who evicts it may be preempted.
                None => yield_now(),
            }
        }
        self.mappings.close(id);
    }

    /// Drops a page of a file that is not changed or written just now, dirty or not; pinned ones
    /// stay readable and go with their last pin.
    pub fn discard_page(&self, cpu: Cpu, key: PageKey, effects: &mut Effects) -> Discard {
        // Under the lock: a page that is just moving has no entry for a moment.
        let find = || self.index.lock(key).find(&self.frames);
        while let Some(frame) = find() {
            let seen = self.frames.word(frame);
            let version = seen.version();
            if self.frames.key(frame) != Some(key) {
                continue;
            }
            if seen.state() == State::Reading || seen.has(flag::WRITEBACK) {
                return Discard::Wait { frame, version };
            }
            if seen.has(flag::LATCH) {
                if let Some(version) = page_cache::await_latch(&self.frames, frame) {
                    return Discard::Wait { frame, version };
                }
            } else if self.truncate(cpu, (frame, key, seen), effects) {
                return Discard::Gone;
            }
        }
        Discard::Gone
    }

    /// Resident pages of a mapping; none where it was closed.
    #[must_use]
    pub fn nr_resident(&self, id: u32) -> u32 {
        self.mappings
            .get(id)
            .map_or(0, |mapping| mapping.nr_pages())
    }

    /// Tells `visit` the numbers of all pages of a mapping that are resident, those too that move
    /// to other frames at the same time, and perhaps of some that came or went meanwhile. Holds the
    /// mapping's lock for 64 pages at a time. By one caller of a mapping at a time: two would hide
    /// pages from each other.
    pub fn resident_pages(&self, id: u32, visit: &mut dyn FnMut(u64)) {
        let Some(mapping) = self.mappings.get(id) else {
            return;
        };
        let mut left = mapping.nr_pages();
        while left > 0 {
            let mut some = [None; 64];
            let nr_frames = mapping.rotate(&self.frames, &mut some, left);
            let found = some.into_iter().flatten();
            found.for_each(|key: PageKey| visit(key.page()));
            if nr_frames == 0 {
                break;
            }
            left -= nr_frames;
        }
    }

    /// Takes one page out of its file, if its frame's word is still `seen`. A page that is just
    /// being evicted is left to that eviction.
    fn truncate(
        &self,
        cpu: Cpu,
        (frame, key, seen): (Frame, PageKey, Word),
        effects: &mut Effects,
    ) -> bool {
        let Some(was_contended) = self.take_out((frame, key, seen)) else {
            return false;
        };
        if was_contended {
            self.make_pins(&[frame]);
        }
        // Who waits for the page or its latch finds it gone, also where others keep it pinned.
        if self.drop_own_pin(cpu, frame) || seen.has(flag::WAIT) {
            effects.push(Effect::Wake(frame));
        }
        true
    }

    /// The first part of [`Memory::truncate`]: `Live` to `Detached`, off all lists, with a pin that
    /// keeps the frame for the caller. Says whether there may be claims on it, which the caller
    /// makes pins of before it drops that.
    fn take_out(&self, (frame, key, seen): (Frame, PageKey, Word)) -> Option<bool> {
        if seen.state() != State::Live {
            return None;
        }
        let detached = seen.with_own_pin().with_state(State::Detached);
        let detached = detached.next_version();
        let detached = detached.without(flag::DIRTY | flag::CONTENDED);
        self.frames.replace(frame, seen, detached).ok()?;
        self.left_pins.add(seen.pins());
        self.forget(key, frame);
        self.mapping_of(key)
            .unlist(&self.frames, [frame].into_iter());
        if seen.has(flag::DIRTY) {
            self.count(frame, Gauge::FileDirty, Group::sub_gauge);
        }
        let lruvec = self.lruvec_at(frame);
        let lruvec = lruvec.expect("a live page's group has a lruvec");
        lruvec.lock().remove(&self.frames, frame);
        Some(seen.has(flag::CONTENDED))
    }

    /// The last part, of pages on which there may be claims: for those the CPUs are fenced once.
    fn end_out(&self, cpu: Cpu, contended: &[Frame], run: &mut dyn FnMut(&mut Effects)) {
        if contended.is_empty() {
            return;
        }
        self.make_pins(contended);
        for &frame in contended {
            self.drop_out(cpu, frame, run);
        }
    }

    fn drop_out(&self, cpu: Cpu, frame: Frame, run: &mut dyn FnMut(&mut Effects)) {
        let mut effects = Effects::new();
        if self.drop_own_pin(cpu, frame) {
            effects.push(Effect::Wake(frame));
        }
        run(&mut effects);
    }
}
