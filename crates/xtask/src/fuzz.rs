//! `fuzz`: bytes from outside under libFuzzer, with AddressSanitizer and assertions.
//!
//! Built by cargo itself with the flags that cargo-fuzz gives, which stable rustc takes with
//! `RUSTC_BOOTSTRAP`: nothing has to be installed but a C++ compiler, for libFuzzer.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::error::Error;
use crate::workspace::{self, Workspace};

/// The targets, and the longest input of each in bytes.
///
/// A short compressed trace may become a very long one; a long one only takes memory.
const TARGETS: [(&str, u32); 4] = [
    ("traces", 512),
    ("words", 64),
    ("config", 128),
    ("memory", 4096),
];
/// What libFuzzer needs: counters of edges, and what is compared with what.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Zsanitizer=address -Cdebug-assertions -Ccodegen-units=1";
/// An input that takes longer is a fault.
const INPUT_SECONDS: u32 = 60;
/// Resident memory of a target beyond which it is a fault.
const RSS_MIB: u32 = 3072;

/// Runs one target, or each in turn, for `time` each.
///
/// What is found new is kept in `target/fuzz/corpus`, an input that fails in `target/fuzz/failed`.
pub(crate) fn run(
    workspace: &Workspace,
    filter: Option<&str>,
    time: Duration,
) -> Result<(), Error> {
    let meant = TARGETS
        .iter()
        .filter(|(name, _)| filter.is_none_or(|text| text == *name));
    let meant: Vec<_> = meant.collect();
    if meant.is_empty() {
        return Err(Error::NoTarget {
            name: filter.unwrap_or_default().to_owned(),
            known: TARGETS.map(|(name, _)| name).join(", "),
        });
    }
    let host = workspace.host()?;
    workspace::show(&mut build(workspace, &host))?;
    for &&(name, max_len) in &meant {
        println!("== {name}");
        workspace::show(&mut fuzz(workspace, &host, name, max_len, time)?)?;
    }
    Ok(())
}

fn build(workspace: &Workspace, host: &str) -> Command {
    let mut command = workspace.cargo();
    command
        .args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"])
        // With `--target`, the flags do not reach build scripts and macros.
        .args(["--target", host, "--target-dir"])
        .arg(workspace.target_dir("fuzz"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", FLAGS);
    command
}

fn fuzz(
    workspace: &Workspace,
    host: &str,
    name: &str,
    max_len: u32,
    time: Duration,
) -> Result<Command, Error> {
    let folder = workspace.target_dir("fuzz");
    let corpus = folder.join("corpus").join(name);
    let failed = folder.join("failed").join(name);
    for path in [&corpus, &failed] {
        fs::create_dir_all(path).map_err(|source| Error::Write {
            path: path.clone(),
            source,
        })?;
    }
    let mut command = workspace.command(folder.join(host).join("release").join(name));
    command
        .arg(corpus)
        .arg(workspace.root().join("fuzz/seeds").join(name))
        .arg(format!("-artifact_prefix={}/", failed.display()))
        .arg(format!("-max_total_time={}", time.as_secs().max(1)))
        .arg(format!("-max_len={max_len}"))
        .arg(format!("-timeout={INPUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={RSS_MIB}"))
        .arg("-print_final_stats=1");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_its_file_and_seeds() {
        let root = Workspace::find().root().join("fuzz");
        let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
        for (name, max_len) in TARGETS {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
            assert!(
                root.join(format!("fuzz_targets/{name}.rs")).is_file(),
                "{name}"
            );
            let seeds = fs::read_dir(root.join("seeds").join(name)).expect("seeds");
            let lens: Vec<u64> = seeds
                .map(|seed| seed.and_then(|seed| seed.metadata()).expect("a file").len())
                .collect();
            assert!(!lens.is_empty(), "{name}");
            assert!(
                lens.iter().all(|&len| len <= max_len.into()),
                "{name}: {lens:?}"
            );
        }
    }

    #[test]
    fn another_target_is_refused_with_the_names_of_those_that_are_there() {
        let error = run(&Workspace::find(), Some("nothing"), Duration::from_secs(1));
        let text = error.expect_err("no such target").to_string();
        assert!(
            text.contains("nothing") && text.contains("traces, words"),
            "{text}"
        );
    }
}
