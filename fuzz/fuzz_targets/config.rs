//! Configurations of core: a memory that adds up, or an error; never a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagetide_core::alloc::{PcpSizes, Topology};
use pagetide_core::memory::{Config, Memory};
use pagetide_core::reclaim::Policy;
use pagetide_core::units::Cpu;

/// Numbers from bytes; zeros after their end.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        byte
    }

    /// Small ones as often as any.
    fn number(&mut self) -> u32 {
        let shift = self.byte() % 33;
        let number = u32::from_le_bytes([0; 4].map(|_| self.byte()));
        number.checked_shr(shift.into()).unwrap_or(0)
    }
}

fuzz_target!(|data: &[u8]| {
    let mut numbers = Numbers(data);
    let nr_cpus = numbers.number() % 300;
    let topology = Topology::uniform(nr_cpus.max(1)).with_nodes(numbers.number() % 80);
    let placed = topology.and_then(|it| it.with_cpu(Cpu::new(numbers.number()), numbers.number()));
    let Ok(topology) = placed else {
        return;
    };
    let policy = Policy::ALL[usize::from(numbers.byte()) % Policy::ALL.len()];
    // Records of larger ones take memory and time, and nothing else.
    let mut config = Config::on(topology, numbers.number() % (1 << 16), policy);
    config.arena_pages = numbers.number() % (1 << 17);
    config.shadow_frames = numbers.number() % (1 << 17);
    config.write_reserve_pages = numbers.number();
    config.swappiness = numbers.byte();
    config.alloc.movable_percent = numbers.byte();
    config.alloc.watermark_scale = numbers.number();
    config.alloc.cached_orders = numbers.number();
    config.alloc.node_reclaim = numbers.byte() & 1 == 1;
    config.alloc.keeps_batch = numbers.byte() & 1 == 1;
    if numbers.byte() & 1 == 1 {
        config.alloc.pcp_sizes = Some(PcpSizes {
            batch: numbers.number(),
            high_min: numbers.number(),
            high_max: numbers.number(),
        });
    }
    if let Ok(memory) = Memory::try_new(config) {
        assert_eq!(memory.audit(), Ok(()));
    }
});
