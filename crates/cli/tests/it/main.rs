//! The command as its users meet it: figures, errors, exit codes.

#![allow(clippy::unwrap_used)] // A test that cannot go on panics.

mod bench;
mod device;
mod eviction;
mod mrc;
mod page_cache;
mod reserve;
mod sim;
mod terminal;
mod watch;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BIN: &str = env!("CARGO_BIN_EXE_pagetide");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sample() -> String {
    root().join("traces/rec_pg.d64.zst").display().to_string()
}

fn pagetide(args: &[&str]) -> Output {
    Command::new(BIN).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Vec<Value> {
    json_of(Command::new(BIN).args(args))
}

fn json_of(command: &mut Command) -> Vec<Value> {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stderr.is_empty(), "a pipe gets no progress");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Runs what must fail; returns its exit code and message.
fn failure(args: &[&str]) -> (i32, String) {
    let output = pagetide(args);
    assert!(output.stdout.is_empty(), "{args:?} printed a result");
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn keys(object: &Value) -> Vec<&str> {
    object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

fn written(text: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".txt").tempfile().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

/// The folder of recorded traces outside the repository.
fn shared_traces() -> Option<PathBuf> {
    let folder = std::env::var_os("PAGETIDE_TRACES");
    let folder = folder.map_or_else(|| root().join("../shared/traces"), PathBuf::from);
    folder.join("manifest.csv").is_file().then_some(folder)
}

/// The runtime and the simulator run one code: the same misses, to the last one.
fn same_misses(trace: &str, frames: &[&str]) {
    for policy in [
        "fifo",
        "gated-2q",
        "mglru",
        "mglru-next",
        "mglru-seed",
        "two-list",
    ] {
        for frames in frames {
            let size = ["--frames", frames, "--policy", policy, "--json"];
            let replay = &json(&[&["replay", trace], &size[..]].concat())[0];
            let mrc = &json(&[&["mrc", trace], &size[..]].concat())[0];
            assert_eq!(replay["misses"], mrc["misses"], "{trace} {policy} {frames}");
            assert_eq!(replay["requests"], mrc["requests"]);
            assert_eq!(
                replay["bytes_read"].as_u64(),
                replay["misses"].as_u64().map(|n| n * 4096)
            );
        }
    }
}

#[test]
fn replay_and_mrc_agree_on_the_sample_trace() {
    same_misses(&sample(), &["1", "21", "213", "1067", "4270"]);
}

/// What is said to fit under a budget misses as often as exactly so many pages.
#[test]
fn a_budget_has_room_for_as_many_pages_as_are_told() {
    let sample = sample();
    let args = ["--memory", "16MiB", "--policy", "fifo", "--json"];
    let replay = &json(&[&["replay", &sample], &args[..]].concat())[0];
    let frames = replay["frames"].to_string();
    let args = ["--frames", &frames, "--policy", "fifo", "--json"];
    let mrc = &json(&[&["mrc", &sample], &args[..]].concat())[0];
    assert_eq!(replay["misses"], mrc["misses"], "{frames} pages");
}

#[test]
fn replay_and_mrc_agree_on_recorded_traces() {
    let Some(folder) = shared_traces() else {
        println!("skipped: shared traces: no folder ../shared/traces beside the repository");
        return;
    };
    for name in ["lirs_multi2", "c2k_web12"] {
        let trace = folder.join(format!("{name}.d64.zst"));
        same_misses(trace.to_str().unwrap(), &["57", "284", "1376"]);
    }
}

#[test]
fn the_fields_of_replay_are_stable_and_its_memory_is_bounded() {
    let report = &json(&["replay", &sample(), "--memory", "16MiB", "--json"])[0];
    let fields = "budget_bytes bytes_read frames hit_ns_p50 hit_ns_p99 hit_ratio hits \
                  miss_ns_p50 miss_ns_p99 misses peak_resident_bytes policy requests seconds trace";
    let mut found = keys(report);
    found.sort_unstable();
    assert_eq!(found, fields.split_whitespace().collect::<Vec<_>>());
    let number = |name: &str| report[name].as_u64().unwrap();
    assert_eq!(number("hits") + number("misses"), number("requests"));
    assert_eq!(
        (number("requests"), number("budget_bytes")),
        (250_062, 16 << 20)
    );
    assert!(number("hit_ns_p50") > 10 && number("hit_ns_p50") <= number("hit_ns_p99"));
    assert!(number("miss_ns_p50") > 10 && number("miss_ns_p50") <= number("miss_ns_p99"));
    let budget = number("budget_bytes");
    let peak = number("peak_resident_bytes");
    assert!(
        peak <= budget + budget / 50 + (16 << 20),
        "{peak} bytes resident"
    );
    assert!(peak > budget / 2, "{peak} bytes resident");
}

#[test]
fn of_what_was_not_measured_there_is_no_time() {
    let trace = written(b"1\n1\n1\n");
    let hits = json(&["replay", path(&trace), "--frames", "9", "--json"]).remove(0);
    assert_eq!((&hits["hits"], &hits["misses"]), (&2.into(), &1.into()));
    assert!(hits["hit_ns_p50"].is_u64() && hits["miss_ns_p99"].is_u64());
    let trace = written(b"1\n2\n3\n");
    let report = json(&["replay", path(&trace), "--frames", "9", "--json"]).remove(0);
    assert_eq!(report["hits"], 0);
    assert!(report["hit_ns_p50"].is_null() && report["hit_ns_p99"].is_null());
    assert!(report["miss_ns_p50"].is_u64());
}

#[test]
fn mrc_prints_a_line_for_each_policy_and_size() {
    let sample = sample();
    let args = [
        "mrc",
        &sample,
        "--policy",
        "default,lru",
        "--fractions",
        "0.01,0.1",
        "--json",
    ];
    let points = json(&args);
    let sizes: Vec<_> = points
        .iter()
        .map(|point| (&point["policy"], &point["frames"]))
        .collect();
    assert_eq!(
        serde_json::to_string(&sizes).unwrap(),
        r#"[["gated-2q",213],["gated-2q",2135],["lru",213],["lru",2135]]"#
    );
    let mut found = keys(&points[0]);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "frames",
            "miss_ratio",
            "misses",
            "policy",
            "requests",
            "trace"
        ]
    );
    assert_eq!(points[2]["miss_ratio"], 0.886_768);
    assert_eq!(json(&["mrc", &sample, "--json"]).len(), 3 * 5);
}

#[test]
fn policies_over_page_numbers_are_for_mrc_only() {
    let sample = sample();
    let help = String::from_utf8(pagetide(&["mrc", "--help"]).stdout).unwrap();
    for name in pagetide_sim::policy::NAMES {
        let size = ["--policy", name, "--frames", "213"];
        let points = json(&[&["mrc", &sample, "--json"], &size[..]].concat());
        assert_eq!(points[0]["policy"], *name);
        assert!(
            help.contains(&format!(" {name}")),
            "{name} is not in the help"
        );
        let (code, message) = failure(&[&["replay", &sample], &size[..]].concat());
        assert_eq!(code, 2, "{name}: {message}");
        let instead = format!("use `pagetide mrc --policy {name}`");
        assert!(message.contains(&instead), "{message}");
    }
}

#[test]
fn usage_errors_exit_with_2_and_name_the_thing() {
    let sample = sample();
    for (args, text) in [
        (&["replay", &sample][..], "--memory <SIZE>|--frames <N>"),
        (&["replay", &sample, "--frames", "0"], "0 is not in 1.."),
        (&["replay", &sample, "--memory", "many"], "many"),
        (
            &["replay", &sample, "--memory", "16XB"],
            "as in 64MiB or 2GiB",
        ),
        (
            &["replay", &sample, "--frames", "9", "--policy", "best"],
            "unknown policy 'best'",
        ),
        (
            &["mrc", &sample, "--policy", "best"],
            "unknown policy 'best'",
        ),
        (
            &["replay", &sample, "--memory", "1K"],
            "--memory: 1000 bytes are too few: at least",
        ),
        (
            &["replay", &sample, "--memory", "0"],
            "--memory: 0 bytes are too few",
        ),
        (
            &["replay", &sample, "--memory", "10EiB"],
            "--memory: 11529215046068469760 bytes are too many",
        ),
        (
            &["replay", &sample, "--frames", "4200000000"],
            "--frames: 4200000000 pages are too many",
        ),
        (
            &["replay", &sample, "--frames", "9", "--column", "page"],
            "is no .csv: it has no column 'page'",
        ),
        (&["mrc", &sample, "--fractions", "2"], "a fraction of 2"),
        (&["sim", "--seed", "18446744073709551615"], "is not in"),
        (&["sim", "--for", "500000000000years"], "no clock"),
        (
            &["bench", "reserve", "--budget", "4MiB", "--size", "4MiB"],
            "--size: group / over max: 1024 more than",
        ),
        (
            &["bench", "reserve", "--budget", "1KiB"],
            "--budget: a budget of 0 bytes is too small",
        ),
        (
            &["bench", "reserve", "--budget", "16EiB"],
            "is too large: at most",
        ),
        (&["fly"], "fly"),
    ] {
        let (code, message) = failure(args);
        assert_eq!(code, 2, "{args:?}: {message}");
        assert!(message.contains(text), "{args:?}: {message}");
    }
}

#[test]
fn failures_exit_with_1_and_name_the_thing() {
    let sample = sample();
    let empty = written(b"");
    let rubbish = written(b"1\n2\nthree\n");
    for (args, text) in [
        (
            &["replay", "/nonexistent/trace.txt", "--frames", "9"][..],
            "/nonexistent/trace.txt",
        ),
        (&["replay", path(&empty), "--frames", "9"], "is empty"),
        (
            &["mrc", path(&rubbish)],
            ":3: expected a page number, found 'three'",
        ),
        (
            &["mrc", &sample, "--frames", "4294967295", "--policy", "fifo"],
            "no memory of 4294967295 frames: ",
        ),
        (
            &["replay", &sample, "--frames", "9", "--file", path(&rubbish)],
            "need 87445504",
        ),
        (
            &["replay", &sample, "--frames", "9", "--file", "/nonexistent"],
            "cannot open",
        ),
        (
            &["replay", &sample, "--frames", "9", "--file", "/"],
            "not a regular file",
        ),
        (
            &["demo", "--dir", "/nonexistent"],
            "data file in /nonexistent",
        ),
    ] {
        let (code, message) = failure(args);
        assert_eq!(code, 1, "{args:?}: {message}");
        assert!(
            message.starts_with("pagetide: error: "),
            "{args:?}: {message}"
        );
        assert!(message.contains(text), "{args:?}: {message}");
        assert!(!message.contains(" { "), "for programmers: {message}");
    }
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // A limit on file size fails a write half-way, as a full disk does; whether the signal that
    // comes with it is ignored or not.
    for ignore in [r#"trap "" XFSZ;"#, ""] {
        let script = format!(r#"{ignore} ulimit -f 20000; exec "$0" demo --dir "$1""#);
        let run = Command::new("sh")
            .args(["-c", &script, BIN])
            .arg(dir.path())
            .output()
            .unwrap();
        let message = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(1), "{message}");
        assert!(message.contains("cannot write a data file in"), "{message}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn an_error_that_nobody_can_read_has_its_exit_code() {
    for (policy, code) in [("lru", 1), ("best", 2)] {
        let script = r#""$0" mrc /nonexistent --policy "$1" 2> /dev/full"#;
        let run = Command::new("sh")
            .args(["-c", script, BIN, policy])
            .output();
        assert_eq!(run.unwrap().status.code(), Some(code), "{policy}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_help_and_version_included() {
    for arguments in ["mrc --help", "help mrc", "--version", "completions bash"] {
        let script = r#""$0" $1 > /dev/full"#;
        let run = Command::new("sh")
            .args(["-c", script, BIN, arguments])
            .output()
            .unwrap();
        let message = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(1), "{arguments}: {message}");
        assert!(message.contains("cannot write the output"), "{message}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let script = r#""$0" mrc "$1" --frames 100 | true"#;
    let run = Command::new("sh")
        .args(["-c", script, BIN, &sample()])
        .output()
        .unwrap();
    assert!(
        run.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

#[test]
fn an_interrupt_ends_a_demo_at_once_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // Tests that run in the background inherit that interrupts are ignored.
    let mut demo = Command::new("env")
        .args(["--default-signal=INT", BIN, "demo", "--json", "--dir"])
        .arg(dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid = demo.id().to_string();
    // Before `env` is through, an interrupt may still be ignored.
    let is_demo =
        || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with(BIN));
    while !is_demo() {
        std::thread::yield_now();
    }
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let status = demo.wait().unwrap();
    assert!(!status.success());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Runs the command where threads are refused: for such stacks there is no address space.
fn without_threads(args: &[&str]) -> Output {
    let stack = (1_u64 << 60).to_string();
    let mut command = Command::new(BIN);
    command.env("RUST_MIN_STACK", stack).args(args);
    command.output().unwrap()
}

#[test]
fn refused_threads_are_told_in_a_line() {
    let sample = sample();
    for args in [
        &["replay", &sample, "--frames", "9"][..],
        &["sim", "--seed", "1"],
        &["bench", "stream", "--json"],
        &["bench", "page-fault", "--json"],
    ] {
        let run = without_threads(args);
        let message = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(1), "{args:?}: {message}");
        assert!(
            message.starts_with("pagetide: error: cannot start a thread: "),
            "{args:?}: {message}"
        );
        assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
    }
}

#[test]
fn mrc_does_without_threads() {
    let sample = sample();
    let args = ["mrc", &sample, "--frames", "50,100", "--csv"];
    let alone = without_threads(&args);
    assert_eq!(alone.stdout, pagetide(&args).stdout);
    assert!(alone.status.success() && alone.stderr.is_empty());
}
