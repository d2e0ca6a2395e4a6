//! Where things are: the root of the workspace, cargo, build folders, recorded traces.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Error;

/// Names the folder of recorded traces, for `xtask` and for the tests that read them.
pub(crate) const TRACES_VARIABLE: &str = "PAGETIDE_TRACES";

/// Where property tests find the number that their random inputs come from.
pub(crate) const MODELS_SEED: &str = "PROPTEST_RNG_SEED";

/// The checkout that the verbs work on, and how to call cargo there.
pub(crate) struct Workspace {
    root: PathBuf,
    cargo: OsString,
    target_dir: PathBuf,
}

impl Workspace {
    /// Finds the workspace that this program belongs to.
    pub(crate) fn find() -> Workspace {
        // Set by `cargo run`; the compiled-in one serves a program that was started by hand.
        let manifest_dir = env::var_os("CARGO_MANIFEST_DIR")
            .unwrap_or_else(|| OsString::from(env!("CARGO_MANIFEST_DIR")));
        let root = Path::new(&manifest_dir)
            .ancestors()
            .nth(2)
            .expect("this crate lies two folders below the root")
            .to_path_buf();
        let target_dir = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        Workspace {
            target_dir: root.join(target_dir),
            cargo: env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            root,
        }
    }

    /// The folder with the workspace's `Cargo.toml`.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The build folder for builds with flags of their own.
    ///
    /// They would throw away the shared folder's artefacts, and the next plain build theirs.
    pub(crate) fn target_dir(&self, name: &str) -> PathBuf {
        self.target_dir.join(name)
    }

    /// A cargo command in the root.
    pub(crate) fn cargo(&self) -> Command {
        self.command(&self.cargo)
    }

    /// A command in the root.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).stdin(Stdio::null());
        command
    }

    /// The triple of this machine, as rustc names it.
    pub(crate) fn host(&self) -> Result<String, Error> {
        let text = output(self.command("rustc").arg("-vV"))?;
        Ok(parse_host(&text).unwrap_or("unknown").to_owned())
    }

    /// The folder of recorded traces: the variable's, else `../shared/traces` beside the checkout.
    pub(crate) fn traces(&self) -> Result<PathBuf, Error> {
        let path = match env::var_os(TRACES_VARIABLE) {
            Some(path) => self.root.join(path),
            None => self.root.join("../shared/traces"),
        };
        if path.join("manifest.csv").is_file() {
            Ok(path)
        } else {
            Err(Error::NoTraces {
                path,
                variable: TRACES_VARIABLE,
            })
        }
    }
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String, Error> {
    let program = describe(command);
    let output = match command.stderr(Stdio::inherit()).output() {
        Ok(output) => output,
        Err(source) => return Err(Error::Start { program, source }),
    };
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Error::Failed {
            program,
            status: output.status,
        })
    }
}

/// Says what it runs, and runs it to its end; its output is shown.
pub(crate) fn show(command: &mut Command) -> Result<(), Error> {
    let program = describe(command);
    println!("$ {program}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Failed { program, status }),
        Err(source) => Err(Error::Start { program, source }),
    }
}

/// Runs a command to its end, throws its output away and says whether it succeeded.
pub(crate) fn is_success(command: &mut Command) -> Result<bool, Error> {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet
        .status()
        .map(|status| status.success())
        .map_err(|source| Error::Start {
            program: describe(command),
            source,
        })
}

/// A command as one would type it, with the variables that it sets.
pub(crate) fn describe(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        words.push(format!("{}={value:?}", name.to_string_lossy()));
    }
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(program.as_os_str());
    words.push(program.to_string_lossy().into_owned());
    words.extend(
        command
            .get_args()
            .map(|arg| arg.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

fn parse_host(rustc_version: &str) -> Option<&str> {
    rustc_version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_read_from_the_version() {
        let text = "rustc 1.90.0 (abc 2025-09-14)\nbinary: rustc\nhost: aarch64-apple-darwin\n";
        assert_eq!(parse_host(text), Some("aarch64-apple-darwin"));
        assert_eq!(parse_host("rustc 1.90.0"), None);
    }

    #[test]
    fn root_holds_this_crate() {
        assert!(
            Workspace::find()
                .root()
                .join("crates/xtask/Cargo.toml")
                .is_file()
        );
    }

    #[test]
    fn commands_are_described_as_typed() {
        let mut command = Command::new("cargo");
        command
            .args(["test", "--doc"])
            .env("RUSTFLAGS", "--cfg loom");
        assert_eq!(
            describe(&command),
            "RUSTFLAGS=\"--cfg loom\" cargo test --doc"
        );
    }

    #[test]
    fn output_tells_failure_from_absence() {
        let failed = output(&mut Command::new("false"));
        assert!(matches!(failed, Err(Error::Failed { .. })), "{failed:?}");
        let absent = output(&mut Command::new("no-such-program-of-pagetide"));
        assert!(matches!(absent, Err(Error::Start { .. })), "{absent:?}");
    }
}
