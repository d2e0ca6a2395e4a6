//! What keeps a memory alive: handles together, pages and working memory by the CPU they began on.
//!
//! A count that all threads change is fetched from another CPU each time, which takes longer than
//! everything else that a block costs. So what is made and dropped often counts on a line of the
//! CPU that it was made on.

use crate::cpu;
use crate::shared::Shared;
use pagetide_core::sync::{NoMetadata, PerCpu};
use std::ops::Deref;
use std::sync::Arc;

/// Held by memories, groups and files.
#[derive(Debug)]
pub(crate) struct Home {
    shared: Arc<Shared>,
    shards: PerCpu<Arc<Shard>>,
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
    /// # Errors
    /// Where the allocator refuses.
    pub(crate) fn try_new(shared: Arc<Shared>) -> Result<Home, NoMetadata> {
        let nr_shards = shared.topology().nr_cpus().min(MAX_SHARDS);
        let shard = || {
            let shared = Arc::clone(&shared);
            Arc::new(Shard { shared })
        };
        Ok(Home {
            shards: PerCpu::try_new(nr_shards, shard)?,
            shared,
        })
    }

    /// What it keeps.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A share of the memory for something that is made on this CPU.
    pub(crate) fn shard(&self) -> Arc<Shard> {
        Arc::clone(self.shards.of(cpu::current()))
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
