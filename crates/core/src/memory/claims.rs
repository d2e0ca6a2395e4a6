//! Claims on pages that readers on several CPUs use, for all rooms together.

use super::{Effects, Here, Memory};
use crate::frame::{State, Word};
use crate::page_cache::{self, Access, Claim, Claims, Found};
use crate::units::{Cpu, Frame, PageKey};

impl Memory {
    /// [`Memory::pin`], but a contended page may be held by a claim of this CPU's: where there is
    /// one, it is what holds the page that was found, and goes back by [`Memory::give_up`]. Then
    /// the page's state word is changed to mark it as used, if it is not marked, and not else.
    ///
    /// `likely` is told of the frame that most often holds the page, for it to fetch the bytes.
    /// `unpin` drops the pin of a frame that turned out to hold another page, which is rare.
    #[must_use]
    #[inline]
    pub fn hold(
        &self,
        cpu: Cpu,
        wish: (PageKey, Access),
        likely: impl FnOnce(Frame),
        unpin: impl FnMut(Frame),
    ) -> (Found, Option<Claim>) {
        let claims = Some((&self.claims, cpu));
        page_cache::hold(&self.index, &self.frames, claims, wish, likely, unpin)
    }

    /// Gives back what held a page by a claim. One read-modify-write, but in a section none; one
    /// more where the claim became a pin, which is dropped as by [`Memory::unpin`].
    #[inline]
    pub fn give_up(&self, cpu: Cpu, (frame, claim): (Frame, Claim), effects: &mut Effects) {
        if self.claims.give_up(frame, claim) {
            self.unpin(cpu, frame, effects);
        }
    }

    /// Makes a claim the caller's pin; false where [`crate::frame::MAX_PINS`] pins are held: the
    /// claim stays one. Two read-modify-writes.
    #[must_use]
    pub fn keep(&self, cpu: Cpu, (frame, claim): (Frame, Claim), effects: &mut Effects) -> bool {
        let Ok(before) = self.frames.update(frame, Word::pinned) else {
            return false;
        };
        if before.state() == State::Detached {
            self.left_pins.add(1);
        }
        self.give_up(cpu, (frame, claim), effects);
        true
    }

    /// Has readers claim a page from here on, as if its word went from CPU to CPU.
    pub fn contend(&self, key: PageKey) {
        if let Some(frame) = self.resident(key) {
            page_cache::contend(&self.frames, frame);
        }
    }

    /// The claims, for looking at.
    #[must_use]
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Makes pins of all claims; whether there was one. Looks at each CPU's line, and fences those
    /// that have sections, for each.
    #[cold]
    pub(super) fn pin_claimed(&self, here: Here<'_>) -> bool {
        let mut is_any = false;
        for frame in self.claims.frames() {
            if self.frames.update(frame, Word::ending_claims).is_ok() {
                self.make_pins(&[frame]);
                here.unpin(self, frame);
                is_any = true;
            }
        }
        is_any
    }

    /// Makes pins of the claims on a page that the caller has pinned.
    pub(super) fn end_claims(&self, frame: Frame) {
        let count = |is_more| self.count_left(is_more);
        self.claims.end(&self.frames, frame, count);
    }

    /// [`Memory::end_claims`] of pages that the caller has made ones that are not contended.
    pub(super) fn make_pins(&self, of: &[Frame]) {
        let count = |is_more| self.count_left(is_more);
        self.claims.make_pins(&self.frames, of, count);
    }

    fn count_left(&self, is_more: bool) {
        match is_more {
            true => self.left_pins.add(1),
            false => self.left_pins.take_back(),
        }
    }
}
