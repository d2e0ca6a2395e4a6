//! The names of the policies.

use core::fmt;
use core::str::FromStr;

/// A replacement policy, chosen for a memory and for each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    /// First in, first out.
    Fifo,
    /// The default: probation of adaptive size, a protected ring, refaults gated by distance.
    #[default]
    Gated2q,
    /// The multi-gen LRU as Linux 6.12 has it.
    Mglru,
    /// The multi-gen LRU as it has been since Linux 6.14, with the reclaim loop of 2026.
    MglruNext,
    /// The multi-gen LRU as its first patch says.
    MglruSeed,
    /// The classic active and inactive list, with refault distances.
    TwoList,
}

impl Policy {
    /// Every policy.
    pub const ALL: &[Policy] = &[
        Policy::Fifo,
        Policy::Gated2q,
        Policy::Mglru,
        Policy::MglruNext,
        Policy::MglruSeed,
        Policy::TwoList,
    ];
    /// The names of all policies; `default` names the default one everywhere.
    pub const NAMES: &[&str] = &[
        "default",
        "fifo",
        "gated-2q",
        "mglru",
        "mglru-next",
        "mglru-seed",
        "two-list",
    ];

    /// The policy's place in [`Policy::ALL`].
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Policy::Fifo => 0,
            Policy::Gated2q => 1,
            Policy::Mglru => 2,
            Policy::MglruNext => 3,
            Policy::MglruSeed => 4,
            Policy::TwoList => 5,
        }
    }

    /// The policy's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Fifo => "fifo",
            Policy::Gated2q => "gated-2q",
            Policy::Mglru => "mglru",
            Policy::MglruNext => "mglru-next",
            Policy::MglruSeed => "mglru-seed",
            Policy::TwoList => "two-list",
        }
    }

    /// Whether it tells probation and protected pages apart.
    #[must_use]
    pub const fn has_classes(self) -> bool {
        matches!(self, Policy::Gated2q)
    }

    /// Pages that one eviction takes under a limit of `max_pages`.
    #[must_use]
    pub fn batch(self, max_pages: u64) -> u32 {
        let (most, share) = match self {
            Policy::Fifo => (1, 1),
            // Of the multi-gen LRU, 64 is the kernel's batch (`MIN_LRU_BATCH`); smaller ones under
            // small limits keep what is resident near the limit.
            Policy::Gated2q | Policy::Mglru | Policy::MglruNext | Policy::MglruSeed => (64, 64),
            Policy::TwoList => (32, 16),
        };
        u32::try_from(max_pages / share)
            .unwrap_or(u32::MAX)
            .clamp(1, most)
    }
}

/// No policy has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(name: &str) -> Result<Policy, UnknownPolicy> {
        match name {
            "default" => Ok(Policy::default()),
            "fifo" => Ok(Policy::Fifo),
            "gated-2q" => Ok(Policy::Gated2q),
            "mglru" => Ok(Policy::Mglru),
            "mglru-next" => Ok(Policy::MglruNext),
            "mglru-seed" => Ok(Policy::MglruSeed),
            "two-list" => Ok(Policy::TwoList),
            _ => Err(UnknownPolicy),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for &policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert_eq!("default".parse(), Ok(Policy::default()));
        assert_eq!("lru".parse::<Policy>(), Err(UnknownPolicy));
    }
}
