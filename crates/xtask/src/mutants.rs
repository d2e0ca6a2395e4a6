//! Faults that a test must catch: each is put into a copy of the tree, and its tests have to fail.
//!
//! A mutant that passes its tests shows a test without teeth. One that does not build, or whose
//! text is no longer in the tree, is an error: the list has to follow the code.

mod list;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::workspace::{self, Workspace};

/// A fault of one place, and the tests that see it.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// Stands in the file exactly once.
    find: &'static str,
    replace: &'static str,
    tests: Tests,
}

/// Tests of core, or of the runtime.
#[derive(Clone, Copy)]
enum Tests {
    /// `cargo test` with this filter of names.
    Plain(&'static str),
    Loom,
    Shuttle,
    /// Real threads.
    Stress,
    /// A fault of the runtime: its tests with this filter of names.
    Runtime(&'static str),
    /// The simulator of all of core.
    Whole,
}

impl Mutant {
    /// The folder that `file` is seen from.
    fn folder(&self) -> &'static str {
        match self.tests {
            Tests::Runtime(_) => "crates/pagetide/src",
            _ => "crates/core/src",
        }
    }

    /// Whether its name or its file has this text in it.
    fn is_named(&self, text: &str) -> bool {
        self.name.contains(text) || self.file.contains(text)
    }
}

/// Runs every mutant, or those that a filter names; fails where one survives.
pub(crate) fn run(workspace: &Workspace, filter: Option<&str>) -> Result<(), Error> {
    let is_meant = |mutant: &&Mutant| filter.is_none_or(|text| mutant.is_named(text));
    let meant: Vec<&Mutant> = list::all().filter(is_meant).collect();
    if meant.is_empty() {
        return Err(Error::NoMutant {
            filter: filter.unwrap_or_default().to_owned(),
        });
    }
    let copy = Copy::make(workspace)?;
    let mut nr_survivors = 0;
    for mutant in &meant {
        let is_caught = copy.is_caught(workspace, mutant)?;
        let verdict = if is_caught { "caught  " } else { "SURVIVED" };
        println!("{verdict}  {}  ({})", mutant.name, mutant.file);
        nr_survivors += usize::from(!is_caught);
    }
    println!("{} mutants, {nr_survivors} survived", meant.len());
    if nr_survivors > 0 {
        return Err(Error::Survivors(nr_survivors));
    }
    Ok(())
}

/// A copy of the files that git knows, with a build folder of its own.
struct Copy {
    root: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn make(workspace: &Workspace) -> Result<Copy, Error> {
        let root = workspace.target_dir("mutants").join("tree");
        if root.exists() {
            fs::remove_dir_all(&root).map_err(|source| Error::write(&root, source))?;
        }
        let mut git = workspace.command("git");
        let listed = workspace::output(git.args(["ls-files", "-z"]))?;
        for file in listed.split_terminator('\0') {
            let (from, to) = (workspace.root().join(file), root.join(file));
            let folder = to.parent().expect("a file lies in a folder");
            fs::create_dir_all(folder).map_err(|source| Error::write(folder, source))?;
            // A file that was deleted and not yet committed is listed all the same.
            if from.exists() {
                fs::copy(&from, &to).map_err(|source| Error::write(&to, source))?;
            }
        }
        let target = workspace.target_dir("mutants").join("target");
        Ok(Copy { root, target })
    }

    /// Whether the mutant's tests fail with it. They have to build.
    fn is_caught(&self, workspace: &Workspace, mutant: &Mutant) -> Result<bool, Error> {
        let path = self.root.join(mutant.folder()).join(mutant.file);
        let text = fs::read_to_string(&path).map_err(|source| Error::Read {
            path: path.clone(),
            source,
        })?;
        if text.matches(mutant.find).count() != 1 {
            return Err(Error::StaleMutant { name: mutant.name });
        }
        let put = |text: &str| fs::write(&path, text).map_err(|source| Error::write(&path, source));
        put(&text.replace(mutant.find, mutant.replace))?;
        let built = workspace::output(self.tests(workspace, mutant.tests).arg("--no-run"));
        let passed = built.and_then(|_| {
            let mut tests = self.tests(workspace, mutant.tests);
            match mutant.tests {
                Tests::Plain(filter) | Tests::Runtime(filter) => _ = tests.arg(filter),
                Tests::Whole => _ = tests.arg("whole::"),
                _ => {}
            }
            workspace::is_success(&mut tests)
        });
        put(&text)?;
        Ok(!passed?)
    }

    fn tests(&self, workspace: &Workspace, tests: Tests) -> Command {
        let package = match tests {
            Tests::Runtime(_) => "pagetide",
            Tests::Whole => "pagetide-sim",
            _ => "pagetide-core",
        };
        let mut command = workspace.cargo();
        command
            .current_dir(&self.root)
            .args(["test", "--quiet", "-p", package])
            .env("RUSTFLAGS", "-Awarnings");
        let checker = match tests {
            Tests::Whole => {
                command.args(["--release", "--test", "it", "--target-dir"]);
                command.arg(self.target.join("whole"));
                return command;
            }
            Tests::Plain(_) | Tests::Stress | Tests::Runtime(_) => {
                let binaries: &[&str] = match tests {
                    Tests::Stress => &["--test", "stress"],
                    Tests::Runtime(_) => &["--all-features", "--lib", "--test", "it"],
                    _ => &["--lib", "--test", "it"],
                };
                command.args(binaries);
                command.arg("--target-dir").arg(&self.target);
                return command;
            }
            Tests::Loom => "loom",
            Tests::Shuttle => "shuttle",
        };
        command
            .args(["--release", "--test", checker, "--target-dir"])
            .arg(self.target.join(checker))
            .env("RUSTFLAGS", format!("--cfg {checker} -Awarnings"))
            .env("LOOM_MAX_PREEMPTIONS", "2");
        command
    }
}

impl Error {
    fn write(path: &Path, source: std::io::Error) -> Error {
        Error::Write {
            path: path.to_path_buf(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_names_faults_and_files() {
        let named = |text| list::all().filter(|mutant| mutant.is_named(text)).count();
        assert_eq!(named("a latch lets pins in"), 1);
        assert!(named("memory/evacuate.rs") > 1 && named("") == list::all().count());
        assert_eq!(named("no such fault"), 0);
    }

    #[test]
    fn every_mutant_has_its_place_in_the_tree() {
        let workspace = Workspace::find();
        for mutant in list::all() {
            let path = workspace.root().join(mutant.folder()).join(mutant.file);
            let text = fs::read_to_string(path).expect("a file of that folder");
            assert_eq!(text.matches(mutant.find).count(), 1, "{}", mutant.name);
        }
    }
}
