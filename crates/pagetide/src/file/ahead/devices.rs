//! How far the readers of a file are read ahead where nobody says: as far as the kernel would.

use crate::shared::locked;
use std::fs;
use std::sync::Mutex;

/// Bytes, of a device that nobody set. Source: the kernel's `VM_READAHEAD_PAGES`.
const USUAL: u64 = 128 << 10;
/// Bytes at most, whatever the device is set to: a reader who begins a window looks for memory for
/// all of it at once, and more is hardly faster (`docs/readahead.md`).
const MOST: u64 = 2 << 20;

/// What is said of a memory's files, and what their devices say.
#[derive(Debug)]
pub(super) struct Devices {
    /// Bytes for one reader at most, where the memory's owner named them.
    given: Option<u64>,
    /// By the numbers of those that were asked: few.
    found: Mutex<Vec<(u64, u64)>>,
}

impl Devices {
    pub(super) const fn new(given: Option<u64>) -> Devices {
        Devices {
            given,
            found: Mutex::new(Vec::new()),
        }
    }

    /// Bytes that are read ahead of one reader of a file at most, where its handle says nothing
    /// else; the file is on this device, or is none of the system's.
    pub(super) fn max_bytes(&self, device: Option<u64>) -> u64 {
        self.given.unwrap_or_else(|| match device {
            Some(device) => self.of_device(device),
            None => USUAL,
        })
    }

    /// Asks each device once.
    fn of_device(&self, device: u64) -> u64 {
        let mut found = locked(&self.found);
        if let Some(&(_, bytes)) = found.iter().find(|(number, _)| *number == device) {
            return bytes;
        }
        let bytes = set_to(device).map_or(USUAL, |bytes| bytes.min(MOST));
        found.push((device, bytes));
        bytes
    }
}

/// Bytes that the kernel reads ahead of readers of this device; `None` where that cannot be told,
/// as of some file systems of several devices.
fn set_to(device: u64) -> Option<u64> {
    let number = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    let places = [
        format!("/sys/dev/block/{number}/queue/read_ahead_kb"),
        // Of a partition, the whole disk's.
        format!("/sys/dev/block/{number}/../queue/read_ahead_kb"),
        // NFS, FUSE and others have no device.
        format!("/sys/class/bdi/{number}/read_ahead_kb"),
    ];
    let text = places
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())?;
    let kib: u64 = text.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_owner_says_goes_before_what_the_device_is_set_to() {
        let given = Devices::new(Some(4096));
        assert_eq!([given.max_bytes(None), given.max_bytes(Some(0))], [4096; 2]);
        assert!(given.found.lock().unwrap().is_empty());
    }

    #[test]
    fn a_device_is_asked_once_and_one_that_says_nothing_is_a_usual_one() {
        let devices = Devices::new(None);
        assert_eq!(devices.max_bytes(None), USUAL);
        // No device has this number.
        let nobodys = rustix::fs::makedev(4095, 1_048_575);
        assert_eq!(devices.max_bytes(Some(nobodys)), USUAL);
        assert_eq!(*devices.found.lock().unwrap(), [(nobodys, USUAL)]);
        devices.found.lock().unwrap()[0].1 = 5;
        assert_eq!(devices.max_bytes(Some(nobodys)), 5);
    }

    #[test]
    fn disks_are_read_as_far_ahead_as_they_are_set_to() {
        let mut nr_disks = 0;
        let disks = fs::read_dir("/sys/block").into_iter().flatten();
        for disk in disks.flatten().map(|disk| disk.path()) {
            let read = |name: &str| fs::read_to_string(disk.join(name)).ok();
            let (Some(number), Some(kib)) = (read("dev"), read("queue/read_ahead_kb")) else {
                continue;
            };
            let (major, minor) = number.trim().split_once(':').unwrap();
            let number = rustix::fs::makedev(major.parse().unwrap(), minor.parse().unwrap());
            let bytes = kib.trim().parse::<u64>().unwrap() << 10;
            let (told, read_ahead) = (set_to(number), Devices::new(None).max_bytes(Some(number)));
            // Others' may go, or be set, meanwhile.
            if read("queue/read_ahead_kb").as_ref() == Some(&kib) {
                assert_eq!(told, Some(bytes), "{}", disk.display());
                assert_eq!(read_ahead, bytes.min(MOST));
                nr_disks += 1;
            }
        }
        if nr_disks == 0 {
            println!("skipped: a device's readahead: no disk in `/sys/block`");
        }
    }
}
