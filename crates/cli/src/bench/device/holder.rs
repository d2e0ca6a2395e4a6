//! What a benchmark borrows from the machine: a RAM-backed block device with a file system on it, a
//! memory cgroup. Held by a process of its own (`bench/held.rs`).

use super::cgroup;
use crate::args::HolderArgs;
use crate::bench::held::{self, Held};
use crate::failure::Failure;
use crate::output;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CONTROL: &str = "/sys/class/zram-control";
/// How long what is borrowed may be in use after its user ended.
const PATIENCE: Duration = Duration::from_secs(30);
/// For the file system's own records.
const EXTRA: u64 = 32 << 20;
/// File systems that take direct reads, and how they are made; the first one that is there.
const MAKERS: [&[&str]; 2] = [
    &[
        "mkfs.ext4",
        "-q",
        "-F",
        "-m0",
        "-O^has_journal",
        "-Elazy_itable_init=0,nodiscard",
    ],
    &["mkfs.xfs", "-q", "-f", "-K"],
];

/// What there is, or why it is not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Loan {
    /// Where the file system is mounted; asked for or not.
    pub(super) folder: Option<Result<PathBuf, String>>,
    /// The block device's folder in sysfs.
    pub(super) device: Option<PathBuf>,
    pub(super) cgroup: Result<PathBuf, String>,
}

/// The other side of a holder.
pub(super) struct Holder {
    held: Held,
    pub(super) loan: Loan,
}

impl Holder {
    /// Borrows a memory cgroup, and a device with room for so many bytes of files.
    pub(super) fn start(zram_bytes: Option<u64>) -> Result<Holder, Failure> {
        let step = "cannot borrow from the machine";
        let (held, loan) = Held::start(step, "device-holder", |command| {
            if let Some(bytes) = zram_bytes {
                command.arg("--zram-bytes").arg(bytes.to_string());
            }
        })?;
        Ok(Holder { held, loan })
    }

    /// Gives everything back. Nothing of it is in use any more.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        match self.held.end() {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(Failure::Run(
                "not all was given back to the machine".to_owned(),
            )),
            Err(error) => Err(Failure::of("cannot give back to the machine", &error)),
        }
    }
}

/// The process that holds.
pub(in crate::bench) fn serve(args: &HolderArgs) -> Result<(), Failure> {
    let zram = args.zram_bytes.map(Zram::make);
    let name = format!("pagetide-bench-{}", std::process::id());
    let cgroup = cgroup::make(&name);
    let (folder, device) = match &zram {
        None => (None, None),
        Some(Ok(zram)) => (Some(Ok(zram.mount.path().to_owned())), Some(zram.sysfs())),
        Some(Err(reason)) => (Some(Err(reason.clone())), None),
    };
    let told = output::json(&Loan {
        folder,
        device,
        cgroup: cgroup.clone(),
    });
    held::wait_for_end(told.is_ok());
    let removed = cgroup.map_or(Ok(()), |folder| {
        patiently(|| fs::remove_dir(&folder))
            .map_err(|error| Failure::of(&format!("cannot remove {}", folder.display()), &error))
    });
    let unplugged = match zram {
        Some(Ok(zram)) => zram.remove(),
        _ => Ok(()),
    };
    told.and(removed).and(unplugged)
}

/// Tries until it works, or for long.
fn patiently(step: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match step() {
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
}

/// Runs a command that says nothing unless it fails.
fn run(command: &mut Command) -> io::Result<()> {
    let done = command.stdin(Stdio::null()).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&done.stderr)
                .trim()
                .replace('\n', ", "),
        )),
    }
}

/// A block device in memory, with a file system.
struct Zram {
    number: u32,
    mount: tempfile::TempDir,
    is_mounted: bool,
}

impl Zram {
    /// # Errors
    /// Why there can be none; then there is none.
    fn make(bytes: u64) -> Result<Zram, String> {
        let told = |what: &str, error: &dyn std::error::Error| format!("{what}: {error}");
        // Before the device: what fails from there on has to remove it.
        let mount = tempfile::Builder::new()
            .prefix("pagetide-zram")
            .tempdir()
            .map_err(|error| told("no folder to mount it", &error))?;
        let number = fs::read_to_string(format!("{CONTROL}/hot_add"));
        let number = number.map_err(|error| told("no zram device", &error))?;
        let number = number
            .trim()
            .parse()
            .map_err(|error| told("no zram device", &error))?;
        let mut zram = Zram {
            number,
            mount,
            is_mounted: false,
        };
        match zram.set_up(bytes) {
            Ok(()) => Ok(zram),
            Err(error) => match zram.remove() {
                Ok(()) => Err(error.to_string()),
                Err(left) => Err(format!("{error}; and {left}")),
            },
        }
    }

    fn sysfs(&self) -> PathBuf {
        format!("/sys/block/zram{}", self.number).into()
    }

    fn device(&self) -> PathBuf {
        format!("/dev/zram{}", self.number).into()
    }

    fn set_up(&mut self, bytes: u64) -> io::Result<()> {
        let size = bytes + bytes / 16 + EXTRA;
        fs::write(self.sysfs().join("disksize"), size.to_string())?;
        let device = self.device();
        patiently(|| fs::metadata(&device).map(drop))?;
        let is_there = |maker: &&&[&str]| {
            let paths = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&paths).any(|folder| folder.join(maker[0]).exists())
        };
        let maker = MAKERS.iter().find(is_there);
        let maker = maker.ok_or_else(|| io::Error::other("neither mkfs.ext4 nor mkfs.xfs"))?;
        run(Command::new(maker[0]).args(&maker[1..]).arg(&device))?;
        run(Command::new("mount").arg(&device).arg(self.mount.path()))?;
        self.is_mounted = true;
        Ok(())
    }

    fn remove(self) -> Result<(), Failure> {
        let failed = |what: &Path, error: io::Error| {
            Failure::of(&format!("cannot remove {}", what.display()), &error)
        };
        if self.is_mounted {
            let folder = self.mount.path();
            patiently(|| run(Command::new("umount").arg(folder)))
                .map_err(|error| failed(folder, error))?;
        }
        let number = self.number.to_string();
        patiently(|| fs::write(format!("{CONTROL}/hot_remove"), &number))
            .map_err(|error| failed(&self.device(), error))
    }
}
