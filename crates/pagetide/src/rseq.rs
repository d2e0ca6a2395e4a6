//! Restartable sequences: the area that glibc registers for every thread, and the kernel's fence.
//! Core runs them (`core/src/sync/sections.rs`).
#![allow(unsafe_code)]

use crate::{Builder, Memory, Topology, cpu};
use pagetide_core::sync::Sections;

impl Builder {
    /// Whether a buffer is taken and given back, and a page that is used often pinned and dropped,
    /// in a restartable sequence of its CPU, where the machine has them, in the place of locks and
    /// exchanges: two read-modify-writes less. True by default.
    ///
    /// Whoever needs what another CPU keeps, or such a page for itself (to evict, change, move or
    /// truncate it), then has the kernel fence that CPU, or all (`membarrier`, about a
    /// microsecond), which interrupts it where a thread of the process runs there. Isolated CPUs
    /// ([`Builder::isolated_cpus`]) have locks and exchanges.
    ///
    /// Turn it off where the program forbids itself `membarrier` later, as by seccomp: whoever
    /// would need the fence then panics.
    pub fn restartable_sequences(mut self, is_on: bool) -> Builder {
        self.has_rseq = is_on;
        self
    }
}

impl Memory {
    /// Why nothing is done in restartable sequences, where nothing is: `None` where they are used
    /// on all CPUs but isolated ones ([`Builder::restartable_sequences`]).
    #[must_use]
    pub fn without_rseq(&self) -> Option<&'static str> {
        match self.home().core.config().sections {
            Some(_) => None,
            None => Some(sections(self.topology()).err().unwrap_or("as asked")),
        }
    }
}

/// How threads of this process run restartable sequences; else why they cannot. Cost: two system
/// calls.
pub(crate) fn sections(topology: &Topology) -> Result<Sections, &'static str> {
    // What several CPUs share is no CPU's own.
    if topology.nr_cpus() < cpu::nr_possible() {
        return Err("the topology has fewer CPUs than the machine");
    }
    machine::sections()
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod machine {
    use super::area;
    use pagetide_core::sync::Sections;
    use pagetide_core::units::Cpu;
    use std::io;

    // Source: membarrier(2), `linux/membarrier.h`.
    const PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 7;
    const REGISTER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 8;
    const FLAG_CPU: libc::c_int = 1;

    pub(super) fn sections() -> Result<Sections, &'static str> {
        let cpu = area::find_cpu().ok_or("glibc has registered no area for it")?;
        let offset = area::offset().ok_or("glibc has registered no area for it")?;
        let is_there = membarrier(REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0)
            .and_then(|()| membarrier(PRIVATE_EXPEDITED_RSEQ, FLAG_CPU, cpu));
        is_there.map_err(|_| "the kernel has no `membarrier` for one CPU, or forbids it")?;
        // SAFETY:
        // 1. glibc registered an area with this signature at this offset from the thread pointer
        //    of every thread that it started, and says so by its size (`area::offset`); where it
        //    did not, `cpu_id` is negative.
        // 2. Others may use the area for sections of their own, as rseq(2) says.
        // 3. membarrier(2) says it of sections. It interrupts every thread that runs, between two
        //    of its instructions, and others began to wait before: either is a full barrier.
        Ok(unsafe { Sections::new(offset, fence) })
    }

    /// Whoever was in a section on a CPU, or on any, has ended it, or never will.
    fn fence(cpu: Option<Cpu>) {
        let fenced = match cpu {
            Some(cpu) => membarrier(PRIVATE_EXPEDITED_RSEQ, FLAG_CPU, cpu.number()),
            None => membarrier(PRIVATE_EXPEDITED_RSEQ, 0, 0),
        };
        // For good: what is in a section may not be looked at.
        fenced.expect("`membarrier`, which the kernel allowed before, is refused now");
    }

    fn membarrier(command: libc::c_int, flags: libc::c_int, cpu: u32) -> io::Result<()> {
        // SAFETY: the call touches no memory of ours.
        let rc = unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) };
        match rc {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
mod machine {
    use pagetide_core::sync::Sections;

    pub(super) fn sections() -> Result<Sections, &'static str> {
        Err("this build has none for its processor and C library")
    }
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
pub(crate) mod area {
    //! glibc registers an rseq area for every thread; the kernel keeps its CPU number current.

    use pagetide_core::sync::OnCpu;
    use pagetide_core::units::Cpu;
    use std::sync::atomic::{AtomicIsize, Ordering};

    /// Offset of `cpu_id` in the area.
    const CPU_ID: isize = 4;
    /// Bytes of the area that glibc must have registered for `cpu_id` and the descriptor's address
    /// to be there.
    const LEAST_SIZE: u32 = 16;

    /// Where the area lies, seen from the thread pointer: too aligned to be one of the two below.
    static AREA: AtomicIsize = AtomicIsize::new(UNKNOWN);
    /// Nobody asked yet.
    const UNKNOWN: isize = 0;
    /// There is none.
    const NONE: isize = 1;

    /// [`cpu`], of which glibc may have to be asked first.
    pub(crate) fn find_cpu() -> Option<u32> {
        if AREA.load(Ordering::Relaxed) == UNKNOWN {
            AREA.store(offset().unwrap_or(NONE), Ordering::Relaxed);
        }
        cpu()
    }

    /// Where the area lies, seen from the thread pointer; `None` where glibc has none.
    pub(super) fn offset() -> Option<isize> {
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

    /// The number of the CPU; `None` where it is not known.
    #[inline(always)] // A load or two: every hit asks.
    pub(crate) fn cpu() -> Option<u32> {
        found().and_then(|(_, cpu)| u32::try_from(cpu).ok())
    }

    /// This thread on its CPU, which has a number beyond all where this thread's area is not
    /// registered. `None` where no thread has one, or nobody asked yet.
    #[inline(always)]
    pub(crate) fn on_cpu() -> Option<OnCpu> {
        let (area, cpu) = found()?;
        // SAFETY: as in `sections`, of the same area.
        Some(unsafe { OnCpu::new(area, Cpu::new(cpu.cast_unsigned())) })
    }

    /// Where the area lies, and the number that is in it: negative where it is not registered.
    #[inline(always)]
    fn found() -> Option<(isize, i32)> {
        let area = AREA.load(Ordering::Relaxed);
        if area == UNKNOWN || area == NONE {
            return None;
        }
        let cpu: i32;
        // SAFETY:
        // 1. glibc registered an area of at least `LEAST_SIZE` bytes at this offset from the thread
        //    pointer (`fs`) of every thread (checked in `offset`, from which `find_cpu` has it),
        //    and it lives as long as that.
        // 2. The kernel writes the field between instructions of this thread only; one load.
        unsafe {
            core::arch::asm!(
                "mov {cpu:e}, dword ptr fs:[{area} + {CPU_ID}]",
                CPU_ID = const CPU_ID,
                cpu = out(reg) cpu,
                area = in(reg) area,
                options(nostack, preserves_flags, readonly),
            );
        }
        Some((area, cpu))
    }
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
pub(crate) mod area {
    //! No rseq area that this build knows to read.

    use pagetide_core::sync::OnCpu;

    pub(crate) fn cpu() -> Option<u32> {
        None
    }

    pub(crate) fn find_cpu() -> Option<u32> {
        None
    }

    pub(crate) fn on_cpu() -> Option<OnCpu> {
        None
    }
}
