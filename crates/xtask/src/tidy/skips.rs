//! What tests skip: CI refuses a skip that is not listed, wherever it comes up first.

use super::Violation;
use crate::report::ALLOWED_SKIPS;

/// Where a test tells a skip, the name of the check follows.
const TOLD: &str = "\"skipped: ";

/// Names of skipped checks in tests that `ALLOWED_SKIPS` does not have.
pub(super) fn check(path: &str, text: &str) -> Vec<Violation> {
    if !path.contains("/tests/") {
        return Vec::new();
    }
    let unlisted = |(line, text): (usize, &str)| {
        let (_, told) = text.split_once(TOLD)?;
        let (what, _) = told.split_once(':')?;
        let is_listed = ALLOWED_SKIPS.iter().any(|&(listed, _)| listed == what);
        let message = format!("a skip of `{what}`, which ALLOWED_SKIPS does not list");
        (!is_listed).then(|| Violation::new(path, line + 1, message))
    };
    text.lines().enumerate().filter_map(unlisted).collect()
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
        assert!(check("crates/xtask/src/step.rs", &told("arithmetic")).is_empty());
    }
}
