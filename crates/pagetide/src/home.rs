//! What keeps a memory alive: handles together, pages and working memory by the CPU they began on.
//!
//! A count that all threads change is fetched from another CPU each time, which takes longer than
//! everything else that a block costs. So what is made and dropped often counts on a line of the
//! CPU that it was made on.

use crate::cpu;
use crate::shared::Shared;
use pagetide_core::units::index;
use std::ops::Deref;
use std::sync::Arc;

/// Held by memories, groups and files.
#[derive(Debug)]
pub(crate) struct Home {
    shared: Arc<Shared>,
    /// One for each CPU, up to [`MAX_SHARDS`].
    shards: Box<[Arc<Shard>]>,
}

/// CPUs whose counts lie on lines of their own; others share them.
const MAX_SHARDS: u32 = 64;

/// Held by pages and working memory. Alone on its cache lines, its count included.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Shard {
    shared: Arc<Shared>,
}

impl Home {
    pub(crate) fn new(shared: Arc<Shared>) -> Home {
        let nr_shards = shared.topology().nr_cpus().min(MAX_SHARDS);
        let shard = |_| {
            Arc::new(Shard {
                shared: Arc::clone(&shared),
            })
        };
        Home {
            shards: (0..nr_shards).map(shard).collect(),
            shared,
        }
    }

    /// A share of the memory for something that is made on this CPU.
    pub(crate) fn shard(&self) -> Arc<Shard> {
        let cpu = index(cpu::current().number());
        let shard = self.shards.get(cpu);
        Arc::clone(shard.unwrap_or_else(|| &self.shards[cpu % self.shards.len()]))
    }
}

impl Deref for Home {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Deref for Shard {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}
