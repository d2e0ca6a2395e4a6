//! A memory cgroup of a test's own, where the machine lets it have one.

use crate::child;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, process, thread};

/// A cgroup below that of this process; gone when dropped.
pub(crate) struct TestGroup {
    folder: PathBuf,
    limit_file: &'static str,
}

impl TestGroup {
    fn make(folder: PathBuf, limit_file: &'static str) -> Result<TestGroup, String> {
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(TestGroup { folder, limit_file })
    }

    /// A group with a limit, or why there can be none. `name` tells it from other tests'.
    pub(crate) fn limited(name: &str, limit: u64) -> Result<TestGroup, String> {
        let (own, limit_file) = own_folder().ok_or("no memory cgroups are mounted")?;
        let folder = own.join(format!("pagetide-test-{name}-{}", process::id()));
        let group = TestGroup::make(folder, limit_file)?;
        let file = group.file();
        if !file.exists() {
            return Err("the memory controller is not on for children of this group".to_owned());
        }
        fs::write(&file, limit.to_string()).map_err(|error| format!("set a limit: {error}"))?;
        Ok(group)
    }

    /// A group below this one.
    pub(crate) fn inner(&self) -> TestGroup {
        TestGroup::make(self.folder.join("inner"), self.limit_file).unwrap()
    }

    /// Where the limit stands.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join(self.limit_file)
    }

    /// Times that a charge met the limit.
    pub(crate) fn nr_refused(&self) -> u64 {
        if let Ok(count) = fs::read_to_string(self.folder.join("memory.failcnt")) {
            return count.trim().parse().unwrap();
        }
        let events = fs::read_to_string(self.folder.join("memory.events")).unwrap();
        let max = events.lines().find_map(|line| line.strip_prefix("max "));
        max.unwrap().parse().unwrap()
    }

    /// Runs one test in a process inside; returns what it said. `before` is run by the shell
    /// that becomes it.
    pub(crate) fn run(&self, before: &str, test: &str, role: &str) -> String {
        let procs = self.folder.join("cgroup.procs");
        let enter = format!("{before} && echo $$ > '{}'", procs.display());
        child::run_after(&enter, test, role)
    }
}

/// Bytes charged to the group whose limit stands in this file.
pub(crate) fn usage(limit_file: &Path) -> u64 {
    let folder = limit_file.parent().unwrap();
    let files = ["memory.usage_in_bytes", "memory.current"];
    let text = files
        .iter()
        .find_map(|file| fs::read_to_string(folder.join(file)).ok());
    text.unwrap().trim().parse().unwrap()
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        // Its last process may not have left quite yet.
        let is_gone = (0..500).any(|_| {
            fs::remove_dir(&self.folder).is_ok() || {
                thread::sleep(Duration::from_millis(10));
                false
            }
        });
        assert!(
            is_gone || thread::panicking(),
            "{} is left",
            self.folder.display()
        );
    }
}

/// This process's folder in the memory controller's hierarchy, and the name of the limit's file.
fn own_folder() -> Option<(PathBuf, &'static str)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let v1 = groups.lines().find_map(|line| line.split_once(":memory:"));
    let v2 = || groups.lines().find_map(|line| line.strip_prefix("0::"));
    let (path, wanted, limit_file) = match v1 {
        Some((_, path)) => (path, " - cgroup ", "memory.limit_in_bytes"),
        None => (v2()?, " - cgroup2 ", "memory.max"),
    };
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_at(line.find(wanted)?);
        let fields: Vec<&str> = place.split(' ').collect();
        let is_memory = v1.is_none() || kind.ends_with(",memory");
        let below = Path::new(path).strip_prefix(fields[3]).ok()?;
        is_memory.then(|| (Path::new(fields[4]).join(below), limit_file))
    })
}
