//! The project's own checks, run as `cargo xtask VERB`.
//!
//! `quick` is for people, before each commit; `test` is the whole of what CI runs. Both are lists
//! of steps (`verbs.rs`), run by `step.rs` and summed up by `report.rs`. The rules that neither
//! rustfmt nor clippy can check live in `tidy/`.

mod browser;
mod coverage;
mod error;
mod failures;
mod fuzz;
mod mutants;
mod report;
mod step;
mod targets;
mod tidy;
mod verbs;
mod watch;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// The project's own checks.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", arg_required_else_help = true)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

/// What `cargo xtask` can be asked to do.
#[derive(Subcommand, Clone)]
enum Verb {
    /// Install what the checks need (rustfmt, clippy, other targets) and say what was found
    Setup,
    /// Formatting, clippy, tidy and unit tests: run it before each commit
    Quick,
    /// Everything CI runs: quick, all tests, simulator, loom, shuttle, AddressSanitizer
    Test,
    /// All expected miss ratios on all recorded traces (needs the folder of shared traces)
    Traces,
    /// Put known faults into a copy of the tree: the tests have to catch each of them
    Mutants {
        /// Only those whose name, file or tests have one of these texts in it
        filters: Vec<String>,
        /// Only this part of twenty, one of which `test` runs each day
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=mutants::NR_PARTS.into()))]
        part: Option<u32>,
    },
    /// All tests again and again, each time with other random inputs to the models
    Models {
        /// For so long, as in 10m
        #[arg(long = "for", value_name = "TIME", default_value = "10m")]
        time: humantime::Duration,
    },
    /// The demo's report in Chromium: all plots, light and dark, on a phone (needs chromium)
    Browser,
    /// Everything at once in one process, which has to be as before at the end
    Soak {
        /// For so long, as in 10m
        #[arg(long = "for", value_name = "TIME", default_value = "60s")]
        time: humantime::Duration,
    },
    /// Bytes from outside under libFuzzer: traces, words, config, memory (needs a C++ compiler)
    Fuzz {
        /// Only this one
        target: Option<String>,
        /// Each for so long, as in 10m
        #[arg(long = "for", value_name = "TIME", default_value = "60s")]
        time: humantime::Duration,
    },
    /// The lines of core that its tests run, by file (needs llvm-cov of rustc's LLVM version)
    Coverage,
    /// The project's own rules: order of rooms, unsafe list, file shape, docs
    Tidy,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let workspace = Workspace::find();
    let outcome = match args.verb {
        Verb::Setup => verbs::setup(&workspace),
        Verb::Quick => verbs::quick(&workspace),
        Verb::Test => verbs::test(&workspace),
        Verb::Traces => verbs::traces(&workspace),
        Verb::Mutants { filters, part } => mutants::run(&workspace, &filters, part),
        Verb::Models { time } => verbs::models(&workspace, *time),
        Verb::Browser => browser::run(&workspace),
        Verb::Soak { time } => verbs::soak(&workspace, *time),
        Verb::Fuzz { target, time } => fuzz::run(&workspace, target.as_deref(), *time),
        Verb::Coverage => coverage::run(&workspace),
        Verb::Tidy => tidy::run(&workspace),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    #[test]
    fn arguments_are_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn no_verb_shows_the_help() {
        let Err(error) = Args::try_parse_from(["xtask"]) else {
            panic!("parsed without a verb")
        };
        assert_eq!(
            error.kind(),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        );
        assert!(error.to_string().contains("quick"));
    }
}
