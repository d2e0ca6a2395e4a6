//! A magazine's label: all that is said of it, in one word.

use super::rack::ROOM;
use crate::frame::Form;
use crate::units::index;

/// What a magazine is for, whether it was used since the last tick, how many of its blocks are the
/// group's own, and its slots: that of the block that comes next, and the first one, as many before
/// the last as it has room for. Form 40, used 1, own 7, next 8, first 8 bits. 0: nothing.
///
/// Blocks whose bytes may not be the group's own lie below the others, so that who takes one of
/// those need not look at its record.
///
/// Made for what is done most: a block more or less is one addition, and one comparison says that a
/// magazine is of a form, was used, and has a block of the group's own, or has room. What was not
/// used is looked at with the lock, which notes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Label(u64);

const FORM_SHIFT: u32 = 24;
const _: () = assert!(FORM_SHIFT + Form::NR_BITS == u64::BITS);
const USED: u64 = 1 << (FORM_SHIFT - 1);
const OWN: u64 = 1 << 16;
const OWNS: u64 = USED - OWN;
const NEXT: u64 = 1 << 8;
const NEXTS: u64 = OWN - NEXT;
const FIRSTS: u64 = NEXT - 1;
/// All slots are taken: a bit of its own among the numbers of the next one.
const FULL: u64 = ROOM as u64 * NEXT;
const _: () = assert!(ROOM.is_power_of_two() && FULL <= NEXTS);
const _: () = assert!((ROOM as u64) * OWN <= OWNS && (ROOM as u64) <= FIRSTS);

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

    /// That of an empty magazine with room for so many blocks, at most [`ROOM`].
    pub(super) fn new(form: Form, room: u32) -> Label {
        let first = u64::from(ROOM - room);
        Label(form.bits() << FORM_SHIFT | USED | (first * NEXT) | first)
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
        self.numbers_for(form) & (!(USED - 1) | FULL) == 0
    }

    pub(super) fn form(self) -> Option<Form> {
        let form = Form::from_bits(self.0 >> FORM_SHIFT);
        (form.group() != 0).then_some(form)
    }

    fn first(self) -> usize {
        index((self.0 & FIRSTS) as u32)
    }

    /// In which of a magazine's slots the block is put that comes next; beyond them where it is
    /// full. The block that was given back last was in that of the label without it.
    #[inline]
    pub(super) fn next(self) -> usize {
        index(((self.0 & NEXTS) / NEXT) as u32)
    }

    pub(super) fn room(self) -> usize {
        index(ROOM) - self.first()
    }

    #[inline]
    pub(super) fn count(self) -> usize {
        self.next() - self.first()
    }

    /// In which slot the block is before which so many were given back.
    pub(super) fn slot_of(self, number: usize) -> usize {
        self.first() + number
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
        self.0 & FULL == 0
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
        Label(self.0 + nr_blocks as u64 * (OWN + NEXT))
    }

    /// With so many of its blocks nobody's.
    pub(super) fn with_nobodys(self, nr_blocks: usize) -> Label {
        let nr_own = (self.count() - nr_blocks) as u64;
        Label(self.0 & !OWNS | (nr_own * OWN))
    }

    /// With so many blocks less, all of those that are nobody's or, where those are told of
    /// afterwards, any.
    pub(super) fn without(self, nr_blocks: usize) -> Label {
        Label(self.0 - nr_blocks as u64 * NEXT)
    }

    /// With a block less, of the group's own; there is one.
    #[inline]
    pub(super) fn with_less(self) -> Label {
        Label(self.0 - (OWN + NEXT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Order;

    #[test]
    fn a_magazine_takes_blocks_until_it_is_full_and_gives_its_own_until_none_is_left() {
        let form = Form::new(7, Order::ZERO);
        let other = Form::new(8, Order::ZERO);
        for room in 1..=ROOM {
            let mut label = Label::new(form, room);
            assert!(!label.has_own_for(form), "an empty one");
            for number in 0..index(room) {
                assert!(label.has_room_for(form) && !label.has_room_for(other));
                assert_eq!(
                    [label.count(), label.slot_of(number)],
                    [number, label.next()]
                );
                label = label.with_more();
                assert!(label.has_own_for(form) && !label.has_own_for(other));
            }
            assert!(!label.has_room() && !label.has_room_for(form), "a full one");
            assert_eq!([label.count(), label.room()], [index(room); 2]);
            assert!(
                !label.unused().has_own_for(form),
                "not used since the last tick"
            );
            assert!(!label.with_less().unused().has_room_for(form));
            let nobodys = label.with_nobodys(1);
            assert_eq!([nobodys.count(), nobodys.nr_nobodys()], [index(room), 1]);
            let last = (1..room).fold(nobodys, |label, _| label.with_less());
            assert!(
                !last.has_own_for(form) && last.count() == 1,
                "it is nobody's"
            );
            assert_eq!(last.without(1), Label::new(form, room));
        }
    }
}
