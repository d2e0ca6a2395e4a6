//! pagetide beside its peers: `hit` reads pages, `alloc` takes and frees blocks.
#![deny(unsafe_code)]

mod alloc;
mod hit;

use clap::{Parser, Subcommand};
use std::error::Error;

#[derive(Parser)]
#[command(about = "pagetide beside its peers")]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// 4 KiB out of memory: pagetide, an object cache, `pread`
    Hit(hit::Options),
    /// Blocks taken and freed: pagetide, memory allocators, `mmap`
    Alloc(alloc::Options),
    /// One allocator in a process of its own, told what to do by `alloc`
    #[command(hide = true)]
    AllocChild(alloc::ChildOptions),
}

fn main() -> Result<(), Box<dyn Error>> {
    match Arguments::parse().bench {
        Bench::Hit(options) => hit::run(&options),
        Bench::Alloc(options) => alloc::run(&options),
        Bench::AllocChild(options) => alloc::serve(&options),
    }
}
