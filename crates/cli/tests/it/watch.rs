//! A demo that is watched while it runs, and what it leaves.

use crate::{BIN, failure, pagetide};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ended when dropped.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}

/// A demo whose socket is open.
fn demo(socket: &Path) -> Demo {
    let mut command = Command::new(BIN);
    command.args(["demo", "--json", "--watch"]).arg(socket);
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    let demo = Demo(child);
    let start = Instant::now();
    while !socket.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no socket");
        std::thread::sleep(Duration::from_millis(20));
    }
    demo
}

fn text(args: &[&str]) -> String {
    let output = pagetide(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_running_demo_is_seen_from_outside() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let _demo = demo(&socket);
    let socket = socket.to_str().unwrap();
    let vmstat = text(&["stat", socket]);
    assert!(vmstat.contains("pgalloc "), "{vmstat}");
    let stat = text(&["stat", socket, "memory.stat", "/web"]);
    assert!(stat.contains("workingset_refault_file "), "{stat}");
    assert!(text(&["stat", socket, "zoneinfo"]).contains("pagesets"));
    assert!(text(&["stat", socket, "lru_gen"]).contains("memcg /web"));
    let metrics = text(&["stat", socket, "metrics"]);
    assert!(
        metrics.contains("pagetide_budget_bytes 67108864"),
        "{metrics}"
    );
    let snapshot = text(&["stat", socket, "snapshot"]);
    let snapshot: serde_json::Value = serde_json::from_str(&snapshot).unwrap();
    assert_eq!(snapshot["groups"][0]["path"], "/");
    // Its output goes into a pipe: one view, as text.
    let top = text(&["top", socket, "--interval", "0.5"]);
    for word in ["Groups", "web", "batch", "query", "Own pages of /", "CPU 0"] {
        assert!(top.contains(word), "{word} is not in {top}");
    }
    let (code, message) = failure(&["stat", socket, "memory.stat", "/nobody"]);
    assert_eq!((code, message.contains("no group '/nobody'")), (1, true));
    let (code, message) = failure(&["stat", socket, "cpuinfo"]);
    assert_eq!((code, message.contains("possible values")), (2, true));
}

#[test]
fn what_is_not_there_cannot_be_asked() {
    for verb in ["top", "stat"] {
        let (code, message) = failure(&[verb, "/nonexistent/socket"]);
        assert_eq!(code, 1, "{message}");
        assert!(message.contains("/nonexistent/socket"), "{message}");
    }
    let (code, message) = failure(&["top", "/nonexistent", "--interval", "0"]);
    assert_eq!(
        (code, message.contains("0.05 to 3600")),
        (2, true),
        "{message}"
    );
}

#[test]
fn a_report_is_one_page_with_all_plots_and_no_script() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("demo.html");
    let mut command = Command::new(BIN);
    command
        .args(["demo", "--phase-ms", "600", "--report"])
        .arg(&report);
    let run = command.output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    // Claims about time may fail on a busy machine: the page says so.
    assert!(
        run.status.success() || said.contains("claims that did not hold"),
        "{said}"
    );
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
    assert_eq!(page.matches("<svg class=\"chart\"").count(), 10);
    assert!(!page.contains("<script") && !page.contains("http://127"));
    for text in [
        "Memory by group",
        "Hit ratio",
        "Ages under the multi-gen LRU",
        "Refaults by tier",
        "Per-CPU page caches",
        "prefers-color-scheme",
        "width=device-width",
        "two-list",
        "Resident memory stays",
    ] {
        assert!(page.contains(text), "{text} is not in the page");
    }
    let held = page.contains("All claims held.");
    assert_eq!(held, run.status.success());
    let (code, message) = failure(&["demo", "--report", "/nonexistent/a.html"]);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("/nonexistent/a.html"), "{message}");
    let none = dir.path().join("none.html");
    failure(&[
        "demo",
        "--dir",
        "/nonexistent",
        "--report",
        none.to_str().unwrap(),
    ]);
    assert!(!none.exists(), "a demo that fails leaves a report");
}

#[test]
fn a_kernel_row_that_cannot_be_is_skipped_and_all_else_is_told() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    if !mounts
        .lines()
        .any(|line| line.starts_with("tmpfs /dev/shm "))
    {
        return println!("skipped: device bench: there is no tmpfs at /dev/shm");
    }
    let args = [
        "demo",
        "--kernel",
        "--json",
        "--phase-ms",
        "200",
        "--dir",
        "/dev/shm",
    ];
    let output = pagetide(&args);
    let said = String::from_utf8(output.stderr).unwrap();
    if said.contains("for --kernel") || said.contains("no memory cgroups") {
        return println!("skipped: memory cgroup: {said}");
    }
    // Claims about time may fail on a busy machine.
    assert!(
        output.status.success() || said.contains("claims that did not hold"),
        "{said}"
    );
    let told = String::from_utf8(output.stdout).unwrap();
    for words in [
        "\"beside\":\"two-list\"",
        "\"peak_resident_bytes\"",
        "\"phase\":\"after\"",
    ] {
        assert!(told.contains(words), "{words} is not in {told}");
    }
    // Kernels differ in what they can read of a tmpfs without waiting.
    let kernel = "the kernel's page cache";
    let [skipped, read] = ["skipped", "beside"].map(|key| format!("\"{key}\":\"{kernel}\""));
    assert!(told.contains(&skipped) != told.contains(&read), "{told}");
}

/// Before anything else is done: not after all the phases.
#[test]
fn who_may_not_make_a_cgroup_is_told_at_once() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: another user: only root can become one");
        return;
    }
    let mut command = Command::new(BIN);
    command.args(["demo", "--kernel", "--dir", "/nonexistent"]);
    let Ok(output) = command.uid(65534).gid(65534).output() else {
        println!("skipped: another user: it may not run the command");
        return;
    };
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("for --kernel"), "{message}");
}

#[test]
fn completions_and_the_manual_name_every_verb() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        assert!(script.contains("mrc") && script.contains("top"), "{shell}");
    }
    let manual = text(&["man"]);
    for word in [".TH", "mrc", "SOCKET", "Exit codes", "NO_COLOR"] {
        assert!(manual.contains(word), "{word} is not in the manual");
    }
    // Lines as they are written, from the notes on to what comes after them.
    let notes = manual.split(".SH NOTES\n").skip(1);
    assert!(notes.clone().count() > 5);
    for notes in notes {
        assert!(
            notes.starts_with(".nf\n") && notes.contains("\n.fi\n"),
            "{notes}"
        );
    }
    assert!(
        !manual.contains("kernel-cache"),
        "the manual shows what is hidden"
    );
    let (code, message) = failure(&["completions", "tcsh"]);
    assert_eq!((code, message.contains("possible values")), (2, true));
}
