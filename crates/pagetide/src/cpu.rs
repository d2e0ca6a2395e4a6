//! The CPU that a thread runs on: from the kernel's rseq area, 0.3 ns, else `sched_getcpu`.
#![allow(unsafe_code)]

use crate::topology::list_of;
use pagetide_core::units::Cpu;
use std::fs;

/// The CPU that this thread runs on now. It may be another one at the next instruction.
#[inline(always)] // A load or two: every hit asks.
pub(crate) fn current() -> Cpu {
    known().unwrap_or_else(asked)
}

/// The same where no call is needed: from the rseq area of a thread, once that was found.
#[inline(always)]
pub(crate) fn known() -> Option<Cpu> {
    rseq::cpu().map(Cpu::new)
}

#[cold]
#[inline(never)]
fn asked() -> Cpu {
    Cpu::new(rseq::find_cpu().unwrap_or_else(by_call))
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
        .map_or_else(by_parallelism, |last| last + 1)
}

fn by_parallelism() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
}

/// The largest number in a list like `0-3,8-11`.
fn last_of(list: &str) -> Option<u32> {
    list_of(list)?.pop()
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod rseq {
    //! glibc registers an rseq area for every thread; the kernel keeps its CPU number current.

    use std::sync::atomic::{AtomicIsize, Ordering};

    /// Offset of `cpu_id` in the area.
    const CPU_ID: isize = 4;
    /// Bytes of the area that glibc must have registered for `cpu_id` to be there.
    const LEAST_SIZE: u32 = 8;

    /// Where the field lies, seen from the thread pointer: too aligned to be one of the two below.
    static FIELD: AtomicIsize = AtomicIsize::new(UNKNOWN);
    /// Nobody asked yet.
    const UNKNOWN: isize = 0;
    /// There is none.
    const NONE: isize = 1;

    /// Asks glibc, once.
    fn find() {
        let field = offset().map_or(NONE, |offset| offset + CPU_ID);
        FIELD.store(field, Ordering::Relaxed);
    }

    /// [`cpu`], of which glibc may have to be asked first.
    pub(super) fn find_cpu() -> Option<u32> {
        if FIELD.load(Ordering::Relaxed) == UNKNOWN {
            find();
        }
        cpu()
    }

    /// Where the area lies, seen from the thread pointer; `None` where glibc has none.
    fn offset() -> Option<isize> {
        let size = symbol(c"__rseq_size")?.cast::<u32>();
        let offset = symbol(c"__rseq_offset")?.cast::<isize>();
        // SAFETY: glibc defines `__rseq_size` as a constant `unsigned int`.
        let size = unsafe { size.read() };
        // SAFETY: glibc defines `__rseq_offset` as a constant `ptrdiff_t`.
        let offset = unsafe { offset.read() };
        (size >= LEAST_SIZE).then_some(offset)
    }

    fn symbol(name: &std::ffi::CStr) -> Option<*const libc::c_void> {
        // SAFETY: the name is a C string, and the default scope is always there.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found.cast_const())
    }

    #[inline(always)] // A load or two: every hit asks.
    pub(super) fn cpu() -> Option<u32> {
        let field = FIELD.load(Ordering::Relaxed);
        if field == UNKNOWN || field == NONE {
            return None;
        }
        let cpu: i32;
        // SAFETY:
        // 1. glibc registered an area of at least `LEAST_SIZE` bytes at this offset from the thread
        //    pointer (`fs`) of every thread (checked in `offset`, from which `find` has it), and it
        //    lives as long as that.
        // 2. The kernel writes the field between instructions of this thread only; one load.
        unsafe {
            core::arch::asm!(
                "mov {cpu:e}, dword ptr fs:[{field}]",
                cpu = out(reg) cpu,
                field = in(reg) field,
                options(nostack, preserves_flags, readonly),
            );
        }
        // Negative where this thread's area is not registered.
        u32::try_from(cpu).ok()
    }
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
mod rseq {
    //! No rseq area that this build knows to read.

    pub(super) fn cpu() -> Option<u32> {
        None
    }

    pub(super) fn find_cpu() -> Option<u32> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
