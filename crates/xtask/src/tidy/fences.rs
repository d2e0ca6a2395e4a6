//! Two fences: where `unsafe` may stand, and where core may name `std`.

use super::Violation;
use super::lexer::{self, Kind, Token};

/// The files that may say `unsafe`; `docs/unsafe.md` says what each rests on.
pub(super) const UNSAFE_FILES: [&str; 15] = [
    "crates/bench/src/alloc/peers.rs",
    "crates/bench/src/alloc/sys.rs",
    "crates/cli/src/bench/device/sys.rs",
    "crates/core/src/sync.rs",
    "crates/core/src/sync/sections.rs",
    "crates/pagetide/src/arena.rs",
    "crates/pagetide/src/cpu.rs",
    "crates/pagetide/src/home.rs",
    "crates/pagetide/src/io/uring.rs",
    "crates/pagetide/src/io/uring/bounce.rs",
    "crates/pagetide/src/io/uring/slot.rs",
    "crates/pagetide/src/io/uring/writes.rs",
    "crates/pagetide/src/page.rs",
    "crates/pagetide/src/rseq.rs",
    "crates/pagetide/tests/fork.rs",
];

const CORE: &str = "crates/core/src/";

/// `std` is core's way to clocks, threads and files; this file alone takes what it needs.
const STD_FILE: &str = "crates/core/src/sync.rs";

/// `unsafe`, and lifting the lint against it, stand in the listed files only.
pub(super) fn check_unsafe(path: &str, tokens: &[Token<'_>]) -> Vec<Violation> {
    if UNSAFE_FILES.contains(&path) {
        return Vec::new();
    }
    let code = lexer::code(tokens);
    let mut violations = Vec::new();
    for (at, token) in code.iter().enumerate() {
        if token.is_word("unsafe") {
            let message = "`unsafe` outside the listed files (see docs/unsafe.md)";
            violations.push(Violation::new(path, token.line, message));
        } else if lifts_lint(&code[at..]) {
            let message = "`unsafe_code` allowed outside the listed files (see docs/unsafe.md)";
            violations.push(Violation::new(path, token.line, message));
        }
    }
    violations
}

/// Does the code begin with `allow(.. unsafe_code ..)` or a like attribute?
fn lifts_lint(code: &[Token<'_>]) -> bool {
    let [verb, open, arguments @ ..] = code else {
        return false;
    };
    let verbs = ["allow", "expect", "warn"];
    if !verbs.iter().any(|name| verb.is_word(name)) || !open.is_mark('(') {
        return false;
    }
    let arguments = arguments.iter().take_while(|token| !token.is_mark(')'));
    arguments
        .into_iter()
        .any(|token| token.is_word("unsafe_code"))
}

/// Outside of tests, core names `std` in `sync.rs` only.
pub(super) fn check_std(path: &str, tokens: &[Token<'_>]) -> Vec<Violation> {
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    if !path.starts_with(CORE) || path == STD_FILE || is_test {
        return Vec::new();
    }
    let code = without_tests(&lexer::code(tokens));
    let mut violations = Vec::new();
    for (at, token) in code.iter().enumerate() {
        let is_mark = |at: Option<usize>, mark| {
            at.and_then(|at| code.get(at))
                .is_some_and(|token| token.is_mark(mark))
        };
        let is_path = is_mark(Some(at + 1), ':') && is_mark(Some(at + 2), ':');
        let is_crate = at
            .checked_sub(1)
            .is_some_and(|at| code[at].is_word("crate"));
        // `alloc::std::x` names a module of one's own.
        let is_inner = is_mark(at.checked_sub(1), ':')
            && at
                .checked_sub(3)
                .is_some_and(|at| matches!(code[at].kind, Kind::Word(_)));
        if token.is_word("std") && (is_crate || is_path && !is_inner) {
            let message = "`std` in core outside of sync.rs";
            violations.push(Violation::new(path, token.line, message));
        }
    }
    violations
}

/// The code without the items that `#[cfg(test)]` stands before; all of it for `#![cfg(test)]`.
fn without_tests<'a>(code: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < code.len() {
        match test_attribute(&code[at..]) {
            Some((_, true)) => return Vec::new(),
            Some((length, false)) => at += length + item_length(&code[at + length..]),
            None => {
                kept.push(code[at]);
                at += 1;
            }
        }
    }
    kept
}

/// The length of a `#[cfg(.. test ..)]` that the code begins with, and whether it is inner.
fn test_attribute(code: &[Token<'_>]) -> Option<(usize, bool)> {
    let is_inner = code.get(1)?.is_mark('!');
    let open = if is_inner { 2 } else { 1 };
    let is_cfg =
        code[0].is_mark('#') && code.get(open)?.is_mark('[') && code.get(open + 1)?.is_word("cfg");
    if !is_cfg {
        return None;
    }
    let length = open + 1 + code[open..].iter().position(|token| token.is_mark(']'))?;
    let has = |word| code[..length].iter().any(|token| token.is_word(word));
    (has("test") && !has("not") && !has("any")).then_some((length, is_inner))
}

/// The length of an item: to its closing brace, or to the semicolon if it has no body.
fn item_length(code: &[Token<'_>]) -> usize {
    let (mut braces, mut brackets) = (0_usize, 0_usize);
    for (at, token) in code.iter().enumerate() {
        match token.kind {
            Kind::Mark('{') => braces += 1,
            Kind::Mark('}') if braces <= 1 => return at + 1,
            Kind::Mark('}') => braces -= 1,
            Kind::Mark('[' | '(') => brackets += 1,
            Kind::Mark(']' | ')') => brackets = brackets.saturating_sub(1),
            Kind::Mark(';') if braces == 0 && brackets == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsafe_lines(path: &str, text: &str) -> Vec<usize> {
        check_unsafe(path, &lexer::tokens(text))
            .iter()
            .map(|found| found.line)
            .collect()
    }

    fn std_lines(path: &str, text: &str) -> Vec<usize> {
        check_std(path, &lexer::tokens(text))
            .iter()
            .map(|found| found.line)
            .collect()
    }

    #[test]
    fn unsafe_code_is_found() {
        let text = "fn f() {\n    unsafe { g() }\n}\n#[unsafe(no_mangle)]\n";
        assert_eq!(unsafe_lines("crates/cli/src/main.rs", text), [2, 4]);
        let text = "\n#![allow(unused, unsafe_code)]\n#[expect(unsafe_code)]\n";
        assert_eq!(unsafe_lines("crates/core/src/lib.rs", text), [2, 3]);
    }

    #[test]
    fn words_about_unsafe_code_pass() {
        let text = "// unsafe\n/// `unsafe`\nx(\"unsafe\");\n#![deny(unsafe_code)]\nunsafe_x();\n";
        assert_eq!(unsafe_lines("crates/cli/src/main.rs", text), [0; 0]);
        assert_eq!(unsafe_lines("crates/core/src/sync.rs", "unsafe {}"), [0; 0]);
    }

    #[test]
    fn std_is_found_in_core() {
        let path = "crates/core/src/alloc/pcp.rs";
        assert_eq!(
            std_lines(path, "use std::fmt;\nfn f() { ::std::mem::drop(1) }\n"),
            [1, 2]
        );
        assert_eq!(
            std_lines(path, "extern crate std;\nuse {core::fmt, std::mem};"),
            [1, 2]
        );
    }

    #[test]
    fn std_passes_where_it_may_stand() {
        assert_eq!(
            std_lines("crates/core/src/sync.rs", "extern crate std;"),
            [0; 0]
        );
        assert_eq!(
            std_lines("crates/core/src/alloc/tests.rs", "use std::fmt;"),
            [0; 0]
        );
        assert_eq!(
            std_lines("crates/core/tests/it/main.rs", "use std::fmt;"),
            [0; 0]
        );
        assert_eq!(std_lines("crates/sim/src/lib.rs", "use std::fmt;"), [0; 0]);
        let text = "// std::fmt\nlet std = 1; my_std::x(); crate::std::x();";
        assert_eq!(std_lines("crates/core/src/units.rs", text), [0; 0]);
    }

    #[test]
    fn test_items_may_use_std() {
        let path = "crates/core/src/units.rs";
        let text = "#[cfg(test)]\nextern crate std;\n#[cfg(test)]\n#[rustfmt::skip]\n\
                    mod tests {\n    use std::fmt;\n    fn f() -> [u8; 2] { std::x() }\n}\n";
        assert_eq!(std_lines(path, text), [0; 0]);
        assert_eq!(std_lines(path, "#![cfg(test)]\nuse std::fmt;"), [0; 0]);
    }

    #[test]
    fn code_after_and_against_tests_is_checked() {
        let path = "crates/core/src/units.rs";
        let text = "#[cfg(test)]\nfn f(x: [u8; 2]) {}\nuse std::fmt;\n";
        assert_eq!(std_lines(path, text), [3]);
        assert_eq!(std_lines(path, "#[cfg(not(test))]\nuse std::fmt;"), [2]);
        assert_eq!(
            std_lines(path, "#[cfg(any(test, loom))]\nuse std::fmt;"),
            [2]
        );
    }
}
