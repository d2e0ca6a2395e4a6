//! A memory cgroup below that of this process, version 1 or 2.

use crate::failure::Failure;
use std::fs;
use std::path::{Path, PathBuf};

/// Limit and usage, by version.
const FILES: [(&str, &str); 2] = [
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("memory.max", "memory.current"),
];

/// Makes one.
///
/// # Errors
/// Why there can be none.
pub(super) fn make(name: &str) -> Result<PathBuf, String> {
    let own = own_folder().ok_or("no memory cgroups are mounted")?;
    let folder = own.join(name);
    fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if files(&folder).is_none() {
        let _gone = fs::remove_dir(&folder);
        return Err("the memory controller is not on for children of this cgroup".to_owned());
    }
    Ok(folder)
}

fn files(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut files = FILES.iter();
    let (limit, usage) = files.find(|(limit, _)| folder.join(limit).exists())?;
    Some((folder.join(limit), folder.join(usage)))
}

fn failed(what: &str, error: &std::io::Error) -> Failure {
    Failure::of(&format!("cannot {what} the memory cgroup"), error)
}

/// Moves this process there: what it allocates from now on is charged to it.
pub(super) fn enter(folder: &Path) -> Result<(), Failure> {
    let own = std::process::id().to_string();
    fs::write(folder.join("cgroup.procs"), own).map_err(|error| failed("enter", &error))
}

/// Limits it to so many bytes more than it has.
pub(super) fn leave_room(folder: &Path, nr_bytes: u64) -> Result<(), Failure> {
    let limit = usage(folder)? + nr_bytes;
    let (file, _) = files(folder).ok_or_else(|| Failure::Run("no memory cgroup".to_owned()))?;
    fs::write(file, limit.to_string()).map_err(|error| failed("limit", &error))
}

/// Bytes charged to it.
pub(super) fn usage(folder: &Path) -> Result<u64, Failure> {
    let (_, file) = files(folder).ok_or_else(|| Failure::Run("no memory cgroup".to_owned()))?;
    let text = fs::read_to_string(file).map_err(|error| failed("read", &error))?;
    let bytes = text.trim().parse();
    bytes.map_err(|error| Failure::of("the usage of a memory cgroup is no number", &error))
}

/// This process's folder in the memory controller's hierarchy.
fn own_folder() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let v1 = groups.lines().find_map(|line| line.split_once(":memory:"));
    let v2 = || groups.lines().find_map(|line| line.strip_prefix("0::"));
    let (path, wanted) = match v1 {
        Some((_, path)) => (path, " - cgroup "),
        None => (v2()?, " - cgroup2 "),
    };
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_at(line.find(wanted)?);
        let fields: Vec<&str> = place.split(' ').collect();
        let is_memory = v1.is_none() || kind.ends_with(",memory");
        let below = Path::new(path).strip_prefix(fields.get(3)?).ok()?;
        is_memory.then(|| Path::new(fields[4]).join(below))
    })
}
