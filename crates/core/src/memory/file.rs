//! Mappings: opened, and closed with all their pages.

use super::{Effects, Here, Memory};
use crate::frame::{State, Word, flag};
use crate::group::{Gauge, Group};
use crate::sync::NoMetadata;
use crate::units::{Cpu, Frame, Order, PageType};

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
        while let Some(frame) = mapping.any() {
            let mut effects = Effects::new();
            self.truncate(cpu, frame, &mut effects);
            run(&mut effects);
        }
        self.mappings.close(id);
    }

    /// Takes one page out of its file: `Live` to `Detached`, with a pin that keeps the frame until
    /// its entry and its places on lists are gone. A page that is just being evicted is left to
    /// that eviction.
    fn truncate(&self, cpu: Cpu, frame: Frame, effects: &mut Effects) {
        let detached = self.frames.update(frame, |word: Word| {
            let pinned = word.pinned().filter(|_| word.state() == State::Live);
            let detached = pinned.map(|word| word.with_state(State::Detached).next_version());
            detached.map(|word| word.without(flag::DIRTY))
        });
        let Ok(before) = detached else {
            core::hint::spin_loop();
            return;
        };
        let key = self.frames.key(frame).expect("a live frame holds a page");
        self.forget(key, frame);
        self.mapping_of(key)
            .unlist(&self.frames, [frame].into_iter());
        if before.has(flag::DIRTY) {
            self.count(frame, Gauge::FileDirty, Group::sub_gauge);
        }
        let lruvec = self.lruvec_at(frame);
        let lruvec = lruvec.expect("a live page's group has a lruvec");
        lruvec.lock().remove(&self.frames, frame);
        self.unpin(cpu, frame, effects);
    }
}
