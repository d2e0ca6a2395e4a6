//! `tidy`: the project's rules that neither rustfmt nor clippy knows.
//!
//! Each rule is a function of a path and a text, or of the list of paths, that returns violations;
//! this file reads the tree and calls them.

mod docs;
mod fences;
mod lexer;
mod manifest;
mod names;
mod rooms;
mod shape;
mod skips;

use std::fmt;
use std::fs;
use std::io::ErrorKind;

use crate::error::Error;
use crate::workspace::{self, Workspace};

/// A place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    message: String,
}

impl Violation {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Violation {
        Violation {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A text file of the tree; its path is relative to the root, with slashes.
struct File {
    path: String,
    text: String,
}

/// Checks the whole tree and prints what breaks a rule.
///
/// # Errors
/// The number of violations, if there are any; also a tree that cannot be read.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Error> {
    let files = read_tree(workspace)?;
    let mut metadata = workspace.cargo();
    metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata = workspace::output(&mut metadata)?;

    let mut violations = check_files(&files);
    violations.extend(manifest::check_default_binary(&metadata)?);
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    if violations.is_empty() {
        println!("tidy: {} files, no violation", files.len());
        Ok(())
    } else {
        Err(Error::Untidy(violations.len()))
    }
}

/// Every rule that needs nothing but the files.
fn check_files(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for File { path, text } in files {
        violations.extend(docs::check_machine_paths(path, text));
        if path.ends_with(".rs") {
            let tokens = lexer::tokens(text);
            violations.extend(shape::check(path, text, &tokens));
            violations.extend(rooms::check(path, &tokens));
            violations.extend(fences::check_unsafe(path, &tokens));
            violations.extend(fences::check_std(path, &tokens));
            violations.extend(skips::check(path, text));
        }
        if docs::is_room_page(path) {
            violations.extend(docs::check_room_page(path, text));
        }
    }
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    violations.extend(docs::check_room_pages_exist(&paths));
    let list = files.iter().find(|file| file.path == docs::UNSAFE_PAGE);
    let list = list.map_or("", |file| file.text.as_str());
    violations.extend(docs::check_unsafe_page(list, &fences::UNSAFE_FILES));
    violations.extend(names::check(files));
    violations
}

/// Reads the text files that git tracks or would track.
fn read_tree(workspace: &Workspace) -> Result<Vec<File>, Error> {
    let mut git = workspace.command("git");
    git.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let mut files = Vec::new();
    for path in workspace::output(&mut git)?.split_terminator('\0') {
        let full = workspace.root().join(path);
        if full.is_symlink() || full.is_dir() {
            continue;
        }
        let bytes = match fs::read(&full) {
            Ok(bytes) => bytes,
            // Deleted, and not yet so in the index.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(source) => return Err(Error::Read { path: full, source }),
        };
        if let Some(text) = text_of(bytes) {
            files.push(File {
                path: path.to_owned(),
                text,
            });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

/// The text of a file, or `None` for one that holds data.
fn text_of(bytes: Vec<u8>) -> Option<String> {
    if bytes.contains(&0) {
        return None;
    }
    // A text with a stray byte is still a text: the check for ASCII has to see it.
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// The page of unsafe code, the files that it lists, and the page of the room that one is in.
    fn unsafe_files() -> Vec<File> {
        let sources = fences::UNSAFE_FILES.map(|path| file(path, "//! Doc.\n"));
        let headings = [
            "What",
            "Source",
            "Structure",
            "Locks",
            "Invariants",
            "Tests",
        ];
        let room = headings.map(|name| format!("## {name}\n")).concat();
        let room = file("crates/core/src/sync/README.md", &room);
        let pages = [unsafe_page(), room];
        sources.into_iter().chain(pages).collect()
    }

    fn unsafe_page() -> File {
        let rows: Vec<_> = fences::UNSAFE_FILES
            .iter()
            .map(|path| format!("| `{path}` | x | y |\n"))
            .collect();
        file(docs::UNSAFE_PAGE, &rows.concat())
    }

    #[test]
    fn a_tidy_tree_has_no_violation() {
        let mut files = unsafe_files();
        files.push(file("crates/core/src/lib.rs", "//! Doc.\n#![no_std]\n"));
        assert_eq!(check_files(&files), []);
    }

    #[test]
    fn violations_of_every_kind_of_rule_are_found() {
        let mut files = unsafe_files();
        files.extend([
            file(
                "crates/core/src/frame/mod.rs",
                "//! Doc.\nuse crate::memory::Here;\n",
            ),
            file(
                "crates/core/src/units.rs",
                "use std::fmt;\nunsafe fn f() {}\n",
            ),
            file("docs/a.md", "see `crates/core/src/none.rs`\n"),
        ]);
        let found: Vec<_> = check_files(&files)
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "crates/core/src/frame/mod.rs:2: room `frame` imports `memory`",
            "crates/core/src/units.rs:1: no module doc",
            "crates/core/src/units.rs:2: `unsafe`",
            "crates/core/src/units.rs:1: `std`",
            "crates/core/src/frame/README.md:1: a room needs",
            "docs/a.md:1: `crates/core/src/none.rs` is not there",
        ];
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
        assert_eq!(found.len(), expected.len(), "{found:?}");
    }

    #[test]
    fn a_violation_reads_as_path_line_message() {
        let violation = Violation::new("src/a.rs", 7, "too long");
        assert_eq!(violation.to_string(), "src/a.rs:7: too long");
    }

    #[test]
    fn data_is_told_from_text() {
        assert_eq!(text_of(vec![b'a', 0]), None);
        assert_eq!(text_of(b"text".to_vec()).as_deref(), Some("text"));
        assert!(text_of(vec![b'a', 0xff]).is_some_and(|text| !text.is_ascii()));
    }
}
