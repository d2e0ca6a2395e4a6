//! The command `pagetide`: see what the library does, on made and on recorded loads.
//!
//! Data files are unlinked as soon as they are made, so that whatever ends the process (Ctrl-C,
//! `kill -9`) leaves none behind: no signal handler is needed for that. Those that need names, and
//! what a benchmark borrows from the machine, are held by a process of its own that gives them back
//! (`bench/held.rs`). Only the socket of `--watch` stays where a signal ends the process; who opens
//! it next replaces it.

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
mod sim;
mod stat;
mod threads;
mod top;
mod watched;

use clap::{CommandFactory, Parser};
use failure::Failure;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    // A file that may grow no further is an error of the write, not the end of the process.
    let _ignored = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
    let run = match args::Args::try_parse() {
        Ok(args) => run(args.command),
        // Help and the version are output.
        Err(asked) if !asked.use_stderr() => {
            let printed = asked.print();
            printed.map_err(|error| failure::of_output(&error))
        }
        Err(usage) => usage.exit(),
    };
    match run {
        Ok(()) | Err(Failure::PipeClosed) => ExitCode::SUCCESS,
        Err(failure) => {
            failure::tell(&format!("error: {failure}"));
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(command: args::Command) -> Result<(), Failure> {
    match command {
        args::Command::Demo(args) => demo::run(&args),
        args::Command::Replay(args) => replay::run(&args),
        args::Command::Mrc(args) => mrc::run(&args),
        args::Command::Bench(args) => bench::run(&args),
        args::Command::Stat(args) => stat::run(&args),
        args::Command::Top(args) => top::run(&args),
        args::Command::Completions(args) => completions(args.shell),
        args::Command::Man => man(),
        args::Command::KernelCache(args) => demo::kernel_cache(&args),
        args::Command::Sim(args) => sim::run(&args),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut args::Args::command(), "pagetide", &mut text);
    output::text(&String::from_utf8_lossy(&text))
}

/// The manual page: the command's own, and after it a section for each subcommand.
fn man() -> Result<(), Failure> {
    let mut text = String::new();
    let mut command = args::Args::command();
    command.build();
    let mut render = |command: &clap::Command| {
        let mut page = Vec::new();
        clap_mangen::Man::new(command.clone()).render(&mut page)?;
        text.push_str(&with_examples(&String::from_utf8_lossy(&page)));
        Ok(())
    };
    let rendered = render(&command).and_then(|()| {
        let subcommands = command.get_subcommands();
        let mut shown = subcommands.filter(|command| !command.is_hide_set());
        shown.try_for_each(&mut render)
    });
    rendered
        .map_err(|error: std::io::Error| Failure::of("cannot write the manual page", &error))?;
    output::text(&text)
}

/// A manual page whose examples keep their lines.
fn with_examples(page: &str) -> String {
    let page = page.replace(".SH EXTRA\n", ".SH NOTES\n.nf\n");
    page.replace(".SH VERSION\n", ".fi\n.SH VERSION\n") + ".fi\n"
}
