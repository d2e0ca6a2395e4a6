//! The shape of a source file: its size, its characters, its doc, its marks of work to do.

use super::Violation;
use super::lexer::{Kind, Token};

const MAX_LINES: usize = 600;
const MAX_COLUMNS: usize = 100;

/// Checks one `.rs` file.
pub(super) fn check(path: &str, text: &str, tokens: &[Token<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(check_module_doc(path, tokens));
    violations.extend(check_length(path, text));
    violations.extend(check_lines(path, text));
    violations.extend(check_work_marks(path, tokens));
    violations
}

/// The first thing but for attributes is the module's doc.
///
/// `#![doc = ..]` counts: a room takes in its page so.
fn check_module_doc(path: &str, tokens: &[Token<'_>]) -> Option<Violation> {
    let missing = || {
        Some(Violation::new(
            path,
            1,
            "no module doc (`//!`) at the beginning",
        ))
    };
    let mut tokens = tokens.iter();
    while let Some(token) = tokens.next() {
        match token.kind {
            Kind::Comment(text) if text.starts_with("//!") || text.starts_with("/*!") => {
                return None;
            }
            Kind::Comment(text) if !text.starts_with("///") => {}
            Kind::Mark('#') => {
                let is_inner = tokens.next().is_some_and(|token| token.is_mark('!'));
                if !is_inner {
                    return missing();
                }
                let mut depth = 0;
                for token in tokens.by_ref() {
                    match token.kind {
                        Kind::Mark('[') => depth += 1,
                        Kind::Mark(']') => depth -= 1,
                        Kind::Word("doc") if depth == 1 => return None,
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            _ => return missing(),
        }
    }
    missing()
}

fn check_length(path: &str, text: &str) -> Option<Violation> {
    let nr_lines = text.lines().count();
    let message = format!("{nr_lines} lines, at most {MAX_LINES}: split the file");
    (nr_lines > MAX_LINES).then(|| Violation::new(path, MAX_LINES + 1, message))
}

/// Every line has at most 100 characters, all of them ASCII.
fn check_lines(path: &str, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if let Some(c) = text.chars().find(|c| !c.is_ascii()) {
            violations.push(Violation::new(path, line, format!("{c:?} is not ASCII")));
        }
        let columns = text.chars().count();
        if columns > MAX_COLUMNS {
            let message = format!("{columns} columns, at most {MAX_COLUMNS}");
            violations.push(Violation::new(path, line, message));
        }
    }
    violations
}

/// A comment that defers work names its issue, on the same line.
fn check_work_marks(path: &str, tokens: &[Token<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for token in tokens {
        let Kind::Comment(comment) = token.kind else {
            continue;
        };
        for (line, text) in (token.line..).zip(comment.lines()) {
            for mark in ["TODO", "FIXME"] {
                if has_bare_mark(text, mark) {
                    let message = format!("{mark} without the number of an issue (`#12`)");
                    violations.push(Violation::new(path, line, message));
                }
            }
        }
    }
    violations
}

fn has_bare_mark(text: &str, mark: &str) -> bool {
    let is_word = |c: char| c == '_' || c.is_alphanumeric();
    text.match_indices(mark).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + mark.len()..]);
        let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
        let has_issue = after
            .split('#')
            .skip(1)
            .any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        is_whole && !has_issue
    })
}

#[cfg(test)]
mod tests {
    use super::super::lexer;
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let violations = check("a.rs", text, &lexer::tokens(text));
        violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn module_doc_may_follow_attributes_and_comments() {
        for text in [
            "//! Doc.\nfn f() {}\n",
            "#![cfg(loom)]\n//! Doc.\n",
            "#![allow(clippy::x, reason = \"[\")]\n// why\n/*! Doc. */\n",
            "#![doc = include_str!(\"README.md\")]\nmod a;\n",
        ] {
            assert_eq!(messages(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_missing_module_doc_is_found() {
        for text in [
            "",
            "fn f() {}\n",
            "/// Doc of `f`.\nfn f() {}\n",
            "#[cfg(test)]\nmod tests {\n    //! Inside.\n}\n",
            "#![no_std]\nfn f() {}\n//! late\n",
        ] {
            let expected = "a.rs:1: no module doc (`//!`) at the beginning";
            assert_eq!(messages(text), [expected], "{text}");
        }
    }

    #[test]
    fn files_end_at_the_limit() {
        let text = format!("//! Doc.\n{}", "\n".repeat(599));
        assert_eq!(messages(&text), [""; 0]);
        let found = messages(&format!("{text}\n"));
        assert_eq!(found, ["a.rs:601: 601 lines, at most 600: split the file"]);
    }

    #[test]
    fn wide_and_foreign_lines_are_found() {
        let fits = format!("//! {}\n", "x".repeat(96));
        assert_eq!(messages(&fits), [""; 0]);
        let wide = format!("//! {}\n", "x".repeat(97));
        assert_eq!(messages(&wide), ["a.rs:1: 101 columns, at most 100"]);
        let dash = messages("//! Doc.\n// a \u{2013} b\n");
        assert_eq!(dash, ["a.rs:2: '\u{2013}' is not ASCII"]);
    }

    #[test]
    fn work_marks_need_an_issue() {
        let found = messages("//! Doc.\n// TODO: later, see #x\n/* a\n FIXME b */\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.rs:2: TODO"), "{found:?}");
        assert!(found[1].starts_with("a.rs:4: FIXME"), "{found:?}");
    }

    #[test]
    fn work_marks_with_an_issue_or_in_strings_pass() {
        let text = "//! Doc.\n// TODO(#12): later\n// FIXME #3\n// TODOS_LEFT\nx(\"TODO\");\n";
        assert_eq!(messages(text), [""; 0]);
    }
}
