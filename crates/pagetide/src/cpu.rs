//! The CPU that a thread runs on: from the kernel's rseq area, 0.3 ns, else `sched_getcpu`.
#![allow(unsafe_code)]

use crate::rseq;
use crate::topology::list_of;
use pagetide_core::sync::OnCpu;
use pagetide_core::units::Cpu;
use rustix::thread::CpuSet;
use std::fs;

/// The CPU that this thread runs on now. It may be another one at the next instruction.
#[inline(always)] // A load or two: every hit asks.
pub(crate) fn current() -> Cpu {
    rseq::area::cpu().map_or_else(asked, Cpu::new)
}

/// This thread on its CPU, where no call is needed: once the rseq areas were found. Its number is
/// beyond those of all CPUs where the thread has no area.
#[inline(always)]
pub(crate) fn known() -> Option<OnCpu> {
    rseq::area::on_cpu()
}

#[cold]
#[inline(never)]
fn asked() -> Cpu {
    Cpu::new(rseq::area::find_cpu().unwrap_or_else(by_call))
}

fn by_call() -> u32 {
    // SAFETY: the call takes no argument and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

/// CPUs that may ever be there, whether online or not.
pub(crate) fn nr_possible() -> u32 {
    let listed = fs::read_to_string("/sys/devices/system/cpu/possible").ok();
    listed
        .as_deref()
        .and_then(last_of)
        .map_or_else(by_affinity, |last| last + 1)
}

/// CPUs up to the last one that the calling thread may run on, for where `/sys` is hidden. As many
/// as those are too few: a thread that may run on the last one alone has that one's number.
fn by_affinity() -> u32 {
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    let last = allowed.and_then(|set| (0..CpuSet::MAX_CPU).rfind(|&cpu| set.is_set(cpu)));
    let nr_cpus = last.map_or_else(by_parallelism, |last| last + 1);
    u32::try_from(nr_cpus).unwrap_or(1)
}

fn by_parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The largest number in a list like `0-3,8-11`.
fn last_of(list: &str) -> Option<u32> {
    list_of(list)?.pop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_core::units::index;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(last_of("0-3,8-11\n"), Some(11));
        assert_eq!(last_of("0\n"), Some(0));
        assert_eq!(last_of(""), None);
    }

    #[test]
    fn the_number_is_a_possible_one() {
        assert!(current().number() < nr_possible());
        assert!(by_call() < nr_possible());
    }

    #[test]
    fn without_sysfs_the_number_is_one_of_those_that_are_there() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let all = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        // A thread of its own, to be bound.
        let is_below = |cpu: usize| {
            let bound = std::thread::spawn(move || {
                let mut one = CpuSet::new();
                one.set(cpu);
                rustix::thread::sched_setaffinity(None, &one).unwrap();
                by_call() < by_affinity()
            });
            bound.join().unwrap()
        };
        assert!(all.clone().all(is_below));
        assert!(index(by_affinity()) >= all.count());
    }
}
