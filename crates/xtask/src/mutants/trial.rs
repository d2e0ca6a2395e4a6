//! A copy of the tree that takes one fault at a time, and what its tests say to it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::failures;
use crate::mutants::{Mutant, Tests};
use crate::report;
use crate::watch::{self, Watch};
use crate::workspace::{self, MODELS_SEED, Workspace};

/// With a fault, tests that take so many times as long as without one hang.
const HANG_FACTOR: u32 = 10;
/// Tests that ended sooner do not hang: the machine has other work, too.
const MIN_LIMIT: Duration = Duration::from_secs(60);
/// Without a fault no program of tests takes so long.
const MAX_LIMIT: Duration = Duration::from_secs(600);

/// What the tests said to a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The first test that failed, or how else they ended.
    Caught(String),
    Survived,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Caught(by) => write!(f, "caught by {by}"),
            Verdict::Survived => write!(f, "SURVIVED"),
        }
    }
}

/// A copy of the files that git knows, with build folders of its own.
pub(super) struct Trial<'a> {
    workspace: &'a Workspace,
    root: PathBuf,
    target: PathBuf,
}

impl Trial<'_> {
    /// Makes the copy as the tree is; what was built of an earlier one is used again.
    pub(super) fn begin(workspace: &Workspace) -> Result<Trial<'_>, Error> {
        let root = workspace.target_dir("mutants").join("tree");
        let mut git = workspace.command("git");
        let listed = workspace::output(git.args(["ls-files", "-z"]))?;
        // A file that was deleted and not yet committed is listed all the same.
        let is_there = |file: &&str| workspace.root().join(file).is_file();
        let files: BTreeSet<&str> = listed.split_terminator('\0').filter(is_there).collect();
        remove_others(&root, "", &files).map_err(|source| write_error(&root, source))?;
        for file in files {
            let (from, to) = (workspace.root().join(file), root.join(file));
            let folder = to.parent().expect("a file lies in a folder");
            fs::create_dir_all(folder).map_err(|source| write_error(folder, source))?;
            copy_changed(&from, &to).map_err(|source| write_error(&to, source))?;
        }
        let target = workspace.target_dir("mutants").join("target");
        Ok(Trial {
            workspace,
            root,
            target,
        })
    }

    /// Runs the tests of these mutants without a fault; they are of one program.
    ///
    /// Returns the time after which tests with a fault hang.
    ///
    /// # Errors
    /// A test that fails already says nothing of a fault.
    pub(super) fn without_fault(&self, alike: &[&Mutant]) -> Result<Duration, Error> {
        let tests = alike[0].tests;
        self.build(tests)?;
        let filters = alike.iter().map(|mutant| mutant.tests.filter());
        let began = Instant::now();
        match self.run(tests, filters, MAX_LIMIT)? {
            Verdict::Survived => Ok(MIN_LIMIT.max(began.elapsed() * HANG_FACTOR)),
            Verdict::Caught(by) => Err(Error::FailsAnyway { by }),
        }
    }

    /// What the tests of a mutant say to it. They have to build.
    pub(super) fn of(&self, mutant: &Mutant, limit: Duration) -> Result<Verdict, Error> {
        let path = self.root.join(mutant.folder()).join(mutant.file);
        let text = fs::read_to_string(&path).map_err(|source| Error::Read {
            path: path.clone(),
            source,
        })?;
        if text.matches(mutant.find).count() != 1 {
            return Err(Error::StaleMutant { name: mutant.name });
        }
        let put = |text: &str| fs::write(&path, text).map_err(|source| write_error(&path, source));
        put(&text.replace(mutant.find, mutant.replace))?;
        let filter = [mutant.tests.filter()].into_iter();
        let built = self.build(mutant.tests);
        let verdict = built.and_then(|()| self.run(mutant.tests, filter, limit));
        put(&text)?;
        verdict
    }

    fn build(&self, tests: Tests) -> Result<(), Error> {
        let mut command = self.command(tests);
        workspace::output(command.args(["--quiet", "--no-run"]))?;
        Ok(())
    }

    /// Runs the tests with any of these texts in their names.
    ///
    /// Core's are ended at the first failure. The runtime's have files, which they remove.
    fn run(
        &self,
        tests: Tests,
        filters: impl Iterator<Item = &'static str>,
        limit: Duration,
    ) -> Result<Verdict, Error> {
        let mut command = self.command(tests);
        command.arg("--").args(filters.filter(|it| !it.is_empty()));
        outcome(&mut command, !tests.is_runtime(), limit)
    }

    /// `cargo test` for one program of tests.
    ///
    /// Built for many small changes: in parts, and without what debuggers want.
    fn command(&self, tests: Tests) -> Command {
        let (package, program, checker) = match tests {
            Tests::Unit(_) => ("pagetide-core", None, None),
            Tests::Model(_) => ("pagetide-core", Some("it"), None),
            Tests::Stress => ("pagetide-core", Some("stress"), None),
            Tests::Loom => ("pagetide-core", Some("loom"), Some("loom")),
            Tests::Shuttle => ("pagetide-core", Some("shuttle"), Some("shuttle")),
            Tests::Whole => ("pagetide-sim", Some("it"), None),
            Tests::RuntimeUnit(_) => ("pagetide", None, None),
            Tests::Runtime(_) => ("pagetide", Some("it"), None),
            Tests::Fork(_) => ("pagetide", Some("fork"), None),
            Tests::Isolated => ("pagetide", Some("isolated"), None),
        };
        let mut command = self.workspace.cargo();
        command
            .current_dir(&self.root)
            .args(["test", "-p", package]);
        match program {
            Some(program) => command.args(["--test", program]),
            None => command.arg("--lib"),
        };
        if tests.is_runtime() {
            command.arg("--all-features");
        }
        if tests == Tests::Whole || checker.is_some() {
            command.arg("--release");
        }
        let mut flags = "-Awarnings".to_owned();
        if let Some(checker) = checker {
            flags += &format!(" --cfg {checker}");
        }
        command
            .arg("--target-dir")
            .arg(self.target.join(checker.unwrap_or("plain")))
            .env("RUSTFLAGS", flags)
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env("LOOM_MAX_PREEMPTIONS", "2")
            .env(MODELS_SEED, "1")
            // A failure is enough, it need not be a small one.
            .env("PROPTEST_MAX_SHRINK_ITERS", "0");
        command
    }
}

/// Runs tests until they end, one fails (where that is enough), or their time is over.
fn outcome(command: &mut Command, is_one_enough: bool, limit: Duration) -> Result<Verdict, Error> {
    let program = workspace::describe(command);
    let mut nr_tests = 0;
    let mut run = || -> io::Result<Verdict> {
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let watch = Watch::start(child.id(), limit);
        let mut failed = None;
        for line in BufReader::new(child.stdout.take().expect("piped")).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            nr_tests += report::parse_running(&line).unwrap_or(0);
            failed = failed.or_else(|| failures::parse_failed(&line).map(str::to_owned));
            if is_one_enough && failed.is_some() {
                watch::end_descendants(child.id());
                break;
            }
        }
        let status = child.wait()?;
        let is_late = watch.finish();
        Ok(match (failed, status.success()) {
            (Some(test), _) => Verdict::Caught(test),
            (None, true) => Verdict::Survived,
            (None, false) if is_late => Verdict::Caught("a test that hangs".to_owned()),
            (None, false) => Verdict::Caught(format!("its end: {status}")),
        })
    };
    match run() {
        Err(source) => Err(Error::Start { program, source }),
        Ok(_) if nr_tests == 0 => Err(Error::NoTests { program }),
        Ok(verdict) => Ok(verdict),
    }
}

/// Leaves a file with the same bytes as it is: cargo would build anew what is younger.
fn copy_changed(from: &Path, to: &Path) -> io::Result<()> {
    let bytes = fs::read(from)?;
    match fs::read(to) {
        Ok(same) if same == bytes => Ok(()),
        _ => fs::write(to, bytes),
    }
}

/// Removes what is in a folder below `root`, told by its path from there, and not among `files`.
fn remove_others(root: &Path, folder: &str, files: &BTreeSet<&str>) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(folder)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = format!("{folder}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            remove_others(root, &format!("{name}/"), files)?;
        } else if !files.contains(name.as_str()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn write_error(path: &Path, source: io::Error) -> Error {
    Error::Write {
        path: path.to_path_buf(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No script takes so long.
    const LONG: Duration = Duration::from_secs(600);

    fn outcome_in(limit: Duration, script: &str, is_one_enough: bool) -> Result<Verdict, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        outcome(&mut command, is_one_enough, limit)
    }

    fn outcome_of(script: &str, is_one_enough: bool) -> Result<Verdict, Error> {
        outcome_in(LONG, script, is_one_enough)
    }

    fn by(text: &str) -> Verdict {
        Verdict::Caught(text.to_owned())
    }

    #[test]
    fn tests_that_all_pass_let_a_fault_survive() {
        let verdict = outcome_of("echo 'running 2 tests'; echo 'test a ... ok'", true);
        assert_eq!(verdict.expect("it runs"), Verdict::Survived);
    }

    #[test]
    fn the_first_failure_catches_and_may_end_the_rest() {
        let tests = "echo 'running 2 tests'; echo 'test a ... FAILED'; echo 'test b ... FAILED'";
        let began = Instant::now();
        // It sleeps before it says so: what is started later would not be ended.
        let script = format!("sleep 600 & {tests}; wait; exit 101");
        let verdict = outcome_of(&script, true);
        assert_eq!(verdict.expect("it runs"), by("a"));
        assert!(began.elapsed() < LONG / 2);
        let verdict = outcome_of(&format!("{tests}; exit 101"), false);
        assert_eq!(verdict.expect("it runs"), by("a"));
    }

    #[test]
    fn what_hangs_or_dies_is_caught_without_a_name() {
        let hangs = |limit| outcome_in(limit, "echo 'running 1 test'; sleep 600; exit 1", true);
        // A machine that has other work may let it say nothing at first.
        let limits = (0..10).map(|nth| Duration::from_millis(300) * 2_u32.pow(nth));
        let verdict = limits
            .map(hangs)
            .find(|verdict| !matches!(verdict, Err(Error::NoTests { .. })));
        assert_eq!(
            verdict.expect("it says so").expect("it runs"),
            by("a test that hangs")
        );
        let Verdict::Caught(end) =
            outcome_of("echo 'running 1 test'; kill -9 $$", true).expect("it runs")
        else {
            panic!("it survived")
        };
        assert!(end.contains("signal: 9"), "{end}");
    }

    #[test]
    fn a_fault_that_no_test_looks_at_is_an_error() {
        let error = outcome_of("echo 'running 0 tests'", true).expect_err("nothing ran");
        assert!(error.to_string().contains("ran no test"), "{error}");
    }

    #[test]
    fn a_copy_loses_what_is_gone_and_keeps_what_is_the_same() {
        let workspace = Workspace::find();
        let root = workspace.target_dir("xtask-tests").join("copy");
        fs::create_dir_all(root.join("a/b")).expect("a folder");
        for file in ["kept", "a/kept", "a/gone", "a/b/gone"] {
            fs::write(root.join(file), file).expect("a file");
        }
        let files = BTreeSet::from(["kept", "a/kept"]);
        remove_others(&root, "", &files).expect("it is removed");
        let is_there = |file: &str| root.join(file).exists();
        assert!(is_there("kept") && is_there("a/kept"));
        assert!(!is_there("a/gone") && !is_there("a/b/gone"));
        let (one, other) = (root.join("kept"), root.join("a/kept"));
        let before = fs::metadata(&one)
            .expect("a file")
            .modified()
            .expect("a time");
        copy_changed(&one, &one).expect("it is the same");
        let after = fs::metadata(&one)
            .expect("a file")
            .modified()
            .expect("a time");
        assert_eq!(before, after);
        copy_changed(&one, &other).expect("it is copied");
        assert_eq!(fs::read_to_string(&other).expect("a file"), "kept");
        fs::remove_dir_all(&root).expect("it goes");
    }

    #[test]
    fn each_program_has_what_it_is_built_with() {
        let workspace = Workspace::find();
        let trial = Trial {
            root: workspace.root().to_path_buf(),
            target: PathBuf::from("built"),
            workspace: &workspace,
        };
        let line = |tests| workspace::describe(&trial.command(tests));
        let unit = line(Tests::Unit("alloc"));
        assert!(unit.contains("-p pagetide-core --lib --target-dir built/plain"));
        let loom = line(Tests::Loom);
        assert!(
            loom.contains("--cfg loom") && loom.contains("--release"),
            "{loom}"
        );
        assert!(loom.contains("--target-dir built/loom"), "{loom}");
        let runtime = line(Tests::Runtime("anon"));
        assert!(
            runtime.contains("-p pagetide --test it --all-features"),
            "{runtime}"
        );
    }
}
