//! What a run of several steps found: times, test counts, skipped checks.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use crate::error::Error;
use crate::failures::Failure;

/// The checks that may be skipped with `CI=true`, each with the reason why it may.
pub(crate) const ALLOWED_SKIPS: &[(&str, &str)] = &[
    (
        "shared traces",
        "the recorded traces lie outside the repository, their licences vary",
    ),
    (
        "memory cgroup",
        "a container may not let its processes make a memory cgroup",
    ),
    (
        "promise of the budget",
        "the sanitizer keeps what is freed; the step of that name is without it",
    ),
    (
        "isolated CPU",
        "counting interruptions takes two CPUs, a kernel that counts them, and no sanitizer",
    ),
    (
        "callgrind",
        "instructions are counted where valgrind and binutils are there; other tests count locks",
    ),
    (
        "strace",
        "system calls are counted by strace where there is one and it may trace",
    ),
    (
        "a device's readahead",
        "its setting is changed by root, of a loop device; a unit test looks at all disks",
    ),
    (
        "access times",
        "a file system that is mounted so keeps none: nothing could change them",
    ),
    (
        "locked memory",
        "who may lock memory its limit says; kernels before 5.18 and the sanitizer keep it",
    ),
    (
        "counted hits",
        "debug builds count read-modify-writes; a release build has nothing to count with",
    ),
    (
        "restartable sequences",
        "they need x86-64, glibc 2.35 and Linux 5.10; without them buffers are taken under locks",
    ),
    (
        "holes",
        "not every file system makes holes; that space is asked back is tested over a store",
    ),
    (
        "huge pages",
        "not every kernel gives huge pages; that the budget holds with them is tested everywhere",
    ),
    (
        "another user",
        "a socket is tried as another user where root may become one that can run something",
    ),
    (
        "threads without stacks",
        "a limit of the address space refuses them, which the sanitizer's own memory is beyond",
    ),
    (
        "leases",
        "a lease is taken by python3 where there is one, on a file system that has them",
    ),
    (
        "promtool",
        "names and values of the metrics are tested everywhere; promtool judges where it is",
    ),
    (
        "readahead on recorded traces",
        "the recorded traces lie outside the repository, their licences vary",
    ),
    (
        "a file of FUSE",
        "root can mount one where the kernel has FUSE, and io_uring is what it is about",
    ),
    (
        "room behind an end on XFS",
        "root can mount an image where mkfs.xfs made one; how far reads go is tested everywhere",
    ),
    (
        "sparse file",
        "not every file system has files of 16 TiB; the same is tested over a store",
    ),
    (
        "zram",
        "a block device in memory takes root and a kernel that has zram",
    ),
    (
        "device bench",
        "peers need direct reads, rings and memory cgroups, which a container may not have",
    ),
    (
        "io_uring",
        "a container may not let its processes make rings",
    ),
    (
        "registered reads",
        "a container may not have rings, or no memory that is locked",
    ),
    (
        "bounced reads",
        "a container may not have rings, or no memory that is locked, or no direct reads",
    ),
    (
        "full disk",
        "mounting a small tmpfs takes root; a store that is full is tested everywhere",
    ),
    (
        "asan",
        "rustc has AddressSanitizer for Linux with glibc on x86_64 and aarch64 only",
    ),
    (
        "other machines",
        "the libraries are compiled for machines of which rustup has put the standard library here",
    ),
];

/// How many tests ran.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Reads the counts of a closing line of libtest (`test result: ok. 3 passed; 0 failed; ..`).
pub(crate) fn parse_counts(line: &str) -> Option<Counts> {
    let (_, counts) = line
        .trim()
        .strip_prefix("test result: ")?
        .split_once(". ")?;
    let count = |unit: &str| -> Option<u64> {
        counts
            .split(';')
            .find_map(|part| part.trim().strip_suffix(unit)?.trim().parse().ok())
    };
    Some(Counts {
        passed: count("passed")?,
        failed: count("failed")?,
    })
}

/// Reads how many tests a program is about to run (`running 3 tests`).
pub(crate) fn parse_running(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("running ")?;
    let (count, _) = rest
        .split_once(" test")
        .filter(|(_, end)| ["", "s"].contains(end))?;
    count.parse().ok()
}

/// A check that did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) what: String,
    pub(crate) reason: String,
}

impl Skip {
    pub(crate) fn is_allowed(&self) -> bool {
        ALLOWED_SKIPS.iter().any(|(what, _)| *what == self.what)
    }
}

/// Reads a test's word that it skipped something (`skipped: <what>: <reason>`).
///
/// A line without a reason is a skip too, one that no list allows.
pub(crate) fn parse_skip(line: &str) -> Option<Skip> {
    let rest = line.trim().strip_prefix("skipped: ")?;
    let (what, reason) = rest.split_once(": ").unwrap_or((rest, ""));
    if reason.is_empty() {
        return Some(Skip {
            what: format!("{what} (no reason given)"),
            reason: String::new(),
        });
    }
    Some(Skip {
        what: what.to_owned(),
        reason: reason.to_owned(),
    })
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// One line of the table.
struct Row {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
    counts: Counts,
}

/// What the steps so far found.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    skips: Vec<(&'static str, Skip)>,
    failures: Vec<(&'static str, Failure)>,
}

impl Report {
    /// Adds a step that ended.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        outcome: Outcome,
        took: Duration,
        counts: Counts,
    ) {
        self.rows.push(Row {
            name,
            outcome,
            took,
            counts,
        });
    }

    /// Adds a skipped check; many tests may skip for the same reason, it is listed once a step.
    pub(crate) fn skip(&mut self, step: &'static str, skip: Skip) {
        let entry = (step, skip);
        if !self.skips.contains(&entry) {
            self.skips.push(entry);
        }
    }

    /// Adds a test that failed.
    pub(crate) fn fail(&mut self, step: &'static str, failure: Failure) {
        self.failures.push((step, failure));
    }

    /// The tests of all steps together.
    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for row in &self.rows {
            sum += row.counts;
        }
        sum
    }

    /// Refuses skips outside `ALLOWED_SKIPS`.
    ///
    /// # Errors
    /// Names the first skip that is not allowed.
    pub(crate) fn check_skips(&self) -> Result<(), Error> {
        for (step, skip) in &self.skips {
            if !skip.is_allowed() {
                let text = format!("{}: {} (step `{step}`)", skip.what, skip.reason);
                return Err(Error::Skipped(text));
            }
        }
        Ok(())
    }

    /// Refuses every skip.
    ///
    /// # Errors
    /// Names the first one.
    pub(crate) fn check_no_skips(&self) -> Result<(), Error> {
        match self.skips.first() {
            Some((_, skip)) => Err(Error::Skipped(format!("{}: {}", skip.what, skip.reason))),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<28} {:>9} {:>8}  outcome", "step", "seconds", "tests")?;
        for row in &self.rows {
            let outcome = match row.outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::Skipped => "skipped",
            };
            let Counts { passed, failed } = row.counts;
            let tests = if passed + failed == 0 {
                String::new()
            } else {
                passed.to_string()
            };
            let seconds = row.took.as_secs_f64();
            writeln!(f, "{:<28} {seconds:>9.1} {tests:>8}  {outcome}", row.name)?;
        }
        if self.skips.is_empty() {
            writeln!(f, "nothing skipped")?;
        } else {
            writeln!(f, "skipped checks:")?;
            for (step, skip) in &self.skips {
                writeln!(f, "  {}: {} (step `{step}`)", skip.what, skip.reason)?;
            }
        }
        for (step, Failure { test, why }) in &self.failures {
            writeln!(f, "failed: {test} (step `{step}`)")?;
            for line in why {
                writeln!(f, "  {line}")?;
            }
        }
        let Counts { passed, failed } = self.counts();
        writeln!(f, "{passed} passed, {failed} failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(what: &str) -> Skip {
        Skip {
            what: what.to_owned(),
            reason: "not there".to_owned(),
        }
    }

    #[test]
    fn counts_are_read_from_closing_lines() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; \
                    0 filtered out; finished in 0.01s";
        assert_eq!(
            parse_counts(line),
            Some(Counts {
                passed: 12,
                failed: 3
            })
        );
        assert_eq!(parse_counts("test alloc::pcp::drain ... ok"), None);
        assert_eq!(parse_counts("test result: ok."), None);
    }

    #[test]
    fn the_start_of_tests_is_read() {
        assert_eq!(parse_running("running 1 test"), Some(1));
        assert_eq!(parse_running("running 12 tests"), Some(12));
        assert_eq!(parse_running("running 12 testers"), None);
    }

    #[test]
    fn skips_are_read_with_their_reason() {
        let line = "skipped: shared traces: ../shared/traces: no such folder";
        let found = parse_skip(line).expect("a skip");
        assert_eq!(found.what, "shared traces");
        assert_eq!(found.reason, "../shared/traces: no such folder");
        assert_eq!(parse_skip("3 skipped: a word inside a line"), None);
    }

    #[test]
    fn a_skip_without_a_reason_is_never_allowed() {
        let mut report = Report::default();
        report.skip(
            "unit tests",
            parse_skip("skipped: shared traces").expect("a skip"),
        );
        assert!(report.check_skips().is_err());
    }

    #[test]
    fn only_listed_skips_are_allowed() {
        let mut report = Report::default();
        for (what, _) in ALLOWED_SKIPS {
            report.skip("unit tests", skip(what));
        }
        assert!(report.check_skips().is_ok());
        report.skip("unit tests", skip("arithmetic"));
        let error = report.check_skips().expect_err("arithmetic is not listed");
        assert!(error.to_string().contains("arithmetic"), "{error}");
    }

    #[test]
    fn the_report_ends_with_the_sum_alone_on_a_line() {
        let mut report = Report::default();
        let took = Duration::from_millis(1500);
        report.add(
            "unit tests",
            Outcome::Passed,
            took,
            Counts {
                passed: 7,
                failed: 0,
            },
        );
        report.add(
            "loom",
            Outcome::Failed,
            took,
            Counts {
                passed: 1,
                failed: 2,
            },
        );
        report.skip("loom", skip("asan"));
        report.skip("loom", skip("asan"));
        let test = "alloc::drain".to_owned();
        let why = vec!["left: 1".to_owned()];
        report.fail("loom", Failure { test, why });
        let text = report.to_string();
        assert_eq!(text.lines().last(), Some("8 passed, 2 failed"));
        assert_eq!(text.matches("asan: not there (step `loom`)").count(), 1);
        assert!(text.contains("failed: alloc::drain (step `loom`)\n  left: 1\n"));
    }
}
