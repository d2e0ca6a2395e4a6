//! Exclusive access to the bytes of a page, for those who change them.

use super::{Effect, Effects, Io, Memory};
use crate::frame::{State, Word, flag};
use crate::group::{Gauge, Group};
use crate::page_cache::{self, Access, Latched, Unwanted};
use crate::units::{Cpu, Frame, PageKey};

impl Memory {
    /// Asks for the latch of a page: while it is held, nobody else sees or changes its bytes, and
    /// it neither goes nor is written. Who gets it has used the page by this access. One
    /// read-modify-write where nobody has the page pinned.
    ///
    /// Who gets [`Latched::Busy`] waits while [`Memory::is_held`], then asks again, or gives up by
    /// [`Memory::withdraw`]. The holder of a pin on this page waits for ever.
    ///
    /// `run` gets the effects of giving back what turned out to be another page's, which is rare,
    /// but may be asked for more than once.
    #[must_use]
    pub fn latch(
        &self,
        cpu: Cpu,
        asked: (PageKey, Access),
        mut run: impl FnMut(&mut Effects),
    ) -> Latched {
        page_cache::latch(&self.index, &self.frames, asked, |frame, unwanted| {
            let mut effects = Effects::new();
            match unwanted {
                Unwanted::Latch => self.unlatch(cpu, frame, false, &mut effects),
                Unwanted::Wish => self.withdraw(frame, &mut effects),
                Unwanted::Claims => {
                    self.make_pins(&[frame]);
                    self.unpin(cpu, frame, &mut effects);
                }
            }
            run(&mut effects);
        })
    }

    /// Makes the caller's pin on a page the latch; false where it is not the only pin or the page
    /// is being written: the pin stays one.
    #[must_use]
    pub fn upgrade(&self, frame: Frame) -> bool {
        self.end_claims(frame);
        page_cache::upgrade(&self.frames, frame)
    }

    /// Gives a latch back, of a page that is dirty now where `is_dirty`. A page that left its file
    /// meanwhile stays clean, and goes.
    pub fn unlatch(&self, cpu: Cpu, frame: Frame, is_dirty: bool, effects: &mut Effects) {
        self.set_dirty_latched(frame, is_dirty);
        let before = page_cache::unlatch(&self.frames, frame);
        if before.has(flag::WAIT) {
            effects.push(Effect::Wake(frame));
        }
        if before.state() == State::Detached {
            if self.left_pins.drop_one() {
                effects.push(Effect::LastPin);
            }
            self.reap(cpu, frame);
        }
    }

    /// Makes a latch the caller's pin, as [`Memory::unlatch`] and a pin that nobody gets between.
    pub fn downgrade(&self, frame: Frame, is_dirty: bool, effects: &mut Effects) {
        self.set_dirty_latched(frame, is_dirty);
        if page_cache::downgrade(&self.frames, frame).has(flag::WAIT) {
            effects.push(Effect::Wake(frame));
        }
    }

    fn set_dirty_latched(&self, frame: Frame, is_dirty: bool) {
        // Only truncation changes the flag while the latch is held: then it must stay off.
        if is_dirty && !self.frames.word(frame).has(flag::DIRTY) {
            self.set_dirty(frame);
        }
    }

    /// Ends a wait for a latch without it: pins come in again.
    pub fn withdraw(&self, frame: Frame, effects: &mut Effects) {
        page_cache::withdraw(&self.frames, frame);
        effects.push(Effect::Wake(frame));
    }

    /// Whether what kept the caller of [`Memory::latch`] out of a frame with this version still
    /// does.
    #[must_use]
    pub fn is_held(&self, frame: Frame, version: u32) -> bool {
        let word = self.frames.word(frame);
        let is_busy = word.pins() > 0 || word.has_any(flag::LATCH | flag::WRITEBACK);
        is_busy && word.state() == State::Live && word.version() == version
    }

    /// Whether the page in a frame is being written.
    #[must_use]
    pub fn is_in_writeback(&self, frame: Frame) -> bool {
        self.frames.word(frame).has(flag::WRITEBACK)
    }

    /// The frame of a page whose bytes somebody changes, and the version to wait for.
    #[must_use]
    pub fn await_unlatched(&self, key: PageKey) -> Option<(Frame, u32)> {
        let frame = self.resident(key)?;
        if !self.frames.word(frame).has(flag::LATCH) || self.frames.key(frame) != Some(key) {
            return None;
        }
        let version = page_cache::await_latch(&self.frames, frame)?;
        Some((frame, version))
    }

    /// Whether somebody changes the bytes of the page in a frame.
    #[must_use]
    pub fn is_latched(&self, frame: Frame) -> bool {
        self.frames.word(frame).has(flag::LATCH)
    }

    /// Marks a page dirty whose bytes did not come from its file: it is dirty from the moment that
    /// it can be seen. Whoever runs the read calls this before [`Memory::complete`], which then
    /// gets no error.
    pub fn set_dirty_early(&self, io: &Io) {
        let frame = io.frame();
        let dirty = |word: Word| (!word.has(flag::DIRTY)).then(|| word.with(flag::DIRTY));
        if self.frames.update(frame, dirty).is_ok() {
            self.count(frame, Gauge::FileDirty, Group::add_gauge);
        }
    }
}
