//! A test that needs a process of its own runs its own binary once more, for that test alone.

use std::env;
use std::ffi::OsString;
use std::process::Command;

/// Set by `cargo xtask test` for AddressSanitizer, which maps, keeps and unmaps memory of its own.
const SANITIZER: &str = "PAGETIDE_SANITIZER";
const ROLE: &str = "PAGETIDE_TEST_CHILD";

/// What the parent told this process; `None` in the parent.
pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Whether AddressSanitizer is in this process: what its memory does is not the test's then.
pub(crate) fn is_sanitized() -> bool {
    env::var_os(SANITIZER).is_some()
}

/// Arguments of this binary that run one test, named with its module.
fn arguments(test: &str) -> [OsString; 4] {
    let binary = env::current_exe().unwrap();
    [
        binary.into(),
        test.into(),
        "--exact".into(),
        "--nocapture".into(),
    ]
}

/// A process that runs one test, in which `role` is what it is told.
pub(crate) fn command(test: &str, role: &str) -> Command {
    let [binary, arguments @ ..] = arguments(test);
    let mut command = Command::new(binary);
    command.args(arguments).env(ROLE, role);
    command
}

/// Runs one test in a process of its own, in which `role` is what it is told.
pub(crate) fn run(test: &str, role: &str) {
    expect_pass(command(test, role), role);
}

/// The same, begun by a shell that first runs `before`; returns what it said.
pub(crate) fn run_after(before: &str, test: &str, role: &str) -> String {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{before} && exec \"$0\" \"$@\""));
    command.args(arguments(test));
    expect_pass(command, role)
}

fn expect_pass(mut command: Command, role: &str) -> String {
    let output = command.env(ROLE, role).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    // A name that is no test's would pass, too.
    let has_run = said.contains("test result: ok. 1 passed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && has_run, "{said}\n{errors}");
    said.into_owned()
}
