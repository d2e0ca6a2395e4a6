//! Memories that are as large as what a test looks at needs on a machine of so many CPUs.

use pagetide::{ByteSize, Topology};

/// So much for each CPU, and for two at least: each has its part of the charges that wait ahead.
pub(crate) fn budget(of_each: ByteSize) -> ByteSize {
    let nr_cpus = Topology::of_machine().nr_cpus().max(2);
    ByteSize(of_each.as_u64() * u64::from(nr_cpus))
}

/// What the records of CPUs take that a machine of few has not: each some 14 KiB.
pub(crate) fn bytes_of_more() -> u64 {
    let nr_more = Topology::of_machine().nr_cpus().saturating_sub(32);
    u64::from(nr_more) << 14
}

/// What so many MiB are on a machine of few CPUs.
pub(crate) fn mib(mib: u64) -> ByteSize {
    ByteSize(ByteSize::mib(mib).as_u64() + bytes_of_more())
}

/// Two CPUs, whatever the machine has: for more of them an arena has more frames beyond its budget,
/// a small one several blocks of 2 MiB.
pub(crate) fn two() -> Topology {
    Topology::grid(1, 2).unwrap()
}
