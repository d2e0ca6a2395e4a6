//! Bringing a page in: an operation that is stepped.

use super::alloc::{Amount, Block};
use super::held::{Held, What};
use super::{AllocError, Effect, Effects, Here, Io, Memory};
use crate::alloc::{Mobility, Request};
use crate::frame::{State, Word, flag};
use crate::group::{Charged, Group};
use crate::page_cache::{self, Access, Found};
use crate::reclaim::{LruvecRecord, Token};
use crate::units::{Cpu, Frame, Order, PageKey};

/// What a step of [`PageIn`] ends with.
#[derive(Debug)]
pub enum Step {
    /// The page is resident and pinned: unpin it after use.
    Done(Frame),
    /// Run the effects, then wait until the frame's version is no longer this, then step again.
    Wait {
        /// The frame that is being read.
        frame: Frame,
        /// Its version now.
        version: u32,
    },
}

/// Why a page did not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// No memory for it.
    Alloc(AllocError),
    /// Its read failed with this code of the runtime's.
    Io(u32),
    /// [`crate::frame::MAX_PINS`] pins are held.
    TooManyPins,
}

/// The operation "have this page, pinned". A value: step it until it is done, or abandon it.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is stepped"]
pub struct PageIn {
    key: PageKey,
    group: u32,
    access: Access,
    mobility: Mobility,
    /// The page is to be moved once, where it is among others that can move.
    may_move: bool,
    /// Somebody has just looked for it in vain.
    is_missing: bool,
    /// The frame whose read it waits for, with a pin on it.
    waits_for: Option<Frame>,
}

impl PageIn {
    /// To have the page `key`, charged to `group` if it must be read.
    pub fn new(key: PageKey, group: u32, access: Access) -> PageIn {
        PageIn {
            key,
            group,
            access,
            mobility: Mobility::Movable,
            may_move: false,
            is_missing: false,
            waits_for: None,
        }
    }

    /// As [`PageIn::new`] for a page that [`Memory::pin`] has just not found: it is looked up where
    /// it is entered, and not before.
    pub fn missing(key: PageKey, group: u32, access: Access) -> PageIn {
        PageIn {
            is_missing: true,
            ..PageIn::new(key, group, access)
        }
    }

    /// The page that is being read into `frame`, with one of its pins.
    pub(super) fn reading(key: PageKey, (group, access): (u32, Access), frame: Frame) -> PageIn {
        PageIn {
            waits_for: Some(frame),
            ..PageIn::new(key, group, access)
        }
    }

    /// As [`PageIn::new`] for a pin that is held for long: the page is brought into an unmovable
    /// pageblock first, or moved there, so that large blocks can be had of the others. Where it is
    /// stays as it is if somebody else has it pinned just now, or no frame can be had there.
    pub fn longterm(key: PageKey, group: u32) -> PageIn {
        PageIn {
            mobility: Mobility::Unmovable,
            may_move: true,
            ..PageIn::new(key, group, Access::Pin)
        }
    }

    /// Which page it brings in.
    #[must_use]
    pub fn key(&self) -> PageKey {
        self.key
    }

    /// Goes as far as it can without waiting.
    ///
    /// # Errors
    /// [`PageError`]; the operation is over and holds nothing.
    pub fn step(
        &mut self,
        memory: &Memory,
        here: Here<'_>,
        effects: &mut Effects,
    ) -> Result<Step, PageError> {
        let frame = loop {
            if let Some(frame) = self.waits_for {
                break frame;
            }
            if core::mem::take(&mut self.is_missing) {
                self.waits_for = self.begin_read(memory, here, effects)?;
                continue;
            }
            match memory.pin(self.key, self.access, |frame| here.unpin(memory, frame)) {
                Found::Pinned(frame) => return Ok(self.end(memory, here, frame, effects)),
                Found::Reading(frame) => {
                    page_cache::count_access(&memory.frames, frame, self.access);
                    self.waits_for = Some(frame);
                }
                Found::Latched(frame) => {
                    if let Some(version) = page_cache::await_open(&memory.frames, frame) {
                        return Ok(Step::Wait { frame, version });
                    }
                }
                Found::TooManyPins => return Err(PageError::TooManyPins),
                Found::Miss => self.waits_for = self.begin_read(memory, here, effects)?,
            }
        };
        // State and version of one look: a read that ended after it has changed the version.
        let word = memory.frames.word(frame);
        if word.state() == State::Reading {
            let version = word.version();
            return Ok(Step::Wait { frame, version });
        }
        self.waits_for = None;
        if word.state() == State::Failed {
            let code = memory.frames.note(frame);
            memory.unpin(here.cpu, frame, effects);
            return Err(PageError::Io(u32::try_from(code).unwrap_or(u32::MAX)));
        }
        Ok(self.end(memory, here, frame, effects))
    }

    /// Ends with a pinned page, or goes on with its move.
    fn end(
        &mut self,
        memory: &Memory,
        here: Here<'_>,
        frame: Frame,
        effects: &mut Effects,
    ) -> Step {
        if !core::mem::take(&mut self.may_move) {
            return Step::Done(frame);
        }
        // Its pin goes with the operation if something unwinds.
        self.waits_for = Some(frame);
        let to = memory.begin_move(here, frame, effects);
        self.waits_for = None;
        let Some(to) = to else {
            return Step::Done(frame);
        };
        self.waits_for = Some(to);
        let version = memory.frames.word(to).version();
        Step::Wait { frame: to, version }
    }

    /// Charges and allocates first, holding no claim; then publishes the frame as `Reading`.
    /// `None` where another thread published the page meanwhile.
    fn begin_read(
        &mut self,
        memory: &Memory,
        here: Here<'_>,
        effects: &mut Effects,
    ) -> Result<Option<Frame>, PageError> {
        // What was remembered of the page comes from memory while a frame is found for it.
        memory.shadows.touch(self.key);
        let mapping = memory.mapping_of(self.key);
        mapping.touch();
        let order = mapping.order();
        let block = match self.mobility {
            Mobility::Unmovable => memory.take_unmovable(here, self.group, order),
            mobility => memory.take_block(here, self.group, order, mobility),
        };
        let Block { frame, was_ours } = block.map_err(PageError::Alloc)?;
        let block = Held::new(memory, here.cpu, What::Block(frame));
        let group = memory.group_with_handle(self.group);
        group.touch_counts();
        let lruvec = memory
            .have_lruvec(here, (self.group, group), frame)
            .map_err(PageError::Alloc)?;
        memory.look_ahead(here);
        block.keep();
        memory.frames.set_page_type(frame, mapping.page_type());
        let Ok(refault) = memory.enter(self.key, (self.group, self.access), frame) else {
            // Lost the race: give ours back.
            memory.put_foreign(here.cpu, frame);
            return Ok(None);
        };
        if let Some(token) = refault {
            memory.mark_workingset(lruvec, frame, token);
        }
        mapping.list(&memory.frames, &[frame]);
        // What nobody waits for is no fault of theirs.
        let nr_faults = u32::from(self.access != Access::Prefetch);
        let (page_type, nr_pages) = (mapping.page_type(), order.nr_pages());
        match here.ahead.filter(|ahead| ahead.is_of(self.group)) {
            Some(ahead) => ahead.begin_read(page_type, nr_pages, nr_faults),
            None => group.begin_read(page_type, nr_pages, nr_faults),
        }
        effects.push(Effect::Read(Io {
            frame,
            key: self.key,
            order,
            was_ours,
            source: None,
        }));
        self.may_move = false;
        Ok(Some(frame))
    }

    /// The page, where its read has ended well: the operation is over, and its pin the caller's.
    #[must_use]
    #[inline]
    pub fn take_live(&mut self, memory: &Memory) -> Option<Frame> {
        let frame = self.waits_for?;
        let is_live = memory.frames.word(frame).state() == State::Live;
        if !is_live || self.may_move {
            return None;
        }
        self.waits_for.take()
    }

    /// Whether it waits for a read or a copy, which end by themselves. Otherwise, after
    /// [`Step::Wait`], it holds nothing and waits for whoever changes the page, or wants to: who
    /// has a pin on the same page would wait for ever.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.waits_for.is_some()
    }

    /// Gives the operation up. A read that is under way goes on without it.
    pub fn abandon(self, memory: &Memory, cpu: Cpu, effects: &mut Effects) {
        if let Some(frame) = self.into_pin() {
            memory.unpin(cpu, frame, effects);
        }
    }

    /// [`PageIn::abandon`] by a caller that drops its pin, where it has one.
    #[must_use]
    pub fn into_pin(self) -> Option<Frame> {
        self.waits_for
    }
}

/// A refault in the note of a frame being read: 0 for none.
pub(super) fn note_of(refault: Option<Token>) -> u64 {
    refault.map_or(0, |token| u64::from(token.bits()) + 1)
}

impl Memory {
    /// The record of a group that a caller has a handle of.
    #[inline]
    fn group_with_handle(&self, id: u32) -> &Group {
        let group = self.groups.get(id);
        group.expect("a group lives while its handle does")
    }

    /// Marks a page that is being read and should not have gone, for those who wait for it.
    #[cold]
    fn mark_workingset(&self, lruvec: &LruvecRecord, frame: Frame, refault: Token) {
        if lruvec.is_workingset(self.frames.page_type(frame), refault) {
            let mark = |word: Word| Some(word.with(flag::WORKINGSET));
            let marked = self.frames.update(frame, mark);
            assert!(marked.is_ok(), "an update without a condition");
        }
    }

    /// Makes room for a page that a [`PageIn`] of the group would bring in and was refused, because
    /// it must not reclaim: goes as far as that, and gives the frame back. Whoever asks next on
    /// this CPU most likely gets it.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn make_room_for(
        &self,
        here: Here<'_>,
        group: u32,
        order: Order,
    ) -> Result<(), AllocError> {
        let nr_pages = order.nr_pages();
        match self.groups.try_charge(here.cpu, group, nr_pages) {
            Ok(Charged::Within) => {}
            // That a limit refuses it was counted when it was refused.
            charged => self.charge(here, group, Amount::Pages(nr_pages), charged)?,
        }
        let request = Request::new(order, Mobility::Movable);
        let Block { frame, was_ours } = self.take_placed(here, group, request)?;
        let block = Held::new(self, here.cpu, What::Block(frame));
        self.have_lruvec(here, (group, self.group_with_handle(group)), frame)?;
        if was_ours {
            // It has the bytes that it had: no others' where the group gets it once more.
            block.keep();
            self.put_block(here.cpu, frame);
        }
        Ok(())
    }

    /// Has what [`Memory::pin`] of these pages looks at first fetched from memory, side by side.
    #[inline]
    pub fn touch_entries(&self, keys: impl Iterator<Item = PageKey>) {
        keys.for_each(|key| self.index.touch(key));
    }

    /// Has what is remembered of a page fetched from memory: for whoever has just not found it, and
    /// brings it in next.
    #[inline]
    pub fn touch_shadow(&self, key: PageKey) {
        self.shadows.touch(key);
    }

    /// The frame that most often holds the page: for a caller who has its record fetched by
    /// [`Memory::touch_record`], and comes to it by [`Memory::pin_in`] soon.
    #[must_use]
    #[inline]
    pub fn likely(&self, key: PageKey) -> Option<Frame> {
        self.index.likely(key)
    }

    /// Has a frame's record fetched from memory.
    #[inline]
    pub fn touch_record(&self, frame: Frame) {
        self.frames.touch(frame);
    }

    /// [`Memory::pin`] of a page for which [`Memory::likely`] told where it may be.
    #[must_use]
    #[inline]
    pub fn pin_in(
        &self,
        likely: Option<Frame>,
        key: PageKey,
        access: Access,
        unpin: impl FnMut(Frame),
    ) -> Found {
        let index = (&self.index, likely);
        page_cache::pin_in(index, &self.frames, key, access, unpin)
    }

    /// Looks a page up and pins it: the hit path. One read-modify-write on a hit.
    ///
    /// `unpin` drops the pin of a frame that turned out to hold another page, which is rare, but
    /// may be asked for more than once.
    #[must_use]
    #[inline]
    pub fn pin(&self, key: PageKey, access: Access, unpin: impl FnMut(Frame)) -> Found {
        page_cache::pin(&self.index, &self.frames, key, access, unpin)
    }

    /// Pins a page once more for the holder of a pin on it, also while others wait to change it;
    /// false where [`crate::frame::MAX_PINS`] pins are held. One read-modify-write.
    #[must_use]
    pub fn pin_again(&self, frame: Frame) -> bool {
        let again = |word: Word| {
            assert!(word.pins() > 0, "{frame:?} is not pinned");
            word.pinned()
        };
        let pinned = self.frames.update(frame, again);
        if pinned.is_ok_and(|before| before.state() == State::Detached) {
            self.left_pins.add(1);
        }
        pinned.is_ok()
    }

    /// Whether a page is resident or being read. A look without pin or lock: it may go at once.
    #[must_use]
    pub fn is_resident(&self, key: PageKey) -> bool {
        self.resident(key).is_some()
    }

    /// Drops a pin. One read-modify-write; the last one frees a frame that lost its page.
    ///
    /// Whoever's pin alone keeps the memory has a share of it meanwhile, or drops the pin by
    /// [`crate::frame::PinnedWord::try_unpin`].
    #[inline]
    pub fn unpin(&self, cpu: Cpu, frame: Frame, effects: &mut Effects) {
        let before = self.frames.unpin(frame);
        if !before.is_quiet() {
            self.unpinned(cpu, frame, before, effects);
        }
    }

    /// The rest of [`Memory::unpin`] after [`FrameTable::unpin`](crate::frame::FrameTable::unpin)
    /// found a word that is not [`Word::is_quiet`].
    #[cold]
    #[inline(never)]
    pub fn unpinned(&self, cpu: Cpu, frame: Frame, before: Word, effects: &mut Effects) {
        if before.state() == State::Detached && self.left_pins.drop_one() {
            effects.push(Effect::LastPin);
        }
        if self.end_pin(cpu, frame, before) {
            effects.push(Effect::Wake(frame));
        }
    }

    /// Drops the pin by which the caller took a page out of its frame: it is in no count. Who wakes
    /// those who wait for the frame does so where this says that.
    pub(super) fn drop_own_pin(&self, cpu: Cpu, frame: Frame) -> bool {
        let before = self.frames.unpin(frame);
        self.end_pin(cpu, frame, before)
    }

    /// After a pin was dropped from a word: whether those who wait for the frame are to be woken.
    #[inline]
    fn end_pin(&self, cpu: Cpu, frame: Frame, before: Word) -> bool {
        if before.pins() > 1 {
            return false;
        }
        if matches!(before.state(), State::Failed | State::Detached) {
            self.reap(cpu, frame);
        }
        before.has(flag::WAIT)
    }
}
