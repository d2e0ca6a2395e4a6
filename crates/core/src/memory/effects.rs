//! What core wants done: values that the caller runs with no lock of core held.

use crate::units::{Frame, Order, PageKey};

/// A read that core asked for, or a copy. Whoever runs it gives it back to `Memory::complete`.
#[derive(Debug)]
#[must_use = "an I/O that is not completed leaves its page being read for ever"]
pub struct Io {
    pub(super) frame: Frame,
    pub(super) key: PageKey,
    pub(super) order: Order,
    pub(super) was_ours: bool,
    pub(super) source: Option<Frame>,
}

impl Io {
    /// Where the bytes go. The holder of this value alone may touch them.
    #[must_use]
    pub fn frame(&self) -> Frame {
        self.frame
    }

    /// Which page to read.
    #[must_use]
    pub fn key(&self) -> PageKey {
        self.key
    }

    /// Whether the frame's old bytes are the group's own: otherwise whoever might leave some of
    /// them there zeroes them first.
    #[must_use]
    pub fn was_ours(&self) -> bool {
        self.was_ours
    }

    /// The order of the page.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// The frame that holds the page's bytes already, of a page that moves. It is pinned by this
    /// value, and nobody writes to it.
    #[must_use]
    pub fn source(&self) -> Option<Frame> {
        self.source
    }
}

/// One thing to do.
#[derive(Debug)]
pub enum Effect {
    /// Read a page into its frame, then complete it.
    Read(Io),
    /// Copy a page from [`Io::source`] into its frame, then complete it.
    Copy(Io),
    /// Wake all who wait for this frame.
    Wake(Frame),
    /// Nobody needs the memory any more: it was abandoned ([`super::Memory::abandon`]), and its
    /// last pin was dropped.
    LastPin,
}

/// Effects that one call of core may leave.
const ROOM: usize = 4;

/// A bounded list of effects, owned by the caller and emptied between calls.
#[derive(Debug, Default)]
#[must_use = "effects have to be run"]
pub struct Effects {
    effects: [Option<Effect>; ROOM],
    /// Effects there are: a hit leaves none, and who looks for them sees that at once.
    len: usize,
}

impl Effects {
    /// An empty list.
    pub fn new() -> Effects {
        Effects::default()
    }

    /// Adds an effect.
    ///
    /// # Panics
    /// Where the caller did not run the earlier ones.
    pub(super) fn push(&mut self, effect: Effect) {
        let room = self.effects.iter_mut().find(|slot| slot.is_none());
        *room.expect("effects are run after every call") = Some(effect);
        self.len += 1;
    }

    /// Takes the next effect to run.
    #[inline]
    pub fn pop(&mut self) -> Option<Effect> {
        match self.len {
            0 => None,
            _ => self.take(),
        }
    }

    /// Takes a read or a copy, before whatever else is there. A step leaves one at most.
    #[inline]
    pub fn pop_io(&mut self) -> Option<Io> {
        let is_io =
            |slot: &&mut Option<Effect>| matches!(slot, Some(Effect::Read(_) | Effect::Copy(_)));
        let slot = self.effects.iter_mut().find(is_io)?;
        let Some(Effect::Read(io) | Effect::Copy(io)) = slot.take() else {
            unreachable!("looked at just now")
        };
        self.len -= 1;
        Some(io)
    }

    #[cold]
    #[inline(never)]
    fn take(&mut self) -> Option<Effect> {
        self.len -= 1;
        self.effects.iter_mut().find_map(Option::take)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_taken_before_what_came_first_and_nothing_else_with_it() {
        let mut effects = Effects::new();
        let [first, read, last] = [1, 2, 3].map(Frame::new);
        effects.push(Effect::Wake(first));
        effects.push(Effect::Read(Io {
            frame: read,
            key: PageKey::new(1, 0).unwrap(),
            order: Order::ZERO,
            was_ours: true,
            source: None,
        }));
        effects.push(Effect::Wake(last));
        assert_eq!(effects.pop_io().map(|io| io.frame()), Some(read));
        assert!(effects.pop_io().is_none());
        for left in [first, last] {
            assert!(matches!(effects.pop(), Some(Effect::Wake(frame)) if frame == left));
        }
        assert!(effects.pop().is_none() && effects.len == 0);
    }
}
