//! What can end a verb.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// Why a verb failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A program could not be started or its output not read.
    #[error("cannot run `{program}`: {source}")]
    Start { program: String, source: io::Error },
    /// A program ran and failed.
    #[error("`{program}` failed: {status}")]
    Failed { program: String, status: ExitStatus },
    /// A file of the tree could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The place of a mutant is no longer in the tree, or is there twice.
    #[error("the place of the mutant \"{name}\" is not there exactly once")]
    StaleMutant { name: &'static str },
    /// No known fault has one of these texts in its name, its file or its tests.
    #[error("no mutant has `{filters}` in its name, file or tests")]
    NoMutant { filters: String },
    /// Without a fault a test fails that has to see one.
    #[error("without a fault these tests fail, too: {by}")]
    FailsAnyway { by: String },
    /// Tests pass with faults that they ought to catch.
    #[error("{0} mutants survived")]
    Survivors(usize),
    /// `cargo metadata` printed something other than its format version 1.
    #[error("cannot read the output of `cargo metadata`: {0}")]
    Metadata(#[from] serde_json::Error),
    /// A test command passed without running one test, so that it checked nothing.
    #[error("`{program}` ran no test")]
    NoTests { program: String },
    /// One step of several failed; later ones were not run.
    #[error("step `{name}` failed: {source}")]
    Step {
        name: &'static str,
        source: Box<Error>,
    },
    /// The tree breaks rules of `tidy`.
    #[error("tidy: {0} violations")]
    Untidy(usize),
    /// A check was skipped where it must not be.
    #[error("a check that must run was skipped: {0}")]
    Skipped(String),
    /// A seed of the simulator is one run in a dev build and another one in a release build.
    #[error("the simulator's runs differ between dev and release builds")]
    RunsDiffer,
    /// A component is missing and there is no `rustup` to add it.
    #[error("{component} is missing and cannot be added: {source}")]
    Component {
        component: &'static str,
        source: Box<Error>,
    },
    /// No browser to look at the report with.
    #[error("no Chromium found: on Debian, `apt-get install chromium`")]
    NoBrowser,
    /// The report is not as it should be.
    #[error("{0} problems with the report")]
    Report(usize),
    /// A step hangs, or the machine is very slow.
    #[error("it took longer than {seconds} s and was ended ({variable} sets that limit)")]
    Late {
        seconds: u64,
        variable: &'static str,
    },
    /// A soak did not end.
    #[error("the soak hangs: it was ended")]
    Hangs,
    /// A limit of time that is no number of seconds.
    #[error("{variable} is '{text}': a number of seconds is needed")]
    BadLimit {
        variable: &'static str,
        text: String,
    },
    /// No fuzz target has this name.
    #[error("no fuzz target `{name}`: there are {known}")]
    NoTarget { name: String, known: String },
    /// Nothing to read the coverage with.
    #[error(
        "no llvm-cov and llvm-profdata of version {major}: `rustup component add llvm-tools`, on \
         Debian `apt-get install llvm-{major}`, or name their folder in {variable}"
    )]
    NoLlvm {
        major: String,
        variable: &'static str,
    },
    /// Too much of core is run by none of its tests.
    #[error("tests run {percent:.1} % of core's lines, at least {least:.0} % are expected")]
    Uncovered { percent: f64, least: f64 },
    /// The folder of recorded traces is not there.
    #[error(
        "no recorded traces at {}: set {variable} to the folder that has manifest.csv",
        path.display()
    )]
    NoTraces {
        path: PathBuf,
        variable: &'static str,
    },
}
