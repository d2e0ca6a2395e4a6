//! `pagetide bench`: what the mechanisms do, counted and timed, variants in one run.

mod build;
mod call_cost;
mod charge;
mod charge_parts;
mod costs;
mod counted;
mod device;
mod drain;
mod evacuate;
mod folder;
mod held;
mod hit;
mod hog;
mod key_value;
mod mixed;
mod open_close;
mod page_fault;
mod ping_pong;
mod random_read;
mod real;
mod reclaim_cost;
mod reserve;
mod scan;
mod stocks;
mod stream;
mod truncate;
mod tuners;
mod turns;
mod write;

use crate::args::BenchArgs;
use crate::args::BenchName;
use crate::failure::Failure;
use pagetide::{Builder, ByteSize, Group, Memory, PAGE_BYTES};

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.name {
        BenchName::PageFault(args) => page_fault::run(args),
        BenchName::MemoryHog(args) => hog::run(args),
        BenchName::Build(args) => build::run(args),
        BenchName::Stream(args) => stream::run(args),
        BenchName::Truncate(args) => truncate::run(args),
        BenchName::Charge(args) => charge::run(args),
        BenchName::Drain(args) => drain::run(args),
        BenchName::PingPong(args) => ping_pong::run(args),
        BenchName::Reserve(args) => reserve::run(args),
        BenchName::Evacuate(args) => evacuate::run(args),
        BenchName::RandomRead(args) => random_read::run(args),
        BenchName::DeviceChild { spec } => device::child::run(spec),
        BenchName::DeviceHolder(args) => device::holder::serve(args),
        BenchName::FolderHolder(args) => folder::serve(args),
        BenchName::Hit(args) => hit::run(args),
        BenchName::Scan(args) => scan::run(args),
        BenchName::Write(args) => write::run(args),
        BenchName::OpenClose(args) => open_close::run(args),
        BenchName::Mixed(args) => mixed::run(args),
        BenchName::KeyValue(args) => key_value::run(args),
        BenchName::ReclaimCost(args) => reclaim_cost::run(args),
        BenchName::Costs => costs::run(),
        BenchName::Tuners(tuners) => tuners::run(tuners),
    }
}

/// A memory, and a group that may have a quarter of a file's pages.
fn quarter_of(nr_pages: u32, builder: Builder) -> Result<(Memory, Group), Failure> {
    let frames = (nr_pages / 4).max(64);
    let memory = builder.for_resident_pages(frames).build()?;
    let group = memory.root().child("bench")?;
    let group = group.max(ByteSize(u64::from(frames) * PAGE_BYTES as u64))?;
    Ok((memory, group))
}
