//! Machines other than this one: the libraries have to compile for them without a warning.

use crate::report::Skip;
use crate::step::Action;
use crate::verbs;
use crate::workspace::{self, Workspace};
use std::path::Path;

/// A processor without restartable sequences of ours, and a C library that has none.
const TARGETS: [&str; 2] = ["aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl"];

/// Has rustup fetch what is missing, where it can: what it cannot is a check that is skipped.
pub(crate) fn setup(workspace: &Workspace) {
    for target in TARGETS {
        if !is_there(workspace, target) {
            println!("adding the standard library of {target}");
            let mut rustup = workspace.command("rustup");
            let added = workspace::output(rustup.args(["target", "add", target]));
            if let Err(error) = added {
                println!("not there: {error}");
            }
        }
    }
}

/// Clippy for those that are there.
pub(crate) fn check(workspace: &Workspace) -> Action {
    let there = TARGETS.iter().copied();
    let there: Vec<_> = there.filter(|target| is_there(workspace, target)).collect();
    of(workspace, &there)
}

fn of(workspace: &Workspace, targets: &[&str]) -> Action {
    if targets.is_empty() {
        return Action::Skip(Skip {
            what: "other machines".to_owned(),
            reason: format!("no standard library of {}", TARGETS.join(", ")),
        });
    }
    let line = "clippy -p pagetide-core -p pagetide --all-features";
    let mut command = verbs::cargo(workspace, line);
    for target in targets {
        command.args(["--target", target]);
    }
    command.args(["--", "-D", "warnings"]);
    Action::Run(command)
}

/// Whether the toolchain has the standard library of a machine.
fn is_there(workspace: &Workspace, target: &str) -> bool {
    let mut rustc = workspace.command("rustc");
    rustc.args(["--print", "target-libdir", "--target", target]);
    workspace::output(&mut rustc).is_ok_and(|folder| Path::new(folder.trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_on_another_machine_is_an_error_and_no_machine_is_a_skip() {
        let workspace = Workspace::find();
        let Action::Run(command) = of(&workspace, &TARGETS) else {
            panic!("not run")
        };
        let line = workspace::describe(&command);
        assert!(TARGETS.iter().all(|target| line.contains(target)), "{line}");
        assert!(line.ends_with("-- -D warnings"), "{line}");
        let Action::Skip(skip) = of(&workspace, &[]) else {
            panic!("not skipped")
        };
        assert!(skip.is_allowed());
    }

    #[test]
    fn this_machine_has_its_own_library() {
        let workspace = Workspace::find();
        assert!(is_there(&workspace, &workspace.host().unwrap()));
        assert!(!is_there(&workspace, "pdp11-unknown-linux-gnu"));
    }
}
