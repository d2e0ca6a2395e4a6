#![doc = include_str!("README.md")]

mod buddy;
mod config;
mod node;
mod pageblock;
mod pcp;
mod pcp_tune;
mod region;
mod scan;
mod topology;
mod view;
mod watermark;
mod zone;
mod zonelist;
mod zonelist_cache;
mod zones;

pub use buddy::{Buddy, Found};
pub use config::{Config, ConfigError};
pub use pageblock::{Mobility, NR_MOBILITIES, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
pub use pcp::Pcp;
pub use pcp_tune::{SCALE_MAX, Shared, Tune, Tuner, View};
pub use region::Pieces;
pub use scan::{LookStats, Request, Scan, Shortage, Step};
pub use topology::{LOCAL_DISTANCE, REMOTE_DISTANCE, Topology, TopologyError};
pub use view::{Buddyinfo, Zoneinfo};
pub use watermark::{Mark, PcpSizes, Watermarks};
pub use zone::{Ask, BulkFree, Drained, Here, Kind, Zone, ZoneConfig, ZoneStats};
pub use zonelist::{MAX_ZONES, Mempolicy, Weights, Zonelist};
pub use zonelist_cache::ZonelistCache;
pub use zones::{DRAIN_PAGES, NodeStats, Zones};

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
