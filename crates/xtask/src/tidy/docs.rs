//! Pages that have to exist and agree with the code, and paths that no file may name.

use std::collections::BTreeSet;

use super::Violation;

/// The page that says why each file with `unsafe` is sound.
pub(super) const UNSAFE_PAGE: &str = "docs/unsafe.md";

/// The headings of a room's page.
const HEADINGS: [&str; 6] = [
    "What",
    "Source",
    "Structure",
    "Locks",
    "Invariants",
    "Tests",
];

const SOURCES: &str = "crates/core/src/";

/// Folders of one machine, spelled so that this file does not name them itself.
const MACHINE_FOLDERS: [&str; 3] = [
    concat!("/", "work/"),
    concat!("/", "root/"),
    concat!("/", "home/"),
];

/// Is this the page of a folder-room of core?
pub(super) fn is_room_page(path: &str) -> bool {
    room_of(path).is_some_and(|room| path == room_page(room))
}

/// A room's page has all its headings.
pub(super) fn check_room_page(path: &str, text: &str) -> Vec<Violation> {
    let headings: BTreeSet<_> = text
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim())
        .collect();
    let missing = HEADINGS
        .into_iter()
        .filter(|heading| !headings.contains(heading));
    missing
        .map(|heading| Violation::new(path, 1, format!("no heading `{heading}`")))
        .collect()
}

/// Each folder of core's sources has a page.
pub(super) fn check_room_pages_exist(paths: &[&str]) -> Vec<Violation> {
    let rooms: BTreeSet<_> = paths.iter().filter_map(|path| room_of(path)).collect();
    let pages = rooms.into_iter().map(room_page);
    let missing = pages.filter(|page| !paths.contains(&page.as_str()));
    missing
        .map(|page| Violation::new(&page, 1, "a room needs a README.md"))
        .collect()
}

/// The folder-room that a path lies in.
fn room_of(path: &str) -> Option<&str> {
    let (room, _) = path.strip_prefix(SOURCES)?.split_once('/')?;
    Some(room)
}

fn room_page(room: &str) -> String {
    format!("{SOURCES}{room}/README.md")
}

/// The table of `docs/unsafe.md` lists the same files as `tidy`.
pub(super) fn check_unsafe_page(text: &str, files: &[&str]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut listed = BTreeSet::new();
    for (line, row) in (1..).zip(text.lines()) {
        let Some(file) = first_cell(row) else {
            continue;
        };
        if !files.contains(&file) {
            let message = format!("`{file}` is not in tidy's list of files with unsafe code");
            violations.push(Violation::new(UNSAFE_PAGE, line, message));
        }
        if !listed.insert(file) {
            let message = format!("`{file}` is listed twice");
            violations.push(Violation::new(UNSAFE_PAGE, line, message));
        }
    }
    for file in files.iter().filter(|file| !listed.contains(*file)) {
        let message = format!("no row for `{file}`");
        violations.push(Violation::new(UNSAFE_PAGE, 1, message));
    }
    violations
}

/// The path in the first cell of a table's row (``| `path` | .. |``).
fn first_cell(row: &str) -> Option<&str> {
    let cell = row.trim().strip_prefix('|')?.split('|').next()?.trim();
    cell.strip_prefix('`')?.strip_suffix('`')
}

/// No file names a folder of the machine that it was written on.
pub(super) fn check_machine_paths(path: &str, text: &str) -> Vec<Violation> {
    if path == "Cargo.lock" || path.ends_with("/Cargo.lock") {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        for folder in MACHINE_FOLDERS {
            if names_folder(text, folder) {
                let message = format!("`{folder}` is a folder of one machine");
                violations.push(Violation::new(path, line, message));
            }
        }
    }
    violations
}

/// Is `folder` in the text, at the beginning of a path?
fn names_folder(text: &str, folder: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '}' | ')');
    text.match_indices(folder)
        .any(|(at, _)| !text[..at].ends_with(is_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "crates/core/src/alloc/README.md";

    #[test]
    fn a_whole_page_passes() {
        let text = "# alloc\n## What\n## Source\n## Structure\n## Locks\n## Invariants\n## Tests\n";
        assert_eq!(check_room_page(PAGE, text), []);
    }

    #[test]
    fn missing_headings_are_named() {
        let text = "# What\n## Source\n## Structure\n## Lock\nInvariants\n## Tests\n";
        let found = check_room_page(PAGE, text);
        let messages: Vec<_> = found.iter().map(|found| found.message.as_str()).collect();
        assert_eq!(messages, ["no heading `Locks`", "no heading `Invariants`"]);
    }

    #[test]
    fn pages_belong_to_folders_of_core() {
        assert!(is_room_page(PAGE));
        assert!(!is_room_page("crates/core/README.md"));
        assert!(!is_room_page("crates/core/src/alloc/model/README.md"));
        assert!(!is_room_page("crates/sim/src/disk/README.md"));
    }

    #[test]
    fn a_room_without_a_page_is_found() {
        let paths = [
            "crates/core/src/alloc/mod.rs",
            "crates/core/src/units.rs",
            "README.md",
        ];
        let found = check_room_pages_exist(&paths);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].path, PAGE);
        assert_eq!(
            check_room_pages_exist(&["crates/core/src/alloc/mod.rs", PAGE]),
            []
        );
    }

    #[test]
    fn the_unsafe_page_agrees_with_the_list() {
        let text = "# Unsafe\n| file | what | why |\n|---|---|---|\n| `a.rs` | x | `b.rs` |\n";
        assert_eq!(check_unsafe_page(text, &["a.rs"]), []);
        let found = check_unsafe_page(text, &["c.rs"]);
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("docs/unsafe.md:4: `a.rs` is not in"),
            "{found:?}"
        );
        assert_eq!(found[1], "docs/unsafe.md:1: no row for `c.rs`");
    }

    #[test]
    fn a_row_may_not_stand_twice() {
        let found = check_unsafe_page("| `a.rs` | x |\n| `a.rs` | y |\n", &["a.rs"]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, 2);
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        for folder in MACHINE_FOLDERS {
            for text in [
                format!("see {folder}x"),
                format!("{folder}x"),
                format!("\"{folder}x\""),
            ] {
                let found = check_machine_paths("docs/a.md", &format!("\n{text}\n"));
                assert_eq!(found.len(), 1, "{text}");
                assert_eq!(found[0].line, 2);
            }
        }
    }

    #[test]
    fn other_paths_pass() {
        for folder in MACHINE_FOLDERS {
            let text = format!("a{folder}x ..{folder}x {{root}}{folder}x ~{}", &folder[1..]);
            assert_eq!(check_machine_paths("docs/a.md", &text), [], "{text}");
            assert_eq!(check_machine_paths("crates/bench/Cargo.lock", folder), []);
        }
    }
}
