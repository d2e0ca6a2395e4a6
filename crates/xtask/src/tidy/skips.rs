//! What tests skip: CI refuses a skip that is not listed, wherever it comes up first.

use super::Violation;
use crate::report::ALLOWED_SKIPS;

/// Where a test tells a skip, the name of the check follows.
const TOLD: &str = "\"skipped: ";

/// Names of skipped checks that `ALLOWED_SKIPS` does not have, and skips without a reason.
pub(super) fn check(path: &str, text: &str) -> Vec<Violation> {
    // The list's own tests, and steps that are named elsewhere.
    if path.starts_with("crates/xtask/") {
        return Vec::new();
    }
    let told = |(line, text): (usize, &str)| {
        let (_, told) = text.split_once(TOLD)?;
        let message = refused(told)?;
        Some(Violation::new(path, line + 1, message))
    };
    text.lines().enumerate().filter_map(told).collect()
}

/// Why CI refuses a skip that is told so, if the text alone shows it.
fn refused(told: &str) -> Option<String> {
    // The whole skip is a value, which only a run shows.
    if told.starts_with('{') {
        return None;
    }
    let Some((what, _)) = told.split_once(": ") else {
        return Some("a skip without a reason: `skipped: <what>: <reason>`".to_owned());
    };
    let is_listed = ALLOWED_SKIPS.iter().any(|&(listed, _)| listed == what);
    (!is_listed).then(|| format!("a skip of `{what}`, which ALLOWED_SKIPS does not list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_that_is_not_listed_is_found() {
        let told = |what: &str| format!("fn a() {{\n    println!({TOLD}{what}: {{why}}\");\n}}\n");
        let path = "crates/core/tests/it/a.rs";
        assert!(check(path, &told("strace")).is_empty());
        let found = check(path, &told("arithmetic"));
        assert_eq!((found.len(), found[0].line), (1, 2));
        assert!(found[0].message.contains("arithmetic"));
        assert_eq!(check("crates/core/src/a.rs", &told("arithmetic")).len(), 1);
        assert!(check("crates/xtask/src/step.rs", &told("arithmetic")).is_empty());
    }

    #[test]
    fn a_skip_without_a_reason_is_found() {
        let found = |told: &str| check("a.rs", &format!("println!({TOLD}{told}\");\n")).len();
        assert_eq!(found("the sanitizer maps memory"), 1);
        assert_eq!(found("strace:"), 1);
        assert_eq!(found("{why}"), 0);
    }
}
