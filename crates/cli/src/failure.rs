//! Why a command ends without doing what it was asked.

use crate::output;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};

/// A failure, and so an exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line asks for what cannot be: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Something went wrong: exit code 1.
    #[error("{0}")]
    Run(String),
    /// Whoever reads the output has gone: a quiet end.
    #[error("the output was closed")]
    PipeClosed,
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Run(_) => 1,
            Failure::PipeClosed => 0,
        }
    }

    /// What a command came to whose output was `printed`: a failure of what it did is told also
    /// where whoever reads the output has gone.
    pub(crate) fn first(
        failed: Option<Failure>,
        printed: Result<(), Failure>,
    ) -> Result<(), Failure> {
        failed.map_or(printed, Err)
    }

    /// A failure of a step, with all its causes.
    pub(crate) fn of(step: &str, error: &dyn Error) -> Failure {
        Failure::Run(format!("{step}: {}", chain(error)))
    }
}

/// Says something beside the output, where anybody can read it.
pub(crate) fn tell(what: &str) {
    // `eprintln` panics where nobody can.
    let _unread = writeln!(io::stderr(), "pagetide: {}", output::printable(what));
}

/// An error and its causes, but for those that its own text has already.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let written = write!(text, ": {cause_text}");
            debug_assert!(written.is_ok(), "writing to a string");
        }
        source = cause.source();
    }
    text
}

impl From<pagetide::Error> for Failure {
    fn from(error: pagetide::Error) -> Failure {
        Failure::Run(chain(&error))
    }
}

/// An error of writing the output.
pub(crate) fn of_output(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::PipeClosed,
        _ => Failure::of("cannot write the output", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_gone_hides_no_failure() {
        let first = |failed| Failure::first(failed, Err(Failure::PipeClosed));
        let told = first(Some(Failure::Run("seed 7".to_owned())));
        assert!(told.is_err_and(|told| told.exit_code() == 1));
        assert!(first(None).is_err_and(|told| told.exit_code() == 0));
        assert!(Failure::first(None, Ok(())).is_ok());
    }
}
