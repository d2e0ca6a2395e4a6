//! Instructions and cache misses of a run, by cachegrind.

use crate::failure::Failure;
use std::process::Command;

/// Instructions, and misses of the last level, of a run of this program with these arguments.
/// `None` where there is no valgrind.
pub(super) fn cachegrind(args: &[&str]) -> Result<Option<[i64; 2]>, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::of("cannot count instructions", error);
    let out = tempfile::NamedTempFile::new().map_err(|error| failed(&error))?;
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=cachegrind", "--cache-sim=yes", "--quiet"])
        // Smaller than the records of a large file's frames, which are larger than any cache.
        .arg("--LL=1048576,16,64")
        .arg(format!("--cachegrind-out-file={}", out.path().display()))
        .arg(program)
        .args(args);
    match command.output() {
        Ok(done) if done.status.success() => {}
        _ => return Ok(None),
    }
    let text = std::fs::read_to_string(out.path()).map_err(|error| failed(&error))?;
    Ok(summary(&text))
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
    fn the_summary_of_cachegrind() {
        let text = "events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\nsummary: 9 8 1 6 5 2 3 2 4\n";
        assert_eq!(summary(text), Some([9, 7]));
        assert_eq!(summary("summary: 1"), None);
    }
}
