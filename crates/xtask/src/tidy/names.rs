//! Names in pages: files, records and pages of the book that a text names have to be there.

use super::{File, Violation};

/// Folders of the tree: a word between backquotes that begins with one of them is a path.
const FOLDERS: [&str; 6] = ["bench/", "book/", "crates/", "docs/", "fuzz/", "traces/"];

/// Where measurements are kept, a folder for each machine.
const RECORDS: &str = "bench/record/";
/// What the head of a record says, in this order.
const HEAD: [&str; 6] = ["commit", "machine", "kernel", "rustc", "command", "what"];

const README: &str = "README.md";
/// The part of [`README`] whose table names a test for each promise.
const PROMISES: &str = "## What it promises";

const SUMMARY: &str = "book/SUMMARY.md";
const INCLUDE: &str = "{{#include ";

/// Everything that pages name, and that records are named.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let mut violations = Vec::new();
    let mut named = Vec::new();
    let pages = files.iter().filter(|file| file.path.ends_with(".md"));
    for File { path, text } in pages {
        for (line, word) in quoted(text) {
            if let Some(record) = record_of(word) {
                named.push(record);
                violations.extend(check_record(path, line, record, &paths));
            } else if FOLDERS.iter().any(|folder| word.starts_with(folder)) {
                violations.extend(check_path(path, line, word, &paths));
            }
        }
        if let Some(line) = example(text)
            && !is_compiled(path, files)
        {
            let message = "an example that no test compiles: take the page into a doc comment";
            violations.push(Violation::new(path, line, message));
        }
        if path == README {
            violations.extend(check_promises(text));
        }
        if path.starts_with("book/") {
            violations.extend(check_includes(path, text, files));
        }
        if path == SUMMARY {
            violations.extend(check_summary(text, &paths));
        }
    }
    let records = files.iter().filter(|file| is_record(&file.path));
    for File { path, text } in records {
        violations.extend(check_head(path, text));
        let stem = stem_of(path);
        if !named.contains(&stem) {
            let message = format!("no page names the record `{stem}`");
            violations.push(Violation::new(path, 1, message));
        }
    }
    violations
}

/// The words between backquotes, with their lines; fences of code are no such words.
fn quoted(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    let lines = (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.flat_map(|(at, line)| {
        let words = line.split('`').skip(1).step_by(2);
        words.map(move |word| (at, word))
    })
}

/// The stem of the record that a word names: a date and a name, with or without its folder.
fn record_of(word: &str) -> Option<&str> {
    let stem = stem_of(word);
    let date = stem.as_bytes().get(..11)?;
    let is_fit = |(at, byte): (usize, &u8)| match at {
        4 | 7 | 10 => *byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    date.iter().enumerate().all(is_fit).then_some(stem)
}

/// The name of a file without its folders and its ending.
fn stem_of(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split('.').next().unwrap_or(name)
}

fn is_record(path: &str) -> bool {
    path.starts_with(RECORDS) && path.ends_with(".txt")
}

fn check_record(path: &str, line: usize, record: &str, paths: &[&str]) -> Option<Violation> {
    let mut records = paths.iter().filter(|path| path.starts_with(RECORDS));
    let is_there = records.any(|path| stem_of(path) == record);
    let message = format!("no record `{record}` under `{RECORDS}`");
    (!is_there).then(|| Violation::new(path, line, message))
}

fn check_path(path: &str, line: usize, word: &str, paths: &[&str]) -> Option<Violation> {
    // A place inside of a file (`a.rs:7`, `a.md#b`), or a pattern: what is before it counts.
    let word = word.split([':', '#', '*', '<', ' ']).next().unwrap_or(word);
    let folder = format!("{}/", word.trim_end_matches('/'));
    let is_there = |path: &&str| *path == word || path.starts_with(&folder);
    let is_named = paths.iter().any(is_there);
    let message = format!("`{word}` is not there");
    (!is_named).then(|| Violation::new(path, line, message))
}

/// The line of a page's first example in Rust.
fn example(text: &str) -> Option<usize> {
    let is_rust = |line: &str| line.starts_with("```rust");
    text.lines().position(is_rust).map(|at| at + 1)
}

/// Whether some source takes a page into its documentation, whose tests compile it.
fn is_compiled(page: &str, files: &[File]) -> bool {
    let mut sources = files.iter().filter(|file| file.path.ends_with(".rs"));
    sources.any(|source| {
        let taken = source.text.split("include_str!(\"").skip(1);
        let mut taken = taken.filter_map(|rest| rest.split('"').next());
        taken.any(|path| resolved(&source.path, path) == page)
    })
}

/// Each promise names a test.
fn check_promises(text: &str) -> Vec<Violation> {
    let lines = (1..).zip(text.lines());
    let lines = lines.skip_while(|(_, line)| !line.starts_with(PROMISES));
    let part = lines
        .skip(1)
        .take_while(|(_, line)| !line.starts_with("## "));
    let rows = part.filter(|(_, line)| line.starts_with('|')).skip(2);
    let without = rows.filter(|(_, row)| {
        let tests = row.rsplit('|').nth(1).unwrap_or_default();
        let mut words = tests.split('`').skip(1).step_by(2);
        !words.any(|word| word.starts_with("crates/") && word.ends_with(".rs"))
    });
    without
        .map(|(line, _)| Violation::new(README, line, "a promise without a test of it"))
        .collect()
}

/// What a page of the book takes in is there, the marked part too.
fn check_includes(path: &str, text: &str, files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        for part in text.split(INCLUDE).skip(1) {
            let taken = part.split("}}").next().unwrap_or(part).trim();
            let (taken, anchor) = taken.split_once(':').unwrap_or((taken, ""));
            let target = resolved(path, taken);
            let file = files.iter().find(|file| file.path == target);
            let start = format!("ANCHOR: {anchor} ");
            let is_there = file.is_some_and(|file| anchor.is_empty() || file.text.contains(&start));
            if !is_there {
                let message = format!("nothing to take in: `{target}` {anchor}");
                violations.push(Violation::new(path, line, message.trim_end()));
            }
        }
    }
    violations
}

/// A relative path from a file on.
fn resolved(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The summary lists the pages that there are, each once.
fn check_summary(text: &str, paths: &[&str]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut listed = vec![SUMMARY.to_owned()];
    for (line, text) in (1..).zip(text.lines()) {
        let Some((_, link)) = text.split_once("](") else {
            continue;
        };
        let page = resolved(SUMMARY, link.split(')').next().unwrap_or(link));
        if !paths.contains(&page.as_str()) {
            violations.push(Violation::new(SUMMARY, line, format!("no page `{page}`")));
        }
        listed.push(page);
    }
    let pages = paths.iter().filter(|path| path.starts_with("book/"));
    let pages =
        pages.filter(|path| path.ends_with(".md") && !listed.contains(&(**path).to_owned()));
    violations.extend(pages.map(|page| Violation::new(page, 1, "not in the book's summary")));
    violations
}

/// A record says where it comes from.
fn check_head(path: &str, text: &str) -> Option<Violation> {
    let mut lines = text.lines();
    let missing = HEAD.iter().find(|word| {
        // The value of a line before may go on.
        !lines.any(|line| line.split(' ').next() == Some(**word))
    })?;
    let message = format!("no `{missing}` in the head of a record, in its order");
    Some(Violation::new(path, 1, message))
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    const RECORD: &str = "bench/record/a/2026-01-02-hit.txt";
    const GOOD: &str =
        "commit   1\nmachine  a\nkernel   6\nrustc    1\ncommand  x\n         y\nwhat z\n";

    /// What is found in a page beside a record, which the page names, and a source file.
    fn found(path: &str, text: &str) -> Vec<String> {
        let files = [
            file(RECORD, GOOD),
            file("crates/a/src/lib.rs", ""),
            file(path, &format!("`2026-01-02-hit`\n{text}")),
        ];
        check(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_of_what_is_there_pass() {
        for word in [
            "crates/a/src/lib.rs",
            "crates/a/src/lib.rs:7",
            "crates/a",
            "crates/a/src/*.rs",
            "bench/record/a/2026-01-02-hit",
            "bench/record/a/2026-01-02-hit.txt",
            "2026-01-02-hit",
            "2026-1",
            "src/none.rs",
        ] {
            assert_eq!(
                found("docs/a.md", &format!("see `{word}`")),
                [""; 0],
                "{word}"
            );
        }
        assert_eq!(found("docs/a.md", "```\n`crates/none.rs`\n```\n"), [""; 0]);
    }

    #[test]
    fn names_of_what_is_not_there_are_found() {
        let found_one = |word: &str| found("docs/a.md", &format!("a `b` and `{word}`"));
        for (word, message) in [
            ("crates/b/src/lib.rs", "`crates/b/src/lib.rs` is not there"),
            ("crates/a/sr", "`crates/a/sr` is not there"),
            ("2026-01-02-miss", "no record `2026-01-02-miss`"),
            (
                "bench/record/a/2026-01-03-hit.txt",
                "no record `2026-01-03-hit`",
            ),
        ] {
            let found = found_one(word);
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            assert!(found[0].starts_with("docs/a.md:2: "), "{found:?}");
            assert!(found[0].contains(message), "{found:?}");
        }
    }

    #[test]
    fn records_are_named_and_say_where_they_come_from() {
        let unnamed = check(&[file(RECORD, GOOD)]);
        assert_eq!(unnamed.len(), 1, "{unnamed:?}");
        assert!(
            unnamed[0]
                .to_string()
                .contains("no page names the record `2026-01-02-hit`")
        );
        for word in HEAD {
            let text = GOOD.replacen(word, "-", 1);
            let files = [file(RECORD, &text), file("a.md", "`2026-01-02-hit`")];
            let found = check(&files);
            assert_eq!(found.len(), 1, "{word}: {found:?}");
            assert!(
                found[0].to_string().contains(&format!("no `{word}`")),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_promise_names_a_test() {
        let head = format!("{PROMISES}, and where\n| promise | test |\n|---|---|\n");
        let good = "| a | `crates/a/src/lib.rs`, `x` |\n";
        assert_eq!(
            found("README.md", &format!("{head}{good}\n## b\n| c | d |\n")),
            [""; 0]
        );
        let found = found(
            "README.md",
            &format!("{head}{good}| `crates/a/src/lib.rs` | b |\n"),
        );
        assert_eq!(found, ["README.md:6: a promise without a test of it"]);
    }

    #[test]
    fn an_example_is_compiled() {
        let page = file("docs/a.md", "text\n```rust\nfn main() {}\n```\n");
        let found = check(&[file("docs/a.md", &page.text)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().starts_with("docs/a.md:2: an example"));
        let source = file(
            "crates/a/src/lib.rs",
            "#[doc = include_str!(\"../../../docs/a.md\")]\n",
        );
        assert_eq!(check(&[page, source]), []);
    }

    #[test]
    fn the_book_has_what_it_lists_and_takes_in() {
        let part = "<!-- ANCHOR: life -->\n";
        let page = |text: &str| {
            let summary = file(SUMMARY, "[a](a.md)\n- [b](rooms/b.md)\n");
            let files = [
                summary,
                file("book/a.md", ""),
                file("book/rooms/b.md", text),
            ];
            let files = files.into_iter().chain([file("docs/c.md", part)]);
            let files: Vec<File> = files.collect();
            let found = check(&files);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(page("{{#include ../../docs/c.md}}"), [""; 0]);
        assert_eq!(page("x\n{{#include ../../docs/c.md:life}}"), [""; 0]);
        for taken in ["../docs/c.md", "../../docs/c.md:death"] {
            let found = page(&format!("x\n{{{{#include {taken}}}}}"));
            assert_eq!(found.len(), 1, "{taken}: {found:?}");
            assert!(
                found[0].starts_with("book/rooms/b.md:2: nothing"),
                "{found:?}"
            );
        }
        let found = check(&[file(SUMMARY, "[a](a.md)\n"), file("book/b.md", "")]);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let expected = [
            "book/SUMMARY.md:1: no page `book/a.md`",
            "book/b.md:1: not in the book's summary",
        ];
        assert_eq!(found, expected);
    }
}
