//! The command `pagetide`: see what the library does, on made and on recorded loads.
//!
//! Data files are unlinked as soon as they are made, so that whatever ends the process (Ctrl-C,
//! `kill -9`) leaves nothing behind: no signal handler is needed. What a benchmark borrows from the
//! machine is held by a process of its own that gives it back (`bench/device/holder.rs`).

mod args;
mod bench;
mod chart;
mod demo;
mod failure;
mod load;
mod mrc;
mod output;
mod replay;
mod sampler;
mod scratch;

use clap::Parser;
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let run = match args::Args::parse().command {
        args::Command::Demo(args) => demo::run(&args),
        args::Command::Replay(args) => replay::run(&args),
        args::Command::Mrc(args) => mrc::run(&args),
        args::Command::Bench(args) => bench::run(&args),
    };
    match run {
        Ok(()) | Err(Failure::PipeClosed) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("pagetide: error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
