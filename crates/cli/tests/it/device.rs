//! `bench random-read --device`, run tiny: what it counts, and that it gives back what it borrows.

use crate::{BIN, failure, json, json_of};
use pagetide::Topology;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SMALL: [&str; 11] = [
    "bench",
    "random-read",
    "--frames",
    "512",
    "--requests",
    "4000",
    "--runs",
    "1",
    "--json",
    "--depths",
    "1,8",
];

fn run(device: &str, threads: &str) -> Vec<Value> {
    let more = ["--device", device, "--threads", threads];
    json(&[&SMALL[..], &more].concat())
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap()
}

/// Checks what a row says that it reached of what the same misses take without a cache, at the same
/// depth and one by one.
fn check_ceilings(rows: &[&Value], row: &Value) {
    for (engine, reached) in [
        ("direct io_uring, misses", "of_ceiling"),
        ("direct pread, misses", "of_pread_ceiling"),
    ] {
        let same = |raw: &&&Value| {
            let fields = ["pages", "threads", "depth"];
            raw["engine"] == engine && fields.iter().all(|&field| raw[field] == row[field])
        };
        let Some(raw) = rows.iter().find(same) else {
            assert!(reached == "of_ceiling" || row[reached].is_null(), "{row}");
            continue;
        };
        let (threads, hit_ratio) = (number(row, "threads"), number(row, "hit_ratio"));
        let raw_ns = threads * 1e9 / number(raw, "iops");
        let ns = hit_ratio * number(row, "hit_ns") + (1.0 - hit_ratio) * raw_ns;
        let ratio = number(row, "iops") * ns / (threads * 1e9);
        assert!((number(row, reached) / ratio - 1.0).abs() < 0.05, "{row}");
    }
}

/// Checks the rows; the engines that were skipped.
fn check(rows: &[Value], nr_threads: usize) -> Vec<&str> {
    let (rows, skipped): (Vec<&Value>, Vec<&Value>) =
        rows.iter().partition(|row| row.get("engine").is_some());
    let of = |engine: &str| -> Vec<&&Value> {
        rows.iter().filter(|row| row["engine"] == engine).collect()
    };
    let [one, many] = ["pagetide read_at", "pagetide pin_many"].map(of);
    assert_eq!((one.len(), many.len()), (3 * nr_threads, 3 * nr_threads));
    let more = rows.iter().filter(|row| {
        let engine = row["engine"].as_str().unwrap();
        engine.starts_with("pagetide pin_many, ")
    });
    for row in one.into_iter().chain(many).chain(more) {
        let hit_ratio = number(row, "hit_ratio");
        let expected = match row["pages"].as_str().unwrap() {
            "uniform" => 0.2..0.3,
            "zipf 0.9" => 0.5..0.9,
            _ => 0.65..0.95,
        };
        assert!(expected.contains(&hit_ratio), "{row}");
        // The limit, the records of its frames and of more CPUs, the stacks of its threads.
        let nr_more = Topology::of_machine().nr_cpus().saturating_sub(32);
        let most = 6e6 + f64::from(nr_more << 14);
        assert!(number(row, "resident_bytes") < most, "{row}");
        assert!(
            number(row, "hit_ns") > 0.0 && number(row, "cpu_ns") > 0.0,
            "{row}"
        );
        if let Some(of_ceiling) = row["of_ceiling"].as_f64() {
            let ratio = number(row, "iops") / number(row, "ceiling_iops");
            assert!((of_ceiling / ratio - 1.0).abs() < 0.01, "{row}");
        }
        check_ceilings(&rows, row);
    }
    let depths: BTreeSet<_> = of("direct io_uring, misses")
        .iter()
        .map(|row| row["depth"].as_u64().unwrap())
        .collect();
    assert!(depths.is_empty() || depths == [1, 8].into(), "{depths:?}");
    for (engine, depth) in [
        ("direct pread", 1.0),
        ("direct io_uring", 8.0),
        ("direct io_uring, registered", 8.0),
    ] {
        for row in of(engine) {
            assert_eq!(number(row, "depth"), depth, "{row}");
            assert_eq!(number(row, "hit_ratio"), 0.0, "{row}");
        }
    }
    for row in of("kernel pread") {
        assert_eq!(number(row, "to_kernel"), 1.0, "{row}");
    }
    let names = skipped.iter().map(|row| row["skipped"].as_str().unwrap());
    names.collect()
}

#[test]
fn the_page_cache_beside_the_kernels_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let rows = run(folder.path().to_str().unwrap(), "1,3");
    for what in check(&rows, 2) {
        println!("skipped: device bench: {what}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_is_there_is_read_and_a_short_one_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let with = |path| [&SMALL[..], &["--device", path]].concat();
    let (code, message) = failure(&with(path));
    assert_eq!(code, 2, "{message}");
    assert!(
        message.contains("no regular file of 8388608 bytes"),
        "{message}"
    );
    assert_eq!(failure(&with("/dev/null")).0, 2);
    assert_eq!(failure(&with("/none/such")).0, 1);
    fs::write(path, vec![1; 8 << 20]).unwrap();
    file.as_file().sync_data().unwrap();
    check(&run(path, "1"), 1);
}

/// Has `mount` note the device in the folder of this, and its number, which no later one has.
const NOTES: &str = r#"#!/bin/sh
folder=${0%/*}
echo "${1##*/} $(cat "/sys/block/${1##*/}/diskseq")" >> "$folder/devices"
PATH=${PATH#*:} exec mount "$@"
"#;

/// A run that borrows devices, and those: others on the machine may have some, too.
struct Borrower(tempfile::TempDir);

impl Borrower {
    fn new() -> Borrower {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("mount");
        fs::write(&mount, NOTES).unwrap();
        fs::set_permissions(mount, Permissions::from_mode(0o755)).unwrap();
        Borrower(folder)
    }

    fn run(&self, args: &[&str]) -> Command {
        let folder = self.0.path();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(BIN);
        command.args(args).env("TMPDIR", folder);
        command.env("PATH", format!("{}:{path}", folder.display()));
        command
    }

    /// Those that were about to be mounted so far: their names and numbers.
    fn devices(&self) -> Vec<(String, String)> {
        let noted = fs::read_to_string(self.0.path().join("devices")).unwrap_or_default();
        let noted = noted.lines().filter_map(|line| line.split_once(' '));
        noted
            .map(|(name, number)| (name.to_owned(), number.to_owned()))
            .collect()
    }

    /// Whether one of them is there still.
    fn has_device(&self) -> bool {
        self.devices().iter().any(|(name, number)| {
            let device = Path::new("/sys/block").join(name);
            let now = fs::read_to_string(device.join("diskseq")).unwrap_or_default();
            device.exists() && now.trim() == number
        })
    }

    fn has_mount(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let name = self.0.path().file_name().unwrap();
        mounts.contains(name.to_str().unwrap())
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_device_in_memory_is_given_back_however_the_run_ends() {
    let borrower = Borrower::new();
    let more = ["--device", "zram", "--threads", "1", "--data", "text"];
    let rows = json_of(&mut borrower.run(&[&SMALL[..], &more].concat()));
    let skip = rows.iter().find(|row| row["skipped"] == "zram");
    if let Some(skip) = skip {
        return println!("skipped: zram: {}", skip["reason"]);
    }
    for what in check(&rows, 1) {
        println!("skipped: device bench: {what}");
    }
    assert_eq!(borrower.devices().len(), 1);
    assert!(!borrower.has_device() && !borrower.has_mount());
    let borrower = Borrower::new();
    let long = ["--frames", "1024", "--requests", "100000000"];
    let run = [&["bench", "random-read", "--device", "zram"], &long[..]].concat();
    let mut killed = borrower.run(&run).stdout(Stdio::null()).spawn();
    let killed = killed.as_mut().unwrap();
    wait_until("a device", || borrower.has_device());
    // Somewhere between making the file system and measuring.
    std::thread::sleep(Duration::from_millis(300));
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_until("the device is left", || !borrower.has_device());
    wait_until("a mount is left", || !borrower.has_mount());
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_borrowed() {
    let none = ["bench", "random-read", "--device", "/none/such"];
    for (more, text) in [
        (&["--runs", "0"][..], "--runs: "),
        (
            &["--frames", "256", "--depths", "1,128"],
            "2 threads that hold 128 pages each need more than 256",
        ),
        (
            &["--frames", "64", "--threads", "64", "--depths", "1"],
            "64 threads",
        ),
    ] {
        let (code, message) = failure(&[&none[..], more].concat());
        assert_eq!(code, 2, "{more:?}: {message}");
        assert!(message.contains(text), "{more:?}: {message}");
    }
}

#[test]
fn a_device_that_cannot_be_mounted_is_not_made() {
    let mut command = Command::new(BIN);
    command.args(SMALL).args(["--device", "zram"]);
    let output = command.env("TMPDIR", "/nonexistent").output().unwrap();
    assert!(output.status.success());
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.starts_with("no folder to mount it"), "{reason}");
}

#[test]
fn what_tells_nothing_is_skipped_by_name() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    if !mounts
        .lines()
        .any(|line| line.starts_with("tmpfs /dev/shm "))
    {
        return println!("skipped: device bench: there is no tmpfs at /dev/shm");
    }
    let args = ["--frames", "512", "--requests", "1000", "--runs", "2"];
    let more = ["--threads", "1", "--depths", "8", "--device", "/dev/shm"];
    let bench = ["bench", "random-read", "--json"];
    let rows = json(&[&bench[..], &args, &more].concat());
    let of =
        |field: &str| -> Vec<&str> { rows.iter().filter_map(|row| row[field].as_str()).collect() };
    let engines = of("engine");
    assert!(!engines.is_empty());
    assert!(
        engines
            .iter()
            .all(|engine| engine.starts_with("pagetide pin_many"))
    );
    let skipped = of("skipped");
    for what in [
        "the kernel's page cache and direct reads",
        "pagetide read_at",
    ] {
        assert!(skipped.contains(&what), "{what} is not in {skipped:?}");
    }
}
