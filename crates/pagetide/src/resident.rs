//! Resident memory of this process.

use std::fs;
use std::io;

/// Bytes of memory of this process that are resident and its own: `RssAnon + RssShmem` of
/// `/proc/self/status`. The page cache of the kernel and mapped files do not count.
///
/// # Errors
/// Where the file cannot be read or has no such lines.
pub fn resident_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = |name| status.lines().find_map(|line| kib_of(line, name));
    match (kib("RssAnon:"), kib("RssShmem:")) {
        (Some(anon), Some(shmem)) => Ok((anon + shmem) * 1024),
        _ => Err(io::Error::other(
            "/proc/self/status has no RssAnon and RssShmem",
        )),
    }
}

fn kib_of(line: &str, name: &str) -> Option<u64> {
    line.strip_prefix(name)?
        .trim()
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_status() {
        assert_eq!(kib_of("RssAnon:\t    1234 kB", "RssAnon:"), Some(1234));
        assert_eq!(kib_of("RssFile:\t    1234 kB", "RssAnon:"), None);
    }

    #[test]
    fn written_memory_is_resident() {
        // Other tests' memory comes and goes meanwhile, but not each time.
        let is_seen = (0..10).any(|_| {
            let before = resident_bytes().unwrap();
            let _block = std::hint::black_box(vec![1_u8; 32 << 20]);
            resident_bytes().unwrap() >= before + (30 << 20)
        });
        assert!(is_seen);
    }
}
