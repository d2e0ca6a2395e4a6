//! A limit of time: what hangs is ended, with all that it started.

use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Looks at a process; dropped unfinished, it looks no longer.
pub(crate) struct Watch {
    ended: Sender<()>,
    watcher: JoinHandle<bool>,
}

impl Watch {
    /// Ends all descendants of process `root` after `limit`, but not `root`.
    pub(crate) fn start(root: u32, limit: Duration) -> Watch {
        let (ended, watched) = mpsc::channel();
        let watcher = thread::spawn(move || {
            let is_late = watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if is_late {
                end_descendants(root);
            }
            is_late
        });
        Watch { ended, watcher }
    }

    /// Looks no longer; whether the limit was met before.
    pub(crate) fn finish(self) -> bool {
        drop(self.ended);
        self.watcher.join().unwrap_or(true)
    }
}

/// Kills all that a process started, but not itself: parents first, so that none starts another.
pub(crate) fn end_descendants(root: u32) {
    let parents = parents();
    let mut family = vec![root];
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        let children = parents.iter().filter(|&(_, &of)| of == parent);
        family.extend(children.map(|(&child, _)| child));
        at += 1;
    }
    for &process in &family[1..] {
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        // One that has ended by itself is no fault.
        let _gone = pid.map(|pid| kill_process(pid, Signal::KILL));
    }
}

/// The parent of each process.
fn parents() -> HashMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |process| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        Some((process, parse_parent(&stat)?))
    };
    numbers.filter_map(parent).collect()
}

/// The second field after the name, which stands in brackets and may hold anything.
fn parse_parent(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn parents_are_read_behind_any_name() {
        assert_eq!(parse_parent("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(parse_parent("12"), None);
    }

    #[test]
    fn what_hangs_is_ended_with_its_children() {
        // The shell waits for both, and ends by itself once they are gone.
        let script = "sh -c 'sleep 600 & wait' & sleep 600; wait";
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", script]).spawn().expect("a shell");
        let began = Instant::now();
        let watch = Watch::start(child.id(), Duration::from_millis(300));
        child.wait().expect("it ends");
        assert!(watch.finish());
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn what_ends_in_time_is_not_late() {
        assert!(!Watch::start(u32::MAX, Duration::from_secs(600)).finish());
    }
}
