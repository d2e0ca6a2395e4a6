//! What a run took: instructions and cache misses by cachegrind, system calls by strace.

use crate::failure::Failure;
use crate::scratch;
use std::io::ErrorKind;
use std::process::{Command, Output, Stdio};

/// Instructions, and misses of the last level, of a run of this program with these arguments.
/// `None` where there is no valgrind.
pub(super) fn cachegrind(args: &[&str]) -> Result<Option<[i64; 2]>, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::of("cannot count instructions", error);
    let out = scratch::empty().map_err(|error| failed(&error))?;
    let path = scratch::path_of(&out);
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=cachegrind", "--cache-sim=yes", "--quiet"])
        // Smaller than the records of a large file's frames, which are larger than any cache.
        .arg("--LL=1048576,16,64")
        .arg(format!("--cachegrind-out-file={}", path.display()))
        .arg(program)
        .args(args);
    if output_of(&mut command)?.is_none() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    Ok(summary(&text))
}

/// What a tool that counts wrote; `None` where there is no such tool.
///
/// # Errors
/// What it said, where it failed, or the program that it ran.
pub(super) fn output_of(command: &mut Command) -> Result<Option<Output>, Failure> {
    let tool = command.get_program().display().to_string();
    let done = match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::of(&format!("cannot run {tool}"), &error)),
        Ok(done) => done,
    };
    match done.status.success() {
        true => Ok(Some(done)),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            let (status, said) = (done.status, said.trim());
            Err(Failure::Run(format!("{tool} ended with {status}: {said}")))
        }
    }
}

/// Whether strace is there and the system lets it trace anything.
fn may_trace() -> bool {
    let mut command = Command::new("strace");
    let traced = command.args(["-o", "/dev/null", "true"]).output();
    traced.is_ok_and(|done| done.status.success())
}

/// System calls of a run of this program with these arguments, of all its threads, between those
/// that write these lines to its output. `None` where there is no strace, or it may not trace.
pub(super) fn system_calls(args: &[&str], begin: &str, end: &str) -> Result<Option<u64>, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::of("cannot count system calls", error);
    let out = scratch::empty().map_err(|error| failed(&error))?;
    let path = scratch::path_of(&out);
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new("strace");
    command.args(["-f", "-s", "256", "-o"]).arg(&path);
    command.arg(program).args(args);
    if !may_trace() || output_of(&mut command)?.is_none() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    Ok(calls_between(&text, begin, end))
}

/// Lines of strace's output between those that write `begin` and `end`.
fn calls_between(text: &str, begin: &str, end: &str) -> Option<u64> {
    let is_write = |line: &str, what| line.contains("write(1, ") && line.contains(what);
    let mut lines = text.lines().skip_while(|line| !is_write(line, begin));
    lines.next()?;
    let mut nr_calls = 0;
    for line in lines {
        if is_write(line, end) {
            return Some(nr_calls);
        }
        // A call that another thread's came between has two lines; signals and exits are none.
        let is_call = line.contains('(') && !line.contains("resumed>");
        nr_calls += u64::from(is_call && !line.contains(" --- ") && !line.contains(" +++ "));
    }
    None
}

/// `events: Ir I1mr ILmr ...` names the columns of `summary: ...`.
fn summary(text: &str) -> Option<[i64; 2]> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let names: Vec<&str> = line("events:")?.split_whitespace().collect();
    let counts = line("summary:")?.split_whitespace();
    let counts: Vec<i64> = counts
        .map(|count| count.parse().ok())
        .collect::<Option<_>>()?;
    let of = |wanted: &[&str]| {
        let pairs = names.iter().zip(&counts);
        pairs
            .filter(|(name, _)| wanted.contains(name))
            .map(|(_, count)| count)
            .sum()
    };
    Some([of(&["Ir"]), of(&["ILmr", "DLmr", "DLmw"])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_fails_is_told_from_one_that_is_not_there() {
        let missing = output_of(&mut Command::new("/nonexistent/valgrind"));
        assert!(missing.expect("nothing failed").is_none());
        let script = "echo no room >&2; exit 3";
        let failed = output_of(Command::new("sh").args(["-c", script]));
        let failed = failed.expect_err("it failed").to_string();
        assert_eq!(failed, "sh ended with exit status: 3: no room");
    }

    #[test]
    fn the_summary_of_cachegrind() {
        let text = "events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\nsummary: 9 8 1 6 5 2 3 2 4\n";
        assert_eq!(summary(text), Some([9, 7]));
        assert_eq!(summary("summary: 1"), None);
    }

    #[test]
    fn the_calls_of_strace() {
        let text = "7 write(1, \"it begins\\n\", 10) = 10\n7 madvise(0x7f, 9, 4) = 0\n\
                    7 futex(0x1 <unfinished ...>\n8 read(3 <unfinished ...>\n\
                    7 <... futex resumed>) = 0\n7 --- SIGALRM {} ---\n8 +++ exited with 0 +++\n\
                    7 write(1, \"it ends\\n\", 8) = 8\n7 close(3) = 0\n";
        assert_eq!(calls_between(text, "it begins", "it ends"), Some(3));
        assert_eq!(calls_between(text, "it begins", "it never ends"), None);
        assert_eq!(calls_between(text, "it never begins", "it ends"), None);
    }
}
