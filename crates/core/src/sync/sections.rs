//! Restartable sequences: a few instructions on words of one CPU, the last of which stores what
//! they come to. No read-modify-write, and no lock that a preempted thread could hold.
//!
//! The kernel lets a thread that was interrupted in one go on as if it had not begun: so on one CPU
//! they exclude each other. Others are kept out by a gate: whoever shuts it, and then has the CPU
//! fenced, is alone.
//!
//! Source: rseq(2), in Linux since 4.18; the fence is membarrier(2), since 5.10.
#![allow(unsafe_code)]

use super::{AtomicU32, AtomicU64, Ordering};
use crate::units::Cpu;

#[cfg(not(any(loom, shuttle)))]
pub use machine::{OnCpu, Sections};
#[cfg(any(loom, shuttle))]
pub use model::{OnCpu, Sections};

/// Whether sections of a CPU may begin: while it is shut, none ends with its store.
#[derive(Debug)]
pub struct Gate(AtomicU32);

impl Gate {
    const SHUT: u32 = 1;
    /// Of one that nobody opens.
    const FOR_GOOD: u32 = 1 << 31;

    /// That of a CPU: open where it has sections, else one that stays shut.
    #[must_use]
    pub fn new(has_sections: bool) -> Gate {
        Gate(AtomicU32::new(match has_sections {
            true => 0,
            false => Gate::FOR_GOOD,
        }))
    }

    /// Whether nobody opens it.
    #[must_use]
    #[inline]
    pub fn is_shut_for_good(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= Gate::FOR_GOOD
    }

    /// Shuts it; none of the CPU's sections is under way afterwards.
    ///
    /// Cost: a few instructions on this CPU, on another one what a fence costs.
    pub fn shut(&self, cpu: Cpu, sections: &Sections) {
        if self.0.load(Ordering::Relaxed) == Gate::SHUT || sections.on(cpu).shut(&self.0) {
            return;
        }
        self.0.store(Gate::SHUT, Ordering::SeqCst);
        sections.fence(cpu);
    }

    /// Opens it; what was written before is what sections see.
    pub fn open(&self) {
        // Release pairs with the look at it in a section.
        self.0.store(0, Ordering::Release);
    }

    /// Keeps it shut for one more, who has the CPU fenced afterwards, until [`Gate::let_go`]. Not
    /// of a gate that is [shut](Gate::shut), for one alone, too. One read-modify-write.
    pub fn keep_shut(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Opens it if nobody else keeps it shut; what was written before is what sections see.
    pub fn let_go(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(not(any(loom, shuttle)))]
mod machine {
    use super::{AtomicU32, AtomicU64, Cpu, Gate};

    /// How threads of this process run restartable sequences, and how they are fenced.
    #[derive(Clone, Debug)]
    pub struct Sections {
        /// Where a thread's area for them lies, seen from its thread pointer.
        // No section of other machines looks for it.
        #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
        area: isize,
        fence: fn(Option<Cpu>),
    }

    /// A thread on a CPU, by which it runs sections of that CPU; on another one by now, perhaps,
    /// where it runs none.
    #[derive(Clone, Copy, Debug)]
    pub struct OnCpu {
        /// As [`Sections`] has it.
        #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
        area: isize,
        cpu: Cpu,
    }

    /// A section: the checks that each begins with, then `lines`, of which the last one alone
    /// writes what others look at. Where it was not run, it goes on with `failed`.
    ///
    /// Layout of the area: `cpu_id` at 4, the address of the section's descriptor at 8. The
    /// signature before the place where the kernel goes on is the one that glibc registers.
    #[cfg(target_arch = "x86_64")]
    macro_rules! section {
        ([$($line:literal),+], [$($failed:literal),+], $($operands:tt)+) => {
            core::arch::asm!(
                ".pushsection __rseq_cs, \"aw\"",
                ".balign 32",
                "20:",
                ".long 0, 0",
                ".quad 21f, 22f - 21f, 24f",
                ".popsection",
                "lea {scratch:r}, [rip + 20b]",
                "mov qword ptr fs:[{area} + 8], {scratch:r}",
                "21:",
                "cmp dword ptr fs:[{area} + 4], {cpu:e}",
                "jne 23f",
                "cmp dword ptr [{gate}], 0",
                "jne 23f",
                $($line,)+
                "22:",
                // The descriptor may be unmapped one day, with the library that it is in.
                "mov qword ptr fs:[{area} + 8], 0",
                ".pushsection __rseq_failure, \"ax\"",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "24:",
                "23:",
                $($failed,)+
                ".popsection",
                $($operands)+
                options(nostack),
            )
        };
    }

    /// A section that says whether it was run.
    #[cfg(target_arch = "x86_64")]
    macro_rules! is_run {
        ($lines:tt, $($operands:tt)+) => {{
            section!(
                $lines,
                ["mov qword ptr fs:[{area} + 8], 0", "jmp {failed}"],
                $($operands)+
                scratch = out(reg) _,
                failed = label { return false },
            );
            true
        }};
    }

    impl Sections {
        /// # Safety
        /// 1. At `area` bytes from the thread pointer each thread of the process has an area as
        ///    rseq(2) says, registered with the signature 0x53053053, or one whose `cpu_id` is
        ///    negative.
        /// 2. Only sections of this type, and others that end before they begin, use it.
        /// 3. Once `fence` of a CPU, or of all, returned, whoever was in a section there has ended
        ///    it or never will. What its thread wrote before is seen, and it sees what was written
        ///    before `fence`, as if both had been at a point of its program.
        #[must_use]
        pub const unsafe fn new(area: isize, fence: fn(Option<Cpu>)) -> Sections {
            Sections { area, fence }
        }

        /// A thread that was on this CPU just now.
        #[inline]
        pub(crate) fn on(&self, cpu: Cpu) -> OnCpu {
            let area = self.area;
            OnCpu { area, cpu }
        }

        /// Sections that began on this CPU before have ended, or never will.
        pub(super) fn fence(&self, cpu: Cpu) {
            (self.fence)(Some(cpu));
        }

        /// [`Sections::fence`] of these CPUs, or of all at once.
        pub(crate) fn fence_many(&self, cpus: Option<impl Iterator<Item = Cpu>>) {
            match cpus {
                Some(cpus) => cpus.for_each(|cpu| self.fence(cpu)),
                None => (self.fence)(None),
            }
        }
    }

    impl OnCpu {
        /// A thread that was on this CPU just now, or on none where the number is beyond them all.
        ///
        /// # Safety
        /// Of the area, as for [`Sections::new`], 1 and 2.
        #[must_use]
        #[inline]
        pub const unsafe fn new(area: isize, cpu: Cpu) -> OnCpu {
            OnCpu { area, cpu }
        }

        /// The CPU.
        #[must_use]
        #[inline]
        pub fn cpu(&self) -> Cpu {
            self.cpu
        }

        /// Where the gate is open and `word` is `seen`: makes it `new` and returns what is in
        /// `slot`, which is not 0. Else, on another CPU, or where it was interrupted: 0.
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        pub(crate) fn take(
            &self,
            gate: &Gate,
            word: (&AtomicU64, u64, u64),
            slot: &AtomicU32,
        ) -> u32 {
            let (word, seen, new) = word;
            let taken: u32;
            // SAFETY:
            // 1. The area is there (`new`), and only this thread and the kernel use it.
            // 2. What is read and written are atomics that are borrowed.
            // 3. The kernel goes on at 24 where it interrupts between 21 and 22, with all
            //    registers as they were: then, as where a check fails, `scratch` is 0, and what
            //    was written is nothing.
            unsafe {
                section!(
                    [
                        "cmp qword ptr [{word}], {seen}",
                        "jne 23f",
                        "mov {scratch:e}, dword ptr [{slot}]",
                        "mov qword ptr [{word}], {new}"
                    ],
                    ["xor {scratch:e}, {scratch:e}", "jmp 22b"],
                    area = in(reg) self.area,
                    cpu = in(reg) self.cpu.number(),
                    gate = in(reg) gate.0.as_ptr(),
                    word = in(reg) word.as_ptr(),
                    seen = in(reg) seen,
                    new = in(reg) new,
                    slot = in(reg) slot.as_ptr(),
                    scratch = out(reg) taken,
                );
            }
            taken
        }

        /// Where the gate is open and `word` is `seen`: puts `value` into `slot` and makes the word
        /// `new`. False as in [`OnCpu::take`]; the slot may have the value nonetheless.
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        pub(crate) fn put(
            &self,
            gate: &Gate,
            word: (&AtomicU64, u64, u64),
            slot: (&AtomicU32, u32),
        ) -> bool {
            let (word, seen, new) = word;
            let (slot, value) = slot;
            // SAFETY: as in `take`. The slot is written before the last store, which nobody looks
            // at while the word is what it was.
            unsafe {
                is_run!(
                    [
                        "cmp qword ptr [{word}], {seen}",
                        "jne 23f",
                        "mov dword ptr [{slot}], {value:e}",
                        "mov qword ptr [{word}], {new}"
                    ],
                    area = in(reg) self.area,
                    cpu = in(reg) self.cpu.number(),
                    gate = in(reg) gate.0.as_ptr(),
                    word = in(reg) word.as_ptr(),
                    seen = in(reg) seen,
                    new = in(reg) new,
                    slot = in(reg) slot.as_ptr(),
                    value = in(reg) value,
                )
            }
        }

        /// Where the gate is open and `word` is `seen`: makes it `new`. False as in
        /// [`OnCpu::take`]. Nothing is touched after the word, which is written as by Release.
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        pub(crate) fn replace(
            &self,
            gate: &Gate,
            (word, seen, new): (&AtomicU32, u32, u32),
        ) -> bool {
            // SAFETY: as in `take`.
            unsafe {
                is_run!(
                    [
                        "cmp dword ptr [{word}], {seen:e}",
                        "jne 23f",
                        "mov dword ptr [{word}], {new:e}"
                    ],
                    area = in(reg) self.area,
                    cpu = in(reg) self.cpu.number(),
                    gate = in(reg) gate.0.as_ptr(),
                    word = in(reg) word.as_ptr(),
                    seen = in(reg) seen,
                    new = in(reg) new,
                )
            }
        }

        /// Shuts an open gate from the CPU itself, where nothing can be under way then: whoever was
        /// interrupted in a section goes on outside of it. False on another CPU.
        #[cfg(target_arch = "x86_64")]
        pub(super) fn shut(&self, gate: &AtomicU32) -> bool {
            // SAFETY: as in `take`.
            unsafe {
                is_run!(
                    ["mov dword ptr [{gate}], 1"],
                    area = in(reg) self.area,
                    cpu = in(reg) self.cpu.number(),
                    gate = in(reg) gate.as_ptr(),
                )
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    impl OnCpu {
        /// Never runs one.
        pub(crate) fn take(&self, _: &Gate, _: (&AtomicU64, u64, u64), _: &AtomicU32) -> u32 {
            0
        }

        /// Never runs one.
        pub(crate) fn put(
            &self,
            _: &Gate,
            _: (&AtomicU64, u64, u64),
            _: (&AtomicU32, u32),
        ) -> bool {
            false
        }

        /// Never runs one.
        pub(crate) fn replace(&self, _: &Gate, _: (&AtomicU32, u32, u32)) -> bool {
            false
        }

        pub(super) fn shut(&self, _: &AtomicU32) -> bool {
            false
        }
    }
}

#[cfg(any(loom, shuttle))]
mod model {
    //! A lock for each CPU in the place of the kernel: sections of one CPU exclude each other, and
    //! a fence waits for the one that is under way.
    use super::super::std::sync::Arc;
    use super::super::std::vec::Vec;
    use super::{AtomicU32, AtomicU64, Cpu, Gate, Ordering};
    #[cfg(loom)]
    use loom::sync::{Mutex, MutexGuard};
    #[cfg(shuttle)]
    use shuttle::sync::{Mutex, MutexGuard};

    /// Sections under a checker.
    #[derive(Clone, Debug)]
    pub struct Sections(Arc<[Mutex<()>]>);

    /// A thread on a CPU.
    #[derive(Clone, Debug)]
    pub struct OnCpu {
        sections: Sections,
        cpu: Cpu,
    }

    impl Sections {
        /// For so many CPUs.
        #[must_use]
        pub fn new(nr_cpus: u32) -> Sections {
            let locks: Vec<_> = (0..nr_cpus).map(|_| Mutex::new(())).collect();
            Sections(locks.into())
        }

        fn run(&self, cpu: Cpu) -> MutexGuard<'_, ()> {
            let lock = &self.0[crate::units::index(cpu.number())];
            lock.lock().expect("no section unwinds")
        }

        /// A thread that was on this CPU just now.
        #[must_use]
        pub fn on(&self, cpu: Cpu) -> OnCpu {
            let sections = self.clone();
            OnCpu { sections, cpu }
        }

        pub(super) fn fence(&self, cpu: Cpu) {
            drop(self.run(cpu));
        }

        pub(crate) fn fence_many(&self, cpus: Option<impl Iterator<Item = Cpu>>) {
            let all = || (0..).map(Cpu::new).take(self.0.len());
            match cpus {
                Some(cpus) => cpus.for_each(|cpu| self.fence(cpu)),
                None => all().for_each(|cpu| self.fence(cpu)),
            }
        }
    }

    impl OnCpu {
        /// The CPU.
        #[must_use]
        pub fn cpu(&self) -> Cpu {
            self.cpu
        }

        pub(crate) fn take(
            &self,
            gate: &Gate,
            (word, seen, new): (&AtomicU64, u64, u64),
            slot: &AtomicU32,
        ) -> u32 {
            let _running = self.sections.run(self.cpu);
            if gate.0.load(Ordering::Acquire) != 0 || word.load(Ordering::Relaxed) != seen {
                return 0;
            }
            let taken = slot.load(Ordering::Relaxed);
            word.store(new, Ordering::Relaxed);
            taken
        }

        pub(crate) fn put(
            &self,
            gate: &Gate,
            (word, seen, new): (&AtomicU64, u64, u64),
            (slot, value): (&AtomicU32, u32),
        ) -> bool {
            let _running = self.sections.run(self.cpu);
            if gate.0.load(Ordering::Acquire) != 0 || word.load(Ordering::Relaxed) != seen {
                return false;
            }
            slot.store(value, Ordering::Relaxed);
            word.store(new, Ordering::Relaxed);
            true
        }

        pub(crate) fn replace(
            &self,
            gate: &Gate,
            (word, seen, new): (&AtomicU32, u32, u32),
        ) -> bool {
            let _running = self.sections.run(self.cpu);
            if gate.0.load(Ordering::Acquire) != 0 || word.load(Ordering::Relaxed) != seen {
                return false;
            }
            word.store(new, Ordering::Release);
            true
        }

        /// As from another CPU: the fence is what is checked.
        #[expect(clippy::unused_self)]
        pub(super) fn shut(&self, _: &AtomicU32) -> bool {
            false
        }
    }
}
