//! `coverage`: the lines of core that its own tests run, by file.
//!
//! rustc counts, llvm's tools of the same major version read. Loom's and shuttle's tests do not
//! count: they are other builds.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::error::Error;
use crate::workspace::{self, MODELS_SEED, Workspace};

/// Names the folder of `llvm-cov` and `llvm-profdata`.
const TOOLS_VARIABLE: &str = "PAGETIDE_LLVM";
/// Random cases of each model, most of which have hundreds: counting makes them slow, and the later
/// ones run few new lines.
const CASES: &str = "16";
const CORE: &str = "crates/core/src/";
/// Says why lines are left.
const PAGE: &str = "docs/coverage.md";
/// Below this share of core's lines it fails.
const MIN_PERCENT: f64 = 90.0;

/// How often each line of a file was run.
type Lines = BTreeMap<u32, u64>;

/// Runs core's tests, prints the share of each file and the lines that were not run.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Error> {
    let [cov, profdata] = tools(workspace)?;
    let folder = workspace.target_dir("coverage");
    let raw = folder.join("raw");
    // What an earlier run left is of another build.
    if raw.exists() {
        fs::remove_dir_all(&raw).map_err(|source| Error::Write {
            path: raw.clone(),
            source,
        })?;
    }
    let programs = programs(&workspace::output(&mut build(workspace))?)?;
    run_all(workspace, &programs, &raw)?;
    let merged = folder.join("core.profdata");
    let mut merge = workspace.command(profdata);
    merge
        .args(["merge", "-sparse", "-o"])
        .arg(&merged)
        .arg(&raw);
    workspace::output(&mut merge)?;
    let mut export = workspace.command(cov);
    export
        .args(["export", "-format=lcov"])
        .arg(format!("-instr-profile={}", merged.display()));
    for program in &programs {
        export.arg("-object").arg(program);
    }
    let files = lines_of_core(workspace, parse(&workspace::output(&mut export)?));
    let percent = tell(&files);
    tell_unexplained(workspace, &files)?;
    match percent >= MIN_PERCENT {
        true => Ok(()),
        false => Err(Error::Uncovered {
            percent,
            least: MIN_PERCENT,
        }),
    }
}

/// Core's own files, without their tests.
fn lines_of_core(workspace: &Workspace, files: BTreeMap<String, Lines>) -> BTreeMap<String, Lines> {
    let its = files.into_iter().filter_map(|(file, lines)| {
        let at = file.find(CORE)?;
        let name = file[at + CORE.len()..].to_owned();
        let text = fs::read_to_string(workspace.root().join(&file[at..])).ok()?;
        (!is_test(&name)).then(|| (name, without_tests(lines, &text)))
    });
    its.collect()
}

/// `llvm-cov` and `llvm-profdata`: in the named folder, beside rustc, or in the path.
fn tools(workspace: &Workspace) -> Result<[PathBuf; 2], Error> {
    let version = workspace::output(workspace.command("rustc").arg("-vV"))?;
    let major = parse_llvm(&version).unwrap_or_default().to_owned();
    let host = workspace.host()?;
    let root = workspace::output(workspace.command("rustc").args(["--print", "sysroot"]))?;
    let beside = Path::new(root.trim())
        .join("lib/rustlib")
        .join(host)
        .join("bin");
    let named = env::var_os(TOOLS_VARIABLE).map(PathBuf::from);
    let is_there = |tool: &PathBuf| {
        let mut command = Command::new(tool);
        let quiet = command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    };
    let find = |tool: &str| {
        let named = named.iter().map(|folder| folder.join(tool));
        let others = [beside.join(tool), PathBuf::from(format!("{tool}-{major}"))];
        named.chain(others).find(is_there)
    };
    match (find("llvm-cov"), find("llvm-profdata")) {
        (Some(cov), Some(profdata)) => Ok([cov, profdata]),
        _ => Err(Error::NoLlvm {
            major,
            variable: TOOLS_VARIABLE,
        }),
    }
}

/// The major version of rustc's llvm.
fn parse_llvm(rustc_version: &str) -> Option<&str> {
    let version = rustc_version
        .lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))?;
    version.split('.').next()
}

fn build(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo();
    command
        .args(["test", "-p", "pagetide-core", "--lib", "--test", "it"])
        .args(["--test", "stress", "--no-run", "--message-format=json"])
        .arg("--target-dir")
        .arg(workspace.target_dir("coverage"))
        .env("RUSTFLAGS", "-Cinstrument-coverage");
    command
}

/// The test programs that cargo says it built, one JSON object a line.
fn programs(messages: &str) -> Result<Vec<PathBuf>, Error> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: serde_json::Value = serde_json::from_str(line)?;
        programs.extend(message["executable"].as_str().map(PathBuf::from));
    }
    Ok(programs)
}

/// Runs all tests, each in a process that runs no other one, as many at a time as there are CPUs.
///
/// Threads of one process would take the lines of the counters from each other.
fn run_all(workspace: &Workspace, programs: &[PathBuf], raw: &Path) -> Result<(), Error> {
    let mut tests = Vec::new();
    for program in programs {
        let mut list = workspace.command(program);
        list.args(["--list", "--format=terse"]);
        let listed = workspace::output(list.env("LLVM_PROFILE_FILE", raw.join("list-%m.profraw")))?;
        let names = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        tests.extend(names.map(|name| (program, name.to_owned())));
    }
    println!("{} tests", tests.len());
    let left = Mutex::new(tests.iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = |number: usize| {
        while let Some((program, name)) = next() {
            let mut test = workspace.command(program);
            test.current_dir(workspace.root().join("crates/core"))
                .args(["--exact", "--quiet", name])
                // Of one program and worker all processes add to one file.
                .env(
                    "LLVM_PROFILE_FILE",
                    raw.join(format!("{number}-%m.profraw")),
                )
                .env("PROPTEST_CASES", CASES)
                .env(MODELS_SEED, "1");
            workspace::output(&mut test)?;
        }
        Ok(())
    };
    let nr_workers = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let worker = &worker;
        let start = |number| scope.spawn(move || worker(number));
        let workers: Vec<_> = (0..nr_workers).map(start).collect();
        let ends = workers.into_iter().map(|it| it.join().expect("no panic"));
        ends.collect::<Result<Vec<()>, Error>>()
    })?;
    Ok(())
}

/// Counts by file, from the lines `SF:` and `DA:` of lcov.
fn parse(lcov: &str) -> BTreeMap<String, Lines> {
    let mut files: BTreeMap<String, Lines> = BTreeMap::new();
    let mut file = String::new();
    for line in lcov.lines() {
        if let Some(name) = line.strip_prefix("SF:") {
            file = name.to_owned();
        } else if let Some((number, count)) =
            line.strip_prefix("DA:").and_then(|it| it.split_once(','))
        {
            let count = count.split(',').next().unwrap_or_default();
            if let (Ok(number), Ok(count)) = (number.parse(), count.parse::<u64>()) {
                let lines = files.entry(file.clone()).or_default();
                *lines.entry(number).or_default() += count;
            }
        }
    }
    files
}

fn is_test(name: &str) -> bool {
    name.ends_with("tests.rs") || name.contains("/tests/")
}

/// Without the module of tests, which stands at a file's end.
fn without_tests(mut lines: Lines, text: &str) -> Lines {
    let all: Vec<&str> = text.lines().collect();
    let pairs = all.windows(2);
    let at = pairs.map(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests {"));
    if let Some(at) = at.into_iter().position(|is_start| is_start) {
        lines.retain(|&number, _| usize::try_from(number).is_ok_and(|number| number <= at));
    }
    lines
}

/// Prints the table and the lines that were not run; the share of all lines in percent.
fn tell(files: &BTreeMap<String, Lines>) -> f64 {
    let (mut nr_run, mut nr_lines) = (0, 0);
    println!(
        "{:<36} {:>6} {:>6} {:>6}  not run",
        "file", "lines", "run", "%"
    );
    for (name, lines) in files {
        let run = lines.values().filter(|&&count| count > 0).count();
        let missed: Vec<u32> = lines
            .iter()
            .filter(|&(_, &count)| count == 0)
            .map(|(&number, _)| number)
            .collect();
        let percent = percent(run, lines.len());
        println!(
            "{name:<36} {:>6} {run:>6} {percent:>6.1}  {}",
            lines.len(),
            ranges(&missed)
        );
        nr_run += run;
        nr_lines += lines.len();
    }
    let percent = percent(nr_run, nr_lines);
    println!("{:<36} {nr_lines:>6} {nr_run:>6} {percent:>6.1}", "all");
    percent
}

/// Says which files have lines that no test runs, while the page does not say why.
fn tell_unexplained(workspace: &Workspace, files: &BTreeMap<String, Lines>) -> Result<(), Error> {
    let path = workspace.root().join(PAGE);
    let page = fs::read_to_string(&path).map_err(|source| Error::Read { path, source })?;
    let explained: Vec<_> = explained(&page).map(|(file, _)| file).collect();
    for (name, lines) in files {
        if lines.values().any(|&count| count == 0) && !explained.contains(&name.as_str()) {
            println!("not explained in {PAGE}: {name}");
        }
    }
    Ok(())
}

/// The rows of the page's tables that begin with a file, and the places in it that they name.
fn explained(page: &str) -> impl Iterator<Item = (&str, Vec<&str>)> {
    page.lines().filter_map(|line| {
        let (file, rest) = line.strip_prefix("| `")?.split_once("` |")?;
        let (places, _) = rest.split_once(" |")?;
        // Between each two of the signs.
        Some((file, places.split('`').skip(1).step_by(2).collect()))
    })
}

/// Nothing of nothing is nothing: an empty report must not pass.
fn percent(part: usize, whole: usize) -> f64 {
    match whole {
        0 => 0.0,
        whole => 100.0 * part as f64 / whole as f64,
    }
}

/// `3-5 9`.
fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let texts = runs.map(|run| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    texts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lcov_is_read_and_counts_of_several_programs_are_added() {
        let files = parse(
            "SF:/w/crates/core/src/a.rs\nFN:1,x\nDA:1,0\nDA:2,5\nend_of_record\n\
             SF:/w/crates/core/src/a.rs\nDA:1,2\n",
        );
        let lines = &files["/w/crates/core/src/a.rs"];
        assert_eq!(lines.iter().collect::<Vec<_>>(), [(&1, &2), (&2, &5)]);
    }

    #[test]
    fn tests_are_left_out() {
        let lines = Lines::from([(1, 1), (3, 0), (4, 7)]);
        let text = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(without_tests(lines.clone(), text), Lines::from([(1, 1)]));
        assert_eq!(without_tests(lines.clone(), "fn a() {}\n"), lines);
        assert!(is_test("alloc/tests.rs") && !is_test("alloc/pcp.rs"));
    }

    #[test]
    fn lines_are_told_as_ranges_and_nothing_is_no_success() {
        assert_eq!(ranges(&[3, 4, 5, 9]), "3-5 9");
        assert!(tell(&BTreeMap::new()) < MIN_PERCENT);
        let half = Lines::from([(1, 0), (2, 1)]);
        assert!((tell(&BTreeMap::from([("a.rs".to_owned(), half)])) - 50.0).abs() < 0.01);
    }

    #[test]
    fn each_place_that_is_explained_is_there() {
        let workspace = Workspace::find();
        let page = fs::read_to_string(workspace.root().join(PAGE)).expect("the page");
        let mut nr_places = 0;
        for (file, places) in explained(&page) {
            let text = fs::read_to_string(workspace.root().join(CORE).join(file));
            let text = text.unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(!places.is_empty(), "{file}: no place");
            for place in places {
                assert!(text.contains(place), "{file} has no `{place}`");
                nr_places += 1;
            }
        }
        assert!(nr_places > 0, "nothing is explained");
    }

    #[test]
    fn explanations_are_rows_with_a_file_and_its_places() {
        let page = "| file | place | why |\n|---|---|---|\n| `a/b.rs` | `x()`, `y()` | `no` |\n";
        let rows: Vec<_> = explained(page).collect();
        assert_eq!(rows, [("a/b.rs", vec!["x()", "y()"])]);
    }

    #[test]
    fn the_version_of_llvm() {
        assert_eq!(
            parse_llvm("release: 1.95.0\nLLVM version: 22.1.2\n"),
            Some("22")
        );
    }
}
