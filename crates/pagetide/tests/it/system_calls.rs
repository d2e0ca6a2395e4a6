//! What reaches the kernel: a `sync` makes durable what was written before it, and the name of a
//! file that was created; a page that comes in is one read and nothing else. Seen by strace, in a
//! process of its own.

use crate::child;
use pagetide::{ByteSize, Error, Hooks, Memory, OpenOptions};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const PAGE: usize = 4096;

/// Says so in a system call of its own.
pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Hooks that do nothing, by memory of their own.
pub(crate) struct Idle;

impl Hooks for Idle {}

/// Creates a file, writes it, syncs it; writes on, syncs again; has nothing to sync. Perhaps it is
/// refused first, when the file is there.
fn write_and_sync(folder: &Path, is_refused: bool) {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let options = OpenOptions::new().write(true).create(true);
    if is_refused {
        let small = memory.root().child("small").unwrap();
        let small = small.max(ByteSize::kib(4)).unwrap();
        let hooked = options.clone().hooks(Arc::new(Idle));
        let refused = hooked.open(&memory, folder.join("data"), &small);
        assert!(matches!(refused, Err(Error::OverLimit { .. })));
    }
    let file = options.open(&memory, folder.join("data"), &memory.root());
    let file = file.unwrap();
    for round in ["first", "second"] {
        file.write_at(&[1; 5 * PAGE + 100], 0).unwrap();
        file.write_at(&[2; 10], 40 * PAGE as u64).unwrap();
        file.flush_range(..).unwrap();
        file.write_at(&[3; 3 * PAGE], 7 * PAGE as u64).unwrap();
        file.sync().unwrap();
        say(&format!("synced {round}"));
    }
}

/// A call as strace with `-y` shows it: its name, the file of its descriptor, its result.
struct Call<'a> {
    name: &'a str,
    path: &'a str,
    result: &'a str,
    line: &'a str,
}

impl<'a> Call<'a> {
    /// `41 fsync(3</tmp/x>) = 0`; `None` for what is no call of a file.
    fn of(line: &'a str) -> Option<Call<'a>> {
        let (_, call) = line.split_once(' ')?;
        let (name, arguments) = call.trim_start().split_once('(')?;
        let (_, path) = arguments.split_once('<')?;
        let (path, _) = path.split_once('>')?;
        let (_, result) = line.rsplit_once(" = ")?;
        Some(Call {
            name,
            path,
            result,
            line,
        })
    }

    fn is_write_of(&self, path: &str) -> bool {
        self.path == path && self.name.starts_with("pwrite")
    }

    fn is_sync_of(&self, path: &str) -> bool {
        let is_sync = matches!(self.name, "fdatasync" | "fsync");
        self.path == path && is_sync && self.result == "0"
    }
}

/// Runs the child under strace; what it did, or why it cannot be seen.
pub(crate) fn traced(test: &str, calls: &str, folder: &Path) -> Result<String, String> {
    if child::is_sanitized() {
        return Err("the sanitizer's leak check cannot run under it".to_owned());
    }
    let child = child::command(test, folder.to_str().unwrap());
    let out = &folder.join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-s", "64", "-e", calls, "-o"]);
    command.arg(out).arg(child.get_program());
    command.args(child.get_args());
    command.envs(
        child
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let done = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    if !said.contains("running 1 test") {
        return Err(format!("it may not trace: {}", errors.trim()));
    }
    assert!(done.status.success(), "{said}\n{errors}");
    Ok(fs::read_to_string(out).unwrap())
}

#[test]
fn a_sync_makes_bytes_and_name_durable() {
    check_sync("system_calls::a_sync_makes_bytes_and_name_durable", false);
}

#[test]
fn a_file_that_was_created_in_vain_has_a_durable_name_for_who_opens_it_next() {
    let test = "a_file_that_was_created_in_vain_has_a_durable_name_for_who_opens_it_next";
    check_sync(&format!("system_calls::{test}"), true);
}

fn check_sync(test: &str, is_refused: bool) {
    if let Some(role) = child::role() {
        return write_and_sync(Path::new(&role), is_refused);
    }
    let folder = tempfile::tempdir().unwrap();
    let folder_path = folder.path().canonicalize().unwrap();
    let calls = "trace=write,pwrite64,pwritev,pwritev2,fsync,fdatasync,ftruncate,io_uring_enter";
    let trace = match traced(test, calls, &folder_path) {
        Ok(trace) => trace,
        Err(reason) => return println!("skipped: strace: {reason}"),
    };
    let (folder_path, path) = (
        folder_path.to_str().unwrap().to_owned(),
        folder_path.join("data").to_str().unwrap().to_owned(),
    );
    let calls: Vec<Call<'_>> = trace.lines().filter_map(Call::of).collect();
    let end_of = |round: &str| {
        let is_end = |call: &Call<'_>| call.name == "write" && call.line.contains(round);
        calls.iter().position(is_end).expect("the child says so")
    };
    let (first, second) = (end_of("synced first"), end_of("synced second"));
    for (what, calls) in [
        ("first", &calls[..first]),
        ("second", &calls[first..second]),
    ] {
        let last_write = calls.iter().rposition(|call| call.is_write_of(&path));
        let last_write = last_write.expect("pages are written");
        let behind = &calls[last_write..];
        let nr_syncs = behind.iter().filter(|call| call.is_sync_of(&path)).count();
        assert_eq!(
            nr_syncs, 1,
            "{what}: one sync behind the last write:\n{trace}"
        );
    }
    let is_name = |call: &&Call<'_>| call.is_sync_of(&folder_path);
    let nr_of_name = |calls: &[Call<'_>]| calls.iter().filter(is_name).count();
    let nr_names = (nr_of_name(&calls[..first]), nr_of_name(&calls[first..]));
    assert_eq!(nr_names, (1, 0), "the name is made durable once:\n{trace}");
}

/// Reads four times what fits, a page at a time at random, and what is resident.
fn read_at_random(folder: &Path) {
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    // Two pages that are resident by chance would be the beginning of a stream.
    let memory = builder.readahead(ByteSize(0)).build().unwrap();
    let group = memory.root().child("small").unwrap();
    let group = group.max(ByteSize::kib(4 * NR_READ / 4)).unwrap();
    let file = memory.open(folder.join("data"), &group).unwrap();
    let mut bytes = [0; PAGE];
    let mut read = |page: u64| file.read_at(&mut bytes, page * PAGE as u64).unwrap();
    // Lists and indexes are made with the first pages.
    (0..NR_READ).for_each(|at| assert_eq!(read(at * 37 % NR_READ), PAGE));
    let before = memory.stats();
    say("begins");
    (0..NR_READ).for_each(|at| assert_eq!(read(at * 59 % NR_READ), PAGE));
    say("ends");
    let nr_read = memory.stats().bytes_read - before.bytes_read;
    say(&format!("read {}", nr_read / PAGE as u64));
}

const NR_READ: u64 = 256;

/// A folder with a file of so many pages.
fn folder_of_pages() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let pages = vec![7; usize::try_from(NR_READ).unwrap() * PAGE];
    fs::write(folder.path().join("data"), pages).unwrap();
    folder
}

#[test]
fn a_page_that_comes_in_is_one_read_and_nothing_else() {
    if let Some(role) = child::role() {
        return read_at_random(Path::new(&role));
    }
    let folder = folder_of_pages();
    let test = "system_calls::a_page_that_comes_in_is_one_read_and_nothing_else";
    let trace = match traced(test, "trace=all", folder.path()) {
        Ok(trace) => trace,
        Err(reason) => return println!("skipped: strace: {reason}"),
    };
    let (_, after) = trace.split_once("\"begins").unwrap();
    let (between, _) = after.split_once("\"ends").unwrap();
    let (_, nr_read) = trace.split_once("\"read ").unwrap();
    let nr_read: usize = nr_read.split_once("\\n").unwrap().0.parse().unwrap();
    assert!(nr_read >= 150, "most of them have to be read: {nr_read}");
    let is_read = |line: &&str| line.contains(" pread64(") || line.contains(" fadvise64(");
    let lines = || between.lines().filter(|line| line.contains('('));
    let others: Vec<&str> = lines().filter(|line| !is_read(line)).collect();
    let nr_reads = lines().filter(|line| line.contains(" pread64(")).count();
    // The last line is the write that says `ends`.
    assert!(
        others.len() == 1,
        "{} others for {nr_read} pages: {others:#?}",
        others.len()
    );
    assert_eq!(nr_reads, nr_read);
}

/// Opens a file, reads a page that no other is read ahead of, closes it; then for writing, too.
fn open_and_close(folder: &Path) {
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = builder.build().unwrap();
    let (root, path) = (memory.root(), folder.join("data"));
    let visit = |is_writable: bool| {
        let options = OpenOptions::new().write(is_writable);
        let file = options.open(&memory, &path, &root).unwrap();
        assert_eq!(file.read_at(&mut [0; PAGE], 5 * PAGE as u64).unwrap(), PAGE);
    };
    // Tables and rings are made with the first file.
    visit(false);
    visit(true);
    say("begins");
    visit(false);
    say("between");
    visit(true);
    say("ends");
}

#[test]
fn a_file_is_looked_at_once_when_it_is_opened() {
    if let Some(role) = child::role() {
        return open_and_close(Path::new(&role));
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("data"), vec![7; 16 * PAGE]).unwrap();
    let test = "system_calls::a_file_is_looked_at_once_when_it_is_opened";
    let trace = match traced(test, "trace=all", folder.path()) {
        Ok(trace) => trace,
        Err(reason) => return println!("skipped: strace: {reason}"),
    };
    let names = |from: &str, to: &str| -> Vec<String> {
        let (_, after) = trace.split_once(&format!("\"{from}")).unwrap();
        let (between, _) = after.split_once(&format!("\"{to}")).unwrap();
        let calls = between.lines().filter_map(|line| line.split_once('('));
        let names = calls.filter_map(|(head, _)| head.split_whitespace().nth(1));
        // With debug assertions, `std` looks whether what it closes is open. The heap may grow.
        names
            .filter(|name| !["fcntl", "brk", "mprotect"].contains(name))
            .map(str::to_owned)
            .collect()
    };
    // The last one is the write that says so.
    let (to_read, to_write) = (names("begins", "between"), names("between", "ends"));
    if !is_direct(&trace) {
        let nr_looks = |names: &[String]| names.iter().filter(|&name| name == "statx").count();
        return assert_eq!((nr_looks(&to_read), nr_looks(&to_write)), (1, 1));
    }
    assert_eq!(to_read, ["openat", "statx", "pread64", "close", "write"]);
    let expected = [
        "openat", "statx", "openat", "pread64", "close", "close", "write",
    ];
    assert_eq!(to_write, expected);
}

/// Whether no file system refused `O_DIRECT`.
pub(crate) fn is_direct(trace: &str) -> bool {
    let is_refused = |line: &str| line.contains("O_DIRECT") && line.contains(" = -1 ");
    !trace.lines().any(is_refused)
}

/// Uses each page of a file so often that it is claimed, then closes the file.
fn use_often_and_close(folder: &Path) {
    let builder = Memory::builder().budget(ByteSize::mib(8)).without_thread();
    let memory = builder.build().unwrap();
    let file = memory.open(folder.join("data"), &memory.root()).unwrap();
    // With the most CPUs a page is to be used 4096 times before.
    for turn in 0..5000 * NR_READ {
        drop(file.pin(turn % NR_READ).unwrap());
    }
    say("begins");
    drop(file);
    say("ends");
}

#[test]
fn cpus_are_fenced_once_for_many_pages_of_a_file_that_is_closed() {
    if let Some(role) = child::role() {
        return use_often_and_close(Path::new(&role));
    }
    let folder = folder_of_pages();
    let test = "system_calls::cpus_are_fenced_once_for_many_pages_of_a_file_that_is_closed";
    let trace = match traced(test, "trace=write,membarrier", folder.path()) {
        Ok(trace) => trace,
        Err(reason) => return println!("skipped: strace: {reason}"),
    };
    let (before, after) = trace.split_once("\"begins").unwrap();
    let (between, _) = after.split_once("\"ends").unwrap();
    let nr_fences = |trace: &str| trace.matches(" membarrier(").count();
    // The first call is for leave to fence.
    if nr_fences(before) == 0 {
        return println!("skipped: restartable sequences: no leave to fence was asked for");
    }
    // A CPU that is isolated for itself has none, and others are fenced one by one then.
    let nr_cpus = std::thread::available_parallelism().unwrap().get();
    let most = usize::try_from(NR_READ).unwrap() / 64 * nr_cpus;
    assert!((1..=most).contains(&nr_fences(between)), "{trace}");
}
