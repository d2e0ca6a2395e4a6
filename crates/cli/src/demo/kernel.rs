//! The same reads through the kernel's page cache, in a memory cgroup of the budget's size.
//!
//! The reads are done by a process of their own, which this one puts into the cgroup: the pages
//! that it brings in are charged there. What is a hit the kernel says itself: a read that must not
//! wait (`RWF_NOWAIT`) is refused where the page is not there.

use super::PAGE;
use super::beside::Beside;
use super::stage::BUDGET;
use super::tenants::{batch_pages, web_pages};
use crate::args::KernelCacheArgs;
use crate::failure::{self, Failure};
use crate::output::Skipped;
use crate::{load, output, scratch, threads};
use hdrhistogram::Histogram;
use pagetide::PAGE_BYTES;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, IoSliceMut, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A memory cgroup of the budget's size below that of this process; gone when dropped.
pub(super) struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// One, or why there can be none.
    pub(super) fn of_budget() -> Result<Cgroup, Failure> {
        let limit = BUDGET.as_u64();
        let (own, limit_file) =
            own_folder().ok_or_else(|| Failure::Run("no memory cgroups are mounted".to_owned()))?;
        let folder = own.join(format!("pagetide-demo-{}", std::process::id()));
        let step = || {
            let folder = folder.display();
            format!("cannot make a memory cgroup for --kernel at {folder} (it mostly takes root)")
        };
        fs::create_dir(&folder).map_err(|error| Failure::of(&step(), &error))?;
        let group = Cgroup {
            folder: folder.clone(),
        };
        let limited = fs::write(folder.join(limit_file), limit.to_string());
        limited.map_err(|error| Failure::of(&step(), &error))?;
        Ok(group)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its last process may not have left quite yet.
        let is_gone = (0..200).any(|_| {
            let is_gone = fs::remove_dir(&self.folder).is_ok();
            if !is_gone {
                std::thread::sleep(Duration::from_millis(10));
            }
            is_gone
        });
        if !is_gone {
            failure::tell(&format!("warning: {} is left", self.folder.display()));
        }
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
        let below = Path::new(path).strip_prefix(fields.get(3)?).ok()?;
        is_memory.then(|| (Path::new(fields[4]).join(below), limit_file))
    })
}

/// # Errors
/// Why the file system cannot say whether a page is there: `tmpfs` cannot.
pub(super) fn try_nowait(data: &File) -> io::Result<()> {
    let mut byte = [0];
    let mut buffers = [IoSliceMut::new(&mut byte)];
    match preadv2(data, &mut buffers, 0, ReadWriteFlags::NOWAIT) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The kernel's page cache was left out; all else of the demo is told.
pub(super) fn skipped(reason: &dyn Error) -> Skipped {
    let reason = failure::chain(reason);
    Skipped::new("the kernel's page cache", &reason)
}

/// Runs the phases `warm` and `scan`.
pub(super) fn run(group: &Cgroup, data: &File, phase: Duration) -> Result<Beside, Failure> {
    let step = "cannot run the process that reads through the kernel's page cache";
    let failed = |error: io::Error| Failure::of(step, &error);
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .arg("kernel-cache")
        .arg(scratch::path_of(data))
        .arg(phase.as_millis().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // It begins to read when its input ends: not before it is inside.
    let entered = fs::write(group.folder.join("cgroup.procs"), child.id().to_string());
    if let Err(error) = entered {
        let _killed = child.kill();
        let _waited = child.wait();
        return Err(failed(error));
    }
    let output = child.wait_with_output().map_err(failed)?;
    let found = serde_json::from_slice(&output.stdout);
    match output.status.success() {
        true => found.map_err(|error| Failure::of(step, &error)),
        false => Err(Failure::Run(format!(
            "{step}: it ended with {}",
            output.status
        ))),
    }
}

/// `pagetide kernel-cache`: what runs inside.
pub(crate) fn inside(args: &KernelCacheArgs) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::of("cannot read the data file", &error);
    let mut waits = Vec::new();
    io::stdin().read_to_end(&mut waits).map_err(failed)?;
    let open = || File::open(&args.file);
    let (web, batch) = (open().map_err(failed)?, open().map_err(failed)?);
    // As the demo's own: `batch` is read ahead.
    fadvise(&web, 0, None, Advice::Random).map_err(|error| failed(error.into()))?;
    let phase = Duration::from_millis(args.phase_ms);
    // Pages that others cached are charged to those.
    fadvise(&web, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))?;
    let [_, _] = load_for(phase / 2, &web, None).map_err(failed)?;
    let [warm, _] = load_for(phase, &web, None).map_err(failed)?;
    let [scan, of_batch] = load_for(phase, &web, Some(&batch)).map_err(failed)?;
    output::json(&Beside {
        beside: "the kernel's page cache".to_owned(),
        web_hit_ratio_warm: output::rounded(warm.hit_ratio()),
        web_hit_ratio_scan: output::rounded(scan.hit_ratio()),
        web_ns_p99_warm: warm.latency.value_at_quantile(0.99),
        web_ns_p99_scan: scan.latency.value_at_quantile(0.99),
        batch_requests: of_batch.latency.len(),
        seen: None,
    })
}

struct Reads {
    latency: Histogram<u64>,
    nr_misses: u64,
}

impl Reads {
    fn hit_ratio(&self) -> f64 {
        1.0 - self.nr_misses as f64 / self.latency.len().max(1) as f64
    }
}

fn load_for(how_long: Duration, web: &File, batch: Option<&File>) -> io::Result<[Reads; 2]> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let web = threads::start_or_end(scope, || read(web, web_pages(), &stop));
        let batch = threads::start_or_end(scope, || match batch {
            Some(batch) => read(batch, batch_pages(), &stop),
            None => read(&File::open("/dev/null")?, std::iter::empty(), &stop),
        });
        std::thread::sleep(how_long);
        stop.store(true, Ordering::Relaxed);
        let [web, batch] = [web, batch].map(|tenant| tenant.join().expect("it does not panic"));
        Ok([web?, batch?])
    })
}

fn read(file: &File, pages: impl Iterator<Item = u64>, stop: &AtomicBool) -> io::Result<Reads> {
    let mut reads = Reads {
        latency: load::histogram(),
        nr_misses: 0,
    };
    let mut bytes = vec![0; PAGE_BYTES];
    for page in pages {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let before = Instant::now();
        let mut read = |flags| {
            let mut buffers = [IoSliceMut::new(&mut bytes)];
            preadv2(file, &mut buffers, page * PAGE, flags)
        };
        match read(ReadWriteFlags::NOWAIT) {
            Ok(PAGE_BYTES) => (),
            // Part of it, or nothing: it is read as others would.
            Ok(_) | Err(Errno::AGAIN) => {
                reads.nr_misses += 1;
                read(ReadWriteFlags::empty())?;
            }
            Err(error) => return Err(error.into()),
        }
        let nanos = u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX);
        reads.latency.saturating_record(nanos);
    }
    Ok(reads)
}
