//! pagetide with accounting and bytes, and its bare page allocator.

use super::blocks::Blocks;
use super::{TOTAL_BYTES, sys};
use pagetide::{Buf, ByteSize, Error, Group, Memory, Order, PAGE_BYTES};
use pagetide_core::alloc::{Config, Mark, Mobility, Request, Topology, Zones};
use pagetide_core::frame::FrameTable;
use pagetide_core::units::{Frame, Order as CoreOrder};
use std::hint::black_box;

/// Working memory of one group that all threads share: charged, and zeroed when new.
pub struct Charged {
    /// With its housekeeping, which is part of what it costs.
    _memory: Memory,
    group: Group,
    order: Order,
}

impl Charged {
    pub fn new(order: u8) -> Result<Charged, Error> {
        let budget = ByteSize(TOTAL_BYTES as u64);
        let memory = Memory::builder().budget(budget).build()?;
        let group = memory.root().child("bench")?;
        Ok(Charged {
            _memory: memory,
            group,
            order: Order::new(order),
        })
    }
}

impl Blocks for Charged {
    type Block = Buf;

    fn take(&self) -> Buf {
        let taken = self.group.alloc_unzeroed(self.order);
        taken.unwrap_or_else(|error| panic!("alloc_unzeroed: {error}"))
    }

    fn give(&self, block: Buf) {
        drop(block);
    }

    fn touch(&self, block: &mut Buf) {
        for page in block.chunks_exact_mut(PAGE_BYTES) {
            page[0] = 1;
        }
        // After all of them, as the peers' stores: one before each would be a second store.
        black_box(&mut **block);
    }
}

/// Zones and per-CPU page caches alone: no charging, no memory behind the frames.
pub struct Bare {
    frames: FrameTable,
    zones: Zones,
    order: CoreOrder,
    request: Request,
}

impl Bare {
    pub fn new(order: u8) -> Bare {
        let nr_frames = u32::try_from(TOTAL_BYTES / PAGE_BYTES).expect("a GiB");
        let frames = FrameTable::try_new(nr_frames).expect("memory for records");
        let config = Config::new(Topology::uniform(sys::nr_possible()));
        config.check().expect("the defaults are sound");
        let zones = Zones::try_new(config, &frames).expect("memory for records");
        let order = CoreOrder::new(order).expect("an order of the allocator");
        zones.cache_order(order);
        let request = Request {
            mark: Mark::Low,
            ..Request::new(order, Mobility::Unmovable)
        };
        Bare {
            frames,
            zones,
            order,
            request,
        }
    }
}

impl Blocks for Bare {
    type Block = Frame;

    fn take(&self) -> Frame {
        let taken = self
            .zones
            .alloc(&self.frames, sys::current_cpu(), &self.request);
        taken.unwrap_or_else(|shortage| panic!("Zones::alloc: {shortage:?}"))
    }

    fn give(&self, block: Frame) {
        let cpu = sys::current_cpu();
        self.zones.free(&self.frames, cpu, block, self.order);
    }

    fn touch(&self, _: &mut Frame) {
        panic!("a frame has no bytes here");
    }
}
