//! Steps as data, and the one loop that runs them.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{self, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::failures::Failures;
use crate::report::{self, Counts, Outcome, Report, Skip};
use crate::watch::Watch;
use crate::workspace::{self, Workspace};

/// What a step may take in seconds, builds included: it is ended then, and has failed.
const LIMIT_SECONDS: u64 = 1800;
/// Sets another limit, for a slow machine.
const LIMIT_VARIABLE: &str = "PAGETIDE_STEP_SECONDS";

/// A named part of a verb.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) action: Action,
}

/// What a step does.
pub(crate) enum Action {
    /// Runs a program that has to succeed.
    Run(Command),
    /// Runs tests: as `Run`, and at least one test has to run.
    Tests(Command),
    /// Runs tests of which there may be none.
    TestsIfAny(Command),
    /// Calls a function of this program.
    Call(fn(&Workspace) -> Result<(), Error>),
    /// Does what this says when its turn comes: what steps before it have installed counts.
    Decide(fn(&Workspace) -> Action),
    /// Does nothing on this machine, and says why.
    Skip(Skip),
}

/// What a step's output told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    counts: Counts,
    skips: Vec<Skip>,
    failures: Failures,
}

/// Runs the steps in order until one fails, and prints each one's name and seconds.
///
/// The report has every step that ran, the failed one too.
///
/// # Errors
/// The first failure, with the name of its step; a step that takes too long is one.
pub(crate) fn run_all(
    workspace: &Workspace,
    steps: Vec<Step>,
    report: &mut Report,
) -> Result<(), Error> {
    let limit = limit(env::var(LIMIT_VARIABLE).ok())?;
    run_all_to(&mut io::stdout(), workspace, steps, report, limit)
}

fn limit(text: Option<String>) -> Result<Duration, Error> {
    let Some(text) = text else {
        return Ok(Duration::from_secs(LIMIT_SECONDS));
    };
    let seconds = text.parse().map_err(|_| Error::BadLimit {
        variable: LIMIT_VARIABLE,
        text,
    })?;
    Ok(Duration::from_secs(seconds))
}

/// As `run_all`, with a place for the output.
///
/// The tests of this file throw theirs away: an outer `cargo xtask` would count it as its own.
fn run_all_to(
    out: &mut impl Write,
    workspace: &Workspace,
    steps: Vec<Step>,
    report: &mut Report,
    limit: Duration,
) -> Result<(), Error> {
    for Step { name, action } in steps {
        say(out, &format!("== {name}"));
        let start = Instant::now();
        let mut told = Told::default();
        // All programs that this one started are the step's.
        let watch = Watch::start(process::id(), limit);
        let result = run_action(out, workspace, action, &mut told);
        let result = match watch.finish() {
            true => Err(Error::Late {
                seconds: limit.as_secs(),
                variable: LIMIT_VARIABLE,
            }),
            false => result,
        };
        let took = start.elapsed();
        let outcome = match &result {
            Ok(outcome) => *outcome,
            Err(_) => Outcome::Failed,
        };
        report.add(name, outcome, took, told.counts);
        for skip in told.skips {
            report.skip(name, skip);
        }
        for failure in told.failures.found {
            report.fail(name, failure);
        }
        say(out, &format!("-- {name}: {:.1} s", took.as_secs_f64()));
        if let Err(source) = result {
            return Err(Error::Step {
                name,
                source: Box::new(source),
            });
        }
    }
    Ok(())
}

fn run_action(
    out: &mut impl Write,
    workspace: &Workspace,
    action: Action,
    told: &mut Told,
) -> Result<Outcome, Error> {
    match action {
        Action::Run(mut command) | Action::TestsIfAny(mut command) => {
            run_command(out, &mut command, told)?;
        }
        Action::Tests(mut command) => {
            run_command(out, &mut command, told)?;
            if told.counts == Counts::default() {
                return Err(Error::NoTests {
                    program: workspace::describe(&command),
                });
            }
        }
        Action::Call(function) => function(workspace)?,
        Action::Decide(decide) => return run_action(out, workspace, decide(workspace), told),
        Action::Skip(skip) => {
            say(out, &format!("skipped: {}: {}", skip.what, skip.reason));
            told.skips.push(skip);
            return Ok(Outcome::Skipped);
        }
    }
    Ok(Outcome::Passed)
}

/// Runs a program, shows its output as it comes, and notes what the lines tell.
fn run_command(out: &mut impl Write, command: &mut Command, told: &mut Told) -> Result<(), Error> {
    let program = workspace::describe(command);
    say(out, &format!("$ {program}"));
    // Only stdout is read: libtest prints there, with what it captured from the tests. Cargo's
    // own words go to stderr and keep their colours.
    let mut run = || -> io::Result<ExitStatus> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        if let Some(stdout) = child.stdout.take() {
            read_lines(BufReader::new(stdout), out, told)?;
        }
        child.wait()
    };
    match run() {
        Err(source) => Err(Error::Start { program, source }),
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::Failed { program, status }),
    }
}

/// Writes a line of our own; with nobody left to read it, the steps still run.
fn say(out: &mut impl Write, line: &str) {
    let _ = writeln!(out, "{line}");
}

/// Copies `from` to `to` line by line; a test may print bytes that are no text.
fn read_lines(mut from: impl BufRead, to: &mut impl Write, told: &mut Told) -> io::Result<()> {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        let text = String::from_utf8_lossy(&line);
        told.failures.read(text.trim_end_matches(['\n', '\r']));
        if let Some(counts) = report::parse_counts(&text) {
            told.counts += counts;
        } else if let Some(skip) = report::parse_skip(&text) {
            told.skips.push(skip);
        }
        line.clear();
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn run(actions: Vec<Action>) -> (Result<(), Error>, String) {
        let names = ["first", "second", "third"];
        let steps = names
            .into_iter()
            .zip(actions)
            .map(|(name, action)| Step { name, action })
            .collect();
        let mut report = Report::default();
        let limit = Duration::from_secs(LIMIT_SECONDS);
        let result = run_all_to(
            &mut io::sink(),
            &Workspace::find(),
            steps,
            &mut report,
            limit,
        );
        (result, report.to_string())
    }

    const RESULT: &str = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";

    #[test]
    fn a_failed_step_ends_the_run_with_its_name() {
        let actions = vec![
            Action::Run(shell("true")),
            Action::Run(shell("exit 3")),
            Action::Run(shell("true")),
        ];
        let (result, report) = run(actions);
        let error = result.expect_err("the second step fails").to_string();
        assert!(error.starts_with("step `second` failed"), "{error}");
        assert!(
            report.contains("second") && report.contains("FAILED"),
            "{report}"
        );
        assert!(!report.contains("third"), "{report}");
    }

    #[test]
    fn what_is_decided_late_knows_what_was_done_before() {
        static IS_DONE: AtomicBool = AtomicBool::new(false);
        let does = |_: &Workspace| {
            IS_DONE.store(true, Ordering::Relaxed);
            Ok(())
        };
        let decides = |_: &Workspace| match IS_DONE.load(Ordering::Relaxed) {
            true => Action::Tests(shell(RESULT)),
            false => Action::Run(shell("exit 3")),
        };
        let (result, report) = run(vec![Action::Call(does), Action::Decide(decides)]);
        assert!(result.is_ok() && report.contains("2 passed"), "{report}");
    }

    #[test]
    fn a_limit_is_a_number_of_seconds() {
        assert_eq!(limit(None).expect("the usual one").as_secs(), 1800);
        assert_eq!(limit(Some("9".to_owned())).expect("a number").as_secs(), 9);
        let error = limit(Some("ten".to_owned())).expect_err("no number");
        assert!(error.to_string().contains("'ten'"), "{error}");
    }

    #[test]
    fn a_test_step_that_runs_no_test_fails() {
        let (result, _) = run(vec![Action::Tests(shell("true"))]);
        assert!(
            result
                .expect_err("no test ran")
                .to_string()
                .contains("ran no test")
        );
        let (result, _) = run(vec![Action::TestsIfAny(shell("true"))]);
        assert!(result.is_ok());
    }

    #[test]
    fn counts_and_skips_reach_the_report() {
        let script = format!("{RESULT}; echo 'skipped: asan: not here'; {RESULT}");
        let (result, report) = run(vec![Action::Tests(shell(&script))]);
        assert!(result.is_ok());
        assert!(report.contains("4 passed, 0 failed"), "{report}");
        assert!(report.contains("asan: not here (step `first`)"), "{report}");
    }

    #[test]
    fn the_report_names_the_tests_that_failed() {
        let script = "echo 'test alloc::drain ... FAILED'; exit 1";
        let (result, report) = run(vec![Action::Tests(shell(script))]);
        assert!(result.is_err());
        let named = "failed: alloc::drain (step `first`)";
        assert!(report.contains(named), "{report}");
    }

    #[test]
    fn a_skipped_step_is_listed() {
        let skip = Skip {
            what: "asan".to_owned(),
            reason: "no runtime".to_owned(),
        };
        let (result, report) = run(vec![Action::Skip(skip)]);
        assert!(result.is_ok());
        assert!(report.contains("asan: no runtime"), "{report}");
    }

    #[test]
    fn output_is_copied_byte_for_byte() {
        let text = b"plain\n\xff\xfe no text\nno newline at the end";
        let mut copy = Vec::new();
        let mut told = Told::default();
        read_lines(&text[..], &mut copy, &mut told).expect("memory does not fail");
        assert_eq!(copy, text);
        assert_eq!(told, Told::default());
    }
}
