//! The tests that failed, read from what libtest prints.

/// The lines of a test's panics that are kept: the first ones tell the most.
const MAX_WHY: usize = 8;

/// Reads the name of a test that failed (`test alloc::drain ... FAILED`).
pub(crate) fn parse_failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Reads whose output follows (`---- alloc::drain stdout ----`).
fn parse_speaker(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Whether a line begins a panic's text.
fn is_panic(line: &str) -> bool {
    line.starts_with("thread '") && line.contains(" panicked at ")
}

/// Whether a line ends a panic's text: its stack follows, or something else.
fn is_end(line: &str) -> bool {
    line.is_empty() || line == "stack backtrace:" || line.starts_with("note: ")
}

/// A test that failed, with the lines of its panics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) test: String,
    pub(crate) why: Vec<String>,
}

/// Gathers failed tests from the output of a program, line by line.
///
/// Names come first, and what each test printed follows when all have ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    pub(crate) found: Vec<Failure>,
    /// The one of `found` whose output the lines are.
    speaker: Option<usize>,
    is_in_panic: bool,
}

impl Failures {
    /// Takes the next line, without its end.
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(test) = parse_failed(line) {
            let test = test.to_owned();
            let why = Vec::new();
            self.found.push(Failure { test, why });
        } else if let Some(test) = parse_speaker(line) {
            // Two programs may have tests of one name: the last of them speaks.
            self.speaker = self.found.iter().rposition(|found| found.test == test);
            self.is_in_panic = false;
        } else if let Some(speaker) = self.speaker {
            self.is_in_panic = is_panic(line) || (self.is_in_panic && !is_end(line));
            let why = &mut self.found[speaker].why;
            if self.is_in_panic && why.len() < MAX_WHY {
                why.push(line.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_failed_tests_are_read() {
        let name = parse_failed("test alloc::drain ... FAILED");
        assert_eq!(name, Some("alloc::drain"));
        assert_eq!(parse_failed("test alloc::drain ... ok"), None);
        let result = "test result: FAILED. 1 passed; 3 failed";
        assert_eq!(parse_failed(result), None);
    }

    #[test]
    fn a_failed_test_is_kept_with_its_panics_alone() {
        let output = "\
test alloc::drain ... FAILED
test alloc::fill ... ok
---- alloc::fill stdout ----
thread 'alloc::fill' (7) panicked at src/fill.rs:1:1:
one that is expected
---- alloc::drain stdout ----
3 rounds
thread 'alloc::drain' (8) panicked at src/drain.rs:2:9:
assertion `left == right` failed: drained
  left: 1
 right: 2
stack backtrace:
   0: something
note: Some details are omitted
thread 'alloc::drain' (8) panicked at src/drain.rs:3:9:
another
";
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read(line));
        let [failure] = &failures.found[..] else {
            panic!("not one failure: {failures:?}");
        };
        assert_eq!(failure.test, "alloc::drain");
        let why = [
            "thread 'alloc::drain' (8) panicked at src/drain.rs:2:9:",
            "assertion `left == right` failed: drained",
            "  left: 1",
            " right: 2",
            "thread 'alloc::drain' (8) panicked at src/drain.rs:3:9:",
            "another",
        ];
        assert_eq!(failure.why, why);
        let many = "thread 'alloc::drain' (8) panicked at src/drain.rs:4:9:";
        (0..100).for_each(|_| failures.read(many));
        assert_eq!(failures.found[0].why.len(), MAX_WHY);
    }
}
