//! A magazine's label: all that is said of it, in one word.

use super::rack::ROOM;
use crate::frame::Form;
use crate::units::index;

/// What a magazine is for, whether it was used since the last tick, how many of its blocks are the
/// group's own, how many more it has room for, and how many it may have: form 40, used 1, own 7,
/// left 8, room 8 bits. 0: nothing.
///
/// Blocks whose bytes may not be the group's own lie below the others, so that who takes one of
/// those need not look at its record.
///
/// Made for what is done most: a block more or less is one addition, and one comparison says that a
/// magazine is of a form, was used, and has a block of the group's own. What was not used is
/// looked at with the lock, which notes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Label(u64);

const FORM_SHIFT: u32 = 24;
const _: () = assert!(FORM_SHIFT + Form::NR_BITS == u64::BITS);
const USED: u64 = 1 << (FORM_SHIFT - 1);
const OWN: u64 = 1 << 16;
const OWNS: u64 = USED - OWN;
const LEFT: u64 = 1 << 8;
const LEFTS: u64 = OWN - LEFT;
const ROOMS: u64 = LEFT - 1;
const _: () = assert!((ROOM as u64) * OWN <= OWNS && (ROOM as u64) <= ROOMS);

impl Label {
    /// What is in a magazine's word.
    #[inline]
    pub(super) fn from_bits(bits: u64) -> Label {
        Label(bits)
    }

    /// What is to be there.
    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    pub(super) fn new(form: Form, room: u32) -> Label {
        let room = u64::from(room);
        Label(form.bits() << FORM_SHIFT | USED | (room * LEFT) | room)
    }

    #[inline]
    pub(super) fn is_of(self, form: Form) -> bool {
        self.0 >> FORM_SHIFT == form.bits()
    }

    /// Its numbers, where it is of a form and was used since the last tick; else `USED` and more.
    #[inline]
    fn numbers_for(self, form: Form) -> u64 {
        self.0 ^ (form.bits() << FORM_SHIFT | USED)
    }

    /// Whether it is of a form, was used since the last tick, and has blocks of the group's own.
    #[inline]
    pub(super) fn has_own_for(self, form: Form) -> bool {
        self.numbers_for(form).wrapping_sub(OWN) < OWNS
    }

    /// Whether it is of a form, was used since the last tick, and has room.
    #[inline]
    pub(super) fn has_room_for(self, form: Form) -> bool {
        self.numbers_for(form) < USED && self.has_room()
    }

    pub(super) fn form(self) -> Option<Form> {
        let form = Form::from_bits(self.0 >> FORM_SHIFT);
        (form.group() != 0).then_some(form)
    }

    #[inline]
    pub(super) fn room(self) -> usize {
        index((self.0 & ROOMS) as u32)
    }

    /// Blocks that there is room for beside those that it has.
    #[inline]
    pub(super) fn left(self) -> usize {
        index(((self.0 & LEFTS) / LEFT) as u32)
    }

    #[inline]
    pub(super) fn count(self) -> usize {
        self.room() - self.left()
    }

    /// In which of a magazine's slots the block is that was given back last, of one that has any.
    #[inline]
    pub(super) fn top(self) -> usize {
        self.left()
    }

    /// In which slot the block is before which so many were given back.
    pub(super) fn slot_of(self, number: usize) -> usize {
        self.room() - 1 - number
    }

    /// Of these, those that are nobody's.
    #[inline]
    pub(super) fn nr_nobodys(self) -> usize {
        self.count() - index(((self.0 & OWNS) / OWN) as u32)
    }

    /// Whether the block that comes next is the group's own.
    #[inline]
    pub(super) fn has_own(self) -> bool {
        self.0 & OWNS != 0
    }

    #[inline]
    pub(super) fn has_room(self) -> bool {
        self.0 & LEFTS != 0
    }

    /// Whether it was used since the last tick.
    pub(super) fn is_used(self) -> bool {
        self.0 & USED != 0
    }

    /// As after a tick.
    pub(super) fn unused(self) -> Label {
        Label(self.0 & !USED)
    }

    /// Used since the last tick.
    pub(super) fn used(self) -> Label {
        Label(self.0 | USED)
    }

    /// With a block more, of the group's own; there is room.
    #[inline]
    pub(super) fn with_more(self) -> Label {
        self.with(1)
    }

    /// With so many blocks more, of the group's own; there is room.
    #[inline]
    pub(super) fn with(self, nr_blocks: usize) -> Label {
        Label(self.0 + nr_blocks as u64 * (OWN - LEFT))
    }

    /// With so many of its blocks nobody's.
    pub(super) fn with_nobodys(self, nr_blocks: usize) -> Label {
        let nr_own = (self.count() - nr_blocks) as u64;
        Label(self.0 & !OWNS | (nr_own * OWN))
    }

    /// With so many blocks less, all of those that are nobody's or, where those are told of
    /// afterwards, any.
    pub(super) fn without(self, nr_blocks: usize) -> Label {
        Label(self.0 + nr_blocks as u64 * LEFT)
    }

    /// With a block less, of the group's own; there is one.
    #[inline]
    pub(super) fn with_less(self) -> Label {
        Label(self.0 - (OWN - LEFT))
    }
}
