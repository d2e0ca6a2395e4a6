//! The verbs that run other programs, each a list of steps.

use std::env;
use std::process::{self, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::mutants;
use crate::report::{Report, Skip};
use crate::step::{self, Action, Step};
use crate::targets;
use crate::tidy;
use crate::watch::Watch;
use crate::workspace::{self, MODELS_SEED, TRACES_VARIABLE, Workspace};

/// Where rustc has the runtime of AddressSanitizer among the toolchains of rustup.
const ASAN_HOSTS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// The test that runs the simulator's seeds.
const SEEDS_TEST: &str = "a_thousand_seeds_pass";

/// What a soak may take besides its load: the build, and the end.
const SOAK_REST: Duration = Duration::from_secs(900);

/// What takes too long for `test`, or needs what is not on every machine.
const OTHER_VERBS: [(&str, &str); 7] = [
    ("traces", "all expected ratios on all recorded traces"),
    (
        "mutants",
        "all known faults: a test has to catch each of them",
    ),
    ("models", "all tests again, their models with new inputs"),
    (
        "soak",
        "a mixed load for minutes, of which nothing may be left",
    ),
    ("fuzz", "bytes from outside under libFuzzer"),
    ("coverage", "the lines of core that its tests run"),
    ("browser", "the demo's report in Chromium"),
];

/// Installs missing components of the toolchain and says what is there.
pub(crate) fn setup(workspace: &Workspace) -> Result<(), Error> {
    let rustc = workspace::output(workspace.command("rustc").arg("--version"))?;
    println!("found {}", rustc.trim());
    for (component, verb) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        let version = || workspace::output(workspace.cargo().args([verb, "--version"]));
        let found = match version() {
            Ok(found) => found,
            Err(_) => {
                println!("adding {component}");
                let mut rustup = workspace.command("rustup");
                workspace::output(rustup.args(["component", "add", component]))
                    .and_then(|_| version())
                    .map_err(|source| Error::Component {
                        component,
                        source: Box::new(source),
                    })?
            }
        };
        println!("found {}", found.trim());
    }
    targets::setup(workspace);
    match workspace.traces() {
        Ok(_) => println!("found the recorded traces"),
        Err(_) => println!("no recorded traces: checks that need them will be skipped"),
    }
    Ok(())
}

/// What has to pass before each commit.
pub(crate) fn quick(workspace: &Workspace) -> Result<(), Error> {
    finish(workspace, quick_steps(workspace))
}

/// What has to pass in CI.
pub(crate) fn test(workspace: &Workspace) -> Result<(), Error> {
    let host = workspace.host()?;
    let result = finish(workspace, test_steps(workspace, &host));
    println!("not part of `test`, each `cargo xtask VERB`:");
    for (verb, what) in OTHER_VERBS {
        println!("  {verb:<9} {what}");
    }
    result
}

/// All tests, round after round for so long, each with other random inputs to the models.
pub(crate) fn models(workspace: &Workspace, time: Duration) -> Result<(), Error> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        // The clock's digits that nobody chooses.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seed = now.unwrap_or_default().subsec_nanos();
        println!("{MODELS_SEED}={seed}");
        let mut command = cargo(workspace, "test --quiet --workspace --lib --test *");
        workspace::show(command.env(MODELS_SEED, seed.to_string()))?;
    }
    Ok(())
}

/// Everything at once in one process, for so long.
pub(crate) fn soak(workspace: &Workspace, time: Duration) -> Result<(), Error> {
    let watch = Watch::start(process::id(), time + SOAK_REST);
    let result = workspace::show(&mut soak_command(workspace, time));
    match watch.finish() {
        true => Err(Error::Hangs),
        false => result,
    }
}

fn soak_command(workspace: &Workspace, time: Duration) -> Command {
    let line = "test --release -p pagetide --test fork soak:: -- --ignored --nocapture";
    let mut command = cargo(workspace, line);
    command.env("PAGETIDE_SOAK_SECONDS", time.as_secs().max(1).to_string());
    command
}

/// All expected miss ratios on all recorded traces.
pub(crate) fn traces(workspace: &Workspace) -> Result<(), Error> {
    let folder = workspace.traces()?;
    let mut command = cargo(workspace, "test --release -p pagetide-sim --test it");
    command
        .args(["--", "--ignored", "--nocapture", "--skip", SEEDS_TEST])
        .env(TRACES_VARIABLE, folder);
    let step = Step {
        name: "traces",
        action: Action::Tests(command),
    };
    let mut report = Report::default();
    let result = step::run_all(workspace, vec![step], &mut report);
    print!("{report}");
    result?;
    // The folder is there, so nothing has a reason to be skipped.
    report.check_no_skips()
}

/// Runs the steps, prints what they found and judges the skips.
fn finish(workspace: &Workspace, steps: Vec<Step>) -> Result<(), Error> {
    let mut report = Report::default();
    let result = step::run_all(workspace, steps, &mut report);
    println!();
    print!("{report}");
    result?;
    if env::var_os("CI").is_some_and(|value| value == "true") {
        report.check_skips()?;
    }
    Ok(())
}

fn quick_steps(workspace: &Workspace) -> Vec<Step> {
    let run = |name, line| Step {
        name,
        action: Action::Run(cargo(workspace, line)),
    };
    vec![
        run("fmt", "fmt --all --check"),
        run("clippy", "clippy --workspace --all-targets -- -D warnings"),
        // In the workspace the command has all features on.
        run("without features", "clippy -p pagetide -- -D warnings"),
        Step {
            name: "tidy",
            action: Action::Call(tidy::run),
        },
        Step {
            name: "unit tests",
            action: Action::Tests(tests(workspace, "test --workspace --lib --bins")),
        },
    ]
}

fn test_steps(workspace: &Workspace, host: &str) -> Vec<Step> {
    let of = |name, command| Step {
        name,
        action: Action::Tests(command),
    };
    let run = |name, line| of(name, tests(workspace, line));
    let mut steps = vec![Step {
        name: "setup",
        action: Action::Call(setup),
    }];
    steps.extend(quick_steps(workspace));
    // Not `--tests`: that would run the unit tests a second time and count them twice.
    steps.push(run(
        "integration and model tests",
        "test --workspace --test *",
    ));
    steps.push(Step {
        name: "other machines",
        action: Action::Decide(targets::check),
    });
    steps.push(Step {
        name: "docs",
        action: Action::Run(docs(workspace)),
    });
    steps.push(Step {
        name: "doc tests",
        action: Action::TestsIfAny(tests(workspace, "test --workspace --doc")),
    });
    steps.push(run(
        "simulator seeds",
        "test --release -p pagetide-sim --test it",
    ));
    steps.push(of("a thousand seeds", thousand_seeds(workspace)));
    steps.push(Step {
        name: "one run in both builds",
        action: Action::Call(same_run_in_both_builds),
    });
    steps.push(of("promise of the budget", promise(workspace)));
    steps.push(of("soak", soak_command(workspace, Duration::from_secs(20))));
    steps.push(of(
        "stress of core",
        stress(workspace, "-p pagetide-core --test stress"),
    ));
    steps.push(of(
        "stress of files",
        stress(workspace, "-p pagetide --test it torture::"),
    ));
    steps.push(of("loom", interleavings(workspace, "loom")));
    steps.push(of("shuttle", interleavings(workspace, "shuttle")));
    steps.push(of("contended pages", contended(workspace)));
    steps.push(Step {
        name: "asan",
        action: asan(workspace, host),
    });
    steps.push(Step {
        name: "mutants of the day",
        action: Action::Call(mutants::part_of_the_day),
    });
    steps
}

/// The libraries' pages: a link to what is not there fails.
fn docs(workspace: &Workspace) -> Command {
    let mut command = cargo(workspace, "doc --workspace --no-deps --lib");
    // What is private has a page with `--document-private-items`.
    let flags = "-D warnings -A rustdoc::private-intra-doc-links";
    command.env("RUSTDOCFLAGS", flags);
    command
}

/// All of core under a thousand seeds.
fn thousand_seeds(workspace: &Workspace) -> Command {
    let line = format!("test --release -p pagetide-sim --test it {SEEDS_TEST}");
    let mut command = tests(workspace, &line);
    command.arg("--ignored");
    command
}

/// A seed is the same run in builds with assertions and without.
fn same_run_in_both_builds(workspace: &Workspace) -> Result<(), Error> {
    let told = |profile: &str| {
        let line = format!("run --quiet --profile {profile} -p pagetide-cli -- sim --seeds 0..8");
        workspace::output(cargo(workspace, &line).arg("--json"))
    };
    match told("dev")? == told("release")? {
        true => Ok(()),
        false => Err(Error::RunsDiffer),
    }
}

/// A minute of everything at once, sampled: by itself, because it looks at the whole process.
fn promise(workspace: &Workspace) -> Command {
    let mut command = tests(workspace, "test --release -p pagetide --test it promise::");
    command.env("PAGETIDE_PROMISE_SECONDS", "60");
    command
}

/// Half a minute of real threads; each of the program's tests takes it, side by side.
fn stress(workspace: &Workspace, what: &str) -> Command {
    let mut command = tests(workspace, &format!("test --release {what}"));
    command.env("PAGETIDE_STRESS_SECONDS", "30");
    command
}

/// The tests of core's two-sided protocols under a scheduler that picks the interleavings.
fn interleavings(workspace: &Workspace, scheduler: &str) -> Command {
    let line = format!("test -p pagetide-core --release --test {scheduler}");
    let mut command = cargo(workspace, &line);
    command
        .arg("--target-dir")
        .arg(workspace.target_dir(scheduler));
    command.args(["--", "--show-output"]);
    command.env("RUSTFLAGS", format!("--cfg {scheduler}"));
    if scheduler == "loom" {
        command.env("LOOM_MAX_PREEMPTIONS", "2");
    }
    command
}

/// The runtime's tests with readers that claim all pages that they find.
fn contended(workspace: &Workspace) -> Command {
    let mut command = cargo(workspace, "test -p pagetide --lib --test it");
    command
        .arg("--target-dir")
        .arg(workspace.target_dir("contended"));
    command.args(["--", "--show-output"]);
    command.env("RUSTFLAGS", "--cfg contended");
    command
}

/// The runtime's tests with AddressSanitizer, where rustc ships its runtime.
fn asan(workspace: &Workspace, host: &str) -> Action {
    if !ASAN_HOSTS.contains(&host) {
        let reason = format!("no AddressSanitizer runtime for {host}");
        return Action::Skip(Skip {
            what: "asan".to_owned(),
            reason,
        });
    }
    let mut command = cargo(workspace, "test -p pagetide --tests");
    // With `--target`, the flags do not reach build scripts and macros, which run on the host.
    command.args(["--target", host]);
    command
        .arg("--target-dir")
        .arg(workspace.target_dir("asan"));
    command.args(["--", "--show-output"]);
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        // It maps, keeps and unmaps memory of its own: tests that look at all of it are skipped.
        .env("PAGETIDE_SANITIZER", "1");
    Action::Tests(command)
}

/// A cargo command, its arguments parted by single blanks.
///
/// Its property tests have the same inputs each time: what fails in CI fails here, and what has
/// passed is not refused for a fault that was there before. `models` looks for those.
pub(crate) fn cargo(workspace: &Workspace, line: &str) -> Command {
    let mut command = workspace.cargo();
    command.args(line.split(' '));
    if env::var_os(MODELS_SEED).is_none() {
        command.env(MODELS_SEED, "1");
    }
    command
}

/// As `cargo`, showing what passed tests printed: the skips are told there.
///
/// Not `--nocapture`: with one test thread a test's line would begin with the test's name.
fn tests(workspace: &Workspace, line: &str) -> Command {
    let mut command = cargo(workspace, line);
    command.args(["--", "--show-output"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX: &str = "x86_64-unknown-linux-gnu";

    fn line(steps: &[Step], name: &str) -> String {
        let step = steps
            .iter()
            .find(|step| step.name == name)
            .expect("a step of that name");
        match &step.action {
            Action::Run(command) | Action::Tests(command) | Action::TestsIfAny(command) => {
                workspace::describe(command)
            }
            Action::Call(_) | Action::Decide(_) | Action::Skip(_) => String::new(),
        }
    }

    #[test]
    fn test_runs_quick_first_and_the_slow_checks_last() {
        let steps = test_steps(&Workspace::find(), LINUX);
        let names: Vec<_> = steps.iter().map(|step| step.name).collect();
        let expected = [
            "setup",
            "fmt",
            "clippy",
            "without features",
            "tidy",
            "unit tests",
            "integration and model tests",
            "other machines",
            "docs",
            "doc tests",
            "simulator seeds",
            "a thousand seeds",
            "one run in both builds",
            "promise of the budget",
            "soak",
            "stress of core",
            "stress of files",
            "loom",
            "shuttle",
            "contended pages",
            "asan",
            "mutants of the day",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn builds_with_flags_have_build_folders_of_their_own() {
        let steps = test_steps(&Workspace::find(), LINUX);
        let loom = line(&steps, "loom");
        assert!(loom.contains("RUSTFLAGS=\"--cfg loom\""), "{loom}");
        assert!(loom.contains("LOOM_MAX_PREEMPTIONS=\"2\""), "{loom}");
        assert!(loom.contains("--test loom --target-dir"), "{loom}");
        let shuttle = line(&steps, "shuttle");
        assert!(shuttle.contains("--cfg shuttle"), "{shuttle}");
        assert!(shuttle.contains("/shuttle -- --show-output"), "{shuttle}");
        let contended = line(&steps, "contended pages");
        assert!(contended.contains("--cfg contended"), "{contended}");
        assert!(
            contended.contains("/contended -- --show-output"),
            "{contended}"
        );
        let asan = line(&steps, "asan");
        assert!(
            asan.contains(&format!("--target {LINUX} --target-dir")),
            "{asan}"
        );
    }

    #[test]
    fn the_promise_is_tested_for_a_minute_but_not_under_the_sanitizer() {
        let steps = test_steps(&Workspace::find(), LINUX);
        let promise = line(&steps, "promise of the budget");
        assert!(
            promise.contains("PAGETIDE_PROMISE_SECONDS=\"60\""),
            "{promise}"
        );
        assert!(promise.contains("--release"), "{promise}");
        let asan = line(&steps, "asan");
        assert!(asan.contains("PAGETIDE_SANITIZER=\"1\""), "{asan}");
    }

    #[test]
    fn real_threads_have_a_minute_in_all() {
        let steps = test_steps(&Workspace::find(), LINUX);
        for name in ["stress of core", "stress of files"] {
            let stress = line(&steps, name);
            assert!(
                stress.contains("PAGETIDE_STRESS_SECONDS=\"30\""),
                "{stress}"
            );
            assert!(stress.contains("--release"), "{stress}");
        }
    }

    #[test]
    fn the_sanitizer_is_skipped_where_rustc_has_none() {
        let action = asan(&Workspace::find(), "aarch64-apple-darwin");
        let Action::Skip(skip) = action else {
            panic!("not skipped")
        };
        assert_eq!(skip.what, "asan");
        assert!(skip.reason.contains("aarch64-apple-darwin"));
    }
}
