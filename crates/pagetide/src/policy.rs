//! Names of the policies and orders, without core's own types.

use pagetide_core::{alloc, reclaim, units};
use std::fmt;
use std::str::FromStr;

/// Which page goes when a limit is met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// First in, first out.
    Fifo,
    /// A probation queue of adaptive size and a protected ring; a page that comes back is protected
    /// where it did so sooner than the coldest protected one is old. The default.
    #[default]
    Gated2q,
    /// The multi-gen LRU in the form of Linux 6.12.
    Mglru,
    /// The multi-gen LRU as it has been since Linux 6.14.
    MglruNext,
    /// The multi-gen LRU as its first patch says.
    MglruSeed,
    /// The classic active and inactive list, with refault distances.
    TwoList,
}

impl Policy {
    /// The names that [`Policy::from_str`] takes; `default` is the default one.
    pub const NAMES: &[&str] = reclaim::Policy::NAMES;

    pub(crate) const fn from_core(policy: reclaim::Policy) -> Policy {
        match policy {
            reclaim::Policy::Fifo => Policy::Fifo,
            reclaim::Policy::Gated2q => Policy::Gated2q,
            reclaim::Policy::Mglru => Policy::Mglru,
            reclaim::Policy::MglruNext => Policy::MglruNext,
            reclaim::Policy::MglruSeed => Policy::MglruSeed,
            reclaim::Policy::TwoList => Policy::TwoList,
        }
    }

    #[inline]
    pub(crate) const fn to_core(self) -> reclaim::Policy {
        match self {
            Policy::Fifo => reclaim::Policy::Fifo,
            Policy::Gated2q => reclaim::Policy::Gated2q,
            Policy::Mglru => reclaim::Policy::Mglru,
            Policy::MglruNext => reclaim::Policy::MglruNext,
            Policy::MglruSeed => reclaim::Policy::MglruSeed,
            Policy::TwoList => reclaim::Policy::TwoList,
        }
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy '{0}': one of {names}", names = Policy::NAMES.join(", "))]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        let policy = name.parse().map(Policy::from_core);
        policy.map_err(|reclaim::UnknownPolicy| UnknownPolicy(name.to_owned()))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_core().fmt(f)
    }
}

/// What sets how many free pages each CPU keeps close.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tuner {
    /// A fixed number.
    Fixed,
    /// The smaller of alloc and free depth, by periods of a second.
    Depth,
    /// Grows at refills, decays by ticks: the form of Linux 6.7.
    Batch,
    /// Grows by pages given back and taken again: the default.
    #[default]
    Adaptive,
}

impl Tuner {
    #[inline]
    pub(crate) const fn to_core(self) -> alloc::Tuner {
        match self {
            Tuner::Fixed => alloc::Tuner::Fixed,
            Tuner::Depth => alloc::Tuner::Depth,
            Tuner::Batch => alloc::Tuner::Batch,
            Tuner::Adaptive => alloc::Tuner::Adaptive,
        }
    }
}

/// Which nodes serve a group's requests, and in which order. Nodes are numbered as in the
/// [`Topology`](crate::Topology), from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mempolicy {
    /// The caller's node, then the others by distance.
    #[default]
    Local,
    /// These nodes only, nearest first. Of none named: as `Local`.
    Bind(Vec<u32>),
    /// This node, then the others by their distance to it.
    Preferred(u32),
    /// These nodes in turn, one request each; then the others.
    Interleave(Vec<u32>),
    /// These nodes in turn, each for as many requests as its weight; then the others.
    WeightedInterleave(Vec<u32>),
}

/// The size of a block: `4 KiB << order`, 0 (4 KiB) to 10 (4 MiB).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order(units::Order);

impl Order {
    /// The order of this number. [`Order::try_from`] is for numbers from outside.
    ///
    /// # Panics
    /// Above 10.
    #[must_use]
    #[inline]
    pub const fn new(order: u8) -> Order {
        Order(units::Order::new(order).expect("orders are 0 to 10"))
    }

    /// Bytes of a block of this order.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0.bytes()
    }

    #[inline]
    pub(crate) const fn to_core(self) -> units::Order {
        self.0
    }
}

/// No block has this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no order {0}: a block has an order of 0 to 10, 4 KiB to 4 MiB")]
pub struct BadOrder(u8);

impl TryFrom<u8> for Order {
    type Error = BadOrder;

    fn try_from(order: u8) -> Result<Order, BadOrder> {
        units::Order::new(order).map(Order).ok_or(BadOrder(order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_from_outside() {
        assert_eq!(Order::try_from(10).unwrap().bytes(), 4 << 20);
        let refused = Order::try_from(11).unwrap_err().to_string();
        assert_eq!(
            refused,
            "no order 11: a block has an order of 0 to 10, 4 KiB to 4 MiB"
        );
    }
}
