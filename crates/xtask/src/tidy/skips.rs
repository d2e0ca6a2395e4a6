//! What tests skip: CI refuses a skip that is not listed, wherever it comes up first.

use super::Violation;
use crate::report::parse_skip;

/// Where a skip is told.
const TOLD: &str = "\"skipped: ";

/// Skips that CI refuses, as far as the text shows: not those that are a value as a whole.
pub(super) fn check(path: &str, text: &str) -> Vec<Violation> {
    // The list's own tests, and steps that are named elsewhere.
    if path.starts_with("crates/xtask/") {
        return Vec::new();
    }
    let refused = |(line, text): (usize, &str)| {
        let told = &text[text.find(TOLD)? + 1..];
        let skip = parse_skip(told).filter(|skip| !skip.what.starts_with('{'))?;
        let message = format!(
            "a skip of `{}`, which ALLOWED_SKIPS does not list",
            skip.what
        );
        (!skip.is_allowed()).then(|| Violation::new(path, line + 1, message))
    };
    text.lines().enumerate().filter_map(refused).collect()
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
