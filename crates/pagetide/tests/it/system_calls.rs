//! What reaches the kernel: a `sync` makes durable what was written before it, and the name of a
//! file that was created. Seen by strace, in a process of its own.

use crate::child;
use pagetide::{ByteSize, Memory, OpenOptions};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

const PAGE: usize = 4096;

/// Says so in a system call of its own.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Creates a file, writes it, syncs it; writes on, syncs again; has nothing to sync.
fn write_and_sync(folder: &Path) {
    let memory = Memory::builder().budget(ByteSize::mib(8)).build().unwrap();
    let options = OpenOptions::new().write(true).create(true);
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
fn traced(folder: &Path, out: &Path) -> Result<String, String> {
    let test = "system_calls::a_sync_makes_bytes_and_name_durable";
    let child = child::command(test, folder.to_str().unwrap());
    let calls = "trace=write,pwrite64,pwritev,pwritev2,fsync,fdatasync,ftruncate,io_uring_enter";
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
    if let Some(role) = child::role() {
        return write_and_sync(Path::new(&role));
    }
    if child::is_sanitized() {
        return println!("skipped: strace: the sanitizer's leak check cannot run under it");
    }
    let folder = tempfile::tempdir().unwrap();
    let folder_path = folder.path().canonicalize().unwrap();
    let trace = match traced(&folder_path, &folder.path().join("trace")) {
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
