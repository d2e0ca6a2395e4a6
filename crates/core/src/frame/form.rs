//! What kind of block working memory is, as the last word of its record says it.

use super::{high, low, pack};
use crate::units::Order;

/// The group that a block is charged to, and its order.
///
/// It is the last word of the block's record while the block is out and has no page, so that nobody
/// has to take it apart, and stays that while it waits in a magazine, but for the group where its
/// bytes are nobody's. Another record's last word may have bits above these: then it is that of
/// no such block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form(u64);

impl Form {
    /// Bits that it has, from the lowest on: group 32, order 8.
    pub const NR_BITS: u32 = 40;

    /// That of blocks of `order`, charged to `group`.
    #[must_use]
    #[inline]
    pub const fn new(group: u32, order: Order) -> Form {
        Form(pack(order.get() as u32, group))
    }

    /// From what [`Form::bits`] gave, or any record's last word.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Form {
        Form(bits)
    }

    /// As one word.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The same of nobody.
    pub(crate) const fn nobodys(self) -> Form {
        Form(pack(high(self.0), 0))
    }

    /// The group.
    #[must_use]
    #[inline]
    pub const fn group(self) -> u32 {
        low(self.0)
    }

    /// The order.
    ///
    /// # Panics
    /// Where it is not that of a block that is out.
    #[must_use]
    pub fn order(self) -> Order {
        let order = u8::try_from(high(self.0)).ok().and_then(Order::new);
        order.expect("the form of a block that is out")
    }
}
