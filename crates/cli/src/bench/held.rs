//! Processes that hold what a benchmark borrows, and give it back when whoever started them has
//! ended, in whatever way: Ctrl-C, a panic, `kill -9`.

use crate::failure::Failure;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

/// The other side of such a process; what it holds is given back when this is dropped.
pub(super) struct Held(Child);

impl Held {
    /// Starts a holder, a hidden benchmark of this program, whose arguments `ask` adds; returns
    /// what it says of what it holds, too.
    ///
    /// # Errors
    /// `step`, where it cannot be started or says nothing.
    pub(super) fn start<T: DeserializeOwned>(
        step: &str,
        holder: &str,
        ask: impl FnOnce(&mut Command),
    ) -> Result<(Held, T), Failure> {
        let failed = |error: io::Error| Failure::of(step, &error);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["bench", holder]);
        ask(&mut command);
        // Of a process group of its own, to which no terminal sends Ctrl-C.
        command.process_group(0);
        let process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut held = Held(process);
        let mut line = String::new();
        let out = held.0.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).map_err(failed)?;
        let told = serde_json::from_str(&line).map_err(|error| Failure::of(step, &error))?;
        Ok((held, told))
    }

    /// Has it give back what it holds, and waits until it did.
    pub(super) fn end(&mut self) -> io::Result<ExitStatus> {
        // It ends with its input.
        drop(self.0.stdin.take());
        self.0.wait()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // It says itself what it cannot give back.
        let _status = self.end();
    }
}

/// In the process that holds: until whoever asked has ended, or says so by closing the pipe. Not
/// where it `was_told` nothing, and waits for that.
pub(super) fn wait_for_end(was_told: bool) {
    if was_told {
        let _end = io::stdin().read_to_end(&mut Vec::new());
    }
}
