//! `pagetide bench`: what the mechanisms do, counted and timed, variants in one run.

mod build;
mod costs;
mod counted;
mod hog;
mod page_fault;
mod real;
mod stream;
mod truncate;
mod tuners;

use crate::args::BenchArgs;
use crate::args::BenchName;
use crate::failure::Failure;

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.name {
        BenchName::PageFault(args) => page_fault::run(args),
        BenchName::MemoryHog(args) => hog::run(args),
        BenchName::Build(args) => build::run(args),
        BenchName::Stream(args) => stream::run(args),
        BenchName::Truncate(args) => truncate::run(args),
        BenchName::Costs => costs::run(),
        BenchName::Tuners(tuners) => tuners::run(tuners),
    }
}
