//! What the kernel tells of the memory of this process.

use std::fs;

/// A line of `/proc/self/status` in bytes.
pub(crate) fn status_bytes(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.unwrap().trim_start_matches(':').trim();
    kib.strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}
