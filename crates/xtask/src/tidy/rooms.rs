//! The order of core's rooms: each imports from the rooms below it only.

use super::Violation;
use super::lexer::{self, Kind, Token};

/// The rooms from low to high; those of one entry may import each other.
const ORDER: [&[&str]; 7] = [
    &["sync", "units", "stats", "event"],
    &["frame"],
    &["alloc"],
    &["group"],
    &["reclaim"],
    &["page_cache"],
    &["memory"],
];

/// Imports that run downward and are forbidden all the same: (room, what it must not import).
///
/// Allocating and charging know nothing of each other, reclaim frees through `memory` only.
const APART: [(&str, &str); 2] = [("group", "alloc"), ("reclaim", "alloc")];

const SOURCES: &str = "crates/core/src/";

/// Checks one `.rs` file of core; other files pass.
pub(super) fn check(path: &str, tokens: &[Token<'_>]) -> Vec<Violation> {
    let Some(inside) = path.strip_prefix(SOURCES) else {
        return Vec::new();
    };
    if inside == "lib.rs" {
        return Vec::new();
    }
    let room = inside.split(['/', '.']).next().unwrap_or(inside);
    let Some(level) = level(room) else {
        let message = format!("`{room}` has no place in the order of rooms");
        return vec![Violation::new(path, 1, message)];
    };
    let mut violations = Vec::new();
    for (target, line) in imports(&lexer::code(tokens), depth(inside)) {
        let Some(target_level) = self::level(target) else {
            continue;
        };
        let message = if target_level > level {
            format!("room `{room}` imports `{target}`, which is above it")
        } else if APART.contains(&(room, target)) {
            format!("room `{room}` imports `{target}`, from which it is kept apart")
        } else {
            continue;
        };
        violations.push(Violation::new(path, line, message));
    }
    violations
}

fn level(room: &str) -> Option<usize> {
    ORDER.iter().position(|rooms| rooms.contains(&room))
}

/// How many `super` lead from a file to the root of the crate.
fn depth(inside: &str) -> usize {
    let folders = inside.matches('/').count();
    if inside.ends_with("/mod.rs") {
        folders
    } else {
        folders + 1
    }
}

/// The names right below the crate's root that the code refers to, with their lines.
///
/// A path begins with `crate`, or with enough `super` to reach the root.
fn imports<'a>(code: &[Token<'a>], depth: usize) -> Vec<(&'a str, usize)> {
    let mut names = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let mut after = at;
        while is_path_step(code, after, "super") {
            after += 3;
        }
        let reaches_root = after - at >= 3 * depth;
        if after == at && is_path_step(code, at, "crate") {
            after = at + 3;
        } else if after == at || !reaches_root {
            at = after.max(at + 1);
            continue;
        }
        names.extend(names_at(code, after));
        at = after;
    }
    names
}

/// Is `word ::` at this place?
fn is_path_step(code: &[Token<'_>], at: usize, word: &str) -> bool {
    matches!(code.get(at..at + 3), Some([first, a, b])
        if first.is_word(word) && a.is_mark(':') && b.is_mark(':'))
}

/// The name at a place of a path, or the first names of all branches of `{a::b, c}`.
fn names_at<'a>(code: &[Token<'a>], at: usize) -> Vec<(&'a str, usize)> {
    let mut names = Vec::new();
    let mut depth = 0;
    let mut is_first = true;
    for token in &code[at..] {
        match token.kind {
            Kind::Mark('{') => depth += 1,
            Kind::Mark('}') => depth -= 1,
            Kind::Mark(',') if depth == 1 => is_first = true,
            Kind::Word(word) if depth <= 1 && is_first => {
                names.push((word, token.line));
                is_first = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(inside: &str, text: &str) -> Vec<String> {
        let path = format!("{SOURCES}{inside}");
        let violations = check(&path, &lexer::tokens(text));
        violations
            .into_iter()
            .map(|violation| violation.message)
            .collect()
    }

    fn passes(inside: &str, text: &str) {
        assert_eq!(found(inside, text), [""; 0], "{inside}: {text}");
    }

    fn fires(inside: &str, text: &str, target: &str) {
        let found = found(inside, text);
        assert_eq!(found.len(), 1, "{inside}: {text}: {found:?}");
        assert!(
            found[0].contains(&format!("imports `{target}`")),
            "{found:?}"
        );
    }

    #[test]
    fn imports_run_downward() {
        passes("alloc/zone.rs", "use crate::frame::{Frame, FrameTable};");
        passes(
            "memory/mod.rs",
            "use crate::{alloc::pcp, group, reclaim::evict, sync};",
        );
        passes(
            "page_cache/index.rs",
            "fn f(x: crate::alloc::Zone, y: crate::group::Id) {}",
        );
        fires("frame/mod.rs", "use crate::alloc::Zone;", "alloc");
        fires(
            "alloc/pcp.rs",
            "fn f(here: crate::memory::Here) {}",
            "memory",
        );
        fires("units.rs", "use crate::frame::Frame;", "frame");
    }

    #[test]
    fn base_rooms_import_each_other() {
        passes("sync.rs", "use crate::units::Cpu; use crate::event::Event;");
        passes("units/cpu.rs", "use crate::{stats::Counter, sync};");
    }

    #[test]
    fn allocating_charging_and_reclaim_stay_apart() {
        fires("alloc/mod.rs", "use crate::group::Group;", "group");
        fires("group/mod.rs", "use crate::alloc::Zone;", "alloc");
        fires("reclaim/evict.rs", "use crate::alloc::free_bulk;", "alloc");
        fires(
            "reclaim/evict.rs",
            "use crate::page_cache::detach;",
            "page_cache",
        );
        passes("reclaim/evict.rs", "use crate::group::Group;");
    }

    #[test]
    fn each_branch_of_a_group_counts_once() {
        let text = "use crate::{\n    frame::{Frame, alloc},\n    memory::{Here, group},\n};";
        let path = format!("{SOURCES}alloc/zone.rs");
        let violations = check(&path, &lexer::tokens(text));
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert_eq!(violations[0].line, 3);
    }

    #[test]
    fn super_counts_where_it_reaches_the_root() {
        passes("alloc/pcp.rs", "use super::group::x;");
        fires("alloc/pcp.rs", "use super::super::group::x;", "group");
        fires("alloc/mod.rs", "use super::group::x;", "group");
        fires("alloc.rs", "use super::{frame, group};", "group");
    }

    #[test]
    fn words_that_are_no_imports_pass() {
        passes(
            "frame/mod.rs",
            "//! See crate::memory::Here.\nconst X: &str = \"crate::memory\";",
        );
        passes(
            "frame/mod.rs",
            "let memory = self::alloc(); use crate::NR_TYPES;",
        );
        passes("lib.rs", "use crate::memory::Memory;");
    }

    #[test]
    fn a_room_without_a_place_is_found() {
        assert!(found("cellar/mod.rs", "")[0].contains("`cellar` has no place"));
        assert!(check("crates/sim/src/cellar.rs", &[]).is_empty());
    }
}
