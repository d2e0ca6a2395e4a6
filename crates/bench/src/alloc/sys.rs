//! What the system says and does without a safe form in `std`: CPUs, CPU time, the alarm.
#![allow(unsafe_code)]

use pagetide_core::units::Cpu;
use std::sync::OnceLock;
use std::time::Duration;

/// Offset of `cpu_id` in the area.
const CPU_ID: isize = 4;

/// CPUs that may ever be there.
pub fn nr_possible() -> u32 {
    // SAFETY: the call takes a number and touches no memory of ours.
    let nr_cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u32::try_from(nr_cpus).expect("glibc counts the CPUs")
}

/// The CPU time of this thread.
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock of the calling thread is always there, and `time` is ours to write.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "a thread has a clock");
    let part = |value: i64| u64::try_from(value).expect("CPU time is not negative");
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

/// Has the kernel end this process after `seconds`, unless it is called again before.
pub fn set_alarm(seconds: u32) {
    // SAFETY: the call takes a number and touches no memory of ours.
    unsafe { libc::alarm(seconds) };
}

/// The CPU that this thread runs on now, read as crate `pagetide` reads it: from glibc's rseq area.
pub fn current_cpu() -> Cpu {
    Cpu::new(rseq().expect("glibc registers an rseq area"))
}

/// Where the area lies, seen from the thread pointer.
fn offset() -> Option<isize> {
    static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        // SAFETY: the name is a C string, and the default scope is always there.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
        // SAFETY: glibc defines `__rseq_offset` as a constant `ptrdiff_t`.
        (!found.is_null()).then(|| unsafe { found.cast::<isize>().read() })
    })
}

#[cfg(target_arch = "x86_64")]
fn rseq() -> Option<u32> {
    let field = offset()? + CPU_ID;
    let cpu: i32;
    // SAFETY: glibc has an area at this offset from the thread pointer (`fs`) of every thread, for
    // as long as the thread lives; this is one load of a field that the kernel keeps current.
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
