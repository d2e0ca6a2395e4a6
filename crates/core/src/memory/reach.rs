//! What reclaim may take, and for whom.

use crate::units::NodeMask;

/// On whose behalf pages are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reclaimer {
    /// A request that needs memory.
    Direct,
    /// The worker of a node, before somebody needs it.
    Background,
    /// The program, by its own choice.
    Proactive,
}

impl Reclaimer {
    /// How many there are.
    pub(super) const NR: usize = Reclaimer::Proactive as usize + 1;
}

/// What may be taken from, and for whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// A group and those below it.
    pub(super) subtree: u32,
    /// Where their frames are.
    pub(super) nodes: NodeMask,
    pub(super) by: Reclaimer,
    /// Whether groups keep what their `low` protects.
    pub(super) is_low_kept: bool,
    /// Whether they keep pages younger than [`super::Config::min_ttl_ns`].
    pub(super) is_young_kept: bool,
    /// Whether no more is taken than was asked for.
    pub(super) is_exact: bool,
    /// What bringing back a page of a file costs; `None`: as the subtree's group says.
    pub(super) swappiness: Option<u8>,
}

impl Reach {
    /// A request's reach in a subtree, wherever its pages are.
    pub(super) const fn of(subtree: u32) -> Reach {
        Reach {
            subtree,
            nodes: NodeMask::ALL,
            by: Reclaimer::Direct,
            is_low_kept: true,
            is_young_kept: false,
            is_exact: false,
            swappiness: None,
        }
    }

    /// The same with another swappiness than the subtree's, where one is named.
    pub(super) const fn at(self, swappiness: Option<u8>) -> Reach {
        Reach { swappiness, ..self }
    }

    /// The same, where groups keep what came lately.
    pub(super) const fn keeping_young(self) -> Reach {
        Reach {
            is_young_kept: true,
            ..self
        }
    }

    /// The same, where no more is taken than was asked for.
    pub(super) const fn exactly(self) -> Reach {
        Reach {
            is_exact: true,
            ..self
        }
    }

    /// The same by somebody else.
    pub(super) const fn by(self, by: Reclaimer) -> Reach {
        Reach { by, ..self }
    }

    /// The same, where it is on these nodes.
    pub(super) const fn on(self, nodes: NodeMask) -> Reach {
        Reach { nodes, ..self }
    }
}
